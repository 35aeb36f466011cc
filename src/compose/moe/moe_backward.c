// SPDX-License-Identifier: Apache-2.0
// The backward pass as calls of the operations. Neither the experts' outputs nor a = act(h) are saved: with da the
// gradient of a without the assignment's weight, the weight's gradient is <da, a>, and a is made again beside h's gradient.
#include <tessera/cast.h>
#include <tessera/matmul.h>
#include <tessera/matmul_grouped.h>

#include "compose/moe/moe_problem.h"

// What lies between the calls: one row for each assignment, if not otherwise said.
struct between {
    tsr_tensor router_x, logits, dlogits, dlogits_x, dweights; // (T, ...)
    tsr_tensor offsets, counts, row_tokens, token_rows, row_weights, drow_weights;
    tsr_tensor hidden;    // (rows, hidden): copied rows of dy, then of x, then dx
    tsr_tensor da, dh;    // da: then a times weights
    tsr_tensor dx_sum;    // in fp32, if two products make dx
    tsr_tensor dx_router; // (T, hidden): the router's part of dx
    tsr_tensor b_down;    // in x's dtype
};

static const tsr_tensor none;

static bool has_router_gradient(const struct moe_problem *p) {
    return tsri_is_present(&p->drouter) || tsri_is_present(&p->dlogits_bias) ||
           tsri_is_present(&p->dlogits) || tsri_is_present(&p->dtopk_weights) ||
           (p->source == MOE_ROUTER && tsri_is_present(&p->dx));
}

static bool has_dx_rows(const struct moe_problem *p) {
    return tsri_is_present(&p->dx) || (p->options.weights_on_input && has_router_gradient(p));
}

static bool has_bias_of_out(const struct moe_problem *p) {
    return tsri_is_present(&p->b_down) && has_router_gradient(p) && !p->options.weights_on_input;
}

// Whether a tensor (rows, cols) is present, and its rows follow one another: then it is (rows cols, 1) too.
static bool is_one_run(const tsr_tensor *t) {
    return tsri_is_present(t) && (t->shape[0] <= 1 || t->stride[0] == t->shape[1]);
}

static void place_router(struct moe_pass *pass, struct between *b) {
    const struct moe_problem *p = pass->p;
    const int64_t tokens = p->num_tokens, experts = p->num_experts;
    b->router_x = p->x;
    b->logits = p->logits;
    b->dweights = p->dtopk_weights;
    b->dlogits = p->dlogits;
    if (!has_router_gradient(p)) return;
    if (!is_one_run(&p->dtopk_weights)) b->dweights = moe_place(pass, p->real, tokens, p->top_k);
    if (p->source == MOE_IDS) return;
    b->dlogits = moe_place_absent(pass, &p->dlogits, p->real, tokens, experts);
    if (p->source == MOE_LOGITS) return;
    b->logits = moe_place(pass, p->real, tokens, experts);
    b->dlogits_x = b->dlogits;
    if (p->router.dtype != p->x.dtype)
        b->router_x = moe_place(pass, p->router.dtype, tokens, p->hidden);
    if (p->router.dtype != p->real)
        b->dlogits_x = moe_place(pass, p->router.dtype, tokens, experts);
    if (tsri_is_present(&p->dx)) b->dx_router = moe_place(pass, p->router.dtype, tokens, p->hidden);
}

