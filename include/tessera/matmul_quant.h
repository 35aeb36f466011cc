// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_MATMUL_QUANT_H
#define TESSERA_MATMUL_QUANT_H

#include <tessera/activation.h>
#include <tessera/dequantize.h>

#ifdef __cplusplus
extern "C" {
#endif

// c = act(alpha a b^T + bias) [gate(alpha a b_up^T + bias_up)] + residual [+ c] for quantised weights b, as they lie in their file.
//
//   tsr_tensor b = TSR_TENSOR(bytes, TSR_U8, n, k / 32 * 18);
//   tsr_matmul_quant(ctx, &TSR_MATMUL_QUANT_ARGS(.a = x, .b = b, .quant = TSR_QUANT_Q4_0, .c = y));
//   tsr_matmul_quant(ctx, &TSR_MATMUL_QUANT_ARGS(.a = x, .b = gate, .b_up = up, .quant = TSR_QUANT_Q4_0,
//                                                .activation = TSR_ACTIVATION_SILU, .c = h));
//
// The epilogue is that of tessera/matmul.h, the formats and their scales those of tessera/dequantize.h.
//
// Shapes    a (..., k); b, b_up (n, tsr_quant_row_bytes(quant, k)); c, residual (..., n); bias, bias_up (n). b_scale, b_zero and
//           b_minimum (n, groups) as dequantize's, those of b_up alike. Leading dimensions of a, c and residual collapse to
//           rows of one stride. No rows, columns or depth are legal.
// Strides   last dimension contiguous; row strides of inputs any that is not negative, of c at least n.
// Dtypes    a f32, bf16, f16; b and b_up u8; c, bias, bias_up and residual: a's dtype or f32, each for itself; accumulate needs c
//           f32. b_scale, b_zero, b_minimum and those of b_up alike: f32, bf16, f16, and u8 the scales of MXFP4. f64 throughout,
//           but for bytes, on "reference".
// Aliasing  residual may be c itself; c must not overlap any other input.
// Numerics  the numbers of b are those of tsr_dequantize in f32; then as tessera/matmul.h for f32. Bitwise repeatable, for any
//           number of threads too. Batch-invariant for more than 16 rows, and for any number under TSR_BATCH_INVARIANT.
//           On processors with AVX512-VNNI ("integers") where b has no zero, minimum or offset (Q4_1, Q4_K): a number of a is
//           first rounded to a multiple of a power of two, by at most 2^-15 of the largest |a| among columns 32 i to 32 i + 31
//           of its row, or by 2^-115; numbers of bf16 and f16 near the largest keep their value. Sums of 32 products are then
//           exact. Other variants, "skinny" and "local", do not round a.
// NaN       as tessera/matmul.h; scales that are not finite make what dequantize says.
// CUDA      the numbers of b go to the workspace in a's dtype, in 16 bits rounded, which adds half a unit in their last place times
//           (|a||b|) to the error; then as tessera/matmul.h.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    as tessera/dequantize.h and tessera/matmul.h.
typedef struct tsr_matmul_quant_args {
    TSR_CALL_FIELDS;
    tsr_tensor a;            // in  (..., k)
    tsr_tensor b;            // in  (n, row_bytes), u8
    tsr_tensor b_scale;      // in  (n, groups), with INT8, INT4, MXFP4
    tsr_tensor b_zero;       // in  (n, groups), optional, with INT8 and INT4
    tsr_tensor b_minimum;    // in  (n, groups), optional, with INT8 and INT4
    tsr_tensor b_up;         // in  (n, row_bytes), u8, optional
    tsr_tensor b_up_scale;   // in  (n, groups), with b_up as b_scale with b
    tsr_tensor b_up_zero;    // in  (n, groups), optional, with b_up
    tsr_tensor b_up_minimum; // in  (n, groups), optional, with b_up
    tsr_tensor bias;         // in  (n), optional
    tsr_tensor bias_up;      // in  (n), optional, with b_up
    tsr_tensor residual;     // in  (..., n), optional
    tsr_tensor c;            // out (..., n); in and out under accumulate
    tsr_quant_format quant;
    int32_t group; // columns of a scale, with INT8 and INT4; 0: all
    tsr_activation activation;
    int32_t accumulate;
    float alpha;
    int32_t has_alpha;
} tsr_matmul_quant_args;

#define TSR_MATMUL_QUANT_ARGS(...)                                                                 \
    ((tsr_matmul_quant_args){.size = sizeof(tsr_matmul_quant_args), __VA_ARGS__})

TSR_API tsr_status tsr_matmul_quant(tsr_context *ctx, const tsr_matmul_quant_args *args);
TSR_API tsr_status tsr_matmul_quant_prepare(tsr_context *ctx, const tsr_matmul_quant_args *args,
                                            size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
