// SPDX-License-Identifier: Apache-2.0
// Decode, the simple way: a block for each query of each head, whose four warps go over every fourth key it sees, one at a time.
// Floor: that of attention_decode_mma.cu; the caches are read once for each query head.
// See docs/kernels/attention_decode.md.
// The host defines
//     DTYPE (2, 3, 4)
#include "cuda/device/fp8.cuh"
#include "ops/attention/cuda/decode/attention_decode_device.cuh"

#define WARPS 4
#define COLUMNS 8 // of a lane, of 256
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

struct shared {
    float query[32 * COLUMNS], o[WARPS][32 * COLUMNS], reference[WARPS], sum[WARPS];
};

DEVICE float cached(const struct attention_decode_params *p, const void *row, int c) {
    return HAS_E4M3(p) ? float_of_e4m3(((const unsigned char *)row)[c]) : load(row, c);
}

DEVICE void attend(const struct attention_decode_params *p, const struct attention_sequence *s,
                   int batch, int query, int head, struct shared *shared) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = head / p->a.group;
    int begin = attention_first_key(&p->a, s, query), end = attention_end_key(&p->a, s, query);
    long long at = attention_at(&p->a.q, batch, s->q_first + query, head);
    long long angle = p->cos != 0 ? decode_angle(p, query + s->shift) : 0;
    const unsigned char *tree = decode_tree_of(p, s, batch, query);
    const struct decode_norm norm = decode_norm_of(p, &p->q_norm, p->a.q.data, at);
    float slope = p->a.slopes.data != 0 ? decode_value(p, &p->a.slopes, batch, head) : 0;
    float scale = p->a.softmax_scale * decode_scale_at(p, &p->k_scale, batch, kv_head);
    float reference = -INFINITE, sum = 0, o[COLUMNS];
    EACH(i, COLUMNS) { o[i] = 0; }
    __syncthreads(); // waits for the previous query
    for (int c = threadIdx.x; c < p->a.head_dim; c += 32 * WARPS)
        shared->query[c] = decode_query_element(p, &norm, at, c, angle) * scale;
    __syncthreads();
    for (int j = begin + warp; j < end; j += WARPS) {
        if (tree != 0 && j >= s->shift && tree[j * p->tree_stride[2]] == 0) continue;
        struct decode_row row =
            decode_row_at(p, batch, kv_head, (unsigned)s->k_first + (unsigned)j);
        const void *k = (const void *)row.k, *v = (const void *)row.v;
        float x = 0;
        for (int c = lane; c < p->a.head_dim; c += 32)
            x = fmaf(shared->query[c], cached(p, k, c), x);
        for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
        x = p->a.has_terms ? decode_score(p, slope, j - query - s->shift, x) : x * LOG2_E;
        float top = fmaxf(reference, x), before = decode_weight(reference, top);
        float weight = exp2_fast(x - (top == -INFINITE ? 0 : top));
        reference = top;
        sum = sum * before + weight;
        EACH(i, COLUMNS) {
            int c = lane + 32 * i;
            if (c < p->a.head_dim_v) o[i] = o[i] * before + weight * cached(p, v, c);
        }
    }
    EACH(i, COLUMNS) { shared->o[warp][lane + 32 * i] = o[i]; }
    shared->reference[warp] = reference;
    shared->sum[warp] = sum;
    __syncthreads();
    float top = -INFINITE, all = 0, weight[WARPS], lse;
    EACH(w, WARPS) { top = fmaxf(top, shared->reference[w]); }
    EACH(w, WARPS) {
        weight[w] = decode_weight(shared->reference[w], top);
        all += weight[w] * shared->sum[w];
    }
    float factor = decode_finish(top, all, decode_sink_at(p, head), &lse) *
                   decode_scale_at(p, &p->v_scale, batch, kv_head);
    if (threadIdx.x == 0 && p->a.lse != 0)
        p->a.lse[attention_lse_at(&p->a, batch, head, s->q_first + query)] = lse;
    long long out = attention_at(&p->a.out, batch, s->q_first + query, head);
    for (int c = threadIdx.x; c < p->a.head_dim_v; c += 32 * WARPS) {
        float x = 0;
        EACH(w, WARPS) { x += weight[w] * shared->o[w][c]; }
        store(p->a.out.data, out + c, x * factor);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_decode_naive(const struct attention_decode_params p) {
    __shared__ struct shared shared;
    int num_rows = p.a.num_batches * p.a.seqlen_q * p.a.num_heads_q;
    long long cache_len;
    for (int id = blockIdx.x; id < num_rows; id += gridDim.x) {
        int head, query;
        int rest = decode_divide(id, p.a.num_heads_q, &head);
        int batch = decode_divide(rest, p.a.seqlen_q, &query);
        struct attention_sequence s = decode_sequence_at(&p, batch, &cache_len);
        if (query < s.len_q) attend(&p, &s, batch, query, head, &shared);
    }
}
