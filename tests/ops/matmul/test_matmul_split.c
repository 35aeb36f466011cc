// SPDX-License-Identifier: Apache-2.0
// Matmul with k split over a cluster, without a GPU: the arithmetic that kernel and host share, which problems it
// serves, its plans, and what it passes to a fake driver.
#include "kernel_pack_case.h"
#include "matmul_cuda_case.h"
#include "ops/matmul/cuda/split/matmul_split_layout.h"
#include "test_support.h"

// ---- Arithmetic -------------------------------------------------------------------------------

static void every_block_of_k_once(void **state) {
    (void)state;
    for (int blocks = 1; blocks <= 300; blocks++)
        for (int splits = 1; splits <= 8; splits++) {
            const int least = blocks / splits, more = blocks % splits;
            assert_int_equal(matmul_split_first(least, more, 0), 0);
            assert_int_equal(matmul_split_first(least, more, splits), blocks);
            for (int part = 0; part < splits; part++)
                assert_int_equal(matmul_split_first(least, more, part + 1) -
                                     matmul_split_first(least, more, part),
                                 least + (part < more));
        }
}

static const int all_rows[] = {16, 32, 48, 64, 72, 80, 96, 112, 128, 144};

// Received sums begin after the stages, after what the last group reads of them, and after the sums. Barriers follow at
// multiples of 8. Slabs and groups begin at multiples of 1024.
static void shared_memory_of(const struct matmul_split_tile *t) {
    static const int splits[] = {1, 2, 3, 4, 8};
    const int end = t->second * (t->groups - 1) * 128 + 64 * 128; // end of what is read in a slab
    assert_int_equal(matmul_split_slab(t) % 1024, 0);
    assert_int_equal(t->lines % 8, 0);
    assert_int_equal(t->second % 8, 0);
    for (int stages = 2; stages <= 20; stages++)
        for (int i = 0; i < COUNT(splits); i++) {
            const int received = matmul_split_received(t, stages);
            const int most = matmul_split_most(t->rows / 8, splits[i]);
            const int barriers = matmul_split_barriers(t, stages, splits[i]);
            const int slabs = stages * t->slabs;
            assert_true(received >= slabs * matmul_split_slab(t));
            assert_true(received >= (slabs - 1) * matmul_split_slab(t) + end);
            assert_true(received >= t->groups * t->rows * 68 * 4);
            assert_true(received >= t->groups * 4 * (t->rows + 15) / 16 * 512); // stored as 16 bits
            assert_int_equal(received % 16, 0);
            assert_int_equal(barriers - received, t->groups * (splits[i] - 1) * most * 8 * 64 * 4);
            assert_int_equal(matmul_split_bytes(t, stages, splits[i]) - barriers,
                             8 * (2 * stages + 1));
        }
}

static void shared_memory(void **state) {
    (void)state;
    for (int r = 0; r < COUNT(all_rows); r++)
        for (int cols = 8; cols <= 128; cols += 8)
            for (int ways = 0; ways < 4; ways++) {
                const int is_gated = ways & 1, b_is_mn = ways >> 1;
                if (is_gated && cols > 64) continue;
                const struct matmul_split_tile t = matmul_split_tile_of(
                    all_rows[r], cols, 1 + (all_rows[r] <= 32), is_gated, b_is_mn);
                assert_int_equal(t.groups, is_gated || cols > 64 ? 2 : 1);
                assert_true(t.groups * 64 >= cols && t.lines >= cols * (is_gated ? 2 : 1));
                assert_true(!b_is_mn || t.lines == 64 * t.groups); // whole units of 64
                shared_memory_of(&t);
            }
}

// One of a tile's blocks finishes each eight rows and has room for them.
static void every_eight_once(void **state) {
    (void)state;
    for (int r = 0; r < COUNT(all_rows); r++)
        for (int splits = 2; splits <= 8; splits++) {
            const int eights = all_rows[r] / 8, most = matmul_split_most(eights, splits);
            int first = 0;
            for (int part = 0; part < splits; part++) {
                const int next = eights * (part + 1) / splits;
                assert_int_equal(eights * part / splits, first);
                assert_in_range(next - first, 0, most);
                first = next;
            }
            assert_int_equal(first, eights);
        }
}

// The sums of a warp's lanes are in different banks: each lane has two neighbouring columns in 4 rows of the product, 8
// columns of c. So are a matrix's eight rows as stmatrix writes them, and what eight lanes read back.
static void banks_of_sums(void **state) {
    (void)state;
    bool seen[32] = {false}, written[2][8] = {{false}}, read[8] = {false};
    for (int lane = 0; lane < 32; lane++) {
        const int bank = (lane % 4 * 2 * MATMUL_SPLIT_STRIDE + lane / 4) % 32;
        assert_false(seen[bank]);
        seen[bank] = true;
    }
    for (int row = 0; row < 8; row++)
        for (int piece = 0; piece < 2; piece++) {
            bool *of_write = &written[piece][matmul_split_piece(row, piece) / 16 % 8];
            assert_false(*of_write);
            *of_write = true;
            if (row >= 4) continue;
            bool *of_read = &read[matmul_split_piece(row, piece) / 16 % 8];
            assert_false(*of_read);
            *of_read = true;
        }
}

