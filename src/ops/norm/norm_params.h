// SPDX-License-Identifier: Apache-2.0
// What the CUDA kernels of the norms get, by value. Read by both compilers: no headers, no typedefs. A pointer is NULL
// where the tensor is absent; element (r, c) is at r stride + c.
#ifndef TSRI_NORM_PARAMS_H
#define TSRI_NORM_PARAMS_H

// Backward: rounding to f32 takes of a mean k standard deviations from 0 up to 2^-24 k of one. Where k is beyond this, h of a
// row is less its own mean.
#define NORM_FAR_MEAN 64.0f

struct norm_forward_params {
    const void *x, *residual, *weight, *bias;
    void *y, *residual_out;
    float *mean, *rstd;
    long long x_stride, residual_stride, y_stride, residual_out_stride, rows;
    long long early_rows; // the first ones, of blocks that stand ready: fetched while those wait
    long long long_rows; // the first ones: those of the first blocks, of more steps than the others
    double eps, inverse_cols;
    int long_blocks;
    int cols;
    int is_rmsnorm, weight_is_f32; // bias is as weight
    int is_aligned;                // addresses, row strides and cols are multiples of 16 bytes
    int stages;                    // of the queue of aligned rows to come
    int slab;                      // columns of a block, where a cluster shares the row
};

struct norm_backward_params {
    const void *x, *dy, *dresidual_out, *weight;
    const float *mean, *rstd;
    float *
        rest; // (rows): of mean, in h (norm_rest.cu); NULL where the kernel finds it itself, and for rmsnorm
    void *dx;
    float *
        partial; // (blocks, 2, cols): sums for dweight, then for dbias, of each block; NULL: not wanted
    long long x_stride, dy_stride, dresidual_out_stride, dx_stride, rows;
    int cols;
    int dtype; // of x and dy
    int is_rmsnorm, weight_is_f32, is_aligned;
    int stages; // of the queue of rows to come
    int slab;   // columns of a block, where a cluster shares the row
};

struct norm_reduce_params {
    const float *partial; // (blocks, 2, cols)
    void *dweight, *dbias;
    int blocks, cols;
    int dweight_dtype, dbias_dtype;
};

#endif
