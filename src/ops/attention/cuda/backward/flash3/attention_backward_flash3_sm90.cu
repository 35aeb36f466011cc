// SPDX-License-Identifier: Apache-2.0
// Backward by Hopper's asynchronous products, after FlashAttention-3 (Shah et al., arXiv:2407.08608): a block owns 128 keys and
// goes through the queries that see one of them, head after head of the group, from the last to the first. One thread copies, two
// warpgroups of 64 keys each multiply, two more threads bring away what they add to dq. Scores have keys as rows, so that weights
// and gradients of scores, narrowed, are operands in registers of the products for dv and dk; the gradients alone go through shared
// memory, for dq = gradients^T k. The copy engine sums dq in memory in fp32, in turns: a block adds to a tile of queries after
// those that own the keys before its own, so that every run has the same bits. Tasks are handed out in an order in which all who
// must add before have begun before.
// Not finite numbers of rows that are summed over would leak through weights of 0. In tiles where not all pairs see each other such
// pieces of queries and dout become 0, their rows' weights NaN; keys that have some become 0, the gradients of all their pairs NaN.
// Floor: five products, 6 head_dim + 4 head_dim_v FLOPs for each visible pair of query and key, and an exponential.
// Limit: shared memory (heads of 128: 2,944 cycles a step, products 2,560), the card's power.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM (64, 128: rows are filled up with zeros), TERMS (attention_backward_flash3_terms.cuh; 0: none),
//     AHEAD (attention_backward_flash3_params.h)
#include "cuda/device/block.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

#if HEAD_DIM != 64 && HEAD_DIM != 128
#error "HEAD_DIM is not defined: 64 or 128"
#endif
#ifndef TERMS
#error "TERMS is not defined: 0 to 4"
#endif
#ifndef AHEAD
#error "AHEAD is not defined: 0, or 1 with TERMS 0"
#endif
#define HAS_BIAS (TERMS >= 3)
#define HAS_F32_BIAS (TERMS == 4)
#define HAS_SHARED_LOW (HAS_BIAS && HEAD_DIM > 64) // lse_low lies in shared memory
#define HAS_FINAL_DQ AHEAD
#define IS_FULL (HEAD_DIM == 64 && AHEAD) // all registers are in use
#define KEY_STAGES FLASH3_KEY_STAGES(AHEAD)
// These choices make this form faster and the other form slower (dense, heads of 128: by 1 to 2 %): masks by runs of columns; dout
// v ordered in quarters among the weights; with heads of 128 also dk's operand made during dv, and no search of edge tiles.
#define MASKS_BY_RUNS AHEAD
#define ROWS_AT_ONCE (HEAD_DIM == 64 ? 1 : 2) // rows whose pairs are masked together
#define LOOKS_AT_SCORES (AHEAD && HEAD_DIM == 128)

enum {
    OWNED = FLASH3_OWNED,
    PASSING = FLASH3_PASSING(HEAD_DIM),
    THREADS = FLASH3_THREADS,
    STAGES = FLASH3_STAGES,
    WRITERS = 2,
    PIECES = HEAD_DIM / 8, // of 16 bytes per row
    SCORES = PASSING / 8,  // groups of 8 columns
    PARTS = PASSING / 64,  // of 64 queries; parts become operands in turn
    SUMS = HEAD_DIM / 8,
    SLABS = HEAD_DIM / 64,
    OWNED_SLAB = OWNED * 128, // bytes of 64 columns
    PASSING_SLAB = PASSING * 128,
    OWNED_BYTES = FLASH3_ROWS_BYTES(OWNED, HEAD_DIM),
    PASSING_BYTES = FLASH3_ROWS_BYTES(PASSING, HEAD_DIM),
    GRADS_BYTES = OWNED * PASSING * 2,
    DQ_BYTES = PASSING * HEAD_DIM * 4,
    STATISTIC_BYTES = PASSING * 4,

