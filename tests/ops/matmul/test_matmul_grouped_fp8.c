// SPDX-License-Identifier: Apache-2.0
// Grouped products of fp8 with every kind of scales, on every variant and instruction set of the CPU, against sums in double of
// numbers that the test decodes itself; rows of no group stay as they are; and refusals, with one sentence each.
#include <math.h>

#include "fp8_value.h"
#include "test_support.h"

enum { ROWS = 23, N = 140, K = 270, G = 4, OF_K = (K + 127) / 128, OF_N = (N + 127) / 128 };

static uint8_t a[G * ROWS * K], b[G * K * N], b_up[G * K * N];
static float a_scale[G * ROWS * OF_K], b_scale[G * OF_N * OF_K], up_scale[G * OF_N * OF_K];
static float c[G * ROWS * N], bias[G * N];
static const int32_t offsets[G + 1] = {2, 9, 9, 10, 21}, counts[G] = {0, 3, ROWS, 1};
static tsr_context *contexts[TSR_ISA_COUNT];

static double decoded[2][256]; // e5m2, e4m3
static double decode(tsr_dtype dtype, uint8_t code) { return decoded[dtype == TSR_E4M3][code]; }

static uint32_t state_of_draw = 1;
static uint32_t draw(void) { return (state_of_draw = state_of_draw * 1664525u + 1013904223u) >> 8; }

static void fill(tsr_dtype dtype, uint8_t *x, int count) {
    for (int i = 0; i < count; i++)
        x[i] = (uint8_t)(draw() % (dtype == TSR_E4M3 ? 0x7e : 0x60) | (draw() & 1 ? 0x80 : 0));
}

static void fill_scales(float *x, int count) {
    for (int i = 0; i < count; i++)
        x[i] = ldexpf(1 + (float)(draw() % 1000) / 1000, (int)(draw() % 9) - 5);
}

enum scales { NONE, TENSORS, GROUPS, ROWS_AND_GROUPS, BLOCKS, KINDS };

struct fp8_case {
    tsr_dtype a, b;
    enum scales scales;
    bool transpose_b, has_counts, is_gated;
};

static tsr_tensor scale_of_b(const struct fp8_case *t, const float *data) {
    if (t->scales == TENSORS) return TSR_TENSOR(data, TSR_F32, 1);
    if (t->scales != BLOCKS) return TSR_TENSOR(data, TSR_F32, G);
    return t->transpose_b ? TSR_TENSOR(data, TSR_F32, G, OF_N, OF_K)
                          : TSR_TENSOR(data, TSR_F32, G, OF_K, OF_N);
}

static tsr_tensor matrices(const struct fp8_case *t, const uint8_t *data) {
    return t->transpose_b ? TSR_TENSOR(data, t->b, G, N, K) : TSR_TENSOR(data, t->b, G, K, N);
}

static tsr_matmul_grouped_forward_args args_of(const struct fp8_case *t) {
    const bool has_rows = t->scales >= ROWS_AND_GROUPS;
    tsr_matmul_grouped_forward_args args =
        TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = TSR_TENSOR(a, t->a, ROWS, K), .b = matrices(t, b),
                                        .c = TSR_TENSOR(c, TSR_F32, ROWS, N),
                                        .bias = TSR_TENSOR(bias, TSR_F32, G, N),
                                        .transpose_b = t->transpose_b);
    if (t->has_counts) {
        args.a = TSR_TENSOR(a, t->a, G, ROWS, K);
        args.c = TSR_TENSOR(c, TSR_F32, G, ROWS, N);
        args.counts = TSR_TENSOR(counts, TSR_I32, G);
    } else {
        args.offsets = TSR_TENSOR(offsets, TSR_I32, G + 1);
    }
    if (t->is_gated) args.b_up = matrices(t, b_up);
    if (t->scales == NONE) return args;
    args.a_scale = !has_rows       ? TSR_TENSOR(a_scale, TSR_F32, 1)
                   : t->has_counts ? TSR_TENSOR(a_scale, TSR_F32, G, ROWS, OF_K)
                                   : TSR_TENSOR(a_scale, TSR_F32, ROWS, OF_K);
    args.b_scale = scale_of_b(t, b_scale);
    if (t->is_gated) args.b_up_scale = scale_of_b(t, up_scale);
    return args;
}

