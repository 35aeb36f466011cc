// SPDX-License-Identifier: Apache-2.0
// The shared expert: an MLP over all tokens. Its gate is a router with one expert, and the product with it the weight of
// that expert.
#include <tessera/cast.h>
#include <tessera/matmul.h>
#include <tessera/quantize.h>

#include "compose/moe/moe_problem.h"

static tsr_tensor as_row(const tsr_tensor *t) {
    tsr_tensor row = *t;
    if (!tsri_is_present(t)) return row;
    row.ndim = 2;
    row.shape[0] = 1;
    row.shape[1] = t->shape[0];
    row.stride[0] = t->shape[0];
    row.stride[1] = t->stride[0];
    return row;
}

static tsr_tensor without_cols(const tsr_tensor *t) {
    tsr_tensor tokens = *t;
    if (tsri_is_present(t)) tokens.ndim = 1;
    return tokens;
}

void moe_shared_place(struct moe_pass *pass, struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    const int64_t tokens = p->num_tokens, inner = p->shared_intermediate;
    const tsr_dtype dtype = p->x.dtype;
    *s = (struct moe_shared){0};
    if (!moe_has_shared(p)) return;
    const bool is_gated = tsri_is_present(&p->shared_gate), is_backward = p->is_backward;
    const bool is_fp8 = !is_backward && moe_is_shared_fp8(p);
    s->preact = p->shared_preact;
    s->x.t = p->x;
    if (is_fp8) s->x = moe_place_rows(pass, TSR_E4M3, tokens, p->hidden);
    s->a = moe_place_rows(pass, is_fp8 ? TSR_E4M3 : dtype, tokens, inner);
    if (!is_backward && tsri_is_present(&p->shared_w_up_scale))
        s->preact = moe_place_absent(pass, &s->preact, dtype, tokens, moe_preact_cols(p, inner));
    s->out = moe_place(pass, dtype, tokens, p->hidden);
    if (is_backward) {
        s->da = moe_place(pass, dtype, tokens, inner);
        s->dpreact = moe_place(pass, dtype, tokens, moe_preact_cols(p, inner));
    }
    if (!is_gated) return;
    s->logit = moe_place(pass, p->real, tokens, 1);
    s->logit_of_tokens = without_cols(&s->logit);
    if (!is_backward) return;
    s->weight = moe_place(pass, p->real, tokens, 1);
    s->ids = moe_place(pass, TSR_I32, tokens, 1);
    s->dweight = moe_place(pass, p->real, tokens, 1);
    s->dlogit = moe_place(pass, p->real, tokens, 1);
    if (dtype != p->real) s->dlogit_x = moe_place(pass, dtype, tokens, 1);
}

static void make_logit(struct moe_pass *pass, const struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    if (!tsri_is_present(&s->logit)) return;
    MOE_CALL(pass, matmul_forward, .a = p->x, .b = as_row(&p->shared_gate), .c = s->logit,
             .transpose_b = 1);
}

static void make_preact_and_a(struct moe_pass *pass, const struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    const bool is_gated = moe_is_gated(p);
    tsr_tensor gate, up;
    moe_split(p, &s->preact, &gate, &up);
    if (is_gated)
        MOE_CALL(pass, matmul_forward, .a = s->x.t, .b = p->shared_w_gate, .c = gate,
                 .transpose_b = 1, .a_scale = s->x.scale, .b_scale = p->shared_w_gate_scale);
    MOE_CALL(pass, matmul_forward, .a = s->x.t, .b = p->shared_w_up, .c = up, .transpose_b = 1,
             .a_scale = s->x.scale, .b_scale = p->shared_w_up_scale);
    if (moe_is_shared_fp8(p))
        MOE_CALL(pass, quantize, .x = is_gated ? gate : up, .up = is_gated ? up : gate, .y = s->a.t,
                 .y_scale = s->a.scale, .kind = moe_activation(p));
    else
        MOE_CALL(pass, activation_forward, .x = is_gated ? gate : up, .up = is_gated ? up : gate,
                 .y = s->a.t, .kind = moe_activation(p));
}

