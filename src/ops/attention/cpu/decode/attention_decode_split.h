// SPDX-License-Identifier: Apache-2.0
// The default variant. Sequences with few queries split their keys; the others use tiles. One loop hands out both kinds of task.
#ifndef TSRI_ATTENTION_DECODE_SPLIT_H
#define TSRI_ATTENTION_DECODE_SPLIT_H

#include "ops/attention/cpu/decode/attention_decode_steps.h"

enum {
    DECODE_FEW_ROWS = 32, // of a group, in splits; with more, packed tiles are as fast
    DECODE_BLOCK =
        32, // keys between two looks at the maximum; fetched a block ahead, into the L2 cache
    DECODE_RUN = 16 // keys of a head before the next head: nearly memory order
};

// The work of one sequence. Jobs with tiles come first, as their tasks are the longest.
struct decode_job {
    int64_t batch, first_task;
    bool is_tiled;
    struct attention_range seen; // keys, by any query
    int64_t first_split, num_splits;
    int64_t first_row; // of the partial results
};

struct decode_work {
    struct attention_decode_work base; // must be first: the shared steps use it
    struct decode_job *jobs;
    int64_t num_jobs, num_tasks;
    int64_t heads_per_task;
    struct attention_decode_state *states; // [partial row][head][split]
    float *partial;                        // [partial row][head][split][lane floats of head_dim_v]
    int64_t most_splits, most_rows;        // of the two arrays
    float *threads;                        // plan->grain floats for each
};

static inline int64_t decode_group_of(const struct attention_problem *a) {
    return a->num_heads_kv == 0 ? 0 : a->num_heads_q / a->num_heads_kv;
}

// The most rows of a group that a split holds, all of one sequence (attention_decode_few.c).
int64_t decode_most_few_rows(const struct attention_problem *a);

// Floats of one task of either kind.
int64_t decode_split_floats(const struct attention_decode_problem *p);
int64_t decode_tile_floats(const struct attention_decode_problem *p, const struct tsri_plan *plan,
                           tsr_isa isa);

void decode_split_task(const struct decode_work *w, const struct decode_job *job, int64_t index,
                       float *memory);
void decode_tile_task(const struct decode_work *w, const struct decode_job *job, int64_t index,
                      float *memory);

#endif
