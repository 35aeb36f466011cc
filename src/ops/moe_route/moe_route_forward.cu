// SPDX-License-Identifier: Apache-2.0
// Routing: a warp takes a token at a time, its logits in registers, one column of 32 a register, and reads the next token's
// meanwhile. What chooses becomes keys that compare as unsigned numbers (moe_route_choice.cuh), so ids are those of the CPU.
// The K chosen logits are read again, one a lane, for the weights. Sums over tokens: a warp adds its tokens' in double in
// shared memory, the block adds its warps' in order and stores a part, moe_route_losses.cu adds the parts.
// Floor: the logits read once, 8 K bytes a token written.
// Limit: instructions.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time), PER_LANE (columns a lane has at most: a power of 2)
#include "ops/moe_route/moe_route_choice.cuh"
#include "ops/moe_route/moe_route_params.h"

enum { MOST_THREADS = PER_LANE > 8 ? 256 : 1024, MOST_WARPS = MOST_THREADS / 32 };
#define WARPS ((int)(blockDim.x / 32))

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

// x: the token's logits.
DEVICE void take_token(const struct moe_route_forward_params *p, long long token,
                       const float x[PER_LANE], struct warp_sums *sums, unsigned *keys) {
    const int needs_scores = sums->probs != 0 || !p->is_exact, is_sigmoid = p->is_sigmoid;
    const int needs_sum = p->has_lse || (!is_sigmoid && (needs_scores || !p->is_renormalised));
    float max = -INFINITE, sum = 0, lse = NOT_A_NUMBER;
    int is_nan = 0, id = LANE;
    EACH(i) is_nan |= is_sigmoid ? x[i] != x[i] : !(x[i] < INFINITE);
    is_nan = __any_sync(ALL_LANES, is_nan);
    if (!is_nan) {
        float factor = 0; // of P
        unsigned key[PER_LANE];
        if (needs_sum) {
            EACH(i) max = fmaxf(max, x[i]);
            max = max_lanes(max);
        }
        if (needs_sum && max != INFINITE && max != -INFINITE) {
            EACH(i) sum = __fadd_rn(sum, moe_exp(__fadd_rn(x[i], -max)));
            sum = add_lanes(sum);
        }
        if (p->has_lse && max != INFINITE) {
            const double exact = sum == 0 ? -INFINITE : (double)max + log_of_sum(sum);
            if (sum != 0) sums->z += exact * exact;
            lse = (float)exact;
        } else if (p->has_lse) {
            sums->z = NOT_A_NUMBER;
        }
        if (sums->probs != 0 && is_sigmoid) {
            EACH(i) factor += moe_sigmoid(x[i]);
            factor = 1 / (add_lanes(factor) + MOE_SIGMOID_SUM);
        } else if (sums->probs != 0 && sum != 0) {
            factor = 1 / sum;
        }
        EACH(i) {
            float choice = x[i];
            if (needs_scores && COLUMN(i) < p->num_experts) {
                float score = is_sigmoid ? moe_sigmoid(x[i]) : moe_exp(__fadd_rn(x[i], -max));
                if (sums->probs != 0) sums->probs[COLUMN(i)] += score * factor;
                if (!p->is_exact) {
                    if (!is_sigmoid) score = share_of(score, sum);
                    choice = moe_choice(x[i], score, p->bias != 0 ? p->bias[COLUMN(i)] : 0.0f);
                }
            }
            key[i] = COLUMN(i) < p->num_experts ? key_of(choice) : 0;
        }
        if (p->topk_groups < p->num_groups)
            limit_groups(key, keys, p->num_groups, p->topk_groups, p->num_experts / p->num_groups,
                         p->is_group_max);
        id = choose(key, p->top_k, p->is_exact && p->dtype != DTYPE_F32);
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
    __shared__ double z[MOST_WARPS];
    __shared__ int nans[MOST_WARPS];
    const long long first = (long long)blockIdx.x * p->num_experts;
    if (LANE == 0) {
        z[WARP] = mine->z;
        nans[WARP] = mine->nans;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < p->num_experts; e += 32 * WARPS) {
        double sum = 0;
#pragma unroll 8
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
extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)
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
    long long t = (long long)blockIdx.x * WARPS + WARP;
    float x[PER_LANE];
#if PER_LANE > 8 // no registers for two tokens
    for (; t < p.tokens; t += step) {
        load_logits(x, &p, t);
        take_token(&p, t, x, &sums, keys + WARP * p.num_groups);
    }
#else
    float next[PER_LANE];
    if (t < p.tokens) load_logits(next, &p, t);
    for (; t < p.tokens; t += step) {
        EACH(i) x[i] = next[i];
        if (t + step < p.tokens) load_logits(next, &p, t + step);
        take_token(&p, t, x, &sums, keys + WARP * p.num_groups);
    }
#endif
    if (p.parts.counts != 0) store_part(&p, &sums, shared);
}