// The scale of element (s, j) of group g's b.
static double scale_at(const struct fp8_case *t, const float *scale, int g, int s, int j) {
    if (t->scales == NONE) return 1;
    if (t->scales == TENSORS) return (double)scale[0];
    if (t->scales != BLOCKS) return (double)scale[g];
    return (double)(t->transpose_b ? scale[(g * OF_N + j / 128) * OF_K + s / 128]
                                   : scale[(g * OF_K + s / 128) * OF_N + j / 128]);
}

static double product(const struct fp8_case *t, const uint8_t *of_b, const float *scale, int g,
                      int row, int j, double *magnitude) {
    double sum = 0;
    *magnitude = 0;
    for (int s = 0; s < K; s++) {
        const int at = t->transpose_b ? (g * N + j) * K + s : (g * K + s) * N + j;
        const double of_a = t->scales == NONE              ? 1
                            : t->scales >= ROWS_AND_GROUPS ? (double)a_scale[row * OF_K + s / 128]
                                                           : (double)a_scale[0];
        const double term = decode(t->a, a[row * K + s]) * of_a * decode(t->b, of_b[at]) *
                            scale_at(t, scale, g, s, j);
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

// Checks row `row` of c, counted through all groups; group -1: it belongs to none.
static void check_row(const struct fp8_case *t, const char *variant, int g, int row) {
    static const float untouched = -1.5f;
    const double u = 0x1p-24, allowed = (8 + 4 * sqrt(K)) * u;
    for (int j = 0; j < N; j++) {
        const float got = c[row * N + j];
        double magnitude, of_up;
        if (g < 0) {
            assert_true(got == untouched);
            continue;
        }
        double value = product(t, b, b_scale, g, row, j, &magnitude) + (double)bias[g * N + j];
        double bound = allowed * magnitude + 4 * u * fabs(value);
        if (t->is_gated) {
            const double up = product(t, b_up, up_scale, g, row, j, &of_up);
            bound = bound * (fabs(up) + allowed * of_up) + fabs(value) * allowed * of_up;
            value *= up;
            bound += 4 * u * fabs(value);
        }
        if (!(fabs((double)got - value) <= bound))
            fail_msg("%s, scales %d, transposed %d, counts %d, gated %d: group %d, c(%d, %d) is "
                     "%.9g, expected %.9g within %.2g",
                     variant, (int)t->scales, t->transpose_b, t->has_counts, t->is_gated, g, row, j,
                     (double)got, value, bound);
    }
}

static int group_of(const struct fp8_case *t, int row) {
    if (t->has_counts) return row % ROWS < counts[row / ROWS] ? row / ROWS : -1;
    for (int g = 0; g < G; g++)
        if (row >= offsets[g] && row < offsets[g + 1]) return g;
    return -1;
}

static void check_variants(const struct fp8_case *t, int which) {
    tsr_matmul_grouped_forward_args args = args_of(t);
    int served = 0;
    for (int v = -1; v < tsr_variant_count("matmul_grouped_forward"); v++) {
        tsr_variant_info info = {.name = NULL};
        if (v >= 0) assert_ok(tsr_variant_info_get("matmul_grouped_forward", v, &info));
        args.variant = info.name;
        for (int i = 0; i < G * ROWS * N; i++) c[i] = -1.5f;
        const tsr_status status =
            tsr_matmul_grouped_forward(contexts[(which + v + 1) % TSR_ISA_COUNT], &args);
        if (v >= 0 && status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        for (int row = 0; row < ROWS * (t->has_counts ? G : 1); row++)
            check_row(t, v < 0 ? "(default)" : info.name, group_of(t, row), row);
        served++;
    }
    assert_int_equal(served, 4); // the default, tiled, naive, the reference
}

static void values(void **state) {
    static const tsr_dtype formats[] = {TSR_E4M3, TSR_E5M2};
    (void)state;
    for (int which = 0; which < 8 * KINDS; which++) {
        const struct fp8_case t = {formats[which % 3 == 0],      formats[which % 4 == 0],
                                   (enum scales)(which % KINDS), which / KINDS & 1,
                                   which / KINDS >> 1 & 1,       which / KINDS >> 2 & 1};
        fill(t.a, a, sizeof a);
        fill(t.b, b, sizeof b);
        fill(t.b, b_up, sizeof b_up);
        fill_scales(a_scale, COUNT(a_scale));
        fill_scales(b_scale, COUNT(b_scale));
        fill_scales(up_scale, COUNT(up_scale));
        for (int i = 0; i < G * N; i++) bias[i] = (float)(i % 7) - 3;
        check_variants(&t, which);
    }
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refused(const tsr_matmul_grouped_forward_args *args, const char *sentence) {
    assert_int_equal(tsr_matmul_grouped_forward(contexts[TSR_ISA_SCALAR], args),
                     TSR_INVALID_ARGUMENT);
    assert_string_equal(tsr_last_error(), sentence);
}

static void refusals(void **state) {
    static const int32_t rows[ROWS];
    static uint16_t narrow[ROWS * N];
    const struct fp8_case blocks = {TSR_E4M3, TSR_E4M3, BLOCKS, false, false, false},
                          groups = {TSR_E4M3, TSR_E4M3, GROUPS, true, false, true};
    (void)state;
    tsr_matmul_grouped_forward_args args = args_of(&blocks);
    args.a_rows = TSR_TENSOR(rows, TSR_I32, ROWS);
    refused(&args, "matmul_grouped_forward: a_rows is given beside a of fp8, expected none");
    args = args_of(&blocks);
    args.b.dtype = TSR_I32;
    refused(&args, "matmul_grouped_forward: b.dtype is i32, expected e4m3 as a");
    args = args_of(&blocks);
    args.c.dtype = TSR_E4M3;
    refused(&args, "matmul_grouped_forward: c.dtype is e4m3 beside a of fp8, expected f32, bf16 or "
                   "f16");
    args = args_of(&blocks);
    args.c = TSR_TENSOR(narrow, TSR_BF16, ROWS, N);
    args.bias = TSR_TENSOR(narrow, TSR_F16, G, N);
    refused(&args, "matmul_grouped_forward: bias.dtype is f16, expected bf16 as c, or f32");
    args = args_of(&blocks);
    args.a_scale = TSR_TENSOR(a_scale, TSR_F32, OF_K, ROWS);
    refused(&args, "matmul_grouped_forward: a_scale has shape (3, 23), expected (23, 3)");
    args = args_of(&blocks);
    args.a_scale = (tsr_tensor){0};
    refused(&args, "matmul_grouped_forward: a_scale is absent beside scales of more than one "
                   "element, expected a scale too");
    args = args_of(&blocks);
    args.b_scale = TSR_TENSOR(b_scale, TSR_F32, OF_K, OF_N);
    refused(&args, "matmul_grouped_forward: b_scale.ndim is 2, expected 3");
    args = args_of(&groups);
    args.b_scale = TSR_TENSOR(b_scale, TSR_F32, G - 1);
    refused(&args, "matmul_grouped_forward: b_scale has shape (3,), expected (4,)");
    args = args_of(&groups);
    args.b_up_scale = (tsr_tensor){0};
    refused(&args, "matmul_grouped_forward: b_up_scale is absent beside scales of more than one "
                   "element, expected a scale too");
    args = args_of(&groups);
    args.b_scale.dtype = TSR_BF16;
    refused(&args, "matmul_grouped_forward: b_scale.dtype is bf16, expected f32");
    args = args_of(&groups);
    args.b_scale.data = c + 5;
    refused(&args, "matmul_grouped_forward: c overlaps b_scale in memory, expected none of its "
                   "bytes");
    args = args_of(&groups);
    args.a = TSR_TENSOR(a, TSR_BF16, ROWS, 8);
    args.b = args.b_up = TSR_TENSOR(b, TSR_BF16, G, N, 8);
    refused(&args, "matmul_grouped_forward: a_scale is given, expected none for a of dtype bf16");
    args.a_scale = args.b_scale = args.b_up_scale = (tsr_tensor){0};
    assert_ok(tsr_matmul_grouped_forward(contexts[TSR_ISA_SCALAR], &args));
    // Programs that were built before scales existed pass this size.
    args.size = offsetof(tsr_matmul_grouped_forward_args, a_scale);
    assert_ok(tsr_matmul_grouped_forward(contexts[TSR_ISA_SCALAR], &args));
}

int main(void) {
    for (int code = 0; code < 512; code++)
        decoded[code / 256][code % 256] =
            fp8_value(code / 256 ? TSR_E4M3 : TSR_E5M2, (uint8_t)(code % 256));
    for (int isa = 0; isa < TSR_ISA_COUNT; isa++)
        if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 2, .isa = (tsr_isa)isa),
                               &contexts[isa]) != TSR_OK)
            contexts[isa] = contexts[TSR_ISA_SCALAR];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("matmul grouped fp8", tests, NULL, NULL);
}
