// SPDX-License-Identifier: Apache-2.0
// Routing, compiled once per instruction set: one pass over each token's logits (tokens, experts), which stay in the first-level
// cache. The choice is a tournament: a tree of maxima, from which K times the winner is taken and its path renewed, in plain C
// without branches that depend on the logits. Exponentials are taken only where an output needs them: renormalised softmax
// weights are a softmax over the K chosen logits.
// Floor: the logits read once; forward writes 8 K bytes a token, backward the logits' gradient.
// Limit: the tree, and with raw weights or losses the exponentials.
// Figures: docs/kernels/moe.md.
#include <math.h>

#include "cpu/simd_nan.h"
#include "ops/moe_route/moe_route_row.h"

// ---- Choice -----------------------------------------------------------------------------------

// Keys order as what chooses does, and of equal numbers the one with the lower index has the larger key. None is 0.
static inline uint64_t key_of(float choice, int index) {
    const uint32_t bits = tsri_bits_of_float(choice + 0.0f); // -0 becomes 0
    const uint32_t order = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
    return (uint64_t)order << 32 | (0xffffffffu - (uint32_t)index);
}

static inline int index_of(uint64_t key) { return (int)(0xffffffffu - (uint32_t)key); }
static inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// The two largest of `count` numbers, as moe_group_sum takes them.
SIMD_INLINE void two_largest(const float *x, int count, float *best, float *second) {
    const vf minus_inf = vf_set1(MOE_MINUS_INF);
    vf most = minus_inf, next = minus_inf; // of each lane
    float firsts[VL], seconds[VL];
    for (int i = 0; i < count; i += VL) {
        const int n = count - i < VL ? count - i : VL;
        const vf value =
            n == VL ? vf_load(x + i) : vf_keep_n(vf_load_n(x + i, n), n, MOE_MINUS_INF);
        next = vf_max(next, vf_min(most, value));
        most = vf_max(most, value);
    }
    vf_store(firsts, most);
    vf_store(seconds, next);
    for (int half = VL / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) {
            const float a = firsts[j], b = firsts[j + half], low = a < b ? a : b;
            seconds[j] = seconds[j] > seconds[j + half] ? seconds[j] : seconds[j + half];
            seconds[j] = seconds[j] > low ? seconds[j] : low;
            firsts[j] = a > b ? a : b;
        }
    *best = firsts[0];
    *second = seconds[0];
}

// Groups by their scores: is_chosen of each.
SIMD_INLINE void choose_groups(const struct moe_route_problem *p, const float *choice,
                               bool *is_chosen) {
    uint64_t keys[MOE_MAX_EXPERTS];
    const int each = moe_num_experts(p) / p->num_groups;
    for (int g = 0; g < p->num_groups; g++) {
        float best, second;
        two_largest(choice + g * each, each, &best, &second);
        keys[g] =
            key_of(p->group_score == TSR_MOE_GROUP_MAX ? best : moe_group_sum(best, second), g);
        is_chosen[g] = false;
    }
    for (int i = 0; i < p->topk_groups; i++) {
        uint64_t most = 0;
        for (int g = 0; g < p->num_groups; g++) most = larger(most, keys[g]);
        is_chosen[index_of(most)] = true;
        keys[index_of(most)] = 0;
    }
}

// choice: what chooses, one number an expert. A tree of maxima, tree[1] of all, tree[size + e] the key of expert e; 0 cannot be
// chosen.
static void choose(const struct moe_route_problem *p, const float *choice, int32_t *ids) {
    uint64_t tree[2 * MOE_MAX_EXPERTS];
    const int num = moe_num_experts(p), each = num / p->num_groups;
    int size = 1;
    while (size < num) size *= 2;
    for (int e = 0; e < num; e++) tree[size + e] = key_of(choice[e], e);
    for (int e = num; e < size; e++) tree[size + e] = 0;
    if (moe_has_limits(p)) {
        bool is_chosen[MOE_MAX_EXPERTS];
        choose_groups(p, choice, is_chosen);
        for (int g = 0; g < p->num_groups; g++)
            for (int e = g * each; e < (g + 1) * each && !is_chosen[g]; e++) tree[size + e] = 0;
    }
    for (int i = size - 1; i > 0; i--) tree[i] = larger(tree[2 * i], tree[2 * i + 1]);
    for (int k = 0; k < moe_top_k(p); k++) {
        ids[k] = index_of(tree[1]);
        uint64_t most = 0; // of what is left below node i
        for (int i = size + ids[k]; i > 0; i /= 2) {
            tree[i] = most;
            if (i > 1) most = larger(most, tree[i ^ 1]);
        }
    }
}

