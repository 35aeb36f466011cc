// SPDX-License-Identifier: Apache-2.0
// A call of moe_route_forward for tests: options, buffers with guards on both sides, and the routing in double by the formulas of
// tessera/moe_route.h, written without the library.
#ifndef TESSERA_TESTS_MOE_ROUTE_CASE_H
#define TESSERA_TESTS_MOE_ROUTE_CASE_H

#include <math.h>

#include "test_support.h"

enum { MOE_TOKENS = 64, MOE_EXPERTS = 1024, MOE_TOP_K = 32, MOE_GUARD = 16, MOE_POISON = 0xa5 };

struct moe_call {
    int tokens, experts, top_k;
    tsr_dtype dtype;
    bool has_bias, is_sigmoid, is_raw;
    float scaling; // 0: none
    int num_groups, topk_groups;
    tsr_moe_group_score group_score;
    tsr_dtype round_weights;
};

#define MOE_BUFFER(type, name, count)                                                              \
    type name##_before[MOE_GUARD], name[count], name##_after[MOE_GUARD]
struct moe_outputs {
    MOE_BUFFER(int32_t, ids, MOE_TOKENS *MOE_TOP_K);
    MOE_BUFFER(float, weights, MOE_TOKENS *MOE_TOP_K);
    MOE_BUFFER(int32_t, counts, MOE_EXPERTS);
    MOE_BUFFER(float, probs, MOE_EXPERTS);
    MOE_BUFFER(float, balance, 1);
    MOE_BUFFER(float, z, 1);
    MOE_BUFFER(float, variance, 1);
    MOE_BUFFER(float, lse, MOE_TOKENS);
    MOE_BUFFER(int32_t, num_nan, 1);
};

struct moe_inputs {
    char logits[MOE_TOKENS * MOE_EXPERTS * 4];
    float bias[MOE_EXPERTS];
};

static inline double moe_logit(const struct moe_call *c, const struct moe_inputs *in, int t,
                               int e) {
    return tsr_load(c->dtype, in->logits, (int64_t)t * c->experts + e);
}

// Every output.
static inline tsr_moe_route_forward_args moe_args(const struct moe_call *c, struct moe_inputs *in,
                                                  struct moe_outputs *out) {
    const int64_t t = c->tokens, e = c->experts, k = c->top_k;
    tsr_moe_route_forward_args args =
        TSR_MOE_ROUTE_FORWARD_ARGS(.logits = TSR_TENSOR(in->logits, c->dtype, t, e),
                                   .topk_ids = TSR_TENSOR(out->ids, TSR_I32, t, k),
                                   .topk_weights = TSR_TENSOR(out->weights, TSR_F32, t, k),
                                   .tokens_per_expert = TSR_TENSOR(out->counts, TSR_I32, e),
                                   .mean_probs = TSR_TENSOR(out->probs, TSR_F32, e),
                                   .load_balance_loss = TSR_TENSOR(out->balance, TSR_F32, 1),
                                   .z_loss = TSR_TENSOR(out->z, TSR_F32, 1),
                                   .usage_variance = TSR_TENSOR(out->variance, TSR_F32, 1),
                                   .lse = TSR_TENSOR(out->lse, TSR_F32, t),
                                   .num_nan_rows = TSR_TENSOR(out->num_nan, TSR_I32, 1),
                                   .scoring = c->is_sigmoid ? TSR_MOE_SIGMOID : TSR_MOE_SOFTMAX,
                                   .no_renormalize = c->is_raw, .routed_scaling = c->scaling,
                                   .has_routed_scaling = c->scaling != 0,
                                   .num_groups = c->num_groups, .topk_groups = c->topk_groups,
                                   .group_score = c->group_score,
                                   .round_weights = c->round_weights);
    if (c->has_bias) args.correction_bias = TSR_TENSOR(in->bias, TSR_F32, e);
    return args;
}

// ---- The formulas in double -------------------------------------------------------------------

