// SPDX-License-Identifier: Apache-2.0
// Quantised rows to numbers on CUDA, for any operation.
#ifndef TSRI_CUDA_QUANT_H
#define TSRI_CUDA_QUANT_H

#include "context/op_table.h"
#include "core/core_index.h"
#include "core/core_quant.h"

// list: y's row i is row list[i] of x; NULL: row i. op: for messages.
tsr_status tsri_cuda_dequantize(tsr_context *ctx, const char *op, const struct tsri_quant_rows *x,
                                const struct tsri_indices *list, const struct tsri_rows *y);
tsr_status tsri_cuda_dequantize_prepare(tsr_context *ctx, const char *op, tsr_dtype dtype_of_y);
bool tsri_cuda_dequantize_kernel(int index, struct tsri_cuda_program *program);

#endif
