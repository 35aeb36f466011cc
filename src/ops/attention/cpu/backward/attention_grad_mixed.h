// SPDX-License-Identifier: Apache-2.0
// Backward's tile (attention_grad.h) with its five products of bf16 operands, summed in fp32 (cpu/gemm_bf16.h). Weights and
// gradients of the scores are computed in fp32, then rounded.
#ifndef TSRI_ATTENTION_GRAD_MIXED_H
#define TSRI_ATTENTION_GRAD_MIXED_H

#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/forward/attention_mixed.h"

enum { ATTENTION_GRAD_MIXED_MOST_N = 512 }; // block_n; multiples of 64, block_m of a strip

struct attention_grad_mixed {
    struct attention_tile tile; // s: scores of a strip of rows
    const struct gemm_bf16_kernels *gemm;
    float power, factor; // softmax_scale is their product
    int64_t block_m, block_n;
    int64_t depth, depth_v;                   // head_dim, head_dim_v rounded up to steps
    float *dp;                                // dout v^T, laid out as tile.s
    const struct attention_statistics *stats; // [row]
    float *dk, *dv;                           // [dim][key], of the block's keys
    int64_t key_stride;
    uint16_t *k_cols, *v_cols,
        *k_rows;        // the block's keys: panels of keys, and of dims, times power
    uint16_t *q, *dout; // rows of the tile, q times power
    int64_t q_stride, dout_stride;
    uint16_t *q_cols, *dout_cols; // [dim][row]
    int64_t row_stride;
    uint16_t *p, *ds;  // [panel of keys][pair of rows]
    uint16_t *ds_rows; // [row][key]
    int64_t ds_stride;
    struct attention_block block;
    struct attention_range cols[ATTENTION_MAX_ROWS / ATTENTION_STRIP]; // whole panels a strip sees
};

int64_t attention_grad_mixed_floats(const struct attention_problem *p, int64_t block_m,
                                    int64_t block_n);
void attention_grad_mixed_carve(struct attention_grad_mixed *g, const struct attention_problem *p,
                                tsr_isa isa, const struct gemm_bf16_kernels *gemm, float *memory,
                                int64_t block_m, int64_t block_n);

// Packs keys [first, first + num_keys) of a head. False: something in k is not finite, and these products would spread it to rows
// that do not see it.
bool attention_grad_mixed_load_keys(struct attention_grad_mixed *g, int64_t batch, int64_t kv_head,
                                    int64_t first, int64_t num_keys);

// Clears dk and dv of the block's whole panels.
void attention_grad_mixed_start(const struct attention_grad_mixed *g);

// Where dq goes. It has a row for each row that is added, rounded up to whole strips. A run is run_keys keys of the sequence. Each
// sum_keys keys, one run or several, have one sum; the next sum lies `next` floats behind. If other runs have begun a sum, a run
// is added up in `part` first: one strip, zero where no product writes.
struct attention_grad_mixed_dq {
    float *sum; // the sum of the block's first key; NULL: dq is not wanted
    float *part;
    int64_t stride, run_keys, sum_keys, next;
};

// Adds rows [first, first + num_rows) of the group to dk, dv and dq. The caller calls gemm's open before and close after.
void attention_grad_mixed_add(struct attention_grad_mixed *g, int64_t first, int64_t num_rows,
                              const struct attention_statistics *stats,
                              const struct attention_grad_mixed_dq *dq);

// attention_grad_sum_block over the scores of these products. The caller calls gemm's open before and close after.
void attention_grad_mixed_sum_block(struct attention_grad_mixed *g, int64_t first, int64_t num_rows,
                                    const struct attention_statistics *stats,
                                    struct attention_grad_sum *sums);

// Transposes dk and dv into rows. Writes whole blocks of 16 rows and 16 dims.
void attention_grad_mixed_finish(const struct attention_grad_mixed *g, float *dk, int64_t dk_stride,
                                 float *dv, int64_t dv_stride);

#endif
