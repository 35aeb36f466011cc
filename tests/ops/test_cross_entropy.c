// SPDX-License-Identifier: Apache-2.0
// Cross-entropy forward on the CPU: lse of rows in which later logits move the exponents' shift far from that of the
// first logits, on every instruction set.
#include "test_support.h"

#include <math.h>

enum { MOST_COLS = 5000, FEW = 64 }; // the first FEW logits set the shift

static const char *const kinds[] = {"ascending",
                                    "an outlier that the first shift holds",
                                    "an outlier that it does not hold",
                                    "descending by blocks",
                                    "-inf first",
                                    "-inf first, then low",
                                    "the lowest numbers in every second place",
                                    "high after low",
                                    "-inf only",
                                    "-inf late",
                                    "sums near 2^-100",
                                    "sums that grow past 2^100",
                                    "NaN last",
                                    "+inf last"};
enum { KINDS = COUNT(kinds) };

static char x[KINDS * MOST_COLS * 4];
static float lse[KINDS], loss[KINDS], alone;

static double logit(int kind, int64_t i, int64_t cols, tsr_dtype dtype) {
    double some = (double)(i * 37 % 101 - 50) / 16, lowest = dtype == TSR_F16 ? -65504 : -3.3e38;
    bool is_late = i == cols - 3;
    switch (kind) {
    case 0: return 60 * (double)i / (double)cols - 30;
    case 1: return is_late ? some + 9 : some;
    case 2: return is_late ? some + 90 : some;
    case 3: return some - 20 * (double)(i / 1000);
    case 4: return i < FEW ? -(double)INFINITY : some;
    case 5: return i < cols / 2 ? -(double)INFINITY : some - 1000;
    case 6: return i % 2 == 0 ? lowest : some;
    case 7: return i < FEW ? some - 30000 : some + 30000;
    case 8: return -(double)INFINITY;
    case 9: return is_late ? -(double)INFINITY : some;
    case 10: return some - 70 - 2 * (double)(i / 1000);
    case 11: return some + 55 + 15 * (double)(i / 2048);
    case 12: return i == cols - 1 ? (double)NAN : some;
    default: return i == cols - 1 ? (double)INFINITY : some;
    }
}

static void run(tsr_context *ctx, tsr_dtype dtype, const char *from, int64_t rows, int64_t cols,
                float *lse_out) {
    static const int32_t targets[KINDS];
    assert_ok(tsr_cross_entropy_forward(
        ctx, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = TSR_TENSOR((void *)(uintptr_t)from, dtype,
                                                                  rows, cols),
                                             .targets = TSR_TENSOR((void *)(uintptr_t)targets,
                                                                   TSR_I32, rows),
                                             .loss = TSR_TENSOR(loss, TSR_F32, rows),
                                             .lse = TSR_TENSOR(lse_out, TSR_F32, rows))));
}

// lse of one row in double, and its bound from tessera/cross_entropy.h including the rounding to f32.
static double exact(tsr_dtype dtype, int kind, int64_t cols, double *bound) {
    double max = -(double)INFINITY, sum = 0, weighted = 0;
    for (int64_t i = 0; i < cols; i++) max = fmax(max, tsr_load(dtype, x, kind * cols + i));
    for (int64_t i = 0; i < cols; i++) {
        double value = tsr_load(dtype, x, kind * cols + i), e = exp(value - max);
        sum += e;
        if (e > 0) weighted += e * (max - value);
    }
    double result = max + log(sum), blocks = sqrt(fmin((double)cols, 2048));
    *bound = 0x1p-24 * (8 + blocks + 2 * weighted / sum + fabs(result));
    return result;
}

static void the_shift_follows_the_row(void **state) {
    (void)state;
    static const int64_t widths[] = {FEW + 6, 200, 1023, 2048, 2111, MOST_COLS};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (int k = 0; k < COUNT(widths) * 3 * TSR_ISA_COUNT; k++) {
        int64_t cols = widths[k % COUNT(widths)];
        tsr_dtype dtype = dtypes[k / COUNT(widths) % 3];
        tsr_isa isa = (tsr_isa)(k / COUNT(widths) / 3);
        if (!test_has_isa(isa)) continue;
        for (int64_t i = 0; i < KINDS * cols; i++)
            tsr_store(dtype, x, i, logit((int)(i / cols), i % cols, cols, dtype));
        tsr_context *ctx;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1), &ctx));
        run(ctx, dtype, x, KINDS, cols, lse);
        for (int kind = 0; kind < KINDS; kind++) {
            double bound, expected = exact(dtype, kind, cols, &bound), got = (double)lse[kind];
            bool is_right = kind == 8   ? got == -(double)INFINITY
                            : kind > 11 ? isnan(got)
                                        : fabs(got - expected) <= bound;
            if (!is_right)
                fail_msg("%s, %d columns of %s, %s: %.9g, expected %.9g within %.2g", kinds[kind],
                         (int)cols, tsr_dtype_name(dtype), tsr_isa_name(isa), got, expected, bound);
            run(ctx, dtype, x + (size_t)(kind * cols) * tsr_dtype_bytes(dtype), 1, cols, &alone);
            assert_memory_equal(&alone, &lse[kind], sizeof alone);
        }
        tsr_context_destroy(ctx);
    }
}

// With label smoothing the loss of huge logits of both signs must be finite if its exact value is: 0.875 (lse - x[0]) +
// 0.125 (lse - mean).
static void smoothing_holds_the_largest_logits(void **state) {
    (void)state;
    static const int32_t target[1];
    for (int k = 0; k < 12 * TSR_ISA_COUNT; k++) {
        int64_t cols = (int64_t)2 << k % 12;
        tsr_isa isa = (tsr_isa)(k / 12);
        if (!test_has_isa(isa)) continue;
        double mean = 0;
        for (int64_t i = 0; i < cols; i++) {
            tsr_store(TSR_F32, x, i, i == 0 ? 3e38 : -3e38);
            mean += tsr_load(TSR_F32, x, i) / (double)cols;
        }
        double expected = 0.125 * (tsr_load(TSR_F32, x, 0) - mean);
        tsr_context *ctx;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1), &ctx));
        assert_ok(tsr_cross_entropy_forward(
            ctx, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = TSR_TENSOR(x, TSR_F32, 1, cols),
                                                 .label_smoothing = 0.125f,
                                                 .targets = TSR_TENSOR((void *)(uintptr_t)target,
                                                                       TSR_I32, 1),
                                                 .loss = TSR_TENSOR(loss, TSR_F32, 1),
                                                 .lse = TSR_TENSOR(lse, TSR_F32, 1))));
        if (!(fabs((double)loss[0] / expected - 1) < 1e-5))
            fail_msg("%d columns, %s: %.9g, expected %.9g", (int)cols, tsr_isa_name(isa),
                     (double)loss[0], expected);
        tsr_context_destroy(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_shift_follows_the_row),
                                       cmocka_unit_test(smoothing_holds_the_largest_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
