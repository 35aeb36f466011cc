// SPDX-License-Identifier: Apache-2.0
// Attention's forward by Hopper's asynchronous products and its copy engine, after FlashAttention-3 (Shah et al.,
// arXiv:2407.08608). One warp copies tiles of queries, keys and values ahead, over the borders of tasks; warpgroups of 64 queries
// each multiply. While the values of one tile are multiplied, the scores of the next become weights; warpgroups take turns in
// ordering products, so that one's softmax runs under another's products.
// Floor: 2 (head_dim + head_dim_v) FLOPs for each visible pair of query and key, and an exponential, which lasts as long with heads
// of 64. Limit: in long calls the card's power; in short ones a task's first softmax and its output. Figures:
// docs/kernels/attention_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM, HEAD_DIM_V, BLOCK_N (attention_mma.cuh), TERMS (1: ALiBi, 2: softcap, 4: dropout, 8: a bias in
//     DTYPE, 16 with 8: a bias in fp32, added up),
//     GROUPS (warpgroups that multiply), Q_STAGES, STAGES, BIAS_STAGES (tiles of queries, of keys and of values, and of
//     the bias, in shared memory), and, for attention_few.cuh, FEW as 1
#if !defined(GROUPS) || !defined(Q_STAGES) || !defined(STAGES) || !defined(BIAS_STAGES) ||         \
    !defined(TERMS)
#error "GROUPS, Q_STAGES, STAGES, BIAS_STAGES and TERMS are not all defined"
#endif
#ifndef FEW
#define FEW 0
#endif

#define BLOCK_M (64 * GROUPS)
#define THREADS (128 * GROUPS) // that multiply; the producers come after them
#define FEATURES 0
#include "cuda/device/block.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/forward/attention_flash3.cuh"

// ---- Products ---------------------------------------------------------------------------------

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

// s = q k^T.
DEVICE void issue_scores(float (*s)[4], unsigned q_tile, unsigned k_tile) {
    unsigned long long a = wgmma_tile(q_tile, 16), b = wgmma_tile(k_tile, 16);
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned long long at_a = a + WGMMA_STEP(d / 4 * SLAB_BYTES(BLOCK_M) + d % 4 * 32);
        unsigned long long at_b = b + WGMMA_STEP(d / 4 * SLAB_BYTES(BLOCK_N) + d % 4 * 32);
        JOIN(wgmma_shared_, BLOCK_N)(s, at_a, at_b, d > 0);
    }
}

// o += weights v.
DEVICE void issue_output(float (*o)[4], const unsigned (*weights)[4], unsigned v_tile) {
    unsigned long long b = wgmma_tile(v_tile, SLAB_BYTES(BLOCK_N));
#pragma unroll
    for (int n = 0; n < BLOCK_N / 16; n++) {
        unsigned long long at_b = b + WGMMA_STEP(n * 2048);
#if HEAD_DIM_V == 64
        wgmma_registers_64(o, weights[n], at_b);
#elif HEAD_DIM_V == 128
        wgmma_registers_128(o, weights[n], at_b);
#else
        wgmma_registers_256(o, weights[n], at_b);
#endif
    }
}

// ---- Meetings ---------------------------------------------------------------------------------

enum { TURN = 1, OF_ALL = TURN + GROUPS }; // barriers of the block

// LANE, read again here: registers are too few for values that are rarely used.
DEVICE int find_lane(void) {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// ---- Softmax ----------------------------------------------------------------------------------

// Takes values that are not finite out of the tile of keys from j on, which some queries do not see, and adds them where seen.
DEVICE void save_from_nonfinite(float (*o)[4], const struct attention_params *p,
                                const struct attention_task *t, int i, int j, unsigned stage) {
    unsigned char *v = shared_tiles + V_AT + stage * V_BYTES;
    if ((found_in(stage)[0] | found_in(stage)[1]) == 0) return;
    add_nonfinite(o, p, &t->s, i, j, shared_address(v));
    meet(OF_ALL, THREADS);
    take_nonfinite_out(v);
    WGMMA_SEE_SHARED();
    meet(OF_ALL, THREADS);
}

// Sets scores of unseen keys to -inf. Only sides of the tile that have unseen keys are visited.
DEVICE void hide_scores(float (*s)[4], const struct attention_params *p, const struct task *task,
                        int warp, int j) {
    const struct attention_task *t = &task->a;
    const struct seen *seen = &task->by_group[warp / 4];
    const int lane = find_lane(), first = j + lane % 4 * 2, // first: this lane's first key
        i = first_row(p, t) + warp * 16;
    if (j + BLOCK_N > seen->end) EACH_HALF(h) {
            const int end = attention_end_key(p, &t->s, QUERY_OF(p, i + h * 8 + lane / 4)) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e >= end) s[n][2 * h + e] = -INFINITE;
        }
    if (j < seen->begin) EACH_HALF(h) {
            const int begin =
                attention_first_key(p, &t->s, QUERY_OF(p, i + h * 8 + lane / 4)) - first;
            EACH_COLUMN_TILE(n) EACH_HALF(e) if (n * 8 + e < begin) s[n][2 * h + e] = -INFINITE;
        }
}

