// SPDX-License-Identifier: Apache-2.0
// Random and edge cases of the mixture-of-experts layer. NAN: in some tokens. LARGE: pre-activations of some tens. ZERO: x,
// logits and dy are 0. SPECIAL: ids of which all go to one expert, or to none.
#include <math.h>

#include "specs/moe/spec_moe.h"

static double cost_of(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    return (double)n.hidden *
           (3 * (double)n.rows * (double)n.inter + 3 * (double)n.tokens * (double)n.shared +
            (double)n.tokens * (double)n.experts + (double)n.experts * (double)n.inter);
}

static void draw_sizes(struct rng *rng, struct op_case *c) {
    double *p = c->param;
    const int64_t experts = rng_chance(rng, 0.1) ? rng_int(rng, 1, 200) : rng_int(rng, 1, 12);
    const int64_t most = experts < 8 ? experts : 8;
    p[MIX_TOKENS] = rng_chance(rng, 0.05) ? (double)rng_int(rng, 0, 1) : (double)rng_dim(rng, 100);
    p[MIX_HIDDEN] = (double)rng_dim(rng, rng_chance(rng, 0.1) ? 512 : 100);
    p[MIX_INTERMEDIATE] = (double)rng_dim(rng, 100);
    p[MIX_EXPERTS] = (double)experts;
    p[MIX_TOP_K] = (double)rng_int(rng, 1, rng_chance(rng, 0.6) ? (most + 1) / 2 : most);
    p[MIX_SHARED_INTERMEDIATE] = rng_chance(rng, 0.3) ? (double)rng_dim(rng, 60) : 0;
}

// The rules between groups: a divisor, and remaining groups that hold top_k experts.
static void draw_groups(struct rng *rng, struct op_case *c) {
    const int64_t experts = (int64_t)c->param[MIX_EXPERTS], top_k = (int64_t)c->param[MIX_TOP_K];
    int64_t groups = rng_int(rng, 1, experts < 16 ? experts : 16);
    while (experts % groups != 0) groups--;
    const int64_t each = experts / groups;
    c->param[MIX_NUM_GROUPS] = (double)groups;
    c->param[MIX_TOPK_GROUPS] = (double)rng_int(rng, (top_k + each - 1) / each, groups);
    c->param[MIX_GROUP_SCORE] = (double)rng_int(rng, 0, 1);
}

static void draw_source(struct rng *rng, struct op_case *c, double most) {
    double *p = c->param;
    bool *is = c->is_present;
    const int source = (int)rng_int(rng, 0, 3);
    if (source == 0) {
        is[MIX_IDS] = is[MIX_WEIGHTS] = true;
        if (rng_chance(rng, 0.3)) p[MIX_TOP_K] = (double)rng_int(rng, 1, 10); // more than experts
        if (cost_of(c) > most) p[MIX_TOP_K] = 1;
        return;
    }
    is[source == 1 ? MIX_LOGITS : MIX_ROUTER] = true;
    is[MIX_LOGITS_BIAS] = source != 1 && rng_chance(rng, 0.3);
    p[MIX_SCORING] = (double)rng_int(rng, 0, 1);
    p[MIX_NO_RENORMALIZE] = rng_chance(rng, 0.4);
    if (rng_chance(rng, 0.4)) p[MIX_ROUTED_SCALING] = (double)(float)rng_normal(rng);
    if (rng_chance(rng, 0.3)) draw_groups(rng, c);
    if (rng_chance(rng, 0.2)) p[MIX_ROUND_WEIGHTS] = (double)rng_int(rng, 1, 4);
}

static void draw_gradients(struct rng *rng, struct op_case *c) {
    bool *is = c->is_present;
    const bool is_routed = is[MIX_ROUTER] || is[MIX_LOGITS], is_gated = is[MIX_W_GATE];
    is[MIX_SHARED_PREACT] = is[MIX_SHARED_W_UP];
    is[MIX_DBALANCE] = is_routed && rng_chance(rng, 0.5);
    is[MIX_DZ] = is_routed && rng_chance(rng, 0.5);
    for (int s = MIX_DX; s <= MIX_DSHARED_GATE; s++) is[s] = rng_chance(rng, 0.7);
    is[MIX_DROUTER] &= is[MIX_ROUTER];
    is[MIX_DLOGITS_BIAS] &= is[MIX_LOGITS_BIAS];
    is[MIX_DLOGITS] &= is[MIX_LOGITS];
    is[MIX_DWEIGHTS] &= !is_routed;
    is[MIX_DW_GATE] &= is_gated;
    is[MIX_DB_GATE] &= is_gated;
    is[MIX_DSHARED_W_GATE] &= is[MIX_SHARED_W_GATE];
    is[MIX_DSHARED_W_UP] &= is[MIX_SHARED_W_UP];
    is[MIX_DSHARED_W_DOWN] &= is[MIX_SHARED_W_UP];
    is[MIX_DSHARED_GATE] &= is[MIX_SHARED_GATE];
    c->param[MIX_ACCUMULATE] = rng_chance(rng, 0.3);
}