struct moe_expected {
    int ids[MOE_TOP_K];
    double weights[MOE_TOP_K], probs[MOE_EXPERTS], lse;
    double margin; // the smallest difference that decided the choice
};

// Puts the indices of the `count` largest of `num` values in order, and lowers *margin to the smallest difference between
// neighbours down to the first that is left out. A value of NaN is left out.
static inline void moe_order(const double *values, int num, int count, int *order, double *margin) {
    bool is_taken[MOE_EXPERTS] = {false};
    double last = (double)NAN;
    for (int k = 0; k <= count; k++) {
        int best = -1;
        for (int i = 0; i < num; i++)
            if (!is_taken[i] && !isnan(values[i]) && (best < 0 || values[i] > values[best]))
                best = i;
        if (best < 0) return;
        if (!isnan(last) && last != values[best]) *margin = fmin(*margin, last - values[best]);
        last = values[best];
        is_taken[best] = true;
        if (k < count) order[k] = best;
    }
}

// Of finite logits.
static inline void moe_expect(const struct moe_call *c, const struct moe_inputs *in, int t,
                              struct moe_expected *out) {
    double x[MOE_EXPERTS], s[MOE_EXPERTS], choice[MOE_EXPERTS], max = -INFINITY, sum = 0;
    double total = 1e-20;
    const bool is_limited =
        c->topk_groups > 0 && c->topk_groups < c->num_groups && c->num_groups < c->experts;
    const bool is_exact = !c->has_bias && !(is_limited && c->group_score == TSR_MOE_GROUP_TOP2);
    for (int e = 0; e < c->experts; e++) max = fmax(max, x[e] = moe_logit(c, in, t, e));
    for (int e = 0; e < c->experts; e++) sum += exp(x[e] - max);
    out->lse = max + log(sum);
    for (int e = 0; e < c->experts; e++) {
        s[e] = c->is_sigmoid ? 1 / (1 + exp(-x[e])) : exp(x[e] - out->lse);
        total += s[e];
        choice[e] = is_exact ? x[e] : s[e] + (c->has_bias ? (double)in->bias[e] : 0);
    }
    for (int e = 0; e < c->experts; e++) out->probs[e] = c->is_sigmoid ? s[e] / total : s[e];
    out->margin = INFINITY;
    if (is_limited) {
        const int each = c->experts / c->num_groups;
        double groups[MOE_EXPERTS];
        int order[MOE_EXPERTS];
        bool is_left[MOE_EXPERTS] = {false};
        for (int g = 0; g < c->num_groups; g++) {
            int best[2];
            double unused = INFINITY;
            moe_order(choice + g * each, each, 2, best, &unused);
            groups[g] = choice[g * each + best[0]];
            if (c->group_score == TSR_MOE_GROUP_TOP2) groups[g] += choice[g * each + best[1]];
        }
        moe_order(groups, c->num_groups, c->topk_groups, order, &out->margin);
        for (int i = 0; i < c->topk_groups; i++) is_left[order[i]] = true;
        for (int e = 0; e < c->experts; e++)
            if (!is_left[e / each]) choice[e] = (double)NAN;
    }
    moe_order(choice, c->experts, c->top_k, out->ids, &out->margin);
    if (is_exact) out->margin = INFINITY;
    sum = c->is_sigmoid ? 1e-20 : 0;
    for (int k = 0; k < c->top_k; k++) sum += s[out->ids[k]];
    for (int k = 0; k < c->top_k; k++) {
        double w =
            s[out->ids[k]] / (c->is_raw ? 1 : sum) * (c->scaling != 0 ? (double)c->scaling : 1);
        if (c->round_weights == TSR_BF16 || c->round_weights == TSR_F16) {
            uint16_t half;
            tsr_store(c->round_weights, &half, 0, w);
            w = tsr_load(c->round_weights, &half, 0);
        }
        out->weights[k] = w;
    }
}

#endif
