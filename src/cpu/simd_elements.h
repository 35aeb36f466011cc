// SPDX-License-Identifier: Apache-2.0
// The loop of an element-wise kernel over one contiguous span, with three kinds of access: whole vectors, non-temporal
// whole vectors, and a part of a vector at each end.
#ifndef TSRI_SIMD_ELEMENTS_H
#define TSRI_SIMD_ELEMENTS_H

#include "cpu/cpu_isa.h"
#include "cpu/simd.h"

// SIMD_FETCHED, and SIMD_FETCHED_NEXT for the vector after it: non-temporal stores, with the input prefetched far
// ahead.
enum simd_access { SIMD_WHOLE, SIMD_STREAM, SIMD_PART, SIMD_FETCHED, SIMD_FETCHED_NEXT };

SIMD_INLINE vf vf_get(enum simd_access access, tsr_dtype dtype, const void *base, int64_t i,
                      int64_t n) {
    int64_t bytes = dtype == TSR_F32 ? 4 : 2;
    if (access == SIMD_FETCHED || (access == SIMD_FETCHED_NEXT && VL * bytes >= 64))
        __builtin_prefetch(simd_far_line((uintptr_t)base + (uintptr_t)(i * bytes)), 0, 2);
    return access == SIMD_PART ? vf_load_as_n(dtype, base, i, n) : vf_load_as(dtype, base, i);
}

SIMD_INLINE void vf_put(enum simd_access access, tsr_dtype dtype, void *base, int64_t i, vf x,
                        int64_t n) {
    if (access == SIMD_PART)
        vf_store_as_n(dtype, base, i, x, n);
    else if (access == SIMD_STREAM)
        vf_stream_as(dtype, base, i, x);
    else
        vf_store_as(dtype, base, i, x);
}

// Runs STEP(access, i, n) over [0, length). head: elements before the first aligned vector of the output, where
// non-temporal stores begin.
#define SIMD_FOR_SPAN(length, head, is_streaming, STEP)                                            \
    do {                                                                                           \
        int64_t span_i = 0;                                                                        \
        if (is_streaming) {                                                                        \
            span_i = (head) < (length) ? (head) : (length);                                        \
            if (span_i > 0) STEP(SIMD_PART, 0, span_i);                                            \
            for (; span_i + VL <= (length); span_i += VL) STEP(SIMD_STREAM, span_i, VL);           \
        } else {                                                                                   \
            for (; span_i + VL <= (length); span_i += VL) STEP(SIMD_WHOLE, span_i, VL);            \
        }                                                                                          \
        if (span_i < (length)) STEP(SIMD_PART, span_i, (length)-span_i);                           \
    } while (0)

// out[i] = VALUE(access, i, n), a vector, over [0, length); non-temporal stores write whole lines.
#define SIMD_FOR_VALUES(dtype, out, length, is_streaming, VALUE)                                   \
    do {                                                                                           \
        int64_t at_ = 0, head_ = (is_streaming) ? simd_line_head(dtype, out) : 0;                  \
        if (head_ > (length)) head_ = (length);                                                    \
        for (; at_ + VL <= head_; at_ += VL)                                                       \
            vf_store_as(dtype, out, at_, VALUE(SIMD_WHOLE, at_, VL));                              \
        if (at_ < head_)                                                                           \
            vf_store_as_n(dtype, out, at_, VALUE(SIMD_PART, at_, head_ - at_), head_ - at_);       \
        at_ = head_;                                                                               \
        if ((is_streaming) && tsri_gains_from_far_lines())                                         \
            for (; at_ + 2 * VL <= (length); at_ += 2 * VL) {                                      \
                vf first_ = VALUE(SIMD_FETCHED, at_, VL);                                          \
                if ((dtype) == TSR_F32) vf_stream_as(dtype, out, at_, first_);                     \
                vf next_ = VALUE(SIMD_FETCHED_NEXT, at_ + VL, VL);                                 \
                if ((dtype) == TSR_F32)                                                            \
                    vf_stream_as(dtype, out, at_ + VL, next_);                                     \
                else                                                                               \
                    vf_stream_two_as(dtype, out, at_, first_, next_);                              \
            }                                                                                      \
        else if (is_streaming)                                                                     \
            for (; (dtype) != TSR_F32 && at_ + 2 * VL <= (length); at_ += 2 * VL) {                \
                vf first_ = VALUE(SIMD_STREAM, at_, VL);                                           \
                vf_stream_two_as(dtype, out, at_, first_, VALUE(SIMD_STREAM, at_ + VL, VL));       \
            }                                                                                      \
        for (; (is_streaming) && (dtype) == TSR_F32 && at_ + VL <= (length); at_ += VL)            \
            vf_stream_as(dtype, out, at_, VALUE(SIMD_STREAM, at_, VL));                            \
        for (; at_ + VL <= (length); at_ += VL)                                                    \
            vf_store_as(dtype, out, at_, VALUE(SIMD_WHOLE, at_, VL));                              \
        if (at_ < (length))                                                                        \
            vf_store_as_n(dtype, out, at_, VALUE(SIMD_PART, at_, (length)-at_), (length)-at_);     \
    } while (0)

#endif
