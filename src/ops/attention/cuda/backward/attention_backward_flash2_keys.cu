// SPDX-License-Identifier: Apache-2.0
// dk and dv on tensor cores (mma.sync): a block owns keys of a key head and goes through the queries that see one of them, head
// after head of the group. With 256 columns (fp32: 128) a block has registers for one of the two gradients: blocks of odd number
// compute dv then, those of even number dk. attention_backward_flash2.cuh has the tiles and the macros.
// Floor: four products, 4 (head_dim + head_dim_v) FLOPs for each visible pair of query and key, in fp32 three times as many in
// tf32.
// Limit: every warp reads all that passes by from shared memory.
// Figures: docs/kernels/attention_backward_cuda.md, in fp32 docs/kernels/attention_cuda_fp32.md.
#define IS_OF_KEYS 1
#include "cuda/device/block.cuh"
#include "ops/attention/cuda/backward/attention_backward_flash2.cuh"

// Shared memory: keys, values, two stages of queries and dout each, two stages of lse and delta, scratch memory of weigh_features.
#define VALUES OWNED_BYTES
#define QUERIES (2 * OWNED_BYTES)
#define DOUTS (QUERIES + 2 * PASSING_BYTES)
#define STATISTICS (DOUTS + 2 * PASSING_BYTES)
#define SCRATCH (STATISTICS + 4 * PASSING * 4)
#define HAS_ONE FLASH2_HAS_ONE(HEAD_DIM, IS_F32)

// The head and first query of a step.
struct step {
    int head, first; // query
};

DEVICE void load_step(const struct attention_backward_params *b, const struct attention_sequence *s,
                      int batch, struct step step, unsigned char *memory, int stage) {
    const struct attention_params *p = &b->p;
    load_tile(memory + QUERIES + stage * PASSING_BYTES, p->q.data,
              attention_at(&p->q, batch, s->q_first, step.head), p->q.seq, step.first, PASSING,
              s->len_q, p->head_dim, b->is_vector);
    load_tile(memory + DOUTS + stage * PASSING_BYTES, p->dout.data,
              attention_at(&p->dout, batch, s->q_first, step.head), p->dout.seq, step.first,
              PASSING, s->len_q, p->head_dim_v, b->is_vector);
    if (threadIdx.x < PASSING / 2) { // 16 bytes of lse, then of delta
        int n = threadIdx.x % (PASSING / 4), is_delta = threadIdx.x >= PASSING / 4;
        const float *from = (is_delta ? b->delta : b->lse) + statistics_at(b, s, batch, step.head) +
                            step.first + 4 * n;
        copy_async(shared_address(memory) + STATISTICS + (stage * 2 + is_delta) * PASSING * 4 +
                       n * 16,
                   from, 16);
    }
}

// Turns scores w and g = dout v of the nth 16 queries into weights and gradients of the scores, as a operands. Rows are keys,
// columns are queries. A column beyond the last query has an lse of inf. far: distance from the first query's diagonal to the
// tile's first key. left: queries that the tile has. lse: of the tile's queries, with their delta behind it.
DEVICE void weigh(const struct attention_backward_params *b, int far, int left, int is_edge,
                  unsigned lse, int n, const float w[][4], const float g[][4], operands weights,
                  operands grads) {
    float scale = b->p.softmax_scale * LOG2_E;
    int thread = thread_now();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row_lse[2], row_delta[2];
        load_two_floats(row_lse, lse + (2 * n + half) * 32 + thread % 4 * 8);
        load_two_floats(row_delta, lse + (2 * n + half) * 32 + thread % 4 * 8 + PASSING * 4);
#pragma unroll
        for (int at = 0; at < GROUPS * 4; at += 2) {
            int tile = at / 4 * HALVES + 2 * n + half;
            float weight[2], grad[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                weight[c] = exp2_fast(w[tile][at % 4 + c] * scale - row_lse[c] * LOG2_E);
                grad[c] = weight[c] * (g[tile][at % 4 + c] - row_delta[c]);
                int col = SCORE_COLUMN(thread, tile, c);
                int here = far + SCORE_ROW(thread, tile, at % 4) - col;
                if (is_edge &&
                    (here < -b->p.window_left || here > b->p.window_right || col >= left))
                    weight[c] = grad[c] = 0;
            }
            set_pair(weights[at / 4], 2 * half + at % 4 / 2, weight[0], weight[1]);
            set_pair(grads[at / 4], 2 * half + at % 4 / 2, grad[0], grad[1]);
        }
    }
}

