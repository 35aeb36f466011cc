// SPDX-License-Identifier: Apache-2.0
// Blocks, tasks and workspace of the variants of attention's backward. Pure.
#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/backward/attention_grad_mixed.h"

enum {
    FLASH_BLOCK = 64, // rows and keys, as in the papers
    NAIVE_BLOCK_M = 96,
    TUNED_BLOCK_M = 96, // a multiple of the register tile's 6 and 4 rows
    BLOCK_N = 256,
    RUN_KEYS = 64,
    MIXED_BLOCK_M = 128,
    MIXED_SHORT = 256, // longer sequences have runs of MIXED_RUN_KEYS
    MIXED_RUN_KEYS = 128,
    ENOUGH_TASKS = 16, // wanted tasks: heads, or runs of their keys
    MANY_TASKS = 128,  // wanted tasks, where runs need not be short
    EVEN_RUN_KEYS = 128,
    MOST_SUM_FLOATS = 48 << 20, // dq of all runs, at most
    FEW_THREADS = 4,
    TASKS_OF_A_THREAD = 8,
    SPAN_TASKS = 32, // wanted tasks, where there are spans
    SPAN_ROWS = 192, // rows of a span, at least
    MIXED_SPAN_ROWS = 1024,
};

static size_t bytes(int64_t floats) { return (size_t)floats * sizeof(float); }

// Keys of a run so that all heads together give MANY_TASKS tasks, or as many as their sums of dq allow. Rounded up to steps of a
// block, or to whole blocks.
static int64_t even_run_keys(const struct attention_problem *p, int64_t pairs, int64_t block_n,
                             bool is_mixed, int64_t run_floats) {
    int64_t wanted = tsri_ceil_div(MANY_TASKS, pairs);
    int64_t most = tsri_max(MOST_SUM_FLOATS / tsri_max(run_floats, 1), 1);
    int64_t keys = tsri_max(tsri_ceil_div(p->seqlen_k, tsri_min(wanted, most)), 1);
    int64_t step = is_mixed || keys > block_n ? block_n : tsri_min(EVEN_RUN_KEYS, block_n);
    return (int64_t)tsri_round_up((size_t)keys, (size_t)step);
}

// Whether a task takes a whole head. Many threads differ in speed and need more tasks. Few threads divide the heads evenly.
static bool has_whole_heads(int64_t pairs, int num_threads) {
    return pairs >= 4 * num_threads || num_threads == 1 ||
           (num_threads <= FEW_THREADS && pairs % num_threads == 0);
}

// Spans serve many rows with few keys, which give few runs. A span needs enough rows to be worth its own dk and dv; bf16
// transposes these once per span.
static int64_t least_span_rows(bool is_mixed) { return is_mixed ? MIXED_SPAN_ROWS : SPAN_ROWS; }

// With fewer rows per key there are enough runs, and the additions of spans would cost too much.
static bool may_have_spans(const struct attention_problem *p) {
    return attention_most_rows(p) >= 2 * p->seqlen_k;
}

static void plan_spans(const struct attention_problem *p, const struct tsri_plan *plan,
                       int64_t pairs, int num_threads, bool is_mixed,
                       struct attention_backward_layout *l) {
    int64_t wanted = tsri_ceil_div(SPAN_TASKS, pairs * l->num_runs);
    int64_t rows = may_have_spans(p) ? tsri_ceil_div(l->rows, wanted) : l->rows;
    rows = tsri_max(rows, least_span_rows(is_mixed));
    l->span_rows = tsri_ceil_div(rows, plan->block_m) * plan->block_m;
    l->num_spans = tsri_max(tsri_ceil_div(l->rows, l->span_rows), 1);
    l->has_all_spans = l->num_spans == 1 || has_whole_heads(pairs, num_threads);
    l->own_rows = l->has_all_spans ? l->dq_rows : l->span_rows;
    l->span_keys = (int64_t)tsri_round_up((size_t)p->seqlen_k, ATTENTION_STRIP);
    l->dk_stride = attention_row_stride(p->head_dim);
    l->dv_stride = attention_row_stride(p->head_dim_v);
    int64_t floats = l->span_keys * (l->dk_stride + l->dv_stride);
    if (!l->has_all_spans) l->dkv_floats = attention_num_pairs(p) * l->num_spans * floats;
}

