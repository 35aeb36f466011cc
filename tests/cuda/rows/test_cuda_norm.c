// SPDX-License-Identifier: Apache-2.0
// The norms on a real GPU, or on the emulated one: a 16-bit row has the same bits alone and in a batch, forward and backward, at
// each of the 8 addresses modulo 16 bytes. The guards around an output stay as they were.
#include <math.h>

#include "cuda_case.h"

enum { ROWS = 9, MOST_COLS = 50257, SLACK = 8, GUARD = 0x7f7f };

struct buffers {
    uint16_t x[ROWS * MOST_COLS + 2 * SLACK], other[ROWS * MOST_COLS + 2 * SLACK],
        out[ROWS * MOST_COLS + 2 * SLACK], sum[ROWS * MOST_COLS + 2 * SLACK], weight[MOST_COLS],
        bias[MOST_COLS];
    float mean[ROWS], rstd[ROWS], dweight[MOST_COLS];
};

static struct buffers host, batch, *device;
static tsr_context *ctx;

static tsr_tensor at(uint16_t *buffer, int64_t first, int rows, int cols) {
    return on_cuda(TSR_TENSOR(buffer + first, TSR_BF16, rows, cols));
}

#define COLUMNS(name, dtype) on_cuda(TSR_TENSOR(device->name, dtype, cols))
#define STATISTIC(name) on_cuda(TSR_TENSOR(device->name, TSR_F32, rows))

// x and other begin at element `first`, outputs at element `to`.
static void run(bool is_backward, bool has_residual, int64_t first, int64_t to, int rows,
                int cols) {
    const tsr_tensor none = {0};
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    if (is_backward)
        assert_ok(tsr_layernorm_backward(
            ctx, &TSR_LAYERNORM_BACKWARD_ARGS(.x = at(device->x, first, rows, cols),
                                              .weight = COLUMNS(weight, TSR_BF16),
                                              .mean = STATISTIC(mean), .rstd = STATISTIC(rstd),
                                              .dy = at(device->other, first, rows, cols),
                                              .dx = at(device->out, to, rows, cols),
                                              .dweight = COLUMNS(dweight, TSR_F32))));
    else
        assert_ok(tsr_layernorm_forward(
            ctx, &TSR_LAYERNORM_FORWARD_ARGS(
                         .x = at(device->x, first, rows, cols),
                         .residual = has_residual ? at(device->other, to, rows, cols) : none,
                         .residual_out = has_residual ? at(device->sum, first, rows, cols) : none,
                         .weight = COLUMNS(weight, TSR_BF16), .bias = COLUMNS(bias, TSR_BF16),
                         .y = at(device->out, to, rows, cols), .mean = STATISTIC(mean),
                         .rstd = STATISTIC(rstd))));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
}

static void check(bool is_backward, bool has_residual, int rows, int cols) {
    uint64_t random = (uint64_t)cols;
    memset(&host, GUARD, sizeof host);
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        host.x[i] = test_bf16(test_float(&random));
        host.other[i] = test_bf16(test_float(&random));
    }
    for (int c = 0; c < cols; c++) {
        host.weight[c] = test_bf16(test_float(&random));
        host.bias[c] = test_bf16(test_float(&random));
    }
    for (int row = 0; is_backward && row < rows; row++) {
        host.mean[row] = 0.01f * (float)row;
        host.rstd[row] = 1 + 0.1f * (float)row;
    }
    run(is_backward, has_residual, 0, 0, rows, cols);
    batch = host;
    for (int row = 0; row < rows; row++) { // alone, at each address
        const int64_t first = cols % 8 == 0 ? 0 : row % SLACK, to = (row + (row & 2)) % SLACK;
        const size_t bytes = (size_t)cols * sizeof host.x[0];
        memset(host.x, GUARD, sizeof host.x);
        memset(host.other, GUARD, sizeof host.other);
        memset(host.out, GUARD, sizeof host.out);
        memcpy(host.x + first, batch.x + (int64_t)row * cols, bytes);
        memcpy(host.other + (has_residual ? to : first), batch.other + (int64_t)row * cols, bytes);
        host.mean[0] = batch.mean[row];
        host.rstd[0] = batch.rstd[row];
        run(is_backward, has_residual, first, to, 1, cols);
        if (memcmp(host.out + to, batch.out + (int64_t)row * cols, bytes) != 0 ||
            host.mean[0] != batch.mean[row] || host.rstd[0] != batch.rstd[row])
            fail_msg("backward %d, residual %d, %d columns: row %d alone has other bits than in a "
                     "batch",
                     is_backward, has_residual, cols, row);
        for (int i = 0; i < SLACK; i++) {
            assert_int_equal(host.out[to + cols + i], GUARD);
            if (i < to) assert_int_equal(host.out[i], GUARD);
        }
    }
}

static void a_row_has_its_bits_anywhere(void **state) {
    static const int cols[] = {1, 3, 31, 250, 301, 1031, 2050, 8191};
    (void)state;
    for (int i = 0; i < COUNT(cols); i++) {
        check(false, false, ROWS, cols[i]);
        check(false, true, ROWS, cols[i]);
        check(true, false, ROWS, cols[i]);
    }
}

static void a_wide_row_has_its_bits_anywhere(void **state) {
    (void)state;
    check(false, false, 3, 24001);
    check(false, true, 2, MOST_COLS);
    check(true, false, 3, 24001);
}

// Rows of one number far from 0, whose h beyond the row's last column would be infinite.
static void a_far_row_is_finite(void **state) {
    static const int cols[] = {100, 101, 4097};
    enum { MOST_FAR = 4097 };
    static float x[MOST_FAR], dy[MOST_FAR], dx[MOST_FAR];
    (void)state;
    float *at = (float *)(void *)device, statistics[] = {3e36f, 316.2277f};
    for (int i = 0; i < COUNT(cols); i++) {
        for (int c = 0; c < cols[i]; c++) x[c] = 3e36f, dy[c] = (float)(c % 7 - 3);
        assert_ok(tsr_memory_copy(ctx, at, x, sizeof x));
        assert_ok(tsr_memory_copy(ctx, at + MOST_FAR, statistics, sizeof statistics));
        assert_ok(tsr_memory_copy(ctx, at + 4 * MOST_FAR, dy, sizeof dy));
        const tsr_tensor row = on_cuda(TSR_TENSOR(at, TSR_F32, 1, cols[i]));
        assert_ok(tsr_layernorm_backward(
            ctx,
            &TSR_LAYERNORM_BACKWARD_ARGS(
                    .x = row, .dy = on_cuda(TSR_TENSOR(at + 4 * MOST_FAR, TSR_F32, 1, cols[i])),
                    .mean = on_cuda(TSR_TENSOR(at + MOST_FAR, TSR_F32, 1)),
                    .rstd = on_cuda(TSR_TENSOR(at + MOST_FAR + 1, TSR_F32, 1)),
                    .dx = on_cuda(TSR_TENSOR(at + 2 * MOST_FAR, TSR_F32, 1, cols[i])))));
        assert_ok(tsr_memory_copy(ctx, dx, at + 2 * MOST_FAR, sizeof dx));
        assert_ok(tsr_context_synchronize(ctx));
        for (int c = 0; c < cols[i]; c++)
            if (!isfinite(dx[c])) fail_msg("%d columns: dx[%d] is %g", cols[i], c, (double)dx[c]);
    }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_its_bits_anywhere),
        cmocka_unit_test(a_wide_row_has_its_bits_anywhere),
        cmocka_unit_test(a_far_row_is_finite),
    };
    int failed = cmocka_run_group_tests_name("cuda norm", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
