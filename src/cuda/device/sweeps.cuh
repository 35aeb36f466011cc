// SPDX-License-Identifier: Apache-2.0
// Rows of any width, gone over by a block in groups of 16 bytes where they are aligned and element by element where
// they are not.
#ifndef TSRI_DEVICE_SWEEPS_CUH
#define TSRI_DEVICE_SWEEPS_CUH

#include "cuda/device/reduce.cuh"

// The columns of this thread, `width` at a time. p has cols and is_aligned.
#define SWEEP(p, col, width)                                                                       \
    for (int width = (p).is_aligned ? GROUP : 1, col = ROW_THREAD * width; col < (p).cols;         \
         col += THREADS_PER_ROW * width)

DEVICE void load_some(float x[GROUP], const void *data, long long at, int width) {
    if (width == GROUP)
        widen(load_bytes(data, at), x);
    else
        x[0] = load(data, at);
}

DEVICE void store_some(const float x[GROUP], void *data, long long at, int width) {
    if (width == GROUP)
        store_bytes(data, at, narrow(x));
    else
        store(data, at, x[0]);
}

#endif
