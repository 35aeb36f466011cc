// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/attention_decode.h in double, one pair of query and key at a time.
#include <math.h>

#include "core/core_dtype.h"
#include "core/core_fp8.h"
#include "ops/attention/attention_decode_problem.h"

// ---- Norm and RoPE ----------------------------------------------------------------------------

static void normalise(const struct attention_decode_problem *p,
                      const struct attention_decode_weight *weight, double *x) {
    double squares = 0;
    for (int64_t c = 0; c < p->a.head_dim; c++) squares += x[c] * x[c];
    double rstd = 1 / sqrt(squares / (double)p->a.head_dim + p->norm_eps);
    for (int64_t c = 0; c < p->a.head_dim; c++)
        x[c] *= rstd * (tsri_load(weight->dtype, weight->data, c) + p->norm_offset);
}

// Element c of a head after rotation at a position.
static double rotated(const struct attention_decode_problem *p, const double *x, int64_t c,
                      int64_t position) {
    if (p->cos.data == NULL || c >= p->rotary_dim) return x[c];
    int64_t half = p->rotary_dim / 2, i = p->is_interleaved ? c / 2 : c % half;
    bool is_second = p->is_interleaved ? c % 2 == 1 : c >= half;
    int64_t other = p->is_interleaved ? c ^ 1 : is_second ? c - half : c + half;
    int64_t angle = attention_decode_angle(p, position);
    double cosine = tsri_load(p->cos.dtype, tsri_row(&p->cos, angle), i);
    double sine = tsri_load(p->sin.dtype, tsri_row(&p->sin, angle), i);
    double own = x[c] * cosine, turn = x[other] * sine;
    return is_second ? own + turn : own - turn;
}

// A head of q or k_new as scores need it: normalised, then rotated.
static void load_head(const struct attention_decode_problem *p,
                      const struct attention_decode_weight *weight, const void *from,
                      int64_t position, double *head) {
    double x[ATTENTION_MAX_HEAD_DIM];
    for (int64_t c = 0; c < p->a.head_dim; c++) x[c] = tsri_load(p->a.dtype, from, c);
    if (weight->data != NULL) normalise(p, weight, x);
    for (int64_t c = 0; c < p->a.head_dim; c++) head[c] = rotated(p, x, c, position);
}

// Stores an element of a new row. With a scale it is one of e4m3, also where the cache is of f64.
static void store(const struct attention_view *cache, const struct attention_per_head *scale,
                  int64_t batch, int64_t head, void *row, int64_t c, double x) {
    if (scale->data != NULL) {
        float quotient = (float)(x / attention_per_head_at(scale, batch, head));
        x = (double)tsri_e4m3_to_float(tsri_e4m3_of_float(quotient));
    }
    tsr_store(cache->dtype, row, c, x);
}

static void append(const struct attention_decode_problem *p,
                   const struct attention_decode_sequence *seq) {
    int64_t element = (int64_t)tsr_dtype_bytes(p->k_cache.dtype);
    for (int64_t t = 0; t < seq->num_new; t++) {
        int64_t position = seq->cache_len + t, row = seq->s.k_first + position;
        if (row >= p->capacity) break;
        int64_t page = attention_decode_page(p, seq->batch, row);
        if (page < 0 || page >= p->num_pages) continue;
        char *k = attention_decode_row(p, &p->k_cache, seq->batch, row);
        char *v = attention_decode_row(p, &p->v_cache, seq->batch, row);
        for (int64_t h = 0; h < p->a.num_heads_kv; h++) {
            const void *k_new = attention_at(&p->a.k, seq->batch, seq->s.q_first + t, h);
            const void *v_new = attention_at(&p->a.v, seq->batch, seq->s.q_first + t, h);
            double key[ATTENTION_MAX_HEAD_DIM];
            load_head(p, &p->k_norm, k_new, position, key);
            for (int64_t c = 0; c < p->a.head_dim; c++)
                store(&p->k_cache, &p->k_scale, seq->batch, h, k + h * p->k_cache.head * element, c,
                      key[c]);
            for (int64_t c = 0; c < p->a.head_dim_v; c++)
                store(&p->v_cache, &p->v_scale, seq->batch, h, v + h * p->v_cache.head * element, c,
                      tsri_load(p->a.dtype, v_new, c));
        }
    }
}

// ---- Attention --------------------------------------------------------------------------------

static const void *cached(const struct attention_decode_problem *p,
                          const struct attention_view *cache,
                          const struct attention_decode_sequence *seq, int64_t j, int64_t head) {
    return attention_decode_row(p, cache, seq->batch, seq->s.k_first + j) +
           head * cache->head * (int64_t)tsr_dtype_bytes(cache->dtype);
}

