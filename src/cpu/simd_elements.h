// SPDX-License-Identifier: Apache-2.0
// The loop of an element-wise kernel over one contiguous span, and access in its three ways: whole
// vectors, whole vectors past the caches, and part of a vector at the ends.
#ifndef TSRI_SIMD_ELEMENTS_H
#define TSRI_SIMD_ELEMENTS_H

#include "cpu/simd.h"

enum simd_access { SIMD_WHOLE, SIMD_STREAM, SIMD_PART };

SIMD_INLINE vf vf_get(enum simd_access access, tsr_dtype dtype, const void *base, int64_t i,
                      int64_t n) {
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

// STEP(access, i, n) for all of [0, length). head: elements before the output's first aligned
// vector; streaming starts there.
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

#endif
