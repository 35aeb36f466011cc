// SPDX-License-Identifier: Apache-2.0
// Attention on CUDA, the part that forward and backward share.
#include "ops/attention/cuda/attention_cuda.h"

// ---- What is served ---------------------------------------------------------------------------

bool attention_cuda_serves(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    (void)limits;
    return p->dtype != TSR_F64 && p->seqlen_q <= ATTENTION_CUDA_MAX_SEQLEN &&
           p->seqlen_k <= ATTENTION_CUDA_MAX_SEQLEN && p->num_batches < INT32_MAX &&
           p->num_heads_q <= INT32_MAX && p->num_heads_kv <= INT32_MAX;
}

bool attention_cuda_is_aligned(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(view->dtype);
    int64_t heads = is_of_keys ? p->num_heads_kv : p->num_heads_q;
    int64_t rows = is_of_keys ? p->total_k : p->total_q;
    return (uintptr_t)view->data % 16 == 0 && (heads <= 1 || view->head * bytes % 16 == 0) &&
           (rows <= 1 || view->seq * bytes % 16 == 0) &&
           (p->is_packed || p->num_batches <= 1 || view->batch * bytes % 16 == 0);
}

bool attention_cuda_map_bias(const struct attention_bias *bias, int64_t seqlen_k, int rows,
                             struct tsri_tensor_map_args *args, struct attention_bias_map *map) {
    enum { BOX_BYTES = 128 };
    const int64_t columns = BOX_BYTES / (int64_t)tsr_dtype_bytes(bias->dtype);
    const int64_t *shape = bias->shape, *stride = bias->stride;
    const bool is_one = shape[2] <= 1 || stride[2] == 0;
    if (shape[3] < seqlen_k || (shape[3] > 1 && stride[3] != 1)) return false;
    map->head = shape[1] > 1 && stride[1] != 0;
    map->batch = shape[0] > 1 && stride[0] != 0;
    map->rows = is_one ? 1 : rows;
    *args = (struct tsri_tensor_map_args){
        .data = bias->data,
        .dtype = bias->dtype,
        .size = {shape[3], is_one ? 1 : shape[2], map->head ? shape[1] : 1,
                 map->batch ? shape[0] : 1, 1},
        .stride = {1, is_one ? columns : stride[2], map->head ? stride[1] : columns,
                   map->batch ? stride[0] : columns, columns},
        .box = {(int)columns, map->rows, 1, 1, 1},
        .is_swizzled = true};
    return tsri_tensor_map_fits(args);
}

// ---- Params -----------------------------------------------------------------------------------

static struct attention_tensor tensor_of(const struct attention_view *view) {
    return (struct attention_tensor){view->data, view->batch, view->seq, view->head};
}

static struct attention_bias_tensor bias_of(const struct attention_bias *bias) {
    struct attention_bias_tensor t = {.data = bias->data, .is_f32 = bias->dtype == TSR_F32};
    for (int d = 0; d < 4; d++) {
        t.stride[d] = bias->stride[d];
        t.shape[d] = (int)bias->shape[d];
    }
    return t;
}

static struct attention_head_values head_values_of(const struct attention_per_head *values) {
    return (struct attention_head_values){values->data, values->batch, values->head,
                                          values->dtype == TSR_F32};
}

static int window_of(bool has_window, int64_t keys) {
    return has_window ? (int)tsri_min(keys, ATTENTION_NO_WINDOW) : ATTENTION_NO_WINDOW;
}

