// SPDX-License-Identifier: Apache-2.0
// Steps that decode's variants share: new keys into the cache, a query out of q, results into out.
#ifndef TSRI_ATTENTION_DECODE_STEPS_H
#define TSRI_ATTENTION_DECODE_STEPS_H

#include "ops/attention/attention_decode_problem.h"
#include "ops/attention/cpu/attention_kernels.h"
#include "ops/attention/cpu/decode/attention_decode_kernels.h"

// What a run hands to its tasks: problem, plan and the kernels of its instruction set.
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

// Threads that are worth their waking (attention_decode_plan.c).
int attention_decode_threads(const struct attention_decode_problem *p,
                             const struct tsri_limits *limits);

// New keys and values of the whole batch into the caches. A phase of its own: where sequences share
// a page that one of them appends to, the others must not see it half written.
void attention_decode_append(tsr_context *ctx, const struct attention_decode_work *w);

// Query i of a sequence: times softmax_scale, rotated, in fp32.
void attention_decode_load_q(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             float *q);

// What one part of the keys gave for one row: o in lane order of `lanes`, relative to exp(max).
struct attention_decode_state {
    const float *o;
    float max, sum;
};

// Scores of a row become weights, and max, sum and the weight of what was before follow. Keys are
// [first, first + n); returns what o is to be multiplied with.
float attention_decode_weigh(const struct attention_decode_work *w,
                             const struct attention_terms *terms, int64_t first, int64_t n,
                             float *s, float *max, float *sum);
// Terms of query i of a head; false where scores stay as they are.
bool attention_decode_terms(const struct attention_decode_work *w,
                            const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                            struct attention_terms *terms);

// out and lse of a row from all parts, in their order, and its sink. scratch: two rows of
// attention_lane_floats(head_dim_v).
void attention_decode_finish(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             const struct attention_decode_state *parts, int64_t num_parts,
                             tsr_dtype lanes, float *scratch);

#endif
