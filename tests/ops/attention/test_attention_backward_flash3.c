// SPDX-License-Identifier: Apache-2.0
// Attention's backward pass on Hopper without a GPU: which problems cuda-flash3 serves, its tiles and memory, and what
// it passes to a fake driver.
#include "attention_flash3_case.h"
#include "kernel_pack_case.h"
#include "ops/attention/cpu/attention_kernels.h"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"
#include "test_support.h"

static struct attention_problem backward_problem(void) {
    struct attention_problem p = problem();
    p.dout = p.dq = p.q;
    p.dk = p.dv = p.k;
    return p;
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct attention_problem p = backward_problem();                                           \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(attention_cuda_has_flash3_backward(&p, &limits), expected);               \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(true, p.dtype = TSR_F16);
    SERVES(false, p.dtype = TSR_F32);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.cuda_arch = 100);
    SERVES(true, p.mask = TSR_MASK_CAUSAL, p.has_window_left = true, p.window_left = 5);
    SERVES(true, p.sinks.data = p.dsinks.data = (char *)memory); // other kernels compute dsinks
    SERVES(true, p.softcap = 30);
    SERVES(false, p.softcap = 1001);
    SERVES(false, p.softcap = 1e-20, p.softmax_scale = 1); // products with it overflow
    SERVES(true, p.bias = p.dbias = bias_of(&p, TSR_BF16, 1000));
    SERVES(true, p.bias = bias_of(&p, TSR_BF16, 1), p.head_dim = p.head_dim_v = 64);
    SERVES(true, p.bias = p.dbias = bias_of(&p, TSR_F32, 1000));
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.slopes.data = (char *)memory);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.dropout_threshold = 1);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.softcap = 30);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.head_dim = 256);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.bias.stride[2] = 1004);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), p.bias.shape[3] = 1);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 1000), limits.shared_bytes_per_block--);
    SERVES(true, p.slopes.data = (char *)memory);
    SERVES(true, p.dropout_threshold = 1);
    SERVES(false, p.softcap = 30, p.dropout_threshold = 1);
    SERVES(false, p.softcap = 30, p.slopes.data = (char *)memory);
    SERVES(false, p.head_dim = 256, p.dropout_threshold = 1);
    SERVES(false, p.head_dim = 256, p.slopes.data = (char *)memory);
    SERVES(false, p.seqlen_q = 0);
    SERVES(false, p.seqlen_k = 0);
    SERVES(false, p.num_batches = 0);
    SERVES(true, p.q.seq = 1024 + 8, p.q.head = 136); // strides of 16 bytes
    SERVES(false, p.k.seq = 260);
    SERVES(false, p.v.data += 2);
    SERVES(false, p.dk.data += 2);
    SERVES(true, p.dk.data = NULL); // not requested
    SERVES(true, p.head_dim = p.head_dim_v = 40);
    SERVES(true, p.head_dim = 256, p.head_dim_v = 8);
    // A block's number must fit in 32 bits.
    SERVES(true, p.seqlen_q = p.total_q = 1 << 20, p.num_batches = 1 << 14);
    SERVES(false, p.seqlen_q = p.total_q = 1 << 20, p.num_batches = 1 << 15);
}

