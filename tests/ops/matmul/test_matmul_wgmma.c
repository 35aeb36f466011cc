// SPDX-License-Identifier: Apache-2.0
// Matmul with wgmma without a GPU: the arithmetic that kernel and host share, which problems it serves, and what it
// passes to a fake driver for operands in every layout.
#include <math.h>

#include "core/core_dtype.h"
#include "kernel_pack_case.h"
#include "matmul_cuda_case.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"
#include "test_support.h"

// ---- Arithmetic -------------------------------------------------------------------------------

static void every_tile_once(void **state) {
    enum { MOST = 20 };
    (void)state;
    for (unsigned m = 1; m <= MOST; m++)
        for (unsigned n = 1; n <= MOST; n++)
            for (unsigned group = 1; group <= 16; group += group < 5 ? 1 : 11) {
                unsigned char seen[3][MOST][MOST] = {0};
                for (unsigned number = 0; number < 3 * m * n; number++) {
                    struct matmul_wgmma_place at = matmul_wgmma_place(number, m, n, group);
                    assert_true(at.row < m && at.col < n && at.batch < 3);
                    assert_int_equal(seen[at.batch][at.row][at.col]++, 0);
                    assert_int_equal(at.batch, number / (m * n));
                }
            }
    // All rows of a group come before the next column.
    const struct matmul_wgmma_place place = matmul_wgmma_place(2 * 100 * 7 + 8 * 7 + 9, 100, 7, 8);
    assert_int_equal(place.batch, 2);
    assert_int_equal(place.row, 8 + 1);
    assert_int_equal(place.col, 1);
}

// Units of 64 columns are neighbours in c, or come from b and b_up in turn.
static void every_column_once(void **state) {
    (void)state;
    for (int unit = 0; unit < 4; unit++) {
        assert_int_equal(matmul_wgmma_column(0, unit), unit * 64);
        assert_int_equal(matmul_wgmma_is_of_up(0, unit), 0);
        assert_int_equal(matmul_wgmma_column(1, unit), unit / 2 * 64);
        assert_int_equal(matmul_wgmma_is_of_up(1, unit), unit % 2);
    }
}

// The correction adds half of what a sum of one sign may have lost, and so little that exact 16-bit results round back
// to themselves.
static void drift(void **state) {
    (void)state;
    for (int k = 64; k <= 8192; k += 64) {
        const double share = (double)matmul_wgmma_drift(k) * 0x1p24;
        assert_true(fabs(share - k / 13.0) < 1e-3 * share);
        assert_true(share / 2 < 8 + 4 * sqrt(k));
        const float alpha = 1 + matmul_wgmma_drift(k) / 2;
        for (int x = 1024; x < 2048; x++) // all 11-bit numbers between two powers of 2
            assert_int_equal(tsri_f16_of_float((float)x * alpha), tsri_f16_of_float((float)x));
    }
}

// Address bits 4 to 6 are the piece's number xor bits 7 to 9.
static void permuted_rows(void **state) {
    (void)state;
    for (unsigned row = 0; row < 64; row++)
        for (unsigned piece = 0; piece < 8; piece++) {
            unsigned plain = row * 128 + piece * 16;
            assert_int_equal(matmul_wgmma_piece((int)row, (int)piece),
                             plain ^ ((plain >> 7 & 7) << 4));
        }
}

// ---- What it serves -----------------------------------------------------------------------------

static struct matmul_problem problem(int64_t m, int64_t n, int64_t k) {
    return product_of(TSR_BF16, TSR_BF16, TSR_BF16, m, n, k);
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct matmul_problem p = problem(1000, 1000, 1000);                                       \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(matmul_cuda_wgmma_serves(&p, &limits), expected);                         \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.cuda_arch = 100);
    SERVES(false, limits.shared_bytes_per_block = 166912);
    SERVES(false, p.a.dtype = TSR_F32);
    SERVES(true, p.a.dtype = p.b.dtype = TSR_F16);
    SERVES(false, p.groups.starts.data = (const int32_t *)(const void *)memory);
    SERVES(false, p.k = 0);
    SERVES(false, p.m = 0);
    SERVES(true, p.m = 999, p.n = 777, p.k = 993); // ends within a line
    SERVES(true, p.a.row = 1001);                  // misaligned lines are copied
    SERVES(true, p.a.data += 2);
    SERVES(true, p.a.row = 0);                 // one row for all: copied
    SERVES(true, p.b.col = 512);               // overlapping rows too
    SERVES(false, p.a.row = INT64_C(1) << 39); // too far apart
    SERVES(true, p.a.col = 2);                 // not contiguous: copied
    SERVES(true, p.a.row = 1, p.a.col = 1000); // contiguous in m
    SERVES(true, p.b.row = 1000, p.b.col = 1); // contiguous in n
    SERVES(true, p.c.row = 1001);              // any layout of c
    SERVES(true, p.b_up = p.b);
    SERVES(true, p.b_up = p.b, p.b_up.row = 1000,
           p.b_up.col = 1); // b and b_up have different layouts: copied
    SERVES(true, p.num_batches = 6, p.batch[1] = 2, p.batch[2] = 3, p.a.batch[2] = 8,
           p.a.batch[1] = 1000000); // batch strides: any multiples of 16 bytes
    SERVES(true, p.num_batches = 3, p.batch[2] = 3, p.a.batch[2] = 4); // copied
}

