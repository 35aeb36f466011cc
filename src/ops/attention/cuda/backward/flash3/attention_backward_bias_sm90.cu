// SPDX-License-Identifier: Apache-2.0
// dbias by Hopper's asynchronous products, where bias is one for several batches or heads: a block owns 128 x 128 elements and goes
// through the batches and heads that add to them, in their order, computing their scores and dout v anew. So sums have one order,
// no memory but dbias is written, and every run gives the same bits. One warp copies, two warpgroups of 64 queries each multiply;
// queries are rows, so that what a thread sums is what it stores.
// Floor: two products, 2 (head_dim + head_dim_v) FLOPs for each visible pair of query and key, dbias written once.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM (64, 128: rows are filled up with zeros), IS_F32 (the bias is fp32, not DTYPE)
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/attention_bias.cuh"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

#if HEAD_DIM != 64 && HEAD_DIM != 128
#error "HEAD_DIM is not defined: 64 or 128"
#endif
#ifndef IS_F32
#error "IS_F32 is not defined"
#endif

enum {
    BLOCK = FLASH3_OWNED, // queries and keys of a tile
    STAGES = FLASH3_DBIAS_STAGES(HEAD_DIM),
    SLAB = BLOCK * 128, // bytes of 64 columns
    TILE_BYTES = FLASH3_ROWS_BYTES(BLOCK, HEAD_DIM),
    QUERIES_AT = 0,
    KEYS_AT = QUERIES_AT + STAGES * TILE_BYTES,
    DOUTS_AT = KEYS_AT + STAGES * TILE_BYTES,
    VALUES_AT = DOUTS_AT + STAGES * TILE_BYTES,
    BIAS_AT = VALUES_AT + STAGES * TILE_BYTES,
    BIAS_IS_THERE = BIAS_AT + BLOCK * BLOCK * (IS_F32 ? 4 : 2),
    BIAS_COLUMNS = IS_F32 ? 32 : 64, // of a box
    ARE_THERE = BIAS_IS_THERE + 8,   // per stage: queries and keys; dout and values
    ARE_FREE = ARE_THERE + 16 * STAGES,
    END_AT = ARE_FREE + 16 * STAGES,
};
static_assert(END_AT <= FLASH3_DBIAS_SHARED_BYTES(HEAD_DIM, IS_F32),
              "shared memory that the host asks for");

extern __shared__ __align__(1024) unsigned char memory[];

#define LANE ((int)(threadIdx.x % 32))
#if IS_F32
#define BIAS_OF(two, e) (two)[e]
#else
#define BIAS_OF(pair, e) ((e) ? high_of_pair(pair) : low_of_pair(pair))
#endif

// The tile of dbias that a block owns, and the heads and batches that add to it.
struct owned {
    int row, col, first_head, end_head, first_batch, end_batch;
};

DEVICE struct owned find_owned(const struct attention_backward_flash3_params *f) {
    const struct attention_params *p = &f->b.p;
    const int *shape = p->dbias.shape;
    const unsigned cols = (unsigned)(shape[3] + BLOCK - 1) / BLOCK;
    const unsigned rows = (unsigned)(shape[2] + BLOCK - 1) / BLOCK;
    const unsigned rest = blockIdx.x / cols / rows;
    const int head = (int)(rest % (unsigned)shape[1]), batch = (int)(rest / (unsigned)shape[1]);
    const int has_heads = shape[1] > 1, has_batches = shape[0] > 1;
    // The last rows come first: under a causal mask they have the most to add.
    struct owned owned = {(int)(rows - 1 - blockIdx.x / cols % rows) * BLOCK,
                          (int)(blockIdx.x % cols) * BLOCK,
                          has_heads ? head : 0,
                          has_heads ? head + 1 : p->num_heads_q,
                          has_batches ? batch : 0,
                          has_batches ? batch + 1 : p->num_batches};
    return owned;
}

// Whether at least one pair of the tile sees each other.
DEVICE int is_seen(const struct attention_params *p, const struct attention_sequence *s,
                   const struct owned *o) {
    const int end = o->row + BLOCK < s->len_q ? o->row + BLOCK : s->len_q;
    if (o->row >= end) return 0;
    return o->col < attention_end_key(p, s, end - 1) &&
           o->col + BLOCK > attention_first_key(p, s, o->row);
}

// ---- Copies -----------------------------------------------------------------------------------

