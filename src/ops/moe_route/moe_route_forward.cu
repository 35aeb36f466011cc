// SPDX-License-Identifier: Apache-2.0
// Routing: a warp takes a token at a time, its logits in registers, one column of 32 a register. What chooses becomes keys that
// compare as unsigned numbers; K times the warp takes the largest key, the lowest expert of equal ones, so ids are those of
// the CPU. The K chosen logits are read again, one a lane, for the weights. Sums over tokens: a warp adds its tokens' in
// double in shared memory, the block adds its warps' in order and stores a part, moe_route_losses.cu adds the parts.
// Floor: the logits read once, 8 K bytes a token written.
// Limit: the K rounds of the choice.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time), PER_LANE (columns a lane has at most), WARPS (of a block)
#include "ops/moe_route/moe_route_device.cuh"
#include "ops/moe_route/moe_route_params.h"

#define EACH(i) _Pragma("unroll") for (int i = 0; i < PER_LANE; i++)
#define COLUMN(i) (LANE + 32 * (i))

extern __shared__ double shared[];

// ---- Logits -----------------------------------------------------------------------------------

// Columns beyond the row hold -inf.
DEVICE void load_logits(float x[PER_LANE], const struct moe_route_forward_params *p,
                        long long token) {
    const long long at = token * p->logits_stride + LANE;
    EACH(i) x[i] = -INFINITE;
    if (p->dtype == DTYPE_F32) {
        EACH(i) if (COLUMN(i) < p->num_experts) x[i] = ((const float *)p->logits)[at + 32 * i];
    } else {
        EACH(i) if (COLUMN(i) < p->num_experts) x[i] = load_any(p->logits, at + 32 * i, p->dtype);
    }
}

// ---- Choice -----------------------------------------------------------------------------------

