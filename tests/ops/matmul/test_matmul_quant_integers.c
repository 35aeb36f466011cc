// SPDX-License-Identifier: Apache-2.0
// Products by quantised weights in integers: exact where a is, the same bits for any number of threads and rows, and infinities and
// NaN as in fp32. Skipped without the unit.
#include "test_support.h"

#include <math.h>
#include <tessera/matmul_quant.h>

enum { ROWS = 70, N = 45, K = 416, BYTES = K / 32 * 34 };

static uint8_t b[N * BYTES];
static float a[ROWS * K], c[ROWS * N], other[ROWS * N];
static uint64_t state_of_rng;

static bool has_unit(tsr_context *ctx) {
    double work;
    return tsr_probe_run(ctx, &TSR_PROBE_ARGS(.kind = TSR_PROBE_BYTE_DOT, .repeat = 0), &work) ==
           TSR_OK;
}

// Scales are powers of two from 2^-3 to 2^3.
static void fill(bool is_whole) {
    for (int i = 0; i < N * BYTES; i++) b[i] = (uint8_t)test_bits(&state_of_rng);
    for (int i = 0; i < N * BYTES; i += 34) {
        const int scale = (12 + test_below(&state_of_rng, 7)) << 10;
        b[i] = (uint8_t)(scale & 255), b[i + 1] = (uint8_t)(scale >> 8);
    }
    for (int i = 0; i < ROWS * K; i++)
        a[i] = is_whole ? (float)test_below(&state_of_rng, 511) - 255 : test_float(&state_of_rng);
}

static double number(int row, int k) {
    const uint8_t *block = b + row * BYTES + k / 32 * 34;
    return ldexp((int8_t)block[2 + k % 32], (block[1] >> 2) - 15);
}

static tsr_status run(tsr_context *ctx, const char *variant, int first, int rows, uint32_t flags,
                      float *to) {
    return tsr_matmul_quant(ctx,
                            &TSR_MATMUL_QUANT_ARGS(.flags = flags, .variant = variant,
                                                   .a = TSR_TENSOR(a + first * K, TSR_F32, rows, K),
                                                   .b = TSR_TENSOR(b, TSR_U8, N, BYTES),
                                                   .c = TSR_TENSOR(to, TSR_F32, rows, N),
                                                   .quant = TSR_QUANT_Q8_0));
}

static void whole_numbers_are_exact(void **state) {
    tsr_context *ctx = *state;
    static const int some[] = {1, 2, 5, 6, 9, ROWS};
    fill(true);
    for (int s = 0; s < COUNT(some); s++) {
        assert_ok(run(ctx, "integers", 0, some[s], 0, c));
        for (int i = 0; i < some[s]; i++)
            for (int j = 0; j < N; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++) sum += (double)a[i * K + k] * number(j, k);
                assert_true(fabs((double)c[i * N + j] - sum) <= fabs(sum) * 0x1p-22 + 0.01);
            }
    }
}

static void bits_do_not_depend_on_threads_or_rows(void **state) {
    tsr_context *ctx = *state, *one = test_context(1);
    fill(false);
    assert_ok(run(ctx, "integers", 0, ROWS, 0, c));
    assert_ok(run(one, "integers", 0, ROWS, 0, other));
    assert_memory_equal(c, other, sizeof c);
    assert_ok(run(ctx, "integers", 11, 6, 0, other));
    assert_memory_equal(c + 11 * N, other, 6 * N * sizeof *c);
    for (int i = 0; i < ROWS; i += 7) { // one row at a time
        assert_ok(run(ctx, NULL, i, 1, TSR_BATCH_INVARIANT, other));
        assert_memory_equal(c + i * N, other, N * sizeof *c);
    }
    tsr_context_destroy(one);
}

// In row 2 of a a NaN, in row 4 an infinity; column 7 has a scale of infinity, column 8 one of NaN.
static void what_is_not_finite(void **state) {
    tsr_context *ctx = *state;
    static const int some[] = {5, ROWS};
    fill(false);
    for (int s = 0; s < COUNT(some); s++) {
        a[2 * K + 40] = NAN, a[4 * K + 300] = INFINITY;
        assert_ok(run(ctx, "integers", 0, some[s], 0, c));
        b[7 * BYTES + 1] = 0x7c, b[7 * BYTES] = 0;
        b[8 * BYTES + 34 + 1] = 0x7e;
        assert_ok(run(ctx, "integers", 0, some[s], 0, other));
        for (int i = 0; i < some[s]; i++)
            for (int j = 0; j < N; j++) {
                const float x = c[i * N + j], y = other[i * N + j];
                if (i == 2)
                    assert_true(isnan(x) && isnan(y));
                else if (i == 4)
                    assert_true(number(j, 300) != 0 ? isinf(x) : isnan(x));
                else
                    assert_true(isfinite(x));
                if (j == 8) assert_true(isnan(y));
                if (j != 7 && j != 8 && i != 2 && i != 4) assert_same_number((double)x, (double)y);
            }
        // Sums of infinities of both signs are NaN, as in fp32.
        for (int i = 0; i < some[s]; i++) {
            float y;
            assert_ok(run(ctx, "skinny", i, 1, 0, c));
            y = c[7];
            if (isnan(y))
                assert_true(isnan(other[i * N + 7]));
            else
                assert_same_number((double)other[i * N + 7], (double)y);
        }
        fill(false);
    }
}

static int make_context(void **state) {
    state_of_rng = test_seed(31);
    *state = test_context(2);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_context, test_end_context)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(whole_numbers_are_exact),
        TEST(bits_do_not_depend_on_threads_or_rows),
        TEST(what_is_not_finite),
    };
    tsr_context *ctx = test_context(1);
    const bool is_here = has_unit(ctx);
    tsr_context_destroy(ctx);
    if (!is_here) return 77;
    return cmocka_run_group_tests_name("matmul_quant_integers", tests, NULL, NULL);
}
