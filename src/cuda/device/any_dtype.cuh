// SPDX-License-Identifier: Apache-2.0
// Elements of a dtype that is chosen at run time (the values of tsr_dtype). One kernel serves all dtypes where the
// conversion is not the bottleneck.
#ifndef TSRI_DEVICE_ANY_DTYPE_CUH
#define TSRI_DEVICE_ANY_DTYPE_CUH

#include "cuda/device/numbers.cuh"

DEVICE float load_any(const void *data, long long at, int dtype) {
    if (dtype == DTYPE_F32) return ((const float *)data)[at];
    unsigned bits = ((const unsigned short *)data)[at];
    return dtype == DTYPE_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
}

DEVICE void store_any(void *data, long long at, float x, int dtype) {
    if (dtype == DTYPE_F32) {
        ((float *)data)[at] = x;
    } else {
        unsigned pair = dtype == DTYPE_BF16 ? pair_to_bf16(x, 0.0f) : pair_to_f16(x, 0.0f);
        ((unsigned short *)data)[at] = (unsigned short)pair;
    }
}

// A number as store_any leaves it.
DEVICE float as_stored_any(float x, int dtype) {
    if (dtype == DTYPE_F32) return x;
    return dtype == DTYPE_BF16 ? float_of_bf16(pair_to_bf16(x, 0) & 0xffff)
                               : float_of_f16(pair_to_f16(x, 0) & 0xffff);
}

// Four consecutive elements, at an address that is a multiple of their size.
DEVICE void load_four_any(float x[4], const void *data, long long at, int dtype) {
    if (dtype == DTYPE_F32) {
        float4 four = *(const float4 *)((const float *)data + at);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        return;
    }
    uint2 raw = *(const uint2 *)((const unsigned short *)data + at);
    const unsigned word[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        unsigned bits = i % 2 == 0 ? word[i / 2] & 0xffff : word[i / 2] >> 16;
        x[i] = dtype == DTYPE_BF16 ? float_of_bf16(bits) : float_of_f16(bits);
    }
}

DEVICE void store_four_any(void *data, long long at, const float x[4], int dtype) {
    if (dtype == DTYPE_F32)
        *(float4 *)((float *)data + at) = make_float4(x[0], x[1], x[2], x[3]);
    else if (dtype == DTYPE_BF16)
        *(uint2 *)((unsigned short *)data + at) =
            make_uint2(pair_to_bf16(x[0], x[1]), pair_to_bf16(x[2], x[3]));
    else
        *(uint2 *)((unsigned short *)data + at) =
            make_uint2(pair_to_f16(x[0], x[1]), pair_to_f16(x[2], x[3]));
}

#endif
