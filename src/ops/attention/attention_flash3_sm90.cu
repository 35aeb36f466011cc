// SPDX-License-Identifier: Apache-2.0
// Attention's forward by Hopper's asynchronous products, after FlashAttention-3 (Shah et al., arXiv:2407.08608): two
// warpgroups with 64 queries each share tiles of keys and values. While the values of one tile are multiplied, the scores of the
// next are there already and become weights: both products of a step are issued first, and the softmax waits for
// the scores alone. Tiles come by ordinary asynchronous copies, which need no descriptor from the host and fill what
// is not there with zeros. The host defines
//     DTYPE, HEAD_DIM, BLOCK_N, FEATURES = 0 (attention_mma.cuh)
#define GROUPS 2
#define BLOCK_M (64 * GROUPS)
#define THREADS (128 * GROUPS)
#include "cuda/device/wgmma.cuh"
#include "ops/attention/attention_mma.cuh"

#define Q_BYTES TILE_BYTES(BLOCK_M)
#define KEY_BYTES TILE_BYTES(BLOCK_N)

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// s = q k^T.
DEVICE void issue_scores(float (*s)[4], unsigned q_tile, unsigned k_tile) {
    unsigned long long a = wgmma_tile(q_tile, 16), b = wgmma_tile(k_tile, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned long long at_a = a + WGMMA_STEP(d / 4 * SLAB_BYTES(BLOCK_M) + d % 4 * 32);
        unsigned long long at_b = b + WGMMA_STEP(d / 4 * SLAB_BYTES(BLOCK_N) + d % 4 * 32);
#if BLOCK_N == 64
        wgmma_shared_64(s, at_a, at_b, d > 0);
#else
        wgmma_shared_128(s, at_a, at_b, d > 0);
#endif
    }
}

// o += weights v.
DEVICE void issue_output(float (*o)[4], const unsigned (*weights)[4], unsigned v_tile) {
    unsigned long long b = wgmma_tile(v_tile, SLAB_BYTES(BLOCK_N));
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) {
        unsigned long long at_b = b + WGMMA_STEP(n * 2048);
#if HEAD_DIM == 64
        wgmma_registers_64(o, weights[n], at_b);
#else
        wgmma_registers_128(o, weights[n], at_b);
#endif
#if HEAD_DIM == 256
        wgmma_registers_128(o + 16, weights[n], at_b + WGMMA_STEP(2 * SLAB_BYTES(BLOCK_N)));
#endif
    }
}

DEVICE int key_end(const struct attention_task *t, int j) {
    return j + BLOCK_N < t->s.len_k ? j + BLOCK_N : t->s.len_k;
}

// Values of the tile of keys from j on that some do not see.
DEVICE void save_from_nonfinite(float (*o)[4], const struct attention_forward_params *f,
                                const struct attention_task *t, int i, int j, unsigned v_tile) {
    unsigned char *v = shared_tiles + (v_tile - shared_address(shared_tiles));
    if (attention_sees_all(f, t, BLOCK_M, j, key_end(t, j))) return;
    if (!__syncthreads_or(has_nonfinite(v))) return;
    add_nonfinite(o, &f->p, &t->s, i, j, v_tile);
    __syncthreads();
    take_nonfinite_out(v);
    WGMMA_SEE_SHARED();
    __syncthreads();
}

// Scores to weights. Whether the output is to be scaled by alpha.
DEVICE int find_weights(float (*s)[4], float max[2], float sum[2], float alpha[2],
                        const struct attention_forward_params *f, const struct attention_task *t,
                        int i, int j) {
    if (key_end(t, j) < j + BLOCK_N || !attention_sees_all(f, t, BLOCK_M, j, key_end(t, j)))
        modify_scores(s, &f->p, t, i, j);
    int is_renewed = renew_maxima(s, max, sum, alpha, f->scale_log2);
    weigh(s, max, sum, f->scale_log2);
    return is_renewed;
}

#define PACK_ALL(weights, s)                                                                       \
    _Pragma("unroll") for (int n_ = 0; n_ < BLOCK_N / 16; n_++)                                    \
        pack_weights((weights)[n_], (s) + 2 * n_)

