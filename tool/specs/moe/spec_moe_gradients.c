// SPDX-License-Identifier: Apache-2.0
// The error bounds of the layer's gradients, by the parts of its backward pass in turn (spec_moe_error.h). What forward
// saved is exact here. da, dh, the weighted a, the rows of dx, and a router's dlogits in 16 bits are rounded between them.
#include <stdlib.h>
#include <string.h>

#include "specs/moe/spec_moe_inner.h"
#include "specs/spec_moe_route.h"

static void inner_rows(const struct mix_backward *b, struct mix_inner *in) {
    const struct moe_sizes *n = &b->n;
    const double *preact = b->c->tensor[MIX_PREACT].data, *down = b->c->tensor[MIX_W_DOWN].data;
    mix_inner_create(in, b->rows.count, n->cols, n->inter);
    for (int64_t r = 0; r < b->rows.count; r++) {
        const struct mix_value weight = {b->is_on_input ? 1 : b->weights[b->rows.choice[r]], 0};
        mix_inner_row(b->c, in, r, preact + r * n->cols, b->dy + b->rows.token[r] * n->hidden,
                      down + b->rows.expert[r] * n->hidden * n->inter, n->hidden, weight);
    }
}

// The gradient of the input of each row (rows, hidden), stored; w_gate and w_up (.., inter, hidden).
static struct mix_matrix input_rows(const struct mix_backward *b, const struct mix_inner *in) {
    const struct moe_sizes *n = &b->n;
    const double *gate = case_values(b->c, "w_gate"), *up = b->c->tensor[MIX_W_UP].data;
    struct mix_matrix dx = mix_matrix_of(b->rows.count, n->hidden);
    for (int64_t r = 0; r < b->rows.count; r++) {
        const int64_t first = b->rows.expert[r] * n->inter * n->hidden;
        for (int64_t h = 0; h < n->hidden; h++) {
            struct mix_sum sum = {0};
            for (int64_t j = 0; j < n->inter; j++) {
                const int64_t at = first + j * n->hidden + h;
                if (gate != NULL) mix_add_product(&sum, &in->dh, r, j, gate[at], 0);
                mix_add_product(&sum, &in->dh, r, n->cols - n->inter + j, up[at], 0);
            }
            struct mix_value v = mix_result(&sum);
            v.error += 3 * mix_u32 * sum.magnitude; // of two products
            mix_put(&dx, r, h, mix_store(b->c->dtype, v));
        }
    }
    return dx;
}

// dw (experts, m, n) of a projection: the sum over an expert's rows of left (columns from first_left on) times right.
static void bound_weights(const struct mix_backward *b, const struct mix_matrix *left,
                          int64_t first_left, int64_t m, const struct mix_matrix *right,
                          const double *result, double *bound) {
    const int64_t n = right->cols;
    const bool is_accumulating = b->c->param[MIX_ACCUMULATE] != 0;
    for (int64_t e = 0, first = 0, end; e < b->n.experts; e++, first = end) {
        for (end = first; end < b->rows.count && b->rows.expert[end] == e;) end++;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                struct mix_sum sum = {0};
                for (int64_t r = first; r < end; r++)
                    mix_add_product(&sum, left, r, first_left + i, right->value[r * n + j],
                                    right->error[r * n + j]);
                const int64_t at = (e * m + i) * n + j;
                bound[at] = mix_result(&sum).error;
                if (is_accumulating)
                    bound[at] += 3 * mix_u32 * (fabs(result[at]) + sum.magnitude + sum.errors);
            }
    }
}

static void bound_bias(const struct mix_backward *b, const struct mix_matrix *of, int64_t first_col,
                       int64_t m, double *bound) {
    for (int64_t i = 0; i < b->n.experts * m; i++) bound[i] = 0;
    for (int64_t e = 0, first = 0, end; e < b->n.experts; e++, first = end) {
        for (end = first; end < b->rows.count && b->rows.expert[end] == e;) end++;
        for (int64_t i = 0; i < m; i++) {
            struct mix_sum sum = {0};
            for (int64_t r = first; r < end; r++) mix_add_product(&sum, of, r, first_col + i, 1, 0);
            bound[e * m + i] = mix_result(&sum).error;
        }
    }
}

