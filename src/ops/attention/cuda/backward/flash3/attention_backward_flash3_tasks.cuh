// SPDX-License-Identifier: Apache-2.0
// flash3's backward around its products: a block's tasks, the thread that copies tiles, and the threads that add to dq. The memory
// layout is that of attention_backward_flash3_sm90.cu.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_TASKS_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH3_TASKS_CUH

// ---- Tasks ------------------------------------------------------------------------------------

struct task {
    struct attention_sequence s;
    unsigned index;
    int batch, kv_head, tile;
    int key, key_end, end; // first key; end of the seen keys; end of the written keys
    int first, last;       // first query of the first tile and of the last one
    int num_steps;
    int statistics; // of its first head's first query, in units of FLASH3_TURN_ROWS rows
    int lead;       // query sees keys from query + lead on
    int final_end; // queries before it are seen by no later keys: their dq is complete with this task
};
static_assert(sizeof(struct task) <= TASK_BYTES, "room for a task");

// If two tiles of keys fit, two tasks are known at a time: the current one, and the next, whose tiles are copied meanwhile.
DEVICE struct task *task_at(unsigned slot) {
    return (struct task *)(memory + TASK_AT + slot * TASK_BYTES);
}

#define RING(count) ((count) % STAGES)
#define PARITY(count) ((count) / STAGES & 1)
#define TASK_SLOT(count) ((count) % KEY_STAGES)
#define TASK_PARITY(count) ((count) / KEY_STAGES & 1)
// The tile of keys of a task.
DEVICE unsigned keys_at(unsigned slot) { return KEYS_AT + slot % KEY_STAGES * OWNED_BYTES; }

// The first query of the tiles of queries that see a key of the tile from `key` on; *end: the end of these queries, 0 if there are
// none.
DEVICE int first_of(const struct attention_params *p, const struct attention_sequence *s, int key,
                    int *end) {
    const int key_end = key + OWNED < s->len_k ? key + OWNED : s->len_k;
    const int first = attention_first_query(p, s, key) / PASSING * PASSING;
    *end = key < key_end ? attention_end_query(p, s, key_end - 1) : 0;
    return first;
}

DEVICE void set_task(const struct attention_backward_flash3_params *f, unsigned index,
                     struct task *t) {
    const struct attention_params *p = &f->b.p;
    t->index = index;
    t->num_steps = 0;
    if (index >= (unsigned)f->b.num_tasks) return;
    unsigned of_section = (unsigned)(f->section * f->b.num_tiles), section = index / of_section;
    unsigned first_head = section * f->section, rest = index - section * of_section;
    unsigned heads = (unsigned)(p->num_batches * p->num_heads_kv) - first_head;
    if (heads > (unsigned)f->section) heads = f->section;
    unsigned head = first_head + rest % heads;
    t->tile = (int)(rest / heads);
    t->key = t->tile * OWNED;
    t->kv_head = (int)(head % p->num_heads_kv);
    t->batch = (int)(head / p->num_heads_kv);
    t->s = attention_sequence_at(p, t->batch);
    // Keys that exist but are not seen get 0. Packed ones are cleared elsewhere.
    t->end = p->is_packed ? t->s.len_k : p->seqlen_k;
    t->key_end = t->key + OWNED < t->s.len_k ? t->key + OWNED : t->s.len_k;
    if (t->key >= t->key_end) return;
    int end, end_of_next;
    t->first = first_of(p, &t->s, t->key, &end);
    if (end <= t->first) return;
    const int next = first_of(p, &t->s, t->key + OWNED, &end_of_next);
    t->final_end = next < end_of_next ? next : end;
    t->last = (end - 1) / PASSING * PASSING;
    t->num_steps = ((t->last - t->first) / PASSING + 1) * p->group;
    t->statistics =
        (int)(statistics_at(&f->b, &t->s, t->batch, t->kv_head * p->group) / FLASH3_TURN_ROWS);
    t->lead = t->s.shift - p->window_left;
}

// How many blocks add to a tile of dq before the block of this tile of keys.
DEVICE int rank_of(int tile, int query, int lead) {
    return tile - (query + lead > 0 ? query + lead : 0) / OWNED;
}

// Index of the statistics of a query of a head of the group, in units of FLASH3_TURN_ROWS rows. Its turns and sums of dq have the
// same index.
DEVICE unsigned turn_at(const struct attention_backward_flash3_params *f, int statistics, int head,
                        int query) {
    return (unsigned)(statistics + head * (int)(f->b.statistic_rows / FLASH3_TURN_ROWS) +
                      query / FLASH3_TURN_ROWS);
}

