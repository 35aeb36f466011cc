// SPDX-License-Identifier: Apache-2.0
// Attention's forward of up to 256 keys where there are too many heads for attention_small.cu's blocks to run side by side: by
// Hopper's asynchronous products, for heads of up to 64. A block has two tiles of 64 queries of a head, the first and the last one
// that are left, which see as much together as any other two under a causal mask. A warpgroup has one of them and up to 128 keys,
// goes through these once, with all its scores in registers, and the two of a tile put together what they have, each for half of
// the columns.
// Floor: that of attention_small.cu.
// Limit: the copies until the first tile is there.
// Figures: docs/kernels/attention_cuda_small.md.
// The host defines
//     DTYPE
#define HEAD_DIM 64
#define BLOCK_M 64 // of a tile
#define BLOCK_N 64 // of a tile of keys
#define KEYS 128   // of a warpgroup
#define THREADS 512
#define FEATURES 0
#include "cuda/device/block.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/forward/attention_small.cuh"
#include "ops/attention/cuda/forward/attention_small_tiles.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(KEYS)
#define SUMS_AT (2 * Q_BYTES + 4 * KEY_BYTES)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// Values of a warpgroup.
struct work {
    struct attention_task t; // first: its query
    int first, num_halves;   // first key
    int tile, half;          // 0 or 1 each
    unsigned q_tiles, k_tiles, v_tiles;
};

// Loads a tile of a half of the keys or values with the 256 threads of that half.
DEVICE void load_keys(unsigned tile, const struct attention_tensor *from, const struct work *w,
                      int number, int dims) {
    const int row = (int)threadIdx.x % 256 / 8, j = w->first + w->half * KEYS + number * BLOCK_N,
              bytes = piece_bytes(dims), left = w->t.s.len_k - j;
    const long long step = from->seq * (32 * ELEMENT_BYTES);
    const char *at = (const char *)from->data +
                     (attention_at(from, w->t.batch, w->t.s.k_first + j + row, w->t.kv_head) +
                      MY_PIECE * GROUP) *
                         ELEMENT_BYTES;
    tile += w->half * KEY_BYTES + piece_at(row, MY_PIECE, 0) + number * SLAB_BYTES(BLOCK_N);
    if (w->half < w->num_halves)
#pragma unroll
        for (int r = 0; r < BLOCK_N; r += 32)
            copy_async(tile + r * 128, at + r / 32 * step, row + r < left ? bytes : 0);
    copy_commit();
}

// s = q k^T.
DEVICE void issue_scores(float (*s)[4], unsigned q_tile, unsigned k_tile) {
    const unsigned long long a = wgmma_tile(q_tile, 16), b = wgmma_tile(k_tile, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++)
        wgmma_shared_64(s, a + WGMMA_STEP(d * 32), b + WGMMA_STEP(d * 32), d > 0);
    WGMMA_COMMIT();
}

// o += weights v.
DEVICE void issue_output(float (*o)[4], const unsigned (*weights)[4], unsigned v_tile) {
    const unsigned long long b = wgmma_tile(v_tile, 16);
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++)
        wgmma_registers_64(o, weights[n], b + WGMMA_STEP(n * 2048));
    WGMMA_COMMIT();
}

// Sets scores of keys from j on to -inf where a query from i on does not see them. Only sides with unseen keys are visited.
DEVICE void hide_scores(float (*s)[4], const struct attention_params *p,
                        const struct attention_sequence *q, int i, int j) {
    const int lane = LANE, first = j + lane % 4 * 2; // first: this lane's first key
    if (j + BLOCK_N > attention_end_key(p, q, i)) EACH_HALF(h) {
            const int end = attention_end_key(p, q, i + h * 8 + lane / 4) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e >= end) s[n][2 * h + e] = -INFINITE;
        }
    if (j < attention_first_key(p, q, i + 15)) EACH_HALF(h) {
            const int begin = attention_first_key(p, q, i + h * 8 + lane / 4) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e < begin) s[n][2 * h + e] = -INFINITE;
        }
}

