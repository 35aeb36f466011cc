// SPDX-License-Identifier: Apache-2.0
// Backward by five products for heads of 192 with values of 128. All around the products is attention_backward_flash3_sm90.cu's:
// who owns what, the order in which dq is summed, what becomes of numbers that are not finite. dk and dv of 64 keys leave a thread
// 80 of its 240 registers, and what else there is fills shared memory. So
//   - gradients of weights come in halves of 32 queries, the first beside the weights, the second behind the first's;
//   - dk takes gradients of scores from shared memory, of which there is one tile, and has no operands in registers;
//   - a step's last product, dk, is ordered behind the scores of the next, so that it runs beside their weights;
//   - addresses are found anew where they are used, in registers that a warp's threads share.
// Floor: 6 x 192 + 4 x 128 FLOPs for each visible pair of query and key, and an exponential.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines DTYPE.
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

#define HEAD_DIM 192
#define TERMS 0
#define HAS_BIAS 0
#define HAS_SHARED_LOW 0
#define HAS_FINAL_DQ 0
#define KEY_STAGES 1

// A warpgroup's 96 columns of dq are one slab of 64 and half of the slab between both groups. The shared slab comes last in
// memory, so that one product takes all 96.
enum {
    OWNED = FLASH3_OWNED,
    PASSING = FLASH3_PASSING(HEAD_DIM),
    THREADS = FLASH3_THREADS,
    STAGES = FLASH3_STAGES,
    WRITERS = 2,
    PIECES = 8, // of 16 bytes, per row of a slab
    SCORES = PASSING / 8,
    SUMS = 8, // groups of 8 columns, of a slab
    DK_SUMS = HEAD_DIM / 8,
    DV_SUMS = FLASH3_WIDE_VALUES / 8,
    DQ_SUMS = HEAD_DIM / 2 / 8,
    SLABS = HEAD_DIM / 64,
    V_SLABS = FLASH3_WIDE_VALUES / 64,
    OWNED_SLAB = OWNED * 128, // bytes of 64 columns
    PASSING_SLAB = PASSING * 128,
    OWNED_BYTES = OWNED_SLAB * SLABS,
    V_OWNED_BYTES = OWNED_SLAB * V_SLABS,
    PASSING_BYTES = PASSING_SLAB * SLABS,
    V_PASSING_BYTES = PASSING_SLAB * V_SLABS,
    GRADS_BYTES = OWNED * PASSING * 2,
    DQ_BYTES = PASSING * HEAD_DIM * 4,
    STATISTIC_BYTES = PASSING * 4,

    KEYS_AT = 0,
    VALUES_AT = OWNED_BYTES,
    QUERIES_AT = VALUES_AT + V_OWNED_BYTES,
    DOUTS_AT = QUERIES_AT + STAGES * PASSING_BYTES,
    GRADS_AT = DOUTS_AT + STAGES * V_PASSING_BYTES,
    DQ_AT = GRADS_AT + GRADS_BYTES,
    LSE_AT = DQ_AT + DQ_BYTES,
    DELTA_AT = LSE_AT + STAGES * STATISTIC_BYTES,
    MARKS_AT = DELTA_AT + STAGES * STATISTIC_BYTES,
    TASK_AT = MARKS_AT + OWNED * 4,
    TASK_BYTES = 128,
    HAS_MARKS_AT = TASK_AT + TASK_BYTES,
    STEPS_AT = HAS_MARKS_AT + 8, // of a stage: the first query of its tile
    STEP_BYTES = 4,
    BARRIERS_AT = STEPS_AT + STEP_BYTES * STAGES,
    TASK_IS_THERE = BARRIERS_AT, // and its keys and values
    TASK_IS_DONE = TASK_IS_THERE + 8,
    QUERIES_ARE_THERE = TASK_IS_DONE + 8, // of each stage
    DOUT_IS_THERE = QUERIES_ARE_THERE + 8 * STAGES,
    STAGE_IS_FREE = DOUT_IS_THERE + 8 * STAGES,
    DQ_IS_THERE = STAGE_IS_FREE + 8 * STAGES, // of each writer
    DQ_IS_FREE = DQ_IS_THERE + 8 * WRITERS,
    GRADS_ARE_FREE = DQ_IS_FREE + 8,
    END_AT = GRADS_ARE_FREE + 8,
};
static_assert(END_AT <= FLASH3_WIDE_SHARED_BYTES, "shared memory that the host asks for");

