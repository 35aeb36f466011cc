// SPDX-License-Identifier: Apache-2.0
// The two passes as calls of the operations. One function lays out a pass over a base address: the workspace to run it,
// or SELF_ATTENTION_NOWHERE to ask each part's prepare for its bytes. So the two cannot differ.
#include <string.h>

#include "compose/self_attention/self_attention_problem.h"

// ---- Views ------------------------------------------------------------------------------------

static bool is_collapsible(const tsr_tensor *t) {
    return t->shape[0] <= 1 || t->shape[1] <= 1 || t->stride[0] == t->shape[1] * t->stride[1];
}

// Views (batch, seqlen, cols) as (batch seqlen, cols).
static tsr_tensor collapsed(const tsr_tensor *t) {
    tsr_tensor rows = *t;
    if (!tsri_is_present(t)) return rows;
    rows.ndim = 2;
    rows.shape[0] = t->shape[0] * t->shape[1];
    rows.shape[1] = t->shape[2];
    rows.stride[0] = t->shape[1] > 1 ? t->stride[1] : t->stride[0];
    rows.stride[1] = t->stride[2];
    return rows;
}

// The operands of one product over the rows of all batches: as matrices if all of them allow it, else as batches of
// matrices.
static void collapse_together(tsr_tensor *const *tensors, int count) {
    for (int i = 0; i < count; i++)
        if (tsri_is_present(tensors[i]) && !is_collapsible(tensors[i])) return;
    for (int i = 0; i < count; i++) *tensors[i] = collapsed(tensors[i]);
}

// Heads [first, first + count) of rows of heads, as (batch, seqlen, count, head_dim).
static tsr_tensor heads_of(const struct self_attention_problem *p, const tsr_tensor *rows,
                           int64_t first, int64_t count) {
    tsr_tensor t = *rows;
    if (!tsri_is_present(rows)) return t;
    if (t.data != NULL)
        t.data = (char *)t.data + first * p->head_dim * (int64_t)tsr_dtype_bytes(t.dtype);
    t.ndim = 4;
    t.shape[2] = count;
    t.shape[3] = p->head_dim;
    t.stride[2] = p->head_dim;
    t.stride[3] = 1;
    return t;
}

// Places a tensor between two parts: contiguous rows at *at, which then moves on.
static tsr_tensor place(const struct self_attention_problem *p, char **at, int64_t cols) {
    tsr_tensor t = TSR_TENSOR(*at, p->x.dtype, p->batch, p->seqlen, cols);
    t.device = p->x.device;
    size_t bytes = (size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(t.dtype);
    *at += tsri_round_up(bytes, 64);
    return t;
}

// ---- Parts' variants --------------------------------------------------------------------------

static const char *variant_of_matmul(const char *variant) {
    return variant != NULL && strcmp(variant, "reference") == 0 ? variant : NULL;
}

static const char *variant_of_attention(const char *variant) {
    bool is_any =
        variant == NULL || strcmp(variant, "default") == 0 || strcmp(variant, "cuda") == 0;
    return is_any ? NULL : variant;
}

#define ATTENTION_OPTIONS(o)                                                                       \
    .mask = (o)->mask, .softmax_scale = (o)->softmax_scale, .softcap = (o)->softcap,               \
    .has_window_left = (o)->has_window_left, .has_window_right = (o)->has_window_right,            \
    .window_left = (o)->window_left, .window_right = (o)->window_right,                            \
    .dropout_p = (o)->dropout_p, .seed = (o)->seed, .offset = (o)->offset

// ---- Forward ----------------------------------------------------------------------------------

// Returns the start of the parts' workspace.
static char *lay_out_forward(const struct self_attention_problem *p, const char *variant,
                             uint32_t flags, char *workspace,
                             struct self_attention_forward_steps *s) {
    const struct self_attention_options *o = &p->options;
    int64_t h = p->num_heads, h_kv = p->num_kv_heads;
    tsr_tensor qkv = p->qkv, attention = p->attention;
    if (!tsri_is_present(&qkv)) qkv = place(p, &workspace, p->qkv_dim);
    if (!tsri_is_present(&attention)) attention = place(p, &workspace, p->attention_dim);
    s->qkv =
        TSR_MATMUL_FORWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant), .a = p->x,
                                .b = p->w_qkv, .bias = p->b_qkv, .c = qkv, .transpose_b = 1);
    collapse_together((tsr_tensor *[]){&s->qkv.a, &s->qkv.c}, 2);
    s->has_rope = tsri_is_present(&p->cos);
    tsr_tensor rotated = heads_of(p, &qkv, 0, h + h_kv); // the heads of q, then of k
    if (s->has_rope)
        s->rope =
            TSR_ROPE_FORWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant),
                                  .x = rotated, .cos = p->cos, .sin = p->sin, .y = rotated,
                                  .rotary_dim = 2 * p->cos.shape[1], .interleaved = o->interleaved);
    s->attention =
        TSR_ATTENTION_FORWARD_ARGS(.flags = flags, .variant = variant_of_attention(variant),
                                   .q = heads_of(p, &qkv, 0, h), .k = heads_of(p, &qkv, h, h_kv),
                                   .v = heads_of(p, &qkv, h + h_kv, h_kv),
                                   .out = heads_of(p, &attention, 0, h), .lse = p->lse,
                                   ATTENTION_OPTIONS(o));
    s->out = TSR_MATMUL_FORWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant),
                                     .a = attention, .b = p->w_out, .bias = p->b_out, .c = p->y,
                                     .transpose_b = 1);
    collapse_together((tsr_tensor *[]){&s->out.a, &s->out.c}, 2);
    return workspace;
}