// Turns a warp's scores of keys from j on into weights, as operands of the product with values. Returns whether earlier results
// are to be scaled by alpha.
DEVICE int find_weights(unsigned (*weights)[4], float (*s)[4], float max[2], float sum[2],
                        float alpha[2], const struct attention_forward_params *f,
                        const struct work *w, int i, int j) {
    hide_scores(s, &f->p, &w->t.s, i, j);
    const int is_renewed = renew_maxima(s, max, sum, alpha, f->scale_log2);
    weigh(s, max, sum, f->scale_log2);
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) pack_weights(weights[n], s + 2 * n);
    return is_renewed;
}

// Waits until all but the newest n tiles of keys and values of a half have arrived. n is a constant.
#define await_keys(n, half)                                                                        \
    do {                                                                                           \
        COPY_WAIT(n);                                                                              \
        WGMMA_SEE_SHARED();                                                                        \
        meet(1 + (half), 256);                                                                     \
    } while (0)

// Stores half of the columns, from piece `first` on, of a warp's 16 rows, times factor, through the warp's own rows of queries.
#define HALF_TILES (HEAD_DIM / 16)
DEVICE void store_half(float (*o)[4], const float factor[2], int first,
                       const struct attention_params *p, const struct work *w, int warp_row) {
    const int lane = LANE, row = w->tile * BLOCK_M + warp_row;
#pragma unroll
    for (int n = 0; n < HALF_TILES; n++) EACH_HALF(h)
    *(unsigned *)(shared_tiles + piece_at(row + h * 8 + lane / 4, first + n, 0) + lane % 4 * 4) =
        pair_of_floats(o[n][2 * h] * factor[h], o[n][2 * h + 1] * factor[h]);
    __syncwarp();
#pragma unroll
    for (int at = lane; at < 16 * HALF_TILES; at += 32) {
        const int r = at / HALF_TILES, piece = first + at % HALF_TILES,
                  i = w->t.first + warp_row + r, left = p->head_dim_v - piece * GROUP;
        if (i >= w->t.s.len_q || left <= 0) continue;
        const unsigned char *from = shared_tiles + piece_at(row + r, piece, 0);
        const long long to =
            attention_at(&p->out, w->t.batch, w->t.s.q_first + i, w->t.head) + piece * GROUP;
        store_piece(p->out.data, to, from, left);
    }
}

