// SPDX-License-Identifier: Apache-2.0
// cuda-flash3, forward on Hopper: which tiles, which tensors the copy engine reads in place, the launch.
#include "ops/attention/cuda/forward/attention_flash3_cuda.h"

#define LOG2_E 1.4426950408889634

static const char op[] = "attention_forward";

enum {
    GROUP_ROWS = FLASH3_GROUP_ROWS,
    BARRIER_BYTES = 16,  // of a stage: one for full, one for empty
    MOST_SOFTCAP = 1000, // tanh has an error of 1e-7 of it
    MOST_TASKS = 1 << 30,
    MOST_SHORT = 2048,  // queries; beyond, most tiles are much the same
    NUM_TASKS = 4,      // that a block knows at a time
    CHECKED_BYTES = 16, // of a stage: whether its values are checked, and the result
};

enum { ALIBI = 1, SOFTCAP = 2, DROPOUT = 4, BIAS = 8, F32_BIAS = 16 | BIAS }; // terms of scores

static const struct flash3_tile tiles[] = {
    {64, 64, 3, 128, 2, 4, 0, 0},
    {64, 64, 2, 128, 2, 4, 0, 0},
    {128, 128, 2, 128, 2, 2, 0, 0},
    {192, 128, 2, 128, 1, 2, 0, 0},
    {256, 256, 2, 80, 1, 2, 0, 2048},
    {256, 256, 2, 64, 1, 2, 0, 0},
    {64, 64, 3, 128, 2, 4, ALIBI, 0},
    {64, 64, 2, 128, 2, 4, ALIBI | SOFTCAP, 0},
    {128, 128, 2, 128, 2, 2, ALIBI | SOFTCAP, 0},
    {192, 128, 2, 128, 1, 2, ALIBI, 0},
    {256, 256, 2, 64, 1, 2, ALIBI, 0},
    {64, 64, 2, 128, 2, 4, ALIBI | DROPOUT, 0},
    {128, 128, 2, 128, 2, 2, ALIBI | DROPOUT, 0},
    {192, 128, 2, 128, 1, 2, ALIBI | DROPOUT, 0},
    {256, 256, 2, 64, 1, 2, ALIBI | DROPOUT, 0},
    {64, 64, 3, 128, 2, 2, BIAS | ALIBI, 0, 2},
    {128, 128, 2, 128, 1, 2, BIAS | ALIBI, 0, 2},
    {256, 256, 2, 64, 1, 2, BIAS | ALIBI, 0, 2},
    {64, 64, 2, 128, 2, 4, BIAS | ALIBI | DROPOUT, 0, 2},
    {128, 128, 2, 128, 1, 2, BIAS | ALIBI | DROPOUT, 0, 2},
    {256, 256, 2, 64, 1, 2, BIAS | ALIBI | DROPOUT, 0, 2},
    {64, 64, 2, 64, 2, 4, F32_BIAS | ALIBI, 0, 2},
    {128, 128, 2, 64, 2, 2, F32_BIAS | ALIBI, 0, 2},
    {64, 64, 2, 64, 2, 4, F32_BIAS | ALIBI | DROPOUT, 0, 2},
    {128, 128, 2, 64, 2, 2, F32_BIAS | ALIBI | DROPOUT, 0, 2},
};

// The sum over tiles of rows x tiles of keys that the mask and windows leave.
static int64_t work_of(const struct attention_problem *p, const struct flash3_tile *tile) {
    const int64_t rows = (int64_t)tile->groups * GROUP_ROWS, last = p->seqlen_k;
    const bool is_causal = p->mask != TSR_MASK_NONE, ends = is_causal || p->has_window_right;
    const int64_t shift = p->mask == TSR_MASK_CAUSAL_TOP_LEFT ? 0 : p->seqlen_k - p->seqlen_q,
                  left = tsri_min(p->window_left, last),
                  right = is_causal ? 0 : tsri_min(p->window_right, last);
    int64_t work = 0;
    for (int64_t first = 0; first < p->seqlen_q; first += rows) {
        const int64_t begin = p->has_window_left ? tsri_max(first + shift - left, 0) : 0,
                      end = ends ? tsri_min(first + rows + shift + right, last) : last;
        if (end > begin) work += rows * (tsri_ceil_div(end, tile->block_n) - begin / tile->block_n);
    }
    return work;
}

