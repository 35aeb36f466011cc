// SPDX-License-Identifier: Apache-2.0
// Matmul on CUDA: launches. Copies of operands that a kernel cannot take as they are, the tiles, and the end of a
// product whose k was split, one after the other on the context's stream.
#include "ops/matmul/cuda/matmul_cuda.h"

#include <string.h>

// What messages name.
static const char *op_of(const struct matmul_problem *p) {
    if (p->groups.starts.data == NULL) return "matmul_forward";
    return p->groups.are_depths ? "matmul_grouped_backward" : "matmul_grouped_forward";
}

enum { SIMPLE_THREADS = 256, SIMPLE_BLOCKS_PER_SM = 16, GROUP_M = 8 };

// ---- Programs ---------------------------------------------------------------------------------

static void define(struct tsri_cuda_program *program, const char *name, int value) {
    program->defines[program->num_defines++] = (struct tsri_cuda_define){name, value};
}

static struct tsri_cuda_program tile_program(enum matmul_cuda_kind kind,
                                             const struct matmul_cuda_tile *tile, tsr_dtype dtype,
                                             bool is_fp8) {
    static const struct {
        const char *source, *entry;
    } kernels[] = {{"ops/matmul/cuda/matmul_fma.cu", "matmul_fma"},
                   {"ops/matmul/cuda/matmul_mma.cu", "matmul_mma"},
                   {"ops/matmul/cuda/matmul_gemv.cu", "matmul_gemv"}};
    struct tsri_cuda_program program =
        tsri_cuda_dtype_program(kernels[kind].source, kernels[kind].entry, dtype);
    if (kind == MATMUL_GEMV) return program; // it knows its tiles
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

struct tsri_cuda_program matmul_cuda_reduce_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_reduce.cu", "matmul_reduce", dtype);
}

struct tsri_cuda_program matmul_cuda_lines8_program(void) {
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/fp8/matmul_lines8.cu",
                                      .entry = "matmul_lines8"};
}

// A copy knows the size of elements only.
struct tsri_cuda_program matmul_cuda_copy_program(tsr_dtype dtype) {
    if (tsr_dtype_bytes(dtype) == 1) return matmul_cuda_lines8_program();
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_copy.cu", "matmul_copy",
                                   dtype == TSR_F32 ? TSR_F32 : TSR_BF16);
}

// 16-bit products go to tensor cores, on Hopper all by wgmma but groups of few rows and deep products of few tiles.
static bool list_tiles(enum matmul_cuda_kind kind, tsr_dtype dtype, int cuda_arch, int *index,
                       struct tsri_cuda_program *program) {
    int num_tiles;
    const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(kind, &num_tiles);
    for (int i = 0; i < num_tiles; i++) {
        if (!matmul_cuda_has_tile(kind, i, dtype) || (*index)-- > 0) continue;
        *program = tile_program(kind, &tiles[i], dtype, false);
        program->is_rare =
            kind == MATMUL_FMA ? dtype != TSR_F32 : cuda_arch == 90 && tiles[i].block_m > 32;
        return true;
    }
    return false;
}

bool matmul_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        if (list_tiles(MATMUL_FMA, dtype, cuda_arch, &index, program)) return true;
        if (dtype != TSR_F32 && index-- == 0) {
            int num_tiles;
            const struct matmul_cuda_tile *tiles = matmul_cuda_tiles(MATMUL_FMA, &num_tiles);
            *program = tile_program(MATMUL_FMA, &tiles[MATMUL_FMA_FP8_TILE], dtype, true);
            program->is_rare = dtype == TSR_F16 || cuda_arch == 90;
            return true;
        }
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_fp8_kernel(&index, dtype, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch >= 80 &&
            list_tiles(MATMUL_MMA, dtype, cuda_arch, &index, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_wgmma_kernel(&index, dtype, program))
            return true;
        if (dtype != TSR_F32 && cuda_arch == 90 && matmul_cuda_split_kernel(&index, dtype, program))
            return true;
        if (dtype == TSR_F32 && cuda_arch == 90 && matmul_cuda_f32_kernel(&index, program))
            return true;
        *program = tsri_cuda_dtype_program("ops/matmul/cuda/matmul_gemv.cu", "matmul_gemv", dtype);
        program->is_rare = dtype != TSR_F32;
        if (index-- == 0) return true;
        *program = matmul_cuda_reduce_program(dtype);
        program->is_rare = dtype == TSR_F16 && cuda_arch == 90;
        if (index-- == 0) return true;
        *program =
            dtype == TSR_F16 ? matmul_cuda_lines8_program() : matmul_cuda_copy_program(dtype);
        if (index-- == 0) return true;
    }
    return false;
}