// Prepares a part for a workspace that does not exist yet. A NULL workspace would make the arena grow on CUDA.
#define GIVE_NONE(step) ((step).workspace = SELF_ATTENTION_NOWHERE, (step).workspace_bytes = 0)

static tsr_status forward_bytes(const struct self_attention_problem *p, const char *variant,
                                uint32_t flags, size_t *bytes) {
    struct self_attention_forward_steps s;
    size_t part = 0, most = 0;
    char *rest = lay_out_forward(p, variant, flags, SELF_ATTENTION_NOWHERE, &s);
    GIVE_NONE(s.qkv), GIVE_NONE(s.rope), GIVE_NONE(s.attention), GIVE_NONE(s.out);
    TSRI_TRY(tsr_matmul_forward_prepare(p->ctx, &s.qkv, &most));
    if (s.has_rope) TSRI_TRY(tsr_rope_forward_prepare(p->ctx, &s.rope, &part));
    most = part > most ? part : most;
    TSRI_TRY(tsr_attention_forward_prepare(p->ctx, &s.attention, &part));
    most = part > most ? part : most;
    TSRI_TRY(tsr_matmul_forward_prepare(p->ctx, &s.out, &part));
    most = part > most ? part : most;
    *bytes = (size_t)(rest - SELF_ATTENTION_NOWHERE) + most;
    return TSR_OK;
}

// A part uses the module's workspace and never the arena, which belongs to the module.
#define GIVE(step)                                                                                 \
    ((step).workspace = rest,                                                                      \
     (step).workspace_bytes = plan->workspace_bytes - (size_t)(rest - base))

tsr_status self_attention_forward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace) {
    const struct self_attention_problem *p = problem;
    struct self_attention_forward_steps s;
    char *base = workspace,
         *rest = lay_out_forward(p, plan->variant->name, plan->flags, workspace, &s);
    GIVE(s.qkv);
    TSRI_TRY(tsr_matmul_forward(ctx, &s.qkv));
    if (s.has_rope) {
        GIVE(s.rope);
        TSRI_TRY(tsr_rope_forward(ctx, &s.rope));
    }
    GIVE(s.attention);
    TSRI_TRY(tsr_attention_forward(ctx, &s.attention));
    GIVE(s.out);
    return tsr_matmul_forward(ctx, &s.out);
}

// ---- Backward ---------------------------------------------------------------------------------

