// SPDX-License-Identifier: Apache-2.0
// dbias (batch, heads, seqlen_q, seqlen_k, or 1 where bias repeats), for every dtype: a block owns BLOCK x BLOCK elements and goes
// through all batches, heads, queries and keys that add to one of them, in their order, computing their scores anew in fp32: no
// atomics, the same bits in every run. A dimension that bias repeats is summed over in the tile first, by one thread an element.
// Floor: 2 (head_dim + head_dim_v) FLOPs in fp32 for each visible pair of query and key, dbias written once.
// Limit: where bias has one row or one element for everything, blocks are few.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     BLOCK (32 or 16)
#define DEPTH 256
#include "ops/attention/cuda/backward/attention_backward_fma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_bias(const struct attention_backward_params b) {
    extern __shared__ __align__(16) float memory[];
    const struct attention_params *p = &b.p;
    const struct attention_bias_tensor *dbias = &p->dbias;
    int stride = tile_stride(p->head_dim), stride_v = tile_stride(p->head_dim_v);
    float *keys = memory, *values = keys + BLOCK * stride;
    float *queries = values + BLOCK * stride_v, *douts = queries + BLOCK * stride;
    float *grads = douts + BLOCK * stride_v;
    int has_rows = dbias->shape[2] > 1, has_cols = dbias->shape[3] > 1;
    int row_tiles = (dbias->shape[2] + BLOCK - 1) / BLOCK;
    int col_tiles = (dbias->shape[3] + BLOCK - 1) / BLOCK;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        int col = (int)(task % col_tiles) * BLOCK;
        int row = (int)(task / col_tiles % row_tiles) * BLOCK;
        long long rest = task / col_tiles / row_tiles;
        int of_head = (int)(rest % dbias->shape[1]), of_batch = (int)(rest / dbias->shape[1]);
        float sum[EACH][EACH] = {
            {0}}; // of rows TY + 16 a, columns TX + 16 c, or of those that there are
        int first_batch = dbias->shape[0] > 1 ? of_batch : 0;
        int end_batch = dbias->shape[0] > 1 ? of_batch + 1 : p->num_batches;
        int first_head = dbias->shape[1] > 1 ? of_head : 0;
        int end_head = dbias->shape[1] > 1 ? of_head + 1 : p->num_heads_q;
        for (int batch = first_batch; batch < end_batch; batch++) {
            struct attention_sequence s = attention_sequence_at(p, batch);
            int first_i = has_rows ? row : 0, first_j = has_cols ? col : 0;
            int end_i = has_rows && row + BLOCK < s.len_q ? row + BLOCK : s.len_q;
            int end_j = has_cols && col + BLOCK < s.len_k ? col + BLOCK : s.len_k;
            for (int head = first_head; head < end_head; head++)
                for (int i = first_i; i < end_i; i += BLOCK) {
                    int last_i = i + BLOCK < end_i ? i + BLOCK : end_i;
                    int seen = attention_first_key(p, &s, i);
                    int seen_end = attention_end_key(p, &s, last_i - 1);
                    long long at = statistics_at(&b, &s, batch, head) + i;
                    __syncthreads();
                    load_tile(queries, stride, p->q.data,
                              attention_at(&p->q, batch, s.q_first, head), p->q.seq, i, s.len_q,
                              p->head_dim, b.dtype, b.is_vector, 0);
                    load_tile(douts, stride_v, p->dout.data,
                              attention_at(&p->dout, batch, s.q_first, head), p->dout.seq, i,
                              s.len_q, p->head_dim_v, b.dtype, b.is_vector, 0);
                    for (int j = first_j; j < end_j; j += BLOCK) {
                        if (j >= seen_end || j + BLOCK <= seen) continue; // uniform in the block
                        __syncthreads();
                        load_tile(keys, stride, p->k.data,
                                  attention_at(&p->k, batch, s.k_first, head / p->group), p->k.seq,
                                  j, s.len_k, p->head_dim, b.dtype, b.is_vector, 0);
                        load_tile(values, stride_v, p->v.data,
                                  attention_at(&p->v, batch, s.k_first, head / p->group), p->v.seq,
                                  j, s.len_k, p->head_dim_v, b.dtype, b.is_vector, 0);
                        __syncthreads();
                        float w[EACH][EACH], g[EACH][EACH];
                        multiply_rows(w, queries, keys, stride);
                        multiply_rows(g, douts, values, stride_v);
#pragma unroll 1
                        for (int n = 0; n < EACH * EACH;
                             n++) { // one at a time, chosen from registers
                            float score = 0, dp = 0;
#pragma unroll
                            for (int x = 0; x < EACH * EACH; x++)
                                if (x == n)
                                    score = w[x / EACH][x % EACH], dp = g[x / EACH][x % EACH];
                            int r = TY + n / EACH * 16;
                            float grad = pair_at(&b, &s, batch, head, i + r, j + TX + n % EACH * 16,
                                                 score, dp, b.lse[at + r], lse_low_at(&b, at + r),
                                                 b.delta[at + r], 1)
                                             .grad;
#pragma unroll
                            for (int x = 0; x < EACH * EACH; x++)
                                if (x == n) sum[x / EACH][x % EACH] += grad;
                        }
                    }
                }
        }
        // Dimensions that bias repeats: sums over the threads that have a part of an element.
        __syncthreads();
#pragma unroll
        for (int a = 0; a < EACH; a++)
#pragma unroll
            for (int c = 0; c < EACH; c++)
                grads[(TY + 16 * a) * SCORE_STRIDE + TX + 16 * c] = sum[a][c];
        __syncthreads();
        for (int n = threadIdx.x; n < BLOCK * BLOCK; n += THREADS) {
            int r = n / BLOCK, c = n % BLOCK;
            if (row + r >= dbias->shape[2] || col + c >= dbias->shape[3]) continue;
            float total = 0;
            for (int y = has_rows ? r : 0; y < (has_rows ? r + 1 : BLOCK); y++)
                for (int x = has_cols ? c : 0; x < (has_cols ? c + 1 : BLOCK); x++)
                    total += grads[y * SCORE_STRIDE + x];
            store_any(dbias->data,
                      of_batch * dbias->stride[0] + of_head * dbias->stride[1] +
                          (row + r) * dbias->stride[2] + (col + c) * dbias->stride[3],
                      total, b.bias_dtype);
        }
        __syncthreads();
    }
}
