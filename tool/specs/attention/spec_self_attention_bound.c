// SPDX-License-Identifier: Apache-2.0
// The error bounds of the module: the bounds of its parts in turn; each part adds its own error and passes on
// the error of its inputs. u = 2^-24, U the unit roundoff of x's dtype.
//
//   projection  c = sum a w: own error (8 + 4 sqrt(k)) u sum|a w| + 3 u |c|, passed on e_a |w|
//   stored      U (|c| + e) before the next part, and again after RoPE
//   RoPE        own error 4 u (|a cos| + |b sin|), passed on |cos| e_a + |sin| e_b
//   attention   own error by tool/specs/attention/spec_attention_bound.c, at the oracle's q, k, v. Passed on: a score has
//               the error d = scale sum(|q| e_k + e_q (|k| + e_k)), a weight e = p (exp(d) - 1), so out
//               2 (sum e |v| + E sum p |v|) + sum (p + 2 e) e_v to first order while E = sum e is small,
//               and never more than weights with the sum 1 can cause; lse 2 E, or the worst d
//   gradients   own error by tool/specs/attention/spec_attention_bound.c. Passed on from the error e of dout: dv sum p e,
//               and with f = p (sum e |v| + sum e |out|) dq scale sum f |k|, dk scale sum f |q|
//
// A sum of terms with errors e has an error of 4 sqrt(sum e^2), and never more than sum e, because the signs are
// independent (Higham, Mary). The parts' own errors count 1.25 times, because they are computed at the oracle's values
// instead of the inexact ones. The slope of a softcap is at most 1, and under dropout every weight counts as kept.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specs/attention/spec_self_attention.h"
#include "system/heap.h"

static const double u32 = 0x1p-24, tiny = 0x1p-126, own = 1.25;

static double *doubles(int64_t count) { return heap_get((size_t)count + 1, sizeof(double)); }

// The oracle refuses none of these calls, except for lack of memory.
static void must(tsr_status status) {
    if (status == TSR_OUT_OF_MEMORY) heap_exhausted();
    if (status != TSR_OK) abort();
}

// The error that storing a value with the error e adds.
static double stored(const struct op_case *c, double value, double e) {
    double roundoff = c->dtype == TSR_BF16 ? 0x1p-8 : c->dtype == TSR_F16 ? 0x1p-11 : u32;
    return roundoff * (fabs(value) + e) + (c->dtype == TSR_F16 ? 0x1p-25 : tiny);
}

// The errors of a sum's terms: their sum, and the sum of their squares.
struct spread {
    double sum, squares;
};
static void spread_add(struct spread *s, double e) {
    s->sum += e;
    s->squares += e * e;
}
static double spread_error(struct spread s) { return fmin(s.sum, 4 * sqrt(s.squares)); }

static double sum_factor(double count) { return (8 + 4 * sqrt(count)) * u32; }

// c = a w^T + bias for rows of k elements and `cols` rows of w; e_a is the error of a (NULL: exact). error: that of c
// before it is stored.
static void project(const double *a, const double *e_a, int64_t rows, int64_t k, const double *w,
                    int64_t cols, const double *bias, double *value, double *error) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = bias != NULL ? bias[j] : 0, magnitude = 0;
            struct spread spread = {0, 0};
            for (int64_t i = 0; i < k; i++) {
                double factor = w[j * k + i];
                sum += a[r * k + i] * factor;
                magnitude += fabs(a[r * k + i] * factor);
                if (e_a != NULL) spread_add(&spread, e_a[r * k + i] * fabs(factor));
            }
            double carried = spread_error(spread);
            if (value != NULL) value[r * cols + j] = sum;
            error[r * cols + j] = sum_factor((double)k) * (magnitude + carried) + carried +
                                  3 * u32 * fabs(sum) + tiny;
        }
}

// ---- Rotation ---------------------------------------------------------------------------------

