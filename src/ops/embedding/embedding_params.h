// SPDX-License-Identifier: Apache-2.0
// The parameters of the embedding's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_EMBEDDING_PARAMS_H
#define TSRI_EMBEDDING_PARAMS_H

#include "cuda/device/elements_params.h"

enum { EMBEDDING_GATHER_AT_ONCE = 4 };

// Rows as elements of `bytes` bytes (16, 8, 4 or 2), of which all addresses are multiples.
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
    EMBEDDING_MAX_DIGITS = 512, // per pass of the sort
    EMBEDDING_SEGMENT = 32,     // tokens that one warp adds
    EMBEDDING_ROWS = 8,         // rows per warp
    EMBEDDING_AHEAD = 2,        // tokens whose rows are loaded at once
    EMBEDDING_GROUPS = 2,       // 16-byte groups of a row per thread
    EMBEDDING_JOIN_COLS = 128,  // columns per block
};

// One pass of a stable sort by the digit (key >> shift) & (digits - 1). A block has `chunk` tokens. The first pass
// makes keys from the ids; the key of an id without a row is vocab.
struct embedding_sort_params {
    const int *ids; // NULL: uses keys_in and tokens_in
    long long ids_stride;
    const int *keys_in, *tokens_in;
    int *keys_out, *tokens_out;
    int *counts; // (blocks, digits)
    int tokens, vocab, padding_id, chunk, blocks, digits, shift;
};

// keys and tokens are sorted. The tokens of row v are tokens[starts[v]] ... tokens[starts[v + 1] - 1], ascending.
struct embedding_sum_params {
    const int *keys, *tokens;
    int *starts;    // (vocab + 1)
    float *partial; // (2 tiles, hidden): sums of segments, for rows with more than one
    const void *dy;
    void *dweight;
    long long dy_stride, dweight_stride;
    long long num_warps; // warps with work
    int num_tokens, vocab, hidden;
    int tiles, chunks; // of EMBEDDING_SEGMENT tokens; of a warp's columns
    int dweight_dtype; // dweight's dtype, and whether it is f32, for kernels that know dy's dtype
    int is_accumulating, dweight_is_f32, is_aligned;
};

#endif
