// SPDX-License-Identifier: Apache-2.0
// What the norms' backward kernels share.
#ifndef TSRI_NORM_DEVICE_CUH
#define TSRI_NORM_DEVICE_CUH

#include "cuda/device/numbers.cuh"

// (x - mean) rstd by halves, whose difference no two finite numbers make overflow.
DEVICE float normalised(float x, float mean, float rstd) {
    return __fmaf_rn(x, 0.5f, -0.5f * mean) * (2 * rstd);
}

#endif