static void place(struct moe_pass *pass, struct between *b) {
    const struct moe_problem *p = pass->p;
    const int64_t rows = p->num_rows;
    const tsr_dtype dtype = p->x.dtype;
    *b = (struct between){0};
    place_router(pass, b);
    b->offsets = moe_place(pass, TSR_I32, p->num_experts + 1, MOE_NO_COLS);
    b->counts = moe_place(pass, TSR_I32, p->num_experts, MOE_NO_COLS);
    b->token_rows = moe_place(pass, TSR_I32, p->num_tokens, p->top_k);
    b->row_tokens = moe_place(pass, TSR_I32, rows, MOE_NO_COLS);
    if (!p->options.weights_on_input) {
        b->row_weights = moe_place(pass, p->real, rows, MOE_NO_COLS);
        b->drow_weights = moe_place(pass, p->real, rows, MOE_NO_COLS);
    }
    if (has_bias_of_out(p) && p->b_down.dtype != dtype)
        b->b_down = moe_place(pass, dtype, p->num_experts, p->hidden);
    b->da = moe_place(pass, dtype, rows, p->intermediate);
    b->dh = moe_place(pass, dtype, rows, moe_preact_cols(p, p->intermediate));
    b->hidden = b->dx_sum = moe_place(pass, dtype, rows, p->hidden);
    tsr_tensor both;
    if (has_dx_rows(p) && dtype != p->real && moe_is_gated(p) &&
        !moe_join(&p->w_gate, &p->w_up, &both))
        b->dx_sum = moe_place(pass, p->real, rows, p->hidden);
}

// The rows of x or dy, by the list or as copies.
struct listed {
    tsr_tensor t, rows;
};

static struct listed listed_rows(const struct between *b, const tsr_tensor *t, bool copies) {
    return (struct listed){copies ? b->hidden : *t, copies ? none : b->row_tokens};
}

static void copy_rows(struct moe_pass *pass, const struct between *b, const tsr_tensor *t,
                      tsr_tensor weights) {
    MOE_CALL(pass, moe_combine_backward, .dy = *t, .token_rows = b->token_rows, .weights = weights,
             .drows = b->hidden);
}

// da, then dh, a times weights, and the weights' gradients.
static void make_dh(struct moe_pass *pass, const struct between *b, const struct listed *dy) {
    const struct moe_problem *p = pass->p;
    const bool is_gated = moe_is_gated(p);
    tsr_tensor gate, up, dgate, dup;
    moe_split(p, &p->preact, &gate, &up);
    moe_split(p, &b->dh, &dgate, &dup);
    MOE_CALL(pass, matmul_grouped_forward, .a = dy->t, .a_rows = dy->rows, .offsets = b->offsets,
             .b = p->w_down, .c = b->da);
    MOE_CALL(pass, activation_backward, .x = is_gated ? gate : up, .up = is_gated ? up : none,
             .dy = b->da, .dx = is_gated ? dgate : dup, .dup = is_gated ? dup : none,
             .kind = moe_activation(p), .row_weights = b->row_weights, .weighted_y = b->da,
             .drow_weights = b->drow_weights);
}

// (rows) as (rows, 1); (experts, hidden) as (experts, hidden, 1).
static tsr_tensor as_column(const tsr_tensor *t) {
    tsr_tensor column = *t;
    column.shape[t->ndim] = column.stride[t->ndim] = 1;
    column.ndim++;
    return column;
}

// The gradients of the weights of experts, at the place of the assignment: without weights_on_input
// <da, a> + <dy, b_down>, else <x, dx of the row>.
static void make_dweights(struct moe_pass *pass, const struct between *b) {
    const struct moe_problem *p = pass->p;
    if (!has_router_gradient(p)) return;
    if (p->options.weights_on_input) {
        MOE_CALL(pass, moe_combine_backward, .dy = p->x, .rows = b->hidden,
                 .token_rows = b->token_rows, .dweights = b->dweights);
        return;
    }
    const tsr_tensor column = as_column(&b->drow_weights);
    tsr_tensor places = b->token_rows, dweights = b->dweights;
    if (has_bias_of_out(p)) {
        const tsr_tensor bias = tsri_is_present(&b->b_down) ? b->b_down : p->b_down;
        if (bias.data != p->b_down.data) MOE_CALL(pass, cast, .x = p->b_down, .y = bias);
        MOE_CALL(pass, matmul_grouped_forward, .a = p->dy, .a_rows = b->row_tokens,
                 .offsets = b->offsets, .b = as_column(&bias), .c = column, .accumulate = 1);
    }
    places.ndim = dweights.ndim = 3;
    places.shape[2] = places.stride[2] = dweights.shape[2] = dweights.stride[2] = 1;
    MOE_CALL(pass, moe_combine_forward, .rows = column, .token_rows = places, .y = dweights);
}