// ---- Parts of a launch --------------------------------------------------------------------------

static tsr_status launch_simple(tsr_context *ctx, const char *op,
                                const struct tsri_cuda_program *program, int64_t num_blocks,
                                bool is_early, const void *params) {
    int64_t most = (int64_t)tsri_context_limits(ctx)->num_sms * SIMPLE_BLOCKS_PER_SM;
    struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(num_blocks, tsri_max(most, 1)),
        .num_threads = SIMPLE_THREADS,
        .is_early = is_early,
        .params = params,
    };
    return launch.num_blocks == 0 ? TSR_OK
                                  : tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

static void set_batch(long long to[MATMUL_MAX_BATCH_DIMS],
                      const int64_t from[MATMUL_MAX_BATCH_DIMS]) {
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++) to[i] = from[i];
}

tsr_status matmul_cuda_copy(tsr_context *ctx, const char *op, tsr_dtype dtype,
                            const struct matmul_cuda_copy *copy) {
    enum { WARPS = SIMPLE_THREADS / 32, OF_WARP = 128 };
    const struct tsri_cuda_program program = matmul_cuda_copy_program(dtype);
    struct matmul_copy_params params = {
        .source = copy->source,
        .destination = copy->destination,
        .source_line = copy->line,
        .source_step = copy->step,
        .destination_line = copy->destination_line,
        .destination_batch = copy->destination_batch,
        .lines = copy->lines,
        .width = copy->width,
        .filled = copy->filled,
        .num_batches = copy->shape[0] * copy->shape[1] * copy->shape[2],
    };
    set_batch(params.source_batch, copy->batch);
    set_batch(params.batch, copy->shape);
    int64_t pieces = tsri_ceil_div(copy->filled, OF_WARP) * copy->lines * params.num_batches;
    if (tsr_dtype_bytes(dtype) > 1)
        return launch_simple(ctx, op, &program, tsri_ceil_div(pieces, WARPS), true, &params);
    enum { TILE = 64 };
    pieces = tsri_ceil_div(copy->width, TILE) * tsri_ceil_div(copy->lines, TILE);
    return launch_simple(ctx, op, &program, pieces * params.num_batches, false, &params);
}

tsr_dtype matmul_cuda_dtype(const struct matmul_problem *p) {
    const tsr_dtype dtypes[] = {p->c.dtype, p->bias_dtype, p->residual.dtype};
    if (!matmul_is_fp8(p->a.dtype)) return p->a.dtype;
    for (int i = 0; i < TSRI_COUNT(dtypes); i++)
        if (dtypes[i] == TSR_BF16 || dtypes[i] == TSR_F16) return dtypes[i];
    return TSR_BF16;
}

tsr_status matmul_cuda_place(tsr_context *ctx, const struct matmul_problem *p,
                             const struct matmul_matrix *t, int64_t step_mn, int64_t step_k,
                             const struct matmul_cuda_operand *o, char *copy,
                             struct matmul_operand *operand) {
    static const int64_t one[MATMUL_MAX_BATCH_DIMS] = {1, 1, 1};
    operand->data = t->data;
    operand->line = o->line;
    set_batch(operand->batch, o->batch);
    if (t->data == NULL || !o->is_copied) return TSR_OK;
    operand->data = copy;
    struct matmul_cuda_copy c = {
        .source = t->data,
        .line = o->is_mn ? step_k : step_mn,
        .step = o->is_mn ? step_mn : step_k,
        .destination = copy,
        .destination_line = o->line,
        .destination_batch = o->lines * o->line,
        .lines = o->lines,
        .width = o->width,
        .filled = o->line,
        .shape = o->num_matrices == 1 ? one : p->batch,
    };
    memcpy(c.batch, t->batch, sizeof c.batch);
    return matmul_cuda_copy(ctx, op_of(p), t->dtype, &c);
}

static bool is_aligned(const struct matmul_problem *p, const struct matmul_matrix *t) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype), bits = (int64_t)(uintptr_t)t->data;
    if (t->data == NULL) return true;
    if (p->m > 1) bits |= t->row * bytes;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++)
        if (p->batch[i] > 1) bits |= t->batch[i] * bytes;
    return bits % 16 == 0;
}

static bool is_bias_aligned(const struct matmul_problem *p) {
    int64_t step = p->groups.bias * (int64_t)tsr_dtype_bytes(p->bias_dtype);
    return ((int64_t)(uintptr_t)p->bias | step) % 16 == 0;
}

