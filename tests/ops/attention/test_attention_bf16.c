// SPDX-License-Identifier: Apache-2.0
// Edge cases of attention in bf16 on every unit: scores near the largest float, and values that are not finite outside
// a row's view.
#include "test_support.h"

#include <math.h>

static uint16_t *bf16(size_t count, float value) {
    uint16_t *x = malloc(count * sizeof *x);
    assert_non_null(x);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (size_t i = 0; i < count; i++) x[i] = (uint16_t)(bits >> 16);
    return x;
}

static float float_of(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// q k is 2^127 with a scale of 1. A kernel must not double it before it scales.
static void large_scores(void **state) {
    (void)state;
    enum { SEQLEN = 64, DIM = 32 };
    static const int64_t shape[] = {1, SEQLEN, 1, DIM};
    uint16_t *q = bf16(SEQLEN * DIM, 0), *k = bf16(SEQLEN * DIM, 0), *v = bf16(SEQLEN * DIM, 1);
    uint16_t *out = bf16(SEQLEN * DIM, 0);
    float lse[SEQLEN];
    for (int i = 0; i < SEQLEN; i++) {
        q[i * DIM] = 0x7f00;                   // 2^127
        k[i * DIM] = i == 7 ? 0x3f80 : 0x3f00; // 1, 1/2
    }
    for (int d = 0; d < DIM; d++) v[7 * DIM + d] = 0x40a0; // 5
    tsr_context *ctx = test_context(1);
    assert_int_equal(
        tsr_attention_forward(
            ctx, &TSR_ATTENTION_FORWARD_ARGS(.q = tsr_tensor_contiguous(q, TSR_BF16, 4, shape),
                                             .k = tsr_tensor_contiguous(k, TSR_BF16, 4, shape),
                                             .v = tsr_tensor_contiguous(v, TSR_BF16, 4, shape),
                                             .out = tsr_tensor_contiguous(out, TSR_BF16, 4, shape),
                                             .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, SEQLEN),
                                             .softmax_scale = 1)),
        TSR_OK);
    for (int i = 0; i < SEQLEN; i++) {
        assert_same_number(float_of(out[i * DIM + 3]), 5);
        assert_true(lse[i] == 0x1p127f);
    }
    tsr_context_destroy(ctx);
    free(q), free(k), free(v), free(out);
}

