// SPDX-License-Identifier: Apache-2.0
// Decode's new keys and values (batch, seqlen_q, kv heads, head_dim) into the caches: a block for each new row of each sequence.
// Runs before the kernels that do not do it themselves.
// Floor: new rows read once and written once. It is a launch more, which those kernels save that append the rows that they read.
// Figures: docs/kernels/attention_decode.md.
// The host defines
//     DTYPE (2: the tensors' own is known at run time)
#include "ops/attention/cuda/decode/attention_decode_append.cuh"

extern "C" __global__ void __launch_bounds__(128)
    attention_decode_append(const struct attention_decode_params p) {
    int num_rows = p.a.num_batches * p.a.seqlen_q;
    for (int id = blockIdx.x; id < num_rows; id += gridDim.x) {
        long long cache_len;
        int t, batch = decode_divide(id, p.a.seqlen_q, &t);
        struct attention_sequence s = decode_sequence_at(&p, batch, &cache_len);
        if (t >= s.len_q || s.k_first + cache_len + t >= p.capacity) continue;
        append_row(&p, &s, batch, t, cache_len + t, 0, p.a.num_heads_kv);
    }
}
