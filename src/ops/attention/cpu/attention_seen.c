// SPDX-License-Identifier: Apache-2.0
// The keys that at least one query sees. A window or a causal mask hides the others: with few queries most of a long sequence.
// Code that packs whole heads, or chooses by the number of keys, uses this range. Blocks of keys begin at its first key, so a
// row's bits depend on the other queries; under TSR_BATCH_INVARIANT the range is therefore not used. Also the queries that see any
// key: with more queries than keys and a causal mask the first queries see none, and their results are zeros.
#include "ops/attention/cpu/attention_seen.h"

#include <math.h>
#include <string.h>

enum { STEP = 4 }; // keys of one counter of dropout

static void skip(struct attention_view *view, int64_t rows) {
    if (view->data != NULL) view->data += rows * view->seq * tsri_dtype_bytes(view->dtype);
}

// For sequences with lengths of their own: the first seqlen_q keys, if queries count from the front.
static const struct attention_problem *first_keys(const struct attention_problem *p,
                                                  struct attention_problem *part) {
    if (p->mask != TSR_MASK_CAUSAL_TOP_LEFT || p->seqlen_k <= p->seqlen_q) return p;
    *part = *p;
    part->seqlen_k = p->seqlen_q;
    return part;
}

int64_t attention_unseen_rows(const struct attention_problem *p, uint32_t flags) {
    bool has_reach = p->mask != TSR_MASK_NONE || p->has_window_right;
    if (!has_reach || (flags & TSR_BATCH_INVARIANT) != 0 || p->num_batches == 0) return 0;
    if (p->is_packed || p->seqused_k != NULL || p->dropout_threshold != 0) return 0;
    int64_t reach = p->mask != TSR_MASK_NONE ? 0 : p->window_right; // keys seen behind the diagonal
    int64_t shift = attention_sequence_at(p, 0).shift, rows = -shift > reach ? -shift - reach : 0;
    return rows < p->seqlen_q ? rows : 0;
}

static void skip_rows(struct attention_problem *p, int64_t rows) {
    skip(&p->q, rows);
    skip(&p->out, rows);
    if (p->lse != NULL) p->lse += rows * (int64_t)sizeof(float);
    if (p->bias.data != NULL)
        p->bias.data += rows * p->bias.stride[2] * tsri_dtype_bytes(p->bias.dtype);
    p->seqlen_q -= rows;
    p->total_q -= rows;
}

const struct attention_problem *attention_seen_part(const struct attention_problem *p,
                                                    uint32_t flags,
                                                    struct attention_problem *part) {
    if (p->mask == TSR_MASK_NONE && !p->has_window_left && !p->has_window_right) return p;
    if ((flags & TSR_BATCH_INVARIANT) != 0 || p->num_batches == 0 || p->seqlen_q == 0) return p;
    if (p->is_packed || p->seqused_k != NULL) return first_keys(p, part);
    struct attention_sequence seq = attention_sequence_at(p, 0);
    int64_t rows = attention_unseen_rows(p, flags);
    int64_t begin = attention_visible(p, &seq, rows).begin / STEP * STEP;
    int64_t end = attention_visible(p, &seq, seq.len_q - 1).end;
    bool has_all_keys = begin >= end || (begin == 0 && end == p->seqlen_k);
    if (has_all_keys && rows == 0) return p;
    *part = *p;
    if (rows > 0) skip_rows(part, rows);
    if (has_all_keys) return part;
    skip(&part->k, begin);
    skip(&part->v, begin);
    if (p->bias.data != NULL)
        part->bias.data += begin * p->bias.stride[3] * tsri_dtype_bytes(p->bias.dtype);
    part->offset += (uint64_t)begin / 4;
    part->seqlen_k = end - begin;
    // Where queries count from the first key, no keys are skipped at the start, and the last query's key is now the last key. Both
    // causal masks are equal then, and more variants support the other one. Otherwise the last query sees the last key, as before.
    if (p->mask == TSR_MASK_CAUSAL_TOP_LEFT && end == seq.len_q) part->mask = TSR_MASK_CAUSAL;
    return part;
}

// ---- Rows that see nothing --------------------------------------------------------------------

struct clearing {
    const struct attention_problem *p;
    int64_t rows, of_task, num_parts;
};

static void clear_task(void *arg, int64_t index, int thread) {
    (void)thread;
    const struct clearing *c = arg;
    const struct attention_problem *p = c->p;
    int64_t batch = index / c->num_parts, first = index % c->num_parts * c->of_task;
    int64_t end = tsri_min(first + c->of_task, c->rows), heads = p->num_heads_q;
    int64_t bytes = p->head_dim_v * tsri_dtype_bytes(p->out.dtype);
    bool is_row_whole = p->out.head == p->head_dim_v || heads == 1;
    for (int64_t i = first; i < end; i++)
        for (int64_t h = 0; h < heads; h += is_row_whole ? heads : 1)
            memset(attention_at(&p->out, batch, i, h), 0,
                   (size_t)(is_row_whole ? heads * bytes : bytes));
    for (int64_t h = 0; p->lse != NULL && h < heads; h++) {
        float *lse = (float *)(void *)p->lse + attention_lse_index(p, batch, h, 0);
        float sink = (float)attention_sink_at(p, batch, h);
        for (int64_t i = first; i < end; i++) lse[i] = sink;
    }
}

void attention_clear_unseen(tsr_context *ctx, const struct attention_problem *p, uint32_t flags) {
    enum { TASK_BYTES = 64 << 10 };
    struct clearing c = {.p = p, .rows = attention_unseen_rows(p, flags)};
    if (c.rows == 0) return;
    int64_t row_bytes = p->num_heads_q * p->head_dim_v * tsri_dtype_bytes(p->out.dtype);
    c.of_task = tsri_max(TASK_BYTES / tsri_max(row_bytes, 1), 1);
    c.num_parts = tsri_ceil_div(c.rows, c.of_task);
    tsri_parallel(ctx, p->num_batches * c.num_parts, clear_task, &c);
}