static void set_scale(struct matmul_scale *to, const struct matmul_matrix *from, int64_t mn,
                      int64_t k) {
    *to = (struct matmul_scale){(const float *)(const void *)from->data, mn, k, {0}};
    set_batch(to->batch, from->batch);
}

void matmul_cuda_set_output(const struct matmul_problem *p, struct matmul_params *params) {
    params->c = (struct matmul_operand){p->c.data, p->c.row, {0}};
    params->residual = (struct matmul_operand){p->residual.data, p->residual.row, {0}};
    set_batch(params->c.batch, p->c.batch);
    set_batch(params->residual.batch, p->residual.batch);
    const struct matmul_groups *groups = &p->groups;
    params->groups =
        (struct matmul_group_params){groups->starts.data, groups->starts.stride, groups->bias,
                                     groups->are_counts, groups->are_depths};
    params->bias = p->bias;
    params->bias_is_f32 = p->bias_dtype == TSR_F32;
    params->residual_is_f32 = p->residual.dtype == TSR_F32;
    params->c_is_f32 = p->c.dtype == TSR_F32;
    params->c_is_vector = is_aligned(p, &p->c) && is_aligned(p, &p->residual) &&
                          (p->bias == NULL || is_bias_aligned(p));
    params->activation = (int)p->activation;
    params->is_accumulating = p->is_accumulating;
    params->alpha = p->alpha;
    params->m = p->m;
    params->n = p->n;
    params->k = p->k;
    set_batch(params->batch, p->batch);
    params->num_batches = p->num_batches;
    set_scale(&params->a_scale, &p->a_scale, p->a_scale.row, p->a_scale.col);
    set_scale(&params->b_scale, &p->b_scale, p->b_scale.col, p->b_scale.row);
    set_scale(&params->b_up_scale, &p->b_up_scale, p->b_up_scale.col, p->b_up_scale.row);
    params->is_block_scaled = p->is_block_scaled;
    params->a_is_e5m2 = p->a.dtype == TSR_E5M2;
    params->b_is_e5m2 = p->b.dtype == TSR_E5M2;
}

// ---- The tiled variants -----------------------------------------------------------------------

static tsr_status prepare(tsr_context *ctx, const struct matmul_problem *p,
                          const struct tsri_plan *plan, enum matmul_cuda_kind kind) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    const struct matmul_cuda_layout l =
        matmul_cuda_layout(p, kind, (int)plan->block_k, plan->grain);
    const tsr_dtype dtype = matmul_cuda_dtype(p);
    const bool is_fp8 = matmul_is_fp8(p->a.dtype);
    const struct tsri_cuda_program program = tile_program(kind, l.tile, dtype, is_fp8),
                                   reduce = matmul_cuda_reduce_program(dtype),
                                   copy = matmul_cuda_copy_program(p->a.dtype);
    TSRI_TRY(tsri_cuda_prepare(op_of(p), queue, &program));
    if (l.num_splits > 1) TSRI_TRY(tsri_cuda_prepare(op_of(p), queue, &reduce));
    if (l.a.is_copied || l.b.is_copied || l.b_up.is_copied)
        TSRI_TRY(tsri_cuda_prepare(op_of(p), queue, &copy));
    return TSR_OK;
}

tsr_status matmul_cuda_reduce(tsr_context *ctx, const struct matmul_problem *p,
                              const struct matmul_cuda_layout *l, void *workspace) {
    enum { COLS = 8 };
    const struct tsri_cuda_program program = matmul_cuda_reduce_program(matmul_cuda_dtype(p));
    const int64_t groups = tsri_ceil_div(p->n, COLS) * p->m * p->num_batches;
    struct matmul_params params = {
        .b_up.data = p->b_up.data, // whether there is a gate
        .partial = (float *)(void *)((char *)workspace + l->partial_at),
        .partial_row = l->partial_row,
        .num_splits = (int)l->num_splits,
    };
    matmul_cuda_set_output(p, &params);
    return launch_simple(ctx, op_of(p), &program, tsri_ceil_div(groups, SIMPLE_THREADS), false,
                         &params);
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
    const struct tsri_cuda_program program =
        tile_program(kind, l.tile, matmul_cuda_dtype(p), matmul_is_fp8(p->a.dtype));
    for (; params.first_tile < l.num_tiles; params.first_tile += plan->num_tasks) {
        const struct tsri_cuda_launch launch = {
            .num_blocks = tsri_min(plan->num_tasks, l.num_tiles - params.first_tile),
            .num_threads = l.tile->num_threads,
            .shared_bytes = l.shared_bytes,
            .params = &params,
        };
        TSRI_TRY(tsri_cuda_launch(op_of(p), tsri_context_queue(ctx), &program, &launch));
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
