// SPDX-License-Identifier: Apache-2.0
// Tessera: fused transformer kernels behind one C API. This header brings in all the others.
//
// Conventions, said once:
// - A call takes a context and one args struct, written with its initialiser macro:
//     tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = x, .y = y));
//   What is not named is zero: absent, or the documented default. A field beside which there is a has_ one is looked
//   at only where that is set: .eps = 1e-6f, .has_eps = 1. A value above 0 without it is INVALID_ARGUMENT.
//   C++ has neither the macros' named arguments nor their addresses. There a struct is filled field by field,
//     tsr_softmax_forward_args args = {}; args.size = sizeof args; args.x = x; args.y = y;
//   and a tensor made by tsr_tensor_contiguous.
// - Calls are complete when they return on the CPU; on CUDA they are in their stream's queue. They never print, exit or
//   keep a pointer.
// - A call that fails returns a status, leaves one sentence in tsr_last_error() and its outputs
//   either untouched or, where it says so, undefined; the context serves the next call. Beside the errors that
//   are listed with it, any call on CUDA may give UNSUPPORTED (no kernel for this device, and no compiler that makes one),
//   COMPILE, DEVICE and DEVICE_LOST, and on any device IO and INTERNAL are for what no argument explains.
// - tsr_<op>_<pass>_prepare takes the same args, checks them and gives the exact bytes of
//   workspace.
// - NaN and infinities of an input follow the formulas, as IEEE 754 has them (inf - inf and 0 inf are NaN), in every
//   variant alike; which elements they reach, and what differs, is said with each call. Nothing traps, and
//   the caller's floating-point environment, exception flags too, is after a call what it was before.
// - "Bitwise repeatable" holds for NaN too, sign and payload included. "Batch-invariant" says of NaN that it is one:
//   where two meet in an element, which of them stays may follow the rest of the batch.
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
#include <tessera/device.h>
#include <tessera/dlpack.h>
#include <tessera/embedding.h>
#include <tessera/kernels.h>
#include <tessera/matmul.h>
#include <tessera/matmul_grouped.h>
#include <tessera/norm.h>
#include <tessera/probe.h>
#include <tessera/profile.h>
#include <tessera/rope.h>
#include <tessera/self_attention.h>
#include <tessera/softmax.h>
#include <tessera/tuning.h>
#include <tessera/types.h>
#include <tessera/variants.h>

#endif
