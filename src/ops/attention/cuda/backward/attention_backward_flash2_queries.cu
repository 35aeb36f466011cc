// SPDX-License-Identifier: Apache-2.0
// dq on tensor cores (mma.sync): a block owns queries of a head and goes through the keys that one of them sees.
// attention_backward_flash2.cuh has the tiles and the macros.
// Floor: three products, 4 head_dim + 2 head_dim_v FLOPs for each visible pair of query and key, in fp32 three times as many in
// tf32.
// Limit: every warp reads all that passes by from shared memory.
// Figures: docs/kernels/attention_backward_cuda.md, in fp32 docs/kernels/attention_cuda_fp32.md.
#define IS_OF_KEYS 0
#include "ops/attention/cuda/backward/attention_backward_flash2.cuh"

// Shared memory: queries, dout, two stages of keys and values each, marks of keys, scratch memory of weigh_features.
#define DOUTS OWNED_BYTES
#define KEYS (2 * OWNED_BYTES)
#define VALUES (KEYS + 2 * PASSING_BYTES)
#define MARKS (VALUES + 2 * PASSING_BYTES)
#define SCRATCH (MARKS + 4 * PASSING * 4)
#define KEEPS_OPERANDS (HEAD_DIM == 64 && !IS_F32) // of queries and dout, in registers

// The statistics of a lane's rows.
struct rows {
    float lse[2 * GROUPS], delta[2 * GROUPS];
};

// Turns scores w and g = dout v of the nth 16 keys into gradients of the scores, as a operands. Rows are queries, columns are
// keys. far: distance from the first query's diagonal to the tile's first key. left: keys that the tile has. marks: of keys, or 0.
DEVICE void weigh(const struct attention_backward_params *b, const struct rows *rows, int far,
                  int left, int is_edge, const float *marks, int n, const float w[][4],
                  const float g[][4], operands grads) {
    float scale = b->p.softmax_scale * LOG2_E;
    int thread = thread_now();
#pragma unroll
    for (int i = 0; i < GROUPS * 4; i++) {
        int tile = i / 4 * HALVES + 2 * n + i % 4 / 2, row = i / 4 * 2 + i % 2;
        float lse2 = rows->lse[row] * LOG2_E, grad[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int at = i % 2 * 2 + c, j = SCORE_COLUMN(thread, tile, at);
            int here = far + j - SCORE_ROW(thread, tile, at);
            grad[c] = exp2_fast(w[tile][at] * scale - lse2) * (g[tile][at] - rows->delta[row]);
            if (!is_edge) continue;
            if (marks != 0) grad[c] += marks[j];
            if (here < -b->p.window_left || here > b->p.window_right || j >= left) grad[c] = 0;
        }
        set_pair(grads[i / 4], i % 4, grad[0], grad[1]);
    }
}

// The same for all keys with all features, one element at a time in shared memory: unrolled, this would need more registers than
// there are.
DEVICE void weigh_features(const struct attention_backward_params *b,
                           const struct attention_sequence *s, int batch, int head, int first,
                           int key, const float *marks, float *scratch, const float w[][4],
                           const float g[][4]) {
    const struct attention_params *p = &b->p;
    int thread = thread_now();
    float *scores = scratch + thread, *dps = scores + NUM_SCORES * 4 * THREADS;
    long long at = statistics_at(b, s, batch, head);
    keep_scores(scores, w);
    keep_scores(dps, g);
#pragma unroll 1
    for (int n = 0; n < NUM_SCORES * 4; n++) {
        int i = first + SCORE_ROW(thread, n / 4, n % 4);
        int col = SCORE_COLUMN(thread, n / 4, n % 4), j = key + col, far = j - i - s->shift;
        float grad = 0;
        if (j < s->len_k && i < s->len_q && far >= -p->window_left && far <= p->window_right) {
            struct attention_query query = attention_query_at(p, s, batch, head, i);
            float keep = 1;
            if (p->dropout_threshold != 0)
                keep = attention_keep(p, attention_philox(p, batch, head, i, j >> 2), j);
            grad =
                attention_pair_of(p, &query, j, scores[n * THREADS], dps[n * THREADS],
                                  b->lse[at + i], lse_low_at(b, at + i), b->delta[at + i], keep, 0)
                    .grad;
            if (marks != 0) grad += marks[col];
        }
        dps[n * THREADS] = grad;
    }
}

// The task of a block, in shared memory as the registers are full. One thread sets it.
struct work {
    long long index; // of the task
    struct attention_sequence s;
    int batch, head, first, end; // queries
    int begin, last;             // keys
    int full_begin, full_end;    // keys that every query sees
    long long k_at, v_at;
};

DEVICE void set_work(const struct attention_backward_params *b, struct work *w) {
    const struct attention_params *p = &b->p;
    // Under a causal mask the last queries see the most keys, so they come first.
    w->first = (b->num_tiles - 1 - (int)(w->index % b->num_tiles)) * OWNED;
    w->head = (int)(w->index / b->num_tiles % p->num_heads_q);
    w->batch = (int)(w->index / b->num_tiles / p->num_heads_q);
    w->s = attention_sequence_at(p, w->batch);
    w->end = w->first + OWNED < w->s.len_q ? w->first + OWNED : w->s.len_q;
    w->begin = attention_first_key(p, &w->s, w->first) / PASSING * PASSING;
    w->last = attention_end_key(p, &w->s, w->end - 1);
    w->full_begin = attention_first_key(p, &w->s, w->end - 1);
    w->full_end = attention_end_key(p, &w->s, w->first);
    w->k_at = attention_at(&p->k, w->batch, w->s.k_first, w->head / p->group);
    w->v_at = attention_at(&p->v, w->batch, w->s.k_first, w->head / p->group);
}

