// SPDX-License-Identifier: Apache-2.0
// The gradients of the experts' biases on the CPU, against the formula written here: random sizes, dtypes and strides within the
// bound of the contract, what is not read, the bits of an expert alone and among others, and what a call refuses.
#include <math.h>

#include "test_support.h"

enum { ROWS = 3000, SOURCES = 400, COLS = 300, EXPERTS = 40, GUARD = 32, POISON = 0xff };
enum { WIDE = COLS + 20, MOST = ROWS * 80 }; // a row with a gap; elements of rows

#define BUFFER(name, elements) char name##_before[GUARD], name[(elements)*4], name##_after[GUARD]
static struct {
    float weights[2 * ROWS];
    int32_t tokens[2 * ROWS], offsets[2 * (EXPERTS + 1)];
    char rows[MOST * 4];
} in;
static struct outputs { BUFFER(dbias, EXPERTS *WIDE); } out, other;

struct call {
    int rows, sources, cols, experts, stride, dstride, step; // step: between elements of the lists
    tsr_dtype dtype, dbias_dtype;
    bool has_tokens, has_weights;
};

static int offset_of(const struct call *c, int e) { return in.offsets[e * c->step]; }
static int source_of(const struct call *c, int r) {
    return c->has_tokens ? in.tokens[r * c->step] : r;
}
static double weight_of(const struct call *c, int r) {
    return c->has_weights ? (double)in.weights[r * c->step] : 1;
}

static int by_value(const void *a, const void *b) {
    return (*(const int32_t *)a > *(const int32_t *)b) -
           (*(const int32_t *)a < *(const int32_t *)b);
}

// Offsets may begin late and end early. What no expert has is poison: NaN, and -1 in the list.
static void fill(const struct call *c, uint64_t *random) {
    int32_t offsets[EXPERTS + 1];
    memset(&in, POISON, sizeof in);
    for (int e = 0; e <= c->experts; e++) offsets[e] = test_below(random, c->rows + 1);
    qsort(offsets, (size_t)c->experts + 1, sizeof *offsets, by_value);
    for (int e = 0; e <= c->experts; e++) in.offsets[e * c->step] = offsets[e];
    for (int r = offsets[0]; r < offsets[c->experts]; r++) {
        in.tokens[r * c->step] = test_below(random, c->sources);
        in.weights[r * c->step] = test_float(random);
        for (int i = 0; i < c->cols; i++)
            tsr_store(c->dtype, in.rows, (int64_t)source_of(c, r) * c->stride + i,
                      (double)test_float(random));
    }
}

static struct call draw(uint64_t *random) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct call c = {.dtype = dtypes[test_below(random, 3)], .step = 1 + test_below(random, 2)};
    c.dbias_dtype = test_below(random, 2) == 0 ? TSR_F32 : c.dtype;
    c.cols = 1 + test_below(random, test_below(random, 2) == 0 ? 40 : COLS);
    c.stride = c.cols + test_below(random, 2) * test_below(random, WIDE - c.cols);
    c.dstride = c.cols + test_below(random, 2) * test_below(random, WIDE - c.cols);
    c.has_tokens = test_below(random, 2) == 0;
    c.has_weights = test_below(random, 3) != 0;
    const int most = MOST / c.stride;
    c.sources = 1 + test_below(random, most < SOURCES ? most : SOURCES);
    c.rows = 1 + test_below(random, test_below(random, 3) == 0 || most < ROWS ? 300 : ROWS);
    if (!c.has_tokens) c.rows = c.sources = c.rows < most ? c.rows : most;
    c.experts = 1 + test_below(random, EXPERTS);
    fill(&c, random);
    return c;
}

static tsr_tensor list(void *data, tsr_dtype dtype, int count, int step) {
    tsr_tensor t = TSR_TENSOR(data, dtype, count);
    t.stride[0] = step;
    return t;
}

static tsr_moe_bias_backward_args args_of(const struct call *c, struct outputs *outputs) {
    tsr_moe_bias_backward_args args =
        TSR_MOE_BIAS_BACKWARD_ARGS(.rows = test_strided(in.rows, c->dtype, c->sources, c->cols,
                                                        c->stride),
                                   .offsets = list(in.offsets, TSR_I32, c->experts + 1, c->step),
                                   .dbias = test_strided(outputs->dbias, c->dbias_dtype, c->experts,
                                                         c->cols, c->dstride));
    if (c->has_tokens) args.row_tokens = list(in.tokens, TSR_I32, c->rows, c->step);
    if (c->has_weights) args.row_weights = list(in.weights, TSR_F32, c->rows, c->step);
    return args;
}

static double rounded(tsr_dtype dtype, double value, double bound) {
    const double u = dtype == TSR_BF16 ? 0x1p-8 : dtype == TSR_F16 ? 0x1p-11 : 0x1p-24;
    return bound + u * (fabs(value) + bound) + (dtype == TSR_F16 ? 0x1p-25 : 0x1p-120);
}

