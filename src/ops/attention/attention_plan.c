// SPDX-License-Identifier: Apache-2.0
// Blocks, tasks and workspace of attention's variants. Pure.
#include "ops/attention/attention_grad.h"
#include "ops/attention/attention_grad_mixed.h"
#include "ops/attention/attention_mixed.h"

enum {
    FLASH_BLOCK_M = 64, // as in the papers
    FLASH_BLOCK_N = 64,
    NAIVE_BLOCK_M = 96,
    TUNED_BLOCK_M = 96, // a multiple of the register tile's 6 and 4 rows
    TUNED_TALL_BLOCK_M = 192,
    LEAST_BLOCK_M = 24,      // of few tiles
    TILE_COST = 8,           // rows that a tile lasts longer than its own
    PACKED_AGAIN = 96 << 10, // elements of keys and values, by a thread
    MANY_TILES = 32,         // of a thread: any height is even
    TUNED_BLOCK_N = 512,     // AVX-512
    TUNED_NARROW_BLOCK_N = 256,
    BACKWARD_BLOCK_N = 256,
    RUN_KEYS = 64,
    MIXED_BACKWARD_BLOCK_M = 128,
    BF16_LEAST_ROWS = 16,
    BF16_LEAST_WORK = 2000, // see is_worth_bf16
    BF16_LEAST_WHOLE_WORK = 1000,
    BF16_BACKWARD_LEAST_WORK = 3400,
    BF16_BACKWARD_LEAST_WHOLE_WORK = 2000,
    ENOUGH_TASKS = 16, // heads, or runs of their keys, that backward wants
    MANY_TASKS = 128,  // that it makes where runs need not be short
    EVEN_RUN_KEYS = 128,
    MOST_SUM_FLOATS = 48 << 20, // of all runs' dq
    FEW_THREADS = 4,
    TASKS_OF_A_THREAD = 8,
    STRIPE_FLOATS = 8 << 20, // packed keys and values of as many heads as fit in 32 MiB
};

bool attention_has_kernels(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct attention_problem *)problem)->dtype != TSR_F64;
}

// Rows or keys, the fewer, times head_dim + head_dim_v, and times the part that they fill of tiles `step` high. As double:
// an estimate may be of more than 2^63.
static double filled_work(const struct attention_problem *p, int64_t shorter, int64_t step) {
    double padded = (double)tsri_round_up((size_t)tsri_max(shorter, 1), (size_t)step);
    return (double)shorter * ((double)p->head_dim + (double)p->head_dim_v) * (double)shorter /
           padded;
}

// Enough of it that products in bf16 gain what their padding to whole tiles and steps costs; less will do where heads, or
// in backward rows, fill theirs.
static bool is_worth_bf16(const struct attention_problem *p, int64_t rows, bool is_backward) {
    enum { ROWS = 32, DIMS = 64 };
    int64_t shorter = tsri_min(rows, p->seqlen_k);
    if (p->dtype != TSR_BF16 || shorter < BF16_LEAST_ROWS) return false;
    if (is_backward) {
        bool is_whole =
            10.0 * (double)shorter >= 9.0 * (double)tsri_round_up((size_t)shorter, GEMM_BF16_NR);
        return filled_work(p, shorter, GEMM_BF16_NR) >=
               (is_whole ? BF16_BACKWARD_LEAST_WHOLE_WORK : BF16_BACKWARD_LEAST_WORK);
    }
    bool is_whole = p->head_dim % DIMS == 0 && p->head_dim_v % DIMS == 0;
    return filled_work(p, shorter, ROWS) >= (is_whole ? BF16_LEAST_WHOLE_WORK : BF16_LEAST_WORK);
}

static const char *prefer_bf16(const struct attention_problem *p, int64_t rows, bool is_backward,
                               const struct tsri_limits *limits) {
    if (!is_worth_bf16(p, rows, is_backward)) return NULL;
    if (tsri_can_use_tiles(limits->bf16)) return "amx_bf16";
    return limits->bf16.is_dot_fast ? "avx512_bf16" : NULL;
}

// One tile covers it all: packing for several would only cost.
const char *attention_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    int64_t rows = p->num_heads_kv == 0 ? 0 : p->num_heads_q / p->num_heads_kv * p->seqlen_q;
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_forward(p, limits);
    const char *bf16 = prefer_bf16(p, rows, false, limits);
    if (bf16 != NULL) return bf16;
    return rows < 2 * LEAST_BLOCK_M && p->seqlen_k <= FLASH_BLOCK_N ? "flash2" : "tuned";
}

