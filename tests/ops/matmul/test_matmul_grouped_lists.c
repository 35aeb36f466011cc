// SPDX-License-Identifier: Apache-2.0
// Grouped matmul with lists of rows: random products of small integers, which are exact in every dtype and order of
// adding, against sums by hand; and refusals. Bits: test_matmul_grouped_lists_bits.c.
// TESSERA_TEST_CASES: the number of random cases. TESSERA_TEST_SEED: the seed.
#include <math.h>

#include "test_support.h"

enum { MOST_GROUPS = 7, MOST_ROWS = 130, MOST_LINES = 90, MOST_K = 600, MOST_N = 80, GUARD = 64 };

// A call's sizes and values. Rows of c, or elements of db, that no group computes keep KEPT.
struct lists_case {
    tsr_dtype dtype, out;
    int64_t groups, rows, k, n, num_a, num_dc; // num_dc: backward
    int64_t a_row, dc_row, step;               // strides of rows, and of the lists' elements
    bool is_transposed, has_epilogue, has_dc_list, has_a_list;
    int32_t offsets[MOST_GROUPS + 1], a_rows[2 * MOST_ROWS], dc_rows[2 * MOST_ROWS];
};
enum { KEPT = 7 };

static _Alignas(64) unsigned char a[MOST_ROWS * (MOST_K + 8) * 8], dc[MOST_ROWS * (MOST_N + 8) * 8],
    b[MOST_GROUPS * MOST_K * MOST_N * 8], up[MOST_GROUPS * MOST_K * MOST_N * 8];
static _Alignas(64) unsigned char out[GUARD + MOST_GROUPS * MOST_K * MOST_N * 8 + GUARD];
static double wanted[MOST_GROUPS * MOST_K * MOST_N];
static uint64_t random_state;

static int64_t draw(int64_t least, int64_t most) {
    return least + (int64_t)(test_bits(&random_state) % (uint64_t)(most - least + 1));
}

// Element x of a tensor of integers from -2 to 2. Each salt gives another tensor.
static int number(int64_t x, int salt) {
    uint64_t state = (uint64_t)x * 1000003u + (uint64_t)salt;
    return (int)(test_bits(&state) % 5) - 2;
}

static void draw_list(const struct lists_case *c, int32_t *list, int64_t num_lines) {
    static const int32_t none[] = {-1, INT32_MIN, INT32_MAX};
    for (int64_t i = 0; i < c->rows * c->step; i++) list[i] = none[draw(0, 2)];
    for (int64_t i = c->offsets[0]; i < c->offsets[c->groups]; i++)
        list[i * c->step] = (int32_t)draw(0, num_lines - 1);
}

static struct lists_case draw_case(bool is_forward) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    struct lists_case c = {.dtype = dtypes[draw(0, 3)], .groups = draw(1, MOST_GROUPS)};
    c.has_epilogue = draw(0, 1);
    c.out = c.has_epilogue && c.dtype != TSR_F64 ? TSR_F32 : c.dtype;
    c.rows = draw(0, 9) == 0 ? 0 : draw(1, draw(0, 1) ? 12 : MOST_ROWS);
    c.k = draw(1, is_forward && draw(0, 3) == 0 ? MOST_K : 90);
    c.n = draw(1, MOST_N);
    if (draw(0, 5) == 0) c.k = 1;
    if (draw(0, 5) == 0) c.n = 1;
    c.is_transposed = draw(0, 1);
    c.step = draw(1, 2);
    c.has_a_list = is_forward || draw(0, 2) > 0;
    c.has_dc_list = !is_forward && (!c.has_a_list || draw(0, 1));
    c.num_a = c.has_a_list ? draw(1, MOST_LINES) : c.rows;
    c.num_dc = c.has_dc_list ? draw(1, MOST_LINES) : c.rows;
    c.a_row = c.k + (draw(0, 1) ? draw(0, 8) : 0);
    c.dc_row = c.n + (draw(0, 1) ? draw(0, 8) : 0);
    for (int64_t g = 0; g <= c.groups; g++) {
        int32_t before = g > 0 ? c.offsets[g - 1] : 0;
        c.offsets[g] = draw(0, 3) == 0 ? before : (int32_t)draw(before, c.rows);
    }
    draw_list(&c, c.a_rows, c.num_a);
    draw_list(&c, c.dc_rows, c.num_dc);
    return c;
}

