// SPDX-License-Identifier: Apache-2.0
// The gradient of the routing's logits: a warp takes a token. A lane has one chosen expert, then columns of all experts. With
// losses or raw softmax weights all experts get something, and the logits and their gradients are in shared memory; otherwise only
// the chosen ones do. dlogits may be logits: a token is read before it is written.
// Floor: the logits read once and written once, 8 K bytes a token read.
// Limit: instructions.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time)
#include "ops/moe_route/moe_route_device.cuh"
#include "ops/moe_route/moe_route_params.h"

enum { WARPS = MOE_ROUTE_BACKWARD_WARPS };
#define EACH_COLUMN(e, p) _Pragma("unroll 4") for (int e = LANE; e < (p)->num_experts; e += 32)

extern __shared__ float rows[]; // x and dx of each warp, where all experts get something

// What all logits get: softmax[e] factor.
struct of_all {
    float max, sum, factor;
};

// The gradient of lane k's chosen logit by the weights; id is -1 and the logit -inf where there is none. Changes all's factor.
DEVICE float chosen_gradient(const struct moe_route_backward_params *p, long long token, int id,
                             float logit, struct of_all *all) {
    float g = 0, w, slope;
    if (id >= 0) g = __fmul_rn(p->dweights[token * p->dweights_stride + LANE], p->scaling);
    if (p->is_sigmoid) {
        const float e = moe_exp(logit < 0 ? logit : -logit), per_sum = 1 / (1 + e); // 0 at infinity
        w = (logit < 0 ? e : 1) * per_sum;
        slope = e * per_sum * per_sum;
        if (p->is_renormalised) {
            const float per_all = 1 / (add_lanes(w) + MOE_SIGMOID_SUM);
            w *= per_all;
            slope *= per_all;
        }
    } else {
        const float max = p->is_renormalised ? max_lanes(logit) : all->max;
        w = moe_exp(logit - max);
        const float sum = p->is_renormalised ? add_lanes(w) : all->sum;
        w *= sum == 0 ? 0 : 1 / sum;
        slope = w;
    }
    const float dot = !p->is_sigmoid || p->is_renormalised ? add_lanes(w * g) : 0;
    if (!p->is_sigmoid && !p->is_renormalised) all->factor -= dot;
    return logit != -INFINITE ? slope * (g - (p->is_renormalised ? dot : 0)) : 0;
}

