// SPDX-License-Identifier: Apache-2.0
// The parameters of attention_flash3_sm90.cu, passed by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_FLASH3_PARAMS_H
#define TSRI_ATTENTION_FLASH3_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/attention/attention_params.h"

// A map's dimensions are (column, row, head, batch, 1); packed sequences are one batch. head (batch) is 0 if all heads (batches)
// share one, which the map then has once; otherwise 1.
struct attention_flash3_tensor {
    struct tensor_map map;
    int head, batch;
};

// cuda-few: a tile's rows are `queries` queries, one after the other, each with all heads of a key head. The map of q has
// dimensions (column, head of the group, row, key head, batch). The keys that a tile sees are cut into num_splits runs, one task
// each. If num_splits > 1, a task writes its output, not yet divided, and its rows' maxima (in log2) and sums to memory: block_m
// rows of `dims` columns. attention_few_merge.cu merges them.
struct attention_few {
    float *partial, *states;
    int queries, num_splits, block_m, dims;
};

struct attention_few_merge_params {
    struct attention_params p;
    struct attention_few few;
    int num_tiles, num_rows, dtype; // num_rows: rows in use of a tile
};

struct attention_flash3_params {
    struct attention_flash3_tensor q, k, v;
    struct attention_flash3_tensor bias; // if terms include it: columns are keys, rows are queries
    struct attention_forward_params forward;
    float softcap,
        to_softcap; // log2 e softcap, and what takes a product to the exponent of e^(2 score / softcap), or 0
    unsigned num_rounds;      // of tasks of a block
    int is_paired;            // a block alternates long and short tasks of two heads
    int is_ragged;            // memory behind a sequence's keys may hold other rows
    float to_x;               // from a product to x = score / softcap, or 0
    float cap[6];             // log2 e softcap tanh x / x for small x, in powers of x^2
    float unit;               // factor to log2: of products; with softcap, of scores in log2
    float to_slope;           // factor from a slope to such units
    int bias_rows;            // of a box of the bias; 1: all queries share one row
    struct attention_few few; // of cuda-few
};

#endif