static void check(const struct call *c) {
    const size_t size = tsr_dtype_bytes(c->dbias_dtype);
    assert_true(test_all_bytes_are(out.dbias_before, POISON, GUARD) &&
                test_all_bytes_are(out.dbias_after, POISON, GUARD));
    for (int e = 0; e < c->experts; e++) {
        const int first = offset_of(c, e), end = offset_of(c, e + 1);
        for (int i = 0; i < c->cols; i++) {
            double expected = 0, total = 0;
            for (int r = first; r < end; r++) {
                const double x =
                    tsr_load(c->dtype, in.rows, (int64_t)source_of(c, r) * c->stride + i);
                expected += weight_of(c, r) * x;
                total += fabs(weight_of(c, r) * x);
            }
            const double got = tsr_load(c->dbias_dtype, out.dbias, (int64_t)e * c->dstride + i);
            const double bound = 0x1p-24 * (8 + 4 * sqrt(end - first)) * total;
            if (!(fabs(got - expected) <= rounded(c->dbias_dtype, expected, bound)))
                fail_msg("expert %d of %d rows, column %d: got %.9g, expected %.9g", e, end - first,
                         i, got, expected);
        }
        const size_t begin = (size_t)(e * c->dstride + c->cols) * size;
        assert_true(
            test_all_bytes_are(out.dbias + begin, POISON, (size_t)(c->dstride - c->cols) * size));
    }
}

static void random_sums(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 10 : 80);
    uint64_t random = test_seed(20261203);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_moe_bias_backward_args args = args_of(&c, &out);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            ctx = test_context_of(isa, 1 + isa);
            assert_ok(tsr_moe_bias_backward(ctx, &args));
            tsr_context_destroy(ctx);
            check(&c);
        }
    }
}

// ---- Bits -------------------------------------------------------------------------------------

// An expert of 1,300 rows has the same bits wherever its rows begin, beside few or many others, on any number of threads, and
// whether its rows come by a list or not.
static void an_expert_alone_and_among_others(void **state) {
    enum { N = 1300, BEFORE = 700, AFTER = 900, ALL = BEFORE + N + AFTER, WIDTH = 70 };
    static float rows[ALL][WIDTH], weights[ALL], alone[1][WIDTH], dbias[4][WIDTH];
    static int32_t tokens[ALL];
    uint64_t random = 4;
    (void)state;
    for (int r = 0; r < ALL; r++) {
        weights[r] = test_float(&random);
        tokens[r] = (r * 7 + 3) % N;
        for (int i = 0; i < WIDTH; i++) rows[r][i] = test_float(&random);
    }
    for (int threads = 1; threads < 6; threads++)
        for (int form = 0; form < 3; form++) { // before, after, both
            const int before = form == 1 ? 0 : BEFORE, after = form == 0 ? 0 : AFTER;
            const int32_t alone_offsets[] = {0, N},
                          offsets[] = {0, before / 3, before, before + N, before + N + after};
            tsr_context *ctx = test_context(threads);
            for (int has_list = 0; has_list < 2; has_list++) {
                tsr_moe_bias_backward_args args =
                    TSR_MOE_BIAS_BACKWARD_ARGS(.rows = TSR_TENSOR(rows, TSR_F32, ALL, WIDTH),
                                               .offsets = TSR_TENSOR((void *)offsets, TSR_I32, 5),
                                               .row_weights = TSR_TENSOR(weights, TSR_F32, ALL),
                                               .dbias = TSR_TENSOR(dbias, TSR_F32, 4, WIDTH));
                if (has_list) args.row_tokens = TSR_TENSOR(tokens, TSR_I32, ALL);
                memset(dbias, POISON, sizeof dbias);
                memset(alone, POISON, sizeof alone);
                assert_ok(tsr_moe_bias_backward(ctx, &args));
                args.offsets = TSR_TENSOR((void *)alone_offsets, TSR_I32, 2);
                args.dbias = TSR_TENSOR(alone, TSR_F32, 1, WIDTH);
                args.row_weights = TSR_TENSOR(weights + before, TSR_F32, N);
                args.rows = TSR_TENSOR(rows[has_list ? 0 : before], TSR_F32, N, WIDTH);
                if (has_list) args.row_tokens = TSR_TENSOR(tokens + before, TSR_I32, N);
                assert_ok(tsr_moe_bias_backward(ctx, &args));
                assert_memory_equal(alone, dbias[2], sizeof alone);
            }
            tsr_context_destroy(ctx);
        }
}

// One expert has nearly all rows: parts of it on several threads, the same bits as on one.
static void any_number_of_threads(void **state) {
    uint64_t random = 11;
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct call c = draw(&random);
        const int end = offset_of(&c, c.experts), start = offset_of(&c, 0);
        for (int e = 1; i % 2 == 0 && e < c.experts; e++)
            in.offsets[e * c.step] = e <= c.experts / 2 ? start : end;
        for (int threads = 1; threads < 9; threads++) {
            tsr_context *ctx = test_context(threads);
            struct outputs *outputs = threads == 1 ? &out : &other;
            const tsr_moe_bias_backward_args args = args_of(&c, outputs);
            memset(outputs, POISON, sizeof *outputs);
            assert_ok(tsr_moe_bias_backward(ctx, &args));
            tsr_context_destroy(ctx);
            assert_memory_equal(outputs, &out, sizeof out);
        }
    }
}

