// SPDX-License-Identifier: Apache-2.0
// Products of fp8: values with scales per tensor and per block, on every variant and instruction set of the CPU,
// against sums in double of numbers that the test decodes itself; NaN and infinities; and refusals, with one sentence
// each.
#include <math.h>

#include "fp8_value.h"
#include "test_support.h"

enum { M = 19, N = 140, K = 270, OF_K = (K + 127) / 128, OF_N = (N + 127) / 128 };

static uint8_t a[M * K], b[N * K], b_up[N * K];
static float a_scale[M * OF_K], b_scale[OF_N * OF_K], up_scale[OF_N * OF_K], c[M * N], bias[N];
static tsr_context *contexts[TSR_ISA_COUNT];

static double decoded[2][256]; // e5m2, e4m3
static double decode(tsr_dtype dtype, uint8_t code) { return decoded[dtype == TSR_E4M3][code]; }

static uint32_t state_of_draw = 1;
static uint32_t draw(void) { return (state_of_draw = state_of_draw * 1664525u + 1013904223u) >> 8; }

// Fills x with finite codes except the largest.
static void fill(tsr_dtype dtype, uint8_t *x, int count) {
    for (int i = 0; i < count; i++) {
        uint8_t size = (uint8_t)(draw() % (dtype == TSR_E4M3 ? 0x7e : 0x60));
        x[i] = (uint8_t)(size | (draw() & 1 ? 0x80 : 0));
    }
}

static void fill_scales(float *x, int count) {
    for (int i = 0; i < count; i++)
        x[i] = ldexpf(1 + (float)(draw() % 1000) / 1000, (int)(draw() % 9) - 5);
}

// One product: each operand's dtype and layout, and the scales.
struct fp8_case {
    tsr_dtype a, b;
    int transpose_a, transpose_b, scales; // scales: 0: none, 1: per tensor, 2: per block
    bool is_gated;
};

static tsr_tensor matrix(const void *data, tsr_dtype dtype, int64_t rows, int64_t cols,
                         int is_transposed) {
    return is_transposed ? TSR_TENSOR(data, dtype, cols, rows)
                         : TSR_TENSOR(data, dtype, rows, cols);
}

static tsr_matmul_forward_args args_of(const struct fp8_case *t) {
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = matrix(a, t->a, M, K, t->transpose_a),
                                .b = matrix(b, t->b, K, N, t->transpose_b),
                                .c = TSR_TENSOR(c, TSR_F32, M, N),
                                .bias = TSR_TENSOR(bias, TSR_F32, N), .transpose_a = t->transpose_a,
                                .transpose_b = t->transpose_b);
    if (t->is_gated) args.b_up = matrix(b_up, t->b, K, N, t->transpose_b);
    if (t->scales == 1) {
        args.a_scale = TSR_TENSOR(a_scale, TSR_F32, 1);
        args.b_scale = tsr_tensor_contiguous(b_scale, TSR_F32, 0, NULL);
        if (t->is_gated) args.b_up_scale = TSR_TENSOR(up_scale, TSR_F32, 1);
    } else if (t->scales == 2) {
        args.a_scale = matrix(a_scale, TSR_F32, M, OF_K, t->transpose_a);
        args.b_scale = matrix(b_scale, TSR_F32, OF_K, OF_N, t->transpose_b);
        if (t->is_gated) args.b_up_scale = matrix(up_scale, TSR_F32, OF_K, OF_N, t->transpose_b);
    }
    return args;
}

static int at(int i, int j, int rows, int cols, int is_transposed) {
    return is_transposed ? j * rows + i : i * cols + j;
}

// The sum and the magnitude of row i times column j of b or b_up.
static double product(const struct fp8_case *t, bool is_up, int i, int j, double *magnitude) {
    double sum = 0;
    const uint8_t *other = is_up ? b_up : b;
    const float *scale = is_up ? up_scale : b_scale;
    *magnitude = 0;
    for (int s = 0; s < K; s++) {
        double x = decode(t->a, a[at(i, s, M, K, t->transpose_a)]);
        double y = decode(t->b, other[at(s, j, K, N, t->transpose_b)]);
        if (t->scales == 1) {
            x *= (double)a_scale[0];
            y *= (double)scale[0];
        } else if (t->scales == 2) {
            x *= (double)a_scale[at(i, s / 128, M, OF_K, t->transpose_a)];
            y *= (double)scale[at(s / 128, j / 128, OF_K, OF_N, t->transpose_b)];
        }
        sum += x * y;
        *magnitude += fabs(x * y);
    }
    return sum;
}

static double expected[M * N], bounds[M * N];

