// SPDX-License-Identifier: Apache-2.0
// How the second phase of the norms goes over a strip of columns of one row, pair by pair of vectors: its loads, its
// stores, and the prefetch of the next block.
#ifndef TSRI_NORM_STRIPS_H
#define TSRI_NORM_STRIPS_H

#include "cpu/simd_pairs.h"
#include "ops/norm/norm_moments.h"

SIMD_INLINE void add_rows(tsr_dtype dtype, const void *x, const void *residual, void *sum,
                          int64_t n) {
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) {
        struct vf_pair v = vf_load_pair(dtype, x, i), w = vf_load_pair(dtype, residual, i);
        vf_store_pair(dtype, sum, i, (struct vf_pair){v.a + w.a, v.b + w.b});
    }
    if (i < n) {
        struct vf_pair v = vf_load_pair_n(dtype, x, i, n - i, 0.0f);
        struct vf_pair w = vf_load_pair_n(dtype, residual, i, n - i, 0.0f);
        vf_store_pair_n(dtype, sum, i, (struct vf_pair){v.a + w.a, v.b + w.b}, n - i);
    }
}

enum { STRIP = 1024 }; // columns; x, weight and bias of a strip take 12 KiB

// Prefetches n columns (pairs) from i on, of a row of the next block, into the second-level cache. For the second part
// of a line nothing remains to do.
SIMD_INLINE void fetch(tsr_dtype dtype, const char *row, int64_t i, int64_t n) {
    int64_t bytes = dtype_bytes(dtype);
    for (int64_t at = 0; VL > 1 && at < n * bytes; at += 64)
        if (PAIR * bytes >= 64 || i * bytes % 64 == 0)
            __builtin_prefetch(row + i * bytes + at, 0, 2);
}

// How a strip is stored. Non-temporal stores write whole lines: if a row does not start on a line, its strips are
// shifted to lines. Split vectors allow no shift; their strips are gathered in a buffer and copied.
enum exit { STORED, STREAMED, GATHERED };

// Columns [begin, end) of a row. If strips are shifted, the first one has a head, [begin, first_whole).
struct strip {
    int64_t begin, first_whole, end;
    enum exit exit;
};

SIMD_INLINE struct strip strip_of(tsr_dtype dtype, const void *out, int64_t begin, int64_t cols,
                                  bool is_streaming) {
    int64_t head = is_streaming ? simd_line_head(dtype, out) : 0;
    bool is_gathered = head > 0 && vf_is_split(dtype);
    if (is_gathered) head = 0;
    struct strip s = {begin == 0 ? 0 : begin + head, begin + head, begin + head + STRIP,
                      is_gathered    ? GATHERED
                      : is_streaming ? STREAMED
                                     : STORED};
    if (s.begin > cols) s.begin = cols;
    if (s.first_whole > cols) s.first_whole = cols;
    if (s.end > cols) s.end = cols;
    return s;
}

// Stores in increasing order. The compiler would store in decreasing order; then stores across lines cost a fifth of
// the time of rmsnorm on rows of 50257 floats.
SIMD_INLINE void store_upwards(tsr_dtype dtype, void *out, int64_t i, struct vf_pair x) {
    if (vf_is_split(dtype)) {
        vf_store_pair_up(dtype, out, i, x);
        return;
    }
    vf_store_as(dtype, out, i, x.a);
    __asm__ volatile("" ::: "memory");
    vf_store_as(dtype, out, i + VL, x.b);
}

// Runs VALUE(i, n), the pair from column i on with n <= PAIR columns, for the whole strip, and FETCH(i) with each
// non-temporal pair. Halfway cases are rounded up, because results lie halfway between two bf16 only by chance.
#define FOR_STRIP(dtype, strip, out, VALUE, FETCH)                                                 \
    do {                                                                                           \
        int64_t i_ = (strip).begin, head_ = (strip).first_whole - i_, end_ = (strip).end;          \
        char gathered_[STRIP * 2] __attribute__((aligned(64)));                                    \
        void *out_ = vf_is_split(dtype) && (strip).exit == GATHERED ? gathered_ : (out);           \
        int64_t origin_ = out_ == gathered_ ? i_ : 0;                                              \
        if (head_ > 0) {                                                                           \
            vf_store_pair_up_n(dtype, out_, i_, VALUE(i_, head_), head_);                          \
            i_ += head_;                                                                           \
        }                                                                                          \
        if ((strip).exit == STREAMED)                                                              \
            for (; i_ + PAIR <= end_; i_ += PAIR) {                                                \
                FETCH(i_);                                                                         \
                vf_stream_pair_up(dtype, out_, i_, VALUE(i_, PAIR));                               \
            }                                                                                      \
        if (vf_is_split(dtype) && (strip).exit == GATHERED)                                        \
            for (; i_ + PAIR <= end_; i_ += PAIR) {                                                \
                FETCH(i_);                                                                         \
                vf_store_pair_up(dtype, out_, i_ - origin_, VALUE(i_, PAIR));                      \
            }                                                                                      \
        for (; i_ + PAIR <= end_; i_ += PAIR) store_upwards(dtype, out_, i_, VALUE(i_, PAIR));     \
        if (i_ < end_ && (strip).exit == STREAMED)                                                 \
            vf_stream_last_up(dtype, out_, i_, VALUE(i_, end_ - i_), end_ - i_);                   \
        else if (i_ < end_)                                                                        \
            vf_store_pair_up_n(dtype, out_, i_ - origin_, VALUE(i_, end_ - i_), end_ - i_);        \
        if (vf_is_split(dtype) && (strip).exit == GATHERED)                                        \
            stream_bytes(gathered_, (char *)(out) + origin_ * dtype_bytes(dtype),                  \
                         (end_ - origin_) * dtype_bytes(dtype));                                   \
    } while (0)

