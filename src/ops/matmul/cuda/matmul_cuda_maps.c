// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper: which operands the copy engine can read in place, and their tensor maps. Pure.
#include "cuda/cuda_tensor_map.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

enum { C_LINES = 16 }; // per box of c

bool matmul_cuda_map_lines(const struct matmul_problem *p, const int64_t *batch, int64_t width,
                           int64_t lines, int64_t line, struct tsri_tensor_map_args *args,
                           int is_batched[MATMUL_MAX_BATCH_DIMS]) {
    if (lines <= 1) line = (int64_t)tsri_round_up((size_t)width, (size_t)args->box[0]);
    args->size[0] = width;
    args->size[1] = lines;
    args->stride[0] = 1;
    args->stride[1] = line;
    args->is_swizzled = true;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) {
        int dim = TSRI_TENSOR_MAP_RANK - 1 - i;
        is_batched[i] = p->batch[i] > 1 && batch[i] != 0;
        args->size[dim] = is_batched[i] ? p->batch[i] : 1;
        args->stride[dim] = is_batched[i] ? batch[i] : line;
    }
    return line >= width && tsri_tensor_map_fits(args);
}

// Boxes of 128 bytes by 16 rows. A store writes all 16 bytes of a piece whose first byte is inside.
bool matmul_cuda_map_rows(const struct matmul_problem *p, const struct matmul_matrix *t,
                          struct tsri_tensor_map_args *args) {
    int is_batched[MATMUL_MAX_BATCH_DIMS];
    const int64_t element = (int64_t)tsr_dtype_bytes(t->dtype);
    *args = (struct tsri_tensor_map_args){
        .data = t->data, .dtype = t->dtype, .box = {(int)(128 / element), C_LINES, 1, 1, 1}};
    bool fits = p->n * element % 16 == 0 &&
                matmul_cuda_map_lines(p, t->batch, p->n, p->m, t->row, args, is_batched);
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) // the kernel uses all batch dimensions of c
        fits = fits && (p->batch[i] == 1 || is_batched[i]);
    return fits;
}

int matmul_cuda_wgmma_end(const struct matmul_problem *p) {
    const bool is_16_bits =
        p->c.dtype == (matmul_is_fp8(p->a.dtype) ? matmul_cuda_dtype(p) : p->a.dtype);
    if (!is_16_bits || p->b_up.data != NULL || p->residual.data != NULL || p->is_accumulating ||
        !matmul_cuda_has_short_end(p->activation))
        return MATMUL_END_RICH;
    return p->activation == TSR_ACTIVATION_NONE && p->bias == NULL ? MATMUL_END_PLAIN
                                                                   : MATMUL_END_ACTIVATED;
}

bool matmul_cuda_wgmma_is_short(const struct matmul_problem *p) {
    struct tsri_tensor_map_args map;
    return matmul_cuda_wgmma_end(p) != MATMUL_END_RICH && matmul_cuda_map_rows(p, &p->c, &map);
}
