// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/moe_route.h, token by token. Weights, losses and gradients are in double. The choice, which
// the contract defines in fp32 where scores choose, uses the scores of moe_route_score.h.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/moe_route/moe_route_problem.h"
#include "ops/moe_route/moe_route_score.h"

// A token's logits and what follows from them.
struct token {
    double x[MOE_MAX_EXPERTS], score[MOE_MAX_EXPERTS], softmax[MOE_MAX_EXPERTS];
    double max, lse;   // lse: NaN with NaN or +inf
    double normaliser; // sigmoid: sum of scores + 1e-20
    bool is_nan;
};

static tsr_dtype real_dtype(const struct moe_route_problem *p) {
    return p->logits.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double sigmoid_slope(double x) {
    const double e = exp(-fabs(x));
    return e / ((1 + e) * (1 + e));
}

static void read_token(const struct moe_route_problem *p, int64_t t, struct token *token) {
    const int num = moe_num_experts(p);
    double sum = 0;
    tsri_load_run(p->logits.dtype, tsri_row(&p->logits, t), 0, 1, num, token->x);
    token->max = -INFINITY;
    token->is_nan = false;
    bool is_infinite = false;
    for (int e = 0; e < num; e++) {
        token->is_nan |= isnan(token->x[e]);
        is_infinite |= token->x[e] == INFINITY;
        token->max = fmax(token->max, token->x[e]);
    }
    const bool has_lse = !token->is_nan && !is_infinite, is_masked = token->max == -INFINITY;
    token->is_nan |= is_infinite && p->scoring == TSR_MOE_SOFTMAX;
    for (int e = 0; e < num && !is_masked; e++) sum += exp(token->x[e] - token->max);
    token->lse = !has_lse ? (double)NAN : is_masked ? token->max : token->max + log(sum);
    token->normaliser = 1e-20;
    for (int e = 0; e < num; e++) {
        token->softmax[e] = is_masked ? 0 : exp(token->x[e] - token->max) / sum;
        token->score[e] = p->scoring == TSR_MOE_SIGMOID ? sigmoid(token->x[e]) : token->softmax[e];
        token->normaliser += token->score[e];
    }
}

// ---- Choice -----------------------------------------------------------------------------------

// The fp32 scores, in the order that the contract fixes.
static void fp32_scores(const struct moe_route_problem *p, const struct token *token,
                        float *scores) {
    float sums[MOE_NUM_SUMS] = {0};
    for (int e = 0; e < moe_num_experts(p); e++) {
        const float x = (float)token->x[e], max = (float)token->max;
        scores[e] = p->scoring == TSR_MOE_SIGMOID ? moe_sigmoid(x) : moe_exp(x - max);
        sums[e % MOE_NUM_SUMS] += scores[e];
    }
    if (p->scoring == TSR_MOE_SIGMOID) return;
    const float sum = moe_add_sums(sums);
    for (int e = 0; e < moe_num_experts(p); e++) scores[e] = sum == 0 ? 0 : scores[e] / sum;
}

// The index of the largest value that is not taken, the lowest of equal ones.
static int best_of(const double *values, const bool *is_taken, int count) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!is_taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

// Marks the experts of groups that are not chosen.
static void limit_groups(const struct moe_route_problem *p, const double *choice, bool *is_taken) {
    double score[MOE_MAX_EXPERTS];
    bool is_chosen[MOE_MAX_EXPERTS] = {false};
    const int each = moe_num_experts(p) / p->num_groups;
    for (int g = 0; g < p->num_groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int e = g * each; e < (g + 1) * each; e++)
            if (choice[e] > best)
                second = best, best = choice[e];
            else
                second = fmax(second, choice[e]);
        score[g] = p->group_score == TSR_MOE_GROUP_MAX
                       ? best
                       : (double)moe_group_sum((float)best, (float)second);
    }
    for (int i = 0; i < p->topk_groups; i++)
        is_chosen[best_of(score, is_chosen, p->num_groups)] = true;
    for (int e = 0; e < moe_num_experts(p); e++) is_taken[e] = !is_chosen[e / each];
}

