// SPDX-License-Identifier: Apache-2.0
// bf16 matrix products in fp32, on processors with a unit for them: vdpbf16ps or AMX tiles. Both kernels take B as
// pairs of rows, [k / 2][64][2], and A's rows in place, so they share the packing. Both treat subnormal operands and
// results as 0, whatever the thread's environment is.
#ifndef TSRI_CPU_GEMM_BF16_H
#define TSRI_CPU_GEMM_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GEMM_BF16_NR = 64,    // columns of a panel
    GEMM_BF16_DEPTH = 32, // k is a multiple; A and B are padded with zeros
    GEMM_BF16_WIDTH = 32, // c is written up to a multiple of it
    GEMM_BF16_PART = 16,  // columns of a panel are multiplied up to a multiple of it
};

// c (m x n, fp32) = or += a (m x k) b (k x n). Element (i, p) of a is at a[i * a_stride + p], element (p, j) of b at
// b[j / 64 * b_stride + (p / 2 * 64 + j % 64) * 2 + p % 2].
struct gemm_bf16_product {
    int64_t m, n, k;
    int64_t first; // first column, a multiple of 32; earlier ones may be skipped
    const uint16_t *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    bool is_accumulating;
    bool is_b_streamed; // b is read once and should leave a in the first-level cache
};

struct gemm_bf16_kernels {
    int mr; // preferred multiple of m; a is read and c written up to it

    // A thread calls these around all its products: it owns the tiles until it closes them.
    void (*open)(void);
    void (*close)(void);
    void (*multiply)(const struct gemm_bf16_product *product);

    // Packs one panel of n columns. It is zero from column n up to `width` (a multiple of 16 up to 64; for rows 32 or
    // 64) and from row k up to a multiple of 32. cols: the k elements of column j start at b + j * stride. rows: row p
    // starts at b + p * stride; *has_nonfinite, if not NULL, is set to true when an element is not finite.
    void (*pack_cols)(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel);
    void (*pack_rows)(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel, bool *has_nonfinite);

    // Packs m <= 32 rows of a into `rows`, row_stride apart, zero from row m up to 16 or 32 and from k up to a multiple
    // of 32. Element (i, p) is at a[i * stride + p], with is_transposed at a[p * stride + i].
    void (*pack_a)(const uint16_t *a, int64_t stride, bool is_transposed, int64_t m, int64_t k,
                   uint16_t *rows, int64_t row_stride);
};

extern const struct gemm_bf16_kernels tsri_gemm_bf16_dot, tsri_gemm_bf16_tiles;

// c (m x n, fp32) = a b by vdpbf16ps, for small m (gemm_few_bf16.c). a: rows of k elements, a_stride apart. b: columns
// of k elements or rows of n elements, b_stride apart. With columns, c is written up to a multiple of 4 columns.
struct gemm_bf16_few {
    int64_t m, n, k;
    const uint16_t *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    bool by_columns;
    // b is not in the caches. For rows of b this changes the blocks of k that are summed, so is_far may depend on n and
    // k only. For columns (short ones, outside the second-level cache) it only prefetches the next columns.
    bool is_far;
    // b is not in the caches and is read in memory order, as AMD's cores prefer; the result is the same.
    bool is_in_order;
};
void tsri_gemm_bf16_few(const struct gemm_bf16_few *product);

// NULL if the build has none. Whether the machine has the unit, tsri_bf16_units says.
static inline const struct gemm_bf16_kernels *gemm_bf16_kernels(bool is_tiles) {
#if defined(TSRI_HAS_BF16_KERNELS)
    return is_tiles ? &tsri_gemm_bf16_tiles : &tsri_gemm_bf16_dot;
#else
    (void)is_tiles;
    return NULL;
#endif
}

#endif
