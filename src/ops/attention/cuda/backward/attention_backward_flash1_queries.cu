// SPDX-License-Identifier: Apache-2.0
// dq in fp32 FMAs, for every dtype: a block owns BLOCK queries of a head and goes through the keys that one of them sees.
// Floor: three products, 4 head_dim + 2 head_dim_v FLOPs for each visible pair of query and key.
// Limit: as attention_backward_flash1_keys.cu.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     DEPTH (128 or 256: columns at most), BLOCK (64, 32 or 16, with DEPTH 256 at most 32)
#include "ops/attention/cuda/backward/attention_backward_fma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_flash1_queries(const struct attention_backward_params b) {
    extern __shared__ __align__(16) float memory[];
    __shared__ float marks[BLOCK];
    const struct attention_params *p = &b.p;
    int stride = tile_stride(p->head_dim), stride_v = tile_stride(p->head_dim_v);
    float *keys = memory, *values = keys + BLOCK * stride;
    float *queries = values + BLOCK * stride_v, *douts = queries + BLOCK * stride;
    float *grads = douts + BLOCK * stride_v;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        int first = (b.num_tiles - 1 - (int)(task % b.num_tiles)) * BLOCK;
        int head = (int)(task / b.num_tiles % p->num_heads_q), kv_head = head / p->group;
        int batch = (int)(task / b.num_tiles / p->num_heads_q);
        struct attention_sequence s = attention_sequence_at(p, batch);
        if (first >= s.len_q) continue;
        int end = first + BLOCK < s.len_q ? first + BLOCK : s.len_q;
        int begin = attention_first_key(p, &s, first) / BLOCK * BLOCK;
        int last = attention_end_key(p, &s, end - 1);
        long long at = statistics_at(&b, &s, batch, head) + first;
        float dq[EACH][ACCUMULATED];
#pragma unroll
        for (int a = 0; a < EACH; a++)
#pragma unroll
            for (int c = 0; c < ACCUMULATED; c++) dq[a][c] = 0;
        load_tile(queries, stride, p->q.data, attention_at(&p->q, batch, s.q_first, head), p->q.seq,
                  first, s.len_q, p->head_dim, b.dtype, b.is_vector, 0);
        load_tile(douts, stride_v, p->dout.data, attention_at(&p->dout, batch, s.q_first, head),
                  p->dout.seq, first, s.len_q, p->head_dim_v, b.dtype, b.is_vector, 0);
        for (int key = begin; key < last; key += BLOCK) {
            if (threadIdx.x < BLOCK) marks[threadIdx.x] = 0;
            __syncthreads();
            load_tile(keys, stride, p->k.data, attention_at(&p->k, batch, s.k_first, kv_head),
                      p->k.seq, key, s.len_k, p->head_dim, b.dtype, b.is_vector, marks);
            load_tile(values, stride_v, p->v.data, attention_at(&p->v, batch, s.k_first, kv_head),
                      p->v.seq, key, s.len_k, p->head_dim_v, b.dtype, b.is_vector, 0);
            __syncthreads();
            float w[EACH][EACH], g[EACH][EACH];
            multiply_rows(w, queries, keys, stride);
            multiply_rows(g, douts, values, stride_v);
#pragma unroll 1
            for (int a = 0; a < EACH; a++) {
                int row = TY + 16 * a;
                float lse = b.lse[at + row], delta = b.delta[at + row];
                const float lse_low = lse_low_at(&b, at + row);
#pragma unroll
                for (int c = 0; c < EACH; c++) {
                    float score = w[0][c], dp = g[0][c];
#pragma unroll
                    for (int x = 1; x < EACH; x++)
                        if (x == a) score = w[x][c], dp = g[x][c];
                    int col = TX + 16 * c;
                    grads[col * SCORE_STRIDE + row] =
                        pair_at(&b, &s, batch, head, first + row, key + col, score + marks[col], dp,
                                lse, lse_low, delta, 0)
                            .grad;
                }
            }
            __syncthreads();
            accumulate(dq, grads, keys, stride);
            __syncthreads();
        }
        store_rows(dq, p->softmax_scale, p->dq.data, attention_at(&p->dq, batch, s.q_first, head),
                   p->dq.seq, first, s.len_q, s.len_q, p->head_dim, b.dtype);
        __syncthreads();
    }
}
