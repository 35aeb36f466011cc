// SPDX-License-Identifier: Apache-2.0
// fp32 matmul on Hopper's tensor cores without a GPU: which calls may use it, which planes are multiplied, its plans,
// and what it passes to a fake driver for operands in both layouts.
#include "kernel_pack_case.h"
#include "matmul_cuda_case.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"
#include "test_support.h"

static struct matmul_problem problem(int64_t m, int64_t n, int64_t k) {
    struct matmul_problem p = product_of(TSR_F32, TSR_F32, TSR_F32, m, n, k);
    p.math = TSR_MATMUL_MATH_TF32;
    return p;
}

// Each of the six products of planes a and b with a + b <= 2 occurs once, the largest last.
static void every_pair_once(void **state) {
    int seen[MATMUL_PLANES][MATMUL_PLANES] = {{0}}, before = 4;
    (void)state;
    for (int pair = 0; pair < MATMUL_PLANE_PAIRS; pair++) {
        int a = matmul_plane_of_a(pair), b = matmul_plane_of_b(pair);
        assert_true(a + b <= 2 && a + b <= before);
        assert_int_equal(seen[a][b]++, 0);
        before = a + b;
    }
    assert_int_equal(before, 0);
}

#define SERVES(tf32, bf16x6, ...)                                                                  \
    do {                                                                                           \
        struct matmul_problem p = problem(1000, 1000, 1000);                                       \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(matmul_cuda_tf32_serves(&p, &limits), tf32);                              \
        assert_int_equal(matmul_cuda_bf16x6_serves(&p, &limits), bf16x6);                          \
    } while (0)

static void who_may_have_it(void **state) {
    (void)state;
    SERVES(true, true, (void)0);
    SERVES(false, true, p.math = TSR_MATMUL_MATH_SPLIT);
    SERVES(false, false, p.math = TSR_MATMUL_MATH_DEFAULT);
    SERVES(false, false, limits.cuda_arch = 80);
    SERVES(false, false, limits.shared_bytes_per_block = 166912);
    SERVES(false, false, p.a.dtype = TSR_BF16);
    SERVES(false, false, p.groups.starts.data = (const int32_t *)(const void *)memory);
    SERVES(false, false, p.k = 0);
    SERVES(false, false, p.m = 0);
    SERVES(true, true, p.a.row = 1001, p.a.data += 4); // copied
    SERVES(true, true, p.a.row = 1, p.a.col = 1000, p.b.row = 1000, p.b.col = 1, p.b_up = p.b);
    SERVES(true, true, p.b.col = 0);                 // one column for all
    SERVES(false, true, p.a.row = INT64_C(1) << 38); // too far apart for a map; can be copied
    SERVES(true, true, p.num_batches = 3, p.batch[2] = 3, p.a.batch[2] = 1);
    struct matmul_problem p = problem(4096, 4096, 4096);
    assert_string_equal(matmul_cuda_prefer(&p, &hopper), "cuda-tf32");
    p.math = TSR_MATMUL_MATH_SPLIT;
    assert_string_equal(matmul_cuda_prefer(&p, &hopper), "cuda-bf16x6");
    p = problem(64, 64, 64); // with the flag, copy times must not matter
    p.a.row = p.b.col = 1;
    p.a.col = p.b.row = 64;
    assert_string_equal(matmul_cuda_prefer(&p, &hopper), "cuda-fma");
    struct tsri_limits invariant = hopper;
    invariant.flags = TSR_BATCH_INVARIANT;
    assert_string_equal(matmul_cuda_prefer(&p, &invariant), "cuda-tf32");
}