// A NaN in a row reaches its column of its expert, one in a weight all of its expert.
static void where_nan_goes(void **state) {
    enum { N = 1200, E = 3, WIDTH = 37 };
    static float rows[N][WIDTH], weights[N], dbias[E][WIDTH];
    static const int32_t offsets[E + 1] = {0, 100, 1100, N};
    for (int r = 0; r < N; r++) {
        weights[r] = 1;
        for (int i = 0; i < WIDTH; i++) rows[r][i] = 1;
    }
    rows[700][9] = weights[1150] = NAN;
    assert_ok(tsr_moe_bias_backward(
        *state, &TSR_MOE_BIAS_BACKWARD_ARGS(.rows = TSR_TENSOR(rows, TSR_F32, N, WIDTH),
                                            .row_weights = TSR_TENSOR(weights, TSR_F32, N),
                                            .offsets = TSR_TENSOR((void *)offsets, TSR_I32, E + 1),
                                            .dbias = TSR_TENSOR(dbias, TSR_F32, E, WIDTH))));
    for (int e = 0; e < E; e++)
        for (int i = 0; i < WIDTH; i++)
            if (e == 2 || (e == 1 && i == 9))
                assert_true(isnan(dbias[e][i]));
            else
                assert_same_number((double)dbias[e][i], offsets[e + 1] - offsets[e]);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    static const struct call small = {6, 4, 5, 2, 5, 5, 1, TSR_F32, TSR_F32, true, true};
    static const int32_t offsets[] = {1, 3, 5}, tokens[] = {9, 0, 3, 2, 1, -1};
    tsr_moe_bias_backward_args args;
    memset(&in, 0, sizeof in);
    memset(&out, POISON, sizeof out);
    memcpy(in.offsets, offsets, sizeof offsets);
    memcpy(in.tokens, tokens, sizeof tokens);
    const tsr_moe_bias_backward_args good = args_of(&small, &out);
    static const tsr_tensor none;
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_bias_backward(*state, &args), TSR_INVALID_ARGUMENT,                      \
                  "moe_bias_backward: ", __VA_ARGS__);                                             \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.rows = none, "rows");
    REFUSES((args.rows.ndim = 1, args.rows.stride[0] = 1), "rows.ndim is 1", "expected 2");
    REFUSES(args.rows.dtype = TSR_E4M3, "rows.dtype");
    REFUSES(args.offsets = none, "offsets");
    REFUSES(args.offsets.shape[0] = 0, "offsets has no elements", "num_experts + 1");
    REFUSES(args.offsets.dtype = TSR_F32, "offsets.dtype is f32", "i32");
    REFUSES(args.row_tokens.dtype = TSR_F32, "row_tokens.dtype is f32", "i32");
    REFUSES(args.row_weights.shape[0] = 5, "row_weights has 5 elements", "expected 6");
    REFUSES(args.row_weights.dtype = TSR_BF16, "row_weights.dtype is bf16", "f32");
    REFUSES(args.row_tokens = none, "row_weights has 6 elements", "expected 4");
    REFUSES(args.dbias = none, "dbias");
    REFUSES(args.dbias.shape[0] = 3, "dbias has shape (3, 5)", "(2, 5)");
    REFUSES(args.dbias.shape[1] = 4, "dbias has shape (2, 4)", "(2, 5)");
    REFUSES(args.dbias.dtype = TSR_BF16, "dbias.dtype is bf16", "f32 as rows");
    REFUSES(args.dbias.data = in.rows, "dbias overlaps rows");
    REFUSES(args.dbias.data = in.weights, "dbias overlaps row_weights");
    REFUSES(args.dbias.stride[0] = 4, "dbias");
    REFUSES(in.offsets[1] = 0, "element 1 of offsets is 0", "expected 1 to 6");
    in.offsets[1] = 3;
    REFUSES(in.offsets[2] = 7, "element 2 of offsets is 7", "expected 3 to 6");
    in.offsets[2] = 5;
    REFUSES(in.offsets[0] = -1, "element 0 of offsets is -1", "expected 0 to 6");
    in.offsets[0] = 1;
    REFUSES(in.tokens[4] = 4, "element 4 of row_tokens is 4", "0 to 3");
    REFUSES(in.tokens[4] = -1, "element 4 of row_tokens is -1");
    in.tokens[4] = 1;
    args = good; // elements of no expert are not indices
    assert_ok(tsr_moe_bias_backward(*state, &args));
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
        cmocka_unit_test(random_sums),
        cmocka_unit_test(an_expert_alone_and_among_others),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(where_nan_goes),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_bias", tests, setup, teardown);
}
