// SPDX-License-Identifier: Apache-2.0
// Quantize on the CPU: where NaN and infinities go, zeros, leading dimensions, the oracle's f64, and y and y_scale in a product.
#include <math.h>

#include "test_support.h"

enum { BLOCK = 128, POISON = 0xff };

static void what_is_not_finite(void **state) {
    enum { N = 300 };
    static const tsr_dtype formats[] = {TSR_E4M3, TSR_E5M2};
    static float x[N], scales[3];
    static uint8_t y[N];
    for (int f = 0; f < COUNT(formats); f++)
        for (int where = 0; where < N; where += 7) {
            const float limit = f == 0 ? 448 : 57344;
            static const float bad[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
            for (int i = 0; i < N; i++) x[i] = i % 2 == 0 ? 0.5f : -1.0f;
            x[where] = bad[where % 4];
            assert_ok(tsr_quantize(*state,
                                   &TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F32, N),
                                                      .up = TSR_TENSOR(x, TSR_F32, N),
                                                      .y = TSR_TENSOR(y, formats[f], N),
                                                      .y_scale = TSR_TENSOR(scales, TSR_F32, 3))));
            for (int i = 0; i < 3; i++) // 3.4e38 squared is infinite
                assert_same_number((double)scales[i], (double)(1.0f / limit));
            for (int i = 0; i < N; i++) {
                const double got = tsr_load(formats[f], y, i);
                if (i == where)
                    assert_true(isnan(got));
                else
                    assert_same_number(got, (double)limit * (i % 2 == 0 ? 0.25 : 1));
            }
        }
}

static void zeros_and_rows_of_zeros(void **state) {
    enum { N = 131 };
    static float x[2][N], scales[4][2];
    static uint8_t y[4][N];
    static int32_t list[] = {-1, 1, 0, -1};
    for (int i = 0; i < N; i++) x[0][i] = NAN, x[1][i] = i % 2 == 0 ? 0.0f : -0.0f;
    memset(y, POISON, sizeof y);
    assert_ok(
        tsr_quantize(*state, &TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F32, 2, N),
                                                .x_rows = TSR_TENSOR(list, TSR_I32, 4),
                                                .y = TSR_TENSOR(y, TSR_E5M2, 4, N),
                                                .y_scale = TSR_TENSOR(scales, TSR_F32, 4, 2))));
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < N; i++) {
            const double got = tsr_load(TSR_E5M2, y[r], i);
            assert_true(list[r] == 0 ? isnan(got) : got == 0);
            assert_same_number((double)scales[r][i / BLOCK], (double)(1e-10f / 57344));
        }
}

// Leading dimensions, and the oracle's f64, which has no rounding.
static void of_three_dimensions_and_wide(void **state) {
    enum { A = 2, B = 3, N = 200 };
    static double x[A][B][N], wide[A][B][N], wide_scales[A][B][2];
    static float narrow[A][B][N], scales[A][B][2];
    static uint8_t y[A][B][N];
    uint64_t random = 8;
    for (int r = 0; r < A * B; r++)
        for (int i = 0; i < N; i++) {
            narrow[r / B][r % B][i] = test_float(&random);
            x[r / B][r % B][i] = (double)narrow[r / B][r % B][i];
        }
    assert_ok(tsr_quantize(
        *state, &TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F64, A, B, N),
                                   .y = TSR_TENSOR(wide, TSR_F64, A, B, N),
                                   .y_scale = TSR_TENSOR(wide_scales, TSR_F64, A, B, 2))));
    assert_ok(
        tsr_quantize(*state, &TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(narrow, TSR_F32, A, B, N),
                                                .y = TSR_TENSOR(y, TSR_E4M3, A, B, N),
                                                .y_scale = TSR_TENSOR(scales, TSR_F32, A, B, 2))));
    for (int r = 0; r < A * B; r++)
        for (int i = 0; i < N; i++) {
            const double s = wide_scales[r / B][r % B][i / BLOCK], at = wide[r / B][r % B][i];
            assert_true(fabs(at * s - x[r / B][r % B][i]) <= 1e-12);
            assert_true(fabs((double)scales[r / B][r % B][i / BLOCK] - s) <= 0x1p-22 * s);
            assert_true(fabs(tsr_load(TSR_E4M3, y, r * N + i) - at) <=
                        fabs(at) * (0x1p-4 + 0x1p-20) + 0x1p-10);
        }
}

// a and a_scale of a product.
static void into_a_product(void **state) {
    enum { M = 5, N = 7, K = 300, BLOCKS = 3 };
    static float x[M][K], c[M][N], w_scale[BLOCKS][1], scales[M][BLOCKS];
    static uint8_t y[M][K], w[K][N];
    uint64_t random = 3;
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) x[m][k] = 1000 * test_float(&random);
    for (int i = 0; i < K * N; i++) tsr_store(TSR_E4M3, w, i, (double)test_float(&random));
    for (int i = 0; i < BLOCKS; i++) w_scale[i][0] = 1;
    const tsr_tensor a = TSR_TENSOR(y, TSR_E4M3, M, K),
                     a_scale = TSR_TENSOR(scales, TSR_F32, M, BLOCKS);
    assert_ok(tsr_quantize(
        *state, &TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F32, M, K), .y = a, .y_scale = a_scale)));
    assert_ok(tsr_matmul_forward(
        *state,
        &TSR_MATMUL_FORWARD_ARGS(.a = a, .a_scale = a_scale, .b = TSR_TENSOR(w, TSR_E4M3, K, N),
                                 .b_scale = TSR_TENSOR(w_scale, TSR_F32, BLOCKS, 1),
                                 .c = TSR_TENSOR(c, TSR_F32, M, N))));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double sum = 0, total = 0;
            for (int k = 0; k < K; k++) {
                const double term = (double)x[m][k] * tsr_load(TSR_E4M3, w, k * N + n);
                sum += term, total += fabs(term);
            }
            assert_true(fabs((double)c[m][n] - sum) <= 0.065 * total + 1);
        }
}

static int setup(void **state) {
    *state = test_context(2);
    return 0;
}
static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(zeros_and_rows_of_zeros),
        cmocka_unit_test(of_three_dimensions_and_wide),
        cmocka_unit_test(into_a_product),
    };
    return cmocka_run_group_tests_name("quantize values", tests, setup, teardown);
}
