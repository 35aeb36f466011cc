// SPDX-License-Identifier: Apache-2.0
// Attention's backward of up to 256 queries and keys (heads of 128: 128), for 16-bit dtypes by m16n8k16, in one launch. A block
// owns SMALL_KEYS keys of a head, the blocks of a head are a cluster. Each has all queries and dout of the head in shared memory,
// computes delta itself, and goes once through the scores of its keys: dk and dv add up in registers, gradients of scores go to
// shared memory. Each block owns queries, too, and gets the gradients that the others have for them through the cluster: dq is one
// product over all keys. Every sum has one order, no atomics. Two warps share 16 keys; one has the even tiles of queries, the other
// the odd ones.
// Floor: five products, 6 head_dim + 4 head_dim_v FLOPs for each pair. Limit: products, exponentials and products again, one after
// the other, in four warps a scheduler. Figures: docs/kernels/attention_cuda_small.md.
// The host defines
//     DTYPE, HEAD_DIM (64 or 128: at least both head dims), UNITS (1; with heads of 64 1 or 2)
#if !defined(UNITS) || !defined(HEAD_DIM)
#error "UNITS or HEAD_DIM is not defined"
#endif
#define TILE 32      // queries
#define BLOCK_M TILE // of the tiles in other headers
#define BLOCK_N TILE
#define THREADS SMALL_THREADS(UNITS)
#define WARP_UNITS                                                                                 \
    1 // of 16 keys: with two a warp reads half as much for its products, but there are half as many warps
#define FEATURES 0
#include "ops/attention/cuda/backward/attention_backward_small_params.h" // THREADS of the next

#include "ops/attention/cuda/attention_mma.cuh"
#include "ops/attention/cuda/forward/attention_small_tiles.cuh"

#include "cuda/device/block.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"

#define KEYS SMALL_KEYS(UNITS)
#define KEY_WARPS (KEYS / 16 / WARP_UNITS)
#define SLAB_SIZE SMALL_SLAB_BYTES(UNITS)
#define STAGE 128 // queries whose rows are loaded together
#define NOT_A_NUMBER __int_as_float(0x7fc00000)
#define EACH_UNIT(u) _Pragma("unroll") for (int u = 0; u < WARP_UNITS; u++)
#define DIM_TILES (HEAD_DIM / 8)

extern __shared__ __align__(1024) unsigned char memory[];

// The task of a block.
struct work {
    int batch, head, rank, first_key;
    unsigned q, dout, keys, values, grads, others, rows, barrier; // in shared memory
};

#include "ops/attention/cuda/backward/attention_backward_small.cuh"

// ---- Scores -------------------------------------------------------------------------------------

// scores += owned . passing, over the columns, for 16 WARP_UNITS rows by TILE.
DEVICE void multiply(float (*scores)[TILE / 8][4], unsigned owned, unsigned owned_slab,
                     unsigned passing, unsigned passing_slab, int dims) {
    EACH_UNIT(u)
    EACH_COLUMN_TILE(n) scores[u][n][0] = scores[u][n][1] = scores[u][n][2] = scores[u][n][3] = 0;
    EACH_STEP(d, dims) {
        unsigned a[WARP_UNITS][4], b[4];
        EACH_UNIT(u)
        load_matrices(a[u], SLAB_COLUMNS(owned, d, owned_slab) + u * 16 * SMALL_ROW_BYTES);
#pragma unroll
        for (int n = 0; n < TILE / 8; n += 2) {
            load_matrices(b, SLAB_COLUMNS(passing, d, passing_slab) + n * 8 * SMALL_ROW_BYTES);
            EACH_UNIT(u) {
                mma(scores[u][n], a[u], b[0], b[1]);
                mma(scores[u][n + 1], a[u], b[2], b[3]);
            }
        }
    }
}

// sums += weights . passing, over 16 passing rows.
DEVICE void accumulate(float (*sums)[DIM_TILES][4], unsigned (*weights)[4], unsigned passing,
                       unsigned slab, int dims) {
    EACH_STEP(d, dims) {
        unsigned b[4];
        load_matrices_transposed(b, SLAB_COLUMNS(passing, d, slab));
        EACH_UNIT(u) {
            mma(sums[u][2 * d], weights[u], b[0], b[1]);
            mma(sums[u][2 * d + 1], weights[u], b[2], b[3]);
        }
    }
}

