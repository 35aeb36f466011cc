// SPDX-License-Identifier: Apache-2.0
// fp8 matmul on Hopper without a GPU: which problems its kernel serves, what it copies, and how it is cut.
#include "context/op_table.h"
#include "matmul_cuda_case.h"
#include "test_support.h"

static struct matmul_problem problem(int64_t m, int64_t n, int64_t k) {
    return product_of(TSR_E4M3, TSR_E5M2, TSR_BF16, m, n, k);
}

#define SERVES(expected, copied_bytes, ...)                                                        \
    do {                                                                                           \
        struct matmul_problem p = problem(1000, 1008, 1024);                                       \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(matmul_cuda_fp8_serves(&p, &limits), expected);                           \
        if (!(expected)) break;                                                                    \
        struct tsri_plan plan = {0};                                                               \
        matmul_cuda_plan_fp8(&p, &limits, &plan);                                                  \
        assert_int_equal(plan.workspace_bytes, copied_bytes);                                      \
        assert_string_equal(matmul_cuda_prefer(&p, &limits), "cuda-fp8");                          \
    } while (0)

static void what_it_serves(void **state) {
    enum { A_BYTES = 1000 * 1024, B_BYTES = 1008 * 1024 };
    (void)state;
    SERVES(true, 0, (void)0);
    SERVES(false, 0, limits.cuda_arch = 80);
    SERVES(false, 0, limits.cuda_arch = 100);
    SERVES(false, 0, limits.shared_bytes_per_block = 166912);
    SERVES(false, 0, p.a.dtype = p.b.dtype = TSR_BF16);
    SERVES(false, 0, p.k = 0);
    SERVES(false, 0, p.m = 0);
    SERVES(true, 0, p.m = 999, p.n = 777, p.k = 993);   // ends within a line
    SERVES(true, A_BYTES, p.a.row = 1, p.a.col = 1000); // contiguous in m: copied
    SERVES(true, B_BYTES, p.b.row = 1008, p.b.col = 1); // contiguous in n
    SERVES(true, A_BYTES + B_BYTES, p.a.row = 1025, p.b.data = (char *)memory + 1); // misaligned
    SERVES(true, 2 * B_BYTES, p.b.row = 1008, p.b.col = 1, p.b_up = p.b);
    SERVES(true, A_BYTES, p.a.row = 0);   // one row for all: copied, so that its bits stay the same
    SERVES(true, A_BYTES, p.a.row = 512); // overlapping rows too
    SERVES(false, 0, p.a.row = INT64_C(1) << 40); // too far apart
    SERVES(true, 0, p.c.row = 1009);              // any layout of c
    SERVES(true, 3 * A_BYTES, p.num_batches = 3, p.batch[2] = 3, p.a.batch[2] = 1000 * 1024 + 8);
}

// Other GPUs use multiply-adds, without splits of k.
static void fallback(void **state) {
    struct tsri_limits ampere = hopper;
    struct matmul_problem p = problem(16, 64, 100000);
    struct tsri_plan plan = {0};
    (void)state;
    ampere.cuda_arch = 80;
    assert_string_equal(matmul_cuda_prefer(&p, &ampere), "cuda-fma");
    assert_false(matmul_cuda_mma_serves(&p, &ampere));
    matmul_cuda_plan_fma(&p, &ampere, &plan);
    assert_int_equal(plan.grain, 1);
    assert_int_equal(plan.block_k, MATMUL_FMA_FP8_TILE);
}

static struct matmul_cuda_layout layout_of(const struct matmul_problem *p, struct tsri_plan *plan) {
    matmul_cuda_plan_fp8(p, &hopper, plan);
    return matmul_cuda_layout(p, MATMUL_FP8, (int)plan->block_k, 1);
}

// Tiles of few rows serve few rows; they have neither scales of blocks nor other formats than e4m3, nor a rich end.
static void tiles(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct matmul_problem p = problem(i == 0 ? 8192 : 100, 8192, 8192);
        struct tsri_plan plan = {0};
        p.may_sum_fast = i % 2 == 1;
        p.b.dtype = TSR_E4M3;
        if (i == 2) p.is_block_scaled = true;
        if (i == 3) p.b.dtype = TSR_E5M2;
        if (i == 4) p.c.dtype = TSR_F32;
        const struct matmul_cuda_layout l = layout_of(&p, &plan);
        const bool is_few = i == 1 || i == 5;
        assert_true(l.shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
        assert_int_equal(plan.num_tasks % (l.tile->cluster > 1 ? l.tile->cluster : 1), 0);
        assert_in_range(plan.num_tasks, 32, 132);
        if (i > 0) assert_int_equal(l.tile->is_swapped, is_few);
        if (is_few) assert_true(plan.block_m <= 104);
    }
}

// Kernels compile with the 16-bit dtype of the other tensors.
static void dtype_beside(void **state) {
    struct matmul_problem p = problem(8, 8, 8);
    (void)state;
    assert_int_equal(matmul_cuda_dtype(&p), TSR_BF16);
    p.c.dtype = TSR_F32;
    assert_int_equal(matmul_cuda_dtype(&p), TSR_BF16);
    p.residual.dtype = TSR_F16;
    assert_int_equal(matmul_cuda_dtype(&p), TSR_F16);
    p.a.dtype = TSR_F32;
    assert_int_equal(matmul_cuda_dtype(&p), TSR_F32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_it_serves), cmocka_unit_test(fallback),
                                       cmocka_unit_test(tiles), cmocka_unit_test(dtype_beside)};
    return cmocka_run_group_tests_name("matmul fp8 plan", tests, NULL, NULL);
}