struct attention_params attention_cuda_params(const struct attention_problem *p) {
    bool is_causal = p->mask != TSR_MASK_NONE;
    return (struct attention_params){
        .q = tensor_of(&p->q),
        .k = tensor_of(&p->k),
        .v = tensor_of(&p->v),
        .out = tensor_of(&p->out),
        .dout = tensor_of(&p->dout),
        .dq = tensor_of(&p->dq),
        .dk = tensor_of(&p->dk),
        .dv = tensor_of(&p->dv),
        .bias = bias_of(&p->bias),
        .dbias = bias_of(&p->dbias),
        .slopes = head_values_of(&p->slopes),
        .sinks = head_values_of(&p->sinks),
        .dsinks = head_values_of(&p->dsinks),
        .lse = (float *)(void *)p->lse,
        .lse_batch = p->lse_batch,
        .lse_head = p->lse_head,
        .cu_seqlens_q = p->cu_seqlens_q,
        .cu_seqlens_k = p->cu_seqlens_k,
        .seqused_k = p->seqused_k,
        .cu_stride_q = p->cu_stride_q,
        .cu_stride_k = p->cu_stride_k,
        .seqused_stride = p->seqused_stride,
        .total_q = p->total_q,
        .total_k = p->total_k,
        .is_packed = p->is_packed,
        .num_batches = (int)p->num_batches,
        .seqlen_q = (int)p->seqlen_q,
        .seqlen_k = (int)p->seqlen_k,
        .num_heads_q = (int)p->num_heads_q,
        .num_heads_kv = (int)p->num_heads_kv,
        .group = (int)tsri_max(p->num_heads_q / tsri_max(p->num_heads_kv, 1), 1),
        .head_dim = (int)p->head_dim,
        .head_dim_v = (int)p->head_dim_v,
        .window_left = window_of(p->has_window_left, p->window_left),
        .window_right = is_causal ? 0 : window_of(p->has_window_right, p->window_right),
        .is_top_left = p->mask == TSR_MASK_CAUSAL_TOP_LEFT,
        .softmax_scale = (float)p->softmax_scale,
        .softcap = (float)p->softcap,
        .keep_scale = (float)(1 / (1 - p->dropout_p)),
        .dropout_threshold = p->dropout_threshold,
        .seed = p->seed,
        .offset = p->offset,
        .has_terms = p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL,
    };
}

// ---- Programs and launches --------------------------------------------------------------------

void attention_cuda_define(struct tsri_cuda_program *program, const char *name, int64_t value) {
    program->defines[program->num_defines++] = (struct tsri_cuda_define){name, (int)value};
}

struct tsri_cuda_program attention_cuda_program(const char *source, const char *entry,
                                                tsr_dtype dtype) {
    struct tsri_cuda_program program = {.source = source, .entry = entry};
    attention_cuda_define(&program, "DTYPE", dtype);
    return program;
}

tsr_status attention_cuda_launch(tsr_context *ctx, const char *op,
                                 const struct tsri_cuda_program *program, int64_t num_blocks,
                                 int num_threads, int64_t shared_bytes, const void *params) {
    struct tsri_cuda_launch launch = {.num_blocks = tsri_min(num_blocks, INT32_MAX),
                                      .num_threads = num_threads,
                                      .shared_bytes = (int)shared_bytes,
                                      .params = params};
    if (num_blocks == 0) return TSR_OK;
    return tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

// ---- Rows of no sequence ----------------------------------------------------------------------

struct tsri_cuda_program attention_cuda_clear_program(void) {
    return attention_cuda_program("ops/attention/cuda/forward/attention_clear.cu",
                                  "attention_clear", TSR_F32);
}

tsr_status attention_cuda_prepare_clear(tsr_context *ctx, const char *op,
                                        const struct attention_problem *p) {
    const struct tsri_cuda_program program = attention_cuda_clear_program();
    if (!p->is_packed) return TSR_OK;
    return tsri_cuda_prepare(op, tsri_context_queue(ctx), &program);
}

tsr_status attention_cuda_clear(tsr_context *ctx, const char *op, const struct attention_problem *p,
                                const struct attention_view *view, int64_t dims, bool is_of_keys,
                                bool has_lse) {
    enum { THREADS = 128 };
    const struct tsri_cuda_program program = attention_cuda_clear_program();
    int64_t heads = is_of_keys ? p->num_heads_kv : p->num_heads_q,
            bytes = (int64_t)tsr_dtype_bytes(p->dtype);
    if (!p->is_packed || (view->data == NULL && !has_lse)) return TSR_OK;
    const struct attention_clear_params params = {
        .p = attention_cuda_params(p),
        .tensor = tensor_of(view),
        .row_bytes = (int)(dims * bytes),
        .element_bytes = (int)bytes,
        .num_heads = (int)heads,
        .is_of_keys = is_of_keys,
        .has_lse = has_lse && p->lse != NULL,
    };
    return attention_cuda_launch(ctx, op, &program, (p->num_batches + 1) * heads, THREADS, 0,
                                 &params);
}
