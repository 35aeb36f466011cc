// SPDX-License-Identifier: Apache-2.0
// The weighted sum of each token's rows on the CPU, against formulas written here: random sizes, dtypes and strides within the bounds
// of the contract, what is not read, aliases, and what a call refuses.
#include "moe_combine_case.h"

static void check_forward(const struct call *c) {
    assert_true(GUARDED(&out, y));
    assert_true(has_clean_gaps(c, out.y, c->tokens, sizeof out.y));
    for (int t = 0; t < c->tokens; t++)
        for (int i = 0; i < c->hidden; i++) {
            double sum = 0, size = 0, shared = 0;
            for (int k = 0; k < c->top_k; k++) {
                if (row_of(c, t, k) < 0) continue;
                const double product = weight_of(c, t, k) * at(c, in.rows, row_of(c, t, k), i);
                sum += product;
                size += fabs(product);
            }
            if (c->has_shared) {
                shared = fabs(at(c, in.shared, t, i));
                sum += gate_of(c, t) * at(c, in.shared, t, i);
            }
            if (c->has_residual) {
                const double r =
                    tsr_load(c->residual_dtype, in.residual, (int64_t)t * c->stride + i);
                sum += r;
                size += fabs(r);
            }
            assert_within(
                at(c, out.y, t, i), sum,
                rounded(c->dtype, sum, 0x1p-24 * ((c->top_k + 4) * (size + shared) + 8 * shared)));
        }
}

static void random_sums(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 20 : 200);
    uint64_t random = test_seed(20261201);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_moe_combine_forward_args args = forward_args(&c);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 1 + isa,
                                     .l3_bytes =
                                         i % 2 == 0 ? 1 : 1 << 30), // with and without streams
                &ctx));
            assert_ok(tsr_moe_combine_forward(ctx, &args));
            tsr_context_destroy(ctx);
            check_forward(&c);
        }
    }
}

// y may be residual or shared itself: the same bits.
static void sums_in_place(void **state) {
    uint64_t random = 7;
    for (int i = 0; i < 20; i++) {
        struct call c = draw(&random);
        c.has_shared = c.has_residual = true;
        c.residual_dtype = c.dtype; // may be NaN: the bits count
        tsr_moe_combine_forward_args args = forward_args(&c);
        memset(&out, POISON, sizeof out);
        assert_ok(tsr_moe_combine_forward(*state, &args));
        first = out;
        for (int alias = 0; alias < 2; alias++) {
            memset(&out, POISON, sizeof out);
            for (int t = 0; t < c.tokens; t++)
                for (int col = 0; col < c.hidden; col++)
                    tsr_store(c.dtype, out.y, (int64_t)t * c.stride + col,
                              at(&c, alias ? in.residual : in.shared, t, col));
            args = forward_args(&c);
            *(alias ? &args.residual : &args.shared) = args.y;
            assert_ok(tsr_moe_combine_forward(*state, &args));
            assert_memory_equal(out.y, first.y, sizeof out.y);
        }
    }
}

static void nan_stays_in_its_column(void **state) {
    enum { N = 3, COLS = 9 };
    float rows[N][COLS] = {{0}}, y[2][COLS];
    int32_t token_rows[2][2] = {{2, 0}, {1, -1}};
    rows[2][5] = NAN;
    rows[1][1] = INFINITY;
    assert_ok(tsr_moe_combine_forward(
        *state, &TSR_MOE_COMBINE_FORWARD_ARGS(.rows = TSR_TENSOR(rows, TSR_F32, N, COLS),
                                              .token_rows = TSR_TENSOR(token_rows, TSR_I32, 2, 2),
                                              .y = TSR_TENSOR(y, TSR_F32, 2, COLS))));
    for (int i = 0; i < 2 * COLS; i++) assert_int_equal(isnan(y[i / COLS][i % COLS]) != 0, i == 5);
    assert_same_number((double)y[1][1], (double)INFINITY);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    tsr_moe_combine_forward_args args;
    set_small();
    const tsr_moe_combine_forward_args good = forward_args(&small);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_combine_forward(*state, &args), TSR_INVALID_ARGUMENT,                    \
                  "moe_combine_forward: ", __VA_ARGS__);                                           \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.rows.dtype = TSR_DTYPE_NONE, "rows is absent");
    REFUSES(args.token_rows.dtype = TSR_DTYPE_NONE, "token_rows is absent");
    REFUSES(args.rows.dtype = TSR_BF16, "rows.dtype is bf16", "f32 as y");
    REFUSES(args.rows.shape[1] = 4, "rows has shape (4, 4)", "(num_rows, 5)");
    REFUSES(args.token_rows.shape[1] = 0, "token_rows has 0 columns (top_k)", "1 to 65536");
    REFUSES(args.token_rows.shape[0] = 1, "token_rows has shape (1, 2)", "y with top_k");
    REFUSES(args.weights.shape[1] = 1, "weights has shape (2, 1)", "(2, 2)");
    REFUSES(args.shared.shape[0] = 1, "shared has shape (1, 5)", "(2, 5) as y");
    REFUSES(args.shared_gate.shape[0] = 1, "shared_gate has shape (1,)", "without its last");
    REFUSES(args.shared_gate.dtype = TSR_BF16, "shared_gate.dtype is bf16", "f32");
    REFUSES(args.shared.dtype = TSR_DTYPE_NONE, "shared is absent", "beside shared_gate");
    REFUSES(args.residual.dtype = TSR_F16, "residual.dtype is f16", "f32");
    REFUSES(args.y.data = in.rows, "y overlaps rows");
    REFUSES(args.y.data = in.shared + 4, "y overlaps shared", "the same view");
    in.token_rows[3] = 4;
    REFUSES((void)0, "element 3 of token_rows is 4", "0 to 3 or -1");
    in.token_rows[3] = -2;
    REFUSES((void)0, "element 3 of token_rows is -2");
    in.token_rows[3] = -1;
    assert_ok(tsr_moe_combine_forward(*state, &good));
#undef REFUSES
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
        cmocka_unit_test(sums_in_place),
        cmocka_unit_test(nan_stays_in_its_column),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_combine", tests, setup, teardown);
}
