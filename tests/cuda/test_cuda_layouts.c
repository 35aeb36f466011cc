// SPDX-License-Identifier: Apache-2.0
// What kernels on tensor cores assume, on a real GPU: copies that fill with zeros, permuted shared memory, ldmatrix
// with and without transposition, mma.sync m16n8k16 in bf16 and f16, and the positions of its results. Small integers,
// so that every sum is exact, and no equal rows or columns.
#include "core/core_dtype.h"
#include "cuda/device/mma_layouts_params.h"
#include "cuda_layouts_case.h"

enum { LINES = 16, LINE = 32, SIZE = 16, REGISTERS = 4, LANES = 32 };

struct buffers {
    uint16_t a[LINES * LINE], b[LINES * LINE];
    float c[SIZE * SIZE];
    uint32_t raw[LANES * REGISTERS];
};

static struct buffers host;
static tsr_context *ctx;
static struct buffers *device;

static int value(int which, int line, int at) { return (line * 5 + at * 3 + which * 7) % 17 - 8; }

// The product's view of a tile's element: 0 beyond the copied elements.
static int seen(const struct mma_layouts_params *p, int which, int mn, int k) {
    bool is_mn = which == 0 ? p->a_is_mn : p->b_is_mn;
    int line = is_mn ? k : mn, at = is_mn ? mn : p->step * 16 + k;
    return at < p->elements ? value(which, line, at) : 0;
}

static uint16_t store(tsr_dtype dtype, int x) {
    return dtype == TSR_BF16 ? tsri_bf16_of_float((float)x) : tsri_f16_of_float((float)x);
}

static void check_product(tsr_dtype dtype, const struct mma_layouts_params *p) {
    for (int i = 0; i < SIZE; i++)
        for (int j = 0; j < SIZE; j++) {
            int sum = 0;
            for (int k = 0; k < SIZE; k++) sum += seen(p, 0, i, k) * seen(p, 1, j, k);
            if (host.c[i * SIZE + j] != (float)sum)
                fail_msg("%s, a %s, b %s, step %d, %d elements: c(%d, %d) is %g, expected %d",
                         tsr_dtype_name(dtype), p->a_is_mn ? "along m" : "along k",
                         p->b_is_mn ? "along n" : "along k", p->step, p->elements, i, j,
                         (double)host.c[i * SIZE + j], sum);
        }
    for (int lane = 0; lane < LANES; lane++)
        for (int r = 0; r < REGISTERS; r++) {
            int m = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8;
            uint32_t expected =
                store(dtype, seen(p, 0, m, k)) | (uint32_t)store(dtype, seen(p, 0, m, k + 1)) << 16;
            if (host.raw[lane * REGISTERS + r] != expected)
                fail_msg("%s, a %s: register %d of lane %d is %08x, expected %08x",
                         tsr_dtype_name(dtype), p->a_is_mn ? "transposed" : "plain", r, lane,
                         host.raw[lane * REGISTERS + r], expected);
        }
}

static void run(tsr_dtype dtype, struct mma_layouts_params p) {
    const struct tsri_cuda_program program = {.source = "cuda/device/mma_layouts.cu",
                                              .entry = "mma_layouts",
                                              .num_defines = 1,
                                              .defines = {{"DTYPE", (int)dtype}}};
    const struct tsri_cuda_launch launch = {.num_blocks = 1, .num_threads = LANES, .params = &p};
    for (int i = 0; i < LINES * LINE; i++) {
        host.a[i] = store(dtype, value(0, i / LINE, i % LINE));
        host.b[i] = store(dtype, value(1, i / LINE, i % LINE));
    }
    memset(host.c, 0xff, sizeof host.c);
    p.a = device->a;
    p.b = device->b;
    p.c = device->c;
    p.raw = device->raw;
    cuda_layouts_run(ctx, &program, &launch, device, &host, sizeof host);
    check_product(dtype, &p);
}

static void fragments_are_where_kernels_expect_them(void **state) {
    static const tsr_dtype dtypes[] = {TSR_BF16, TSR_F16};
    (void)state;
    for (int d = 0; d < COUNT(dtypes); d++)
        for (int layouts = 0; layouts < 4; layouts++)
            for (int step = 0; step < 2; step++)
                run(dtypes[d], (struct mma_layouts_params){.a_is_mn = layouts & 1,
                                                           .b_is_mn = layouts >> 1,
                                                           .step = step,
                                                           .elements = LINE});
}

static void copies_fill_up_with_zeros(void **state) {
    (void)state;
    for (int layouts = 0; layouts < 4; layouts++)
        for (int elements = 0; elements <= LINE; elements++)
            run(TSR_BF16, (struct mma_layouts_params){.a_is_mn = layouts & 1,
                                                      .b_is_mn = layouts >> 1,
                                                      .step = elements % 2,
                                                      .elements = elements});
}

int main(void) {
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_are_where_kernels_expect_them),
        cmocka_unit_test(copies_fill_up_with_zeros),
    };
    int failed = cmocka_run_group_tests_name("cuda layouts", tests, NULL, NULL);
    cuda_case_close(ctx, memory);
    return failed;
}