const char *attention_prefer_backward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    int64_t rows = p->num_heads_kv == 0 ? 0 : p->num_heads_q / p->num_heads_kv * p->seqlen_q;
    if (limits->device.type == TSR_CUDA) return attention_cuda_prefer_backward(p, limits);
    return prefer_bf16(p, rows, true, limits);
}

static int64_t num_pairs(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_kv;
}
static int64_t group_rows(const struct attention_problem *p) {
    return p->num_heads_kv == 0 ? 0 : p->num_heads_q / p->num_heads_kv * p->seqlen_q;
}

bool attention_has_naive(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    int64_t rows = num_pairs(p) * group_rows(p);
    return attention_has_kernels(p, limits) &&
           (rows == 0 || p->seqlen_k <= TSRI_MAX_ELEMENTS / rows);
}

static size_t bytes(int64_t floats) { return (size_t)floats * sizeof(float); }

void attention_plan_flash2(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    plan->block_m = FLASH_BLOCK_M;
    plan->block_n = FLASH_BLOCK_N;
    plan->num_tasks = num_pairs(p) * tsri_ceil_div(group_rows(p), plan->block_m);
    plan->grain = attention_tile_floats(p, plan->block_m, plan->block_n) +
                  attention_k_floats(p, plan->block_n, nr) +
                  attention_v_floats(p, plan->block_n, nr);
    plan->workspace_bytes = bytes(plan->grain * limits->num_threads);
}

void attention_plan_flash1(const void *problem, const struct tsri_limits *limits,
                           struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    attention_plan_flash2(problem, limits, plan);
    // A head's rows keep output, maximum and denominator.
    int64_t o_stride = (int64_t)tsri_round_up((size_t)p->head_dim_v, 16) + 16;
    plan->num_tasks = num_pairs(p);
    plan->grain += (int64_t)tsri_round_up((size_t)(group_rows(p) * (o_stride + 2)), 16);
    plan->workspace_bytes = bytes(plan->grain * limits->num_threads);
}

void attention_plan_naive(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    int64_t rows = num_pairs(p) * group_rows(p);
    plan->block_m = NAIVE_BLOCK_M;
    plan->num_tasks = num_pairs(p) * tsri_ceil_div(group_rows(p), plan->block_m);
    plan->grain =
        attention_tile_floats(p, plan->block_m, 0) +
        tsri_max(attention_k_floats(p, p->seqlen_k, nr), attention_v_floats(p, p->seqlen_k, nr));
    plan->grain = (int64_t)tsri_round_up((size_t)plan->grain, 16);
    plan->workspace_bytes =
        bytes((int64_t)tsri_round_up((size_t)(rows * p->seqlen_k), 16) +
              2 * (int64_t)tsri_round_up((size_t)rows, 16) + plan->grain * limits->num_threads);
}

// Of an element of keys and values, packed.
static int64_t packed_bytes(bool is_mixed) { return is_mixed ? sizeof(uint16_t) : sizeof(float); }

// Packed keys and values of a head leave the second-level cache between two tiles: taller tiles bring them in
// less often.
static bool head_is_large(const struct attention_problem *p, const struct tsri_limits *limits,
                          bool is_mixed) {
    return p->seqlen_k * (p->head_dim + p->head_dim_v) * packed_bytes(is_mixed) >
           limits->l2_bytes / 2;
}

// Enough heads for every thread to have its own, or a tile each, small enough that one is in use and the next on its way
// in the second-level cache: a head is packed by the thread that uses it. Else threads share heads.
bool attention_has_own_heads(const struct attention_problem *p, const struct tsri_limits *limits,
                             bool is_mixed) {
    int64_t numel = p->seqlen_k * (p->head_dim + p->head_dim_v), pairs = num_pairs(p);
    bool is_small = numel * (packed_bytes(is_mixed) + (int64_t)tsr_dtype_bytes(p->dtype)) <=
                    limits->l2_bytes - (limits->l2_bytes >> 2);
    bool is_even = !p->is_packed && p->seqused_k == NULL && pairs % limits->num_threads == 0;
    bool is_lone =
        group_rows(p) < 2 * LEAST_BLOCK_M; // in one tile: nobody else reads what is packed
    return is_small && (is_even || is_lone || pairs >= 4 * limits->num_threads);
}

