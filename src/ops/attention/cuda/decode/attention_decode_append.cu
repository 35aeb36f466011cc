// SPDX-License-Identifier: Apache-2.0
// Decode's new keys and values into the caches: a block for each new row of each sequence. Runs before the kernels that
// do not do it themselves. The host defines
//     DTYPE (2: the tensors' own is known at run time)
#include "ops/attention/cuda/decode/attention_decode_append.cuh"

extern "C" __global__ void __launch_bounds__(128)
    attention_decode_append(const struct attention_decode_params p) {
    int num_rows = p.a.num_batches * p.a.seqlen_q;
    for (int id = blockIdx.x; id < num_rows; id += gridDim.x) {
        long long cache_len;
        int t, batch = decode_divide(id, p.a.seqlen_q, &t);
        struct attention_sequence s = decode_sequence_at(&p, batch, &cache_len);
        if (t >= s.len_q || cache_len + t >= p.capacity) continue;
        append_row(&p, &s, batch, t, cache_len + t, 0, p.a.num_heads_kv);
    }
}
