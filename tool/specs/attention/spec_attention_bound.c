// SPDX-License-Identifier: Apache-2.0
// The error bounds of attention. u = 2^-24, K(n) = 8 + 2 sqrt(n) for an fp32 sum of n terms, u_P the rounding
// of weights to the operand of a 16-bit product, D = head_dim. For a query, over the keys that it sees:
//
//   score      s = cap(scale q k) + bias - alibi has the error
//                d = K(D) u scale sum|q k| + 4 u (|scale q k| + |capped| + |bias| + |alibi| + softcap),
//              because a cap has a slope of at most 1.
//   weight     p = exp(s - lse) has the error e = p (exp(d') - 1), d' = d + 2 u |s - lse|, where the last term is the
//              rounding of the exponential's argument.
//   out        With E = sum e, numerator and denominator give sum e |v| + E sum p |v| to first order; twice that
//              covers the second order while E is small. Sums, exponentials, rescaling of the online softmax
//              and one division add (48 + 4 sqrt(n)) u, stored weights add u_P, both times sum p |v|. The error never
//              exceeds what wrong weights with the sum 1 can cause.
//   bf16       its units count operands and sums below 2^-126 as 0, and the power of two of softmax_scale is multiplied
//              into q before. So a score may lose the products with such operands and a further D 2^-126, and out
//              2 2^-126 for each key.
//   lse        2 E, or the worst d if E is large, plus K(n) u (1 + |lse|).
//
// Backward, with lse given: w = exp(s - lse) has the error e = w (exp(d' + 2 u |lse|) - 1 + 8 u). With
// a = dout v (error A = K(Dv) u sum|dout v|) and delta = dout out (error Z = K(Dv) u sum|dout out|):
//
//   ds = w (a - delta)      error e (|a - delta| + A + Z) + w (A + Z + 4 u (|a| + |delta|)),
//   dqk = scale slope ds    the slope 1 - tanh^2 of the softcap has the error 2 slope d / softcap + 8 u,
//   dv, dq, dk              sums of w dout, dqk k, dqk q: the errors above times the other factor, u_P + 8 u
//                           of each product, K(n) u of the sum of magnitudes,
//   dbias, dsinks           likewise, for ds and for exp(sink - lse) delta.
//
// Elements that bf16 units count as 0 add their w dout, dqk k or dqk q, add their dout v to A, and add 2 2^-126 for
// each term of each sum.
//
// Under dropout the bound counts every weight as kept. This is the first-order analysis with Higham and
// Mary's square root for sums; each constant is large enough for any order of summation.
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "specs/attention/spec_attention.h"
#include "system/heap.h"

static const double u32 = 0x1p-24, tiny = 0x1p-126;

// ---- Both passes ------------------------------------------------------------------------------

// The data of a case that the bounds need.
struct view {
    const struct op_case *c;
    struct attention_sizes n;
    const double *q, *k, *v, *bias, *slopes, *sinks, *out, *lse, *dout;
    double scale, softcap, kept; // kept: 1 / (1 - dropout_p)
    double stored,
        stored_tiny; // weights as 16-bit operands: u_P, and half the smallest number
};

static struct view view_of(const struct op_case *c) {
    struct view t = {.c = c, .n = attention_sizes_of(c)};
    t.q = case_values(c, "q");
    t.k = case_values(c, "k");
    t.v = case_values(c, "v");
    t.bias = case_values(c, "bias");
    t.slopes = case_values(c, "alibi_slopes");
    t.sinks = case_values(c, "sinks");
    t.out = case_values(c, "out");
    t.lse = case_values(c, "lse");
    t.dout = case_values(c, "dout");
    t.scale = attention_scale(c);
    t.softcap = (double)(float)c->param[ATTN_SOFTCAP];
    t.kept = 1 / (1 - c->param[ATTN_DROPOUT_P]);
    t.stored = c->dtype == TSR_BF16 ? 0x1p-8 : c->dtype == TSR_F16 ? 0x1p-11 : 0;
    t.stored_tiny = c->dtype == TSR_F16 ? 0x1p-25 : 0;
    return t;
}

static double sum_factor(double count) { return (8 + 2 * sqrt(count)) * u32; }