// q: normalised and rotated.
static double score(const struct attention_decode_problem *p,
                    const struct attention_decode_sequence *seq, const double *q, int64_t i,
                    int64_t head, int64_t j) {
    const struct attention_problem *a = &p->a;
    int64_t diagonal = i + seq->s.shift;
    int64_t kv_head = head / (a->num_heads_q / a->num_heads_kv);
    const void *k = cached(p, &p->k_cache, seq, j, kv_head);
    double row[ATTENTION_MAX_HEAD_DIM], s = 0;
    tsri_load_run(p->k_cache.dtype, k, 0, 1, a->head_dim, row);
    for (int64_t c = 0; c < a->head_dim; c++) s += q[c] * row[c];
    s *= a->softmax_scale * attention_decode_scale(&p->k_scale, seq->batch, kv_head);
    if (a->softcap > 0) s = a->softcap * tanh(s / a->softcap);
    if (a->slopes.data != NULL)
        s -= attention_per_head_at(&a->slopes, seq->batch, head) * fabs((double)(j - diagonal));
    return s;
}

static void attend(const struct attention_decode_problem *p,
                   const struct attention_decode_sequence *seq, int64_t i, int64_t head) {
    const struct attention_problem *a = &p->a;
    struct attention_range keys = attention_visible(a, &seq->s, i);
    double max = attention_sink_at(a, 0, head), sum = 0;
    double q[ATTENTION_MAX_HEAD_DIM], v[ATTENTION_MAX_HEAD_DIM], o[ATTENTION_MAX_HEAD_DIM] = {0};
    int64_t row = seq->s.q_first + i, kv_head = head / (a->num_heads_q / a->num_heads_kv);
    bool is_blind = true;
    if (max > -INFINITY) sum = 1;
    if (keys.begin < keys.end)
        load_head(p, &p->q_norm, attention_at(&a->q, seq->batch, row, head), i + seq->s.shift, q);
    for (int64_t j = keys.begin; j < keys.end; j++) { // online, so that no scores are kept
        if (!attention_decode_sees(p, seq, i, j)) continue;
        is_blind = false;
        double s = score(p, seq, q, i, head, j), top = fmax(max, s);
        if (s == -INFINITY) continue;
        double before = max == -INFINITY ? 0 : exp(max - top), weight = exp(s - top);
        tsri_load_run(p->v_cache.dtype, cached(p, &p->v_cache, seq, j, kv_head), 0, 1,
                      a->head_dim_v, v);
        sum = sum * before + weight;
        for (int64_t c = 0; c < a->head_dim_v; c++) o[c] = o[c] * before + weight * v[c];
        max = top;
    }
    void *out = attention_at(&a->out, seq->batch, row, head);
    double scale = attention_decode_scale(&p->v_scale, seq->batch, kv_head);
    if (is_blind) sum = 0; // 0 and the sink, even a sink of NaN
    for (int64_t c = 0; c < a->head_dim_v; c++)
        tsr_store(a->dtype, out, c, sum == 0 ? 0 : o[c] * scale / sum);
    if (a->lse != NULL)
        tsr_store(a->dtype == TSR_F64 ? TSR_F64 : TSR_F32, a->lse,
                  attention_lse_index(a, seq->batch, head, row), sum == 0 ? max : max + log(sum));
}

// Rows of q that belong to no sequence: 0 and -inf.
static void clear(const struct attention_problem *a) {
    for (int64_t row = 0; a->is_packed && row < a->total_q; row++)
        for (int64_t h = 0; h < a->num_heads_q; h++) {
            for (int64_t c = 0; c < a->head_dim_v; c++)
                tsr_store(a->dtype, attention_at(&a->out, 0, row, h), c, 0);
            if (a->lse != NULL)
                tsr_store(a->dtype == TSR_F64 ? TSR_F64 : TSR_F32, a->lse,
                          attention_lse_index(a, 0, h, row), -INFINITY);
        }
}

tsr_status attention_decode_reference_run(tsr_context *ctx, const void *problem,
                                          const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct attention_decode_problem *p = problem;
    clear(&p->a);
    for (int64_t b = 0; b < p->a.num_batches; b++) {
        struct attention_decode_sequence seq = attention_decode_sequence_at(p, b);
        append(p, &seq);
    }
    for (int64_t b = 0; b < p->a.num_batches; b++) {
        struct attention_decode_sequence seq = attention_decode_sequence_at(p, b);
        for (int64_t i = 0; i < seq.s.len_q; i++)
            for (int64_t h = 0; h < p->a.num_heads_q; h++) attend(p, &seq, i, h);
    }
    return TSR_OK;
}
