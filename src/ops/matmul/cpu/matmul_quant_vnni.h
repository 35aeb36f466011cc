// SPDX-License-Identifier: Apache-2.0
// Products by quantised weights in integers, on processors with AVX512-VNNI (tsri_has_vnni).
#ifndef TSRI_MATMUL_QUANT_VNNI_H
#define TSRI_MATMUL_QUANT_VNNI_H

#include "core/core_quant.h"

// Numbers of a row of a are turned into integers 128 at a time, each part in so many bytes.
enum { MATMUL_INTEGERS = 128, MATMUL_INTEGERS_BYTES = 512 };

// A row of a, of k numbers, for columns of a format. to: at a multiple of 64 bytes.
void tsri_matmul_integers(tsr_quant_format format, const float *a, int64_t k, void *to);

// m such rows, a_stride bytes apart, by columns [col, col + n) of b; overwrites acc (m x n, `stride` floats per row). An element
// is not finite where a number of the row or a scale of the column is not. The bits of a row depend on the function only.
// For a few rows, one or two columns at a time.
void tsri_matmul_integer_columns(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                                 int64_t m, const void *a, int64_t a_stride, float *acc,
                                 int64_t stride);
// For more rows, 32 columns at a time (matmul_panels_vnni.c).
void tsri_matmul_integer_panels(const struct tsri_quant_rows *q, int64_t col, int64_t n, int64_t k,
                                int64_t m, const void *a, int64_t a_stride, float *acc,
                                int64_t stride);

#endif
