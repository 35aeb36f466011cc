// SPDX-License-Identifier: Apache-2.0
// The gradient of the routing's logits: a warp takes a token, its logits and the chosen experts' gradients in shared memory. A lane
// has one chosen expert, then columns of all experts. dlogits may be logits: a token is read before it is written.
// Floor: the logits read once and written once, 8 K bytes a token read.
// Limit: the exponentials, where losses or raw weights need them.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time)
#include "ops/moe_route/moe_route_device.cuh"
#include "ops/moe_route/moe_route_params.h"

enum { WARPS = MOE_ROUTE_BACKWARD_WARPS };
#define EACH_COLUMN(e, p) for (int e = LANE; e < (p)->num_experts; e += 32)

extern __shared__ float rows[]; // x and dx of each warp

// What all logits get: softmax[e] factor.
struct of_all {
    float max, sum, factor;
};

// The gradient of lane k's chosen logit by the weights; id is -1 where there is none. Changes all's factor.
DEVICE float chosen_gradient(const struct moe_route_backward_params *p, long long token, int id,
                             const float *x, struct of_all *all) {
    const int is_here = id >= 0 && id < p->num_experts;
    const float logit = is_here ? x[id] : -INFINITE;
    const float g =
        is_here ? __fmul_rn(p->dweights[token * p->dweights_stride + LANE], p->scaling) : 0;
    float w, sum = 1;
    if (p->is_sigmoid) {
        w = is_here ? moe_sigmoid(logit) : 0;
        if (p->is_renormalised) sum = __fadd_rn(add_lanes(w), MOE_SIGMOID_SUM);
        w = __fdiv_rn(w, sum);
    } else {
        const float max = p->is_renormalised ? max_lanes(logit) : all->max;
        w = moe_exp(__fadd_rn(logit, -max));
        sum = p->is_renormalised ? add_lanes(w) : all->sum;
        w = share_of(w, sum);
    }
    const float dot = add_lanes(is_here ? w * g : 0);
    if (!p->is_sigmoid && !p->is_renormalised) all->factor -= dot;
    const float slope = p->is_sigmoid ? moe_sigmoid_slope(logit) / sum : w;
    return is_here && logit != -INFINITE ? slope * (g - (p->is_renormalised ? dot : 0)) : 0;
}

// Adds the gradient of load_balance_loss: slope (a - sum P a), a = tokens_per_expert factor.
DEVICE void add_balance(const struct moe_route_backward_params *p, float factor, const float *x,
                        float *dx, const struct of_all *all) {
    float normaliser = 1, mean = 0;
    if (p->is_sigmoid) {
        normaliser = 0;
        EACH_COLUMN(e, p) normaliser += moe_sigmoid(x[e]);
        normaliser = __fadd_rn(add_lanes(normaliser), MOE_SIGMOID_SUM);
    }
    EACH_COLUMN(e, p) {
        const float prob = p->is_sigmoid ? moe_sigmoid(x[e]) / normaliser
                                         : share_of(moe_exp(x[e] - all->max), all->sum);
        mean += prob * ((float)p->tokens_per_expert[e] * factor);
    }
    mean = add_lanes(mean);
    EACH_COLUMN(e, p) {
        const float slope = p->is_sigmoid ? moe_sigmoid_slope(x[e]) / normaliser
                                          : share_of(moe_exp(x[e] - all->max), all->sum);
        dx[e] += slope * ((float)p->tokens_per_expert[e] * factor - mean);
    }
}

DEVICE void take_token(const struct moe_route_backward_params *p, long long token, float *x,
                       float *dx) {
    const int has_balance = p->dbalance_loss != 0, has_z = p->dz_loss != 0;
    struct of_all all = {-INFINITE, 0, 0};
    int is_nan = 0, id = -1;
    EACH_COLUMN(e, p) {
        x[e] = load_any(p->logits, token * p->logits_stride + e, p->dtype);
        dx[e] = 0;
        is_nan |= x[e] != x[e];
        all.max = fmaxf(all.max, x[e]);
    }
    if (LANE < p->top_k) id = p->ids[token * p->ids_stride + LANE];
    __syncwarp();
    all.max = max_lanes(all.max);
    is_nan = __any_sync(ALL_LANES, is_nan);
    const int has_infinity = !is_nan && all.max == INFINITE, is_masked = all.max == -INFINITE;
    const int has_id = __any_sync(ALL_LANES, id != -1);
    const int is_bad = __any_sync(ALL_LANES, id < -1 || id >= p->num_experts) ||
                       ((is_nan || has_infinity) && has_z) ||
                       ((is_nan || (has_infinity && !p->is_sigmoid)) && (has_id || has_balance));
    const int has_gradient = !is_bad && !is_nan && !is_masked;
    if (has_gradient && (has_z || !p->is_sigmoid) && !has_infinity) {
        EACH_COLUMN(e, p) all.sum += moe_exp(x[e] - all.max);
        all.sum = add_lanes(all.sum);
    }
    if (has_gradient && has_id) {
        const float mine = chosen_gradient(p, token, id, x, &all);
        for (int k = 0; k < p->top_k; k++) { // in order, as ids may repeat
            const int to = __shfl_sync(ALL_LANES, id, k);
            const float add = __shfl_sync(ALL_LANES, mine, k);
            if (to >= 0 && LANE == to % 32) dx[to] += add;
        }
    }
    if (has_gradient && has_balance)
        add_balance(p, (float)(*p->dbalance_loss * p->balance_factor), x, dx, &all);
    if (has_gradient && has_z)
        all.factor += (float)(*p->dz_loss * p->z_factor) * (float)(all.max + log((double)all.sum));
    EACH_COLUMN(e, p) {
        float d = dx[e];
        if (all.factor != 0) d += share_of(moe_exp(x[e] - all.max), all.sum) * all.factor;
        if (x[e] == -INFINITE) d = 0;
        store_any(p->dlogits, token * p->dlogits_stride + e, is_bad || d != d ? NOT_A_NUMBER : d,
                  p->dtype);
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    moe_route_backward(const struct moe_route_backward_params p) {
    float *const x = rows + 2 * WARP * p.num_experts;
    begin_early();
    const long long step = (long long)gridDim.x * WARPS;
    for (long long t = (long long)blockIdx.x * WARPS + WARP; t < p.tokens; t += step)
        take_token(&p, t, x, x + p.num_experts);
}
