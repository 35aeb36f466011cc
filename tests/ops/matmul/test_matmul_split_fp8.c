// SPDX-License-Identifier: Apache-2.0
// e4m3 in cuda-split, without a GPU: what it serves, that two elements of k count as one of 16 bits, its plans and their kernels,
// who is preferred, and what it passes to a fake driver.
#include "kernel_pack_case.h"
#include "matmul_cuda_case.h"
#include "ops/matmul/cuda/split/matmul_split_layout.h"
#include "test_support.h"

static struct matmul_problem problem(int64_t m, int64_t n, int64_t k) {
    return product_of(TSR_E4M3, TSR_E4M3, TSR_BF16, m, n, k);
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct matmul_problem p = problem(100, 1008, 1024);                                        \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(matmul_cuda_split_serves(&p, &limits), expected);                         \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(false, limits.cuda_arch = 100);
    SERVES(false, p.b.dtype = TSR_E5M2);
    SERVES(false, p.a.dtype = TSR_E5M2);
    SERVES(false, p.is_block_scaled = true);
    SERVES(true, p.may_sum_fast = true);
    SERVES(true, p.c.dtype = TSR_F32);
    SERVES(true, p.c.dtype = TSR_F16);
    SERVES(true, p.m = 99, p.n = 777, p.k = 994); // ends within a line
    SERVES(false, p.k = 993);                     // and within a pair
    SERVES(false, p.k = 0);
    SERVES(false, p.a.row = 1032);         // misaligned lines
    SERVES(false, p.a.row = 1025);         // of an odd number of elements
    SERVES(true, p.m = 1, p.a.row = 1025); // one line
    SERVES(false, p.a.data = (char *)memory + 1);
    SERVES(false, p.a.row = 1, p.a.col = 1000); // contiguous in m
    SERVES(false, p.b.row = 1008, p.b.col = 1); // contiguous in n
    SERVES(false, p.a.row = 512);               // overlapping rows
    SERVES(true, p.b_up = p.b);
    SERVES(false, p.b_up = p.b, p.b_up.row = 1008, p.b_up.col = 1);
    SERVES(true, p.num_batches = 3, p.batch[2] = 3, p.a.batch[2] = 100 * 1024);
    SERVES(false, p.num_batches = 3, p.batch[2] = 3, p.a.batch[2] = 100 * 1024 + 8);
    SERVES(true, limits.flags = TSR_BATCH_INVARIANT);
}

static void pairs(void **state) {
    (void)state;
    struct matmul_problem p = problem(100, 1008, 1024);
    p.a.batch[2] = 100 * 1024;
    p.residual = p.c;
    p.residual.dtype = TSR_F16;
    p.c.dtype = TSR_F32;
    const struct matmul_problem of_16 = matmul_split_problem(&p);
    assert_int_equal(of_16.a.dtype, TSR_F16);
    assert_int_equal(of_16.b.dtype, TSR_F16);
    assert_int_equal(of_16.c.dtype, TSR_F32);
    assert_true(of_16.m == 100 && of_16.n == 1008 && of_16.k == 512);
    assert_true(of_16.a.row == 512 && of_16.a.col == 1 && of_16.a.batch[2] == 100 * 512);
    assert_true(of_16.b.row == 1 && of_16.b.col == 512);
    p.a.dtype = p.b.dtype = TSR_BF16;
    assert_int_equal(matmul_split_problem(&p).k, 1024);
}

// ---- Plans --------------------------------------------------------------------------------------

static int define_of(const struct tsri_cuda_program *program, const char *name) {
    for (int i = 0; i < program->num_defines; i++)
        if (strcmp(program->defines[i].name, name) == 0) return program->defines[i].value;
    return -1;
}

// The kernel of a plan, as kernel packs list it.
static struct tsri_cuda_program kernel_of(const struct tsri_plan *plan, bool is_fast) {
    struct tsri_cuda_program program;
    for (int i = 0; matmul_cuda_split_kernel((int[]){i}, TSR_BF16, &program); i++)
        if (define_of(&program, "FP8") == 1 && define_of(&program, "IS_FAST") == is_fast &&
            define_of(&program, "ROWS") == plan->block_m &&
            define_of(&program, "SLABS") == plan->block_k / 64 &&
            define_of(&program, "SHARES") == (plan->grain >= MATMUL_SPLIT_BELOW))
            return program;
    fail_msg("no kernel of %d rows", (int)plan->block_m);
    return program;
}

