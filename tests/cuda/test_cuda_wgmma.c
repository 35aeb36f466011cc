// SPDX-License-Identifier: Apache-2.0
// What kernels for Hopper assume, on a real GPU: the copy engine's boxes and barriers, its permuted tiles, wgmma on
// lines along k and along m and n, with 16 to 256 columns, and the copies of its results. Small integers, so that every
// sum is exact, and no equal rows or columns.
#include "core/core_dtype.h"
#include "cuda/device/wgmma_layouts_params.h"
#include "cuda_layouts_case.h"

// Operands have up to LINES lines of LINE elements. The output has OUT_ROWS x OUT_COLS, less than is stored.
enum {
    ROWS = 64,
    MOST_COLS = 256,
    DEPTH = 64,
    LINES = 256,
    LINE = 256,
    OUT_ROWS = 57,
    OUT_COLS = 104, // whole 16-byte pieces: a store fills its last one
    OUT_LINE = 136,
    TILE = 64 * 128
};

struct buffers {
    uint16_t a[LINES * LINE], b[LINES * LINE], out[ROWS * OUT_LINE];
    float fragments[ROWS * MOST_COLS];
};

static struct buffers host;
static tsr_context *ctx;
static struct buffers *device;

// m, n, k: the sizes in the map, beyond which there are zeros.
struct layout_case {
    tsr_dtype dtype;
    int cols, a_is_mn, b_is_mn, step, first_k, m, n, k;
};

static int value(int which, int line, int at) { return (line * 5 + at * 3 + which * 7) % 17 - 8; }

static int seen(const struct layout_case *t, int which, int mn, int k) {
    bool is_mn = which == 0 ? t->a_is_mn : t->b_is_mn;
    if (mn >= (which == 0 ? t->m : t->n) || k >= t->k) return 0;
    return is_mn ? value(which, k, mn) : value(which, mn, k);
}

static int product(const struct layout_case *t, int i, int j) {
    int sum = 0, first = t->step < 0 ? 0 : t->step * 16, count = t->step < 0 ? DEPTH : 16;
    for (int k = t->first_k + first; k < t->first_k + first + count; k++)
        sum += seen(t, 0, i, k) * seen(t, 1, j, k);
    return sum;
}

static uint16_t store(tsr_dtype dtype, int x) {
    return dtype == TSR_BF16 ? tsri_bf16_of_float((float)x) : tsri_f16_of_float((float)x);
}

static void check(const struct layout_case *t) {
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < t->cols; j++)
            if (host.fragments[i * t->cols + j] != (float)product(t, i, j))
                fail_msg("%s, %d columns, a %s, b %s, step %d: c(%d, %d) is %g, expected %d",
                         tsr_dtype_name(t->dtype), t->cols, t->a_is_mn ? "along m" : "along k",
                         t->b_is_mn ? "along n" : "along k", t->step, i, j,
                         (double)host.fragments[i * t->cols + j], product(t, i, j));
    for (int i = 0; i < ROWS && t->cols >= 128; i++) // with fewer columns none are stored
        for (int j = 0; j < OUT_LINE; j++) {
            bool is_inside = i < OUT_ROWS && j >= 64 && j < OUT_COLS;
            uint16_t expected = is_inside ? store(t->dtype, product(t, i, j - 64)) : 0xffff;
            if (host.out[i * OUT_LINE + j] != expected)
                fail_msg("%s, a %s, b %s: out(%d, %d) is %04x, expected %04x",
                         tsr_dtype_name(t->dtype), t->a_is_mn ? "along m" : "along k",
                         t->b_is_mn ? "along n" : "along k", i, j, host.out[i * OUT_LINE + j],
                         expected);
        }
}

static struct tensor_map map_of(void *data, tsr_dtype dtype, int64_t width, int64_t lines,
                                int64_t line, int box_lines) {
    const struct tsri_tensor_map_args args = {.data = data,
                                              .dtype = dtype,
                                              .size = {width, lines, 1, 1, 1},
                                              .stride = {1, line, line, line, line},
                                              .box = {64, box_lines, 1, 1, 1},
                                              .is_swizzled = true};
    return cuda_layouts_map(ctx, &args);
}

static void run(const struct layout_case t) {
    const struct tsri_cuda_program program = {.source = "cuda/device/wgmma_layouts.cu",
                                              .entry = "wgmma_layouts",
                                              .num_defines = 4,
                                              .defines = {{"DTYPE", (int)t.dtype},
                                                          {"COLS", t.cols},
                                                          {"A_IS_MN", t.a_is_mn},
                                                          {"B_IS_MN", t.b_is_mn}}};
    struct wgmma_layouts_params p = {
        .a = t.a_is_mn ? map_of(device->a, t.dtype, t.m, t.k, LINE, 64)
                       : map_of(device->a, t.dtype, t.k, t.m, LINE, 64),
        .b = t.b_is_mn ? map_of(device->b, t.dtype, t.n, t.k, LINE, 64)
                       : map_of(device->b, t.dtype, t.k, t.n, LINE, 64),
        .out = map_of(device->out, t.dtype, OUT_COLS, OUT_ROWS, OUT_LINE, 16),
        .fragments = device->fragments,
        .first_k = t.first_k,
        .step = t.step,
    };
    const struct tsri_cuda_launch launch = {.num_blocks = 1,
                                            .num_threads = 128,
                                            .shared_bytes = (1 + (t.cols + 63) / 64) * TILE + 128,
                                            .params = &p};
    for (int i = 0; i < LINES * LINE; i++) {
        host.a[i] = store(t.dtype, value(0, i / LINE, i % LINE));
        host.b[i] = store(t.dtype, value(1, i / LINE, i % LINE));
    }
    memset(host.fragments, 0xff, sizeof host.fragments);
    memset(host.out, 0xff, sizeof host.out);
    cuda_layouts_run(ctx, &program, &launch, device, &host, sizeof host);
    check(&t);
}

static void operands_in_either_direction(void **state) {
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16};
    (void)state;
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int layouts = 0; layouts < 8; layouts++)
            for (int step = -1; step < 4; step++)
                run((struct layout_case){dtypes[d], layouts & 4 ? 256 : 128, layouts & 1,
                                         layouts >> 1 & 1, step, 0, 256, 256, 256});
}

static void boxes_fill_up_with_zeros(void **state) {
    static const int sizes[][3] = {{64, 256, 64}, {63, 255, 63}, {1, 1, 1},     {33, 70, 20},
                                   {8, 136, 8},   {64, 64, 100}, {50, 200, 65}, {64, 193, 127}};
    (void)state;
    for (int layouts = 0; layouts < 4; layouts++)
        for (int i = 0; i < COUNT(sizes); i++)
            for (int first_k = 0; first_k < 128; first_k += 64)
                run((struct layout_case){TSR_BF16, 256, layouts & 1, layouts >> 1 & 1, -1, first_k,
                                         sizes[i][0], sizes[i][1], sizes[i][2]});
}

static void few_columns(void **state) {
    (void)state;
    for (int cols = 16; cols <= 64; cols *= 2)
        for (int i = 0; i < 4; i++)
            for (int step = -1; step < 4; step++)
                run((struct layout_case){i & 1 ? TSR_BF16 : TSR_F16, cols, i >> 1, 0, step, 64, 50,
                                         cols - 3, 120});
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(CUDA_CASE_HOPPER, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_in_either_direction),
        cmocka_unit_test(boxes_fill_up_with_zeros),
        cmocka_unit_test(few_columns),
    };
    int failed = cmocka_run_group_tests_name("cuda wgmma", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