// The place of a slab of keys: the last columns come before the middle ones.
#define KEY_SLAB(i) ((i) == 0 ? 0 : 3 - (i))

extern __shared__ __align__(1024) unsigned char memory[];
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_tasks.cuh"

#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_edges.cuh"

// ---- The threads that multiply ------------------------------------------------------------------

// Moves a value that is equal in all threads of a warp to where the assembler keeps such values.
DEVICE unsigned uniform(unsigned x) { return __reduce_max_sync(0xffffffff, x); }

DEVICE unsigned long long wgmma_tile_u(unsigned shared, unsigned slab_bytes) {
    const unsigned long long tile = wgmma_tile(shared, slab_bytes);
    return (tile & 0xffffffff00000000ull) | uniform((unsigned)tile);
}
// A tile's descriptor, `bytes` bytes further. The upper half does not change, which the assembler would not see from an addition
// of 64 bits.
DEVICE unsigned long long wgmma_step(unsigned long long tile, unsigned bytes) {
    return (tile & 0xffffffff00000000ull) | ((unsigned)tile + (bytes >> 4));
}

// c = owned passing^T, over the columns of q and k: 64 keys times the queries of a tile.
DEVICE void issue_scores(float (*c)[4], unsigned owned, unsigned passing) {
    unsigned long long a = wgmma_tile_u(owned, 16), b = wgmma_tile_u(passing, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++)
        wgmma_shared_64(c, wgmma_step(a, KEY_SLAB(d / 4) * OWNED_SLAB + d % 4 * 32),
                        wgmma_step(b, d / 4 * PASSING_SLAB + d % 4 * 32), d > 0);
}
// The same over the columns of v and dout, with one half of the queries.
DEVICE void issue_weight_grads(float (*c)[4], unsigned owned, unsigned passing, int half) {
    unsigned long long a = wgmma_tile_u(owned, 16), b = wgmma_tile_u(passing + half * 32 * 128, 16);
#pragma unroll
    for (int d = 0; d < FLASH3_WIDE_VALUES / 16; d++)
        WGMMA_TILES_32(c, wgmma_step(a, d / 4 * OWNED_SLAB + d % 4 * 32),
                       wgmma_step(b, d / 4 * PASSING_SLAB + d % 4 * 32), d, 0, 0);
}

// dv += weights dout, for one half of the queries.
DEVICE void issue_dv(float (*dv)[4], const unsigned (*weights)[4], unsigned dout, int half) {
    unsigned long long b = wgmma_tile_u(dout + half * 32 * 128, PASSING_SLAB);
#pragma unroll
    for (int n = 0; n < 2; n++) wgmma_registers_128(dv, weights[n], wgmma_step(b, n * 2048));
}

// dk += grads queries.
DEVICE void issue_dk(float (*dk)[4], unsigned grads, unsigned queries) {
    unsigned long long a = wgmma_tile_u(grads, 16), b = wgmma_tile_u(queries, PASSING_SLAB);
#pragma unroll
    for (int n = 0; n < PASSING / 16; n++)
        WGMMA_TILES_192(dk, wgmma_step(a, n * 32), wgmma_step(b, n * 2048), 1, 0, 1);
}

