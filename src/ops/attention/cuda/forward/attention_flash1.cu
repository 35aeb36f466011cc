// SPDX-License-Identifier: Apache-2.0
// Attention's forward, out = softmax(scale q k^T + terms) v, in fp32 FMAs with any dtype, head and alignment, after FlashAttention
// (Dao et al., arXiv:2205.14135): tiles of scores that never leave the multiprocessor, a running maximum and sum of each query. A
// block has 64 queries of a head and goes over the keys; keys and then values of a tile use the same shared memory.
// Floor: two products, 2 (head_dim + head_dim_v) FLOPs in fp32 for each visible pair of query and key, and an exponential.
// Figures: docs/kernels/attention_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM, BLOCK_N (attention_fma.cuh)
#include "ops/attention/cuda/attention_fma.cuh"

DEVICE float max_of_row(float x) {
#pragma unroll
    for (int i = 8; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
DEVICE float sum_of_row(float x) {
#pragma unroll
    for (int i = 8; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

// The address of key c of row r among the weights of this thread. Rare work goes over these in short loops: straight code for 32
// scores would be long, and a small problem would spend its time on fetching it.
#define OWN(r, c) ((FIRST_ROW + (r)) * WEIGHT_PITCH + THREAD_X + 16 * (c))

DEVICE void modify_own(const struct attention_params *p, const struct attention_task *t, int j,
                       float *scores) {
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        int i = t->first + FIRST_ROW + r;
        if (i >= t->s.len_q) return;
        int begin = attention_first_key(p, &t->s, i), end = attention_end_key(p, &t->s, i);
        struct attention_query query = attention_query_at(p, &t->s, t->batch, t->head, i);
#pragma unroll 1
        for (int c = 0; c < KEYS; c++) {
            int key = j + THREAD_X + 16 * c;
            float *x = scores + OWN(r, c), unused;
            if (key >= begin && key < end) *x = attention_score(p, &query, key, *x, &unused);
        }
    }
}

// UNSEEN is not changed.
DEVICE void drop_own(const struct attention_params *p, const struct attention_task *t, int j,
                     float *weights) {
#pragma unroll 1
    for (int at = 0; at < ROWS * KEYS; at++) {
        int r = at / KEYS, c = at % KEYS, i = t->first + FIRST_ROW + r;
        int key = j + THREAD_X + 16 * c;
        uint4 words = attention_philox(p, t->batch, t->head, i, key / 4);
        float *x = weights + OWN(r, c);
        if (attention_keep(p, words, key) == 0 && !(*x < 0)) *x = 0;
    }
}

DEVICE void attend(const struct attention_forward_params *f, const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    int num_rows = t->s.len_q - t->first, kv_head = t->kv_head;
    float *q = shared_floats, *kv = q + BLOCK_M * PITCH, *weights = kv + BLOCK_N * PITCH;
    float o[ROWS][4 * COLS], max[ROWS], sum[ROWS];
    const float sink = attention_sink_at(p, t->batch, t->head);
    EACH_ROW(r) {
        max[r] = sink_maximum(sink);
        sum[r] = THREAD_X == 0 ? sink_sum(sink) : 0.0f;
#pragma unroll
        for (int c = 0; c < 4 * COLS; c++) o[r][c] = 0;
    }
    load_rows(q, BLOCK_M, &p->q, attention_at(&p->q, t->batch, t->s.q_first + t->first, t->head),
              num_rows, p->head_dim, f->is_aligned);
    copy_commit(); // its own group, so that the wait works without a tile

    for (int j = t->begin / BLOCK_N * BLOCK_N; j < t->end; j += BLOCK_N) {
        float s[ROWS][KEYS];
        load_rows(kv, BLOCK_N, &p->k, attention_at(&p->k, t->batch, t->s.k_first + j, kv_head),
                  t->s.len_k - j, p->head_dim, f->is_aligned);
        copy_commit();
        COPY_WAIT(0);
        __syncthreads();
        multiply_keys(s, q, kv, p->head_dim);
        __syncthreads();
        load_rows(kv, BLOCK_N, &p->v, attention_at(&p->v, t->batch, t->s.k_first + j, kv_head),
                  t->s.len_k - j, p->head_dim_v, f->is_aligned);
        copy_commit();

        EACH_ROW(r) EACH_KEY(c) s[r][c] *= p->softmax_scale;
        if (p->has_terms) {
            EACH_ROW(r) EACH_KEY(c) weights[OWN(r, c)] = s[r][c];
            modify_own(p, t, j, weights);
            EACH_ROW(r) EACH_KEY(c) s[r][c] = weights[OWN(r, c)];
        }
        EACH_ROW(r) {
            int i = t->first + FIRST_ROW + r, begin = attention_first_key(p, &t->s, i),
                end = i < t->s.len_q ? attention_end_key(p, &t->s, i) : begin;
            float top = -INFINITE;
            EACH_KEY(c) {
                int key = j + THREAD_X + 16 * c;
                if (key < begin || key >= end) s[r][c] = -INFINITE;
                top = fmaxf(top, s[r][c]);
            }
            top = fmaxf(max_of_row(top), max[r]);
            float zero = top == -INFINITE ? 0 : top;
            float alpha = exp2_fast((max[r] - zero) * LOG2_E), more = 0;
            max[r] = top;
            EACH_KEY(c) {
                int key = j + THREAD_X + 16 * c;
                float weight = exp2_fast((s[r][c] - zero) * LOG2_E);
                more += weight;
                weights[OWN(r, c)] = key < begin || key >= end ? UNSEEN : weight;
            }
            sum[r] = sum[r] * alpha + more;
#pragma unroll
            for (int c = 0; c < 4 * COLS; c++) o[r][c] *= alpha;
        }
        if (p->dropout_threshold != 0) drop_own(p, t, j, weights);
        COPY_WAIT(0);
        __syncthreads();
        if (attention_sees_all(f, t, BLOCK_M, j, j + BLOCK_N) && num_rows >= BLOCK_M)
            multiply_values(o, weights, kv, p->head_dim_v);
        else
            multiply_seen_values(o, weights, kv, p->head_dim_v);
        __syncthreads();
    }
    COPY_WAIT(0);

    EACH_ROW(r) {
        int row = FIRST_ROW + r;
        float total = sum_of_row(sum[r]);
        if (row >= num_rows) continue;
        store_output(f, t, r, o[r], total == 0 ? 0 : p->keep_scale / total + sink_trouble(sink));
        if (p->lse != 0 && THREAD_X == 0)
            p->lse[attention_lse_at(p, t->batch, t->head, t->s.q_first + t->first + row)] =
                (total == 0 ? -INFINITE : max[r] + logf(total)) + sink_trouble(sink);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 64 ? 3 : 2)
    attention_flash1(const __grid_constant__ struct attention_forward_params f) {
    EACH_TASK(&f, BLOCK_M, SHARED_TASK) attend(&f, SHARED_TASK);
}