// Shared memory: the kernel's own needs, and 1 KiB for alignment where its start is unknown.
static void shared_memory(void **state) {
    static const struct {
        int64_t head_dim, bytes, seqlen;
        tsr_mask mask;
    } cases[] = {{64, FLASH3_SHARED_BYTES(64, 2) + 1024, 1024, TSR_MASK_NONE},
                 {64, FLASH3_SHARED_BYTES(64, 1) + 1024, 1025, TSR_MASK_NONE},
                 {64, FLASH3_SHARED_BYTES(64, 2) + 1024, 4096, TSR_MASK_CAUSAL},
                 {64, FLASH3_SHARED_BYTES(64, 1) + 1024, 4097, TSR_MASK_CAUSAL},
                 {128, FLASH3_SHARED_BYTES(128, 2), 512, TSR_MASK_NONE},
                 {128, FLASH3_SHARED_BYTES(128, 1) + 1024, 513, TSR_MASK_NONE},
                 {128, FLASH3_SHARED_BYTES(128, 2), 2048, TSR_MASK_CAUSAL},
                 {128, FLASH3_SHARED_BYTES(128, 1) + 1024, 2049, TSR_MASK_CAUSAL},
                 {256, FLASH3_DEEP_SHARED_BYTES + 1024, 1024, TSR_MASK_NONE}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        const int64_t least = cases[i].bytes;
        assert_true(least <= SHARED_BYTES);
        SERVES(true, p.head_dim = cases[i].head_dim, p.head_dim_v = 8,
               p.seqlen_q = p.seqlen_k = cases[i].seqlen, p.mask = cases[i].mask,
               limits.shared_bytes_per_block = least);
        SERVES(false, p.head_dim = cases[i].head_dim, p.head_dim_v = 8,
               p.seqlen_q = p.seqlen_k = cases[i].seqlen, p.mask = cases[i].mask,
               limits.shared_bytes_per_block = least - 1);
    }
    // A narrow window makes tasks short.
    for (int64_t left = 512; left <= 513; left++) {
        const int64_t least = FLASH3_SHARED_BYTES(128, 2 - (left - 512)) + (left - 512) * 1024;
        SERVES(true, p.seqlen_q = p.seqlen_k = 4096, p.mask = TSR_MASK_CAUSAL,
               p.head_dim = p.head_dim_v = 128, p.has_window_left = true, p.window_left = left,
               limits.shared_bytes_per_block = least);
        SERVES(false, p.seqlen_q = p.seqlen_k = 4096, p.mask = TSR_MASK_CAUSAL,
               p.head_dim = p.head_dim_v = 128, p.has_window_left = true, p.window_left = left,
               limits.shared_bytes_per_block = least - 1);
    }
    const int64_t wide = FLASH3_WIDE_SHARED_BYTES;
    SERVES(true, p.head_dim = 192, limits.num_sms = 32, limits.shared_bytes_per_block = wide);
    SERVES(false, p.head_dim = 192, limits.num_sms = 32, limits.shared_bytes_per_block = wide - 1);
}

static void plans(void **state) {
    static const struct {
        int64_t head_dim, head_dim_v, tile, block_m;
    } cases[] = {{64, 64, 64, 128}, {16, 72, 128, 64}, {128, 128, 128, 64}, {136, 8, 256, 64}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = backward_problem();
        struct tsri_plan plan = {0};
        p.head_dim = cases[i].head_dim;
        p.head_dim_v = cases[i].head_dim_v;
        attention_cuda_plan_flash3_backward(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, cases[i].block_m);
        assert_int_equal(plan.block_n, 128);
        assert_int_equal(plan.block_k, cases[i].tile);
        assert_int_equal(plan.num_tasks, 4 * 2 * 8); // tiles of keys
        assert_int_equal(plan.grain, 4 * 2);         // all heads of keys, because there are few
        // Two numbers for each of 1024 rows. All but the largest heads also need sums of dq and turn counters.
        const int64_t rows = 4 * 8 * 1024, sums = rows * cases[i].tile + 32 + rows / 64;
        assert_int_equal(plan.workspace_bytes, 4 * (2 * rows + (cases[i].tile == 256 ? 0 : sums)));
    }
    // There are no more blocks than multiprocessors. Packed sequences start at multiples of 128 rows.
    struct attention_problem p = backward_problem();
    struct tsri_plan plan = {0};
    p.num_batches = 40;
    attention_cuda_plan_flash3_backward(&p, &hopper, &plan);
    assert_int_equal(plan.num_tasks, 132);
    assert_int_equal(plan.grain, 32);
    p.is_packed = true;
    p.total_q = 40 * 100;
    attention_cuda_plan_flash3_backward(&p, &hopper, &plan);
    const int64_t rows = 8 * (4000 / 128 + 41) * 128;
    assert_int_equal(plan.workspace_bytes, 4 * (2 * rows + rows * 128 + 32 + rows / 64));
}

// Heads of 192 with values of 128. One kernel computes all gradients if its tiles keep the multiprocessors busy for
// several rounds and dq and dk are requested, or if other heads must not affect the choice.
static void wide_tiles(void **state) {
    static const struct {
        int64_t head_dim, head_dim_v;
        int num_sms; // for 4 * 2 * 8 tiles of keys
        bool has_dq, is_invariant;
        int64_t tile;
    } cases[] = {{192, 128, 132, true, false, 256}, {192, 128, 64, true, false, 256},
                 {192, 128, 32, true, false, 192},  {136, 8, 32, true, false, 192},
                 {192, 128, 45, true, false, 192},  {192, 128, 46, true, false, 256},
                 {192, 136, 32, true, false, 256},  {200, 8, 32, true, false, 256},
                 {192, 128, 32, false, false, 256}, {192, 128, 132, true, true, 192}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = backward_problem();
        struct tsri_limits limits = hopper;
        struct tsri_plan plan = {0};
        p.head_dim = cases[i].head_dim;
        p.head_dim_v = cases[i].head_dim_v;
        limits.num_sms = cases[i].num_sms;
        if (!cases[i].has_dq) p.dq.data = NULL;
        if (cases[i].is_invariant) limits.flags |= TSR_BATCH_INVARIANT;
        attention_cuda_plan_flash3_backward(&p, &limits, &plan);
        assert_int_equal(plan.block_k, cases[i].tile);
        assert_int_equal(plan.block_m, 64);
        const int64_t rows = 4 * 8 * 1024, sums = rows * 192 + 32 + rows / 64;
        assert_int_equal(plan.workspace_bytes, 4 * (2 * rows + (plan.block_k == 192 ? sums : 0)));
    }
}

