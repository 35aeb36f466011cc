// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_CAST_H
#define TESSERA_CAST_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// y = x, or y = x scale where has_scale is set, rounded to y's dtype: conversion, quantisation,
// dequantisation, strided copy.
//
// Shapes    x, y: (..., cols), the same shape; the leading dimensions of each must collapse to rows of one
//           stride or two, as the heads inside a packed qkv, (tokens, heads, head_dim).
// Strides   last dimension contiguous; those of x any (0 repeats rows); rows of y do not overlap.
// Dtypes    x and y each one of f64, f32, bf16, f16, e4m3, e5m2: any to any.
// Aliasing  y may be x itself (same data, dtype and strides); any other overlap is
//           INVALID_ARGUMENT.
// scale     a factor: to quantise, pass 1 / (the scale that dequantises).
// Numerics  one rounding, to nearest even, subnormals included. With a scale the product is rounded
//           first, in fp32 (in f64 where x or y is f64): error 2^-24 |y| before the rounding to y's
//           dtype. f32, bf16 and f16 overflow to infinity. fp8 saturates: in e4m3 465 and inf give
//           448, in e5m2 all beyond 57344 gives 57344. NaN stays NaN with its sign; a NaN that the
//           scale makes may have either sign. If x and y have one dtype and there is no scale, the
//           bits are copied. Every variant gives the same values. Bitwise repeatable,
//           batch-invariant.
// CUDA      every pair of dtypes, the same values.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Micikevicius and others: FP8 formats for deep learning, arXiv:2209.05433.
typedef struct tsr_cast_args {
    TSR_CALL_FIELDS;
    tsr_tensor x; // in  (..., cols)
    tsr_tensor y; // out (..., cols)
    float scale;
    int32_t has_scale;
} tsr_cast_args;

#define TSR_CAST_ARGS(...) ((tsr_cast_args){.size = sizeof(tsr_cast_args), __VA_ARGS__})

TSR_API tsr_status tsr_cast(tsr_context *ctx, const tsr_cast_args *args);
TSR_API tsr_status tsr_cast_prepare(tsr_context *ctx, const tsr_cast_args *args,
                                    size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
