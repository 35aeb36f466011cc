// SPDX-License-Identifier: Apache-2.0
// Layernorm backward after forward, whose mean is rounded to f32. Rows have means up to 10^6 standard deviations from
// 0, from tiny to huge values, and are compared with the definition in double.
#include "test_support.h"

#include <math.h>

enum { ROWS = 9, MOST_COLS = 2500 };

static float x[ROWS * MOST_COLS], dy[ROWS * MOST_COLS], y[ROWS * MOST_COLS], dx[ROWS * MOST_COLS];
static float weight[MOST_COLS], dweight[MOST_COLS], mean[ROWS], rstd[ROWS];
static double h[ROWS * MOST_COLS], exact_rstd[ROWS];
static uint64_t state_of_rng;

static double uniform(void) { return (double)(test_bits(&state_of_rng) >> 11) * 0x1p-53; }
static int64_t below(int64_t n) { return (int64_t)(test_bits(&state_of_rng) % (uint64_t)n); }

static void fill(int64_t cols) {
    for (int64_t r = 0; r < ROWS; r++) {
        double sigma = pow(10, 24 * uniform() - 3), ratio = pow(10, 6 * uniform());
        if (below(3) == 0) sigma = 1;
        if (below(2) > 0) ratio = -ratio;
        for (int64_t c = 0; c < cols; c++) {
            x[r * cols + c] = (float)(sigma * (ratio + (double)test_float(&state_of_rng) / 2));
            dy[r * cols + c] = test_float(&state_of_rng) + 1;
        }
    }
    for (int64_t c = 0; c < cols; c++) weight[c] = test_float(&state_of_rng) + 1;
}

static void normalise(int64_t cols) {
    for (int64_t r = 0; r < ROWS; r++) {
        double m = 0, squares = 0, n = (double)cols;
        for (int64_t c = 0; c < cols; c++) m += (double)x[r * cols + c] / n;
        double rest = 0; // the rounding error of the sum
        for (int64_t c = 0; c < cols; c++) rest += ((double)x[r * cols + c] - m) / n;
        for (int64_t c = 0; c < cols; c++) {
            h[r * cols + c] = (double)x[r * cols + c] - m - rest;
            squares += h[r * cols + c] * h[r * cols + c];
        }
        exact_rstd[r] = 1 / sqrt(squares / n + (double)1e-5f);
        for (int64_t c = 0; c < cols; c++) h[r * cols + c] *= exact_rstd[r];
    }
}

static void compare(const char *what, int64_t cols, bool has_weight) {
    const double u = 0x1p-24, k = (8 + sqrt((double)cols)) * u, n = (double)cols;
    const double of_h = 64 * u + 2 * k, of_rstd = k + 2 * u;
    double sums[MOST_COLS], sizes[MOST_COLS];
    memset(sums, 0, sizeof sums), memset(sizes, 0, sizeof sizes);
    for (int64_t r = 0; r < ROWS; r++) {
        double mean_g = 0, mean_gh = 0, size_g = 0, size_gh = 0;
        for (int64_t c = 0, i = r * cols; c < cols; c++, i++) {
            double g = (double)dy[i] * (has_weight ? (double)weight[c] : 1);
            mean_g += g / n, size_g += fabs(g) / n;
            mean_gh += g * h[i] / n, size_gh += fabs(g * h[i]) / n;
            sums[c] += (double)dy[i] * h[i];
            sizes[c] += fabs((double)dy[i]) * ((4 * k + 16 * u) * fabs(h[i]) + of_h);
        }
        for (int64_t c = 0, i = r * cols; c < cols; c++, i++) {
            double g = (double)dy[i] * (has_weight ? (double)weight[c] : 1);
            double right = exact_rstd[r] * (g - mean_g - h[i] * mean_gh);
            double bound = exact_rstd[r] *
                           ((4 * k + 8 * u + of_rstd) * (size_g + fabs(h[i]) * size_gh + fabs(g)) +
                            of_h * (fabs(h[i]) * size_g + size_gh));
            if (!(fabs((double)dx[i] - right) <= bound + 1e-37))
                fail_msg("%s, %d columns, row %d, column %d: dx %.9g, expected %.9g within %.2g "
                         "(mean %.9g, rstd %.9g)",
                         what, (int)cols, (int)r, (int)c, (double)dx[i], right, bound,
                         (double)mean[r], (double)rstd[r]);
        }
    }
    for (int64_t c = 0; c < cols; c++)
        if (!(fabs((double)dweight[c] - sums[c]) <= sizes[c] + 1e-37))
            fail_msg("%s, %d columns, column %d: dweight %.9g, expected %.9g within %.2g", what,
                     (int)cols, (int)c, (double)dweight[c], sums[c], sizes[c]);
}

static void run(tsr_context *ctx, const char *variant, int64_t cols, bool has_weight) {
    tsr_tensor rows_x = TSR_TENSOR(x, TSR_F32, ROWS, cols), none = {0};
    tsr_tensor w = has_weight ? TSR_TENSOR(weight, TSR_F32, cols) : none;
    tsr_tensor of_mean = TSR_TENSOR(mean, TSR_F32, ROWS), of_rstd = TSR_TENSOR(rstd, TSR_F32, ROWS);
    assert_ok(tsr_layernorm_forward(
        ctx, &TSR_LAYERNORM_FORWARD_ARGS(.x = rows_x, .y = TSR_TENSOR(y, TSR_F32, ROWS, cols),
                                         .mean = of_mean, .rstd = of_rstd)));
    memset(dx, 0x5a, sizeof dx), memset(dweight, 0x5a, sizeof dweight);
    assert_ok(tsr_layernorm_backward(
        ctx,
        &TSR_LAYERNORM_BACKWARD_ARGS(.x = rows_x, .weight = w, .mean = of_mean, .rstd = of_rstd,
                                     .variant = variant, .dy = TSR_TENSOR(dy, TSR_F32, ROWS, cols),
                                     .dx = TSR_TENSOR(dx, TSR_F32, ROWS, cols),
                                     .dweight = TSR_TENSOR(dweight, TSR_F32, cols))));
}

static void gradients_do_not_depend_on_mean_being_rounded(void **state) {
    (void)state;
    static const char *const variants[] = {"fused", "unfused", "mixed", "reference"};
    const int count = (int)test_number("TESSERA_TEST_CASES", 25);
    state_of_rng = test_seed(21);
    for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        tsr_context *ctx;
        assert_ok(
            tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 2), &ctx));
        for (int k = 0; k < count * COUNT(variants); k++) {
            int64_t cols = below(2) > 0 ? 2 + below(70) : 2 + below(MOST_COLS - 1);
            bool has_weight = below(2) > 0;
            char what[64];
            snprintf(what, sizeof what, "%s %s", variants[k % COUNT(variants)],
                     tsr_isa_name((tsr_isa)isa));
            fill(cols);
            normalise(cols);
            run(ctx, variants[k % COUNT(variants)], cols, has_weight);
            compare(what, cols, has_weight);
        }
        tsr_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_do_not_depend_on_mean_being_rounded)};
    return cmocka_run_group_tests_name("norm_offset", tests, NULL, NULL);
}
