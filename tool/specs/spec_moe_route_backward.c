// SPDX-License-Identifier: Apache-2.0
// The gradient of the routing of a mixture of experts for verify, bench, apply and report.
#include <math.h>

#include "specs/spec_moe_route.h"

enum { LOGITS, IDS, DWEIGHTS, COUNTS, DBALANCE, DZ, DLOGITS };

// ---- Shared with forward ----------------------------------------------------------------------

void moe_route_read(const struct op_case *c, int64_t token, struct moe_route_row *row) {
    const bool is_sigmoid = c->param[MOE_SCORING] != 0;
    row->num = (int)c->param[MOE_EXPERTS];
    row->x = (const double *)c->tensor[LOGITS].data + token * row->num;
    row->max = -INFINITY;
    row->normaliser = is_sigmoid ? 1e-20 : 1;
    double sum = 0;
    for (int e = 0; e < row->num; e++) row->max = fmax(row->max, row->x[e]);
    const bool is_masked = row->max == -INFINITY;
    for (int e = 0; e < row->num && !is_masked; e++) sum += exp(row->x[e] - row->max);
    row->lse = is_masked ? row->max : row->max + log(sum);
    for (int e = 0; e < row->num; e++) {
        const double x = row->x[e];
        row->softmax[e] = is_masked ? 0 : exp(x - row->max) / sum;
        row->score[e] = is_sigmoid ? 1 / (1 + exp(-x)) : row->softmax[e];
        if (is_sigmoid) row->normaliser += row->score[e];
    }
    for (int e = 0; e < row->num; e++) row->prob[e] = row->score[e] / row->normaliser;
}

void moe_route_randomize(struct rng *rng, struct op_case *c) {
    const int64_t experts = rng_int(rng, 1, rng_chance(rng, 0.2) ? MOE_MOST_EXPERTS : 140);
    const int64_t most = experts < MOE_MOST_TOP_K ? experts : MOE_MOST_TOP_K;
    c->param[MOE_EXPERTS] = (double)experts;
    c->param[MOE_TOP_K] = (double)rng_int(rng, 1, rng_chance(rng, 0.5) ? most : (most + 3) / 4);
    c->param[MOE_TOKENS] = (double)rng_dim(rng, experts > 200 ? 20 : 90);
    c->param[MOE_SCORING] = (double)rng_int(rng, 0, 1);
    c->param[MOE_RAW] = rng_chance(rng, 0.4);
    c->param[MOE_SCALING] = rng_chance(rng, 0.5) ? 1 : (double)(float)rng_normal(rng);
}

// ---- The pass: logits, topk_ids, dtopk_weights, [losses] -> dlogits ----------------------------

static const char *const scoring_names[] = {"softmax", "sigmoid", NULL};

