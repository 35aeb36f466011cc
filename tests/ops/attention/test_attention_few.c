// SPDX-License-Identifier: Apache-2.0
// cuda-few without a GPU: which problems it serves, how it places queries in tiles and keys in runs, and where it is
// the default.
#include "attention_flash3_case.h"
#include "context/plan_memo.h"
#include "test_support.h"

extern const struct tsri_op tsri_attention_forward_op;

// `heads` query heads, 8 key heads.
static struct attention_problem few(int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
                                    int64_t heads, int64_t head_dim) {
    struct attention_problem p = problem();
    p.num_batches = batch;
    p.seqlen_q = p.total_q = seqlen_q;
    p.seqlen_k = p.total_k = seqlen_k;
    p.num_heads_q = heads;
    p.num_heads_kv = 8;
    p.head_dim = p.head_dim_v = head_dim;
    p.q = p.out = view_of(seqlen_q, heads, head_dim);
    p.k = p.v = view_of(seqlen_k, 8, head_dim);
    p.mask = TSR_MASK_CAUSAL;
    return p;
}

#define SERVES(expected, ...)                                                                      \
    do {                                                                                           \
        struct attention_problem p = few(1, 16, 8192, 32, 128);                                    \
        struct tsri_limits limits = hopper;                                                        \
        __VA_ARGS__;                                                                               \
        assert_int_equal(attention_cuda_has_few(&p, &limits), expected);                           \
    } while (0)

static void what_it_serves(void **state) {
    (void)state;
    SERVES(true, (void)0);
    SERVES(true, p.dtype = TSR_F16);
    SERVES(true, p.has_window_left = true, p.window_left = 5);
    SERVES(true, p.sinks.data = (char *)memory);
    SERVES(true, p.seqused_k = (const int32_t *)(const void *)memory);
    SERVES(true, p.is_packed = true);
    SERVES(true, p.head_dim_v = 64);
    SERVES(true, p.num_heads_kv = 32);
    SERVES(false, p.dtype = TSR_F32);
    SERVES(false, limits.cuda_arch = 80);
    SERVES(false, limits.flags = TSR_BATCH_INVARIANT); // runs depend on other rows and heads
    SERVES(false, limits.shared_bytes_per_block = 65536);
    SERVES(true, p.softcap = 30);
    SERVES(true, p.head_dim = p.head_dim_v = 256);
    SERVES(false, p.head_dim = p.head_dim_v = 256, p.softcap = 30);
    SERVES(false, p.num_heads_q = 0);
    SERVES(false, p.slopes.data = (char *)memory); // one slope per row
    SERVES(false, p.dropout_threshold = 1);
    SERVES(false, p.bias = bias_of(&p, TSR_BF16, 16));
    SERVES(false, p.num_heads_q = 8 * 129); // more rows than a tile
    SERVES(false, p.q.head = 0);            // a map cannot repeat a head
    SERVES(false, p.q.head = 130);
}

// Rows are queries times the heads of a group.
static void tiles_and_runs(void **state) {
    static const struct {
        int64_t batch, seqlen_q, seqlen_k, heads, head_dim;
        int64_t rows, queries, runs, tasks;
    } cases[] = {
        {1, 1, 8192, 32, 128, 64, 16, 16, 128},
        {1, 16, 8192, 32, 64, 64, 16, 16, 128},
        {1, 17, 600, 8, 128, 64, 64, 5, 40},
        {1, 3, 8192, 56, 128, 64, 9, 16, 128},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        const struct attention_problem p = few(cases[i].batch, cases[i].seqlen_q, cases[i].seqlen_k,
                                               cases[i].heads, cases[i].head_dim);
        struct tsri_plan plan = {0};
        assert_true(attention_cuda_has_few(&p, &hopper));
        attention_cuda_plan_few(&p, &hopper, &plan);
        assert_int_equal(plan.block_m, cases[i].rows);
        assert_int_equal(plan.block_n, 128);
        assert_int_equal(plan.grain, cases[i].queries);
        assert_int_equal(plan.block_k, cases[i].runs);
        assert_int_equal(plan.num_tasks, cases[i].tasks);
        // Each row has its columns, a maximum and a sum.
        assert_int_equal(plan.workspace_bytes, cases[i].runs > 1 ? cases[i].tasks * cases[i].rows *
                                                                       (cases[i].head_dim + 2) * 4
                                                                 : 0);
    }
}

