// SPDX-License-Identifier: Apache-2.0
// The probes of tessera/probe.h for one instruction set.
#ifndef TSRI_PROBE_KERNELS_H
#define TSRI_PROBE_KERNELS_H

#include "cpu/cpu_isa.h"

enum { TSRI_PROBE_STEPS = 4096, TSRI_PROBE_BLOCK = 1024 }; // FMA steps; bytes per unrolled round

// The share of one thread. `bytes` is a multiple of TSRI_PROBE_BLOCK.
struct probe_kernels {
    void (*fma)(int64_t repeat);
    void (*read)(const void *source, int64_t bytes, int64_t repeat);
    void (*write)(void *destination, int64_t bytes, int64_t repeat);
    void (*write_stream)(void *destination, int64_t bytes, int64_t repeat);
    void (*copy)(const void *source, void *destination, int64_t bytes, int64_t repeat);
    void (*copy_stream)(const void *source, void *destination, int64_t bytes, int64_t repeat);
    void (*update)(void *destination, int64_t bytes, int64_t repeat);
    double flops_per_repeat; // of `fma`, for one thread
};
TSRI_DECLARE_KERNELS(probe)

// The same for the units of tsri_bf16_units.
struct probe_bf16_kernels {
    void (*dot)(int64_t repeat);
    void (*tiles)(int64_t repeat);
    double dot_flops_per_repeat, tiles_flops_per_repeat; // for one thread
};
extern const struct probe_bf16_kernels tsri_probe_bf16_kernels;

// The same for the unit of tsri_has_vnni.
struct probe_vnni_kernel {
    void (*byte_dot)(int64_t repeat);
    double flops_per_repeat; // two for a product of bytes, for one thread
};
extern const struct probe_vnni_kernel tsri_probe_vnni_kernel;

#endif