// ---- Forward ----------------------------------------------------------------------------------

// Weights before scaling. scores: all experts', of raw softmax weights only.
static void weigh(const struct moe_route_problem *p, const struct row *row, const float *scores,
                  const int32_t *ids, float *w) {
    const int top_k = moe_top_k(p);
    float max = MOE_MINUS_INF;
    for (int k = 0; k < top_k; k++) max = row->x[ids[k]] > max ? row->x[ids[k]] : max;
    for (int k = 0; k < top_k; k++) {
        const float x = row->x[ids[k]];
        w[k] = p->scoring == TSR_MOE_SIGMOID ? moe_sigmoid(x)
               : p->is_renormalised          ? moe_exp(x - max)
                                             : scores[ids[k]];
    }
    if (!p->is_renormalised) return;
    float sum = sum_of_few(w, top_k);
    if (p->scoring == TSR_MOE_SIGMOID) sum += MOE_SIGMOID_SUM;
    for (int k = 0; k < top_k; k++) w[k] = sum == 0 ? 0 : w[k] / sum;
}

static float rounded(tsr_dtype dtype, float x) {
    if (dtype == TSR_BF16) return tsri_bf16_to_float(tsri_bf16_of_float(x));
    return dtype == TSR_F16 ? tsri_f16_to_float(tsri_f16_of_float(x)) : x;
}

// A token whose weights are NaN.
static void store_nan(const struct moe_route_problem *p, int32_t *ids, float *weights,
                      struct moe_route_sums *sums) {
    simd_fill_nan(TSR_F32, weights, moe_top_k(p));
    for (int k = 0; k < moe_top_k(p); k++) ids[k] = k;
    if (sums == NULL) return;
    for (int e = 0; e < moe_num_experts(p); e++) sums->probs[e] = -__builtin_nan("");
    sums->num_nan++;
}

SIMD_INLINE void forward_as(tsr_dtype dtype, const struct moe_route_problem *p, int64_t first,
                            int64_t last, struct moe_route_sums *sums) {
    const bool is_softmax = p->scoring == TSR_MOE_SOFTMAX, is_exact = moe_is_choice_exact(p);
    const bool has_lse = p->lse != NULL || p->z_loss != NULL, has_probs = moe_has_probs(p);
    const bool needs_scores = has_probs || !is_exact || (is_softmax && !p->is_renormalised);
    const float *bias = p->bias;
    float exps[MOE_MAX_EXPERTS], scores[MOE_MAX_EXPERTS], choice[MOE_MAX_EXPERTS];
    struct row row;
    for (int64_t t = first; t < last; t++) {
        int32_t *ids = tsri_row(&p->ids, t);
        float *weights = tsri_row(&p->weights, t), sum = 0, normaliser = 1;
        double lse = -(double)__builtin_nanf("");
        read_row(dtype, p, t, &row);
        if (!row.is_nan) {
            if (!row.is_infinite && row.max != MOE_MINUS_INF &&
                (has_lse || (needs_scores && is_softmax)))
                sum = exps_of(&row, exps);
            if (has_lse && !row.is_infinite)
                lse = sum == 0 ? (double)MOE_MINUS_INF : (double)row.max + log((double)sum);
            if (needs_scores && is_softmax)
                for (int e = 0; e < row.num; e++) scores[e] = sum == 0 ? 0 : exps[e] / sum;
            else if (needs_scores)
                normaliser = sigmoids_of(&row, scores) + MOE_SIGMOID_SUM;
            for (int e = 0; e < row.num && !is_exact; e++)
                choice[e] = moe_choice(row.x[e], scores[e], bias != NULL ? bias[e] : 0);
            choose(p, is_exact ? row.x : choice, ids);
            weigh(p, &row, scores, ids, weights);
            for (int k = 0; k < moe_top_k(p); k++)
                weights[k] = rounded(p->round_weights, weights[k] * p->scaling);
            for (int e = 0; e < row.num && has_probs; e++)
                sums->probs[e] += (double)(is_softmax ? scores[e] : scores[e] / normaliser);
        } else {
            store_nan(p, ids, weights, sums);
        }
        if (p->lse != NULL) ((float *)p->lse)[t] = (float)lse;
        if (sums == NULL) continue;
        for (int k = 0; k < moe_top_k(p); k++) sums->counts[ids[k]]++;
        if (p->z_loss != NULL && lse != (double)MOE_MINUS_INF) sums->z += lse * lse;
    }
}