static char *lay_out_backward(const struct self_attention_problem *p, const char *variant,
                              uint32_t flags, char *workspace,
                              struct self_attention_backward_steps *s) {
    const struct self_attention_options *o = &p->options;
    int64_t h = p->num_heads, h_kv = p->num_kv_heads;
    tsr_tensor dattention = {0}, dqkv = {0};
    s->has_qkv =
        tsri_is_present(&p->dx) || tsri_is_present(&p->dw_qkv) || tsri_is_present(&p->db_qkv);
    s->has_out = s->has_qkv || tsri_is_present(&p->dw_out) || tsri_is_present(&p->db_out);
    s->has_rope = s->has_qkv && tsri_is_present(&p->cos);
    if (s->has_qkv) {
        dattention = place(p, &workspace, p->attention_dim);
        dqkv = place(p, &workspace, p->qkv_dim);
    }
    s->out =
        TSR_MATMUL_BACKWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant),
                                 .a = p->attention, .b = p->w_out, .dc = p->dy, .da = dattention,
                                 .db = p->dw_out, .dbias = p->db_out, .transpose_b = 1);
    collapse_together((tsr_tensor *[]){&s->out.a, &s->out.dc, &s->out.da}, 3);
    s->attention =
        TSR_ATTENTION_BACKWARD_ARGS(.flags = flags, .variant = variant_of_attention(variant),
                                    .q = heads_of(p, &p->qkv, 0, h),
                                    .k = heads_of(p, &p->qkv, h, h_kv),
                                    .v = heads_of(p, &p->qkv, h + h_kv, h_kv),
                                    .out = heads_of(p, &p->attention, 0, h), .lse = p->lse,
                                    .dout = heads_of(p, &dattention, 0, h),
                                    .dq = heads_of(p, &dqkv, 0, h),
                                    .dk = heads_of(p, &dqkv, h, h_kv),
                                    .dv = heads_of(p, &dqkv, h + h_kv, h_kv), ATTENTION_OPTIONS(o));
    tsr_tensor rotated = heads_of(p, &dqkv, 0, h + h_kv);
    if (s->has_rope)
        s->rope = TSR_ROPE_BACKWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant),
                                         .dy = rotated, .cos = p->cos, .sin = p->sin, .dx = rotated,
                                         .rotary_dim = 2 * p->cos.shape[1],
                                         .interleaved = o->interleaved);
    s->qkv = TSR_MATMUL_BACKWARD_ARGS(.flags = flags, .variant = variant_of_matmul(variant),
                                      .a = p->x, .b = p->w_qkv, .dc = dqkv, .da = p->dx,
                                      .db = p->dw_qkv, .dbias = p->db_qkv, .transpose_b = 1);
    collapse_together((tsr_tensor *[]){&s->qkv.a, &s->qkv.dc, &s->qkv.da}, 3);
    return workspace;
}

static tsr_status backward_bytes(const struct self_attention_problem *p, const char *variant,
                                 uint32_t flags, size_t *bytes) {
    struct self_attention_backward_steps s;
    size_t part = 0, most = 0;
    char *rest = lay_out_backward(p, variant, flags, SELF_ATTENTION_NOWHERE, &s);
    GIVE_NONE(s.out), GIVE_NONE(s.attention), GIVE_NONE(s.rope), GIVE_NONE(s.qkv);
    if (s.has_out) TSRI_TRY(tsr_matmul_backward_prepare(p->ctx, &s.out, &most));
    if (s.has_qkv) TSRI_TRY(tsr_attention_backward_prepare(p->ctx, &s.attention, &part));
    most = part > most ? part : most;
    if (s.has_rope) TSRI_TRY(tsr_rope_backward_prepare(p->ctx, &s.rope, &part));
    most = part > most ? part : most;
    if (s.has_qkv) TSRI_TRY(tsr_matmul_backward_prepare(p->ctx, &s.qkv, &part));
    most = part > most ? part : most;
    *bytes = (size_t)(rest - SELF_ATTENTION_NOWHERE) + most;
    return TSR_OK;
}

tsr_status self_attention_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace) {
    const struct self_attention_problem *p = problem;
    struct self_attention_backward_steps s;
    char *base = workspace,
         *rest = lay_out_backward(p, plan->variant->name, plan->flags, workspace, &s);
    GIVE(s.out);
    if (s.has_out) TSRI_TRY(tsr_matmul_backward(ctx, &s.out));
    if (!s.has_qkv) return TSR_OK;
    GIVE(s.attention);
    TSRI_TRY(tsr_attention_backward(ctx, &s.attention));
    if (s.has_rope) {
        GIVE(s.rope);
        TSRI_TRY(tsr_rope_backward(ctx, &s.rope));
    }
    GIVE(s.qkv);
    return tsr_matmul_backward(ctx, &s.qkv);
}

tsr_status self_attention_workspace(const struct self_attention_problem *p, const char *variant,
                                    uint32_t flags, size_t *bytes) {
    return tsri_name_op(
        p->op, (p->is_backward ? backward_bytes : forward_bytes)(p, variant, flags, bytes));
}
