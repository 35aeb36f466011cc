// SPDX-License-Identifier: Apache-2.0
// Attention as the variants see it, forward and backward: plain pointers and strides, the lengths of each sequence, and the run of
// keys that each query sees.
#ifndef TSRI_ATTENTION_PROBLEM_H
#define TSRI_ATTENTION_PROBLEM_H

#include <tessera/attention.h>

#include "context/op_table.h"
#include "core/core_dtype.h"
#include "ops/attention/attention_params.h"

enum { ATTENTION_MAX_HEAD_DIM = 256 };

// (batch, seq, head, dim) with dim contiguous; packed tensors have a batch stride of 0.
struct attention_view {
    char *data; // NULL: absent
    tsr_dtype dtype;
    int64_t batch, seq, head; // strides, elements
};

// bias and dbias: (batch, head, query, key); a repeated dimension has a stride of 0.
struct attention_bias {
    char *data;
    tsr_dtype dtype;
    int64_t shape[4], stride[4];
};

// One value per head, for each batch or for all batches.
struct attention_per_head {
    char *data;
    tsr_dtype dtype;
    int64_t batch, head;
};

struct attention_problem {
    struct attention_view q, k, v, out;
    struct attention_view dout, dq, dk, dv; // backward only
    char *lse;                              // f32 (f64 on the reference); NULL: not wanted
    int64_t lse_batch, lse_head;            // strides; rows are contiguous; packed: lse_batch 0
    struct attention_bias bias, dbias;
    struct attention_per_head slopes, sinks, dsinks;
    tsr_dtype dtype; // of q, k, v, out and their gradients

    const int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_k; // NULL where not given
    int64_t cu_stride_q, cu_stride_k, seqused_stride;
    bool is_packed;
    int64_t num_batches;        // sequences
    int64_t seqlen_q, seqlen_k; // packed: the longest
    int64_t total_q, total_k;   // rows of q and k in one batch stride: packed the totals
    int64_t num_heads_q, num_heads_kv, head_dim, head_dim_v;

    tsr_mask mask;
    bool has_window_left, has_window_right;
    int64_t window_left, window_right;
    double softmax_scale, softcap; // softcap 0: none
    double dropout_p;
    uint64_t dropout_threshold; // of a 32-bit word that keeps, so 0 without dropout
    uint64_t seed, offset;
};

// Key/value heads of all batches; and the rows of q that share one, for the longest sequence.
static inline int64_t attention_num_pairs(const struct attention_problem *p) {
    return p->num_batches * p->num_heads_kv;
}
static inline int64_t attention_most_rows(const struct attention_problem *p) {
    return p->num_heads_kv == 0 ? 0 : p->num_heads_q / p->num_heads_kv * p->seqlen_q;
}

// One sequence. Its rows start at q_first and k_first of its batch. Lengths count only rows that may be seen.
struct attention_sequence {
    int64_t q_first, k_first, len_q, len_k;
    int64_t shift; // the diagonal is j = i + shift
};

struct attention_range {
    int64_t begin, end; // keys
};

static inline int64_t attention_clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// Bad offsets and lengths are clamped.
static inline struct attention_sequence attention_sequence_at(const struct attention_problem *p,
                                                              int64_t batch) {
    struct attention_sequence s = {0, 0, p->seqlen_q, p->seqlen_k, 0};
    if (p->is_packed) {
        s.q_first = attention_clamp(p->cu_seqlens_q[batch * p->cu_stride_q], 0, p->total_q);
        s.k_first = attention_clamp(p->cu_seqlens_k[batch * p->cu_stride_k], 0, p->total_k);
        int64_t q_end = p->cu_seqlens_q[(batch + 1) * p->cu_stride_q];
        int64_t k_end = p->cu_seqlens_k[(batch + 1) * p->cu_stride_k];
        s.len_q = attention_clamp(attention_clamp(q_end, s.q_first, p->total_q) - s.q_first, 0,
                                  p->seqlen_q);
        s.len_k = attention_clamp(attention_clamp(k_end, s.k_first, p->total_k) - s.k_first, 0,
                                  p->seqlen_k);
    }
    if (p->seqused_k != NULL)
        s.len_k = attention_clamp(p->seqused_k[batch * p->seqused_stride], 0, s.len_k);
    s.shift = p->mask == TSR_MASK_CAUSAL_TOP_LEFT ? 0 : s.len_k - s.len_q;
    return s;
}

