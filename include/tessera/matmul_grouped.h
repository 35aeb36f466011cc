// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_MATMUL_GROUPED_H
#define TESSERA_MATMUL_GROUPED_H

#include <tessera/activation.h>
#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Products of groups of rows, each group with its own matrix: the experts of a mixture, batches of unequal lengths. For
// each group g and each of its rows i, with the epilogue of tessera/matmul.h:
//
//   v = alpha a_i b[g] + bias[g]          alpha is 1 unless has_alpha
//   v = act(v)                            activation
//   v = v gate(alpha a_i b_up[g] + bias_up[g])  b_up given, bias_up only with it
//   c_i = c_i + v or v                    accumulate or not
//
// Groups    either offsets or counts says which rows belong to a group; both are int32 on the context's device.
//             offsets (num_groups + 1): a (rows, k), c (rows, n); group g has rows offsets[g] to offsets[g + 1] - 1.
//             counts (num_groups): a (num_groups, rows, k), c (num_groups, rows, n); group g has the first
//             counts[g] of its rows.
//           Groups may be empty. Rows that belong to no group are neither read nor written.
// Row list  a_rows (rows), with offsets only: a is then (num_a_rows, k) for any num_a_rows, and a_i above is row a_rows[i] of
//           a, as tsr_moe_permute gives it (row_tokens). Rows of a may occur many times or never. Elements of a_rows that
//           belong to no group are not indices (they may be -1), and rows of a that no group's element names are not read.
// Shapes    b, b_up (num_groups, k, n), or (num_groups, n, k) with transpose_b; bias, bias_up (num_groups, n).
// Strides   1 in the last dimension of a, c, bias and bias_up, and in one of the last two of b and b_up (so a transposed view is
//           legal without the flag); else any, 0 too for inputs. Elements of c must not overlap.
// Dtypes    a and b alike: f32, bf16, f16; or a f32 and b bf16 or f16, which CUDA copies to f32. b_up as b. c: a's dtype or f32.
//           bias, bias_up: a's dtype or f32, each for itself. accumulate needs c f32. f64 throughout on "reference". offsets,
//           counts and a_rows int32.
// fp8       a and b each e4m3 or e5m2, b_up as b, without a_rows (tsr_quantize takes a list); c, bias and bias_up f32 or one
//           16-bit dtype. The value of an element is the element times its scale, which is f32 on the tensors' device; an absent
//           scale is 1. One scale: a_scale, b_scale, b_up_scale have shape () or (1); (1) beside one group is of groups. Or all of
//           them are present, and each has one element or more: b_scale and b_up_scale (num_groups), one for each group, or
//           (num_groups, ceil(k / 128), ceil(n / 128)), one for each 128 x 128 of b, transposed if b is; a_scale (rows,
//           ceil(k / 128)), with counts (num_groups, rows, ceil(k / 128)), one for each 128 columns of a row of a. These have a
//           stride of 1 in one of their last two dimensions.
// Aliasing  c must not overlap any input.
// k = 0     as tessera/matmul.h: c is the epilogue of 0. Without accumulate c is never read.
// Numerics  as tessera/matmul.h: fp32 accumulation in blocks of k, error (8 + 4 sqrt(k)) 2^-24 (|a||b|) carried through the
//           epilogue, plus rounding to c's dtype. Bitwise repeatable, for any number of threads too. A row's bits do not
//           depend on where its group begins or on other groups' rows, as long as rows and num_groups are the same; on
//           CUDA, under TSR_BATCH_INVARIANT, for any rows and num_groups; where rows or matrices have gaps between them, if
//           their strides are multiples of 16 bytes. On the CPU, without TSR_BATCH_INVARIANT, they may depend on the size of
//           the row's own group if that is at most 16. In one variant a row has the same bits whether or not it comes by a_rows.
// NaN       A NaN in a row of a affects only the rows of c that are products of it. A NaN in b[g], bias[g] or bias_up[g]
//           affects only its column, in group g's rows.
// Bad offsets  on the CPU offsets that fall or lie outside of [0, rows], counts outside of [0, rows], and a group's elements
//           of a_rows outside of [0, num_a_rows) are INVALID_ARGUMENT, before anything is written. On CUDA the host does
//           not look: each offset and count is clamped to [0, rows], and a group ends no earlier than it begins; if groups
//           then share rows, c is undefined. A row of a that does not exist counts as zeros.
// CUDA      f32, bf16, f16; no synchronisation with the host. a, a_rows and c each have up to 2^28 rows. fp8 on Hopper's tensor
//           cores, "cuda-fp8", for e4m3 both, if lines of a and b run along k and start at multiples of 16 bytes: the
//           error is that of tessera/matmul.h for fp8 on Hopper, with block scales if any are of groups or blocks.
// Gradients for a: this call with dc as a, da as c and b transposed; for b: tsr_matmul_grouped_backward.
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
    tsr_tensor a_rows;     // in  (rows), int32, optional, with offsets
    tsr_tensor bias_up;    // in  (num_groups, n), optional, with b_up
    tsr_tensor a_scale;    // in  (1), (rows, ceil(k / 128)) or (num_groups, rows, ceil(k / 128))
    tsr_tensor b_scale;    // in  (1), (num_groups) or (num_groups, ceil(k / 128), ceil(n / 128))
    tsr_tensor b_up_scale; // in  as b_scale, for b_up; these three with fp8, optional
} tsr_matmul_grouped_forward_args;

#define TSR_MATMUL_GROUPED_FORWARD_ARGS(...)                                                       \
    ((tsr_matmul_grouped_forward_args){.size = sizeof(tsr_matmul_grouped_forward_args),            \
                                       __VA_ARGS__})

TSR_API tsr_status tsr_matmul_grouped_forward(tsr_context *ctx,
                                              const tsr_matmul_grouped_forward_args *args);
TSR_API tsr_status tsr_matmul_grouped_forward_prepare(tsr_context *ctx,
                                                      const tsr_matmul_grouped_forward_args *args,
                                                      size_t *workspace_bytes);

// The gradients of the groups' matrices: db[g] = alpha (rows of a)^T (rows of dc) over the rows of group g, added to db[g]
// with accumulate. An empty group makes db[g] 0; with accumulate db[g] stays as it is.
//
// Shapes    a (rows, k), dc (rows, n) with offsets; (num_groups, rows, k), (num_groups, rows, n) with counts. db
//           (num_groups, k, n), or (num_groups, n, k) with transpose_b.
// Row lists  a_rows and dc_rows (rows), each with offsets only: a is then (num_a_rows, k), dc (num_dc_rows, n), and the sum
//           is over row a_rows[i] of a with row dc_rows[i] of dc. Both lists, or a list and the tensor without one, have
//           the same number of rows. Otherwise as forward's.
// Strides   1 in the last dimension of all tensors.
// Dtypes    a and dc alike; db: a's dtype or f32. accumulate needs db f32.
// Numerics  as forward, with the number of rows of the group in place of k. If forward had an activation or a gate, dc is
//           the gradient of the product itself (tsr_activation_backward gives it).
// NaN       In the rows of group g, a NaN in column i of a affects only row i of db[g], one in column j of dc only column j.
// Otherwise as forward; the bits of db[g] depend only on the rows of group g.
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
    tsr_tensor a_rows;  // in  (rows), int32, optional, with offsets
    tsr_tensor dc_rows; // in  (rows), int32, optional, with offsets
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
