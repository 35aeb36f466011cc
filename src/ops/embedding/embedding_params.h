// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of the embedding get, by value. Read by both compilers: no headers of the library's.
#ifndef TSRI_EMBEDDING_PARAMS_H
#define TSRI_EMBEDDING_PARAMS_H

#include "cuda/device/elements_params.h"

enum { EMBEDDING_GATHER_AT_ONCE = 4 };

// Rows as elements of so many bytes, 16, 8, 4 or 2, as all addresses are multiples of.
struct embedding_gather_params {
    struct elements_grid grid;
    struct elements_view y, weight;
    const int *ids;
    long long ids_stride, vocab;
    int bytes;
};

// ---- Backward: tokens sorted by id, then rows summed -----------------------------------------------

enum {
    EMBEDDING_THREADS = 256,
    EMBEDDING_MAX_DIGITS = 512, // of a pass of the sort
    EMBEDDING_SEGMENT = 32,     // tokens that one warp adds up
    EMBEDDING_ROWS = 8,         // rows that one warp looks after
    EMBEDDING_AHEAD = 2,        // tokens whose rows are on their way at once
    EMBEDDING_GROUPS = 2,       // of 16 bytes, of a row, in a thread
    EMBEDDING_JOIN_COLS = 128,  // of a block
};

// One pass of a stable sort by digit (key >> shift) & (digits - 1). A block has `chunk` tokens. Keys come from the ids in the
// first pass: vocab for those that have no row.
struct embedding_sort_params {
    const int *ids; // NULL: keys_in, tokens_in
    long long ids_stride;
    const int *keys_in, *tokens_in;
    int *keys_out, *tokens_out;
    int *counts; // (blocks, digits)
    int tokens, vocab, padding_id, chunk, blocks, digits, shift;
};

// keys and tokens: sorted. The tokens of row v are token[starts[v]] ... token[starts[v + 1] - 1], ascending.
struct embedding_sum_params {
    const int *keys, *tokens;
    int *starts;    // (vocab + 1)
    float *partial; // (2 tiles, hidden): sums of a segment of a row of more tokens than one
    const void *dy;
    void *dweight;
    long long dy_stride, dweight_stride;
    long long num_warps; // that have something to do
    int num_tokens, vocab, hidden;
    int tiles, chunks; // of EMBEDDING_SEGMENT tokens; of columns of a warp
    int dweight_dtype; // and whether that is f32, where dy's is known
    int is_accumulating, dweight_is_f32, is_aligned;
};

#endif