// a . b and the sum of magnitudes.
static double dot(const double *a, const double *b, int64_t count, double *magnitude) {
    double sum = 0;
    *magnitude = 0;
    for (int64_t i = 0; i < count; i++) {
        double term = a[i] * b[i];
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

// The loss of scale a b from subnormal operands and sums.
static double flushed(const struct view *t, double scale, const double *a, const double *b,
                      int64_t count) {
    double sum = 0;
    if (t->c->dtype != TSR_BF16) return 0;
    for (int64_t c = 0; c < count; c++)
        if (fabs(a[c]) * fmin(scale, 1) / 2 < tiny || fabs(b[c]) < tiny) sum += fabs(a[c] * b[c]);
    return scale * sum + 2 * (double)count * tiny;
}

struct score {
    double value, error;       // s and d
    double slope, slope_error; // of the softcap
};

static struct score score_of(const struct view *t, const struct attention_rows *rows, int64_t b,
                             int64_t h, int64_t i, int64_t j) {
    const struct attention_sizes *n = &t->n;
    const double *q = t->q + attention_at_q(n, rows, b, h, i, n->head_dim);
    const double *k = t->k + attention_at_k(n, rows, b, h, j, n->head_dim);
    double magnitude, s = t->scale * dot(q, k, n->head_dim, &magnitude);
    double error = sum_factor((double)n->head_dim) * fabs(t->scale) * magnitude +
                   flushed(t, fabs(t->scale), q, k, n->head_dim);
    struct score r = {s, error, 1, 0};
    double parts = fabs(s);
    if (t->softcap > 0) {
        double capped = tanh(s / t->softcap);
        r.value = t->softcap * capped;
        r.slope = 1 - capped * capped;
        r.slope_error = 2 * r.slope * (error + 4 * u32 * fabs(s)) / t->softcap + 8 * u32;
        parts = r.slope * fabs(s) + 2 * t->softcap;
        r.error = fmin(error * fmax(r.slope, 2 * error / t->softcap), 2 * t->softcap);
    }
    if (t->bias != NULL) {
        double bias = t->bias[attention_at_bias(t->c, n, b, h, i, j)];
        r.value += bias;
        parts += fabs(bias);
    }
    if (t->slopes != NULL) {
        int64_t at = t->c->param[ATTN_SLOPES_BATCH] != 0 ? b * n->heads + h : h;
        double alibi = t->slopes[at] * attention_distance(t->c, rows, i, j);
        r.value -= alibi;
        parts += fabs(alibi);
    }
    r.error += 4 * u32 * parts;
    return r;
}

// The error of exp(x) for an error in x.
static double exp_error(double x, double error) {
    if (x == -INFINITY) return 0;
    return error < 1 ? exp(x) * expm1(error) : exp(fmin(x + error, 700));
}

// ---- Forward ----------------------------------------------------------------------------------

// A row that sees only keys of weight 0, or none, is exactly 0 and -inf: its bounds stay 0.
static void bound_forward_row(const struct view *t, const struct attention_rows *rows, int64_t b,
                              int64_t h, int64_t i, struct score *scores, double *weighted,
                              double *worst, int slot, double *bound) {
    const struct attention_sizes *n = &t->n;
    int64_t dim = n->head_dim_v, count = 0;
    double sink = t->sinks != NULL ? t->sinks[h] : -INFINITY, max = sink, sum = 0, e_sum = 0;
    double worst_score = 0;
    for (int64_t j = 0; j < rows->len_k; j++) {
        if (!attention_sees(t->c, rows, i, j)) continue;
        scores[j] = score_of(t, rows, b, h, i, j);
        max = fmax(max, scores[j].value);
        if (scores[j].value > -INFINITY) worst_score = fmax(worst_score, scores[j].error);
        count++;
    }
    if (max == -INFINITY) return;
    for (int64_t j = 0; j < rows->len_k; j++)
        if (attention_sees(t->c, rows, i, j)) sum += exp(scores[j].value - max);
    double lse = max + log(sum + exp(sink - max)), *magnitude = weighted, *error = weighted + dim;
    double kappa = (48 + 4 * sqrt((double)count)) * u32 + t->stored;
    for (int64_t c = 0; c < dim; c++) magnitude[c] = error[c] = worst[c] = 0;
    if (sink > -INFINITY) e_sum += exp_error(sink - lse, 2 * u32 * fabs(sink - lse));
    for (int64_t j = 0; j < rows->len_k; j++) {
        if (!attention_sees(t->c, rows, i, j)) continue;
        double x = scores[j].value - lse, p = exp(x);
        double e = exp_error(x, scores[j].error + 2 * u32 * fabs(x));
        const double *v = t->v + attention_at_k(n, rows, b, h, j, dim);
        e_sum += e;
        for (int64_t c = 0; c < dim && slot == ATTN_OUT; c++) {
            double a = t->kept * fabs(v[c]);
            magnitude[c] += p * a;
            error[c] += e * a + (tiny + t->stored_tiny) * a;
            if (t->c->dtype == TSR_BF16) error[c] += 2 * tiny;
            worst[c] = fmax(worst[c], a);
        }
    }
    bool is_first_order = e_sum < 0.25;
    if (slot == ATTN_LSE) {
        bound[attention_at_lse(n, rows, b, h, i)] = (is_first_order ? 2 * e_sum : worst_score) +
                                                    sum_factor((double)count) * (1 + fabs(lse)) +
                                                    tiny;
        return;
    }
    double *out = bound + attention_at_q(n, rows, b, h, i, dim);
    for (int64_t c = 0; c < dim; c++) {
        double first = 2 * (error[c] + e_sum * magnitude[c]) + kappa * magnitude[c];
        double most = magnitude[c] + (1.01 + kappa) * worst[c];
        out[c] = is_first_order && !(first > most) ? first : most;
    }
}

void attention_forward_bound(const struct op_case *c, int slot, double *bound) {
    struct view t = view_of(c);
    struct score *scores = heap_get((size_t)t.n.seqlen_k + 1, sizeof *scores);
    double *rows_of_v = heap_get((size_t)(3 * t.n.head_dim_v), sizeof *rows_of_v);
    for (int64_t b = 0; b < t.n.batch; b++) {
        struct attention_rows rows = attention_rows_of(c, b);
        for (int64_t h = 0; h < t.n.heads; h++)
            for (int64_t i = 0; i < rows.len_q; i++)
                bound_forward_row(&t, &rows, b, h, i, scores, rows_of_v,
                                  rows_of_v + 2 * t.n.head_dim_v, slot, bound);
    }
    free(scores);
    free(rows_of_v);
}

// ---- Backward ---------------------------------------------------------------------------------

// For each element the sum of errors (bound) and the sum of the terms' magnitudes.
struct sums {
    double *bound, *magnitude;
};

static void add(const struct sums *s, int64_t at, double error, double magnitude) {
    s->bound[at] += error;
    s->magnitude[at] += magnitude;
}

static void add_row(const struct view *t, const struct sums *s, int64_t at, double error,
                    double magnitude, const double *factor, int64_t count) {
    bool is_bf16 = t->c->dtype == TSR_BF16;
    for (int64_t c = 0; c < count; c++) {
        bool is_flushed = is_bf16 && fabs(factor[c]) * fmin(fabs(t->scale), 1) / 2 < tiny;
        double lost = (is_flushed ? magnitude : 0) * fabs(factor[c]) + (is_bf16 ? 2 * tiny : 0);
        add(s, at + c, error * fabs(factor[c]) + lost, magnitude * fabs(factor[c]));
    }
}

// Adds the contribution of one query and one key. delta_error: the error of delta.
static void bound_pair(const struct view *t, const struct attention_rows *rows, int64_t b,
                       int64_t h, int64_t i, int64_t j, double lse, double delta,
                       double delta_error, int slot, const struct sums *sums) {
    const struct attention_sizes *n = &t->n;
    int64_t dim = n->head_dim, dim_v = n->head_dim_v;
    int64_t at_q = attention_at_q(n, rows, b, h, i, dim);
    int64_t at_k = attention_at_k(n, rows, b, h, j, dim);
    int64_t at_v = attention_at_k(n, rows, b, h, j, dim_v);
    const double *dout = t->dout + attention_at_q(n, rows, b, h, i, dim_v);
    struct score s = score_of(t, rows, b, h, i, j);
    double x = s.value - lse, w = exp(x);
    double e = exp_error(x, s.error + 2 * u32 * (fabs(x) + fabs(lse))) + 8 * u32 * w + tiny;
    double stored = t->stored + 8 * u32;
    if (slot == ATTN_DV) {
        double error = t->kept * (e + stored * w + t->stored_tiny);
        add_row(t, sums, at_v, error, t->kept * w, dout, dim_v);
        return;
    }
    double a_magnitude, a = t->kept * dot(dout, t->v + at_v, dim_v, &a_magnitude);
    double off = sum_factor((double)dim_v) * t->kept * a_magnitude +
                 t->kept * flushed(t, 1, dout, t->v + at_v, dim_v) + delta_error;
    double spread = t->kept > 1 ? fabs(a) + fabs(delta) : fabs(a - delta);
    double ds = w * spread;
    double ds_error = e * (spread + off) + w * (off + 4 * u32 * (fabs(a) + fabs(delta)));
    if (slot == ATTN_DBIAS) {
        add(sums, attention_at_bias(t->c, n, b, h, i, j), ds_error, ds);
        return;
    }
    double scale = fabs(t->scale), dqk = scale * s.slope * ds;
    double error = scale * ((s.slope + s.slope_error) * ds_error + s.slope_error * ds) +
                   stored * dqk + fmax(scale, 1) * (t->stored_tiny + tiny);
    add_row(t, sums, slot == ATTN_DQ ? at_q : at_k, error, dqk,
            slot == ATTN_DQ ? t->k + at_k : t->q + at_q, dim);
}

// The number of terms in an element's sum.
static double num_terms(const struct view *t, int slot) {
    double queries = (double)t->n.seqlen_q, keys = (double)t->n.seqlen_k;
    double batches = (double)t->n.batch, heads = (double)t->n.heads;
    int broadcast = (int)t->c->param[ATTN_BIAS_BROADCAST];
    switch (slot) {
    case ATTN_DQ: return keys;
    case ATTN_DSINKS: return batches * queries;
    case ATTN_DBIAS:
        return (broadcast & 8 ? batches : 1) * (broadcast & 4 ? heads : 1) *
               (broadcast & 2 ? queries : 1) * (broadcast & 1 ? keys : 1);
    default: return queries * heads / (double)t->n.kv_heads;
    }
}

static void bound_backward_row(const struct view *t, const struct attention_rows *rows, int64_t b,
                               int64_t h, int64_t i, int slot, const struct sums *sums) {
    const struct attention_sizes *n = &t->n;
    int64_t at_out = attention_at_q(n, rows, b, h, i, n->head_dim_v);
    double lse = t->lse[attention_at_lse(n, rows, b, h, i)], magnitude;
    if (lse == -INFINITY) return;
    double delta = dot(t->dout + at_out, t->out + at_out, n->head_dim_v, &magnitude);
    double delta_error = sum_factor((double)n->head_dim_v) * magnitude;
    if (slot == ATTN_DSINKS) {
        double x = t->sinks[h] - lse, w = exp(x);
        double e = exp_error(x, 4 * u32 * (fabs(x) + fabs(lse))) + 8 * u32 * w;
        add(sums, h, e * (fabs(delta) + delta_error) + w * delta_error, w * fabs(delta));
        return;
    }
    for (int64_t j = 0; j < rows->len_k; j++)
        if (attention_sees(t->c, rows, i, j))
            bound_pair(t, rows, b, h, i, j, lse, delta, delta_error, slot, sums);
}

void attention_backward_bound(const struct op_case *c, int slot, double *bound) {
    struct view t = view_of(c);
    int64_t numel = case_numel(c, slot);
    struct sums sums = {bound, heap_get((size_t)numel + 1, sizeof *sums.magnitude)};
    for (int64_t b = 0; b < t.n.batch; b++) {
        struct attention_rows rows = attention_rows_of(c, b);
        for (int64_t h = 0; h < t.n.heads; h++)
            for (int64_t i = 0; i < rows.len_q; i++)
                bound_backward_row(&t, &rows, b, h, i, slot, &sums);
    }
    double factor = sum_factor(t.n.kv_heads > 0 ? num_terms(&t, slot) : 0);
    for (int64_t i = 0; i < numel; i++)
        if (sums.magnitude[i] != 0 || bound[i] != 0) // an element that nobody sees is exactly 0
            bound[i] += factor * sums.magnitude[i] + tiny;
    free(sums.magnitude);
}