static void expect(const struct fp8_case *t) {
    const double u = 0x1p-24, allowed = (8 + 4 * sqrt(K)) * u;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double magnitude, of_up = 0;
            double sum = product(t, false, i, j, &magnitude) + (double)bias[j];
            double bound = allowed * magnitude + 4 * u * fabs(sum);
            if (t->is_gated) {
                double up = product(t, true, i, j, &of_up), up_bound = allowed * of_up;
                bound = bound * (fabs(up) + up_bound) + fabs(sum) * up_bound;
                sum *= up;
                bound += 4 * u * fabs(sum);
            }
            expected[i * N + j] = sum;
            bounds[i * N + j] = bound;
        }
}

static void check(const struct fp8_case *t, const char *variant) {
    for (int i = 0; i < M * N; i++)
        if (!(fabs((double)c[i] - expected[i]) <= bounds[i]))
            fail_msg("%s, %s x %s, transposed %d %d, scales %d: c(%d, %d) is %.9g, expected %.9g "
                     "within %.2g",
                     variant, tsr_dtype_name(t->a), tsr_dtype_name(t->b), t->transpose_a,
                     t->transpose_b, t->scales, i / N, i % N, (double)c[i], expected[i], bounds[i]);
}

static bool serves_fp8(const char *variant) {
    return strcmp(variant, "packed") == 0 || strcmp(variant, "blocked") == 0 ||
           strcmp(variant, "local") == 0 || strcmp(variant, "naive") == 0;
}

static void values(void **state) {
    static const tsr_dtype formats[] = {TSR_E4M3, TSR_E5M2};
    (void)state;
    for (int which = 0; which < 24; which++) {
        const struct fp8_case t = {formats[which & 1], formats[which >> 1 & 1],
                                   which >> 2 & 1,     which >> 3 & 1,
                                   which % 3,          which % 5 == 0};
        fill(t.a, a, M * K);
        fill(t.b, b, N * K);
        fill(t.b, b_up, N * K);
        fill_scales(a_scale, M * OF_K);
        fill_scales(b_scale, OF_N * OF_K);
        fill_scales(up_scale, OF_N * OF_K);
        for (int j = 0; j < N; j++) bias[j] = (float)(j % 7) - 3;
        tsr_matmul_forward_args args = args_of(&t);
        expect(&t);
        int served = 0;
        for (int v = 0; v < tsr_variant_count("matmul_forward"); v++) {
            tsr_variant_info info;
            assert_ok(tsr_variant_info_get("matmul_forward", v, &info));
            args.variant = info.name;
            tsr_context *ctx = contexts[(which + v) % TSR_ISA_COUNT];
            memset(c, 0xff, sizeof c);
            tsr_status status = tsr_matmul_forward(ctx, &args);
            if (status == TSR_UNSUPPORTED && !serves_fp8(info.name)) continue;
            assert_ok(status);
            check(&t, info.name);
            served++;
        }
        assert_int_equal(served, 5); // including the reference
        args.variant = NULL;
        assert_ok(tsr_matmul_forward(contexts[which % TSR_ISA_COUNT], &args));
        check(&t, "(default)");
    }
}

// NaN and infinity fill their rows and column; all other results are finite.
static void nan_and_infinity(void **state) {
    (void)state;
    for (int is_e5m2 = 0; is_e5m2 < 2; is_e5m2++)
        for (int v = 0; v < 4; v++) {
            static const char *const variants[] = {"packed", "blocked", "local", "naive"};
            const struct fp8_case t = {is_e5m2 ? TSR_E5M2 : TSR_E4M3, TSR_E4M3, 0, 1, 0, false};
            memset(a, is_e5m2 ? 0x3c : 0x38, sizeof a); // 1
            memset(b, 0x38, sizeof b);
            a[3 * K + 7] = 0x7f; // NaN in both formats
            a[4 * K + 9] = 0xff; // -NaN
            if (is_e5m2) a[5 * K + 200] = 0x7c;
            b[11 * K + 269] = 0xff;
            tsr_matmul_forward_args args = args_of(&t);
            args.bias = (tsr_tensor){0};
            args.variant = variants[v];
            assert_ok(tsr_matmul_forward(contexts[TSR_ISA_SCALAR], &args));
            for (int i = 0; i < M; i++)
                for (int j = 0; j < N; j++) {
                    float got = c[i * N + j];
                    if (i == 3 || i == 4 || j == 11)
                        assert_true(isnan(got));
                    else if (i == 5 && is_e5m2)
                        assert_true(isinf(got) && got > 0);
                    else
                        assert_true(got == (float)K);
                }
        }
}