static void choose(const struct moe_route_problem *p, const struct token *token, int32_t *ids) {
    double choice[MOE_MAX_EXPERTS];
    bool is_taken[MOE_MAX_EXPERTS] = {false};
    float scores[MOE_MAX_EXPERTS];
    if (!moe_is_choice_exact(p)) fp32_scores(p, token, scores);
    for (int e = 0; e < moe_num_experts(p); e++) {
        const double bias = p->bias != NULL ? tsri_load(real_dtype(p), p->bias, e) : 0;
        choice[e] = moe_is_choice_exact(p)
                        ? token->x[e]
                        : (double)moe_choice((float)token->x[e], scores[e], (float)bias);
    }
    if (moe_has_limits(p)) limit_groups(p, choice, is_taken);
    for (int k = 0; k < moe_top_k(p); k++) {
        ids[k] = best_of(choice, is_taken, moe_num_experts(p));
        is_taken[ids[k]] = true;
    }
}

// ---- Weights ----------------------------------------------------------------------------------

// Before scaling, of the ids that are experts; 0 for -1. *sum: what they were divided by.
static void weigh(const struct moe_route_problem *p, const struct token *token, const int32_t *ids,
                  double *weights, double *sum) {
    const bool is_softmax = p->scoring == TSR_MOE_SOFTMAX;
    double max = -INFINITY;
    *sum = is_softmax ? 0 : 1e-20;
    for (int k = 0; k < moe_top_k(p); k++)
        if (ids[k] >= 0) max = fmax(max, token->x[ids[k]]);
    for (int k = 0; k < moe_top_k(p); k++) {
        weights[k] = ids[k] < 0 ? 0 : token->score[ids[k]];
        if (is_softmax && p->is_renormalised && ids[k] >= 0)
            weights[k] = max == -INFINITY ? 0 : exp(token->x[ids[k]] - max);
        *sum += weights[k];
    }
    for (int k = 0; k < moe_top_k(p) && p->is_renormalised && *sum > 0; k++) weights[k] /= *sum;
}

static double rounded(tsr_dtype dtype, double x) {
    double space;
    if (dtype != TSR_BF16 && dtype != TSR_F16) return x;
    tsr_store(dtype, &space, 0, x);
    return tsr_load(dtype, &space, 0);
}

tsr_status moe_route_reference_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct moe_route_problem *p = problem;
    double probs[MOE_MAX_EXPERTS] = {0}, weights[MOE_MAX_TOP_K], sum;
    int32_t counts[MOE_MAX_EXPERTS] = {0};
    struct moe_route_sums sums = {probs, counts, 0, 0};
    struct token token;
    for (int64_t t = 0; t < p->logits.rows; t++) {
        int32_t *ids = tsri_row(&p->ids, t);
        read_token(p, t, &token);
        if (token.is_nan)
            for (int k = 0; k < moe_top_k(p); k++) ids[k] = k, weights[k] = NAN;
        else
            choose(p, &token, ids), weigh(p, &token, ids, weights, &sum);
        for (int k = 0; k < moe_top_k(p); k++) {
            tsr_store(real_dtype(p), tsri_row(&p->weights, t), k,
                      rounded(p->round_weights, weights[k] * (double)p->scaling));
            counts[ids[k]]++;
        }
        for (int e = 0; e < moe_num_experts(p); e++)
            probs[e] += token.is_nan                    ? (double)NAN
                        : p->scoring == TSR_MOE_SOFTMAX ? token.score[e]
                                                        : token.score[e] / token.normaliser;
        if (token.lse != -INFINITY) sums.z += token.lse * token.lse;
        sums.num_nan += token.is_nan;
        if (p->lse != NULL) tsr_store(real_dtype(p), p->lse, t, token.lse);
    }
    moe_route_finish(p, &sums);
    return TSR_OK;
}