static void where_it_is_the_default(void **state) {
    static const struct {
        int64_t batch, seqlen_q, seqlen_k, heads, head_dim;
        bool is_default;
    } cases[] = {
        {1, 1, 8192, 32, 128, true},     {1, 128, 8192, 32, 128, true},
        {8, 16, 2048, 32, 64, true},     {8, 16, 8192, 32, 128, true},
        {8, 2048, 2048, 32, 128, false}, {1, 8192, 8192, 32, 128, false},
        {32, 1024, 1024, 32, 64, false}, {1, 1, 256, 32, 128, false},
        {1, 1000, 1000, 32, 128, false}, {1, 16, 8192, 32, 256, true},
        {8, 64, 2048, 32, 256, true},    {8, 1024, 2048, 32, 256, false},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        const struct attention_problem p = few(cases[i].batch, cases[i].seqlen_q, cases[i].seqlen_k,
                                               cases[i].heads, cases[i].head_dim);
        struct tsri_limits limits = hopper;
        const char *preferred = attention_cuda_prefer_forward(&p, &limits);
        assert_int_equal(preferred != NULL && strcmp(preferred, "cuda-few") == 0,
                         cases[i].is_default);
        limits.flags = TSR_BATCH_INVARIANT;
        assert_null(attention_cuda_prefer_forward(&p, &limits));
    }
}

// Contexts cache plans. New dropout offsets do not change the plan; a new mask does.
static void remembered_plans(void **state) {
    (void)state;
    static struct tsri_plan_memo memo;
    struct tsri_limits limits = hopper;
    limits.memo = &memo;
    const struct tsri_call call = {.size = sizeof call};
    struct attention_problem p = few(1, 16, 8192, 32, 128);
    p.mask = TSR_MASK_NONE;
    struct tsri_plan first, plan;
    assert_ok(tsri_op_plan(&tsri_attention_forward_op, &p, &limits, &call, &first));
    assert_string_equal(first.variant->name, "cuda-few");
    p.q.data += 256, p.out.data += 512, p.seed = 1, p.offset = 2;
    assert_ok(tsri_op_plan(&tsri_attention_forward_op, &p, &limits, &call, &plan));
    assert_int_equal(memo.next, 1);
    assert_ptr_equal(plan.variant, first.variant);
    assert_int_equal(plan.block_k, first.block_k);
    assert_int_equal(plan.workspace_bytes, first.workspace_bytes);
    p.k.data += 2; // misaligned for the copy engine
    assert_ok(tsri_op_plan(&tsri_attention_forward_op, &p, &limits, &call, &plan));
    assert_int_equal(memo.next, 2);
    assert_string_not_equal(plan.variant->name, "cuda-few");
    p.k.data -= 2, p.mask = TSR_MASK_CAUSAL;
    assert_ok(tsri_op_plan(&tsri_attention_forward_op, &p, &limits, &call, &plan));
    assert_int_equal(memo.next, 3);
    p.mask = TSR_MASK_NONE;
    assert_ok(tsri_op_plan(&tsri_attention_forward_op, &p, &limits, &call, &plan));
    assert_int_equal(memo.next, 3);
    assert_ptr_equal(plan.variant, first.variant);
    assert_int_equal(plan.block_k, first.block_k);
    assert_int_equal(plan.workspace_bytes, first.workspace_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remembered_plans),
        cmocka_unit_test(what_it_serves),
        cmocka_unit_test(tiles_and_runs),
        cmocka_unit_test(where_it_is_the_default),
    };
    return cmocka_run_group_tests_name("attention few", tests, NULL, NULL);
}