// Turns scores and dout v into weights and gradients. Rows are keys from j on, columns are queries from i on.
DEVICE void weigh_pairs(const struct attention_backward_small_params *p, const struct work *w,
                        int i, int j, int is_edge, float scale_log2, float (*s)[TILE / 8][4],
                        float (*g)[TILE / 8][4]) {
    const unsigned rows = w->rows + (unsigned)(i + LANE % 4 * 2) * 4;
    const int far = j + LANE / 4 - i - LANE % 4 * 2 - p->shift,
              left_q = p->seqlen_q - i - LANE % 4 * 2, left_k = p->seqlen_k - j - LANE / 4;
    EACH_COLUMN_TILE(n) {
        float lse[2], delta[2];
        load_two_floats(lse, rows + n * 32);
        load_two_floats(delta, rows + (unsigned)p->rows * 4 + n * 32);
        EACH_UNIT(u) EACH_HALF(h) EACH_HALF(e) {
            float *x = &s[u][n][2 * h + e], *y = &g[u][n][2 * h + e];
            *x = exp2_fast(*x * scale_log2 - (e ? lse[1] : lse[0]));
            *y = *x * (*y - (e ? delta[1] : delta[0]));
            if (!is_edge) continue;
            const int row = u * 16 + h * 8, col = n * 8 + e, here = far + row - col;
            if (here < -p->window_left || here > p->window_right || col >= left_q || row >= left_k)
                *x = *y = 0;
        }
    }
}

// ---- dq --------------------------------------------------------------------------------------------

