// SPDX-License-Identifier: Apache-2.0
// The steps that all ways to hand out tuned's tiles share: packing keys into a slot, and running a tile on a slot's keys.
#include "ops/attention/cpu/forward/attention_tuned.h"

static float *head_of(const struct tuned_work *w, int64_t slot) {
    return w->heads + slot * w->head_stride;
}

unsigned char *tuned_flags_of(const struct tuned_work *w, int64_t slot) {
    return (unsigned char *)(head_of(w, slot) + w->packed.k_floats + w->packed.v_floats);
}

void tuned_pack_at(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                   int64_t first, int64_t at) {
    const struct attention_packed *m = &w->packed;
    int64_t num_keys = tsri_min(ATTENTION_CHUNK, t->seq.len_k - first);
    float *k = head_of(w, slot), *v = k + m->k_floats;
    w->steps->pack_k(t, first, num_keys, k + at * m->k_row);
    tuned_flags_of(w, slot)[at / ATTENTION_CHUNK] =
        w->steps->pack_v(t, first, num_keys, v + at * m->v_row, m->v_stride);
}

void tuned_pack(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                int64_t first) {
    tuned_pack_at(w, t, slot, first, first);
}

struct attention_head tuned_head_in(const struct tuned_work *w, int64_t slot, int64_t first) {
    const struct attention_packed *m = &w->packed;
    return (struct attention_head){.k = head_of(w, slot),
                                   .v = head_of(w, slot) + m->k_floats,
                                   .first = first,
                                   .k_row = m->k_row,
                                   .v_row = m->v_row,
                                   .k_stride = m->k_row * w->nr,
                                   .v_stride = m->v_stride,
                                   .block_n = w->plan->block_n,
                                   .is_nonfinite = tuned_flags_of(w, slot)};
}

struct attention_range tuned_seen_blocks(const struct tuned_work *w,
                                         const struct attention_tile *t) {
    int64_t block_n = w->plan->block_n;
    return (struct attention_range){t->seen.begin / block_n * block_n, t->seen.end};
}

void tuned_open_tile(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                     int64_t first, int64_t num_rows) {
    int64_t heads = w->p->num_heads_kv;
    attention_tile_open(t, pair / heads, pair % heads, first, num_rows);
    w->steps->load_q(t);
    attention_tile_clear(t);
}

void tuned_run_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t first, int64_t num_rows) {
    struct attention_head head = tuned_head_in(w, slot, 0);
    tuned_open_tile(w, t, pair, first, num_rows);
    w->steps->sweep(t, &head, tuned_seen_blocks(w, t));
    attention_tile_finish(t);
}

void tuned_carve(const struct tuned_work *w, struct attention_tile *t, int thread) {
    attention_tile_carve(t, w->p, w->isa, w->threads + thread * w->thread_stride, w->plan->block_m,
                         w->plan->block_n);
    t->gemm_bf16 = w->gemm_bf16;
}

int64_t tuned_pack_head(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                        int thread) {
    int64_t heads = w->p->num_heads_kv;
    attention_tile_open(t, pair / heads, pair % heads, 0, 0);
    int64_t rows = attention_group_rows(w->p, &t->seq);
    for (int64_t j = 0; rows > 0 && j < t->seq.len_k; j += ATTENTION_CHUNK)
        tuned_pack(w, t, thread, j);
    return w->num_tiles - tsri_ceil_div(rows, w->plan->block_m);
}

int64_t tuned_rows(const struct tuned_work *w, int64_t pair) {
    struct attention_sequence seq = attention_sequence_at(w->p, pair / w->p->num_heads_kv);
    return attention_group_rows(w->p, &seq);
}

struct attention_range tuned_rows_of_tile(const struct tuned_work *w, int64_t pair, int64_t index) {
    int64_t block_m = w->plan->block_m, first = (w->num_tiles - 1 - index) * block_m;
    return (struct attention_range){first, tsri_min(first + block_m, tuned_rows(w, pair))};
}

void tuned_nth_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t index) {
    struct attention_range rows = tuned_rows_of_tile(w, pair, index);
    if (rows.begin < rows.end) tuned_run_tile(w, t, slot, pair, rows.begin, rows.end - rows.begin);
}
