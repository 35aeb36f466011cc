// SPDX-License-Identifier: Apache-2.0
// Attention with few queries and keys on Hopper without a GPU: which problems cuda-small serves, with which tiles, and
// where it is the default, forward and backward.
#include "attention_flash3_case.h"
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "test_support.h"

// 4 sequences with as many query heads as key heads.
static struct attention_problem few(int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                                    int64_t head_dim) {
    struct attention_problem p = problem();
    p.seqlen_q = p.total_q = seqlen_q;
    p.seqlen_k = p.total_k = seqlen_k;
    p.num_heads_q = p.num_heads_kv = heads;
    p.head_dim = p.head_dim_v = head_dim;
    p.q = p.out = p.dout = p.dq = view_of(seqlen_q, heads, head_dim);
    p.k = p.v = p.dk = p.dv = view_of(seqlen_k, heads, head_dim);
    return p;
}

// It is the default if there are few blocks.
static void forward(void **state) {
    static const struct {
        int64_t seqlen_q, seqlen_k, heads, head_dim;
        float softcap;
        bool is_small, is_preferred;
        int form; // 0: blocks of 32 queries; 1: of 128; 2: whole heads of up to 64
    } cases[] = {
        {32, 32, 4, 16, 0, true, true, 0},      {128, 128, 8, 32, 0, true, true, 0},
        {256, 256, 8, 64, 0, true, true, 0},    {256, 256, 16, 64, 0, true, true, 1},
        {256, 256, 17, 64, 0, true, false, 1},  {65, 128, 11, 128, 0, true, true, 0},
        {65, 128, 12, 128, 0, true, false, 0},  {65, 129, 11, 128, 0, true, false, 0},
        {66, 257, 32, 128, 0, false, false, 0}, {32, 32, 4, 136, 0, false, false, 0},
        {32, 32, 4, 64, 30, false, false, 0},   {32, 32, 999, 64, 0, true, true, 2},
        {33, 64, 999, 64, 0, true, true, 2},    {64, 64, 17, 128, 0, true, true, 2},
        {64, 64, 16, 128, 0, true, true, 0},    {65, 64, 99, 64, 0, true, false, 1},
    };
    static const int rows[] = {32, 128, 64};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p =
            few(cases[i].seqlen_q, cases[i].seqlen_k, cases[i].heads, cases[i].head_dim);
        struct tsri_limits limits = hopper;
        struct tsri_plan plan = {0};
        p.softcap = cases[i].softcap;
        assert_int_equal(attention_cuda_has_small(&p, &limits), cases[i].is_small);
        const char *preferred = attention_cuda_prefer_forward(&p, &limits);
        assert_int_equal(preferred != NULL, cases[i].is_preferred);
        if (preferred != NULL) assert_string_equal(preferred, "cuda-small");
        attention_cuda_plan_small(&p, &limits, &plan);
        assert_int_equal(plan.grain, cases[i].form);
        assert_int_equal(plan.num_tasks, 4 * cases[i].heads *
                                             tsri_ceil_div(cases[i].seqlen_q, rows[cases[i].form]));
        limits.flags = TSR_BATCH_INVARIANT; // its order of sums depends on other rows and heads
        assert_null(attention_cuda_prefer_forward(&p, &limits));
        assert_false(attention_cuda_has_small(&p, &limits));
    }
}

