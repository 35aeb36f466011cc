// SPDX-License-Identifier: Apache-2.0
// The parameters of the CUDA kernels of attention's backward, passed by value. Read by both compilers: no headers, no typedefs.
//
// The statistics of a row are lse and delta = sum_c dout_c out_c. They lie in the workspace in fp32, ready for tiles: the rows of
// a head start at a multiple of ATTENTION_STATISTIC_ROWS and are filled up to one with lse = inf, delta = 0, so that weights are
// 0. A row that saw no key, lse = -inf, is stored so too. With a bias, weights are exp(s - lse - lse_low): lse_low, in log2, is 0
// unless lse is large (attention_backward_lse.cu).
#ifndef TSRI_ATTENTION_BACKWARD_PARAMS_H
#define TSRI_ATTENTION_BACKWARD_PARAMS_H

#include "ops/attention/attention_params.h"

#define ATTENTION_STATISTIC_ROWS 128
#define ATTENTION_STATISTIC_BLOCK 16 // rows of all heads that one block computes at a time

// Tiles of flash2's kernel of keys (is_of_keys 1) and of queries (0), for rows of d columns: warps of a block, groups of 16 rows
// that a warp owns, rows that a block owns, rows of a passing tile. They are as large as registers allow; two groups halve the
// reads from shared memory per product. Two blocks of four warps (of queries in fp32 without features: three) share a
// multiprocessor, so that one computes exponentials while another multiplies. fp32 has rows of up to 128 columns.
#define FLASH2_WARPS(d, is_f32) (FLASH2_HAS_ONE(d, is_f32) ? 8 : 4)
#define FLASH2_GROUPS(is_of_keys, d, is_f32)                                                       \
    (!(is_f32) && ((d) == 64 || ((d) == 128 && !(is_of_keys))) ? 2 : 1)
#define FLASH2_OWNED(is_of_keys, d, is_f32)                                                        \
    (16 * FLASH2_WARPS(d, is_f32) * FLASH2_GROUPS(is_of_keys, d, is_f32))
#define FLASH2_PASSING(is_of_keys, d, is_f32) (!(is_f32) && (d) == 128 && (is_of_keys) ? 64 : 32)
// NARROW: if these tiles exceed a block's shared memory, four warps of one group, and half the passing rows.
#define FLASH2_NARROW_WARPS 4
#define FLASH2_NARROW_PASSING(is_of_keys, d, is_f32) (FLASH2_PASSING(is_of_keys, d, is_f32) / 2)
// Whether a block of keys has registers for only one of dk and dv.
#define FLASH2_HAS_ONE(d, is_f32) ((d) == 256 || ((d) == 128 && (is_f32)))

// flash3: turns[0] counts the tasks that were begun. The turns of rows begin one cache line later.
#define FLASH3_TURNS_AT 32
#define FLASH3_TURN_ROWS 64

struct attention_backward_params {
    struct attention_params p;
    float *lse, *delta;       // statistics
    float *lse_low;           // with a bias; otherwise 0
    long long statistic_rows; // of a head; packed: of all sequences
    long long num_statistics; // of all heads
    long long num_tasks;      // that the blocks go through
    int num_tiles;            // of a head: of queries, keys or dbias, depending on the kernel
    int dtype;                // in kernels for all dtypes: of q, k, v, out and their gradients;
    int bias_dtype, slopes_dtype, sinks_dtype; // may be fp32 too
    int is_vector;                             // rows start at multiples of 16 bytes
    float *weights, *grads;                    // naive: [batch][head][seqlen_q][seqlen_k]
    int is_of_keys;                            // naive: dk and dv, not dq
    int *turns; // flash3: FLASH3_TURNS_AT numbers, then one for every 64 rows of statistics; else 0
};

#endif