#include "ops/attention/cuda/forward/attention_flash3_weights.cuh"
#if TERMS
#include "ops/attention/cuda/forward/attention_flash3_terms.cuh"
#endif
#if HAS_BIAS
#include "ops/attention/cuda/forward/attention_flash3_bias.cuh"
#endif
#include "ops/attention/cuda/forward/attention_flash3_output.cuh"

#if TERMS & 4
#define DROP(weights) drop_operands(weights, kept)
#else
#define DROP(weights) (void)0
#endif
#define PACK_ALL(weights, s)                                                                       \
    do {                                                                                           \
        _Pragma("unroll") for (int n_ = 0; n_ < BLOCK_N / 16; n_++)                                \
            pack_weights((weights)[n_], (s) + 2 * n_);                                             \
        DROP(weights);                                                                             \
    } while (0)

// Groups of 8 keys whose weights are computed before the wait for the output. The exponentials of the other groups keep the
// special-function unit busy while the first ones become operands, which products still read until then. With three warpgroups the
// other two keep it busy.
enum { BEFORE = GROUPS == 2 && !TERMS && !LAGS ? BLOCK_N / 16 : BLOCK_N / 8 };

// ---- Tiles --------------------------------------------------------------------------------------

// A sink is in the row from the start; its weight is in one of the four lanes that share a row. The maximum of rows that do not
// exist is never renewed: their place holds rows of another sequence, and nothing of this sequence may depend on them, not even
// when the maxima of the warp's rows are renewed.
DEVICE void start_task(float max[2], float sum[2], const struct attention_flash3_params *a,
                       const struct task *task, int warp) {
    const int lane = find_lane(), row = first_row(&a->forward.p, &task->a) + warp * 16 + lane / 4;
    EACH_HALF(h) {
        const float sink = sink_of_row(a, task, row + h * 8);
        max[h] = row + h * 8 < end_row(task) ? sink_maximum(sink) : INFINITE;
        sum[h] = lane % 4 == 0 ? sink_sum(sink) : 0.0f;
    }
}

// Turns products into weights, for the first BEFORE groups of 8 keys. Returns whether the output is to be scaled by alpha.
DEVICE int find_weights(float (*s)[4], float max[2], float sum[2], float alpha[2],
                        const struct attention_flash3_params *a, const struct task *task, int warp,
                        int j, unsigned num_kv, int is_first, const struct forecast *f,
                        unsigned q_tile, unsigned k_tile) {
    (void)num_kv, (void)is_first, (void)f, (void)q_tile, (void)k_tile;
#if HAS_BIAS
    return weigh_biased(s, max, sum, alpha, a, task, warp, j, num_kv);
#elif TERMS
    return weigh_terms(s, max, sum, alpha, a, task, warp, j, is_first, f, q_tile, k_tile);
#else
    const struct attention_params *p = &a->forward.p;
    const float scale_log2 = a->forward.scale_log2;
    if (f->has_hidden) hide_scores(s, p, task, warp, j);
#if LAGS
    if (f->has_maxima || guess_maxima(s, max, scale_log2)) {
        if (weigh_by_maxima(s, max, sum, scale_log2)) return 0;
        multiply_again(s, p, task, warp, j, q_tile, k_tile);
    }
#endif
    const int is_renewed = renew_maxima(s, max, sum, alpha, scale_log2);
    weigh_some(s, max, sum, scale_log2, 0, BEFORE);
    return is_renewed;
#endif
}
// Weights of the other groups; packs all weights as operands.
#define FINISH_WEIGHTS(weights, s, max, sum, a)                                                    \
    do {                                                                                           \
        if (BEFORE < BLOCK_N / 8)                                                                  \
            weigh_some(s, max, sum, (a)->forward.scale_log2, BEFORE, BLOCK_N / 8);                 \
        PACK_ALL(weights, s);                                                                      \
    } while (0)

// A warp no longer needs its keys, and after the task's last tile its queries: after the scores, or, if it may compute these
// again, after the weights.
DEVICE void release_keys(unsigned k_empty, unsigned q_empty, int is_last) {
    release(k_empty);
    if (is_last) release(q_empty);
}

