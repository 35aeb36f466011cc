// SPDX-License-Identifier: Apache-2.0
// Decode as the variants see it: attention's problem for the queries, and a cache of pages for the keys. A contiguous cache has
// one page per sequence; with slots it has as many as there are slots, and cache_batch_idx is a table of one page per sequence.
#ifndef TSRI_ATTENTION_DECODE_PROBLEM_H
#define TSRI_ATTENTION_DECODE_PROBLEM_H

#include <tessera/attention_decode.h>

#include "ops/attention/attention_problem.h"

// The weight of a norm over a head, contiguous.
struct attention_decode_weight {
    const char *data;
    tsr_dtype dtype;
};

struct attention_decode_problem {
    // q, out, lse, slopes, sinks, mask, scale; k and v are k_new and v_new (data NULL: absent). Its keys are
    // the new ones: the lengths of decode come from attention_decode_sequence_at.
    struct attention_problem a;
    struct attention_view k_cache, v_cache;    // batch: from page to page; seq: from row to row
    const int32_t *cache_seqlens, *page_table; // page_table NULL: sequence b has page b
    int64_t cache_seqlens_stride, page_table_stride[2];
    bool has_slots;           // page_table is cache_batch_idx
    const int32_t *leftpad_k; // NULL: keys start in row 0
    int64_t leftpad_stride;
    int64_t num_pages, page_size, capacity; // capacity: keys of a sequence that fit
    int64_t most_keys;                      // that are attended to, at most
    struct tsri_rows cos, sin;              // data NULL: no rotation
    int64_t rotary_dim;
    bool is_interleaved;
    struct attention_decode_weight q_norm, k_norm; // data NULL: no norm
    double norm_eps, norm_offset; // norm_offset: 0, or 1 where weights are zero-centred
    const uint8_t *tree_mask;     // [batch][query][new key]; NULL: none
    int64_t tree_stride[3];
    struct attention_per_head k_scale, v_scale; // of key heads; data NULL: 1, and rows of q's dtype
    int32_t *num_errors;                        // NULL: errors are not counted
};

// One sequence: q_first and len_q rows of q, len_k keys in the cache once the new ones are there. Key j lies in row k_first + j of
// the sequence's pages.
struct attention_decode_sequence {
    struct attention_sequence s;
    int64_t batch, cache_len, num_new; // cache_len: keys before the new ones
};

// Bad lengths are clamped.
static inline int64_t attention_decode_leftpad(const struct attention_decode_problem *p,
                                               int64_t batch, int64_t num_rows) {
    if (p->leftpad_k == NULL) return 0;
    return attention_clamp(p->leftpad_k[batch * p->leftpad_stride], 0, num_rows);
}

static inline struct attention_decode_sequence
attention_decode_sequence_at(const struct attention_decode_problem *p, int64_t batch) {
    struct attention_decode_sequence seq = {.s = attention_sequence_at(&p->a, batch),
                                            .batch = batch};
    int64_t num_rows =
        attention_clamp(p->cache_seqlens[batch * p->cache_seqlens_stride], 0, p->capacity);
    seq.s.k_first = attention_decode_leftpad(p, batch, num_rows);
    seq.cache_len = num_rows - seq.s.k_first;
    seq.num_new = p->a.k.data != NULL ? seq.s.len_q : 0;
    int64_t num_keys = tsri_min(seq.cache_len + seq.num_new, p->capacity - seq.s.k_first);
    seq.s.len_k = tsri_min(num_keys, p->most_keys);
    seq.s.shift = seq.s.len_k - seq.s.len_q;
    return seq;
}

// Whether query i sees key j, which is in its attention_visible.
static inline bool attention_decode_sees(const struct attention_decode_problem *p,
                                         const struct attention_decode_sequence *seq, int64_t i,
                                         int64_t j) {
    int64_t t = j - seq->s.shift; // counted from the oldest of the newest seqlen_q keys
    return p->tree_mask == NULL || t < 0 ||
           p->tree_mask[seq->batch * p->tree_stride[0] + i * p->tree_stride[1] +
                        t * p->tree_stride[2]] != 0;
}

