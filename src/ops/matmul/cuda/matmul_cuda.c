// SPDX-License-Identifier: Apache-2.0
// The launches of cuda-fma, cuda-mma and cuda-gemv: copies of operands, the tiles, and the end of a product with split
// k, in order on the context's stream.
#include "ops/matmul/cuda/matmul_cuda.h"

enum { GROUP_M = 8 };

// ---- Programs ---------------------------------------------------------------------------------

static void define(struct tsri_cuda_program *program, const char *name, int value) {
    program->defines[program->num_defines++] = (struct tsri_cuda_define){name, value};
}

struct tsri_cuda_program matmul_cuda_tile_program(enum matmul_cuda_kind kind,
                                                  const struct matmul_cuda_tile *tile,
                                                  tsr_dtype dtype, bool is_fp8, bool is_listed) {
    static const struct {
        const char *source, *entry;
    } kernels[] = {{"ops/matmul/cuda/matmul_fma.cu", "matmul_fma"},
                   {"ops/matmul/cuda/matmul_mma.cu", "matmul_mma"},
                   {"ops/matmul/cuda/matmul_gemv.cu", "matmul_gemv"}};
    struct tsri_cuda_program program =
        tsri_cuda_dtype_program(kernels[kind].source, kernels[kind].entry, dtype);
    if (kind == MATMUL_GEMV) return program; // its tiles are built in
    if (is_listed) define(&program, "LISTED", 1);
    if (kind == MATMUL_FMA) {
        define(&program, "BLOCK", tile->block_m);
        if (is_fp8) define(&program, "FP8", 1);
        return program;
    }
    define(&program, "BLOCK_M", tile->block_m);
    define(&program, "BLOCK_N", tile->block_n);
    define(&program, "BLOCK_K", tile->block_k);
    define(&program, "STAGES", tile->stages);
    return program;
}

// ---- The tiled variants -----------------------------------------------------------------------

static tsr_status prepare(tsr_context *ctx, const struct matmul_problem *p,
                          const struct tsri_plan *plan, enum matmul_cuda_kind kind) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, (int)plan->block_k, plan->grain);
    const tsr_dtype dtype = matmul_cuda_dtype(p);
    const bool is_fp8 = matmul_is_fp8(p->a.dtype);
    const struct tsri_cuda_program program = matmul_cuda_tile_program(kind, l.tile, dtype, is_fp8,
                                                                      matmul_cuda_is_listed(p)),
                                   reduce = matmul_cuda_reduce_program(dtype),
                                   copy = matmul_cuda_copy_program(p->a.dtype);
    TSRI_TRY(tsri_cuda_prepare(matmul_cuda_op_of(p), queue, &program));
    if (l.num_splits > 1) TSRI_TRY(tsri_cuda_prepare(matmul_cuda_op_of(p), queue, &reduce));
    if (l.a.is_copied || l.b.is_copied || l.b_up.is_copied)
        TSRI_TRY(tsri_cuda_prepare(matmul_cuda_op_of(p), queue, &copy));
    if (!matmul_has_narrow_b(p)) return TSR_OK;
    const struct tsri_cuda_program widening = matmul_cuda_widening_program(p->b.dtype);
    return tsri_cuda_prepare(matmul_cuda_op_of(p), queue, &widening);
}

static tsr_status run(tsr_context *ctx, const struct matmul_problem *p,
                      const struct tsri_plan *plan, void *workspace, enum matmul_cuda_kind kind) {
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, (int)plan->block_k, plan->grain);
    char *bytes = workspace;
    if (p->m == 0 || p->n == 0 || p->num_batches == 0) return TSR_OK;
    struct matmul_params params = {
        .partial = (float *)(void *)(bytes + l.partial_at),
        .tiles_m = l.tiles_m,
        .tiles_n = l.tiles_n,
        .k_of_split = l.k_of_split,
        .partial_row = l.partial_row,
        .num_splits = (int)l.num_splits,
        .group_m = GROUP_M,
        .a_is_mn = l.a.is_mn,
        .b_is_mn = l.b.is_mn,
        .a_is_vector = l.a.is_vector,
        .b_is_vector = l.b.is_vector && (p->b_up.data == NULL || l.b_up.is_vector),
        .has_sums = l.has_sums,
    };
    matmul_cuda_set_output(p, &params);
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->a, p->a.row, p->a.col, &l.a, bytes + l.a_at, &params.a));
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->b, p->b.col, p->b.row, &l.b, bytes + l.b_at, &params.b));
    TSRI_TRY(matmul_cuda_place(ctx, p, &p->b_up, p->b_up.col, p->b_up.row, &l.b_up,
                               bytes + l.b_up_at, &params.b_up));
    const struct tsri_cuda_program program = matmul_cuda_tile_program(
        kind, l.tile, matmul_cuda_dtype(p), matmul_is_fp8(p->a.dtype), matmul_cuda_is_listed(p));
    for (; params.first_tile < l.num_tiles; params.first_tile += plan->num_tasks) {
        const struct tsri_cuda_launch launch = {
            .num_blocks = tsri_min(plan->num_tasks, l.num_tiles - params.first_tile),
            .num_threads = l.tile->num_threads,
            .shared_bytes = l.shared_bytes,
            .params = &params,
        };
        TSRI_TRY(
            tsri_cuda_launch(matmul_cuda_op_of(p), tsri_context_queue(ctx), &program, &launch));
    }
    return l.num_splits > 1 ? matmul_cuda_reduce(ctx, p, &l, workspace) : TSR_OK;
}

tsr_status matmul_cuda_fma_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    return prepare(ctx, problem, plan, MATMUL_FMA);
}

tsr_status matmul_cuda_mma_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    return prepare(ctx, problem, plan, MATMUL_MMA);
}

tsr_status matmul_cuda_fma_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    return run(ctx, problem, plan, workspace, MATMUL_FMA);
}

tsr_status matmul_cuda_mma_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    return run(ctx, problem, plan, workspace, MATMUL_MMA);
}

tsr_status matmul_cuda_gemv_prepare(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan) {
    return prepare(ctx, problem, plan, MATMUL_GEMV);
}

tsr_status matmul_cuda_gemv_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                                void *workspace) {
    return run(ctx, problem, plan, workspace, MATMUL_GEMV);
}
