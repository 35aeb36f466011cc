// SPDX-License-Identifier: Apache-2.0
// Estimates the layer's memory before any is allocated: it lays out contiguous tensors at addresses that no object has and
// asks the passes' own prepare. So the estimate cannot differ from the call.
#include "compose/estimate_check.h"
#include "compose/moe/moe_problem.h"

static const char op[] = "moe_estimate";

// Places tensors one after the other with gaps between, so that none overlaps another or follows it at once.
struct tally {
    tsr_device device;
    char *at;
    size_t *bytes; // the sum to which the next tensors are added
};

static tsr_tensor add(struct tally *tally, tsr_dtype dtype, int ndim, const int64_t *shape) {
    tsr_tensor t = tsr_tensor_contiguous(tally->at, dtype, ndim, shape);
    t.device = tally->device;
    size_t bytes = (size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(dtype);
    *tally->bytes += bytes;
    tally->at += tsri_round_up(bytes, 64) + 64;
    return t;
}
#define ADD(dtype, ...)                                                                            \
    add(tally, (dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                 \
        (const int64_t[]){__VA_ARGS__})

static bool is_fp8(const tsr_moe_estimate_args *a) { return a->weight_dtype == TSR_E4M3; }
static bool is_shared_fp8(const tsr_moe_estimate_args *a) {
    return a->shared_weight_dtype == TSR_E4M3;
}

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status check_dtype(const char *field, tsr_dtype dtype) {
    switch (dtype) {
    case TSR_F64:
    case TSR_F32:
    case TSR_BF16:
    case TSR_F16: return TSR_OK;
    default:
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %s, expected f32, bf16, f16 or f64", op,
                         field, tsr_dtype_name(dtype));
    }
}

static tsr_status check_weight_dtype(const char *field, tsr_dtype dtype, tsr_dtype x) {
    if (dtype == TSR_E4M3 && x == TSR_F64)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is e4m3 beside dtype f64, expected none", op,
                         field);
    if (dtype == TSR_DTYPE_NONE || dtype == TSR_E4M3) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %s, expected none or e4m3", op, field,
                     tsr_dtype_name(dtype));
}

// A generous check: the products are upper bounds of every tensor. The passes check the rest.
static tsr_status check(const tsr_moe_estimate_args *args) {
    TSRI_TRY(check_dtype("dtype", args->dtype));
    if (args->router_dtype != TSR_DTYPE_NONE)
        TSRI_TRY(check_dtype("router_dtype", args->router_dtype));
    TSRI_TRY(check_weight_dtype("weight_dtype", args->weight_dtype, args->dtype));
    TSRI_TRY(check_weight_dtype("shared_weight_dtype", args->shared_weight_dtype, args->dtype));
    int64_t weights = 2, rows = 2, tokens = 2, routes = 1;
    TSRI_TRY(tsri_estimate_check_size(op, "num_experts", args->num_experts, 1, &weights));
    TSRI_TRY(tsri_estimate_check_size(op, "hidden", args->hidden, 0, &weights));
    int64_t shared = weights;
    TSRI_TRY(tsri_estimate_check_size(op, "intermediate", args->intermediate, 0, &weights));
    TSRI_TRY(
        tsri_estimate_check_size(op, "shared_intermediate", args->shared_intermediate, 0, &shared));
    TSRI_TRY(tsri_estimate_check_size(op, "top_k", args->top_k, 1, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "num_tokens", args->num_tokens, 0, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "intermediate", args->intermediate, 0, &rows));
    TSRI_TRY(tsri_estimate_check_size(op, "num_tokens", args->num_tokens, 0, &tokens));
    TSRI_TRY(tsri_estimate_check_size(op, "hidden", args->hidden, 0, &tokens));
    TSRI_TRY(tsri_estimate_check_size(op, "num_experts", args->num_experts, 1, &routes));
    TSRI_TRY(tsri_estimate_check_size(op, "num_tokens", args->num_tokens, 0, &routes));
    int64_t shared_rows = 2;
    TSRI_TRY(tsri_estimate_check_size(op, "shared_intermediate", args->shared_intermediate, 0,
                                      &shared_rows));
    return tsri_estimate_check_size(op, "num_tokens", args->num_tokens, 0, &shared_rows);
}

// ---- Tensors ----------------------------------------------------------------------------------

struct calls {
    tsr_moe_forward_args forward;
    tsr_moe_backward_args backward;
};