// ---- Backward ---------------------------------------------------------------------------------

// Adds the gradient of sum dtopk_weights topk_weights.
static void add_weights_gradient(const struct moe_route_problem *p, const struct token *token,
                                 int64_t t, double *dx) {
    const int32_t *ids = tsri_row(&p->ids, t);
    const void *given = tsri_row(&p->weights, t);
    double w[MOE_MAX_TOP_K], g[MOE_MAX_TOP_K], sum, dot = 0;
    weigh(p, token, ids, w, &sum);
    for (int k = 0; k < moe_top_k(p); k++) {
        g[k] = ids[k] < 0 ? 0 : tsri_load(real_dtype(p), given, k) * (double)p->scaling;
        dot += w[k] * g[k];
    }
    for (int k = 0; k < moe_top_k(p); k++) {
        if (ids[k] < 0) continue;
        if (p->scoring == TSR_MOE_SOFTMAX)
            dx[ids[k]] += w[k] * (p->is_renormalised ? g[k] - dot : g[k]);
        else
            dx[ids[k]] +=
                sigmoid_slope(token->x[ids[k]]) * (p->is_renormalised ? (g[k] - dot) / sum : g[k]);
    }
    if (p->scoring == TSR_MOE_SOFTMAX && !p->is_renormalised)
        for (int e = 0; e < moe_num_experts(p); e++) dx[e] -= token->score[e] * dot;
}

static void add_balance_gradient(const struct moe_route_problem *p, const struct token *token,
                                 double *dx) {
    const int num = moe_num_experts(p);
    const double tokens = (double)p->logits.rows,
                 loss = tsri_load(real_dtype(p), p->balance_loss, 0);
    const bool is_softmax = p->scoring == TSR_MOE_SOFTMAX;
    const double normaliser = is_softmax ? 1 : token->normaliser;
    double a[MOE_MAX_EXPERTS], mean = 0;
    for (int e = 0; e < num; e++) {
        a[e] = loss * num * p->tokens_per_expert[e] / (tokens * moe_top_k(p)) / tokens;
        mean += token->score[e] / normaliser * a[e];
    }
    for (int e = 0; e < num; e++)
        dx[e] += (is_softmax ? token->score[e] : sigmoid_slope(token->x[e]) / normaliser) *
                 (a[e] - mean);
}

tsr_status moe_route_reference_backward_run(tsr_context *ctx, const void *problem,
                                            const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct moe_route_problem *p = problem;
    const double dz = p->z_loss != NULL ? tsri_load(real_dtype(p), p->z_loss, 0) : 0;
    struct token token;
    for (int64_t t = 0; t < p->logits.rows; t++) {
        const int32_t *ids = tsri_row(&p->ids, t);
        double dx[MOE_MAX_EXPERTS] = {0};
        bool has_id = false;
        for (int k = 0; k < moe_top_k(p); k++) has_id |= ids[k] >= 0;
        read_token(p, t, &token);
        const bool is_nan = (token.is_nan && (has_id || p->balance_loss != NULL)) ||
                            (isnan(token.lse) && p->z_loss != NULL);
        if (has_id) add_weights_gradient(p, &token, t, dx);
        if (p->balance_loss != NULL) add_balance_gradient(p, &token, dx);
        for (int e = 0; e < moe_num_experts(p); e++) {
            if (p->z_loss != NULL && token.lse != -INFINITY)
                dx[e] += dz * 2 * token.lse * token.softmax[e] / (double)p->logits.rows;
            const double value = token.x[e] == -INFINITY ? 0 : dx[e];
            tsr_store(p->logits.dtype, tsri_row(&p->dlogits, t), e, is_nan ? (double)NAN : value);
        }
    }
    return TSR_OK;
}
