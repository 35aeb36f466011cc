// SPDX-License-Identifier: Apache-2.0
// Routing: a warp takes a token at a time, its logits in registers, one column of 32 a register, and reads the next token's
// meanwhile. What chooses becomes keys that compare as unsigned numbers (moe_route_choice.cuh), so ids are those of the CPU.
// The K chosen logits are read again, one a lane, for the weights. Sums over tokens: a warp adds its tokens' in double in
// shared memory, the block adds its warps' in order and stores a part, moe_route_losses.cu adds the parts.
// Floor: the logits read once, 8 K bytes a token written.
// Limit: instructions.
// Figures: docs/kernels/moe.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time), PER_LANE (columns a lane has at most: a power of 2),
//     HAS_SUMS (0 or 1: outputs that sum over tokens)
#include "ops/moe_route/moe_route_choice.cuh"
#include "ops/moe_route/moe_route_params.h"

// Sums take one large block of a multiprocessor, so that the parts are few.
enum { MOST_THREADS = PER_LANE > 8 || !HAS_SUMS ? 256 : 1024, MOST_WARPS = MOST_THREADS / 32 };
enum { LEAST_BLOCKS = HAS_SUMS || PER_LANE > 8 ? 1 : PER_LANE > 4 ? 4 : 6 };
#define WARPS ((int)(blockDim.x / 32))

extern __shared__ double shared[];

// ---- Logits -----------------------------------------------------------------------------------

// Their bits, as they are in memory: nothing waits for them here.
DEVICE void fetch_logits(unsigned raw[PER_LANE], const struct moe_route_forward_params *p,
                         long long token) {
    const long long at = token * p->logits_stride + LANE;
    if (p->dtype == DTYPE_F32) {
        EACH(i) if (COLUMN(i) < p->num_experts) raw[i] = ((const unsigned *)p->logits)[at + 32 * i];
    } else {
        EACH(i)
        if (COLUMN(i) < p->num_experts) raw[i] = ((const unsigned short *)p->logits)[at + 32 * i];
    }
}

// Columns beyond the row are -inf.
DEVICE void read_logits(float x[PER_LANE], const unsigned raw[PER_LANE],
                        const struct moe_route_forward_params *p) {
    if (p->dtype == DTYPE_F32) {
        EACH(i) x[i] = __uint_as_float(raw[i]);
    } else if (p->dtype == DTYPE_BF16) {
        EACH(i) x[i] = float_of_bf16(raw[i]);
    } else {
        EACH(i) x[i] = float_of_f16(raw[i]);
    }
    EACH(i) if (COLUMN(i) >= p->num_experts) x[i] = -INFINITE;
}

// ---- A token ----------------------------------------------------------------------------------

// Lane k stores the k-th weight, of an expert with logit x. sum, max: of softmax over all experts, where weights need it.
DEVICE void store_weight(const struct moe_route_forward_params *p, long long token, float x,
                         float max, float sum) {
    const int is_here = LANE < p->top_k;
    if (!is_here) x = -INFINITE;
    float w = 0;
    if (p->is_sigmoid) {
        w = moe_sigmoid(x);
        if (p->is_renormalised) sum = __fadd_rn(add_lanes(w), MOE_SIGMOID_SUM);
        if (p->is_renormalised) w = __fdiv_rn(is_here ? w : 1.0f, sum); // 0 is slow to divide
    } else {
        if (p->is_renormalised) max = max_lanes(x);
        w = moe_exp(__fadd_rn(x, -max));
        if (p->is_renormalised) sum = add_lanes(w);
        w = share_of(is_here ? w : 1.0f, sum);
    }
    w = __fmul_rn(w, p->scaling);
    if (p->round_dtype == DTYPE_BF16) w = float_of_bf16(pair_to_bf16(w, 0.0f) & 0xffff);
    if (p->round_dtype == DTYPE_F16) w = float_of_f16(pair_to_f16(w, 0.0f) & 0xffff);
    if (is_here) p->weights[token * p->weights_stride + LANE] = w;
}

// A warp's sums over its tokens. probs: the warp's, in shared memory, if there are any; counts likewise.
struct warp_sums {
    double *probs;
    int *counts; // the block's
    double z;
    int nans;
};

// Keys of what chooses. score: where logits do not.
DEVICE void find_keys(unsigned key[PER_LANE], const struct moe_route_forward_params *p,
                      const float x[PER_LANE], const float score[PER_LANE], float sum) {
    if (p->is_exact) {
        EACH(i) key[i] = key_of(x[i]);
    } else {
        EACH(i) {
            float s = score[i], bias = 0;
            if (COLUMN(i) < p->num_experts) {
                if (!p->is_sigmoid) s = share_of(s, sum);
                if (p->bias != 0) bias = p->bias[COLUMN(i)];
            }
            key[i] = key_of(moe_choice(x[i], s, bias));
        }
    }
    EACH(i) if (COLUMN(i) >= p->num_experts) key[i] = 0;
}

