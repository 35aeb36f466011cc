// SPDX-License-Identifier: Apache-2.0
// RMSNorm of the heads inside a packed qkv, of a residual stream in f32 beside rows of bf16, and with a weight centred at zero,
// against the definition in double; what lies between the rows keeps its bits. Casts of the same heads.
#include "test_support.h"

#include <math.h>
#include <tessera/cast.h>
#include <tessera/norm.h>

enum { TOKENS = 37, HEADS = 6, KV_HEADS = 2, DIM = 96, WIDTH = (HEADS + 2 * KV_HEADS) * DIM };

static uint16_t qkv[TOKENS * WIDTH], before[TOKENS * WIDTH], dqkv[TOKENS * WIDTH];
static float weight[WIDTH], rstd[TOKENS * HEADS], dweight[DIM];
static uint64_t state_of_rng;

// The heads from `first` on.
static tsr_tensor heads_of(uint16_t *packed, int first, int num_heads) {
    const int64_t shape[] = {TOKENS, num_heads, DIM};
    tsr_tensor t = tsr_tensor_contiguous(packed + first * DIM, TSR_BF16, 3, shape);
    t.stride[0] = WIDTH;
    return t;
}

static tsr_tensor vector(float *data, int64_t n) {
    return tsr_tensor_contiguous(data, TSR_F32, 1, &n);
}

static void fill(void) {
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        before[i] = test_bf16(test_float(&state_of_rng));
        dqkv[i] = test_bf16(test_float(&state_of_rng));
    }
    memcpy(qkv, before, sizeof qkv);
    for (int i = 0; i < WIDTH; i++) weight[i] = test_float(&state_of_rng) / 8;
}

static double exact_rstd(const uint16_t *row) {
    double squares = 0;
    for (int c = 0; c < DIM; c++)
        squares += (double)test_of_bf16(row[c]) * (double)test_of_bf16(row[c]);
    return 1 / sqrt(squares / DIM + (double)1e-6f);
}

static void heads_in_place(tsr_context *ctx, int first, int num_heads) {
    const int64_t shape[] = {TOKENS, num_heads};
    fill();
    const tsr_tensor x = heads_of(qkv, first, num_heads);
    assert_ok(tsr_rmsnorm_forward(
        ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = x, .y = x, .weight = vector(weight, DIM),
                                       .rstd = tsr_tensor_contiguous(rstd, TSR_F32, 2, shape),
                                       .eps = 1e-6f, .has_eps = 1, .zero_centered_weight = 1)));
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < WIDTH / DIM; h++) {
            const uint16_t *row = before + t * WIDTH + h * DIM, *got = qkv + t * WIDTH + h * DIM;
            const bool is_ours = h >= first && h < first + num_heads;
            const double r = exact_rstd(row);
            if (!is_ours) assert_memory_equal(got, row, DIM * sizeof *row);
            for (int c = 0; c < DIM && is_ours; c++) {
                const double y = (double)test_of_bf16(row[c]) * r * (1 + (double)weight[c]);
                assert_true(fabs((double)test_of_bf16(got[c]) - y) <= fabs(y) * 0x1.01p-8 + 1e-30);
            }
            if (is_ours)
                assert_true(fabs((double)rstd[t * num_heads + h - first] - r) <= r * 0x1p-19);
        }
}

static void heads_are_normalised_in_place(void **state) {
    tsr_context *ctx = *state;
    heads_in_place(ctx, 0, HEADS);
    heads_in_place(ctx, HEADS, KV_HEADS);
    heads_in_place(ctx, HEADS + KV_HEADS, 1);
}

static void gradients_of_heads(void **state) {
    tsr_context *ctx = *state;
    const int64_t shape[] = {TOKENS, HEADS};
    fill();
    double sums[DIM] = {0}, sizes[DIM] = {0};
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            rstd[t * HEADS + h] = (float)exact_rstd(qkv + t * WIDTH + h * DIM);
    uint16_t *dy = malloc(sizeof dqkv);
    memcpy(dy, dqkv, sizeof dqkv);
    assert_ok(tsr_rmsnorm_backward(
        ctx,
        &TSR_RMSNORM_BACKWARD_ARGS(.x = heads_of(qkv, 0, HEADS), .weight = vector(weight, DIM),
                                   .rstd = tsr_tensor_contiguous(rstd, TSR_F32, 2, shape),
                                   .dy = heads_of(dqkv, 0, HEADS), .dx = heads_of(dqkv, 0, HEADS),
                                   .dweight = vector(dweight, DIM), .zero_centered_weight = 1)));
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++) {
            const int at = t * WIDTH + h * DIM;
            const double r = (double)rstd[t * HEADS + h];
            double mean = 0;
            for (int c = 0; c < DIM; c++) {
                const double x = (double)test_of_bf16(qkv[at + c]) * r;
                const double g = (double)test_of_bf16(dy[at + c]);
                mean += g * (1 + (double)weight[c]) * x / DIM;
                sums[c] += g * x;
                sizes[c] += fabs(g * x);
            }
            for (int c = 0; c < DIM; c++) {
                const double x = (double)test_of_bf16(qkv[at + c]) * r;
                const double g = (double)test_of_bf16(dy[at + c]) * (1 + (double)weight[c]);
                const double dx = r * (g - x * mean), got = (double)test_of_bf16(dqkv[at + c]);
                assert_true(fabs(got - dx) <= fabs(dx) * 0x1.01p-8 + 1e-5);
            }
        }
    for (int c = 0; c < DIM; c++)
        assert_true(fabs((double)dweight[c] - sums[c]) <= sizes[c] * 0x1p-18);
    assert_memory_equal(dqkv + HEADS * DIM, dy + HEADS * DIM, 2 * KV_HEADS * DIM * sizeof *dy);
    free(dy);
}