static int64_t row_of_a(const struct lists_case *c, int64_t i) {
    return c->has_a_list ? c->a_rows[i * c->step] : i;
}
static int64_t row_of_dc(const struct lists_case *c, int64_t i) {
    return c->has_dc_list ? c->dc_rows[i * c->step] : i;
}

// Fills rows with integers; those that no group reads are NaN, as is what lies between rows.
static void fill(const struct lists_case *c, void *to, int64_t lines, int64_t cols, int64_t stride,
                 int salt, int64_t (*row)(const struct lists_case *, int64_t)) {
    for (int64_t i = 0; i < lines * stride; i++) tsr_store(c->dtype, to, i, (double)NAN);
    for (int64_t i = c->offsets[0]; i < c->offsets[c->groups]; i++)
        for (int64_t j = 0; j < cols; j++)
            tsr_store(c->dtype, to, row(c, i) * stride + j, number(row(c, i) * cols + j, salt));
}

static int64_t weight_at(const struct lists_case *c, int64_t g, int64_t i, int64_t j) {
    return c->is_transposed ? (g * c->n + j) * c->k + i : (g * c->k + i) * c->n + j;
}

static tsr_tensor matrix(void *data, tsr_dtype dtype, int64_t rows, int64_t cols, int64_t stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, rows, cols);
    t.stride[0] = stride;
    return t;
}

static tsr_tensor list(const struct lists_case *c, const int32_t *data, bool is_given) {
    tsr_tensor t = TSR_TENSOR(data, TSR_I32, c->rows);
    t.stride[0] = c->step;
    return is_given ? t : (tsr_tensor){0};
}

// Exact, then rounded as the output is.
static double rounded(tsr_dtype dtype, double value) {
    double memory;
    tsr_store(dtype, &memory, 0, value);
    return tsr_load(dtype, &memory, 0);
}

static double product(const struct lists_case *c, int64_t g, int64_t line, int64_t j, int salt) {
    double sum = 0;
    for (int64_t i = 0; i < c->k; i++)
        sum += number(line * c->k + i, 1) * number((g * c->k + i) * c->n + j, salt);
    return sum;
}

static void expect_forward(const struct lists_case *c) {
    for (int64_t i = 0; i < c->rows * c->n; i++) wanted[i] = KEPT;
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t r = c->offsets[g]; r < c->offsets[g + 1]; r++)
            for (int64_t j = 0; j < c->n; j++) {
                double v = product(c, g, row_of_a(c, r), j, 2);
                if (c->has_epilogue) {
                    v = v > 0 ? 2 * v : 0;
                    v = KEPT + v * 2 * product(c, g, row_of_a(c, r), j, 3);
                }
                wanted[r * c->n + j] = rounded(c->out, v);
            }
}

static void expect_backward(const struct lists_case *c) {
    for (int64_t g = 0; g < c->groups; g++)
        for (int64_t i = 0; i < c->k; i++)
            for (int64_t j = 0; j < c->n; j++) {
                double sum = 0;
                for (int64_t r = c->offsets[g]; r < c->offsets[g + 1]; r++)
                    sum += number(row_of_a(c, r) * c->k + i, 1) *
                           number(row_of_dc(c, r) * c->n + j, 5);
                wanted[weight_at(c, g, i, j)] =
                    rounded(c->out, c->has_epilogue ? KEPT - 2 * sum : sum);
            }
}

// The name of variant v, "" if it runs on CUDA; the default for v = -1.
static const char *variant_name(const char *op, int v) {
    tsr_variant_info info = {.name = NULL};
    if (v >= 0) assert_ok(tsr_variant_info_get(op, v, &info));
    return info.flags & TSR_VARIANT_CUDA ? "" : info.name;
}

