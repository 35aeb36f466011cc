// SPDX-License-Identifier: Apache-2.0
#include "context/cuda_quant.h"

#include "context/cuda_elements.h"

static struct tsri_cuda_program program_of(tsr_dtype dtype) {
    return tsri_cuda_dtype_program("ops/dequantize/dequantize.cu", "dequantize", dtype);
}

static bool is_aligned(const struct tsri_rows *y) {
    enum { LINE = 16 };
    const int64_t stride = y->rows > 1 ? y->stride * tsri_dtype_bytes(y->dtype) : 0;
    return y->cols % DEQUANTIZE_NUMBERS == 0 && ((int64_t)(uintptr_t)y->data | stride) % LINE == 0;
}

tsr_status tsri_cuda_dequantize(tsr_context *ctx, const char *op, const struct tsri_quant_rows *x,
                                const struct tsri_indices *list, const struct tsri_rows *y) {
    const struct tsri_cuda_program program = program_of(y->dtype);
    const struct tsri_quant_block block = tsri_quant_block(x->format);
    const int64_t units = tsri_ceil_div(y->cols, DEQUANTIZE_NUMBERS);
    if (y->rows * units == 0) return TSR_OK;
    const struct dequantize_params params = {
        .x = tsri_elements_view(&x->x),
        .scale = tsri_elements_view(&x->scale),
        .zero = tsri_elements_view(&x->zero),
        .minimum = tsri_elements_view(&x->minimum),
        .y = tsri_elements_view(y),
        .x_rows = list != NULL ? list->data : NULL,
        .x_rows_stride = list != NULL ? list->stride : 0,
        .rows = y->rows,
        .cols = y->cols,
        .num_x_rows = x->x.rows,
        .units_of_row = units,
        .num_units = y->rows * units,
        .group = x->group,
        .format = (int)x->format,
        .block_cols = block.cols,
        .block_bytes = block.bytes,
        .scale_dtype = (int)x->scale.dtype,
        .is_aligned = is_aligned(y),
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(params.num_units, DEQUANTIZE_THREADS), INT32_MAX),
        .num_threads = DEQUANTIZE_THREADS,
        .is_early = true,
        .params = &params,
    };
    return tsri_cuda_launch(op, tsri_context_queue(ctx), &program, &launch);
}

tsr_status tsri_cuda_dequantize_prepare(tsr_context *ctx, const char *op, tsr_dtype dtype_of_y) {
    const struct tsri_cuda_program program = program_of(dtype_of_y);
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

bool tsri_cuda_dequantize_kernel(int index, struct tsri_cuda_program *program) {
    return tsri_cuda_dtype_kernel("ops/dequantize/dequantize.cu", "dequantize", index, program);
}
