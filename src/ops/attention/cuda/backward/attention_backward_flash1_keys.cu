// SPDX-License-Identifier: Apache-2.0
// dk and dv in fp32 FMAs, for every dtype: a block owns BLOCK keys of a key head and goes through the queries that see one of them,
// head after head of the group.
// Floor: four products, 4 (head_dim + head_dim_v) FLOPs for each visible pair of query and key.
// Limit: a block loads a tile, waits, then multiplies, and registers leave room for one block a multiprocessor.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     DEPTH (128 or 256: columns at most), BLOCK (64, 32 or 16, with DEPTH 256 at most 32)
#include "ops/attention/cuda/backward/attention_backward_fma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_flash1_keys(const struct attention_backward_params b) {
    extern __shared__ __align__(16) float memory[];
    __shared__ float marks[BLOCK];
    const struct attention_params *p = &b.p;
    int stride = tile_stride(p->head_dim), stride_v = tile_stride(p->head_dim_v);
    float *keys = memory, *values = keys + BLOCK * stride;
    float *queries = values + BLOCK * stride_v, *douts = queries + BLOCK * stride;
    float *weights = douts + BLOCK * stride_v, *grads = weights + BLOCK * SCORE_STRIDE;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        int key = (int)(task % b.num_tiles) * BLOCK;
        int kv_head = (int)(task / b.num_tiles % p->num_heads_kv);
        int batch = (int)(task / b.num_tiles / p->num_heads_kv);
        struct attention_sequence s = attention_sequence_at(p, batch);
        int end = p->is_packed ? s.len_k : p->seqlen_k; // unseen keys get 0
        if (key >= end) continue;
        int key_end = key + BLOCK < s.len_k ? key + BLOCK : s.len_k;
        int begin = attention_first_query(p, &s, key) / BLOCK * BLOCK;
        int last = key < key_end ? attention_end_query(p, &s, key_end - 1) : 0;
        float dk[EACH][ACCUMULATED], dv[EACH][ACCUMULATED];
#pragma unroll
        for (int a = 0; a < EACH; a++)
#pragma unroll
            for (int c = 0; c < ACCUMULATED; c++) dk[a][c] = dv[a][c] = 0;
        load_tile(keys, stride, p->k.data, attention_at(&p->k, batch, s.k_first, kv_head), p->k.seq,
                  key, s.len_k, p->head_dim, b.dtype, b.is_vector, 0);
        load_tile(values, stride_v, p->v.data, attention_at(&p->v, batch, s.k_first, kv_head),
                  p->v.seq, key, s.len_k, p->head_dim_v, b.dtype, b.is_vector, 0);
        for (int head = kv_head * p->group; head < (kv_head + 1) * p->group; head++)
            for (int first = begin; first < last; first += BLOCK) {
                long long at = statistics_at(&b, &s, batch, head) + first;
                if (threadIdx.x < BLOCK) marks[threadIdx.x] = 0;
                __syncthreads();
                load_tile(queries, stride, p->q.data, attention_at(&p->q, batch, s.q_first, head),
                          p->q.seq, first, s.len_q, p->head_dim, b.dtype, b.is_vector, marks);
                load_tile(douts, stride_v, p->dout.data,
                          attention_at(&p->dout, batch, s.q_first, head), p->dout.seq, first,
                          s.len_q, p->head_dim_v, b.dtype, b.is_vector, marks);
                __syncthreads();
                float w[EACH][EACH], g[EACH][EACH];
                multiply_rows(w, queries, keys, stride);
                multiply_rows(g, douts, values, stride_v);
#pragma unroll 1
                for (int a = 0; a < EACH; a++) {
                    int row = TY + 16 * a;
                    float lse = b.lse[at + row] + marks[row], delta = b.delta[at + row];
                    const float lse_low = lse_low_at(&b, at + row);
#pragma unroll
                    for (int c = 0; c < EACH; c++) {
                        float score = w[0][c], dp = g[0][c];
#pragma unroll
                        for (int x = 1; x < EACH; x++)
                            if (x == a) score = w[x][c], dp = g[x][c];
                        struct attention_pair pair =
                            pair_at(&b, &s, batch, head, first + row, key + TX + 16 * c, score, dp,
                                    lse, lse_low, delta, 0);
                        weights[row * SCORE_STRIDE + TX + 16 * c] = pair.weight;
                        grads[row * SCORE_STRIDE + TX + 16 * c] = pair.grad;
                    }
                }
                __syncthreads();
                if (p->dv.data != 0) accumulate(dv, weights, douts, stride_v);
                if (p->dk.data != 0) accumulate(dk, grads, queries, stride);
                __syncthreads();
            }
        if (p->dk.data != 0)
            store_rows(dk, p->softmax_scale, p->dk.data,
                       attention_at(&p->dk, batch, s.k_first, kv_head), p->dk.seq, key, s.len_k,
                       end, p->head_dim, b.dtype);
        if (p->dv.data != 0)
            store_rows(dv, 1, p->dv.data, attention_at(&p->dv, batch, s.k_first, kv_head),
                       p->dv.seq, key, s.len_k, end, p->head_dim_v, b.dtype);
        __syncthreads();
    }
}
