// SPDX-License-Identifier: Apache-2.0
// The baseline, second pass: dq, or dk and dv, from the weights and gradients of the scores in memory. A block takes a row of them,
// a thread its columns; rows that do not see each other are not multiplied.
// Floor: 2 head_dim FLOPs and 4 bytes read for each visible pair of query and key and each of dq, dk and dv (dv: head_dim_v).
// Figures: docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"

#define THREADS 128

DEVICE void query_row(const struct attention_backward_params *b, long long task) {
    const struct attention_params *p = &b->p;
    long long pair = task / p->seqlen_q;
    int i = (int)(task - pair * p->seqlen_q), batch = (int)(pair / p->num_heads_q);
    int head = (int)(pair - (long long)batch * p->num_heads_q), kv_head = head / p->group;
    struct attention_sequence s = attention_sequence_at(p, batch);
    if (i >= s.len_q) return;
    int first = attention_first_key(p, &s, i), end = attention_end_key(p, &s, i);
    if (b->lse[statistics_at(b, &s, batch, head) + i] == INFINITE) end = first;
    long long dq_at = attention_at(&p->dq, batch, s.q_first + i, head);
    for (int c = threadIdx.x; c < p->head_dim; c += THREADS) {
        float sum = 0;
        for (int j = first; j < end; j++)
            sum += b->grads[task * p->seqlen_k + j] *
                   load_any(p->k.data, attention_at(&p->k, batch, s.k_first + j, kv_head) + c,
                            b->dtype);
        store_any(p->dq.data, dq_at + c, sum * p->softmax_scale, b->dtype);
    }
}

// Sum of factor x row over the queries that see key j, for every head of the group.
DEVICE float key_column(const struct attention_backward_params *b,
                        const struct attention_sequence *s, int batch, int kv_head, int j,
                        const float *factors, const struct attention_tensor *rows, int column) {
    const struct attention_params *p = &b->p;
    float sum = 0;
    if (j >= s->len_k) return 0;
    int first = attention_first_query(p, s, j), end = attention_end_query(p, s, j);
    for (int head = kv_head * p->group; head < (kv_head + 1) * p->group; head++) {
        long long score = ((long long)batch * p->num_heads_q + head) * p->seqlen_q;
        long long at = statistics_at(b, s, batch, head);
        for (int i = first; i < end; i++)
            if (b->lse[at + i] != INFINITE)
                sum += factors[(score + i) * p->seqlen_k + j] *
                       load_any(rows->data,
                                attention_at(rows, batch, s->q_first + i, head) + column, b->dtype);
    }
    return sum;
}

DEVICE void key_row(const struct attention_backward_params *b, long long task) {
    const struct attention_params *p = &b->p;
    long long pair = task / p->seqlen_k;
    int j = (int)(task - pair * p->seqlen_k), batch = (int)(pair / p->num_heads_kv);
    int kv_head = (int)(pair - (long long)batch * p->num_heads_kv);
    struct attention_sequence s = attention_sequence_at(p, batch);
    if (p->is_packed && j >= s.len_k) return;
    for (int c = threadIdx.x; c < p->head_dim && p->dk.data != 0; c += THREADS)
        store_any(p->dk.data, attention_at(&p->dk, batch, s.k_first + j, kv_head) + c,
                  key_column(b, &s, batch, kv_head, j, b->grads, &p->q, c) * p->softmax_scale,
                  b->dtype);
    for (int c = threadIdx.x; c < p->head_dim_v && p->dv.data != 0; c += THREADS)
        store_any(p->dv.data, attention_at(&p->dv, batch, s.k_first + j, kv_head) + c,
                  key_column(b, &s, batch, kv_head, j, b->weights, &p->dout, c), b->dtype);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_naive_products(const struct attention_backward_params b) {
    for (long long task = blockIdx.x; task < b.num_tasks; task += gridDim.x)
        if (b.is_of_keys)
            key_row(&b, task);
        else
            query_row(&b, task);
}
