// SPDX-License-Identifier: Apache-2.0
// The error bounds of decode: the analysis of forward in spec_attention_bound.c, whose notation this uses, plus
// the error that norms and rotation add to a score. A normalised element has a relative error of e_norm, a rotated one
// an error of 6 u + e_norm times its pair's length, and a key changed in this call also its rounding to the cache's dtype.
// In e4m3 that rounding is that of the oracle, unless the error takes the key across the middle of two numbers.
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "specs/attention/spec_attention_decode.h"
#include "system/heap.h"

static const double u32 = 0x1p-24, tiny = 0x1p-126;

struct view {
    const struct op_case *c;
    struct decode_sizes n;
    const double *q, *cosine, *sine, *slopes, *sinks, *k, *v, *q_norm, *k_norm, *k_new;
    const double *k_scale, *v_scale; // NULL: 1
    double e_norm_q, e_norm_k;       // 0: no norm
    double scale, softcap, rounding,
        least; // rounding, least: unit roundoff, half the smallest number
};

static double sum_factor(double count) { return (8 + 2 * sqrt(count)) * u32; }

// The other element of c's pair; *is_second: c is the second of the pair.
static int64_t partner(const struct view *t, int64_t c, bool *is_second, int64_t *angle) {
    int64_t half = t->n.rotary_dim / 2;
    if (t->c->param[DEC_INTERLEAVED] != 0) {
        *is_second = c % 2 == 1;
        *angle = c / 2;
        return c ^ 1;
    }
    *is_second = c >= half;
    *angle = c % half;
    return c < half ? c + half : c - half;
}

static int64_t turning(const struct view *t) { return t->n.has_rope ? t->n.rotary_dim : 0; }

static double pair_length(const struct view *t, const double *x, int64_t c) {
    bool is_second;
    int64_t angle;
    return hypot(x[c], x[partner(t, c, &is_second, &angle)]);
}

// The error of column c of a head that is normalised with a relative error of e_norm and then rotated; x: before or after the
// rotation, which keeps the lengths of pairs.
static double head_error(const struct view *t, const double *x, int64_t c, double e_norm) {
    return c < turning(t) ? (6 * u32 + e_norm) * pair_length(t, x, c) : e_norm * fabs(x[c]);
}

static void normalise(const struct view *t, const double *weight, const double *from, double *x) {
    double squares = 0, eps = (double)(float)t->c->param[DEC_NORM_EPS];
    double offset = t->c->param[DEC_ZERO_CENTERED] != 0 ? 1 : 0;
    for (int64_t c = 0; c < t->n.head_dim; c++) squares += from[c] * from[c];
    double rstd = 1 / sqrt(squares / (double)t->n.head_dim + eps);
    for (int64_t c = 0; c < t->n.head_dim; c++)
        x[c] = weight != NULL ? from[c] * rstd * (weight[c] + offset) : from[c];
}

// A head of q or k_new after norm and rotation, and its error.
static void turn(const struct view *t, const double *weight, double e_norm, const double *from,
                 int64_t position, double *q, double *error) {
    double x[256];
    normalise(t, weight, from, x);
    int64_t half = t->n.rotary_dim / 2, last = t->n.num_positions - 1;
    int64_t row = position < 0 ? 0 : position > last ? last : position;
    for (int64_t c = 0; c < t->n.head_dim; c++) {
        q[c] = x[c];
        error[c] = head_error(t, x, c, e_norm);
        if (c >= turning(t)) continue;
        bool is_second;
        int64_t angle, other = partner(t, c, &is_second, &angle);
        double turn = x[other] * t->sine[row * half + angle];
        q[c] = x[c] * t->cosine[row * half + angle] + (is_second ? turn : -turn);
    }
}

// Whether the call changes column c of new keys.
static bool is_changed(const struct view *t, int64_t c) {
    return c < turning(t) || t->c->is_present[DEC_K_NORM];
}

static double scale_of(const struct view *t, const double *scale, int64_t batch, int64_t kv_head) {
    int dims = (int)t->c->param[DEC_SCALE_DIMS];
    if (scale == NULL) return 1;
    return scale[dims == 2 ? batch * t->n.kv_heads + kv_head : dims == 1 ? kv_head : 0];
}

static double rounded_to_e4m3(double x) {
    uint8_t code;
    tsr_store(TSR_E4M3, &code, 0, x);
    return tsr_load(TSR_E4M3, &code, 0);
}

