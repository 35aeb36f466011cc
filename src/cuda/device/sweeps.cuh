// SPDX-License-Identifier: Apache-2.0
// Sweeps over rows of any width by one block: in groups of 16 bytes if they are aligned, else element by element.
#ifndef TSRI_DEVICE_SWEEPS_CUH
#define TSRI_DEVICE_SWEEPS_CUH

#include "cuda/device/reduce.cuh"

// The columns of this thread, `width` at a time. p has the fields cols and is_aligned.
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