// c = grads^T keys: 64 queries times 96 columns, over the keys that the block owns.
DEVICE void issue_dq(float (*c)[4], unsigned grads, unsigned keys, unsigned group) {
    unsigned long long a = wgmma_tile_u(grads, 16),
                       b = wgmma_tile_u(keys + group * OWNED_SLAB,
                                        group == 0 ? 2 * OWNED_SLAB : OWNED_SLAB + 64);
#pragma unroll
    for (int n = 0; n < OWNED / 16; n++)
        WGMMA_TILES_96(c, wgmma_step(a, n * 2048), wgmma_step(b, n * 2048), n, 1, 1);
}

// Turns scores and gradients of weights of one half of the queries, 64 keys times 32, into operands: weights, gradients of scores.
DEVICE void differentiate_half(unsigned (*a)[4], unsigned (*ds)[4], const float (*weights)[4],
                               const float (*g)[4], unsigned delta) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float row[2];
        load_two_floats(row, delta + n * 32);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *w = weights[n] + 2 * i;
            a[n / 2][n % 2 * 2 + i] = pair_of_floats(w[0], w[1]);
            ds[n / 2][n % 2 * 2 + i] =
                pair_of_floats(w[0] * (g[n][2 * i] - row[0]), w[1] * (g[n][2 * i + 1] - row[1]));
        }
    }
}

// Passes a step's part of dq to a writer.
DEVICE void hand_on(const float (*dq)[4], unsigned base, unsigned count) {
    const unsigned thread = thread_now() - 128;
    barrier_wait(base + DQ_IS_FREE, count & 1 ^ 1);
    float4 *to = (float4 *)(memory + DQ_AT) + thread / 128 * (DQ_SUMS * 128) + thread % 128;
#pragma unroll
    for (int n = 0; n < DQ_SUMS; n++)
        to[n * 128] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
    tma_see_shared();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(base + DQ_IS_THERE + 8 * (count % WRITERS));
}

// Where the tiles of a step lie in this block's memory, and their first query. Computed again at each use, as registers are few.
DEVICE unsigned stage_of(unsigned count) { return RING(count); }
DEVICE unsigned queries_of(unsigned count) { return QUERIES_AT + stage_of(count) * PASSING_BYTES; }
DEVICE unsigned douts_of(unsigned count) { return DOUTS_AT + stage_of(count) * V_PASSING_BYTES; }
DEVICE unsigned lse_of(unsigned count) { return LSE_AT + RING(count) * STATISTIC_BYTES; }
DEVICE int query_of(unsigned count) { return query_at(RING(count)); }
// The same for a warpgroup's part of a tile whose rows are keys.
DEVICE unsigned own_group(void) { return thread_now() / 128 - 1; }
DEVICE unsigned own(unsigned tile) { return tile + own_group() * 64 * 128; }

DEVICE void clean_tiles(unsigned count) {
    float *lse = (float *)(memory + lse_of(count));
    const int thread = (int)thread_now() - 128;
    if (any_worker(search_rows(memory + queries_of(count), PASSING_BYTES, thread) |
                   search_rows(memory + douts_of(count), V_PASSING_BYTES, thread))) {
        clean_rows(memory + queries_of(count), PASSING_BYTES, PASSING, lse, thread);
        clean_rows(memory + douts_of(count), V_PASSING_BYTES, PASSING, lse, thread);
        WGMMA_SEE_SHARED();
        workers_meet();
    }
}