// Blocks of 64 or 128 keys. A head's blocks form a cluster.
static void backward(void **state) {
    static const struct {
        int64_t seqlen_q, seqlen_k, heads, head_dim;
        bool is_small, is_preferred;
        int64_t keys, blocks, queries;
    } cases[] = {
        {32, 32, 4, 16, true, true, 64, 1, 64},      {128, 128, 8, 32, true, true, 64, 2, 64},
        {256, 256, 4, 64, true, true, 64, 4, 64},    {256, 256, 8, 64, true, true, 128, 2, 128},
        {256, 256, 16, 64, true, true, 128, 2, 128}, {100, 190, 8, 64, true, true, 64, 3, 64},
        {50, 60, 99, 64, true, true, 64, 1, 64},     {256, 40, 8, 64, true, true, 64, 1, 256},
        {257, 256, 8, 64, false, false, 0, 0, 0},    {256, 257, 8, 64, false, false, 0, 0, 0},
        {32, 32, 4, 136, false, false, 0, 0, 0},     {256, 256, 67, 64, true, false, 128, 2, 128},
        {32, 32, 4, 72, true, true, 64, 1, 64},      {128, 128, 33, 128, true, true, 64, 2, 64},
        {128, 128, 34, 128, true, false, 64, 2, 64}, {129, 128, 4, 128, false, false, 0, 0, 0},
        {16, 16, 999, 64, true, true, 64, 1, 64},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        struct attention_problem p =
            few(cases[i].seqlen_q, cases[i].seqlen_k, cases[i].heads, cases[i].head_dim);
        struct tsri_limits limits = hopper;
        struct tsri_plan plan = {0};
        assert_int_equal(attention_cuda_has_small_backward(&p, &limits), cases[i].is_small);
        assert_int_equal(attention_backward_prefers_small(&p, &limits), cases[i].is_preferred);
        limits.flags = TSR_BATCH_INVARIANT;
        assert_false(attention_backward_prefers_small(&p, &limits));
        assert_null(attention_cuda_prefer_backward(&p, &limits));
        if (!cases[i].is_small) continue;
        attention_cuda_plan_small_backward(&p, &limits, &plan);
        assert_int_equal(plan.block_n, cases[i].keys);
        assert_int_equal(plan.block_k, cases[i].blocks);
        assert_int_equal(plan.block_m, cases[i].queries);
        assert_int_equal(plan.num_tasks, 4 * cases[i].heads * cases[i].blocks);
        assert_int_equal(plan.workspace_bytes, 0);
    }
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct attention_problem p = few(100, 100, 4, 64);                                         \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(attention_cuda_has_small_backward(&p, &limits), expected);                \
    } while (0)

static void what_backward_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(true, p.dtype = TSR_F16);
    SERVES(false, p.dtype = TSR_F32);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.shared_bytes_per_block = 65536);
    SERVES(true, p.mask = TSR_MASK_CAUSAL, p.has_window_left = true, p.window_left = 5);
    SERVES(true, p.sinks.data = (char *)memory);
    SERVES(false, p.dsinks.data = (char *)memory);
    SERVES(false, p.softcap = 30);
    SERVES(false, p.bias.data = (char *)memory);
    SERVES(false, p.slopes.data = (char *)memory);
    SERVES(false, p.dropout_threshold = 1);
    SERVES(false, p.num_heads_kv = 2);
    SERVES(false, p.is_packed = true);
    SERVES(false, p.seqused_k = (const int32_t *)(const void *)memory);
    SERVES(false, p.num_batches = 0);
    SERVES(false, p.dq.seq = 260);
    SERVES(false, p.out.data += 2);
    SERVES(true, p.dq.data = NULL);
    SERVES(true, p.dk.data = p.dv.data = NULL);
}

// Variants that copy and store 16-byte pieces check every tensor, including outputs, and every stride.
static void every_tensor_is_aligned(void **state) {
    static const struct {
        bool (*serves)(const void *problem, const struct tsri_limits *limits);
        int num_views;
        const char *name;
    } variants[] = {
        {attention_cuda_has_flash3, 4, "cuda-flash3"},
        {attention_cuda_has_small, 4, "cuda-small"},
        {attention_cuda_has_few, 4, "cuda-few"},
        {attention_cuda_has_flash2, 4, "cuda-flash2"},
        {attention_cuda_has_flash3_backward, 7, "cuda-flash3 backward"},
        {attention_cuda_has_small_backward, 8, "cuda-small backward"},
    };
    (void)state;
    for (int v = 0; v < COUNT(variants); v++) {
        struct attention_problem p = few(100, 100, 4, 64);
        // For backward a separate kernel reads out in any layout; cuda-small has no such kernel.
        struct attention_view *const views[] = {
            &p.q,  &p.k,  &p.v,  variants[v].num_views == 4 ? &p.out : &p.dout,
            &p.dq, &p.dk, &p.dv, &p.out};
        assert_true(variants[v].serves(&p, &hopper));
        for (int i = 0; i < variants[v].num_views; i++) {
            const struct attention_view aligned = *views[i];
            int64_t *const strides[] = {&views[i]->batch, &views[i]->seq, &views[i]->head};
            for (int s = 0; s <= COUNT(strides); s++) {
                if (s < COUNT(strides))
                    ++*strides[s];
                else
                    views[i]->data += sizeof(uint16_t);
                if (variants[v].serves(&p, &hopper))
                    fail_msg("%s: tensor %d, %s", variants[v].name, i,
                             s < COUNT(strides) ? "a stride" : "its start");
                *views[i] = aligned;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),
        cmocka_unit_test(backward),
        cmocka_unit_test(what_backward_serves),
        cmocka_unit_test(every_tensor_is_aligned),
    };
    return cmocka_run_group_tests_name("attention small", tests, NULL, NULL);
}
