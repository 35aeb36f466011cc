// SPDX-License-Identifier: Apache-2.0
// Attention's forward by the tensor cores' mma.sync: FlashAttention-2 (Dao, arXiv:2307.08691). A block keeps 64 or 128 queries of a
// head, each warp 16 or 32 of them with their output in registers, and goes over the keys in tiles, the next of which is on its way
// into shared memory meanwhile. Weights never leave the registers: accumulators of the first product are an operand of the second.
// The maximum that weights are relative to is renewed only where it grows by more than 8 in log2, which no weight minds and most
// tiles do not (as FlashAttention-4 does).
// Floor: 2 (head_dim + head_dim_v) FLOPs for each visible pair of query and key, in fp32 three times as many in tf32, and an
// exponential. Limit: in fp32 two warps a scheduler, which want the tensor cores at once or not at all. Figures:
// docs/kernels/attention_cuda.md, in fp32 docs/kernels/attention_cuda_fp32.md.
// The host defines
//     DTYPE, HEAD_DIM, BLOCK_N, FEATURES (attention_mma.cuh)

#include "cuda/device/numbers.cuh"

#define BLOCK_M (DTYPE == DTYPE_F32 ? 64 : 128)
// Rows of a warp in units of 16: where registers suffice, two units share each fragment of keys and values.
#if HEAD_DIM == 256 || FEATURES || DTYPE == DTYPE_F32
#define UNITS 1
#else
#define UNITS 2
#endif
#define THREADS (BLOCK_M / 16 / UNITS * 32)
#define BLOCKS_PER_SM (HEAD_DIM == 256 ? 1 : 256 / THREADS)
#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < UNITS; u++)
#if DTYPE == DTYPE_F32
#include "ops/attention/cuda/attention_split.cuh"
#else
#include "ops/attention/cuda/attention_products.cuh"
#endif

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(BLOCK_N)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// Loads keys from j on, and their values behind them. Addresses are computed again, as registers are scarcer than time.
DEVICE void load_keys(unsigned stage, const struct attention_params *p,
                      const struct attention_task *t, int j, int is_aligned) {
    int rows = t->s.len_k - j;
    load_tile(stage, piece_from(&p->k, t->batch, t->s.k_first + j, t->kv_head), p->k.seq, BLOCK_N,
              rows, p->head_dim, is_aligned);
    load_tile(stage + KEY_BYTES, piece_from(&p->v, t->batch, t->s.k_first + j, t->kv_head),
              p->v.seq, BLOCK_N, rows, p->head_dim_v, is_aligned);
}

DEVICE void attend(const struct attention_forward_params *f, const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    // flash1 serves 16-bit rows that are not aligned.
    int is_aligned = DTYPE != DTYPE_F32 || f->is_aligned;
    int first_row = threadIdx.x / 32 * UNITS * 16;
    unsigned q_tile = shared_address(shared_tiles), stages = q_tile + Q_BYTES;
    int j = t->begin / BLOCK_N * BLOCK_N; // the tile's first key

    load_tile(q_tile, piece_from(&p->q, t->batch, t->s.q_first + t->first, t->head), p->q.seq,
              BLOCK_M, t->s.len_q - t->first, p->head_dim, is_aligned);
    if (j < t->end) load_keys(stages, p, t, j, is_aligned);
    copy_commit();

#if DTYPE != DTYPE_F32
    // This lane's first addresses for load_matrices (mma.cuh): a of q, b of k, and b of v by its transpose.
    int lane = LANE;
    unsigned q_at = q_tile + piece_at(first_row + lane % 16, lane / 16, BLOCK_M);
    unsigned k_lane = piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, BLOCK_N);
    unsigned v_lane = piece_at(lane % 16, lane / 16, BLOCK_N);
#endif

    float o[UNITS][HEAD_DIM / 8][4], max[UNITS][2], sum[UNITS][2];
    EACH_UNIT(u) start_rows(max[u], sum[u], o[u], p, t->batch, t->head, !FEATURES);

    for (unsigned stage = 0; j < t->end; j += BLOCK_N, stage ^= 1) {
        unsigned k_tile = stages + stage * 2 * KEY_BYTES, v_tile = k_tile + KEY_BYTES;
        COPY_WAIT(0);
        __syncthreads(); // this tile has arrived; the previous one is free
        if (j + BLOCK_N < t->end) {
            load_keys(stages + (stage ^ 1) * 2 * KEY_BYTES, p, t, j + BLOCK_N, is_aligned);
            copy_commit();
        }

        float s[UNITS][BLOCK_N / 8][4];
#if DTYPE == DTYPE_F32
        multiply_keys(s[0], q_tile, first_row, k_tile);
#else
        // Keeps the compiler from holding this tile's steps for the next tile: registers are few.
        asm volatile("" : "+r"(q_at));
        multiply_keys(s, q_at, k_tile + k_lane);
#endif

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

#if DTYPE == DTYPE_F32
        multiply_values(o[0], s[0], p, &t->s, t->first + first_row, j, v_tile);
#else
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
        multiply_values(o, s, v_tile + v_lane);
#endif
    }
    COPY_WAIT(0);    // of q, if there was no tile
    __syncthreads(); // the output replaces q's tile, by warps
    EACH_UNIT(u) finish_rows(shared_tiles, o[u], max[u], sum[u], p, t, first_row + u * 16);
    store_rows(shared_tiles, p, t, first_row, UNITS * 16, is_aligned);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_flash2(const __grid_constant__ struct attention_forward_params f) {
    struct attention_task *task = (struct attention_task *)(shared_tiles + Q_BYTES + 4 * KEY_BYTES);
    EACH_TASK(&f, BLOCK_M, task) attend(&f, task);
}