static void draw_tensors(struct rng *rng, struct op_case *c) {
    bool *is = c->is_present;
    const bool is_routed = is[MIX_ROUTER] || is[MIX_LOGITS];
    const bool is_gated = is[MIX_W_GATE] = rng_chance(rng, 0.65);
    is[MIX_B_DOWN] = rng_chance(rng, 0.4);
    is[MIX_SHARED_W_UP] = is[MIX_SHARED_W_DOWN] = c->param[MIX_SHARED_INTERMEDIATE] > 0;
    is[MIX_SHARED_W_GATE] = is[MIX_SHARED_W_UP] && is_gated;
    is[MIX_SHARED_GATE] = is[MIX_SHARED_W_UP] && rng_chance(rng, 0.6);
    if (moe_is_backward(c)) {
        draw_gradients(rng, c);
        return;
    }
    if (rng_chance(rng, 0.25)) {
        c->param[MIX_FP8] = (double)rng_int(rng, FP8_EXPERTS, FP8_BLOCKS);
        is[MIX_W_UP_SCALE] = is[MIX_W_DOWN_SCALE] = true;
        is[MIX_W_GATE_SCALE] = is_gated;
    }
    if (is[MIX_SHARED_W_UP] && rng_chance(rng, 0.3)) {
        c->param[MIX_SHARED_FP8] = 1;
        is[MIX_SHARED_W_UP_SCALE] = is[MIX_SHARED_W_DOWN_SCALE] = true;
        is[MIX_SHARED_W_GATE_SCALE] = is_gated;
    }
    is[MIX_PREACT] = rng_chance(rng, 0.5);
    is[MIX_SHARED_PREACT] = is[MIX_SHARED_W_UP] && is[MIX_PREACT];
    is[MIX_B_GATE] = is_gated && rng_chance(rng, 0.4);
    is[MIX_B_UP] = rng_chance(rng, 0.4);
    is[MIX_RESIDUAL] = rng_chance(rng, 0.4);
    is[MIX_CORRECTION_BIAS] = is_routed && rng_chance(rng, 0.3);
    for (int s = MIX_OFFSETS; s <= MIX_DROPPED; s++) {
        const bool is_of_routing = s >= MIX_MEAN_PROBS && s <= MIX_NAN_ROWS;
        is[s] = (is_routed || !is_of_routing) && rng_chance(rng, 0.4);
    }
    if (is_routed) {
        is[MIX_IDS] = rng_chance(rng, 0.5);
        is[MIX_WEIGHTS] = rng_chance(rng, 0.5);
    }
}

void moe_randomize(struct rng *rng, struct op_case *c) {
    double *p = c->param;
    const double most = moe_is_backward(c) ? 1.5e5 : 3e5; // products, because the oracle is slow
    do draw_sizes(rng, c);
    while (cost_of(c) > most);
    draw_source(rng, c, most);
    draw_tensors(rng, c);
    p[MIX_ACTIVATION] =
        rng_chance(rng, 0.3) ? 0 : (double)rng_int(rng, 1, TSR_ACTIVATION_COUNT - 1);
    if (p[MIX_ACTIVATION] == TSR_ACTIVATION_SWIGLU_CLAMPED && !c->is_present[MIX_W_GATE])
        p[MIX_ACTIVATION] = TSR_ACTIVATION_RELU2;
    p[MIX_ON_INPUT] = rng_chance(rng, 0.25);
    if (rng_chance(rng, 0.15)) p[MIX_CAPACITY] = (double)rng_int(rng, 1, 20);
    if (p[MIX_CAPACITY] == 0 && rng_chance(rng, 0.15))
        p[MIX_CAPACITY_FACTOR] = rng_chance(rng, 0.5) ? 1 : 0.25 + 1.5 * rng_uniform(rng);
    p[MIX_ROUTING] = rng_chance(rng, 0.6) ? ROUTING_RANDOM : (double)rng_int(rng, 1, 2);
}

