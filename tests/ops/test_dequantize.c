// SPDX-License-Identifier: Apache-2.0
// Dequantize on the CPU, against the formats' definition written here, number by number: random sizes, dtypes, strides, lists and
// scales, the bits for any threads, and what a call refuses. tests/commands/test_apply_dequantize.py has gguf's own numbers.
#include <math.h>

#include "test_support.h"

enum { ROWS = 40, SOURCES = 30, BYTES = 1100, COLS = 1024, PAD = 40, GUARD = 64, POISON = 0xff };
enum { UNIT = 32, GROUPS = COLS / UNIT + 3 };

static struct {
    uint8_t x[SOURCES * (BYTES + PAD)];
    char scale[SOURCES * GROUPS * 4], zero[SOURCES * GROUPS * 4], minimum[SOURCES * GROUPS * 4];
    int32_t list[2 * ROWS];
} in;
static struct outputs {
    char y_before[GUARD], y[ROWS * (COLS + PAD) * 4], y_after[GUARD];
} out, other;

struct call {
    int rows, sources, cols, group, x_stride, y_stride, s_stride, step; // step: of the list
    tsr_quant_format format;
    tsr_dtype dtype, scale_dtype;
    bool has_zero, has_minimum, has_list;
};

static bool is_of_groups(const struct call *c) {
    return c->format == TSR_QUANT_INT8 || c->format == TSR_QUANT_INT4;
}
static int bytes_of(const struct call *c) { return (int)tsr_quant_row_bytes(c->format, c->cols); }
static int groups_of(const struct call *c) {
    const int group = c->format == TSR_QUANT_MXFP4 ? UNIT : c->group > 0 ? c->group : c->cols;
    return (c->cols + group - 1) / group;
}

// What no row names stays poison.
static void fill(const struct call *c, uint64_t *random) {
    const int bytes = bytes_of(c), groups = groups_of(c);
    memset(&in, POISON, sizeof in);
    for (int r = 0; r < c->rows; r++)
        in.list[r * c->step] = test_below(random, 8) == 0 ? -1 : test_below(random, c->sources);
    for (int r = 0; r < c->rows; r++) {
        const int source = c->has_list ? in.list[r * c->step] : r;
        if (source < 0) continue;
        for (int i = 0; i < bytes; i++)
            in.x[source * c->x_stride + i] = (uint8_t)test_below(random, 256);
        for (int g = 0; g < groups; g++) {
            const int64_t at = (int64_t)source * c->s_stride + g;
            if (c->format == TSR_QUANT_MXFP4)
                tsr_store(TSR_U8, in.scale, at, test_below(random, 256));
            else
                tsr_store(c->scale_dtype, in.scale, at, (double)test_float(random));
            tsr_store(c->scale_dtype, in.zero, at, test_below(random, 16));
            tsr_store(c->scale_dtype, in.minimum, at, (double)test_float(random));
        }
    }
}

static struct call draw(uint64_t *random) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct call c = {.dtype = dtypes[test_below(random, 3)],
                     .scale_dtype = dtypes[test_below(random, 3)]};
    c.format = (tsr_quant_format)(1 + test_below(random, TSR_QUANT_COUNT - 1));
    const int unit = is_of_groups(&c) ? 1 : tsr_quant_row_bytes(c.format, UNIT) < 0 ? 256 : UNIT;
    c.cols = unit * (1 + test_below(random, COLS / unit));
    if (is_of_groups(&c)) {
        c.group = UNIT * test_below(random, 5);
        c.has_zero = test_below(random, 2) == 0;
        c.has_minimum = test_below(random, 2) == 0;
    }
    c.has_list = test_below(random, 2) == 0;
    c.step = 1 + test_below(random, 2);
    c.x_stride = bytes_of(&c) + test_below(random, 2) * test_below(random, PAD);
    c.y_stride = c.cols + test_below(random, 2) * test_below(random, PAD);
    c.s_stride = groups_of(&c) + test_below(random, 2) * test_below(random, GROUPS - groups_of(&c));
    c.sources = 1 + test_below(random, SOURCES);
    c.rows = c.has_list ? 1 + test_below(random, ROWS) : c.sources;
    fill(&c, random);
    return c;
}