DEVICE void attend(const struct attention_forward_params *f, const struct attention_task *t) {
    const struct attention_params *p = &f->p;
    int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), first_row = warp * 16;
    int i = t->first + first_row;
    unsigned q_tile = shared_address(shared_tiles), k_tiles = q_tile + Q_BYTES,
             v_tiles = k_tiles + 2 * KEY_BYTES, own_q = q_tile + warp / 4 * 64 * 128;
    int j = t->begin / BLOCK_N * BLOCK_N, end = t->end; // j: the tile's first key
    float s[BLOCK_N / 8][4], o[HEAD_DIM / 8][4], max[2], sum[2], alpha[2];
    unsigned weights[BLOCK_N / 16][4];
    start_rows(max, sum, o, p, t->batch, t->head);

    if (j < end) {
        const char *k_from = piece_from(&p->k, t->batch, t->s.k_first + j, t->kv_head),
                   *v_from = piece_from(&p->v, t->batch, t->s.k_first + j, t->kv_head);
        load_tile(q_tile, piece_from(&p->q, t->batch, t->s.q_first + t->first, t->head), p->q.seq,
                  BLOCK_M, t->s.len_q - t->first, p->head_dim);
        load_tile(k_tiles, k_from, p->k.seq, BLOCK_N, t->s.len_k - j, p->head_dim);
        copy_commit();
        k_from += BLOCK_N * 2 * p->k.seq;
        if (j + BLOCK_N < end)
            load_tile(k_tiles + KEY_BYTES, k_from, p->k.seq, BLOCK_N, t->s.len_k - j - BLOCK_N,
                      p->head_dim);
        load_tile(v_tiles, v_from, p->v.seq, BLOCK_N, t->s.len_k - j, p->head_dim_v);
        copy_commit();
        COPY_WAIT(1);
        WGMMA_SEE_SHARED();
        __syncthreads();
        WGMMA_BEGIN();
        issue_scores(s, own_q, k_tiles);
        WGMMA_COMMIT();
        WGMMA_WAIT(0);
        WGMMA_HOLD(s, BLOCK_N / 8);
        find_weights(s, max, sum, alpha, f, t, i, j);
        PACK_ALL(weights, s);

        unsigned stage = 0; // of this tile
        for (; j + BLOCK_N < end; j += BLOCK_N, stage ^= 1) {
            unsigned k_next = k_tiles + (stage ^ 1) * KEY_BYTES,
                     v_tile = v_tiles + stage * KEY_BYTES;
            COPY_WAIT(0);
            WGMMA_SEE_SHARED();
            __syncthreads(); // these values and the next keys are there; these keys and the values before are free
            save_from_nonfinite(o, f, t, i, j, v_tile);

            WGMMA_BEGIN();
            issue_scores(s, own_q, k_next);
            WGMMA_COMMIT();
            issue_output(o, weights, v_tile);
            WGMMA_COMMIT();
            // While they are at it, what comes next is asked for.
            k_from += BLOCK_N * 2 * p->k.seq;
            v_from += BLOCK_N * 2 * p->v.seq;
            if (j + 2 * BLOCK_N < end)
                load_tile(k_tiles + stage * KEY_BYTES, k_from, p->k.seq, BLOCK_N,
                          t->s.len_k - j - 2 * BLOCK_N, p->head_dim);
            load_tile(v_tiles + (stage ^ 1) * KEY_BYTES, v_from, p->v.seq, BLOCK_N,
                      t->s.len_k - j - BLOCK_N, p->head_dim_v);
            copy_commit();
            WGMMA_WAIT(1);
            WGMMA_HOLD(s, BLOCK_N / 8);
            int is_renewed = find_weights(s, max, sum, alpha, f, t, i, j + BLOCK_N);
            if (sum[0] + sum[1] < 0)
                asm volatile("nanosleep.u32 1;"); // never: but the wait comes after the softmax
            WGMMA_WAIT(0);
            WGMMA_HOLD(o, HEAD_DIM / 8);
            if (is_renewed) scale_rows(o, alpha);
            PACK_ALL(weights, s);
        }
        COPY_WAIT(0);
        WGMMA_SEE_SHARED();
        __syncthreads();
        save_from_nonfinite(o, f, t, i, j, v_tiles + stage * KEY_BYTES);
        WGMMA_BEGIN();
        issue_output(o, weights, v_tiles + stage * KEY_BYTES);
        WGMMA_COMMIT();
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM / 8);
        __syncthreads(); // q's tile takes the output
    }
    finish_rows(shared_tiles, o, max, sum, p, t, first_row);
    store_rows(shared_tiles, p, t, first_row, 16);
}

extern "C" __global__ void __launch_bounds__(THREADS, HEAD_DIM == 64 ? 2 : 1)
    attention_flash3(const __grid_constant__ struct attention_forward_params f) {
    struct attention_task *task = (struct attention_task *)(shared_tiles + Q_BYTES + 4 * KEY_BYTES);
    EACH_TASK(&f, BLOCK_M, task) attend(&f, task);
}
