// SPDX-License-Identifier: Apache-2.0
// What attention_flash3_sm90.cu gets, by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_FLASH3_PARAMS_H
#define TSRI_ATTENTION_FLASH3_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/attention/attention_params.h"

// A map's dimensions are (column, row, head, batch, 1); packed sequences are one batch. Where all heads or batches are one,
// the map has one, and head or batch is 0; else it is 1.
struct attention_flash3_tensor {
    struct tensor_map map;
    int head, batch;
};

// cuda-few: rows of a tile are `queries` queries, one after the other, each with all heads of a key head, whose map of q has
// dimensions (column, head of the group, row, key head, batch). The keys that a tile sees are cut into num_splits runs, a task
// each; num_splits > 1: what it has of the output, not yet divided, and the maxima (in log2) and sums of rows go to memory,
// block_m rows of `dims` columns a task, and are put together by attention_few_merge.cu.
struct attention_few {
    float *partial, *states;
    int queries, num_splits, block_m, dims;
};

struct attention_few_merge_params {
    struct attention_params p;
    struct attention_few few;
    int num_tiles, num_rows, dtype; // num_rows: of a tile, that there are
};

struct attention_flash3_params {
    struct attention_flash3_tensor q, k, v;
    struct attention_flash3_tensor bias; // of terms that have it: columns are keys, rows queries
    struct attention_forward_params forward;
    float softcap,
        to_softcap; // log2 e softcap, and what takes a product to the exponent of e^(2 score / softcap), or 0
    unsigned num_rounds;      // of tasks of a block
    int is_paired;            // a block does a long and a short task in turns, of two heads
    int is_ragged;            // memory behind the keys of a sequence may hold other rows
    float to_x;               // what takes a product to x = score / softcap, or 0
    float cap[6];             // log2 e softcap tanh x / x of small x, as a polynomial of x^2
    float unit;               // log2 of the weight of 1: of products, with softcap of log2 e scores
    float to_slope;           // what takes a slope to such units
    int bias_rows;            // that a box of the bias has: 1 where it is the same for all queries
    struct attention_few few; // of cuda-few
};

#endif
