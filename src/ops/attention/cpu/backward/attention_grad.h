// SPDX-License-Identifier: Apache-2.0
// Backward, one tile of queries against one block of keys: weights computed again from lse, the gradient of the scores, and the
// three products dq, dk and dv. As in forward, variants are loops over these steps.
#ifndef TSRI_ATTENTION_GRAD_H
#define TSRI_ATTENTION_GRAD_H

#include "ops/attention/cpu/attention_tile.h"

// Statistics of a row: p = exp(s - lse - lse_low).
struct attention_statistics {
    float delta; // dout . out
    float lse, lse_low;
};

struct attention_grad {
    struct attention_tile tile; // q: scaled; s: weights (after dropout); o: rows of dout
    float *ds;                  // [rows][s_stride]: dout v^T, then the gradient of the scores
    float *slope;               // [block_n]: derivative of the softcap, one row at a time
    const struct attention_statistics *stats; // [rows]
    float *k_panels, *v_panels;               // panels of keys: for q k^T and dout v^T
    float *k_rows;                            // panels of dims, times softmax_scale: for ds k
    struct attention_block block;
    bool is_before_cap; // ds is the gradient of the bias: without the softcap's slope
    bool is_exact;      // something is not finite: products must skip unseen keys
};

// The floats that the statistics of some rows take.
int64_t attention_statistics_floats(int64_t rows);
int64_t attention_grad_floats(const struct attention_problem *p, int64_t block_m, int64_t block_n,
                              int nr);
void attention_grad_carve(struct attention_grad *g, const struct attention_problem *p, tsr_isa isa,
                          float *memory, int64_t block_m, int64_t block_n);

// Statistics of one row of some heads, with lse as given. True: q or dout of at least one head is not finite.
bool attention_grad_statistics(const struct attention_problem *p,
                               const struct attention_kernels *kernels, int64_t batch, int64_t row,
                               int64_t head, int64_t num_heads, struct attention_statistics *stats);

// One f32 cannot hold a large lse: -1e9 + log n rounds to -1e9, and every weight would be 1 instead of 1 / n. Such an lse is
// coarse. Its row's scores, as this variant computes them, are summed again: lse becomes the largest score, lse_low the logarithm
// of the sum of exp(score - lse).
bool attention_grad_is_coarse(const struct attention_problem *p, float lse);

// A row's sum so far.
struct attention_grad_sum {
    float max;
    double sum;
};
// Starts the sums of the tile's rows: empty, or with the sink. False: no row is coarse.
bool attention_grad_start_sums(const struct attention_tile *t,
                               const struct attention_statistics *stats,
                               struct attention_grad_sum *sums);
// Adds n scores of row r from key `first` on to its sum. Overwrites s.
void attention_grad_sum_scores(const struct attention_tile *t, int64_t r, int64_t first, int64_t n,
                               float *s, struct attention_grad_sum *sum);
// Uses the sum if rounding explains the difference to the given lse. Otherwise keeps the given lse: it may cover more keys than
// this call has.
void attention_grad_finish_sums(const struct attention_problem *p, int64_t num_rows,
                                const struct attention_grad_sum *sums,
                                struct attention_statistics *stats);

// Adds the block's keys to the sums of the coarse rows among [first, first + num_rows).
void attention_grad_sum_block(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_rows,
                              const struct attention_statistics *stats,
                              struct attention_grad_sum *sums);

// Packs keys [first, first + num_keys) of a head. with_rows: k_rows too.
void attention_grad_load_keys(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_keys, bool with_rows);

// Opens rows [first, first + num_rows) of the group. False: none of them sees a key of the block.
bool attention_grad_open(struct attention_grad *g, int64_t batch, int64_t kv_head, int64_t first,
                         int64_t num_rows, const struct attention_statistics *stats);

// Weights and the gradient of the scores; 0 for keys that a row does not see.
void attention_grad_scores(struct attention_grad *g);
void attention_grad_weights(struct attention_grad *g); // step between the two products

// dv += s^T dout, dk += ds^T q; and dq += ds k for keys [begin, end) of the block.
void attention_grad_keys(const struct attention_grad *g, float *dk, int64_t dk_stride, float *dv,
                         int64_t dv_stride);
void attention_grad_queries(const struct attention_grad *g, int64_t begin, int64_t end, float *dq,
                            int64_t dq_stride);

// Clears the rows of dq, dk and dv that belong to no sequence, in each of the three that is wanted.
void attention_clear_gradients(const struct attention_problem *p);

// The memory layout of the variants of attention_backward.c, in floats. The number of runs, and which sum each is added to, depend
// only on the problem.
enum { ATTENTION_ONE_PASS, ATTENTION_TWO_PASSES }; // plan->block_k
struct attention_backward_layout {
    int64_t rows;               // of a group, at most
    int64_t num_runs, run_keys; // of a key/value head
    int64_t
        group_runs; // that are added to a sum, one after the other, before it is to those of other groups
    int64_t task_runs; // that a task takes
    int64_t num_sums,
        sum_keys;  // a dq for each run, or each group; one where a task takes all of them,
    bool has_unit; // and one more for a group, which then is not a single addition
    int64_t dq_rows, dq_stride, stats_floats, dq_floats; // dq_rows: whole strips of bf16
    // Rows are divided into spans, each with a dk and a dv; these are added in order. A task takes one span or all.
    int64_t num_spans, span_rows;
    bool has_all_spans;
    int64_t own_rows; // of a dq that is the task's own: whole strips
    int64_t span_keys, dk_stride,
        dv_stride;      // of a span's sums: whole strips of keys, floats of a key
    int64_t dkv_floats; // of all spans' sums, 0 where tasks have all
};
struct attention_backward_layout attention_backward_layout(const struct attention_problem *p,
                                                           const struct tsri_plan *plan,
                                                           int num_threads, bool is_mixed);

// Floats of a tile. is_mixed: enough for products of bf16, and for those of fp32 that replace them.
int64_t attention_backward_tile_floats(const struct attention_problem *p, tsr_isa isa,
                                       int64_t block_m, int64_t block_n, bool is_mixed);

// The other gradients: sinks and bias. dbias needs plan->grain floats for each thread at `threads`.
void attention_grad_sinks(tsr_context *ctx, const struct attention_problem *p,
                          const struct attention_statistics *stats);
void attention_grad_bias(tsr_context *ctx, const struct attention_problem *p,
                         const struct attention_statistics *stats, float *threads,
                         int64_t thread_floats);
int64_t attention_grad_bias_floats(const struct attention_problem *p, int nr);

#endif
