// SPDX-License-Identifier: Apache-2.0
// Attention's forward of up to 256 keys where there are too many heads for attention_small.cu's blocks to run side by side: by
// Hopper's asynchronous products, for heads of up to 64. A block has 128 queries of a head, a warpgroup 64 of them, and asks for
// everything at once, as there. Keys are one or two tiles, whose scores are ordered together: while those of the second
// are multiplied the first ones become weights, and while the first values are, the second ones do. The host defines
//     DTYPE
#define HEAD_DIM 64
#define BLOCK_M 128
#define BLOCK_N 128
#define THREADS 256
#define FEATURES 0
#include "cuda/device/wgmma.cuh"
#include "ops/attention/attention_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(BLOCK_N)
#define MOST_TILES 2

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// What all warps know.
struct work {
    struct attention_task t;
    int first, num_tiles, is_mixed; // first key; some query does not see some key
    unsigned q_tile, k_tiles, v_tiles;
};

DEVICE void load_keys(unsigned tile, const struct attention_tensor *from, const struct work *w,
                      int j, int dims) {
    load_tile(tile, piece_from(from, w->t.batch, w->t.s.k_first + j, w->t.kv_head), from->seq,
              BLOCK_N, w->t.s.len_k - j, dims, 1);
}

// s = q k^T.
DEVICE void issue_scores(float (*s)[4], unsigned q_tile, unsigned k_tile) {
    const unsigned long long a = wgmma_tile(q_tile, 16), b = wgmma_tile(k_tile, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++)
        wgmma_shared_128(s, a + WGMMA_STEP(d * 32), b + WGMMA_STEP(d * 32), d > 0);
    WGMMA_COMMIT();
}

// o += weights v.
DEVICE void issue_output(float (*o)[4], const unsigned (*weights)[4], unsigned v_tile) {
    const unsigned long long b = wgmma_tile(v_tile, SLAB_BYTES(BLOCK_N));
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++)
        wgmma_registers_64(o, weights[n], b + WGMMA_STEP(n * 2048));
    WGMMA_COMMIT();
}

// -inf where a query does not see a key. Only the sides where some do not are gone through.
DEVICE void hide_scores(float (*s)[4], const struct attention_params *p,
                        const struct attention_task *t, int i, int j) {
    const int lane = LANE, first = j + lane % 4 * 2; // first: this lane's first key
    if (j + BLOCK_N > attention_end_key(p, &t->s, i)) EACH_HALF(h) {
            const int end = attention_end_key(p, &t->s, i + h * 8 + lane / 4) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e >= end) s[n][2 * h + e] = -INFINITE;
        }
    if (j < attention_first_key(p, &t->s, i + 15)) EACH_HALF(h) {
            const int begin = attention_first_key(p, &t->s, i + h * 8 + lane / 4) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e < begin) s[n][2 * h + e] = -INFINITE;
        }
}

// Scores of the warp's queries from i on and the tile's keys from j on become weights; alpha: what the output is worth then.
DEVICE void find_weights(unsigned (*weights)[4], float (*s)[4], float max[2], float sum[2],
                         float alpha[2], const struct attention_forward_params *f,
                         const struct work *w, int i, int j) {
    const struct attention_params *p = &f->p;
    alpha[0] = alpha[1] = 1;
    hide_scores(s, p, &w->t, i, j);
    renew_maxima(s, max, sum, alpha, f->scale_log2);
    weigh(s, max, sum, f->scale_log2);
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) pack_weights(weights[n], s + 2 * n);
    if (sum[0] + sum[1] < 0)
        asm volatile(
            "nanosleep.u32 1;"); // never: but what waits for products comes after the softmax
}

// Values have come. Whether some that are not finite were taken out of them.
DEVICE int see_values(const struct work *w) {
    unsigned char *const values = shared_tiles + (w->v_tiles - w->q_tile);
    int is_found = 0;
    COPY_WAIT(0);
    if (w->is_mixed)
        for (int n = 0; n < w->num_tiles; n++) is_found |= has_nonfinite(values + n * KEY_BYTES);
    WGMMA_SEE_SHARED();
    is_found = __syncthreads_or(is_found);
    if (is_found) {
        for (int n = 0; n < w->num_tiles; n++) take_nonfinite_out(values + n * KEY_BYTES);
        WGMMA_SEE_SHARED();
        __syncthreads();
    }
    return is_found;
}