// x: the token's logits. No number among them is NaN, nor makes the token NaN. Returns lane k's expert.
DEVICE int route_token(const struct moe_route_forward_params *p, long long token,
                       const float x[PER_LANE], struct warp_sums *sums, unsigned *keys) {
    const int has_probs = (HAS_SUMS && p->parts.probs != 0), is_sigmoid = p->is_sigmoid;
    const int needs_scores = has_probs || !p->is_exact;
    float score[PER_LANE], max = -INFINITE, sum = 0;
    unsigned key[PER_LANE];
    if (p->has_lse || (!is_sigmoid && (needs_scores || !p->is_renormalised))) {
        EACH(i) max = fmaxf(max, x[i]);
        max = max_lanes(max);
        EACH(i) {
            score[i] = moe_exp(__fadd_rn(x[i], -max)); // 0 if max is infinite
            sum = __fadd_rn(sum, score[i]);
        }
        sum = add_lanes(sum);
    }
    if (p->has_lse) {
        const double exact = max == INFINITE ? NOT_A_NUMBER
                             : sum == 0      ? -INFINITE
                                             : (double)max + log_of_sum(sum);
        if (max == INFINITE || sum != 0) sums->z += exact * exact;
        if (LANE == 0 && p->lse != 0) p->lse[token] = (float)exact;
    }
    if (needs_scores && is_sigmoid) EACH(i) score[i] = moe_sigmoid(x[i]);
    if (has_probs) {
        float factor = sum;
        if (is_sigmoid) {
            factor = 0;
            EACH(i) factor += score[i];
            factor = add_lanes(factor) + MOE_SIGMOID_SUM;
        }
        factor = factor == 0 ? 0 : 1 / factor;
        EACH(i) if (COLUMN(i) < p->num_experts) sums->probs[COLUMN(i)] += score[i] * factor;
    }
    find_keys(key, p, x, score, sum);
    if (p->topk_groups < p->num_groups)
        limit_groups(key, keys, p->num_groups, p->topk_groups, p->num_experts / p->num_groups,
                     p->is_group_max);
    const int id = choose(key, p->top_k, p->is_exact && p->dtype != DTYPE_F32);
    float logit = 0;
#if PER_LANE > 4
    if (LANE < p->top_k) logit = load_any(p->logits, token * p->logits_stride + id, p->dtype);
#else
    EACH(i) key[i] = __float_as_uint(x[i]);
    logit = __uint_as_float(bits_of(key, id));
#endif
    store_weight(p, token, logit, max, sum);
    return id;
}

DEVICE void take_token(const struct moe_route_forward_params *p, long long token,
                       const float x[PER_LANE], struct warp_sums *sums, unsigned *keys) {
    int is_nan = 0, id = LANE;
    EACH(i) is_nan |= !(x[i] < INFINITE);
    if (p->is_sigmoid) {
        is_nan = 0;
        EACH(i) is_nan |= x[i] != x[i];
    }
    if (!__any_sync(ALL_LANES, is_nan)) {
        id = route_token(p, token, x, sums, keys);
    } else {
        if (LANE < p->top_k) p->weights[token * p->weights_stride + LANE] = NOT_A_NUMBER;
        if ((HAS_SUMS && p->parts.probs != 0))
            EACH(i) if (COLUMN(i) < p->num_experts) sums->probs[COLUMN(i)] = NOT_A_NUMBER;
        if (LANE == 0 && p->lse != 0) p->lse[token] = NOT_A_NUMBER;
        sums->z = NOT_A_NUMBER;
        sums->nans++;
    }
    if (LANE < p->top_k) p->ids[token * p->ids_stride + LANE] = id;
    if (LANE < p->top_k && HAS_SUMS) atomicAdd(&sums->counts[id], 1);
}

// ---- A block ----------------------------------------------------------------------------------

DEVICE void store_part(const struct moe_route_forward_params *p, const struct warp_sums *mine,
                       const double *probs, int warp) {
    __shared__ double z[MOST_WARPS];
    __shared__ int nans[MOST_WARPS];
    const long long first = (long long)blockIdx.x * p->num_experts;
    if (LANE == 0) {
        z[warp] = mine->z;
        nans[warp] = mine->nans;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < p->num_experts; e += 32 * WARPS) {
        double sum = 0;
#pragma unroll 8
        for (int w = 0; w < WARPS && (HAS_SUMS && p->parts.probs != 0); w++)
            sum += probs[w * p->num_experts + e];
        if ((HAS_SUMS && p->parts.probs != 0)) p->parts.probs[first + e] = sum;
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
extern "C" __global__ void __launch_bounds__(MOST_THREADS, LEAST_BLOCKS)
    moe_route_forward(const struct moe_route_forward_params p) {
    const int has_probs = HAS_SUMS && p.parts.probs != 0, has_limits = p.topk_groups < p.num_groups;
    const int warp = warp_index();
    unsigned *keys = (unsigned *)(shared + (has_probs ? WARPS * p.num_experts : 0));
    int *counts = (int *)(keys + (has_limits ? WARPS * p.num_groups : 0));
    struct warp_sums sums = {shared + warp * p.num_experts, counts, 0, 0};
    if (has_probs)
        for (int e = threadIdx.x; e < WARPS * p.num_experts; e += 32 * WARPS) shared[e] = 0;
    if (HAS_SUMS)
        for (int e = threadIdx.x; e < p.num_experts; e += 32 * WARPS) counts[e] = 0;
    __syncthreads();
    begin_early();
    const long long step = (long long)gridDim.x * WARPS;
    long long t = (long long)blockIdx.x * WARPS + warp;
    unsigned raw[PER_LANE];
    float x[PER_LANE];
    EACH(i) raw[i] = 0;
    if (t < p.tokens) fetch_logits(raw, &p, t);
    for (; t < p.tokens; t += step) {
        read_logits(x, raw, &p);
        if (t + step < p.tokens) fetch_logits(raw, &p, t + step);
        take_token(&p, t, x, &sums, keys + warp * p.num_groups);
    }
    if (HAS_SUMS) store_part(&p, &sums, shared, warp);
}