// The same for all queries with all features, one element at a time in shared memory: unrolled, this would need more registers
// than there are.
DEVICE void weigh_features(const struct attention_backward_params *b,
                           const struct attention_sequence *s, int batch, struct step step, int key,
                           const float *lse, const float *delta, float *scratch, const float w[][4],
                           const float g[][4]) {
    const struct attention_params *p = &b->p;
    int thread = thread_now();
    float *scores = scratch + thread, *dps = scores + NUM_SCORES * 4 * THREADS;
    const long long at = statistics_at(b, s, batch, step.head);
    keep_scores(scores, w);
    keep_scores(dps, g);
#pragma unroll 1
    for (int n = 0; n < NUM_SCORES * 4; n++) {
        int col = SCORE_COLUMN(thread, n / 4, n % 4), i = step.first + col;
        int j = key + SCORE_ROW(thread, n / 4, n % 4), far = j - i - s->shift;
        struct attention_pair pair = {0, 0};
        if (j < s->len_k && i < s->len_q && far >= -p->window_left && far <= p->window_right) {
            struct attention_query query = attention_query_at(p, s, batch, step.head, i);
            float keep = 1;
            if (p->dropout_threshold != 0)
                keep = attention_keep(p, attention_philox(p, batch, step.head, i, j >> 2), j);
            pair = attention_pair_of(p, &query, j, scores[n * THREADS], dps[n * THREADS], lse[col],
                                     lse_low_at(b, at + i), delta[col], keep, 0);
        }
        scores[n * THREADS] = pair.weight;
        dps[n * THREADS] = pair.grad;
    }
}

// The task of a block, in shared memory as the registers are full. One thread sets it.
struct work {
    long long index; // of the task
    struct attention_sequence s;
    int batch, kv_head, key, key_end, end; // first key; end of the seen and of the written keys
    int begin, last;                       // queries
};

