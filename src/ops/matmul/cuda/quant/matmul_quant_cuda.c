// SPDX-License-Identifier: Apache-2.0
// Matmul by quantised weights on CUDA: the numbers of b, in a's dtype, go to the workspace, and matmul multiplies by them.
#include "context/cuda_quant.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/matmul_quantised.h"

extern const struct tsri_op tsri_matmul_forward_op;

enum { LINE = 8, PLACE = 256 }; // elements; bytes

static int64_t line_of(const struct matmul_problem *p) {
    return (int64_t)tsri_round_up((size_t)p->k, LINE);
}

static size_t bytes_of_numbers(const struct matmul_problem *p) {
    const int64_t elements = p->n * line_of(p);
    return tsri_round_up((size_t)(elements * tsri_dtype_bytes(p->a.dtype)), PLACE);
}

// The product by numbers at `place`, an address that is a multiple of PLACE.
static struct matmul_problem widened(const struct matmul_problem *p, char *place) {
    const struct matmul_matrix b = {place, p->a.dtype, 1, line_of(p), {0}};
    struct matmul_problem wide = *p;
    wide.quant = wide.quant_up = (struct tsri_quant_rows){0};
    wide.b = b;
    if (p->b_up.data != NULL) {
        wide.b_up = b;
        wide.b_up.data += bytes_of_numbers(p);
    }
    return wide;
}

static size_t bytes_of_all(const struct matmul_problem *p) {
    return bytes_of_numbers(p) * (p->b_up.data != NULL ? 2 : 1);
}

static tsr_status plan_inner(const struct matmul_problem *p, const struct tsri_limits *limits,
                             uint32_t flags, struct tsri_plan *plan) {
    static _Alignas(PLACE) char somewhere[PLACE];
    const struct matmul_problem wide = widened(p, somewhere);
    const struct tsri_call call = {.flags = flags};
    return tsri_op_plan(&tsri_matmul_forward_op, &wide, limits, &call, plan);
}

bool matmul_quant_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct matmul_problem *p = problem;
    (void)limits;
    return p->a.dtype != TSR_F64;
}

void matmul_quant_plan_cuda(const void *problem, const struct tsri_limits *limits,
                            struct tsri_plan *plan) {
    struct tsri_plan inner = {0};
    plan->status = plan_inner(problem, limits, limits->flags, &inner);
    plan->workspace_bytes = bytes_of_all(problem) + inner.workspace_bytes;
    plan->num_tasks = 1;
}

tsr_status matmul_quant_cuda_prepare(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan) {
    const struct matmul_problem *p = problem, wide = widened(p, NULL);
    struct tsri_plan inner;
    TSRI_TRY(plan_inner(p, tsri_context_limits(ctx), plan->flags, &inner));
    TSRI_TRY(tsri_cuda_dequantize_prepare(ctx, "matmul_quant", p->a.dtype));
    return inner.variant->prepare(ctx, &wide, &inner);
}

static tsr_status widen(tsr_context *ctx, const struct matmul_problem *p,
                        const struct tsri_quant_rows *q, char *place) {
    const struct tsri_rows numbers = {place, p->a.dtype, p->n, p->k, line_of(p)};
    return tsri_cuda_dequantize(ctx, "matmul_quant", q, NULL, &numbers);
}

tsr_status matmul_quant_cuda_run(tsr_context *ctx, const void *problem,
                                 const struct tsri_plan *plan, void *workspace) {
    const struct matmul_problem *p = problem, wide = widened(p, workspace);
    struct tsri_plan inner;
    TSRI_TRY(plan_inner(p, tsri_context_limits(ctx), plan->flags, &inner));
    TSRI_TRY(widen(ctx, p, &p->quant, wide.b.data));
    if (p->b_up.data != NULL) TSRI_TRY(widen(ctx, p, &p->quant_up, wide.b_up.data));
    return inner.variant->run(ctx, &wide, &inner, (char *)workspace + bytes_of_all(p));
}