// Turns scores and the first half's gradients of weights, both still running, into gradients of scores in shared memory; adds to
// dv.
DEVICE void find_grads(float (*s)[4], float (*g)[4], float (*dv)[4],
                       const struct attention_backward_flash3_params *f, unsigned base,
                       unsigned count, int is_edge, int has_before) {
    const struct attention_params *p = &f->b.p;
    unsigned a[2][4], ds[2][4];
    if (has_before)
        WGMMA_WAIT(2);
    else
        WGMMA_WAIT(1);
    WGMMA_HOLD(s, SCORES);
    weigh(s, base + lse_of(count) + thread_now() % 4 * 8, f->scale_log2);
    if (has_before)
        WGMMA_WAIT(1);
    else
        WGMMA_WAIT(0);
    WGMMA_HOLD(g, SCORES / 2);
    differentiate_half(a, ds, s, g,
                       base + lse_of(count) + (DELTA_AT - LSE_AT) + thread_now() % 4 * 8);
    if (is_edge) {
        const unsigned seen = seen_pairs(p, TASK_OF(count), query_of(count));
        mask_steps(a, seen, 2);
        mask_steps(ds, seen, 2);
    }
    WGMMA_FORGET(g, SCORES / 2);
    WGMMA_BEGIN();
    issue_weight_grads(g, own(base + VALUES_AT), base + douts_of(count), 1);
    WGMMA_COMMIT();
    issue_dv(dv, a, base + douts_of(count), 0);
    WGMMA_COMMIT();
    if (has_before) {
        WGMMA_WAIT(2); // the previous step's products of dk
        if (thread_now() % 32 == 0) {
            barrier_arrive(base + STAGE_IS_FREE + 8 * RING(count - 1));
            barrier_arrive(base + GRADS_ARE_FREE);
        }
    }
    barrier_wait(base + GRADS_ARE_FREE, count & 1 ^ 1);
    store_grads(base + GRADS_AT, ds, 0, 2);
    WGMMA_WAIT(1);
    WGMMA_HOLD(g, SCORES / 2);
    unsigned b[2][4];
    differentiate_half(b, ds, s + 4, g,
                       base + lse_of(count) + (DELTA_AT - LSE_AT + 128) + thread_now() % 4 * 8);
    if (is_edge) {
        const unsigned seen = seen_pairs(p, TASK_OF(count), query_of(count) + 32);
        mask_steps(b, seen, 2);
        mask_steps(ds, seen, 2);
    }
    WGMMA_BEGIN();
    issue_dv(dv, b, base + douts_of(count), 1);
    WGMMA_COMMIT();
    store_grads(base + GRADS_AT, ds, 2, 4);
    WGMMA_SEE_SHARED();
    workers_meet();
    WGMMA_WAIT(0);
}

// Orders a step's scores and the first half's gradients of weights. Returns whether the tile is at an edge.
DEVICE int start_step(float (*s)[4], float (*g)[4], const struct attention_params *p, unsigned base,
                      unsigned count) {
    barrier_wait(base + QUERIES_ARE_THERE + 8 * RING(count), PARITY(count));
    WGMMA_FORGET(s, SCORES);
    WGMMA_BEGIN();
    issue_scores(s, own(base + KEYS_AT), base + queries_of(count));
    WGMMA_COMMIT();
    barrier_wait(base + DOUT_IS_THERE + 8 * RING(count), PARITY(count));
    const int is_edge = is_edge_tile(p, TASK_OF(count), query_of(count));
    if (is_edge) clean_tiles(count);
    WGMMA_FORGET(g, SCORES / 2);
    WGMMA_BEGIN();
    issue_weight_grads(g, own(base + VALUES_AT), base + douts_of(count), 0);
    WGMMA_COMMIT();
    return is_edge;
}

