// SPDX-License-Identifier: Apache-2.0
// Shared by all ways to hand out tuned's tiles: the memory of a run, packing into a slot, and tiles of packed keys.
#ifndef TSRI_ATTENTION_TUNED_H
#define TSRI_ATTENTION_TUNED_H

#include "ops/attention/cpu/forward/attention_mixed.h"

struct counter;

struct tuned_work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct attention_steps *steps;
    const struct gemm_bf16_kernels *gemm_bf16; // NULL: steps in fp32
    int nr, num_threads;
    struct attention_packed packed;
    float *heads;   // [slot]: panels of k, of v, flags of chunks of v that are not finite
    float *threads; // plan->grain floats for each
    int64_t head_stride, thread_stride;
    int64_t num_chunks, num_tiles;
    int64_t num_parts;             // parts of a chunk's heads; each part is one task's packing
    int64_t first_pair, num_pairs; // of the stripe: slot s is pair first_pair + s
    struct counter *next_tile, *next_pair, *num_begun; // of attention_tuned_helped.c
    int64_t num_runs, run_keys;                        // of attention_tuned_blocks.c
    float *partial;                                    // [pair][run]
};

unsigned char *tuned_flags_of(const struct tuned_work *w, int64_t slot);
// Packs the chunk of keys from `first` on of the tile's head into a slot. tuned_pack_at: to key `at` of it; tuned_pack: to its own
// place.
void tuned_pack_at(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                   int64_t first, int64_t at);
void tuned_pack(const struct tuned_work *w, const struct attention_tile *t, int64_t slot,
                int64_t first);
// The packed keys of a slot, from `first` on.
struct attention_head tuned_head_in(const struct tuned_work *w, int64_t slot, int64_t first);

// A tile in a thread's memory; a tile of rows [first, first + num_rows) of a pair; the blocks of keys that a tile sees.
void tuned_carve(const struct tuned_work *w, struct attention_tile *t, int thread);
void tuned_open_tile(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                     int64_t first, int64_t num_rows);
struct attention_range tuned_seen_blocks(const struct tuned_work *w,
                                         const struct attention_tile *t);
// Runs such a tile; its pair's keys are in a slot.
void tuned_run_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t first, int64_t num_rows);

// Rows of a pair's sequence; sequences may differ.
int64_t tuned_rows(const struct tuned_work *w, int64_t pair);
// Packs a head for the thread. Returns its first tile: a shorter sequence lacks the first tiles, an empty one lacks all.
int64_t tuned_pack_head(const struct tuned_work *w, struct attention_tile *t, int64_t pair,
                        int thread);
// Rows of a tile; index 0 is the last tile. begin >= end: a shorter sequence lacks this tile.
struct attention_range tuned_rows_of_tile(const struct tuned_work *w, int64_t pair, int64_t index);
// Runs a tile. Under a causal mask the last tiles are the heaviest, so they come first.
void tuned_nth_tile(const struct tuned_work *w, struct attention_tile *t, int64_t slot,
                    int64_t pair, int64_t index);

// Ways to hand tiles out: attention_tuned_helped.c, attention_tuned_blocks.c.
void tuned_run_helped(tsr_context *ctx, struct tuned_work *w);
void tuned_run_shared(tsr_context *ctx, struct tuned_work *w);
void tuned_run_blocks(tsr_context *ctx, struct tuned_work *w);

#endif
