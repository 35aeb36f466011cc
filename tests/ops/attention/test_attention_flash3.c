// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper without a GPU: which problems cuda-flash3 serves, with which tiles, and what it passes to a fake
// driver for queries, keys and values.
#include "attention_flash3_case.h"
#include "kernel_pack_case.h"
#include "ops/attention/cuda/forward/attention_flash3_params.h"
#include "test_support.h"

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct attention_problem p = problem();                                                    \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(attention_cuda_has_flash3(&p, &limits), expected);                        \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(true, p.dtype = TSR_F16);
    SERVES(false, p.dtype = TSR_F32);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.cuda_arch = 100);
    SERVES(false, limits.shared_bytes_per_block = 166912);
    SERVES(true, p.mask = TSR_MASK_CAUSAL, p.has_window_left = true, p.window_left = 5);
    SERVES(true, p.softcap = 30, p.slopes.data = (char *)memory, p.sinks.data = (char *)memory);
    SERVES(false, p.softcap = 1e6);    // its error grows with softcap
    SERVES(false, p.softcap = 1e-40F); // products with it overflow
    SERVES(true, p.dropout_threshold = 1, p.slopes.data = (char *)memory);
    SERVES(false, p.dropout_threshold = 1, p.softcap = 30);
    SERVES(false, p.softmax_scale = 0);
    SERVES(false, p.softmax_scale = -1);
    SERVES(false, p.seqlen_k = p.total_k = 0);
    SERVES(true, p.q.seq = 1024 + 8, p.q.head = 136); // strides of 16 bytes
    SERVES(false, p.k.seq = 260);
    SERVES(false, p.v.data += 2);
    SERVES(true, p.k.head = p.v.head = 0, p.k.batch = 0); // one for all
    SERVES(false, p.k.seq = 0);
    SERVES(false, p.seqlen_q = 1 << 29, p.num_heads_q = 1 << 20); // too many tiles
    SERVES(true, p.head_dim = p.head_dim_v = 40);
    SERVES(true, p.head_dim = 192);
    SERVES(false, p.head_dim = 192, p.softcap = 30); // too few registers
    SERVES(true, p.head_dim = 192, p.slopes.data = (char *)memory);
    SERVES(true, p.head_dim = p.head_dim_v = 256, p.slopes.data = (char *)memory);
}

// Biases that the copy engine can read: rows of whole 16-byte pieces, one per query or one for all.
static void biases_that_it_serves(void **state) {
    (void)state;
#define BIAS(expected, dtype, rows, ...)                                                           \
    SERVES(expected, p.bias = bias_of(&p, dtype, rows), __VA_ARGS__)
    BIAS(true, TSR_BF16, 1000, (void)0);
    BIAS(true, TSR_F32, 1000, (void)0);
    BIAS(true, TSR_F32, 1, (void)0);
    BIAS(true, TSR_BF16, 1000, p.bias.shape[0] = p.bias.shape[1] = 1);
    BIAS(true, TSR_BF16, 1000, p.bias.stride[0] = p.bias.stride[1] = 0);
    BIAS(true, TSR_BF16, 1000, p.slopes.data = (char *)memory, p.dropout_threshold = 1);
    BIAS(true, TSR_BF16, 1000, p.head_dim = p.head_dim_v = 256);
    BIAS(false, TSR_F32, 1000, p.head_dim = p.head_dim_v = 256); // too little shared memory
    BIAS(false, TSR_BF16, 1000, p.softcap = 30);
    BIAS(false, TSR_BF16, 1000, p.bias.shape[3] = 1, p.bias.stride[3] = 0);
    BIAS(false, TSR_BF16, 1000, p.bias.stride[3] = 2);
    BIAS(false, TSR_BF16, 1000, p.bias.stride[2] = 1004);
    BIAS(true, TSR_BF16, 1000, p.bias.stride[2] = 1008);
    BIAS(false, TSR_BF16, 1000, p.bias.data += 2);
}

