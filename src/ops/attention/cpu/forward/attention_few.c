// SPDX-License-Identifier: Apache-2.0
// Forward of few queries with decode's splits of the keys (attention_decode_split.c): all threads read keys and values once and
// without packing, even if there are few heads. k and v serve as the cache, with one page per sequence.
#include "ops/attention/attention_decode_problem.h"
#include "ops/attention/cpu/attention_seen.h"

// length: of every sequence, if no lengths are given.
static struct attention_decode_problem as_decode(const struct attention_problem *whole,
                                                 uint32_t flags, int32_t *length) {
    struct attention_problem part;
    const struct attention_problem *a = attention_seen_part(whole, flags, &part);
    struct attention_decode_problem p = {.a = *a, .k_cache = a->k, .v_cache = a->v};
    *length = (int32_t)a->seqlen_k;
    p.a.k.data = p.a.v.data = NULL; // nothing is appended
    p.cache_seqlens = a->seqused_k != NULL ? a->seqused_k : length;
    p.cache_seqlens_stride = a->seqused_k != NULL ? a->seqused_stride : 0;
    p.num_pages = a->num_batches;
    p.page_size = p.capacity = p.most_keys = a->seqlen_k;
    return p;
}

bool attention_has_few(const void *problem, const struct tsri_limits *limits) {
    struct attention_problem part;
    const struct attention_problem *p = attention_seen_part(problem, limits->flags, &part);
    double rows = (double)p->num_batches * (double)p->seqlen_q * (double)p->num_heads_q;
    return attention_has_kernels(p, limits) && attention_decode_is_few(p, p->seqlen_q) &&
           !p->is_packed && p->seqlen_k <= INT32_MAX && p->bias.data == NULL &&
           rows * (double)tsri_max(p->seqlen_k, 1) <= (double)TSRI_MAX_ELEMENTS &&
           p->dropout_threshold == 0 && p->mask != TSR_MASK_CAUSAL_TOP_LEFT;
}

void attention_plan_few(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    int32_t length;
    struct attention_decode_problem p = as_decode(problem, limits->flags, &length);
    attention_decode_plan_split(&p, limits, plan);
}

tsr_status attention_few_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    int32_t length;
    struct attention_decode_problem p = as_decode(problem, plan->flags, &length);
    attention_clear_unseen(ctx, problem, plan->flags);
    return attention_decode_split_run(ctx, &p, plan, workspace);
}
