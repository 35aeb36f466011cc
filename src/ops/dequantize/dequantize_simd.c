// SPDX-License-Identifier: Apache-2.0
// Quantised rows to numbers, compiled once per instruction set: 32 columns become signed bytes, and these floats, each times its
// scale. Formats differ in how they hold codes and scales; the arithmetic after that has three forms.
// Floor: x read once, y written once: 2.56 bytes a number from Q4_0 to bf16.
// Limit: memory with several threads.
// Figures: docs/kernels/dequantize.md.
#include "cpu/simd_elements.h"
#include "cpu/simd_quant.h"
#include "ops/dequantize/dequantize_problem.h"

SIMD_INLINE void put_as(tsr_dtype dtype, const struct simd_quant_unit *u, void *y, int64_t n,
                        bool has_zero, bool has_offset) {
#define STEP(access, i, n)                                                                         \
    vf_put(access, dtype, y, i, simd_quant_numbers(u, i, has_zero, has_offset), n)
    SIMD_FOR_SPAN(n, 0, false, STEP);
#undef STEP
}

SIMD_INLINE void put(tsr_dtype dtype, const struct simd_quant_unit *u, void *y, int64_t n) {
    if (u->has_zero)
        u->has_offset ? put_as(dtype, u, y, n, true, true) : put_as(dtype, u, y, n, true, false);
    else
        u->has_offset ? put_as(dtype, u, y, n, false, true) : put_as(dtype, u, y, n, false, false);
}

// ---- Rows ---------------------------------------------------------------------------------------

static void put_unit(const struct dequantize_problem *p, const struct simd_quant_unit *u, void *y,
                     int64_t n) {
    switch (p->y.dtype) {
    case TSR_BF16: put(TSR_BF16, u, y, n); break;
    case TSR_F16: put(TSR_F16, u, y, n); break;
    default: put(TSR_F32, u, y, n);
    }
}

// Columns [first, last) of a row.
static void put_row(const struct dequantize_problem *p, int64_t source, int64_t row, int64_t first,
                    int64_t last) {
    const struct tsri_quant_rows *x = &p->x;
    const int64_t bytes = tsri_dtype_bytes(p->y.dtype);
    char *y = tsri_row(&p->y, row);
    if (source < 0) {
        memset(y + first * bytes, 0, (size_t)((last - first) * bytes));
        return;
    }
    struct simd_quant_beside beside = simd_quant_beside(x->format, x, source, first);
    for (int64_t col = first; col < last; col += QUANT_UNIT) {
        const int64_t n = tsri_min(last - col, QUANT_UNIT);
        struct simd_quant_unit u;
        simd_quant_find(&beside, x->format, x, col);
        simd_quant_read(&u, x->format, tsri_row(&x->x, source), col, n, &beside.s);
        put_unit(p, &u, y + col * bytes, n);
    }
}

static void dequantize(const struct dequantize_problem *p, const struct tsri_piece *piece) {
    for (int64_t row = piece->first_row; row < piece->last_row; row++)
        put_row(p, dequantize_source(p, row), row, piece->first_col, piece->last_col);
}

const struct dequantize_kernels TSRI_KERNEL_TABLE(dequantize) = {.dequantize = dequantize};