// Every product has a plan, and those that prefer this variant need no rare kernel.
static void plans(void **state) {
    (void)state;
    for (int64_t m = 1; m <= 2000; m = m * 3 / 2 + 1)
        for (int64_t n = 8; n <= 70000; n = n * 3 + 8)
            for (int64_t k = 16; k <= 65536; k = k * 5 + 16)
                for (int way = 0; way < 4; way++) {
                    struct matmul_problem p = problem(m, n, k);
                    struct tsri_limits limits = hopper;
                    struct tsri_plan plan = {0};
                    p.may_sum_fast = way % 2 != 0;
                    if (way / 2 != 0) p.b_up = p.b;
                    assert_true(matmul_cuda_split_serves(&p, &limits));
                    matmul_cuda_plan_split(&p, &limits, &plan);
                    const int64_t splits = plan.grain < MATMUL_SPLIT_BELOW ? plan.grain : 1;
                    assert_true(splits >= 1 && splits <= 8 && (splits == 1 || splits <= k / 256));
                    const int64_t tile = plan.block_n / (way / 2 != 0 ? 2 : 1);
                    assert_true(tile > 0 && plan.num_tasks / splits * tile >=
                                                n * ((m + plan.block_m - 1) / plan.block_m));
                    const struct tsri_cuda_program kernel = kernel_of(&plan, p.may_sum_fast);
                    if (strcmp(matmul_cuda_prefer(&p, &limits), "cuda-split") == 0)
                        assert_false(kernel.is_rare);
                    limits.flags = TSR_BATCH_INVARIANT;
                    matmul_cuda_plan_split(&p, &limits, &plan);
                    assert_true(plan.grain == 1 || plan.grain >= MATMUL_SPLIT_BELOW);
                    assert_string_equal(matmul_cuda_prefer(&p, &limits), "cuda-fp8");
                }
}

static void who_is_preferred(void **state) {
    static const struct {
        int64_t m, n, k;
        bool is_split;
    } cases[] = {
        {1, 4096, 4096, true},     {16, 4096, 4096, true},    {64, 1024, 8192, true},
        {80, 6144, 4096, true},    {100, 4608, 3584, true},   {128, 3584, 18944, true},
        {144, 57344, 8192, true},  {192, 1024, 8192, true},   {512, 1024, 8192, true},
        {512, 512, 512, true},     {600, 4608, 3584, false},  {2048, 4608, 3584, false},
        {8192, 8192, 8192, false}, {4096, 1024, 8192, false},
    };
    (void)state;
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i / 2].m, cases[i / 2].n, cases[i / 2].k);
        p.may_sum_fast = i % 2 != 0;
        const bool is_split = strcmp(matmul_cuda_prefer(&p, &hopper), "cuda-split") == 0;
        if (is_split != cases[i / 2].is_split)
            fail_msg("%lld x %lld x %lld", (long long)p.m, (long long)p.n, (long long)p.k);
        p.is_block_scaled = true;
        assert_string_equal(matmul_cuda_prefer(&p, &hopper), "cuda-fp8");
    }
}

// ---- What the driver gets -------------------------------------------------------------------------

enum { M = 40, N = 96, K = 512 };
static _Alignas(16) uint8_t a[M * K], b[N * K];
static _Alignas(16) uint16_t c[M * N];

static void maps_of_operands(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    for (int is_fast = 0; is_fast < 2; is_fast++) {
        count_anew(ctx);
        const tsr_matmul_forward_args args =
            TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-split",
                                    .a = on_cuda(TSR_TENSOR(a, TSR_E4M3, M, K)),
                                    .b = on_cuda(TSR_TENSOR(b, TSR_E4M3, N, K)),
                                    .c = on_cuda(TSR_TENSOR(c, TSR_BF16, M, N)), .transpose_b = 1,
                                    .fast_accumulate = is_fast);
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_int_equal(fake.num_launches, 1);
        assert_int_equal(fake.num_maps, 2 + (M % (int)fake.maps[0].box[1] != 0));
        for (int i = 0; i < 2; i++) {
            const uint64_t size[] = {K / 2, i == 0 ? M : N, 1, 1, 1};
            assert_ptr_equal(fake.maps[i].data, i == 0 ? a : b);
            assert_memory_equal(fake.maps[i].size, size, sizeof size);
            assert_int_equal(fake.maps[i].stride[0], K); // bytes
            assert_int_equal(fake.maps[i].box[0], 64);
        }
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_serves),
        cmocka_unit_test(pairs),
        cmocka_unit_test(plans),
        cmocka_unit_test(who_is_preferred),
        cmocka_unit_test(maps_of_operands),
    };
    return cmocka_run_group_tests_name("matmul split fp8", tests, setup_pack, teardown_pack);
}
