// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ROPE_H
#define TESSERA_ROPE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Frequency scaling of Llama 3.1: wavelengths below original_max_position / high_freq_factor stay,
// those above original_max_position / low_freq_factor grow by factor, and between the two the
// frequency is interpolated linearly. All fields are positive and finite, high_freq_factor above
// low_freq_factor. Llama 3.1 has 8, 1, 4, 8192.
typedef struct tsr_rope_scaling {
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    double original_max_position;
} tsr_rope_scaling;

// cos[p, i] = attention_factor cos(p f_i), sin[p, i] = attention_factor sin(p f_i), with
// f_i = base^(-2i / rotary_dim), or inv_freq[i] where that is given, then scaled.
//
// Shapes    cos, sin: (num_positions, rotary_dim / 2), so rotary_dim is even.
//           inv_freq: (rotary_dim / 2).
// Strides   last dimension contiguous; row strides at least rotary_dim / 2.
// Dtypes    f32; all f64 on the "reference" variant.
// base      10000 unless has_base; positive and finite.
// inv_freq  any values, zero and negative ones too. A frequency that is not finite, here or from a
//           base next to 0, gives NaN in its column, at position 0 too.
// attention_factor  YaRN's factor on both tables; 0 is 1.
// Aliasing  none: cos, sin and inv_freq must not overlap.
// Numerics  frequencies, angles, cosines and sines are computed in double, so position 1,000,000 is as
//           accurate as position 1: error 2^-24 |value| (the rounding to f32) + 2^-50 (64 + p f_i).
//           Bitwise repeatable for any number of threads.
// CUDA      f32, the same bound.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Su et al.: RoFormer, arXiv:2104.09864. Scaling: Llama 3.1, arXiv:2407.21783.
typedef struct tsr_rope_table_args {
    TSR_CALL_FIELDS;
    tsr_tensor inv_freq; // in  (rotary_dim / 2), optional
    tsr_tensor cos;      // out (num_positions, rotary_dim / 2)
    tsr_tensor sin;      // out (num_positions, rotary_dim / 2)
    double base;
    int32_t has_base;
    int32_t has_scaling;
    tsr_rope_scaling scaling;
    double attention_factor;
} tsr_rope_table_args;

#define TSR_ROPE_TABLE_ARGS(...)                                                                   \
    ((tsr_rope_table_args){.size = sizeof(tsr_rope_table_args), __VA_ARGS__})

TSR_API tsr_status tsr_rope_table(tsr_context *ctx, const tsr_rope_table_args *args);
TSR_API tsr_status tsr_rope_table_prepare(tsr_context *ctx, const tsr_rope_table_args *args,
                                          size_t *workspace_bytes);

// Rotary position embedding: every pair (a, b) of a head's first rotary_dim elements, at
// position p, becomes (a cos[p, i] - b sin[p, i], b cos[p, i] + a sin[p, i]); the rest of the
// head is copied.
//
// Pairs     (i, i + rotary_dim / 2), or (2i, 2i + 1) where interleaved is set.
// Shapes    x, y: (batch, seqlen, num_heads, head_dim), or packed (total, num_heads, head_dim).
//           cos, sin: (num_positions, rotary_dim / 2). positions: (batch, seqlen) or (seqlen);
//           packed (total). Absent: 0, 1, ... in every batch (packed: over the whole of it).
// rotary_dim  0 is head_dim; even and at most head_dim. So an odd head_dim needs a rotary_dim, and a
//           head_dim of 1 is INVALID_ARGUMENT.
// Strides   last dimension contiguous, all others any. Elements of y must not overlap: sorted by size,
//           each stride is at least the span of the dimensions below it. positions: any.
// Dtypes    x and y f32, bf16 or f16, alike; cos and sin f32; positions int32. f64 x, y, cos and
//           sin on the "reference" variant.
// Aliasing  y may be x itself; any other overlap is INVALID_ARGUMENT.
// Numerics  fp32 inside. Error of an element a cos - b sin: 2^-22 (|a cos| + |b sin|), plus
//           rounding to dtype. A NaN in an element makes only its pair NaN. An infinity at position 0,
//           where the sine is 0, makes the other element of its pair NaN. Bitwise repeatable for any
//           number of threads, and batch-invariant.
// CUDA      f32, bf16, f16, num_heads head_dim below 2^30; the same bounds and guarantees. The host does
//           not read positions in device memory: one outside of [0, num_positions) makes the token's
//           pairs NaN, elements that are only copied are right, and nothing else is read or written.
// Errors    INVALID_ARGUMENT, before anything is written; on the CPU also for a position outside of
//           [0, num_positions); UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Su et al.: RoFormer, arXiv:2104.09864; pairs (i, i + rotary_dim / 2) as in GPT-NeoX and
//           Llama checkpoints.
typedef struct tsr_rope_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;   // in  (batch, seqlen, num_heads, head_dim) or (total, num_heads, head_dim)
    tsr_tensor cos; // in  (num_positions, rotary_dim / 2)
    tsr_tensor sin; // in  (num_positions, rotary_dim / 2)
    tsr_tensor positions; // in  (batch, seqlen), (seqlen) or (total), int32, optional
    tsr_tensor y;         // out as x
    int64_t rotary_dim;
    int32_t interleaved;
} tsr_rope_forward_args;

#define TSR_ROPE_FORWARD_ARGS(...)                                                                 \
    ((tsr_rope_forward_args){.size = sizeof(tsr_rope_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_rope_forward(tsr_context *ctx, const tsr_rope_forward_args *args);
TSR_API tsr_status tsr_rope_forward_prepare(tsr_context *ctx, const tsr_rope_forward_args *args,
                                            size_t *workspace_bytes);

// dx is dy rotated by the negative angle (the transpose of forward). Otherwise as forward, dx for y
// and dy for x.
typedef struct tsr_rope_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor dy;  // in  (batch, seqlen, num_heads, head_dim) or (total, num_heads, head_dim)
    tsr_tensor cos; // in  (num_positions, rotary_dim / 2)
    tsr_tensor sin; // in  (num_positions, rotary_dim / 2)
    tsr_tensor positions; // in  (batch, seqlen), (seqlen) or (total), int32, optional
    tsr_tensor dx;        // out as dy
    int64_t rotary_dim;
    int32_t interleaved;
} tsr_rope_backward_args;

#define TSR_ROPE_BACKWARD_ARGS(...)                                                                \
    ((tsr_rope_backward_args){.size = sizeof(tsr_rope_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_rope_backward(tsr_context *ctx, const tsr_rope_backward_args *args);
TSR_API tsr_status tsr_rope_backward_prepare(tsr_context *ctx, const tsr_rope_backward_args *args,
                                             size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
