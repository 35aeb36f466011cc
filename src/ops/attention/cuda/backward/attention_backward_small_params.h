// SPDX-License-Identifier: Apache-2.0
// The parameters of cuda-small's backward, passed by value, and the layout of its blocks' shared memory. Read by both compilers:
// no headers but these, no typedefs. The struct is short and only for this launch: in a call of microseconds the copy of the
// parameters counts.
#ifndef TSRI_ATTENTION_BACKWARD_SMALL_PARAMS_H
#define TSRI_ATTENTION_BACKWARD_SMALL_PARAMS_H

#include "ops/attention/attention_params.h"

#define SMALL_KEYS(units) (64 * (units))          // of a block
#define SMALL_THREADS(units) (256 * (int)(units)) // two warps for 16 keys
#define SMALL_SLAB 64                             // queries whose gradients are stored together
#define SMALL_ROW_BYTES 128                       // of a row in shared memory, of 64 columns

// Bytes of shared memory: queries and dout (later the partners' sums), keys of the whole head, values, gradients of scores of the
// block's keys (first out), gradients of the other blocks' keys for the block's queries, lse and delta, a barrier. dims: 64 or
// 128; a tile holds the first 64 columns of all rows, then the others. rows: queries, in whole slabs. blocks: of the cluster.
// queries: that one of its blocks owns.
#define SMALL_TILE_BYTES(rows, dims) ((rows) * ((dims) / 64 * SMALL_ROW_BYTES))
#define SMALL_HEAD_BYTES(dims, rows, units)                                                        \
    (2 * SMALL_TILE_BYTES(rows, dims) > SMALL_KEYS(units) * (dims)*8                               \
         ? 2 * SMALL_TILE_BYTES(rows, dims)                                                        \
         : SMALL_KEYS(units) * (dims)*8)
#define SMALL_KEYS_AT(dims, rows, units) SMALL_HEAD_BYTES(dims, rows, units)
#define SMALL_VALUES_AT(dims, rows, units, blocks)                                                 \
    (SMALL_KEYS_AT(dims, rows, units) + SMALL_TILE_BYTES((blocks)*SMALL_KEYS(units), dims))
#define SMALL_GRADS_AT(dims, rows, units, blocks)                                                  \
    (SMALL_VALUES_AT(dims, rows, units, blocks) + SMALL_TILE_BYTES(SMALL_KEYS(units), dims))
#define SMALL_SLAB_BYTES(units) (SMALL_KEYS(units) * SMALL_ROW_BYTES)
#define SMALL_OTHERS_AT(dims, rows, units, blocks)                                                 \
    (SMALL_GRADS_AT(dims, rows, units, blocks) +                                                   \
     (rows) / SMALL_SLAB * ((dims) / 64 * SMALL_SLAB_BYTES(units)))
#define SMALL_ROWS_AT(dims, rows, units, blocks, queries)                                          \
    (SMALL_OTHERS_AT(dims, rows, units, blocks) +                                                  \
     ((blocks)-1) * ((queries) / SMALL_SLAB) * SMALL_SLAB_BYTES(units))
#define SMALL_BARRIER_AT(dims, rows, units, blocks, queries)                                       \
    (SMALL_ROWS_AT(dims, rows, units, blocks, queries) + 2 * (rows)*4)
#define SMALL_BYTES(dims, rows, units, blocks, queries)                                            \
    (SMALL_BARRIER_AT(dims, rows, units, blocks, queries) + 16)

struct attention_backward_small_params {
    struct attention_tensor q, k, v, out, dout, dq, dk, dv;
    const float *lse;
    long long lse_batch, lse_head;
    int num_heads, seqlen_q, seqlen_k, head_dim, head_dim_v;
    int shift, window_left,
        window_right;          // relative to the diagonal j = i + shift; ATTENTION_NO_WINDOW: none
    int has_hidden;            // mask or windows: some pairs may be hidden
    int blocks, queries, rows; // see above
    float softmax_scale;
};

#endif
