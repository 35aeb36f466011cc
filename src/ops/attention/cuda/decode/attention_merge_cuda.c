// SPDX-License-Identifier: Apache-2.0
// Merging of partial results on CUDA: one kernel for all dtypes, a warp for each row.
#include "ops/attention/attention_merge_problem.h"
#include "ops/attention/cuda/attention_cuda.h"
#include "ops/attention/cuda/decode/attention_decode_params.h"

static const char op[] = "attention_merge";

enum { THREADS = 128, ROWS_PER_BLOCK = THREADS / 32 };

bool attention_merge_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct attention_merge_problem *p = problem;
    (void)limits;
    return p->out.dtype != TSR_F64 && p->num_rows <= INT32_MAX;
}

void attention_merge_cuda_plan(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan) {
    const struct attention_merge_problem *p = problem;
    (void)limits;
    plan->num_tasks = tsri_ceil_div(p->num_rows, ROWS_PER_BLOCK);
}

static struct tsri_cuda_program program(void) {
    return attention_cuda_program("ops/attention/cuda/decode/attention_merge.cu", "attention_merge",
                                  TSR_F32);
}

bool attention_merge_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *kernel) {
    (void)cuda_arch;
    *kernel = program();
    return index == 0;
}

tsr_status attention_merge_cuda_prepare(tsr_context *ctx, const void *problem,
                                        const struct tsri_plan *plan) {
    const struct tsri_cuda_program kernel = program();
    (void)problem, (void)plan;
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &kernel);
}

static struct attention_merge_tensor tensor_of(const struct attention_merge_view *t) {
    return (struct attention_merge_tensor){
        t->data, t->part, {t->stride[0], t->stride[1], t->stride[2]}, (int)t->dtype};
}

// Whether each group of four columns, in any row and part, has an address that is a multiple of its bytes.
static bool is_aligned(const struct attention_merge_problem *p,
                       const struct attention_merge_view *t) {
    enum { COLUMNS = 4 };
    bool aligned = (uintptr_t)t->data % (COLUMNS * tsr_dtype_bytes(t->dtype)) == 0 &&
                   p->dims % COLUMNS == 0 && t->part % COLUMNS == 0;
    for (int i = 0; i < MERGE_DIMS; i++) aligned &= p->shape[i] <= 1 || t->stride[i] % COLUMNS == 0;
    return aligned;
}

tsr_status attention_merge_cuda_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    const struct attention_merge_problem *p = problem;
    const struct tsri_cuda_program kernel = program();
    const struct attention_merge_params params = {
        .outs = tensor_of(&p->outs),
        .lses = tensor_of(&p->lses),
        .out = tensor_of(&p->out),
        .lse = tensor_of(&p->lse),
        .num_rows = p->num_rows,
        .num_parts = p->num_parts,
        .dims = p->dims,
        .shape = {p->shape[0], p->shape[1], p->shape[2]},
        .is_aligned = is_aligned(p, &p->outs) && is_aligned(p, &p->out),
    };
    (void)workspace;
    return attention_cuda_launch(ctx, op, &kernel, plan->num_tasks, THREADS, 0, &params);
}
