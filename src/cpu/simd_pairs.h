// SPDX-License-Identifier: Apache-2.0
// Pairs of vectors, for kernels that treat every element alike, in whatever lane it is. A load of bf16 puts even
// elements in one vector and odd ones in the other. That takes a shift and a mask on whole registers; elements in order
// would cost a permutation each way, on the narrowest port of most cores. Other dtypes stay in order. A store of the
// same kind puts the elements back in place.
#ifndef TSRI_SIMD_PAIRS_H
#define TSRI_SIMD_PAIRS_H

#include "cpu/simd.h"

enum { PAIR = 2 * VL };

struct vf_pair {
    vf a, b;
};

// Whether pairs of the dtype are split into even and odd elements.
SIMD_INLINE bool vf_is_split(tsr_dtype dtype) {
#if defined(SIMD_HAS_PAIRS)
    return dtype == TSR_BF16;
#else
    (void)dtype;
    return false;
#endif
}

SIMD_INLINE struct vf_pair vf_load_pair(tsr_dtype dtype, const void *base, int64_t i) {
    struct vf_pair x;
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_load_pair_bf16((const uint16_t *)base + i, &x.a, &x.b);
        return x;
    }
#endif
    x.a = vf_load_as(dtype, base, i);
    x.b = vf_load_as(dtype, base, i + VL);
    return x;
}

// The first n elements, 0 < n < PAIR, then `fill`.
SIMD_INLINE struct vf_pair vf_load_pair_n(tsr_dtype dtype, const void *base, int64_t i, int64_t n,
                                          float fill) {
    struct vf_pair x;
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_load_pair_bf16_n((const uint16_t *)base + i, n, &x.a, &x.b);
        x.a = vf_keep_n(x.a, (n + 1) / 2, fill);
        x.b = vf_keep_n(x.b, n / 2, fill);
        return x;
    }
#endif
    if (n <= VL) {
        x.a = vf_keep_n(vf_load_as_n(dtype, base, i, n), n, fill);
        x.b = vf_set1(fill);
    } else {
        x.a = vf_load_as(dtype, base, i);
        x.b = vf_keep_n(vf_load_as_n(dtype, base, i + VL, n - VL), n - VL, fill);
    }
    return x;
}

// The first n elements of a pair, then 0.
SIMD_INLINE struct vf_pair vf_keep_pair_n(tsr_dtype dtype, struct vf_pair x, int64_t n) {
    int64_t first = vf_is_split(dtype) ? (n + 1) / 2 : n < VL ? n : VL;
    x.a = vf_keep_n(x.a, first, 0.0f);
    x.b = vf_keep_n(x.b, n - first, 0.0f);
    return x;
}

// A NaN stored as bf16 must have a low half of 0, because rounding adds to the bits. Every NaN from a bf16 operand or
// an invalid operation has one.
SIMD_INLINE void vf_store_pair(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_store_pair_bf16((uint16_t *)base + i, x.a, x.b);
        return;
    }
#endif
    vf_store_as(dtype, base, i, x.a);
    vf_store_as(dtype, base, i + VL, x.b);
}

SIMD_INLINE void vf_store_pair_n(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x,
                                 int64_t n) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_store_pair_bf16_n((uint16_t *)base + i, x.a, x.b, n);
        return;
    }
#endif
    if (n <= VL) {
        vf_store_as_n(dtype, base, i, x.a, n);
    } else {
        vf_store_as(dtype, base, i, x.a);
        vf_store_as_n(dtype, base, i + VL, x.b, n - VL);
    }
}

// The same stores, but halfway cases are rounded up, not to even: one addition instead of three operations. For values
// that lie halfway only by chance.
SIMD_INLINE void vf_store_pair_up(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_store_pair_bf16_up((uint16_t *)base + i, x.a, x.b);
        return;
    }
#endif
    vf_store_pair(dtype, base, i, x);
}
SIMD_INLINE void vf_store_pair_up_n(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x,
                                    int64_t n) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_store_pair_bf16_up_n((uint16_t *)base + i, x.a, x.b, n);
        return;
    }
#endif
    vf_store_pair_n(dtype, base, i, x, n);
}

// A row's last pair. WHOLE: both vectors; MORE: the first vector and part of the second; LESS: at most the first
// vector. Split pairs are WHOLE or MORE.
enum part { WHOLE, MORE, LESS };

SIMD_INLINE enum part part_of(tsr_dtype dtype, int64_t n) {
    return n == PAIR ? WHOLE : n > VL || vf_is_split(dtype) ? MORE : LESS;
}

SIMD_INLINE struct vf_pair load_part(tsr_dtype dtype, enum part part, const char *x, int64_t i,
                                     int64_t n) {
    if (part == WHOLE) return vf_load_pair(dtype, x, i);
    if (vf_is_split(dtype)) return vf_load_pair_n(dtype, x, i, n, 0.0f);
    if (part == LESS) return (struct vf_pair){vf_load_as_n(dtype, x, i, n), vf_set1(0.0f)};
    return (struct vf_pair){vf_load_as(dtype, x, i), vf_load_as_n(dtype, x, i + VL, n - VL)};
}

