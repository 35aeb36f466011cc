// SPDX-License-Identifier: Apache-2.0
// fp32 attention on tensor cores without a GPU: which problems cuda-flash2 serves, and with which tiles.
#include "ops/attention/cuda/attention_cuda.h"
#include "test_support.h"

static _Alignas(16) float memory[1024];

static const struct tsri_limits hopper = {.device = {TSR_CUDA, 0},
                                          .cuda_arch = 90,
                                          .num_sms = 132,
                                          .l2_bytes = 50 << 20,
                                          .shared_bytes_per_block = 232448};

static struct attention_view view_of(int64_t seqlen, int64_t heads, int64_t dim) {
    return (struct attention_view){(char *)memory, TSR_F32, seqlen * heads * dim, heads * dim, dim};
}

// 4 sequences of 1000 tokens, 12 heads of 64.
static struct attention_problem problem(void) {
    return (struct attention_problem){.q = view_of(1000, 12, 64),
                                      .k = view_of(1000, 12, 64),
                                      .v = view_of(1000, 12, 64),
                                      .out = view_of(1000, 12, 64),
                                      .dtype = TSR_F32,
                                      .num_batches = 4,
                                      .seqlen_q = 1000,
                                      .seqlen_k = 1000,
                                      .total_q = 1000,
                                      .total_k = 1000,
                                      .num_heads_q = 12,
                                      .num_heads_kv = 12,
                                      .head_dim = 64,
                                      .head_dim_v = 64,
                                      .softmax_scale = 0.125};
}

#define SERVES(has, expected, ...)                                                                 \
    do {                                                                                           \
        struct attention_problem p = problem();                                                    \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(has(&p, &limits), expected);                                              \
    } while (0)

#define FORWARD attention_cuda_has_flash2
#define BACKWARD attention_cuda_has_flash2_backward

enum { AMPERE_BYTES = 166912 };

static void what_forward_serves(void **state) {
    (void)state;
    SERVES(FORWARD, true, p.q.seq = 769, p.k.data += 4); // no alignment needed
    SERVES(FORWARD, false, p.dtype = TSR_BF16, p.q.seq = 769);
    SERVES(FORWARD, true, p.head_dim = 1, p.head_dim_v = 255, p.sinks.data = (char *)memory);
    SERVES(FORWARD, true, p.softmax_scale = -1, p.softcap = 30, p.dropout_threshold = 1);
    SERVES(FORWARD, true, p.bias.data = p.slopes.data = p.sinks.data = (char *)memory);
    SERVES(FORWARD, false, limits.cuda_arch = 75);
    SERVES(FORWARD, true, limits.cuda_arch = 80, limits.shared_bytes_per_block = AMPERE_BYTES,
           p.head_dim = 128);
    SERVES(FORWARD, true, limits.cuda_arch = 80, limits.shared_bytes_per_block = AMPERE_BYTES,
           p.head_dim = 129);
    SERVES(FORWARD, false, limits.cuda_arch = 80, p.head_dim = 129,
           limits.shared_bytes_per_block = AMPERE_BYTES - 4096);
    SERVES(FORWARD, true, p.head_dim = 256);
    SERVES(FORWARD, false, p.head_dim = 256, p.softcap = 30); // too few registers
    SERVES(FORWARD, true, p.head_dim = 128, p.softcap = 30);
    SERVES(FORWARD, false, p.dtype = TSR_F64);
}

static void what_backward_serves(void **state) {
    (void)state;
    SERVES(BACKWARD, true, p.dout.seq = 769, p.k.data += 4);
    SERVES(BACKWARD, true, p.head_dim = 128, p.dropout_threshold = 1); // fits barely, with scratch
    SERVES(BACKWARD, false, p.head_dim = 129);
    SERVES(BACKWARD, false, p.head_dim_v = 129);
    SERVES(BACKWARD, true, p.dtype = TSR_BF16, p.head_dim = 256);
    SERVES(BACKWARD, false, limits.cuda_arch = 75);
    SERVES(BACKWARD, true, limits.shared_bytes_per_block = AMPERE_BYTES);
    SERVES(BACKWARD, true, limits.shared_bytes_per_block = AMPERE_BYTES, p.head_dim = 128);
    SERVES(BACKWARD, true, limits.shared_bytes_per_block = 99 << 10, p.head_dim = 128); // narrow
    SERVES(BACKWARD, false, limits.shared_bytes_per_block = 48 << 10, p.head_dim = 128);
    SERVES(BACKWARD, false, p.dtype = TSR_F64);
}

static void backward_plans(void **state) {
    (void)state;
    for (int64_t head_dim = 64; head_dim <= 128; head_dim += 64) {
        struct attention_problem p = problem();
        struct tsri_plan plan = {0};
        p.head_dim = head_dim;
        attention_cuda_plan_flash2_backward(&p, &hopper, &plan);
        assert_int_equal(plan.block_k, head_dim);
        assert_int_equal(plan.block_m, head_dim); // rows per block: 16 per warp
        assert_int_equal(plan.block_n, head_dim);
    }
}

static void plans(void **state) {
    static const struct {
        int64_t head_dim, seqlen, block_m, block_n;
    } cases[] = {{64, 1000, 64, 64}, {40, 700, 64, 64},   {64, 512, 64, 64},
                 {8, 1, 64, 64},     {72, 1000, 64, 128}, {136, 100, 64, 256}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p = problem();
        struct tsri_plan plan = {0};
        p.head_dim = cases[i].head_dim;
        p.seqlen_q = cases[i].seqlen;
        attention_cuda_plan_flash2(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, cases[i].block_m);
        assert_int_equal(plan.block_n, cases[i].block_n);
        assert_int_equal(plan.num_tasks, 48 * ((p.seqlen_q + plan.block_m - 1) / plan.block_m));
        assert_int_equal(plan.grain, 0); // flash3 does not serve fp32
        p.softcap = 30;
        attention_cuda_plan_flash2(&p, &hopper, &plan);
        assert_int_equal(plan.grain, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_forward_serves),
        cmocka_unit_test(what_backward_serves),
        cmocka_unit_test(plans),
        cmocka_unit_test(backward_plans),
    };
    return cmocka_run_group_tests_name("attention f32", tests, NULL, NULL);
}