// Rotates the heads of q and k in rows of qkv, with the errors e, in place (in backward by the negative angle). They are
// stored before and after; is_compared: without the last store, which verify adds.
static void rotate(const struct op_case *c, bool is_compared, double *value, double *e) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    const double *cos = case_values(c, "cos"), *sin = case_values(c, "sin");
    bool is_interleaved = c->param[SA_INTERLEAVED] != 0;
    double sign = spec_slot(c->spec, "dy") >= 0 ? -1 : 1;
    if (cos != NULL)
        for (int64_t i = 0; i < n.rows * n.qkv_dim; i++)
            if (i % n.qkv_dim < (n.heads + n.kv_heads) * n.head_dim)
                e[i] += stored(c, value[i], e[i]);
    for (int64_t r = 0; cos != NULL && r < n.rows; r++)
        for (int64_t h = 0; h < n.heads + n.kv_heads; h++)
            for (int64_t i = 0; i < n.pairs; i++) {
                int64_t head = r * n.qkv_dim + h * n.head_dim;
                int64_t at = head + (is_interleaved ? 2 * i : i);
                int64_t other = head + (is_interleaved ? 2 * i + 1 : i + n.pairs);
                double co = cos[r % n.seqlen * n.pairs + i];
                double si = sign * sin[r % n.seqlen * n.pairs + i];
                double a = value[at], b = value[other], e_a = e[at], e_b = e[other];
                value[at] = a * co - b * si;
                value[other] = b * co + a * si;
                e[at] = fabs(co) * e_a + fabs(si) * e_b + 4 * u32 * (fabs(a * co) + fabs(b * si));
                e[other] =
                    fabs(co) * e_b + fabs(si) * e_a + 4 * u32 * (fabs(b * co) + fabs(a * si));
            }
    for (int64_t i = 0; i < n.rows * n.qkv_dim && !is_compared; i++)
        e[i] += stored(c, value[i], e[i]);
}

// ---- The module's attention -------------------------------------------------------------------

// take copies q, k or v (or their gradients) out of rows of qkv, put copies them back.
static void take(const struct self_attention_sizes *n, const double *qkv, int64_t first,
                 int64_t count, double *heads) {
    for (int64_t r = 0; r < n->rows; r++)
        memcpy(heads + r * count * n->head_dim, qkv + r * n->qkv_dim + first * n->head_dim,
               (size_t)(count * n->head_dim) * sizeof *heads);
}
static void put(const struct self_attention_sizes *n, const double *heads, int64_t first,
                int64_t count, double *qkv) {
    for (int64_t r = 0; r < n->rows; r++)
        memcpy(qkv + r * n->qkv_dim + first * n->head_dim, heads + r * count * n->head_dim,
               (size_t)(count * n->head_dim) * sizeof *heads);
}

struct core {
    struct op_case c; // of attention; its tensors are these
    struct self_attention_sizes n;
    double *part[3], *error[3]; // q, k, v and their errors
};

static void core_create(struct core *core, const struct op_case *c, bool is_backward,
                        const double *qkv, const double *e_qkv, double *attention, double *lse) {
    *core =
        (struct core){.c = self_attention_core(c, is_backward), .n = self_attention_sizes_of(c)};
    const struct self_attention_sizes *n = &core->n;
    int64_t first = 0;
    for (int i = 0; i < 3; i++) {
        int64_t count = i == 0 ? n->heads : n->kv_heads;
        core->part[i] = doubles(n->rows * count * n->head_dim);
        core->error[i] = doubles(n->rows * count * n->head_dim);
        take(n, qkv, first, count, core->part[i]);
        if (e_qkv != NULL) take(n, e_qkv, first, count, core->error[i]);
        core->c.tensor[ATTN_Q + i] =
            TSR_TENSOR(core->part[i], TSR_F64, n->batch, n->seqlen, count, n->head_dim);
        first += count;
    }
    core->c.tensor[ATTN_OUT] =
        TSR_TENSOR(attention, TSR_F64, n->batch, n->seqlen, n->heads, n->head_dim);
    core->c.tensor[ATTN_LSE] = TSR_TENSOR(lse, TSR_F64, n->batch, n->heads, n->seqlen);
    core->c.is_present[ATTN_LSE] = true;
}

static void core_release(struct core *core) {
    for (int i = 0; i < 3; i++) {
        free(core->part[i]);
        free(core->error[i]);
    }
}