// x in bf16, the stream in f32, y in bf16, weight in f32.
static void a_stream_in_f32(void **state) {
    tsr_context *ctx = *state;
    static float stream[TOKENS * WIDTH], sum[TOKENS * WIDTH];
    static uint16_t y[TOKENS * WIDTH];
    const int64_t shape[] = {TOKENS, WIDTH};
    fill();
    for (int i = 0; i < TOKENS * WIDTH; i++) stream[i] = 8 * test_float(&state_of_rng);
    assert_ok(tsr_rmsnorm_forward(
        ctx,
        &TSR_RMSNORM_FORWARD_ARGS(.x = tsr_tensor_contiguous(qkv, TSR_BF16, 2, shape),
                                  .residual = tsr_tensor_contiguous(stream, TSR_F32, 2, shape),
                                  .residual_out = tsr_tensor_contiguous(sum, TSR_F32, 2, shape),
                                  .weight = vector(weight, WIDTH),
                                  .y = tsr_tensor_contiguous(y, TSR_BF16, 2, shape))));
    for (int t = 0; t < TOKENS; t++) {
        double squares = 0;
        for (int i = t * WIDTH; i < (t + 1) * WIDTH; i++) {
            assert_same_number((double)sum[i], (double)(stream[i] + test_of_bf16(qkv[i])));
            squares += (double)sum[i] * (double)sum[i];
        }
        const double r = 1 / sqrt(squares / WIDTH + (double)1e-5f);
        for (int c = 0; c < WIDTH; c++) {
            const double exact = (double)sum[t * WIDTH + c] * r * (double)weight[c];
            const double got = (double)test_of_bf16(y[t * WIDTH + c]);
            assert_true(fabs(got - exact) <= fabs(exact) * 0x1.01p-8 + 1e-30);
        }
    }
}

static void casts_of_heads(void **state) {
    tsr_context *ctx = *state;
    static float floats[TOKENS * HEADS * DIM];
    const int64_t shape[] = {TOKENS, HEADS, DIM};
    fill();
    memset(qkv, 0xff, sizeof qkv);
    const tsr_tensor dense = tsr_tensor_contiguous(floats, TSR_F32, 3, shape);
    assert_ok(tsr_cast(ctx, &TSR_CAST_ARGS(.x = heads_of(before, 1, HEADS), .y = dense)));
    assert_ok(tsr_cast(ctx, &TSR_CAST_ARGS(.x = dense, .y = heads_of(qkv, 2, HEADS))));
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++) {
            const bool is_written = i >= 2 * DIM && i < (2 + HEADS) * DIM;
            assert_int_equal(qkv[t * WIDTH + i], is_written ? before[t * WIDTH + i - DIM] : 0xffff);
        }
}

static void what_is_refused(void **state) {
    tsr_context *ctx = *state;
    const int64_t shape[] = {2, 3, 2, DIM};
    tsr_tensor x = tsr_tensor_contiguous(qkv, TSR_BF16, 4, shape), y = x;
    x.stride[0] = 4000, x.stride[1] = 500, x.stride[2] = 200;
    fill();
    assert_status(tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = x, .y = y)),
                  TSR_INVALID_ARGUMENT, "rmsnorm_forward: x.stride[0] is 4000, expected 1500",
                  "one stride or two");
    assert_status(tsr_cast(ctx, &TSR_CAST_ARGS(.x = x, .y = y)), TSR_INVALID_ARGUMENT,
                  "cast: x.stride[0] is 4000", "one stride or two");
    tsr_tensor overlapping = heads_of(qkv, 0, HEADS);
    overlapping.stride[0] = DIM;
    assert_status(tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = heads_of(dqkv, 0, HEADS),
                                                                     .y = overlapping)),
                  TSR_INVALID_ARGUMENT, "rmsnorm_forward: y.stride[", "apart");
    y = tsr_tensor_contiguous(before, TSR_F64, 2, (const int64_t[]){3, 4});
    x = tsr_tensor_contiguous(qkv, TSR_F32, 2, (const int64_t[]){3, 4});
    assert_status(tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = x, .y = y)),
                  TSR_INVALID_ARGUMENT, "y.dtype is f64", "expected f32, bf16 or f16 as x is f32");
    assert_memory_equal(qkv, before, sizeof qkv);
}

static int make_context(void **state) {
    state_of_rng = test_seed(7);
    *state = test_context(2);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_context, test_end_context)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(heads_are_normalised_in_place),
        TEST(gradients_of_heads),
        TEST(a_stream_in_f32),
        TEST(casts_of_heads),
        TEST(what_is_refused),
    };
    return cmocka_run_group_tests_name("norm_forms", tests, NULL, NULL);
}