// The tile after a tile of keys: the task's next one, the next task's first one, or none.
struct next {
    int j, is_new, is_over;
};
DEVICE struct next look_ahead(unsigned base, unsigned num_q, int j) {
    struct next next = {j + BLOCK_N, 0, 0};
    if (next.j < task_at(num_q)->a.end) return next;
    next.is_new = 1;
    next.is_over = !has_task(base, num_q + 1);
    next.j = first_tile(num_q + 1);
    return next;
}

// Finds what is needed of a tile and of the next one, and ends the previous task. The output's products wait for the scores in any
// case, so there is time in between. But three warpgroups, terms and heads of 256 need longer than the scores take, so they let
// the next warpgroup pass first.
#define LOOKS_EARLY (GROUPS == 2 && !TERMS && HEAD_DIM <= 192)
#define LOOK_AROUND                                                                                \
    do {                                                                                           \
        task = task_at(num_q);                                                                     \
        is_edge = is_mixed(&task->by_block, j);                                                    \
        next = look_ahead(base, num_q, j);                                                         \
        if (is_new) {                                                                              \
            finish_sums(factor, max, sum, a, before, warp);                                        \
            start_task(max, sum, a, task, warp);                                                   \
        }                                                                                          \
        forecast = foresee(max, sum, alpha, a, task, warp, j);                                     \
    } while (0)