static tsr_dequantize_args args_of(const struct call *c, struct outputs *outputs) {
    const int groups = groups_of(c);
    const bool is_mx = c->format == TSR_QUANT_MXFP4;
    tsr_dequantize_args args =
        TSR_DEQUANTIZE_ARGS(.x = test_strided(in.x, TSR_U8, c->sources, bytes_of(c), c->x_stride),
                            .y = test_strided(outputs->y, c->dtype, c->rows, c->cols, c->y_stride),
                            .quant = c->format, .group = c->group);
    if (is_mx || is_of_groups(c))
        args.scale = test_strided(in.scale, is_mx ? TSR_U8 : c->scale_dtype, c->sources, groups,
                                  c->s_stride);
    if (c->has_zero)
        args.zero = test_strided(in.zero, c->scale_dtype, c->sources, groups, c->s_stride);
    if (c->has_minimum)
        args.minimum = test_strided(in.minimum, c->scale_dtype, c->sources, groups, c->s_stride);
    if (c->has_list) {
        args.x_rows = TSR_TENSOR(in.list, TSR_I32, c->rows);
        args.x_rows.stride[0] = c->step;
    }
    return args;
}

// ---- The definition ---------------------------------------------------------------------------

static int nibble(const uint8_t *bytes, int at, bool is_upper) {
    return is_upper ? bytes[at] >> 4 : bytes[at] & 15;
}

static float e2m1(int code) {
    static const float sizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

static float f16_at(const uint8_t *bytes) { // at any address
    uint16_t bits;
    memcpy(&bits, bytes, sizeof bits);
    return (float)tsr_load(TSR_F16, &bits, 0);
}

// Products and sums are each rounded to f32.
static float times(float a, float b) {
    const volatile float product = a * b;
    return product;
}

// 2^exponent may be more than a float holds, unlike the product.
static float power_times(int exponent, float x) { return (float)ldexp((double)x, exponent); }

// Six bits each: of the first four pairs in bytes, of the others in the upper quarters.
static float q4_k(const uint8_t *b, int i) {
    const uint8_t *s = b + 4;
    const int pair = i / 32;
    const int scale = pair < 4 ? s[pair] & 63 : (s[pair + 4] & 15) | (s[pair - 4] >> 6) << 4;
    const int least = pair < 4 ? s[pair + 4] & 63 : s[pair + 4] >> 4 | (s[pair] >> 6) << 4;
    const int q = nibble(b + 16, i / 64 * 32 + i % 32, i % 64 >= 32);
    return times(times(f16_at(b), (float)scale), (float)q) - times(f16_at(b + 2), (float)least);
}

static float q6_k(const uint8_t *b, int i) {
    const int half = i / 128, at = i % 128;
    const int low = nibble(b, half * 64 + at % 64, at >= 64);
    const int high = b[128 + half * 32 + at % 32] >> (at / 32 * 2) & 3;
    const int scale = (int8_t)b[192 + i / 16];
    return times(times(f16_at(b + 208), (float)scale), (float)((low | high << 4) - 32));
}

static float value_of_block(tsr_quant_format format, const uint8_t *row, int col) {
    const int i = col % 32;
    const uint8_t *b = row + col / 32 * tsr_quant_row_bytes(format, 32);
    switch (format) {
    case TSR_QUANT_Q8_0: return times(f16_at(b), (int8_t)b[2 + i]);
    case TSR_QUANT_Q4_0: return times(f16_at(b), (float)(nibble(b + 2, i % 16, i >= 16) - 8));
    case TSR_QUANT_Q4_1:
        return times(f16_at(b), (float)nibble(b + 4, i % 16, i >= 16)) + f16_at(b + 2);
    case TSR_QUANT_MXFP4_GGUF: return power_times(b[0] - 127, e2m1(nibble(b + 1, i % 16, i >= 16)));
    case TSR_QUANT_Q4_K: return q4_k(row + col / 256 * 144, col % 256);
    default: return q6_k(row + col / 256 * 210, col % 256);
    }
}

static float value_at(const struct call *c, int row, int col) {
    const int source = c->has_list ? in.list[row * c->step] : row;
    if (source < 0) return 0;
    const uint8_t *x = in.x + source * c->x_stride;
    const int group = c->format == TSR_QUANT_MXFP4 ? UNIT : c->group > 0 ? c->group : c->cols;
    const int64_t at = (int64_t)source * c->s_stride + col / group;
    if (c->format == TSR_QUANT_MXFP4) {
        const int e = (int)tsr_load(TSR_U8, in.scale, at);
        return e == 255 ? NAN : power_times(e - 127, e2m1(nibble(x, col / 2, col % 2 == 1)));
    }
    if (!is_of_groups(c)) return value_of_block(c->format, x, col);
    const bool is_int8 = c->format == TSR_QUANT_INT8;
    float q = is_int8 ? (int8_t)x[col] : (float)nibble(x, col / 2, col % 2 == 1);
    if (c->has_zero) q -= (float)tsr_load(c->scale_dtype, in.zero, at);
    if (!is_int8 && !c->has_zero && !c->has_minimum) q -= 8;
    q = times((float)tsr_load(c->scale_dtype, in.scale, at), q);
    return c->has_minimum ? q + (float)tsr_load(c->scale_dtype, in.minimum, at) : q;
}

static void check(const struct call *c) {
    const int64_t bytes = c->dtype == TSR_F32 ? 4 : 2;
    assert_true(test_all_bytes_are(out.y_before, POISON, GUARD) &&
                test_all_bytes_are(out.y_after, POISON, GUARD));
    for (int r = 0; r < c->rows; r++) {
        for (int i = 0; i < c->cols; i++) {
            float rounded = 0;
            tsr_store(c->dtype, &rounded, 0, (double)value_at(c, r, i));
            const double expected = tsr_load(c->dtype, &rounded, 0),
                         y = tsr_load(c->dtype, out.y, (int64_t)r * c->y_stride + i);
            if (y != expected && !(isnan(y) && isnan(expected)))
                fail_msg("%s: row %d, column %d of %d: %.9g, expected %.9g",
                         tsr_quant_format_name(c->format), r, i, c->cols, y, expected);
        }
        assert_true(test_all_bytes_are(out.y + (r * c->y_stride + c->cols) * bytes, POISON,
                                       (size_t)((c->y_stride - c->cols) * bytes)));
    }
}

static void random_rows(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 40 : 400);
    uint64_t random = test_seed(20261201);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random);
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            tsr_context *ctx;
            const tsr_dequantize_args args = args_of(&c, &out);
            if (!test_has_isa(isa)) continue;
            memset(&out, POISON, sizeof out);
            ctx = test_context_of(isa, 1 + isa);
            assert_ok(tsr_dequantize(ctx, &args));
            tsr_context_destroy(ctx);
            check(&c);
        }
    }
}

