// SPDX-License-Identifier: Apache-2.0
// The gradients of the weighted sum on the CPU, against formulas written here: random sizes, dtypes and strides within the bounds of
// the contract, a scatter of weighted tokens, rows that several tokens have, and what a call refuses.
#include "moe_combine_case.h"

static tsr_moe_combine_backward_args backward_args(const struct call *c) {
    const tsr_moe_combine_forward_args f = forward_args(c);
    tsr_moe_combine_backward_args args = TSR_MOE_COMBINE_BACKWARD_ARGS(
            .dy = strided(in.y, c->dtype, c->tokens, c->hidden, c->stride), .rows = f.rows,
            .token_rows = f.token_rows, .weights = f.weights, .shared = f.shared,
            .shared_gate = f.shared_gate,
            .drows = strided(out.drows, c->dtype, c->num_rows, c->hidden, c->stride),
            .dweights = TSR_TENSOR(out.dweights, TSR_F32, c->tokens, c->top_k));
    if (c->has_shared)
        args.dshared = strided(out.dshared, c->dtype, c->tokens, c->hidden, c->stride);
    if (c->has_gate) {
        args.dshared_gate = TSR_TENSOR(out.dgate, TSR_F32, c->tokens);
        args.dshared_gate.stride[0] = c->gate_stride;
    }
    return args;
}

static void check_row(const struct call *c, int row, double weight, int t) {
    for (int i = 0; i < c->hidden; i++) {
        const double product = weight * at(c, in.y, t, i);
        assert_within(at(c, out.drows, row, i), product,
                      rounded(c->dtype, product, 0x1p-24 * 9 * fabs(product)));
    }
}

static double dot(const struct call *c, int t, const char *other, int row, double *size) {
    double sum = 0;
    *size = 0;
    for (int i = 0; i < c->hidden; i++) {
        const double product = at(c, in.y, t, i) * at(c, other, row, i);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

static void check_backward(const struct call *c) {
    static bool is_written[ROWS];
    const double root = sqrt(c->hidden);
    double size;
    memset(is_written, 0, sizeof is_written);
    assert_true(GUARDED(&out, drows) && GUARDED(&out, dshared));
    assert_true(has_clean_gaps(c, out.drows, c->num_rows, sizeof out.drows));
    assert_true(has_clean_gaps(c, out.dshared, c->tokens, sizeof out.dshared));
    for (int t = 0; t < c->tokens; t++) {
        for (int k = 0; k < c->top_k; k++) {
            const int row = row_of(c, t, k);
            const double got = (double)out.dweights[t * c->top_k + k];
            if (row < 0) {
                assert_same_number(got, 0);
                continue;
            }
            const double sum = dot(c, t, in.rows, row, &size);
            assert_within(got, sum, rounded(TSR_F32, sum, 0x1p-24 * (8 + 4 * root) * size));
            check_row(c, row, weight_of(c, t, k), t);
            is_written[row] = true;
        }
        const double s = gate_of(c, t);
        for (int i = 0; c->has_shared && i < c->hidden; i++) {
            const double product = s * at(c, in.y, t, i);
            assert_within(at(c, out.dshared, t, i), product,
                          rounded(c->dtype, product, 0x1p-24 * 9 * fabs(product)));
        }
        if (!c->has_gate) continue;
        const double slope = s * (1 - s), sum = dot(c, t, in.shared, t, &size);
        assert_within((double)out.dgate[t * c->gate_stride], sum * slope,
                      rounded(TSR_F32, sum, 0x1p-24 * (24 + 4 * root) * size));
    }
    for (int r = 0; r < c->num_rows; r++)
        if (!is_written[r])
            assert_true(
                test_all_bytes_are(out.drows + (size_t)(r * c->stride) * tsr_dtype_bytes(c->dtype),
                                   POISON, (size_t)c->hidden * tsr_dtype_bytes(c->dtype)));
}

static void random_gradients(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 20 : 200);
    uint64_t random = test_seed(20261202);
    for (int i = 0; i < cases; i++) {
        struct call c = draw(&random);
        if (!c.has_shared) memset(out.dshared, POISON, sizeof out.dshared);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_moe_combine_backward_args args = backward_args(&c);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 1 + isa,
                                     .l3_bytes =
                                         i % 2 == 0 ? 1 : 1 << 30), // with and without streams
                &ctx));
            assert_ok(tsr_moe_combine_backward(ctx, &args));
            tsr_context_destroy(ctx);
            check_backward(&c);
        }
    }
}

