// SPDX-License-Identifier: Apache-2.0
// Steps that decode's variants share: append new keys to the cache, load a query from q, write results to out.
#ifndef TSRI_ATTENTION_DECODE_STEPS_H
#define TSRI_ATTENTION_DECODE_STEPS_H

#include "ops/attention/attention_decode_problem.h"
#include "ops/attention/cpu/attention_kernels.h"
#include "ops/attention/cpu/decode/attention_decode_kernels.h"

// What a run passes to its tasks: problem, plan and the kernels of its instruction set.
struct attention_decode_work {
    const struct attention_decode_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct attention_kernels *rows;
    const struct attention_decode_kernels *kernels;
};

struct attention_decode_work attention_decode_work_of(tsr_context *ctx,
                                                      const struct attention_decode_problem *p,
                                                      const struct tsri_plan *plan);

// How many threads are worth waking (attention_decode_plan.c).
int attention_decode_threads(const struct attention_decode_problem *p,
                             const struct tsri_limits *limits);

// Writes the new keys and values of the whole batch into the caches. This is a separate phase: sequences may share a page to which
// one of them appends, and the others must not read it half written.
void attention_decode_append(tsr_context *ctx, const struct attention_decode_work *w);

// Loads query i of a sequence: normalised, rotated, times softmax_scale and the scale of the cached keys, in fp32.
void attention_decode_load_q(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             float *q);

// The result of one part of the keys for one row: o in lane order of `lanes`, relative to exp(max).
struct attention_decode_state {
    const float *o;
    float max, sum;
};

// Turns the products of query i of a head and keys [first, first + n), a part of what it sees, into weights, which are 0 where
// tree_mask hides the key, and updates max and sum. Returns the factor for the row's o so far.
float attention_decode_weigh(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             int64_t first, int64_t n, float *s, float *max, float *sum);

// Writes out and lse of a row from its sink and all parts, in order. scratch: two rows of attention_lane_floats(head_dim_v).
void attention_decode_finish(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             const struct attention_decode_state *parts, int64_t num_parts,
                             tsr_dtype lanes, float *scratch);

#endif