static void any_number_of_threads(void **state) {
    uint64_t random = 11;
    (void)state;
    for (int i = 0; i < 12; i++) {
        const struct call c = draw(&random);
        for (int threads = 1; threads < 9; threads++) {
            tsr_context *ctx = test_context(threads);
            struct outputs *outputs = threads == 1 ? &out : &other;
            const tsr_dequantize_args args = args_of(&c, outputs);
            memset(outputs, POISON, sizeof *outputs);
            assert_ok(tsr_dequantize(ctx, &args));
            tsr_context_destroy(ctx);
            assert_memory_equal(outputs, &out, sizeof out);
        }
    }
}

// ---- Formats ----------------------------------------------------------------------------------

static void rows_of_formats(void **state) {
    static const struct {
        tsr_quant_format format;
        int64_t cols, bytes;
        const char *name;
    } known[] = {
        {TSR_QUANT_Q8_0, 4096, 4352, "q8_0"},       {TSR_QUANT_Q4_0, 4096, 2304, "q4_0"},
        {TSR_QUANT_Q4_1, 4096, 2560, "q4_1"},       {TSR_QUANT_Q4_K, 4096, 2304, "q4_k"},
        {TSR_QUANT_Q6_K, 4096, 3360, "q6_k"},       {TSR_QUANT_MXFP4_GGUF, 64, 34, "mxfp4_gguf"},
        {TSR_QUANT_MXFP4, 64, 32, "mxfp4"},         {TSR_QUANT_INT8, 77, 77, "int8"},
        {TSR_QUANT_INT4, 77, 39, "int4"},           {TSR_QUANT_Q8_0, 0, 0, "q8_0"},
        {TSR_QUANT_Q8_0, 33, -1, "q8_0"},           {TSR_QUANT_Q4_K, 128, -1, "q4_k"},
        {TSR_QUANT_MXFP4, 16, -1, "mxfp4"},         {TSR_QUANT_Q4_0, -32, -1, "q4_0"},
        {TSR_QUANT_NONE, 32, -1, "none"},           {TSR_QUANT_INT8, INT64_MAX, -1, "int8"},
        {TSR_QUANT_COUNT, 32, -1, "unknown format"}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(tsr_quant_row_bytes(known[i].format, known[i].cols), known[i].bytes);
        assert_string_equal(tsr_quant_format_name(known[i].format), known[i].name);
    }
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    static const struct call small = {.rows = 6,
                                      .sources = 4,
                                      .cols = 96,
                                      .group = 64,
                                      .x_stride = 48,
                                      .y_stride = 96,
                                      .s_stride = 2,
                                      .step = 1,
                                      .format = TSR_QUANT_INT4,
                                      .dtype = TSR_BF16,
                                      .scale_dtype = TSR_F16,
                                      .has_zero = true,
                                      .has_minimum = true,
                                      .has_list = true};
    static const int32_t list[] = {3, 0, -1, 2, 1, 0};
    static const tsr_tensor none;
    tsr_dequantize_args args;
    memset(&in, 0, sizeof in);
    memset(&out, POISON, sizeof out);
    memcpy(in.list, list, sizeof list);
    const tsr_dequantize_args good = args_of(&small, &out);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_dequantize(*state, &args), TSR_INVALID_ARGUMENT,                             \
                  "dequantize: ", __VA_ARGS__);                                                    \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.x = none, "x");
    REFUSES(args.x.dtype = TSR_E4M3, "x.dtype is e4m3", "u8");
    REFUSES(args.x.stride[1] = 2, "x.stride[1] is 2", "expected 1");
    REFUSES(args.x.shape[1] = 49, "x.shape[1] is 49", "48 bytes of 96 columns of int4");
    REFUSES((args.x.ndim = 1, args.x.shape[0] = 48, args.x.stride[0] = 1), "x.ndim is 1",
            "expected 2 with x_rows");
    REFUSES(args.x_rows.dtype = TSR_U8, "x_rows.dtype is u8", "i32");
    REFUSES((args.x_rows.ndim = 2, args.x_rows.shape[1] = 1, args.x_rows.stride[1] = 1),
            "x_rows.ndim is 2", "expected 1");
    REFUSES(args.y = none, "y");
    REFUSES(args.y.dtype = TSR_U8, "y.dtype is u8");
    REFUSES(args.y.dtype = TSR_E4M3, "y.dtype is e4m3");
    REFUSES(args.y.shape[0] = 5, "y has shape (5, 96)", "(6, 96)");
    REFUSES(args.y.stride[0] = 95, "y");
    REFUSES(args.x_rows = none, "y has shape (6, 96)", "(4, 96) as x");
    REFUSES(args.quant = TSR_QUANT_NONE, "quant is 0");
    REFUSES(args.quant = TSR_QUANT_COUNT, "quant is 10");
    REFUSES(args.quant = (tsr_quant_format)-1, "quant is -1");
    REFUSES(args.quant = TSR_QUANT_INT8, "x.shape[1] is 48", "96 bytes of 96 columns of int8");
    REFUSES(args.quant = TSR_QUANT_Q4_K, "y.shape[1] is 96", "multiple of 256 for q4_k");
    REFUSES((args.quant = TSR_QUANT_MXFP4), "group is 64", "expected 0 for mxfp4");
    REFUSES(args.group = 33, "group is 33", "0 or a multiple of 32");
    REFUSES(args.group = -32, "group is -32", "0 or a multiple of 32");
    REFUSES(args.group = 32, "scale has shape (4, 2)", "(4, 3)");
    REFUSES(args.scale = none, "scale is absent", "int4");
    REFUSES(args.scale.dtype = TSR_U8, "scale.dtype is u8");
    REFUSES(args.scale.dtype = TSR_F64, "y.dtype is bf16", "f64");
    REFUSES(args.zero.dtype = TSR_F32, "zero.dtype is f32", "f16 as scale");
    REFUSES(args.minimum.shape[0] = 3, "minimum has shape (3, 2)", "(4, 2)");
    REFUSES(args.y.data = in.x, "y overlaps x");
    REFUSES(args.y.data = in.scale, "y overlaps scale");
    REFUSES(args.y.data = in.zero, "y overlaps zero");
    REFUSES(args.y.data = in.minimum, "y overlaps minimum");
    REFUSES(args.y.data = in.list, "y overlaps x_rows");
    REFUSES(in.list[4] = 4, "element 4 of x_rows is 4", "0 to 3 or -1");
    REFUSES(in.list[4] = -2, "element 4 of x_rows is -2");
    in.list[4] = 1;
    REFUSES((args.quant = TSR_QUANT_Q8_0, args.group = 0, args.x.shape[1] = 102),
            "scale is present", "absent with quant q8_0");
    REFUSES((args.quant = TSR_QUANT_MXFP4, args.group = 0, args.scale.shape[1] = 3),
            "scale.dtype is f16", "u8");
    REFUSES((args.quant = TSR_QUANT_MXFP4, args.group = 0, args.scale.shape[1] = 3,
             args.scale.dtype = TSR_U8),
            "zero is present", "absent with quant mxfp4");
    args = good;
    assert_ok(tsr_dequantize(*state, &args));
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
        cmocka_unit_test(rows_of_formats),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("dequantize", tests, setup, teardown);
}
