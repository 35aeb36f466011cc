// SPDX-License-Identifier: Apache-2.0
// starts[v] for v up to vocab: where the tokens of row v begin in the sorted list. One binary search per row; its first
// steps hit the caches.
// Floor: the sorted keys read once, 4 bytes a token, and 4 bytes a row written.
// Figures: docs/kernels/embedding.md.
#include "ops/embedding/embedding_params.h"

extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_starts(const struct embedding_sum_params p) {
    long long step = (long long)gridDim.x * EMBEDDING_THREADS;
    long long v = (long long)blockIdx.x * EMBEDDING_THREADS + threadIdx.x;
    for (; v <= p.vocab; v += step) {
        int low = 0, high = p.num_tokens; // the answer is in [low, high]
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