DEVICE void copy_tile(unsigned tile, const struct tensor_map *map, long long row, int head,
                      int batch, unsigned barrier) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 64; i++) {
        const int at[5] = {i * 64, (int)row, head, batch, 0};
        tma_load(tile + i * SLAB, map, at, barrier);
    }
}

DEVICE void copy_tiles(const struct attention_backward_flash3_params *f, unsigned base,
                       const struct owned *o) {
    const struct attention_params *p = &f->b.p;
    struct ring ring = {0, 0};
    wait_for_primary();
    barrier_expect(base + BIAS_IS_THERE, BLOCK / BIAS_COLUMNS * 128 * f->bias.rows);
    for (int slab = 0; slab < BLOCK / BIAS_COLUMNS; slab++) {
        const int at[5] = {o->col + slab * BIAS_COLUMNS, f->bias.rows > 1 ? o->row : 0,
                           o->first_head * f->bias.head, o->first_batch * f->bias.batch, 0};
        tma_load(base + BIAS_AT + slab * SLAB, &f->bias.map, at, base + BIAS_IS_THERE);
    }
    for (int batch = o->first_batch; batch < o->end_batch; batch++) {
        const struct attention_sequence s = attention_sequence_at(p, batch);
        const int of = p->is_packed ? 0 : batch;
        if (!is_seen(p, &s, o)) continue;
        for (int head = o->first_head; head < o->end_head; head++) {
            const unsigned at = ring.stage * TILE_BYTES, barriers = base + 16 * ring.stage;
            const long long row = s.q_first + o->row, col = s.k_first + o->col;
            const int kv_head = head / p->group;
            barrier_wait(barriers + ARE_FREE, ring.parity ^ 1);
            barrier_expect(barriers + ARE_THERE, 2 * TILE_BYTES);
            copy_tile(base + QUERIES_AT + at, &f->maps.q, row, head, of, barriers + ARE_THERE);
            copy_tile(base + KEYS_AT + at, &f->maps.k, col, kv_head, of, barriers + ARE_THERE);
            barrier_wait(barriers + ARE_FREE + 8, ring.parity ^ 1);
            barrier_expect(barriers + ARE_THERE + 8, 2 * TILE_BYTES);
            copy_tile(base + DOUTS_AT + at, &f->maps.dout, row, head, of, barriers + ARE_THERE + 8);
            copy_tile(base + VALUES_AT + at, &f->maps.v, col, kv_head, of,
                      barriers + ARE_THERE + 8);
            ring_advance(&ring, STAGES);
        }
    }
}

// ---- Products ---------------------------------------------------------------------------------

// c = rows cols^T, 64 x 128.
DEVICE void issue_product(float (*c)[4], unsigned rows, unsigned cols) {
    const unsigned long long a = wgmma_tile(rows, 16), b = wgmma_tile(cols, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        const unsigned long long step = WGMMA_STEP(d / 4 * SLAB + d % 4 * 32);
        wgmma_shared_128(c, a + step, b + step, d > 0);
    }
}

DEVICE void release(unsigned barrier) {
    if (LANE == 0) barrier_arrive(barrier);
}

// Adds the gradients of 16 queries' scores to sums. hidden: some pairs of the tile do not see each other. row: this lane's first.
DEVICE void add_grads(float (*sums)[4], const float (*s)[4], const float (*g)[4],
                      const struct attention_backward_flash3_params *f,
                      const struct attention_sequence *q, const struct owned *o, unsigned bias,
                      long long statistic, int row, int has_hidden) {
    const struct attention_params *p = &f->b.p;
    const float scale = p->softmax_scale;
#if !IS_F32
    const unsigned at = f->bias.rows == 1 ? 0 : (row - o->row) / 16 * 16 + LANE % 16;
#endif
    const float *lse = f->b.lse + statistic, *delta = f->b.delta + statistic,
                *low = f->b.lse_low + statistic;
    const float rows_lse[2] = {lse[0], lse[8]}, rows_delta[2] = {delta[0], delta[8]},
                rows_low[2] = {low[0], low[8]};
    int begin[2] = {0, 0}, end[2] = {BLOCK, BLOCK};
    if (has_hidden) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row + h * 8, first = o->col + LANE % 4 * 2;
            begin[h] = attention_first_key(p, q, i) - first;
            end[h] = i < q->len_q ? attention_end_key(p, q, i) - first : 0;
        }
    }
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n += 2) {
#if IS_F32
        float x[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned m = n + i / 2, r = f->bias.rows == 1 ? 0 : row - o->row + i % 2 * 8;
            load_two_floats(x[i], bias + m / 4 * SLAB + r * 128 +
                                      ((m % 4 * 2 + LANE % 4 / 2) ^ r % 8) * 16 + LANE % 2 * 8);
        }
#else
        unsigned x[4];
        load_matrices(x, bias + n / 8 * SLAB + at * 128 +
                             (((unsigned)(n % 8) + LANE / 16) ^ at % 8) * 16);
#endif
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int m = n + i / 2, h = i % 2, c = 2 * h + e, col = m * 8 + e;
                const float beside = BIAS_OF(x[i], e);
                const float weight = exp2_fast(
                    fmaf(fmaf(s[m][c], scale, beside) - rows_lse[h], LOG2_E, -rows_low[h]));
                const float grad = weight * (g[m][c] - rows_delta[h]);
                sums[m][c] += col >= begin[h] && col < end[h] ? grad : 0;
            }
    }
}

