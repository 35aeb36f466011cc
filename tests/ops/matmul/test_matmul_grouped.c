// SPDX-License-Identifier: Apache-2.0
// Grouped matmul against values by hand: products of small integers are exact in every dtype and order of adding. Also
// rows of no group, which hold NaN before and a constant after, and refusals.
#include <math.h>

#include "matmul_grouped_case.h"

static const int32_t counts[GROUPS] = {0, 90, 1, 37, 8};

// Element x of a tensor of integers from -2 to 2. Each salt gives another tensor.
static int number(int64_t x, int salt) {
    uint64_t state = (uint64_t)x * 1000003u + (uint64_t)salt;
    return (int)(test_bits(&state) % 5) - 2;
}

// The group of row r; -1: none.
static int group_of(int64_t r, bool has_counts) {
    if (has_counts) return r % ROWS < counts[r / ROWS] ? (int)(r / ROWS) : -1;
    for (int g = 0; g < GROUPS; g++)
        if (r >= offsets[g] && r < offsets[g + 1]) return g;
    return -1;
}

static tsr_tensor starts(bool has_counts) {
    return has_counts ? TSR_TENSOR(counts, TSR_I32, GROUPS)
                      : TSR_TENSOR(offsets, TSR_I32, GROUPS + 1);
}

static tsr_tensor rows_tensor(void *data, tsr_dtype dtype, int64_t cols, bool has_counts) {
    return has_counts ? TSR_TENSOR(data, dtype, GROUPS, ROWS, cols)
                      : TSR_TENSOR(data, dtype, ROWS, cols);
}

static _Alignas(64) unsigned char up[GROUPS * K * N * 8], bias[GROUPS * N * 8], dc[MOST * N * 8];
static _Alignas(64) unsigned char bias_up[GROUPS * (N + 3) * 8];
static _Alignas(64) unsigned char out[GUARD + GROUPS * K * N * 8 + MOST * N * 8 + GUARD];

static void fill_rows(void *to, tsr_dtype dtype, int64_t cols, int salt, bool has_counts) {
    for (int64_t r = 0; r < (has_counts ? MOST : ROWS); r++)
        for (int64_t j = 0; j < cols; j++)
            tsr_store(dtype, to, r * cols + j,
                      group_of(r, has_counts) < 0 ? (double)NAN : number(r * cols + j, salt));
}

// Element (g, i, j) of the groups' K x N matrices.
static int weight(int g, int64_t i, int64_t j, int salt) {
    return number((g * K + i) * N + j, salt);
}
static int64_t weight_at(int g, int64_t i, int64_t j, bool is_transposed) {
    return is_transposed ? (g * (int64_t)N + j) * K + i : (g * (int64_t)K + i) * N + j;
}

struct form {
    tsr_dtype dtype, out;
    bool has_counts, is_transposed, has_epilogue; // biases, alpha 2, gate, accumulate
};

static double product(const struct form *f, int g, int64_t r, int64_t j, int salt) {
    double sum = 0;
    (void)f;
    for (int64_t i = 0; i < K; i++) sum += number(r * K + i, 1) * weight(g, i, j, salt);
    return sum;
}

static double expected(const struct form *f, int64_t r, int64_t j) {
    int g = group_of(r, f->has_counts);
    if (g < 0) return 7;
    double v = product(f, g, r, j, 2);
    if (!f->has_epilogue) return v;
    v = 2 * v + number(g * N + j, 4);
    v = v > 0 ? v : 0;
    return 7 + v * (2 * product(f, g, r, j, 3) + number(g * N + j, 6));
}

// Compares one call's results with the expected values, and checks the guards.
static void compare(const struct form *f, const double *wanted, int64_t count, const char *name) {
    const unsigned char *y = out + GUARD;
    size_t bytes = (size_t)count * tsr_dtype_bytes(f->out);
    for (int64_t i = 0; i < count; i++)
        if (!(tsr_load(f->out, y, i) == wanted[i]))
            fail_msg("%s, %s%s%s%s: element %d is %g, expected %g", name, tsr_dtype_name(f->dtype),
                     f->has_counts ? ", counts" : "", f->is_transposed ? ", transposed" : "",
                     f->has_epilogue ? ", epilogue" : "", (int)i, tsr_load(f->out, y, i),
                     wanted[i]);
    assert_true(test_all_bytes_are(out, 0xa5, GUARD));
    assert_true(test_all_bytes_are(y + bytes, 0xa5, GUARD));
}

static void prepare_out(tsr_dtype dtype, int64_t count) {
    memset(out, 0xa5, sizeof out);
    for (int64_t i = 0; i < count; i++) tsr_store(dtype, out + GUARD, i, 7);
}

// The name of variant v, "" if it runs on CUDA; the default for v = -1.
static const char *variant_name(const char *op, int v) {
    tsr_variant_info info = {.name = NULL};
    if (v >= 0) assert_ok(tsr_variant_info_get(op, v, &info));
    return info.flags & TSR_VARIANT_CUDA ? "" : info.name;
}

