// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_MATMUL_H
#define TESSERA_MATMUL_H

#include <tessera/activation.h>
#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// The accuracy that f32 products may give up for speed. Each value also allows what the values before it allow. The CPU,
// and cards and problems without a faster kernel, compute as by default.
typedef enum tsr_matmul_math {
    TSR_MATMUL_MATH_DEFAULT = 0, // the bound under Numerics
    TSR_MATMUL_MATH_SPLIT,       // that bound for finite operands: see f32 on Hopper
    TSR_MATMUL_MATH_TF32,        // operands may be rounded to 11 bits: see f32 on Hopper
    TSR_MATMUL_MATH_COUNT
} tsr_matmul_math;

// c = act(alpha op(a) op(b) + bias) [gate(alpha op(a) op(b_up) + bias_up)] + residual [+ c], with the epilogue fused:
//
//   v = alpha op(a) op(b) + bias          always; alpha is 1 unless has_alpha
//   v = act(v)                            activation
//   v = v gate(alpha op(a) op(b_up) + bias_up)  b_up given, bias_up only with it: SwiGLU, GeGLU over separate gate (b) and up
//                                         weights; gate(up) is up, but for SWIGLU_CLAMPED, which needs b_up
//                                         (tessera/activation.h)
//   v = v + residual                      residual given
//   c = c + v or v                        accumulate or not
//
// Shapes    a (batch..., m, k), or (batch..., k, m) with transpose_a; b, b_up (batch..., k, n), or
//           (batch..., n, k) with transpose_b; c, residual (batch..., m, n); bias, bias_up (n). Up to 3 batch
//           dimensions; those of b may be absent (shared by all), those of a must be c's.
// Strides   1 in one of the last two dimensions of a, b and b_up (so a transposed view is legal without the flag) and in
//           the last of c, residual, bias and bias_up; else any, 0 too for inputs. Elements of an output must not overlap:
//           sorted by size, each of its strides is at least the span of the dimensions below.
// Dtypes    a and b alike: f32, bf16, f16; or a f32 and b bf16 or f16, whose elements then count as they are. b_up as b. c: a's
//           dtype or f32. bias, bias_up, residual: a's dtype or f32, each for itself. accumulate needs c f32. f64 throughout on
//           "reference".
// fp8       a and b each e4m3 or e5m2, b_up as b; c, bias, bias_up and residual f32 or one 16-bit dtype. The value of an element
//           is the element times its scale. Scales are f32 on the tensors' device, so that earlier calls on the stream
//           may compute them; an absent scale is 1. Per tensor: a_scale, b_scale, b_up_scale have shape () or (1). Per
//           block: a_scale and b_scale are both present, and b_up_scale with b_up. a_scale (batch..., m, ceil(k / 128))
//           has a scale for each 128 columns of a row of a; b_scale and b_up_scale (batch..., ceil(k / 128),
//           ceil(n / 128)) have one for each 128 x 128 of b. Each is transposed if its operand is, may lack the batch
//           dimensions, and has a stride of 1 in one of its last two dimensions.
// Aliasing  residual may be c itself; c must not overlap a, b, b_up, bias, bias_up or scales.
// NaN       A NaN in a row of op(a) affects only that row of c; in a column of op(b), bias or bias_up, only that column; in
//           residual, only that element. 0 times an infinity is NaN too, so padding must be finite.
// k = 0     the product is 0: c is the epilogue of 0, and unchanged under accumulate without bias or
//           residual. Without accumulate c is never read, so NaN in it does no harm.
// Numerics  fp32 accumulation in blocks of k. Error: (8 + 4 sqrt(k)) 2^-24 (|a||b|), carried through the
//           epilogue, plus rounding to c's dtype. "amx_bf16", "avx512_bf16" and "skinny_bf16", the defaults for bf16
//           on CPUs with AMX or AVX512-BF16, count operands and sums below 2^-126 as 0. Bitwise repeatable, for any
//           number of threads too. Batch-invariant for m above 16, and for every m under TSR_BATCH_INVARIANT. Scales,
//           elements times their scales, products of scales with each other and with alpha, and sums times scales
//           must be normal numbers of fp32.
// CUDA      f32, bf16, f16. Tensor cores compute the 16-bit products, from sm_80 on; their sums are split at 2,048
//           columns of k, on Hopper at 16,384 if c is f16 and at 65,536 if it is bf16. The bounds are the same, with
//           two additions for results of 16 bits: a sum of more than 8,192 terms may lose a further eighth of what
//           rounding it to 16 bits may lose, and a GELU the same of its tail |v| Phi(-|v|).
//           Bitwise repeatable on one kind of card; batch-invariant only under TSR_BATCH_INVARIANT, which does not split k
//           over blocks and so is slower for small m. An operand is copied into the workspace if its lines do not start
//           at multiples of 16 bytes, or if they overlap (strides of 0) on Hopper; b of 16 bits beside a of f32 always is, as f32,
//           and math changes nothing then.
//           fp8 on Hopper: the tensor cores add 32 products at a time to a sum, and truncate all of them and the sum 13
//           bits below the leading bit of the largest. So partial sums over 256 of k, or 128 with block scales, are added
//           in fp32. In place of 8 2^-24 the error has at worst 2^-5, or 2^-6 with block scales; for sums of one sign
//           2^-10 and 2^-11 were measured. fast_accumulate lets the tensor cores add all of k in products with scales
//           per tensor: k 2^-13 at worst; 4 2^-13 was measured for operands around 0, and a tenth for sums of one sign.
//           It changes nothing elsewhere. An operand is copied into the workspace unless its lines run along k, do not
//           overlap and start at multiples of 16 bytes.
//           f32 on Hopper: math may allow the tensor cores. SPLIT, "cuda-bf16x6", writes each number as a sum of three
//           8-bit parts and adds six of the nine products of parts. The error is the bound above plus
//           2^-126 (|a| + |b| + 2) for each term, since parts of numbers below 2^-133, and results below 2^-126, may
//           count as 0; an infinity in a or b gives NaN. TF32, "cuda-tf32": the error is
//           (2^-10 + 2^-13 + (8 + 4 sqrt(k)) 2^-24) (|a||b|) plus the same for each term; numbers above
//           2^128 (1 - 2^-11) may count as infinite. "cuda-tf32" copies operands that do not run along k into the
//           workspace, "cuda-bf16x6" all operands.
// Errors    INVALID_ARGUMENT, UNSUPPORTED (variant), WORKSPACE, OUT_OF_MEMORY.
// Source    Goto, van de Geijn: Anatomy of high-performance matrix multiplication, 2008. Van Zee,
//           van de Geijn: BLIS, 2015. Micikevicius and others: FP8 formats for deep learning, arXiv:2209.05433.
//           DeepSeek-AI: DeepSeek-V3, arXiv:2412.19437, section 3.3 (block scales, sums in fp32).
typedef struct tsr_matmul_forward_args {
    TSR_CALL_FIELDS;
    tsr_tensor a;        // in     (batch..., m, k)
    tsr_tensor b;        // in     (batch..., k, n)
    tsr_tensor b_up;     // in     (batch..., k, n), optional
    tsr_tensor bias;     // in     (n), optional
    tsr_tensor residual; // in     (batch..., m, n), optional
    tsr_tensor c;        // out    (batch..., m, n); in and out under accumulate
    int32_t transpose_a;
    int32_t transpose_b;
    tsr_activation activation;
    int32_t accumulate;
    float alpha;
    int32_t has_alpha;
    tsr_tensor a_scale; // in () or (1), or (batch..., m, ceil(k / 128)); fp8, optional
    tsr_tensor b_scale; // in () or (1), or (batch..., ceil(k / 128), ceil(n / 128)); fp8, optional
    tsr_tensor b_up_scale;   // in as b_scale, for b_up; optional
    int32_t fast_accumulate; // fp8 on tensor cores: see Numerics
    tsr_matmul_math math;    // of f32: it changes nothing elsewhere
    tsr_tensor bias_up;      // in (n), optional, with b_up
} tsr_matmul_forward_args;