// Larger floats have larger keys; 0 and -0 have the same. No float has the key 0, which means "not to be chosen".
DEVICE unsigned key_of(float x) {
    const unsigned bits = __float_as_uint(x == 0 ? 0.0f : x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float float_of_key(unsigned key) {
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

// The expert of the largest key, the lowest of equal ones. Its key becomes 0.
DEVICE int take_best(unsigned key[PER_LANE]) {
    unsigned best = 0;
    int column = 0;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; i--)
        if (key[i] >= best) best = key[i], column = COLUMN(i);
    const unsigned most = __reduce_max_sync(ALL_LANES, best);
    const int id = (int)__reduce_min_sync(ALL_LANES, best == most ? (unsigned)column : ~0u);
    EACH(i) if (COLUMN(i) == id) key[i] = 0;
    return id;
}

// The key of a group's score. The group has `each` columns from `first`.
DEVICE unsigned group_key(const unsigned key[PER_LANE], int first, int each, int is_max) {
    unsigned best = 0, second = 0;
    EACH(i) {
        const unsigned k = (unsigned)(COLUMN(i) - first) < (unsigned)each ? key[i] : 0;
        second = k > best ? best : k > second ? k : second;
        best = k > best ? k : best;
    }
    const unsigned most = __reduce_max_sync(ALL_LANES, best);
    if (is_max) return most;
    const int owner = __ffs(__ballot_sync(ALL_LANES, best == most)) - 1;
    const unsigned next = __reduce_max_sync(ALL_LANES, LANE == owner ? second : best);
    const float other = next == 0 ? -INFINITE : float_of_key(next);
    return key_of(moe_group_sum(float_of_key(most), other));
}

// Leaves the experts of the best groups. keys: one a group, this warp's.
DEVICE void limit_groups(unsigned key[PER_LANE], unsigned *keys,
                         const struct moe_route_forward_params *p) {
    const int each = p->num_experts / p->num_groups;
    unsigned is_left = 0; // a bit a column of this lane
    for (int g = 0; g < p->num_groups; g++) {
        const unsigned of_group = group_key(key, g * each, each, p->is_group_max);
        if (LANE == g % 32) keys[g] = of_group;
    }
    for (int n = 0; n < p->topk_groups; n++) { // a lane reads only what it wrote
        unsigned best = 0;
        int group = 0;
        for (int g = LANE; g < p->num_groups; g += 32)
            if (keys[g] > best) best = keys[g], group = g;
        const unsigned most = __reduce_max_sync(ALL_LANES, best);
        group = (int)__reduce_min_sync(ALL_LANES, best == most ? (unsigned)group : ~0u);
        if (LANE == group % 32) keys[group] = 0;
        EACH(i) if ((unsigned)(COLUMN(i) - group * each) < (unsigned)each) is_left |= 1u << i;
    }
    EACH(i) if ((is_left >> i & 1) == 0) key[i] = 0;
}

// ---- A token ----------------------------------------------------------------------------------

// Lane k stores the k-th weight. sum, max: of softmax over all experts, where weights need it.
DEVICE void store_weight(const struct moe_route_forward_params *p, long long token, int id,
                         float max, float sum) {
    const int is_here = LANE < p->top_k;
    float x = -INFINITE, w;
    if (is_here) x = load_any(p->logits, token * p->logits_stride + id, p->dtype);
    if (p->is_sigmoid) {
        w = is_here ? moe_sigmoid(x) : 0;
        if (p->is_renormalised) w = __fdiv_rn(w, __fadd_rn(add_lanes(w), MOE_SIGMOID_SUM));
    } else {
        if (p->is_renormalised) max = max_lanes(x);
        w = moe_exp(__fadd_rn(x, -max));
        w = share_of(w, p->is_renormalised ? add_lanes(w) : sum);
    }
    w = __fmul_rn(w, p->scaling);
    if (p->round_dtype == DTYPE_BF16) w = float_of_bf16(pair_to_bf16(w, 0.0f) & 0xffff);
    if (p->round_dtype == DTYPE_F16) w = float_of_f16(pair_to_f16(w, 0.0f) & 0xffff);
    if (is_here) p->weights[token * p->weights_stride + LANE] = w;
}

// A warp's sums over its tokens. probs: of this lane's columns, in shared memory.
struct warp_sums {
    double *probs;
    int *counts; // the block's
    double z;
    int nans;
};

DEVICE void take_token(const struct moe_route_forward_params *p, long long token,
                       struct warp_sums *sums, unsigned *keys) {
    float x[PER_LANE], max = -INFINITE, sum = 0, lse = NOT_A_NUMBER;
    int is_nan = 0, id = LANE;
    load_logits(x, p, token);
    EACH(i) {
        is_nan |= x[i] != x[i];
        max = fmaxf(max, x[i]);
    }
    max = max_lanes(max);
    is_nan = __any_sync(ALL_LANES, is_nan) || (max == INFINITE && !p->is_sigmoid);
    const int needs_scores = sums->probs != 0 || !p->is_exact;
    const int needs_sum = p->has_lse || (!p->is_sigmoid && (needs_scores || !p->is_renormalised));
    if (!is_nan) {
        float normaliser = 1;
        if (needs_sum && max != INFINITE && max != -INFINITE) {
            EACH(i) sum = __fadd_rn(sum, moe_exp(__fadd_rn(x[i], -max)));
            sum = add_lanes(sum);
        }
        if (p->has_lse && max != INFINITE) {
            const double exact = sum == 0 ? -INFINITE : (double)max + log((double)sum);
            if (sum != 0) sums->z += exact * exact;
            lse = (float)exact;
        } else if (p->has_lse) {
            sums->z = NOT_A_NUMBER;
        }
        if (p->is_sigmoid && sums->probs != 0) {
            normaliser = 0;
            EACH(i) normaliser = __fadd_rn(normaliser, moe_sigmoid(x[i]));
            normaliser = __fadd_rn(add_lanes(normaliser), MOE_SIGMOID_SUM);
        }
        unsigned key[PER_LANE];
        EACH(i) {
            float choice = x[i];
            if (needs_scores && COLUMN(i) < p->num_experts) {
                const float score = p->is_sigmoid ? moe_sigmoid(x[i])
                                                  : share_of(moe_exp(__fadd_rn(x[i], -max)), sum);
                if (sums->probs != 0)
                    sums->probs[COLUMN(i)] += p->is_sigmoid ? __fdiv_rn(score, normaliser) : score;
                if (!p->is_exact)
                    choice = moe_choice(x[i], score, p->bias != 0 ? p->bias[COLUMN(i)] : 0.0f);
            }
            key[i] = COLUMN(i) < p->num_experts ? key_of(choice) : 0;
        }
        if (p->topk_groups < p->num_groups) limit_groups(key, keys, p);
        for (int k = 0; k < p->top_k; k++) {
            const int best = take_best(key);
            if (LANE == k) id = best;
        }
        store_weight(p, token, id, max, sum);
    } else {
        if (LANE < p->top_k) p->weights[token * p->weights_stride + LANE] = NOT_A_NUMBER;
        if (sums->probs != 0)
            EACH(i) if (COLUMN(i) < p->num_experts) sums->probs[COLUMN(i)] = NOT_A_NUMBER;
        sums->z = NOT_A_NUMBER;
        sums->nans++;
    }
    if (LANE < p->top_k) p->ids[token * p->ids_stride + LANE] = id;
    if (LANE < p->top_k && sums->counts != 0) atomicAdd(&sums->counts[id], 1);
    if (LANE == 0 && p->lse != 0) p->lse[token] = lse;
}

// ---- A block ----------------------------------------------------------------------------------

DEVICE void store_part(const struct moe_route_forward_params *p, const struct warp_sums *mine,
                       const double *probs) {
    __shared__ double z[WARPS];
    __shared__ int nans[WARPS];
    const long long first = (long long)blockIdx.x * p->num_experts;
    if (LANE == 0) {
        z[WARP] = mine->z;
        nans[WARP] = mine->nans;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < p->num_experts; e += 32 * WARPS) {
        double sum = 0;
        for (int w = 0; w < WARPS && p->parts.probs != 0; w++) sum += probs[w * p->num_experts + e];
        if (p->parts.probs != 0) p->parts.probs[first + e] = sum;
        p->parts.counts[first + e] = mine->counts[e];
    }
    if (threadIdx.x == 0) {
        double sum = 0;
        int count = 0;
        for (int w = 0; w < WARPS; w++) {
            sum += z[w];
            count += nans[w];
        }
        p->parts.z[blockIdx.x] = sum;
        p->parts.nans[blockIdx.x] = count;
    }
}

// Shared memory: probs of each warp, keys of groups of each warp, counts of the block.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    moe_route_forward(const struct moe_route_forward_params p) {
    const int has_probs = p.parts.probs != 0, has_limits = p.topk_groups < p.num_groups;
    unsigned *keys = (unsigned *)(shared + (has_probs ? WARPS * p.num_experts : 0));
    int *counts = (int *)(keys + (has_limits ? WARPS * p.num_groups : 0));
    struct warp_sums sums = {has_probs ? shared + WARP * p.num_experts : 0,
                             p.parts.counts != 0 ? counts : 0, 0, 0};
    if (has_probs)
        for (int e = threadIdx.x; e < WARPS * p.num_experts; e += 32 * WARPS) shared[e] = 0;
    if (p.parts.counts != 0)
        for (int e = threadIdx.x; e < p.num_experts; e += 32 * WARPS) counts[e] = 0;
    __syncthreads();
    begin_early();
    const long long step = (long long)gridDim.x * WARPS;
    for (long long t = (long long)blockIdx.x * WARPS + WARP; t < p.tokens; t += step)
        take_token(&p, t, &sums, keys + WARP * p.num_groups);
    if (p.parts.counts != 0) store_part(&p, &sums, shared);
}