// Whether the tile holds the heads and has the terms.
static bool may_serve(const struct flash3_tile *tile, const struct attention_problem *p) {
    const int bias = p->bias.data == NULL ? 0 : p->bias.dtype == TSR_F32 ? F32_BIAS : BIAS;
    const int terms = (p->slopes.data != NULL ? ALIBI : 0) | (p->softcap != 0 ? SOFTCAP : 0) |
                      (p->dropout_threshold != 0 ? DROPOUT : 0) | bias;
    return p->head_dim <= tile->head_dim && p->head_dim_v <= tile->head_dim_v &&
           (terms & ~tile->terms) == 0 && (terms == 0) == (tile->terms == 0) &&
           (tile->terms & F32_BIAS) == bias;
}

// The first tile that may serve; NULL: none. Of two tiles that differ only in warpgroups the larger is better, unless few queries
// leave too much of it empty or hidden. Each tile sums in an order of its own, so if a row must not depend on other rows, the tile
// is the same for all lengths.
static const struct flash3_tile *tile_of(const struct attention_problem *p,
                                         const struct tsri_limits *limits) {
    const bool is_invariant = (limits->flags & TSR_BATCH_INVARIANT) != 0;
    for (int i = 0; i < TSRI_COUNT(tiles); i++) {
        const struct flash3_tile *tile = &tiles[i];
        if (!may_serve(tile, p) || (is_invariant ? 1 : p->seqlen_k) < tile->least_keys) continue;
        const bool has_fewer = tile->terms == 0 && tile->groups == 3 &&
                               (p->seqlen_q <= MOST_SHORT || p->has_window_left);
        const int64_t percent = p->has_window_left ? 115 : 125; // with a window all tiles are short
        return has_fewer && !is_invariant && work_of(p, tile) * 100 > work_of(p, tile + 1) * percent
                   ? tile + 1
                   : tile;
    }
    return NULL;
}

struct attention_flash3_work attention_cuda_flash3_work(const struct attention_problem *p,
                                                        const struct tsri_limits *limits) {
    const struct flash3_tile *tile = tile_of(p, limits);
    const int64_t rows = (int64_t)tile->groups * GROUP_ROWS,
                  heads = p->num_batches * p->num_heads_q;
    return (struct attention_flash3_work){rows, heads * tsri_ceil_div(p->seqlen_q, rows),
                                          heads * work_of(p, tile) / rows};
}

static const struct flash3_tile *planned_tile(const struct attention_problem *p,
                                              const struct tsri_plan *plan) {
    const struct flash3_tile *tile = tiles;
    while (!may_serve(tile, p) || tile->groups * GROUP_ROWS != plan->block_m ||
           tile->block_n != plan->block_n)
        tile++;
    return tile;
}

int64_t attention_cuda_flash3_bytes(const struct flash3_tile *t) {
    int64_t queries = (int64_t)t->q_stages * t->groups * GROUP_ROWS * t->head_dim,
            keys = (int64_t)t->stages * t->block_n * (t->head_dim + t->head_dim_v);
    const int64_t biases = (int64_t)t->bias_stages * t->groups * GROUP_ROWS * t->block_n,
                  bias_bytes = (t->terms & F32_BIAS) == F32_BIAS ? 4 : 2;
    return (queries + keys) * (int64_t)sizeof(uint16_t) + biases * bias_bytes +
           (int64_t)(t->q_stages + 2 * t->stages + t->bias_stages) * BARRIER_BYTES +
           t->stages * CHECKED_BYTES + NUM_TASKS * (ATTENTION_TASK_BYTES + BARRIER_BYTES);
}

struct tsri_cuda_program attention_cuda_flash3_program(const struct flash3_tile *tile,
                                                       tsr_dtype dtype) {
    struct tsri_cuda_program program = attention_cuda_program(
        "ops/attention/cuda/forward/attention_flash3_sm90.cu", "attention_flash3", dtype);
    attention_cuda_define(&program, "HEAD_DIM", tile->head_dim);
    attention_cuda_define(&program, "HEAD_DIM_V", tile->head_dim_v);
    attention_cuda_define(&program, "BLOCK_N", tile->block_n);
    attention_cuda_define(&program, "GROUPS", tile->groups);
    attention_cuda_define(&program, "Q_STAGES", tile->q_stages);
    attention_cuda_define(&program, "STAGES", tile->stages);
    attention_cuda_define(&program, "BIAS_STAGES", tile->bias_stages);
    attention_cuda_define(&program, "TERMS", tile->terms);
    return program;
}