struct attention_backward_layout attention_backward_layout(const struct attention_problem *p,
                                                           const struct tsri_plan *plan,
                                                           int num_threads, bool is_mixed) {
    struct attention_backward_layout l = {.rows = attention_most_rows(p), .num_runs = 1};
    // The number of runs depends on the number of heads. Under TSR_BATCH_INVARIANT it is that of many heads: whole heads.
    bool is_invariant = (plan->flags & TSR_BATCH_INVARIANT) != 0;
    int64_t pairs = is_invariant ? MANY_TASKS : tsri_max(attention_num_pairs(p), 1);
    int64_t wanted = tsri_ceil_div(ENOUGH_TASKS, pairs);
    int64_t block = plan->block_n, blocks = tsri_max(tsri_ceil_div(p->seqlen_k, block), 1);
    // If spans give enough tasks, a single block is one run: the last of several runs could have few keys.
    bool is_spanned = blocks == 1 && pairs < SPAN_TASKS && may_have_spans(p) &&
                      pairs * (l.rows / least_span_rows(is_mixed)) >= ENOUGH_TASKS;
    if (is_spanned) wanted = 1;
    l.dq_rows = (int64_t)tsri_round_up((size_t)l.rows, ATTENTION_STRIP);
    l.dq_stride = attention_row_stride(p->head_dim);
    // If there are few long blocks, runs are shorter, and a task may take several at once. In bf16 they are whole parts of a block
    // and not too many, as each run prepares all rows again.
    if (blocks < wanted) {
        int64_t unit = is_mixed && p->seqlen_k > MIXED_SHORT ? MIXED_RUN_KEYS : RUN_KEYS;
        while (is_mixed && unit * wanted < p->seqlen_k) unit *= 2;
        int64_t keys = tsri_ceil_div(p->seqlen_k, wanted * unit) * unit;
        block = tsri_max(tsri_min(keys, block), 1);
        blocks = tsri_max(tsri_ceil_div(p->seqlen_k, block), 1);
    }
    if (pairs < ENOUGH_TASKS) l.num_runs = tsri_min(wanted, blocks);
    l.run_keys = tsri_ceil_div(blocks, l.num_runs) * block;
    if (!is_spanned)
        l.run_keys = tsri_min(l.run_keys, even_run_keys(p, pairs, plan->block_n, is_mixed,
                                                        pairs * l.dq_rows * l.dq_stride));
    l.num_runs = tsri_max(tsri_ceil_div(p->seqlen_k, l.run_keys), 1);
    bool is_one_block = p->seqlen_k <= plan->block_n;
    l.group_runs = is_one_block ? l.num_runs : tsri_max(plan->block_n / l.run_keys, 1);
    if (!is_mixed) l.group_runs = 1;
    int64_t group_keys = l.group_runs * l.run_keys;
    l.has_unit = l.num_runs > l.group_runs && (is_mixed || l.run_keys > plan->block_n);
    int64_t tasks = (int64_t)num_threads * (p->mask == TSR_MASK_NONE ? 1 : 2);
    bool is_short = is_mixed && is_one_block; // such runs cost most one by one
    if (num_threads > FEW_THREADS && !is_short) tasks = (int64_t)num_threads * TASKS_OF_A_THREAD;
    l.task_runs =
        has_whole_heads(pairs, num_threads) ? l.num_runs : tsri_max(pairs * l.num_runs / tasks, 1);
    l.task_runs = tsri_min(l.task_runs, l.num_runs);
    // A task may take groups of one block at once; each other group has its own sum. If tasks are smaller than a group, each run
    // has its own.
    bool is_whole = l.task_runs == l.num_runs;
    if (l.has_unit && !is_whole) l.task_runs = tsri_min(l.task_runs, l.group_runs);
    l.sum_keys = is_whole || l.task_runs >= l.group_runs ? group_keys : l.run_keys;
    l.num_sums = is_whole ? 1 : tsri_ceil_div(l.num_runs * l.run_keys, l.sum_keys);
    plan_spans(p, plan, pairs, num_threads, is_mixed, &l);
    l.stats_floats = attention_statistics_floats(attention_num_pairs(p) * l.rows);
    if (!is_whole && p->dq.data != NULL && plan->block_k == ATTENTION_ONE_PASS)
        l.dq_floats = attention_num_pairs(p) * l.num_sums * l.dq_rows * l.dq_stride;
    return l;
}

int64_t attention_statistics_floats(int64_t rows) {
    return attention_round16(rows * (int64_t)(sizeof(struct attention_statistics) / sizeof(float)));
}

int64_t attention_backward_tile_floats(const struct attention_problem *p, tsr_isa isa,
                                       int64_t block_m, int64_t block_n, bool is_mixed) {
    int64_t floats = attention_grad_floats(p, block_m, block_n, gemm_kernels(isa)->nr);
    return is_mixed ? tsri_max(floats, attention_grad_mixed_floats(p, block_m, block_n)) : floats;
}

