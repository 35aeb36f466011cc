// SPDX-License-Identifier: Apache-2.0
// Softmax: a row's bits depend neither on the other rows nor on whether the tensors count as larger than the caches.
// Other paths serve such tensors, rows of one vector, of some vectors, and longer rows.
#include "test_support.h"

#include <math.h>
#include <string.h>

enum { ROWS = 70, MOST_COLS = 1300, BYTES = ROWS * MOST_COLS * 4 };

static _Alignas(64) char x[BYTES], dy[BYTES], y[3][BYTES];

static void fill(tsr_dtype dtype, int64_t cols) {
    memset(y, 0x5a, sizeof y);
    for (int64_t i = 0; i < ROWS * cols; i++) {
        int64_t row = i / cols;
        double value = (double)((i * 37 + row) % 101 - 50) / 8;
        if (row % 7 == 3) value += 200; // rows with another maximum
        if (row == 20) value = -INFINITY;
        if (row == 21 && i % cols == cols / 2) value = NAN;
        if (row == 22 && dtype != TSR_F16) value *= 0x1p30;
        tsr_store(dtype, x, i, value);
        tsr_store(dtype, dy, i, (double)((i * 11 + row) % 31 - 15) / 4);
    }
}

static void run(tsr_isa isa, int64_t l3_bytes, bool is_backward, tsr_dtype dtype, int64_t first,
                int64_t rows, int64_t cols, char *out) {
    size_t at = (size_t)(first * cols) * tsr_dtype_bytes(dtype);
    tsr_context *ctx;
    assert_ok(tsr_context_create(
        &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1, .l3_bytes = l3_bytes), &ctx));
    tsr_tensor in = TSR_TENSOR(x + at, dtype, rows, cols),
               to = TSR_TENSOR(out + at, dtype, rows, cols);
    if (is_backward)
        assert_ok(tsr_softmax_backward(
            ctx, &TSR_SOFTMAX_BACKWARD_ARGS(.y = in, .dy = TSR_TENSOR(dy + at, dtype, rows, cols),
                                            .dx = to)));
    else
        assert_ok(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = in, .y = to)));
    tsr_context_destroy(ctx);
}

static void same_bits_alone_among_others_and_past_the_caches(void **state) {
    (void)state;
    static const int64_t widths[] = {1,   4,   8,   9,   12,  16,   17,       24,  31,
                                     32,  33,  48,  63,  65,  97,   100,      129, 256,
                                     257, 500, 639, 640, 641, 1000, MOST_COLS};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    enum { COUNT = (int)(sizeof widths / sizeof *widths) };
    for (int k = 0; k < COUNT * 3 * 2; k++) {
        int64_t cols = widths[k % COUNT];
        tsr_dtype dtype = dtypes[k / COUNT % 3];
        bool is_backward = k / COUNT / 3 == 1;
        for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
            if (!test_has_isa(isa)) continue;
            fill(dtype, cols);
            run((tsr_isa)isa, 1 << 30, is_backward, dtype, 0, ROWS, cols, y[0]);
            run((tsr_isa)isa, 1, is_backward, dtype, 0, ROWS, cols, y[1]);
            for (int64_t row = 0; row < ROWS; row += 3)
                run((tsr_isa)isa, 1 << 30, is_backward, dtype, row, ROWS - row < 3 ? ROWS - row : 3,
                    cols, y[2]);
            for (int other = 1; other < 3; other++)
                if (memcmp(y[0], y[other], sizeof y[0]) != 0)
                    fail_msg("%s of %s, %d columns, %s: other bits %s",
                             is_backward ? "backward" : "forward", tsr_dtype_name(dtype), (int)cols,
                             tsr_isa_name((tsr_isa)isa),
                             other == 1 ? "past the caches" : "beside other rows");
        }
    }
}

// NaN with any payload, which arithmetic on the bits could take for an exponent.
static void every_nan_fills_its_row(void **state) {
    static const uint32_t nans[] = {0x7fc00000, 0x7fffffff, 0xffffffff, 0x7fc00001, 0xffc12345};
    static const int64_t widths[] = {1, 3, 8, 9, 16, 20, 33, 65, 300, 1000};
    (void)state;
    for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        for (int k = 0; k < COUNT(widths) * COUNT(nans) * 3; k++) {
            const int64_t cols = widths[k % COUNT(widths)];
            const int64_t places[] = {0, cols / 2, cols - 1};
            const int64_t at = places[k / COUNT(widths) % 3];
            fill(TSR_F32, cols);
            for (int64_t row = 4; row < 7; row++)
                memcpy(x + (row * cols + at) * 4, &nans[k / COUNT(widths) / 3], 4);
            run((tsr_isa)isa, 1 << 30, false, TSR_F32, 0, ROWS, cols, y[0]);
            for (int64_t i = 3 * cols; i < 8 * cols; i++)
                assert_int_equal(isnan(tsr_load(TSR_F32, y[0], i)), i >= 4 * cols && i < 7 * cols);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_alone_among_others_and_past_the_caches),
        cmocka_unit_test(every_nan_fills_its_row),
    };
    return cmocka_run_group_tests_name("softmax", tests, NULL, NULL);
}
