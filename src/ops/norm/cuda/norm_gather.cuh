// SPDX-License-Identifier: Apache-2.0
// Backward: the sums of columns over the rows of a block. A thread has FLOATS_PER_THREAD columns of its row.
#ifndef TSRI_NORM_GATHER_CUH
#define TSRI_NORM_GATHER_CUH

#include "cuda/device/reduce.cuh"

// Adds the sums of a block's rows, in a tree; its first row gets the result. shared: half of the block's sums.
DEVICE void gather(float sum[FLOATS_PER_THREAD], float *shared) {
    for (int half = ROWS_PER_BLOCK / 2; half > 0; half /= 2) {
        float *slot =
            shared + ROW_OF_BLOCK % half * FLOATS_PER_THREAD * THREADS_PER_ROW + ROW_THREAD;
        __syncthreads();
        if (ROW_OF_BLOCK >= half && ROW_OF_BLOCK < 2 * half)
#pragma unroll
            for (int e = 0; e < FLOATS_PER_THREAD; e++) slot[e * THREADS_PER_ROW] = sum[e];
        __syncthreads();
        if (ROW_OF_BLOCK < half)
#pragma unroll
            for (int e = 0; e < FLOATS_PER_THREAD; e++) sum[e] += slot[e * THREADS_PER_ROW];
    }
}

#endif
