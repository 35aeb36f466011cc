// SPDX-License-Identifier: Apache-2.0
// The parameters of backward's kernels for Hopper, passed by value. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_PARAMS_H
#define TSRI_ATTENTION_BACKWARD_FLASH3_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/attention/cuda/backward/attention_backward_params.h"

// Keys that a block owns, and queries of a passing tile, for heads of d columns. Threads: one warpgroup that copies, two that
// multiply.
#define FLASH3_OWNED 128
#define FLASH3_PASSING(d) ((d) == 64 ? 128 : 64)
#define FLASH3_THREADS 384
#define FLASH3_STAGES 2

// AHEAD is the form for short sequences: the next task's tiles are copied during the current task, and the last block that adds to
// dq finishes it.
// Shared memory: tiles of keys (two with AHEAD), values, stages of queries and of dout, two tiles of gradients of scores, dq in
// fp32, then stages of statistics, marks of keys, barriers and tasks. With two tiles of keys, or with a bias, this is all that a
// block may have.
#define FLASH3_KEY_STAGES(is_ahead) ((is_ahead) ? 2 : 1)
#define FLASH3_ROWS_BYTES(rows, d) ((rows) * (d)*2)
#define FLASH3_TILES_BYTES(d, key_stages)                                                          \
    ((1 + (key_stages)) * FLASH3_ROWS_BYTES(FLASH3_OWNED, d) +                                     \
     2 * FLASH3_STAGES * FLASH3_ROWS_BYTES(FLASH3_PASSING(d), d) +                                 \
     2 * FLASH3_OWNED * FLASH3_PASSING(d) * 2 + FLASH3_PASSING(d) * (d)*4)
#define FLASH3_DEEP_PASSING 64
#define FLASH3_DEEP_SHARED_BYTES 231424
#define FLASH3_SHARED_BYTES(d, key_stages)                                                         \
    (FLASH3_TILES_BYTES(d, key_stages) + ((key_stages) == 2 && (d) == 128 ? 3072 : 4096))
// With a bias: the bias of the passing queries, in as many stages as fit. This is all that a block may have, with no room to align
// the start: it is a multiple of 1024 already, as these kernels have no other shared memory.
#define FLASH3_BIAS_STAGES(d, is_f32) ((d) == 64 || (is_f32) ? 1 : 2)
#define FLASH3_BIAS_BYTES(d, is_f32) (FLASH3_PASSING(d) * FLASH3_OWNED * ((is_f32) ? 4 : 2))
#define FLASH3_BIAS_SHARED_BYTES 232448
// The kernel of dbias: stages of queries, keys, dout and values, the bias, barriers.
#define FLASH3_DBIAS_STAGES(d) ((d) == 64 ? 2 : 1)
#define FLASH3_ROW_KEYS 32 // keys of a block, if dbias has one row for all queries
#define FLASH3_DBIAS_SHARED_BYTES(d, is_f32)                                                       \
    (4 * FLASH3_DBIAS_STAGES(d) * FLASH3_ROWS_BYTES(FLASH3_OWNED, d) +                             \
     FLASH3_OWNED * FLASH3_OWNED * ((is_f32) ? 4 : 2) + 128)

struct attention_backward_maps {
    struct tensor_map q, k, v, dout;
};

// Heads of 192 with values of 128 in one kernel: keys, values, stages of queries and of dout, one tile of gradients of scores, dq,
// then the rest as above. This is all that a block may have, as with a bias.
#define FLASH3_WIDE_VALUES 128
#define FLASH3_WIDE_SHARED_BYTES 232448

// Bias and dbias as the copy engine sees them: columns are keys, rows are queries. head (batch) is 0 if all heads (batches) share
// one, otherwise 1.
struct attention_flash3_bias {
    struct tensor_map map, dbias;
    int head, batch, rows; // rows: of a box; 1: all queries share one row
    int has_dbias;         // and each of its elements is one gradient
    float *
        sums; // of the gradients of all queries, where dbias has one row for them: of each batch, head and key; else 0
};

// Sums of dq lie in tiles of FLASH3_PASSING queries, one tile of a head after the other, with tile_dims floats for each row of the
// statistics, in the order in which threads hold them.
struct attention_backward_flash3_params {
    struct attention_backward_maps maps;
    struct attention_backward_params b; // num_tiles: of keys, num_tasks: those of all key heads
    float *dq;                          // sums
    float scale_log2;                   // softmax_scale x log2 e
    int section;                        // key heads whose tiles alternate
    int tile_dims;
    float softcap,
        to_softcap; // log2 e softcap, and what takes a product to the exponent of e^(2 score / softcap)
    struct tensor_map final_dq; // with AHEAD: dq, stored in tiles
    struct attention_flash3_bias bias;
};

// Heads above 128: maps with boxes of owned rows and of passing rows; the numbers of blocks for dv, for dk, for dq.
struct attention_backward_deep_params {
    struct attention_backward_maps owned, passing;
    struct attention_backward_params b; // num_tiles: of keys
    float scale_log2;
    int section, num_query_tiles;
    unsigned num_blocks[3];
};

#endif
