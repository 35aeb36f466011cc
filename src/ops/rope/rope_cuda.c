// SPDX-License-Identifier: Apache-2.0
// The launches of RoPE on CUDA: one kernel per dtype rotates in both directions; one kernel fills the tables.
#include "context/cuda_elements.h"
#include "ops/rope/rope_params.h"
#include "ops/rope/rope_problem.h"

static const char source[] = "ops/rope/rope_rotate.cu", entry[] = "rope_rotate";
static const struct tsri_cuda_program table_program = {
    .source = "ops/rope/rope_table.cu", .entry = "rope_table", .num_defines = 0};

static const char *name_of(const struct rope_problem *p) {
    return p->is_backward ? "rope_backward" : "rope_forward";
}

// ---- Rotation ---------------------------------------------------------------------------------

// The kernel counts the threads of a token in 32 bits.
bool rope_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct rope_problem *p = problem;
    (void)limits;
    return p->dtype != TSR_F64 && p->num_heads <= INT32_MAX / 2 &&
           p->num_heads * p->head_dim <= INT32_MAX / 2;
}

tsr_status rope_cuda_prepare(tsr_context *ctx, const void *problem, const struct tsri_plan *plan) {
    const struct rope_problem *p = problem;
    const struct tsri_cuda_program program = tsri_cuda_dtype_program(source, entry, p->dtype);
    (void)plan;
    return tsri_cuda_prepare(name_of(p), tsri_context_queue(ctx), &program);
}

static bool is_multiple(int64_t stride, int64_t count, int width) {
    return count <= 1 || stride % width == 0;
}

static bool are_heads_aligned(const struct rope_problem *p, const struct rope_heads *t, int width) {
    return (uintptr_t)t->data % 16 == 0 &&
           is_multiple(t->stride[0], p->tokens / p->seqlen, width) &&
           is_multiple(t->stride[1], p->seqlen, width) &&
           is_multiple(t->stride[2], p->num_heads, width);
}

static bool is_table_aligned(const struct tsri_rows *table) {
    return (uintptr_t)table->data % 16 == 0 && is_multiple(table->stride, table->rows, 4);
}

static int width_of(const struct rope_problem *p) {
    int width = 16 / (int)tsr_dtype_bytes(p->dtype);
    bool is_aligned = p->rotary_dim % (2 * width) == 0 && p->head_dim % width == 0 &&
                      are_heads_aligned(p, &p->x, width) && are_heads_aligned(p, &p->y, width) &&
                      is_table_aligned(&p->cos) && is_table_aligned(&p->sin);
    return is_aligned ? width : 1;
}

tsr_status rope_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                         void *workspace) {
    const struct rope_problem *p = problem;
    const struct tsri_cuda_program program = tsri_cuda_dtype_program(source, entry, p->dtype);
    (void)plan, (void)workspace;
    if (p->tokens == 0) return TSR_OK;
    int width = width_of(p);
    bool copies = p->x.data != p->y.data;
    struct rope_params params = {
        .x = p->x.data,
        .y = p->y.data,
        .cos = (const float *)(const void *)p->cos.data,
        .sin = (const float *)(const void *)p->sin.data,
        .cos_stride = p->cos.stride,
        .sin_stride = p->sin.stride,
        .num_positions = p->cos.rows,
        .positions = p->positions,
        .positions_stride = {p->positions_stride[0], p->positions_stride[1]},
        .seqlen = p->seqlen,
        .num_heads = (int)p->num_heads,
        .head_slots = (int)tsri_ceil_div(p->num_heads, ROPE_HEADS),
        .head_dim = (int)p->head_dim,
        .rotary_dim = (int)p->rotary_dim,
        .width = width,
        .pairs = (int)(p->rotary_dim / (2 * width)),
        .rests = copies ? (int)tsri_ceil_div(p->head_dim - p->rotary_dim, 2 * width) : 0,
        .is_interleaved = p->is_interleaved,
        .sign = p->is_backward ? -1.0f : 1.0f,
    };
    for (int i = 0; i < 3; i++) {
        params.x_stride[i] = p->x.stride[i];
        params.y_stride[i] = p->y.stride[i];
    }
    params.threads = p->tokens * params.head_slots * (params.pairs + params.rests);
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(params.threads, ROPE_THREADS), INT32_MAX),
        .num_threads = ROPE_THREADS,
        .params = &params,
    };
    if (params.threads == 0) return TSR_OK;
    return tsri_cuda_launch(name_of(p), tsri_context_queue(ctx), &program, &launch);
}

// Forward lists these kernels for backward too.
bool rope_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    return tsri_cuda_dtype_kernel(source, entry, index, program);
}

// ---- Tables -----------------------------------------------------------------------------------

bool rope_table_cuda_fits(const void *problem, const struct tsri_limits *limits) {
    const struct rope_table_problem *p = problem;
    (void)limits;
    return p->cos.dtype == TSR_F32 && p->cos.cols <= INT32_MAX;
}

tsr_status rope_table_cuda_prepare(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan) {
    (void)problem, (void)plan;
    return tsri_cuda_prepare("rope_table", tsri_context_queue(ctx), &table_program);
}

tsr_status rope_table_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                               void *workspace) {
    const struct rope_table_problem *p = problem;
    (void)plan, (void)workspace;
    const struct rope_table_params params = {
        .cos = (float *)(void *)p->cos.data,
        .sin = (float *)(void *)p->sin.data,
        .cos_stride = p->cos.stride,
        .sin_stride = p->sin.stride,
        .num_positions = p->cos.rows,
        .threads = p->cos.cols * tsri_ceil_div(p->cos.rows, ROPE_TABLE_RUN),
        .inv_freq = p->inv_freq,
        .base = p->base,
        .attention_factor = p->attention_factor,
        .factor = p->scaling.factor,
        .low_freq_factor = p->scaling.low_freq_factor,
        .high_freq_factor = p->scaling.high_freq_factor,
        .original_max_position = p->scaling.original_max_position,
        .has_scaling = p->has_scaling,
        .half = (int)p->cos.cols,
    };
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(tsri_ceil_div(params.threads, ROPE_TABLE_THREADS), INT32_MAX),
        .num_threads = ROPE_TABLE_THREADS,
        .params = &params,
    };
    if (params.threads == 0) return TSR_OK;
    return tsri_cuda_launch("rope_table", tsri_context_queue(ctx), &table_program, &launch);
}

bool rope_table_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    (void)cuda_arch;
    *program = table_program;
    return index == 0;
}
