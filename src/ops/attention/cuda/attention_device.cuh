// SPDX-License-Identifier: Apache-2.0
// What every CUDA kernel of attention shares about a problem: where a sequence lies, which keys a query sees, how a score is
// modified, which weights dropout keeps. It mirrors attention_problem.h and uses the same names. Lengths are ints; offsets into
// tensors are 64-bit. A sequence's numbers are clamped, so that all accesses stay in bounds.
#ifndef TSRI_ATTENTION_DEVICE_CUH
#define TSRI_ATTENTION_DEVICE_CUH

#include "cuda/device/numbers.cuh"
#include "ops/attention/attention_params.h"

DEVICE long long clamp_long(long long x, long long low, long long high) {
    return x < low ? low : x > high ? high : x;
}

// ---- Sequences --------------------------------------------------------------------------------

// Rows start at q_first and k_first of the batch; the diagonal is j = i + shift.
struct attention_sequence {
    long long q_first, k_first;
    int len_q, len_k, shift;
};

DEVICE struct attention_sequence attention_sequence_at(const struct attention_params *p,
                                                       int batch) {
    struct attention_sequence s = {0, 0, p->seqlen_q, p->seqlen_k, 0};
    if (p->is_packed) {
        s.q_first = clamp_long(p->cu_seqlens_q[batch * p->cu_stride_q], 0, p->total_q);
        s.k_first = clamp_long(p->cu_seqlens_k[batch * p->cu_stride_k], 0, p->total_k);
        long long q_end = p->cu_seqlens_q[(batch + 1ll) * p->cu_stride_q];
        long long k_end = p->cu_seqlens_k[(batch + 1ll) * p->cu_stride_k];
        s.len_q =
            (int)clamp_long(clamp_long(q_end, s.q_first, p->total_q) - s.q_first, 0, p->seqlen_q);
        s.len_k =
            (int)clamp_long(clamp_long(k_end, s.k_first, p->total_k) - s.k_first, 0, p->seqlen_k);
    }
    if (p->seqused_k != 0)
        s.len_k = (int)clamp_long(p->seqused_k[batch * p->seqused_stride], 0, s.len_k);
    s.shift = p->is_top_left ? 0 : s.len_k - s.len_q;
    return s;
}

// The keys that query i sees: begin <= j < end; none if they are equal.
DEVICE int attention_first_key(const struct attention_params *p, const struct attention_sequence *s,
                               int i) {
    int begin = i + s->shift - p->window_left;
    return begin < 0 ? 0 : begin > s->len_k ? s->len_k : begin;
}
DEVICE int attention_end_key(const struct attention_params *p, const struct attention_sequence *s,
                             int i) {
    int begin = attention_first_key(p, s, i), end = i + s->shift + p->window_right + 1;
    if (end > s->len_k) end = s->len_k;
    return end < begin ? begin : end;
}

// The queries that see key j: begin <= i < end; none if begin >= end.
DEVICE int attention_first_query(const struct attention_params *p,
                                 const struct attention_sequence *s, int j) {
    int begin = j - s->shift - p->window_right;
    return begin < 0 ? 0 : begin;
}
DEVICE int attention_end_query(const struct attention_params *p, const struct attention_sequence *s,
                               int j) {
    int end = j - s->shift + p->window_left + 1;
    return end > s->len_q ? s->len_q : end;
}

// ---- Elements ---------------------------------------------------------------------------------

// Offset of the first element of a row; `row` counts from the start of the batch.
DEVICE long long attention_at(const struct attention_tensor *t, int batch, long long row,
                              int head) {
    return batch * t->batch + row * t->seq + head * t->head;
}
DEVICE float attention_head_value(const struct attention_head_values *t, int batch, int head) {
    return load_either(t->data, batch * t->batch + head * t->head, t->is_f32);
}
// The sink of a head; -inf: none. See ATTENTION_ENDLESS.
DEVICE float usable_sink(float sink) {
    if (sink <= -ATTENTION_ENDLESS) return -INFINITE;
    return sink < ATTENTION_ENDLESS ? sink : __int_as_float(0x7fc00000);
}
DEVICE float attention_sink_at(const struct attention_params *p, int batch, int head) {
    return p->sinks.data == 0 ? -INFINITE
                              : usable_sink(attention_head_value(&p->sinks, batch, head));
}
// A sink is in a row's maximum and sum from the start. A sink of NaN is added at the end: it makes lse NaN, and also the output if
// the sum is not 0, that is, if a key has weight.
DEVICE float sink_maximum(float sink) { return sink == sink ? sink : -INFINITE; }
DEVICE float sink_sum(float sink) { return sink > -INFINITE ? 1 : 0; }
DEVICE float sink_trouble(float sink) { return sink == sink ? 0 : sink; }
DEVICE long long attention_lse_at(const struct attention_params *p, int batch, int head,
                                  long long row) {
    return batch * p->lse_batch + head * p->lse_head + row;
}

// ---- Scores -----------------------------------------------------------------------------------

// The values of one query of a head that its scores need.
struct attention_query {
    long long bias; // element of key 0
    float slope;
    int diagonal;
};

DEVICE struct attention_query attention_query_at(const struct attention_params *p,
                                                 const struct attention_sequence *s, int batch,
                                                 int head, int i) {
    struct attention_query q = {0, 0, i + s->shift};
    if (p->bias.data != 0)
        q.bias = batch * p->bias.stride[0] + head * p->bias.stride[1] + i * p->bias.stride[2];
    if (p->slopes.data != 0) q.slope = attention_head_value(&p->slopes, batch, head);
    return q;
}

// A score s = softmax_scale q k after softcap, bias and ALiBi. Only for pairs that see each other, as it reads the bias. *tangent:
// d result / d s.
DEVICE float attention_score(const struct attention_params *p, const struct attention_query *q,
                             int j, float s, float *tangent) {
    *tangent = 1;
    if (p->softcap > 0) {
        float t = tanhf(s / p->softcap);
        s = p->softcap * t;
        *tangent = 1 - t * t;
    }
    if (p->bias.data != 0)
        s += load_either(p->bias.data, q->bias + j * p->bias.stride[3], p->bias.is_f32);
    if (p->slopes.data != 0) s -= q->slope * fabsf((float)(j - q->diagonal));
    return s;
}

// ---- Dropout ----------------------------------------------------------------------------------

// Words 0 to 3 are those of keys 4 quad to 4 quad + 3.
DEVICE uint4 attention_philox(const struct attention_params *p, int batch, int head, int i,
                              int quad) {
    return philox(p->seed, (unsigned)((unsigned long long)quad + p->offset), (unsigned)i,
                  (unsigned)head, (unsigned)batch);
}

// The factor of weight (i, j): 0 or keep_scale. words: of the quad of j.
DEVICE float attention_keep(const struct attention_params *p, uint4 words, int j) {
    unsigned low = j & 1 ? words.y : words.x, high = j & 1 ? words.w : words.z;
    return (j & 2 ? high : low) >= p->dropout_threshold ? p->keep_scale : 0.0f;
}

#endif
