// SPDX-License-Identifier: Apache-2.0
// The routing of a mixture of experts for verify, bench, apply and report.
#include <math.h>
#include <stdlib.h>

#include "specs/spec_moe_route.h"

enum { LOGITS, BIAS, IDS, WEIGHTS, COUNTS, PROBS, BALANCE, Z, VARIANCE, LSE, NAN_ROWS };

static const char *const scoring_names[] = {"softmax", "sigmoid", NULL};
static const char *const group_score_names[] = {"top2", "max", NULL};
static const char *const round_names[] = {"none", "f64", "f32", "bf16", "f16", NULL};

static const struct param_spec params[] = {
    MOE_ROUTE_SIZES(PARAM_SIZE, SOURCE_OPTION),
    {"scoring", "score of an expert", PARAM_CHOICE, 0, scoring_names},
    {"no_renormalize", "weights are not divided by their sum", PARAM_FLAG, 0, NULL},
    {"routed_scaling", "factor of the weights", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {"num_groups", "groups of experts; 0: one", PARAM_INT, 0, NULL, .least = INT32_MIN,
     .most = INT32_MAX},
    {"topk_groups", "groups that remain; 0: all", PARAM_INT, 0, NULL, .least = INT32_MIN,
     .most = INT32_MAX},
    {"group_score", "score of a group", PARAM_CHOICE, 0, group_score_names},
    {"round_weights", "dtype to which weights are rounded", PARAM_CHOICE, 0, round_names},
    {0},
};
enum { NUM_GROUPS = MOE_SCALING + 1, TOPK_GROUPS, GROUP_SCORE, ROUND_WEIGHTS };

static const struct slot_spec slots[] = {
    {"logits", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"correction_bias", SLOT_IN, SLOT_F32, true, NULL, false},
    {"topk_ids", SLOT_OUT, SLOT_I32, false, NULL, false},
    {"topk_weights", SLOT_OUT, SLOT_F32, false, NULL, false},
    {"tokens_per_expert", SLOT_OUT, SLOT_I32, true, NULL, false},
    {"mean_probs", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"load_balance_loss", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"z_loss", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"usage_variance", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"lse", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"num_nan_rows", SLOT_OUT, SLOT_I32, true, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const int64_t tokens = (int64_t)c->param[MOE_TOKENS], experts = (int64_t)c->param[MOE_EXPERTS];
    shape[0] = slot == BIAS || slot == COUNTS || slot == PROBS ? experts : tokens;
    if (slot == BALANCE || slot == Z || slot == VARIANCE || slot == NAN_ROWS) shape[0] = 1;
    shape[1] = slot == LOGITS ? experts : (int64_t)c->param[MOE_TOP_K];
    return slot == LOGITS || slot == IDS || slot == WEIGHTS ? 2 : 1;
}

static bool infer(struct op_case *c) {
    if (c->tensor[LOGITS].ndim != 2) return false;
    c->param[MOE_TOKENS] = (double)c->tensor[LOGITS].shape[0];
    c->param[MOE_EXPERTS] = (double)c->tensor[LOGITS].shape[1];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_route_forward_args args = TSR_MOE_ROUTE_FORWARD_ARGS(
            .flags = c->flags, .variant = variant, .workspace = workspace,
            .workspace_bytes = given_bytes, .logits = c->tensor[LOGITS],
            .correction_bias = c->tensor[BIAS], .topk_ids = c->tensor[IDS],
            .topk_weights = c->tensor[WEIGHTS], .tokens_per_expert = c->tensor[COUNTS],
            .mean_probs = c->tensor[PROBS], .load_balance_loss = c->tensor[BALANCE],
            .z_loss = c->tensor[Z], .usage_variance = c->tensor[VARIANCE], .lse = c->tensor[LSE],
            .num_nan_rows = c->tensor[NAN_ROWS], .scoring = (tsr_moe_scoring)c->param[MOE_SCORING],
            .no_renormalize = (int)c->param[MOE_RAW], .routed_scaling = moe_route_scaling(c),
            .has_routed_scaling = c->param[MOE_SCALING] != 1,
            .num_groups = (int)c->param[NUM_GROUPS], .topk_groups = (int)c->param[TOPK_GROUPS],
            .group_score = (tsr_moe_group_score)c->param[GROUP_SCORE],
            .round_weights = (tsr_dtype)c->param[ROUND_WEIGHTS]);
    return workspace_bytes != NULL ? tsr_moe_route_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_route_forward(ctx, &args);
}

// A comparison, and where scores of all experts are needed an exponential (10), a difference and an addition.
static double flops(const struct op_case *c) {
    const bool has_scores = c->param[MOE_RAW] != 0 || c->is_present[BIAS] || c->is_present[PROBS] ||
                            c->is_present[BALANCE] || c->is_present[LSE] || c->is_present[Z];
    return (has_scores ? 13 : 1) * c->param[MOE_TOKENS] * c->param[MOE_EXPERTS];
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    moe_route_randomize(rng, c);
    const int64_t experts = (int64_t)c->param[MOE_EXPERTS];
    if (rng_chance(rng, 0.4)) { // a divisor, and groups that hold top_k experts
        int64_t groups = rng_int(rng, 1, experts < 40 ? experts : 40);
        while (experts % groups != 0) groups--;
        const int64_t each = experts / groups, top_k = (int64_t)c->param[MOE_TOP_K];
        c->param[NUM_GROUPS] = (double)groups;
        c->param[TOPK_GROUPS] = (double)rng_int(rng, (top_k + each - 1) / each, groups);
        c->param[GROUP_SCORE] = (double)rng_int(rng, 0, 1);
    }
    if (rng_chance(rng, 0.3)) c->param[ROUND_WEIGHTS] = (double)rng_int(rng, 1, 4);
    c->is_present[BIAS] = rng_chance(rng, 0.4);
    for (int s = COUNTS; s <= NAN_ROWS; s++) c->is_present[s] = rng_chance(rng, 0.5);
}

// FILL_SPECIAL: logits of few values, some masked, so that many are equal. Biases are of the scores' size.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot == LOGITS && fill != FILL_SPECIAL) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        values[i] = slot == BIAS ? (fill == FILL_SPECIAL ? 0.25 * (double)rng_int(rng, -1, 1)
                                                         : 0.2 * rng_normal(rng))
                    : rng_chance(rng, 0.3) ? -INFINITY
                                           : (double)rng_int(rng, -2, 2);
    return true;
}

