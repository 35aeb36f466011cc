// SPDX-License-Identifier: Apache-2.0
// Shared by matmul's variants on CUDA: copies operands that a kernel cannot read in place, fills the parameters for c
// and the epilogue, and adds the sums of a product whose k was split.
#include "ops/matmul/cuda/matmul_cuda.h"

#include <string.h>

enum { SIMPLE_THREADS = 256, SIMPLE_BLOCKS_PER_SM = 16 };

const char *matmul_cuda_op_of(const struct matmul_problem *p) {
    if (p->groups.starts.data == NULL) return "matmul_forward";
    return p->groups.are_depths ? "matmul_grouped_backward" : "matmul_grouped_forward";
}

// ---- Programs ---------------------------------------------------------------------------------

struct tsri_cuda_program matmul_cuda_reduce_program(tsr_dtype dtype) {
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_reduce.cu", "matmul_reduce", dtype);
}

struct tsri_cuda_program matmul_cuda_lines8_program(void) {
    return (struct tsri_cuda_program){.source = "ops/matmul/cuda/fp8/matmul_lines8.cu",
                                      .entry = "matmul_lines8"};
}

// A copy depends on the size of elements only, unless it makes f32 of 16 bits.
struct tsri_cuda_program matmul_cuda_copy_program(tsr_dtype dtype) {
    if (tsr_dtype_bytes(dtype) == 1) return matmul_cuda_lines8_program();
    return tsri_cuda_dtype_program("ops/matmul/cuda/matmul_copy.cu", "matmul_copy",
                                   dtype == TSR_F32 ? TSR_F32 : TSR_BF16);
}

struct tsri_cuda_program matmul_cuda_widening_program(tsr_dtype from) {
    struct tsri_cuda_program program = matmul_cuda_copy_program(TSR_F32);
    program.defines[program.num_defines].name = "SOURCE";
    program.defines[program.num_defines++].value = (int)from;
    return program;
}

// ---- Copies -----------------------------------------------------------------------------------

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
    const struct tsri_cuda_program program =
        copy->is_widening ? matmul_cuda_widening_program(dtype) : matmul_cuda_copy_program(dtype);
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
    const tsr_dtype dtypes[] = {p->c.dtype, p->bias_dtype, p->bias_up_dtype, p->residual.dtype};
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
        .is_widening = t->dtype != TSR_F32 && matmul_has_narrow_b(p),
    };
    memcpy(c.batch, t->batch, sizeof c.batch);
    return matmul_cuda_copy(ctx, matmul_cuda_op_of(p), t->dtype, &c);
}

// ---- The output -------------------------------------------------------------------------------

static bool is_aligned(const struct matmul_problem *p, const struct matmul_matrix *t) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(t->dtype), bits = (int64_t)(uintptr_t)t->data;
    if (t->data == NULL) return true;
    if (p->m > 1) bits |= t->row * bytes;
    for (int i = 0; i < MATMUL_MAX_BATCH_DIMS; i++)
        if (p->batch[i] > 1) bits |= t->batch[i] * bytes;
    return bits % 16 == 0;
}

// step: from one group's bias to the next.
static bool is_bias_aligned(const void *bias, tsr_dtype dtype, int64_t step) {
    const int64_t bytes = step * (int64_t)tsr_dtype_bytes(dtype);
    return bias == NULL || ((int64_t)(uintptr_t)bias | bytes) % 16 == 0;
}

static void set_scale(struct matmul_scale *to, const struct matmul_matrix *from, int64_t mn,
                      int64_t k) {
    *to = (struct matmul_scale){(const float *)(const void *)from->data, mn, k, {0}};
    set_batch(to->batch, from->batch);
}

static struct matmul_list_params list_params(const struct matmul_list *list) {
    return (struct matmul_list_params){list->lines.data, list->lines.stride, (int)list->num_lines};
}

void matmul_cuda_set_output(const struct matmul_problem *p, struct matmul_params *params) {
    params->c = (struct matmul_operand){p->c.data, p->c.row, {0}};
    params->residual = (struct matmul_operand){p->residual.data, p->residual.row, {0}};
    set_batch(params->c.batch, p->c.batch);
    set_batch(params->residual.batch, p->residual.batch);
    const struct matmul_groups *groups = &p->groups;
    params->groups = (struct matmul_group_params){groups->starts.data,
                                                  groups->starts.stride,
                                                  groups->bias,
                                                  groups->bias_up,
                                                  groups->are_counts,
                                                  groups->are_depths,
                                                  list_params(&groups->of_a),
                                                  list_params(&groups->of_b)};
    params->bias = p->bias;
    params->bias_is_f32 = p->bias_dtype == TSR_F32;
    params->bias_up = p->bias_up;
    params->bias_up_is_f32 = p->bias_up_dtype == TSR_F32;
    params->residual_is_f32 = p->residual.dtype == TSR_F32;
    params->c_is_f32 = p->c.dtype == TSR_F32;
    params->c_is_vector = is_aligned(p, &p->c) && is_aligned(p, &p->residual) &&
                          is_bias_aligned(p->bias, p->bias_dtype, groups->bias) &&
                          is_bias_aligned(p->bias_up, p->bias_up_dtype, groups->bias_up);
    params->activation = (int)p->activation;
    params->is_accumulating = p->is_accumulating;
    params->alpha = p->alpha;
    params->m = p->m;
    params->n = p->n;
    params->k = p->k;
    set_batch(params->batch, p->batch);
    params->num_batches = p->num_batches;
    if (p->k > 0) { // an empty sum is 0 for any scales
        set_scale(&params->a_scale, &p->a_scale, p->a_scale.row, p->a_scale.col);
        set_scale(&params->b_scale, &p->b_scale, p->b_scale.col, p->b_scale.row);
        set_scale(&params->b_up_scale, &p->b_up_scale, p->b_up_scale.col, p->b_up_scale.row);
    }
    params->is_block_scaled = p->is_block_scaled;
    params->a_is_e5m2 = p->a.dtype == TSR_E5M2;
    params->b_is_e5m2 = p->b.dtype == TSR_E5M2;
    params->is_followed = p->order == MATMUL_FOLLOWED;
    params->is_beside = p->order == MATMUL_BESIDE;
}

tsr_status matmul_cuda_reduce(tsr_context *ctx, const struct matmul_problem *p,
                              const struct matmul_cuda_layout *l, void *workspace) {
    enum { COLS = 8 };
    const struct tsri_cuda_program program = matmul_cuda_reduce_program(matmul_cuda_dtype(p));
    const int64_t groups = tsri_ceil_div(p->n, COLS) * p->m * p->num_batches;
    struct matmul_params params = {
        .b_up.data = p->b_up.data, // tells whether there is a gate
        .partial = (float *)(void *)((char *)workspace + l->partial_at),
        .partial_row = l->partial_row,
        .num_splits = (int)l->num_splits,
    };
    matmul_cuda_set_output(p, &params);
    return launch_simple(ctx, matmul_cuda_op_of(p), &program, tsri_ceil_div(groups, SIMPLE_THREADS),
                         false, &params);
}
