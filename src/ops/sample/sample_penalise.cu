// SPDX-License-Identifier: Apache-2.0
// Penalties, in two launches: the tokens of history (rows, history_len) are counted; then the first thread that meets a token
// changes its z and takes its count. Numbers that are no tokens are left out.
// Floor: history read twice.
// Limit: latency.
// Figures: docs/kernels/sample.md.
// The host defines
//     DTYPE (2: the logits' dtype is known at run time)
#include "ops/sample/sample_device.cuh"

extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_penalise(const struct sample_params p) {
    const long long step = (long long)SAMPLE_THREADS * p.num_slices;
    begin_early();
    for (long long task = blockIdx.x; task < p.rows * p.num_slices; task += gridDim.x) {
        const long long row = task / p.num_slices;
        const struct sample_options o = options_of(&p, row);
        int *counts = p.counts + row * p.vocab;
        long long i = task % p.num_slices * SAMPLE_THREADS + threadIdx.x;
        for (; i < p.history_len; i += step) {
            const int v = p.history[row * p.history_stride + i];
            if (v < 0 || v >= p.vocab) continue;
            if (!p.is_apply) {
                atomicAdd(&counts[v], 1);
                continue;
            }
            const int count = atomicExch(&counts[v], 0);
            if (count == 0) continue;
            float x = load_any(p.raw.x, row * p.raw.stride + v, p.raw_dtype);
            x = sample_penalised(x, count, &o);
            if (p.bias != 0) x = __fadd_rn(x, p.bias[row * p.bias_stride + v]);
            p.changed[row * p.changed_stride + v] = sample_bounded(x);
        }
    }
}