// ---- What it serves -----------------------------------------------------------------------------

static struct matmul_problem problem(int64_t m, int64_t n, int64_t k) {
    return product_of(TSR_BF16, TSR_BF16, TSR_BF16, m, n, k);
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct matmul_problem p = problem(100, 1000, 1000);                                        \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(matmul_cuda_split_serves(&p, &limits), expected);                         \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.cuda_arch = 100);
    SERVES(false, limits.shared_bytes_per_block = 166912);
    SERVES(false, p.a.dtype = TSR_F32);
    SERVES(true, p.a.dtype = p.b.dtype = TSR_F16);
    SERVES(false, p.k = 0);
    SERVES(false, p.m = 0);
    SERVES(true, p.m = 99, p.n = 777, p.k = 993); // ends within a line
    SERVES(false, p.a.row = 1001);                // misaligned lines
    SERVES(true, p.m = 1, p.a.row = 1001);        // one line
    SERVES(true, p.a.row = 1, p.a.col = 1000);    // contiguous in m
    SERVES(true, p.b.row = 1000, p.b.col = 1);    // contiguous in n
    SERVES(true, p.c.row = 1001);                 // any layout of c
    SERVES(true, p.b_up = p.b);
    SERVES(false, p.b_up = p.b, p.b_up.row = 1000, p.b_up.col = 1); // another layout than b
    SERVES(true, p = problem(3, 64, 1 << 28));
    SERVES(false, p = problem(3, 64, (1 << 28) + 8));
    SERVES(true, p = problem(3, 64, 8200), limits.flags = TSR_BATCH_INVARIANT);
}

static void plans(void **state) {
    (void)state;
    for (int64_t m = 1; m <= 2000; m = m * 5 / 2 + 1)
        for (int64_t n = 8; n <= 70000; n = n * 3 + 8)
            for (int64_t k = 8; k <= 65536; k = k * 5 + 16)
                for (int way = 0; way < 4; way++) {
                    const bool is_gated = way % 2 != 0;
                    const tsr_dtype dtype = way / 2 != 0 ? TSR_F16 : TSR_BF16;
                    struct matmul_problem p = product_of(dtype, dtype, dtype, m, n, k);
                    struct tsri_limits limits = hopper;
                    struct tsri_plan plan = {0};
                    if (is_gated) p.b_up = p.b;
                    assert_true(matmul_cuda_split_serves(&p, &limits));
                    matmul_cuda_plan_split(&p, &limits, &plan);
                    assert_int_equal(plan.workspace_bytes, 0);
                    const int64_t splits = plan.grain < MATMUL_SPLIT_BELOW ? plan.grain : 1;
                    assert_true(splits >= 1 && splits <= 8 && (splits == 1 || splits <= k / 128));
                    assert_true(plan.num_tasks % splits == 0);
                    assert_true(plan.block_n % 8 == 0 && plan.block_n <= 128);
                    // Every column and row of c must be in a tile.
                    const int64_t tile = plan.block_n / (is_gated ? 2 : 1);
                    assert_true(plan.num_tasks / splits * tile >=
                                n * ((m + plan.block_m - 1) / plan.block_m));
                    limits.flags = TSR_BATCH_INVARIANT;
                    matmul_cuda_plan_split(&p, &limits, &plan);
                    // The way sums are cut must not depend on m.
                    assert_true(plan.grain == 1 || plan.grain >= MATMUL_SPLIT_BELOW);
                    assert_true(k <= MATMUL_SPLIT_PROMOTE ||
                                matmul_split_has_parts((int)plan.block_m));
                }
}

// It is preferred for few rows with any n and k, but not for large products or those that may not be split.
static void who_is_preferred(void **state) {
    static const struct {
        int64_t m, n, k;
        bool is_split;
    } cases[] = {
        {1, 4096, 4096, true},   {16, 4096, 4096, true},    {128, 4096, 4096, true},
        {16, 16384, 4096, true}, {16, 256, 16384, true},    {1, 256, 256, true},
        {512, 512, 512, true},   {8192, 8192, 8192, false}, {4096, 4096, 4096, false},
        {512, 1024, 4096, true}, {1024, 512, 2048, true},   {1024, 1024, 1024, false},
        {768, 768, 768, true},   {1536, 1536, 1536, false}, {2048, 2048, 2048, false},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        struct tsri_limits limits = hopper;
        const bool is_split = strcmp(matmul_cuda_prefer(&p, &limits), "cuda-split") == 0;
        if (is_split != cases[i].is_split)
            fail_msg("%lld x %lld x %lld", (long long)p.m, (long long)p.n, (long long)p.k);
        limits.flags = TSR_BATCH_INVARIANT;
        assert_string_not_equal(matmul_cuda_prefer(&p, &limits), "cuda-split");
    }
}