// ---- The bound in tessera/moe_route.h ---------------------------------------------------------------

static double weight_bound(const struct op_case *c, const struct moe_route_row *row, int32_t id,
                           double max, double sum) {
    const double top_k = c->param[MOE_TOP_K], *x = row->x;
    double factor = 12 + top_k, w = row->score[id], tiny = 0x1p-125;
    if (c->param[MOE_SCORING] != 0) {
        if (c->param[MOE_RAW] == 0) w /= sum, tiny /= sum;
    } else if (c->param[MOE_RAW] != 0) {
        factor = 20 + row->num / 32.0 + (w > 0 ? fabs(x[id] - row->max) : 0);
    } else {
        w = max == -INFINITY ? 0 : exp(x[id] - max) / sum;
        factor += w > 0 ? fabs(x[id] - max) : 0;
    }
    return moe_u32 * w * factor + tiny;
}

static void bound_weights(const struct op_case *c, const struct moe_route_row *row, int64_t t,
                          double *bound) {
    const int top_k = (int)c->param[MOE_TOP_K];
    const double scaling = fabs((double)(float)c->param[MOE_SCALING]);
    const double rounding = c->param[ROUND_WEIGHTS] == TSR_BF16  ? 0x1p-7
                            : c->param[ROUND_WEIGHTS] == TSR_F16 ? 0x1p-10
                                                                 : 0;
    const double *w = c->tensor[WEIGHTS].data;
    const int32_t *ids = (const int32_t *)c->tensor[IDS].data + t * top_k;
    double max = -INFINITY, sum = c->param[MOE_SCORING] != 0 ? 1e-20 : 0;
    for (int k = 0; k < top_k; k++) max = fmax(max, row->x[ids[k]]);
    for (int k = 0; k < top_k; k++)
        sum += c->param[MOE_SCORING] != 0 ? row->score[ids[k]]
               : max > -INFINITY          ? exp(row->x[ids[k]] - max)
                                          : 0;
    for (int k = 0; k < top_k; k++) {
        bound[k] = scaling * weight_bound(c, row, ids[k], max, sum);
        if (rounding > 0) // to the next number, in the worst case
            bound[k] +=
                rounding * (fabs(w[t * top_k + k]) + bound[k]) + 0x1p-24 * (rounding < 0x1p-9);
    }
}