// Each row's token out of (tokens, hidden), times the row's weight and stored if is_weighted.
static struct mix_matrix gathered(const struct mix_backward *b, const double *tokens,
                                  bool is_weighted) {
    const int64_t hidden = b->n.hidden;
    struct mix_matrix m = mix_matrix_of(b->rows.count, hidden);
    for (int64_t r = 0; r < b->rows.count; r++)
        for (int64_t h = 0; h < hidden; h++) {
            struct mix_value v = {tokens[b->rows.token[r] * hidden + h], 0};
            if (is_weighted) {
                v.value *= b->weights[b->rows.choice[r]];
                v.error = 9 * mix_u32 * fabs(v.value) + 0x1p-140;
                v = mix_store(b->c->dtype, v);
            }
            mix_put(&m, r, h, v);
        }
    return m;
}

// ---- The router -------------------------------------------------------------------------------

// What a cast loses of a number, which may be one of the dtype already.
static double cast_error(tsr_dtype dtype, double value) {
    char stored[sizeof(double)];
    tsr_store(dtype, stored, 0, value);
    return fabs(tsr_load(dtype, stored, 0) - value);
}

// Gradients of topk_weights (tokens, top_k): <da, a> + <dy, b_down>, or <x, dx of the row>.
static struct mix_matrix weight_gradients(const struct mix_backward *b, const struct mix_inner *in,
                                          const struct mix_matrix *dx) {
    const struct moe_sizes *n = &b->n;
    const double *bias = case_values(b->c, "b_down");
    struct mix_matrix dweights = mix_matrix_of(n->tokens, n->top_k);
    for (int64_t r = 0; r < b->rows.count; r++) {
        const int64_t token = b->rows.token[r], choice = b->rows.choice[r];
        struct mix_value v = {in->dweights.value[r], in->dweights.error[r]};
        struct mix_sum sum = {0};
        for (int64_t h = 0; h < n->hidden && b->is_on_input; h++)
            mix_add_product(&sum, dx, r, h, b->x[token * n->hidden + h], 0);
        if (b->is_on_input) {
            v = mix_result(&sum);
        } else if (bias != NULL) {
            const double *of = bias + b->rows.expert[r] * n->hidden;
            for (int64_t h = 0; h < n->hidden; h++)
                mix_add(&sum, of[h], cast_error(b->c->dtype, of[h]), b->dy[token * n->hidden + h],
                        0);
            const struct mix_value more = mix_result(&sum);
            v.error += more.error + 3 * mix_u32 * (fabs(v.value) + fabs(more.value));
            v.value += more.value;
        }
        v.error +=
            5 * mix_u32 * (fabs(v.value) + v.error) + 0x1p-118; // summed as rows of one column
        dweights.value[choice] = v.value;
        dweights.error[choice] = v.error;
    }
    return dweights;
}

static double value_or_zero(const struct op_case *c, int slot) {
    return c->is_present[slot] ? *(const double *)c->tensor[slot].data : 0;
}

static double *logits_of(const struct mix_backward *b) {
    const struct moe_sizes *n = &b->n;
    const double *router = case_values(b->c, "router"), *bias = case_values(b->c, "logits_bias");
    const double *given = case_values(b->c, "logits");
    double *logits = mix_doubles(n->tokens * n->experts);
    for (int64_t t = 0; t < n->tokens; t++)
        for (int64_t e = 0; e < n->experts; e++) {
            double sum = given != NULL ? given[t * n->experts + e] : bias != NULL ? bias[e] : 0;
            for (int64_t h = 0; given == NULL && h < n->hidden; h++)
                sum += b->x[t * n->hidden + h] * router[e * n->hidden + h];
            logits[t * n->experts + e] = sum;
        }
    return logits;
}