    KEYS_AT = 0,
    V_SLABS = SLABS, // of values and dout
    V_OWNED_BYTES = OWNED_BYTES,
    V_PASSING_BYTES = PASSING_BYTES,
    VALUES_AT = KEY_STAGES * OWNED_BYTES,
    QUERIES_AT = VALUES_AT + OWNED_BYTES,
    DOUTS_AT = QUERIES_AT + STAGES * PASSING_BYTES,
    GRADS_AT = DOUTS_AT + STAGES * PASSING_BYTES,
    DQ_AT = GRADS_AT + 2 * GRADS_BYTES,
    BIAS_STAGES = FLASH3_BIAS_STAGES(HEAD_DIM, HAS_F32_BIAS),
    BIAS_BYTES = FLASH3_BIAS_BYTES(HEAD_DIM, HAS_F32_BIAS),
    BIAS_COLUMNS = HAS_F32_BIAS ? 32 : 64, // of a box
    BIAS_AT = DQ_AT + DQ_BYTES,
    LSE_AT = BIAS_AT + (HAS_BIAS ? BIAS_STAGES * BIAS_BYTES : 0),
    DELTA_AT = LSE_AT + STAGES * STATISTIC_BYTES,
    LSE_LOW_AT = DELTA_AT + STAGES * STATISTIC_BYTES,
    MARKS_AT = LSE_LOW_AT + (HAS_SHARED_LOW ? STAGES * STATISTIC_BYTES : 0),
    TASK_AT = MARKS_AT + KEY_STAGES * OWNED * 4,
    TASK_BYTES = 128,
    HAS_MARKS_AT = TASK_AT + KEY_STAGES * TASK_BYTES,
    STEPS_AT =
        HAS_MARKS_AT +
        8, // of a stage: the first query of its tile and where its dq is or its lse_low, or struct passing
    STEP_BYTES = TERMS == 1 ? 16 : 8,
    BARRIERS_AT = STEPS_AT + STEP_BYTES * STAGES,
    TASK_IS_THERE = BARRIERS_AT, // and its keys; its values too, with one tile of keys
    TASK_IS_DONE = TASK_IS_THERE + 8 * KEY_STAGES,
    VALUES_ARE_FREE = TASK_IS_DONE + 8 * KEY_STAGES,
    TURN_IS_HERE = VALUES_ARE_FREE + 8,             // of each writer
    QUERIES_ARE_THERE = TURN_IS_HERE + 8 * WRITERS, // of each stage
    DOUT_IS_THERE = QUERIES_ARE_THERE + 8 * STAGES,
    STAGE_IS_FREE = DOUT_IS_THERE + 8 * STAGES,
    DQ_IS_THERE = STAGE_IS_FREE + 8 * STAGES, // of each writer
    DQ_IS_FREE = DQ_IS_THERE + 8 * WRITERS,
    BIAS_IS_THERE = DQ_IS_FREE + 8, // of each stage of the bias
    BIAS_IS_FREE = BIAS_IS_THERE + 8 * BIAS_STAGES,
    END_AT = BIAS_IS_FREE + 8 * BIAS_STAGES,
};
static_assert(END_AT <=
                  (HAS_BIAS ? FLASH3_BIAS_SHARED_BYTES : FLASH3_SHARED_BYTES(HEAD_DIM, KEY_STAGES)),
              "shared memory that the host asks for");

extern __shared__ __align__(1024) unsigned char memory[];
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_edges.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_tasks.cuh"

#if TERMS
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_terms.cuh"
#endif

// ---- The threads that multiply ------------------------------------------------------------------

// c = owned passing^T, over steps [begin, end) of 16 columns: 64 keys times the queries of a tile.
#define SCORE_STEPS (HEAD_DIM / 16)
DEVICE void issue_scores(float (*c)[4], unsigned owned, unsigned passing, int begin, int end) {
    unsigned long long a = wgmma_tile(owned, 16), b = wgmma_tile(passing, 16);
#pragma unroll
    for (int d = begin; d < end; d++) {
        unsigned long long at_a = a + WGMMA_STEP(d / 4 * OWNED_SLAB + d % 4 * 32);
        unsigned long long at_b = b + WGMMA_STEP(d / 4 * PASSING_SLAB + d % 4 * 32);
#if HEAD_DIM == 64
        wgmma_shared_128(c, at_a, at_b, d > 0);
#else
        wgmma_shared_64(c, at_a, at_b, d > 0);
#endif
    }
}

// sums += weights passing, over steps [begin, end) of 16 queries of a part: 64 keys times the columns.
DEVICE void issue_sums(float (*sums)[4], const unsigned (*weights)[4], unsigned passing, int part,
                       int begin, int end) {
    unsigned long long b = wgmma_tile(passing + part * 64 * 128, PASSING_SLAB);
#pragma unroll
    for (int n = begin; n < end; n++)
#if HEAD_DIM == 64
        wgmma_registers_64(sums, weights[n], b + WGMMA_STEP(n * 2048));
#else
        wgmma_registers_128(sums, weights[n], b + WGMMA_STEP(n * 2048));
#endif
}