static void plans(void **state) {
    static const struct {
        int64_t m, n, k, parts;
        enum matmul_cuda_kind kind;
    } cases[] = {{4096, 4096, 4096, 1, MATMUL_TF32},   {4096, 4096, 8193, 2, MATMUL_TF32},
                 {4096, 4096, 2048, 1, MATMUL_BF16X6}, {4096, 4096, 4096, 2, MATMUL_BF16X6},
                 {104, 104, 104, 1, MATMUL_BF16X6},    {1, 1, 1, 1, MATMUL_TF32}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        struct tsri_plan plan = {0};
        const bool is_tf32 = cases[i].kind == MATMUL_TF32;
        (is_tf32 ? matmul_cuda_plan_tf32 : matmul_cuda_plan_bf16x6)(&p, &hopper, &plan);
        const struct matmul_cuda_layout l =
            matmul_cuda_layout(&p, cases[i].kind, (int)plan.block_k, 1);
        const int64_t block_k = is_tf32 ? 32 : 64, part = l.blocks_of_part * block_k;
        assert_int_equal(l.tile->block_k, block_k);
        assert_int_equal((p.k + part - 1) / part, cases[i].parts);
        assert_int_equal(plan.grain, 1);
        assert_in_range(plan.num_tasks, 1, 132);
        assert_true(l.shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
        if (is_tf32 && p.k % 4 != 0 && p.m > 1) assert_true(l.a.is_copied && l.a.line % 4 == 0);
        if (is_tf32) continue;
        // Planes have whole blocks, at 2 bytes per number.
        assert_int_equal(l.a.line, 3 * ((p.k + 63) / 64 * 64));
        assert_int_equal(l.a.bytes, tsri_round_up((size_t)(p.m * l.a.line * 2), 256));
        assert_int_equal(l.b_at, l.a.bytes);
    }
}

// If tiles are few, k is split into whole blocks, but not with flags, a batch or a gate.
#define SPLITS(expected, ...)                                                                      \
    do {                                                                                           \
        struct matmul_problem p = problem(128, 4096, 4096);                                        \
        struct tsri_limits limits = hopper;                                                        \
        struct tsri_plan plan = {0};                                                               \
        __VA_ARGS__;                                                                               \
        matmul_cuda_plan_tf32(&p, &limits, &plan);                                                 \
        assert_int_equal(plan.grain, expected);                                                    \
        matmul_cuda_plan_bf16x6(&p, &limits, &plan);                                               \
        assert_int_equal(plan.grain, expected);                                                    \
    } while (0)

static void few_tiles_are_split(void **state) {
    (void)state;
    SPLITS(4, (void)0);
    SPLITS(1, p.k = 4100);
    SPLITS(1, p.m = 2048);
    SPLITS(1, limits.flags = TSR_BATCH_INVARIANT);
    SPLITS(1, p.b_up = p.b);
    SPLITS(1, p.num_batches = p.batch[2] = 2);
    struct tsri_limits unsplit = hopper;
    unsplit.flags = TSR_BATCH_INVARIANT;
    const struct matmul_problem p = problem(128, 4096, 4096);
    assert_true(matmul_cuda_ns(&p, MATMUL_TF32, &hopper) <
                matmul_cuda_ns(&p, MATMUL_TF32, &unsplit) * 0.6);
    const struct matmul_cuda_layout whole = matmul_cuda_layout(&p, MATMUL_BF16X6, 3, 1),
                                    parts = matmul_cuda_layout(&p, MATMUL_BF16X6, 3, 4);
    assert_int_equal(parts.num_tiles, 4 * whole.num_tiles);
    assert_int_equal(parts.partial_at, whole.workspace_bytes);
    assert_int_equal(parts.workspace_bytes, parts.partial_at + sizeof(float) * 4 * 128 * 4096);
}

// A tuning row must not replace the variant that the call's math selects.
static void rows_keep_the_variant(void **state) {
    const struct tsri_variant *tf32 = NULL, *fma = NULL;
    struct tsri_limits limits = hopper;
    struct matmul_problem p = problem(128, 4096, 4096);
    const struct tsri_op *op = &tsri_matmul_forward_op;
    (void)state;
    for (int i = 0; i < op->num_variants; i++) {
        if (strcmp(op->variants[i].name, "cuda-tf32") == 0) tf32 = &op->variants[i];
        if (strcmp(op->variants[i].name, "cuda-fma") == 0) fma = &op->variants[i];
    }
    assert_false(op->tuning->may_replace(&p, &limits, tf32, fma));
    assert_true(op->tuning->may_replace(&p, &limits, tf32, tf32));
    p.math = TSR_MATMUL_MATH_DEFAULT;
    assert_true(op->tuning->may_replace(&p, &limits, fma, tf32));
    limits.flags = TSR_BATCH_INVARIANT;
    assert_false(op->tuning->may_replace(&p, &limits, fma, fma));
}

// ---- What the driver gets -------------------------------------------------------------------------

static int setup_shared(void **state) {
    fake.shared_bytes = MATMUL_WGMMA_SHARED_BYTES;
    return setup_pack(state);
}

enum { M = 200, N = 96, K = 72, PLANE = 128, BATCH = 2 };
static _Alignas(16) float a[BATCH * M * K], b[K * N], b_up[K * N], c[BATCH * M * N];

static tsr_tensor matrix(void *data, int batch, int rows, int cols) {
    tsr_tensor t = batch > 1 ? TSR_TENSOR(data, TSR_F32, batch, rows, cols)
                             : TSR_TENSOR(data, TSR_F32, rows, cols);
    t.device = (tsr_device){TSR_CUDA, 0};
    return t;
}

static void check_map(int which, cu_map_type type, int64_t width, int64_t lines, int64_t batch) {
    const int element = type == CU_MAP_BF16 ? 2 : 4;
    const uint64_t size[] = {(uint64_t)width, (uint64_t)lines, (uint64_t)batch, 1, 1};
    const uint32_t box[] = {(uint32_t)(128 / element), 64, 1, 1, 1};
    assert_int_equal(fake.maps[which].type, type);
    assert_int_equal(fake.maps[which].swizzle, CU_MAP_SWIZZLE_128);
    assert_memory_equal(fake.maps[which].size, size, sizeof size);
    assert_int_equal(fake.maps[which].stride[0], element * width);
    if (batch > 1) assert_int_equal(fake.maps[which].stride[1], element * width * lines);
    assert_memory_equal(fake.maps[which].box, box, sizeof box);
}

static void maps_of_operands(void **state) {
    static const char *const variants[] = {"cuda-tf32", "cuda-bf16x6"};
    tsr_context *ctx;
    (void)state;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    for (int i = 0; i < 16; i++) {
        const bool is_a = i & 1, is_b = i & 2, is_gated = i & 4, is_planes = i & 8; // transposed
        count_anew(ctx);
        tsr_matmul_forward_args args =
            TSR_MATMUL_FORWARD_ARGS(.variant = variants[is_planes], .math = TSR_MATMUL_MATH_TF32,
                                    .a = matrix(a, BATCH, is_a ? K : M, is_a ? M : K),
                                    .b = matrix(b, 1, is_b ? N : K, is_b ? K : N),
                                    .c = matrix(c, BATCH, M, N), .transpose_a = is_a,
                                    .transpose_b = is_b);
        if (is_gated) args.b_up = matrix(b_up, 1, is_b ? N : K, is_b ? K : N);
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_string_equal(tsr_context_last_variant(ctx), variants[is_planes]);
        assert_int_equal(fake.num_maps, 3 + is_gated);
        assert_int_equal(fake.launched.block_x, 384);
        if (is_planes) { // all are copied at once, in their own layout
            assert_int_equal(fake.num_launches, 2);
            check_map(0, CU_MAP_BF16, is_a ? M : 3 * PLANE, is_a ? 3 * PLANE : M, BATCH);
            for (int j = 1; j < 2 + is_gated; j++)
                check_map(j, CU_MAP_BF16, is_b ? 3 * PLANE : N, is_b ? N : 3 * PLANE, 1);
        } else { // operands not contiguous in k are copied
            assert_int_equal(fake.num_launches, 1 + (is_a || !is_b));
            check_map(0, CU_MAP_TF32, K, M, BATCH);
            for (int j = 1; j < 2 + is_gated; j++) check_map(j, CU_MAP_TF32, K, N, 1);
            if (!is_a) assert_ptr_equal(fake.maps[0].data, a);
            if (is_b) assert_ptr_equal(fake.maps[1].data, b);
        }
        assert_ptr_equal(fake.maps[2 + is_gated].data, c);
        assert_int_equal(fake.maps[2 + is_gated].type, CU_MAP_F32);
    }
    tsr_context_destroy(ctx);
}

// The parts of k form a batch of products, which are written to the workspace.
static void maps_of_splits(void **state) {
    enum { ROWS = 64, COLS = 100, DEPTH = 2048, PARTS = 4, LINE = 104 };
    tsr_context *ctx;
    (void)state;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    fake.num_maps = fake.num_launches = 0;
    assert_ok(tsr_matmul_forward(
        ctx,
        &TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-tf32", .math = TSR_MATMUL_MATH_TF32,
                                 .a = matrix(a, 1, ROWS, DEPTH), .b = matrix(b, 1, COLS, DEPTH),
                                 .c = matrix(c, 1, ROWS, COLS), .transpose_b = 1)));
    assert_int_equal(fake.num_launches, 2);
    assert_int_equal(fake.num_maps, 3);
    const int64_t sizes[][3] = {
        {DEPTH / PARTS, ROWS, PARTS}, {DEPTH / PARTS, COLS, PARTS}, {COLS, ROWS, PARTS}};
    const int64_t strides[][2] = {
        {DEPTH, DEPTH / PARTS}, {DEPTH, DEPTH / PARTS}, {LINE, ROWS * LINE}};
    for (int i = 0; i < COUNT(sizes); i++) {
        for (int j = 0; j < 3; j++) assert_int_equal(fake.maps[i].size[j], sizes[i][j]);
        for (int j = 0; j < 2; j++) assert_int_equal(fake.maps[i].stride[j], 4 * strides[i][j]);
    }
    assert_ptr_not_equal(fake.maps[2].data, c);
    tsr_context_destroy(ctx);
}