// x in place of dy, without rows: weighted rows for the experts. dshared may be dy itself.
static void scatter_and_gradient_in_place(void **state) {
    uint64_t random = 9;
    for (int i = 0; i < 20; i++) {
        struct call c = draw(&random);
        c.has_shared = c.has_gate = true;
        tsr_moe_combine_backward_args args = backward_args(&c);
        args.rows = args.dweights = args.dshared = args.dshared_gate = (tsr_tensor){0};
        memset(&out, POISON, sizeof out);
        assert_ok(tsr_moe_combine_backward(*state, &args));
        for (int t = 0; t < c.tokens; t++)
            for (int k = 0; k < c.top_k; k++)
                if (row_of(&c, t, k) >= 0) check_row(&c, row_of(&c, t, k), weight_of(&c, t, k), t);
        args = backward_args(&c);
        memset(&out, POISON, sizeof out);
        assert_ok(tsr_moe_combine_backward(*state, &args));
        first = out;
        memset(&out, POISON, sizeof out);
        memcpy(out.dshared, in.y, sizeof in.y);
        args.dy.data = args.dshared.data;
        assert_ok(tsr_moe_combine_backward(*state, &args));
        for (int t = 0; t < c.tokens; t++)
            for (int col = 0; col < c.hidden; col++)
                assert_same_number(at(&c, out.dshared, t, col), at(&c, first.dshared, t, col));
        assert_memory_equal(out.drows, first.drows, sizeof out.drows);
        assert_memory_equal(out.dweights, first.dweights, sizeof out.dweights);
        assert_memory_equal(out.dgate, first.dgate, sizeof out.dgate);
    }
}

// Each token has all rows: the last one's gradient stays, on any number of threads.
static void rows_of_several_tokens(void **state) {
    enum { N = 300, COLS = 400, K = 3 };
    static float dy[N][COLS], drows[K][COLS], weights[N][K];
    static int32_t token_rows[N][K];
    (void)state;
    for (int t = 0; t < N; t++)
        for (int k = 0; k < K; k++) {
            token_rows[t][k] = t == N - 1 ? 0 : k;
            weights[t][k] = (float)(1 + t * K + k);
        }
    for (int i = 0; i < N * COLS; i++) dy[i / COLS][i % COLS] = 1;
    for (int threads = 1; threads < 5; threads++) {
        tsr_context *ctx = test_context(threads);
        memset(drows, POISON, sizeof drows);
        assert_ok(tsr_moe_combine_backward(
            ctx, &TSR_MOE_COMBINE_BACKWARD_ARGS(.dy = TSR_TENSOR(dy, TSR_F32, N, COLS),
                                                .token_rows = TSR_TENSOR(token_rows, TSR_I32, N, K),
                                                .weights = TSR_TENSOR(weights, TSR_F32, N, K),
                                                .drows = TSR_TENSOR(drows, TSR_F32, K, COLS))));
        tsr_context_destroy(ctx);
        for (int k = 0; k < K; k++)
            for (int i = 0; i < COLS; i++)
                assert_same_number((double)drows[k][i], k == 0 ? N * K : 1 + (N - 2) * K + k);
    }
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    tsr_moe_combine_backward_args args;
    set_small();
    const tsr_moe_combine_backward_args good = backward_args(&small);
    static const tsr_tensor none;
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_combine_backward(*state, &args), TSR_INVALID_ARGUMENT,                   \
                  "moe_combine_backward: ", __VA_ARGS__);                                          \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.drows = args.dweights = args.dshared = args.dshared_gate = none,
            "no gradient is given");
    REFUSES(args.token_rows = none, "token_rows is absent", "beside drows");
    REFUSES(args.rows = none, "rows is absent", "beside dweights");
    REFUSES(args.shared = none, "shared is absent", "beside dshared_gate");
    REFUSES(args.shared_gate = none, "shared_gate is absent", "beside dshared_gate");
    REFUSES(args.drows.shape[0] = 3, "drows has shape (3, 5)", "(4, 5) as rows");
    REFUSES(args.dweights.shape[1] = 1, "dweights has shape (2, 1)", "(2, 2)");
    REFUSES(args.dshared.dtype = TSR_BF16, "dshared.dtype is bf16", "f32 as dy");
    REFUSES(args.drows.data = in.rows, "drows overlaps rows");
    REFUSES(args.dshared.data = in.shared, "dshared overlaps shared");
    REFUSES(args.dshared.data = in.y + 4, "dshared overlaps dy", "the same view");
    REFUSES(args.dshared.data = args.drows.data, "dshared overlaps drows");
    in.token_rows[1] = 4;
    REFUSES((void)0, "element 1 of token_rows is 4");
    args = good; // not read without gradients of rows
    args.drows = args.dweights = none;
    assert_ok(tsr_moe_combine_backward(*state, &args));
    args.token_rows = args.rows = none;
    assert_ok(tsr_moe_combine_backward(*state, &args));
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
        cmocka_unit_test(random_gradients),
        cmocka_unit_test(scatter_and_gradient_in_place),
        cmocka_unit_test(rows_of_several_tokens),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_combine backward", tests, setup, teardown);
}
