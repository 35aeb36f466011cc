// SPDX-License-Identifier: Apache-2.0
// The parameters of the CUDA kernels of decode and of merging, passed by value. Read by both compilers: no headers of the system.
#ifndef TSRI_ATTENTION_DECODE_PARAMS_H
#define TSRI_ATTENTION_DECODE_PARAMS_H

#include "ops/attention/attention_params.h"

// Limits of rows, of sequences x key heads, and of key heads, so that what kernels compute from them fits in an int.
#define DECODE_CUDA_MAX_ROWS (1 << 30)
#define DECODE_CUDA_MAX_ITEMS (1 << 24)
#define DECODE_CUDA_MAX_HEADS (1 << 22)

// A chunk of keys is a multiple of the first and at least the second, so that partial results stay small in comparison.
#define DECODE_CHUNK_STEP 64
#define DECODE_CHUNK_LEAST 128
#define DECODE_MOST_MARKED                                                                         \
    64 // chunks of a tile that the block of the last of them may merge: two of a lane

// struct attention_decode_problem in plain types. Lengths come from decode_sequence_at.
struct attention_decode_params {
    struct attention_params a;                // its k and v are the new rows (data 0: absent)
    struct attention_tensor k_cache, v_cache; // strides in bytes; batch: from page to page
    const int *cache_seqlens, *page_table;    // page_table 0: sequence b has page b
    long long cache_seqlens_stride, page_table_stride[2];
    const int *leftpad_k; // 0: keys start in row 0
    long long leftpad_stride;
    long long num_pages, page_size, capacity;
    const unsigned char *tree_mask; // [batch][query][new key]; 0: none
    long long tree_stride[3];
    const float *cos, *sin; // 0: no rotation
    long long cos_stride, sin_stride, num_angles;
    int rotary_dim, is_interleaved;
    struct attention_head_values q_norm,
        k_norm;                  // weights of the norms of heads; head: from column to column
    float norm_eps, norm_offset; // norm_offset is added to weights
    struct attention_head_values k_scale, v_scale; // of key heads, f32, with is_e4m3
    int num_query_parts; // numbers of DTYPE whose sum is an element of a query: 3 if that is not one of DTYPE itself
    int most_keys;
    int is_appending; // the split's blocks append the new rows, as no sequence has more than one tile of queries
    int is_aligned; // rows of the caches move in pieces of 16 bytes, in the kernel of e4m3 and 16 bits of 8
    int is_e4m3; // the caches; else they are of q's dtype
    int dtype;   // of q, in kernels for all dtypes

    // The split. Each of the first num_items blocks takes one item (sequence, chunk, key head). The other blocks take the
    // sequences with more row tiles than chunks, which are not split.
    int num_items, max_chunks, rows_per_tile;
    float *partial, *states; // of chunk and row: partial_stride floats; a reference and a sum
    int partial_stride;
    int num_merged,
        merged_tiles; // rows that the merge goes over: of so many tiles of each sequence and key head
    // If the last block to finish a chunk of a tile merges the chunks (attention_decode_ends.cuh): each finished chunk has `mark`
    // in marks. marks 0: a separate kernel merges.
    unsigned long long *marks, mark;
};

// Parameters of the kernel that counts sequences with bad metadata.
struct attention_decode_check_params {
    struct attention_decode_params p;
    int *num_errors;
};

// Shape: (num_parts, rows of three dimensions, columns). Strides in elements.
struct attention_merge_tensor {
    void *data; // 0: absent
    long long part, stride[3];
    int dtype;
};
struct attention_merge_params {
    struct attention_merge_tensor outs, lses, out, lse;
    long long num_rows, num_parts, dims, shape[3];
    int is_aligned; // four columns move at once
};

#endif
