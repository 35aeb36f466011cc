// SPDX-License-Identifier: Apache-2.0
// The forward pass as calls of the operations: router, permutation, the experts' two products with the activation between
// them, the shared expert, the sum of a token's rows.
#include <tessera/cast.h>
#include <tessera/matmul.h>
#include <tessera/matmul_grouped.h>
#include <tessera/quantize.h>

#include "compose/moe/moe_problem.h"

void moe_make_logits(struct moe_pass *pass, const tsr_tensor *x, const tsr_tensor *logits) {
    const struct moe_problem *p = pass->p;
    if (x->data != p->x.data) MOE_CALL(pass, cast, .x = p->x, .y = *x);
    MOE_CALL(pass, matmul_forward, .a = *x, .b = p->router, .bias = p->logits_bias, .c = *logits,
             .transpose_b = 1);
}

// The halves of one tensor, and of one scale if the experts have scales. Scales of blocks cannot be cut within a block.
static bool join_weights(const struct moe_problem *p, tsr_tensor *both, tsr_tensor *scale) {
    *scale = (tsr_tensor){0};
    if (!moe_join(&p->w_gate, &p->w_up, both)) return false;
    if (!tsri_is_present(&p->w_up_scale)) return true;
    return p->w_gate_scale.ndim == 3 && p->intermediate % 128 == 0 &&
           moe_join(&p->w_gate_scale, &p->w_up_scale, scale);
}

// h = x w^T + b for the rows of each expert, into its half of h; one product if the weights are halves too.
static void make_preact(struct moe_pass *pass, const struct moe_rows *x,
                        const tsr_tensor *row_tokens, const tsr_tensor *offsets,
                        const tsr_tensor *h) {
    const struct moe_problem *p = pass->p;
    tsr_tensor gate, up, both, scale;
    moe_split(p, h, &gate, &up);
    const bool has_bias = tsri_is_present(&p->b_gate) || tsri_is_present(&p->b_up);
    if (moe_is_gated(p) && !has_bias && join_weights(p, &both, &scale)) {
        MOE_CALL(pass, matmul_grouped_forward, .a = x->t, .a_rows = *row_tokens,
                 .offsets = *offsets, .b = both, .c = *h, .transpose_b = 1, .a_scale = x->scale,
                 .b_scale = scale);
        return;
    }
    if (moe_is_gated(p))
        MOE_CALL(pass, matmul_grouped_forward, .a = x->t, .a_rows = *row_tokens,
                 .offsets = *offsets, .b = p->w_gate, .bias = p->b_gate, .c = gate,
                 .transpose_b = 1, .a_scale = x->scale, .b_scale = p->w_gate_scale);
    MOE_CALL(pass, matmul_grouped_forward, .a = x->t, .a_rows = *row_tokens, .offsets = *offsets,
             .b = p->w_up, .bias = p->b_up, .c = up, .transpose_b = 1, .a_scale = x->scale,
             .b_scale = p->w_up_scale);
}

// a of all rows, by way of h; where nobody needs h ({0}), in one product.
static void make_a(struct moe_pass *pass, const struct moe_rows *x, const tsr_tensor *row_tokens,
                   const tsr_tensor *offsets, const tsr_tensor *h, const struct moe_rows *a) {
    const struct moe_problem *p = pass->p;
    const bool is_gated = moe_is_gated(p);
    tsr_tensor gate, up;
    if (!tsri_is_present(h)) {
        MOE_CALL(pass, matmul_grouped_forward, .a = x->t, .a_rows = *row_tokens,
                 .offsets = *offsets, .b = is_gated ? p->w_gate : p->w_up,
                 .bias = is_gated ? p->b_gate : p->b_up,
                 .b_up = is_gated ? p->w_up : (tsr_tensor){0},
                 .bias_up = is_gated ? p->b_up : (tsr_tensor){0}, .c = a->t, .transpose_b = 1,
                 .activation = moe_activation(p));
        return;
    }
    make_preact(pass, x, row_tokens, offsets, h);
    moe_split(p, h, &gate, &up);
    if (moe_is_fp8(p))
        MOE_CALL(pass, quantize, .x = is_gated ? gate : up, .up = is_gated ? up : gate, .y = a->t,
                 .y_scale = a->scale, .kind = moe_activation(p));
    else
        MOE_CALL(pass, activation_forward, .x = is_gated ? gate : up, .up = is_gated ? up : gate,
                 .y = a->t, .kind = moe_activation(p));
}

