// SPDX-License-Identifier: Apache-2.0
// Decode's own kernels, compiled once per instruction set: a few query rows against keys and values, which are read once from the
// cache.
//
// dtype: of the cache, f32, bf16, f16 or e4m3, whose scale is not part of what these kernels compute.
//
// Keys are given as addresses of cache rows, so pages need no gathering; offset is where the head starts in a row, in bytes. Query
// and output rows are in "lane order": fp32, padded with zeros to attention_lane_floats. For 16-bit caches each chunk of two
// vectors has its even elements before its odd ones, because one instruction each splits a vector of pairs of bf16 into these two.
#ifndef TSRI_ATTENTION_DECODE_KERNELS_H
#define TSRI_ATTENTION_DECODE_KERNELS_H

#include <stdbool.h>
#include <tessera/types.h>

#include "cpu/cpu_isa.h"

// Floats of a row in lane order, whatever the instruction set: a multiple of its chunks.
static inline int64_t attention_lane_floats(int64_t dims) { return (dims + 31) / 32 * 32; }

struct attention_decode_kernels {
    // RMSNorm of a row in place, x = x factor / sqrt(mean(x^2) + eps) (weight + offset); 0 < dims.
    void (*normalise)(float *x, int64_t dims, const float *weight, float offset, float eps,
                      float factor);
    // Rotates the first 2 half elements of a row by the angles of one position, in place.
    void (*rotate)(float *x, const float *cosine, const float *sine, int64_t half,
                   bool is_interleaved);
    // Converts into lane order and back; to_lanes writes the padding.
    void (*to_lanes)(tsr_dtype dtype, const float *x, int64_t dims, float *lanes);
    void (*from_lanes)(tsr_dtype dtype, const float *lanes, int64_t dims, float *x);

    // y = x / scale, rounded to e4m3 with saturation.
    void (*store_e4m3)(const float *x, int64_t n, float scale, uint8_t *y);

    // s[row][j] = q[row] . key j, for num_keys keys. next: rows to prefetch meanwhile, one for each key, which are read after all
    // of these; NULL: none.
    void (*scores)(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *q,
                   int64_t q_stride, const char *const *keys, const char *const *next,
                   int64_t offset, int64_t num_keys, float *s, int64_t s_stride);
    // o[row] += sum of p[row][j] value j over the keys.
    void (*values)(tsr_dtype dtype, int64_t dims, int64_t num_rows, const float *p,
                   int64_t p_stride, const char *const *values, const char *const *next,
                   int64_t offset, int64_t num_keys, float *o, int64_t o_stride);

    // sum += factor x.
    void (*add_scaled)(tsr_dtype dtype, const void *x, int64_t n, float factor, float *sum);
};
TSRI_DECLARE_KERNELS(attention_decode)

#endif