// All the block's tasks as one run of tiles: the first scores of a task are computed together with the last values of the previous
// one.
DEVICE void multiply_tiles(const struct attention_flash3_params *a, unsigned base, int warp) {
    const struct attention_params *p = &a->forward.p;
    const int group = warp / 4, next_turn = TURN + (group + 1 < GROUPS ? group + 1 : 0);
    const unsigned own_q = base + group * 64 * 128;
    unsigned num_q = 0, num_kv = 0; // of the task and the tile, from the block's first
    float s[BLOCK_N / 8][4], o[HEAD_DIM_V / 8][4], max[2], sum[2], alpha[2];
    unsigned weights[BLOCK_N / 16][4];

    if (!has_task(base, 0)) return;
    int j = first_tile(0); // the tile's first key
    barrier_wait(base + Q_FULL, 0);
    barrier_wait(base + K_FULL, 0);
    WGMMA_BEGIN();
    issue_scores(s, own_q, base + K_AT);
    WGMMA_COMMIT();
    WGMMA_WAIT(0);
    WGMMA_HOLD(s, BLOCK_N / 8);
    const int is_only = j + BLOCK_N >= task_at(0)->a.end;
    if (!LAGS) release_keys(base + K_EMPTY, base + Q_EMPTY, is_only);
    start_task(max, sum, a, task_at(0), warp);
    start_output(o);
#if TERMS & 4
    unsigned kept[2];
    find_kept(kept, p, &task_at(0)->a, task_at(0)->a.first + warp * 16, j);
#endif
    const struct forecast first = foresee(max, sum, alpha, a, task_at(0), warp, j);
    find_weights(s, max, sum, alpha, a, task_at(0), warp, j, 0, 1, &first, base, base + K_AT);
    if (LAGS) release_keys(base + K_EMPTY, base + Q_EMPTY, is_only);
    FINISH_WEIGHTS(weights, s, max, sum, a);

    const struct task *task = task_at(0);
    int is_edge = is_mixed(&task->by_block, j);
    struct next next = look_ahead(base, 0, j);
#pragma unroll 1
    for (;;) {
        const unsigned v_tile = base + V_AT + stage_of(num_kv) * V_BYTES,
                       v_at = base + 8 * stage_of(num_kv), v_parity = parity_of(num_kv);
        if (is_edge) {
            barrier_wait(v_at + V_FULL, v_parity);
            barrier_wait(v_at + V_CHECKED, v_parity);
            save_from_nonfinite(o, p, &task->a, first_row(p, &task->a) + warp * 16, j,
                                stage_of(num_kv));
        }
        if (next.is_over) break;
        const int is_new = next.is_new;
        j = next.j;
        num_kv++;
        num_q += (unsigned)is_new;
        const unsigned k_at = base + 8 * stage_of(num_kv), q_at = base + 8 * q_stage(num_q);
        barrier_wait(k_at + K_FULL, parity_of(num_kv));
        if (is_new) barrier_wait(q_at + Q_FULL, q_parity(num_q));
        if (GROUPS > 1) meet(TURN + group, 256);
        WGMMA_BEGIN();
        const unsigned q_tile = q_stage(num_q) * Q_BYTES,
                       k_tile = base + K_AT + stage_of(num_kv) * K_BYTES;
        issue_scores(s, own_q + q_tile, k_tile);
        WGMMA_COMMIT();
        const struct task *before = task_at(num_q - 1);
        float factor[2];
        struct forecast forecast;
        if (LOOKS_EARLY) LOOK_AROUND;
        barrier_wait(v_at + V_FULL, v_parity);
        WGMMA_BEGIN();
        issue_output(o, weights, v_tile);
        WGMMA_COMMIT();
        if (GROUPS > 1) let_pass(next_turn, 256);
#if TERMS & 4
        const struct attention_task *coming = &task_at(num_q)->a; // task is still the previous one
        find_kept(kept, p, coming, coming->first + warp * 16, j);
#endif
        if (!LOOKS_EARLY) LOOK_AROUND;
        WGMMA_WAIT(1);
        WGMMA_HOLD(s, BLOCK_N / 8);
        if (!LAGS) release_keys(k_at + K_EMPTY, q_at + Q_EMPTY, next.is_new);
        const int is_renewed = find_weights(s, max, sum, alpha, a, task, warp, j, num_kv, 0,
                                            &forecast, base + q_tile, k_tile);
        if (LAGS) release_keys(k_at + K_EMPTY, q_at + Q_EMPTY, next.is_new);
        if (sum[0] + sum[1] < 0)
            asm volatile("nanosleep.u32 1;"); // never: but the wait comes after the softmax
        WGMMA_WAIT(0);
        WGMMA_HOLD(o, HEAD_DIM_V / 8);
        release(v_at + V_EMPTY);
        if (is_new) {
            store_output(o, factor, a, before, warp);
            start_output(o);
            __syncwarp();
            release(task_empty(base, num_q - 1));
        } else if (is_renewed) {
            scale_rows(o, alpha);
        }
        FINISH_WEIGHTS(weights, s, max, sum, a);
    }
    barrier_wait(base + V_FULL + 8 * stage_of(num_kv), parity_of(num_kv));
    WGMMA_BEGIN();
    issue_output(o, weights, base + V_AT + stage_of(num_kv) * V_BYTES);
    WGMMA_COMMIT();
    WGMMA_WAIT(0);
    WGMMA_HOLD(o, HEAD_DIM_V / 8);
    float factor[2];
    finish_sums(factor, max, sum, a, task_at(num_q), warp);
    store_output(o, factor, a, task_at(num_q), warp);
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS + 128, 1)
    attention_flash3(const __grid_constant__ struct attention_flash3_params a) {
    start_dependents();
    const unsigned base = shared_address(shared_tiles);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        tma_prefetch(&a.q.map);
        tma_prefetch(&a.k.map);
        tma_prefetch(&a.v.map);
        if (HAS_BIAS) tma_prefetch(&a.bias.map);
#pragma unroll
        for (int stage = 0; stage < Q_STAGES; stage++) {
            barrier_start(base + Q_FULL + 8 * stage, 1);
            barrier_start(base + Q_EMPTY + 8 * stage, WARPS);
        }
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_start(base + K_FULL + 8 * stage, 1);
            barrier_start(base + K_EMPTY + 8 * stage, WARPS);
            barrier_start(base + V_FULL + 8 * stage, 1);
            barrier_start(base + V_EMPTY + 8 * stage, WARPS + CHECKERS);
            barrier_start(base + V_CHECKED + 8 * stage, CHECKERS);
        }
#pragma unroll
        for (int stage = 0; stage < BIAS_STAGES; stage++) {
            barrier_start(base + BIAS_FULL + 8 * stage, 1);
            barrier_start(base + BIAS_EMPTY + 8 * stage, WARPS);
        }
#pragma unroll
        for (int slot = 0; slot < TASKS; slot++) {
            barrier_start(task_full(base, slot), 1);
            barrier_start(task_empty(base, slot), WARPS + CHECKERS + 1);
        }
        barrier_publish_starts();
    }
    __syncthreads();
    if (warp >= WARPS) {
        if (GROUPS > 1)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 32 : 40));
        if (warp == WARPS) copy_tiles(&a, base);
        if (warp == WARPS + 1) find_tasks(&a, base);
        if (warp > WARPS + 1) check_values(base, warp - WARPS - 2);
        return;
    }
    if (GROUPS > 1) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 3 ? 160 : 232));
        if (warp >= WARPS - 4) let_pass(TURN, 256); // the first turn is the first group's
    }
    multiply_tiles(&a, base, warp);
    if (GROUPS > 1 && warp < 4) meet(TURN, 256); // completes the last meeting
}