DEVICE void load_keys(const struct attention_backward_params *b, const struct work *work, int key,
                      unsigned char *to) {
    const struct attention_params *p = &b->p;
    load_tile(to, p->k.data, work->k_at, p->k.seq, key, PASSING, work->s.len_k, p->head_dim,
              b->is_vector);
    load_tile(to + (VALUES - KEYS), p->v.data, work->v_at, p->v.seq, key, PASSING, work->s.len_k,
              p->head_dim_v, b->is_vector);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward_flash2_queries(const struct attention_backward_params b) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ struct work work;
    const struct attention_params *p = &b.p;
    const struct attention_sequence *s = &work.s;
    unsigned shared = shared_address(memory);
    float *marks = (float *)(memory + MARKS);
    if (threadIdx.x == 0) work.index = blockIdx.x;
    __syncthreads();
    while (work.index < b.num_tasks) {
        if (threadIdx.x == 0) set_work(&b, &work);
        __syncthreads();
        int has_features = HAS_FEATURES && (p->has_terms || p->dropout_threshold != 0);
        int num_steps = 0;
        if (work.first < s->len_q && work.last > work.begin)
            num_steps = (work.last - work.begin + PASSING - 1) / PASSING;
        struct rows rows;
        float dq[NUM_SUMS][4];
#if KEEPS_OPERANDS
        unsigned queries[STEPS][GROUPS][4], douts[STEPS][GROUPS][4];
#endif
#pragma unroll
        for (int n = 0; n < NUM_SUMS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) dq[n][c] = 0;
        if (num_steps > 0) {
            long long at = statistics_at(&b, s, work.batch, work.head) + work.first;
#pragma unroll
            for (int n = 0; n < 2 * GROUPS; n++) {
                int row = SCORE_ROW((int)threadIdx.x, n / 2 * HALVES, n % 2 * 2);
                rows.lse[n] = b.lse[at + row];
                rows.delta[n] = b.delta[at + row];
            }
            load_tile(memory, p->q.data, attention_at(&p->q, work.batch, s->q_first, work.head),
                      p->q.seq, work.first, OWNED, s->len_q, p->head_dim, b.is_vector);
            load_tile(memory + DOUTS, p->dout.data,
                      attention_at(&p->dout, work.batch, s->q_first, work.head), p->dout.seq,
                      work.first, OWNED, s->len_q, p->head_dim_v, b.is_vector);
            load_keys(&b, &work, work.begin, memory + KEYS);
        }
        copy_commit();
        for (int n = 0; n < num_steps; n++) {
            int stage = (n & 1) * PASSING_BYTES, key = work.begin + n * PASSING;
            COPY_WAIT(0);
            __syncthreads();
            if (n + 1 < num_steps)
                load_keys(&b, &work, key + PASSING, memory + KEYS + (PASSING_BYTES - stage));
            copy_commit();

            unsigned char *keys = memory + KEYS + stage;
            int is_edge = has_features || key < work.full_begin || key + PASSING > work.full_end;
            int has_marks = is_edge && __syncthreads_or(search_tile(keys));
            if (has_marks) {
                if (threadIdx.x < PASSING) marks[threadIdx.x] = 0;
                __syncthreads();
                clean_tile(keys, marks);
                __syncthreads();
            }

            float w[NUM_SCORES][4], g[NUM_SCORES][4];
#pragma unroll
            for (int i = 0; i < NUM_SCORES; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) w[i][c] = g[i][c] = 0;
#if KEEPS_OPERANDS
            unsigned at = lane_at();
#pragma unroll
            for (int i = 0; i < STEPS && n == 0; i++) {
                load_operands(queries[i], shared, at, i);
                load_operands(douts[i], shared + DOUTS, at, i);
            }
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                multiply_step(w, queries[i], shared + KEYS + stage, at, i);
                multiply_step(g, douts[i], shared + VALUES + stage, at, i);
            }
#else
            multiply_rows(w, shared, shared + KEYS + stage);
            multiply_rows(g, shared + DOUTS, shared + VALUES + stage);
#endif
            // Computes gradients of some keys, then their product: exponentials run during the previous products.
            unsigned lanes_at = column_at(), of_keys = shared + KEYS + stage;
            const float *marked = has_marks ? marks : 0;
            float *dps = (float *)(memory + SCRATCH) + NUM_SCORES * 4 * THREADS + threadIdx.x;
            if (has_features)
                weigh_features(&b, s, work.batch, work.head, work.first, key, marked,
                               (float *)(memory + SCRATCH), w, g);
#define SPREAD(make_operands)                                                                      \
    _Pragma("unroll") for (int i = 0; i < HALVES / 2; i++) {                                       \
        operands grads;                                                                            \
        make_operands;                                                                             \
        accumulate_step(dq, grads, of_keys, lanes_at, i);                                          \
    }
            if (has_features) {
                SPREAD(take_weights(dps, i, grads))
            } else if (is_edge) {
                int far = key - work.first - s->shift, left = s->len_k - key;
                SPREAD(weigh(&b, &rows, far, left, 1, marked, i, w, g, grads))
            } else {
                SPREAD(weigh(&b, &rows, 0, 0, 0, 0, i, w, g, grads))
            }
        }
        COPY_WAIT(0);
        __syncthreads();
        if (work.first < s->len_q)
            store_rows(dq, p->softmax_scale, memory, p->dq.data,
                       attention_at(&p->dq, work.batch, s->q_first, work.head), p->dq.seq,
                       work.first, s->len_q, s->len_q, p->head_dim, b.is_vector);
        __syncthreads();
        if (threadIdx.x == 0) work.index += gridDim.x;
        __syncthreads();
    }
}
