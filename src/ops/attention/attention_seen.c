// SPDX-License-Identifier: Apache-2.0
// The keys that any query sees. A window or a causal mask leaves the others out, of few queries most of a long sequence: who
// packs whole heads, or chooses by how many keys there are, goes by these. Blocks of keys begin at the first of them, so that a
// row's bits follow which queries are beside it: not under TSR_BATCH_INVARIANT.
#include "ops/attention/attention_seen.h"

enum { STEP = 4 }; // keys of one counter of dropout

static void skip_keys(struct attention_view *view, int64_t keys) {
    if (view->data != NULL) view->data += keys * view->seq * tsri_dtype_bytes(view->dtype);
}

// Of sequences of lengths of their own: the first keys, where queries count from the front.
static const struct attention_problem *first_keys(const struct attention_problem *p,
                                                  struct attention_problem *part) {
    if (p->mask != TSR_MASK_CAUSAL_TOP_LEFT || p->seqlen_k <= p->seqlen_q) return p;
    *part = *p;
    part->seqlen_k = p->seqlen_q;
    return part;
}

const struct attention_problem *attention_seen_part(const struct attention_problem *p,
                                                    uint32_t flags,
                                                    struct attention_problem *part) {
    if (p->mask == TSR_MASK_NONE && !p->has_window_left && !p->has_window_right) return p;
    if ((flags & TSR_BATCH_INVARIANT) != 0 || p->num_batches == 0 || p->seqlen_q == 0) return p;
    if (p->is_packed || p->seqused_k != NULL) return first_keys(p, part);
    struct attention_sequence seq = attention_sequence_at(p, 0);
    int64_t begin = attention_visible(p, &seq, 0).begin / STEP * STEP;
    int64_t end = attention_visible(p, &seq, seq.len_q - 1).end;
    if (begin >= end || (begin == 0 && end == p->seqlen_k)) return p;
    *part = *p;
    skip_keys(&part->k, begin);
    skip_keys(&part->v, begin);
    if (p->bias.data != NULL)
        part->bias.data += begin * p->bias.stride[3] * tsri_dtype_bytes(p->bias.dtype);
    part->offset += (uint64_t)begin / 4;
    part->seqlen_k = end - begin;
    // Where queries count from the first key, none is skipped before it, and the last query's is the last now: both masks are
    // one then, and more variants have the other. Otherwise the last query sees the last key, as before.
    if (p->mask == TSR_MASK_CAUSAL_TOP_LEFT && end == seq.len_q) part->mask = TSR_MASK_CAUSAL;
    return part;
}
