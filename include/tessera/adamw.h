// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_ADAMW_H
#define TESSERA_ADAMW_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// One step of Adam with decoupled weight decay, in place, for one tensor of parameters:
//
//   g = grad grad_scale                       grad_scale is 1 unless has_grad_scale
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p - lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay p)
//
// p is param. With master, p is master; param is then not read and receives p rounded to its dtype.
// weight_decay is multiplied by lr, as frameworks do: in the paper's terms, lr = eta alpha and
// weight_decay = lambda / alpha.
//
// Shapes    param, grad, m, v, master: (..., cols), the same shape; leading dimensions must
//           collapse to rows of one stride.
// Strides   last dimension contiguous; row stride of grad any, of the others at least cols.
// Dtypes    param f32, bf16, f16; grad param's dtype or f32; m, v, master f32. f64 throughout on
//           "reference".
// Aliasing  none.
// Scalars   lr, weight_decay and grad_scale finite; beta1 and beta2 in [0, 1), where 0 is a value
//           and no default; eps finite, 0 or more; step at least 1, the number of this step. They
//           are doubles because 1 - beta would lose digits in fp32; the bias corrections are
//           computed in f64. Unless param is f64, the magnitude of each is 0 or from 2^-126 to f32's
//           largest value; lr / (1 - beta1^step) and lr weight_decay do not exceed that value either.
// Numerics  fp32 inside, p - lr (...) rounded once: a decay far below 2^-24 would be lost in a
//           factor near 1. Errors, with u = 2^-24, plus rounding to dtype:
//             m  4 u (beta1 |m| + (1 - beta1) |g|)
//             v  6 u v
//             p  u (|p| + 3 lr weight_decay |p|), plus the effect of m's and v's errors
//           A v beyond fp32 becomes +inf, and the quotient 0. eps = 0 with v = 0 divides by zero.
//           NaN in grad, m or v gives NaN. Bitwise repeatable, for any number of threads.
// CUDA      f32, bf16, f16; the same bounds and guarantees.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Kingma, Ba: Adam, arXiv:1412.6980. Loshchilov, Hutter: Decoupled weight decay
//           regularization, arXiv:1711.05101, algorithm 2.
typedef struct tsr_adamw_step_args {
    TSR_CALL_FIELDS;
    tsr_tensor param;  // in and out (..., cols); out with master
    tsr_tensor grad;   // in         (..., cols)
    tsr_tensor m;      // in and out (..., cols), f32
    tsr_tensor v;      // in and out (..., cols), f32
    tsr_tensor master; // in and out (..., cols), f32, optional
    double lr;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double grad_scale;
    int32_t has_grad_scale;
    int64_t step;
} tsr_adamw_step_args;

#define TSR_ADAMW_STEP_ARGS(...)                                                                   \
    ((tsr_adamw_step_args){.size = sizeof(tsr_adamw_step_args), __VA_ARGS__})

TSR_API tsr_status tsr_adamw_step(tsr_context *ctx, const tsr_adamw_step_args *args);
TSR_API tsr_status tsr_adamw_step_prepare(tsr_context *ctx, const tsr_adamw_step_args *args,
                                          size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