// The head and first query of a step.
struct step {
    int head, query;
};
#if TERMS == 1
// The same for the threads that multiply.
struct passing {
    int query, head;
    float slope; // of ALiBi, in log2
};
#endif
DEVICE struct step first_step(const struct attention_params *p, const struct task *t) {
    struct step step = {t->kv_head * p->group, t->last};
    return step;
}
DEVICE void next_step(struct step *step, const struct task *t) {
    step->query -= PASSING;
    if (step->query >= t->first) return;
    step->query = t->last;
    step->head++;
}

// ---- Turns: numbers in memory that go up --------------------------------------------------------

DEVICE int *turn_of(const struct attention_backward_flash3_params *f, unsigned at) {
    return f->b.turns + FLASH3_TURNS_AT + anew(at);
}
DEVICE int load_turn(const int *turn) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(turn) : "memory");
    return x;
}
DEVICE void end_turn(int *turn) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
}

// ---- Copies -----------------------------------------------------------------------------------

#if HAS_BIAS
// Copies the bias of a step. If dbias is wanted, its part takes the bias's place and must leave it first.
DEVICE void copy_bias(const struct attention_backward_flash3_params *f, unsigned base,
                      struct ring *ring, const struct task *t, int head, int query) {
    const unsigned there = base + BIAS_IS_THERE + 8 * ring->stage;
    const int rows = f->bias.rows, row = rows > 1 ? query : 0;
    const int of_head = head * f->bias.head, of_batch = t->batch * f->bias.batch;
    // With one stage, a bias cannot come before dbias has left the stage, but it can come into the second-level cache.
    if (BIAS_STAGES == 1)
        for (int slab = 0; slab < OWNED / BIAS_COLUMNS; slab++) {
            const int at[5] = {t->key + slab * BIAS_COLUMNS, row, of_head, of_batch, 0};
            tma_prefetch_box(&f->bias.map, at);
        }
    barrier_wait(base + BIAS_IS_FREE + 8 * ring->stage, ring->parity ^ 1);
    barrier_expect(there, OWNED / BIAS_COLUMNS * 128 * rows);
#pragma unroll
    for (int slab = 0; slab < OWNED / BIAS_COLUMNS; slab++) {
        const int at[5] = {t->key + slab * BIAS_COLUMNS, row, of_head, of_batch, 0};
        tma_load(base + BIAS_AT + ring->stage * BIAS_BYTES + slab * PASSING_SLAB, &f->bias.map, at,
                 there);
    }
    ring_advance(ring, BIAS_STAGES);
}
#endif

// The place of the i-th slab of keys.
#ifndef KEY_SLAB
#define KEY_SLAB(i) (i)
#endif
DEVICE void load_keys(unsigned tile, const struct tensor_map *map, long long row, int head,
                      int batch, unsigned barrier) {
#pragma unroll
    for (int i = 0; i < SLABS; i++) {
        const int at[5] = {i * 64, (int)row, head, batch, 0};
        tma_load(tile + KEY_SLAB(i) * OWNED_SLAB, map, at, barrier);
    }
}

