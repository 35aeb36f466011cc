// SPDX-License-Identifier: Apache-2.0
// Quantize on the CPU, against the definition written here with fp8 numbers found by search: random sizes, dtypes, strides, lists
// and gates, the bits for any threads and neighbours, and what a call refuses.
#include <math.h>

#include "test_support.h"

enum { ROWS = 60, SOURCES = 50, COLS = 700, GUARD = 64, POISON = 0xff };
enum { BLOCK = 128, WIDE = COLS + 40, SCALES = (COLS + BLOCK - 1) / BLOCK + 3 };

static struct {
    char x[SOURCES * WIDE * 4], up[SOURCES * WIDE * 4];
    int32_t list[2 * ROWS];
} in;
static struct outputs {
    char y_before[GUARD], y[ROWS * WIDE], y_after[GUARD];
    char s_before[GUARD], s[ROWS * SCALES * 4], s_after[GUARD];
} out, other;

struct call {
    int rows, sources, cols, x_stride, up_stride, y_stride, s_stride, step; // step: of the list
    tsr_dtype dtype, to;
    bool is_gated, has_list;
    tsr_activation kind;
};

static int blocks_of(const struct call *c) { return (c->cols + BLOCK - 1) / BLOCK; }

// What no row names stays poison: NaN.
static void fill(const struct call *c, uint64_t *random) {
    memset(&in, POISON, sizeof in);
    for (int r = 0; r < c->rows; r++)
        in.list[r * c->step] = test_below(random, 8) == 0 ? -1 : test_below(random, c->sources);
    for (int r = 0; r < c->rows; r++) {
        const int source = c->has_list ? in.list[r * c->step] : r;
        for (int i = 0; i < c->cols && source >= 0; i++) {
            const double size = ldexp(1, test_below(random, 24) - 20);
            tsr_store(c->dtype, in.x, (int64_t)source * c->x_stride + i,
                      (double)test_float(random) * size);
            tsr_store(c->dtype, in.up, (int64_t)source * c->up_stride + i,
                      (double)test_float(random) * 3);
        }
    }
}

static struct call draw(uint64_t *random) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct call c = {.dtype = dtypes[test_below(random, 3)], .step = 1 + test_below(random, 2)};
    c.to = test_below(random, 2) == 0 ? TSR_E4M3 : TSR_E5M2;
    c.cols = 1 + test_below(random, test_below(random, 2) == 0 ? 140 : COLS);
    c.kind = (tsr_activation)test_below(random, TSR_ACTIVATION_COUNT);
    c.is_gated = test_below(random, 2) == 0 || c.kind == TSR_ACTIVATION_SWIGLU_CLAMPED;
    c.has_list = test_below(random, 2) == 0;
    c.x_stride = c.cols + test_below(random, 2) * test_below(random, WIDE - c.cols);
    c.up_stride = c.cols + test_below(random, 2) * test_below(random, WIDE - c.cols);
    c.y_stride = c.cols + test_below(random, 2) * test_below(random, WIDE - c.cols);
    c.s_stride = blocks_of(&c) + test_below(random, 2) * test_below(random, SCALES - blocks_of(&c));
    c.sources = 1 + test_below(random, SOURCES);
    c.rows = c.has_list ? 1 + test_below(random, ROWS) : c.sources;
    fill(&c, random);
    return c;
}

static tsr_quantize_args args_of(const struct call *c, struct outputs *outputs) {
    tsr_quantize_args args =
        TSR_QUANTIZE_ARGS(.x = test_strided(in.x, c->dtype, c->sources, c->cols, c->x_stride),
                          .y = test_strided(outputs->y, c->to, c->rows, c->cols, c->y_stride),
                          .y_scale =
                              test_strided(outputs->s, TSR_F32, c->rows, blocks_of(c), c->s_stride),
                          .kind = c->kind);
    if (c->is_gated) args.up = test_strided(in.up, c->dtype, c->sources, c->cols, c->up_stride);
    if (c->has_list) {
        args.x_rows = TSR_TENSOR(in.list, TSR_I32, c->rows);
        args.x_rows.stride[0] = c->step;
    }
    return args;
}