static bool is_rare(const struct flash3_tile *tile, tsr_dtype dtype) {
    const bool is_deep = tile->head_dim > 128, has_terms = tile->terms != 0;
    return dtype == TSR_F16
               ? is_deep || has_terms
               : (is_deep && has_terms) || tile->terms == ALIBI || (tile->terms & BIAS) != 0;
}

bool attention_cuda_flash3_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program) {
    if (dtype == TSR_F32) return false;
    if (*index >= TSRI_COUNT(tiles)) {
        *index -= TSRI_COUNT(tiles);
        return false;
    }
    *program = attention_cuda_flash3_program(&tiles[*index], dtype);
    program->is_rare = is_rare(&tiles[*index], dtype);
    return true;
}

// tanh x / x in powers of x^2, for x from 0 to 0.9: the error in tanh x is at most 7.5e-8.
static const double tanh_ratio[] = {0.999998894,   -0.333293265, 0.132915202,
                                    -0.0520623737, 0.0174655507, -0.00344397897};

// ---- Maps -------------------------------------------------------------------------------------

bool attention_cuda_map_flash3(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys, int64_t dims, int rows,
                               struct tsri_tensor_map_args *args,
                               struct attention_flash3_tensor *tensor) {
    enum { SLAB = FLASH3_SLAB };
    const int64_t heads = is_of_keys ? p->num_heads_kv : p->num_heads_q,
                  total = is_of_keys ? p->total_k : p->total_q;
    tensor->head = heads > 1 && view->head != 0;
    tensor->batch = !p->is_packed && p->num_batches > 1 && view->batch != 0;
    *args = (struct tsri_tensor_map_args){
        .data = view->data,
        .dtype = view->dtype,
        .size = {dims, total, tensor->head ? heads : 1, tensor->batch ? p->num_batches : 1, 1},
        .stride = {1, total > 1 ? view->seq : SLAB, tensor->head ? view->head : SLAB,
                   tensor->batch ? view->batch : SLAB, SLAB},
        .box = {SLAB, rows, 1, 1, 1},
        .is_swizzled = true};
    return tsri_tensor_map_fits(args);
}

bool attention_cuda_has_flash3(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    struct tsri_tensor_map_args map;
    struct attention_flash3_tensor t;
    const double most = 1e10; // larger ones could overflow in products
    struct attention_bias_map bias;
    if (limits->cuda_arch != 90 || p->dtype == TSR_F32 || !attention_cuda_has_flash2(p, limits))
        return false;
    if (p->softcap > 0 && p->softmax_scale / p->softcap > most) return false;
    if (p->softcap > MOST_SOFTCAP || !attention_cuda_is_scale_plain(p)) return false;
    const struct flash3_tile *tile = tile_of(p, limits);
    return tile != NULL && attention_cuda_flash3_bytes(tile) <= limits->shared_bytes_per_block &&
           p->num_batches * p->num_heads_q <= MOST_TASKS / (p->seqlen_q / GROUP_ROWS + 1) &&
           p->total_q <= ATTENTION_CUDA_MAX_SEQLEN && p->total_k <= ATTENTION_CUDA_MAX_SEQLEN &&
           attention_cuda_map_flash3(p, &p->q, false, p->head_dim, tile->groups * GROUP_ROWS, &map,
                                     &t) &&
           attention_cuda_map_flash3(p, &p->k, true, p->head_dim, tile->block_n, &map, &t) &&
           attention_cuda_map_flash3(p, &p->v, true, p->head_dim_v, tile->block_n, &map, &t) &&
           (p->bias.data == NULL ||
            attention_cuda_map_bias(&p->bias, p->seqlen_k, tile->groups * GROUP_ROWS, &map, &bias));
}

// ---- Plan and launch --------------------------------------------------------------------------

void attention_cuda_plan_flash3(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct flash3_tile *tile = tile_of(problem, limits);
    attention_cuda_plan_tiles(problem, limits, tile->groups * GROUP_ROWS, tile->block_n, plan);
    const struct attention_problem *p = problem;
    if (p->mask == TSR_MASK_NONE) return;
    // Tiles have different lengths. All heads at once, with the longest tiles first, balance the blocks. If their keys and values
    // exceed the second-level cache, a block takes a long and a short tile of the same two heads, and neighbouring blocks share
    // heads.
    const int64_t head_bytes =
        p->seqlen_k * (p->head_dim + p->head_dim_v) * (int64_t)tsr_dtype_bytes(p->dtype);
    const int64_t pairs = tsri_ceil_div(plan->num_tasks, 2),
                  rounds = tsri_ceil_div(pairs, tsri_max(limits->num_sms, 1));
    const bool is_even = pairs * 5 >= rounds * limits->num_sms * 4;
    plan->grain = is_even && p->num_batches * p->num_heads_kv * head_bytes > limits->l2_bytes;
    plan->block_k = plan->grain != 0 ? 2 : tsri_max(p->num_batches * p->num_heads_q, 1);
}