// The keys that query i of a sequence sees: one range, empty if begin == end.
static inline struct attention_range attention_visible(const struct attention_problem *p,
                                                       const struct attention_sequence *s,
                                                       int64_t i) {
    int64_t diagonal = i + s->shift, begin = 0, end = s->len_k;
    if (p->has_window_left && p->window_left < diagonal) begin = diagonal - p->window_left;
    if (p->mask != TSR_MASK_NONE) end = tsri_min(end, diagonal + 1);
    // diagonal + window_right + 1 may overflow, so it is not computed.
    if (p->has_window_right && p->window_right < end - 1 - diagonal)
        end = diagonal + p->window_right + 1;
    begin = tsri_min(begin, s->len_k);
    return (struct attention_range){begin, tsri_max(end, begin)};
}

static inline void *attention_at(const struct attention_view *t, int64_t batch, int64_t row,
                                 int64_t head) {
    return t->data +
           (batch * t->batch + row * t->seq + head * t->head) * tsri_dtype_bytes(t->dtype);
}

// Prefetches a row of a head.
static inline void attention_prefetch_row(const struct attention_view *view, int64_t batch,
                                          int64_t row, int64_t head, int64_t dims) {
    enum { LINE = 64, SECOND_LEVEL = 2 };
    const char *at = attention_at(view, batch, row, head);
    int64_t bytes = dims * tsri_dtype_bytes(view->dtype);
    for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(at + i, 0, SECOND_LEVEL);
}

static inline void *attention_bias_at(const struct attention_bias *t, int64_t batch, int64_t head,
                                      int64_t i, int64_t j) {
    return t->data +
           (batch * t->stride[0] + head * t->stride[1] + i * t->stride[2] + j * t->stride[3]) *
               (int64_t)tsr_dtype_bytes(t->dtype);
}

// A head's slope or sink.
static inline double attention_per_head_at(const struct attention_per_head *t, int64_t batch,
                                           int64_t head) {
    return tsri_load(t->dtype, t->data, batch * t->batch + head * t->head);
}

// The sink of a head; -inf: none. See ATTENTION_ENDLESS.
static inline double attention_sink_at(const struct attention_problem *p, int64_t batch,
                                       int64_t head) {
    if (p->sinks.data == NULL) return -INFINITY;
    double sink = attention_per_head_at(&p->sinks, batch, head);
    if (sink <= -(double)ATTENTION_ENDLESS) return -INFINITY;
    return sink < (double)ATTENTION_ENDLESS ? sink : NAN;
}

static inline int64_t attention_round16(int64_t n) { return (int64_t)tsri_round_up((size_t)n, 16); }
// The stride of rows of n floats. It avoids multiples of 4 KiB: rows at powers of two would share a few cache sets.
static inline int64_t attention_row_stride(int64_t n) { return attention_round16(n) + 16; }

// Element (batch, head, row) of lse; row counts from the start of the batch (packed: of everything).
static inline int64_t attention_lse_index(const struct attention_problem *p, int64_t batch,
                                          int64_t head, int64_t row) {
    return batch * p->lse_batch + head * p->lse_head + row;
}

// ---- Runs -------------------------------------------------------------------------------------

#define ATTENTION_RUN(name)                                                                        \
    tsr_status attention_##name##_run(tsr_context *ctx, const void *problem,                       \
                                      const struct tsri_plan *plan, void *workspace)
ATTENTION_RUN(reference);
ATTENTION_RUN(naive);
ATTENTION_RUN(flash1);
ATTENTION_RUN(few);
ATTENTION_RUN(flash2);
ATTENTION_RUN(tuned);
ATTENTION_RUN(amx_bf16);
ATTENTION_RUN(avx512_bf16);
ATTENTION_RUN(reference_backward);
ATTENTION_RUN(naive_backward);
ATTENTION_RUN(amx_bf16_backward);
ATTENTION_RUN(avx512_bf16_backward);
ATTENTION_RUN(backward); // all others; they differ only in their plans

