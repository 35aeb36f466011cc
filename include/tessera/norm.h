// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_NORM_H
#define TESSERA_NORM_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// For all four calls of this header:
//
// Shapes    x, y, residual, residual_out, dy, dx, dresidual_out: (..., cols), the same shape; the leading
//           dimensions of each must collapse to rows of one stride or two: the heads of q inside a packed qkv,
//           (tokens, heads, head_dim), have two. weight, bias, dweight, dbias: (cols).
//           mean, rstd: as x without its last dimension; fp32, contiguous.
// Strides   last dimension contiguous; rows of outputs do not overlap, those of inputs may.
// Dtypes    f32, bf16, f16, in any mix: x in bf16, residual and residual_out in f32, y in bf16 keep a residual stream in f32.
//           weight and bias alike; dweight and dbias f32 or weight's dtype. f64 throughout (weight, bias: or f32) on the
//           "reference" variant. Fastest: all (..., cols) tensors alike and of one stride, weight in their dtype or f32.
// eps       1e-5 unless has_eps; 0 or more.
// zero_centered_weight  the factor is 1 + weight (Gemma), in fp32. Without weight it does nothing.
// Numerics  fp32 inside. The residual sum is rounded to residual_out's dtype before it is normalised, so
//           that the backward call sees the same values. Bitwise repeatable for any number of threads;
//           forward and dx are batch-invariant.
// NaN       A NaN in a row of x or residual makes that row of y, rstd and mean NaN; in weight or bias, that column of y.
//           An infinity in a row makes the row's y and rstd NaN in layernorm; in rmsnorm rstd is 0, and y NaN where the
//           infinity is and 0 elsewhere. Backward: a NaN in a row of x, rstd, mean or dy makes that row of dx NaN; in
//           weight, all of dx; in dresidual_out, only that element of dx. A column of dweight or dbias is NaN if its sum
//           has a NaN, so a NaN in rstd makes all of dweight NaN. No row affects another row of y or dx.
// CUDA      f32, bf16, f16, up to 2^31 - 2^16 columns; the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.

// y = (s - mean) rstd weight + bias, s = x + residual, mean and variance over the last dimension,
// rstd = 1 / sqrt(variance + eps), variance biased (divided by cols).
//
// Optional  residual with residual_out (both or none), weight, bias (with weight only), mean, rstd.
// Aliasing  y may be x or residual; residual_out may be residual or x; y and residual_out must differ.
// Numerics  corrected two-pass variance: accurate for |mean|/sigma up to 1e6. With u = 2^-24,
//           K = (8 + sqrt(cols)) u, sigma = sqrt(variance + eps), h = (s - mean) / sigma and s as rounded,
//           the errors, plus rounding to dtype, are
//             mean K sigma, rstd K rstd, y |weight| K (1 + |h|) + 2 u (|weight h| + |bias|).
// Source    Ba, Kiros, Hinton: Layer normalization, arXiv:1607.06450. Chan, Golub, LeVeque: Algorithms
//           for computing the sample variance, 1983 (corrected two-pass).
typedef struct tsr_layernorm_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;            // in   (..., cols)
    tsr_tensor residual;     // in   (..., cols), optional
    tsr_tensor weight;       // in   (cols), optional: 1
    tsr_tensor bias;         // in   (cols), optional: 0
    tsr_tensor y;            // out  (..., cols)
    tsr_tensor residual_out; // out  (..., cols), with residual
    tsr_tensor mean;         // out  (...), f32, optional
    tsr_tensor rstd;         // out  (...), f32, optional
    float eps;
    int32_t has_eps;
    int32_t zero_centered_weight;
} tsr_layernorm_forward_args;