// Passes the error of dtopk_weights of a token on to the gradients of its logits: these are linear in them.
static void carry_route(const struct op_case *c, const struct moe_route_row *row, int64_t experts,
                        const int32_t *ids, const double *e_weights, int64_t top_k, double *error) {
    const bool is_sigmoid = c->param[MIX_SCORING] != 0, is_raw = c->param[MIX_NO_RENORMALIZE] != 0;
    const double scaling = fabs((double)(float)c->param[MIX_ROUTED_SCALING]);
    double w[MOE_MOST_TOP_K] = {0}, max = -INFINITY, sum = is_sigmoid ? 1e-20 : 0, mean = 0;
    for (int64_t k = 0; k < top_k; k++)
        if (ids[k] >= 0) max = fmax(max, row->x[ids[k]]);
    for (int64_t k = 0; k < top_k; k++) {
        if (ids[k] < 0) continue;
        w[k] = is_sigmoid || is_raw ? row->score[ids[k]] : exp(row->x[ids[k]] - max);
        sum += w[k];
    }
    if (is_raw) sum = 1;
    for (int64_t k = 0; k < top_k; k++)
        if (ids[k] >= 0 && sum > 0) mean += w[k] / sum * e_weights[k] * scaling;
    for (int64_t e = 0; e < experts && is_raw && !is_sigmoid; e++)
        error[e] += row->softmax[e] * mean;
    for (int64_t k = 0; k < top_k; k++) {
        if (ids[k] < 0 || !(sum > 0)) continue;
        const double s = row->score[ids[k]];
        const double factor = is_sigmoid ? s * (1 - s) / sum : w[k] / sum;
        error[ids[k]] += factor * (e_weights[k] * scaling + (is_raw ? 0 : mean));
    }
}

// The gradients of the logits (tokens, experts) in fp32.
static struct mix_matrix logit_gradients(const struct mix_backward *b,
                                         const struct mix_matrix *dweights) {
    const struct moe_sizes *n = &b->n;
    struct mix_matrix dlogits = mix_matrix_of(n->tokens, n->experts);
    double *logits = logits_of(b);
    int32_t *ids = b->c->tensor[MIX_IDS].data;
    int32_t *counts = heap_get((size_t)n->experts + 1, sizeof *counts);
    double balance = value_or_zero(b->c, MIX_DBALANCE), z = value_or_zero(b->c, MIX_DZ);
    for (int64_t a = 0; a < n->tokens * n->top_k; a++)
        if (ids[a] >= 0) counts[ids[a]]++;
    struct op_case route = moe_route_case(b->c, true);
    const struct {
        const char *name;
        bool is_present;
        tsr_tensor tensor;
    } tensors[] = {
        {"logits", true, TSR_TENSOR(logits, TSR_F64, n->tokens, n->experts)},
        {"topk_ids", true, TSR_TENSOR(ids, TSR_I32, n->tokens, n->top_k)},
        {"dtopk_weights", true, TSR_TENSOR(dweights->value, TSR_F64, n->tokens, n->top_k)},
        {"tokens_per_expert", b->c->is_present[MIX_DBALANCE],
         TSR_TENSOR(counts, TSR_I32, n->experts)},
        {"dload_balance_loss", b->c->is_present[MIX_DBALANCE], TSR_TENSOR(&balance, TSR_F64, 1)},
        {"dz_loss", b->c->is_present[MIX_DZ], TSR_TENSOR(&z, TSR_F64, 1)},
        {"dlogits", true, TSR_TENSOR(dlogits.value, TSR_F64, n->tokens, n->experts)}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const int slot = spec_slot(route.spec, tensors[i].name);
        route.is_present[slot] = tensors[i].is_present;
        if (tensors[i].is_present) route.tensor[slot] = tensors[i].tensor;
    }
    const tsr_status status =
        route.spec->call(moe_oracle_context(), &route, "reference", NULL, 0, NULL);
    if (status == TSR_OUT_OF_MEMORY) heap_exhausted();
    if (status != TSR_OK) abort(); // the oracle has accepted the layer's call
    route.spec->bound(&route, spec_slot(route.spec, "dlogits"), dlogits.error);
    struct moe_route_row row;
    for (int64_t t = 0; t < n->tokens; t++) {
        double *error = dlogits.error + t * n->experts;
        moe_route_read(&route, t, &row);
        carry_route(b->c, &row, n->experts, ids + t * n->top_k, dweights->error + t * n->top_k,
                    n->top_k, error);
    }
    free(logits), free(counts);
    return dlogits;
}

