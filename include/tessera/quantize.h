// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_QUANTIZE_H
#define TESSERA_QUANTIZE_H

#include <tessera/activation.h>
#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// Rows to fp8 with a scale for each 128 columns, what tsr_matmul_forward takes as a and a_scale. An activation, a gate and a row
// list may come first. With v = act(x), or act(x) gate(up) as in tessera/activation.h, and L the largest value of y's format, 448
// in e4m3 and 57344 in e5m2, for each row and each 128 columns of it, the last ones perhaps fewer:
//
//   y_scale = max(largest finite |v|, 1e-10) / L
//   y = v / y_scale                             rounded to nearest even; NaN if v is NaN or infinite
//
// So y times y_scale is about v, zeros have the scale 1e-10 / L, and an infinity does not disturb its neighbours.
//
//   tsr_tensor y = TSR_TENSOR(y8, TSR_E4M3, rows, cols), s = TSR_TENSOR(scales, TSR_F32, rows, (cols + 127) / 128);
//   tsr_quantize(ctx, &TSR_QUANTIZE_ARGS(.x = x, .y = y, .y_scale = s));
//   tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = y, .a_scale = s, .b = w, .b_scale = w_scale, .c = c));
//
// Shapes    x, up, y: (..., cols), the same shape; y_scale: (..., ceil(cols / 128)). Leading dimensions collapse to rows of one
//           stride. No rows and no columns are legal.
// Row list  x_rows (rows): x and up are then (num_x_rows, cols) for any num_x_rows, y is (rows, cols), and y's row i comes from
//           row x_rows[i] of x and up, as tsr_moe_permute gives it (row_tokens). -1 gives a row of zeros. A row of x may occur many
//           times; one that the list does not name is not read.
// Strides   last dimension contiguous; row stride of x and up any that is not negative (0 repeats a row), of y and y_scale at
//           least their columns; of x_rows any.
// Dtypes    x and up alike: f32, bf16, f16; y: e4m3, e5m2; y_scale: f32. On "reference" x and up may be f64; y_scale is then f64,
//           and y may be f64 too: v / y_scale with the L of e4m3. x_rows int32.
// Aliasing  y and y_scale overlap no input and not each other.
// Numerics  v is fp32, with the error E that tsr_activation_forward has before its rounding to x's dtype; act(x) and v beyond the
//           range of fp32 are infinite. The errors, besides those that follow from E, are
//             y_scale       2^-23 y_scale,
//             y y_scale     |v| (2^-4 + 2^-21) + 2^-10 y_scale in e4m3, |v| (2^-3 + 2^-21) + 2^-17 y_scale in e5m2.
//           (v is multiplied by the fp32 value of 1 / y_scale, so a value next to the middle of two fp8 numbers may become either.)
//           An E changes the scale of its block by at most E / L. Bitwise repeatable, batch-invariant: a row depends on nothing
//           else.
// NaN       A NaN or an infinity of v affects only its element; it is NaN there in both formats.
// Bad rows  on the CPU an element of x_rows outside of [-1, num_x_rows) is INVALID_ARGUMENT, before anything is written. On CUDA
//           the host does not look: such a row counts as zeros.
// CUDA      f32, bf16, f16; the same bounds and guarantees, on one kind of card.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    DeepSeek-AI: DeepSeek-V3, arXiv:2412.19437, section 3.3.
typedef struct tsr_quantize_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;       // in  (..., cols), or (num_x_rows, cols) with x_rows
    tsr_tensor up;      // in  as x, optional
    tsr_tensor x_rows;  // in  (rows), int32, optional
    tsr_tensor y;       // out (..., cols), or (rows, cols) with x_rows
    tsr_tensor y_scale; // out (..., ceil(cols / 128)), or (rows, ceil(cols / 128)) with x_rows; f32
    tsr_activation kind; // of x; SWIGLU_CLAMPED needs up
} tsr_quantize_args;

#define TSR_QUANTIZE_ARGS(...) ((tsr_quantize_args){.size = sizeof(tsr_quantize_args), __VA_ARGS__})

TSR_API tsr_status tsr_quantize(tsr_context *ctx, const tsr_quantize_args *args);
TSR_API tsr_status tsr_quantize_prepare(tsr_context *ctx, const tsr_quantize_args *args,
                                        size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
