// SPDX-License-Identifier: Apache-2.0
// Plans and launches of the biases' gradients on CUDA: blocks that sum parts of rows and, where an expert may have several,
// blocks that add these.
#include "context/cuda_elements.h"
#include "ops/moe_bias/moe_bias_problem.h"

static const char name[] = "moe_bias_backward";
static const char sum_source[] = "ops/moe_bias/moe_bias_sum.cu", sum_entry[] = "moe_bias_sum",
                  merge_source[] = "ops/moe_bias/moe_bias_merge.cu",
                  merge_entry[] = "moe_bias_merge";

// The kernels use 32-bit numbers of rows, columns and parts.
bool moe_bias_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    enum { MOST = 1 << 30 };
    const struct moe_bias_problem *p = problem;
    (void)limits;
    return p->rows.dtype != TSR_F64 && p->num_rows <= MOST && p->rows.rows <= MOST &&
           p->rows.cols <= MOST && p->dbias.rows <= MOST;
}

static int64_t sums_stride(const struct moe_bias_problem *p) { // rows at multiples of 16 bytes
    return (int64_t)tsri_round_up((size_t)p->dbias.cols, 4);
}

// block_n: columns of a block; num_tasks: parts times spans of columns.
void moe_bias_cuda_plan(const void *problem, const struct tsri_limits *limits,
                        struct tsri_plan *plan) {
    const struct moe_bias_problem *p = problem;
    (void)limits;
    plan->block_n = 32 * 16 / tsri_dtype_bytes(p->rows.dtype);
    plan->num_tasks = moe_bias_num_parts(p) * tsri_ceil_div(p->dbias.cols, plan->block_n);
    if (plan->num_tasks == 0) return;
    plan->workspace_bytes = (size_t)(moe_bias_num_places(p) * sums_stride(p)) * sizeof(float);
}

static struct tsri_cuda_program sum_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program(sum_source, sum_entry, dtype);
}
static struct tsri_cuda_program merge_program(void) {
    return tsri_cuda_dtype_program(merge_source, merge_entry, TSR_F32);
}

tsr_status moe_bias_cuda_prepare(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan) {
    const struct moe_bias_problem *p = problem;
    const struct tsri_cuda_program sum = sum_program(p->rows.dtype), merge = merge_program();
    (void)plan;
    if (moe_bias_num_places(p) > 0)
        TSRI_TRY(tsri_cuda_prepare(name, tsri_context_queue(ctx), &merge));
    return tsri_cuda_prepare(name, tsri_context_queue(ctx), &sum);
}

// Whether each row is whole groups of 16 bytes.
static bool is_aligned(const struct tsri_rows *rows) {
    enum { GROUP_BYTES = 16 };
    const int64_t bytes = tsri_dtype_bytes(rows->dtype);
    return ((int64_t)(uintptr_t)rows->data | rows->stride * bytes | rows->cols * bytes) %
               GROUP_BYTES ==
           0;
}

static struct moe_bias_list list_of(const struct tsri_indices *indices) {
    return (struct moe_bias_list){(const int *)indices->data, indices->stride};
}

static tsr_status launch(tsr_context *ctx, const struct tsri_cuda_program *program,
                         struct moe_bias_params *params, int64_t rows_of_units, int64_t width) {
    params->spans = (int)tsri_ceil_div(params->cols, width);
    params->num_units = rows_of_units * params->spans;
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(params->num_units, INT32_MAX),
        .num_threads = 32 * MOE_BIAS_WARPS,
        .is_early = true,
        .params = params,
    };
    return tsri_cuda_launch(name, tsri_context_queue(ctx), program, &launch);
}

tsr_status moe_bias_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                             void *workspace) {
    const struct moe_bias_problem *p = problem;
    const struct tsri_cuda_program sum = sum_program(p->rows.dtype), merge = merge_program();
    struct moe_bias_params params = {
        .rows = p->rows.data,
        .dbias = p->dbias.data,
        .sums = workspace,
        .row_weights = (const float *)(const void *)p->row_weights.data,
        .offsets = list_of(&p->offsets),
        .row_tokens = list_of(&p->row_tokens),
        .rows_stride = p->rows.stride,
        .dbias_stride = p->dbias.stride,
        .weights_stride = p->row_weights.stride,
        .sums_stride = sums_stride(p),
        .num_rows = (int)p->num_rows,
        .num_source_rows = (int)p->rows.rows,
        .cols = (int)p->dbias.cols,
        .num_experts = (int)p->dbias.rows,
        .is_aligned = is_aligned(&p->rows),
        .dbias_dtype = (int)p->dbias.dtype,
    };
    if (plan->num_tasks == 0) return TSR_OK;
    TSRI_TRY(launch(ctx, &sum, &params, moe_bias_num_parts(p), plan->block_n));
    if (moe_bias_num_places(p) == 0) return TSR_OK;
    return launch(ctx, &merge, &params, p->dbias.rows, MOE_BIAS_MERGE_COLS);
}

bool moe_bias_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    if (tsri_cuda_dtype_kernel(sum_source, sum_entry, index, program)) return true;
    *program = merge_program();
    return index == TSRI_NUM_CUDA_DTYPES;
}
