// SPDX-License-Identifier: Apache-2.0
// The baseline, first pass: weights after dropout and gradients of the scores go to memory, (batch, num_heads_q, seqlen_q,
// seqlen_k) of each in fp32. A block takes a query, a thread its keys; what a query does not see is left as it is.
// Floor: 2 (head_dim + head_dim_v) FLOPs and 8 bytes written for each visible pair of query and key.
// Figures: docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#define THREADS 128

DEVICE float dot(const void *x, long long x_at, const void *y, long long y_at, int dims,
                 int dtype) {
    float sum = 0;
    for (int c = 0; c < dims; c++)
        sum += load_any(x, x_at + c, dtype) * load_any(y, y_at + c, dtype);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_naive_scores(const struct attention_backward_params b) {
    const struct attention_params *p = &b.p;
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x) {
        int i = (int)(task % p->seqlen_q), head = (int)(task / p->seqlen_q % p->num_heads_q);
        int batch = (int)(task / p->seqlen_q / p->num_heads_q), kv_head = head / p->group;
        struct attention_sequence s = attention_sequence_at(p, batch);
        if (i >= s.len_q) continue;
        long long q_at = attention_at(&p->q, batch, s.q_first + i, head);
        long long dout_at = attention_at(&p->dout, batch, s.q_first + i, head);
        long long at = statistics_at(&b, &s, batch, head) + i;
        struct attention_query query = attention_query_at(p, &s, batch, head, i);
        float lse = b.lse[at], lse_low = lse_low_at(&b, at), delta = b.delta[at];
        int end = attention_end_key(p, &s, i);
        for (int j = attention_first_key(p, &s, i) + (int)threadIdx.x; j < end; j += THREADS) {
            float keep = 1;
            if (p->dropout_threshold != 0)
                keep = attention_keep(p, attention_philox(p, batch, head, i, j >> 2), j);
            float score =
                dot(p->q.data, q_at, p->k.data, attention_at(&p->k, batch, s.k_first + j, kv_head),
                    p->head_dim, b.dtype);
            float dp =
                dot(p->dout.data, dout_at, p->v.data,
                    attention_at(&p->v, batch, s.k_first + j, kv_head), p->head_dim_v, b.dtype);
            struct attention_pair pair =
                attention_pair_of(p, &query, j, score, dp, lse, lse_low, delta, keep, 0);
            b.weights[task * p->seqlen_k + j] = pair.weight;
            b.grads[task * p->seqlen_k + j] = pair.grad;
        }
    }
}
