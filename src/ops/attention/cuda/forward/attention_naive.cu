// SPDX-License-Identifier: Apache-2.0
// The baseline that attention is measured against: a matrix of all scores in memory, (batch, num_heads_q, seqlen_q, seqlen_k) in
// fp32, in three launches of this kernel. Scores; softmax, a warp a row; product with the values.
// Floor: that of attention_flash1.cu; the matrix is written twice and read twice on top, 16 bytes a score.
// Figures: docs/kernels/attention_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM (256), BLOCK_N (attention_fma.cuh)
#include "ops/attention/cuda/attention_fma.cuh"

// Row of query i of a head in the matrix, and index of its sum.
DEVICE long long row_of(const struct attention_params *p, int batch, int head, int i) {
    return ((long long)batch * p->num_heads_q + head) * p->seqlen_q + i;
}

DEVICE void find_scores(const struct attention_forward_params *f, const struct attention_task *t,
                        int j) {
    const struct attention_params *p = &f->p;
    int num_rows = t->s.len_q - t->first, kv_head = t->kv_head;
    float *q = shared_floats, *k = q + BLOCK_M * PITCH, s[ROWS][KEYS];
    load_rows(q, BLOCK_M, &p->q, attention_at(&p->q, t->batch, t->s.q_first + t->first, t->head),
              num_rows, p->head_dim, f->is_aligned);
    load_rows(k, BLOCK_N, &p->k, attention_at(&p->k, t->batch, t->s.k_first + j, kv_head),
              t->s.len_k - j, p->head_dim, f->is_aligned);
    copy_commit();
    COPY_WAIT(0);
    __syncthreads();
    multiply_keys(s, q, k, p->head_dim);
    EACH_ROW(r) {
        int i = t->first + FIRST_ROW + r;
        if (i >= t->s.len_q) continue;
        int begin = attention_first_key(p, &t->s, i), end = attention_end_key(p, &t->s, i);
        struct attention_query query = attention_query_at(p, &t->s, t->batch, t->head, i);
        long long row = row_of(p, t->batch, t->head, i) * p->seqlen_k;
        EACH_KEY(c) {
            int key = j + THREAD_X + 16 * c;
            float unused;
            if (key >= begin && key < end)
                f->scores[row + key] =
                    attention_score(p, &query, key, s[r][c] * p->softmax_scale, &unused);
        }
    }
}

// Turns scores of a row into weights, with UNSEEN for unseen keys.
DEVICE void find_weights(const struct attention_forward_params *f, long long index) {
    const struct attention_params *p = &f->p;
    int lane = threadIdx.x % 32, i = (int)(index % p->seqlen_q);
    long long of_head = index / p->seqlen_q;
    int batch = (int)(of_head / p->num_heads_q), head = (int)(of_head % p->num_heads_q);
    struct attention_sequence s = attention_sequence_at(p, batch);
    if (i >= s.len_q) return;
    int begin = attention_first_key(p, &s, i), end = attention_end_key(p, &s, i);
    float *row = f->scores + index * p->seqlen_k;
    const float sink = attention_sink_at(p, batch, head), start = sink_maximum(sink);
    float max = start, sum = 0;
    for (int j = begin + lane; j < end; j += 32) max = fmaxf(max, row[j]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, step));
    float zero = max == -INFINITE ? 0 : max;
    for (int j = lane; j < s.len_k; j += 32) {
        float weight = UNSEEN;
        if (j >= begin && j < end) {
            weight = exp2_fast((row[j] - zero) * LOG2_E);
            sum += weight;
            if (p->dropout_threshold != 0 &&
                attention_keep(p, attention_philox(p, batch, head, i, j / 4), j) == 0)
                weight = 0;
        }
        row[j] = weight;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    sum += sink_sum(sink) * exp2_fast((start - zero) * LOG2_E);
    if (lane != 0) return;
    f->sums[index] = sum == 0 ? 0 : sum + sink_trouble(sink);
    if (p->lse != 0)
        p->lse[attention_lse_at(p, batch, head, s.q_first + i)] =
            (sum == 0 ? -INFINITE : max + logf(sum)) + sink_trouble(sink);
}

DEVICE void find_output(const struct attention_forward_params *f, const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    int num_rows = t->s.len_q - t->first, kv_head = t->kv_head;
    float *v = shared_floats, *weights = v + BLOCK_N * PITCH, o[ROWS][4 * COLS];
    long long first_row = row_of(p, t->batch, t->head, t->first);
    EACH_ROW(r)
#pragma unroll
    for (int c = 0; c < 4 * COLS; c++) o[r][c] = 0;
    for (int j = 0; j < t->s.len_k; j += BLOCK_N) {
        load_rows(v, BLOCK_N, &p->v, attention_at(&p->v, t->batch, t->s.k_first + j, kv_head),
                  t->s.len_k - j, p->head_dim_v, f->is_aligned);
        copy_commit();
        for (int at = threadIdx.x; at < BLOCK_M * BLOCK_N; at += THREADS) {
            int row = at / BLOCK_N, key = at % BLOCK_N;
            weights[row * WEIGHT_PITCH + key] =
                row < num_rows && j + key < t->s.len_k
                    ? f->scores[(first_row + row) * p->seqlen_k + j + key]
                    : UNSEEN;
        }
        COPY_WAIT(0);
        __syncthreads();
        multiply_seen_values(o, weights, v, p->head_dim_v);
        __syncthreads();
    }
    EACH_ROW(r) {
        if (FIRST_ROW + r >= num_rows) continue;
        float sum = f->sums[first_row + FIRST_ROW + r];
        store_output(f, t, r, o[r], sum == 0 ? 0 : p->keep_scale / sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention_naive(const __grid_constant__ struct attention_forward_params f) {
    int key_tiles = (f.p.seqlen_k + BLOCK_N - 1) / BLOCK_N;
    for (long long index = blockIdx.x; index < f.num_tasks; index += gridDim.x) {
        struct attention_task *task = SHARED_TASK;
        if (f.phase == 0) {
            int j = (int)(index % key_tiles) * BLOCK_N;
            if (attention_share_task(&f, index / key_tiles, BLOCK_M, task) && j < task->s.len_k)
                find_scores(&f, task, j);
        } else if (f.phase == 1) {
            long long row = index * (THREADS / 32) + threadIdx.x / 32;
            if (row < f.num_heads * f.p.seqlen_q) find_weights(&f, row);
        } else if (attention_share_task(&f, index, BLOCK_M, task)) {
            find_output(&f, task);
        }
    }
}