// A bias and an activation cost more than in cuda-wgmma if its tiles are large.
static void who_is_preferred_with_a_bias(void **state) {
    static const struct {
        int64_t m, n, k;
        tsr_activation activation;
        bool is_split;
    } cases[] = {
        {1024, 1024, 1024, TSR_ACTIVATION_NONE, false},
        {512, 3072, 768, TSR_ACTIVATION_NONE, false},
        {512, 3072, 768, TSR_ACTIVATION_GELU_TANH, false},
        {2048, 1024, 1024, TSR_ACTIVATION_GELU_TANH, false},
        {512, 512, 512, TSR_ACTIVATION_GELU_TANH, true},
        {768, 768, 768, TSR_ACTIVATION_NONE, true},
        {128, 3072, 768, TSR_ACTIVATION_GELU, true},
        {64, 4096, 4096, TSR_ACTIVATION_GELU, true},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        p.bias = memory, p.bias_dtype = TSR_BF16, p.activation = cases[i].activation;
        const char *variant = matmul_cuda_prefer(&p, &hopper);
        if (strcmp(variant, cases[i].is_split ? "cuda-split" : "cuda-wgmma") != 0)
            fail_msg("%lld x %lld x %lld: %s", (long long)p.m, (long long)p.n, (long long)p.k,
                     variant);
    }
}

// The tiles that were measured to be fastest, or within 3 % of the fastest.
static void tiles(void **state) {
    static const struct {
        int64_t m, n, k, rows, cols, cluster;
    } cases[] = {
        {2048, 768, 3072, 96, 128, 210}, {300, 1000, 1000, 48, 64, 120},
        {768, 1024, 1024, 48, 128, 210}, {256, 1024, 1024, 64, 64, 2},
        {96, 2048, 512, 48, 64, 2},      {768, 768, 768, 72, 64, 1},
        {512, 512, 512, 48, 64, 1},      {17, 1024, 4096, 32, 64, 4},
        {768, 768, 3072, 72, 64, 1},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        struct tsri_plan plan = {0};
        assert_string_equal(matmul_cuda_prefer(&p, &hopper), "cuda-split");
        matmul_cuda_plan_split(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, cases[i].rows);
        assert_int_equal(plan.block_n, cases[i].cols);
        assert_int_equal(plan.grain, cases[i].cluster);
    }
}

// Few rows and a b that exceeds every cache: all multiprocessors get almost equal shares of b. If a would otherwise be
// most of the traffic, tiles are wider and have two parts.
static void even_tiles(void **state) {
    static const struct {
        int64_t m, n, k, rows, cols, splits;
    } cases[] = {
        {32, 11008, 4096, 32, 88, 1},  {1, 14336, 4096, 16, 112, 1}, {16, 28672, 8192, 16, 112, 1},
        {32, 5120, 5120, 32, 80, 2},   {64, 6144, 4096, 64, 96, 2},  {16, 4096, 11008, 16, 64, 2},
        {1, 152064, 4096, 16, 128, 1}, {32, 4096, 4096, 32, 64, 2},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct matmul_problem p = problem(cases[i].m, cases[i].n, cases[i].k);
        struct tsri_limits limits = hopper;
        struct tsri_plan plan = {0};
        limits.num_sms = 132;
        assert_string_equal(matmul_cuda_prefer(&p, &limits), "cuda-split");
        matmul_cuda_plan_split(&p, &limits, &plan);
        assert_int_equal(plan.block_m, cases[i].rows);
        assert_int_equal(plan.block_n, cases[i].cols);
        assert_int_equal(plan.grain, cases[i].splits);
        assert_true(plan.block_m + plan.block_n <= 128 || plan.block_k == 64); // room for stages
        p.b.row = p.n, p.b.col = 1; // contiguous in n: whole units
        matmul_cuda_plan_split(&p, &limits, &plan);
        assert_int_equal(plan.block_n % 64, 0);
    }
}

// ---- What the driver gets -------------------------------------------------------------------------

enum { M = 40, N = 96, K = 512, BATCH = 2 };
static _Alignas(16) uint16_t a[BATCH * M * K], b[K * N], b_up[K * N], c[BATCH * M * N];

static tsr_tensor matrix(void *data, int batch, int rows, int cols) {
    tsr_tensor t = batch > 1 ? TSR_TENSOR(data, TSR_BF16, batch, rows, cols)
                             : TSR_TENSOR(data, TSR_BF16, rows, cols);
    return on_cuda(t);
}