static const struct param_spec params[] = {
    MOE_ROUTE_SIZES(PARAM_SIZE, SOURCE_BY_KIND),
    {"scoring", "score of an expert", PARAM_CHOICE, 0, scoring_names},
    {"no_renormalize", "weights are not divided by their sum", PARAM_FLAG, 0, NULL},
    {"routed_scaling", "factor of the weights", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {0},
};

static const struct slot_spec slots[] = {
    {"logits", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"topk_ids", SLOT_IN, SLOT_I32, false, NULL, false},
    {"dtopk_weights", SLOT_IN, SLOT_F32, false, NULL, false},
    {"tokens_per_expert", SLOT_IN, SLOT_I32, true, NULL, false},
    {"dload_balance_loss", SLOT_IN, SLOT_F32, true, NULL, false},
    {"dz_loss", SLOT_IN, SLOT_F32, true, NULL, false},
    {"dlogits", SLOT_OUT, SLOT_MAIN, false, NULL, false, "logits"},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = (int64_t)(slot == COUNTS ? c->param[MOE_EXPERTS] : c->param[MOE_TOKENS]);
    if (slot == DBALANCE || slot == DZ) shape[0] = 1;
    shape[1] = (int64_t)c->param[slot == LOGITS || slot == DLOGITS ? MOE_EXPERTS : MOE_TOP_K];
    return slot == COUNTS || slot == DBALANCE || slot == DZ ? 1 : 2;
}

static bool infer(struct op_case *c) {
    if (c->tensor[LOGITS].ndim != 2 || c->tensor[IDS].ndim != 2) return false;
    c->param[MOE_TOKENS] = (double)c->tensor[LOGITS].shape[0];
    c->param[MOE_EXPERTS] = (double)c->tensor[LOGITS].shape[1];
    c->param[MOE_TOP_K] = (double)c->tensor[IDS].shape[1];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_route_backward_args args =
        TSR_MOE_ROUTE_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                    .workspace_bytes = given_bytes, .logits = c->tensor[LOGITS],
                                    .topk_ids = c->tensor[IDS],
                                    .dtopk_weights = c->tensor[DWEIGHTS],
                                    .tokens_per_expert = c->tensor[COUNTS],
                                    .dload_balance_loss = c->tensor[DBALANCE],
                                    .dz_loss = c->tensor[DZ], .dlogits = c->tensor[DLOGITS],
                                    .scoring = (tsr_moe_scoring)c->param[MOE_SCORING],
                                    .no_renormalize = (int)c->param[MOE_RAW],
                                    .routed_scaling = moe_route_scaling(c),
                                    .has_routed_scaling = c->param[MOE_SCALING] != 1);
    return workspace_bytes != NULL ? tsr_moe_route_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_route_backward(ctx, &args);
}

// With losses or raw softmax weights an exponential (10), a difference and two products an expert.
static double flops(const struct op_case *c) {
    const bool is_dense = c->is_present[DBALANCE] || c->is_present[DZ] ||
                          (c->param[MOE_RAW] != 0 && c->param[MOE_SCORING] == 0);
    return (is_dense ? 13 * c->param[MOE_EXPERTS] : 13 * c->param[MOE_TOP_K]) *
           c->param[MOE_TOKENS];
}

static void randomize(struct rng *rng, struct op_case *c) {
    moe_route_randomize(rng, c);
    c->is_present[DBALANCE] = rng_chance(rng, 0.5);
    c->is_present[DZ] = rng_chance(rng, 0.5);
    c->is_present[COUNTS] = c->is_present[DBALANCE] || rng_chance(rng, 0.2);
}

// Different experts of a token, one id in eight is -1, and so are all of some tokens. FILL_SPECIAL: all ids are -1.
static void fill_ids(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                     double *values) {
    const int experts = (int)c->param[MOE_EXPERTS], top_k = (int)c->param[MOE_TOP_K];
    int order[MOE_MOST_EXPERTS];
    for (int e = 0; e < experts; e++) order[e] = e;
    for (int64_t t = 0; t < (int64_t)c->param[MOE_TOKENS]; t++, values += top_k) {
        const bool is_padding = fill == FILL_SPECIAL || rng_chance(rng, 0.1);
        for (int k = 0; k < top_k; k++) {
            const int other = (int)rng_int(rng, k, experts - 1), id = order[other];
            order[other] = order[k];
            order[k] = id;
            values[k] = is_padding || rng_chance(rng, 0.125) ? -1 : id;
        }
    }
}

// Gradients are normal whatever the fill.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    const int64_t most = (int64_t)(c->param[MOE_TOKENS] * c->param[MOE_TOP_K]);
    if (slot == LOGITS) return false;
    if (slot == IDS) {
        fill_ids(rng, c, fill, values);
        return true;
    }
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        values[i] = slot == COUNTS ? (double)rng_int(rng, 0, most) : rng_normal(rng);
    return true;
}

