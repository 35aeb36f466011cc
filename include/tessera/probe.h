// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_PROBE_H
#define TESSERA_PROBE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// A known amount of work on all threads of a context: timed by the caller, it gives the machine's
// ceilings (the library itself never times anything).
//
// FMA           fp32 fused multiply-adds on registers alone, as many independent chains as it takes
//               to hide their latency, in the context's instruction set.
// READ, WRITE   loads from source; stores to destination.
// COPY          source to destination.
// UPDATE        destination read, changed and written back in place.
// ..._STREAM    with non-temporal stores, which bypass the caches; as the plain kind where the
//               instruction set has none.
// BF16_DOT      products of bf16 added in fp32 on registers alone, by vdpbf16ps: a context on AVX-512 whose
//               machine has AVX512-BF16.
// BF16_TILES    the same on the tiles of AMX, where the system lends them too; on CUDA on the tensor cores, each
//               repetition so many products of 16-bit numbers, fp16 as well.
typedef enum tsr_probe_kind {
    TSR_PROBE_FMA = 0,
    TSR_PROBE_READ,
    TSR_PROBE_WRITE,
    TSR_PROBE_WRITE_STREAM,
    TSR_PROBE_COPY,
    TSR_PROBE_COPY_STREAM,
    TSR_PROBE_UPDATE,
    TSR_PROBE_BF16_DOT,
    TSR_PROBE_BF16_TILES,
    TSR_PROBE_COUNT
} tsr_probe_kind;

// Each thread takes a contiguous share of the buffers and goes over it repeat times, without
// waiting for the others, so that small buffers stay in the thread's own caches. FMA, BF16_DOT: every
// thread does repeat times 4096 steps of each of its chains; BF16_TILES: 512.
//
// Alignment  source and destination 64 bytes; bytes a multiple of 4096. They must not overlap.
// Values     source may hold anything, but some machines move zeros faster than data: fill it with
//            numbers for a figure that means something. destination is overwritten, by the source
//            (COPY) or by what is not specified; UPDATE takes floats there.
// CUDA       every thread that fits on the card at once takes every so many 16 bytes; source and destination are
//            device memory, and the call returns when the probe is queued.
// Errors     INVALID_ARGUMENT, UNSUPPORTED (BF16_DOT, on CUDA always; BF16_TILES); on CUDA what launching may give.
typedef struct tsr_probe_args {
    size_t size; // sizeof this struct; set by TSR_PROBE_ARGS
    tsr_probe_kind kind;
    int64_t repeat;     // at least 0
    const void *source; // READ, COPY, COPY_STREAM
    void *destination;  // WRITE, COPY, their streaming forms, UPDATE
    size_t bytes;       // of source, of destination
} tsr_probe_args;

#define TSR_PROBE_ARGS(...) ((tsr_probe_args){.size = sizeof(tsr_probe_args), __VA_ARGS__})

// *work: floating-point operations (2 per FMA and lane), or bytes read plus bytes written.
TSR_API tsr_status tsr_probe_run(tsr_context *ctx, const tsr_probe_args *args, double *work);

#ifdef __cplusplus
}
#endif
#endif
