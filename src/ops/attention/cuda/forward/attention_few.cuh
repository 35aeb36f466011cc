// SPDX-License-Identifier: Apache-2.0
// cuda-few: how flash3's blocks find their tasks and where rows belong if a tile's rows are a few queries with all heads of a key
// head, and the keys are cut into runs. See struct attention_few. Included by attention_flash3.cuh.
#ifndef TSRI_ATTENTION_FEW_CUH
#define TSRI_ATTENTION_FEW_CUH

#if TERMS & ~2
#error "other terms than softcap have one slope, or the bits of one head, for a tile"
#endif

// ---- Rows -------------------------------------------------------------------------------------
// Row r of a sequence is query r / group of head r % group of the key head.

DEVICE int first_row(const struct attention_params *p, const struct attention_task *t) {
    return t->first * p->group;
}
DEVICE int end_row(const struct task *task) { return task->end_row; }
DEVICE int head_of(const struct attention_params *p, const struct attention_task *t, int row) {
    return t->head + row % p->group;
}

// The sink in the units of maxima. If the keys are cut, the merge adds the sink.
DEVICE float sink_of_row(const struct attention_flash3_params *a, const struct task *task,
                         int row) {
    const struct attention_params *p = &a->forward.p;
    if (p->sinks.data == 0 || a->few.num_splits > 1) return -INFINITE;
    const float sink = attention_sink_at(p, task->a.batch, head_of(p, &task->a, row));
    return has_raw_maxima(a) ? sink / p->softmax_scale : sink * LOG2_E;
}

// ---- Tasks ------------------------------------------------------------------------------------

// The block's task of a round; false: none. Tiles of the same run of keys are adjacent, so that the run is read from memory once.
DEVICE int find_task(const struct attention_flash3_params *a, unsigned round, struct task *task) {
    const struct attention_forward_params *f = &a->forward;
    const struct attention_params *p = &f->p;
    struct attention_task *t = &task->a;
    const unsigned number = round * gridDim.x + blockIdx.x, tiles = (unsigned)f->num_tiles,
                   splits = (unsigned)a->few.num_splits, heads = (unsigned)p->num_heads_kv;
    if (number >= (unsigned)f->num_tasks) return 0;
    const unsigned run = number / tiles, head = run / splits;
    task->number = (int)number;
    t->batch = (int)(head / heads);
    t->kv_head = (int)(head % heads);
    t->head = t->kv_head * p->group;
    t->first = (int)(number % tiles) * a->few.queries;
    t->s = attention_sequence_at(p, t->batch);
    if (t->first >= t->s.len_q) return 0;
    const int end = t->first + a->few.queries < t->s.len_q ? t->first + a->few.queries : t->s.len_q;
    task->end_row = end * p->group;
    t->begin = attention_first_key(p, &t->s, t->first);
    t->end = attention_end_key(p, &t->s, end - 1);
    // Its run of keys, in whole tiles.
    const int first_tile = t->begin / BLOCK_N,
              tiles_k = (t->end + BLOCK_N - 1) / BLOCK_N - first_tile,
              part = (tiles_k + (int)splits - 1) / (int)splits;
    const int begin = (first_tile + (int)(run % splits) * part) * BLOCK_N,
              run_end = begin + part * BLOCK_N;
    if (t->begin < begin) t->begin = begin;
    if (t->end > run_end) t->end = run_end;
    return 1;
}

// Describes a task that has keys for all other warps.
DEVICE void describe_task(const struct attention_flash3_params *a, struct task *task) {
    const struct attention_params *p = &a->forward.p;
    struct attention_task *t = &task->a;
    t->is_there = 1;
    task->by_block = seen_by_all(p, t, t->first, a->few.queries);
    if (!a->is_ragged && task->by_block.end == t->s.len_k) task->by_block.end += BLOCK_N;
    for (int group = 0; group < GROUPS; group++) {
        const int first = group * 64 / p->group, last = (group * 64 + 63) / p->group;
        task->by_group[group] = seen_by_all(p, t, t->first + first, last - first + 1);
    }
#if TERMS
    task->slope = 0;
#endif
}

// ---- Queries ----------------------------------------------------------------------------------

// Copies `queries` queries from `row` on, each with the heads of a key head.
DEVICE void copy_queries(unsigned tile, const struct attention_flash3_params *a, int batch, int row,
                         int kv_head, unsigned full, int is_elected) {
    const int slabs = HEAD_DIM / 64, bytes = a->few.queries * a->forward.p.group * 128;
    if (is_elected) barrier_expect(full, slabs * bytes);
#pragma unroll
    for (int slab = 0; slab < slabs; slab++) {
        const int at[5] = {slab * 64, 0, row, kv_head * a->q.head, batch * a->q.batch};
        if (is_elected) tma_load(tile + slab * SLAB_BYTES(BLOCK_M), &a->q.map, at, full);
    }
}

// ---- Partial results ----------------------------------------------------------------------------

// Index of the partial result of a row of the tile.
DEVICE long long partial_at(const struct task *task, int row) {
    return (long long)task->number * BLOCK_M + row;
}

DEVICE void store_state(const struct attention_flash3_params *a, const struct task *task, int row,
                        float max, float sum) {
    if (has_raw_maxima(a)) max *= a->forward.scale_log2;
    ((float2 *)a->few.states)[partial_at(task, row)] = make_float2(max, sum);
}

// Stores 16 rows of the tile from `row` on, with all columns.
DEVICE void store_partial(float (*o)[4], const struct attention_flash3_params *a,
                          const struct task *task, int row) {
    const int lane = LANE, num = task->end_row - first_row(&a->forward.p, &task->a);
    EACH_HALF(h) {
        const int r = row + h * 8 + lane / 4;
        float *to = a->few.partial + partial_at(task, r) * HEAD_DIM_V + lane % 4 * 2;
        if (r >= num) continue;
        EACH_DIM_TILE(n)
        *(float2 *)(to + n * 8) = make_float2(o[n][2 * h], o[n][2 * h + 1]);
    }
}

// Rows that see no key of the run. The warps that multiply never get such tasks.
DEVICE void store_empty_task(const struct attention_flash3_params *a, const struct task *task) {
    const struct attention_params *p = &a->forward.p;
    const struct attention_task *t = &task->a;
    const int first = first_row(p, t);
    for (int row = first; row < task->end_row; row++) {
        if (a->few.num_splits > 1) {
            if (LANE == 0) store_state(a, task, row - first, -INFINITE, 0);
            continue;
        }
        const int query = QUERY_OF(p, row), head = head_of(p, t, row);
        const long long to = attention_at(&p->out, t->batch, t->s.q_first + query, head);
        for (int c = LANE; c < p->head_dim_v; c += 32) store(p->out.data, to + c, 0);
        if (p->lse != 0 && LANE == 0)
            p->lse[attention_lse_at(p, t->batch, head, t->s.q_first + query)] =
                attention_sink_at(p, t->batch, head);
    }
}

#endif
