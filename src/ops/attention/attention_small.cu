// SPDX-License-Identifier: Apache-2.0
// Attention's forward of few keys, for 16-bit dtypes by the tensor cores' m16n8k16. What such a call takes is the way to memory and
// back and not the work, so that the way is gone once: a block has 64 queries of a head, a warp 16 of them, and asks for the
// queries and all the keys, then for all the values, before anything else. Two warps share 16 queries, one has the even tiles of
// keys and the other one the odd ones, and put together what they have at the end. The blocks come in before the kernel
// ahead has ended, and know by then what they are for. The host defines
//     DTYPE, HEAD_DIM (attention_mma.cuh)
#define BLOCK_M 64
#define BLOCK_N 64
#define THREADS 256
#define FEATURES 0
#include "ops/attention/attention_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(BLOCK_N)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// Of 16 columns d of a tile of `rows`, from where a lane has its first: pieces go on by exclusive or within 64 columns.
#define COLUMNS(at, d, rows) (((at) ^ ((d) % 4 * 32)) + (d) / 4 * SLAB_BYTES(rows))

// Tiles of the task's keys, or of their values.
DEVICE void load_tiles(unsigned tiles, const struct attention_tensor *from,
                       const struct attention_task *t, int first, int dims) {
#pragma unroll 1
    for (int j = first; j < t->end; j += BLOCK_N, tiles += KEY_BYTES)
        load_tile(tiles, piece_from(from, t->batch, t->s.k_first + j, t->kv_head), from->seq,
                  BLOCK_N, t->s.len_k - j, dims, 1);
}

// Halves of the columns that lie beyond the head's are left out.
#define HALVES (HEAD_DIM == 64 ? 2 : 1)
#define EACH_HALF_OF_COLUMNS(half, dims)                                                           \
    _Pragma("unroll") for (int half = 0; half < HALVES; half++) if (half == 0 || (dims) > 32)

DEVICE void multiply_scores(float (*s)[4], unsigned q_tile, unsigned k_tile, int first_row,
                            int dims) {
    const int lane = LANE;
    const unsigned q_at = q_tile + piece_at(first_row + lane % 16, lane / 16, BLOCK_M),
                   k_at = k_tile + piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, BLOCK_N);
    EACH_COLUMN_TILE(n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    EACH_HALF_OF_COLUMNS(half, dims) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16 / HALVES; i++) {
            const int d = half * (HEAD_DIM / 16 / HALVES) + i;
            unsigned a[4], b[4];
            load_matrices(a, COLUMNS(q_at, d, BLOCK_M));
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; n += 2) {
                load_matrices(b, COLUMNS(k_at, d, BLOCK_N) + n * 8 * 128);
                mma(s[n], a, b[0], b[1]);
                mma(s[n + 1], a, b[2], b[3]);
            }
        }
    }
}

DEVICE void multiply_values(float (*o)[4], const float (*s)[4], unsigned v_tile, int dims) {
    const int lane = LANE;
    const unsigned v_at = v_tile + piece_at(lane % 16, lane / 16, BLOCK_N);
    unsigned a[BLOCK_N / 16][4];
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) pack_weights(a[n], s + 2 * n);
    EACH_HALF_OF_COLUMNS(half, dims) {
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; n++) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 16 / HALVES; i++) {
                const int d = half * (HEAD_DIM / 16 / HALVES) + i;
                unsigned b[4];
                load_matrices_transposed(b, COLUMNS(v_at, d, BLOCK_N) + n * 16 * 128);
                mma(o[2 * d], a[n], b[0], b[1]);
                mma(o[2 * d + 1], a[n], b[2], b[3]);
            }
        }
    }
}

// Adds what the warp's partner has, which lies in shared memory from `theirs` on.
#define PARTNER_FLOATS (HEAD_DIM / 2 + 4) // of a lane
DEVICE void give(float *to, float (*o)[4], const float max[2], const float sum[2]) {
    EACH_DIM_TILE(n) EACH_HALF(h) EACH_HALF(e) to[(n * 4 + 2 * h + e) * 128] = o[n][2 * h + e];
    EACH_HALF(h) {
        to[(HEAD_DIM / 2 + h) * 128] = max[h];
        to[(HEAD_DIM / 2 + 2 + h) * 128] = sum[h];
    }
}
DEVICE void take(const float *from, float (*o)[4], float max[2], float sum[2], float scale_log2) {
    EACH_HALF(h) {
        const float top = from[(HEAD_DIM / 2 + h) * 128], next = fmaxf(max[h], top),
                    zero = next == -INFINITE ? 0 : next,
                    own = exp2_fast(IS_EXACT ? (max[h] - zero) * UNIT : max[h] - zero),
                    other = exp2_fast(IS_EXACT ? (top - zero) * UNIT : top - zero);
        EACH_DIM_TILE(n) EACH_HALF(e) {
            float *x = &o[n][2 * h + e];
            *x = *x * own + from[(n * 4 + 2 * h + e) * 128] * other;
        }
        sum[h] = sum[h] * own + from[(HEAD_DIM / 2 + 2 + h) * 128] * other;
        max[h] = next;
    }
}

// Not every query of the block sees the whole of the tile of keys from j on.
DEVICE int is_mixed(const struct attention_forward_params *f, const struct attention_task *t,
                    int j) {
    return !attention_sees_all(f, t, BLOCK_M, j,
                               j + BLOCK_N < t->s.len_k ? j + BLOCK_N : t->s.len_k);
}

