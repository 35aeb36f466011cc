// SPDX-License-Identifier: Apache-2.0
// Attention's forward by the tensor cores' m16n8k16, for 16-bit dtypes: FlashAttention-2 (Dao, arXiv:2307.08691). A block
// keeps 128 queries of a head, each warp 16 or 32 of them with their output in registers, and goes over the keys in tiles,
// the next of which is on its way into shared memory meanwhile. Weights never leave the registers: two accumulators of
// the first product are an operand of the second. The maximum that weights are relative to is renewed only where it grows by
// more than 8 in log2, which no weight minds and most tiles do not (as FlashAttention-4 does). The host defines
//     DTYPE, HEAD_DIM, BLOCK_N, FEATURES (attention_mma.cuh)

// Rows of a warp, in units of 16: two share each fragment of keys and values, where registers suffice.
#if HEAD_DIM == 256 || FEATURES
#define UNITS 1
#else
#define UNITS 2
#endif
#define BLOCK_M 128
#define THREADS (BLOCK_M / 16 / UNITS * 32)
#include "ops/attention/attention_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(BLOCK_N)
#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < UNITS; u++)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// Of 16 columns d of a tile of `rows`, from where a lane has its first: pieces go on by exclusive or within 64 columns.
#define COLUMNS(at, d, rows) (((at) ^ ((d) % 4 * 32)) + (d) / 4 * SLAB_BYTES(rows))

// Keys from j on, and their values behind them. Addresses are found anew: registers are scarcer than time.
DEVICE void load_keys(unsigned stage, const struct attention_params *p,
                      const struct attention_task *t, int j) {
    int rows = t->s.len_k - j;
    load_tile(stage, piece_from(&p->k, t->batch, t->s.k_first + j, t->kv_head), p->k.seq, BLOCK_N,
              rows, p->head_dim);
    load_tile(stage + KEY_BYTES, piece_from(&p->v, t->batch, t->s.k_first + j, t->kv_head),
              p->v.seq, BLOCK_N, rows, p->head_dim_v);
}

DEVICE void attend(const struct attention_forward_params *f, const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    int lane = LANE, first_row = threadIdx.x / 32 * UNITS * 16;
    unsigned q_tile = shared_address(shared_tiles), stages = q_tile + Q_BYTES;
    int j = t->begin / BLOCK_N * BLOCK_N; // the tile's first key

    load_tile(q_tile, piece_from(&p->q, t->batch, t->s.q_first + t->first, t->head), p->q.seq,
              BLOCK_M, t->s.len_q - t->first, p->head_dim);
    if (j < t->end) load_keys(stages, p, t, j);
    copy_commit();

    // Where this lane's rows of matrices start (mma.cuh): a of q, b of k, and b of v by its transpose.
    unsigned q_at = q_tile + piece_at(first_row + lane % 16, lane / 16, BLOCK_M);
    unsigned k_lane = piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, BLOCK_N);
    unsigned v_lane = piece_at(lane % 16, lane / 16, BLOCK_N);

    float o[UNITS][HEAD_DIM / 8][4], max[UNITS][2], sum[UNITS][2];
    EACH_UNIT(u) start_rows(max[u], sum[u], o[u], p, t->batch, t->head);

    for (unsigned stage = 0; j < t->end; j += BLOCK_N, stage ^= 1) {
        unsigned k_tile = stages + stage * 2 * KEY_BYTES, v_tile = k_tile + KEY_BYTES;
        COPY_WAIT(0);
        __syncthreads(); // this tile is there, and the one before is free
        if (j + BLOCK_N < t->end) {
            load_keys(stages + (stage ^ 1) * 2 * KEY_BYTES, p, t, j + BLOCK_N);
            copy_commit();
        }

        asm volatile(
            ""
            : "+r"(q_at)); // its steps are not to be kept for the next tile: registers are short

        // s = q k^T.
        float s[UNITS][BLOCK_N / 8][4];
        EACH_UNIT(u) EACH_COLUMN_TILE(n) s[u][n][0] = s[u][n][1] = s[u][n][2] = s[u][n][3] = 0;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            unsigned a[UNITS][4], b[4];
            EACH_UNIT(u) load_matrices(a[u], COLUMNS(q_at, d, BLOCK_M) + u * 16 * 128);
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; n += 2) {
                load_matrices(b, COLUMNS(k_tile + k_lane, d, BLOCK_N) + n * 8 * 128);
                EACH_UNIT(u) {
                    mma(s[u][n], a[u], b[0], b[1]);
                    mma(s[u][n + 1], a[u], b[2], b[3]);
                }
            }
        }

        // Weights.
        int end = j + BLOCK_N < t->s.len_k ? j + BLOCK_N : t->s.len_k;
        int is_mixed = !attention_sees_all(f, t, BLOCK_M, j, end);
        EACH_UNIT(u) {
            int i = t->first + first_row + u * 16;
            float alpha[2];
            if (FEATURES || is_mixed || end < j + BLOCK_N) modify_scores(s[u], p, t, i, j);
            if (renew_maxima(s[u], max[u], sum[u], alpha, f->scale_log2)) scale_rows(o[u], alpha);
            weigh(s[u], max[u], sum[u], f->scale_log2);
            if (FEATURES && p->dropout_threshold != 0) drop_weights(s[u], p, t, i, j);
        }

        if (is_mixed) {
            unsigned char *v = shared_tiles + (v_tile - q_tile);
            if (__syncthreads_or(has_nonfinite(v))) {
                EACH_UNIT(u)
                add_nonfinite(o[u], p, &t->s, t->first + first_row + u * 16, j, v_tile);
                __syncthreads();
                take_nonfinite_out(v);
                __syncthreads();
            }
        }

        // o += weights v.
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; n += 2) {
            unsigned a[UNITS][4], b[4];
            EACH_UNIT(u) pack_weights(a[u], s[u] + n);
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 16; d++) {
                load_matrices_transposed(b, COLUMNS(v_tile + v_lane, d, BLOCK_N) + n * 8 * 128);
                EACH_UNIT(u) {
                    mma(o[u][2 * d], a[u], b[0], b[1]);
                    mma(o[u][2 * d + 1], a[u], b[2], b[3]);
                }
            }
        }
    }
    COPY_WAIT(0);    // of q, where there was no tile
    __syncthreads(); // and q's tile takes the output, each warp in its own rows
    EACH_UNIT(u) finish_rows(shared_tiles, o[u], max[u], sum[u], p, t, first_row + u * 16);
    store_rows(shared_tiles, p, t, first_row, UNITS * 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 256 ? 1 : 256 / THREADS)
    attention_flash2(const __grid_constant__ struct attention_forward_params f) {
    struct attention_task *task = (struct attention_task *)(shared_tiles + Q_BYTES + 4 * KEY_BYTES);
    EACH_TASK(&f, BLOCK_M, task) attend(&f, task);
}