static void plans(void **state) {
    static const struct {
        int64_t head_dim, head_dim_v, block_m;
        bool has_slopes;
        float softcap;
    } cases[] = {{64, 64, 128, false, 0},   {16, 8, 192, true, 0},   {16, 8, 128, true, 30},
                 {72, 64, 128, false, 0},   {72, 64, 128, true, 30}, {192, 128, 128, false, 0},
                 {128, 136, 128, false, 0}, {256, 256, 128, true, 0}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = problem();
        struct tsri_plan plan = {0};
        p.head_dim = cases[i].head_dim;
        p.head_dim_v = cases[i].head_dim_v;
        p.mask = TSR_MASK_CAUSAL;
        if (cases[i].has_slopes) p.slopes.data = (char *)memory;
        p.softcap = cases[i].softcap;
        attention_cuda_plan_flash3(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, cases[i].block_m);
        assert_int_equal(plan.num_tasks, 32 * ((1000 + plan.block_m - 1) / plan.block_m));
        assert_int_equal(plan.block_k, 32); // all heads: the longest tasks come first
    }
    // Heads of 64 have tiles of 192 queries, unless few tiles leave too much of one empty or masked.
    static const struct {
        int64_t seqlen;
        tsr_mask mask;
        int64_t block_m, window; // left window; 0: none
    } sizes[] = {{1000, TSR_MASK_NONE, 192},        {512, TSR_MASK_NONE, 192},
                 {256, TSR_MASK_NONE, 128},         {512, TSR_MASK_CAUSAL, 128},
                 {1024, TSR_MASK_CAUSAL, 128},      {2048, TSR_MASK_CAUSAL, 192},
                 {8192, TSR_MASK_CAUSAL, 192},      {2048, TSR_MASK_CAUSAL, 128, 512},
                 {8192, TSR_MASK_CAUSAL, 128, 512}, {8192, TSR_MASK_CAUSAL, 192, 4096},
                 {2048, TSR_MASK_NONE, 192, 4096}};
    for (int i = 0; i < COUNT(sizes); i++) {
        struct attention_problem p = problem();
        struct tsri_plan plan = {0};
        p.head_dim = p.head_dim_v = 64;
        p.seqlen_q = p.seqlen_k = p.total_q = p.total_k = sizes[i].seqlen;
        p.mask = sizes[i].mask;
        p.has_window_left = sizes[i].window > 0;
        p.window_left = sizes[i].window;
        attention_cuda_plan_flash3(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, sizes[i].block_m);
    }
    // Under TSR_BATCH_INVARIANT a row's sums have one order for all lengths.
    for (int i = 0; i < COUNT(sizes); i++)
        for (int head_dim = 64; head_dim <= 256; head_dim *= 4) {
            struct attention_problem p = problem();
            struct tsri_limits limits = hopper;
            struct tsri_plan plan = {0};
            limits.flags = TSR_BATCH_INVARIANT;
            p.head_dim = p.head_dim_v = head_dim;
            p.seqlen_q = p.seqlen_k = p.total_q = p.total_k = sizes[i].seqlen;
            p.mask = sizes[i].mask;
            attention_cuda_plan_flash3(&p, &limits, &plan);
            assert_int_equal(plan.block_m, head_dim == 64 ? 192 : 128);
            assert_int_equal(plan.block_n, head_dim == 64 ? 128 : 64);
        }
}

// ---- What the driver gets -------------------------------------------------------------------------

enum { BATCH = 3, SEQLEN_Q = 300, SEQLEN_K = 500, HEADS = 4, HEADS_KV = 2, DIM = 72, DIM_V = 40 };
static _Alignas(16) uint16_t bias[HEADS * SEQLEN_Q * 504];
static _Alignas(16) uint16_t q[BATCH * SEQLEN_Q * HEADS * DIM],
    k[BATCH * SEQLEN_K * HEADS_KV * DIM], v[BATCH * SEQLEN_K * HEADS_KV * DIM_V],
    out[BATCH * SEQLEN_Q * HEADS * DIM_V];

