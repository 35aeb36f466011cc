// SPDX-License-Identifier: Apache-2.0
// Softmax on a real GPU, or on the emulated one: a row has the same bits alone and in a batch, at whatever address it lies,
// in both variants that serve, and in rows that go through shared memory in chunks, in f32, which shows another order of sums; a
// row of 16 bits has its values at every address.
#include <math.h>

#include "cuda_case.h"

enum { ROWS = 5, MOST_COLS = 90001, SLACK = 8 };

struct buffers {
    float x[ROWS * MOST_COLS + SLACK], dy[ROWS * MOST_COLS + SLACK], y[ROWS * MOST_COLS + SLACK];
};

static struct buffers host, batch, *device;
static tsr_context *ctx;

static tsr_tensor at(float *buffer, int64_t first, int rows, int cols) {
    return on_cuda(TSR_TENSOR(buffer + first, TSR_F32, rows, cols));
}

// Rows at element `first` of x, dy and y.
static void run(const char *variant, bool is_backward, int64_t first, int rows, int cols) {
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    if (is_backward)
        assert_ok(tsr_softmax_backward(
            ctx,
            &TSR_SOFTMAX_BACKWARD_ARGS(.variant = variant, .y = at(device->x, first, rows, cols),
                                       .dy = at(device->dy, first, rows, cols),
                                       .dx = at(device->y, first, rows, cols))));
    else
        assert_ok(tsr_softmax_forward(
            ctx,
            &TSR_SOFTMAX_FORWARD_ARGS(.variant = variant, .x = at(device->x, first, rows, cols),
                                      .y = at(device->y, first, rows, cols))));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
}

static void check(const char *variant, bool is_backward, int cols) {
    uint64_t random = (uint64_t)cols;
    memset(&host, 0xff, sizeof host);
    for (int64_t i = 0; i < (int64_t)ROWS * cols; i++) {
        host.x[i] = test_float(&random);
        host.dy[i] = test_float(&random);
    }
    run(variant, is_backward, 0, ROWS, cols);
    batch = host;
    for (int row = 0; row < ROWS; row++) { // alone, at another address
        // Whether all rows are aligned to 16 bytes is the same.
        const int64_t first = cols % 4 == 0 ? row % 2 * 4 : (row * 3 + 1) % SLACK;
        const size_t bytes = (size_t)cols * sizeof(float);
        memset(&host, 0xff, sizeof host);
        memcpy(host.x + first, batch.x + (int64_t)row * cols, bytes);
        memcpy(host.dy + first, batch.dy + (int64_t)row * cols, bytes);
        run(variant, is_backward, first, 1, cols);
        if (memcmp(host.y + first, batch.y + (int64_t)row * cols, bytes) != 0)
            fail_msg("%s, backward %d, %d columns: row %d alone has other bits than in a batch",
                     variant != NULL ? variant : "the choice", is_backward, cols, row);
    }
}

static void a_row_has_its_bits_anywhere(void **state) {
    static const int cols[] = {3, 301, 1031, 2600, 24403, MOST_COLS};
    (void)state;
    for (int i = 0; i < COUNT(cols); i++)
        for (int backward = 0; backward < 2; backward++) {
            check(NULL, backward, cols[i]);
            check("cuda-staged", backward, cols[i]);
        }
}

// ---- 16 bits --------------------------------------------------------------------------------------

static tsr_tensor halves_at(float *buffer, int first, int cols) {
    return on_cuda(TSR_TENSOR((uint16_t *)buffer + first, TSR_BF16, 1, cols));
}

// One row at element `first` of x, to element `to` of y, compared with sums of doubles.
static void check_halves(const char *variant, int cols, int first, int to) {
    uint64_t random = (uint64_t)(cols * 64 + first * 8 + to);
    uint16_t *x = (uint16_t *)host.x + first, *y = (uint16_t *)host.y + to;
    double sum = 0, most = -1e9;
    memset(&host, 0x42, sizeof host); // what is beside the row is larger than it
    for (int i = 0; i < cols; i++) {
        x[i] = test_bf16(test_float(&random));
        most = fmax(most, (double)test_of_bf16(x[i]));
    }
    for (int i = 0; i < cols; i++) sum += exp((double)test_of_bf16(x[i]) - most);
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    assert_ok(tsr_softmax_forward(
        ctx, &TSR_SOFTMAX_FORWARD_ARGS(.variant = variant, .x = halves_at(device->x, first, cols),
                                       .y = halves_at(device->y, to, cols))));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
    for (int i = 0; i < cols; i++) {
        const double want = exp((double)test_of_bf16(x[i]) - most) / sum;
        if (!(fabs((double)test_of_bf16(y[i]) - want) <= want * 0x1.02p-8))
            fail_msg("%s, %d columns from element %d to %d: y[%d] is %g, expected %g",
                     variant != NULL ? variant : "the choice", cols, first, to, i,
                     (double)test_of_bf16(y[i]), want);
    }
    assert_int_equal(y[cols], 0x4242);
    if (to > 0) assert_int_equal(y[-1], 0x4242);
}

static void a_16_bit_row_has_its_values_at_every_address(void **state) {
    static const int cols[] = {1, 2, 15, 206, 255, 984, 1031, 2050, 4097};
    (void)state;
    for (int i = 0; i < COUNT(cols); i++)
        for (int first = 0; first < SLACK; first++) {
            check_halves(NULL, cols[i], first, (first * 3 + i) % SLACK);
            check_halves("cuda-staged", cols[i], first, (first * 5 + i) % SLACK);
        }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_its_bits_anywhere),
        cmocka_unit_test(a_16_bit_row_has_its_values_at_every_address)};
    int failed = cmocka_run_group_tests_name("cuda softmax", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
