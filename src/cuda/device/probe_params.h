// SPDX-License-Identifier: Apache-2.0
// What the probe kernels get, by value. Read by both compilers.
#ifndef TSRI_PROBE_PARAMS_H
#define TSRI_PROBE_PARAMS_H

enum {
    PROBE_READ = 1,
    PROBE_WRITE = 2,
    PROBE_UPDATE = 4,
    PROBE_FMA = 8,
    PROBE_TENSOR = 16
}; // READ + WRITE copies

// Of the tensor cores' probes: threads of a block, and steps of each of its warps, or warpgroups, in a repetition.
#define PROBE_TENSOR_THREADS 512
#define PROBE_TENSOR_STEPS 512

struct probe_params {
    const void *source;
    void *destination;
    long long groups; // of 16 bytes
    long long repeat;
};

#endif
