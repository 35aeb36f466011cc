// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/attention.h in double, one pair of query and key at a time. Scores are computed again
// wherever they are needed, not stored, so memory is a few rows for any length. Keys that a query does not see are never read.
#include <math.h>
#include <tessera/attention.h>

#include "core/core_dtype.h"
#include "core/core_philox.h"
#include "ops/attention/attention_lse_params.h"
#include "ops/attention/attention_problem.h"

// lse in two parts: one number cannot hold the digits of both if scores are large.
struct exact_lse {
    double max, log_sum; // of the row's scores; log of the sum of exp(score - max)
};

// One query of one head, and the keys that it sees.
struct query {
    const struct attention_problem *p;
    struct attention_sequence s;
    struct attention_range keys;
    int64_t batch, head, head_kv, i;
    double row[ATTENTION_MAX_HEAD_DIM];  // of q
    double dout[ATTENTION_MAX_HEAD_DIM]; // backward only, as are the next three
    const struct exact_lse *lses;        // of every row
    struct exact_lse lse;
    double delta;
};

// Leaves q->row and q->dout unchanged.
static void set_query(struct query *q, const struct attention_problem *p, int64_t batch,
                      int64_t head, int64_t i) {
    q->p = p;
    q->s = attention_sequence_at(p, batch);
    q->batch = batch;
    q->head = head;
    q->head_kv = head / (p->num_heads_q / p->num_heads_kv);
    q->keys = attention_visible(p, &q->s, i);
    q->i = i;
}

static void *of_query(const struct query *q, const struct attention_view *t) {
    return attention_at(t, q->batch, q->s.q_first + q->i, q->head);
}

static void *of_key(const struct query *q, const struct attention_view *t, int64_t j) {
    return attention_at(t, q->batch, q->s.k_first + j, q->head_kv);
}

static double per_head(const struct query *q, const struct attention_per_head *t) {
    return attention_per_head_at(t, q->batch, q->head);
}

static tsr_dtype lse_dtype(const struct attention_problem *p) {
    return p->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
}

static int64_t lse_index(const struct query *q) {
    return attention_lse_index(q->p, q->batch, q->head, q->s.q_first + q->i);
}

// Index of the row in an array of all rows: (batch, head, query), packed (head, query).
static int64_t row_index(const struct query *q) {
    const struct attention_problem *p = q->p;
    int64_t batch = p->is_packed ? 0 : q->batch, rows = p->is_packed ? p->total_q : p->seqlen_q;
    return (batch * p->num_heads_q + q->head) * rows + q->s.q_first + q->i;
}

// A row in double: the row itself if it is f64, otherwise converted into the given room.
static const double *in_double(tsr_dtype dtype, const void *row, int64_t count, double *room) {
    if (dtype == TSR_F64) return row;
    tsri_load_run(dtype, row, 0, 1, count, room);
    return room;
}

static const double *key_row(const struct query *q, int64_t j, double *room) {
    return in_double(q->p->dtype, of_key(q, &q->p->k, j), q->p->head_dim, room);
}

static const double *value_row(const struct query *q, int64_t j, double *room) {
    return in_double(q->p->dtype, of_key(q, &q->p->v, j), q->p->head_dim_v, room);
}

static void load_query(struct query *q) {
    tsri_load_run(q->p->dtype, of_query(q, &q->p->q), 0, 1, q->p->head_dim, q->row);
}

