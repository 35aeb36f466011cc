// SPDX-License-Identifier: Apache-2.0
// Tessera: fused transformer kernels behind one C API. This header includes all the others.
//
// Conventions of every call:
// - A call takes a context and one args struct, written with its initialiser macro:
//     tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = x, .y = y));
//   Fields that are not named are zero: absent, or the documented default. A field with a matching has_ flag is used
//   only if the flag is set: .eps = 1e-6f, .has_eps = 1. A value above 0 without its flag is INVALID_ARGUMENT.
//   The initialiser macros are not C++. In C++ fill the struct field by field,
//     tsr_softmax_forward_args args = {}; args.size = sizeof args; args.x = x; args.y = y;
//   and make tensors with tsr_tensor_contiguous.
// - On the CPU a call is complete when it returns; on CUDA it is then queued on its stream. Calls never print, exit or
//   keep a pointer.
// - A call that fails returns a status and leaves one sentence in tsr_last_error(). Its outputs are untouched or, where
//   the call says so, undefined. The context serves the next call. Each call lists its errors. Any call on CUDA may also
//   give UNSUPPORTED (no kernel for this device and no compiler to make one), COMPILE, DEVICE and DEVICE_LOST. A call on
//   any device may give IO and INTERNAL for a failure that no argument explains.
// - tsr_<op>_<pass>_prepare takes the same args, checks them and gives the exact workspace size in bytes.
// - NaN and infinities of an input follow the formulas by the rules of IEEE 754 (inf - inf and 0 inf are NaN), in every
//   variant alike. Each call says which elements they reach, and where it differs. Nothing traps. A call leaves the
//   caller's floating-point environment, exception flags included, as it was.
// - "Bitwise repeatable" covers the sign and payload of NaN too. "Batch-invariant" only covers that an element is NaN:
//   where two NaNs meet in an element, the rest of the batch may decide which one stays.
// - Bytes between the rows of a strided output are never written.
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <tessera/activation.h>
#include <tessera/adamw.h>
#include <tessera/attention.h>
#include <tessera/attention_decode.h>
#include <tessera/cast.h>
#include <tessera/context.h>
#include <tessera/cross_entropy.h>
#include <tessera/dequantize.h>
#include <tessera/device.h>
#include <tessera/dlpack.h>
#include <tessera/embedding.h>
#include <tessera/kernels.h>
#include <tessera/matmul.h>
#include <tessera/matmul_grouped.h>
#include <tessera/matmul_quant.h>
#include <tessera/moe.h>
#include <tessera/moe_permute.h>
#include <tessera/moe_route.h>
#include <tessera/norm.h>
#include <tessera/probe.h>
#include <tessera/profile.h>
#include <tessera/quantize.h>
#include <tessera/rope.h>
#include <tessera/sample.h>
#include <tessera/self_attention.h>
#include <tessera/softmax.h>
#include <tessera/tuning.h>
#include <tessera/types.h>
#include <tessera/variants.h>

#endif