static void prepare_out(const struct lists_case *c, int64_t count) {
    memset(out, 0xa5, sizeof out);
    for (int64_t i = 0; i < count; i++) tsr_store(c->out, out + GUARD, i, KEPT);
}

static void compare(const struct lists_case *c, int64_t count, const char *variant, int number_of) {
    const unsigned char *y = out + GUARD;
    size_t bytes = (size_t)count * tsr_dtype_bytes(c->out);
    for (int64_t i = 0; i < count; i++)
        if (!(tsr_load(c->out, y, i) == wanted[i]))
            fail_msg("case %d, %s, %s, %d rows of %d and %d, n %d, k %d, %d groups%s%s: element %d "
                     "is %g, expected %g",
                     number_of, variant, tsr_dtype_name(c->dtype), (int)c->rows, (int)c->num_a,
                     (int)c->num_dc, (int)c->n, (int)c->k, (int)c->groups,
                     c->is_transposed ? ", transposed" : "", c->has_epilogue ? ", epilogue" : "",
                     (int)i, tsr_load(c->out, y, i), wanted[i]);
    assert_true(test_all_bytes_are(out, 0xa5, GUARD));
    assert_true(test_all_bytes_are(y + bytes, 0xa5, sizeof out - GUARD - bytes));
}

static tsr_matmul_grouped_forward_args forward_args(const struct lists_case *c) {
    const int64_t rows = c->is_transposed ? c->n : c->k, cols = c->is_transposed ? c->k : c->n;
    tsr_matmul_grouped_forward_args args =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = matrix(a, c->dtype, c->num_a, c->k, c->a_row),
                                        .b = TSR_TENSOR(b, c->dtype, c->groups, rows, cols),
                                        .c = TSR_TENSOR(out + GUARD, c->out, c->rows, c->n),
                                        .transpose_b = c->is_transposed,
                                        .offsets = TSR_TENSOR(c->offsets, TSR_I32, c->groups + 1),
                                        .a_rows = list(c, c->a_rows, c->has_a_list));
    if (!c->has_epilogue) return args;
    args.b_up = TSR_TENSOR(up, c->dtype, c->groups, rows, cols);
    args.activation = TSR_ACTIVATION_RELU;
    args.accumulate = args.has_alpha = 1;
    args.alpha = 2;
    return args;
}

static tsr_matmul_grouped_backward_args backward_args(const struct lists_case *c) {
    return TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = matrix(a, c->dtype, c->num_a, c->k, c->a_row),
                                            .dc = matrix(dc, c->dtype, c->num_dc, c->n, c->dc_row),
                                            .offsets =
                                                TSR_TENSOR(c->offsets, TSR_I32, c->groups + 1),
                                            .db = TSR_TENSOR(out + GUARD, c->out, c->groups,
                                                             c->is_transposed ? c->n : c->k,
                                                             c->is_transposed ? c->k : c->n),
                                            .a_rows = list(c, c->a_rows, c->has_a_list),
                                            .dc_rows = list(c, c->dc_rows, c->has_dc_list),
                                            .transpose_b = c->is_transposed,
                                            .accumulate = c->has_epilogue,
                                            .has_alpha = c->has_epilogue,
                                            .alpha = c->has_epilogue ? -2.0f : 0.0f);
}

static int forward_runs(tsr_context *ctx, int case_number) {
    struct lists_case c = draw_case(true);
    int num_runs = 0;
    fill(&c, a, c.num_a, c.k, c.a_row, 1, row_of_a);
    for (int64_t g = 0; g < c.groups; g++)
        for (int64_t i = 0; i < c.k; i++)
            for (int64_t j = 0; j < c.n; j++) {
                int64_t at = (g * c.k + i) * c.n + j;
                tsr_store(c.dtype, b, weight_at(&c, g, i, j), number(at, 2));
                tsr_store(c.dtype, up, weight_at(&c, g, i, j), number(at, 3));
            }
    expect_forward(&c);
    for (int v = -1; v < tsr_variant_count("matmul_grouped_forward"); v++) {
        tsr_matmul_grouped_forward_args args = forward_args(&c);
        args.variant = variant_name("matmul_grouped_forward", v);
        if (v >= 0 && args.variant[0] == 0) continue;
        prepare_out(&c, c.rows * c.n);
        tsr_status status = tsr_matmul_grouped_forward(ctx, &args);
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        compare(&c, c.rows * c.n, v < 0 ? "(default)" : args.variant, case_number);
        num_runs++;
    }
    return num_runs;
}

