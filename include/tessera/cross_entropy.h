// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_CROSS_ENTROPY_H
#define TESSERA_CROSS_ENTROPY_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Cross-entropy of class logits, one loss for each row:
//   lse[r] = log sum_c exp(logits[r, c])                 (natural logarithm)
//   q[r, c] = (1 - label_smoothing) [c = targets[r]] + label_smoothing / vocab
//   loss[r] = sum_c q[r, c] (lse[r] - logits[r, c])
// A row whose target is ignore_index has loss 0 (and gradient 0), whatever its logits hold.
//
// Shapes    logits: (..., vocab), leading dimensions collapse to rows of one stride; targets:
//           (...), collapsing to one stride; loss, lse: (...), contiguous.
// Strides   last dimension of logits contiguous; row stride any.
// Dtypes    logits f32, bf16 or f16; targets int32; loss and lse f32. On the "reference" variant
//           also f64 logits, loss and lse together.
// Optional  lse, which backward needs. Ignored rows have an lse too.
// ignore_index  -100 unless has_ignore_index. A target outside of [0, vocab) that is not ignore_index is
//           INVALID_ARGUMENT on the CPU, before anything is written; the sentence names index and value.
// label_smoothing  in [0, 1).
// Aliasing  none: loss and lse must not overlap the inputs or each other.
// Numerics  fp32 exponentials in blocks of 2048; sums of blocks, logarithm and loss in double. With
//           m the row's maximum, p its softmax and s = lse - m, the error of lse is
//             e = 2^-24 (8 + sqrt(min(vocab, 2048)) + 2 sum_c p |x - m|),
//           that of the loss
//             e + 2^-24 (2 s + 4 |x_target - m| + 64 label_smoothing (mean_c |x - m| + s)) + 2^-50 |m|,
//           plus rounding to f32. Bitwise repeatable for any number of threads, batch-invariant.
// CUDA      f32, bf16, f16, up to 2^31 - 2^16 columns; the same bounds and guarantees, on one kind of
//           card, but the last bits of loss and lse may depend on a row's address modulo 16 bytes.
//           The host does not read targets in device memory: one that is neither a class nor
//           ignore_index gives a loss of NaN, and in backward a row of NaN.
// Infinity  -inf is a legal logit of probability 0; if it is the target's logit, or label_smoothing is
//           not 0, the loss is +inf. A row of only -inf (or of no columns) has lse -inf, loss +inf
//           and gradient 0. A row with +inf or NaN has lse NaN, loss NaN and a gradient of NaN in
//           every element.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv:1805.02867.
//           Szegedy et al.: Rethinking the Inception architecture, arXiv:1512.00567 (label
//           smoothing).
typedef struct tsr_cross_entropy_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor logits;  // in  (..., vocab)
    tsr_tensor targets; // in  (...), int32
    tsr_tensor loss;    // out (...), f32
    tsr_tensor lse;     // out (...), f32, optional
    int32_t ignore_index;
    int32_t has_ignore_index;
    float label_smoothing;
} tsr_cross_entropy_forward_args;

#define TSR_CROSS_ENTROPY_FORWARD_ARGS(...)                                                        \
    ((tsr_cross_entropy_forward_args){.size = sizeof(tsr_cross_entropy_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_cross_entropy_forward(tsr_context *ctx,
                                             const tsr_cross_entropy_forward_args *args);
TSR_API tsr_status tsr_cross_entropy_forward_prepare(tsr_context *ctx,
                                                     const tsr_cross_entropy_forward_args *args,
                                                     size_t *workspace_bytes);

// dlogits[r, c] = dloss[r] (exp(logits[r, c] - lse[r]) - q[r, c]); 0 in ignored rows.
//
// Shapes    logits, dlogits: (..., vocab); targets, lse, dloss: (...), lse and dloss contiguous.
// Dtypes    dlogits as logits; lse and dloss f32 (f64 beside f64 logits). Otherwise as forward.
// Aliasing  dlogits may be logits itself; any other overlap is INVALID_ARGUMENT.
// lse       what forward gave for these logits: -inf gives a row of 0, NaN a row of NaN. Where its rounding to f32 would
//           show (with a large |lse|, or a target with nearly all the probability), the row is summed again, which reads
//           it once more. If lse is any number other than the row's own, dlogits are undefined.
// Numerics  fp32 inside. With p the row's softmax, N = 8 + sqrt(min(vocab, 2048)) + 2 log(vocab), and (L, T) =
//           (72, 100) in f32, (1032, 2^14) in 16 bits, the error of dlogits is
//             2^-24 |dloss| ((max(N, L) + 2 |x - lse|) p + 4 q) + vocab 2^-126 |dloss|,
//           at the target, where r = 1 - p is the sum of the others' probabilities,
//             2^-24 |dloss| (max(N, T) r + 4 label_smoothing) + vocab^2 2^-126 |dloss|,
//           plus rounding to dtype. A common offset of the logits changes neither. Bitwise repeatable for any number of
//           threads, and batch-invariant.
typedef struct tsr_cross_entropy_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor logits;  // in  (..., vocab)
    tsr_tensor targets; // in  (...), int32
    tsr_tensor lse;     // in  (...), f32, what forward gave
    tsr_tensor dloss;   // in  (...), f32
    tsr_tensor dlogits; // out (..., vocab)
    int32_t ignore_index;
    int32_t has_ignore_index;
    float label_smoothing;
} tsr_cross_entropy_backward_args;

#define TSR_CROSS_ENTROPY_BACKWARD_ARGS(...)                                                       \
    ((tsr_cross_entropy_backward_args){.size = sizeof(tsr_cross_entropy_backward_args),            \
                                       __VA_ARGS__})

TSR_API tsr_status tsr_cross_entropy_backward(tsr_context *ctx,
                                              const tsr_cross_entropy_backward_args *args);
TSR_API tsr_status tsr_cross_entropy_backward_prepare(tsr_context *ctx,
                                                      const tsr_cross_entropy_backward_args *args,
                                                      size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