// Tiles as high as they may be, or lower, so that threads have as many rows each: whoever has most lasts.
static int64_t even_block_m(int64_t rows, int64_t most_m, int64_t mr, int64_t pairs,
                            int64_t threads) {
    int64_t least = tsri_max(tsri_ceil_div(rows, most_m), 1), longest = INT64_MAX, block_m = mr;
    int64_t most = tsri_max(2 * least, tsri_ceil_div(threads, pairs));
    most = tsri_max(tsri_min(most, rows / LEAST_BLOCK_M), least);
    if (pairs * least >= MANY_TILES * threads || threads == 1) most = least;
    for (int64_t tiles = least; tiles <= most; tiles++) {
        int64_t block =
            (int64_t)tsri_round_up((size_t)tsri_max(tsri_ceil_div(rows, tiles), 1), (size_t)mr);
        int64_t tasks = pairs * tsri_ceil_div(rows, block);
        int64_t length = tsri_ceil_div(tasks, threads) * (block + TILE_COST);
        if (length >= longest) continue;
        longest = length;
        block_m = block;
    }
    return block_m;
}

// To pack few elements once more for each tile costs less than to wait for other threads that do, and for what they have
// written.
bool attention_packs_by_tile(const struct attention_problem *p, const struct tsri_limits *limits,
                             const struct tsri_plan *plan, bool is_mixed) {
    int64_t numel = p->seqlen_k * (p->head_dim + p->head_dim_v), threads = limits->num_threads;
    int64_t tasks = num_pairs(p) * tsri_ceil_div(group_rows(p), plan->block_m);
    int64_t more =
        tsri_ceil_div(tasks, threads) * threads - num_pairs(p); // packings, of all threads
    return threads > 1 && numel <= PACKED_AGAIN && more * numel <= PACKED_AGAIN * threads &&
           !attention_has_own_heads(p, limits, is_mixed);
}

// Blocks of whole register tiles, mr rows high.
static void plan_tuned(const struct attention_problem *p, const struct tsri_limits *limits,
                       const struct attention_packed *packed, bool is_mixed, int64_t mr,
                       struct tsri_plan *plan) {
    int64_t rows = group_rows(p), nr = gemm_kernels(limits->isa)->nr,
            most_n = limits->isa == TSR_ISA_AVX512 ? TUNED_BLOCK_N : TUNED_NARROW_BLOCK_N;
    plan->block_n =
        tsri_min(most_n, (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), (size_t)nr));
    bool has_tall = head_is_large(p, limits, is_mixed) &&
                    num_pairs(p) * rows >= 4 * TUNED_TALL_BLOCK_M * limits->num_threads;
    int64_t most_m = has_tall ? TUNED_TALL_BLOCK_M : TUNED_BLOCK_M;
    plan->block_m = even_block_m(rows, most_m, mr, tsri_max(num_pairs(p), 1), limits->num_threads);
    int64_t head = packed->k_floats + packed->v_floats;
    // block_k: heads that are packed at a time.
    bool has_own_heads = attention_has_own_heads(p, limits, is_mixed);
    bool is_packed_once = !has_own_heads && !attention_packs_by_tile(p, limits, plan, is_mixed);
    plan->block_k = !is_packed_once ? limits->num_threads : STRIPE_FLOATS / tsri_max(head, 1);
    if (is_packed_once || has_own_heads) plan->block_k = tsri_min(plan->block_k, num_pairs(p));
    plan->block_k = tsri_max(plan->block_k, 1);
    plan->num_tasks = num_pairs(p) * (has_own_heads ? 1 : tsri_ceil_div(rows, plan->block_m));
    plan->grain = attention_tile_floats(p, plan->block_m, plan->block_n);
    plan->workspace_bytes =
        bytes(plan->block_k * head + plan->grain * limits->num_threads) +
        tsri_round_up((size_t)(plan->block_k * tsri_ceil_div(p->seqlen_k, ATTENTION_CHUNK)), 64);
}

void attention_plan_tuned(const void *problem, const struct tsri_limits *limits,
                          struct tsri_plan *plan) {
    const struct gemm_kernels *gemm = gemm_kernels(limits->isa);
    struct attention_packed packed = attention_packed(problem, gemm->nr);
    plan_tuned(problem, limits, &packed, false, gemm->mr, plan);
}

