// SPDX-License-Identifier: Apache-2.0
// Vectors by twos, for kernels that do the same to every element and do not care in which lane it is.
// Of two vectors of bf16 the even elements go to one and the odd ones to the other: a shift and a mask
// on whole registers, where elements in order cost a permutation each way, the narrowest port of most
// cores. Other dtypes come in order. What a load gives, a store of the same kind puts back in place.
#ifndef TSRI_SIMD_PAIRS_H
#define TSRI_SIMD_PAIRS_H

#include "cpu/simd.h"

enum { PAIR = 2 * VL };

struct vf_pair {
    vf a, b;
};

// Whether pairs of the dtype come as even and odd elements; else in order.
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

// The first n elements, 0 < n < PAIR, and `fill` beyond.
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

// The first n elements of a pair, 0 beyond.
SIMD_INLINE struct vf_pair vf_keep_pair_n(tsr_dtype dtype, struct vf_pair x, int64_t n) {
    int64_t first = vf_is_split(dtype) ? (n + 1) / 2 : n < VL ? n : VL;
    x.a = vf_keep_n(x.a, first, 0.0f);
    x.b = vf_keep_n(x.b, n - first, 0.0f);
    return x;
}

// A NaN among bf16 must have a low half of 0, as all have that come of bf16 operands or of an invalid
// operation: rounding is an addition to the bits.
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

// The same stores with halves of a last place rounded up and not to even, for what lies halfway by chance only:
// one addition in place of three operations.
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

// A row's last pair: whole; the first vector whole and a part of the second; at most the first. Even and odd elements are
// WHOLE or MORE.
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

// is_up: halves of a last place as in vf_store_pair_up.
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

// The sums of the lanes of each of the first num of VL vectors, a lane for each; 0 beyond.
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

// NaNs without their low halves (vf_store_pair).
SIMD_INLINE vf vf_plain_nan(vf x) {
#if defined(SIMD_HAS_PAIRS)
    return simd_default_nan(x);
#else
    return x;
#endif
}

// Two vectors in order to even and odd elements, NaNs without their low halves.
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

// Past the caches; base + i must be vf_is_aligned.
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

// The last n < PAIR elements behind vf_stream_pair_up: half a line of floats goes past the caches too, since a line that does
// so in part alone takes long (tsri_should_stream_rows).
SIMD_INLINE void vf_stream_last_up(tsr_dtype dtype, void *base, int64_t i, struct vf_pair x,
                                   int64_t n) {
    if (VL == 8 && dtype == TSR_F32 && n == VL)
        vf_stream_as(dtype, base, i, x.a);
    else
        vf_store_pair_up_n(dtype, base, i, x, n);
}

SIMD_INLINE bool vf_is_aligned(const void *base) { return (uintptr_t)base % (VL * 4) == 0; }

// Bytes as they are, past the caches: a vector of floats carries two 16-bit elements a lane.
SIMD_INLINE void stream_bytes(const char *from, char *to, int64_t bytes) {
    enum { WIDTH = VL * 4 };
    int64_t head = (int64_t)((WIDTH - (uintptr_t)to % WIDTH) % WIDTH);
    if (head > bytes) head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t i = head;
    for (; i + WIDTH <= bytes; i += WIDTH) {
        vf x; // from is aligned to its elements alone, which may be of 16 bits
        memcpy(&x, from + i, sizeof x);
        vf_stream((float *)(void *)(to + i), x);
    }
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

// Rows that lie back to back, to where they go past the caches, step bytes apart: whole lines across them where they go
// back to back too.
SIMD_INLINE void stream_rows(const char *from, int64_t row_bytes, int64_t rows, char *to,
                             int64_t step) {
    if (step == row_bytes)
        stream_bytes(from, to, rows * row_bytes);
    else
        for (int64_t r = 0; r < rows; r++)
            stream_bytes(from + r * row_bytes, to + r * step, row_bytes);
}

#endif
