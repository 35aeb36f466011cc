// SPDX-License-Identifier: Apache-2.0
// Results hold one canonical NaN. When an operation has two NaN operands, the processor keeps one of them, and which
// one depends on the operand order that the compiler chose. That order may differ between a loop over whole vectors and
// its tail, or between tiles of four and of three rows. With one sign and payload for every stored NaN, the bits do not
// depend on how the work was cut.
#ifndef TSRI_SIMD_NAN_H
#define TSRI_SIMD_NAN_H

#include "cpu/simd.h"

// x, or the canonical NaN if x is NaN.
SIMD_INLINE vf vf_one_nan(vf x) {
#if defined(TSRI_SIMD_SCALAR)
    return x == x ? x : -__builtin_nanf("");
#else
    return simd_default_nan(x);
#endif
}

#if defined(TSRI_SIMD_SCALAR)
typedef bool simd_nans;
static inline simd_nans simd_no_nans(void) { return true; }
static inline simd_nans simd_find_nans(simd_nans before, vf x, vf y) {
    return before && x == x && y == y;
}
static inline bool simd_has_nan(simd_nans nans) { return !nans; }
#endif

// Applies vf_one_nan to a whole stored tile; few tiles hold a NaN. simd_nans detects that with one comparison for two
// vectors.
__attribute__((noinline, cold, unused)) static void simd_one_nan_tile(float *c, int64_t c_stride,
                                                                      int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; i++, c += c_stride)
        for (int64_t j = 0; j < cols; j += VL) {
            int64_t lanes = cols - j < VL ? cols - j : VL;
            vf_store_n(c + j, vf_one_nan(vf_load_n(c + j, lanes)), lanes);
        }
}

// Fills a row with the canonical NaN.
static inline void simd_fill_nan(tsr_dtype dtype, void *row, int64_t count) {
    enum { BF16 = 0xffc0, F16 = 0xfe00 };
    for (int64_t i = 0; i < count; i++)
        if (dtype == TSR_F32)
            ((float *)row)[i] = -__builtin_nanf("");
        else
            ((uint16_t *)row)[i] = dtype == TSR_F16 ? F16 : BF16;
}

#endif