// A pair of (experts, rows, cols), or halves of one tensor.
static void add_pair(struct tally *tally, const tsr_moe_estimate_args *a, tsr_dtype dtype,
                     int64_t rows, int64_t cols, tsr_tensor *gate, tsr_tensor *up) {
    if (!a->is_joined || !a->is_gated) {
        if (a->is_gated) *gate = ADD(dtype, a->num_experts, rows, cols);
        *up = ADD(dtype, a->num_experts, rows, cols);
        return;
    }
    *gate = ADD(dtype, a->num_experts, 2 * rows, cols);
    gate->shape[1] = rows;
    *up = *gate;
    up->data = (char *)gate->data + rows * cols * (int64_t)tsr_dtype_bytes(dtype);
}

static void add_scales(struct tally *tally, const tsr_moe_estimate_args *a,
                       tsr_moe_forward_args *f) {
    const int64_t of_h = tsri_ceil_div(a->hidden, 128), of_i = tsri_ceil_div(a->intermediate, 128);
    if (!is_fp8(a)) return;
    if (a->has_block_scales) {
        add_pair(tally, a, TSR_F32, of_i, of_h, &f->w_gate_scale, &f->w_up_scale);
        f->w_down_scale = ADD(TSR_F32, a->num_experts, of_h, of_i);
        return;
    }
    if (a->is_gated) f->w_gate_scale = ADD(TSR_F32, a->num_experts);
    f->w_up_scale = ADD(TSR_F32, a->num_experts);
    f->w_down_scale = ADD(TSR_F32, a->num_experts);
}

static void add_shared_scales(struct tally *tally, const tsr_moe_estimate_args *a,
                              tsr_moe_forward_args *f) {
    const int64_t of_h = tsri_ceil_div(a->hidden, 128),
                  of_s = tsri_ceil_div(a->shared_intermediate, 128);
    if (a->is_gated) f->shared_w_gate_scale = ADD(TSR_F32, of_s, of_h);
    f->shared_w_up_scale = ADD(TSR_F32, of_s, of_h);
    f->shared_w_down_scale = ADD(TSR_F32, of_h, of_s);
}

static void add_weights(struct tally *tally, const tsr_moe_estimate_args *a, tsr_dtype router,
                        struct calls *c) {
    const int64_t e = a->num_experts, h = a->hidden, i = a->intermediate,
                  s = a->shared_intermediate;
    tsr_moe_forward_args *f = &c->forward;
    f->router = ADD(router, e, h);
    const tsr_dtype dtype = is_fp8(a) ? a->weight_dtype : a->dtype;
    add_pair(tally, a, dtype, i, h, &f->w_gate, &f->w_up);
    f->w_down = ADD(dtype, e, h, i);
    add_scales(tally, a, f);
    if (a->has_bias) {
        if (a->is_gated) f->b_gate = ADD(a->dtype, e, i);
        f->b_up = ADD(a->dtype, e, i);
        f->b_down = ADD(a->dtype, e, h);
    }
    if (s > 0) {
        const tsr_dtype of_shared = is_shared_fp8(a) ? a->shared_weight_dtype : a->dtype;
        if (a->is_gated) f->shared_w_gate = ADD(of_shared, s, h);
        f->shared_w_up = ADD(of_shared, s, h);
        f->shared_w_down = ADD(of_shared, h, s);
        if (is_shared_fp8(a)) add_shared_scales(tally, a, f);
        if (a->has_shared_gate) f->shared_gate = ADD(a->dtype, h);
    }
    tsr_moe_backward_args *b = &c->backward;
    b->router = f->router;
    b->w_gate = f->w_gate;
    b->w_up = f->w_up;
    b->w_down = f->w_down;
    b->b_down = f->b_down;
    b->shared_w_gate = f->shared_w_gate;
    b->shared_w_up = f->shared_w_up;
    b->shared_w_down = f->shared_w_down;
    b->shared_gate = f->shared_gate;
}

// num_rows of tessera/moe.h.
static int64_t rows_of(const tsr_moe_estimate_args *a) {
    const int64_t rows = a->num_tokens * a->top_k;
    const bool is_limited = a->has_capacity && a->capacity >= 1 && a->capacity <= rows;
    return is_limited ? tsri_min(rows, a->num_experts * a->capacity) : rows;
}

static void add_saved(struct tally *tally, const tsr_moe_estimate_args *a, tsr_dtype real,
                      struct calls *c) {
    const int64_t cols = a->is_gated ? 2 : 1;
    tsr_moe_forward_args *f = &c->forward;
    f->preact = ADD(a->dtype, rows_of(a), cols * a->intermediate);
    if (a->shared_intermediate > 0)
        f->shared_preact = ADD(a->dtype, a->num_tokens, cols * a->shared_intermediate);
    f->topk_ids = ADD(TSR_I32, a->num_tokens, a->top_k);
    f->topk_weights = ADD(real, a->num_tokens, a->top_k);
    c->backward.preact = f->preact;
    c->backward.shared_preact = f->shared_preact;
    c->backward.topk_ids = f->topk_ids;
    c->backward.topk_weights = f->topk_weights;
}

