// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 of core/core_philox.h on the device.
#ifndef TSRI_DEVICE_PHILOX_CUH
#define TSRI_DEVICE_PHILOX_CUH

#include "cuda/device/numbers.cuh"

DEVICE uint4 philox(unsigned long long key, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned high0 = __umulhi(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
        unsigned high1 = __umulhi(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

#endif
