// SPDX-License-Identifier: Apache-2.0
// fp8 products on a real GPU with Hopper's fp8 instructions: small integers and power-of-two scales, so that every sum
// is exact, for all pairs of formats, layouts and kinds of scales, also with partial tiles.
#include "cuda_case.h"

enum { MOST_M = 300, MOST_N = 520, MOST_K = 400, BLOCKS = (MOST_K + 127) / 128, OF_N = 5 };

struct buffers {
    uint8_t a[MOST_M * MOST_K], b[MOST_N * MOST_K], b_up[MOST_N * MOST_K];
    float a_scale[MOST_M * BLOCKS], b_scale[OF_N * BLOCKS], up_scale[OF_N * BLOCKS];
    float c[MOST_M * MOST_N];
};

static struct buffers host, *device;
static tsr_context *ctx;

struct fp8_case {
    int m, n, k, transpose_a, transpose_b, scales, is_gated, is_fast;
    tsr_dtype a, b;
};

// An integer from -4 to 4.
static int value(int which, int line, int at) {
    return (line * 5 + at * 3 + which * 7 + line / 9) % 9 - 4;
}
static double power(int which, int i, int j) {
    return (double)(1 << (i * 3 + j * 2 + which) % 4) / 4;
}

static tsr_tensor on_device(void *at, tsr_dtype dtype, int rows, int cols, int is_transposed) {
    tsr_tensor t =
        is_transposed ? TSR_TENSOR(at, dtype, cols, rows) : TSR_TENSOR(at, dtype, rows, cols);
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

static void fill(uint8_t *to, tsr_dtype dtype, int which, int lines, int width, int is_across) {
    for (int i = 0; i < lines; i++)
        for (int j = 0; j < width; j++)
            tsr_store(dtype, to, is_across ? (int64_t)j * lines + i : (int64_t)i * width + j,
                      value(which, i, j));
}

static void fill_scales(float *to, int which, int rows, int cols, int is_transposed) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            to[is_transposed ? j * rows + i : i * cols + j] = (float)power(which, i, j);
}

static double product(const struct fp8_case *t, int which, int i, int j) {
    double sum = 0;
    for (int s = 0; s < t->k; s++) {
        double scale = t->scales == 0   ? 1
                       : t->scales == 1 ? power(0, 0, 0) * power(which, 0, 0)
                                        : power(0, i, s / 128) * power(which, s / 128, j / 128);
        sum += scale * value(0, i, s) * value(which, j, s);
    }
    return sum;
}

static void run(const struct fp8_case t, const char *variant) {
    int blocks = (t.k + 127) / 128, of_n = (t.n + 127) / 128;
    // Lines in value() are the rows of a and the columns of b.
    fill(host.a, t.a, 0, t.m, t.k, t.transpose_a);
    fill(host.b, t.b, 1, t.n, t.k, !t.transpose_b);
    fill(host.b_up, t.b, 2, t.n, t.k, !t.transpose_b);
    fill_scales(host.a_scale, 0, t.m, blocks, t.transpose_a);
    fill_scales(host.b_scale, 1, blocks, of_n, t.transpose_b);
    fill_scales(host.up_scale, 2, blocks, of_n, t.transpose_b);
    memset(host.c, 0xff, sizeof host.c);
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.variant = variant,
                                .a = on_device(device->a, t.a, t.m, t.k, t.transpose_a),
                                .b = on_device(device->b, t.b, t.k, t.n, t.transpose_b),
                                .c = on_device(device->c, TSR_F32, t.m, t.n, 0),
                                .transpose_a = t.transpose_a, .transpose_b = t.transpose_b,
                                .fast_accumulate = t.is_fast);
    if (t.is_gated) args.b_up = on_device(device->b_up, t.b, t.k, t.n, t.transpose_b);
    if (t.scales == 1) {
        args.a_scale = on_device(device->a_scale, TSR_F32, 1, 1, 0);
        args.b_scale = on_device(device->b_scale, TSR_F32, 1, 1, 0);
        args.b_up_scale = on_device(device->up_scale, TSR_F32, 1, 1, 0);
        args.a_scale.ndim = args.b_scale.ndim = args.b_up_scale.ndim = 1;
    } else if (t.scales == 2) {
        args.a_scale = on_device(device->a_scale, TSR_F32, t.m, blocks, t.transpose_a);
        args.b_scale = on_device(device->b_scale, TSR_F32, blocks, of_n, t.transpose_b);
        args.b_up_scale = on_device(device->up_scale, TSR_F32, blocks, of_n, t.transpose_b);
    }
    if (!t.is_gated) args.b_up_scale = (tsr_tensor){0};
    assert_ok(tsr_matmul_forward(ctx, &args));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
    for (int i = 0; i < t.m; i++)
        for (int j = 0; j < t.n; j++) {
            double expected = product(&t, 1, i, j);
            if (t.is_gated) expected = (double)(float)(expected * product(&t, 2, i, j));
            if ((double)host.c[i * t.n + j] != expected)
                fail_msg("%s, %s x %s, %d %d %d, transposed %d %d, scales %d, gated %d, fast %d: "
                         "c(%d, %d) is %g, expected %g",
                         variant, tsr_dtype_name(t.a), tsr_dtype_name(t.b), t.m, t.n, t.k,
                         t.transpose_a, t.transpose_b, t.scales, t.is_gated, t.is_fast, i, j,
                         (double)host.c[i * t.n + j], expected);
        }
    for (int i = t.m * t.n; i < MOST_M * MOST_N; i++) assert_true(host.c[i] != host.c[i]);
}