#define TSR_MATMUL_FORWARD_ARGS(...)                                                               \
    ((tsr_matmul_forward_args){.size = sizeof(tsr_matmul_forward_args), __VA_ARGS__})

TSR_API tsr_status tsr_matmul_forward(tsr_context *ctx, const tsr_matmul_forward_args *args);
TSR_API tsr_status tsr_matmul_forward_prepare(tsr_context *ctx, const tsr_matmul_forward_args *args,
                                              size_t *workspace_bytes);

// Gradients of c = act(op(a) op(b) + bias) + residual; that of residual is dc itself.
//
//   g = dc act'(preact)     preact = op(a) op(b) + bias, given when activation is not NONE
//   da = g op(b)^T, db = op(a)^T g, each laid out as its tensor (transposed with the flag), dbias = sum_m g
//
// Optional  da, db, dbias: an absent one is not computed. dbias: f32 or a's dtype. With shared b (no
//           batch dimensions) db and dbias sum over the batch.
// Gated     call this twice, once for each product, with the gradients that tsr_activation_backward gives. So SWIGLU_CLAMPED
//           is INVALID_ARGUMENT here.
// Dtypes    a and b f32, bf16 or f16; dc, preact, da, db: a's dtype. With an activation g is stored in that dtype.
// Aliasing  none: da, db and dbias must not overlap a, b, preact, dc or each other.
// Numerics  with L the number of terms of an element's sum (n for da, m for db; m batches for dbias and
//           the db of a shared b), the error is
//             1.13 (r + (8 + 4 sqrt(L)) 2^-24) (sum of the |dc| |factor|),
//           plus rounding to dtype. 1.13 bounds the slope of an activation; for RELU2 read 2 max(preact, 0), each term's
//           own. r = 24 2^-24 + the unit roundoff of a's dtype is the error of g as stored; without an activation read
//           1 and 0 for them. With an activation
//           f16 adds 2^-25 for each g; bf16 adds 2^-126 (|g| + |factor| + 2) for each term. Bitwise
//           repeatable, for any number of threads too; da is batch-invariant under TSR_BATCH_INVARIANT.
// Otherwise as forward.
typedef struct tsr_matmul_backward_args {
    TSR_CALL_FIELDS;
    tsr_tensor a;      // in   (batch..., m, k)
    tsr_tensor b;      // in   (batch..., k, n)
    tsr_tensor preact; // in   (batch..., m, n), with an activation
    tsr_tensor dc;     // in   (batch..., m, n)
    tsr_tensor da;     // out  as a, optional
    tsr_tensor db;     // out  as b, optional
    tsr_tensor dbias;  // out  (n), optional
    int32_t transpose_a;
    int32_t transpose_b;
    tsr_activation activation;
} tsr_matmul_backward_args;

#define TSR_MATMUL_BACKWARD_ARGS(...)                                                              \
    ((tsr_matmul_backward_args){.size = sizeof(tsr_matmul_backward_args), __VA_ARGS__})

TSR_API tsr_status tsr_matmul_backward(tsr_context *ctx, const tsr_matmul_backward_args *args);
TSR_API tsr_status tsr_matmul_backward_prepare(tsr_context *ctx,
                                               const tsr_matmul_backward_args *args,
                                               size_t *workspace_bytes);

#ifdef __cplusplus
}
#endif
#endif
