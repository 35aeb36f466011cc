// SPDX-License-Identifier: Apache-2.0
// What the tasks of attention_backward.c share, and their inner step: a block of keys against the rows of its head.
#ifndef TSRI_ATTENTION_BACKWARD_BLOCK_H
#define TSRI_ATTENTION_BACKWARD_BLOCK_H

#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/backward/attention_grad_mixed.h"

struct attention_backward_work {
    const struct attention_problem *p;
    const struct tsri_plan *plan;
    tsr_isa isa;
    const struct gemm_bf16_kernels *gemm_bf16; // NULL: products in fp32
    int64_t rows, num_runs, run_keys, group_runs, task_runs, dq_rows, dq_stride;
    int64_t num_sums, sum_keys; // sums of runs, or of groups of runs
    int64_t num_spans, span_rows, task_spans, own_rows;
    int64_t span_keys, dk_stride, dv_stride;
    int64_t dq_sum; // from one sum to the next; 0: all use the same
    bool has_unit;
    struct attention_statistics *stats; // [pair][row of the group]
    float *dq;                          // several sums: [pair][sum][row][dq_stride]
    float *dk, *dv;                     // of spans, if these are tasks: [pair][span][key][stride]
    float *threads;                     // plan->grain floats for each
    unsigned char *is_nonfinite;        // [pair][chunk of queries]: at most one per tile of rows
    int64_t num_tiles, num_chunks;
    int64_t num_parts; // parts of the heads that share a chunk
};

// Keys [first, first + num_keys) of a head against its rows [row, end_row): whole spans of rows, of which the last may be shorter,
// or no rows. dk, dv and dq are added to. dq is the sum of the first key, from row dq_row on; the sums of later keys follow it;
// NULL: no dq. Spans after the first use `next` for their dk and dv. If other runs have begun a sum, a run is added up in `part`
// first.
struct attention_backward_block {
    int64_t pair, first, num_keys, row, end_row, dq_row;
    float *dk, *dv, *next, *dq, *part;
};

// g: the thread's tile, already carved.
void attention_backward_add(const struct attention_backward_work *w, struct attention_grad *g,
                            const struct attention_backward_block *b);

// The same with products in bf16. False: something in k is not finite.
bool attention_backward_add_mixed(const struct attention_backward_work *w, int thread,
                                  const struct attention_backward_block *b);

// Sums the scores of rows [first, first + num_rows) of a pair again if their lse is coarse. may_be_mixed: scores of bf16 products.
void attention_backward_refine(const struct attention_backward_work *w, struct attention_grad *g,
                               int thread, int64_t pair, int64_t first, int64_t num_rows,
                               bool may_be_mixed);

#endif