static void check_map(int which, const void *data, uint64_t dim, uint64_t rows, uint64_t heads,
                      uint64_t batches, uint32_t box_rows) {
    const uint64_t size[] = {dim, rows, heads, batches, 1};
    const uint32_t box[] = {64, box_rows, 1, 1, 1};
    assert_ptr_equal(fake.maps[which].data, data);
    assert_int_equal(fake.maps[which].type, CU_MAP_BF16);
    assert_int_equal(fake.maps[which].swizzle, CU_MAP_SWIZZLE_128);
    assert_memory_equal(fake.maps[which].size, size, sizeof size);
    assert_memory_equal(fake.maps[which].box, box, sizeof box);
    assert_int_equal(fake.maps[which].stride[0], 2 * dim * heads);
    assert_int_equal(fake.maps[which].stride[1], 2 * dim);
    if (batches > 1) assert_int_equal(fake.maps[which].stride[2], 2 * dim * heads * rows);
}

static tsr_attention_forward_args forward_args(void) {
    return TSR_ATTENTION_FORWARD_ARGS(
            .variant = "cuda-flash3",
            .q = on_cuda(TSR_TENSOR(q, TSR_BF16, BATCH, SEQLEN_Q, HEADS, DIM)),
            .k = on_cuda(TSR_TENSOR(k, TSR_BF16, BATCH, SEQLEN_K, HEADS_KV, DIM)),
            .v = on_cuda(TSR_TENSOR(v, TSR_BF16, BATCH, SEQLEN_K, HEADS_KV, DIM_V)),
            .out = on_cuda(TSR_TENSOR(out, TSR_BF16, BATCH, SEQLEN_Q, HEADS, DIM_V)));
}

static void maps_of_tensors(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    fake.num_maps = fake.num_launches = 0;
    tsr_attention_forward_args args = forward_args();
    assert_ok(tsr_attention_forward(ctx, &args));
    assert_string_equal(tsr_context_last_variant(ctx), "cuda-flash3");
    assert_int_equal(fake.num_launches, 1);
    assert_int_equal(fake.launched.block_x, 3 * 128);
    assert_true(fake.launched.shared_bytes <= SHARED_BYTES);
    assert_int_equal(fake.num_maps, 3);
    check_map(0, q, DIM, SEQLEN_Q, HEADS, BATCH, 128);
    check_map(1, k, DIM, SEQLEN_K, HEADS_KV, BATCH, 128);
    check_map(2, v, DIM_V, SEQLEN_K, HEADS_KV, BATCH, 128);
    tsr_context_destroy(ctx);
}

// One bias for all batches whose rows are longer than seqlen_k, or one row for all queries.
static void map_of_a_bias(void **state) {
    (void)state;
    tsr_context *ctx = cuda_context();
    for (int is_one = 0; is_one < 2; is_one++) {
        tsr_tensor rows = on_cuda(TSR_TENSOR(bias, TSR_BF16, 1, HEADS, SEQLEN_Q, 504));
        rows.shape[3] = SEQLEN_K;
        if (is_one) rows.shape[2] = 1;
        count_anew(ctx);
        tsr_attention_forward_args args = forward_args();
        args.bias = rows;
        assert_ok(tsr_attention_forward(ctx, &args));
        assert_true(fake.launched.shared_bytes <= SHARED_BYTES);
        assert_int_equal(fake.num_maps, 4);
        const uint64_t size[] = {SEQLEN_K, is_one ? 1 : SEQLEN_Q, HEADS, 1, 1};
        const uint32_t box[] = {64, is_one ? 1 : 128, 1, 1, 1};
        assert_ptr_equal(fake.maps[1].data, bias);
        assert_memory_equal(fake.maps[1].size, size, sizeof size);
        assert_memory_equal(fake.maps[1].box, box, sizeof box);
        if (!is_one) assert_int_equal(fake.maps[1].stride[0], 2 * 504);
        assert_int_equal(fake.maps[1].stride[1], 2 * 504 * SEQLEN_Q);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_it_serves), cmocka_unit_test(biases_that_it_serves),
        cmocka_unit_test(plans),          cmocka_unit_test(maps_of_tensors),
        cmocka_unit_test(map_of_a_bias),
    };
    return cmocka_run_group_tests_name("attention flash3", tests, setup_pack, teardown_pack);
}