// c = grads^T keys: 64 queries times 64 columns, over the keys that the block owns. A tile of dq has two such parts, by columns or
// by queries.
DEVICE void issue_dq(float (*c)[4], unsigned grads, unsigned keys, unsigned group) {
    unsigned long long a = wgmma_tile(grads + (HEAD_DIM == 64 ? group * OWNED_SLAB : 0), 16),
                       b = wgmma_tile(keys + (HEAD_DIM == 64 ? 0 : group * OWNED_SLAB), 16);
#pragma unroll
    for (int n = 0; n < OWNED / 16; n++)
        WGMMA_TILES_64(c, a + WGMMA_STEP(n * 2048), b + WGMMA_STEP(n * 2048), n, 1, 1);
}

#if HAS_FINAL_DQ
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_final.cuh"
#endif

// Passes a step's part of dq to a writer.
DEVICE void hand_on(const float (*dq)[4], unsigned base, unsigned count) {
    const unsigned thread = thread_now() - 128, lane = thread % 32;
    barrier_wait(base + DQ_IS_FREE, count & 1 ^ 1);
    float4 *to = (float4 *)(memory + DQ_AT) + thread / 128 * 1024 + thread % 128;
#pragma unroll
    for (int n = 0; n < 8; n++) to[n * 128] = make_float4(dq[n][0], dq[n][1], dq[n][2], dq[n][3]);
    tma_see_shared();
    __syncwarp();
    if (lane == 0) barrier_arrive(base + DQ_IS_THERE + 8 * (count % WRITERS));
}

// The query of a stage: kept in a register, or read again if no register is left.
#define QUERY(stage, query) (IS_FULL ? query_at(stage) : (query))