// The error of P[t, e].
static double prob_bound(const struct op_case *c, const struct moe_route_row *row, int e) {
    if (c->param[MOE_SCORING] != 0)
        return moe_u32 * row->prob[e] * (12 + row->num / 32.0) + 0x1p-125 / row->normaliser;
    const double p = row->prob[e];
    return moe_u32 * p * (20 + row->num / 32.0 + (p > 0 ? fabs(row->x[e] - row->max) : 0)) +
           0x1p-125;
}

static void bound_sums(const struct op_case *c, int slot, double *bound) {
    const int64_t tokens = (int64_t)c->param[MOE_TOKENS];
    const int experts = (int)c->param[MOE_EXPERTS], top_k = (int)c->param[MOE_TOP_K];
    const int32_t *ids = c->tensor[IDS].data;
    const double *value = c->tensor[slot].data, e_lse = moe_u32 * (16 + experts / 32.0);
    double of_prob[MOE_MOST_EXPERTS] = {0}, f[MOE_MOST_EXPERTS] = {0}, of_z = 0;
    struct moe_route_row row;
    for (int64_t t = 0; t < tokens; t++) {
        moe_route_read(c, t, &row);
        for (int e = 0; e < experts; e++) of_prob[e] += prob_bound(c, &row, e) / (double)tokens;
        for (int k = 0; k < top_k; k++) f[ids[t * top_k + k]] += 1 / ((double)tokens * top_k);
        if (row.lse != -INFINITY) of_z += e_lse * (2 * fabs(row.lse) + e_lse) / (double)tokens;
    }
    double of_balance = 0;
    for (int e = 0; e < experts; e++) of_balance += experts * f[e] * of_prob[e];
    if (slot == PROBS)
        for (int e = 0; e < experts; e++) bound[e] = of_prob[e];
    else
        bound[0] = slot == BALANCE ? of_balance + 0x1p-22 * value[0]
                   : slot == Z     ? of_z
                                   : 0x1p-40 * value[0];
}

static void bound(const struct op_case *c, int slot, double *bound) {
    struct moe_route_row row;
    for (int64_t i = 0; i < case_numel(c, slot); i++) bound[i] = 0;
    if (slot == PROBS || slot == BALANCE || slot == Z || slot == VARIANCE)
        bound_sums(c, slot, bound);
    for (int64_t t = 0; t < (int64_t)c->param[MOE_TOKENS]; t++) {
        if (slot == LSE) bound[t] = moe_u32 * (16 + c->param[MOE_EXPERTS] / 32);
        if (slot != WEIGHTS) continue;
        moe_route_read(c, t, &row);
        bound_weights(c, &row, t, bound + t * (int64_t)c->param[MOE_TOP_K]);
    }
}

#define ALL                                                                                        \
    " +tokens_per_expert +mean_probs +load_balance_loss +z_loss +usage_variance +lse "             \
    "+num_nan_rows"

