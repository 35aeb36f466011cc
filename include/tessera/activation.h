// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ACTIVATION_H
#define TESSERA_ACTIVATION_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Element-wise functions, also the epilogues of matmul.
typedef enum tsr_activation {
    TSR_ACTIVATION_NONE = 0,  // x
    TSR_ACTIVATION_GELU,      // x Phi(x), the erf form
    TSR_ACTIVATION_GELU_TANH, // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    TSR_ACTIVATION_SILU,      // x / (1 + exp(-x))
    TSR_ACTIVATION_RELU,      // max(x, 0)
    TSR_ACTIVATION_COUNT
} tsr_activation;

TSR_API const char *tsr_activation_name(tsr_activation kind); // "none", "gelu", "gelu_tanh", ...

// y = act(x), or y = act(x) up where up is given: SwiGLU is SILU with up, GeGLU GELU with up.
//
// Shapes    x, up, y: (..., cols), the same shape; leading dimensions collapse to rows of one
// stride. Strides   last dimension contiguous; row stride of y at least cols. Dtypes    f32, bf16,
// f16, all alike; f64 on "reference". Aliasing  y may be x or up. Numerics  fp32 inside. Error of
// y: 16 2^-24 (|y| + |x up| 2^-1), plus rounding to dtype. NaN gives
//           NaN; -inf gives 0 but for NONE and RELU as they are. Bitwise repeatable,
//           batch-invariant.
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

// dx = dy act'(x) (times up), and dup = dy act(x) where up is given. The derivative of RELU at 0 is
// 0. Aliasing: dx may be x or dy, dup may be up or dy; dx and dup must differ. Otherwise as
// forward.
typedef struct tsr_activation_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;   // in  (..., cols)
    tsr_tensor up;  // in  (..., cols), optional
    tsr_tensor dy;  // in  (..., cols)
    tsr_tensor dx;  // out (..., cols)
    tsr_tensor dup; // out (..., cols), with up
    tsr_activation kind;
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
