// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_DEQUANTIZE_H
#define TESSERA_DEQUANTIZE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// How bytes hold the numbers of a row: in blocks of some columns, as GGUF files have them, or as codes beside tensors of scales.
// q is a number's code; every product and sum is rounded to fp32.
//
//   format      columns  bytes  value
//   Q8_0        32       34     d q               q int8
//   Q4_0        32       18     d (q - 8)         q 4 bits, like the next two; columns 16 to 31 in the upper halves of bytes
//   Q4_1        32       20     d q + m
//   MXFP4_GGUF  32       17     2^(e - 127) q     q e2m1, e the block's first byte
//   Q4_K        256      144    d s q - (dmin t)  q 4 bits; s, t 6 bits, one for each 32 columns
//   Q6_K        256      210    d s (q - 32)      q 6 bits; s int8, one for each 16 columns
//   INT8        1        1      scale (q - zero) + minimum, q int8
//   INT4        2        1      the same, q 4 bits; without zero and minimum q - 8. Even columns in the lower halves of bytes
//   MXFP4       32       16     2^(scale - 127) q, q e2m1, scale a byte, of which 255 is NaN. Even columns in the lower halves
//
// d, m and dmin are f16 in the block.
typedef enum tsr_quant_format {
    TSR_QUANT_NONE = 0,
    TSR_QUANT_Q8_0,
    TSR_QUANT_Q4_0,
    TSR_QUANT_Q4_1,
    TSR_QUANT_Q4_K,
    TSR_QUANT_Q6_K,
    TSR_QUANT_MXFP4_GGUF,
    TSR_QUANT_INT8,
    TSR_QUANT_INT4,
    TSR_QUANT_MXFP4,
    TSR_QUANT_COUNT
} tsr_quant_format;

TSR_API const char *tsr_quant_format_name(tsr_quant_format format); // "q8_0", "mxfp4_gguf", ...

// Bytes of a row of so many columns; -1 if no row of the format has as many. An odd last column of INT4 takes a byte.
TSR_API int64_t tsr_quant_row_bytes(tsr_quant_format format, int64_t cols);

// y = the numbers of quantised rows: of weights, or of an embedding's table.
//
//   tsr_tensor x = TSR_TENSOR(bytes, TSR_U8, rows, cols / 32 * 18), y = TSR_TENSOR(floats, TSR_F32, rows, cols);
//   tsr_dequantize(ctx, &TSR_DEQUANTIZE_ARGS(.x = x, .y = y, .quant = TSR_QUANT_Q4_0));
//   tsr_dequantize(ctx, &TSR_DEQUANTIZE_ARGS(.x = x, .x_rows = token_ids, .y = some, .quant = TSR_QUANT_Q4_0));
//
// Shapes    y (..., cols); x (..., tsr_quant_row_bytes(format, cols)). INT8 and INT4 need scale and may have zero and minimum, all
//           (..., groups) with groups = ceil(cols / group); MXFP4 needs scale, with a group of 32; the others have none. Leading
//           dimensions collapse to rows of one stride. No rows and no columns are legal.
// Row list  x_rows (rows): y's row i comes from row x_rows[i] of x and its scales, -1 gives a row of zeros. A row that the list
//           does not name is not read.
// group     with INT8 and INT4 a multiple of 32, or 0 for one scale a row; with the others 0.
// Strides   last dimension contiguous; row strides of inputs any that is not negative, of y at least cols.
// Dtypes    x u8; y f32, bf16, f16; scale, zero and minimum alike: f32, bf16, f16, and u8 the scale of MXFP4. On "reference" y may
//           be f64, and then scales too. x_rows int32.
// Aliasing  y overlaps no input.
// Numerics  in f32 the bits of the formulas above, those of gguf 0.19's dequantize for the formats of GGUF; in bf16 and f16 that,
//           rounded. A row depends on nothing else.
// NaN       as arithmetic has it: d or a scale that is not finite makes its block NaN or infinite.
// Bad rows  on the CPU an element of x_rows outside of [-1, num_x_rows) is INVALID_ARGUMENT, before anything is written. On CUDA
//           the host does not look: such a row counts as zeros.
// CUDA      all formats; the same bits. x and rows of x of any alignment.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    the block formats of ggml (ggml-common.h); OCP Microscaling Formats (MX) v1.0; Frantar et al.: GPTQ, arXiv:2210.17323,
//           Lin et al.: AWQ, arXiv:2306.00978 (groups with zeros).
typedef struct tsr_dequantize_args {
    TSR_CALL_FIELDS;
    tsr_tensor x;       // in  (..., row_bytes) or (num_x_rows, row_bytes); u8
    tsr_tensor x_rows;  // in  (rows), int32, optional
    tsr_tensor scale;   // in  (..., groups) or (num_x_rows, groups), with INT8, INT4, MXFP4
    tsr_tensor zero;    // in  as scale, optional, with INT8 and INT4
    tsr_tensor minimum; // in  as scale, optional, with INT8 and INT4
    tsr_tensor y;       // out (..., cols) or (rows, cols)
    tsr_quant_format quant;
    int32_t group; // columns of a scale, with INT8 and INT4; 0: all
} tsr_dequantize_args;

#define TSR_DEQUANTIZE_ARGS(...)                                                                   \
    ((tsr_dequantize_args){.size = sizeof(tsr_dequantize_args), __VA_ARGS__})

TSR_API tsr_status tsr_dequantize(tsr_context *ctx, const tsr_dequantize_args *args);
TSR_API tsr_status tsr_dequantize_prepare(tsr_context *ctx, const tsr_dequantize_args *args,
                                          size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
