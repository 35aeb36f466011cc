// SPDX-License-Identifier: Apache-2.0
// dsinks of a head: -sum over batches and queries of exp(sink - lse) delta. A block a head; the order of additions is that of its
// threads, then of a tree.
// Floor: lse and delta read once, 8 bytes a row, 12 beside a bias.
// See docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#define THREADS 512

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_sinks(const struct attention_backward_params b) {
    const struct attention_params *p = &b.p;
    __shared__ float sums[THREADS];
    for (int head = blockIdx.x; head < p->num_heads_q; head += gridDim.x) {
        const float sink =
            usable_sink(load_any(p->sinks.data, head * p->sinks.head, b.sinks_dtype));
        float sum = 0;
        for (int batch = 0; batch < p->num_batches; batch++) {
            struct attention_sequence s = attention_sequence_at(p, batch);
            long long at = statistics_at(&b, &s, batch, head);
            for (int i = threadIdx.x; i < s.len_q; i += THREADS) {
                float lse = b.lse[at + i];
                if (lse != INFINITE)
                    sum -= exp2_fast(fmaf(sink - lse, LOG2_E, -lse_low_at(&b, at + i))) *
                           b.delta[at + i];
            }
        }
        sums[threadIdx.x] = sum;
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        }
        if (threadIdx.x == 0)
            store_any(p->dsinks.data, head * p->dsinks.head, sums[0], b.sinks_dtype);
        __syncthreads();
    }
}