// How far the columns of a new key may lie from the oracle's in a cache of e4m3.
static void e4m3_errors(const struct view *t, const struct decode_rows *rows, int64_t batch,
                        int64_t kv_head, int64_t token, double *errors) {
    double key[256], scale = scale_of(t, t->k_scale, batch, kv_head);
    int64_t row = decode_row(&t->n, rows, batch, token) * t->n.kv_heads + kv_head;
    turn(t, t->k_norm, t->e_norm_k, t->k_new + row * t->n.head_dim, rows->cache_len + token, key,
         errors);
    for (int64_t c = 0; c < t->n.head_dim; c++) {
        double error = errors[c] + 2 * u32 * fabs(key[c]) + tiny;
        errors[c] =
            rounded_to_e4m3((key[c] + error) / scale) - rounded_to_e4m3((key[c] - error) / scale);
        if (!is_changed(t, c)) errors[c] = 0;
    }
}

// The score of a key, and its error. scale: of the cache; e4m3_error: of a new key there, else NULL.
static double score(const struct view *t, const double *q, const double *q_error, const double *k,
                    bool is_new, double scale, const double *e4m3_error, double alibi,
                    double *error) {
    double s = 0, magnitude = 0, turned = 0;
    for (int64_t c = 0; c < t->n.head_dim; c++) {
        double k_error = 0;
        if (is_new && is_changed(t, c))
            k_error = head_error(t, k, c, t->e_norm_k) + t->rounding * fabs(k[c]) + t->least;
        if (t->k_scale != NULL) k_error = e4m3_error != NULL ? e4m3_error[c] : 0;
        s += q[c] * k[c];
        magnitude += fabs(q[c] * k[c]);
        turned += q_error[c] * fabs(k[c]) + fabs(q[c]) * k_error;
    }
    s *= t->scale * scale;
    double e_scale = t->k_scale != NULL ? 4 * u32 : 0;
    *error = fabs(t->scale * scale) *
             ((sum_factor((double)t->n.head_dim) + e_scale) * magnitude + 1.01 * turned);
    double parts = fabs(s);
    if (t->softcap > 0) {
        double capped = tanh(s / t->softcap), slope = 1 - capped * capped;
        *error = fmin(*error * fmax(slope, 2 * *error / t->softcap), 2 * t->softcap);
        parts = slope * fabs(s) + 2 * t->softcap;
        s = t->softcap * capped;
    }
    *error += 4 * u32 * (parts + fabs(alibi));
    return s - alibi;
}

static double exp_error(double x, double error) {
    if (x == -INFINITY) return 0;
    return error < 1 ? exp(x) * expm1(error) : exp(fmin(x + error, 700));
}

struct key {
    int64_t row; // in the caches
    double score, error;
};

static void bound_row(const struct view *t, const struct decode_rows *rows, int64_t b, int64_t h,
                      int64_t i, struct key *keys, double *scratch, int slot, double *bound) {
    const struct decode_sizes *n = &t->n;
    int64_t dim = n->head_dim_v, count = 0, d = i + rows->len_k - rows->len_q;
    int64_t kv_head = h / (n->heads / n->kv_heads);
    double sink = t->sinks != NULL ? t->sinks[h] : -INFINITY, max = sink, sum = 0, e_sum = 0;
    double *q = scratch, *q_error = q + n->head_dim, *magnitude = q_error + n->head_dim;
    double *error = magnitude + dim, *worst = error + dim, worst_score = 0;
    double slope =
        t->slopes == NULL ? 0 : t->slopes[t->c->param[DEC_ALIBI_BATCH] != 0 ? b * n->heads + h : h];
    int64_t q_row = decode_row(n, rows, b, i);
    turn(t, t->q_norm, t->e_norm_q, t->q + (q_row * n->heads + h) * n->head_dim, d, q, q_error);
    for (int64_t j = 0; j < rows->len_k; j++) {
        if (!decode_sees(t->c, rows, i, j)) continue;
        struct key *key = &keys[count++];
        key->row = decode_cache_row(t->c, b, j);
        bool is_new = j >= rows->cache_len;
        double e4m3_error[256];
        if (is_new && t->k_scale != NULL)
            e4m3_errors(t, rows, b, kv_head, j - rows->cache_len, e4m3_error);
        key->score = score(t, q, q_error, t->k + (key->row * n->kv_heads + kv_head) * n->head_dim,
                           is_new, scale_of(t, t->k_scale, b, kv_head), is_new ? e4m3_error : NULL,
                           slope * fabs((double)(j - d)), &key->error);
        max = fmax(max, key->score);
        worst_score = fmax(worst_score, key->error);
    }
    if (max == -INFINITY) return;
    for (int64_t s = 0; s < count; s++) sum += exp(keys[s].score - max);
    double lse = max + log(sum + exp(sink - max));
    double kappa = (52 + 4 * sqrt((double)count)) * u32 + t->rounding;
    double v_scale = fabs(scale_of(t, t->v_scale, b, kv_head));
    for (int64_t c = 0; c < dim; c++) magnitude[c] = error[c] = worst[c] = 0;
    if (sink > -INFINITY) e_sum += exp_error(sink - lse, 2 * u32 * fabs(sink - lse));
    for (int64_t s = 0; s < count; s++) {
        double x = keys[s].score - lse, p = exp(x);
        double e = exp_error(x, keys[s].error + 2 * u32 * fabs(x));
        const double *v = t->v + (keys[s].row * n->kv_heads + kv_head) * dim;
        e_sum += e;
        for (int64_t c = 0; c < dim && slot == DEC_OUT; c++) {
            double size = v_scale * fabs(v[c]);
            magnitude[c] += p * size;
            error[c] += (e + tiny) * size;
            worst[c] = fmax(worst[c], size);
        }
    }
    bool is_first_order = e_sum < 0.25;
    if (slot == DEC_LSE) {
        int64_t heads_before = (n->is_packed ? 0 : b * n->heads) + h;
        bound[heads_before * n->total_q + rows->q_first + i] =
            (is_first_order ? 2 * e_sum : worst_score) +
            sum_factor((double)count) * (1 + fabs(lse)) + tiny;
        return;
    }
    double *out = bound + (q_row * n->heads + h) * dim;
    for (int64_t c = 0; c < dim; c++) {
        double first = 2 * (error[c] + e_sum * magnitude[c]) + kappa * magnitude[c];
        double most = magnitude[c] + (1.01 + kappa) * worst[c];
        out[c] = is_first_order && !(first > most) ? first : most;
    }
}