void moe_shared_forward(struct moe_pass *pass, const struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    if (!moe_has_shared(p)) return;
    make_logit(pass, s);
    if (moe_is_shared_fp8(p))
        MOE_CALL(pass, quantize, .x = p->x, .y = s->x.t, .y_scale = s->x.scale);
    if (tsri_is_present(&s->preact))
        make_preact_and_a(pass, s);
    else if (moe_is_gated(p))
        MOE_CALL(pass, matmul_forward, .a = p->x, .b = p->shared_w_gate, .b_up = p->shared_w_up,
                 .c = s->a.t, .transpose_b = 1, .activation = moe_activation(p));
    else
        MOE_CALL(pass, matmul_forward, .a = p->x, .b = p->shared_w_up, .c = s->a.t,
                 .transpose_b = 1, .activation = moe_activation(p));
    MOE_CALL(pass, matmul_forward, .a = s->a.t, .b = p->shared_w_down, .c = s->out,
             .transpose_b = 1, .a_scale = s->a.scale, .b_scale = p->shared_w_down_scale);
}

// ---- Backward ---------------------------------------------------------------------------------

// The gradient of a linear layer's weights (n, k): dc^T a.
static void weights_gradient(struct moe_pass *pass, const tsr_tensor *a, const tsr_tensor *dc,
                             const tsr_tensor *dw) {
    if (tsri_is_present(dw))
        MOE_CALL(pass, matmul_forward, .a = *dc, .b = *a, .c = *dw, .transpose_a = 1);
}

// The gate's gradients: of its weights, and its part of dx, added to s->out.
static void gate_gradient(struct moe_pass *pass, const struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    const tsr_tensor row = as_row(&p->shared_gate), drow = as_row(&p->dshared_gate);
    tsr_tensor dlogit = s->dlogit;
    MOE_CALL(pass, moe_route_backward, .logits = s->logit, .topk_ids = s->ids,
             .dtopk_weights = s->dweight, .dlogits = s->dlogit, .scoring = TSR_MOE_SIGMOID,
             .no_renormalize = 1);
    if (tsri_is_present(&s->dlogit_x)) {
        MOE_CALL(pass, cast, .x = s->dlogit, .y = s->dlogit_x);
        dlogit = s->dlogit_x;
    }
    weights_gradient(pass, &p->x, &dlogit, &drow);
    if (tsri_is_present(&p->dx))
        MOE_CALL(pass, matmul_forward, .a = dlogit, .b = row, .residual = s->out, .c = s->out);
}

void moe_shared_backward(struct moe_pass *pass, const struct moe_shared *s) {
    const struct moe_problem *p = pass->p;
    if (!moe_has_shared(p)) return;
    const bool is_gated = moe_is_gated(p), has_gate = tsri_is_present(&s->logit);
    const tsr_tensor none = {0};
    tsr_tensor gate, up, dgate, dup;
    moe_split(p, &s->preact, &gate, &up);
    moe_split(p, &s->dpreact, &dgate, &dup);
    make_logit(pass, s);
    if (has_gate)
        MOE_CALL(pass, moe_route_forward, .logits = s->logit, .topk_ids = s->ids,
                 .topk_weights = s->weight, .scoring = TSR_MOE_SIGMOID, .no_renormalize = 1);
    MOE_CALL(pass, matmul_forward, .a = p->dy, .b = p->shared_w_down, .c = s->da);
    MOE_CALL(pass, activation_backward, .x = is_gated ? gate : up, .up = is_gated ? up : none,
             .dy = s->da, .dx = is_gated ? dgate : dup, .dup = is_gated ? dup : none,
             .kind = moe_activation(p), .row_weights = without_cols(&s->weight),
             .weighted_y = s->a.t, .drow_weights = without_cols(&s->dweight));
    weights_gradient(pass, &s->a.t, &p->dy, &p->dshared_w_down);
    if (is_gated) weights_gradient(pass, &p->x, &dgate, &p->dshared_w_gate);
    weights_gradient(pass, &p->x, &dup, &p->dshared_w_up);
    if (tsri_is_present(&p->dx)) {
        if (is_gated)
            MOE_CALL(pass, matmul_forward, .a = dgate, .b = p->shared_w_gate, .c = s->out);
        MOE_CALL(pass, matmul_forward, .a = dup, .b = p->shared_w_up,
                 .residual = is_gated ? s->out : none, .c = s->out);
    }
    if (has_gate) gate_gradient(pass, s);
}
