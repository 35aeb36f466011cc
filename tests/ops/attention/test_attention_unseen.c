// SPDX-License-Identifier: Apache-2.0
// More queries than keys under a mask: the first queries see nothing. Their outputs must be 0, and their lse must be
// the sink. Every CPU variant is compared with naive, which processes all rows.
#include <math.h>

#include "test_support.h"

enum { BATCHES = 2, HEADS = 4, KV_HEADS = 2, DIM = 24, DIM_V = 40, MOST_Q = 700, MOST_K = 40 };
enum { GAP = 3 }; // elements between heads of out that must not be written

struct shape {
    int64_t queries, keys;
    tsr_mask mask;
    int64_t window_left, window_right; // -1: none
    bool has_sinks, has_bias;
};

static float q[BATCHES * MOST_Q * HEADS * DIM], k[BATCHES * MOST_K * KV_HEADS * DIM],
    v[BATCHES * MOST_K * KV_HEADS * DIM_V], bias[HEADS * MOST_Q * MOST_K];
static float sinks[HEADS] = {-1, 0.5f, 2, -0.25f};
enum { OUT = BATCHES * MOST_Q * HEADS * (DIM_V + GAP), LSE = BATCHES * HEADS * MOST_Q };
static float out[OUT], expected[OUT], lse[LSE], expected_lse[LSE];

static void fill(tsr_dtype dtype, float *x, int64_t count, uint64_t seed) {
    for (int64_t i = 0; i < count; i++) {
        float value = test_float(&seed);
        if (dtype == TSR_F32)
            x[i] = value;
        else
            tsr_store(dtype, x, i, value);
    }
}

static tsr_status run(tsr_context *ctx, tsr_dtype dtype, const struct shape *s, const char *variant,
                      float *to, float *to_lse) {
    tsr_tensor o = TSR_TENSOR(to, dtype, BATCHES, s->queries, HEADS, DIM_V);
    o.stride[2] = DIM_V + GAP;
    o.stride[1] = HEADS * o.stride[2];
    o.stride[0] = s->queries * o.stride[1];
    tsr_attention_forward_args args =
        TSR_ATTENTION_FORWARD_ARGS(.variant = variant,
                                   .q = TSR_TENSOR(q, dtype, BATCHES, s->queries, HEADS, DIM),
                                   .k = TSR_TENSOR(k, dtype, BATCHES, s->keys, KV_HEADS, DIM),
                                   .v = TSR_TENSOR(v, dtype, BATCHES, s->keys, KV_HEADS, DIM_V),
                                   .out = o,
                                   .lse = TSR_TENSOR(to_lse, TSR_F32, BATCHES, HEADS, s->queries),
                                   .mask = s->mask);
    if (s->window_left >= 0) args.has_window_left = true, args.window_left = s->window_left;
    if (s->window_right >= 0) args.has_window_right = true, args.window_right = s->window_right;
    if (s->has_sinks) args.sinks = TSR_TENSOR(sinks, TSR_F32, HEADS);
    if (s->has_bias) args.bias = TSR_TENSOR(bias, TSR_F32, 1, HEADS, s->queries, s->keys);
    memset(to, 0xff, sizeof out);
    memset(to_lse, 0xff, sizeof lse);
    return tsr_attention_forward(ctx, &args);
}

static float element(tsr_dtype dtype, const float *x, int64_t i) {
    return (float)tsr_load(dtype, x, i);
}

static void check(tsr_dtype dtype, const struct shape *s, const char *variant) {
    int64_t unseen = s->queries - s->keys - (s->mask == TSR_MASK_NONE ? s->window_right : 0);
    float most = dtype == TSR_F32 ? 1e-5f : 0x1p-6f;
    for (int64_t row = 0; row < BATCHES * s->queries * HEADS; row++) {
        int64_t i = row / HEADS % s->queries, head = row % HEADS;
        int64_t at = (row / HEADS / s->queries * HEADS + head) * s->queries + i;
        bool is_unseen = i < unseen;
        if (is_unseen && lse[at] != (s->has_sinks ? sinks[head] : -INFINITY))
            fail_msg("%s: lse of query %d is %g", variant, (int)i, (double)lse[at]);
        if (!is_unseen && fabsf(lse[at] - expected_lse[at]) > 1e-4f)
            fail_msg("%s: lse of query %d is %g, expected %g", variant, (int)i, (double)lse[at],
                     (double)expected_lse[at]);
        for (int64_t d = 0; d < DIM_V; d++) {
            int64_t e = row * (DIM_V + GAP) + d;
            float value = element(dtype, out, e), truth = element(dtype, expected, e);
            if (is_unseen ? value != 0 || signbit(value) : !(fabsf(value - truth) <= most))
                fail_msg("%s: query %d, dim %d is %g, expected %g", variant, (int)i, (int)d,
                         (double)value, (double)truth);
        }
        size_t size = dtype == TSR_F32 ? 4 : 2;
        const unsigned char *gap =
            (unsigned char *)out + (size_t)(row * (DIM_V + GAP) + DIM_V) * size;
        for (size_t g = 0; g < GAP * size; g++) assert_int_equal(gap[g], 0xff);
    }
}

static void queries_that_see_nothing(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {37, 5, TSR_MASK_CAUSAL, -1, -1, false, false},
        {130, 33, TSR_MASK_CAUSAL, -1, -1, true, false},
        {700, 1, TSR_MASK_CAUSAL, -1, -1, false, true},
        {64, 40, TSR_MASK_CAUSAL, 7, -1, true, true},
        {200, 30, TSR_MASK_NONE, -1, 9, false, false},
        {90, 17, TSR_MASK_NONE, 5, 0, true, false},
        {41, 40, TSR_MASK_CAUSAL, -1, -1, false, false},
        {40, 40, TSR_MASK_CAUSAL, -1, -1, true, false},
        {300, 32, TSR_MASK_CAUSAL, -1, 3, false, false},
    };
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16};
    int num_run = 0;
    for (int c = 0; c < 6; c++) {
        tsr_context *ctx = test_context(c % 3 * 4 + 1);
        tsr_dtype dtype = dtypes[c / 3];
        fill(dtype, q, COUNT(q), 1);
        fill(dtype, k, COUNT(k), 2);
        fill(dtype, v, COUNT(v), 3);
        fill(TSR_F32, bias, COUNT(bias), 4);
        for (int i = 0; i < COUNT(shapes); i++) {
            assert_ok(run(ctx, dtype, &shapes[i], "naive", expected, expected_lse));
            tsr_variant_info info;
            for (int n = -1; n < 0 || tsr_variant_info_get("attention_forward", n, &info) == TSR_OK;
                 n++) {
                if (n >= 0 && (info.flags & (TSR_VARIANT_CUDA | TSR_VARIANT_REFERENCE))) continue;
                const char *name = n < 0 ? NULL : info.name;
                tsr_status status = run(ctx, dtype, &shapes[i], name, out, lse);
                if (status == TSR_UNSUPPORTED) continue;
                assert_ok(status);
                check(dtype, &shapes[i], name == NULL ? "the choice" : name);
                num_run++;
            }
        }
        tsr_context_destroy(ctx);
    }
    assert_true(num_run > 6 * COUNT(shapes) * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(queries_that_see_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