// Takes values that are not finite out of mixed tiles. Each thread has a look at what it asked for; then all are there.
DEVICE int find_nonfinite(const struct attention_forward_params *f, const struct attention_task *t,
                          int first, int num_tiles, int v_tiles) {
    int is_found = 0;
#pragma unroll 1
    for (int n = 0; n < num_tiles; n++)
        if (is_mixed(f, t, first + n * BLOCK_N))
            is_found |= has_nonfinite(shared_tiles + v_tiles + n * KEY_BYTES);
    is_found = __syncthreads_or(is_found);
    if (is_found) {
#pragma unroll 1
        for (int n = 0; n < num_tiles; n++)
            if (is_mixed(f, t, first + n * BLOCK_N))
                take_nonfinite_out(shared_tiles + v_tiles + n * KEY_BYTES);
        __syncthreads();
    }
    return is_found;
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 64 ? 2 : 1)
    attention_small(const __grid_constant__ struct attention_forward_params f) {
    start_dependents();
    const struct attention_params *p = &f.p;
    const unsigned head = blockIdx.x / (unsigned)f.num_tiles;
    struct attention_task t = {(int)(head / (unsigned)p->num_heads_q),
                               (int)(head % (unsigned)p->num_heads_q)};
    t.kv_head = t.head / p->group;
    t.first = (int)(blockIdx.x % (unsigned)f.num_tiles) * BLOCK_M;
    wait_for_primary();
    t.s = attention_sequence_at(p, t.batch);
    if (t.first >= t.s.len_q) return;
    const int last = t.first + BLOCK_M < t.s.len_q ? t.first + BLOCK_M - 1 : t.s.len_q - 1;
    t.begin = attention_first_key(p, &t.s, t.first);
    t.end = attention_end_key(p, &t.s, last);

    const int first_row = threadIdx.x / 32 % 4 * 16, group = threadIdx.x / 128;
    const int has_rows = t.first + first_row < t.s.len_q, first = t.begin / BLOCK_N * BLOCK_N;
    const int num_tiles = t.end > t.begin ? (t.end - first + BLOCK_N - 1) / BLOCK_N : 0;
    const unsigned q_tile = shared_address(shared_tiles), k_tiles = q_tile + Q_BYTES,
                   v_tiles = k_tiles + num_tiles * KEY_BYTES;
    load_tile(q_tile, piece_from(&p->q, t.batch, t.s.q_first + t.first, t.head), p->q.seq, BLOCK_M,
              t.s.len_q - t.first, p->head_dim, 1);
    if (num_tiles > 0) load_tiles(k_tiles, &p->k, &t, first, p->head_dim);
    copy_commit();
    if (num_tiles > 0) load_tiles(v_tiles, &p->v, &t, first, p->head_dim_v);
    copy_commit();

    float o[HEAD_DIM / 8][4], max[2], sum[2];
    start_rows(max, sum, o, p, t.batch, t.head);
    if (group == 1) EACH_HALF(h) max[h] = -INFINITE, sum[h] = 0; // the sink is its partner's
    COPY_WAIT(1);
    __syncthreads();
    int is_found = 0;
#pragma unroll 1
    for (int n = group; n - group < num_tiles; n += 2) { // as often in either group
        const int j = first + n * BLOCK_N, end = j + BLOCK_N < t.s.len_k ? j + BLOCK_N : t.s.len_k;
        const int is_its = has_rows && n < num_tiles;
        float s[BLOCK_N / 8][4];
        if (is_its) {
            float alpha[2];
            multiply_scores(s, q_tile, k_tiles + n * KEY_BYTES, first_row, p->head_dim);
            if (end < j + BLOCK_N || is_mixed(&f, &t, j))
                modify_scores(s, p, &t, t.first + first_row, j);
            if (renew_maxima(s, max, sum, alpha, f.scale_log2)) scale_rows(o, alpha);
            weigh(s, max, sum, f.scale_log2);
        }
        if (n == group) {
            COPY_WAIT(0);
            is_found = find_nonfinite(&f, &t, first, num_tiles, v_tiles - q_tile);
        }
        if (is_its) multiply_values(o, s, v_tiles + n * KEY_BYTES, p->head_dim_v);
    }
    COPY_WAIT(0);   // of q, where there was no tile
    if (is_found) { // once more, for those who see them
        __syncthreads();
        load_tiles(v_tiles, &p->v, &t, first, p->head_dim_v);
        copy_commit();
        COPY_WAIT(0);
        __syncthreads();
        for (int n = group; n < num_tiles && has_rows; n += 2) {
            const int j = first + n * BLOCK_N;
            if (is_mixed(&f, &t, j))
                add_nonfinite(o, p, &t.s, t.first + first_row, j, v_tiles + n * KEY_BYTES);
        }
    }
    if (num_tiles > 1) {
        float *between = (float *)(shared_tiles + Q_BYTES) + threadIdx.x % 128;
        __syncthreads(); // nobody reads keys and values any more
        if (group == 1) give(between, o, max, sum);
        __syncthreads();
        if (group == 0) take(between, o, max, sum, f.scale_log2);
    }
    if (group == 1 || !has_rows) return;
    __syncwarp(); // the warp's own rows of q's tile take its output
    finish_rows(shared_tiles, o, max, sum, p, &t, first_row);
    store_rows(shared_tiles, p, &t, first_row, 16, 1);
}