// ---- Products in bf16 -------------------------------------------------------------------------

bool attention_has_amx_bf16(const void *problem, const struct tsri_limits *limits) {
    return ((const struct attention_problem *)problem)->dtype == TSR_BF16 &&
           tsri_can_use_tiles(limits->bf16);
}

bool attention_has_avx512_bf16(const void *problem, const struct tsri_limits *limits) {
    return ((const struct attention_problem *)problem)->dtype == TSR_BF16 && limits->bf16.has_dot;
}

void attention_plan_amx_bf16(const void *problem, const struct tsri_limits *limits,
                             struct tsri_plan *plan) {
    struct attention_packed packed = attention_mixed_packed(problem);
    plan_tuned(problem, limits, &packed, true, gemm_bf16_kernels(true)->mr, plan);
}

void attention_plan_avx512_bf16(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    struct attention_packed packed = attention_mixed_packed(problem);
    plan_tuned(problem, limits, &packed, true, gemm_bf16_kernels(false)->mr, plan);
}

// ---- Backward ---------------------------------------------------------------------------------

// Keys of a run where all heads are to have MANY_TASKS of them, or as many as may have a sum of dq each: steps of a block, or
// whole blocks.
static int64_t even_run_keys(const struct attention_problem *p, int64_t block_n, bool is_mixed,
                             int64_t run_floats) {
    int64_t wanted = tsri_ceil_div(MANY_TASKS, tsri_max(num_pairs(p), 1));
    int64_t most = tsri_max(MOST_SUM_FLOATS / tsri_max(run_floats, 1), 1);
    int64_t keys = tsri_max(tsri_ceil_div(p->seqlen_k, tsri_min(wanted, most)), 1);
    int64_t step = is_mixed || keys > block_n ? block_n : tsri_min(EVEN_RUN_KEYS, block_n);
    return (int64_t)tsri_round_up((size_t)keys, (size_t)step);
}

// Threads differ in speed where they are many, and want more tasks than a few threads, which come out even with whole heads.
static bool has_whole_heads(int64_t pairs, int num_threads) {
    return pairs >= 4 * num_threads || num_threads == 1 ||
           (num_threads <= FEW_THREADS && pairs % num_threads == 0);
}

struct attention_backward_layout attention_backward_layout(const struct attention_problem *p,
                                                           const struct tsri_plan *plan,
                                                           int num_threads, bool is_mixed) {
    struct attention_backward_layout l = {.rows = group_rows(p), .num_runs = 1};
    int64_t pairs = tsri_max(num_pairs(p), 1), wanted = tsri_ceil_div(ENOUGH_TASKS, pairs);
    int64_t block = plan->block_n, blocks = tsri_max(tsri_ceil_div(p->seqlen_k, block), 1);
    l.dq_rows = (int64_t)tsri_round_up((size_t)l.rows, ATTENTION_STRIP);
    l.dq_stride = attention_round16(p->head_dim) + 16;
    // Of a few long blocks shorter runs are made, of which a task may take several at once; bf16's products take whole blocks.
    if (!is_mixed && blocks < wanted) {
        int64_t keys = tsri_ceil_div(p->seqlen_k, wanted * RUN_KEYS) * RUN_KEYS;
        block = tsri_max(tsri_min(keys, block), 1);
        blocks = tsri_max(tsri_ceil_div(p->seqlen_k, block), 1);
    }
    if (pairs < ENOUGH_TASKS) l.num_runs = tsri_min(wanted, blocks);
    l.run_keys = tsri_ceil_div(blocks, l.num_runs) * block;
    l.run_keys = tsri_min(
        l.run_keys, even_run_keys(p, plan->block_n, is_mixed, pairs * l.dq_rows * l.dq_stride));
    l.num_runs = tsri_max(tsri_ceil_div(p->seqlen_k, l.run_keys), 1);
    l.has_unit = l.num_runs > 1 && (is_mixed || l.run_keys > plan->block_n);
    int64_t tasks = (int64_t)num_threads * (p->mask == TSR_MASK_NONE ? 1 : 2);
    if (num_threads > FEW_THREADS) tasks = (int64_t)num_threads * TASKS_OF_A_THREAD;
    l.task_runs =
        has_whole_heads(pairs, num_threads) ? l.num_runs : tsri_max(pairs * l.num_runs / tasks, 1);
    l.task_runs = tsri_min(l.task_runs, l.num_runs);
    // Runs of one block may come to a task at once; others have a sum each.
    if (l.has_unit && l.task_runs < l.num_runs) l.task_runs = 1;
    l.delta_floats = attention_round16(num_pairs(p) * l.rows);
    if (l.task_runs < l.num_runs && p->dq.data != NULL && plan->block_k == ATTENTION_ONE_PASS)
        l.dq_floats = num_pairs(p) * l.num_runs * l.dq_rows * l.dq_stride;
    return l;
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
    plan->num_tasks = num_pairs(p) * tsri_ceil_div(l.num_runs, l.task_runs);
    plan->grain = attention_backward_tile_floats(p, limits->isa, block_m, block_n, is_mixed) +
                  block_n * (l.dq_stride + attention_round16(p->head_dim_v) + 16);
    if (l.dq_floats == 0)
        plan->grain += l.dq_stride * (passes == ATTENTION_TWO_PASSES ? block_m : l.dq_rows) *
                       (l.has_unit ? 2 : 1);
    if (p->dbias.data != NULL)
        plan->grain = tsri_max(plan->grain, attention_grad_bias_floats(p, nr));
    plan->grain = attention_round16(plan->grain);
    plan->workspace_bytes =
        bytes(l.delta_floats + l.dq_floats + plan->grain * limits->num_threads) +
        tsri_round_up((size_t)(num_pairs(p) * tsri_ceil_div(l.rows, block_m)), 64);
}