// If two tiles of keys fit, a task's tiles are copied during the previous task: its keys into the other tile, its values once the
// previous task's are no longer read. The values count with the first tile of dout.
DEVICE void copy_tasks(const struct attention_backward_flash3_params *f, unsigned base) {
    const struct attention_params *p = &f->b.p;
    unsigned count = 0;   // of steps
    unsigned started = 0; // tasks; the highest bit counts those with steps
#if HAS_BIAS
    struct ring bias_ring = {0, 0};
#endif
    wait_for_primary();
    unsigned index = (unsigned)atomicAdd(f->b.turns, 1);
    for (;; started = (started + 1) ^ (task_at(TASK_SLOT(started))->num_steps > 0 ? 1u << 31 : 0)) {
        const unsigned slot = TASK_SLOT(started), there = base + TASK_IS_THERE + 8 * slot;
        struct task *t = task_at(slot);
        barrier_wait(base + TASK_IS_DONE + 8 * slot, TASK_PARITY(started) ^ 1);
        set_task(f, index, t);
        const int batch = p->is_packed ? 0 : t->batch;
        if (t->num_steps == 0) {
            barrier_arrive(there);
            if (index >= (unsigned)f->b.num_tasks) return;
        } else {
            barrier_expect(there, OWNED_BYTES + (KEY_STAGES == 1 ? V_OWNED_BYTES : 0));
            load_keys(base + keys_at(slot), &f->maps.k, t->s.k_first + t->key, t->kv_head, batch,
                      there);
#if KEY_STAGES == 1
            load_rows(base + VALUES_AT, &f->maps.v, V_SLABS, OWNED_SLAB, t->s.k_first + t->key,
                      t->kv_head, batch, there, 1);
#endif
        }
        struct step step = first_step(p, t);
        for (int n = 0; n < t->num_steps; n++, count++) {
            const unsigned stage = RING(count);
            const unsigned queries_there = base + QUERIES_ARE_THERE + 8 * stage,
                           dout_there = base + DOUT_IS_THERE + 8 * stage;
            const unsigned at =
                turn_at(f, t->statistics, step.head - t->kv_head * p->group, step.query);
            const long long row = t->s.q_first + step.query;
            barrier_wait(base + STAGE_IS_FREE + 8 * stage, PARITY(count) ^ 1);
#if TERMS == 1
            struct passing *passing = (struct passing *)(memory + STEPS_AT + STEP_BYTES * stage);
            passing->head = step.head;
            passing->slope = p->slopes.data != 0
                                 ? attention_head_value(&p->slopes, t->batch, step.head) * LOG2_E
                                 : 0;
#endif
            *(int *)(memory + STEPS_AT + STEP_BYTES * stage) = step.query;
#if HAS_FINAL_DQ || (HAS_BIAS && !HAS_SHARED_LOW)
            *(int *)(memory + STEPS_AT + STEP_BYTES * stage + 4) = (int)at;
#endif
            barrier_expect(queries_there, PASSING_BYTES + (1 + HAS_SHARED_LOW) * STATISTIC_BYTES);
            load_rows(base + QUERIES_AT + stage * PASSING_BYTES, &f->maps.q, SLABS, PASSING_SLAB,
                      row, step.head, batch, queries_there, 1);
            bulk_load(base + LSE_AT + stage * STATISTIC_BYTES,
                      f->b.lse + (long long)at * FLASH3_TURN_ROWS, STATISTIC_BYTES, queries_there);
#if HAS_SHARED_LOW
            bulk_load(base + LSE_LOW_AT + stage * STATISTIC_BYTES,
                      f->b.lse_low + (long long)at * FLASH3_TURN_ROWS, STATISTIC_BYTES,
                      queries_there);
#endif
            barrier_expect(dout_there, V_PASSING_BYTES + STATISTIC_BYTES +
                                           (KEY_STAGES == 2 && n == 0 ? V_OWNED_BYTES : 0));
            load_rows(base + DOUTS_AT + stage * V_PASSING_BYTES, &f->maps.dout, V_SLABS,
                      PASSING_SLAB, row, step.head, batch, dout_there, 1);
            bulk_load(base + DELTA_AT + stage * STATISTIC_BYTES,
                      f->b.delta + (long long)at * FLASH3_TURN_ROWS, STATISTIC_BYTES, dout_there);
#if KEY_STAGES == 2
            if (n == 0) {
                barrier_wait(base + VALUES_ARE_FREE, started >> 31 ^ 1);
                load_rows(base + VALUES_AT, &f->maps.v, V_SLABS, OWNED_SLAB, t->s.k_first + t->key,
                          t->kv_head, batch, dout_there, 1);
            }
#endif
#if HAS_BIAS
            copy_bias(f, base, &bias_ring, t, step.head, step.query);
#endif
            next_step(&step, t);
        }
        index = (unsigned)atomicAdd(f->b.turns, 1);
    }
}

// ---- dq -----------------------------------------------------------------------------------------