// dw = dc^T a over the rows of each expert.
static void weights_gradient(struct moe_pass *pass, const struct between *b, struct listed a,
                             struct listed dc, const tsr_tensor *dw) {
    if (tsri_is_present(dw))
        MOE_CALL(pass, matmul_grouped_backward, .a = a.t, .a_rows = a.rows, .dc = dc.t,
                 .dc_rows = dc.rows, .offsets = b->offsets, .db = *dw, .transpose_b = 1,
                 .accumulate = pass->p->accumulate);
}

// dbias = the sum of each expert's rows; those of dy by the list, times their weights.
static void bias_gradients(struct moe_pass *pass, const struct between *b) {
    const struct moe_problem *p = pass->p;
    tsr_tensor dgate, dup;
    moe_split(p, &b->dh, &dgate, &dup);
    if (tsri_is_present(&p->db_gate))
        MOE_CALL(pass, moe_bias_backward, .rows = dgate, .offsets = b->offsets,
                 .dbias = p->db_gate);
    if (tsri_is_present(&p->db_up))
        MOE_CALL(pass, moe_bias_backward, .rows = dup, .offsets = b->offsets, .dbias = p->db_up);
    if (tsri_is_present(&p->db_down))
        MOE_CALL(pass, moe_bias_backward, .rows = p->dy, .row_tokens = b->row_tokens,
                 .row_weights = b->row_weights, .offsets = b->offsets, .dbias = p->db_down);
}

static void make_gradients(struct moe_pass *pass, const struct between *b,
                           const struct listed *dy) {
    const struct moe_problem *p = pass->p;
    const bool copies_x = p->options.weights_on_input ||
                          moe_copies_rows(pass, 0, moe_preact_cols(p, p->intermediate));
    const struct listed x = listed_rows(b, &p->x, copies_x);
    tsr_tensor dgate, dup, both;
    moe_split(p, &b->dh, &dgate, &dup);
    weights_gradient(pass, b, (struct listed){b->da, none}, *dy, &p->dw_down);
    if (copies_x && (tsri_is_present(&p->dw_gate) || tsri_is_present(&p->dw_up)))
        copy_rows(pass, b, &p->x, p->options.weights_on_input ? p->topk_weights : none);
    if (moe_is_gated(p) && moe_join(&p->dw_gate, &p->dw_up, &both)) {
        weights_gradient(pass, b, x, (struct listed){b->dh, none}, &both);
    } else {
        weights_gradient(pass, b, x, (struct listed){dgate, none}, &p->dw_gate);
        weights_gradient(pass, b, x, (struct listed){dup, none}, &p->dw_up);
    }
    bias_gradients(pass, b);
}

// The gradients of x in each row. Weights that are not halves of one tensor take two products, added in fp32.
static void make_dx_rows(struct moe_pass *pass, const struct between *b) {
    const struct moe_problem *p = pass->p;
    tsr_tensor dgate, dup, both;
    if (!has_dx_rows(p)) return;
    moe_split(p, &b->dh, &dgate, &dup);
    if (!moe_is_gated(p)) {
        MOE_CALL(pass, matmul_grouped_forward, .a = dup, .offsets = b->offsets, .b = p->w_up,
                 .c = b->hidden);
    } else if (moe_join(&p->w_gate, &p->w_up, &both)) {
        MOE_CALL(pass, matmul_grouped_forward, .a = b->dh, .offsets = b->offsets, .b = both,
                 .c = b->hidden);
    } else {
        MOE_CALL(pass, matmul_grouped_forward, .a = dgate, .offsets = b->offsets, .b = p->w_gate,
                 .c = b->dx_sum);
        MOE_CALL(pass, matmul_grouped_forward, .a = dup, .offsets = b->offsets, .b = p->w_up,
                 .c = b->dx_sum, .accumulate = 1);
        if (b->dx_sum.data != b->hidden.data) MOE_CALL(pass, cast, .x = b->dx_sum, .y = b->hidden);
    }
}