// has_low: some lse_low is not 0. A constant, as this function is inlined.
DEVICE void multiply_tasks(const struct attention_backward_flash3_params *f, unsigned base,
                           int warp, int has_low) {
    const struct attention_params *p = &f->b.p;
    const unsigned group = (unsigned)warp / 4;
    const unsigned own_values = base + VALUES_AT + group * 64 * 128;
    unsigned count = 0; // of steps; the highest two bits count tasks
#pragma unroll 1
    for (;; count += COUNT_TASK) {
        barrier_wait(base + TASK_IS_THERE + 8 * slot_of(count), task_parity(count));
        if (TASK_OF(count)->index >= (unsigned)f->b.num_tasks) return;
        float s[SCORES][4], g[SCORES][4], dq[8][4], dv[SUMS][4], dk[SUMS][4];
        unsigned a[4][4], a_dk[4][4];
        clear(dv, SUMS);
        clear(dk, SUMS);
        if (TASK_OF(count)->num_steps > 0) {
            int steps = TASK_OF(count)->num_steps;
            if (KEY_STAGES == 2 && has_edges(p, TASK_OF(count))) // values come with the first dout
                barrier_wait(base + DOUT_IS_THERE + 8 * RING(count), PARITY(count));
            clean_keys(slot_of(count), has_edges(p, TASK_OF(count)), (int)thread_now() - 128);
            WGMMA_HOLD(dv, SUMS);
            WGMMA_HOLD(dk, SUMS);
#pragma unroll 1
            for (; steps > 0; steps--, count++) {
                const unsigned stage = RING(count), queries = QUERIES_AT + stage * PASSING_BYTES,
                               douts = DOUTS_AT + stage * PASSING_BYTES,
                               tile = base + GRADS_AT + count % 2 * GRADS_BYTES;
                barrier_wait(base + QUERIES_ARE_THERE + 8 * stage, PARITY(count));
                WGMMA_FORGET(s, SCORES);
                WGMMA_BEGIN();
                issue_scores(s, own_values - VALUES_AT + keys_at(slot_of(count)), base + queries, 0,
                             SCORE_STEPS);
                WGMMA_COMMIT();
                barrier_wait(base + DOUT_IS_THERE + 8 * stage, PARITY(count));
                const int query = *(const int *)(memory + STEPS_AT + STEP_BYTES * stage);
                const int is_edge = is_edge_tile(p, TASK_OF(count), query);
                if (is_edge && !LOOKS_AT_SCORES) {
                    float *lse = (float *)(memory + LSE_AT + stage * STATISTIC_BYTES);
                    const int thread = (int)thread_now() - 128;
                    if (any_worker(search_rows(memory + queries, PASSING_BYTES, thread) |
                                   search_rows(memory + douts, PASSING_BYTES, thread))) {
                        clean_rows(memory + queries, PASSING_BYTES, PASSING, lse, thread);
                        clean_rows(memory + douts, PASSING_BYTES, PASSING, lse, thread);
                        WGMMA_SEE_SHARED();
                        workers_meet();
                    }
                }
                WGMMA_FORGET(g, SCORES);
                WGMMA_BEGIN();
                issue_scores(g, own_values, base + douts, 0, SCORE_STEPS / (AHEAD ? 4 : 1));
                WGMMA_COMMIT();
                WGMMA_WAIT(1);
                WGMMA_HOLD(s, SCORES);
                if (thread_now() % 32 == 0 &&
                    steps < TASK_OF(count)->num_steps) // dk's products are complete
                    barrier_arrive(base + STAGE_IS_FREE + 8 * RING(count - 1));
#if TERMS == 1
                const struct terms terms = find_terms(p, TASK_OF(count), stage);
#endif
#if HAS_BIAS
                const unsigned bias_stage = count % BIAS_STAGES;
                const unsigned bias_at = own_bias(base + BIAS_AT + bias_stage * BIAS_BYTES);
                barrier_wait(base + BIAS_IS_THERE + 8 * bias_stage, count / BIAS_STAGES & 1);
#endif
#if LOOKS_AT_SCORES // cleans rows that are not finite before they are operands again
                if (is_edge && any_worker(has_nonfinite(s, SCORES) | has_nonfinite_dout(p, count)))
                    clean_step(count);
#endif
                // While a part's weights become operands, the previous products run. Registers hold the operands of one part.
                const unsigned statistics =
                    base + LSE_AT + stage * STATISTIC_BYTES + thread_now() % 4 * 8;
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
#if TERMS
                    if (i > 0) WGMMA_WAIT(0); // weights become operands at once
#endif
#if TERMS == 1
                    weigh_terms(s + i * 8, a, statistics + i * 256, f, &terms, i * 64);
#elif HAS_BIAS
                    weigh_biased(
                        s + i * 8, a, statistics + i * 256, f, has_low ? lows_at(stage, i) : -1,
                        bias_at + (f->bias.rows > 1 ? i * 64 * 128 : 0), f->bias.rows == 1);
#elif TERMS == 2
                    weigh_capped(s + i * 8, a, statistics + i * 256, f);
#else
#if AHEAD
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        weigh_quarter(s + i * 8, statistics + i * 256, f->scale_log2, k);
                        if (i > 0 || k == 3) continue;
                        WGMMA_BEGIN();
                        issue_scores(g, own_values, base + douts, SCORE_STEPS / 4 * (k + 1),
                                     SCORE_STEPS / 4 * (k + 2));
                        WGMMA_COMMIT();
                    }
#else
                    weigh(s + i * 8, statistics + i * 256, f->scale_log2);
#endif
                    if (i > 0) WGMMA_WAIT(0);
                    pack(a, s + i * 8);
#endif
                    if (is_edge) mask_tile(a, p, TASK_OF(count), QUERY(stage, query) + i * 64);
                    WGMMA_BEGIN();
                    issue_sums(dv, a, base + douts, i, 0, 4);
                    WGMMA_COMMIT();
                }
#if HAS_BIAS
                __syncwarp();
                if (!f->bias.has_dbias && thread_now() % 32 == 0)
                    barrier_arrive(base + BIAS_IS_FREE + 8 * bias_stage);
#endif
                WGMMA_WAIT(1);
                WGMMA_HOLD(g, SCORES);
                if (KEY_STAGES == 2 && steps == 1 && thread_now() % 32 == 0)
                    barrier_arrive(base + VALUES_ARE_FREE);
                unsigned(*ds)[4] = PARTS == 1 && AHEAD ? a_dk : a;
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
                    const unsigned delta = statistics + (DELTA_AT - LSE_AT) + i * 256;
                    differentiate(g + i * 8, s + i * 8, delta, TERMS == 1 ? p->keep_scale : 1);
                    if (ds == a) WGMMA_WAIT(0);
#if HAS_BIAS
                    if (f->bias.sums != 0)
                        add_to_sums(f, TASK_OF(count), g + i * 8, stage, is_edge, i);
#endif
                    pack(ds, g + i * 8);
#if TERMS == 1
                    if (p->dropout_threshold != 0) drop_grads(ds, s + i * 8, delta, terms.kept[i]);
#endif
                    if (is_edge) mask_tile(ds, p, TASK_OF(count), QUERY(stage, query) + i * 64);
                    WGMMA_BEGIN();
                    issue_sums(dk, ds, base + queries, i, 0, i + 1 < PARTS ? 4 : 2);
                    WGMMA_COMMIT();
                    store_grads(tile + i * OWNED_SLAB, ds, 0, 4);
#if HAS_BIAS
                    if (f->bias.has_dbias)
                        store_dbias(bias_at + (unsigned)i * 64 * 128, ds, g + i * 8, p,
                                    TASK_OF(count), is_edge ? QUERY(stage, query) + i * 64 : -1);
#endif
                }
                WGMMA_SEE_SHARED();
                workers_meet();
                WGMMA_FORGET(dq, 8);
                WGMMA_BEGIN();
                issue_dq(dq, tile, base + keys_at(slot_of(count)), group);
                WGMMA_COMMIT();
                issue_sums(dk, ds, base + queries, PARTS - 1, 2, 4);
                WGMMA_COMMIT();
#if HAS_FINAL_DQ
                const int is_final = query_at(stage) < TASK_OF(count)->final_end;
                float added[8][4];
                clear(added, 8);
                if (is_final) load_added(added, f, TASK_OF(count), base, count);
#endif
                WGMMA_WAIT(1);
                WGMMA_HOLD(dq, 8);
#if HAS_FINAL_DQ
                if (is_final)
                    hand_on_final(dq, added, p->softmax_scale, base, count);
                else
#endif
                    hand_on(dq, base, count);
#if HAS_BIAS
                if (f->bias.sums != 0) end_sums(f, TASK_OF(count), stage, steps);
#endif
            }
            WGMMA_WAIT(0);
            WGMMA_HOLD(dv, SUMS);
            WGMMA_HOLD(dk, SUMS);
            if (thread_now() % 32 == 0) barrier_arrive(base + STAGE_IS_FREE + 8 * RING(count - 1));
            workers_meet(); // keys, values and gradients of scores are no longer read
            if (has_marks(slot_of(count))) spread_marks(slot_of(count), dv, dk, SUMS);
        }