DEVICE void set_work(const struct attention_backward_params *b, struct work *w) {
    const struct attention_params *p = &b->p;
    long long task = HAS_ONE ? w->index / 2 : w->index;
    w->key = (int)(task % b->num_tiles) * OWNED;
    w->kv_head = (int)(task / b->num_tiles % p->num_heads_kv);
    w->batch = (int)(task / b->num_tiles / p->num_heads_kv);
    w->s = attention_sequence_at(p, w->batch);
    // Keys that exist but are not seen get 0. Packed ones are cleared elsewhere.
    w->end = p->is_packed ? w->s.len_k : p->seqlen_k;
    w->key_end = w->key + OWNED < w->s.len_k ? w->key + OWNED : w->s.len_k;
    w->begin = attention_first_query(p, &w->s, w->key) / PASSING * PASSING;
    w->last = w->key < w->key_end ? attention_end_query(p, &w->s, w->key_end - 1) : 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_backward_flash2_keys(const struct attention_backward_params b) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ struct work work;
    const struct attention_params *p = &b.p;
    unsigned shared = shared_address(memory);
    if (threadIdx.x == 0) work.index = blockIdx.x;
    __syncthreads();
    while (work.index < b.num_tasks) {
        if (threadIdx.x == 0) set_work(&b, &work);
        __syncthreads();
        int has_dk = p->dk.data != 0 && !(HAS_ONE && work.index % 2 == 1);
        int has_dv = p->dv.data != 0 && !(HAS_ONE && work.index % 2 == 0);
        int tiles = work.last > work.begin ? (work.last - work.begin + PASSING - 1) / PASSING : 0;
        int num_steps = work.key < work.end && (has_dk || has_dv) ? tiles * p->group : 0;
        struct step step = {work.kv_head * p->group, work.begin};
        int has_features = HAS_FEATURES && (p->has_terms || p->dropout_threshold != 0);

        float dv[NUM_SUMS][4];
#if HAS_ONE
        float(*const dk)[4] = dv;
#else
        float dk[NUM_SUMS][4];
#endif
#pragma unroll
        for (int n = 0; n < NUM_SUMS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) dv[n][c] = dk[n][c] = 0;
        if (num_steps > 0) {
            load_tile(memory, p->k.data,
                      attention_at(&p->k, work.batch, work.s.k_first, work.kv_head), p->k.seq,
                      work.key, OWNED, work.s.len_k, p->head_dim, b.is_vector);
            load_tile(memory + VALUES, p->v.data,
                      attention_at(&p->v, work.batch, work.s.k_first, work.kv_head), p->v.seq,
                      work.key, OWNED, work.s.len_k, p->head_dim_v, b.is_vector);
            load_step(&b, &work.s, work.batch, step, memory, num_steps & 1);
            copy_commit();
        }
        for (; num_steps > 0; num_steps--) {
            int stage = num_steps & 1;
            struct step here = step;
            step.first += PASSING;
            if (step.first >= work.last) {
                step.first = work.begin;
                step.head++;
            }
            COPY_WAIT(0);
            __syncthreads();
            if (num_steps > 1) load_step(&b, &work.s, work.batch, step, memory, stage ^ 1);
            copy_commit();

            unsigned char *queries = memory + QUERIES + stage * PASSING_BYTES;
            unsigned char *douts = memory + DOUTS + stage * PASSING_BYTES;
            float *lse = (float *)(memory + STATISTICS) + stage * 2 * PASSING;
            const float *delta = lse + PASSING;
            // If some pair of the tile does not see each other, a pair at a corner does not.
            int far = work.key - here.first - work.s.shift;
            int is_edge = has_features || far + work.key_end - 1 - work.key > p->window_right ||
                          far - (PASSING - 1) < -p->window_left;
            if (is_edge && __syncthreads_or(search_tile(queries) | search_tile(douts))) {
                clean_tile(queries, lse);
                clean_tile(douts, lse);
                __syncthreads();
            }

            float w[NUM_SCORES][4], g[NUM_SCORES][4];
#pragma unroll
            for (int i = 0; i < NUM_SCORES; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) w[i][c] = g[i][c] = 0;
            multiply_rows(w, shared, shared_address(queries));
            if (!HAS_ONE || has_dk) multiply_rows(g, shared + VALUES, shared_address(douts));
            // Computes weights of some queries, then their products: exponentials run during the previous products.
            unsigned at = column_at(), of_queries = shared_address(queries),
                     of_douts = shared_address(douts), at_lse = shared_address(lse);
            float *scratch = (float *)(memory + SCRATCH) + threadIdx.x;
            if (has_features)
                weigh_features(&b, &work.s, work.batch, here, work.key, lse, delta,
                               (float *)(memory + SCRATCH), w, g);
#define SPREAD(make_operands)                                                                      \
    _Pragma("unroll") for (int i = 0; i < HALVES / 2; i++) {                                       \
        operands weights, grads;                                                                   \
        make_operands;                                                                             \
        if (!HAS_ONE || has_dv) accumulate_step(dv, weights, of_douts, at, i);                     \
        if (!HAS_ONE || has_dk) accumulate_step(dk, grads, of_queries, at, i);                     \
    }
            if (has_features) {
                SPREAD((take_weights(scratch, i, weights),
                        take_weights(scratch + NUM_SCORES * 4 * THREADS, i, grads)))
            } else if (is_edge) {
                int left = work.s.len_q - here.first;
                SPREAD(weigh(&b, far, left, 1, at_lse, i, w, g, weights, grads))
            } else {
                SPREAD(weigh(&b, 0, 0, 0, at_lse, i, w, g, weights, grads))
            }
        }
        COPY_WAIT(0);
        __syncthreads();
        if (has_dv)
            store_rows(dv, 1, memory + VALUES, p->dv.data,
                       attention_at(&p->dv, work.batch, work.s.k_first, work.kv_head), p->dv.seq,
                       work.key, work.s.len_k, work.end, p->head_dim_v, b.is_vector);
        if (has_dk)
            store_rows(dk, p->softmax_scale, memory, p->dk.data,
                       attention_at(&p->dk, work.batch, work.s.k_first, work.kv_head), p->dk.seq,
                       work.key, work.s.len_k, work.end, p->head_dim, b.is_vector);
        __syncthreads();
        if (threadIdx.x == 0) work.index += gridDim.x;
        __syncthreads();
    }
}
