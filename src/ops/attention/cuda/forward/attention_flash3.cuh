// SPDX-License-Identifier: Apache-2.0
// What flash3's blocks do besides the products: shared memory, the block's tasks, the copies, the search for values that are not
// finite, and tasks without keys. One warpgroup with few registers does this. The macros are those of attention_flash3_sm90.cu,
// from the host, and BLOCK_M and THREADS.
#ifndef TSRI_ATTENTION_FLASH3_CUH
#define TSRI_ATTENTION_FLASH3_CUH

#include "cuda/device/tma.cuh"
#include "ops/attention/cuda/forward/attention_flash3_params.h"
#if FEW
#define QUERY_OF(p, row) ((row) / (p)->group)
#endif
#include "ops/attention/cuda/attention_mma.cuh"

#define HAS_BIAS (TERMS & 8)
#define HAS_F32_BIAS (TERMS & 16)

enum {
    WARPS = 4 * GROUPS, // that multiply
    CHECKERS = 2,       // warps that look for values that are not finite
    TASKS = 4,          // known at a time
    Q_BYTES = HEAD_DIM / 64 * SLAB_BYTES(BLOCK_M),
    K_BYTES = HEAD_DIM / 64 * SLAB_BYTES(BLOCK_N),
    V_BYTES = HEAD_DIM_V / 64 * SLAB_BYTES(BLOCK_N),
    K_AT = Q_STAGES * Q_BYTES,
    V_AT = K_AT + STAGES * K_BYTES,
    BIAS_COLUMNS = HAS_F32_BIAS ? 32 : 64, // of a box
    BIAS_BYTES = BLOCK_N / BIAS_COLUMNS * SLAB_BYTES(BLOCK_M),
    BIAS_AT = V_AT + STAGES * V_BYTES,
    Q_FULL = BIAS_AT + BIAS_STAGES * BIAS_BYTES,
    Q_EMPTY = Q_FULL + 8 * Q_STAGES,
    K_FULL = Q_EMPTY + 8 * Q_STAGES,
    K_EMPTY = K_FULL + 8 * STAGES,
    V_FULL = K_EMPTY + 8 * STAGES,
    V_EMPTY = V_FULL + 8 * STAGES,
    V_CHECKED = V_EMPTY + 8 * STAGES,
    FOUND_AT = V_CHECKED + 8 * STAGES, // result of each checker in each stage
    TASK_FULL = FOUND_AT + 4 * CHECKERS * STAGES,
    TASK_EMPTY = TASK_FULL + 8 * TASKS,
    BIAS_FULL = TASK_EMPTY + 8 * TASKS,
    BIAS_EMPTY = BIAS_FULL + 8 * BIAS_STAGES,
    TASKS_AT = BIAS_EMPTY + 8 * BIAS_STAGES,
};

extern __shared__ __align__(1024) unsigned char shared_tiles[];

// The keys that every one of some queries sees.
struct seen {
    int begin, end;
};

struct task {
    struct attention_task a;
    struct seen by_block, by_group[GROUPS]; // by_block: also keys behind the end, as they are zeros
    float sink;                             // of its head, in the units of maxima; -inf: none
#if TERMS
    float slope; // of ALiBi, in units of scores; 0: none
#endif
#if FEW
    int number, end_row; // end_row: the end of its rows, counted as rows are
#endif
};
static_assert(sizeof(struct task) <= ATTENTION_TASK_BYTES, "room for each of the ring");

// A ring of tasks.
DEVICE struct task *task_at(unsigned count) {
    return (struct task *)(shared_tiles + TASKS_AT) + count % TASKS;
}
DEVICE unsigned task_full(unsigned base, unsigned count) {
    return base + TASK_FULL + 8 * (count % TASKS);
}
DEVICE unsigned task_empty(unsigned base, unsigned count) {
    return base + TASK_EMPTY + 8 * (count % TASKS);
}

// Waits until the task of this number is known; whether it exists. A warp that asked arrives at task_empty when it no longer needs
// it.
DEVICE int has_task(unsigned base, unsigned count) {
    barrier_wait(task_full(base, count), count / TASKS % 2);
    return task_at(count)->a.is_there;
}
DEVICE int first_tile(unsigned count) { return task_at(count)->a.begin / BLOCK_N * BLOCK_N; }