static const struct edge_case edges[] = {
    {"no tokens", "tokens=0 num_experts=8 top_k=2" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"one expert", "tokens=9 num_experts=1 top_k=1" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"every expert", "tokens=9 num_experts=8 top_k=8" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"every expert of 32", "tokens=9 num_experts=32 top_k=32 scoring=sigmoid" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"Mixtral", "tokens=100 num_experts=8 top_k=2" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"Qwen3", "tokens=60 num_experts=128 top_k=8 round_weights=bf16" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"DeepSeek-V2",
     "tokens=40 num_experts=160 top_k=6 no_renormalize=1 routed_scaling=16 num_groups=8 "
     "topk_groups=3 group_score=max",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"DeepSeek-V3",
     "tokens=40 num_experts=256 top_k=8 scoring=sigmoid routed_scaling=2.5 num_groups=8 "
     "topk_groups=4 +correction_bias" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"Llama 4", "tokens=40 num_experts=128 top_k=1 scoring=sigmoid no_renormalize=1", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"bias beside softmax", "tokens=40 num_experts=64 top_k=6 +correction_bias" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"1024 experts", "tokens=5 num_experts=1024 top_k=32 no_renormalize=1" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"1024 experts in groups",
     "tokens=3 num_experts=1024 top_k=9 scoring=sigmoid num_groups=512 topk_groups=70" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"257 experts", "tokens=5 num_experts=257 top_k=10" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"groups of one", "tokens=9 num_experts=24 top_k=3 num_groups=24 topk_groups=5", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"equal logits, some masked", "tokens=200 num_experts=40 top_k=6" ALL, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"the same by sigmoid with biases",
     "tokens=200 num_experts=40 top_k=6 scoring=sigmoid +correction_bias" ALL, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"the same in groups",
     "tokens=200 num_experts=12 top_k=4 num_groups=4 topk_groups=2 no_renormalize=1" ALL,
     FILL_SPECIAL, LAYOUT_RANDOM},
    {"the same by sigmoid in groups",
     "tokens=200 num_experts=12 top_k=4 scoring=sigmoid num_groups=4 topk_groups=2 "
     "+correction_bias",
     FILL_SPECIAL, LAYOUT_RANDOM},
    {"zeros", "tokens=20 num_experts=60 top_k=4" ALL, FILL_ZERO, LAYOUT_RANDOM},
    {"large logits", "tokens=20 num_experts=60 top_k=4 no_renormalize=1" ALL, FILL_LARGE,
     LAYOUT_RANDOM},
    {"large logits by sigmoid", "tokens=20 num_experts=60 top_k=4 scoring=sigmoid" ALL, FILL_LARGE,
     LAYOUT_RANDOM},
    {"huge logits", "tokens=20 num_experts=60 top_k=4" ALL, FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "tokens=40 num_experts=60 top_k=4" ALL, FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite logits by sigmoid", "tokens=40 num_experts=60 top_k=4 scoring=sigmoid" ALL,
     FILL_INFINITE, LAYOUT_RANDOM},
    {"masked tokens", "tokens=40 num_experts=60 top_k=4" ALL, FILL_NEGATIVE_INFINITE,
     LAYOUT_RANDOM},
    {"masked tokens by sigmoid",
     "tokens=40 num_experts=60 top_k=4 scoring=sigmoid +correction_bias" ALL,
     FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN in some tokens", "tokens=40 num_experts=60 top_k=4" ALL, FILL_NAN, LAYOUT_RANDOM},
    {"NaN in some tokens by sigmoid", "tokens=40 num_experts=60 top_k=4 scoring=sigmoid" ALL,
     FILL_NAN, LAYOUT_RANDOM},
    {"huge common logit", "tokens=20 num_experts=60 top_k=4" ALL, FILL_SHIFTED, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 num_experts=33 top_k=3", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "tokens=17 num_experts=65 top_k=3" ALL, FILL_NORMAL, LAYOUT_REPEATED},
    {"many tokens", "tokens=3000 num_experts=16 top_k=2" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {0},
};

static const char *const standard[] = {
    "tokens=32768 num_experts=128 top_k=8",
    "tokens=32768 num_experts=128 top_k=8 +tokens_per_expert +load_balance_loss +z_loss",
    "tokens=4096 num_experts=8 top_k=2",
    "tokens=32768 num_experts=256 top_k=8 scoring=sigmoid routed_scaling=2.5 num_groups=8 "
    "topk_groups=4 +correction_bias",
    "tokens=64 num_experts=128 top_k=8",
    NULL};

const struct op_spec moe_route_forward_spec = {
    .op = "moe_route_forward",
    .command = "moe-route",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .call = call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
