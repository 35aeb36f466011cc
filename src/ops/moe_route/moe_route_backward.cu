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
#define EACH_COLUMN(e, p) _Pragma("unroll 4") for (int e = LANE; e < (p)->num_experts; e += 32)

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

// The gradient of load_balance_loss is slope_P (a - mean), a = tokens_per_expert factor.
struct balance {
    float factor, mean, per_normaliser;
};

// dx: of softmax e^(x - max), whose sum's inverse is per_sum.
DEVICE struct balance balance_of(const struct moe_route_backward_params *p, const float *x,
                                 const float *dx, float per_sum) {
    struct balance b = {(float)(*p->dbalance_loss * p->balance_factor), 0, per_sum};
    if (p->is_sigmoid) {
        float sum = 0;
        EACH_COLUMN(e, p) sum += moe_sigmoid(x[e]);
        b.per_normaliser = 1 / (add_lanes(sum) + MOE_SIGMOID_SUM);
    }
    EACH_COLUMN(e, p) {
        const float score = p->is_sigmoid ? moe_sigmoid(x[e]) : dx[e];
        b.mean += score * b.per_normaliser * ((float)p->tokens_per_expert[e] * b.factor);
    }
    b.mean = add_lanes(b.mean);
    return b;
}

DEVICE void take_token(const struct moe_route_backward_params *p, long long token, float *x,
                       float *dx) {
    const int has_balance = p->dbalance_loss != 0, has_z = p->dz_loss != 0;
    const int is_raw_softmax = !p->is_sigmoid && !p->is_renormalised;
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
    float per_sum = 0, mine = 0;
    if (has_gradient && !has_infinity &&
        (has_z || is_raw_softmax || (has_balance && !p->is_sigmoid))) {
        EACH_COLUMN(e, p) {
            dx[e] = moe_exp(x[e] - all.max);
            all.sum += dx[e];
        }
        all.sum = add_lanes(all.sum);
        per_sum = 1 / all.sum;
    }
    if (has_gradient && has_id) mine = chosen_gradient(p, token, id, x, &all);
    if (has_gradient && has_z)
        all.factor += (float)(*p->dz_loss * p->z_factor) * (float)(all.max + log_of_sum(all.sum));
    if (has_gradient && (has_z || is_raw_softmax || has_balance)) {
        struct balance b = {0, 0, 0};
        if (has_balance) b = balance_of(p, x, dx, per_sum);
        EACH_COLUMN(e, p) {
            const float prob = dx[e] * per_sum;
            float d = prob * all.factor;
            if (has_balance) {
                const float slope =
                    p->is_sigmoid ? moe_sigmoid_slope(x[e]) * b.per_normaliser : prob;
                d += slope * ((float)p->tokens_per_expert[e] * b.factor - b.mean);
            }
            dx[e] = d;
        }
    }
    if (has_gradient && has_id)
        for (int k = 0; k < p->top_k; k++) { // in order, as ids may repeat
            const int to = __shfl_sync(ALL_LANES, id, k);
            const float add = __shfl_sync(ALL_LANES, mine, k);
            if (to >= 0 && LANE == to % 32) dx[to] += add;
        }
    EACH_COLUMN(e, p) {
        const float d = x[e] == -INFINITE ? 0 : dx[e];
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
