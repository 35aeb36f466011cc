// SPDX-License-Identifier: Apache-2.0
// The parameters of the CUDA kernels of the biases' gradients, passed by value. Both compilers read this file: no library headers.
#ifndef TSRI_MOE_BIAS_PARAMS_H
#define TSRI_MOE_BIAS_PARAMS_H

enum {
    MOE_BIAS_PART = 512,       // rows of an expert that are summed at once
    MOE_BIAS_WARPS = 8,        // of a block
    MOE_BIAS_MERGE_COLS = 128, // columns of a block that adds sums of parts
};

// Element i of a list is data[i * stride]; NULL: absent.
struct moe_bias_list {
    const int *data;
    long long stride;
};

// A block sums a span of columns of a part, or adds such sums.
struct moe_bias_params {
    const void *rows;
    void *dbias;
    float *sums;              // (places, sums_stride)
    const float *row_weights; // NULL: each is 1
    struct moe_bias_list offsets, row_tokens;
    long long rows_stride, dbias_stride, weights_stride, sums_stride;
    long long num_units; // blocks' pieces of work
    int num_rows, num_source_rows, cols, num_experts;
    int spans;      // of columns
    int is_aligned; // every row begins and ends at a multiple of 16 bytes
    int dbias_dtype;
};

#endif
