// SPDX-License-Identifier: Apache-2.0
// A tensor map (the driver's CUtensorMap): it describes a tensor to Hopper's copy engine. cuda_tensor_map.h makes it;
// kernels get it inside their parameters. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_TENSOR_MAP_H
#define TSRI_TENSOR_MAP_H

struct __attribute__((aligned(128))) tensor_map {
    unsigned long long words[16];
};

#endif