#define ATTENTION_PLAN(name)                                                                       \
    void attention_plan_##name(const void *problem, const struct tsri_limits *limits,              \
                               struct tsri_plan *plan)
ATTENTION_PLAN(naive);
ATTENTION_PLAN(flash1);
ATTENTION_PLAN(few);
ATTENTION_PLAN(flash2);
ATTENTION_PLAN(tuned);
ATTENTION_PLAN(amx_bf16);
ATTENTION_PLAN(avx512_bf16);
ATTENTION_PLAN(reference_backward);
ATTENTION_PLAN(naive_backward);
ATTENTION_PLAN(flash1_backward);
ATTENTION_PLAN(flash2_backward);
ATTENTION_PLAN(tuned_backward);
ATTENTION_PLAN(amx_bf16_backward);
ATTENTION_PLAN(avx512_bf16_backward);

#define ATTENTION_CUDA(name)                                                                       \
    bool attention_cuda_has_##name(const void *problem, const struct tsri_limits *limits);         \
    void attention_cuda_plan_##name(const void *problem, const struct tsri_limits *limits,         \
                                    struct tsri_plan *plan);                                       \
    tsr_status attention_cuda_##name##_prepare(tsr_context *ctx, const void *problem,              \
                                               const struct tsri_plan *plan);                      \
    ATTENTION_RUN(cuda_##name)
ATTENTION_CUDA(flash3);
ATTENTION_CUDA(small);
ATTENTION_CUDA(few);
ATTENTION_CUDA(flash2);
ATTENTION_CUDA(flash1);
ATTENTION_CUDA(naive);
ATTENTION_CUDA(flash3_backward);
ATTENTION_CUDA(small_backward);
ATTENTION_CUDA(flash2_backward);
ATTENTION_CUDA(flash1_backward);
ATTENTION_CUDA(naive_backward);
bool attention_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);
const char *attention_cuda_prefer_forward(const void *problem, const struct tsri_limits *limits);
const char *attention_cuda_prefer_backward(const void *problem, const struct tsri_limits *limits);
bool attention_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

enum { ATTENTION_MOST_HELPED = 256 }; // threads; each has a counter on the caller's stack
// Up to this number of threads may help each other with their heads; each packs its own keys.
enum { ATTENTION_FEW_THREADS = 3 };
bool attention_shares_heads(const struct attention_problem *p, const struct tsri_limits *limits);
// With fewer rows of a group the group is one tile, for any number of threads.
enum { ATTENTION_LONE_ROWS = 48 };
// How many threads are worth waking.
int attention_flash2_threads(const struct attention_problem *p, const struct tsri_limits *limits);
// Who packs the keys and values that tuned reads, and when.
enum attention_packing {
    ATTENTION_PACKS_STRIPES, // all threads pack some heads, then run their tiles
    ATTENTION_PACKS_SHARED,  // threads share heads; each packs what its tiles see
    ATTENTION_PACKS_HEADS,   // a thread packs each head that it takes
    ATTENTION_PACKS_HELPED,  // as above, and other threads help with the last tiles
    ATTENTION_PACKS_BLOCKS,  // a head's only tile, block by block
    ATTENTION_PACKS_TILES,   // each tile packs for itself
};
enum attention_packing attention_packing(const struct attention_problem *p,
                                         const struct tsri_limits *limits, int64_t block_m,
                                         bool is_mixed);
const char *attention_prefer_forward(const void *problem, const struct tsri_limits *limits);
const char *attention_prefer_backward(const void *problem, const struct tsri_limits *limits);
bool attention_has_kernels(const void *problem, const struct tsri_limits *limits);
// Whether memory can hold the matrix of all scores. Keys of stride 0 may be any number.
bool attention_has_naive(const void *problem, const struct tsri_limits *limits);
bool attention_has_amx_bf16(const void *problem, const struct tsri_limits *limits);
bool attention_has_few(const void *problem, const struct tsri_limits *limits);
bool attention_prefers_few(const struct attention_problem *p, const struct tsri_limits *limits);
bool attention_has_avx512_bf16(const void *problem, const struct tsri_limits *limits);

#endif
