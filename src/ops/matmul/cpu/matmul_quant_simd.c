// SPDX-License-Identifier: Apache-2.0
// Few rows of a by quantised columns of b, compiled once per instruction set: 32 numbers of a column at a time, made in registers
// and multiplied by those of up to four rows.
// Floor: b's bytes read once.
// Limit: making numbers of codes. Figures: docs/kernels/matmul_quant.md.
#include "cpu/simd_nan.h"
#include "cpu/simd_quant.h"
#include "ops/matmul/matmul_quantised.h"

enum { ROWS = 4, VECTORS = QUANT_UNIT / VL };

// The scales beside a column, those of the present group in s.
struct beside {
    struct tsri_quant_scales s;
    const char *scale, *zero, *minimum; // NULL: absent
    tsr_dtype dtype;
    int64_t group, end; // the next group, and where this one ends
};

static struct beside beside_column(const struct tsri_quant_rows *q, int64_t col) {
    struct beside beside = {.dtype = q->scale.dtype};
    if (q->scale.dtype != TSR_DTYPE_NONE) beside.scale = tsri_row(&q->scale, col);
    if (q->zero.dtype != TSR_DTYPE_NONE) beside.zero = tsri_row(&q->zero, col);
    if (q->minimum.dtype != TSR_DTYPE_NONE) beside.minimum = tsri_row(&q->minimum, col);
    beside.s.has_zero = beside.zero != NULL;
    beside.s.has_minimum = beside.minimum != NULL;
    return beside;
}

SIMD_INLINE float load_beside(tsr_dtype dtype, const char *from, int64_t i) {
    if (dtype == TSR_F32) return ((const float *)(const void *)from)[i];
    if (dtype == TSR_F16) return simd_quant_f16((const uint8_t *)from + 2 * i);
    return tsri_float_of_bits((uint32_t)((const uint16_t *)(const void *)from)[i] << 16);
}

SIMD_INLINE void find_scales(tsr_quant_format format, const struct tsri_quant_rows *q, int64_t at,
                             struct beside *beside) {
    const int64_t i = beside->group;
    if (!tsri_quant_block(format).has_scales || at < beside->end) return;
    beside->group++;
    beside->end += format == TSR_QUANT_MXFP4 ? QUANT_UNIT : q->group;
    if (format == TSR_QUANT_MXFP4) {
        beside->s.power = ((const uint8_t *)beside->scale)[i];
        return;
    }
    beside->s.scale = load_beside(beside->dtype, beside->scale, i);
    if (beside->zero != NULL) beside->s.zero = load_beside(beside->dtype, beside->zero, i);
    if (beside->minimum != NULL) beside->s.minimum = load_beside(beside->dtype, beside->minimum, i);
}

// The n numbers, beyond them any, of unit `part` of a block.
SIMD_INLINE void load_unit(tsr_quant_format format, const struct beside *beside,
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
    struct beside beside = {.end = 0};
    if (shape.has_scales) beside = beside_column(q, col);
    int64_t at = 0;
    for (int r = 0; r < m; r++) sum[r][0] = sum[r][1] = vf_set1(0);
    for (; at + shape.cols <= k; block += shape.bytes)
#pragma GCC unroll 8
        for (int part = 0; part < shape.cols / QUANT_UNIT; part++, at += QUANT_UNIT) {
            const uintptr_t unit =
                (uintptr_t)block + (uintptr_t)(part * QUANT_UNIT * shape.bytes / shape.cols);
            __builtin_prefetch(simd_far_line(unit), 0);
            find_scales(format, q, at, &beside);
            load_unit(format, &beside, block, part, QUANT_UNIT, w);
            for (int v = 0; v < VECTORS; v++)
                for (int r = 0; r < m; r++)
                    sum[r][v % 2] =
                        vf_fma(vf_load(a + r * a_stride + at + v * VL), w[v], sum[r][v % 2]);
        }
    if (at < k) { // of int8 and int4
        float numbers[QUANT_UNIT];
        find_scales(format, q, at, &beside);
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
