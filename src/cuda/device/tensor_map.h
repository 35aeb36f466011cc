// SPDX-License-Identifier: Apache-2.0
// A tensor map, CUtensorMap of the driver: what the copy engine of Hopper knows of a tensor, made by cuda_tensor_map.h and
// handed to kernels inside of their params. Read by both compilers: no headers, no typedefs.
#ifndef TSRI_TENSOR_MAP_H
#define TSRI_TENSOR_MAP_H

struct __attribute__((aligned(128))) tensor_map {
    unsigned long long words[16];
};

#endif