// The largest e4m3 (448) and the smallest of each format (2^-9, 2^-16) are exact.
static void extremes(void **state) {
    (void)state;
    const struct fp8_case t = {TSR_E4M3, TSR_E5M2, 0, 0, 0, false};
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    a[0] = 0x7e;
    a[K + 1] = 0x01;
    b[0] = 0x7b; // 57344
    b[N + 1] = 0x01;
    tsr_matmul_forward_args args = args_of(&t);
    args.bias = (tsr_tensor){0};
    assert_ok(tsr_matmul_forward(contexts[TSR_ISA_SCALAR], &args));
    assert_true(c[0] == 448.0f * 57344.0f);
    assert_true(c[N + 1] == 0x1p-25f);
    assert_true(c[1] == 0.0f);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refused(const tsr_matmul_forward_args *args, const char *sentence) {
    assert_int_equal(tsr_matmul_forward(contexts[TSR_ISA_SCALAR], args), TSR_INVALID_ARGUMENT);
    assert_string_equal(tsr_last_error(), sentence);
}

static void refusals(void **state) {
    const struct fp8_case plain = {TSR_E4M3, TSR_E4M3, 0, 0, 1, false},
                          blocks = {TSR_E4M3, TSR_E4M3, 0, 0, 2, false};
    static uint16_t narrow[M * N];
    (void)state;
    tsr_matmul_forward_args args = args_of(&plain);
    args.b.dtype = TSR_I32;
    refused(&args, "matmul_forward: b.dtype is i32, expected e4m3 as a");
    args = args_of(&plain);
    args.c = TSR_TENSOR(c, TSR_E4M3, M, N);
    refused(&args, "matmul_forward: c.dtype is e4m3 beside a of fp8, expected f32, bf16 or f16");
    args = args_of(&plain);
    args.c = TSR_TENSOR(narrow, TSR_BF16, M, N);
    args.residual = TSR_TENSOR(c, TSR_F16, M, N);
    refused(&args, "matmul_forward: residual.dtype is f16, expected bf16 as c, or f32");
    args = args_of(&plain);
    args.accumulate = 1;
    args.c = TSR_TENSOR(narrow, TSR_BF16, M, N);
    refused(&args, "matmul_forward: c.dtype is bf16 under accumulate, expected f32");
    args = args_of(&plain);
    args.a = TSR_TENSOR(a, TSR_BF16, 2, 8);
    args.b = TSR_TENSOR(b, TSR_BF16, 8, 2);
    args.c = TSR_TENSOR(c, TSR_F32, 2, 2);
    args.bias = (tsr_tensor){0};
    refused(&args, "matmul_forward: a_scale is given, expected none for a of dtype bf16");
    args = args_of(&plain);
    args.b_up_scale = TSR_TENSOR(up_scale, TSR_F32, 1);
    refused(&args, "matmul_forward: b_up_scale is given, expected none for b_up of dtype none");
    args = args_of(&plain);
    args.a_scale.dtype = TSR_BF16;
    refused(&args, "matmul_forward: a_scale.dtype is bf16, expected f32");
    args = args_of(&plain);
    args.b_scale = TSR_TENSOR(b_scale, TSR_F32, 2);
    refused(&args, "matmul_forward: b_scale has shape (2,), expected one element");
    args = args_of(&blocks);
    args.a_scale = TSR_TENSOR(a_scale, TSR_F32, OF_K, M);
    refused(&args, "matmul_forward: a_scale has shape (3, 19), expected (19, 3)");
    args = args_of(&blocks);
    args.b_scale = (tsr_tensor){0};
    refused(&args, "matmul_forward: b_scale is absent beside scales of blocks, expected scales of "
                   "blocks too");
    args.b_scale = TSR_TENSOR(b_scale, TSR_F32, 1);
    refused(&args, "matmul_forward: b_scale is one for the tensor beside scales of blocks, "
                   "expected scales of blocks too");
    args = args_of(&plain);
    args.a_scale.data = c + 5;
    refused(&args, "matmul_forward: c overlaps a_scale in memory, expected none of its bytes");
    args.a_scale.data = a_scale;
    assert_ok(tsr_matmul_forward(contexts[TSR_ISA_SCALAR], &args));
    // Programs that were built before scales existed pass this size.
    args.size = offsetof(tsr_matmul_forward_args, a_scale);
    assert_ok(tsr_matmul_forward(contexts[TSR_ISA_SCALAR], &args));
}

// Backward refuses fp8 operands.
static void no_backward(void **state) {
    (void)state;
    tsr_matmul_backward_args args =
        TSR_MATMUL_BACKWARD_ARGS(.a = TSR_TENSOR(a, TSR_E4M3, M, K),
                                 .b = TSR_TENSOR(b, TSR_E4M3, K, N),
                                 .dc = TSR_TENSOR(c, TSR_E4M3, M, N),
                                 .da = TSR_TENSOR(b_up, TSR_E4M3, M, K));
    assert_int_equal(tsr_matmul_backward(contexts[TSR_ISA_SCALAR], &args), TSR_INVALID_ARGUMENT);
    assert_string_equal(tsr_last_error(),
                        "matmul_backward: a.dtype is e4m3, expected f32, bf16, f16 or f64");
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
        cmocka_unit_test(values),   cmocka_unit_test(nan_and_infinity), cmocka_unit_test(extremes),
        cmocka_unit_test(refusals), cmocka_unit_test(no_backward),
    };
    return cmocka_run_group_tests_name("matmul fp8", tests, NULL, NULL);
}