// ---- The field ------------------------------------------------------------------------------------

static void the_cpu_computes_in_fp32(void **state) {
    float x[6] = {1.0009765f, -2, 3, 4, 0x1.000002p0f, 6}, y[6] = {7, 8, 9, 1, 2, 3}, z[2][4];
    tsr_context *ctx;
    (void)state;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CPU, 0}), &ctx));
    tsr_matmul_forward_args args = TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(x, TSR_F32, 2, 3),
                                                           .b = TSR_TENSOR(y, TSR_F32, 3, 2));
    for (int i = 0; i < TSR_MATMUL_MATH_COUNT; i++) {
        args.math = (tsr_matmul_math)i;
        args.c = TSR_TENSOR(z[i > 0], TSR_F32, 2, 2);
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_memory_equal(z[i > 0], z[0], sizeof z[0]);
    }
    args.math = TSR_MATMUL_MATH_COUNT;
    assert_status(tsr_matmul_forward(ctx, &args), TSR_INVALID_ARGUMENT, "matmul_forward", "math",
                  "is 3, expected a tsr_matmul_math below 3");
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_once),
        cmocka_unit_test(who_may_have_it),
        cmocka_unit_test(plans),
        cmocka_unit_test(few_tiles_are_split),
        cmocka_unit_test(rows_keep_the_variant),
        cmocka_unit_test(maps_of_operands),
        cmocka_unit_test(maps_of_splits),
        cmocka_unit_test(the_cpu_computes_in_fp32),
    };
    return cmocka_run_group_tests_name("matmul f32", tests, setup_shared, teardown_pack);
}