// Tasks with few steps: enough heads alternate that a block which adds to dq need not wait for another.
static void heads_that_alternate(void **state) {
    struct attention_problem p = backward_problem();
    struct tsri_plan plan = {0};
    (void)state;
    p.num_batches = 400;
    p.seqlen_q = p.total_q = 64; // a group of 4 heads: 4 steps
    attention_cuda_plan_flash3_backward(&p, &hopper, &plan);
    assert_int_equal(plan.grain, 2 * 33);
}

// ---- What the driver gets -------------------------------------------------------------------------

enum { BATCH = 3, SEQLEN = 304, HEADS = 4, HEADS_KV = 2, MOST_DIM = 136 };
static _Alignas(16) uint16_t of_queries[4][BATCH * SEQLEN * HEADS * MOST_DIM],
    of_keys[4][BATCH * SEQLEN * HEADS_KV * MOST_DIM];
static _Alignas(16) uint16_t biases[2][BATCH * HEADS * SEQLEN * 304];
static float lse[BATCH * HEADS * SEQLEN];

static tsr_tensor rows(uint16_t *data, int heads, int dim) {
    return on_cuda(TSR_TENSOR(data, TSR_BF16, BATCH, SEQLEN, heads, dim));
}

static void check_map(int which, const void *data, uint64_t heads, uint64_t dim,
                      uint32_t box_rows) {
    const uint64_t size[] = {dim, SEQLEN, heads, BATCH, 1};
    const uint32_t box[] = {64, box_rows, 1, 1, 1};
    assert_ptr_equal(fake.maps[which].data, data);
    assert_int_equal(fake.maps[which].type, CU_MAP_BF16);
    assert_int_equal(fake.maps[which].swizzle, CU_MAP_SWIZZLE_128);
    assert_memory_equal(fake.maps[which].size, size, sizeof size);
    assert_memory_equal(fake.maps[which].box, box, sizeof box);
    assert_int_equal(fake.maps[which].stride[0], 2 * dim * heads);
    assert_int_equal(fake.maps[which].stride[1], 2 * dim);
    assert_int_equal(fake.maps[which].stride[2], 2 * dim * heads * SEQLEN);
}

static void check_maps(int first, int dim, int dim_v, uint32_t queries, uint32_t keys) {
    check_map(first, of_queries[0], HEADS, (uint64_t)dim, queries);
    check_map(first + 1, of_keys[0], HEADS_KV, (uint64_t)dim, keys);
    check_map(first + 2, of_keys[1], HEADS_KV, (uint64_t)dim_v, keys);
    check_map(first + 3, of_queries[2], HEADS, (uint64_t)dim_v, queries);
}

static void run(int dim, int dim_v, bool has_dq, const tsr_tensor *bias, const tsr_tensor *dbias,
                tsr_mask mask) {
    tsr_context *ctx = cuda_context();
    fake.num_maps = fake.num_launches = 0;
    tsr_attention_backward_args args =
        TSR_ATTENTION_BACKWARD_ARGS(.variant = "cuda-flash3", .q = rows(of_queries[0], HEADS, dim),
                                    .k = rows(of_keys[0], HEADS_KV, dim),
                                    .v = rows(of_keys[1], HEADS_KV, dim_v),
                                    .out = rows(of_queries[1], HEADS, dim_v),
                                    .dout = rows(of_queries[2], HEADS, dim_v),
                                    .lse = on_cuda(TSR_TENSOR(lse, TSR_F32, BATCH, HEADS, SEQLEN)),
                                    .dk = rows(of_keys[2], HEADS_KV, dim),
                                    .dv = rows(of_keys[3], HEADS_KV, dim_v));
    if (bias != NULL) args.bias = *bias;
    if (dbias != NULL) args.dbias = *dbias;
    args.mask = mask;
    if (has_dq) args.dq = rows(of_queries[3], HEADS, dim);
    assert_ok(tsr_attention_backward(ctx, &args));
    assert_string_equal(tsr_context_last_variant(ctx), "cuda-flash3");
    tsr_context_destroy(ctx);
}