// ---- The definition ---------------------------------------------------------------------------

static double logistic(double x) { return 1 / (1 + exp(-x)); }

static double activated(tsr_activation kind, double x) {
    switch (kind) {
    case TSR_ACTIVATION_GELU: return 0.5 * x * erfc(-x / sqrt(2));
    case TSR_ACTIVATION_GELU_TANH:
        return x * logistic(2 * sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x));
    case TSR_ACTIVATION_SILU: return x * logistic(x);
    case TSR_ACTIVATION_RELU: return x > 0 ? x : 0;
    case TSR_ACTIVATION_RELU2: return x > 0 ? x * x : 0;
    case TSR_ACTIVATION_SWIGLU_CLAMPED: x = fmin(x, 7); return x * logistic(1.702 * x);
    default: return x;
    }
}

static double value_at(const struct call *c, int row, int i) {
    const int source = c->has_list ? in.list[row * c->step] : row;
    if (source < 0) return 0;
    double v = activated(c->kind, tsr_load(c->dtype, in.x, (int64_t)source * c->x_stride + i));
    if (!c->is_gated) return v;
    const double up = tsr_load(c->dtype, in.up, (int64_t)source * c->up_stride + i);
    return v * (c->kind == TSR_ACTIVATION_SWIGLU_CLAMPED ? fmin(fmax(up, -7), 7) + 1 : up);
}

// What rounding and the shorter activations of 16 bits may change, relative to |x| and the gate.
static double error_at(const struct call *c, int row, int i) {
    const int source = c->has_list ? in.list[row * c->step] : row;
    if (source < 0) return 0;
    const double x = fabs(tsr_load(c->dtype, in.x, (int64_t)source * c->x_stride + i));
    double gate = 1;
    if (c->is_gated) gate = fabs(tsr_load(c->dtype, in.up, (int64_t)source * c->up_stride + i)) + 1;
    const double u = c->dtype == TSR_BF16 ? 0x1p-11 : c->dtype == TSR_F16 ? 0x1p-14 : 0x1p-20;
    return c->kind == TSR_ACTIVATION_NONE && !c->is_gated ? 0 : (u * x * (1 + x)) * gate + 0x1p-118;
}

// The distance of y to the nearest number of its format may not be exceeded by more than the error of v / s.
static double nearest_distance(tsr_dtype to, double y) {
    double least = INFINITY;
    for (int code = 0; code < 256; code++) {
        const uint8_t byte = (uint8_t)code;
        const double distance = fabs(tsr_load(to, &byte, 0) - y);
        if (distance < least) least = distance; // not that of NaN and infinities
    }
    return least;
}

static void check_block(const struct call *c, int row, int block) {
    const double limit = c->to == TSR_E4M3 ? 448 : 57344;
    const int first = block * BLOCK, last = first + BLOCK < c->cols ? first + BLOCK : c->cols;
    double most = 1e-10, slack = 0;
    for (int i = first; i < last; i++) {
        most = fmax(most, fabs(value_at(c, row, i)));
        slack = fmax(slack, error_at(c, row, i));
    }
    const double s = tsr_load(TSR_F32, out.s, (int64_t)row * c->s_stride + block);
    if (!(fabs(s - most / limit) <= slack / limit + 0x1p-22 * s))
        fail_msg("scale of row %d, block %d: %.9g, expected %.9g", row, block, s, most / limit);
    for (int i = first; i < last; i++) {
        const double v = value_at(c, row, i),
                     y = tsr_load(c->to, out.y, (int64_t)row * c->y_stride + i);
        const double expected = fmax(fmin(v / s, limit), -limit);
        const double more = error_at(c, row, i) / s + fabs(expected) * 0x1p-20;
        if (!(fabs(y - expected) <= nearest_distance(c->to, expected) + 2 * more + 1e-300))
            fail_msg("row %d, column %d: %.9g, expected %.9g", row, i, y, expected);
    }
}

