// SPDX-License-Identifier: Apache-2.0
// Few rows of a by quantised columns of b, compiled once per instruction set: 32 numbers of a column at a time, made in registers
// and multiplied by those of up to four rows.
// Floor: b's bytes read once.
// Limit: making numbers of codes. Figures: docs/kernels/matmul_quant.md.
#include "cpu/simd_nan.h"
#include "cpu/simd_quant.h"
#include "ops/matmul/matmul_quantised.h"

enum { ROWS = 4, VECTORS = QUANT_UNIT / VL };

// The numbers of columns [at, at + n) of column `col` of b; beyond n zeros, of which a may have any numbers but NaN and infinities.
SIMD_INLINE void load_unit(tsr_quant_format format, const struct tsri_quant_rows *q, int64_t col,
                           int64_t at, int64_t n, vf w[VECTORS]) {
    struct simd_quant_unit u;
    struct tsri_quant_scales s = {0};
    if (tsri_quant_block(format).has_scales) s = tsri_quant_scales(q, col, at / q->group);
    simd_quant_read(&u, format, tsri_row(&q->x, col), at, n, &s);
    const bool has_offset = format == TSR_QUANT_Q4_1 || format == TSR_QUANT_Q4_K;
    const bool is_of_groups = format == TSR_QUANT_INT8 || format == TSR_QUANT_INT4;
    for (int v = 0; v < VECTORS; v++)
        if (is_of_groups && u.has_zero)
            w[v] = simd_quant_numbers(&u, v * VL, true, u.has_offset);
        else
            w[v] = simd_quant_numbers(&u, v * VL, false, is_of_groups ? u.has_offset : has_offset);
}

SIMD_INLINE void column(tsr_quant_format format, const struct tsri_quant_rows *q, int64_t col,
                        int64_t k, int m, const float *a, int64_t a_stride, float *acc,
                        int64_t stride) {
    vf sum[ROWS][2], w[VECTORS];
    const struct tsri_quant_block shape = tsri_quant_block(format);
    const char *bytes = tsri_row(&q->x, col);
    int64_t at = 0;
    for (int r = 0; r < m; r++) sum[r][0] = sum[r][1] = vf_set1(0);
    for (; at + QUANT_UNIT <= k; at += QUANT_UNIT) {
        __builtin_prefetch(simd_far_line((uintptr_t)(bytes + at * shape.bytes / shape.cols)), 0);
        load_unit(format, q, col, at, QUANT_UNIT, w);
        for (int v = 0; v < VECTORS; v++)
            for (int r = 0; r < m; r++)
                sum[r][v % 2] =
                    vf_fma(vf_load(a + r * a_stride + at + v * VL), w[v], sum[r][v % 2]);
    }
    if (at < k) { // of int8 and int4
        float numbers[QUANT_UNIT] = {0};
        load_unit(format, q, col, at, k - at, w);
        for (int v = 0; v < VECTORS; v++) vf_store(numbers + v * VL, w[v]);
        for (int64_t v = 0; at + v < k; v += VL) {
            const int64_t n = k - at - v < VL ? k - at - v : VL;
            for (int r = 0; r < m; r++)
                sum[r][0] = vf_fma(vf_load_n(a + r * a_stride + at + v, n),
                                   vf_load_n(numbers + v, n), sum[r][0]);
        }
    }
    for (int r = 0; r < m; r++) acc[r * stride] = vf_sum_one(vf_one_nan(sum[r][0] + sum[r][1]));
}

static void few(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k, int64_t m,
                const float *a, int64_t a_stride, float *acc, int64_t stride) {
#define COLUMNS(format, rows)                                                                      \
    for (int64_t j = 0; j < n; j++)                                                                \
    column(format, q, col + j, k, rows, a + i * a_stride, a_stride, acc + i * stride + j, stride)
#define OF_FORMAT(format)                                                                          \
    case format:                                                                                   \
        switch (m - i) {                                                                           \
        case 1: COLUMNS(format, 1); break;                                                         \
        case 2: COLUMNS(format, 2); break;                                                         \
        case 3: COLUMNS(format, 3); break;                                                         \
        default: COLUMNS(format, 4);                                                               \
        }                                                                                          \
        break
    for (int64_t i = 0; i < m; i += ROWS) switch (q->format) {
            OF_FORMAT(TSR_QUANT_Q8_0);
            OF_FORMAT(TSR_QUANT_Q4_0);
            OF_FORMAT(TSR_QUANT_Q4_1);
            OF_FORMAT(TSR_QUANT_Q4_K);
            OF_FORMAT(TSR_QUANT_Q6_K);
            OF_FORMAT(TSR_QUANT_MXFP4_GGUF);
            OF_FORMAT(TSR_QUANT_INT8);
            OF_FORMAT(TSR_QUANT_INT4);
        default: OF_FORMAT(TSR_QUANT_MXFP4);
        }
}

const struct matmul_quant_kernels TSRI_KERNEL_TABLE(matmul_quant) = {.few = few};