// The weight p of one pair, and the error d of its score.
static double weight(const struct core *core, int64_t at_q, int64_t at_k, double lse, double *d) {
    const double *q = core->part[0] + at_q, *k = core->part[1] + at_k;
    const double *e_q = core->error[0] + at_q, *e_k = core->error[1] + at_k;
    double scale = attention_scale(&core->c), s = 0, softcap = core->c.param[ATTN_SOFTCAP];
    struct spread spread = {0, 0};
    for (int64_t i = 0; i < core->n.head_dim; i++) {
        s += scale * q[i] * k[i];
        spread_add(&spread, fabs(scale * q[i]) * e_k[i]);
        spread_add(&spread, fabs(scale) * e_q[i] * (fabs(k[i]) + e_k[i]));
    }
    *d = spread_error(spread);
    if (softcap > 0) s = softcap * tanh(s / softcap);
    return exp(s - lse);
}

// Adds the passed-on errors of the inputs to one row of out and to its lse.
static void carry_row(const struct core *core, const struct attention_rows *rows, int64_t b,
                      int64_t h, int64_t i, double *sums, double *out, double *lse) {
    const struct self_attention_sizes *n = &core->n;
    int64_t dim = n->head_dim, at_lse = (b * n->heads + h) * n->seqlen + i;
    int64_t at_q = ((b * n->seqlen + i) * n->heads + h) * dim;
    double row_lse = ((const double *)core->c.tensor[ATTN_LSE].data)[at_lse];
    double kept = 1 / (1 - core->c.param[ATTN_DROPOUT_P]), e_sum = 0, worst_d = 0;
    double *spread = sums, *moved = sums + dim, *of_v = sums + 2 * dim, *worst = sums + 3 * dim;
    memset(sums, 0, (size_t)(4 * dim) * sizeof *sums);
    if (row_lse == -INFINITY) return; // the row sees no key
    for (int64_t j = 0; j < n->seqlen; j++) {
        if (!attention_sees(&core->c, rows, i, j)) continue;
        int64_t at_k = ((b * n->seqlen + j) * n->kv_heads + h / (n->heads / n->kv_heads)) * dim;
        const double *v = core->part[2] + at_k, *e_v = core->error[2] + at_k;
        double d, p = weight(core, at_q, at_k, row_lse, &d), e = p * expm1(fmin(d, 50));
        e_sum += e;
        worst_d = fmax(worst_d, d);
        for (int64_t x = 0; x < dim; x++) {
            spread[x] += p * fabs(v[x]);
            moved[x] += e * fabs(v[x]);
            of_v[x] += (p + 2 * e) * e_v[x];
            worst[x] = fmax(worst[x], fabs(v[x]) + e_v[x]);
        }
    }
    bool is_first_order = e_sum < 0.25;
    lse[at_lse] += is_first_order ? 2 * e_sum : worst_d;
    for (int64_t x = 0; x < dim; x++) {
        double first = 2 * (moved[x] + e_sum * spread[x]) + of_v[x], most = spread[x] + worst[x];
        out[at_q + x] += kept * (is_first_order && !(first > most) ? first : most);
    }
}

// ---- Forward ----------------------------------------------------------------------------------

static void attention_error(const struct op_case *c, const double *qkv, const double *e_qkv,
                            double *attention, double *lse, double *e_attention, double *e_lse) {
    struct core core;
    core_create(&core, c, false, qkv, e_qkv, attention, lse);
    const struct self_attention_sizes *n = &core.n;
    double *sums = doubles(4 * n->head_dim);
    attention_forward_bound(&core.c, ATTN_OUT, e_attention);
    attention_forward_bound(&core.c, ATTN_LSE, e_lse);
    for (int64_t i = 0; i < n->rows * n->attention_dim; i++) e_attention[i] *= own;
    for (int64_t i = 0; i < n->rows * n->heads; i++) e_lse[i] *= own;
    for (int64_t b = 0; b < n->batch; b++) {
        struct attention_rows rows = attention_rows_of(&core.c, b);
        for (int64_t h = 0; h < n->heads; h++)
            for (int64_t i = 0; i < n->seqlen; i++)
                carry_row(&core, &rows, b, h, i, sums, e_attention, e_lse);
    }
    free(sums);
    core_release(&core);
}

