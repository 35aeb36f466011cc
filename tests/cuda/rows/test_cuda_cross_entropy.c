// SPDX-License-Identifier: Apache-2.0
// Cross-entropy's gradient on a real GPU, or on the emulated one: a 16-bit row has the same bits alone and in a batch, at each of
// the 8 addresses modulo 16 bytes, in place and beside its logits, by its lse and where its sums are formed again. The guards
// around an output stay as they were.
#include "cuda_case.h"

enum { ROWS = 9, MOST_COLS = 8201, SLACK = 8, GUARD = 0x7f7f };

struct buffers {
    uint16_t x[ROWS * MOST_COLS + 2 * SLACK], out[ROWS * MOST_COLS + 2 * SLACK];
    int32_t targets[ROWS];
    float loss[ROWS], lse[ROWS];
};

static struct buffers host, batch, *device;
static tsr_context *ctx;

static tsr_tensor at(uint16_t *buffer, int64_t first, int rows, int cols) {
    return on_cuda(TSR_TENSOR(buffer + first, TSR_BF16, rows, cols));
}

#define OF_ROWS(name, dtype) on_cuda(TSR_TENSOR(device->name, dtype, rows))

// dloss is what the loss is: any numbers will do.
static void run(bool is_in_place, bool has_lse, int64_t first, int64_t to, int rows, int cols) {
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    if (!has_lse)
        assert_ok(tsr_cross_entropy_forward(
            ctx, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = at(device->x, first, rows, cols),
                                                 .targets = OF_ROWS(targets, TSR_I32),
                                                 .loss = OF_ROWS(loss, TSR_F32),
                                                 .lse = OF_ROWS(lse, TSR_F32))));
    assert_ok(tsr_cross_entropy_backward(
        ctx,
        &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = at(device->x, first, rows, cols),
                                         .targets = OF_ROWS(targets, TSR_I32),
                                         .lse = OF_ROWS(lse, TSR_F32),
                                         .dloss = OF_ROWS(loss, TSR_F32),
                                         .dlogits = at(is_in_place ? device->x : device->out,
                                                       is_in_place ? first : to, rows, cols))));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
}

static void check(bool is_in_place, int cols) {
    static struct buffers inputs;
    uint64_t random = (uint64_t)cols;
    memset(&host, GUARD, sizeof host);
    for (int64_t i = 0; i < (int64_t)ROWS * cols; i++) host.x[i] = test_bf16(test_float(&random));
    for (int row = 0; row < ROWS; row++) {
        host.targets[row] = row == 5 ? -100 : row * 7 % cols;
        if (row % 3 == 0)
            host.x[(int64_t)row * cols + row * 7 % cols] = test_bf16(40); // nearly sure
    }
    inputs = host;
    run(is_in_place, false, 0, 0, ROWS, cols);
    batch = host;
    const uint16_t *want = is_in_place ? batch.x : batch.out;
    for (int row = 0; row < ROWS; row++) { // alone, at each address
        const int64_t first = row % SLACK, to = is_in_place ? first : (row + (row & 2)) % SLACK;
        const size_t bytes = (size_t)cols * sizeof host.x[0];
        const uint16_t *got = is_in_place ? host.x : host.out;
        memset(&host, GUARD, sizeof host);
        memcpy(host.x + first, inputs.x + (int64_t)row * cols, bytes);
        host.targets[0] = inputs.targets[row];
        host.lse[0] = batch.lse[row];
        host.loss[0] = batch.loss[row];
        run(is_in_place, true, first, to, 1, cols);
        if (memcmp(got + to, want + (int64_t)row * cols, bytes) != 0)
            fail_msg("in place %d, %d columns: row %d alone has other bits than in a batch",
                     is_in_place, cols, row);
        for (int i = 0; i < SLACK; i++) {
            assert_int_equal(got[to + cols + i], GUARD);
            if (i < to) assert_int_equal(got[i], GUARD);
        }
    }
}

static void a_row_has_its_bits_anywhere(void **state) {
    static const int cols[] = {1, 3, 31, 250, 1031, 2050, MOST_COLS};
    (void)state;
    for (int i = 0; i < COUNT(cols); i++) {
        check(false, cols[i]);
        check(true, cols[i]);
    }
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_row_has_its_bits_anywhere)};
    int failed = cmocka_run_group_tests_name("cuda cross-entropy", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