static void check_map(int which, const void *data, int64_t width, int64_t lines, int64_t batch) {
    const uint64_t size[] = {(uint64_t)width, (uint64_t)lines, (uint64_t)batch, 1, 1};
    assert_ptr_equal(fake.maps[which].data, data);
    assert_int_equal(fake.maps[which].swizzle, CU_MAP_SWIZZLE_128);
    assert_memory_equal(fake.maps[which].size, size, sizeof size);
    assert_int_equal(fake.maps[which].stride[0], 2 * width);
    assert_int_equal(fake.maps[which].box[0], 64);
}

static void maps_of_operands(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    for (int i = 0; i < 4; i++) {
        bool is_b = i & 1, is_gated = i & 2; // b transposed
        count_anew(ctx);
        tsr_matmul_forward_args args =
            TSR_MATMUL_FORWARD_ARGS(.variant = "cuda-split", .a = matrix(a, BATCH, M, K),
                                    .b = matrix(b, 1, is_b ? N : K, is_b ? K : N),
                                    .c = matrix(c, BATCH, M, N), .transpose_b = is_b);
        if (is_gated) args.b_up = matrix(b_up, 1, is_b ? N : K, is_b ? K : N);
        assert_ok(tsr_matmul_forward(ctx, &args));
        assert_int_equal(fake.num_launches, 1);
        assert_int_equal(fake.launched.block_x % 128,
                         32); // whole warpgroups and one copying warp
        assert_true(fake.launched.shared_bytes <= MATMUL_WGMMA_SHARED_BYTES);
        const int rows = (int)fake.maps[0].box[1]; // of a tile
        assert_int_equal(fake.num_maps, 2 + is_gated + (M % rows != 0));
        if (M % rows != 0) { // c's last rows
            check_map(2 + is_gated, a, K, M, BATCH);
            assert_int_equal(fake.maps[2 + is_gated].box[1], M % rows);
        }
        check_map(0, a, K, M, BATCH);
        assert_int_equal(rows % 8, 0);
        check_map(1, b, is_b ? K : N, is_b ? N : K, 1);
        assert_int_equal(fake.maps[1].box[1] % (is_b ? 8 : 64), 0); // columns of a tile, or a unit
        if (is_gated) check_map(2, b_up, is_b ? K : N, is_b ? N : K, 1);
    }
    tsr_context_destroy(ctx);
}

// Blocks below and beside each other share lines: each loads its part, and clusters are complete.
static void sharers(void **state) {
    static const struct {
        int cluster, below, beside;
    } cases[] = {{120, 2, 1}, {210, 1, 2}, {220, 2, 2}, {420, 2, 4}, {240, 4, 2}};
    enum { ROWS = 96, COLS = 128, TILES_M = 3, TILES_N = 5 };
    (void)state;
    tsr_context *ctx = cuda_context();
    for (int i = 0; i < COUNT(cases); i++) {
        const struct matmul_problem p = problem(TILES_M * ROWS - 1, TILES_N * COLS - 8, 512);
        const struct tsri_plan plan = {
            .block_m = ROWS, .block_n = COLS, .block_k = 64, .grain = cases[i].cluster};
        const int below = cases[i].below, beside = cases[i].beside;
        const struct matmul_split_layout l = matmul_split_lay_out(
            &p, (struct matmul_split_ways){0}, ROWS, COLS, cases[i].cluster, hopper.num_sms);
        count_anew(ctx);
        fake.depth++; // as inside a call
        assert_ok(matmul_cuda_split_run(ctx, &p, &plan, NULL));
        fake.depth--;
        assert_int_equal(fake.maps[0].box[1], ROWS / beside);
        assert_int_equal(fake.maps[1].box[1], COLS / below);
        assert_int_equal(fake.launched.grid_x % (unsigned)(below * beside), 0);
        assert_int_equal(l.num_splits, 1);
        assert_int_equal(l.tiles_m, (TILES_M + below - 1) / below * below);
        assert_int_equal(l.tiles_n, (TILES_N + beside - 1) / beside * beside);
        assert_int_equal(l.num_blocks, l.tiles_m * l.tiles_n);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_of_k_once),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(every_eight_once),
        cmocka_unit_test(banks_of_sums),
        cmocka_unit_test(what_it_serves),
        cmocka_unit_test(plans),
        cmocka_unit_test(who_is_preferred),
        cmocka_unit_test(who_is_preferred_with_a_bias),
        cmocka_unit_test(tiles),
        cmocka_unit_test(even_tiles),
        cmocka_unit_test(maps_of_operands),
        cmocka_unit_test(sharers),
    };
    return cmocka_run_group_tests_name("matmul split", tests, setup_pack, teardown_pack);
}
