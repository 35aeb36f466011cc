// SPDX-License-Identifier: Apache-2.0
// Under TSR_BATCH_INVARIANT a query with large scores, from its values or its bias, changes no bit of the other
// queries: only that row takes the slower path for scores beyond a limit. Every variant, dtype and instruction set.
#include <math.h>

#include "test_support.h"

enum { QUERIES = 48, KEYS = 200, DIM = 64, ROW = 5, NUMEL_Q = QUERIES * DIM, NUMEL_K = KEYS * DIM };

struct results {
    float out[NUMEL_Q], lse[QUERIES], dq[NUMEL_Q]; // room for fp32
};
static float q[NUMEL_Q], k[NUMEL_K], v[NUMEL_K], dout[NUMEL_Q], bias[QUERIES * KEYS];
static float dk[NUMEL_K], dv[NUMEL_K];

static void fill(tsr_dtype dtype, float *x, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) tsr_store(dtype, x, i, (double)test_float(&seed) / 4);
}

static tsr_status run(tsr_context *ctx, tsr_dtype dtype, const char *forward, const char *backward,
                      struct results *r) {
    const tsr_tensor of_q = TSR_TENSOR(q, dtype, 1, QUERIES, 1, DIM),
                     of_k = TSR_TENSOR(k, dtype, 1, KEYS, 1, DIM),
                     of_v = TSR_TENSOR(v, dtype, 1, KEYS, 1, DIM),
                     of_bias = TSR_TENSOR(bias, TSR_F32, 1, 1, QUERIES, KEYS),
                     out = TSR_TENSOR(r->out, dtype, 1, QUERIES, 1, DIM),
                     lse = TSR_TENSOR(r->lse, TSR_F32, 1, 1, QUERIES);
    memset(r, 0xff, sizeof *r);
    tsr_status status = tsr_attention_forward(
        ctx,
        &TSR_ATTENTION_FORWARD_ARGS(.flags = TSR_BATCH_INVARIANT, .variant = forward, .q = of_q,
                                    .k = of_k, .v = of_v, .bias = of_bias, .out = out, .lse = lse));
    if (status != TSR_OK) return status;
    return tsr_attention_backward(
        ctx,
        &TSR_ATTENTION_BACKWARD_ARGS(.flags = TSR_BATCH_INVARIANT, .variant = backward, .q = of_q,
                                     .k = of_k, .v = of_v, .bias = of_bias, .out = out, .lse = lse,
                                     .dout = TSR_TENSOR(dout, dtype, 1, QUERIES, 1, DIM),
                                     .dq = TSR_TENSOR(r->dq, dtype, 1, QUERIES, 1, DIM),
                                     .dk = TSR_TENSOR(dk, dtype, 1, KEYS, 1, DIM),
                                     .dv = TSR_TENSOR(dv, dtype, 1, KEYS, 1, DIM)));
}

// Compares all rows except ROW.
static void check(const struct results *got, const struct results *expected, tsr_dtype dtype,
                  const char *variant, double size) {
    const size_t bytes = DIM * tsr_dtype_bytes(dtype);
    for (int i = 0; i < QUERIES; i++) {
        const size_t at = (size_t)i * bytes;
        if (i != ROW &&
            (memcmp((const char *)got->out + at, (const char *)expected->out + at, bytes) ||
             memcmp((const char *)got->dq + at, (const char *)expected->dq + at, bytes) ||
             memcmp(&got->lse[i], &expected->lse[i], sizeof(float))))
            fail_msg("%s, %s: query %d has other bits beside one of size %g", variant,
                     tsr_dtype_name(dtype), i, size);
    }
}

static void far_rows(void **state) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const double sizes[] = {300,  3000, 3e4,  -1e4,
                                   -1e6, -1e9, -1e30}; // > 0: scales the row; < 0: its bias
    // Backward's variants have the same names. These promise batch invariance. NULL: the default variant.
    static const char *const variants[] = {NULL, "tuned", "naive", "avx512_bf16", "amx_bf16"};
    static struct results usual, far;
    int num_run = 0;
    (void)state;
    for (int n = 0; n < (TSR_ISA_COUNT - 1) * COUNT(dtypes); n++) {
        const tsr_dtype dtype = dtypes[n % COUNT(dtypes)];
        tsr_context *ctx;
        if (!test_has_isa(1 + n / COUNT(dtypes))) continue;
        assert_ok(tsr_context_create(
            &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)(1 + n / COUNT(dtypes)), .num_threads = 2), &ctx));
        fill(dtype, k, NUMEL_K, 1);
        fill(dtype, v, NUMEL_K, 2);
        fill(dtype, dout, NUMEL_Q, 3);
        for (int i = 0; i < COUNT(variants) * COUNT(sizes); i++) {
            const char *variant = variants[i / COUNT(sizes)];
            const double size = sizes[i % COUNT(sizes)];
            fill(dtype, q, NUMEL_Q, 4);
            memset(bias, 0, sizeof bias);
            if (run(ctx, dtype, variant, variant, &usual) == TSR_UNSUPPORTED) continue;
            for (int d = 0; d < DIM && size > 0; d++)
                tsr_store(dtype, q, ROW * DIM + d, size * tsr_load(dtype, q, ROW * DIM + d));
            for (int j = 0; j < KEYS && size < 0; j++) bias[ROW * KEYS + j] = (float)size;
            assert_ok(run(ctx, dtype, variant, variant, &far));
            check(&far, &usual, dtype, variant != NULL ? variant : "the choice", size);
            num_run++;
        }
        tsr_context_destroy(ctx);
    }
    assert_true(num_run >= 3 * 3 * COUNT(sizes));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(far_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