static int forward_runs(tsr_context *ctx, const struct form *f) {
    static double wanted[MOST * N];
    int64_t rows = f->has_counts ? MOST : ROWS;
    int num_runs = 0;
    fill_rows(a, f->dtype, K, 1, f->has_counts);
    for (int g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < N; j++) {
                tsr_store(f->dtype, b, weight_at(g, i, j, f->is_transposed), weight(g, i, j, 2));
                tsr_store(f->dtype, up, weight_at(g, i, j, f->is_transposed), weight(g, i, j, 3));
                tsr_store(f->dtype, bias, g * N + j, number(g * N + j, 4));
                tsr_store(f->dtype, bias_up, g * (N + 3) + j, number(g * N + j, 6));
            }
    for (int64_t i = 0; i < rows * N; i++) wanted[i] = expected(f, i / N, i % N);
    const int64_t rows_of_b = f->is_transposed ? N : K, cols_of_b = f->is_transposed ? K : N;
    tsr_matmul_grouped_forward_args args =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = rows_tensor(a, f->dtype, K, f->has_counts),
                                        .b = TSR_TENSOR(b, f->dtype, GROUPS, rows_of_b, cols_of_b),
                                        .c = rows_tensor(out + GUARD, f->out, N, f->has_counts),
                                        .transpose_b = f->is_transposed);
    *(f->has_counts ? &args.counts : &args.offsets) = starts(f->has_counts);
    if (f->has_epilogue) {
        args.b_up = TSR_TENSOR(up, f->dtype, GROUPS, rows_of_b, cols_of_b);
        args.bias = TSR_TENSOR(bias, f->dtype, GROUPS, N);
        args.bias_up = TSR_TENSOR(bias_up, f->dtype, GROUPS, N);
        args.bias_up.stride[0] = N + 3;
        args.activation = TSR_ACTIVATION_RELU;
        args.accumulate = args.has_alpha = 1;
        args.alpha = 2;
    }
    for (int v = -1; v < tsr_variant_count("matmul_grouped_forward"); v++) {
        args.variant = variant_name("matmul_grouped_forward", v);
        if (v >= 0 && args.variant[0] == 0) continue;
        prepare_out(f->out, rows * N);
        tsr_status status = tsr_matmul_grouped_forward(ctx, &args);
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        compare(f, wanted, rows * N, v < 0 ? "(default)" : args.variant);
        num_runs++;
    }
    return num_runs;
}

static int backward_runs(tsr_context *ctx, const struct form *f) {
    static double wanted[GROUPS * K * N];
    int num_runs = 0;
    fill_rows(a, f->dtype, K, 1, f->has_counts);
    fill_rows(dc, f->dtype, N, 5, f->has_counts);
    for (int g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < N; j++) {
                double sum = 0;
                for (int64_t r = 0; r < (f->has_counts ? MOST : ROWS); r++)
                    if (group_of(r, f->has_counts) == g)
                        sum += number(r * K + i, 1) * number(r * N + j, 5);
                wanted[weight_at(g, i, j, f->is_transposed)] = f->has_epilogue ? 7 - 2 * sum : sum;
            }
    tsr_matmul_grouped_backward_args args =
        TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = rows_tensor(a, f->dtype, K, f->has_counts),
                                         .dc = rows_tensor(dc, f->dtype, N, f->has_counts),
                                         .db = TSR_TENSOR(out + GUARD, f->out, GROUPS,
                                                          f->is_transposed ? N : K,
                                                          f->is_transposed ? K : N),
                                         .transpose_b = f->is_transposed,
                                         .accumulate = f->has_epilogue,
                                         .has_alpha = f->has_epilogue,
                                         .alpha = f->has_epilogue ? -2 : 0);
    *(f->has_counts ? &args.counts : &args.offsets) = starts(f->has_counts);
    for (int v = -1; v < tsr_variant_count("matmul_grouped_backward"); v++) {
        args.variant = variant_name("matmul_grouped_backward", v);
        if (v >= 0 && args.variant[0] == 0) continue;
        prepare_out(f->out, GROUPS * K * N);
        tsr_status status = tsr_matmul_grouped_backward(ctx, &args);
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        compare(f, wanted, GROUPS * K * N, v < 0 ? "(default)" : args.variant);
        num_runs++;
    }
    return num_runs;
}

static void check_integers(int (*runs)(tsr_context *ctx, const struct form *f)) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    tsr_context *ctx = test_context(2);
    int num_runs = 0;
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int i = 0; i < 8; i++) {
            struct form f = {dtypes[d], dtypes[d], i & 1, i & 2, i & 4};
            if (f.has_epilogue && f.dtype != TSR_F64) f.out = TSR_F32;
            num_runs += runs(ctx, &f);
        }
    // The default, tiled, naive and the oracle. f64 has only the oracle.
    assert_true(num_runs >= 8 * (3 * 4 + 1));
    tsr_context_destroy(ctx);
}

static void forward_of_integers(void **state) { (void)state, check_integers(forward_runs); }
static void backward_of_integers(void **state) { (void)state, check_integers(backward_runs); }