// As the products with the router take them: rounded to fp32, then to the router's dtype.
static void store_logits(const struct mix_backward *b, struct mix_matrix *dlogits) {
    const tsr_dtype dtype = b->c->small_dtype;
    for (int64_t i = 0; i < dlogits->rows * dlogits->cols; i++) {
        dlogits->error[i] += mix_stored(TSR_F32, dlogits->value[i], dlogits->error[i]);
        if (dtype == TSR_BF16 || dtype == TSR_F16)
            dlogits->error[i] += mix_stored(dtype, dlogits->value[i], dlogits->error[i]);
    }
}

// ---- The shared expert ------------------------------------------------------------------------

// The gradient (m, n) of a matrix of the shared expert, or of its gate: the sum over tokens of left times right.
static void bound_shared(const struct mix_backward *b, int slot, double *bound) {
    const struct moe_sizes *n = &b->n;
    struct mix_shared s;
    mix_shared_create(b, &s);
    const bool is_down = slot == MIX_DSHARED_W_DOWN, is_gate = slot == MIX_DSHARED_GATE;
    const struct mix_matrix *of = is_down ? &s.in.a : is_gate ? &s.dlogit : &s.in.dh;
    const int64_t first = slot == MIX_DSHARED_W_UP ? n->shared_cols - n->shared : 0;
    const int64_t count = is_gate ? 1 : n->shared;
    const double *tokens = is_down ? b->dy : b->x;
    for (int64_t j = 0; j < count; j++)
        for (int64_t h = 0; h < n->hidden; h++) {
            struct mix_sum sum = {0};
            for (int64_t t = 0; t < n->tokens; t++)
                mix_add_product(&sum, of, t, first + j, tokens[t * n->hidden + h], 0);
            bound[is_down ? h * n->shared + j : j * n->hidden + h] = mix_result(&sum).error;
        }
    mix_shared_release(&s);
}

// ---- All gradients ----------------------------------------------------------------------------

static void bound_x(const struct mix_backward *b, const struct mix_matrix *dx,
                    const struct mix_matrix *dlogits, double *bound) {
    const struct moe_sizes *n = &b->n;
    const bool has_shared = b->c->is_present[MIX_SHARED_W_UP];
    const double *router = case_values(b->c, "router");
    struct mix_shared s;
    if (has_shared) mix_shared_create(b, &s);
    for (int64_t t = 0; t < n->tokens; t++)
        for (int64_t h = 0; h < n->hidden; h++) {
            struct mix_sum sum = {0}, of_router = {0};
            for (int64_t k = 0; k < n->top_k; k++) {
                const int64_t choice = t * n->top_k + k, row = b->rows.row[choice];
                if (row >= 0)
                    mix_add_product(&sum, dx, row, h, b->is_on_input ? b->weights[choice] : 1, 0);
            }
            struct mix_value more = {0, 0};
            if (has_shared) {
                more = mix_shared_input(b, &s, t, h);
                mix_add(&sum, more.value, more.error, 1, 0);
            }
            const double shared = fabs(more.value);
            for (int64_t e = 0; e < n->experts && router != NULL; e++)
                mix_add_product(&of_router, dlogits, t, e, router[e * n->hidden + h], 0);
            if (router != NULL) {
                more = mix_store(b->c->small_dtype == TSR_F64 ? TSR_F32 : b->c->small_dtype,
                                 mix_result(&of_router));
                mix_add(&sum, more.value, more.error, 1, 0);
            }
            bound[t * n->hidden + h] =
                sum.errors +
                mix_u32 * ((double)(n->top_k + 4) * (sum.magnitude + sum.errors) + 8 * shared) +
                0x1p-120;
        }
    if (has_shared) mix_shared_release(&s);
}

