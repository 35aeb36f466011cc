// SPDX-License-Identifier: Apache-2.0
// The keys that any query sees. A window or a causal mask leaves the others out, of few queries most of a long sequence: who
// packs whole heads, or chooses by how many keys there are, goes by these.
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
                                                    struct attention_problem *part) {
    if (p->mask == TSR_MASK_NONE && !p->has_window_left && !p->has_window_right) return p;
    if (p->num_batches == 0 || p->seqlen_q == 0) return p;
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
    // Either mask will do; of the two, more variants have the one that counts from the last key.
    if (p->mask == TSR_MASK_CAUSAL_TOP_LEFT && end == seq.len_q) part->mask = TSR_MASK_CAUSAL;
    part->shift = 0;
    part->shift = seq.shift - begin - attention_sequence_at(part, 0).shift;
    return part;
}