void attention_plan_tuned_backward(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int64_t nr = gemm_kernels(limits->isa)->nr;
    int64_t keys = (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), (size_t)nr);
    plan_backward(p, limits, TUNED_BLOCK_M, tsri_min(BACKWARD_BLOCK_N, keys), ATTENTION_ONE_PASS,
                  false, plan);
}

// dk, dv and a panel of everything in the second-level cache.
static void plan_mixed_backward(const struct attention_problem *p, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    int64_t rows = (int64_t)tsri_round_up((size_t)tsri_max(group_rows(p), 1), ATTENTION_STRIP);
    int64_t keys = (int64_t)tsri_round_up((size_t)tsri_max(p->seqlen_k, 1), GEMM_BF16_NR);
    bool is_long = limits->l2_bytes >= 2 << 20 && tsri_max(p->head_dim, p->head_dim_v) <= 128;
    int64_t most_n = is_long ? ATTENTION_GRAD_MIXED_MOST_N : ATTENTION_GRAD_MIXED_MOST_N / 2;
    plan_backward(p, limits, tsri_min(MIXED_BACKWARD_BLOCK_M, rows), tsri_min(most_n, keys),
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
    plan_backward(problem, limits, FLASH_BLOCK_M, FLASH_BLOCK_N, ATTENTION_ONE_PASS, false, plan);
}

void attention_plan_flash2_backward(const void *problem, const struct tsri_limits *limits,
                                    struct tsri_plan *plan) {
    plan_backward(problem, limits, FLASH_BLOCK_M, FLASH_BLOCK_N, ATTENTION_TWO_PASSES, false, plan);
}

void attention_plan_naive_backward(const void *problem, const struct tsri_limits *limits,
                                   struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int nr = gemm_kernels(limits->isa)->nr;
    int64_t rows = num_pairs(p) * group_rows(p);
    plan->block_m = NAIVE_BLOCK_M;
    plan->block_n = BACKWARD_BLOCK_N;
    plan->num_tasks = num_pairs(p) * tsri_ceil_div(group_rows(p), plan->block_m);
    plan->grain = attention_grad_floats(p, plan->block_m, tsri_max(p->seqlen_k, 1), nr) +
                  tsri_max(plan->block_n, plan->block_m) *
                      (attention_round16(p->head_dim) + attention_round16(p->head_dim_v) + 32);
    if (p->dbias.data != NULL)
        plan->grain = tsri_max(plan->grain, attention_grad_bias_floats(p, nr));
    plan->grain = attention_round16(plan->grain);
    plan->workspace_bytes =
        bytes(attention_round16(rows) + 2 * attention_round16(rows * p->seqlen_k) +
              plan->grain * limits->num_threads) +
        tsri_round_up((size_t)plan->num_tasks, 64);
}