// The first run of keys of a range that query i sees; empty: there is none.
static inline struct attention_range
attention_decode_run(const struct attention_decode_problem *p,
                     const struct attention_decode_sequence *seq, int64_t i,
                     struct attention_range keys) {
    if (p->tree_mask == NULL) return keys;
    while (keys.begin < keys.end && !attention_decode_sees(p, seq, i, keys.begin)) keys.begin++;
    int64_t end = keys.begin;
    while (end < keys.end && attention_decode_sees(p, seq, i, end)) end++;
    return (struct attention_range){keys.begin, end};
}

// Keys that at least one query sees. The range moves to the right from query to query.
static inline struct attention_range attention_decode_seen(const struct attention_problem *a,
                                                           const struct attention_sequence *s) {
    if (s->len_q == 0) return (struct attention_range){0, 0};
    struct attention_range first = attention_visible(a, s, 0);
    struct attention_range last = attention_visible(a, s, s->len_q - 1);
    return (struct attention_range){tsri_min(first.begin, last.end), last.end};
}

// The page of a row of a sequence, as the table has it; it may be invalid. The row is below the capacity.
static inline int64_t attention_decode_page(const struct attention_decode_problem *p, int64_t batch,
                                            int64_t row) {
    if (p->page_table == NULL) return batch;
    return p->page_table[batch * p->page_table_stride[0] +
                         row / p->page_size * p->page_table_stride[1]];
}

// A row of a sequence in one of the caches; an invalid page is clamped.
static inline char *attention_decode_row(const struct attention_decode_problem *p,
                                         const struct attention_view *cache, int64_t batch,
                                         int64_t row) {
    int64_t page = attention_clamp(attention_decode_page(p, batch, row), 0, p->num_pages - 1);
    return cache->data + (page * cache->batch + row % p->page_size * cache->seq) *
                             (int64_t)tsr_dtype_bytes(cache->dtype);
}

// Addresses of num_keys keys or values from key `first` on.
void attention_decode_rows(const struct attention_decode_problem *p,
                           const struct attention_view *cache,
                           const struct attention_decode_sequence *seq, int64_t first,
                           int64_t num_keys, const char **rows);

// The factor of what a key head has in a cache.
static inline double attention_decode_scale(const struct attention_per_head *scale, int64_t batch,
                                            int64_t kv_head) {
    return scale->data == NULL ? 1 : attention_per_head_at(scale, batch, kv_head);
}

// Row of the tables for a position, clamped.
static inline int64_t attention_decode_angle(const struct attention_decode_problem *p,
                                             int64_t position) {
    return attention_clamp(position, 0, p->cos.rows - 1);
}

// One sequence of a batch as a problem with one batch. Its keys have lengths but no address.
struct attention_problem attention_decode_part(const struct attention_decode_problem *p,
                                               const struct attention_decode_sequence *seq);

// On the CPU, before anything is written: checks lengths, offsets, positions and pages against the contract.
tsr_status attention_decode_check_metadata(const struct attention_decode_problem *p);

// Whether len_q queries of a group go through splits of their keys.
bool attention_decode_is_few(const struct attention_problem *a, int64_t len_q);

// ---- Runs -------------------------------------------------------------------------------------

tsr_status attention_decode_split_run(tsr_context *, const void *, const struct tsri_plan *,
                                      void *);
tsr_status attention_decode_naive_run(tsr_context *, const void *, const struct tsri_plan *,
                                      void *);
tsr_status attention_decode_reference_run(tsr_context *, const void *, const struct tsri_plan *,
                                          void *);
void attention_decode_plan_split(const void *problem, const struct tsri_limits *limits,
                                 struct tsri_plan *plan);
void attention_decode_plan_naive(const void *problem, const struct tsri_limits *limits,
                                 struct tsri_plan *plan);

// ---- CUDA -------------------------------------------------------------------------------------

bool attention_decode_cuda_serves(const void *problem, const struct tsri_limits *limits);
void attention_decode_cuda_plan(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan);
void attention_decode_cuda_plan_naive(const void *problem, const struct tsri_limits *limits,
                                      struct tsri_plan *plan);
tsr_status attention_decode_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status attention_decode_cuda_run_naive(tsr_context *, const void *, const struct tsri_plan *,
                                           void *);
tsr_status attention_decode_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
tsr_status attention_decode_cuda_prepare_naive(tsr_context *, const void *,
                                               const struct tsri_plan *);
bool attention_decode_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

#endif
