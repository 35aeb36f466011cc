// SPDX-License-Identifier: Apache-2.0
// The layer's work, traffic, and memory by the library's own estimate.
#include <math.h>

#include "measure/traffic.h"
#include "specs/moe/spec_moe.h"

// Products of a pass over all projections once.
static double products(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double projections = n.is_gated ? 3 : 2, hidden = (double)n.hidden;
    double sum = projections * (double)n.rows * hidden * (double)n.inter;
    if (c->is_present[MIX_SHARED_W_UP])
        sum += projections * (double)n.tokens * hidden * (double)n.shared;
    if (c->is_present[MIX_ROUTER]) sum += (double)n.tokens * hidden * (double)n.experts;
    return sum;
}

double moe_forward_flops(const struct op_case *c) { return 2 * products(c); }

// Both gradients of each projection.
double moe_backward_flops(const struct op_case *c) { return 4 * products(c); }

// The share of the experts that have rows, if the router chooses evenly.
static double touched(const struct moe_sizes *n) {
    if (n->experts <= 0) return 0;
    const double share = fmin((double)n->top_k / (double)n->experts, 1);
    return 1 - pow(1 - share, (double)n->tokens);
}

// Every tensor once, but of the experts' weights only those that have rows.
double moe_bytes_of(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    double bytes = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        const bool is_of_experts = s == MIX_W_GATE || s == MIX_W_UP || s == MIX_W_DOWN;
        bytes += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s)) *
                 (is_of_experts ? touched(&n) : 1) * (case_role(c, s) == SLOT_INOUT ? 2 : 1);
    }
    return bytes;
}

// The library's estimate, if it covers the case: a router, all biases or none, all that is saved or nothing, every gradient.
// false: it does not.
static bool estimate(tsr_context *ctx, const struct op_case *c, const char *variant, bool has_bias,
                     tsr_moe_memory *memory) {
    const struct moe_sizes n = moe_sizes_of(c);
    const bool *is = c->is_present;
    const bool has_shared = is[MIX_SHARED_W_UP];
    if (!is[MIX_ROUTER] || is[MIX_LOGITS_BIAS] || (has_bias && c->small_dtype != c->dtype) ||
        has_shared != (n.shared > 0))
        return false;
    const tsr_moe_estimate_args args = TSR_MOE_ESTIMATE_ARGS(
        MOE_OPTIONS(c), .flags = c->flags, .variant = variant, .dtype = c->dtype,
        .router_dtype = c->small_dtype, .is_gated = n.is_gated, .has_bias = has_bias,
        .has_shared_gate = is[MIX_SHARED_GATE],
        .weight_dtype = moe_fp8_of(c) != FP8_NONE ? TSR_E4M3 : TSR_DTYPE_NONE,
        .has_block_scales = moe_fp8_of(c) == FP8_BLOCKS,
        .shared_weight_dtype = moe_is_shared_fp8(c) ? TSR_E4M3 : TSR_DTYPE_NONE,
        .num_tokens = n.tokens, .hidden = n.hidden, .intermediate = n.inter,
        .num_experts = n.experts, .shared_intermediate = n.shared);
    return tsr_moe_estimate(ctx, &args, memory) == TSR_OK;
}

double moe_forward_predict(tsr_context *ctx, const struct op_case *c, const char *variant) {
    const bool *is = c->is_present;
    tsr_moe_memory m;
    const bool has_bias = is[MIX_B_UP], has_shared = is[MIX_SHARED_W_UP];
    bool is_covered = is[MIX_B_DOWN] == has_bias && is[MIX_B_GATE] == (has_bias && is[MIX_W_GATE]);
    is_covered &= is[MIX_IDS] == is[MIX_PREACT] && is[MIX_WEIGHTS] == is[MIX_PREACT] &&
                  is[MIX_SHARED_PREACT] == (is[MIX_PREACT] && has_shared);
    for (int s = MIX_CORRECTION_BIAS; s <= MIX_DROPPED; s++)
        is_covered &= !is[s] || s == MIX_B_GATE || s == MIX_B_UP || s == MIX_Y;
    is_covered &= !is[MIX_PREACT] || (moe_fp8_of(c) == FP8_NONE && !moe_is_shared_fp8(c));
    if (!is_covered || !estimate(ctx, c, variant, has_bias, &m)) return NAN;
    const double x = case_elements(c, MIX_X) * (double)tsr_dtype_bytes(c->dtype);
    return !is[MIX_PREACT] ? (double)m.inference_bytes
                           : (double)(m.weight_bytes + m.activation_bytes + m.saved_bytes +
                                      m.forward_workspace_bytes) -
                                 x; // which is saved too
}