static void check(const struct call *c) {
    assert_true(test_all_bytes_are(out.y_before, POISON, GUARD) &&
                test_all_bytes_are(out.y_after, POISON, GUARD) &&
                test_all_bytes_are(out.s_before, POISON, GUARD) &&
                test_all_bytes_are(out.s_after, POISON, GUARD));
    for (int r = 0; r < c->rows; r++) {
        for (int b = 0; b < blocks_of(c); b++) check_block(c, r, b);
        assert_true(test_all_bytes_are(out.y + r * c->y_stride + c->cols, POISON,
                                       (size_t)(c->y_stride - c->cols)));
        assert_true(test_all_bytes_are(out.s + (r * c->s_stride + blocks_of(c)) * 4, POISON,
                                       (size_t)(c->s_stride - blocks_of(c)) * 4));
    }
}

static void random_rows(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 10 : 60);
    uint64_t random = test_seed(20261205);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_quantize_args args = args_of(&c, &out);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            ctx = test_context_of(isa, 1 + isa);
            assert_ok(tsr_quantize(ctx, &args));
            tsr_context_destroy(ctx);
            check(&c);
        }
    }
}

// ---- Bits -------------------------------------------------------------------------------------

static void any_number_of_threads(void **state) {
    uint64_t random = 11;
    (void)state;
    for (int i = 0; i < 12; i++) {
        const struct call c = draw(&random);
        for (int threads = 1; threads < 9; threads++) {
            tsr_context *ctx = test_context(threads);
            struct outputs *outputs = threads == 1 ? &out : &other;
            const tsr_quantize_args args = args_of(&c, outputs);
            memset(outputs, POISON, sizeof *outputs);
            assert_ok(tsr_quantize(ctx, &args));
            tsr_context_destroy(ctx);
            assert_memory_equal(outputs, &out, sizeof out);
        }
    }
}