#if HAS_BIAS
        if (TASK_OF(count)->num_steps == 0 && f->bias.sums != 0) clear_sums(f, TASK_OF(count));
#endif
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
            store_sums(dv, TERMS == 1 ? p->keep_scale : 1, staging, p->dv.data, dv_at, p->dv.seq,
                       row, seen, end, p->head_dim_v);
        __syncwarp();
        if (p->dk.data != 0)
            store_sums(dk, p->softmax_scale, staging, p->dk.data, dk_at, p->dk.seq, row, seen, end,
                       p->head_dim);
        tma_see_shared();
    }
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_flash3(const __grid_constant__ struct attention_backward_flash3_params f) {
    start_dependents();
    const unsigned base = shared_address(memory);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        start_tasks(&f, base);
        if (HAS_BIAS) tma_prefetch(&f.bias.map);
        barrier_start(base + VALUES_ARE_FREE, WORKERS / 32);
        for (int i = 0; i < WRITERS; i++) barrier_start(base + TURN_IS_HERE + 8 * i, 1);
        for (int i = 0; HAS_BIAS && i < BIAS_STAGES; i++) {
            barrier_start(base + BIAS_IS_THERE + 8 * i, 1);
            barrier_start(base + BIAS_IS_FREE + 8 * i, f.bias.has_dbias ? 1 : WORKERS / 32);
        }
        barrier_publish_starts();
    }
    __syncthreads();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(HAS_BIAS ? 40 : 24));
        serve_tasks(&f, base, warp);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(HAS_BIAS ? 232 : 240));
#if HAS_BIAS && !HAS_SHARED_LOW
        wait_for_primary(); // two loops: no branch may stand among the products
        if (*has_lse_low(&f.b) != 0) return multiply_tasks(&f, base, warp - 4, 1);
#endif
        multiply_tasks(&f, base, warp - 4, 0);
    }
}
