// SPDX-License-Identifier: Apache-2.0
// z where it is not the logits: their sum with the biases (rows, vocab) as fp32, and counts of 0 for history.
// Floor: logits and biases read once, z written once.
// Limit: memory.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time)
#include "ops/sample/sample_device.cuh"

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_change(const struct sample_params p) {
    const int step = SAMPLE_THREADS * p.num_slices;
    begin_early();
    for (long long task = blockIdx.x; task < p.rows * p.num_slices; task += gridDim.x) {
        const long long row = task / p.num_slices;
        const int slice = (int)(task % p.num_slices);
        for (int v = slice * SAMPLE_THREADS + (int)threadIdx.x; v < p.vocab; v += step) {
            float x = load_any(p.raw.x, row * p.raw.stride + v, p.raw_dtype);
            if (p.bias != 0) x = __fadd_rn(x, p.bias[row * p.bias_stride + v]);
            p.changed[row * p.changed_stride + v] = sample_bounded(x);
            if (p.counts != 0) p.counts[row * p.vocab + v] = 0;
        }
    }
}
