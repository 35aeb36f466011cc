// SPDX-License-Identifier: Apache-2.0
// The parameters of the norms' CUDA kernels, passed by value. Both compilers read this file: no library headers, no typedefs.
// Pointers of absent tensors are NULL; element (r, c) is at r * stride + c.
#ifndef TSRI_NORM_PARAMS_H
#define TSRI_NORM_PARAMS_H

#include "cuda/device/elements_params.h"

// Backward: if a mean is k standard deviations from 0, rounding it to f32 costs up to 2^-24 k of one. If k is larger
// than this, a row's h is corrected by its own mean.
#define NORM_FAR_MEAN 64.0f

struct norm_forward_params {
    const void *x, *residual, *weight, *bias;
    void *y, *residual_out;
    float *mean, *rstd;
    long long x_stride, residual_stride, y_stride, residual_out_stride, rows;
    long long early_rows; // first rows of blocks that start early: prefetched while the blocks wait
    long long long_rows;  // first rows: those of the long blocks, with more steps
    double eps, inverse_cols;
    int long_blocks;
    int cols;
    int is_rmsnorm, weight_is_f32; // bias has the dtype of weight
    int stages;                    // of the queue
    int slab;                      // columns per block if a cluster shares the row
    int chunk, stage_bytes;        // staged: columns of a stage, and its bytes
};

struct norm_backward_params {
    const void *x, *dy, *dresidual_out, *weight;
    const float *mean, *rstd;
    void *dx;
    float *partial; // (blocks, 2, cols): each block's sums for dweight, dbias; NULL: not wanted
    long long x_stride, dy_stride, dresidual_out_stride, dx_stride, rows;
    int cols;
    int is_rmsnorm, weight_is_f32;
    int stages; // of the queue of rows
    int slab;   // columns per block if a cluster shares the row
    int num_tensors,
        stage_bytes; // staged: 2, or 3 with dresidual_out; bytes of a row of one of them
};

// ---- Tensors of several dtypes, rows of two strides ---------------------------------------------------

// Rows of a tensor, of one stride or two (cuda/device/row_groups.cuh). data is NULL if the tensor is absent.
struct norm_view {
    struct elements_view rows;
    int dtype;
};

struct norm_mixed_params {
    struct norm_view x, residual, residual_out, y; // forward
    struct norm_view dy, dresidual_out, dx;        // backward
    struct norm_view weight, bias;                 // of one row
    float weight_offset;
    int is_aligned; // four elements of every tensor move at once
    // Forward: the fields that no tensor has.
    struct norm_forward_params forward;
    // Backward.
    const float *mean, *rstd;
    float *
        rest; // (rows), of norm_rest.cu: the rounding error of the mean; NULL: rmsnorm, or found in the kernel
    float
        *partial; // (blocks, 2, cols): each block's sums for dweight, dbias; NULL: not wanted here
    long long rows;
    int cols, is_rmsnorm;
};

struct norm_reduce_params {
    const float *partial; // (blocks, 2, cols)
    void *dweight, *dbias;
    int blocks, cols;
    int dweight_dtype, dbias_dtype;
};

#endif