// The sum of the numbers of all lanes with this lane's id, in their order.
DEVICE float add_same(int id, float mine, int top_k) {
    float sum = 0;
    for (int k = 0; k < top_k; k++) {
        const float other = __shfl_sync(ALL_LANES, mine, k);
        if (__shfl_sync(ALL_LANES, id, k) == id) sum += other;
    }
    return sum;
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

// The token's logits to x, zeros to dx. The same loop for each dtype, so that none asks for it at each element.
DEVICE void read_token(const struct moe_route_backward_params *p, long long token, float *x,
                       float *dx, float *max, int *is_nan) {
    const long long at = token * p->logits_stride;
#define READ(value)                                                                                \
    EACH_COLUMN(e, p) {                                                                            \
        const float given = value;                                                                 \
        x[e] = given;                                                                              \
        dx[e] = 0;                                                                                 \
        *is_nan |= given != given;                                                                 \
        *max = fmaxf(*max, given);                                                                 \
    }
    if (p->dtype == DTYPE_F32) {
        READ(((const float *)p->logits)[at + e])
    } else if (p->dtype == DTYPE_BF16) {
        READ(float_of_bf16(((const unsigned short *)p->logits)[at + e]))
    } else {
        READ(float_of_f16(((const unsigned short *)p->logits)[at + e]))
    }
}

DEVICE void write_token(const struct moe_route_backward_params *p, long long token, const float *x,
                        const float *dx, int is_bad) {
    const long long at = token * p->dlogits_stride;
#define WRITE(type, value)                                                                         \
    EACH_COLUMN(e, p) {                                                                            \
        float d = x[e] == -INFINITE ? 0 : dx[e];                                                   \
        if (is_bad || d != d) d = NOT_A_NUMBER;                                                    \
        ((type *)p->dlogits)[at + e] = (type)(value);                                              \
    }
    if (p->dtype == DTYPE_F32) {
        WRITE(float, d)
    } else if (p->dtype == DTYPE_BF16) {
        WRITE(unsigned short, pair_to_bf16(d, 0.0f))
    } else {
        WRITE(unsigned short, pair_to_f16(d, 0.0f))
    }
}

// Where all experts get something, or may.
DEVICE void take_token(const struct moe_route_backward_params *p, long long token, float *x,
                       float *dx) {
    const int has_balance = p->dbalance_loss != 0, has_z = p->dz_loss != 0;
    const int is_raw_softmax = !p->is_sigmoid && !p->is_renormalised;
    struct of_all all = {-INFINITE, 0, 0};
    int is_nan = 0, id = -1;
    if (LANE < p->top_k) id = p->ids[token * p->ids_stride + LANE];
    read_token(p, token, x, dx, &all.max, &is_nan);
    __syncwarp();
    all.max = max_lanes(all.max);
    is_nan = __any_sync(ALL_LANES, is_nan);
    const int has_infinity = !is_nan && all.max == INFINITE, is_masked = all.max == -INFINITE;
    const int has_id = __any_sync(ALL_LANES, id != -1);
    const int is_bad = __any_sync(ALL_LANES, id < -1 || id >= p->num_experts) ||
                       ((is_nan || has_infinity) && has_z) ||
                       ((is_nan || (has_infinity && !p->is_sigmoid)) && (has_id || has_balance));
    if (!is_bad && !is_nan && !is_masked) {
        float per_sum = 0, mine = 0;
        if (!has_infinity && (has_z || is_raw_softmax || (has_balance && !p->is_sigmoid))) {
            EACH_COLUMN(e, p) {
                dx[e] = moe_exp(x[e] - all.max);
                all.sum += dx[e];
            }
            all.sum = add_lanes(all.sum);
            per_sum = 1 / all.sum;
        }
        if (has_id) mine = chosen_gradient(p, token, id, id >= 0 ? x[id] : -INFINITE, &all);
        if (has_z)
            all.factor +=
                (float)(*p->dz_loss * p->z_factor) * (float)(all.max + log_of_sum(all.sum));
        if (has_z || is_raw_softmax || has_balance) {
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
        mine = add_same(id, mine, p->top_k);
        __syncwarp();
        if (id >= 0) mine += dx[id];
        __syncwarp();
        if (id >= 0) dx[id] = mine;
        __syncwarp();
    }
    write_token(p, token, x, dx, is_bad);
    __syncwarp();
}

// Where only the chosen experts get something: the row is read for NaN alone, filled, and then the chosen ones are written.
DEVICE void take_sparse_token(const struct moe_route_backward_params *p, long long token) {
    const long long at = token * p->logits_stride, to = token * p->dlogits_stride;
    const float most = p->is_sigmoid ? INFINITE : 3.402823466e38f; // of logits that are not NaN
    struct of_all all = {-INFINITE, 0, 0};
    float logit = -INFINITE, mine = 0;
    int is_nan = 0, id = -1;
#define CHECK(value) EACH_COLUMN(e, p) is_nan |= !(value <= most);
    if (p->dtype == DTYPE_F32) {
        CHECK(((const float *)p->logits)[at + e])
    } else if (p->dtype == DTYPE_BF16) {
        CHECK(float_of_bf16(((const unsigned short *)p->logits)[at + e]))
    } else {
        CHECK(float_of_f16(((const unsigned short *)p->logits)[at + e]))
    }
    if (LANE < p->top_k) id = p->ids[token * p->ids_stride + LANE];
    const int has_id = __any_sync(ALL_LANES, id != -1);
    const int is_wrong = __any_sync(ALL_LANES, id < -1 || id >= p->num_experts);
    const int is_bad = is_wrong || (has_id && __any_sync(ALL_LANES, is_nan));
    if (!is_bad && has_id) {
        if (id >= 0) logit = load_any(p->logits, at + id, p->dtype);
        mine = add_same(id, chosen_gradient(p, token, id, logit, &all), p->top_k);
    }
    __syncwarp(); // dlogits may be logits
    const float fill = is_bad ? NOT_A_NUMBER : 0;
    if (p->dtype == DTYPE_F32) {
        EACH_COLUMN(e, p)((float *)p->dlogits)[to + e] = fill;
    } else {
        const unsigned pair =
            p->dtype == DTYPE_BF16 ? pair_to_bf16(fill, 0.0f) : pair_to_f16(fill, 0.0f);
        EACH_COLUMN(e, p)((unsigned short *)p->dlogits)[to + e] = (unsigned short)pair;
    }
    __syncwarp();
    if (!is_bad && id >= 0)
        store_any(p->dlogits, to + id, mine != mine ? NOT_A_NUMBER : mine, p->dtype);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 5)
    moe_route_backward(const struct moe_route_backward_params p) {
    const int warp = warp_index();
    float *const x = rows + 2 * warp * p.num_experts;
    begin_early();
    const long long step = (long long)gridDim.x * WARPS;
    for (long long t = (long long)blockIdx.x * WARPS + warp; t < p.tokens; t += step)
        if (p.is_dense)
            take_token(&p, t, x, x + p.num_experts);
        else
            take_sparse_token(&p, t);
}
