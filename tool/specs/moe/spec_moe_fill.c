// SPDX-License-Identifier: Apache-2.0
// Values of the layer's tensors. With a router x and router are multiples of 2^-4 within [-2, 2] and [-1, 1], so that every
// logit is exact in fp32 in any order of its sum, and the choice of experts does not depend on rounding. Weights are scaled
// so that their products are near 1, as in a network.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specs/moe/spec_moe.h"
#include "system/heap.h"

// Large cases are only measured, so any plausible values are good enough.
static bool is_large(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    return (double)n.hidden * (double)(n.rows + n.tokens) *
               (double)(n.inter + n.shared + n.experts) >
           2e7;
}

// Who goes where, of which a smaller case says nothing.
bool moe_is_drawn_whole(const struct op_case *c, int slot) {
    (void)c;
    return slot == MIX_ROUTER || slot == MIX_LOGITS_BIAS || slot == MIX_LOGITS || slot == MIX_IDS ||
           slot == MIX_WEIGHTS || (!moe_is_backward(c) && slot == MIX_CORRECTION_BIAS);
}

// ---- Who goes where ---------------------------------------------------------------------------

// The expert of choice k of a token. balanced: one after the other. skewed: each token chooses expert 0, with top_k 1 each
// second one, so that half of all choices are on it for top_k up to 2.
static int64_t planned_id(const struct moe_sizes *n, enum moe_routing routing, int64_t t,
                          int64_t k) {
    const int64_t at = t * n->top_k + k, rest = n->experts - 1;
    if (rest < 1) return 0;
    if (routing == ROUTING_BALANCED) return at % n->experts;
    if (k == 0 && (n->top_k > 1 || t % 2 == 0)) return 0;
    return 1 + (n->top_k > 1 ? t * (n->top_k - 1) + k - 1 : t) % rest;
}

// Different experts; those of a plan, or random ones.
static void draw_ids(struct rng *rng, const struct op_case *c, double *ids) {
    const struct moe_sizes n = moe_sizes_of(c);
    const enum moe_routing routing = (enum moe_routing)c->param[MIX_ROUTING];
    int64_t *order = heap_get((size_t)n.experts + 1, sizeof *order);
    for (int64_t e = 0; e < n.experts; e++) order[e] = e;
    for (int64_t t = 0; t < n.tokens; t++)
        for (int64_t k = 0; k < n.top_k; k++) {
            if (routing != ROUTING_RANDOM || k >= n.experts) {
                ids[t * n.top_k + k] = (double)planned_id(&n, routing, t, k);
                continue;
            }
            const int64_t other = rng_int(rng, k, n.experts - 1), id = order[other];
            order[other] = order[k];
            order[k] = id;
            ids[t * n.top_k + k] = (double)id;
        }
    free(order);
}

// Ids as a caller may give them: also -1, all of some tokens, and repeated ones. SPECIAL: all of one expert, or with a
// skewed routing of none.
static void draw_given_ids(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                           double *ids) {
    const struct moe_sizes n = moe_sizes_of(c);
    draw_ids(rng, c, ids);
    const double chosen = c->param[MIX_ROUTING] == ROUTING_SKEWED ? -1 : (double)(n.experts / 2);
    const bool is_even = c->param[MIX_ROUTING] == ROUTING_BALANCED && fill == FILL_NORMAL;
    for (int64_t t = 0; t < n.tokens && !is_even; t++) {
        const bool is_padding = rng_chance(rng, 0.1);
        for (int64_t k = 0; k < n.top_k; k++) {
            double *id = &ids[t * n.top_k + k];
            if (is_padding || rng_chance(rng, 0.1)) *id = -1;
            if (k > 0 && rng_chance(rng, 0.05)) *id = id[-1];
            if (fill == FILL_SPECIAL) *id = chosen;
        }
    }
}

// Logits whose best are a plan's, in its order; otherwise normal ones.
static void draw_logits(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                        double *logits) {
    const struct moe_sizes n = moe_sizes_of(c);
    const enum moe_routing routing = (enum moe_routing)c->param[MIX_ROUTING];
    for (int64_t i = 0; i < n.tokens * n.experts; i++)
        logits[i] = fill == FILL_ZERO ? 0 : fmin(fmax(rng_normal(rng), -3), 3);
    for (int64_t t = 0; t < n.tokens && routing != ROUTING_RANDOM && fill != FILL_ZERO; t++)
        for (int64_t k = 0; k < n.top_k; k++)
            logits[t * n.experts + planned_id(&n, routing, t, k)] =
                4 - (double)k / 16 + rng_uniform(rng) / 32;
    for (int64_t t = 0; t < n.tokens && fill == FILL_NAN; t++)
        if (rng_chance(rng, 0.1)) logits[t * n.experts] = (double)NAN;
}

// ---- What forward saved -----------------------------------------------------------------------

// The oracle fills all that forward saves when the ids are filled: earlier slots have their values. ids: as doubles.
static bool fill_saved(const struct op_case *c, double *ids) {
    const struct moe_sizes n = moe_sizes_of(c);
    int32_t *chosen = c->tensor[MIX_IDS].data;
    const struct moe_saved saved = {chosen, c->tensor[MIX_WEIGHTS].data, c->tensor[MIX_PREACT].data,
                                    c->tensor[MIX_SHARED_PREACT].data};
    if (!n.is_routed) { // ids and weights are drawn before
        for (int64_t i = 0; i < n.tokens * n.top_k; i++) chosen[i] = (int32_t)ids[i];
    }
    if (moe_oracle(c, &saved) != TSR_OK) return false;
    for (int64_t i = 0; i < n.tokens * n.top_k; i++) ids[i] = chosen[i];
    return true;
}