static void route_backward(struct moe_pass *pass, const struct between *b) {
    const struct moe_problem *p = pass->p;
    const struct moe_options *o = &p->options;
    if (tsri_is_present(&p->dtopk_weights) && b->dweights.data != p->dtopk_weights.data)
        MOE_CALL(pass, cast, .x = b->dweights, .y = p->dtopk_weights);
    if (p->source == MOE_IDS || !has_router_gradient(p)) return;
    if (p->source == MOE_ROUTER) moe_make_logits(pass, &b->router_x, &b->logits);
    MOE_CALL(pass, moe_route_backward, .logits = b->logits, .topk_ids = p->topk_ids,
             .dtopk_weights = b->dweights,
             .tokens_per_expert = tsri_is_present(&p->dload_balance_loss) ? b->counts : none,
             .dload_balance_loss = p->dload_balance_loss, .dz_loss = p->dz_loss,
             .dlogits = b->dlogits, .scoring = o->scoring, .no_renormalize = o->no_renormalize,
             .routed_scaling = o->routed_scaling, .has_routed_scaling = o->has_routed_scaling);
    if (p->source == MOE_LOGITS) return;
    if (b->dlogits_x.data != b->dlogits.data)
        MOE_CALL(pass, cast, .x = b->dlogits, .y = b->dlogits_x);
    if (tsri_is_present(&p->drouter))
        MOE_CALL(pass, matmul_forward, .a = b->dlogits_x, .b = b->router_x, .c = p->drouter,
                 .transpose_a = 1);
    if (tsri_is_present(&p->dlogits_bias))
        MOE_CALL(pass, matmul_backward, .a = b->router_x, .b = p->router, .dc = b->dlogits_x,
                 .dbias = p->dlogits_bias, .transpose_b = 1);
    if (tsri_is_present(&p->dx))
        MOE_CALL(pass, matmul_forward, .a = b->dlogits_x, .b = p->router, .c = b->dx_router);
}

void moe_backward_pass(struct moe_pass *pass) {
    const struct moe_problem *p = pass->p;
    const struct moe_options *o = &p->options;
    struct between b;
    struct moe_shared shared;
    place(pass, &b);
    moe_shared_place(pass, &shared);
    const bool copies_dy =
        moe_copies_rows(pass, p->intermediate, tsri_is_present(&p->dw_down) ? p->intermediate : 0);
    const struct listed dy = listed_rows(&b, &p->dy, copies_dy);
    MOE_CALL(pass, moe_permute, .topk_ids = p->topk_ids, .offsets = b.offsets,
             .row_tokens = b.row_tokens, .token_rows = b.token_rows,
             .topk_weights = o->weights_on_input ? none : p->topk_weights,
             .row_weights = b.row_weights, .tokens_per_expert = b.counts, .capacity = o->capacity,
             .has_capacity = o->has_capacity);
    if (copies_dy) copy_rows(pass, &b, &p->dy, none);
    make_dh(pass, &b, &dy);
    make_gradients(pass, &b, &dy);
    make_dx_rows(pass, &b);
    make_dweights(pass, &b);
    route_backward(pass, &b);
    moe_shared_backward(pass, &shared);
    if (tsri_is_present(&p->dx))
        MOE_CALL(pass, moe_combine_forward, .rows = b.hidden, .token_rows = b.token_rows,
                 .weights = o->weights_on_input ? p->topk_weights : none, .shared = shared.out,
                 .residual = b.dx_router, .y = p->dx);
}
