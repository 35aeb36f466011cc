// SPDX-License-Identifier: Apache-2.0
// The packing of gemm_simd.c, which alone includes this file: B to panels of NR columns, A to panels of MR rows, both
// widened to fp32.
#ifndef TSRI_CPU_GEMM_PACK_H
#define TSRI_CPU_GEMM_PACK_H

// Compiles one copy of the code for each dtype of an operand.
#define FOR_DTYPE(dtype, call)                                                                     \
    do {                                                                                           \
        if (dtype == TSR_BF16)                                                                     \
            call(TSR_BF16);                                                                        \
        else if (dtype == TSR_F16)                                                                 \
            call(TSR_F16);                                                                         \
        else if (dtype == TSR_E4M3)                                                                \
            call(TSR_E4M3);                                                                        \
        else if (dtype == TSR_E5M2)                                                                \
            call(TSR_E5M2);                                                                        \
        else                                                                                       \
            call(TSR_F32);                                                                         \
    } while (0)

SIMD_INLINE void pack_b_rows(tsr_dtype dtype, const void *b, int64_t row, int64_t k, int64_t n,
                             float *panel) {
    for (int64_t p = 0; p < k; p++, panel += NR)
        for (int j = 0; j < NV && j * VL < n; j++) {
            int64_t left = n - j * VL;
            simd_prefetch(b, (p + AHEAD) * row + j * VL, (size_t)simd_bytes(dtype));
            vf x = left >= VL ? vf_load_wide(dtype, b, p * row + j * VL)
                              : vf_load_wide_n(dtype, b, p * row + j * VL, left);
            vf_store(panel + j * VL, x);
        }
}

// Columns of B are contiguous: VL columns by VL steps of k are loaded at a time and transposed.
SIMD_INLINE void pack_b_cols(tsr_dtype dtype, const void *b, int64_t col, int64_t k, int64_t n,
                             float *panel) {
    for (int64_t p = 0; p < k; p += VL) {
        int64_t depth = k - p < VL ? k - p : VL;
        for (int64_t j = 0; j < n; j += VL) {
            vf x[VL];
            for (int64_t i = 0; i < VL; i++) {
                int64_t at = (j + i) * col + p;
                x[i] = j + i >= n   ? vf_set1(0.0f)
                       : depth < VL ? vf_load_wide_n(dtype, b, at, depth)
                                    : vf_load_wide(dtype, b, at);
            }
            vf_transpose(x);
            for (int64_t i = 0; i < depth; i++) vf_store(panel + (p + i) * NR + j, x[i]);
        }
    }
}

static void pack_b(tsr_dtype dtype, const void *b, int64_t row, int64_t col, int64_t k, int64_t n,
                   float *panel) {
#define PACK_B(dtype)                                                                              \
    do {                                                                                           \
        if (col == 1)                                                                              \
            pack_b_rows(dtype, b, row, k, n, panel);                                               \
        else                                                                                       \
            pack_b_cols(dtype, b, col, k, n, panel);                                               \
    } while (0)
    FOR_DTYPE(dtype, PACK_B);
#undef PACK_B
}

#if !defined(TSRI_SIMD_AVX512)
// The first MR rows of A read B in place and also write its panels for the other rows: the stores run beside the
// products.
static void pack_block(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride,
                       const float *b, int64_t b_row, float *panels, float *c, int64_t c_stride,
                       bool is_accumulating) {
    for (int64_t j = 0; j < n; j += NR) {
        int64_t cols = tsri_min(NR, n - j), first = 0;
        float *panel = panels + j * k;
        if (m < MR || cols < NR) {
            pack_b(TSR_F32, b + j, b_row, 1, k, cols, panel);
        } else {
            tile(MR, NV, false, GEMM_ROWS, k, a, a_stride, b + j, b_row, panel, c + j, c_stride, 0,
                 is_accumulating);
            first = MR;
        }
        block(m - first, cols, k, GEMM_ROWS, a + first * a_stride, a_stride, panel, k * NR, false,
              c + first * c_stride + j, c_stride, is_accumulating);
    }
}
#endif

SIMD_INLINE void widen_rows_as(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                               float *rows, int64_t k_stride) {
    for (int64_t i = 0; i < m; i++, rows += k_stride) {
        int64_t p = 0;
        for (; p + VL <= k; p += VL) vf_store(rows + p, vf_load_wide(dtype, a, i * stride + p));
        if (p < k) vf_store_n(rows + p, vf_load_wide_n(dtype, a, i * stride + p, k - p), k - p);
    }
}

static void widen_rows(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride) {
#define WIDEN(dtype) widen_rows_as(dtype, a, stride, m, k, rows, k_stride)
    FOR_DTYPE(dtype, WIDEN);
#undef WIDEN
}