void self_attention_forward_bound(const struct op_case *c, int slot, double *bound) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    int64_t num_qkv = n.rows * n.qkv_dim, num_attention = n.rows * n.attention_dim;
    double *value = doubles(num_qkv), *e_qkv = doubles(num_qkv), *qkv = doubles(num_qkv);
    double *attention = doubles(num_attention), *e_attention = doubles(num_attention);
    double *lse = doubles(n.rows * n.heads), *e_lse = doubles(n.rows * n.heads);
    must(self_attention_oracle(c, qkv, attention, lse, NULL));
    project(c->tensor[SA_X].data, NULL, n.rows, n.embed_dim, c->tensor[SA_W_QKV].data, n.qkv_dim,
            case_values(c, "b_qkv"), value, e_qkv);
    rotate(c, slot == SA_QKV, value, e_qkv);
    if (slot == SA_QKV) {
        memcpy(bound, e_qkv, (size_t)num_qkv * sizeof *bound);
    } else {
        attention_error(c, qkv, e_qkv, attention, lse, e_attention, e_lse);
        if (slot == SA_ATTENTION) memcpy(bound, e_attention, (size_t)num_attention * sizeof *bound);
        if (slot == SA_LSE) memcpy(bound, e_lse, (size_t)(n.rows * n.heads) * sizeof *bound);
        for (int64_t i = 0; i < num_attention; i++)
            e_attention[i] += stored(c, attention[i], e_attention[i]);
        if (slot == SA_Y)
            project(attention, e_attention, n.rows, n.attention_dim, c->tensor[SA_W_OUT].data,
                    n.embed_dim, case_values(c, "b_out"), NULL, bound);
    }
    free(value), free(e_qkv), free(qkv), free(attention), free(e_attention), free(lse), free(e_lse);
}

// ---- Backward ---------------------------------------------------------------------------------

// The error of c = a^T b over rows (a is rows x m with the errors e_a, b rows x n), or of the sum of a if b is NULL.
static void reduce(const double *a, const double *e_a, int64_t rows, int64_t m, const double *b,
                   int64_t n, double *error) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double magnitude = 0;
            struct spread spread = {0, 0};
            for (int64_t r = 0; r < rows; r++) {
                double factor = b != NULL ? fabs(b[r * n + j]) : 1;
                magnitude += fabs(a[r * m + i]) * factor;
                if (e_a != NULL) spread_add(&spread, e_a[r * m + i] * factor);
            }
            double carried = spread_error(spread);
            error[i * n + j] = sum_factor((double)rows) * (magnitude + carried) + carried + tiny;
        }
}

// Adds the passed-on error of dout to the gradients of q, k and v.
static void carry_gradients(const struct core *core, const double *e_dout, double *const *e) {
    const struct self_attention_sizes *n = &core->n;
    const double *out = core->c.tensor[ATTN_OUT].data, *lse = core->c.tensor[ATTN_LSE].data;
    double scale = fabs(attention_scale(&core->c)), kept = 1 / (1 - core->c.param[ATTN_DROPOUT_P]);
    int64_t dim = n->head_dim;
    for (int64_t at = 0; at < n->rows * n->heads; at++) {
        int64_t h = at % n->heads, row = at / n->heads, b = row / n->seqlen, i = row % n->seqlen;
        struct attention_rows rows = attention_rows_of(&core->c, b);
        const double *e_row = e_dout + at * dim;
        double row_lse = lse[(b * n->heads + h) * n->seqlen + i], d;
        struct spread delta = {0, 0};
        if (row_lse == -INFINITY) continue;
        for (int64_t x = 0; x < dim; x++) spread_add(&delta, e_row[x] * fabs(out[at * dim + x]));
        for (int64_t j = 0; j < n->seqlen; j++) {
            if (!attention_sees(&core->c, &rows, i, j)) continue;
            int64_t at_k = ((b * n->seqlen + j) * n->kv_heads + h / (n->heads / n->kv_heads)) * dim;
            double p = weight(core, at * dim, at_k, row_lse, &d);
            struct spread a = {0, 0};
            for (int64_t x = 0; x < dim; x++)
                spread_add(&a, kept * e_row[x] * fabs(core->part[2][at_k + x]));
            double f = own * scale * p * (spread_error(a) + spread_error(delta));
            for (int64_t x = 0; x < dim; x++) {
                e[0][at * dim + x] += f * fabs(core->part[1][at_k + x]);
                e[1][at_k + x] += f * fabs(core->part[0][at * dim + x]);
                e[2][at_k + x] += own * kept * p * e_row[x];
            }
        }
    }
}

