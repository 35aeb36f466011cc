// SPDX-License-Identifier: Apache-2.0
// What the permutation's kernels share: the expert of an assignment, and their blocks' share of the assignments.
#ifndef TSRI_MOE_PERMUTE_DEVICE_CUH
#define TSRI_MOE_PERMUTE_DEVICE_CUH

#define DTYPE 2 // no element has it; numbers.cuh needs one
#include "cuda/device/numbers.cuh"
#include "ops/moe_permute/moe_permute_params.h"

#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))
#define NUM_WARPS ((int)(blockDim.x / 32))
#define ALL_LANES 0xffffffffu

// Place of an assignment in a tensor (tokens, top_k) of one stride.
DEVICE long long place_of(const struct moe_permute_params *p, int assignment, long long stride) {
    if (stride == p->top_k) return assignment;
    const unsigned t = (unsigned)assignment / (unsigned)p->top_k;
    return t * stride + (assignment - (int)t * p->top_k);
}

DEVICE int id_of(const struct moe_permute_params *p, int assignment) {
    return p->ids[place_of(p, assignment, p->ids_stride)];
}

DEVICE int is_expert(const struct moe_permute_params *p, int id) {
    return (unsigned)id < (unsigned)p->num_experts;
}

// The end of the assignments from `first` on of which there are `count`.
DEVICE int end_of(const struct moe_permute_params *p, int first, int count) {
    return p->num_assignments - first < count ? p->num_assignments : first + count;
}

#endif