// Stages and parities of rings from their counts; stages are powers of two.
DEVICE unsigned q_stage(unsigned count) { return count % Q_STAGES; }
DEVICE unsigned q_parity(unsigned count) { return count / Q_STAGES % 2; }
DEVICE unsigned stage_of(unsigned count) { return count % STAGES; }
DEVICE unsigned parity_of(unsigned count) { return count / STAGES % 2; }

// This warp no longer needs a stage.
DEVICE void release(unsigned empty) {
    if (LANE == 0) barrier_arrive(empty);
}

// ---- Tasks --------------------------------------------------------------------------------------

DEVICE struct seen seen_by_all(const struct attention_params *p, const struct attention_task *t,
                               int first, int rows) {
    const int last = first + rows - 1, len = t->s.len_q - 1;
    struct seen seen = {attention_first_key(p, &t->s, last < len ? last : len),
                        attention_end_key(p, &t->s, first < len ? first : len)};
    return seen;
}

// Whether maxima are those of products, before the scale. Otherwise they are in log2.
DEVICE int has_raw_maxima(const struct attention_flash3_params *a) {
    return IS_RAW && !(TERMS && a->to_softcap > 0);
}

#if FEW
#include "ops/attention/cuda/forward/attention_few.cuh"
#else
// Rows are the queries of a head.
DEVICE int first_row(const struct attention_params *p, const struct attention_task *t) {
    (void)p;
    return t->first;
}
DEVICE int end_row(const struct task *task) { return task->a.s.len_q; }
DEVICE int head_of(const struct attention_params *p, const struct attention_task *t, int row) {
    (void)p, (void)row;
    return t->head;
}
DEVICE float sink_of_row(const struct attention_flash3_params *a, const struct task *task,
                         int row) {
    (void)a, (void)row;
    return task->sink;
}

