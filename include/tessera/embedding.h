// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_EMBEDDING_H
#define TESSERA_EMBEDDING_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// y[t, :] = weight[ids[t], :].
//
// Shapes    ids: (...), at most four dimensions; weight: (vocab, hidden); y: (..., hidden).
// Strides   last dimension of weight and y contiguous, row strides any (y's at least hidden); the
//           leading dimensions of ids and of y must each collapse to one stride.
// Dtypes    weight and y f32, bf16 or f16, alike; ids int32. f64 on the "reference" variant.
// Aliasing  none: y must not overlap weight or ids.
// Numerics  a copy of the bits, also for NaN.
// CUDA      f32, bf16, f16, up to 2^30 tokens, rows and columns. The host does not read ids in device
//           memory: one outside of [0, vocab) gives a row of NaN.
// Errors    INVALID_ARGUMENT, before anything is written; on the CPU also for an id outside of
//           [0, vocab), with its index and value in the sentence; UNSUPPORTED (variant), WORKSPACE,
//           OUT_OF_MEMORY.
// Source    Bengio, Ducharme, Vincent, Jauvin: A neural probabilistic language model, Journal of
//           machine learning research 3, 2003 (the shared table of feature vectors).
typedef struct tsr_embedding_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor ids;    // in  (...), int32
    tsr_tensor weight; // in  (vocab, hidden)
    tsr_tensor y;      // out (..., hidden)
} tsr_embedding_forward_args;

#define TSR_EMBEDDING_FORWARD_ARGS(...)                                                            \
    ((tsr_embedding_forward_args){.size = sizeof(tsr_embedding_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_embedding_forward(tsr_context *ctx, const tsr_embedding_forward_args *args);
TSR_API tsr_status tsr_embedding_forward_prepare(tsr_context *ctx,
                                                 const tsr_embedding_forward_args *args,
                                                 size_t *workspace_bytes);

// dweight[v, :] = sum of dy[t, :] over the t with ids[t] = v, in order of t; 0 where v does not
// occur. With accumulate, that sum is added to dweight, and rows that do not occur are not touched.
//
// Shapes    ids: (...), at most four dimensions; dy: (..., hidden); dweight: (vocab, hidden).
// Strides   as forward; row stride of dy any, of dweight at least hidden.
// Dtypes    dy f32, bf16 or f16; dweight f32 or as dy; ids int32. f64 on the "reference" variant.
// padding_id  in [0, vocab), used with has_padding_id: this row's gradient is 0 (with accumulate: not
//           touched).
// Aliasing  none: dweight must not overlap dy or ids.
// Numerics  fp32 sums, rounded to dweight's dtype once. With n occurrences the error is at most
//           n 2^-24 sum |dy| (typically sqrt(n) in place of n), plus rounding. Bitwise repeatable for
//           any number of threads: always deterministic.
// Cost      time proportional to (tokens + vocab) hidden; workspace of 8 (vocab + 1 + tokens) bytes, or of
//           4 vocab hidden where that is more and hidden is at most 32.
// CUDA      as forward. An id outside of [0, vocab) adds to no row. A row of more than 32 tokens is
//           summed in three steps, each in order: 32 consecutive tokens at a time, these sums into eight,
//           the eight into one. Without atomic additions the result is repeatable too. Workspace of about
//           (16 + hidden / 4) tokens + 4 vocab bytes.
// Errors, source  as forward.
typedef struct tsr_embedding_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor ids;     // in     (...), int32
    tsr_tensor dy;      // in     (..., hidden)
    tsr_tensor dweight; // in-out (vocab, hidden); out where accumulate is 0
    int32_t accumulate;
    int32_t padding_id;
    int32_t has_padding_id;
} tsr_embedding_backward_args;

#define TSR_EMBEDDING_BACKWARD_ARGS(...)                                                           \
    ((tsr_embedding_backward_args){.size = sizeof(tsr_embedding_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_embedding_backward(tsr_context *ctx,
                                          const tsr_embedding_backward_args *args);
TSR_API tsr_status tsr_embedding_backward_prepare(tsr_context *ctx,
                                                  const tsr_embedding_backward_args *args,
                                                  size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
