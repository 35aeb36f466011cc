// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices in fp32, for processors that have units for them: vdpbf16ps, or the tiles
// of AMX. Both take B as pairs of rows, [k / 2][64][2], and A's rows in place, so packing is shared.
// Both take subnormal operands and results for 0, whatever the thread's environment says.
#ifndef TSRI_CPU_GEMM_BF16_H
#define TSRI_CPU_GEMM_BF16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GEMM_BF16_NR = 64,    // columns of a panel
    GEMM_BF16_DEPTH = 32, // k is a multiple of it: A and B hold zeros beyond what they have
    GEMM_BF16_WIDTH = 32, // c is written up to a multiple of it at most
    GEMM_BF16_PART = 16,  // columns of a panel are multiplied up to a multiple of it
};

// c (m x n, fp32) = or += a (m x k) b (k x n). a: element (i, p) at a[i * a_stride + p]. b: element
// (p, j) at b[j / 64 * b_stride + (p / 2 * 64 + j % 64) * 2 + p % 2].
struct gemm_bf16_product {
    int64_t m, n, k;
    int64_t first; // column, a multiple of 32: those before it may be left out
    const uint16_t *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    bool is_accumulating;
    bool is_b_streamed; // b, once through, should leave a in the first-level cache
};

struct gemm_bf16_kernels {
    int mr; // rows of a good m; a is read and c written up to a multiple of it at most

    // Around all products of a thread: tiles are the thread's until they are closed.
    void (*open)(void);
    void (*close)(void);
    void (*multiply)(const struct gemm_bf16_product *product);

    // One panel of n columns, zero beyond n up to `width`, a multiple of 16 up to 64 (rows: up to 32 or 64), and beyond row k up
    // to a multiple of 32. cols: column j lies at b + j * stride, its k elements one after the other; rows: row p at
    // b + p * stride; sets *has_nonfinite, unless that is NULL, where something is not finite.
    void (*pack_cols)(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel);
    void (*pack_rows)(const uint16_t *b, int64_t stride, int64_t k, int64_t n, int64_t width,
                      uint16_t *panel, bool *has_nonfinite);

    // m <= 32 rows of a to `rows`, row_stride apart, zero beyond m up to 16 or 32 and beyond k up to a multiple of 32.
    // Element (i, p) at a[i * stride + p]; is_transposed: at a[p * stride + i].
    void (*pack_a)(const uint16_t *a, int64_t stride, bool is_transposed, int64_t m, int64_t k,
                   uint16_t *rows, int64_t row_stride);
};

extern const struct gemm_bf16_kernels tsri_gemm_bf16_dot, tsri_gemm_bf16_tiles;

// gemm_few_bf16.c: c (m x n, fp32) = a b by vdpbf16ps, for few rows of a. a: rows of k elements, a_stride apart; b: columns of k
// elements, or rows of n, b_stride apart. By columns c is written up to a multiple of 4 columns.
struct gemm_bf16_few {
    int64_t m, n, k;
    const uint16_t *a, *b;
    float *c;
    int64_t a_stride, b_stride, c_stride;
    bool by_columns;
    // Rows of b come from beyond the caches: other blocks of k are summed then, so it may follow n and k alone. Or columns, short
    // ones, from beyond the second level: the next are asked for, and nothing else differs.
    bool is_far;
    // b comes from beyond the caches and is read in the order of memory, as AMD's cores want it; nothing else differs.
    bool is_in_order;
};
void tsri_gemm_bf16_few(const struct gemm_bf16_few *product);

// NULL where the build has none; what the machine has is tsri_bf16_units'.
static inline const struct gemm_bf16_kernels *gemm_bf16_kernels(bool is_tiles) {
#if defined(TSRI_HAS_BF16_KERNELS)
    return is_tiles ? &tsri_gemm_bf16_tiles : &tsri_gemm_bf16_dot;
#else
    (void)is_tiles;
    return NULL;
#endif
}

#endif