// ---- Backward ---------------------------------------------------------------------------------

// Of a call: its losses' gradients as factors, 0 without them.
struct losses {
    float balance; // times tokens_per_expert[e]: the gradient of P[t, e]
    float z;       // times lse and softmax: the gradient of a logit
};

static struct losses losses_of(const struct moe_route_problem *p) {
    const double tokens = (double)tsri_max(p->logits.rows, 1), top_k = moe_top_k(p);
    struct losses l = {0, 0};
    if (p->balance_loss != NULL)
        l.balance = (float)((double)*(const float *)p->balance_loss * moe_num_experts(p) /
                            (tokens * top_k * tokens));
    if (p->z_loss != NULL) l.z = (float)((double)*(const float *)p->z_loss * 2 / tokens);
    return l;
}

// Adds to dx the gradient that only the chosen logits get. scores: of raw softmax weights. Returns what all logits get, times
// minus their scores.
static float add_chosen(const struct moe_route_problem *p, const struct row *row,
                        const float *scores, const int32_t *all_ids, const float *given,
                        float *dx) {
    const bool is_softmax = p->scoring == TSR_MOE_SOFTMAX;
    int32_t ids[MOE_MAX_TOP_K];
    float w[MOE_MAX_TOP_K], g[MOE_MAX_TOP_K], product[MOE_MAX_TOP_K], max = MOE_MINUS_INF;
    int count = 0;
    for (int k = 0; k < moe_top_k(p); k++) {
        if (all_ids[k] < 0) continue;
        ids[count] = all_ids[k];
        g[count] = given[k] * p->scaling;
        max = row->x[ids[count]] > max ? row->x[ids[count]] : max;
        count++;
    }
    for (int k = 0; k < count; k++) {
        const float x = row->x[ids[k]];
        w[k] = !is_softmax          ? moe_sigmoid(x)
               : p->is_renormalised ? moe_exp(x - max)
                                    : scores[ids[k]];
    }
    float sum = 1;
    if (p->is_renormalised) {
        sum = sum_of_few(w, count) + (is_softmax ? 0.0f : MOE_SIGMOID_SUM);
        if (sum == 0) return 0; // only masked experts
        for (int k = 0; k < count; k++) w[k] /= sum;
    }
    for (int k = 0; k < count; k++) product[k] = w[k] * g[k];
    const float dot = sum_of_few(product, count), mean = p->is_renormalised ? dot : 0;
    for (int k = 0; k < count; k++) {
        const float slope = is_softmax ? w[k] : moe_sigmoid_slope(row->x[ids[k]]) / sum;
        dx[ids[k]] += slope * (g[k] - mean);
    }
    return is_softmax && !p->is_renormalised ? dot : 0;
}

