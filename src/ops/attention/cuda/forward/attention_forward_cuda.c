// SPDX-License-Identifier: Apache-2.0
// The part of attention's forward on CUDA that its variants share: which calls need features, the order of tiles, params.
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

static int64_t num_heads(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_q;
}

bool attention_cuda_is_forward_aligned(const struct attention_problem *p) {
    return attention_cuda_is_aligned(p, &p->q, false) &&
           attention_cuda_is_aligned(p, &p->k, true) && attention_cuda_is_aligned(p, &p->v, true) &&
           attention_cuda_is_aligned(p, &p->out, false);
}

bool attention_cuda_is_scale_plain(const struct attention_problem *p) {
    return p->softmax_scale > 1e-10 && p->softmax_scale < 1e10;
}

bool attention_cuda_has_features(const struct attention_problem *p) {
    return p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL ||
           p->dropout_threshold != 0 || !attention_cuda_is_scale_plain(p);
}

int attention_cuda_head_tile(const struct attention_problem *p) {
    int64_t dim = tsri_max(p->head_dim, p->head_dim_v);
    return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

void attention_cuda_plan_tiles(const struct attention_problem *p, const struct tsri_limits *limits,
                               int block_m, int tile, struct tsri_plan *plan) {
    bool is_even = p->mask == TSR_MASK_NONE && !p->has_window_left && !p->has_window_right;
    int64_t head_bytes =
        p->seqlen_k * (p->head_dim + p->head_dim_v) * (int64_t)tsr_dtype_bytes(p->dtype);
    // As many heads as have keys and values for half of the cache. The heads of a group share them.
    int64_t group = p->num_heads_q / tsri_max(p->num_heads_kv, 1);
    plan->block_m = block_m;
    plan->block_n = tile;
    plan->block_k =
        is_even ? 1 : tsri_max(limits->l2_bytes / 2 / tsri_max(head_bytes, 1), 1) * group;
    plan->block_k = tsri_max(tsri_min(plan->block_k, num_heads(p)), 1);
    plan->num_tasks = num_heads(p) * tsri_ceil_div(p->seqlen_q, block_m);
}

static float scale_log2(const struct attention_problem *p) {
    return (float)(p->softmax_scale * 1.4426950408889634);
}

struct attention_forward_params attention_cuda_forward_params(const struct attention_problem *p,
                                                              const struct tsri_plan *plan) {
    return (struct attention_forward_params){
        .p = attention_cuda_params(p),
        .num_tasks = plan->num_tasks,
        .num_heads = num_heads(p),
        .num_tiles = (int)tsri_ceil_div(p->seqlen_q, plan->block_m),
        .section = (int)plan->block_k,
        .is_reversed = p->mask != TSR_MASK_NONE,
        .is_aligned = attention_cuda_is_forward_aligned(p),
        .scale_log2 = scale_log2(p),
    };
}
