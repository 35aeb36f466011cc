// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul's CUDA kernels, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_MATMUL_PARAMS_H
#define TSRI_MATMUL_PARAMS_H

// A stack of matrices with lines of contiguous elements, `line` elements apart; batch: strides of the batch's
// dimensions.
struct matmul_operand {
    void *data; // 0: absent
    long long line, batch[3];
};

// Which lines of an operand its rows are (steps of k, if groups cut k), in device memory: line lines[i * step] is the i-th. One
// outside of [0, num_lines) counts as zeros.
struct matmul_list_params {
    const int *lines; // 0: line i is line i
    long long step;
    int num_lines;
};

// Groups of rows, in device memory: tessera/matmul_grouped.h. They are the innermost dimension of the batch. With
// offsets, all groups' rows are in one matrix, and tiles_m is an upper bound of the rows of tiles of all groups.
struct matmul_group_params {
    const int *starts; // offsets or counts; 0: no groups
    long long step;    // from one element to the next
    long long bias;    // from one group's bias to the next group's
    long long bias_up; // the same of bias_up
    int are_counts;
    int are_depths; // groups cut k, not m
    struct matmul_list_params of_a, of_b;
};

// Scales of fp8: one for the tensor, or one per 128 of k for each line of a, or for 128 lines of b, at data + mn * line
// number + k * number of the 128 of k. data 0: the scale is 1.
struct matmul_scale {
    const float *data;
    long long mn, k, batch[3];
};

// c = act(alpha a b + bias) [gate(alpha a b_up + bias_up)] + residual [+ c]. Lines of a and b run along k, or along m and n
// (is_mn). Lines of c and residual run along n. A tile is a block of c and, if k is split, a part of k.
struct matmul_params {
    struct matmul_operand a, b, b_up, residual, c;
    const void *bias, *bias_up;
    float *partial; // of splits: (split, batch, [b, b_up], m, n), partial_row floats per row
    long long m, n, k, batch[3], num_batches;
    long long tiles_m, tiles_n, first_tile; // first_tile: the tile of this launch's first block
    long long k_of_split, partial_row;
    int num_splits;
    int group_m; // rows of tiles that are processed together, column by column, for cache reuse
    int a_is_mn, b_is_mn;
    int a_is_vector, b_is_vector; // lines start at multiples of 16 bytes
    int c_is_vector;              // so do lines of c, residual and biases
    int bias_is_f32, bias_up_is_f32, residual_is_f32, c_is_f32, activation, is_accumulating;
    int has_sums; // shared memory has room for the sums of parts of k
    float alpha;
    struct matmul_group_params groups;
    struct matmul_scale a_scale, b_scale, b_up_scale;
    int is_block_scaled, a_is_e5m2, b_is_e5m2; // for fp8 operands
    int is_followed, is_beside;                // two products at once: see matmul_order
};

// A stack of matrices of `lines` x `width` elements, copied line by line into another stack. With source_step, elements
// of a source line are not adjacent, and the copy transposes. The destination is padded with zeros.
struct matmul_copy_params {
    const void *source;
    void *destination;
    long long source_line, source_step, source_batch[3];
    long long destination_line, destination_batch;
    long long lines, width, filled, batch[3], num_batches;
};

// g = dc act'(preact), rows of n elements. Row r is row r % rows_of_batch of matrix r / rows_of_batch; the rows of g
// are contiguous.
struct matmul_gradient_params {
    struct matmul_operand dc, preact;
    void *g;
    long long num_rows, rows_of_batch, n, batch[3];
    int activation, dtype;
    int is_vector; // lines of all three are 16-byte aligned
};

// Sums over groups of rows of n elements, numbered in the same way; out is (groups, n), contiguous.
struct matmul_sums_params {
    struct matmul_operand in;
    void *out;
    long long num_rows, rows_of_batch, n, batch[3], rows_of_group, num_groups;
    int in_dtype, out_dtype, is_vector; // one matrix, rows 16-byte aligned, n a multiple of 4
};

#endif