// The gradient of load_balance_loss: dx += slope (a - sum P a), a = tokens_per_expert factor.
static void add_balance(const struct moe_route_problem *p, const struct row *row, float factor,
                        const float *probs, float normaliser, float *dx) {
    float sums[MOE_NUM_SUMS] = {0};
    for (int e = 0; e < row->num; e++)
        sums[e % MOE_NUM_SUMS] += probs[e] / normaliser * ((float)p->tokens_per_expert[e] * factor);
    const float mean = moe_add_sums(sums);
    for (int e = 0; e < row->num; e++) {
        const float a = (float)p->tokens_per_expert[e] * factor;
        const float slope =
            p->scoring == TSR_MOE_SOFTMAX ? probs[e] : moe_sigmoid_slope(row->x[e]) / normaliser;
        dx[e] += slope * (a - mean);
    }
}

SIMD_INLINE void store_gradient(tsr_dtype dtype, const struct row *row, const float *dx, void *to) {
    for (int i = 0; i < row->num; i += VL) {
        const int n = row->num - i < VL ? row->num - i : VL;
        if (n == VL)
            vf_store_as(dtype, to, i, vf_one_nan(vf_load(dx + i)));
        else
            vf_store_as_n(dtype, to, i, vf_one_nan(vf_load(dx + i)), n);
    }
}

SIMD_INLINE void backward_as(tsr_dtype dtype, const struct moe_route_problem *p, int64_t first,
                             int64_t last, struct moe_route_sums *sums) {
    const bool is_softmax = p->scoring == TSR_MOE_SOFTMAX;
    const bool has_balance = p->balance_loss != NULL, has_z = p->z_loss != NULL;
    const bool needs_softmax = has_z || (is_softmax && (has_balance || !p->is_renormalised));
    const struct losses losses = losses_of(p);
    float softmax[MOE_MAX_EXPERTS] = {0}, sigmoids[MOE_MAX_EXPERTS], dx[MOE_MAX_EXPERTS];
    struct row row;
    (void)sums;
    for (int64_t t = first; t < last; t++) {
        const int32_t *ids = tsri_row(&p->ids, t);
        bool has_id = false;
        for (int k = 0; k < moe_top_k(p); k++) has_id |= ids[k] >= 0;
        read_row(dtype, p, t, &row);
        void *to = tsri_row(&p->dlogits, t);
        if ((row.is_nan && (has_id || has_balance)) || ((row.is_nan || row.is_infinite) && has_z)) {
            simd_fill_nan(dtype, to, row.num);
            continue;
        }
        memset(dx, 0, sizeof dx);
        if (!row.is_nan && row.max != MOE_MINUS_INF) {
            float sum = 1, factor = 0; // factor: of softmax
            if (needs_softmax) {
                sum = exps_of(&row, softmax);
                for (int e = 0; e < row.padded; e++) softmax[e] /= sum;
            }
            if (has_id) factor = -add_chosen(p, &row, softmax, ids, tsri_row(&p->weights, t), dx);
            if (has_balance && is_softmax)
                add_balance(p, &row, losses.balance, softmax, 1, dx);
            else if (has_balance)
                add_balance(p, &row, losses.balance, sigmoids,
                            sigmoids_of(&row, sigmoids) + MOE_SIGMOID_SUM, dx);
            if (has_z) factor += losses.z * (float)((double)row.max + log((double)sum));
            for (int e = 0; e < row.num; e++) {
                if (factor != 0) dx[e] += softmax[e] * factor;
                if (row.x[e] == MOE_MINUS_INF) dx[e] = 0;
            }
        }
        store_gradient(dtype, &row, dx, to);
    }
}

#define BY_DTYPE(name)                                                                             \
    static void name(const struct moe_route_problem *p, int64_t first, int64_t last,               \
                     struct moe_route_sums *sums) {                                                \
        switch (p->logits.dtype) {                                                                 \
        case TSR_BF16: name##_as(TSR_BF16, p, first, last, sums); break;                           \
        case TSR_F16: name##_as(TSR_F16, p, first, last, sums); break;                             \
        default: name##_as(TSR_F32, p, first, last, sums);                                         \
        }                                                                                          \
    }
BY_DTYPE(forward)
BY_DTYPE(backward)

const struct moe_route_kernels TSRI_KERNEL_TABLE(moe_route) = {forward, backward};