// A pair of weight or bias: whole if the call has split them in padded workspace, else split here.
SIMD_INLINE struct vf_pair load_vector(tsr_dtype dtype, bool is_split, const float *v, int64_t i,
                                       int64_t n) {
    if (vf_is_split(dtype) && is_split) return vf_load_pair(TSR_F32, v, i);
    struct vf_pair x =
        n == PAIR ? vf_load_pair(TSR_F32, v, i) : vf_load_pair_n(TSR_F32, v, i, n, 0.0f);
    return vf_is_split(dtype) ? vf_split(x) : x;
}
// A pair of the running sums, in padded workspace: a whole pair if only padding follows the n columns (is_last),
// because a partial load would wait for a vector that was just stored.
SIMD_INLINE struct vf_pair load_sums(tsr_dtype dtype, bool is_last, const float *v, int64_t i,
                                     int64_t n) {
    return vf_is_split(dtype) || is_last || n == PAIR ? vf_load_pair(TSR_F32, v, i)
                                                      : vf_load_pair_n(TSR_F32, v, i, n, 0.0f);
}
SIMD_INLINE void store_sums(tsr_dtype dtype, bool is_last, float *v, int64_t i, struct vf_pair x,
                            int64_t n) {
    if (vf_is_split(dtype) || is_last || n == PAIR)
        vf_store_pair(TSR_F32, v, i, x);
    else
        vf_store_pair_n(TSR_F32, v, i, x, n);
}
SIMD_INLINE struct vf_pair load_row(tsr_dtype dtype, const void *x, int64_t i, int64_t n) {
    return n == PAIR ? vf_load_pair(dtype, x, i) : vf_load_pair_n(dtype, x, i, n, 0.0f);
}

// Rows of at most so many columns: as many rows as a vector has lanes are processed at once.
enum { SHORT_COLS = 4 * PAIR, SHORT_BYTES = VL * SHORT_COLS * 4 };

// Evenly spaced rows: the first row, and the bytes from one row to the next.
struct spaced {
    const char *data;
    int64_t step;
};

SIMD_INLINE struct spaced spaced(tsr_dtype dtype, const struct tsri_rows *t, int64_t row) {
    int64_t step = t->stride * dtype_bytes(dtype);
    return (struct spaced){t->data != NULL ? t->data + row * step : NULL, step};
}

// One instantiation per dtype, norm and order of weight and bias, which are constants inside. Each is a function of its
// own, so that none gets the registers and the frame of the others.
#define NORM_ONE(name, suffix, dtype, is_rmsnorm, is_split)                                        \
    static __attribute__((noinline)) void name##suffix(const struct norm_call *call,               \
                                                       int64_t first, int64_t last, int thread) {  \
        name##_as(dtype, is_rmsnorm, is_split, call, first, last, thread);                         \
    }
#define NORM_BY_DTYPE(name)                                                                        \
    NORM_ONE(name, _layer_f32, TSR_F32, false, false)                                              \
    NORM_ONE(name, _layer_f16, TSR_F16, false, false)                                              \
    NORM_ONE(name, _layer_bf16, TSR_BF16, false, false)                                            \
    NORM_ONE(name, _layer_split, TSR_BF16, false, vf_is_split(TSR_BF16))                           \
    NORM_ONE(name, _rms_f32, TSR_F32, true, false)                                                 \
    NORM_ONE(name, _rms_f16, TSR_F16, true, false)                                                 \
    NORM_ONE(name, _rms_bf16, TSR_BF16, true, false)                                               \
    NORM_ONE(name, _rms_split, TSR_BF16, true, vf_is_split(TSR_BF16))                              \
    static void name(const struct norm_call *call, int64_t first, int64_t last, int thread) {      \
        static norm_kernel *const all[2][4] = {                                                    \
            {name##_layer_f32, name##_layer_f16, name##_layer_bf16, name##_layer_split},           \
            {name##_rms_f32, name##_rms_f16, name##_rms_bf16, name##_rms_split}};                  \
        tsr_dtype dtype = call->problem->dtype;                                                    \
        bool is_split = vf_is_split(TSR_BF16) && call->is_split;                                   \
        int index = dtype == TSR_F16 ? 1 : dtype == TSR_BF16 ? 2 + is_split : 0;                   \
        all[call->problem->is_rmsnorm][index](call, first, last, thread);                          \
        if (call->is_streaming) vf_stream_fence();                                                 \
    }

#endif