static void add_gradients(struct tally *tally, const tsr_moe_estimate_args *a, tsr_dtype router,
                          struct calls *c) {
    const int64_t e = a->num_experts, h = a->hidden, i = a->intermediate,
                  s = a->shared_intermediate;
    tsr_moe_backward_args *b = &c->backward;
    b->dy = ADD(a->dtype, a->num_tokens, h);
    b->dx = ADD(a->dtype, a->num_tokens, h);
    b->drouter = ADD(router, e, h);
    add_pair(tally, a, a->dtype, i, h, &b->dw_gate, &b->dw_up);
    b->dw_down = ADD(a->dtype, e, h, i);
    if (a->has_bias) {
        if (a->is_gated) b->db_gate = ADD(a->dtype, e, i);
        b->db_up = ADD(a->dtype, e, i);
        b->db_down = ADD(a->dtype, e, h);
    }
    if (s == 0) return;
    if (a->is_gated) b->dshared_w_gate = ADD(a->dtype, s, h);
    b->dshared_w_up = ADD(a->dtype, s, h);
    b->dshared_w_down = ADD(a->dtype, h, s);
    if (a->has_shared_gate) b->dshared_gate = ADD(a->dtype, h);
}

// ---- The estimate -----------------------------------------------------------------------------

#define CALL(a)                                                                                    \
    .flags = (a).flags, .variant = (a).variant, .workspace = MOE_NOWHERE, .top_k = (a).top_k,      \
    .scoring = (a).scoring, .no_renormalize = (a).no_renormalize,                                  \
    .routed_scaling = (a).routed_scaling, .has_routed_scaling = (a).has_routed_scaling,            \
    .num_groups = (a).num_groups, .topk_groups = (a).topk_groups, .group_score = (a).group_score,  \
    .round_weights = (a).round_weights, .activation = (a).activation,                              \
    .weights_on_input = (a).weights_on_input, .capacity = (a).capacity,                            \
    .has_capacity = (a).has_capacity

tsr_status tsr_moe_estimate(tsr_context *ctx, const tsr_moe_estimate_args *given,
                            tsr_moe_memory *memory) {
    tsr_moe_estimate_args args;
    TSRI_TRY(tsri_check_context(ctx, ctx == NULL ? op : "moe_forward"));
    TSRI_TRY(TSRI_ARGS_READ(op, args, given));
    if (memory == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: memory is NULL, expected an address", op);
    TSRI_TRY(check(&args));
    const tsr_dtype real = args.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    const tsr_dtype router = args.router_dtype != TSR_DTYPE_NONE ? args.router_dtype : args.dtype;
    tsr_moe_memory m = {0};
    char *elsewhere = MOE_NOWHERE + UINTPTR_MAX / 256 * 64; // far from the passes' own
    struct tally all = {tsri_context_limits(ctx)->device, elsewhere, &m.weight_bytes};
    struct tally *tally = &all;
    // A placeholder workspace, so that the arena does not grow for an estimate.
    struct calls c = {TSR_MOE_FORWARD_ARGS(CALL(args)), TSR_MOE_BACKWARD_ARGS(CALL(args))};

    add_weights(tally, &args, router, &c);
    all.bytes = &m.activation_bytes;
    c.forward.x = c.backward.x = ADD(args.dtype, args.num_tokens, args.hidden);
    const size_t x_bytes = m.activation_bytes;
    c.forward.y = ADD(args.dtype, args.num_tokens, args.hidden);
    TSRI_TRY(tsr_moe_forward_prepare(ctx, &c.forward, &m.inference_workspace_bytes));
    m.inference_bytes = m.weight_bytes + m.activation_bytes + m.inference_workspace_bytes;
    *memory = m;
    if (is_fp8(&args) || (is_shared_fp8(&args) && args.shared_intermediate > 0)) return TSR_OK;
    all.bytes = &m.saved_bytes;
    add_saved(tally, &args, real, &c);
    TSRI_TRY(tsr_moe_forward_prepare(ctx, &c.forward, &m.forward_workspace_bytes));
    all.bytes = &m.gradient_bytes;
    add_gradients(tally, &args, router, &c);
    TSRI_TRY(tsr_moe_backward_prepare(ctx, &c.backward, &m.backward_workspace_bytes));
    m.training_bytes =
        m.weight_bytes + m.activation_bytes + m.saved_bytes + m.gradient_bytes +
        (m.forward_workspace_bytes > m.backward_workspace_bytes ? m.forward_workspace_bytes
                                                                : m.backward_workspace_bytes);
    m.saved_bytes += x_bytes; // only here: the sum counts it once
    *memory = m;
    return TSR_OK;
}
