// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: the rows of each expert, the sum of a token's rows, the gradients of the experts' biases.
#ifndef TESSERA_MOE_PERMUTE_H
#define TESSERA_MOE_PERMUTE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sorts assignments of tokens to experts by expert, so that the rows of an expert lie together:
//
//   tsr_moe_permute(ctx, &TSR_MOE_PERMUTE_ARGS(
//       .topk_ids = ids, .offsets = offsets, .row_tokens = row_tokens, .token_rows = token_rows));
//   tsr_matmul_grouped_forward(ctx, &TSR_MATMUL_GROUPED_FORWARD_ARGS(
//       .a = x, .a_rows = row_tokens, .offsets = offsets, .b = weights, .c = rows));
//
// Assignment (t, k) sends token t to expert topk_ids[t, k]. Rows of expert e are offsets[e] to offsets[e + 1] - 1, in the
// order of t, then of k. With has_capacity an expert takes the first `capacity` of its assignments and drops the others.
//
// Shapes    topk_ids, token_rows, topk_weights (..., top_k), each of one stride over its leading dimensions, T tokens;
//           offsets (E + 1), which says E; row_tokens, row_weights (num_rows), num_rows at least T top_k or, with has_capacity,
//           min(T top_k, E capacity); tokens_per_expert (E). 1 <= E <= 2^20, 1 <= top_k <= 2^16, T top_k < 2^31. No tokens
//           are legal.
// Strides   1 in the last dimension.
// Dtypes    topk_weights and row_weights f32, f64 on "reference"; otherwise int32.
// Outputs   offsets             where each expert's rows begin; the last element is their number
//           row_tokens          the token t of each row; -1 from offsets[E] on
//           row_weights         topk_weights[t, k] of each row; 0 from offsets[E] on
//           token_rows          the row of each assignment; -1 if it has none
//           tokens_per_expert   assignments to each expert, dropped ones included
//           num_dropped         assignments that no expert took, for want of capacity
// Ids       -1 is no expert: no row, and not a drop. An id may occur more than once in a token. Any other id outside of
//           [0, E) is INVALID_ARGUMENT on the CPU, before anything is written; on CUDA, where the host does not read ids in
//           device memory, its token_rows is -2, from which tsr_moe_combine_forward makes a row of NaN.
// Aliasing  none: outputs overlap nothing.
// Numerics  exact, in every variant alike. row_weights are copies of the bits.
// CUDA      the same; no synchronisation with the host, no atomic additions of floats.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Gale, Narayanan, Young, Zaharia: MegaBlocks, arXiv:2211.15841 (dropless); Lepikhin et al.: GShard,
//           arXiv:2006.16668 (capacity).
typedef struct tsr_moe_permute_args {
    TSR_CALL_FIELDS;
    tsr_tensor topk_ids;          // in  (..., top_k), int32
    tsr_tensor topk_weights;      // in  (..., top_k), f32, optional; row_weights needs it
    tsr_tensor offsets;           // out (num_experts + 1), int32
    tsr_tensor row_tokens;        // out (num_rows), int32, optional
    tsr_tensor row_weights;       // out (num_rows), f32, optional
    tsr_tensor token_rows;        // out (..., top_k), int32, optional
    tsr_tensor tokens_per_expert; // out (num_experts), int32, optional
    tsr_tensor num_dropped;       // out (1), int32, optional
    int64_t capacity;             // at least 1
    int32_t has_capacity;
} tsr_moe_permute_args;

