// SPDX-License-Identifier: Apache-2.0
// Scores far below a row's maximum, whose weights fall from normal numbers to 0. No weight may be subnormal, because a
// product with it would take a hundred times as long. The outputs of every CPU variant and instruction set are checked.
#include <math.h>

#include "test_support.h"

// Key 0 has score 0, key j >= FIRST has -j, all others have -KEYS, so that the sum is 1. Value j is unit vector j.
enum { QUERIES = 17, KEYS = 128, FIRST = 40, DIM = 16 };
enum { SIZE_Q = QUERIES * DIM, SIZE_K = KEYS * DIM, SIZE_V = KEYS * KEYS, SIZE_O = QUERIES * KEYS };

static union element {
    float f32;
    uint16_t bf16[2];
} q[SIZE_Q], k[SIZE_K], v[SIZE_V], out[SIZE_O], dout[SIZE_O], dq[SIZE_Q], dk[SIZE_K], dv[SIZE_V];
static float lse[QUERIES];

// Stores a number of up to eight bits.
static void put(void *tensor, tsr_dtype dtype, int i, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == TSR_F32)
        memcpy((char *)tensor + i * 4, &bits, 4);
    else
        ((uint16_t *)tensor)[i] = (uint16_t)(bits >> 16);
}

static double get(const void *tensor, tsr_dtype dtype, int i) {
    float value;
    uint32_t bits = (uint32_t)((const uint16_t *)tensor)[i] << 16;
    memcpy(&value, dtype == TSR_F32 ? (const void *)((const char *)tensor + i * 4) : &bits, 4);
    return (double)value;
}

static void fill(tsr_dtype dtype) {
    memset(q, 0, sizeof q);
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    memset(dout, 0, sizeof dout);
    memset(out, 0xff, sizeof out);
    memset(dv, 0xff, sizeof dv);
    for (int i = 0; i < QUERIES; i++) put(q, dtype, i * DIM, 1);
    for (int j = 0; j < KEYS; j++) {
        put(k, dtype, j * DIM, -(float)(j == 0 ? 0 : j < FIRST ? KEYS : j));
        put(v, dtype, j * KEYS + j, 1);
    }
    put(dout, dtype, 0, 1);
}

// Checks weight j: e^-j, or 0 below 2^-126. No other value is allowed.
static void check(const char *what, const char *variant, tsr_isa isa, tsr_dtype dtype, int j,
                  double weight) {
    double truth = j == 0 ? 1 : j < FIRST ? 0 : exp(-j);
    bool is_near = fabs(weight - truth) <= (dtype == TSR_F32 ? 1e-5 : 0x1p-7) * truth;
    if (truth < 0x1p-126) is_near = weight == 0;
    if (!is_near)
        fail_msg("%s %s, %s: weight %d is %g, expected %g", what, variant, tsr_isa_name(isa), j,
                 weight, truth);
}

static tsr_isa the_isa;
static tsr_dtype the_dtype;

#define TENSOR(t, ...) TSR_TENSOR(t, the_dtype, 1, __VA_ARGS__)
#define QKV(name)                                                                                  \
    .variant = (name), .softmax_scale = 1, .q = TENSOR(q, QUERIES, 1, DIM),                        \
    .k = TENSOR(k, KEYS, 1, DIM), .v = TENSOR(v, KEYS, 1, KEYS),                                   \
    .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, QUERIES)

static tsr_status run_forward(tsr_context *ctx, const char *name) {
    return tsr_attention_forward(
        ctx, &TSR_ATTENTION_FORWARD_ARGS(QKV(name), .out = TENSOR(out, QUERIES, 1, KEYS)));
}

static tsr_status run_decode(tsr_context *ctx, const char *name) {
    int32_t length = KEYS;
    return tsr_attention_decode(
        ctx, &TSR_ATTENTION_DECODE_ARGS(.variant = name, .softmax_scale = 1,
                                        .q = TENSOR(q, QUERIES, 1, DIM),
                                        .k_cache = TENSOR(k, KEYS, 1, DIM),
                                        .v_cache = TENSOR(v, KEYS, 1, KEYS),
                                        .cache_seqlens = TSR_TENSOR(&length, TSR_I32, 1),
                                        .out = TENSOR(out, QUERIES, 1, KEYS)));
}

// Only query 0 counts: dv is its weights times dout.
static tsr_status run_backward(tsr_context *ctx, const char *name) {
    assert_ok(run_forward(ctx, NULL));
    return tsr_attention_backward(
        ctx, &TSR_ATTENTION_BACKWARD_ARGS(
                 QKV(name), .out = TENSOR(out, QUERIES, 1, KEYS),
                 .dout = TENSOR(dout, QUERIES, 1, KEYS), .dq = TENSOR(dq, QUERIES, 1, DIM),
                 .dk = TENSOR(dk, KEYS, 1, DIM), .dv = TENSOR(dv, KEYS, 1, KEYS)));
}

// Runs every CPU variant except the reference, which keeps subnormal numbers.
static void for_each(const char *op, tsr_status (*run)(tsr_context *, const char *),
                     bool is_backward) {
    static const tsr_isa isas[] = {TSR_ISA_SCALAR, TSR_ISA_AVX2, TSR_ISA_AVX512};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    int num_run = 0;
    for (int a = 0; a < 2 * COUNT(isas); a++) {
        the_isa = isas[a / 2], the_dtype = dtypes[a % 2];
        if (!test_has_isa(the_isa)) continue;
        tsr_context *ctx;
        assert_ok(tsr_context_create(
            &TSR_CONTEXT_OPTIONS(.num_threads = 2, .isa = the_isa, .tuning_file = ""), &ctx));
        tsr_variant_info info;
        for (int i = 0; tsr_variant_info_get(op, i, &info) == TSR_OK; i++) {
            if (info.flags & (TSR_VARIANT_CUDA | TSR_VARIANT_REFERENCE)) continue;
            fill(the_dtype);
            tsr_status status = run(ctx, info.name);
            if (status == TSR_UNSUPPORTED) continue;
            assert_ok(status);
            num_run++;
            for (int n = 0; n < (is_backward ? KEYS : QUERIES * KEYS); n++)
                check(op, info.name, the_isa, the_dtype, n % KEYS,
                      is_backward ? get(dv, the_dtype, n * KEYS) : get(out, the_dtype, n));
        }
        tsr_context_destroy(ctx);
    }
    assert_true(num_run >= 4);
}

static void forward(void **state) {
    (void)state;
    for_each("attention_forward", run_forward, false);
}

static void decode(void **state) {
    (void)state;
    for_each("attention_decode", run_decode, false);
}

static void backward(void **state) {
    (void)state;
    for_each("attention_backward", run_backward, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),
        cmocka_unit_test(decode),
        cmocka_unit_test(backward),
    };
    return cmocka_run_group_tests_name("attention tails", tests, NULL, NULL);
}