#define TSR_LAYERNORM_FORWARD_ARGS(...)                                                            \
    ((tsr_layernorm_forward_args){.size = sizeof(tsr_layernorm_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_layernorm_forward(tsr_context *ctx, const tsr_layernorm_forward_args *args);
TSR_API tsr_status tsr_layernorm_forward_prepare(tsr_context *ctx,
                                                 const tsr_layernorm_forward_args *args,
                                                 size_t *workspace_bytes);

// With h = (x - mean) rstd, mean that of the row, g = dy weight, and mean_c the mean over a row:
//   dx = rstd (g - mean_c(g) - h mean_c(g h)) + dresidual_out
//   dweight = sum_rows dy h, dbias = sum_rows dy
//
// x         what was normalised: forward's x, or its residual_out where there was a residual. dx is then
//           the gradient of both x and residual.
// Optional  weight (when forward had none), dresidual_out, dweight, dbias.
// Aliasing  dx may be dy, x or dresidual_out.
// mean      what forward gave. Rounding to f32 may move it by a part of a standard deviation. Where |mean| rstd is above
//           64, the call therefore corrects h by subtracting the mean of h, which takes one more read of the row.
// Numerics  dweight and dbias: fp32 sums over fixed groups of rows, added in order. With u and K as in forward, D = 64 u +
//           2 K for the error that mean brings into h, mean over the row and sum over the rows, the errors are
//             dx       rstd ((K + 4 u) (mean |g| + |h| mean |g h|) + D (|h| mean |g| + mean |g h|) + 4 u |g|)
//                      + 2 u |dresidual_out|
//             dweight  (8 + 2 sqrt(rows)) u sum |dy h| + D sum |dy|
//             dbias    (8 + 2 sqrt(rows)) u sum |dy|
//           plus rounding to dtype.
typedef struct tsr_layernorm_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;             // in   (..., cols)
    tsr_tensor weight;        // in   (cols), optional
    tsr_tensor mean;          // in   (...), f32
    tsr_tensor rstd;          // in   (...), f32
    tsr_tensor dy;            // in   (..., cols)
    tsr_tensor dresidual_out; // in   (..., cols), optional
    tsr_tensor dx;            // out  (..., cols)
    tsr_tensor dweight;       // out  (cols), optional
    tsr_tensor dbias;         // out  (cols), optional
    int32_t zero_centered_weight;
} tsr_layernorm_backward_args;

#define TSR_LAYERNORM_BACKWARD_ARGS(...)                                                           \
    ((tsr_layernorm_backward_args){.size = sizeof(tsr_layernorm_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_layernorm_backward(tsr_context *ctx,
                                          const tsr_layernorm_backward_args *args);
TSR_API tsr_status tsr_layernorm_backward_prepare(tsr_context *ctx,
                                                  const tsr_layernorm_backward_args *args,
                                                  size_t *workspace_bytes);

// y = s rstd weight, s = x + residual, rstd = 1 / sqrt(mean_c(s^2) + eps).
//
// Optional  residual with residual_out (both or none), weight, rstd. Aliasing as layernorm_forward.
// Numerics  squares are scaled before they are summed in fp32, so that |s| up to the largest finite value
//           gives a finite y. With K = (8 + sqrt(cols)) 2^-24 the errors, plus rounding to dtype, are
//             y (K + 2^-23) |y|, rstd K rstd.
// Source    Zhang, Sennrich: Root mean square layer normalization, arXiv:1910.07467.
typedef struct tsr_rmsnorm_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;            // in   (..., cols)
    tsr_tensor residual;     // in   (..., cols), optional
    tsr_tensor weight;       // in   (cols), optional: 1
    tsr_tensor y;            // out  (..., cols)
    tsr_tensor residual_out; // out  (..., cols), with residual
    tsr_tensor rstd;         // out  (...), f32, optional
    float eps;
    int32_t has_eps;
    int32_t zero_centered_weight;
} tsr_rmsnorm_forward_args;

#define TSR_RMSNORM_FORWARD_ARGS(...)                                                              \
    ((tsr_rmsnorm_forward_args){.size = sizeof(tsr_rmsnorm_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_rmsnorm_forward(tsr_context *ctx, const tsr_rmsnorm_forward_args *args);
TSR_API tsr_status tsr_rmsnorm_forward_prepare(tsr_context *ctx,
                                               const tsr_rmsnorm_forward_args *args,
                                               size_t *workspace_bytes);

// With h = x rstd and g = dy weight: dx = rstd (g - h mean_c(g h)) + dresidual_out,
// dweight = sum_rows dy h. Otherwise as layernorm_backward; dx lacks the term mean |g|, and D is 0.
typedef struct tsr_rmsnorm_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;             // in   (..., cols)
    tsr_tensor weight;        // in   (cols), optional
    tsr_tensor rstd;          // in   (...), f32
    tsr_tensor dy;            // in   (..., cols)
    tsr_tensor dresidual_out; // in   (..., cols), optional
    tsr_tensor dx;            // out  (..., cols)
    tsr_tensor dweight;       // out  (cols), optional
    int32_t zero_centered_weight;
} tsr_rmsnorm_backward_args;

#define TSR_RMSNORM_BACKWARD_ARGS(...)                                                             \
    ((tsr_rmsnorm_backward_args){.size = sizeof(tsr_rmsnorm_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_rmsnorm_backward(tsr_context *ctx, const tsr_rmsnorm_backward_args *args);
TSR_API tsr_status tsr_rmsnorm_backward_prepare(tsr_context *ctx,
                                                const tsr_rmsnorm_backward_args *args,
                                                size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
