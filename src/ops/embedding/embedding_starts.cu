// SPDX-License-Identifier: Apache-2.0
// Where the tokens of each row begin in the sorted list: a binary search for every row, whose first steps all find in the
// caches.
#include "ops/embedding/embedding_params.h"

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_starts(const struct embedding_sum_params p) {
    long long step = (long long)gridDim.x * EMBEDDING_THREADS;
    long long v = (long long)blockIdx.x * EMBEDDING_THREADS + threadIdx.x;
    for (; v <= p.vocab; v += step) {
        int low = 0, high = p.num_tokens; // the answer lies in [low, high]
        while (low < high) {
            int middle = low + (high - low) / 2;
            if (p.keys[middle] < v)
                low = middle + 1;
            else
                high = middle;
        }
        p.starts[v] = low;
    }
}