// Four sums at once: a single sum would wait for each addition.
static double dot(const double *a, const double *b, int64_t count) {
    double sum[4] = {0};
    int64_t c = 0;
    for (; c + 4 <= count; c += 4)
        for (int i = 0; i < 4; i++) sum[i] += a[c + i] * b[c + i];
    for (; c < count; c++) sum[0] += a[c] * b[c];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

static void add_scaled(double *sum, double scale, const double *row, int64_t count) {
    for (int64_t c = 0; c < count; c++) sum[c] += scale * row[c];
}

// slope: the derivative of the softcap at this score, d score / d (scale q k).
static double score(const struct query *q, int64_t j, const double *k, double *slope) {
    const struct attention_problem *p = q->p;
    double s = p->softmax_scale * dot(q->row, k, p->head_dim);
    *slope = 1;
    if (p->softcap > 0) {
        double t = tanh(s / p->softcap);
        s = p->softcap * t;
        *slope = 1 - t * t;
    }
    if (p->bias.data != NULL)
        s += tsri_load(p->bias.dtype, attention_bias_at(&p->bias, q->batch, q->head, q->i, j), 0);
    if (p->slopes.data != NULL)
        s -= per_head(q, &p->slopes) * fabs((double)(j - (q->i + q->s.shift)));
    return s;
}

// The factor of a weight: 0, or 1 / (1 - dropout_p).
static double dropout_factor(const struct query *q, int64_t j) {
    const struct attention_problem *p = q->p;
    if (p->dropout_p == 0) return 1;
    const uint32_t counter[4] = {(uint32_t)((uint64_t)(j / 4) + p->offset), (uint32_t)q->i,
                                 (uint32_t)q->head, (uint32_t)q->batch};
    uint32_t words[4];
    tsri_philox(p->seed, counter, words);
    return words[j % 4] >= p->dropout_threshold ? 1 / (1 - p->dropout_p) : 0;
}

// Clears every row of a tensor, also rows that belong to no sequence.
static void fill_rows(const struct attention_problem *p, const struct attention_view *t,
                      int64_t rows, int64_t heads, int64_t dim) {
    int64_t batches = p->is_packed ? 1 : p->num_batches;
    for (int64_t b = 0; t->data != NULL && b < batches; b++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t c = 0; c < dim; c++)
                    tsr_store(t->dtype, attention_at(t, b, r, h), c, 0);
}

// ---- Forward ----------------------------------------------------------------------------------

static void forward_query(const struct query *q) {
    const struct attention_problem *p = q->p;
    double room[ATTENTION_MAX_HEAD_DIM];
    double sink = attention_sink_at(p, q->batch, q->head), max = -INFINITY, slope;
    for (int64_t j = q->keys.begin; j < q->keys.end; j++) {
        double s = score(q, j, key_row(q, j, room), &slope);
        if (s > max || isnan(s)) max = s;
    }
    // No key is seen, or only with biases of -inf: output 0, and lse is the sink, whatever its value.
    bool is_empty = max == -INFINITY;
    if (!(sink <= max)) max = isnan(max) ? max : sink;
    double out[ATTENTION_MAX_HEAD_DIM] = {0};
    double sum = is_empty ? 0 : exp(sink - max);
    for (int64_t j = q->keys.begin; j < q->keys.end && !is_empty; j++) {
        double e = exp(score(q, j, key_row(q, j, room), &slope) - max);
        double factor = dropout_factor(q, j);
        sum += e;
        if (factor != 0) add_scaled(out, e * factor, value_row(q, j, room), p->head_dim_v);
    }
    for (int64_t c = 0; c < p->head_dim_v; c++)
        tsr_store(p->dtype, of_query(q, &p->out), c, is_empty ? 0 : out[c] / sum);
    if (p->lse != NULL)
        tsr_store(lse_dtype(p), p->lse, lse_index(q), is_empty ? max : max + log(sum));
}

tsr_status attention_reference_run(tsr_context *ctx, const void *problem,
                                   const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct attention_problem *p = problem;
    if (p->is_packed) { // rows of no sequence, with or without a sink
        fill_rows(p, &p->out, p->total_q, p->num_heads_q, p->head_dim_v);
        for (int64_t h = 0; p->lse != NULL && h < p->num_heads_q; h++)
            for (int64_t r = 0; r < p->total_q; r++)
                tsr_store(lse_dtype(p), p->lse, attention_lse_index(p, 0, h, r), -INFINITY);
    }
    for (int64_t b = 0; b < p->num_batches; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < attention_sequence_at(p, b).len_q; i++) {
                struct query q;
                set_query(&q, p, b, h, i);
                load_query(&q);
                forward_query(&q);
            }
    return TSR_OK;
}

// ---- Backward ---------------------------------------------------------------------------------

// The gradient terms of a query and a key that it sees.
struct pair {
    double weight;  // after dropout: dv_j = sum of weight dout_i
    double dscore;  // dbias = sum of dscore
    double dscaled; // dq_i = sum of dscaled k_j, dk_j = sum of dscaled q_i
};

// Computes lse again from the scores, as the given f32 is rounded. If rounding does not explain the difference, the given lse is
// used: it may cover more keys than this call has.
static struct exact_lse sum_again(const struct query *q) {
    const struct attention_problem *p = q->p;
    double room[ATTENTION_MAX_HEAD_DIM], slope, sum = 0;
    double given = tsri_load(lse_dtype(p), p->lse, lse_index(q));
    double sink = attention_sink_at(p, q->batch, q->head), max = sink;
    struct exact_lse as_given = {given, 0};
    if (p->dtype == TSR_F64 || !isfinite(given)) return as_given;
    for (int64_t j = q->keys.begin; j < q->keys.end; j++)
        max = fmax(max, score(q, j, key_row(q, j, room), &slope));
    for (int64_t j = q->keys.begin; j < q->keys.end; j++)
        sum += exp(score(q, j, key_row(q, j, room), &slope) - max);
    struct exact_lse again = {max, log(sum + exp(sink - max))};
    double apart = max - given + again.log_sum;
    return fabs(apart) <= (double)ATTENTION_LSE_ROUNDING * fabs(given) ? again : as_given;
}

static void sum_all_again(const struct attention_problem *p, struct exact_lse *lses) {
    for (int64_t b = 0; b < p->num_batches; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < attention_sequence_at(p, b).len_q; i++) {
                struct query q;
                set_query(&q, p, b, h, i);
                load_query(&q);
                lses[row_index(&q)] = sum_again(&q);
            }
}

static double weight_of(const struct query *q, double score) {
    return exp(score - q->lse.max - q->lse.log_sum);
}

// delta: dot product of dout and out.
static void load_gradient(struct query *q) {
    const struct attention_problem *p = q->p;
    double room[ATTENTION_MAX_HEAD_DIM];
    const double *out = in_double(p->dtype, of_query(q, &p->out), p->head_dim_v, room);
    tsri_load_run(p->dtype, of_query(q, &p->dout), 0, 1, p->head_dim_v, q->dout);
    q->lse = q->lses[row_index(q)];
    q->delta = dot(q->dout, out, p->head_dim_v);
}

// All zero for a row that saw no key.
static struct pair pair_of(const struct query *q, int64_t j, const double *k, const double *v) {
    const struct attention_problem *p = q->p;
    double slope, factor = dropout_factor(q, j), dweight = 0;
    if (q->lse.max == -INFINITY) return (struct pair){0, 0, 0};
    double weight = weight_of(q, score(q, j, k, &slope));
    if (factor != 0) dweight = factor * dot(q->dout, v, p->head_dim_v);
    double dscore = weight * (dweight - q->delta);
    return (struct pair){weight * factor, dscore, p->softmax_scale * slope * dscore};
}

static void backward_query(const struct query *q) {
    const struct attention_problem *p = q->p;
    double dq[ATTENTION_MAX_HEAD_DIM] = {0};
    double k_room[ATTENTION_MAX_HEAD_DIM], v_room[ATTENTION_MAX_HEAD_DIM];
    for (int64_t j = q->keys.begin; j < q->keys.end; j++) {
        const double *k = key_row(q, j, k_room);
        struct pair pair = pair_of(q, j, k, value_row(q, j, v_room));
        add_scaled(dq, pair.dscaled, k, p->head_dim);
    }
    for (int64_t c = 0; c < p->head_dim; c++) tsr_store(p->dtype, of_query(q, &p->dq), c, dq[c]);
}

// Sums over every query of the head group that sees the key.
static void backward_key(const struct attention_problem *p, const struct exact_lse *lses,
                         int64_t batch, int64_t head_kv, int64_t j) {
    double dk[ATTENTION_MAX_HEAD_DIM] = {0}, dv[ATTENTION_MAX_HEAD_DIM] = {0};
    double k_room[ATTENTION_MAX_HEAD_DIM], v_room[ATTENTION_MAX_HEAD_DIM];
    const double *k = NULL, *v = NULL; // set once a query sees them
    struct attention_sequence s = attention_sequence_at(p, batch);
    int64_t group = p->num_heads_q / p->num_heads_kv;
    for (int64_t h = head_kv * group; h < (head_kv + 1) * group; h++)
        for (int64_t i = 0; i < s.len_q; i++) {
            struct query q;
            set_query(&q, p, batch, h, i);
            q.lses = lses;
            if (j < q.keys.begin || j >= q.keys.end || lses[row_index(&q)].max == -INFINITY)
                continue;
            if (k == NULL) k = key_row(&q, j, k_room), v = value_row(&q, j, v_room);
            load_query(&q);
            load_gradient(&q);
            struct pair pair = pair_of(&q, j, k, v);
            add_scaled(dk, pair.dscaled, q.row, p->head_dim);
            if (pair.weight != 0) add_scaled(dv, pair.weight, q.dout, p->head_dim_v);
        }
    for (int64_t c = 0; c < p->head_dim && p->dk.data != NULL; c++)
        tsr_store(p->dtype, attention_at(&p->dk, batch, s.k_first + j, head_kv), c, dk[c]);
    for (int64_t c = 0; c < p->head_dim_v && p->dv.data != NULL; c++)
        tsr_store(p->dtype, attention_at(&p->dv, batch, s.k_first + j, head_kv), c, dv[c]);
}

// One element: the sum over the dimensions that bias repeats.
static double dbias_at(const struct attention_problem *p, const struct exact_lse *lses,
                       const int64_t at[4]) {
    const int64_t full[4] = {p->num_batches, p->num_heads_q, p->seqlen_q, p->seqlen_k};
    double k_room[ATTENTION_MAX_HEAD_DIM], v_room[ATTENTION_MAX_HEAD_DIM];
    int64_t begin[4], end[4];
    double sum = 0;
    for (int d = 0; d < 4; d++) {
        begin[d] = p->dbias.shape[d] == 1 ? 0 : at[d];
        end[d] = p->dbias.shape[d] == 1 ? full[d] : at[d] + 1;
    }
    for (int64_t b = begin[0]; b < end[0]; b++)
        for (int64_t h = begin[1]; h < end[1]; h++)
            for (int64_t i = begin[2]; i < end[2]; i++) {
                struct query q;
                set_query(&q, p, b, h, i);
                int64_t first = tsri_max(begin[3], q.keys.begin);
                int64_t last = i < q.s.len_q ? tsri_min(end[3], q.keys.end) : first;
                if (first >= last) continue;
                q.lses = lses;
                load_query(&q);
                load_gradient(&q);
                for (int64_t j = first; j < last; j++)
                    sum += pair_of(&q, j, key_row(&q, j, k_room), value_row(&q, j, v_room)).dscore;
            }
    return sum;
}

static void backward_bias(const struct attention_problem *p, const struct exact_lse *lses) {
    const int64_t *shape = p->dbias.shape;
    int64_t at[4];
    for (at[0] = 0; at[0] < shape[0]; at[0]++)
        for (at[1] = 0; at[1] < shape[1]; at[1]++)
            for (at[2] = 0; at[2] < shape[2]; at[2]++)
                for (at[3] = 0; at[3] < shape[3]; at[3]++)
                    tsr_store(p->dbias.dtype,
                              attention_bias_at(&p->dbias, at[0], at[1], at[2], at[3]), 0,
                              dbias_at(p, lses, at));
}

static void backward_sinks(const struct attention_problem *p, const struct exact_lse *lses) {
    for (int64_t h = 0; h < p->num_heads_q; h++) {
        double sum = 0;
        for (int64_t b = 0; b < p->num_batches; b++)
            for (int64_t i = 0; i < attention_sequence_at(p, b).len_q; i++) {
                struct query q;
                set_query(&q, p, b, h, i);
                q.lses = lses;
                load_gradient(&q);
                if (q.lse.max != -INFINITY)
                    sum -= weight_of(&q, attention_sink_at(p, b, h)) * q.delta;
            }
        tsr_store(p->dsinks.dtype, p->dsinks.data, h * p->dsinks.head, sum);
    }
}

void attention_plan_reference_backward(const void *problem, const struct tsri_limits *limits,
                                       struct tsri_plan *plan) {
    const struct attention_problem *p = problem;
    int64_t rows = p->num_heads_q * (p->is_packed ? p->total_q : p->num_batches * p->seqlen_q);
    (void)limits;
    plan->num_tasks = 1;
    plan->workspace_bytes = (size_t)rows * sizeof(struct exact_lse);
}

tsr_status attention_reference_backward_run(tsr_context *ctx, const void *problem,
                                            const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan;
    const struct attention_problem *p = problem;
    struct exact_lse *lses = workspace;
    sum_all_again(p, lses);
    fill_rows(p, &p->dq, p->total_q, p->num_heads_q, p->head_dim);
    fill_rows(p, &p->dk, p->total_k, p->num_heads_kv, p->head_dim);
    fill_rows(p, &p->dv, p->total_k, p->num_heads_kv, p->head_dim_v);
    for (int64_t b = 0; b < p->num_batches; b++) {
        struct attention_sequence s = attention_sequence_at(p, b);
        for (int64_t h = 0; p->dq.data != NULL && h < p->num_heads_q; h++)
            for (int64_t i = 0; i < s.len_q; i++) {
                struct query q;
                set_query(&q, p, b, h, i);
                q.lses = lses;
                load_query(&q);
                load_gradient(&q);
                backward_query(&q);
            }
        for (int64_t h = 0; (p->dk.data != NULL || p->dv.data != NULL) && h < p->num_heads_kv; h++)
            for (int64_t j = 0; j < s.len_k; j++) backward_key(p, lses, b, h, j);
    }
    if (p->dbias.data != NULL) backward_bias(p, lses);
    if (p->dsinks.data != NULL) backward_sinks(p, lses);
    return TSR_OK;
}
