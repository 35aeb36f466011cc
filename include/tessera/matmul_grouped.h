// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_MATMUL_GROUPED_H
#define TESSERA_MATMUL_GROUPED_H

#include <tessera/activation.h>
#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Products of groups of rows, each group with a matrix of its own: the experts of a mixture, batches of unequal lengths. For each
// group g and each of its rows i, with the epilogue of tessera/matmul.h:
//
//   v = alpha a_i b[g] + bias[g]          alpha is 1 unless has_alpha
//   v = act(v)                            activation
//   v = v (alpha a_i b_up[g])             b_up given: SwiGLU, GeGLU over separate gate (b) and up weights
//   c_i = c_i + v or v                    accumulate or not
//
// Groups    either offsets or counts says which rows are a group's; both are int32 and lie on the context's device.
//             offsets (num_groups + 1): a (rows, k), c (rows, n); group g has rows offsets[g] to offsets[g + 1] - 1.
//             counts (num_groups): a (num_groups, rows, k), c (num_groups, rows, n); group g has the first
//             counts[g] of its rows.
//           Groups may be empty. Rows of no group are not read, whatever they hold, and not written.
// Shapes    b, b_up (num_groups, k, n), or (num_groups, n, k) with transpose_b; bias (num_groups, n).
// Strides   the last of a, c and bias is 1, and the last or the last but one of b and b_up (so a transposed view is
//           legal without the flag); the others any. Strides of 0 on inputs. c keeps its elements apart.
// Dtypes    a, b and b_up alike: f32, bf16, f16. c: a's dtype or f32. bias: a's dtype or f32. accumulate needs c f32. f64
//           throughout on "reference".
// Aliasing  c must not overlap any input.
// k = 0     as tessera/matmul.h: c is the epilogue of 0. Without accumulate c is never read.
// Numerics  as tessera/matmul.h: fp32 accumulation in blocks of k, error (8 + 4 sqrt(k)) 2^-24 (|a||b|) carried through the
//           epilogue, plus rounding to c's dtype. Bitwise repeatable, for any number of threads too. A row's bits do not depend
//           on where its group begins or on other groups' rows, as long as rows and num_groups are the same; on CUDA
//           under TSR_BATCH_INVARIANT for any rows and num_groups. On the CPU they may depend on whether its own group has
//           up to 16 rows, and how many; not under TSR_BATCH_INVARIANT.
// NaN       in a row of a is in that row of c alone, in b[g] or bias[g] in that column of the rows of group g.
// Bad offsets  on the CPU those outside of [0, rows] or falling, and counts outside of [0, rows], are INVALID_ARGUMENT,
//           before anything is written. On CUDA the host does not look: each is clamped to [0, rows], an end to its
//           group's begin at least; where groups then share rows, c is undefined.
// CUDA      f32, bf16, f16; no synchronisation with the host. Up to 2^28 rows of each of a and c.
// Gradients of a: this call with dc as a, da as c and b transposed; of b: tsr_matmul_grouped_backward.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Gale, Narayanan, Young, Zaharia: MegaBlocks, efficient sparse training with mixture-of-experts,
//           arXiv:2211.15841, 2022.
typedef struct tsr_matmul_grouped_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor a;       // in  (rows, k) or (num_groups, rows, k)
    tsr_tensor b;       // in  (num_groups, k, n)
    tsr_tensor b_up;    // in  (num_groups, k, n), optional
    tsr_tensor bias;    // in  (num_groups, n), optional
    tsr_tensor offsets; // in  (num_groups + 1), int32, or absent
    tsr_tensor counts;  // in  (num_groups), int32, or absent
    tsr_tensor c;       // out (rows, n) or (num_groups, rows, n); in and out under accumulate
    int32_t transpose_b;
    tsr_activation activation;
    int32_t accumulate;
    float alpha;
    int32_t has_alpha;
} tsr_matmul_grouped_forward_args;

#define TSR_MATMUL_GROUPED_FORWARD_ARGS(...)                                                       \
    ((tsr_matmul_grouped_forward_args){.size = sizeof(tsr_matmul_grouped_forward_args),            \
                                       __VA_ARGS__})

TSR_API tsr_status tsr_matmul_grouped_forward(tsr_context *ctx,
                                              const tsr_matmul_grouped_forward_args *args);
TSR_API tsr_status tsr_matmul_grouped_forward_prepare(tsr_context *ctx,
                                                      const tsr_matmul_grouped_forward_args *args,
                                                      size_t *workspace_bytes);

// The gradients of the groups' matrices, db[g] = alpha (rows of a)^T (rows of dc) over the rows of group g, or that added
// to db with accumulate. An empty group gives 0, and leaves db[g] with accumulate.
//
// Shapes    a (rows, k), dc (rows, n) with offsets; (num_groups, rows, k), (num_groups, rows, n) with counts. db
//           (num_groups, k, n), or (num_groups, n, k) with transpose_b.
// Strides   the last of all is 1.
// Dtypes    a and dc alike; db: a's dtype or f32. accumulate needs db f32.
// Numerics  as forward, with the rows of the group in the place of k. With an activation or a gate dc is the gradient of
//           the product itself (tsr_activation_backward).
// NaN       in a column of a group's rows of a is in that row of db[g] (k), of dc in that column (n); other groups have none.
// Otherwise as forward; db's bits of a group depend on its own rows alone.
typedef struct tsr_matmul_grouped_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor a;       // in  (rows, k) or (num_groups, rows, k)
    tsr_tensor dc;      // in  (rows, n) or (num_groups, rows, n)
    tsr_tensor offsets; // in  (num_groups + 1), int32, or absent
    tsr_tensor counts;  // in  (num_groups), int32, or absent
    tsr_tensor db;      // out (num_groups, k, n); in and out under accumulate
    int32_t transpose_b;
    int32_t accumulate;
    float alpha;
    int32_t has_alpha;
} tsr_matmul_grouped_backward_args;

#define TSR_MATMUL_GROUPED_BACKWARD_ARGS(...)                                                      \
    ((tsr_matmul_grouped_backward_args){.size = sizeof(tsr_matmul_grouped_backward_args),          \
                                        __VA_ARGS__})

TSR_API tsr_status tsr_matmul_grouped_backward(tsr_context *ctx,
                                               const tsr_matmul_grouped_backward_args *args);
TSR_API tsr_status tsr_matmul_grouped_backward_prepare(tsr_context *ctx,
                                                       const tsr_matmul_grouped_backward_args *args,
                                                       size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