static void route(struct moe_pass *pass, const tsr_tensor *logits, const tsr_tensor *ids,
                  const tsr_tensor *weights) {
    const struct moe_problem *p = pass->p;
    const struct moe_options *o = &p->options;
    MOE_CALL(pass, moe_route_forward, .logits = *logits, .correction_bias = p->correction_bias,
             .topk_ids = *ids, .topk_weights = *weights, .mean_probs = p->mean_probs,
             .load_balance_loss = p->load_balance_loss, .z_loss = p->z_loss,
             .usage_variance = p->usage_variance, .num_nan_rows = p->num_nan_rows,
             .scoring = o->scoring, .no_renormalize = o->no_renormalize,
             .routed_scaling = o->routed_scaling, .has_routed_scaling = o->has_routed_scaling,
             .num_groups = o->num_groups, .topk_groups = o->topk_groups,
             .group_score = o->group_score, .round_weights = o->round_weights);
}

void moe_forward_pass(struct moe_pass *pass) {
    const struct moe_problem *p = pass->p;
    const struct moe_options *o = &p->options;
    const int64_t tokens = p->num_tokens, rows = p->num_rows, k = p->top_k;
    const tsr_dtype dtype = p->x.dtype;
    const bool is_fp8 = moe_is_fp8(p), is_scaled = tsri_is_present(&p->w_up_scale);
    const bool is_fused = !tsri_is_present(&p->preact) && !is_scaled;
    const bool copies_x =
        o->weights_on_input ||
        (!is_fp8 && moe_copies_rows(pass, moe_preact_cols(p, p->intermediate), 0));
    tsr_tensor router_x = p->x, logits = p->logits, h = p->preact;
    struct moe_rows input = {p->x, {0}}, x8 = {{0}, {0}};
    struct moe_shared shared;

    if (p->source == MOE_ROUTER) {
        logits = moe_place(pass, p->real, tokens, p->num_experts);
        if (p->router.dtype != dtype)
            router_x = moe_place(pass, p->router.dtype, tokens, p->hidden);
    }
    const tsr_tensor ids = moe_place_absent(pass, &p->topk_ids, TSR_I32, tokens, k);
    const tsr_tensor weights = moe_place_absent(pass, &p->topk_weights, p->real, tokens, k);
    const tsr_tensor offsets =
        moe_place_absent(pass, &p->offsets, TSR_I32, p->num_experts + 1, MOE_NO_COLS);
    const tsr_tensor token_rows = moe_place(pass, TSR_I32, tokens, k);
    tsr_tensor row_tokens = moe_place(pass, TSR_I32, rows, MOE_NO_COLS);
    if (!is_fused) h = moe_place_absent(pass, &h, dtype, rows, moe_preact_cols(p, p->intermediate));
    if (is_fp8) x8 = moe_place_rows(pass, TSR_E4M3, rows, p->hidden);
    const struct moe_rows a =
        moe_place_rows(pass, is_fp8 ? TSR_E4M3 : dtype, rows, p->intermediate);
    const tsr_tensor out = moe_place(pass, dtype, rows, p->hidden); // before that, copied rows of x
    moe_shared_place(pass, &shared);

    if (p->source == MOE_ROUTER) moe_make_logits(pass, &router_x, &logits);
    if (p->source != MOE_IDS) route(pass, &logits, &ids, &weights);
    MOE_CALL(pass, moe_permute, .topk_ids = ids, .offsets = offsets, .row_tokens = row_tokens,
             .token_rows = token_rows, .tokens_per_expert = p->tokens_per_expert,
             .num_dropped = p->num_dropped, .capacity = o->capacity,
             .has_capacity = o->has_capacity);
    if (copies_x) {
        input.t = out;
        MOE_CALL(pass, moe_combine_backward, .dy = p->x, .token_rows = token_rows,
                 .weights = o->weights_on_input ? weights : (tsr_tensor){0}, .drows = input.t);
        row_tokens = (tsr_tensor){0};
    }
    if (is_fp8) {
        MOE_CALL(pass, quantize, .x = input.t, .x_rows = row_tokens, .y = x8.t,
                 .y_scale = x8.scale);
        input = x8;
        row_tokens = (tsr_tensor){0};
    }
    make_a(pass, &input, &row_tokens, &offsets, &h, &a);
    MOE_CALL(pass, matmul_grouped_forward, .a = a.t, .offsets = offsets, .b = p->w_down,
             .bias = p->b_down, .c = out, .transpose_b = 1, .a_scale = a.scale,
             .b_scale = p->w_down_scale);
    moe_shared_forward(pass, &shared);
    MOE_CALL(pass, moe_combine_forward, .rows = out, .token_rows = token_rows,
             .weights = o->weights_on_input ? (tsr_tensor){0} : weights, .shared = shared.out,
             .shared_gate = shared.logit_of_tokens, .residual = p->residual, .y = p->y);
}
