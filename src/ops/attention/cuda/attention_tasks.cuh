// SPDX-License-Identifier: Apache-2.0
// The work of a block in forward's kernels: a tile of queries of one head, and the keys that it sees.
#ifndef TSRI_ATTENTION_TASKS_CUH
#define TSRI_ATTENTION_TASKS_CUH

#include "ops/attention/cuda/attention_device.cuh"

struct attention_task {
    int batch, head, kv_head;
    int first; // query of the sequence
    struct attention_sequence s;
    int begin, end; // keys that at least one of its queries sees
    int is_there;
};
static_assert(sizeof(struct attention_task) <= ATTENTION_TASK_BYTES, "room behind the tiles");

// False: there is nothing to do.
DEVICE int attention_task_at(const struct attention_forward_params *f, long long index,
                             int tile_rows, struct attention_task *t) {
    long long of_section = (long long)f->section * f->num_tiles;
    long long first_head = index / of_section * f->section, rest = index % of_section;
    long long heads =
        f->num_heads - first_head < f->section ? f->num_heads - first_head : f->section;
    int tile = (int)(rest / heads);
    long long head = first_head + rest % heads;
    t->batch = (int)(head / f->p.num_heads_q);
    t->head = (int)(head % f->p.num_heads_q);
    t->kv_head = t->head / f->p.group;
    t->first = (f->is_reversed ? f->num_tiles - 1 - tile : tile) * tile_rows;
    t->s = attention_sequence_at(&f->p, t->batch);
    if (t->first >= t->s.len_q) return 0;
    int last = t->first + tile_rows < t->s.len_q ? t->first + tile_rows - 1 : t->s.len_q - 1;
    t->begin = attention_first_key(&f->p, &t->s, t->first);
    t->end = attention_end_key(&f->p, &t->s, last);
    return 1;
}

// Whether each query of the tile sees each key of [j, end).
DEVICE int attention_sees_all(const struct attention_forward_params *f,
                              const struct attention_task *t, int tile_rows, int j, int end) {
    int last = t->first + tile_rows < t->s.len_q ? t->first + tile_rows - 1 : t->s.len_q - 1;
    return j >= attention_first_key(&f->p, &t->s, last) &&
           end <= attention_end_key(&f->p, &t->s, t->first);
}

// Loops over the block's tasks. A task lies in shared memory, so that it takes no registers.
#define EACH_TASK(f, tile_rows, task)                                                              \
    for (long long index_ = blockIdx.x; index_ < (f)->num_tasks; index_ += gridDim.x)              \
        if (attention_share_task(f, index_, tile_rows, task))

DEVICE int attention_share_task(const struct attention_forward_params *f, long long index,
                                int tile_rows, struct attention_task *task) {
    __syncthreads(); // all threads have left the previous task
    if (threadIdx.x == 0) task->is_there = attention_task_at(f, index, tile_rows, task);
    __syncthreads();
    return task->is_there;
}

#endif