static void sums_are_exact(void **state) {
    static const tsr_dtype formats[] = {TSR_E4M3, TSR_E5M2};
    static const int sizes[][3] = {{64, 128, 128}, {300, 520, 400}, {1, 1, 1},
                                   {129, 257, 33}, {128, 256, 384}, {7, 300, 270}};
    (void)state;
    int which = 0;
    const int num_sizes = (int)test_number("TESSERA_TEST_CASES", COUNT(sizes)); // to test
    for (int s = 0; s < num_sizes && s < COUNT(sizes); s++)
        for (int pair = 0; pair < 4; pair++)
            for (int kind = 0; kind < 4; kind++, which++) {
                struct fp8_case t = {sizes[s][0],       sizes[s][1],      sizes[s][2],
                                     which / 5 & 1,     !(which / 3 & 1), kind % 3,
                                     which % 7 == 0,    kind == 3,        formats[pair & 1],
                                     formats[pair >> 1]};
                run(t, "cuda-fp8");
                const bool is_along_k = !t.transpose_a && t.transpose_b;
                const bool is_e4m3 = t.a == TSR_E4M3 && t.b == TSR_E4M3;
                if (is_along_k && is_e4m3 && t.k % 16 == 0 && t.scales < 2) run(t, "cuda-split");
                if (which % 4 == 0) run(t, "cuda-fma");
            }
}

// Scales multiply elements. With k = 0, c is 0 even if a scale is NaN.
static void an_empty_sum_has_no_scale(void **state) {
    enum { M = 3, N = 5 };
    (void)state;
    memset(&host, 0xff, sizeof host); // as floats: NaN
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.a = on_device(device->a, TSR_E4M3, M, 0, 0),
                                .b = on_device(device->b, TSR_E4M3, 0, N, 0),
                                .a_scale = on_device(device->a_scale, TSR_F32, 1, 1, 0),
                                .b_scale = on_device(device->b_scale, TSR_F32, 1, 1, 0),
                                .c = on_device(device->c, TSR_F32, M, N, 0));
    args.a_scale.ndim = args.b_scale.ndim = 1;
    assert_ok(tsr_matmul_forward(ctx, &args));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
    for (int i = 0; i < M * N; i++) assert_same_number(host.c[i], 0);
    for (int i = M * N; i < MOST_M * MOST_N; i++) assert_true(host.c[i] != host.c[i]);
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(CUDA_CASE_HOPPER, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_empty_sum_has_no_scale),
                                       cmocka_unit_test(sums_are_exact)};
    int failed = cmocka_run_group_tests_name("cuda fp8", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
