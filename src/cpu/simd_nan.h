// SPDX-License-Identifier: Apache-2.0
// One NaN for all. Where two meet in an operation, the processor keeps one of them, and which is up to the order that the
// compiler gave the operands: other in a loop over whole vectors than in the one for what is left, in a tile of four rows than
// in one of three. What is stored as a result has one sign and payload, and so the same bits however the work was cut.
#ifndef TSRI_SIMD_NAN_H
#define TSRI_SIMD_NAN_H

#include "cpu/simd.h"

enum { SIMD_NAN_F32 = 0x7fc00000, SIMD_NAN_BF16 = 0x7fc0, SIMD_NAN_F16 = 0x7e00 };

// x, and where it is NaN the one NaN.
SIMD_INLINE vf vf_one_nan(vf x) {
    vf nan = vf_set1(__builtin_nanf(""));
#if defined(TSRI_SIMD_AVX512)
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_EQ_OQ), nan, x);
#elif defined(TSRI_SIMD_AVX2)
    return _mm256_blendv_ps(nan, x, _mm256_cmp_ps(x, x, _CMP_EQ_OQ));
#else
    return x == x ? x : nan;
#endif
}

// A row of it.
static inline void simd_fill_nan(tsr_dtype dtype, void *row, int64_t count) {
    for (int64_t i = 0; i < count && dtype == TSR_F32; i++) ((float *)row)[i] = __builtin_nanf("");
    for (int64_t i = 0; i < count && dtype != TSR_F32; i++)
        ((uint16_t *)row)[i] = dtype == TSR_F16 ? SIMD_NAN_F16 : SIMD_NAN_BF16;
}

#endif