static void plan_backward(const struct attention_problem *p, const struct tsri_limits *limits,
                          int64_t block_m, int64_t block_n, int passes, bool is_mixed,
                          struct tsri_plan *plan) {
    int nr = gemm_kernels(limits->isa)->nr;
    plan->block_m = block_m;
    plan->block_n = block_n;
    plan->block_k = passes;
    struct attention_backward_layout l =
        attention_backward_layout(p, plan, limits->num_threads, is_mixed);
    plan->num_tasks = attention_num_pairs(p) * tsri_ceil_div(l.num_runs, l.task_runs) *
                      (l.has_all_spans ? 1 : l.num_spans);
    plan->grain =
        attention_backward_tile_floats(p, limits->isa, block_m, block_n, is_mixed) +
        block_n * (l.dk_stride + l.dv_stride) * (l.has_all_spans && l.num_spans > 1 ? 2 : 1);
    if (l.dq_floats == 0)
        plan->grain += l.dq_stride * (passes == ATTENTION_TWO_PASSES ? block_m : l.own_rows) *
                       (l.has_unit ? 2 : 1);
    if (l.sum_keys > l.run_keys) // runs reach their sum through a block of rows
        plan->grain += l.dq_stride * block_m;
    if (p->dbias.data != NULL)
        plan->grain = tsri_max(plan->grain, attention_grad_bias_floats(p, nr));
    plan->grain = attention_round16(plan->grain);
    plan->workspace_bytes =
        bytes(l.stats_floats + l.dq_floats + l.dkv_floats + plan->grain * limits->num_threads) +
        tsri_round_up((size_t)(attention_num_pairs(p) * tsri_ceil_div(l.rows, block_m)), 64);
}

void attention_plan_tuned_backward(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int64_t nr = gemm_kernels(limits->isa)->nr;
    int64_t keys = (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), (size_t)nr);
    plan_backward(p, limits, TUNED_BLOCK_M, tsri_min(BLOCK_N, keys), ATTENTION_ONE_PASS, false,
                  plan);
}

// The block is as long as dk, dv and a panel of each operand fit in the second-level cache.
static void plan_mixed_backward(const struct attention_problem *p, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    int64_t rows =
        (int64_t)tsri_round_up((size_t)tsri_max(attention_most_rows(p), 1), ATTENTION_STRIP);
    int64_t keys = (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), GEMM_BF16_NR);
    bool is_long = limits->l2_bytes >= 2 << 20 && tsri_max(p->head_dim, p->head_dim_v) <= 128;
    int64_t most_n = is_long ? ATTENTION_GRAD_MIXED_MOST_N : ATTENTION_GRAD_MIXED_MOST_N / 2;
    plan_backward(p, limits, tsri_min(MIXED_BLOCK_M, rows), tsri_min(most_n, keys),
                  ATTENTION_ONE_PASS, true, plan);
}

void attention_plan_amx_bf16_backward(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan) {
    plan_mixed_backward(problem, limits, plan);
}

void attention_plan_avx512_bf16_backward(const void *problem, const struct tsri_limits *limits,
                                         struct tsri_plan *plan) {
    plan_mixed_backward(problem, limits, plan);
}

void attention_plan_flash1_backward(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    plan_backward(problem, limits, FLASH_BLOCK, FLASH_BLOCK, ATTENTION_ONE_PASS, false, plan);
}

void attention_plan_flash2_backward(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    plan_backward(problem, limits, FLASH_BLOCK, FLASH_BLOCK, ATTENTION_TWO_PASSES, false, plan);
}

void attention_plan_naive_backward(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    int64_t rows = attention_num_pairs(p) * attention_most_rows(p);
    plan->block_m = NAIVE_BLOCK_M;
    plan->block_n = BLOCK_N;
    plan->num_tasks = attention_num_pairs(p) * tsri_ceil_div(attention_most_rows(p), plan->block_m);
    plan->grain = attention_grad_floats(p, plan->block_m, tsri_max(p->seqlen_k, 1), nr) +
                  tsri_max(plan->block_n, plan->block_m) *
                      (attention_round16(p->head_dim) + attention_round16(p->head_dim_v) + 32);
    if (p->dbias.data != NULL)
        plan->grain = tsri_max(plan->grain, attention_grad_bias_floats(p, nr));
    plan->grain = attention_round16(plan->grain);
    plan->workspace_bytes =
        bytes(attention_statistics_floats(rows) + 2 * attention_round16(rows * p->seqlen_k) +
              plan->grain * limits->num_threads) +
        tsri_round_up((size_t)plan->num_tasks, 64);
}