// The estimate without y, because backward has none.
double moe_backward_predict(tsr_context *ctx, const struct op_case *c, const char *variant) {
    const bool *is = c->is_present;
    tsr_moe_memory m;
    bool is_covered = !is[MIX_B_DOWN] && !is[MIX_DBALANCE] && !is[MIX_DZ] && is[MIX_DROUTER] &&
                      c->param[MIX_ACCUMULATE] == 0 && c->small_dtype == c->dtype;
    for (int s = MIX_DX; s <= MIX_DSHARED_GATE; s++) {
        const char *model = c->spec->slots[s].model;
        const int of = spec_slot(c->spec, model);
        is_covered &= is[s] == (of >= 0 && is[of] && s != MIX_DWEIGHTS);
    }
    if (!is_covered || !estimate(ctx, c, variant, false, &m)) return NAN;
    const double x = case_elements(c, MIX_X) * (double)tsr_dtype_bytes(c->dtype);
    return (double)(m.weight_bytes + m.activation_bytes + m.saved_bytes + m.gradient_bytes +
                    m.backward_workspace_bytes) -
           2 * x;
}

// Adds a product: reads `a` and `b`, writes c; all in elements.
static void add_product(struct op_traffic *t, double element, double a, double b, double c) {
    t->num_passes++;
    t->read_bytes += element * (a + b);
    t->write_bytes += element * c;
}

// The sum over the parts of an MLP: rows of `inputs` columns, `cols` columns of h.
static void mlp_traffic(struct op_traffic *t, const struct op_case *c, double rows, double inner,
                        double cols, double weights) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double element = (double)tsr_dtype_bytes(c->dtype), hidden = (double)n.hidden;
    const double up = weights * cols * hidden, down = weights * inner * hidden;
    if (!moe_is_backward(c)) {
        const bool is_saving = c->is_present[MIX_PREACT];
        add_product(t, element, rows * hidden, up, rows * (is_saving ? cols : inner));
        if (is_saving) add_product(t, element, rows * cols, 0, rows * inner);
        add_product(t, element, rows * inner, down, rows * hidden);
        return;
    }
    add_product(t, element, rows * hidden, down, rows * inner);               // da
    add_product(t, element, rows * (cols + inner), 0, rows * (cols + inner)); // dh, weighted a
    add_product(t, element, rows * inner, rows * hidden, down);               // dw_down
    add_product(t, element, rows * cols, rows * hidden, up);                  // dw_gate, dw_up
    add_product(t, element, rows * cols, up, rows * hidden);                  // dx of rows
}

// The experts in fp8: rows of x and a are quantised, scales are a 32nd of their bytes.
static void fp8_traffic(struct op_traffic *t, const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double element = (double)tsr_dtype_bytes(c->dtype), hidden = (double)n.hidden;
    const double rows = (double)n.rows, inner = (double)n.inter, cols = (double)n.cols;
    const double weights = (double)n.experts * touched(&n), scaled = 1 + 1.0 / 32;
    add_product(t, element, rows * hidden, 0, rows * hidden * scaled / element);
    add_product(t, element, (rows * scaled + weights * cols) * hidden / element, 0, rows * cols);
    add_product(t, element, rows * cols, 0, rows * inner * scaled / element);
    add_product(t, element, (rows * scaled + weights * hidden) * inner / element, 0, rows * hidden);
}

// The sum over the parts: each moves its own tensors once.
bool moe_traffic(const struct op_case *c, const char *variant, struct op_traffic *t) {
    (void)variant;
    const struct moe_sizes n = moe_sizes_of(c);
    const double element = (double)tsr_dtype_bytes(c->dtype), hidden = (double)n.hidden;
    const double rows = (double)n.rows, tokens = (double)n.tokens, experts = (double)n.experts;
    *t = (struct op_traffic){0};
    const double router = c->is_present[MIX_ROUTER] ? experts * hidden : 0;
    if (router > 0) { // logits in fp32, and backward both gradients
        const double logits = 4 * tokens * experts;
        add_product(t, element, tokens * hidden, router, 0);
        t->write_bytes += logits;
        if (moe_is_backward(c)) {
            add_product(t, element, tokens * hidden, 0, router);
            add_product(t, element, 0, router, tokens * hidden);
            t->read_bytes += 2 * logits;
        }
    }
    if (n.is_routed) add_product(t, 4, tokens * experts, 0, 2 * rows);
    add_product(t, 4, rows, 0, 3 * rows); // permutation
    if (moe_fp8_of(c) != FP8_NONE)
        fp8_traffic(t, c);
    else
        mlp_traffic(t, c, rows, (double)n.inter, (double)n.cols, experts * touched(&n));
    if (c->is_present[MIX_SHARED_W_UP])
        mlp_traffic(t, c, tokens, (double)n.shared, (double)n.shared_cols, 1);
    add_product(t, element, rows * hidden, 0, tokens * hidden); // the weighted sum
    return true;
}
