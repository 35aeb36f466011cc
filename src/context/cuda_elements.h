// SPDX-License-Identifier: Apache-2.0
// Launches of element-wise CUDA kernels (cuda/device/elements.cuh): one thread takes at_once units of a few elements.
// Rows are divided into tiles, one per block; a tile may hold several short rows.
#ifndef TSRI_CUDA_ELEMENTS_H
#define TSRI_CUDA_ELEMENTS_H

#include "context/op_table.h"
#include "cuda/device/elements_params.h"

// All views have one shape; those without a dtype are skipped. unit: number of elements, a power of two.
void tsri_cuda_elements_grid(struct elements_grid *grid, const struct tsri_rows *const *views,
                             int num_views, int unit, int at_once);

static inline struct elements_view tsri_elements_view(const struct tsri_rows *rows) {
    return (struct elements_view){rows->data, rows->stride, rows->group, rows->group_stride};
}

// params contains the grid.
tsr_status tsri_cuda_elements_launch(tsr_context *ctx, const char *op,
                                     const struct tsri_cuda_program *program,
                                     const struct elements_grid *grid, const void *params);

// The program for one dtype, whose only define is DTYPE; and the index-th of those for f32, bf16 and f16, false after
// the last.
struct tsri_cuda_program tsri_cuda_dtype_program(const char *source, const char *entry,
                                                 tsr_dtype dtype);
bool tsri_cuda_dtype_kernel(const char *source, const char *entry, int index,
                            struct tsri_cuda_program *program);

#endif