// This thread takes every WRITERS-th step, from `writer` on. It waits for its turn, adds, and passes the turn on when its sums are
// in memory. Meanwhile another thread takes the next step.
DEVICE void write_dq(const struct attention_backward_flash3_params *f, unsigned base, int writer) {
    const struct attention_params *p = &f->b.p;
    unsigned count = 0; // of steps
    wait_for_primary();
#if HAS_BIAS
    struct ring bias_ring = {0, 0};
#endif
    for (unsigned started = 0;; started++) {
        const struct task *task = task_at(TASK_SLOT(started));
        barrier_wait(base + TASK_IS_THERE + 8 * TASK_SLOT(started), TASK_PARITY(started));
        if (task->index >= (unsigned)f->b.num_tasks) break;
        const int tile = task->tile, lead = task->lead, first = task->first, last = task->last;
        int num_steps = task->num_steps, query = last, head = task->statistics;
#if HAS_BIAS
        const int key = task->key, batch = task->batch;
        int of_head = task->kv_head * p->group;
#endif
#if KEY_STAGES == 1
        barrier_arrive(base + TASK_IS_DONE); // the task's values have been copied
#endif
        for (; num_steps > 0; num_steps--, count++) {
            const int here = query;
            const unsigned at = (unsigned)(head + here / FLASH3_TURN_ROWS);
            query -= PASSING;
            if (query < first) {
                query = last;
                head += (int)f->b.statistic_rows / FLASH3_TURN_ROWS;
            }
#if HAS_BIAS
            const unsigned stage = base + 8 * bias_ring.stage;
            const unsigned bias = base + BIAS_AT + bias_ring.stage * BIAS_BYTES;
            const int here_head = of_head;
            if (query == last) of_head++;
            ring_advance(&bias_ring, BIAS_STAGES);
#endif
            if (count % WRITERS != (unsigned)writer) continue;
            const int rank = rank_of(tile, here, lead);
            if (p->dq.data != 0)
                while (load_turn(turn_of(f, at)) <
                       rank) // with falling offsets, sequences share turns
                    ;
#if HAS_FINAL_DQ
            barrier_arrive(base + TURN_IS_HERE + 8 * writer);
#endif
            barrier_wait(base + DQ_IS_THERE + 8 * writer, count / WRITERS & 1);
#if HAS_BIAS
            if (f->bias.has_dbias) {
#pragma unroll
                for (int slab = 0; slab < OWNED / BIAS_COLUMNS; slab++) {
                    const int to[5] = {key + slab * BIAS_COLUMNS, here, here_head, batch, 0};
                    tma_store(bias + slab * PASSING_SLAB, &f->bias.dbias, to);
                }
                if (p->dq.data == 0) {
                    TMA_STORES_READ(0);
                    barrier_arrive(stage + BIAS_IS_FREE);
                }
            }
#endif
            if (p->dq.data == 0) {
                barrier_arrive(base + DQ_IS_FREE);
                continue;
            }
#if HAS_FINAL_DQ
            if (here < task->final_end) {
                const int of_group = ((int)at - here / FLASH3_TURN_ROWS - task->statistics) /
                                     ((int)f->b.statistic_rows / FLASH3_TURN_ROWS);
#pragma unroll
                for (int slab = 0; slab < SLABS; slab++) {
                    const int to[5] = {slab * 64, here, task->kv_head * p->group + of_group,
                                       task->batch, 0};
                    tma_store(base + DQ_AT + slab * PASSING_SLAB, &f->final_dq, to);
                }
                TMA_STORES_READ(0);
                barrier_arrive(base + DQ_IS_FREE);
                continue;
            }
#endif
            tma_see_all();
            if (rank == 0)
                bulk_store(f->dq + (long long)at * (FLASH3_TURN_ROWS * HEAD_DIM), base + DQ_AT,
                           DQ_BYTES);
            else
                bulk_add(f->dq + (long long)at * (FLASH3_TURN_ROWS * HEAD_DIM), base + DQ_AT,
                         DQ_BYTES);
            TMA_STORES_READ(0);
            barrier_arrive(base + DQ_IS_FREE);
#if HAS_BIAS
            if (f->bias.has_dbias) barrier_arrive(stage + BIAS_IS_FREE);
#endif
            TMA_STORES_DONE();
            tma_see_all();
            end_turn(turn_of(f, at));
        }
        if (KEY_STAGES == 2) barrier_arrive(base + TASK_IS_DONE + 8 * TASK_SLOT(started));
    }
    TMA_STORES_DONE();
}

// ---- A block's beginning -------------------------------------------------------------------------

// Called by one thread. The includer starts its other barriers and then publishes all together.
DEVICE void start_tasks(const struct attention_backward_flash3_params *f, unsigned base) {
    tma_prefetch(&f->maps.q);
    tma_prefetch(&f->maps.k);
    tma_prefetch(&f->maps.v);
    tma_prefetch(&f->maps.dout);
    for (int i = 0; i < KEY_STAGES; i++) {
        barrier_start(base + TASK_IS_THERE + 8 * i, 1);
        barrier_start(base + TASK_IS_DONE + 8 * i, WORKERS / 32 + WRITERS);
    }
    for (int i = 0; i < STAGES; i++) {
        barrier_start(base + QUERIES_ARE_THERE + 8 * i, 1);
        barrier_start(base + DOUT_IS_THERE + 8 * i, 1);
        barrier_start(base + STAGE_IS_FREE + 8 * i, WORKERS / 32);
    }
    for (int i = 0; i < WRITERS; i++) barrier_start(base + DQ_IS_THERE + 8 * i, WORKERS / 32);
    barrier_start(base + DQ_IS_FREE, 1);
}

// Of the warps that do not multiply, one thread copies tiles, and WRITERS others store dq.
DEVICE void serve_tasks(const struct attention_backward_flash3_params *f, unsigned base, int warp) {
    if (threadIdx.x == 0) copy_tasks(f, base);
    if (warp > 0 && warp <= WRITERS && threadIdx.x % 32 == 0) write_dq(f, base, warp - 1);
}

#endif