// A row alone has the bits that it has among others, from a list or not, and so do the blocks of a row that ends there.
static void a_row_alone_and_among_others(void **state) {
    enum { N = 40, WIDTH = 500, BLOCKS = 4 };
    static float x[N][WIDTH], scales[N][BLOCKS], scale[BLOCKS];
    static uint8_t y[N][WIDTH], one[WIDTH];
    static int32_t list[N];
    uint64_t random = 4;
    for (int r = 0; r < N; r++) {
        list[r] = (r * 7 + 3) % N;
        for (int i = 0; i < WIDTH; i++) x[r][i] = test_float(&random) * (float)(1 + r);
    }
    tsr_quantize_args args = TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F32, N, WIDTH),
                                               .x_rows = TSR_TENSOR(list, TSR_I32, N),
                                               .y = TSR_TENSOR(y, TSR_E4M3, N, WIDTH),
                                               .y_scale = TSR_TENSOR(scales, TSR_F32, N, BLOCKS),
                                               .kind = TSR_ACTIVATION_SILU);
    assert_ok(tsr_quantize(*state, &args));
    args.x_rows.dtype = TSR_DTYPE_NONE;
    for (int r = 0; r < N; r++)
        for (int cols = WIDTH; cols > 0;
             cols -= 116) { // 384 of them: three whole blocks; 268, 152, 36
            const int whole = cols == WIDTH ? BLOCKS : cols / BLOCK;
            args.x = TSR_TENSOR(x[list[r]], TSR_F32, cols);
            args.y = TSR_TENSOR(one, TSR_E4M3, cols);
            args.y_scale = TSR_TENSOR(scale, TSR_F32, (cols + BLOCK - 1) / BLOCK);
            assert_ok(tsr_quantize(*state, &args));
            assert_memory_equal(scale, scales[r], sizeof *scale * (size_t)whole);
            assert_memory_equal(one, y[r], (size_t)(cols == WIDTH ? WIDTH : whole * BLOCK));
        }
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    static const struct call small = {.rows = 6,
                                      .sources = 4,
                                      .cols = 200,
                                      .x_stride = 200,
                                      .up_stride = 200,
                                      .y_stride = 200,
                                      .s_stride = 2,
                                      .step = 1,
                                      .dtype = TSR_BF16,
                                      .to = TSR_E4M3,
                                      .is_gated = true,
                                      .has_list = true,
                                      .kind = TSR_ACTIVATION_SILU};
    static const int32_t list[] = {3, 0, -1, 2, 1, 0};
    static const tsr_tensor none;
    tsr_quantize_args args;
    memset(&in, 0, sizeof in);
    memset(&out, POISON, sizeof out);
    memcpy(in.list, list, sizeof list);
    const tsr_quantize_args good = args_of(&small, &out);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_quantize(*state, &args), TSR_INVALID_ARGUMENT, "quantize: ", __VA_ARGS__);   \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.x = none, "x");
    REFUSES(args.x.dtype = TSR_E4M3, "x.dtype is e4m3");
    REFUSES(args.x.stride[1] = 2, "x.stride[1] is 2", "expected 1");
    REFUSES((args.x.ndim = 1, args.x.shape[0] = 200, args.x.stride[0] = 1, args.up = args.x),
            "x.ndim is 1", "expected 2 with x_rows");
    REFUSES(args.up.dtype = TSR_F16, "up.dtype is f16", "bf16 as x");
    REFUSES(args.up.shape[0] = 3, "up has shape (3, 200)", "(4, 200) as x");
    REFUSES(args.kind = TSR_ACTIVATION_COUNT, "kind is 7");
    REFUSES((args.up = none, args.kind = TSR_ACTIVATION_SWIGLU_CLAMPED), "up is absent",
            "swiglu_clamped");
    REFUSES(args.x_rows.dtype = TSR_F32, "x_rows.dtype is f32", "i32");
    REFUSES((args.x_rows.ndim = 2, args.x_rows.shape[1] = 1, args.x_rows.stride[1] = 1),
            "x_rows.ndim is 2", "expected 1");
    REFUSES(args.y = none, "y");
    REFUSES(args.y.dtype = TSR_BF16, "y.dtype is bf16", "e4m3 or e5m2");
    REFUSES(args.y.shape[0] = 5, "y has shape (5, 200)", "(6, 200)");
    REFUSES(args.y.stride[0] = 199, "y");
    REFUSES(args.x_rows = none, "y has shape (6, 200)", "(4, 200) as x");
    REFUSES(args.y_scale = none, "y_scale");
    REFUSES(args.y_scale.dtype = TSR_BF16, "y_scale.dtype is bf16", "f32");
    REFUSES(args.y_scale.shape[1] = 1, "y_scale has shape (6, 1)", "(6, 2)");
    REFUSES((args.y_scale.stride[0] = 1, args.y_scale.stride[1] = 6), "y_scale.stride[1] is 6");
    REFUSES(args.y.data = in.x, "y overlaps x");
    REFUSES(args.y.data = in.up, "y overlaps up");
    REFUSES(args.y.data = in.list, "y overlaps x_rows");
    REFUSES(args.y_scale.data = in.x, "y_scale overlaps x");
    REFUSES(args.y_scale.data = out.y, "y_scale overlaps y");
    REFUSES(in.list[4] = 4, "element 4 of x_rows is 4", "0 to 3 or -1");
    REFUSES(in.list[4] = -2, "element 4 of x_rows is -2");
    in.list[4] = 1;
    args = good;
    assert_ok(tsr_quantize(*state, &args));
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
        cmocka_unit_test(random_rows),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(a_row_alone_and_among_others),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("quantize", tests, setup, teardown);
}