// The bound in tessera/moe_route.h of a token. n: N / 2^-24 without |x - m|.
static void bound_row(const struct op_case *c, const struct moe_route_row *row, int64_t t, double n,
                      double *bound) {
    const bool is_sigmoid = c->param[MOE_SCORING] != 0, is_raw = c->param[MOE_RAW] != 0;
    const int experts = row->num, top_k = (int)c->param[MOE_TOP_K];
    const double tokens = c->param[MOE_TOKENS], scaling = (double)(float)c->param[MOE_SCALING];
    const int32_t *ids = (const int32_t *)c->tensor[IDS].data + t * top_k;
    const double *given = (const double *)c->tensor[DWEIGHTS].data + t * top_k;
    const double loss = c->is_present[DBALANCE] ? *(const double *)c->tensor[DBALANCE].data : 0;
    const double z =
        c->is_present[DZ] && isfinite(row->lse)
            ? fabs(2 * *(const double *)c->tensor[DZ].data / tokens) * (fabs(row->lse) + 1)
            : 0;
    double b[MOE_MOST_EXPERTS], mean_b = 0, max = -INFINITY, sum = is_sigmoid ? 1e-20 : 0,
                                mean_g = 0;
    for (int e = 0; e < experts; e++) {
        const double count = loss != 0 ? tsr_load(TSR_I32, c->tensor[COUNTS].data, e) : 0;
        b[e] = fabs(loss * experts * count / (tokens * top_k) / tokens);
        mean_b += row->prob[e] * b[e];
    }
    for (int k = 0; k < top_k; k++)
        if (ids[k] >= 0) max = fmax(max, row->x[ids[k]]);
    double w[MOE_MOST_TOP_K] = {0}, g[MOE_MOST_TOP_K] = {0};
    for (int k = 0; k < top_k; k++) {
        if (ids[k] < 0) continue;
        g[k] = fabs(given[k] * scaling);
        w[k] = is_sigmoid || is_raw ? row->score[ids[k]]
               : max > -INFINITY    ? exp(row->x[ids[k]] - max)
                                    : 0;
        sum += w[k];
    }
    if (is_raw) sum = 1;
    for (int k = 0; k < top_k && sum > 0; k++) w[k] /= sum, mean_g += w[k] * g[k];
    for (int e = 0; e < experts; e++) {
        const double x = row->x[e], p = isfinite(row->lse) ? row->softmax[e] : 0;
        const double slope = exp(-fabs(x)) / ((1 + exp(-fabs(x))) * (1 + exp(-fabs(x))));
        const double far = isfinite(x - row->max) && p > 0 ? 2 * fabs(x - row->max) : 0;
        const double all = b[e] + mean_b, of_raw = !is_sigmoid && is_raw ? mean_g : 0;
        bound[e] = is_sigmoid ? (n + far) * p * z + n * slope * all / row->normaliser
                              : (n + far) * p * (all + z + of_raw);
        bound[e] = moe_u32 * bound[e] + 0x1p-120 * (all / row->normaliser + z + of_raw) + 0x1p-138;
    }
    for (int k = 0; k < top_k; k++) {
        if (ids[k] < 0) continue;
        const double x = row->x[ids[k]], e = exp(-fabs(x)), mean = is_raw ? 0 : mean_g;
        const double from = is_raw ? row->max : max;
        const double far = !is_sigmoid && w[k] > 0 ? 2 * fabs(x - from) : 0;
        const double factor = is_sigmoid ? e / ((1 + e) * (1 + e)) / sum : w[k];
        bound[ids[k]] += moe_u32 * (n + far) * factor * (g[k] + mean) +
                         0x1p-120 * (g[k] + mean) * (is_sigmoid ? 1 / sum : 1);
    }
}

static void bound(const struct op_case *c, int slot, double *bound) {
    const int64_t tokens = (int64_t)c->param[MOE_TOKENS], experts = (int64_t)c->param[MOE_EXPERTS];
    struct moe_route_row row;
    (void)slot;
    for (int64_t t = 0; t < tokens; t++) {
        moe_route_read(c, t, &row);
        bound_row(c, &row, t, 40 + (double)experts / 16 + c->param[MOE_TOP_K], bound + t * experts);
    }
}