static void bound_results(const struct view *t, int slot, double *bound) {
    const struct decode_sizes *n = &t->n;
    struct key *keys = heap_get((size_t)n->capacity + 1, sizeof *keys);
    double *scratch = heap_get((size_t)(2 * n->head_dim + 3 * n->head_dim_v), sizeof *scratch);
    for (int64_t b = 0; b < n->batch; b++) {
        struct decode_rows rows = decode_rows_of(t->c, b);
        for (int64_t h = 0; h < n->heads; h++)
            for (int64_t i = 0; i < rows.len_q; i++)
                bound_row(t, &rows, b, h, i, keys, scratch, slot, bound);
    }
    free(keys);
    free(scratch);
}

// Old keys stay unchanged and values are copied, so only normalised or rotated keys have a bound; verify adds the rounding.
static void bound_keys(const struct view *t, double *bound) {
    const struct decode_sizes *n = &t->n;
    for (int64_t b = 0; b < n->batch; b++) {
        struct decode_rows rows = decode_rows_of(t->c, b);
        for (int64_t i = 0; i < rows.num_new; i++) {
            if (!decode_is_appended(t->c, &rows, b, i)) continue;
            int64_t row = decode_cache_row(t->c, b, rows.cache_len + i);
            for (int64_t h = 0; h < n->kv_heads; h++) {
                int64_t at = (row * n->kv_heads + h) * n->head_dim;
                if (t->k_scale != NULL) {
                    e4m3_errors(t, &rows, b, h, i, bound + at);
                    continue;
                }
                for (int64_t c = 0; c < n->head_dim; c++)
                    if (is_changed(t, c))
                        bound[at + c] = head_error(t, t->k + at, c, t->e_norm_k) + 0x1p-147;
            }
        }
    }
}

void decode_bound(const struct op_case *c, int slot, double *bound) {
    double scale = (double)(float)c->param[DEC_SOFTMAX_SCALE];
    struct view t = {.c = c,
                     .n = decode_sizes_of(c),
                     .q = case_values(c, "q"),
                     .cosine = case_values(c, "cos"),
                     .sine = case_values(c, "sin"),
                     .slopes = case_values(c, "alibi_slopes"),
                     .sinks = case_values(c, "sinks"),
                     .q_norm = case_values(c, "q_norm"),
                     .k_norm = case_values(c, "k_norm"),
                     .k_new = case_values(c, "k_new"),
                     .k_scale = case_values(c, "k_scale"),
                     .v_scale = case_values(c, "v_scale"),
                     .k = case_values(c, "k_cache"),
                     .v = case_values(c, "v_cache"),
                     .scale = scale != 0 ? scale : 1 / sqrt(c->param[DEC_HEAD_DIM]),
                     .softcap = (double)(float)c->param[DEC_SOFTCAP],
                     .rounding = c->dtype == TSR_BF16  ? 0x1p-8
                                 : c->dtype == TSR_F16 ? 0x1p-11
                                                       : 0,
                     .least = c->dtype == TSR_F16 ? 0x1p-25 : tiny};
    double e_norm = (12 + 2 * sqrt((double)t.n.head_dim)) * u32;
    t.e_norm_q = c->is_present[DEC_Q_NORM] ? e_norm : 0;
    t.e_norm_k = c->is_present[DEC_K_NORM] ? e_norm : 0;
    if (slot == DEC_K_CACHE) {
        bound_keys(&t, bound);
        return;
    }
    if (slot == DEC_OUT || slot == DEC_LSE) bound_results(&t, slot, bound);
}
