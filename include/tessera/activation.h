// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ACTIVATION_H
#define TESSERA_ACTIVATION_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Element-wise functions; they are the epilogues of matmul too.
typedef enum tsr_activation {
    TSR_ACTIVATION_NONE = 0,  // x
    TSR_ACTIVATION_GELU,      // x Phi(x), the erf form
    TSR_ACTIVATION_GELU_TANH, // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    TSR_ACTIVATION_SILU,      // x / (1 + exp(-x))
    TSR_ACTIVATION_RELU,      // max(x, 0)
    TSR_ACTIVATION_RELU2,     // max(x, 0)^2
    // gpt-oss's gate, only with up: s(min(x, 7)) (clamp(up, -7, 7) + 1), where s(g) = g / (1 + exp(-1.702 g))
    TSR_ACTIVATION_SWIGLU_CLAMPED,
    TSR_ACTIVATION_COUNT
} tsr_activation;

TSR_API const char *tsr_activation_name(tsr_activation kind); // "none", "gelu", "gelu_tanh", ...

// y = act(x), or y = act(x) gate(up) where up is given: SwiGLU is SILU with up, GeGLU GELU with up. gate(up) is up, but for
// SWIGLU_CLAMPED clamp(up, -7, 7) + 1, and its act(x) is s(min(x, 7)). Read gate(up) for up below.
//
// Shapes    x, up, y: (..., cols), the same shape; leading dimensions collapse to rows of one
//           stride.
// Strides   last dimension contiguous; row stride of y at least cols.
// Dtypes    f32, bf16, f16, all alike; f64 on "reference".
// Aliasing  y may be x or up.
// Numerics  fp32 inside. With act(x) = x F(x) and u = 2^-24, the error of y is at most
//             u (2 |y| + (8 + k) |x F(-|x|) up|) + 2^-140 |up| + 2^-149, plus rounding to dtype,
//           k = 1.5 x^2 for GELU, 4 |s| for GELU_TANH with F = 1 / (1 + exp(-s)), 2 |x| for SILU, 4 |s| for
//           SWIGLU_CLAMPED with s = 1.702 x; that kind adds u |y|. F(-|x|) is 0 for RELU2, whose act(x) is infinite
//           from 2^64 on.
//           The second term is the rounding of an exponent, which shows in the negative tail; the
//           next two are subnormal intermediates. bf16 and f16 add an eighth of what rounding to
//           them may lose of |x F(-|x|) up|, as in matmul, and 2^-118 |up|: a tail below 2^-126
//           may be 0. Bitwise repeatable, batch-invariant.
// NaN       NaN gives NaN, +inf gives +inf, -inf gives 0 (NONE: -inf), and no finite x gives NaN.
//           An infinite up gives NaN where act(x) is 0, also where its tail has become 0. SWIGLU_CLAMPED: +inf
//           counts as 7 in x and up, -inf as -7 in up, and min and clamp keep NaN, as torch.clamp does in the gpt-oss of
//           OpenAI and of transformers. An infinite act(x) of RELU2 gives NaN where up is 0.
// CUDA      f32, bf16, f16; the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Hendrycks, Gimpel: Gaussian error linear units, arXiv:1606.08415. Shazeer: GLU variants
//           improve transformer, arXiv:2002.05202.
typedef struct tsr_activation_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;  // in  (..., cols)
    tsr_tensor up; // in  (..., cols), optional
    tsr_tensor y;  // out (..., cols)
    tsr_activation kind;
} tsr_activation_forward_args;

#define TSR_ACTIVATION_FORWARD_ARGS(...)                                                           \
    ((tsr_activation_forward_args){.size = sizeof(tsr_activation_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_activation_forward(tsr_context *ctx,
                                          const tsr_activation_forward_args *args);
TSR_API tsr_status tsr_activation_forward_prepare(tsr_context *ctx,
                                                  const tsr_activation_forward_args *args,
                                                  size_t *workspace_bytes);

// dx = dy act'(x), or dx = dy act'(x) gate(up) and dup = dy act(x) gate'(up) where up is given: both up and dup, or neither.
// gate'(up) is 1. For SWIGLU_CLAMPED act'(x) is 0 for x > 7 and gate'(up) is 0 for |up| > 7; at 7 and -7, as in torch, the
// gradient passes. A NaN x makes dx and dup NaN, a NaN up dx alone, as with every kind (torch: its own gradient is 0).
//
// For the experts of a mixture, whose rows have weights, with w the row's weight (1 if row_weights is absent) and up 1 if
// absent, also
//   dx = w dy act'(x) up, dup = w dy act(x) gate'(up)
//   weighted_y = w act(x) up           what the next matrix was multiplied by, for its gradient
//   drow_weights = sum over the row's columns of dy act(x) up
//
// Shapes    row_weights, drow_weights: as x without its last dimension, of one stride; f32, f64 with f64.
// Optional  up with dup, row_weights, weighted_y, drow_weights: each of the last three alone or together.
// Aliasing  dx, dup and weighted_y may each be any one of x, up, dy, but must not overlap each other. drow_weights must
//           not overlap any other tensor, and no output may overlap row_weights.
// Numerics  The error of act' = F(x) + x F'(x) is at most
//             u (4 (F(x) + |x F'(x)|) + (12 + k) (F(-|x|) + |x F'(x)|)),
//           which is absolute near the zero of act'; bf16 and f16 add an eighth of what rounding may
//           lose of F(-|x|) + |x F'(x)|. Subnormal numbers add 2^-140 |dy up| + 2^-147 |up| +
//           2^-149, for bf16 and f16 2^-118 |dy up|. act' is 1 at +inf (RELU2: inf, from 2^127 on) and 0 at -inf; RELU's
//           is 0 at 0. SWIGLU_CLAMPED adds u |dx|. Otherwise as forward.
//           With row_weights, w dy and act(x) up are rounded to fp32 first, and an overflow there stays infinite. The bounds of
//           dx and dup then have |w dy| for |dy|, u more of the result, and 2^-149 more of |act' up| and of |act(x)|. With E
//           the bound of forward's y, without the rounding to dtype, the errors are
//             weighted_y    |w| E + u |w y| + 2^-149, plus rounding to dtype,
//             drow_weights  sum |dy| E + (min(cols, 64) + 8 + cols / 128) u sum |dy y| + cols 2^-149.
//           The sum is in fp32, in an order that depends on cols alone (and on dtype and instruction set): bitwise
//           repeatable, batch-invariant.
// NaN       A NaN in row_weights makes dx, dup and weighted_y of its row NaN. A NaN in a row of x, up or dy makes the row's
//           drow_weights NaN. No row affects another.
typedef struct tsr_activation_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;   // in  (..., cols)
    tsr_tensor up;  // in  (..., cols), optional
    tsr_tensor dy;  // in  (..., cols)
    tsr_tensor dx;  // out (..., cols)
    tsr_tensor dup; // out (..., cols), with up
    tsr_activation kind;
    tsr_tensor row_weights;  // in  (...), f32, optional: 1
    tsr_tensor weighted_y;   // out (..., cols), optional
    tsr_tensor drow_weights; // out (...), f32, optional
} tsr_activation_backward_args;

#define TSR_ACTIVATION_BACKWARD_ARGS(...)                                                          \
    ((tsr_activation_backward_args){.size = sizeof(tsr_activation_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_activation_backward(tsr_context *ctx,
                                           const tsr_activation_backward_args *args);
TSR_API tsr_status tsr_activation_backward_prepare(tsr_context *ctx,
                                                   const tsr_activation_backward_args *args,
                                                   size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
