// SPDX-License-Identifier: Apache-2.0
// Beside a bias: rows whose lse is too large for one f32 to hold its digits, as where every key is masked by -1e9, are summed once
// more, in fp32. A block looks at 128 queries of a head, and goes through those BLOCK of them of which one has such an lse.
// Floor: 4 bytes a row read; rows that are summed take one product, 2 head_dim FLOPs for each key that they see.
// Limit: where no lse is large, the launch.
// Figures: docs/kernels/attention_backward_cuda.md.
#define BLOCK 32
#define DEPTH 128 // for sums over keys, which this kernel does not have
#include "ops/attention/cuda/backward/attention_backward_fma.cuh"
#include "ops/attention/cuda/backward/attention_backward_lse.cuh"

// Sums rows [first, first + BLOCK) of a head again.
DEVICE void sum_tile(const struct attention_backward_params *b, const struct attention_sequence *s,
                     int batch, int head, int kv_head, int first, float *memory) {
    const struct attention_params *p = &b->p;
    const int stride = tile_stride(p->head_dim);
    float *keys = memory, *queries = keys + BLOCK * stride;
    const int end = first + BLOCK < s->len_q ? first + BLOCK : s->len_q;
    const long long at = statistics_at(b, s, batch, head) + first;
    struct row_sum sums[EACH];
#pragma unroll
    for (int a = 0; a < EACH; a++) sums[a].max = -INFINITE, sums[a].sum = 0;
    load_tile(queries, stride, p->q.data, attention_at(&p->q, batch, s->q_first, head), p->q.seq,
              first, s->len_q, p->head_dim, b->dtype, b->is_vector, 0);
    const int last = attention_end_key(p, s, end - 1);
    for (int key = attention_first_key(p, s, first) / BLOCK * BLOCK; key < last; key += BLOCK) {
        __syncthreads();
        load_tile(keys, stride, p->k.data, attention_at(&p->k, batch, s->k_first, kv_head),
                  p->k.seq, key, s->len_k, p->head_dim, b->dtype, b->is_vector, 0);
        __syncthreads();
        float w[EACH][EACH];
        multiply_rows(w, queries, keys, stride);
#pragma unroll
        for (int a = 0; a < EACH; a++) {
            const int i = first + TY + 16 * a;
            if (i >= end) continue;
            const struct attention_query query = attention_query_at(p, s, batch, head, i);
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                const int j = key + TX + 16 * c;
                float tangent;
                if (j < attention_first_key(p, s, i) || j >= attention_end_key(p, s, i)) continue;
                add_score(&sums[a],
                          attention_score(p, &query, j, w[a][c] * p->softmax_scale, &tangent), 1);
            }
        }
    }
#pragma unroll
    for (int a = 0; a < EACH; a++) {
        const int row = TY + 16 * a; // shared by 16 adjacent lanes
        add_lanes(&sums[a], 16);
        if (TX == 0 && first + row < end && is_coarse(b->lse[at + row], b->dtype == DTYPE_F32))
            set_lse(b, sums[a], batch, head, at + row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_lse(const struct attention_backward_params b) {
    extern __shared__ __align__(16) float memory[];
    const struct attention_params *p = &b.p;
    begin_early();
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        const int begin = (int)(task % b.num_tiles) * ATTENTION_STATISTIC_ROWS;
        const int head = (int)(task / b.num_tiles % p->num_heads_q), kv_head = head / p->group;
        const int batch = (int)(task / b.num_tiles / p->num_heads_q);
        const struct attention_sequence s = attention_sequence_at(p, batch);
        const long long statistics = statistics_at(&b, &s, batch, head);
        const int own = begin + (int)threadIdx.x;
        const int is_own = threadIdx.x < ATTENTION_STATISTIC_ROWS && own < s.len_q &&
                           is_coarse(b.lse[statistics + own], b.dtype == DTYPE_F32);
        if (!__syncthreads_or(is_own)) continue;
        for (int first = begin; first < begin + ATTENTION_STATISTIC_ROWS && first < s.len_q;
             first += BLOCK) {
            if (__syncthreads_or(is_own && own >= first && own < first + BLOCK))
                sum_tile(&b, &s, batch, head, kv_head, first, memory);
        }
    }
}