#define LOSSES " +tokens_per_expert +dload_balance_loss +dz_loss"

static const struct edge_case edges[] = {
    {"no tokens", "tokens=0 num_experts=8 top_k=2" LOSSES, FILL_NORMAL, LAYOUT_RANDOM},
    {"one expert", "tokens=9 num_experts=1 top_k=1" LOSSES, FILL_NORMAL, LAYOUT_RANDOM},
    {"one expert, raw sigmoid", "tokens=9 num_experts=1 top_k=1 scoring=sigmoid no_renormalize=1",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"every expert", "tokens=9 num_experts=32 top_k=32" LOSSES, FILL_NORMAL, LAYOUT_RANDOM},
    {"Mixtral", "tokens=100 num_experts=8 top_k=2" LOSSES, FILL_NORMAL, LAYOUT_RANDOM},
    {"raw", "tokens=60 num_experts=64 top_k=6 no_renormalize=1" LOSSES, FILL_NORMAL, LAYOUT_RANDOM},
    {"DeepSeek-V3", "tokens=40 num_experts=256 top_k=8 scoring=sigmoid routed_scaling=2.5" LOSSES,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"raw sigmoid", "tokens=40 num_experts=128 top_k=3 scoring=sigmoid no_renormalize=1" LOSSES,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"1024 experts", "tokens=5 num_experts=1024 top_k=32 no_renormalize=1" LOSSES, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no ids", "tokens=40 num_experts=60 top_k=4", FILL_SPECIAL, LAYOUT_RANDOM},
    {"zeros", "tokens=20 num_experts=60 top_k=4" LOSSES, FILL_ZERO, LAYOUT_RANDOM},
    {"large logits", "tokens=20 num_experts=60 top_k=4 no_renormalize=1" LOSSES, FILL_LARGE,
     LAYOUT_RANDOM},
    {"large logits by sigmoid", "tokens=20 num_experts=60 top_k=4 scoring=sigmoid" LOSSES,
     FILL_LARGE, LAYOUT_RANDOM},
    {"huge logits", "tokens=20 num_experts=60 top_k=4" LOSSES, FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "tokens=40 num_experts=60 top_k=4", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite logits by sigmoid", "tokens=40 num_experts=60 top_k=4 scoring=sigmoid",
     FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite logits by sigmoid, losses",
     "tokens=40 num_experts=60 top_k=4 scoring=sigmoid" LOSSES, FILL_INFINITE, LAYOUT_RANDOM},
    {"masked tokens", "tokens=40 num_experts=60 top_k=4" LOSSES, FILL_NEGATIVE_INFINITE,
     LAYOUT_RANDOM},
    {"masked tokens, raw", "tokens=40 num_experts=60 top_k=4 no_renormalize=1" LOSSES,
     FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"masked tokens by sigmoid", "tokens=40 num_experts=60 top_k=4 scoring=sigmoid" LOSSES,
     FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN in some tokens", "tokens=40 num_experts=60 top_k=4", FILL_NAN, LAYOUT_RANDOM},
    {"NaN in some tokens, losses", "tokens=40 num_experts=60 top_k=4" LOSSES, FILL_NAN,
     LAYOUT_RANDOM},
    {"huge common logit", "tokens=20 num_experts=60 top_k=4" LOSSES, FILL_SHIFTED, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 num_experts=33 top_k=3", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "tokens=17 num_experts=65 top_k=3" LOSSES, FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "tokens=32768 num_experts=128 top_k=8",
    "tokens=32768 num_experts=128 top_k=8 +tokens_per_expert +dload_balance_loss +dz_loss",
    "tokens=32768 num_experts=256 top_k=8 scoring=sigmoid routed_scaling=2.5", NULL};

const struct op_spec moe_route_backward_spec = {
    .op = "moe_route_backward",
    .command = "moe-route",
    .pass = "backward",
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
