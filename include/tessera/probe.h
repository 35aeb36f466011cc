// SPDX-License-Identifier: Apache-2.0
#ifndef TESSERA_PROBE_H
#define TESSERA_PROBE_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// A known amount of work on all threads of a context. The caller times it to find the machine's ceilings (the library
// itself never times anything).
//
// FMA           fp32 fused multiply-adds on registers alone, in the context's instruction set, with enough independent
//               chains to hide their latency.
// READ, WRITE   loads from source; stores to destination.
// COPY          source to destination.
// UPDATE        destination read, changed and written back in place.
// ..._STREAM    with non-temporal stores, which bypass the caches; like the plain kind if the instruction set has none.
// BF16_DOT      bf16 products summed in fp32 on registers alone, by vdpbf16ps: needs a context on AVX-512 and a machine
//               with AVX512-BF16.
// BF16_TILES    the same on AMX's tiles, if the operating system permits them too; on CUDA on the tensor cores, where
//               the figure is fp16's as well.
// BYTE_DOT      products of unsigned by signed bytes, summed in 32 bits on registers alone, by vpdpbusd, two operations each: needs
//               a context on AVX-512 and a machine with AVX512-VNNI.
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
    TSR_PROBE_BYTE_DOT,
    TSR_PROBE_COUNT
} tsr_probe_kind;

// Each thread takes a contiguous share of the buffers and goes over it repeat times, without waiting for the others, so
// that small buffers stay in the thread's own caches. For FMA, BF16_DOT and BYTE_DOT a repetition is 4096 steps of each
// chain of every thread, for BF16_TILES 512.
//
// Alignment  source and destination 64 bytes; bytes a multiple of 4096. They must not overlap.
// Values     source may hold anything, but fill it with numbers: some machines move zeros faster than data. destination
//            is overwritten, by the source (COPY) or by unspecified values; UPDATE reads floats there.
// CUDA       as many threads as fit on the card at once go over the buffers, 16 bytes at a time with a common stride;
//            source and destination are device memory, and the call returns when the probe is queued.
// Errors     INVALID_ARGUMENT, UNSUPPORTED (BF16_DOT and BYTE_DOT, on CUDA always; BF16_TILES); on CUDA those of a launch too.
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