// Combines this warpgroup's result with that of the tile's other warpgroup: each gives half of its columns and takes the other
// half. They exchange columns in the memory of the keys, and sums behind all tiles.
DEVICE void put_together(float (*o)[4], float max[2], float sum[2],
                         const struct attention_forward_params *f, const struct work *w) {
    const struct attention_params *p = &f->p;
    const int lane = LANE, warp_row = (int)threadIdx.x / 32 % 4 * 16, half = w->half,
              is_alone = w->num_halves == 1;
    float factor[2], total[2];
    EACH_HALF(h) total[h] = sum_of_four(sum[h]);
    if (!is_alone) {
        float4 *const to = (float4 *)(shared_tiles + 2 * Q_BYTES) + (threadIdx.x / 128 * 4) * 128 +
                           threadIdx.x % 128;
        const float4 *const from = (const float4 *)(shared_tiles + 2 * Q_BYTES) +
                                   ((threadIdx.x / 128 ^ 2) * 4) * 128 + threadIdx.x % 128;
        float2 *const sums =
            (float2 *)(shared_tiles + SUMS_AT) + w->tile * BLOCK_M + warp_row + lane / 4;
        __syncthreads(); // queries and keys are no longer read
#pragma unroll
        for (int n = 0; n < HALF_TILES; n++) {
            float x[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                x[c] = half ? o[n][c] : o[n + HALF_TILES][c];
                o[n][c] = half ? o[n + HALF_TILES][c] : o[n][c];
            }
            to[n * 128] = make_float4(x[0], x[1], x[2], x[3]);
        }
        EACH_HALF(h)
        if (lane % 4 == 0) sums[half * 2 * BLOCK_M + h * 8] = make_float2(max[h], total[h]);
        __syncthreads();
        float other[2];
        EACH_HALF(h) {
            const float2 its = sums[(1 - half) * 2 * BLOCK_M + h * 8];
            const float top = fmaxf(max[h], its.x), zero = top == -INFINITE ? 0 : top;
            factor[h] = exp2_fast(IS_EXACT ? (max[h] - zero) * f->scale_log2 : max[h] - zero);
            other[h] = exp2_fast(IS_EXACT ? (its.x - zero) * f->scale_log2 : its.x - zero);
            total[h] = total[h] * factor[h] + its.y * other[h];
            max[h] = top;
        }
#pragma unroll
        for (int n = 0; n < HALF_TILES; n++) {
            const float4 x = from[n * 128];
            const float its[4] = {x.x, x.y, x.z, x.w};
            EACH_HALF(h)
            EACH_HALF(e) o[n][2 * h + e] = o[n][2 * h + e] * factor[h] + its[2 * h + e] * other[h];
        }
    } else {
        meet(3 + w->tile, 128); // the tile's queries are no longer read
    }
    const float trouble = sink_trouble(attention_sink_at(p, w->t.batch, w->t.head));
    EACH_HALF(h) {
        const int i = w->t.first + warp_row + h * 8 + lane / 4;
        factor[h] = total[h] == 0 ? 0 : 1 / total[h] + trouble;
        if (half == 0 && p->lse != 0 && lane % 4 == 0 && i < w->t.s.len_q)
            p->lse[attention_lse_at(p, w->t.batch, w->t.head, w->t.s.q_first + i)] =
                (total[h] == 0 ? -INFINITE
                               : max[h] * (IS_RAW ? p->softmax_scale : LN_2) + logf(total[h])) +
                trouble;
    }
    store_half(o, factor, half * HALF_TILES, p, w, warp_row);
    if (is_alone) store_half(o + HALF_TILES, factor, HALF_TILES, p, w, warp_row);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_small_tall(const __grid_constant__ struct attention_forward_params f) {
    start_dependents();
    const struct attention_params *p = &f.p;
    const unsigned head = blockIdx.x / (unsigned)f.num_tiles;
    const int group = __shfl_sync(ALL_LANES, (int)threadIdx.x / 128, 0);
    struct work w = {
        {(int)(head / (unsigned)p->num_heads_q), (int)(head % (unsigned)p->num_heads_q)}};
    struct attention_task *const t = &w.t;
    t->kv_head = t->head / p->group;
    w.tile = group % 2, w.half = group / 2;
    if (p->is_packed || p->seqused_k != 0) wait_for_primary(); // it may write the lengths
    t->s = attention_sequence_at(p, t->batch);
    const int low = (int)(blockIdx.x % (unsigned)f.num_tiles),
              high = (t->s.len_q + BLOCK_M - 1) / BLOCK_M - 1 - low;
    if (low > high) return;
    const int low_last =
                  (low + 1) * BLOCK_M < t->s.len_q ? (low + 1) * BLOCK_M - 1 : t->s.len_q - 1,
              high_last =
                  (high + 1) * BLOCK_M < t->s.len_q ? (high + 1) * BLOCK_M - 1 : t->s.len_q - 1;
    // Later queries see later keys.
    const int begin = attention_first_key(p, &t->s, low * BLOCK_M),
              end = attention_end_key(p, &t->s, high_last);
    w.first = begin / 16 * 16;
    w.num_halves = end - w.first > KEYS ? 2 : 1;
    // A single tile in the middle has no partner: the partner's rows do not exist.
    t->first = w.tile == 0 ? low * BLOCK_M : high > low ? high * BLOCK_M : t->s.len_q;
    t->begin = attention_first_key(p, &t->s, t->first);
    t->end = attention_end_key(p, &t->s, w.tile ? high_last : low_last);
    w.q_tiles = shared_address(shared_tiles);
    w.k_tiles = w.q_tiles + 2 * Q_BYTES;
    w.v_tiles = w.k_tiles + 2 * KEY_BYTES;
    const int j = w.first + w.half * KEYS,
              is_its = w.half < w.num_halves && (w.tile == 0 || high > low),
              is_seen = is_its && j < t->end && j + KEYS > t->begin;

    wait_for_primary();
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int row = (tile ? high : low) * BLOCK_M + MY_ROW;
        const char *at = piece_from(&p->q, t->batch, t->s.q_first + row - MY_ROW, t->head);
        copy_async(w.q_tiles + tile * Q_BYTES + piece_at(MY_ROW, MY_PIECE, BLOCK_M), at,
                   row < t->s.len_q ? piece_bytes(p->head_dim) : 0);
    }
    load_keys(w.k_tiles, &p->k, &w, 0, p->head_dim);
    load_keys(w.k_tiles, &p->k, &w, 1, p->head_dim);
    load_keys(w.v_tiles, &p->v, &w, 0, p->head_dim_v);
    load_keys(w.v_tiles, &p->v, &w, 1, p->head_dim_v);

    const int i = t->first + (int)threadIdx.x / 32 % 4 * 16;
    float o[HEAD_DIM / 8][4], max[2], sum[2];
    start_rows(max, sum, o, p, t->batch, t->head, 0);
    if (w.half == 1) EACH_HALF(h) max[h] = -INFINITE, sum[h] = 0; // the first half has the sink
    COPY_WAIT(3);
    WGMMA_SEE_SHARED();
    __syncthreads();
    if (is_seen) {
        const unsigned q_tile = w.q_tiles + w.tile * Q_BYTES,
                       k_tile = w.k_tiles + w.half * KEY_BYTES,
                       v_tile = w.v_tiles + w.half * KEY_BYTES, behind = SLAB_BYTES(BLOCK_N);
        float s[BLOCK_N / 8][4], later[BLOCK_N / 8][4], alpha[2];
        unsigned weights[2][BLOCK_N / 16][4];
        WGMMA_BEGIN();
        issue_scores(s, q_tile, k_tile);
        await_keys(2, w.half);
        WGMMA_BEGIN();
        issue_scores(later, q_tile, k_tile + behind);
        WGMMA_WAIT(1);
        WGMMA_HOLD(s, BLOCK_N / 8);
        find_weights(weights[0], s, max, sum, alpha, &f, &w, i, j);
        await_keys(1, w.half);
        start_output(o);
        WGMMA_BEGIN();
        issue_output(o, weights[0], v_tile);
        WGMMA_WAIT(1);
        WGMMA_HOLD(later, BLOCK_N / 8);
        const int is_renewed =
            find_weights(weights[1], later, max, sum, alpha, &f, &w, i, j + BLOCK_N);
        await_keys(0, w.half);
        if (sum[0] + sum[1] < 0)
            asm volatile("nanosleep.u32 1;"); // never: but the wait comes after the softmax
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
        if (is_renewed) scale_rows(o, alpha);
        WGMMA_BEGIN();
        issue_output(o, weights[1], v_tile + behind);
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
        const int keys_end = j + KEYS < t->s.len_k ? j + KEYS : t->s.len_k;
        if (!attention_sees_all(&f, t, BLOCK_M, j, keys_end) && !is_output_finite(o)) {
            sum_what_is_seen(o, weights[0], BLOCK_N / 16, p, &t->s, i, j, v_tile, 0, 0);
            if (is_renewed) scale_rows(o, alpha);
            add_what_is_seen(o, weights[1], BLOCK_N / 16, p, &t->s, i, j + BLOCK_N, v_tile, BLOCK_N,
                             0);
        }
    } else {
        await_keys(2, w.half);
        await_keys(1, w.half);
        await_keys(0, w.half);
    }
    if (w.num_halves == 1 && !is_its) return;
    put_together(o, max, sum, &f, &w);
}