// dq of the block's queries. A warp takes 16 WARP_UNITS queries by 32 columns at a time.
DEVICE void multiply_gradients(const struct attention_backward_small_params *p,
                               const struct work *w, unsigned char *part) {
    const int lane = LANE, begin = w->rank * p->queries,
              halves = HEAD_DIM == 64 ? (p->head_dim > 32 ? 2 : 1) : (p->head_dim + 31) / 32;
    const int slabs = p->queries / SMALL_SLAB;
#pragma unroll 1
    for (int n = threadIdx.x / 32; n < p->queries / (16 * WARP_UNITS) * halves; n += THREADS / 32) {
        const int half = n % halves, own = n / halves * 16 * WARP_UNITS, i = begin + own;
        if (i >= p->seqlen_q) break;
        const int last =
            (i + 16 * WARP_UNITS < p->seqlen_q ? i + 16 * WARP_UNITS : p->seqlen_q) - 1;
        int first_key = i + p->shift - p->window_left,
            end_key = last + p->shift + p->window_right + 1;
        if (end_key > p->seqlen_k) end_key = p->seqlen_k;
        // Starts at the first key's group of 16: it has gradients if that key exists.
        first_key = first_key < 0 ? 0 : first_key < end_key ? first_key / 16 * 16 : end_key;
        float sums[WARP_UNITS][4][4];
        EACH_UNIT(u)
        EACH_COLUMN_TILE(c) sums[u][c][0] = sums[u][c][1] = sums[u][c][2] = sums[u][c][3] = 0;
        const unsigned row = (unsigned)(lane % 8 + lane / 16 * 8) * SMALL_ROW_BYTES,
                       of_keys = piece_at(lane % 16, lane / 16 + half * 4, p->blocks * KEYS);
        unsigned column[WARP_UNITS];
        EACH_UNIT(u)
        column[u] = row + (unsigned)((own % SMALL_SLAB / 8 + u * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll 1
        for (int block = first_key / KEYS; block * KEYS < end_key; block++) {
            const unsigned from =
                (block == w->rank
                     ? w->grads + (unsigned)(begin / SMALL_SLAB * SLAB_SIZE)
                     : w->others + (unsigned)((block - (block > w->rank)) * slabs * SLAB_SIZE)) +
                (unsigned)(own / SMALL_SLAB * SLAB_SIZE);
            const int of_block = block * KEYS,
                      j_end = end_key < of_block + KEYS ? end_key : of_block + KEYS;
#pragma unroll 4
            for (int j = first_key > of_block ? first_key : of_block; j < j_end; j += 16) {
                unsigned a[WARP_UNITS][4], b[2][4];
                const unsigned keys = w->keys + (unsigned)j * SMALL_ROW_BYTES;
                EACH_UNIT(u)
                load_matrices_transposed(a[u], from + (unsigned)(j - of_block) * SMALL_ROW_BYTES +
                                                   column[u]);
                EACH_HALF(d) load_matrices_transposed(b[d], keys + SLAB_COLUMNS(of_keys, d, 0));
                EACH_HALF(d) EACH_UNIT(u) {
                    mma(sums[u][2 * d], a[u], b[d][0], b[d][1]);
                    mma(sums[u][2 * d + 1], a[u], b[d][2], b[d][3]);
                }
            }
        }
        store_sums(sums[0], 4, p->softmax_scale, part, &p->dq, w, i, p->seqlen_q, half * 4,
                   p->head_dim);
    }
}

// ---- The kernel -------------------------------------------------------------------------------------

// Computed again at each use: kept through the loop, it would take registers.
DEVICE struct work find_work(const struct attention_backward_small_params *p) {
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const int head = (int)(block / (unsigned)p->blocks), rank = (int)(block % (unsigned)p->blocks),
              rows = p->rows;
    const unsigned q = shared_address(memory);
    const struct work w = {
        head / p->num_heads,
        head % p->num_heads,
        rank,
        rank * KEYS,
        q,
        q + (unsigned)SMALL_TILE_BYTES(rows, HEAD_DIM),
        q + SMALL_KEYS_AT(HEAD_DIM, rows, UNITS),
        q + SMALL_VALUES_AT(HEAD_DIM, rows, UNITS, p->blocks),
        q + SMALL_GRADS_AT(HEAD_DIM, rows, UNITS, p->blocks),
        q + SMALL_OTHERS_AT(HEAD_DIM, rows, UNITS, p->blocks),
        q + SMALL_ROWS_AT(HEAD_DIM, rows, UNITS, p->blocks, p->queries),
        q + SMALL_BARRIER_AT(HEAD_DIM, rows, UNITS, p->blocks, p->queries),
    };
    return w;
}
// Bytes of gradients that the block receives from the others.
DEVICE int awaited_bytes(const struct attention_backward_small_params *p, const struct work *w) {
    const int left = (p->rows - w->rank * p->queries) / SMALL_SLAB, most = p->queries / SMALL_SLAB;
    if (p->dq.data == 0 || left <= 0) return 0;
    return (p->blocks - 1) * (left < most ? left : most) * SLAB_SIZE;
}

// Sends the other blocks the gradients that this block has for their queries.
DEVICE void send_gradients(const struct attention_backward_small_params *p, const struct work *w) {
    const int slabs = p->queries / SMALL_SLAB;
    for (int turn = 1; turn < p->blocks; turn++) {
        const int rank = (w->rank + turn) % p->blocks, first = rank * slabs;
        const int left = p->rows / SMALL_SLAB - first, count = left < slabs ? left : slabs;
        if (count <= 0) continue;
        const unsigned slot = (unsigned)(w->rank - (w->rank > rank)) * (unsigned)slabs;
        cluster_copy(cluster_address(w->others + slot * SLAB_SIZE, rank),
                     w->grads + (unsigned)first * SLAB_SIZE, count * SLAB_SIZE,
                     cluster_address(w->barrier, rank));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, UNITS == 1 && HEAD_DIM == 64 ? 2 : 1)
    attention_backward_small(
        const __grid_constant__ struct attention_backward_small_params params) {
    const struct attention_backward_small_params *p = &params;
    start_dependents();
    struct work w = find_work(p);
    const int rows = p->rows;
    if (p->blocks > 1) {
        if (threadIdx.x == 0) {
            barrier_start(w.barrier, 1);
            barrier_publish_starts();
            const int bytes = awaited_bytes(p, &w);
            if (bytes > 0) barrier_expect(w.barrier, bytes);
        }
        __syncwarp();
        cluster_arrive();
    }
    wait_for_primary();

    const unsigned own_keys = w.keys + (unsigned)w.first_key * SMALL_ROW_BYTES;
    load_rows(own_keys, p->blocks * KEYS, &p->k, &w, w.first_key, KEYS, p->seqlen_k, p->head_dim);
    load_rows(w.values, KEYS, &p->v, &w, w.first_key, KEYS, p->seqlen_k, p->head_dim_v);
    load_stage(p, &w, 0);
    copy_commit();
    if (rows > STAGE) load_stage(p, &w, STAGE);
    for (int rank = 0; rank < p->blocks; rank++)
        if (rank != w.rank)
            load_rows(w.keys + (unsigned)(rank * KEYS) * SMALL_ROW_BYTES, p->blocks * KEYS, &p->k,
                      &w, rank * KEYS, KEYS, p->seqlen_k, p->head_dim);
    copy_commit();

    const int lane = LANE, warp = threadIdx.x / 32 % KEY_WARPS,
              group = threadIdx.x / 32 / KEY_WARPS;
    const int own = warp * 16 * WARP_UNITS, j = w.first_key + own;
    const int last = (j + 16 * WARP_UNITS < p->seqlen_k ? j + 16 * WARP_UNITS : p->seqlen_k) - 1;
    int begin = j - p->shift - p->window_right, end = last - p->shift + p->window_left + 1;
    begin = begin < 0 ? 0 : begin;
    end = last < j ? 0 : end > p->seqlen_q ? p->seqlen_q : end;

    float dk[WARP_UNITS][DIM_TILES][4], dv[WARP_UNITS][DIM_TILES][4];
    EACH_UNIT(u) {
        start_output(dk[u]);
        start_output(dv[u]);
    }
    const float scale_log2 = p->softmax_scale * LOG2_E;
    const unsigned keys_slab = (unsigned)(p->blocks * KEYS * SMALL_ROW_BYTES),
                   rows_slab = (unsigned)(rows * SMALL_ROW_BYTES),
                   owned = piece_at(own + lane % 16, lane / 16, 0),
                   rows_at = piece_at(lane % 8 + lane / 16 * 8, lane / 8 % 2, 0),
                   columns_at = piece_at(lane % 16, lane / 16, 0);
#pragma unroll 1
    for (int stage = 0; stage < rows; stage += STAGE) {
        if (stage == 0 && rows > STAGE)
            COPY_WAIT(1);
        else
            COPY_WAIT(0);
        if (stage == 0 && p->has_hidden) mark_keys(own_keys, p->blocks * KEYS, KEYS, 0xffffffffu);
        finish_stage(p, &w, stage);
        __syncthreads();
        const int first = stage > begin / TILE * TILE ? stage : begin / TILE * TILE;
        const int stop = end < stage + STAGE ? end : stage + STAGE;
#pragma unroll 1
        for (int i = first + (first / TILE + group) % 2 * TILE; i < stop; i += 2 * TILE) {
            float s[WARP_UNITS][TILE / 8][4], g[WARP_UNITS][TILE / 8][4];
            const unsigned q = w.q + (unsigned)i * SMALL_ROW_BYTES,
                           dout = w.dout + (unsigned)i * SMALL_ROW_BYTES;
            multiply(s, own_keys + owned, keys_slab, q + rows_at, rows_slab, p->head_dim);
            multiply(g, w.values + owned, KEYS * SMALL_ROW_BYTES, dout + rows_at, rows_slab,
                     p->head_dim_v);
            const int is_edge = last - i - p->shift > p->window_right ||
                                j - i - (TILE - 1) - p->shift < -p->window_left ||
                                last < j + 16 * WARP_UNITS - 1 || i + TILE > p->seqlen_q;
            if (is_edge)
                weigh_pairs(p, &w, i, j, 1, scale_log2, s, g);
            else
                weigh_pairs(p, &w, i, j, 0, scale_log2, s, g);
            const unsigned slab = w.grads + (unsigned)(i / SMALL_SLAB * SLAB_SIZE);
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                unsigned weights[WARP_UNITS][4], grads[WARP_UNITS][4];
                EACH_UNIT(u) {
                    pack_weights(weights[u], s[u] + 2 * n);
                    pack_weights(grads[u], g[u] + 2 * n);
                    store_matrices(slab + piece_at(own + u * 16 + lane % 16,
                                                   i % SMALL_SLAB / 8 + 2 * n + lane / 16, 0),
                                   grads[u]);
                }
                accumulate(dv, weights, dout + n * 16 * SMALL_ROW_BYTES + columns_at, rows_slab,
                           p->head_dim_v);
                accumulate(dk, grads, q + n * 16 * SMALL_ROW_BYTES + columns_at, rows_slab,
                           p->head_dim);
            }
        }
    }

    w = find_work(p);
    if (p->blocks > 1) tma_see_shared();
    __syncthreads(); // queries are no longer read; all gradients have arrived
    if (p->blocks > 1) {
        cluster_wait();
        if (threadIdx.x == 0 && p->dq.data != 0) send_gradients(p, &w);
    }
    enum { PART = WARP_UNITS * 16 * HEAD_DIM * 4 };
    unsigned char *const dk_part = memory + warp * PART, *const dv_part =
                                                             dk_part + KEY_WARPS * PART;
    if (group == 0)
        give((float4 *)dv_part + lane, dv);
    else
        give((float4 *)dk_part + lane, dk);
    if (p->has_hidden) mark_keys(w.keys, p->blocks * KEYS, p->blocks * KEYS, 0);
    __syncthreads();
    unsigned char *const part = group == 0 ? dk_part : dv_part; // the partner's part, now free
    if (group == 0) {
        take((const float4 *)dk_part + lane, dk);
        if (p->dk.data != 0)
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 8)
                store_sums(dk[0] + n, 8, p->softmax_scale, part, &p->dk, &w, j, p->seqlen_k, n,
                           p->head_dim);
    } else {
        take((const float4 *)dv_part + lane, dv);
        if (p->dv.data != 0)
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 8)
                store_sums(dv[0] + n, 8, 1, part, &p->dv, &w, j, p->seqlen_k, n, p->head_dim_v);
    }
    if (p->blocks > 1) {
        if (awaited_bytes(p, &w) > 0) barrier_wait(w.barrier, 0);
        cluster_arrive();
    }
    if (p->dq.data != 0) multiply_gradients(p, &w, part);
    if (p->blocks > 1) cluster_wait(); // no copy reads this block's gradients any more
}
