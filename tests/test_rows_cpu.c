// SPDX-License-Identifier: Apache-2.0
// Row kernels of the CPU where the tool's cases do not reach: tensors that count as larger than the caches take a
// way of their own, whole lines, two rows in turns, and give the same bits; what softmax's exponentials lose.
#include "test_support.h"

#include <math.h>

enum { ROWS = 37, MOST_COLS = 4127, BYTES = ROWS * MOST_COLS * 4, ALIGNMENTS = 3 };

static const int64_t widths[] = {70, 1000, 1024, 2080, MOST_COLS};
static const size_t offsets[ALIGNMENTS] = {0, 32,
                                           2}; // of every tensor from a line; f32 takes 4 for 2
static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

static _Alignas(64) char x[BYTES + 64], dy[BYTES + 64], dx[2][BYTES + 64];
static float weight[MOST_COLS], dweight[2][MOST_COLS], dbias[2][MOST_COLS], mean[ROWS], rstd[ROWS];

static void fill(tsr_dtype dtype, int64_t cols, char *to, int step) {
    for (int64_t i = 0; i < ROWS * cols; i++)
        tsr_store(dtype, to, i, (double)((i * step + i / cols) % 101 - 50) / 16);
}

// Backward of softmax and of the two norms, and softmax forward, from the same x and dy.
static void run(tsr_context *ctx, int op, tsr_dtype dtype, int64_t cols, size_t offset, int out) {
    tsr_tensor x_ = TSR_TENSOR(x + offset, dtype, ROWS, cols),
               dy_ = TSR_TENSOR(dy + offset, dtype, ROWS, cols),
               dx_ = TSR_TENSOR(dx[out] + offset, dtype, ROWS, cols),
               weight_ = TSR_TENSOR(weight, TSR_F32, cols), mean_ = TSR_TENSOR(mean, TSR_F32, ROWS),
               rstd_ = TSR_TENSOR(rstd, TSR_F32, ROWS),
               dweight_ = TSR_TENSOR(dweight[out], TSR_F32, cols),
               dbias_ = TSR_TENSOR(dbias[out], TSR_F32, cols);
    switch (op) {
    case 0:
        assert_ok(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = x_, .y = dx_)));
        break;
    case 1:
        assert_ok(
            tsr_softmax_backward(ctx, &TSR_SOFTMAX_BACKWARD_ARGS(.y = x_, .dy = dy_, .dx = dx_)));
        break;
    case 2:
        assert_ok(tsr_rmsnorm_backward(
            ctx, &TSR_RMSNORM_BACKWARD_ARGS(.x = x_, .weight = weight_, .rstd = rstd_, .dy = dy_,
                                            .dx = dx_, .dweight = dweight_)));
        break;
    default:
        assert_ok(tsr_layernorm_backward(
            ctx, &TSR_LAYERNORM_BACKWARD_ARGS(.x = x_, .weight = weight_, .mean = mean_,
                                              .rstd = rstd_, .dy = dy_, .dx = dx_,
                                              .dweight = dweight_, .dbias = dbias_)));
    }
}

static void same_bits_past_the_caches(void **state) {
    (void)state;
    for (int i = 0; i < MOST_COLS; i++) weight[i] = 0.5f + (float)(i % 7);
    for (int r = 0; r < ROWS; r++) mean[r] = (float)(r % 5), rstd[r] = 0.5f + (float)(r % 3);
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes) * COUNT(widths) * ALIGNMENTS; k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT % COUNT(dtypes)];
        int64_t cols = widths[k / TSR_ISA_COUNT / COUNT(dtypes) % COUNT(widths)];
        size_t offset = offsets[k / TSR_ISA_COUNT / COUNT(dtypes) / COUNT(widths)];
        if (dtype == TSR_F32 && offset == 2) offset = 4;
        if (isa == TSR_ISA_AUTO)
            fill(dtype, cols, x + offset, 37), fill(dtype, cols, dy + offset, 11);
        if (!tsr_isa_is_supported(isa)) continue;
        for (int op = 0; op < 4; op++) {
            memset(dx, 0, sizeof dx);
            for (int out = 0; out < 2; out++) {
                tsr_context *ctx;
                assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1,
                                                                  .l3_bytes = out ? 1 : 1 << 30),
                                             &ctx));
                run(ctx, op, dtype, cols, offset, out);
                tsr_context_destroy(ctx);
            }
            assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
            assert_memory_equal(dweight[0], dweight[1], sizeof dweight[0]);
            assert_memory_equal(dbias[0], dbias[1], sizeof dbias[0]);
        }
    }
}

// Logits from 0 down to -100, past where their exponentials leave the normal numbers, and -inf: within 2^-126 of the
// truth beside the rounding of the dtype, and exactly 0 where that is what is left.
static void small_exponentials(void **state) {
    (void)state;
    enum { COLS = 2 * 1024 };
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes); k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT];
        if (!tsr_isa_is_supported(isa)) continue;
        double unit = dtype == TSR_F32    ? 0x1p-16
                      : dtype == TSR_BF16 ? 0x1.1p-8
                                          : 0x1.1p-11,
               sum = 0;
        double least = dtype == TSR_F32    ? 0
                       : dtype == TSR_BF16 ? 0x1p-134
                                           : 0x1p-25; // half a subnormal
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < COLS; i++)
                tsr_store(dtype, x, r * COLS + i, i % 9 == 8 ? -INFINITY : i * -100.0 / COLS);
        for (int i = 0; i < COLS; i++) sum += exp(tsr_load(dtype, x, i));
        for (int out = 0; out < 2; out++) {
            tsr_context *ctx;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1, .l3_bytes = out ? 1 : 1 << 30),
                &ctx));
            run(ctx, 0, dtype, COLS, 0, out);
            tsr_context_destroy(ctx);
            for (int i = 0; i < ROWS * COLS; i++) {
                double y = tsr_load(dtype, dx[out], i), logit = tsr_load(dtype, x, i);
                double truth = exp(logit) / sum;
                assert_true(y >= 0 && fabs(y - truth) <= unit * truth + least + 0x1p-126);
                if (logit < -89) assert_true(y == 0 || dtype != TSR_F16);
                if (isinf(logit)) assert_true(y == 0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_past_the_caches),
        cmocka_unit_test(small_exponentials),
    };
    return cmocka_run_group_tests_name("rows_cpu", tests, NULL, NULL);
}
