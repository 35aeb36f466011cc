// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_SOFTMAX_H
#define TESSERA_SOFTMAX_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Softmax over the last dimension: y[r,c] = exp(x[r,c] - m_r) / sum_c' exp(x[r,c'] - m_r), m_r = max_c x.
//
// Shapes    x, y: (..., cols), the same shape; leading dimensions must collapse to rows of one stride.
// Strides   last dimension contiguous; row stride of x any (0 repeats a row), of y at least cols.
// Dtypes    f32, bf16, f16; x and y alike. f64 on the "reference" variant.
// Aliasing  y may be x itself (same data and strides); any other overlap is INVALID_ARGUMENT.
// Numerics  fp32 inside. Error of y: (8 + 2|x - m| + sqrt(cols)) 2^-24 relative (108 in place of 8 for bf16 and
//           f16), plus rounding to dtype, plus 2^-126: an exponential below that may count as 0.
//           A row with +inf or NaN gives a row of NaN. A row of only -inf gives zeros, as attention does for a
//           row that sees no key. Bitwise repeatable, for any number of threads, and batch-invariant.
// CUDA      f32, bf16, f16, up to 2^31 - 2^16 columns; the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv:1805.02867 (online).
typedef struct tsr_softmax_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x; // in  (..., cols)
    tsr_tensor y; // out (..., cols)
} tsr_softmax_forward_args;

#define TSR_SOFTMAX_FORWARD_ARGS(...)                                                              \
    ((tsr_softmax_forward_args){.size = sizeof(tsr_softmax_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_softmax_forward(tsr_context *ctx, const tsr_softmax_forward_args *args);
TSR_API tsr_status tsr_softmax_forward_prepare(tsr_context *ctx,
                                               const tsr_softmax_forward_args *args,
                                               size_t *workspace_bytes);

// Gradient of softmax: dx = y (dy - sum_c y dy).
//
// Shapes    y, dy, dx: (..., cols), the same shape. Strides, dtypes and errors as forward.
// Aliasing  dx may be y or dy itself.
// Numerics  fp32 inside. Error of dx: (8 + sqrt(cols)) 2^-24 |y| (|dy| + sum |y dy|), plus rounding. A NaN in a row of
//           y or dy, or an infinite dy where y is 0, makes that row of dx NaN. Repeatable and batch-invariant as forward.
typedef struct tsr_softmax_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor y;  // in  (..., cols), what forward gave
    tsr_tensor dy; // in  (..., cols)
    tsr_tensor dx; // out (..., cols)
} tsr_softmax_backward_args;

#define TSR_SOFTMAX_BACKWARD_ARGS(...)                                                             \
    ((tsr_softmax_backward_args){.size = sizeof(tsr_softmax_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_softmax_backward(tsr_context *ctx, const tsr_softmax_backward_args *args);
TSR_API tsr_status tsr_softmax_backward_prepare(tsr_context *ctx,
                                                const tsr_softmax_backward_args *args,
                                                size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
