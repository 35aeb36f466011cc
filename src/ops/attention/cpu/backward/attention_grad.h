// SPDX-License-Identifier: Apache-2.0
// Backward, one tile of queries against one block of keys: the weights again from lse, the gradient of
// the scores, and the three products that spread it. As in forward, variants are loops over these.
#ifndef TSRI_ATTENTION_GRAD_H
#define TSRI_ATTENTION_GRAD_H

#include "ops/attention/cpu/attention_tile.h"

// What backward knows of a row beside its scores. p = exp(s - lse - lse_low).
struct attention_statistics {
    float delta; // dout . out
    float lse, lse_low;
};

struct attention_grad {
    struct attention_tile tile; // q: scaled; s: weights (after dropout); o: rows of dout
    float *ds;                  // [rows][s_stride]: dout v^T, then the gradient of the scores
    float *slope;               // [block_n]: of the softcap, one row at a time
    const struct attention_statistics *stats; // [rows]
    float *k_panels, *v_panels;               // keys of the block along dims: of q k^T and dout v^T
    float *k_rows; // keys of the block, times softmax_scale, along keys: of ds k
    struct attention_block block;
    bool is_before_cap; // ds is that of the bias: the softcap's slope stays out
    bool is_exact;      // something is not finite: no product may touch what its row does not see
};

// Floats of the statistics of some rows.
int64_t attention_statistics_floats(int64_t rows);
int64_t attention_grad_floats(const struct attention_problem *p, int64_t block_m, int64_t block_n,
                              int nr);
void attention_grad_carve(struct attention_grad *g, const struct attention_problem *p, tsr_isa isa,
                          float *memory, int64_t block_m, int64_t block_n);

// Statistics of a row of some heads, with lse as it was given; true when something in q or dout is not finite in one of them.
bool attention_grad_statistics(const struct attention_problem *p,
                               const struct attention_kernels *kernels, int64_t batch, int64_t row,
                               int64_t head, int64_t num_heads, struct attention_statistics *stats);

// One f32 cannot hold a large lse: -1e9 + log n rounds to -1e9, and every weight would be 1 in place of 1 / n. So the rows of
// such an lse are summed once more, over the scores as this variant computes them: lse becomes their largest, lse_low
// the logarithm of the sum beside it.
bool attention_grad_is_coarse(const struct attention_problem *p, float lse);

// The sum of a row so far.
struct attention_grad_sum {
    float max;
    double sum;
};
// Empty sums, but for sinks, of the tile's rows; false where none is coarse.
bool attention_grad_start_sums(const struct attention_tile *t,
                               const struct attention_statistics *stats,
                               struct attention_grad_sum *sums);
// Adds n scores of row r from key `first` on, which are changed.
void attention_grad_sum_scores(const struct attention_tile *t, int64_t r, int64_t first, int64_t n,
                               float *s, struct attention_grad_sum *sum);
// Takes the sum where rounding explains how far lse is from it. An lse that is farther is believed: it may be that of more
// keys than this call has.
void attention_grad_finish_sums(const struct attention_problem *p, int64_t num_rows,
                                const struct attention_grad_sum *sums,
                                struct attention_statistics *stats);

// Adds the block's keys to the sums of those of rows [first, first + num_rows) whose lse is coarse.
void attention_grad_sum_block(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_rows,
                              const struct attention_statistics *stats,
                              struct attention_grad_sum *sums);

// Packs keys [first, first + num_keys) of a head. with_rows: k_rows too.
void attention_grad_load_keys(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_keys, bool with_rows);

// Rows [first, first + num_rows) of the group; false when none of them sees a key of the block.
bool attention_grad_open(struct attention_grad *g, int64_t batch, int64_t kv_head, int64_t first,
                         int64_t num_rows, const struct attention_statistics *stats);

// Weights and gradient of the scores, 0 where a row sees nothing.
void attention_grad_scores(struct attention_grad *g);
void attention_grad_weights(struct attention_grad *g); // the part between the two products and this

// dv += s^T dout, dk += ds^T q, dq += ds k, of keys [begin, end) of the block.
void attention_grad_keys(const struct attention_grad *g, float *dk, int64_t dk_stride, float *dv,
                         int64_t dv_stride);
void attention_grad_queries(const struct attention_grad *g, int64_t begin, int64_t end, float *dq,
                            int64_t dq_stride);

// Rows of q (of k) that belong to no sequence: 0 in each of dq (dk and dv) that is wanted.
void attention_clear_gradients(const struct attention_problem *p);

// Where the variants of attention_backward.c keep what, in floats; how many runs there are and what they add to is the
// problem's alone.
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
    // Rows are taken in spans, each with a dk and a dv that are added in their order; a task takes one span or all.
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

// Floats of a tile; is_mixed: with products of bf16, or in fp32 where these will not do.
int64_t attention_backward_tile_floats(const struct attention_problem *p, tsr_isa isa,
                                       int64_t block_m, int64_t block_n, bool is_mixed);

// What stands beside dq, dk and dv; dbias needs plan->grain floats for each thread at `threads`.
void attention_grad_sinks(tsr_context *ctx, const struct attention_problem *p,
                          const struct attention_statistics *stats);
void attention_grad_bias(tsr_context *ctx, const struct attention_problem *p,
                         const struct attention_statistics *stats, float *threads,
                         int64_t thread_floats);
int64_t attention_grad_bias_floats(const struct attention_problem *p, int nr);

#endif
