// SPDX-License-Identifier: Apache-2.0
// Beside a bias: rows whose lse is too large for one f32 to hold its digits, as where every key is masked by -1e9, are summed once
// more, in fp32. A block owns BLOCK queries of a head, and does nothing where none of them has such an lse.
#define BLOCK 32
#define DEPTH 128 // of sums over keys, which this kernel has none of
#include "ops/attention/attention_backward_fma.cuh"
#include "ops/attention/attention_backward_lse.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_lse(const struct attention_backward_params b) {
    extern __shared__ __align__(16) float memory[];
    const struct attention_params *p = &b.p;
    const int stride = tile_stride(p->head_dim);
    float *keys = memory, *queries = keys + BLOCK * stride;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        const int first = (int)(task % b.num_tiles) * BLOCK;
        const int head = (int)(task / b.num_tiles % p->num_heads_q), kv_head = head / p->group;
        const int batch = (int)(task / b.num_tiles / p->num_heads_q);
        const struct attention_sequence s = attention_sequence_at(p, batch);
        if (first >= s.len_q) continue;
        const int end = first + BLOCK < s.len_q ? first + BLOCK : s.len_q;
        const long long at = statistics_at(&b, &s, batch, head) + first;
        const int own = first + (int)threadIdx.x;
        if (!__syncthreads_or(own < end &&
                              is_coarse(b.lse[at + threadIdx.x], b.dtype == DTYPE_F32)))
            continue;
        struct row_sum sums[EACH];
#pragma unroll
        for (int a = 0; a < EACH; a++) sums[a].max = -INFINITE, sums[a].sum = 0;
        load_tile(queries, stride, p->q.data, attention_at(&p->q, batch, s.q_first, head), p->q.seq,
                  first, s.len_q, p->head_dim, b.dtype, b.is_vector, 0);
        const int last = attention_end_key(p, &s, end - 1);
        for (int key = attention_first_key(p, &s, first) / BLOCK * BLOCK; key < last;
             key += BLOCK) {
            __syncthreads();
            load_tile(keys, stride, p->k.data, attention_at(&p->k, batch, s.k_first, kv_head),
                      p->k.seq, key, s.len_k, p->head_dim, b.dtype, b.is_vector, 0);
            __syncthreads();
            float w[EACH][EACH];
            multiply_rows(w, queries, keys, stride);
#pragma unroll
            for (int a = 0; a < EACH; a++) {
                const int i = first + TY + 16 * a;
                if (i >= end) continue;
                const struct attention_query query = attention_query_at(p, &s, batch, head, i);
#pragma unroll
                for (int c = 0; c < EACH; c++) {
                    const int j = key + TX + 16 * c;
                    float tangent;
                    if (j < attention_first_key(p, &s, i) || j >= attention_end_key(p, &s, i))
                        continue;
                    add_score(&sums[a],
                              attention_score(p, &query, j, w[a][c] * p->softmax_scale, &tangent),
                              1);
                }
            }
        }
#pragma unroll
        for (int a = 0; a < EACH; a++) {
            const int row = TY + 16 * a; // which 16 lanes next to each other share
            add_lanes(&sums[a], 16);
            if (TX == 0 && first + row < end && is_coarse(b.lse[at + row], b.dtype == DTYPE_F32))
                set_lse(&b, sums[a], batch, head, at + row);
        }
        __syncthreads(); // lse is read by all before the next task
    }
}
