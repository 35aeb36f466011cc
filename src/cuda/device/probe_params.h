// SPDX-License-Identifier: Apache-2.0
// The parameters of the probe kernels, passed by value. Both compilers read this file.
#ifndef TSRI_PROBE_PARAMS_H
#define TSRI_PROBE_PARAMS_H

enum {
    PROBE_READ = 1,
    PROBE_WRITE = 2,
    PROBE_UPDATE = 4,
    PROBE_FMA = 8,
    PROBE_TENSOR = 16
}; // READ + WRITE: copy

// For the probes of tensor cores: threads per block, and steps of each warp or warpgroup per repetition.
#define PROBE_TENSOR_THREADS 512
#define PROBE_TENSOR_STEPS 512

struct probe_params {
    const void *source;
    void *destination;
    long long groups; // groups of 16 bytes
    long long repeat;
};

#endif