DEVICE void multiply_tasks(const struct attention_backward_flash3_params *f, unsigned base,
                           int warp) {
    const struct attention_params *p = &f->b.p;
    unsigned count = 0; // of steps; the highest two bits count tasks
#pragma unroll 1
    for (;; count += COUNT_TASK) {
        barrier_wait(base + TASK_IS_THERE + 8 * slot_of(count), task_parity(count));
        if (__shfl_sync(0xffffffff, TASK_OF(count)->index, 0) >= (unsigned)f->b.num_tasks) return;
        float s[SCORES][4], g[SCORES / 2][4], dq[DQ_SUMS][4], dv[DV_SUMS][4], dk[DK_SUMS][4];
#pragma unroll
        for (int n = 0; n < DK_SUMS; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                dk[n][c] = 0;
                if (n < DV_SUMS) dv[n][c] = 0;
            }
        if (TASK_OF(count)->num_steps > 0) {
            int steps = __shfl_sync(0xffffffff, TASK_OF(count)->num_steps, 0) - 1;
            clean_keys(0, has_edges(p, TASK_OF(count)), (int)thread_now() - 128);
            WGMMA_HOLD(dv, DV_SUMS);
            WGMMA_HOLD(dk, DK_SUMS);
            int is_edge = start_step(s, g, p, base, count);
            find_grads(s, g, dv, f, base, count, is_edge, 0);
            count++;
#pragma unroll 1
            for (; steps > 0; steps--, count++) {
                WGMMA_FORGET(dq, DQ_SUMS);
                WGMMA_BEGIN();
                issue_dq(dq, base + GRADS_AT, base + KEYS_AT, own_group());
                WGMMA_COMMIT();
                WGMMA_WAIT(0);
                WGMMA_HOLD(dq, DQ_SUMS);
                hand_on(dq, base, count - 1);
                is_edge = start_step(s, g, p, base, count);
                issue_dk(dk, own(base + GRADS_AT), base + queries_of(count - 1));
                WGMMA_COMMIT();
                find_grads(s, g, dv, f, base, count, is_edge, 1);
            }
            WGMMA_FORGET(dq, DQ_SUMS);
            WGMMA_BEGIN();
            issue_dq(dq, base + GRADS_AT, base + KEYS_AT, own_group());
            WGMMA_COMMIT();
            issue_dk(dk, own(base + GRADS_AT), base + queries_of(count - 1));
            WGMMA_COMMIT();
            WGMMA_WAIT(1);
            WGMMA_HOLD(dq, DQ_SUMS);
            hand_on(dq, base, count - 1);
            WGMMA_WAIT(0);
            WGMMA_HOLD(dv, DV_SUMS);
            WGMMA_HOLD(dk, DK_SUMS);
            if (thread_now() % 32 == 0) {
                barrier_arrive(base + STAGE_IS_FREE + 8 * RING(count - 1));
                barrier_arrive(base + GRADS_ARE_FREE);
            }
            workers_meet(); // keys, values and gradients of scores are no longer read
            if (has_marks(0)) spread_marks(0, dv, dk, DV_SUMS);
        }
        // While the next task's keys and values are copied, sums go through the memory of the gradients of scores.
        const struct task *t = TASK_OF(count);
        const int first = warp * 16, row = t->key + first, seen = t->s.len_k, end = t->end;
        const unsigned staging = base + GRADS_AT + first * 128;
        const long long dv_at = attention_at(&p->dv, t->batch, t->s.k_first, t->kv_head),
                        dk_at = attention_at(&p->dk, t->batch, t->s.k_first, t->kv_head);
        __syncwarp();
        if (thread_now() % 32 == 0) // the rest uses copies of the task
            barrier_arrive(base + TASK_IS_DONE + 8 * slot_of(count));
        if (p->dv.data != 0)
#pragma unroll
            for (int i = 0; i < V_SLABS; i++) {
                store_sums(dv + i * SUMS, 1, staging, p->dv.data, dv_at + i * 64, p->dv.seq, row,
                           seen, end, p->head_dim_v - i * 64);
                __syncwarp();
            }
        if (p->dk.data != 0)
#pragma unroll
            for (int i = 0; i < SLABS; i++) {
                store_sums(dk + i * SUMS, p->softmax_scale, staging, p->dk.data, dk_at + i * 64,
                           p->dk.seq, row, seen, end, p->head_dim - i * 64);
                __syncwarp();
            }
        tma_see_shared();
    }
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_wide(const __grid_constant__ struct attention_backward_flash3_params f) {
    start_dependents();
    const unsigned base = shared_address(memory);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        start_tasks(&f, base);
        barrier_start(base + GRADS_ARE_FREE, WORKERS / 32);
        barrier_publish_starts();
    }
    __syncthreads();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        serve_tasks(&f, base, warp);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        multiply_tasks(&f, base, warp - 4);
    }
}
