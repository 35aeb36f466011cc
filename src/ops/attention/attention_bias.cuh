// SPDX-License-Identifier: Apache-2.0
// Numbers of a bias out of shared memory, for flash3's kernels: two neighbours of fp32, or halves of a pair of DTYPE.
#ifndef TSRI_ATTENTION_BIAS_CUH
#define TSRI_ATTENTION_BIAS_CUH

#include "cuda/device/numbers.cuh"

DEVICE void load_two(float x[2], unsigned shared) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x[0]), "=f"(x[1])
                 : "r"(shared)
                 : "memory");
}

#if DTYPE == DTYPE_BF16
DEVICE float low_of_pair(unsigned pair) { return float_of_bf16(pair); }
DEVICE float high_of_pair(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
#else
DEVICE float low_of_pair(unsigned pair) { return float_of_f16(pair & 0xffff); }
DEVICE float high_of_pair(unsigned pair) { return float_of_f16(pair >> 16); }
#endif

#endif