DEVICE void meet_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_small_tall(const __grid_constant__ struct attention_forward_params f) {
    start_dependents();
    const struct attention_params *p = &f.p;
    const unsigned head = blockIdx.x / (unsigned)f.num_tiles;
    struct work w = {
        {(int)(head / (unsigned)p->num_heads_q), (int)(head % (unsigned)p->num_heads_q)}};
    struct attention_task *const t = &w.t;
    t->kv_head = t->head / p->group;
    t->first = (int)(blockIdx.x % (unsigned)f.num_tiles) * BLOCK_M;
    if (f.is_reversed) t->first = (f.num_tiles - 1) * BLOCK_M - t->first; // the long ones first
    wait_for_primary();
    t->s = attention_sequence_at(p, t->batch);
    if (t->first >= t->s.len_q) return;
    const int last = (t->first + BLOCK_M < t->s.len_q ? t->first + BLOCK_M : t->s.len_q) - 1;
    t->begin = attention_first_key(p, &t->s, t->first);
    t->end = attention_end_key(p, &t->s, last);
    w.first = t->begin / 16 * 16;
    w.num_tiles = t->end - w.first > BLOCK_N ? MOST_TILES : 1;
    const int end = w.first + w.num_tiles * BLOCK_N;
    w.is_mixed = !attention_sees_all(&f, t, BLOCK_M, w.first, end < t->s.len_k ? end : t->s.len_k);
    w.q_tile = shared_address(shared_tiles);
    w.k_tiles = w.q_tile + Q_BYTES;
    w.v_tiles = w.k_tiles + MOST_TILES * KEY_BYTES;

    load_tile(w.q_tile, piece_from(&p->q, t->batch, t->s.q_first + t->first, t->head), p->q.seq,
              BLOCK_M, t->s.len_q - t->first, p->head_dim, 1);
    load_keys(w.k_tiles, &p->k, &w, w.first, p->head_dim);
    copy_commit();
    if (w.num_tiles > 1)
        load_keys(w.k_tiles + KEY_BYTES, &p->k, &w, w.first + BLOCK_N, p->head_dim);
    copy_commit();
    for (int n = 0; n < w.num_tiles; n++)
        load_keys(w.v_tiles + n * KEY_BYTES, &p->v, &w, w.first + n * BLOCK_N, p->head_dim_v);
    copy_commit();

    const int warp = threadIdx.x / 32, group = warp / 4, i = t->first + warp * 16;
    const unsigned own_q = w.q_tile + group * 64 * 128;
    float s[BLOCK_N / 8][4], o[HEAD_DIM / 8][4], max[2], sum[2], alpha[2];
    unsigned weights[BLOCK_N / 16][4];
    int is_found;
    start_rows(max, sum, o, p, t->batch, t->head);
    COPY_WAIT(2);
    WGMMA_SEE_SHARED();
    __syncthreads();
    if (w.num_tiles == 1) {
        WGMMA_BEGIN();
        issue_scores(s, own_q, w.k_tiles);
        WGMMA_WAIT(0);
        WGMMA_HOLD(s, BLOCK_N / 8);
        find_weights(weights, s, max, sum, alpha, &f, &w, i, w.first);
        is_found = see_values(&w);
        WGMMA_BEGIN();
        issue_output(o, weights, w.v_tiles);
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
    } else {
        float s2[BLOCK_N / 8][4];
        unsigned weights2[BLOCK_N / 16][4];
        WGMMA_BEGIN();
        issue_scores(s, own_q, w.k_tiles);
        COPY_WAIT(1);
        WGMMA_SEE_SHARED();
        __syncthreads();
        WGMMA_BEGIN();
        issue_scores(s2, own_q, w.k_tiles + KEY_BYTES);
        WGMMA_WAIT(1);
        WGMMA_HOLD(s, BLOCK_N / 8);
        find_weights(weights, s, max, sum, alpha, &f, &w, i, w.first);
        is_found = see_values(&w);
        WGMMA_BEGIN();
        issue_output(o, weights, w.v_tiles);
        WGMMA_WAIT(1);
        WGMMA_HOLD(s2, BLOCK_N / 8);
        find_weights(weights2, s2, max, sum, alpha, &f, &w, i, w.first + BLOCK_N);
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
        scale_rows(o, alpha);
        WGMMA_BEGIN();
        issue_output(o, weights2, w.v_tiles + KEY_BYTES);
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
    }
    if (is_found) { // once more, for those who see them
        __syncthreads();
        for (int n = 0; n < w.num_tiles; n++)
            load_keys(w.v_tiles + n * KEY_BYTES, &p->v, &w, w.first + n * BLOCK_N, p->head_dim_v);
        copy_commit();
        COPY_WAIT(0);
        __syncthreads();
        for (int n = 0; n < w.num_tiles; n++)
            add_nonfinite(o, p, &t->s, i, w.first + n * BLOCK_N, w.v_tiles + n * KEY_BYTES);
    }
    meet_group(
        group); // nobody multiplies the group's queries any more: their place takes the output
    finish_rows(shared_tiles, o, max, sum, p, t, warp * 16);
    store_rows(shared_tiles, p, t, warp * 16, 16, 1);
}