// Gathers VL steps of a row, whose elements are `stride` apart.
SIMD_INLINE vf gather(tsr_dtype dtype, const void *a, int64_t stride, int64_t n) {
    char x[VL * sizeof(float)];
    size_t bytes = (size_t)simd_bytes(dtype);
    for (int64_t i = 0; i < n; i++)
        memcpy(x + (size_t)i * bytes, (const char *)a + (size_t)(i * stride) * bytes, bytes);
    return vf_load_wide_n(dtype, x, 0, n);
}

// Transposes squares of VL rows and VL steps; fewer than LEAST_ROWS rows are gathered one by one.
SIMD_INLINE void widen_cols_as(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                               float *rows, int64_t k_stride) {
    enum { LEAST_ROWS = 3 };
    for (int64_t i = 0; i < m; i += VL)
        for (int64_t p = 0; p < k; p += VL) {
            int64_t lanes = m - i < VL ? m - i : VL, steps = k - p < VL ? k - p : VL;
            float *to = rows + i * k_stride + p;
            vf x[VL];
            if (lanes < LEAST_ROWS) {
                for (int64_t r = 0; r < lanes; r++)
                    vf_store(to + r * k_stride,
                             gather(dtype,
                                    (const char *)a + (p * stride + i + r) * simd_bytes(dtype),
                                    stride, steps));
                continue;
            }
            for (int64_t q = 0; q < VL; q++)
                x[q] = q >= steps   ? vf_set1(0.0f)
                       : lanes < VL ? vf_load_wide_n(dtype, a, (p + q) * stride + i, lanes)
                                    : vf_load_wide(dtype, a, (p + q) * stride + i);
            vf_transpose(x);
            for (int64_t r = 0; r < lanes; r++) vf_store(to + r * k_stride, x[r]);
        }
}

static void widen_cols(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                       float *rows, int64_t k_stride) {
#define WIDEN(dtype) widen_cols_as(dtype, a, stride, m, k, rows, k_stride)
    FOR_DTYPE(dtype, WIDEN);
#undef WIDEN
}

// Stores VL steps of MR rows, interleaved by step.
SIMD_INLINE void interleave(const vf *row, float *panel) {
#if defined(TSRI_SIMD_SCALAR)
    for (int i = 0; i < MR; i++) panel[i] = row[i];
#else
    vf pairs[MR / 2][2], out[3];
    for (int i = 0; i < MR / 2; i++) vf_zip(row[2 * i], row[2 * i + 1], &pairs[i][0], &pairs[i][1]);
    for (int half = 0; half < 2; half++) {
        vf_zip_pairs(pairs[0][half], pairs[1][half], pairs[2][half], out);
        for (int i = 0; i < 3; i++) vf_store(panel + (half * 3 + i) * VL, out[i]);
    }
#endif
}

SIMD_INLINE void pack_a_rows(tsr_dtype dtype, const void *a, int64_t row, int64_t m, int64_t k,
                             float *panels) {
    for (int64_t i = 0; i < m; i += MR)
        for (int64_t p = 0; p < k; p += VL) {
            int64_t depth = k - p < VL ? k - p : VL;
            vf x[MR];
            for (int64_t r = 0; r < MR; r++)
                simd_prefetch(a, (i + MR + r) * row + p, (size_t)simd_bytes(dtype));
            for (int64_t r = 0; r < MR; r++)
                x[r] = i + r >= m   ? vf_set1(0.0f)
                       : depth < VL ? vf_load_wide_n(dtype, a, (i + r) * row + p, depth)
                                    : vf_load_wide(dtype, a, (i + r) * row + p);
            if (depth == VL) {
                interleave(x, panels);
            } else {
                float last[MR * VL];
                interleave(x, last);
                memcpy(panels, last, (size_t)(depth * MR) * sizeof *panels);
            }
            panels += depth * MR;
        }
}

SIMD_INLINE void pack_a_cols(tsr_dtype dtype, const void *a, int64_t stride, int64_t m, int64_t k,
                             float *panels) {
    for (int64_t i = 0; i < m; i += MR) {
        int64_t rows = m - i < MR ? m - i : MR;
        for (int64_t p = 0; p < k; p++, panels += MR)
            for (int64_t r = 0; r < MR; r += VL) {
                int64_t lanes = MR - r < VL ? MR - r : VL, left = rows - r;
                int64_t valid = left < 0 ? 0 : left < lanes ? left : lanes;
                vf_store_n(panels + r, vf_load_wide_n(dtype, a, p * stride + i + r, valid), lanes);
            }
    }
}

static void pack_a(tsr_dtype dtype, const void *a, int64_t row, int64_t col, int64_t m, int64_t k,
                   float *panels) {
#define PACK_A(dtype)                                                                              \
    do {                                                                                           \
        if (col == 1)                                                                              \
            pack_a_rows(dtype, a, row, m, k, panels);                                              \
        else                                                                                       \
            pack_a_cols(dtype, a, col, m, k, panels);                                              \
    } while (0)
    FOR_DTYPE(dtype, PACK_A);
#undef PACK_A
}

#endif