// The number of threads may change which rows share a tile. It must not change a row's bits, even if values that other
// rows do not see are infinite.
static void infinite_values_beyond_a_mask(void **state) {
    (void)state;
    enum { SEQLEN_Q = 192, SEQLEN_K = 4224, HEADS = 64, DIM = 64, INFINITE = 150 };
    static const int64_t q_shape[] = {1, SEQLEN_Q, HEADS, DIM}, k_shape[] = {1, SEQLEN_K, 1, DIM};
    const size_t q_count = (size_t)SEQLEN_Q * HEADS * DIM, k_count = (size_t)SEQLEN_K * DIM;
    uint16_t *q = bf16(q_count, 0), *k = bf16(k_count, 0), *v = bf16(k_count, 0), *out[2];
    uint64_t seed = 5;
    for (size_t i = 0; i < q_count; i++) q[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
    for (size_t i = 0; i < k_count; i++) {
        k[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
        v[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
    }
    v[INFINITE * DIM + 3] = 0x7f80;
    for (int run = 0; run < 2; run++) {
        tsr_context *ctx = test_context(run == 0 ? 1 : 20);
        out[run] = bf16(q_count, 0);
        assert_int_equal(
            tsr_attention_forward(
                ctx,
                &TSR_ATTENTION_FORWARD_ARGS(.q = tsr_tensor_contiguous(q, TSR_BF16, 4, q_shape),
                                            .k = tsr_tensor_contiguous(k, TSR_BF16, 4, k_shape),
                                            .v = tsr_tensor_contiguous(v, TSR_BF16, 4, k_shape),
                                            .out = tsr_tensor_contiguous(out[run], TSR_BF16, 4,
                                                                         q_shape),
                                            .mask = TSR_MASK_CAUSAL_TOP_LEFT)),
            TSR_OK);
        tsr_context_destroy(ctx);
    }
    assert_memory_equal(out[0], out[1], q_count * sizeof *q);
    for (int i = 0; i < SEQLEN_Q; i++)
        for (int d = 0; d < DIM; d++) {
            float value = float_of(out[0][((size_t)i * HEADS + 9) * DIM + (size_t)d]);
            assert_true(d == 3 && i >= INFINITE ? isinf(value) : isfinite(value));
        }
    free(q), free(k), free(v), free(out[0]), free(out[1]);
}

// The same scores backward: one key has all the weight, and its dv is the sum of dout. All other gradients are 0.
static void large_scores_backward(void **state) {
    (void)state;
    enum { SEQLEN = 64, DIM = 32, KEY = 7 };
    static const int64_t shape[] = {1, SEQLEN, 1, DIM};
    const size_t count = SEQLEN * DIM;
    uint16_t *q = bf16(count, 0), *k = bf16(count, 0), *v = bf16(count, 1), *out = bf16(count, 1);
    uint16_t *dout = bf16(count, 0.5f), *dq = bf16(count, 9), *dk = bf16(count, 9);
    uint16_t *dv = bf16(count, 9);
    float lse[SEQLEN];
    for (int i = 0; i < SEQLEN; i++) {
        q[i * DIM] = 0x7f00;                     // 2^127
        k[i * DIM] = i == KEY ? 0x3f80 : 0x3f00; // 1, 1/2
        lse[i] = 0x1p127f;
    }
    tsr_context *ctx = test_context(1);
    assert_int_equal(
        tsr_attention_backward(
            ctx,
            &TSR_ATTENTION_BACKWARD_ARGS(.q = tsr_tensor_contiguous(q, TSR_BF16, 4, shape),
                                         .k = tsr_tensor_contiguous(k, TSR_BF16, 4, shape),
                                         .v = tsr_tensor_contiguous(v, TSR_BF16, 4, shape),
                                         .out = tsr_tensor_contiguous(out, TSR_BF16, 4, shape),
                                         .lse = TSR_TENSOR(lse, TSR_F32, 1, 1, SEQLEN),
                                         .dout = tsr_tensor_contiguous(dout, TSR_BF16, 4, shape),
                                         .dq = tsr_tensor_contiguous(dq, TSR_BF16, 4, shape),
                                         .dk = tsr_tensor_contiguous(dk, TSR_BF16, 4, shape),
                                         .dv = tsr_tensor_contiguous(dv, TSR_BF16, 4, shape),
                                         .softmax_scale = 1)),
        TSR_OK);
    for (int j = 0; j < SEQLEN; j++) {
        assert_same_number(float_of(dv[j * DIM + 3]), j == KEY ? SEQLEN * 0.5f : 0);
        assert_same_number(float_of(dq[j * DIM]), 0); // dout v = dout out
        assert_same_number(float_of(dk[j * DIM]), 0);
    }
    tsr_context_destroy(ctx);
    free(q), free(k), free(v), free(out), free(dout), free(dq), free(dk), free(dv);
}

// Two blocks of keys. An infinite key in the second block makes NaN only of what its queries affect, with the same bits
// for any number of threads.
static void infinite_key_backward(void **state) {
    (void)state;
    enum { SEQLEN = 640, HEADS = 2, DIM = 64, INFINITE = 600 };
    static const int64_t shape[] = {1, SEQLEN, HEADS, DIM}, lse_shape[] = {1, HEADS, SEQLEN};
    const size_t count = (size_t)SEQLEN * HEADS * DIM;
    uint16_t *q = bf16(count, 0), *k = bf16(count, 0), *v = bf16(count, 0), *dout = bf16(count, 0);
    uint16_t *out = bf16(count, 0), *dq[3], *dk[3], *dv[3];
    float *lse = malloc(SEQLEN * HEADS * sizeof *lse);
    assert_non_null(lse);
    uint64_t seed = 7;
    for (size_t i = 0; i < count; i++) {
        q[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
        k[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
        v[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
        dout[i] = (uint16_t)(0x3e00 | (test_bits(&seed) & 0x81ff));
    }
    for (int i = 0; i < SEQLEN * HEADS; i++) lse[i] = 5;
    for (int run = 0; run < 3; run++) { // finite, then with an infinite key
        if (run == 1) k[(size_t)INFINITE * HEADS * DIM + 3] = 0x7f80;
        tsr_context *ctx = test_context(run == 2 ? 5 : 1);
        dq[run] = bf16(count, 9), dk[run] = bf16(count, 9), dv[run] = bf16(count, 9);
        assert_int_equal(tsr_attention_backward(
                             ctx, &TSR_ATTENTION_BACKWARD_ARGS(
                                          .q = tsr_tensor_contiguous(q, TSR_BF16, 4, shape),
                                          .k = tsr_tensor_contiguous(k, TSR_BF16, 4, shape),
                                          .v = tsr_tensor_contiguous(v, TSR_BF16, 4, shape),
                                          .out = tsr_tensor_contiguous(out, TSR_BF16, 4, shape),
                                          .lse = tsr_tensor_contiguous(lse, TSR_F32, 3, lse_shape),
                                          .dout = tsr_tensor_contiguous(dout, TSR_BF16, 4, shape),
                                          .dq = tsr_tensor_contiguous(dq[run], TSR_BF16, 4, shape),
                                          .dk = tsr_tensor_contiguous(dk[run], TSR_BF16, 4, shape),
                                          .dv = tsr_tensor_contiguous(dv[run], TSR_BF16, 4, shape),
                                          .mask = TSR_MASK_CAUSAL)),
                         TSR_OK);
        tsr_context_destroy(ctx);
    }
    assert_memory_equal(dq[1], dq[2], count * sizeof *q);
    assert_memory_equal(dk[1], dk[2], count * sizeof *q);
    assert_memory_equal(dv[1], dv[2], count * sizeof *q);
    for (int i = 0; i < SEQLEN; i++)
        for (int h = 0; h < HEADS; h++) {
            size_t at = ((size_t)i * HEADS + (size_t)h) * DIM + 3;
            bool is_touched = h == 0 && i >= INFINITE;
            assert_true(isfinite(float_of(dq[0][at])) && isfinite(float_of(dk[0][at])));
            assert_true(isfinite(float_of(dq[1][at])) == !is_touched);
            if (!is_touched) assert_true(fabsf(float_of(dq[1][at]) - float_of(dq[0][at])) < 0.02f);
        }
    free(q), free(k), free(v), free(dout), free(out), free(lse);
    for (int run = 0; run < 3; run++) free(dq[run]), free(dk[run]), free(dv[run]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_scores),
        cmocka_unit_test(infinite_values_beyond_a_mask),
        cmocka_unit_test(large_scores_backward),
        cmocka_unit_test(infinite_key_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