// Slots from MIX_IDS to MIX_SHARED_PREACT of backward. Where logits cannot decide in a small double case, ids are drawn:
// the gradient does not depend on their being the best.
static bool fill_for_backward(struct rng *rng, const struct op_case *c, int slot,
                              enum edge_fill fill, double *values) {
    const struct moe_sizes n = moe_sizes_of(c);
    const int64_t numel = case_numel(c, slot);
    const bool is_oracle = c->dtype == TSR_F64 && !is_large(c);
    if (slot == MIX_IDS) {
        if (!n.is_routed) draw_given_ids(rng, c, fill, values);
        if (n.is_routed && !is_oracle) draw_ids(rng, c, values);
        if (is_oracle && !n.is_routed) {
            double *weights = c->tensor[MIX_WEIGHTS].data;
            for (int64_t i = 0; i < n.tokens * n.top_k; i++)
                weights[i] = (double)(float)rng_normal(rng);
        }
        return !is_oracle || fill_saved(c, values);
    }
    if (is_oracle) return true; // it is there
    for (int64_t i = 0; i < numel; i++)
        values[i] = slot == MIX_WEIGHTS ? 1 / (double)(n.top_k + 1) : rng_normal(rng);
    return true;
}

// ---- The rest ---------------------------------------------------------------------------------

static double on_grid(struct rng *rng, int64_t most) {
    return 0x1p-4 * (double)rng_int(rng, -most, most);
}

// The logits' standard deviation is about 2.
static int64_t router_range(const struct moe_sizes *n) {
    const double most = floor(2 * 16 * 1.7 / (1.2 * sqrt((double)n->hidden + 1)));
    return most < 1 ? 1 : most > 16 ? 16 : (int64_t)most;
}

static double scale_of(const struct op_case *c, int slot, enum edge_fill fill) {
    const struct moe_sizes n = moe_sizes_of(c);
    const bool backward = moe_is_backward(c);
    if (slot >= MIX_W_GATE && slot <= MIX_W_DOWN && moe_fp8_of(c) != FP8_NONE) return 1;
    if (slot >= MIX_SHARED_W_GATE && slot <= MIX_SHARED_W_DOWN && moe_is_shared_fp8(c)) return 1;
    switch (slot) {
    case MIX_X: return fill == FILL_LARGE ? 8 : fill == FILL_ZERO ? 0 : 1;
    case MIX_W_GATE:
    case MIX_W_UP:
    case MIX_SHARED_W_GATE:
    case MIX_SHARED_W_UP:
    case MIX_SHARED_GATE: return 1 / sqrt((double)n.hidden + 1);
    case MIX_W_DOWN: return 1 / sqrt((double)n.inter + 1);
    case MIX_SHARED_W_DOWN: return 1 / sqrt((double)n.shared + 1);
    case MIX_B_DOWN: return 0.5;
    case MIX_DY: // and correction_bias
        return !backward ? 0.2 : fill == FILL_ZERO ? 0 : 1;
    case MIX_DBALANCE: // and b_gate
    case MIX_DZ:       // and b_up
        return 0.5;
    default: return 1;
    }
}

static void fill_x(struct rng *rng, const struct op_case *c, enum edge_fill fill, double *x) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double scale = scale_of(c, MIX_X, fill);
    for (int64_t i = 0; i < n.tokens * n.hidden; i++)
        x[i] =
            c->is_present[MIX_ROUTER] ? on_grid(rng, scale > 0 ? 32 : 0) : scale * rng_normal(rng);
    for (int64_t t = 0; t < n.tokens && fill == FILL_NAN && n.hidden > 0; t++)
        if (rng_chance(rng, 0.1)) x[t * n.hidden + rng_int(rng, 0, n.hidden - 1)] = (double)NAN;
}

bool moe_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
              double *values) {
    const struct moe_sizes n = moe_sizes_of(c);
    const bool backward = moe_is_backward(c);
    const int64_t numel = case_numel(c, slot);
    if (slot == MIX_X) {
        fill_x(rng, c, fill, values);
        return true;
    }
    if (slot == MIX_LOGITS) {
        draw_logits(rng, c, fill, values);
        return true;
    }
    if (backward && slot >= MIX_IDS && slot <= MIX_SHARED_PREACT)
        return fill_for_backward(rng, c, slot, fill, values);
    if (slot == MIX_IDS) {
        draw_given_ids(rng, c, fill, values);
        return true;
    }
    if (!backward && slot >= MIX_W_GATE_SCALE) {
        const double k = (double)(slot == MIX_W_DOWN_SCALE          ? n.inter
                                  : slot == MIX_SHARED_W_DOWN_SCALE ? n.shared
                                                                    : n.hidden);
        for (int64_t i = 0; i < numel; i++) // neighbours differ so much that another's scale shows
            values[i] = ldexp((0.5 + rng_uniform(rng)) / sqrt(k + 1), (int)(i % 4) - 2);
        return true;
    }
    const bool is_routing = slot == MIX_ROUTER || slot == MIX_LOGITS_BIAS;
    const int64_t range = slot == MIX_LOGITS_BIAS ? 16 : router_range(&n);
    const double scale = scale_of(c, slot, fill);
    for (int64_t i = 0; i < numel; i++)
        values[i] = is_routing ? on_grid(rng, range) : scale * rng_normal(rng);
    return true;
}
