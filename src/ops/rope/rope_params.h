// SPDX-License-Identifier: Apache-2.0
// The parameters of RoPE's CUDA kernels, passed by value. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_ROPE_PARAMS_H
#define TSRI_ROPE_PARAMS_H

enum { ROPE_THREADS = 256, ROPE_HEADS = 4, ROPE_TABLE_THREADS = 128, ROPE_TABLE_RUN = 64 };

// A thread rotates two runs of `width` elements in ROPE_HEADS heads of one token, head_slots apart. A head has `pairs`
// threads that rotate and `rests` threads that copy.
struct rope_params {
    const void *x;
    void *y;
    long long x_stride[3], y_stride[3]; // batch, seqlen, num_heads
    const float *cos, *sin;             // (num_positions, rotary_dim / 2)
    long long cos_stride, sin_stride, num_positions;
    const int *positions; // NULL: the index in the sequence
    long long positions_stride[2];
    long long threads, seqlen;
    int num_heads, head_slots, head_dim, rotary_dim;
    int width, pairs, rests;
    int is_interleaved;
    float sign; // -1 in backward
};

// Each thread fills ROPE_TABLE_RUN positions of one column.
struct rope_table_params {
    float *cos, *sin;
    long long cos_stride, sin_stride, num_positions, threads;
    const float *inv_freq; // NULL: computed from base
    double base, attention_factor;
    double factor, low_freq_factor, high_freq_factor, original_max_position;
    int has_scaling;
    int half;
};

#endif