DEVICE void multiply_tiles(const struct attention_backward_flash3_params *f, unsigned base,
                           const struct owned *o, int warp) {
    const struct attention_params *p = &f->b.p;
    const unsigned own = warp / 4 * 64 * 128;
    const int row = o->row + warp * 16 + LANE / 4;
    struct ring ring = {0, 0};
    float sums[BLOCK / 8][4];
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums[n][c] = 0;
    wait_for_primary();
    barrier_wait(base + BIAS_IS_THERE, 0);
#pragma unroll 1
    for (int batch = o->first_batch; batch < o->end_batch; batch++) {
        const struct attention_sequence s = attention_sequence_at(p, batch);
        if (!is_seen(p, &s, o)) continue;
        const int last = o->row + BLOCK - 1;
        const int has_hidden = last >= s.len_q || o->col < attention_first_key(p, &s, last) ||
                               o->col + BLOCK > attention_end_key(p, &s, o->row);
#pragma unroll 1
        for (int head = o->first_head; head < o->end_head; head++) {
            const unsigned at = ring.stage * TILE_BYTES, barriers = base + 16 * ring.stage;
            const long long statistic = statistics_at(&f->b, &s, batch, head) + row;
            float c[BLOCK / 8][4], g[BLOCK / 8][4];
            WGMMA_FORGET(c, BLOCK / 8);
            WGMMA_FORGET(g, BLOCK / 8);
            barrier_wait(barriers + ARE_THERE, ring.parity);
            WGMMA_BEGIN();
            issue_product(c, base + QUERIES_AT + at + own, base + KEYS_AT + at);
            WGMMA_COMMIT();
            barrier_wait(barriers + ARE_THERE + 8, ring.parity);
            WGMMA_BEGIN();
            issue_product(g, base + DOUTS_AT + at + own, base + VALUES_AT + at);
            WGMMA_COMMIT();
            WGMMA_WAIT(1);
            release(barriers + ARE_FREE);
            WGMMA_WAIT(0);
            WGMMA_HOLD(c, BLOCK / 8);
            WGMMA_HOLD(g, BLOCK / 8);
            release(barriers + ARE_FREE + 8);
            add_grads(sums, c, g, f, &s, o, base + BIAS_AT, statistic, row, has_hidden);
            ring_advance(&ring, STAGES);
        }
    }
    const long long to = o->first_batch * p->dbias.stride[0] + o->first_head * p->dbias.stride[1] +
                         row * p->dbias.stride[2];
#pragma unroll
    for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int col = o->col + n * 8 + LANE % 4 * 2 + c % 2;
            if (row + c / 2 * 8 < p->dbias.shape[2] && col < p->dbias.shape[3])
                store_either(p->dbias.data,
                             to + c / 2 * 8 * p->dbias.stride[2] + col * p->dbias.stride[3],
                             sums[n][c], IS_F32);
        }
}

extern "C" __global__ void __launch_bounds__(FLASH3_THREADS, 1) attention_backward_bias_sm90(
    const __grid_constant__ struct attention_backward_flash3_params f) {
    start_dependents();
    const unsigned base = shared_address(memory);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const struct owned owned = find_owned(&f);
    if (threadIdx.x == 0) {
        barrier_start(base + BIAS_IS_THERE, 1);
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_start(base + ARE_THERE + 8 * i, 1);
            barrier_start(base + ARE_FREE + 8 * i, 8);
        }
        barrier_publish_starts();
    }
    __syncthreads();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) copy_tiles(&f, base, &owned);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_tiles(&f, base, &owned, warp - 4);
    }
}
