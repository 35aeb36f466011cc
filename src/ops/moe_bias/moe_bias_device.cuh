// SPDX-License-Identifier: Apache-2.0
// What the kernels of the biases' gradients share: the rows of an expert, within memory whatever offsets contains.
#ifndef TSRI_MOE_BIAS_DEVICE_CUH
#define TSRI_MOE_BIAS_DEVICE_CUH

#include "cuda/device/any_dtype.cuh"
#include "ops/moe_bias/moe_bias_params.h"

enum { PART = MOE_BIAS_PART, WARPS = MOE_BIAS_WARPS };
#define LANE ((int)(threadIdx.x % 32))
#define WARP ((int)(threadIdx.x / 32))
#define ALL_LANES 0xffffffffu

DEVICE int offset_at(const struct moe_bias_params *p, int expert) {
    const int offset = p->offsets.data[expert * p->offsets.stride];
    return offset < 0 ? 0 : offset > p->num_rows ? p->num_rows : offset;
}

struct range {
    int first, count;
};

DEVICE struct range rows_of(const struct moe_bias_params *p, int expert) {
    const int first = offset_at(p, expert), end = offset_at(p, expert + 1);
    const struct range range = {first, end > first ? end - first : 0};
    return range;
}

// The sums of a part of an expert with several parts (moe_bias_problem.h).
DEVICE float *place_of(const struct moe_bias_params *p, struct range range, long long part) {
    return p->sums + (2LL * range.first / PART + part) * p->sums_stride;
}

#endif