#define TSR_MOE_PERMUTE_ARGS(...)                                                                  \
    ((tsr_moe_permute_args){.size = sizeof(tsr_moe_permute_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_permute(tsr_context *ctx, const tsr_moe_permute_args *args);
TSR_API tsr_status tsr_moe_permute_prepare(tsr_context *ctx, const tsr_moe_permute_args *args,
                                           size_t *workspace_bytes);

// The weighted sum of each token's rows, in the order of k, and what is added to it:
//
//   tsr_moe_combine_forward(ctx, &TSR_MOE_COMBINE_FORWARD_ARGS(
//       .rows = rows, .token_rows = token_rows, .weights = topk_weights, .y = y));
//
//   y[t] = sum over k of weights[t, k] rows[token_rows[t, k]] + sigmoid(shared_gate[t]) shared[t] + residual[t]
//
// Shapes    rows (num_rows, hidden); token_rows, weights (..., top_k); y, shared, residual (..., hidden); shared_gate
//           (...). Leading dimensions collapse to tokens of one stride. 1 <= top_k <= 2^16. No tokens and no rows are
//           legal; a token without rows gets the other summands, or 0.
// Strides   last dimension contiguous, others any; rows of y do not overlap.
// Dtypes    rows, y, shared: f32, bf16, f16 alike; residual that one or f32; weights and shared_gate f32; f64 throughout on
//           "reference". token_rows int32.
// Optional  weights: absent, each is 1. shared; shared_gate, with shared: absent, its factor is 1. residual.
// Rows      token_rows of -1 is no row: its weight is not read. Any other value outside of [0, num_rows) is INVALID_ARGUMENT
//           on the CPU, before anything is written; on CUDA it makes its token's row NaN.
// Aliasing  y may be residual or shared itself; any other overlap is INVALID_ARGUMENT.
// Numerics  fp32, products added by fused multiply-add in the order of the formula: the error is at most
//           2^-24 (K + 4) (sum |weights rows| + |shared| + |residual|) + 2^-24 8 |shared|, with K = top_k, plus 2^-140 for
//           subnormal numbers, plus the rounding to dtype. Bitwise repeatable, batch-invariant.
// NaN       a NaN in a row reaches only its column of its tokens.
// CUDA      f32, bf16, f16; up to 2^30 tokens and rows.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
typedef struct tsr_moe_combine_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor rows;        // in  (num_rows, hidden)
    tsr_tensor token_rows;  // in  (..., top_k), int32
    tsr_tensor weights;     // in  (..., top_k), f32, optional
    tsr_tensor shared;      // in  (..., hidden), optional
    tsr_tensor shared_gate; // in  (...), f32, optional
    tsr_tensor residual;    // in  (..., hidden), optional
    tsr_tensor y;           // out (..., hidden)
} tsr_moe_combine_forward_args;

#define TSR_MOE_COMBINE_FORWARD_ARGS(...)                                                          \
    ((tsr_moe_combine_forward_args){.size = sizeof(tsr_moe_combine_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_combine_forward(tsr_context *ctx,
                                           const tsr_moe_combine_forward_args *args);
TSR_API tsr_status tsr_moe_combine_forward_prepare(tsr_context *ctx,
                                                   const tsr_moe_combine_forward_args *args,
                                                   size_t *workspace_bytes);

// The gradients of the weighted sum; that of residual is dy itself.
//
//   drows[token_rows[t, k]] = weights[t, k] dy[t]       rows that no token has are not written
//   dweights[t, k] = <dy[t], rows[token_rows[t, k]]>    0 where there is no row
//   dshared[t] = sigmoid(shared_gate[t]) dy[t]
//   dshared_gate[t] = <dy[t], shared[t]> s (1 - s), s = sigmoid(shared_gate[t])
//
// Shapes    as forward. No row is another token's too: where one is, each element of drows is the product of one of them,
//           on the CPU of the last.
// Dtypes    dy, drows, dshared as rows; dweights and dshared_gate f32; otherwise as forward.
// Optional  each gradient; at least one is given. rows is needed for dweights, weights never, shared for dshared_gate,
//           shared_gate for dshared_gate. num_rows is that of rows or, without it, of drows; with neither token_rows is
//           not read and may be absent.
// Aliasing  dshared may be dy itself; any other overlap is INVALID_ARGUMENT.
// Rows      as forward; on CUDA a row outside of [0, num_rows) writes no drows, and its dweights is NaN.
// Numerics  fp32. drows, dshared: one product, error 2^-24 (1 + 8) |result| + 2^-140. dweights: 2^-24 (8 + 4 sqrt(hidden))
//           sum |dy rows| + 2^-120; dshared_gate: 2^-24 (24 + 4 sqrt(hidden)) sum |dy shared| + 2^-120. Plus the rounding to
//           dtype. Bitwise repeatable, batch-invariant.
// Otherwise as forward.
typedef struct tsr_moe_combine_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor dy;           // in  (..., hidden)
    tsr_tensor rows;         // in  (num_rows, hidden), optional
    tsr_tensor token_rows;   // in  (..., top_k), int32, optional
    tsr_tensor weights;      // in  (..., top_k), f32, optional
    tsr_tensor shared;       // in  (..., hidden), optional
    tsr_tensor shared_gate;  // in  (...), f32, optional
    tsr_tensor drows;        // out (num_rows, hidden), optional
    tsr_tensor dweights;     // out (..., top_k), f32, optional
    tsr_tensor dshared;      // out (..., hidden), optional
    tsr_tensor dshared_gate; // out (...), f32, optional
} tsr_moe_combine_backward_args;

#define TSR_MOE_COMBINE_BACKWARD_ARGS(...)                                                         \
    ((tsr_moe_combine_backward_args){.size = sizeof(tsr_moe_combine_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_combine_backward(tsr_context *ctx,
                                            const tsr_moe_combine_backward_args *args);
TSR_API tsr_status tsr_moe_combine_backward_prepare(tsr_context *ctx,
                                                    const tsr_moe_combine_backward_args *args,
                                                    size_t *workspace_bytes);

// The gradients of the experts' biases: sums over the rows of each expert.
//
//   dbias[e] = sum over rows r of expert e, offsets[e] <= r < offsets[e + 1], of row_weights[r] rows[row_tokens[r]]
//
// Shapes    rows (num_source_rows, cols); row_tokens, row_weights (num_rows); offsets (num_experts + 1); dbias (num_experts,
//           cols). No rows, columns and experts are legal; an expert without rows gets 0.
// Strides   1 in the last dimension of rows and dbias, any in the others; rows of dbias do not overlap.
// Dtypes    rows: f32, bf16, f16; dbias: rows' dtype or f32; row_weights f32; f64 throughout on "reference". row_tokens and
//           offsets int32.
// Optional  row_tokens: absent, row r is rows[r], and num_rows is num_source_rows. row_weights: absent, each is 1.
// Rows      Row lists and offsets are those of tsr_moe_permute. A row of rows may occur many times or never. Rows that belong
//           to no expert are not read, nor are their elements of row_tokens and row_weights.
// Aliasing  dbias overlaps no input.
// Numerics  fp32 sums of fused multiply-adds: with n the expert's number of rows the error is at most
//           2^-24 (8 + 4 sqrt(n)) sum |row_weights rows| + 2^-120, plus the rounding to dtype. The order of the sum depends
//           on n alone: bitwise repeatable, for any number of threads, and an expert's gradient does not depend on other
//           experts' rows.
// NaN       a NaN in a row reaches only its column of its expert, one in row_weights only its expert.
// Bad offsets  on the CPU offsets that fall or lie outside of [0, num_rows], and an expert's elements of row_tokens outside of
//           [0, num_source_rows) are INVALID_ARGUMENT, before anything is written. On CUDA the host does not look: each offset
//           is clamped to [0, num_rows], a row that does not exist adds nothing, and where offsets fall dbias is undefined.
// CUDA      f32, bf16, f16; up to 2^30 rows, columns and experts; no synchronisation with the host, no atomic additions.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
typedef struct tsr_moe_bias_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor rows;        // in  (num_source_rows, cols)
    tsr_tensor row_tokens;  // in  (num_rows), int32, optional
    tsr_tensor row_weights; // in  (num_rows), f32, optional
    tsr_tensor offsets;     // in  (num_experts + 1), int32
    tsr_tensor dbias;       // out (num_experts, cols)
} tsr_moe_bias_backward_args;

#define TSR_MOE_BIAS_BACKWARD_ARGS(...)                                                            \
    ((tsr_moe_bias_backward_args){.size = sizeof(tsr_moe_bias_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_moe_bias_backward(tsr_context *ctx, const tsr_moe_bias_backward_args *args);
TSR_API tsr_status tsr_moe_bias_backward_prepare(tsr_context *ctx,
                                                 const tsr_moe_bias_backward_args *args,
                                                 size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