static void maps_and_launches(void **state) {
    (void)state;
    run(72, 40, true, NULL, NULL, TSR_MASK_NONE); // few steps
    assert_int_equal(fake.num_launches, 2);       // statistics; dk, dv and dq
    assert_int_equal(fake.launched.block_x, FLASH3_THREADS);
    assert_int_equal(fake.launched.grid_x, 4); // one per multiprocessor
    assert_int_equal(fake.launched.shared_bytes, FLASH3_SHARED_BYTES(128, 2));
    assert_int_equal(fake.num_maps, 5);
    check_maps(0, 72, 40, 64, 128);
    check_map(4, of_queries[3], HEADS, 72, 64); // dq
    run(64, 64, true, NULL, NULL, TSR_MASK_NONE);
    assert_int_equal(fake.num_launches, 2); // statistics; dk, dv and dq
    assert_int_equal(fake.launched.block_x, FLASH3_THREADS);
    assert_int_equal(fake.launched.shared_bytes, FLASH3_SHARED_BYTES(64, 2));
    assert_int_equal(fake.num_maps, 5);
    check_map(4, of_queries[3], HEADS, 64, 128);
    run(64, 64, false, NULL, NULL, TSR_MASK_NONE);
    assert_int_equal(fake.num_launches, 2);
    assert_int_equal(fake.launched.block_x, FLASH3_THREADS);
    assert_int_equal(fake.launched.grid_x, 4);
    assert_int_equal(fake.launched.shared_bytes, FLASH3_SHARED_BYTES(64, 1));
    check_maps(0, 64, 64, 128, 128);
    run(136, 72, true, NULL, NULL, TSR_MASK_NONE); // as many steps as with heads of 72
    assert_int_equal(fake.num_launches, 3);
    assert_int_equal(fake.launched.grid_x, BATCH * HEADS * ((SEQLEN + 63) / 64));
    assert_int_equal(fake.num_maps, 4);
    check_maps(0, 136, 72, 64, 128);
    run(136, 136, true, NULL, NULL, TSR_MASK_NONE); // dv, dk and dq have their own blocks
    assert_int_equal(fake.num_launches, 2);
    assert_int_equal(fake.launched.grid_x, BATCH * (2 * HEADS_KV + HEADS) * 3);
    assert_int_equal(fake.launched.shared_bytes, FLASH3_DEEP_SHARED_BYTES);
    assert_int_equal(fake.num_maps, 8);
    check_maps(0, 136, 136, 128, 128);
    check_maps(4, 136, 136, 64, 64);
}

// The kernel of keys writes a dbias with all dimensions, and another kernel writes the zeros of tiles that it skips. If
// batches or heads share dbias, a separate kernel adds it up. If queries share it, the kernel of keys adds over
// queries, and a small kernel over batches and heads.
static void who_writes_dbias(void **state) {
    static const struct {
        int64_t batches, heads, rows;
        tsr_mask mask;
        int num_launches, grid;
    } cases[] = {{BATCH, HEADS, SEQLEN, TSR_MASK_NONE, 4, 0},
                 {BATCH, HEADS, SEQLEN, TSR_MASK_CAUSAL, 5, BATCH * HEADS * 3},
                 {1, HEADS, SEQLEN, TSR_MASK_CAUSAL, 5, HEADS * 3 * 3},
                 {1, 1, SEQLEN, TSR_MASK_NONE, 5, 3 * 3},
                 {BATCH, HEADS, 1, TSR_MASK_NONE, 5, BATCH * HEADS * 10},
                 {1, HEADS, 1, TSR_MASK_CAUSAL, 5, HEADS * 10},
                 {1, 1, 1, TSR_MASK_NONE, 5, 10}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        tsr_tensor two[2];
        for (int t = 0; t < 2; t++) {
            two[t] = on_cuda(TSR_TENSOR(biases[t], TSR_BF16, cases[i].batches, cases[i].heads,
                                        cases[i].rows, 304));
            two[t].shape[3] = SEQLEN;
        }
        run(128, 128, true, &two[0], &two[1], cases[i].mask);
        assert_int_equal(fake.num_launches, cases[i].num_launches);
        if (cases[i].grid > 0) assert_int_equal(fake.launched.grid_x, cases[i].grid);
        if (cases[i].rows == 1) assert_int_equal(fake.launched.shared_bytes, 0); // a small kernel
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_serves),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(plans),
        cmocka_unit_test(wide_tiles),
        cmocka_unit_test(heads_that_alternate),
        cmocka_unit_test(maps_and_launches),
        cmocka_unit_test(who_writes_dbias),
    };
    return cmocka_run_group_tests_name("attention backward flash3", tests, setup_pack,
                                       teardown_pack);
}
