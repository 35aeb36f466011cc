// SPDX-License-Identifier: Apache-2.0
// A valid call of softmax that tests modify, and the checks of a refusal: a status, a sentence, nothing written, and a
// context that still serves the next call.
#ifndef SOFTMAX_CONTRACT_H
#define SOFTMAX_CONTRACT_H

#include <math.h>

#include "test_support.h"

enum { ROWS = 6, COLS = 10, STRIDE = 24, NUMEL = ROWS * STRIDE };

struct fixture {
    tsr_context *ctx;
    float x[NUMEL], x_before[NUMEL], y[NUMEL];
    tsr_softmax_forward_args args; // a valid call; each test changes one thing
};

static inline tsr_tensor rows_of(void *data, tsr_dtype dtype, int64_t stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, ROWS, COLS);
    t.stride[0] = stride;
    return t;
}

static inline int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    uint64_t seed = 7;
    f->ctx = test_context(2);
    for (int i = 0; i < NUMEL; i++) f->x_before[i] = f->x[i] = test_float(&seed);
    memset(f->y, 0xff, sizeof f->y);
    f->args = TSR_SOFTMAX_FORWARD_ARGS(.x = rows_of(f->x, TSR_F32, STRIDE),
                                       .y = rows_of(f->y, TSR_F32, STRIDE));
    *state = f;
    return 0;
}

static inline int teardown(void **state) {
    struct fixture *f = *state;
    tsr_context_destroy(f->ctx);
    free(f);
    return 0;
}

// Checks that y, with a row stride, is the softmax of x, the fixture's unchanged input.
static inline void check_rows(const struct fixture *f, const float *y, int64_t stride) {
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int c = 0; c < COLS; c++) sum += exp((double)f->x_before[r * STRIDE + c]);
        for (int c = 0; c < COLS; c++) {
            double expected = exp((double)f->x_before[r * STRIDE + c]) / sum;
            if (!(fabs((double)y[r * stride + c] - expected) < 1e-6 * expected))
                fail_msg("row %d, column %d is %g, expected %g", r, c, (double)y[r * stride + c],
                         expected);
        }
    }
}

// Checks that outputs and inputs are unchanged.
static inline void check_untouched(const struct fixture *f) {
    assert_true(test_all_bytes_are(f->y, 0xff, sizeof f->y));
    assert_memory_equal(f->x, f->x_before, sizeof f->x);
}

// Checks that the call and its prepare fail alike and write nothing, and that the context serves the next valid call.
static inline void refuse(const char *file, int line, struct fixture *f,
                          const tsr_softmax_forward_args *args, tsr_status status,
                          const char *const *words) {
    size_t bytes = 12345;
    test_status(file, line, tsr_softmax_forward(f->ctx, args), status, words);
    check_untouched(f);
    test_status(file, line, tsr_softmax_forward_prepare(f->ctx, args, &bytes), status, words);
    assert_int_equal(bytes, 12345);
    struct fixture good = *f;
    good.args = TSR_SOFTMAX_FORWARD_ARGS(.x = rows_of(good.x, TSR_F32, STRIDE),
                                         .y = rows_of(good.y, TSR_F32, STRIDE));
    test_status(file, line, tsr_softmax_forward(f->ctx, &good.args), TSR_OK,
                (const char *const[]){NULL});
    check_rows(f, good.y, STRIDE);
}
#define assert_refused(f, args, status, ...)                                                       \
    refuse(__FILE__, __LINE__, (f), (args), (status),                                              \
           (const char *const[]){"softmax_forward", __VA_ARGS__, NULL})
#define assert_invalid(f, ...) assert_refused((f), &(f)->args, TSR_INVALID_ARGUMENT, __VA_ARGS__)

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
