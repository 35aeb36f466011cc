// SPDX-License-Identifier: Apache-2.0
// Cross-entropy backward after forward, whose lse is rounded to f32: gradients of logits with a large common offset,
// and of rows whose target has nearly all the probability, so that its gradient is the sum of the others.
#include "test_support.h"

#include <math.h>

enum { ROWS = 6, MOST_COLS = 3000 };

static char x[ROWS * MOST_COLS * 4], dx[ROWS * MOST_COLS * 4];
static float lse[ROWS], loss[ROWS], dloss[ROWS];
static int32_t targets[ROWS];
static uint64_t state_of_rng;

static double uniform(void) { return (double)(test_bits(&state_of_rng) >> 11) * 0x1p-53; }
static int64_t below(int64_t n) { return (int64_t)(test_bits(&state_of_rng) % (uint64_t)n); }

static double largest_offset(tsr_dtype dtype) { return dtype == TSR_F16 ? 4.5 : 30; }

// Fills rows with a common offset, with one class far above the others, or with both. In half of the rows that class is
// the target.
static void fill(tsr_dtype dtype, int64_t cols) {
    for (int64_t r = 0; r < ROWS; r++) {
        double offset = 0, gap = 0, spread = 1 + 7 * uniform();
        int64_t high = below(cols);
        if (below(3) > 0) offset = pow(10, largest_offset(dtype) * uniform());
        if (below(2) > 0) offset = -offset;
        if (fabs(offset) > 1e3) spread *= fabs(offset) * (dtype == TSR_F32 ? 0x1p-23 : 0x1p-9);
        if (below(3) > 0) gap = 60 * uniform() + spread * 4;
        for (int64_t c = 0; c < cols; c++) {
            double value = offset + spread * (double)test_float(&state_of_rng) / 4;
            if (below(50) == 0) value = -(double)INFINITY;
            if (c == high) value = offset + spread + gap;
            tsr_store(dtype, x, r * cols + c, value);
        }
        targets[r] = (int32_t)(below(2) > 0 ? high : below(cols));
        dloss[r] = (float)(0.25 + uniform());
    }
}

static void run(tsr_context *ctx, const char *variant, tsr_dtype dtype, int64_t cols,
                float label_smoothing, bool is_in_place) {
    tsr_tensor logits = TSR_TENSOR(x, dtype, ROWS, cols),
               classes = TSR_TENSOR(targets, TSR_I32, ROWS),
               rows_lse = TSR_TENSOR(lse, TSR_F32, ROWS);
    assert_ok(tsr_cross_entropy_forward(
        ctx,
        &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = logits, .targets = classes,
                                        .label_smoothing = label_smoothing,
                                        .loss = TSR_TENSOR(loss, TSR_F32, ROWS), .lse = rows_lse)));
    memset(dx, 0x5a, sizeof dx);
    if (is_in_place) memcpy(dx, x, sizeof dx), logits.data = dx;
    assert_ok(tsr_cross_entropy_backward(
        ctx, &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = logits, .targets = classes, .lse = rows_lse,
                                              .label_smoothing = label_smoothing,
                                              .dloss = TSR_TENSOR(dloss, TSR_F32, ROWS),
                                              .dlogits = TSR_TENSOR(dx, dtype, ROWS, cols),
                                              .variant = variant)));
}

// Returns an element's gradient in double, and in *scale what its error is relative to: the two terms if label
// smoothing cancels them, else the gradient.
static double expected(tsr_dtype dtype, int64_t r, int64_t c, int64_t cols, double label_smoothing,
                       const double *sums, double *scale) {
    double max = sums[0], others = sums[1], d = (double)dloss[r],
           rest = label_smoothing / (double)cols;
    double at_target = exp(tsr_load(dtype, x, r * cols + targets[r]) - max),
           sum = others + at_target;
    if (c == targets[r]) {
        *scale = d * (others / sum + label_smoothing);
        return d * (label_smoothing - rest - others / sum);
    }
    double p = exp(tsr_load(dtype, x, r * cols + c) - max) / sum;
    *scale = d * (p + rest);
    return d * (p - rest);
}

static void compare(const char *what, tsr_dtype dtype, int64_t cols, double label_smoothing) {
    double tolerance = dtype == TSR_F32 ? 1e-5 : 1e-3 + (dtype == TSR_F16 ? 0x1p-11 : 0x1p-8);
    // The error from rounding an element to a subnormal number or 0. The target's element has this error for each term
    // of its sum.
    double tiny = dtype == TSR_F16 ? 0x1p-25 : (double)cols * 0x1p-125;
    for (int64_t r = 0; r < ROWS; r++) {
        double sums[2] = {-(double)INFINITY, 0}; // the maximum, and the sum of all but the target
        for (int64_t c = 0; c < cols; c++)
            sums[0] = fmax(sums[0], tsr_load(dtype, x, r * cols + c));
        for (int64_t c = 0; c < cols; c++)
            if (c != targets[r]) sums[1] += exp(tsr_load(dtype, x, r * cols + c) - sums[0]);
        for (int64_t c = 0; c < cols; c++) {
            double scale, got = tsr_load(dtype, dx, r * cols + c),
                          right = expected(dtype, r, c, cols, label_smoothing, sums, &scale);
            double least = c == targets[r] && dtype != TSR_F16 ? (double)cols * tiny : tiny;
            if (!(fabs(got - right) <= tolerance * scale + least))
                fail_msg("%s, %d columns, label_smoothing %g, row %d, class %d%s: %.9g, expected "
                         "%.9g (max %g, lse %.9g)",
                         what, (int)cols, label_smoothing, (int)r, (int)c,
                         c == targets[r] ? ", the target" : "", got, right, sums[0],
                         (double)lse[r]);
        }
    }
}

static void gradients_do_not_depend_on_lse_being_rounded(void **state) {
    (void)state;
    static const char *const variants[] = {"fused", "unfused", "reference"};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    const int count = (int)test_number("TESSERA_TEST_CASES", 40);
    state_of_rng = test_seed(20);
    for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        tsr_context *ctx;
        assert_ok(
            tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 2), &ctx));
        int cases = count * 9;
        for (int k = 0; k < cases; k++) {
            tsr_dtype dtype = dtypes[k % 3];
            const char *variant = variants[k / 3 % 3];
            int64_t cols = below(2) > 0 ? 1 + below(130) : 1 + below(MOST_COLS);
            float label_smoothing = below(3) == 0 ? (float)uniform() : 0;
            char what[64];
            snprintf(what, sizeof what, "%s %s %s", variant, tsr_dtype_name(dtype),
                     tsr_isa_name((tsr_isa)isa));
            fill(dtype, cols);
            run(ctx, variant, dtype, cols, label_smoothing, below(2) > 0);
            compare(what, dtype, cols, (double)label_smoothing);
        }
        tsr_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_do_not_depend_on_lse_being_rounded)};
    return cmocka_run_group_tests_name("cross_entropy_backward", tests, NULL, NULL);
}
