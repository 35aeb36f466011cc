// SPDX-License-Identifier: Apache-2.0
// Loads of a bias from shared memory, for flash3's kernels: two neighbours of fp32, or the halves of a pair of DTYPE.
#ifndef TSRI_ATTENTION_BIAS_CUH
#define TSRI_ATTENTION_BIAS_CUH

#include "cuda/device/block.cuh"

#if DTYPE == DTYPE_BF16
DEVICE float low_of_pair(unsigned pair) { return float_of_bf16(pair); }
DEVICE float high_of_pair(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
#else
DEVICE float low_of_pair(unsigned pair) { return float_of_f16(pair & 0xffff); }
DEVICE float high_of_pair(unsigned pair) { return float_of_f16(pair >> 16); }
#endif

#endif