// Equal or overlapping rows use the same variant as any others, because a row's bits must not depend on the layout.
static void invariant_to_strides(void **state) {
    struct tsri_limits limits = hopper;
    struct tsri_plan plan = {0};
    (void)state;
    limits.flags = TSR_BATCH_INVARIANT;
    for (int row = 0; row <= 1000; row += 500) {
        struct matmul_problem p = problem(1000, 1000, 1000);
        p.a.row = row;
        assert_string_equal(matmul_cuda_prefer(&p, &limits), "cuda-wgmma");
        matmul_cuda_plan_wgmma(&p, &limits, &plan);
        assert_int_equal(plan.workspace_bytes,
                         row < 1000 ? tsri_round_up(1000 * 1000 * 2, 256) : 0);
    }
}

static void plans(void **state) {
    static const struct {
        int64_t m, n, k, tasks, parts;
        tsr_dtype c;
    } cases[] = {
        {8192, 8192, 8192, 132, 1, TSR_BF16},  {4096, 4096, 4096, 132, 1, TSR_BF16},
        {104, 104, 104, 2, 1, TSR_BF16},       {4096, 4096, 16384, 132, 1, TSR_BF16},
        {4096, 4096, 65544, 132, 2, TSR_BF16}, {4096, 4096, 131080, 132, 3, TSR_BF16},
        {4096, 4096, 2048, 132, 1, TSR_F32},   {4096, 4096, 8192, 132, 4, TSR_F32},
        {4096, 768, 8192, 128, 1, TSR_BF16},  // tiles of 128 x 192
        {1024, 1024, 1024, 128, 1, TSR_BF16}, // tiles of 128 x 64
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        struct tsri_plan plan = {0};
        p.c.dtype = cases[i].c;
        matmul_cuda_plan_wgmma(&p, &hopper, &plan);
        const struct matmul_cuda_layout l =
            matmul_cuda_layout(&p, MATMUL_WGMMA, (int)plan.block_k, 1);
        const int64_t at_once = l.tile->in_turns ? 2 : 1, part = l.blocks_of_part * 64;
        const int64_t sums = plan.num_tasks * at_once * l.tile->block_m * l.tile->block_n * 4;
        assert_in_range(plan.num_tasks, cases[i].tasks - 1, cases[i].tasks);
        assert_int_equal(plan.workspace_bytes, cases[i].parts > 1 ? sums : 0);
        assert_int_equal((p.k + part - 1) / part, cases[i].parts);
        assert_int_equal(plan.grain, 1);
        assert_true(l.shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
        if (l.tile->cluster > 1) assert_int_equal(plan.num_tasks % l.tile->cluster, 0);
    }
    // Copied operands have lines of multiples of 8 elements; the sums follow them.
    struct matmul_problem p = problem(1000, 1003, 997);
    struct tsri_plan plan = {0};
    matmul_cuda_plan_wgmma(&p, &hopper, &plan);
    assert_int_equal(plan.workspace_bytes,
                     tsri_round_up(1000 * 1000 * 2, 256) + tsri_round_up(1003 * 1000 * 2, 256));
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_WGMMA, &num_tiles);
    for (int i = 0; i < num_tiles; i++)
        assert_true(tiles[i].shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
}

// ---- What the driver gets -------------------------------------------------------------------------

enum { M = 200, N = 96, K = 72, BATCH = 2 };
static _Alignas(16) uint16_t a[BATCH * M * K], b[K * N], b_up[K * N], c[BATCH * M * N];
static float c32[BATCH * M * N];

static tsr_tensor matrix(void *data, tsr_dtype dtype, int batch, int rows, int cols) {
    tsr_tensor t = batch > 1 ? TSR_TENSOR(data, dtype, batch, rows, cols)
                             : TSR_TENSOR(data, dtype, rows, cols);
    return on_cuda(t);
}

static void check_map(int which, const void *data, int64_t width, int64_t lines, int64_t batch,
                      int box_lines) {
    const uint64_t size[] = {(uint64_t)width, (uint64_t)lines, (uint64_t)batch, 1, 1};
    assert_ptr_equal(fake.maps[which].data, data);
    assert_int_equal(fake.maps[which].type, CU_MAP_BF16);
    assert_int_equal(fake.maps[which].swizzle, CU_MAP_SWIZZLE_128);
    assert_memory_equal(fake.maps[which].size, size, sizeof size);
    assert_int_equal(fake.maps[which].stride[0], 2 * width);
    if (batch > 1) assert_int_equal(fake.maps[which].stride[1], 2 * width * lines);
    const uint32_t box[] = {64, (uint32_t)box_lines, 1, 1, 1};
    assert_memory_equal(fake.maps[which].box, box, sizeof box);
}

static void maps_of_operands(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    for (int i = 0; i < 16; i++) {
        bool is_a = i & 1, is_b = i & 2, is_gated = i & 4, is_f32 = i & 8; // a and b transposed
        count_anew(ctx);
        tsr_matmul_forward_args args =
            TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-wgmma",
                                    .a = matrix(a, TSR_BF16, BATCH, is_a ? K : M, is_a ? M : K),
                                    .b = matrix(b, TSR_BF16, 1, is_b ? N : K, is_b ? K : N),
                                    .c = is_f32 ? matrix(c32, TSR_F32, BATCH, M, N)
                                                : matrix(c, TSR_BF16, BATCH, M, N),
                                    .transpose_a = is_a, .transpose_b = is_b);
        if (is_gated) args.b_up = matrix(b_up, TSR_BF16, 1, is_b ? N : K, is_b ? K : N);
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_string_equal(tsr_context_last_variant(ctx), "cuda-wgmma");
        assert_int_equal(fake.num_launches, 1);
        assert_int_equal(fake.launched.block_x, 384);
        assert_true(fake.launched.shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
        assert_int_equal(fake.num_maps, 3 + is_gated + !is_a);
        if (!is_a) // c's last rows
            check_map(3 + is_gated, a, K, M, BATCH, M % 128 % 64);
        if (is_a)
            check_map(0, a, M, K, BATCH, 64);
        else
            check_map(0, a, K, M, BATCH, 64);
        check_map(1, b, is_b ? K : N, is_b ? N : K, 1, 64);
        if (is_gated) check_map(2, b_up, is_b ? K : N, is_b ? N : K, 1, 64);
        if (is_f32) {
            assert_ptr_equal(fake.maps[2 + is_gated].data, c32);
            assert_int_equal(fake.maps[2 + is_gated].type, CU_MAP_F32);
            assert_int_equal(fake.maps[2 + is_gated].box[0], 32);
            assert_int_equal(fake.maps[2 + is_gated].box[1], 16);
        } else {
            check_map(2 + is_gated, c, N, M, BATCH, 16);
        }
    }
    tsr_context_destroy(ctx);
}

// What the copy engine cannot access is copied, or uses ordinary loads and stores.
static void what_has_no_map(void **state) {
    static uint16_t residual[BATCH * M * N];
    (void)state;
    tsr_context *ctx = cuda_context();
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-wgmma", .a = matrix(a, TSR_BF16, BATCH, M, K),
                                .b = matrix(b, TSR_BF16, 1, N, K),
                                .c = matrix(c, TSR_BF16, BATCH, M, N),
                                .residual = matrix(residual, TSR_BF16, BATCH, M, N),
                                .transpose_b = 1);
    const struct {
        int64_t n, k, residual_batch, maps, launches;
    } cases[] = {
        {N, K, M * N, 5, 1},     // a, b, c, residual, a's last rows
        {N, K, 0, 4, 1},         // one residual for all
        {N - 2, K, M * N, 3, 1}, // columns of c end within 16 bytes
        {N, K - 1, M * N, 5, 1}, // k ends within 16 bytes
        {N, -K, M * N, 5, 3},    // misaligned lines of a and b
    };
    for (int i = 0; i < COUNT(cases); i++) {
        const int64_t k = cases[i].k < 0 ? K - 1 : cases[i].k, line = cases[i].k < 0 ? k : K;
        count_anew(ctx);
        args.a.shape[2] = args.b.shape[1] = k;
        args.a.stride[1] = args.b.stride[0] = line;
        args.b.shape[0] = args.c.shape[2] = args.residual.shape[2] = cases[i].n;
        args.residual.stride[0] = cases[i].residual_batch;
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_string_equal(tsr_context_last_variant(ctx), "cuda-wgmma");
        assert_int_equal(fake.num_maps, cases[i].maps);
        assert_int_equal(fake.num_launches, cases[i].launches);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_once),
        cmocka_unit_test(every_column_once),
        cmocka_unit_test(drift),
        cmocka_unit_test(permuted_rows),
        cmocka_unit_test(what_it_serves),
        cmocka_unit_test(invariant_to_strides),
        cmocka_unit_test(plans),
        cmocka_unit_test_setup(maps_of_operands, setup_pack),
        cmocka_unit_test_teardown(what_has_no_map, teardown_pack),
    };
    return cmocka_run_group_tests_name("matmul wgmma", tests, NULL, NULL);
}