// The block's task of a round; false: none. If tasks differ, every other round goes in reverse order, which balances them. With
// pairs, two rounds take the tasks of two heads: a long one and a short one.
DEVICE int find_task(const struct attention_flash3_params *a, unsigned round, struct task *task) {
    const struct attention_forward_params *f = &a->forward;
    const unsigned num_tasks = (unsigned)f->num_tasks, tiles = (unsigned)f->num_tiles;
    unsigned number;
    if (a->is_paired) {
        const unsigned pair = round / 2 * gridDim.x + blockIdx.x, first = pair / tiles * 2 * tiles;
        const unsigned longer = pair % tiles;
        if (first >= num_tasks) return 0;
        const unsigned num = num_tasks - first < 2 * tiles ? num_tasks - first : 2 * tiles;
        const unsigned shorter = num - 1 - longer; // at least num if there is none
        if (shorter >= num || longer > shorter || (round % 2 != 0 && longer == shorter)) return 0;
        number = first + (round % 2 != 0 ? shorter : longer);
    } else {
        const int is_turned = f->is_reversed && round % 2 != 0;
        number = round * gridDim.x + (is_turned ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (number >= num_tasks) return 0;
    }
    return attention_task_at(f, number, BLOCK_M, &task->a);
}

#if TERMS
// Limits the slope: a slope this steep has the effect of any steeper one, and its product with a distance stays finite.
DEVICE float find_slope(const struct attention_flash3_params *a, const struct attention_task *t) {
    const struct attention_head_values *slopes = &a->forward.p.slopes;
    const float most = 1e28f;
    if (HAS_BIAS) return slopes->data == 0 ? 0 : attention_head_value(slopes, t->batch, t->head);
    if (slopes->data == 0) return 0;
    const float slope = attention_head_value(slopes, t->batch, t->head) * a->to_slope;
    return slope > most ? most : slope < -most ? -most : slope;
}
#endif

// Rows that see no key. The warps that multiply never get such tasks.
DEVICE void store_empty_task(const struct attention_flash3_params *a, const struct task *task) {
    const struct attention_params *p = &a->forward.p;
    const struct attention_task *t = &task->a;
    const float sink = attention_sink_at(p, t->batch, t->head);
    for (int i = t->first; i < t->first + BLOCK_M && i < t->s.len_q; i++) {
        const long long to = attention_at(&p->out, t->batch, t->s.q_first + i, t->head);
        for (int c = LANE; c < p->head_dim_v; c += 32) store(p->out.data, to + c, 0);
        if (p->lse != 0 && LANE == 0)
            p->lse[attention_lse_at(p, t->batch, t->head, t->s.q_first + i)] = sink;
    }
}

// Describes a task that has keys for all other warps.
DEVICE void describe_task(const struct attention_flash3_params *a, struct task *task) {
    const struct attention_params *p = &a->forward.p;
    struct attention_task *t = &task->a;
    t->is_there = 1;
    task->sink = attention_sink_at(p, t->batch, t->head);
    if (!HAS_BIAS) {
        if (has_raw_maxima(a))
            task->sink /= p->softmax_scale;
        else
            task->sink *= LOG2_E;
    }
    task->by_block = seen_by_all(p, t, t->first, BLOCK_M);
    if (!a->is_ragged && task->by_block.end == t->s.len_k) task->by_block.end += BLOCK_N;
    for (int group = 0; group < GROUPS; group++)
        task->by_group[group] = seen_by_all(p, t, t->first + group * 64, 64);
#if TERMS
    task->slope = find_slope(a, t);
#endif
}
#endif

// One warp finds the block's tasks ahead of the others, as divisions and loads of lengths take long. It finds the first task while
// the previous kernel still runs, if the task needs nothing from memory.
DEVICE void find_tasks(const struct attention_flash3_params *a, unsigned base) {
    const struct attention_params *p = &a->forward.p;
    const int is_read =
        p->is_packed || p->seqused_k != 0 || p->sinks.data != 0 || p->slopes.data != 0;
    unsigned num = 0; // number of tasks with keys
    if (is_read) wait_for_primary();
#pragma unroll 1
    for (unsigned round = 0; round < a->num_rounds; round++) {
        struct task *task = task_at(num);
        barrier_wait(task_empty(base, num), num / TASKS % 2 ^ 1);
        int is_task = 0, has_keys = 0;
        if (LANE == 0) {
            is_task = find_task(a, round, task);
            has_keys = is_task && task->a.begin < task->a.end;
            if (has_keys) describe_task(a, task);
        }
        if (round == 0 && !is_read) wait_for_primary();
        if (has_keys) barrier_arrive(task_full(base, num)); // lane 0
        has_keys = __shfl_sync(ALL_LANES, has_keys, 0);
        if (!has_keys && __shfl_sync(ALL_LANES, is_task, 0)) {
            __syncwarp();
            store_empty_task(a, task);
            __syncwarp();
        }
        num += has_keys;
    }
    barrier_wait(task_empty(base, num), num / TASKS % 2 ^ 1);
    if (LANE == 0) {
        task_at(num)->a.is_there = 0;
        barrier_arrive(task_full(base, num));
    }
}

// ---- Copies -------------------------------------------------------------------------------------

// Copies `rows` rows from `row` on into a tile, 64 columns at a time.
DEVICE void copy_rows(unsigned tile, const struct attention_flash3_tensor *tensor, int slabs,
                      int rows, int batch, int row, int head, unsigned full, int is_elected) {
    if (is_elected) barrier_expect(full, slabs * SLAB_BYTES(rows));
#pragma unroll
    for (int slab = 0; slab < slabs; slab++) {
        const int at[5] = {slab * 64, row, head * tensor->head, batch * tensor->batch, 0};
        if (is_elected) tma_load(tile + slab * SLAB_BYTES(rows), &tensor->map, at, full);
    }
}

// Values are copied one tile behind keys, as they are needed later. So copies are ordered as space becomes free.
struct values {
    int batch, row, head; // batch < 0: none
};

DEVICE void copy_values(const struct attention_flash3_params *a, unsigned base, unsigned num_v,
                        struct values *v, int is_elected) {
    const unsigned stage = stage_of(num_v), at = base + 8 * stage;
    if (v->batch < 0) return;
    barrier_wait(at + V_EMPTY, parity_of(num_v) ^ 1);
    copy_rows(base + V_AT + stage * V_BYTES, &a->v, HEAD_DIM_V / 64, BLOCK_N, v->batch, v->row,
              v->head, at + V_FULL, is_elected);
    v->batch = -1;
}

#if HAS_BIAS
// Copies the bias of the block's queries and of a tile of keys, the num-th of the block.
DEVICE void copy_bias(const struct attention_flash3_params *a, unsigned base, unsigned num,
                      int first, int j, int head, int batch, int is_elected) {
    const unsigned stage = num % BIAS_STAGES, full = base + BIAS_FULL + 8 * stage;
    barrier_wait(base + BIAS_EMPTY + 8 * stage, num / BIAS_STAGES % 2 ^ 1);
    if (is_elected) barrier_expect(full, BLOCK_N / BIAS_COLUMNS * 128 * a->bias_rows);
#pragma unroll
    for (int slab = 0; slab < BLOCK_N / BIAS_COLUMNS; slab++) {
        const int at[5] = {j + slab * BIAS_COLUMNS, a->bias_rows > 1 ? first : 0,
                           head * a->bias.head, batch * a->bias.batch, 0};
        if (is_elected)
            tma_load(base + BIAS_AT + stage * BIAS_BYTES + slab * SLAB_BYTES(BLOCK_M), &a->bias.map,
                     at, full);
    }
}
#endif

// One thread of a warp copies. The whole warp runs the loops, so that the compiler knows addresses are the same for the warp.
DEVICE void copy_tiles(const struct attention_flash3_params *a, unsigned base) {
    const int is_elected = elect_one();
    struct values v = {-1, 0, 0};
    unsigned num_q = 0, num_k = 0; // so far
#pragma unroll 1
    for (; has_task(base, num_q); num_q++) {
        const struct attention_task *t = &task_at(num_q)->a;
        const unsigned q_at = base + 8 * q_stage(num_q);
        const int batch = a->forward.p.is_packed ? 0 : t->batch, end = t->end, head = t->head,
                  kv_head = t->kv_head, first = (int)t->s.k_first, begin = first_tile(num_q),
                  row = (int)t->s.q_first + t->first;
        (void)head;
#if HAS_BIAS
        const int tile_first = t->first, tile_batch = t->batch;
#endif
        __syncwarp();
        release(task_empty(base, num_q));
        if (Q_STAGES == 1) copy_values(a, base, num_k - 1, &v, is_elected);
        barrier_wait(q_at + Q_EMPTY, q_parity(num_q) ^ 1);
#if FEW
        copy_queries(base + q_stage(num_q) * Q_BYTES, a, batch, row, kv_head, q_at + Q_FULL,
                     is_elected);
#else
        copy_rows(base + q_stage(num_q) * Q_BYTES, &a->q, HEAD_DIM / 64, BLOCK_M, batch, row, head,
                  q_at + Q_FULL, is_elected);
#endif
#pragma unroll 1
        for (int j = begin; j < end; j += BLOCK_N, num_k++) {
            const unsigned stage = stage_of(num_k), at = base + 8 * stage;
            barrier_wait(at + K_EMPTY, parity_of(num_k) ^ 1);
            copy_rows(base + K_AT + stage * K_BYTES, &a->k, HEAD_DIM / 64, BLOCK_N, batch,
                      first + j, kv_head, at + K_FULL, is_elected);
            copy_values(a, base, num_k - 1, &v, is_elected);
#if HAS_BIAS
            copy_bias(a, base, num_k, tile_first, j, head, tile_batch, is_elected);
#endif
            v.batch = batch;
            v.row = first + j;
            v.head = kv_head;
        }
    }
    copy_values(a, base, num_k - 1, &v, is_elected);
}

// ---- Checks -------------------------------------------------------------------------------------

DEVICE int *found_in(unsigned stage) { return (int *)(shared_tiles + FOUND_AT) + stage * CHECKERS; }

// Whether some query of the block does not see all of the tile of keys from j on, apart from keys that are zeros.
DEVICE int is_mixed(const struct seen *by_block, int j) {
    return j < by_block->begin || j + BLOCK_N > by_block->end;
}

// Two warps check the values of such tiles, long before they are multiplied.
DEVICE void check_values(unsigned base, int checker) {
    unsigned num_kv = 0;
    for (unsigned num = 0; has_task(base, num); num++) {
        const struct seen by_block = task_at(num)->by_block;
        const int first = first_tile(num), end = task_at(num)->a.end;
        __syncwarp();
        release(task_empty(base, num));
#pragma unroll 1
        for (int j = first; j < end; j += BLOCK_N, num_kv++) {
            const unsigned stage = stage_of(num_kv), at = base + 8 * stage;
            barrier_wait(at + V_FULL, parity_of(num_kv));
            if (is_mixed(&by_block, j)) {
                const unsigned char *v = shared_tiles + V_AT + stage * V_BYTES;
                unsigned sum = 0;
#pragma unroll 4
                for (int piece = checker * 32 + LANE; piece < V_BYTES / 16; piece += CHECKERS * 32)
                    sum = add_product_with_zero(((const uint4 *)v)[piece], sum);
                const int is_found = __any_sync(ALL_LANES, is_nan(sum));
                if (LANE == 0) found_in(stage)[checker] = is_found;
            }
            __syncwarp();
            release(at + V_CHECKED);
            release(at + V_EMPTY);
        }
    }
}

#endif