static int backward_runs(tsr_context *ctx, int case_number) {
    struct lists_case c = draw_case(false);
    int num_runs = 0;
    fill(&c, a, c.num_a, c.k, c.a_row, 1, row_of_a);
    fill(&c, dc, c.num_dc, c.n, c.dc_row, 5, row_of_dc);
    expect_backward(&c);
    for (int v = -1; v < tsr_variant_count("matmul_grouped_backward"); v++) {
        tsr_matmul_grouped_backward_args args = backward_args(&c);
        args.variant = variant_name("matmul_grouped_backward", v);
        if (v >= 0 && args.variant[0] == 0) continue;
        prepare_out(&c, c.groups * c.k * c.n);
        tsr_status status = tsr_matmul_grouped_backward(ctx, &args);
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        compare(&c, c.groups * c.k * c.n, v < 0 ? "(default)" : args.variant, case_number);
        num_runs++;
    }
    return num_runs;
}

static void check_cases(int (*runs)(tsr_context *ctx, int case_number)) {
    random_state = test_seed(20261130);
    const int num_cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 60 : 300);
    int num_runs = 0;
    tsr_context *contexts[] = {test_context(1), test_context(2), test_context(5)};
    for (int i = 0; i < num_cases; i++) num_runs += runs(contexts[i % COUNT(contexts)], i);
    assert_true(num_runs >= num_cases);
    for (int i = 0; i < COUNT(contexts); i++) tsr_context_destroy(contexts[i]);
}

static void forward_of_integers(void **state) { (void)state, check_cases(forward_runs); }
static void backward_of_integers(void **state) { (void)state, check_cases(backward_runs); }

// ---- What is refused ----------------------------------------------------------------------------

enum { R = 6, L = 4, WIDTH = 5, COLS = 3 };
static float x[L * WIDTH], dy[L * COLS], y[R * COLS], w[2 * WIDTH * COLS];
static const int32_t two_groups[] = {1, 3, 5}, good_rows[R] = {-1, 0, 3, 3, 1, 99};

static void refused_forward(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    const tsr_matmul_grouped_forward_args good =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, L, WIDTH),
                                        .b = TSR_TENSOR(w, TSR_F32, 2, WIDTH, COLS),
                                        .c = TSR_TENSOR(y, TSR_F32, R, COLS),
                                        .offsets = TSR_TENSOR(two_groups, TSR_I32, 3),
                                        .a_rows = TSR_TENSOR(good_rows, TSR_I32, R));
    static const struct {
        int32_t rows[R];
        const char *words[2];
    } bad[] = {
        {{-1, -1, 3, 3, 1, 99}, {"element 1 of a_rows is -1", "expected 0 to 3"}},
        {{-1, 0, 3, 3, 4, 99}, {"element 4 of a_rows is 4", "expected 0 to 3"}},
        {{0, 0, INT32_MAX, 3, 4, 0}, {"element 2 of a_rows is 2147483647", "expected 0 to 3"}},
        {{0, 0, 1, INT32_MIN, 4, 0}, {"element 3 of a_rows is -2147483648", "expected 0 to 3"}},
    };
    memset(y, 0x5a, sizeof y);
    for (int i = 0; i < COUNT(bad); i++) {
        tsr_matmul_grouped_forward_args args = good;
        size_t bytes;
        args.a_rows = TSR_TENSOR(bad[i].rows, TSR_I32, R);
        assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                      "matmul_grouped_forward: ", bad[i].words[0], bad[i].words[1]);
        assert_ok(tsr_matmul_grouped_forward_prepare(ctx, &args, &bytes)); // reads no values
    }
    static const int32_t counts[] = {1, 2};
    tsr_matmul_grouped_forward_args args = good;
    args.offsets = (tsr_tensor){0};
    args.counts = TSR_TENSOR(counts, TSR_I32, 2);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "a_rows is given with counts, expected offsets");
    args = good;
    args.a_rows.dtype = TSR_F32;
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "a_rows.dtype");
    args = good;
    args.a_rows = TSR_TENSOR(good_rows, TSR_I32, 2, 3);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "a_rows.ndim is 2, expected 1");
    args = good;
    args.a_rows = TSR_TENSOR(good_rows, TSR_I32, R - 1); // c has R rows
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "c has shape (6, 3), expected (5, 3)");
    args = good;
    args.a_rows.data = y;
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "c", "a_rows");
    args = good;
    args.a.shape[0] = 0; // no rows at all
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "element 1 of a_rows is 0");
    args = good;
    static const int32_t beyond[] = {1, 3, 7};
    args.offsets = TSR_TENSOR(beyond, TSR_I32, 3); // rows of the list, not of a
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "element 2 of offsets is 7, expected 3 to 6");
    assert_true(test_all_bytes_are(y, 0x5a, sizeof y));
    assert_ok(tsr_matmul_grouped_forward(ctx, &good));
    tsr_context_destroy(ctx);
}

