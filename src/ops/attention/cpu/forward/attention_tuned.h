// SPDX-License-Identifier: Apache-2.0
// What the ways to hand out tuned's tiles share: a run's memory, packing into a slot of it, and tiles of what is packed there.
#ifndef TSRI_ATTENTION_TUNED_H
#define TSRI_ATTENTION_TUNED_H

#include "ops/attention/cpu/forward/attention_mixed.h"

struct counter;

struct tuned_work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct attention_steps *steps;
    const struct gemm_bf16_kernels *gemm_bf16; // NULL: steps are fp32's
    int nr, num_threads;
    struct attention_packed packed;
    float *heads;   // [slot]: panels of k, of v, and which chunks of v are not finite
    float *threads; // plan->grain floats for each
    int64_t head_stride, thread_stride;
    int64_t num_chunks, num_tiles;
    int64_t num_parts;             // of the heads of a chunk, each packed by a task of its own
    int64_t first_pair, num_pairs; // of the stripe: slot s is pair first_pair + s
    struct counter *next_tile, *next_pair, *num_begun; // of attention_tuned_helped.c
    int64_t num_runs, run_keys;                        // of attention_tuned_blocks.c
    float *partial;                                    // [pair][run]
};

unsigned char *tuned_flags_of(const struct tuned_work *w, int64_t slot);
// Packs the chunk of keys from `first` on of the tile's head into a slot, at key `at` of it, or at its own place.
void tuned_pack_at(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                   int64_t first, int64_t at);
void tuned_pack(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                int64_t first);
// The keys in a slot, from `first` on.
struct attention_head tuned_head_in(const struct tuned_work *w, int64_t slot, int64_t first);

// A tile in the memory of a thread; of rows [first, first + num_rows) of a pair; the blocks of keys that it sees.
void tuned_carve(const struct tuned_work *w, struct attention_tile *t, int thread);
void tuned_open_tile(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                     int64_t first, int64_t num_rows);
struct attention_range tuned_seen_blocks(const struct tuned_work *w,
                                         const struct attention_tile *t);
// All of such a tile, whose pair's keys are in a slot.
void tuned_run_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t first, int64_t num_rows);

// Rows of a pair's sequence, which may have fewer than others.
int64_t tuned_rows(const struct tuned_work *w, int64_t pair);
// Packs a head for the thread. Its first tile: a sequence shorter than others lacks the first ones, an empty one all.
int64_t tuned_pack_head(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                        int thread);
// Rows of a tile, the last tile first; none, begin >= end, where the sequence is shorter than others.
struct attention_range tuned_rows_of_tile(const struct tuned_work *w, int64_t pair, int64_t index);
// Under a causal mask the last tiles are the heaviest: they go first.
void tuned_nth_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t index);

// Ways to hand tiles out: attention_tuned_helped.c, attention_tuned_blocks.c.
void tuned_run_helped(tsr_context *ctx, struct tuned_work *w);
void tuned_run_shared(tsr_context *ctx, struct tuned_work *w);
void tuned_run_blocks(tsr_context *ctx, struct tuned_work *w);

#endif