// ---- What is refused ----------------------------------------------------------------------------

static void what_is_refused(void **state) {
    (void)state;
    static float x[ROWS * K], w[GROUPS * K * N], y[ROWS * N];
    tsr_context *ctx = test_context(1);
    const tsr_matmul_grouped_forward_args good =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, ROWS, K),
                                        .b = TSR_TENSOR(w, TSR_F32, GROUPS, K, N),
                                        .c = TSR_TENSOR(y, TSR_F32, ROWS, N),
                                        .offsets = TSR_TENSOR(offsets, TSR_I32, GROUPS + 1));
    size_t bytes;
    memset(y, 0x5a, sizeof y);
    static const struct {
        int32_t offsets[GROUPS + 1];
        const char *words[2];
    } bad[] = {
        {{-1, 3, 40, 41, 77, 85}, {"element 0 of offsets is -1", "expected 0 to 90"}},
        {{3, 3, 40, 39, 77, 85}, {"element 3 of offsets is 39", "expected 40 to 90"}},
        {{3, 3, 40, 41, 77, 91}, {"element 5 of offsets is 91", "expected 77 to 90"}},
        {{0, 0, 0, 0, 0, INT32_MIN}, {"element 5 of offsets", "expected 0 to 90"}},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        tsr_matmul_grouped_forward_args args = good;
        args.offsets = TSR_TENSOR(bad[i].offsets, TSR_I32, GROUPS + 1);
        assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                      "matmul_grouped_forward", bad[i].words[0], bad[i].words[1]);
        assert_ok(tsr_matmul_grouped_forward_prepare(ctx, &args, &bytes)); // reads no values
    }
    tsr_matmul_grouped_forward_args args = good;
    args.offsets = (tsr_tensor){0};
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "offsets and counts are both absent");
    args = good;
    args.counts = TSR_TENSOR(counts, TSR_I32, GROUPS);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "offsets and counts are both present");
    args = good;
    args.offsets = TSR_TENSOR(offsets, TSR_I32, 0);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "offsets has no");
    args = good;
    args.offsets = TSR_TENSOR(offsets, TSR_I32, GROUPS); // one group fewer than b
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "b has shape",
                  "for each of 4 groups");
    args.offsets = TSR_TENSOR(offsets, TSR_I32, 2);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "b has shape",
                  "for each of 1 group");
    args = good;
    args.offsets.dtype = TSR_F32;
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "offsets.dtype");
    args = good;
    args.b = (tsr_tensor){0};
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, ": b");
    args = good;
    args.a = TSR_TENSOR(x, TSR_F32, 2, 45, K);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "a.ndim is 3");
    args = good;
    args.bias = TSR_TENSOR(x, TSR_F32, N);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "bias.ndim is 1");
    args = good;
    args.bias_up = TSR_TENSOR(x, TSR_F32, 2, N);
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT,
                  "bias_up is given without b_up, expected both");
    const tsr_tensor square = TSR_TENSOR(x, TSR_F32, 4, 4), line = TSR_TENSOR(x, TSR_F32, 4);
    assert_status(
        tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = square, .b = square, .bias_up = line,
                                                         .c = TSR_TENSOR(y, TSR_F32, 4, 4))),
        TSR_INVALID_ARGUMENT, "matmul_forward: bias_up is given without b_up");
    args = good;
    args.c.data = x;
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "c", "a");
    args = good;
    args.c.dtype = TSR_BF16;
    assert_status(tsr_matmul_grouped_forward(ctx, &args), TSR_INVALID_ARGUMENT, "c.dtype is bf16");
    assert_true(test_all_bytes_are(y, 0x5a, sizeof y));
    assert_ok(tsr_matmul_grouped_forward(ctx, &good));

    static const int32_t many[GROUPS] = {0, 18, 19, 0, 0};
    static float db[GROUPS * K * N];
    tsr_matmul_grouped_backward_args back =
        TSR_MATMUL_GROUPED_BACKWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, GROUPS, ROWS / GROUPS, K),
                                         .dc = TSR_TENSOR(y, TSR_F32, GROUPS, ROWS / GROUPS, N),
                                         .db = TSR_TENSOR(db, TSR_F32, GROUPS, K, N),
                                         .counts = TSR_TENSOR(many, TSR_I32, GROUPS));
    assert_status(tsr_matmul_grouped_backward(ctx, &back), TSR_INVALID_ARGUMENT,
                  "matmul_grouped_backward: element 2 of counts is 19, expected 0 to 18");
    back.dc = TSR_TENSOR(y, TSR_F32, GROUPS, 3, N);
    assert_status(tsr_matmul_grouped_backward(ctx, &back), TSR_INVALID_ARGUMENT,
                  "dc has shape (5, 3, ", "expected (18, ", "for each of 5 groups");
    back.dc = (tsr_tensor){0};
    assert_status(tsr_matmul_grouped_backward(ctx, &back), TSR_INVALID_ARGUMENT, ": dc");
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_of_integers),
        cmocka_unit_test(backward_of_integers),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests_name("matmul grouped", tests, NULL, NULL);
}