// is_up: rounds halfway cases as vf_store_pair_up.
SIMD_INLINE void store_part(tsr_dtype dtype, enum part part, bool is_up, char *y, int64_t i,
                            struct vf_pair v, int64_t n) {
    if (part == WHOLE && is_up) {
        vf_store_pair_up(dtype, y, i, v);
    } else if (part == WHOLE) {
        vf_store_pair(dtype, y, i, v);
    } else if (vf_is_split(dtype) && is_up) {
        vf_store_pair_up_n(dtype, y, i, v, n);
    } else if (vf_is_split(dtype)) {
        vf_store_pair_n(dtype, y, i, v, n);
    } else if (part == LESS) {
        vf_store_as_n(dtype, y, i, v.a, n);
    } else {
        vf_store_as(dtype, y, i, v.a);
        vf_store_as_n(dtype, y, i + VL, v.b, n - VL);
    }
}

// Lane i is the lane sum of r[i] for the first num of VL vectors; other lanes are 0.
SIMD_INLINE vf vf_sums_of(vf *r, int64_t num) {
    enum { FEW = 4 };
    if (num > FEW) {
        for (int64_t i = num; i < VL; i++) r[i] = vf_set1(0.0f);
        return vf_sums(r);
    }
    vf sums = vf_set1(0.0f);
    for (int64_t i = 0; i < num; i++) sums = vf_keep_n(sums, i, vf_sum_one(r[i]));
    return vf_keep_n(sums, num, 0.0f);
}

// Clears the low half of NaNs (vf_store_pair).
SIMD_INLINE vf vf_plain_nan(vf x) {
#if defined(SIMD_HAS_PAIRS)
    return simd_default_nan(x);
#else
    return x;
#endif
}

// Splits two vectors in order into even and odd elements and clears the low half of NaNs.
SIMD_INLINE struct vf_pair vf_split(struct vf_pair in_order) {
    struct vf_pair x;
    vf_unzip(in_order.a, in_order.b, &x.a, &x.b);
    x.a = vf_plain_nan(x.a), x.b = vf_plain_nan(x.b);
    return x;
}
SIMD_INLINE struct vf_pair vf_join(struct vf_pair split) {
    struct vf_pair x;
    vf_zip(split.a, split.b, &x.a, &x.b);
    return x;
}

// A non-temporal store; base + i must be vf_is_aligned.
SIMD_INLINE void vf_stream_pair(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_stream_pair_bf16((uint16_t *)base + i, x.a, x.b);
        return;
    }
#endif
    vf_stream_two_as(dtype, base, i, x.a, x.b);
}

SIMD_INLINE void vf_stream_pair_up(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x) {
#if defined(SIMD_HAS_PAIRS)
    if (dtype == TSR_BF16) {
        vf_stream_pair_bf16_up((uint16_t *)base + i, x.a, x.b);
        return;
    }
#endif
    vf_stream_pair(dtype, base, i, x);
}

// Stores the last n < PAIR elements after vf_stream_pair_up. Half a line of floats is also non-temporal, because a line
// that is written only partly so is slow (tsri_should_stream_rows).
SIMD_INLINE void vf_stream_last_up(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x,
                                   int64_t n) {
    if (VL == 8 && dtype == TSR_F32 && n == VL)
        vf_stream_as(dtype, base, i, x.a);
    else
        vf_store_pair_up_n(dtype, base, i, x, n);
}

SIMD_INLINE bool vf_is_aligned(const void *base) { return (uintptr_t)base % (VL * 4) == 0; }

// Copies bytes with non-temporal stores; each lane of a vector carries four bytes.
SIMD_INLINE void stream_bytes(const char *from, char *to, int64_t bytes) {
    enum { WIDTH = VL * 4 };
    int64_t head = (int64_t)((WIDTH - (uintptr_t)to % WIDTH) % WIDTH);
    if (head > bytes) head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t i = head;
    for (; i + WIDTH <= bytes; i += WIDTH) {
        vf x; // `from` may be aligned to 16 bits only
        memcpy(&x, from + i, sizeof x);
        vf_stream((float *)(void *)(to + i), x);
    }
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

// Copies contiguous rows with non-temporal stores to rows `step` bytes apart. If those are contiguous too, whole lines
// cross row boundaries.
SIMD_INLINE void stream_rows(const char *from, int64_t row_bytes, int64_t rows, char *to,
                             int64_t step) {
    if (step == row_bytes)
        stream_bytes(from, to, rows * row_bytes);
    else
        for (int64_t r = 0; r < rows; r++)
            stream_bytes(from + r * row_bytes, to + r * step, row_bytes);
}

#endif