static void refused_backward(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    const tsr_matmul_grouped_backward_args good =
        TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, L, WIDTH),
                                         .dc = TSR_TENSOR(dy, TSR_F32, L, COLS),
                                         .db = TSR_TENSOR(w, TSR_F32, 2, WIDTH, COLS),
                                         .offsets = TSR_TENSOR(two_groups, TSR_I32, 3),
                                         .a_rows = TSR_TENSOR(good_rows, TSR_I32, R),
                                         .dc_rows = TSR_TENSOR(good_rows, TSR_I32, R));
    static const int32_t bad_rows[R] = {0, 0, 0, 0, 4, 0};
    memset(w, 0x5a, sizeof w);
    for (int is_transposed = 0; is_transposed < 2; is_transposed++)
        for (int i = 0; i < 2; i++) {
            tsr_matmul_grouped_backward_args args = good;
            args.transpose_b = is_transposed;
            if (is_transposed) args.db = TSR_TENSOR(w, TSR_F32, 2, COLS, WIDTH);
            (i == 0 ? &args.a_rows : &args.dc_rows)->data = (void *)(uintptr_t)bad_rows;
            assert_status(tsr_matmul_grouped_backward(ctx, &args), TSR_INVALID_ARGUMENT,
                          "matmul_grouped_backward: ",
                          i == 0 ? "element 4 of a_rows is 4" : "element 4 of dc_rows is 4",
                          "expected 0 to 3");
        }
    tsr_matmul_grouped_backward_args args = good;
    args.dc_rows = TSR_TENSOR(good_rows, TSR_I32, R - 1);
    assert_status(tsr_matmul_grouped_backward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "dc_rows has 5 elements, expected 6");
    args = good;
    args.dc_rows = (tsr_tensor){0}; // dc then has L rows
    assert_status(tsr_matmul_grouped_backward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "dc has shape (4, 3), expected (6, 3)");
    args = good;
    args.a_rows = (tsr_tensor){0};
    assert_status(tsr_matmul_grouped_backward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "dc_rows has 6 elements, expected 4");
    args = good;
    args.dc_rows.data = w;
    assert_status(tsr_matmul_grouped_backward(ctx, &args), TSR_INVALID_ARGUMENT, "db", "dc_rows");
    assert_true(test_all_bytes_are(w, 0x5a, sizeof w));
    assert_ok(tsr_matmul_grouped_backward(ctx, &good));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_of_integers),
        cmocka_unit_test(backward_of_integers),
        cmocka_unit_test(refused_forward),
        cmocka_unit_test(refused_backward),
    };
    return cmocka_run_group_tests_name("matmul grouped lists", tests, NULL, NULL);
}
