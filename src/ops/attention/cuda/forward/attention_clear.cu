// SPDX-License-Identifier: Apache-2.0
// Packed tensors: rows of no sequence become 0, in lse -inf. Such rows lie before the first sequence, after the last, and behind
// one that is cut at the longest length: from the end of each sequence to the start of the next. Runs before the kernel that writes
// the sequences, which may overlap what is cleared where offsets fall.
// Floor: those rows written once.
// See docs/kernels/attention_cuda.md.
// The host defines
//     DTYPE (2: bytes alone count)
#include "ops/attention/cuda/attention_device.cuh"

extern "C" __global__ void __launch_bounds__(128)
    attention_clear(const struct attention_clear_params c) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long total = c.is_of_keys ? c.p.total_k : c.p.total_q;
    long long num_tasks = (c.p.num_batches + 1ll) * c.num_heads;
    for (long long task = blockIdx.x; task < num_tasks; task += gridDim.x) {
        int gap = (int)(task / c.num_heads), head = (int)(task % c.num_heads);
        long long begin = 0, end = total;
        if (gap > 0) {
            struct attention_sequence s = attention_sequence_at(&c.p, gap - 1);
            begin = c.is_of_keys ? s.k_first + s.len_k : s.q_first + s.len_q;
        }
        if (gap < c.p.num_batches) {
            struct attention_sequence s = attention_sequence_at(&c.p, gap);
            end = c.is_of_keys ? s.k_first : s.q_first;
        }
        for (long long row = begin + warp; row < end; row += 4) {
            char *data = (char *)c.tensor.data +
                         (row * c.tensor.seq + head * c.tensor.head) * c.element_bytes;
            if (c.tensor.data != 0)
                for (int i = lane * 2; i < c.row_bytes; i += 64) *(unsigned short *)(data + i) = 0;
            if (c.has_lse && lane == 0) c.p.lse[attention_lse_at(&c.p, 0, head, row)] = -INFINITE;
        }
    }
}
