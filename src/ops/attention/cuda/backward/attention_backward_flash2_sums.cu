// SPDX-License-Identifier: Apache-2.0
// attention_backward_lse.cu for fp32 beside a bias, over the scores that flash2's kernels compute: among scores of -1e4 those that
// round another way would be off by 1e-3, and the weights would not sum to 1.
// Floor: 4 bytes a row read; rows with a large lse take one product, 2 head_dim FLOPs for each key that they see, three times as
// many in tf32.
// See docs/kernels/attention_backward_cuda.md (a large lse).
#define IS_OF_KEYS 0
#include "ops/attention/cuda/backward/attention_backward_flash2.cuh"
#include "ops/attention/cuda/backward/attention_backward_lse.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward_flash2_sums(const struct attention_backward_params b) {
    extern __shared__ __align__(128) unsigned char memory[]; // queries, keys
    const struct attention_params *p = &b.p;
    const unsigned shared = shared_address(memory);
    const int thread = threadIdx.x;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        const int first = (int)(task % b.num_tiles) * OWNED;
        const int head = (int)(task / b.num_tiles % p->num_heads_q), kv_head = head / p->group;
        const int batch = (int)(task / b.num_tiles / p->num_heads_q);
        const struct attention_sequence s = attention_sequence_at(p, batch);
        if (first >= s.len_q) continue;
        const int end = first + OWNED < s.len_q ? first + OWNED : s.len_q;
        const long long at = statistics_at(&b, &s, batch, head) + first;
        if (!__syncthreads_or(first + thread < end && is_coarse(b.lse[at + thread], IS_F32)))
            continue;
        struct row_sum sums[2 * GROUPS];
#pragma unroll
        for (int n = 0; n < 2 * GROUPS; n++) sums[n].max = -INFINITE, sums[n].sum = 0;
        load_tile(memory, p->q.data, attention_at(&p->q, batch, s.q_first, head), p->q.seq, first,
                  OWNED, s.len_q, p->head_dim, b.is_vector);
        const int last = attention_end_key(p, &s, end - 1);
        for (int key = attention_first_key(p, &s, first) / PASSING * PASSING; key < last;
             key += PASSING) {
            load_tile(memory + OWNED_BYTES, p->k.data,
                      attention_at(&p->k, batch, s.k_first, kv_head), p->k.seq, key, PASSING,
                      s.len_k, p->head_dim, b.is_vector);
            copy_commit();
            COPY_WAIT(0);
            __syncthreads();
            float w[NUM_SCORES][4];
#pragma unroll
            for (int n = 0; n < NUM_SCORES * 4; n++) w[n / 4][n % 4] = 0;
            multiply_rows(w, shared, shared + OWNED_BYTES);
#pragma unroll
            for (int n = 0; n < NUM_SCORES * 4; n++) {
                const int i = first + SCORE_ROW(thread, n / 4, n % 4);
                const int j = key + SCORE_COLUMN(thread, n / 4, n % 4);
                float tangent;
                if (i >= end || j < attention_first_key(p, &s, i) ||
                    j >= attention_end_key(p, &s, i))
                    continue;
                const struct attention_query query = attention_query_at(p, &s, batch, head, i);
                add_score(
                    &sums[n / 4 / HALVES * 2 + n % 4 / 2],
                    attention_score(p, &query, j, w[n / 4][n % 4] * p->softmax_scale, &tangent), 1);
            }
            __syncthreads();
        }
#pragma unroll
        for (int n = 0; n < 2 * GROUPS; n++) {
            const int row = SCORE_ROW(thread, n / 2 * HALVES, n % 2 * 2);
            add_lanes(&sums[n], 4);
            if (thread % 4 == 0 && first + row < end && is_coarse(b.lse[at + row], IS_F32))
                set_lse(&b, sums[n], batch, head, at + row);
        }
        __syncthreads(); // all threads have read lse
    }
}
