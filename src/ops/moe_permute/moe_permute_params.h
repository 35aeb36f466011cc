// SPDX-License-Identifier: Apache-2.0
// The parameters of the permutation's CUDA kernels, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_MOE_PERMUTE_PARAMS_H
#define TSRI_MOE_PERMUTE_PARAMS_H

enum {
    MOE_PERMUTE_THREADS = 512, // of a block, at most
    MOE_PERMUTE_SHARED = 1024, // experts whose counters fit into shared memory
};

// A block has `chunk` assignments, in the order of t, then of k; its warps have equal parts of them. Element (t, k) of ids is
// at t * ids_stride + k; weights and token_rows alike.
struct moe_permute_params {
    const int *ids;
    const float *weights;
    int *counts; // (blocks, num_experts), of each block's assignments; not used with one block
    int *
        tables; // (blocks, warps + 1, num_experts): counters, where they do not fit into shared memory
    int *offsets, *row_tokens, *token_rows, *tokens_per_expert, *num_dropped;
    float *row_weights; // each output but offsets may be NULL
    long long ids_stride, weights_stride, token_rows_stride, num_rows;
    int num_assignments, top_k, num_experts, capacity;
    int blocks, chunk;
};

#endif
