// SPDX-License-Identifier: Apache-2.0
// Quantised columns of b, compiled once per instruction set: as rows of floats for matmul's panels, or by few rows of a, where 32
// numbers of a column at a time are made in registers and multiplied by those of up to four rows.
// Floor: b's bytes read once.
// Limit: making numbers of codes. Figures: docs/kernels/matmul_quant.md.
#include "cpu/simd_nan.h"
#include "cpu/simd_quant.h"
#include "ops/matmul/matmul_quantised.h"

enum { ROWS = 4, VECTORS = QUANT_UNIT / VL };

// The n numbers, beyond them any, of unit `part` of a block.
SIMD_INLINE void load_unit(tsr_quant_format format, const struct simd_quant_beside *beside,
                           const uint8_t *block, int part, int64_t n, vf w[VECTORS]) {
    struct simd_quant_unit u;
    simd_quant_read_unit(&u, format, block, part, n, &beside->s);
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
    const uint8_t *block = tsri_row(&q->x, col);
    struct simd_quant_beside beside = simd_quant_beside(format, q, col, 0);
    int64_t at = 0;
    for (int r = 0; r < m; r++) sum[r][0] = sum[r][1] = vf_set1(0);
    for (; at + shape.cols <= k; block += shape.bytes)
#pragma GCC unroll 8
        for (int part = 0; part < shape.cols / QUANT_UNIT; part++, at += QUANT_UNIT) {
            const uintptr_t unit =
                (uintptr_t)block + (uintptr_t)(part * QUANT_UNIT * shape.bytes / shape.cols);
            __builtin_prefetch(simd_far_line(unit), 0);
            simd_quant_find(&beside, format, q, at);
            load_unit(format, &beside, block, part, QUANT_UNIT, w);
            for (int v = 0; v < VECTORS; v++)
                for (int r = 0; r < m; r++)
                    sum[r][v % 2] =
                        vf_fma(vf_load(a + r * a_stride + at + v * VL), w[v], sum[r][v % 2]);
        }
    if (at < k) { // of int8 and int4
        float numbers[QUANT_UNIT];
        simd_quant_find(&beside, format, q, at);
        load_unit(format, &beside, block, 0, k - at, w);
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

// ---- Columns as rows of floats ------------------------------------------------------------------

static void widen(const struct tsri_quant_rows *q, int64_t col, int64_t rows, int64_t step,
                  int64_t depth, int64_t k, float *to, int64_t stride) {
    float unit[QUANT_UNIT];
    for (int64_t i = 0; i < rows; i++, to += stride) {
        struct simd_quant_beside beside = simd_quant_beside(q->format, q, col + i, step);
        for (int64_t at = step, past, n; at < step + depth; at += n) {
            struct simd_quant_unit u;
            past = at % QUANT_UNIT;
            n = tsri_min(QUANT_UNIT - past, step + depth - at);
            simd_quant_find(&beside, q->format, q, at);
            simd_quant_read(&u, q->format, tsri_row(&q->x, col + i), at - past,
                            tsri_min(k - at + past, QUANT_UNIT), &beside.s);
            for (int64_t v = 0; v < QUANT_UNIT; v += VL)
                vf_store(unit + v, simd_quant_numbers(&u, v, u.has_zero, u.has_offset));
            memcpy(to + at - step, unit + past, (size_t)n * sizeof *to);
        }
    }
}

// ---- Few rows of a ------------------------------------------------------------------------------

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

const struct matmul_quant_kernels TSRI_KERNEL_TABLE(matmul_quant) = {.few = few, .widen = widen};