// ---- Edge cases -------------------------------------------------------------------------------

#define SMALL "tokens=37 hidden=24 intermediate=20 experts=6 top_k=2 "
#define WIDE "tokens=160 hidden=16 intermediate=608 experts=2 top_k=2 " // rows are copied on Hopper
#define ROUTED " +router +w_gate"
#define FP8 "tokens=21 hidden=150 intermediate=140 experts=5 top_k=2 "
#define FP8_TILES "tokens=200 hidden=144 intermediate=272 experts=4 top_k=2 "
#define SCALED "+w_gate_scale +w_up_scale +w_down_scale"
#define SHARED_SCALED "+shared_w_gate_scale +shared_w_up_scale +shared_w_down_scale "
#define SAVED " +preact +topk_ids +topk_weights"
#define SHARED "shared_intermediate=17 +shared_w_gate +shared_w_up +shared_w_down "
#define LOSSES                                                                                     \
    " +tokens_per_expert +mean_probs +load_balance_loss +z_loss +usage_variance +num_nan_rows"
#define PLACES " +offsets +num_dropped"
#define IDS " +topk_ids +topk_weights"
#define EDGE(name, params)                                                                         \
    { name, params, FILL_NORMAL, LAYOUT_RANDOM }

const struct edge_case moe_forward_edges[] = {
    EDGE("no tokens",
         "tokens=0 hidden=24 intermediate=20 experts=6 top_k=2" ROUTED SAVED LOSSES PLACES),
    EDGE("no tokens, ids", "tokens=0 hidden=24 intermediate=20 experts=6 top_k=2" IDS PLACES),
    EDGE("one token", "tokens=1 hidden=24 intermediate=20 experts=6 top_k=2" ROUTED SAVED),
    EDGE("one of each", "tokens=1 hidden=1 intermediate=1 experts=1 top_k=1" ROUTED SAVED LOSSES),
    EDGE("no columns",
         "tokens=5 hidden=0 intermediate=7 experts=3 top_k=2 +router +b_up +b_down" SAVED),
    EDGE("nothing inside",
         "tokens=5 hidden=9 intermediate=0 experts=3 top_k=2 +b_down" ROUTED SAVED),
    EDGE("Mixtral", SMALL ROUTED SAVED LOSSES PLACES),
    EDGE("Mixtral, nothing saved", SMALL ROUTED),
    EDGE("without a gate", SMALL "+router +b_up +b_down" SAVED),
    EDGE("without a gate, nothing saved", SMALL "+router +b_up +b_down"),
    EDGE("gpt-oss", SMALL "activation=swiglu_clamped +logits_bias +b_gate +b_up +b_down" ROUTED),
    EDGE("gpt-oss, saved",
         SMALL "activation=swiglu_clamped +logits_bias +b_gate +b_up +b_down" ROUTED SAVED),
    EDGE(
        "DeepSeek-V3",
        "tokens=40 hidden=16 intermediate=12 experts=32 top_k=4 scoring=sigmoid routed_scaling=2.5 "
        "num_groups=8 topk_groups=3 +correction_bias " SHARED ROUTED SAVED LOSSES),
    EDGE(
        "DeepSeek-V2",
        "tokens=20 hidden=16 intermediate=12 experts=40 top_k=6 no_renormalize=1 routed_scaling=16 "
        "num_groups=8 topk_groups=3 group_score=max " SHARED ROUTED),
    EDGE("Qwen2-MoE",
         SMALL "no_renormalize=1 round_weights=bf16 +shared_gate " SHARED ROUTED SAVED),
    EDGE("Llama 4", "tokens=37 hidden=24 intermediate=20 experts=6 top_k=1 scoring=sigmoid "
                    "no_renormalize=1 weights_on_input=1 " SHARED ROUTED SAVED),
    EDGE("capacity", SMALL "capacity=5" ROUTED SAVED LOSSES PLACES),
    EDGE("capacity of one, weights on the input",
         SMALL "capacity=1 weights_on_input=1 routing=skewed +logits +w_gate" SAVED PLACES),
    EDGE("half of the assignments on one expert", SMALL "routing=skewed +logits +w_gate" SAVED),
    EDGE("every expert the same", "tokens=36 hidden=24 intermediate=20 experts=6 top_k=2 "
                                  "routing=balanced +logits +w_gate" SAVED),
    EDGE("relu2, residual", SMALL "activation=relu2 +router +residual" SAVED),
    EDGE("ids, some -1, some repeated", SMALL "+w_gate +preact" IDS PLACES),
    EDGE("more ids than experts",
         "tokens=9 hidden=8 intermediate=10 experts=2 top_k=12 +w_gate +preact" IDS PLACES),
    {"all on one expert", SMALL "+w_gate +preact" IDS PLACES, FILL_SPECIAL, LAYOUT_RANDOM},
    {"no expert at all", SMALL "routing=skewed +w_gate +preact +residual" IDS PLACES, FILL_SPECIAL,
     LAYOUT_RANDOM},
    EDGE("more experts than tokens",
         "tokens=3 hidden=16 intermediate=10 experts=200 top_k=4" ROUTED SAVED),
    {"rows that follow one another", SMALL "+b_down" ROUTED SAVED, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"multiples of 8", "tokens=128 hidden=64 intermediate=32 experts=4 top_k=2" ROUTED SAVED,
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    EDGE("wide", WIDE ROUTED SAVED),
    EDGE("fp8, DeepSeek-V3", FP8 "scoring=sigmoid fp8=blocks " SHARED SCALED ROUTED),
    EDGE("fp8, DeepSeek-V3, the shared expert too",
         FP8 "scoring=sigmoid fp8=blocks shared_fp8=1 " SHARED SHARED_SCALED SCALED ROUTED),
    EDGE("fp8, the shared expert alone, saved",
         FP8 "shared_fp8=1 +shared_gate " SHARED SHARED_SCALED ROUTED SAVED " +shared_preact"),
    EDGE("fp8, scales of experts, saved", FP8 "fp8=experts " SCALED ROUTED SAVED),
    EDGE("fp8, gpt-oss",
         FP8 "fp8=blocks activation=swiglu_clamped +b_gate +b_up +b_down " SCALED ROUTED),
    EDGE("fp8, Llama 4", FP8 "fp8=experts weights_on_input=1 " SHARED SCALED ROUTED),
    EDGE("fp8, without a gate", FP8 "fp8=blocks +router +w_up_scale +w_down_scale"),
    EDGE("fp8, no tokens",
         "tokens=0 hidden=24 intermediate=20 experts=6 top_k=2 fp8=blocks " SCALED ROUTED SAVED),
    EDGE("fp8, some ids -1, capacity", FP8 "fp8=blocks capacity=9 +w_gate " SCALED IDS),
    {"fp8, joined by tiles",
     "tokens=90 hidden=144 intermediate=128 experts=3 top_k=2 fp8=blocks " SCALED ROUTED,
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"fp8, many tiles", FP8_TILES "fp8=blocks " SCALED ROUTED, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"fp8, many tiles, scales of experts", FP8_TILES "fp8=experts +b_down " SCALED ROUTED SAVED,
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"fp8, NaN in some tokens", FP8 "fp8=blocks " SCALED ROUTED, FILL_NAN, LAYOUT_RANDOM},
    EDGE("wide, nothing saved", WIDE "capacity=100" ROUTED),
    {"equal tokens", SMALL "+b_up" ROUTED SAVED, FILL_ZERO, LAYOUT_RANDOM},
    {"large pre-activations", SMALL "+logits +w_gate" SAVED, FILL_LARGE, LAYOUT_RANDOM},
    {"NaN in some tokens", SMALL ROUTED SAVED LOSSES, FILL_NAN, LAYOUT_RANDOM},
    {"NaN in some tokens, ids", SMALL "+w_gate" IDS, FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", SMALL ROUTED SAVED, FILL_NORMAL, LAYOUT_FAR},
    {"one token for all", SMALL ROUTED, FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

#define GRADIENTS " +dx +dw_up +dw_down +db_up +db_down"
#define GATED GRADIENTS " +w_gate +dw_gate +db_gate"
#define ROUTER_GRADIENTS " +router +drouter"
#define LOSS_GRADIENTS " +dload_balance_loss +dz_loss"
#define SHARED_GRADIENTS "+shared_preact +dshared_w_gate +dshared_w_up +dshared_w_down " SHARED

const struct edge_case moe_backward_edges[] = {
    EDGE("no tokens", "tokens=0 hidden=24 intermediate=20 experts=6 top_k=2" GATED ROUTER_GRADIENTS
                          LOSS_GRADIENTS),
    EDGE("no tokens, accumulate",
         "tokens=0 hidden=24 intermediate=20 experts=6 top_k=2 accumulate=1" GATED),
    EDGE("one token",
         "tokens=1 hidden=24 intermediate=20 experts=6 top_k=2" GATED ROUTER_GRADIENTS),
    EDGE("one of each",
         "tokens=1 hidden=1 intermediate=1 experts=1 top_k=1" GATED ROUTER_GRADIENTS),
    EDGE("no columns",
         "tokens=5 hidden=0 intermediate=7 experts=3 top_k=2 +b_down" GRADIENTS ROUTER_GRADIENTS),
    EDGE("nothing inside",
         "tokens=5 hidden=9 intermediate=0 experts=3 top_k=2 +b_down" GATED ROUTER_GRADIENTS),
    EDGE("nothing wanted", SMALL ROUTED),
    EDGE("the router alone",
         SMALL "+b_down +logits_bias +dlogits_bias +w_gate" ROUTER_GRADIENTS LOSS_GRADIENTS),
    EDGE("dx alone", SMALL "+dx" ROUTED),
    EDGE("one bias alone", SMALL "+db_down" ROUTED),
    EDGE("Mixtral", SMALL "+b_down" GATED ROUTER_GRADIENTS LOSS_GRADIENTS),
    EDGE("without a gate", SMALL "+b_down" GRADIENTS ROUTER_GRADIENTS),
    EDGE("gpt-oss", SMALL
         "activation=swiglu_clamped +logits_bias +dlogits_bias +b_down" GATED ROUTER_GRADIENTS),
    EDGE(
        "DeepSeek-V3",
        "tokens=40 hidden=16 intermediate=12 experts=32 top_k=4 scoring=sigmoid routed_scaling=2.5 "
        "num_groups=8 topk_groups=3 " SHARED_GRADIENTS GATED ROUTER_GRADIENTS LOSS_GRADIENTS),
    EDGE("Qwen2-MoE", SMALL "no_renormalize=1 +shared_gate +dshared_gate " SHARED_GRADIENTS GATED
                          ROUTER_GRADIENTS LOSS_GRADIENTS),
    EDGE("Llama 4",
         "tokens=37 hidden=24 intermediate=20 experts=6 top_k=1 scoring=sigmoid "
         "no_renormalize=1 weights_on_input=1 +b_down " SHARED_GRADIENTS GATED ROUTER_GRADIENTS),
    EDGE("accumulate", SMALL "accumulate=1" GATED ROUTER_GRADIENTS),
    EDGE("capacity", SMALL "capacity=5 +b_down" GATED ROUTER_GRADIENTS LOSS_GRADIENTS),
    EDGE("logits", SMALL "routing=skewed capacity_factor=1 +logits +dlogits" GATED LOSS_GRADIENTS),
    EDGE("ids, some -1, some repeated", SMALL "+b_down +dtopk_weights" GATED),
    EDGE("ids, weights on the input", SMALL "weights_on_input=1 +b_down +dtopk_weights" GATED),
    {"all on one expert", SMALL "+b_down +dtopk_weights" GATED, FILL_SPECIAL, LAYOUT_RANDOM},
    {"no expert at all", SMALL "routing=skewed +b_down +dtopk_weights" GATED, FILL_SPECIAL,
     LAYOUT_RANDOM},
    EDGE("more experts than tokens",
         "tokens=3 hidden=16 intermediate=10 experts=200 top_k=4" GATED ROUTER_GRADIENTS),
    {"rows that follow one another", SMALL "+b_down" GATED ROUTER_GRADIENTS, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"multiples of 8",
     "tokens=128 hidden=64 intermediate=32 experts=4 top_k=2" GATED ROUTER_GRADIENTS, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    EDGE("wide", WIDE "capacity=100 +b_down" GATED ROUTER_GRADIENTS),
    {"no gradient arrives", SMALL "+b_down" GATED ROUTER_GRADIENTS, FILL_ZERO, LAYOUT_RANDOM},
    {"large pre-activations", SMALL "+logits +dlogits" GATED, FILL_LARGE, LAYOUT_RANDOM},
    {"NaN in some tokens", SMALL GATED ROUTER_GRADIENTS LOSS_GRADIENTS, FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", SMALL GATED ROUTER_GRADIENTS, FILL_NORMAL, LAYOUT_FAR},
    {0},
};