// dqkv by the oracle, and its error before the rotation.
static void core_gradients(const struct op_case *c, double *dout, const double *e_dout,
                           double *dqkv, double *e_dqkv) {
    struct core core;
    core_create(&core, c, true, c->tensor[SA_QKV].data, NULL, c->tensor[SA_ATTENTION].data,
                c->tensor[SA_LSE].data);
    const struct self_attention_sizes *n = &core.n;
    double *gradient[3], *error[3];
    core.c.tensor[ATTN_DOUT] =
        TSR_TENSOR(dout, TSR_F64, n->batch, n->seqlen, n->heads, n->head_dim);
    for (int i = 0; i < 3; i++) {
        int64_t numel = n->rows * (i == 0 ? n->heads : n->kv_heads) * n->head_dim;
        gradient[i] = doubles(numel);
        error[i] = doubles(numel);
        core.c.is_present[ATTN_DQ + i] = true;
        core.c.tensor[ATTN_DQ + i] = core.c.tensor[ATTN_Q + i];
        core.c.tensor[ATTN_DQ + i].data = gradient[i];
        attention_backward_bound(&core.c, ATTN_DQ + i, error[i]);
        for (int64_t x = 0; x < numel; x++) error[i][x] *= own;
    }
    must(core.c.spec->call(self_attention_oracle_context(), &core.c, "reference", NULL, 0, NULL));
    carry_gradients(&core, e_dout, error);
    for (int i = 0, first = 0; i < 3; i++) {
        int64_t count = i == 0 ? n->heads : n->kv_heads;
        put(n, gradient[i], first, count, dqkv);
        put(n, error[i], first, count, e_dqkv);
        first += (int)count;
        free(gradient[i]);
        free(error[i]);
    }
    core_release(&core);
}

// The transpose of a.
static double *transposed(const double *a, int64_t rows, int64_t cols) {
    double *t = doubles(rows * cols);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) t[j * rows + r] = a[r * cols + j];
    return t;
}

void self_attention_backward_bound(const struct op_case *c, int slot, double *bound) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    const double *x = c->tensor[SA_X].data, *dy = c->tensor[SA_DY].data;
    if (slot == SA_DW_OUT)
        reduce(dy, NULL, n.rows, n.embed_dim, c->tensor[SA_ATTENTION].data, n.attention_dim, bound);
    if (slot == SA_DB_OUT) reduce(dy, NULL, n.rows, n.embed_dim, NULL, 1, bound);
    if (slot == SA_DW_OUT || slot == SA_DB_OUT) return;
    double *w_out = transposed(c->tensor[SA_W_OUT].data, n.embed_dim, n.attention_dim);
    double *w_qkv = transposed(c->tensor[SA_W_QKV].data, n.qkv_dim, n.embed_dim);
    double *dout = doubles(n.rows * n.attention_dim), *e_dout = doubles(n.rows * n.attention_dim);
    double *dqkv = doubles(n.rows * n.qkv_dim), *e_dqkv = doubles(n.rows * n.qkv_dim);
    project(dy, NULL, n.rows, n.embed_dim, w_out, n.attention_dim, NULL, dout, e_dout);
    for (int64_t i = 0; i < n.rows * n.attention_dim; i++)
        e_dout[i] += stored(c, dout[i], e_dout[i]);
    core_gradients(c, dout, e_dout, dqkv, e_dqkv);
    rotate(c, false, dqkv, e_dqkv);
    if (slot == SA_DX)
        project(dqkv, e_dqkv, n.rows, n.qkv_dim, w_qkv, n.embed_dim, NULL, NULL, bound);
    if (slot == SA_DW_QKV) reduce(dqkv, e_dqkv, n.rows, n.qkv_dim, x, n.embed_dim, bound);
    if (slot == SA_DB_QKV) reduce(dqkv, e_dqkv, n.rows, n.qkv_dim, NULL, 1, bound);
    free(w_out), free(w_qkv), free(dout), free(e_dout), free(dqkv), free(e_dqkv);
}