// What needs the router's gradients: those of x, of the router, of its bias, of logits or weights.
static void bound_routing(const struct mix_backward *b, const struct mix_inner *in, int slot,
                          double *bound) {
    const struct moe_sizes *n = &b->n;
    struct mix_matrix dx = {0}, dlogits = {0};
    if (b->is_on_input || slot == MIX_DX) dx = input_rows(b, in);
    struct mix_matrix dweights = weight_gradients(b, in, &dx);
    if (n->is_routed) dlogits = logit_gradients(b, &dweights);
    if (slot == MIX_DWEIGHTS)
        memcpy(bound, dweights.error, (size_t)(n->tokens * n->top_k) * sizeof *bound);
    if (slot == MIX_DLOGITS)
        memcpy(bound, dlogits.error, (size_t)(n->tokens * n->experts) * sizeof *bound);
    if (n->is_routed) store_logits(b, &dlogits);
    if (slot == MIX_DX) bound_x(b, &dx, &dlogits, bound);
    for (int64_t e = 0; e < n->experts && (slot == MIX_DROUTER || slot == MIX_DLOGITS_BIAS); e++)
        for (int64_t h = 0; h < (slot == MIX_DROUTER ? n->hidden : 1); h++) {
            struct mix_sum sum = {0};
            for (int64_t t = 0; t < n->tokens; t++)
                mix_add_product(&sum, &dlogits, t, e,
                                slot == MIX_DROUTER ? b->x[t * n->hidden + h] : 1, 0);
            bound[slot == MIX_DROUTER ? e * n->hidden + h : e] = mix_result(&sum).error;
        }
    mix_matrix_release(&dx), mix_matrix_release(&dweights), mix_matrix_release(&dlogits);
}

void moe_backward_bound(const struct op_case *c, int slot, double *bound) {
    struct mix_backward b = {.c = c,
                             .n = moe_sizes_of(c),
                             .rows = mix_rows_of(c, c->tensor[MIX_IDS].data),
                             .x = c->tensor[MIX_X].data,
                             .dy = c->tensor[MIX_DY].data,
                             .weights = c->tensor[MIX_WEIGHTS].data,
                             .is_on_input = c->param[MIX_ON_INPUT] != 0};
    const struct moe_sizes *n = &b.n;
    const double *result = c->tensor[slot].data;
    struct mix_inner in;
    inner_rows(&b, &in);
    struct mix_matrix tokens = {0};
    switch (slot) {
    case MIX_DW_DOWN: {
        struct mix_matrix dy = gathered(&b, b.dy, false);
        bound_weights(&b, &dy, 0, n->hidden, &in.a, result, bound);
        mix_matrix_release(&dy);
        break;
    }
    case MIX_DW_GATE:
    case MIX_DW_UP:
        tokens = gathered(&b, b.x, b.is_on_input);
        bound_weights(&b, &in.dh, slot == MIX_DW_UP ? n->cols - n->inter : 0, n->inter, &tokens,
                      result, bound);
        break;
    case MIX_DB_GATE: bound_bias(&b, &in.dh, 0, n->inter, bound); break;
    case MIX_DB_UP: bound_bias(&b, &in.dh, n->cols - n->inter, n->inter, bound); break;
    case MIX_DB_DOWN:
        tokens = gathered(&b, b.dy, !b.is_on_input);
        bound_bias(&b, &tokens, 0, n->hidden, bound);
        break;
    case MIX_DSHARED_W_GATE:
    case MIX_DSHARED_W_UP:
    case MIX_DSHARED_W_DOWN:
    case MIX_DSHARED_GATE: bound_shared(&b, slot, bound); break;
    default: bound_routing(&b, &in, slot, bound);
    }
    mix_matrix_release(&tokens);
    mix_inner_release(&in);
    mix_rows_release(&b.rows);
}
