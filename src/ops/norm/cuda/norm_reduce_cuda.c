// SPDX-License-Identifier: Apache-2.0
// The second launch of the norms' backward: dweight and dbias from the sums of groups of rows.
#include "context/cuda_elements.h"
#include "ops/norm/cuda/norm_cuda.h"

// This kernel serves all dtypes.
struct tsri_cuda_program norm_cuda_reduce_program(void) {
    return tsri_cuda_dtype_program("ops/norm/cuda/norm_reduce.cu", "norm_reduce", TSR_F32);
}

tsr_status norm_cuda_prepare_reduce(tsr_context *ctx, const struct norm_problem *p) {
    const struct tsri_cuda_program program = norm_cuda_reduce_program();
    return tsri_cuda_prepare(norm_cuda_name(p, true), tsri_context_queue(ctx), &program);
}

tsr_status norm_cuda_reduce(tsr_context *ctx, const struct norm_problem *p, const float *partial,
                            int64_t groups) {
    enum { STRIP_OF_REDUCE = 32, THREADS_OF_REDUCE = 256 };
    const struct norm_reduce_params params = {
        .partial = partial,
        .dweight = p->dweight.data,
        .dbias = p->dbias.data,
        .blocks = (int)groups,
        .cols = (int)p->cols,
        .dweight_dtype = (int)p->dweight.dtype,
        .dbias_dtype = (int)p->dbias.dtype,
    };
    const struct tsri_cuda_program program = norm_cuda_reduce_program();
    const struct tsri_cuda_launch launch = {.num_blocks =
                                                2 * tsri_ceil_div(p->cols, STRIP_OF_REDUCE),
                                            .num_threads = THREADS_OF_REDUCE,
                                            .is_early = true,
                                            .params = &params};
    return tsri_cuda_launch(norm_cuda_name(p, true), tsri_context_queue(ctx), &program, &launch);
}