tsr_status attention_cuda_flash3_prepare(tsr_context *ctx, const void *problem,
                                         const struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_program program =
        attention_cuda_flash3_program(planned_tile(p, plan), p->dtype);
    TSRI_TRY(attention_cuda_prepare_clear(ctx, op, p));
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

// The factors that turn products into scores.
static void set_scores(const struct attention_problem *p, struct attention_flash3_params *params) {
    params->unit = params->forward.scale_log2;
    params->to_slope = (float)(1 / p->softmax_scale);
    if (p->softcap == 0) return;
    params->softcap = (float)(p->softcap * LOG2_E);
    params->to_softcap = (float)(2 * LOG2_E * p->softmax_scale / p->softcap);
    params->to_x = (float)(p->softmax_scale / p->softcap);
    for (int i = 0; i < TSRI_COUNT(tanh_ratio); i++)
        params->cap[i] = (float)(p->softcap * LOG2_E * tanh_ratio[i]);
    params->unit = 1;
    params->to_slope = (float)LOG2_E;
}

struct attention_flash3_params attention_cuda_flash3_params(const struct attention_problem *p,
                                                            const struct tsri_plan *plan) {
    struct attention_flash3_params params = {.forward = attention_cuda_forward_params(p, plan),
                                             .is_ragged = p->is_packed || p->seqused_k != NULL};
    set_scores(p, &params);
    return params;
}

tsr_status attention_cuda_flash3_launch(tsr_context *ctx, const struct attention_problem *p,
                                        const struct tsri_plan *plan,
                                        const struct flash3_tile *tile,
                                        const struct tsri_cuda_program *program,
                                        struct attention_flash3_params *params) {
    enum { WARPGROUP = 128 };
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const int64_t num_blocks = tsri_min(plan->num_tasks, tsri_context_limits(ctx)->num_sms);
    struct tsri_tensor_map_args map;
    (void)attention_cuda_map_flash3(p, &p->k, true, p->head_dim, tile->block_n, &map, &params->k);
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &map, &params->k.map));
    (void)attention_cuda_map_flash3(p, &p->v, true, p->head_dim_v, tile->block_n, &map, &params->v);
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &map, &params->v.map));
    TSRI_TRY(attention_cuda_clear(ctx, op, p, &p->out, p->head_dim_v, false, true));
    if (num_blocks == 0) return TSR_OK;
    params->num_rounds =
        (unsigned)tsri_ceil_div(plan->num_tasks, num_blocks) + (params->is_paired ? 2 : 0);
    // The kernel starts before the previous one has ended, and waits for its end before it reads.
    const struct tsri_cuda_launch launch = {.num_blocks = num_blocks,
                                            .num_threads = (tile->groups + 1) * WARPGROUP,
                                            .shared_bytes = (int)attention_cuda_flash3_bytes(tile),
                                            .is_early = true,
                                            .params = params};
    return tsri_cuda_launch(op, queue, program, &launch);
}

tsr_status attention_cuda_flash3_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct attention_problem *p = problem;
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct flash3_tile *tile = planned_tile(p, plan);
    const struct tsri_cuda_program program = attention_cuda_flash3_program(tile, p->dtype);
    const int rows = tile->groups * GROUP_ROWS;
    struct attention_flash3_params params = attention_cuda_flash3_params(p, plan);
    struct tsri_tensor_map_args map;
    (void)workspace;
    params.is_paired = plan->grain != 0;
    (void)attention_cuda_map_flash3(p, &p->q, false, p->head_dim, rows, &map, &params.q);
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &map, &params.q.map));
    if (p->bias.data != NULL) {
        struct attention_bias_map bias;
        (void)attention_cuda_map_bias(&p->bias, p->seqlen_k, rows, &map, &bias);
        params.bias.head = bias.head;
        params.bias.batch = bias.batch;
        params.bias_rows = bias.rows;
        TSRI_TRY(tsri_cuda_queue_map(op, queue, &map, &params.bias.map));
    }
    return attention_cuda_flash3_launch(ctx, p, plan, tile, &program, &params);
}
