// SPDX-License-Identifier: Apache-2.0
// The error bounds of the layer's forward pass: the bounds of its parts in turn (spec_moe_error.h); each part adds its own
// error and passes on the error of its inputs. The logits of a case are exact, so that weights and losses have the bounds
// of tessera/moe_route.h. preact, a and the experts' outputs are rounded to x's dtype.
#include <stdlib.h>
#include <string.h>

#include "specs/moe/spec_moe_error.h"

// The oracle refuses none of these calls, except for lack of memory.
static void must(tsr_status status) {
    if (status == TSR_OUT_OF_MEMORY) heap_exhausted();
    if (status != TSR_OK) abort();
}

// ---- Rows -------------------------------------------------------------------------------------

struct mix_rows mix_rows_of(const struct op_case *c, const int32_t *ids) {
    const struct moe_sizes n = moe_sizes_of(c);
    const int64_t choices = n.tokens * n.top_k;
    const size_t room = (size_t)choices + 1;
    struct mix_rows rows = {0, heap_get(room, sizeof(int64_t)), heap_get(room, sizeof(int64_t)),
                            heap_get(room, sizeof(int64_t)), heap_get(room, sizeof(int64_t))};
    for (int64_t a = 0; a < choices; a++) rows.row[a] = -1;
    for (int64_t e = 0; e < n.experts; e++) {
        int64_t taken = 0;
        for (int64_t a = 0; a < choices; a++) {
            if (ids[a] != e || (n.capacity > 0 && taken == n.capacity)) continue;
            taken++;
            rows.row[a] = rows.count;
            rows.token[rows.count] = a / n.top_k;
            rows.expert[rows.count] = e;
            rows.choice[rows.count++] = a;
        }
    }
    return rows;
}

void mix_rows_release(struct mix_rows *rows) {
    free(rows->row), free(rows->token), free(rows->expert), free(rows->choice);
}

// ---- Activations ------------------------------------------------------------------------------

// a = act(gate) up, before it is stored. gate and up are stored already.
static struct mix_value activate(const struct op_case *c, struct mix_value gate,
                                 struct mix_value up) {
    const struct mix_act act = mix_act_of(c, gate.value, up.value);
    const bool is_gated = c->is_present[MIX_W_GATE];
    const double factor = fabs(act.factor) + (is_gated ? up.error : 0);
    const double moved = mix_steepest(c, gate.value, gate.error) * gate.error;
    const double own = 20 * mix_u32 * fmax(fabs(gate.value), fabs(act.f)) * factor +
                       eighth_of_rounding(c, MIX_X) * act.tail * factor + 0x1p-118 * factor +
                       4 * mix_u32 * fabs(act.value);
    return (struct mix_value){act.value, own + moved * factor +
                                             (is_gated ? fabs(act.f) * up.error : 0) + mix_tiny};
}

// ---- The forward pass -------------------------------------------------------------------------

// Everything about a case: the oracle's choice, and what it saves.
struct forward {
    const struct op_case *c;
    const double *w_gate, *w_up, *w_down, *shared_gate, *shared_up, *shared_down; // times scales
    double *scaled[6]; // those that are not the case's own
    struct moe_sizes n;
    struct moe_saved saved;
    struct mix_rows rows;
    double *e_weights; // of topk_weights, with their rounding
};

// The routing as a case of its own, with exact logits.
static struct op_case route_of(const struct forward *f, double *logits) {
    const struct op_case *c = f->c;
    const struct moe_sizes *n = &f->n;
    struct op_case route = moe_route_case(c, false);
    const double *x = c->tensor[MIX_X].data, *router = case_values(c, "router");
    const double *bias = case_values(c, "logits_bias"), *given = case_values(c, "logits");
    for (int64_t t = 0; t < n->tokens; t++)
        for (int64_t e = 0; e < n->experts; e++) {
            double sum = given != NULL ? given[t * n->experts + e] : bias != NULL ? bias[e] : 0;
            for (int64_t h = 0; given == NULL && h < n->hidden; h++)
                sum += x[t * n->hidden + h] * router[e * n->hidden + h];
            logits[t * n->experts + e] = sum;
        }
    route.tensor[spec_slot(route.spec, "logits")] =
        TSR_TENSOR(logits, TSR_F64, n->tokens, n->experts);
    route.tensor[spec_slot(route.spec, "topk_ids")] =
        TSR_TENSOR(f->saved.ids, TSR_I32, n->tokens, n->top_k);
    route.tensor[spec_slot(route.spec, "topk_weights")] =
        TSR_TENSOR(f->saved.weights, TSR_F64, n->tokens, n->top_k);
    return route;
}

static void bound_weights(struct forward *f) {
    const int64_t choices = f->n.tokens * f->n.top_k;
    if (!f->n.is_routed) return;
    double *logits = mix_doubles(f->n.tokens * f->n.experts);
    const struct op_case route = route_of(f, logits);
    route.spec->bound(&route, spec_slot(route.spec, "topk_weights"), f->e_weights);
    for (int64_t a = 0; a < choices; a++)
        f->e_weights[a] += mix_stored(TSR_F32, f->saved.weights[a], f->e_weights[a]);
    free(logits);
}

static void bound_loss(const struct forward *f, int slot, double *bound) {
    const char *name = f->c->spec->slots[slot].name;
    double *logits = mix_doubles(f->n.tokens * f->n.experts);
    struct op_case route = route_of(f, logits);
    const int at = spec_slot(route.spec, name);
    route.is_present[at] = true;
    route.tensor[at] = f->c->tensor[slot];
    route.spec->bound(&route, at, bound);
    free(logits);
}

// Weights (experts, rows, cols) times their scales; the case's own if there are none.
static const double *scaled_weights(struct forward *f, const char *name, const char *scale_name,
                                    bool has_blocks, int64_t experts, int64_t rows, int64_t cols,
                                    double **room) {
    const double *w = case_values(f->c, name), *scale = case_values(f->c, scale_name);
    const int64_t of_rows = (rows + 127) / 128, of_cols = (cols + 127) / 128;
    if (w == NULL || scale == NULL) return w;
    *room = mix_doubles(experts * rows * cols);
    for (int64_t i = 0; i < experts * rows * cols; i++) {
        const int64_t e = i / (rows * cols), row = i / cols % rows, col = i % cols;
        const int64_t block = (e * of_rows + row / 128) * of_cols + col / 128;
        (*room)[i] = w[i] * scale[has_blocks ? block : e];
    }
    return *room;
}

static void forward_create(struct forward *f, const struct op_case *c) {
    *f = (struct forward){.c = c, .n = moe_sizes_of(c)};
    const int64_t hidden = f->n.hidden, inter = f->n.inter, shared = f->n.shared;
    const int64_t experts = f->n.experts;
    const bool has_blocks = moe_fp8_of(c) == FP8_BLOCKS;
    double **room = f->scaled;
#define SCALED(name, ...) scaled_weights(f, name, name "_scale", __VA_ARGS__, room++)
    f->w_gate = SCALED("w_gate", has_blocks, experts, inter, hidden);
    f->w_up = SCALED("w_up", has_blocks, experts, inter, hidden);
    f->w_down = SCALED("w_down", has_blocks, experts, hidden, inter);
    f->shared_gate = SCALED("shared_w_gate", true, 1, shared, hidden);
    f->shared_up = SCALED("shared_w_up", true, 1, shared, hidden);
    f->shared_down = SCALED("shared_w_down", true, 1, hidden, shared);
    const struct moe_sizes *n = &f->n;
    const int64_t choices = n->tokens * n->top_k;
    f->saved =
        (struct moe_saved){heap_get((size_t)choices + 1, sizeof(int32_t)), mix_doubles(choices),
                           mix_doubles(n->rows * n->cols), mix_doubles(n->tokens * n->shared_cols)};
    f->e_weights = mix_doubles(choices);
    must(moe_oracle(c, &f->saved));
    f->rows = mix_rows_of(c, f->saved.ids);
    bound_weights(f);
}

static void forward_release(struct forward *f) {
    free(f->saved.ids), free(f->saved.weights), free(f->saved.preact), free(f->saved.shared_preact);
    free(f->e_weights);
    for (int i = 0; i < 6; i++) free(f->scaled[i]);
    mix_rows_release(&f->rows);
}

// An expert, or the shared one.
struct mlp {
    const double *gate, *up, *down, *b_gate, *b_up, *b_down; // NULL: absent
    int64_t inter;
    bool is_fp8;
};

static const double *at(const double *values, int64_t offset) {
    return values != NULL ? values + offset : NULL;
}

static struct mlp expert_of(const struct forward *f, int64_t e) {
    const struct op_case *c = f->c;
    const int64_t hidden = f->n.hidden, inter = f->n.inter, size = hidden * inter;
    return (struct mlp){at(f->w_gate, e * size),
                        at(f->w_up, e * size),
                        at(f->w_down, e * size),
                        at(case_values(c, "b_gate"), e * inter),
                        at(case_values(c, "b_up"), e * inter),
                        at(case_values(c, "b_down"), e * hidden),
                        inter,
                        moe_fp8_of(c) != FP8_NONE};
}

static struct mlp shared_of(const struct forward *f) {
    return (struct mlp){f->shared_gate, f->shared_up, f->shared_down, NULL,
                        NULL,           NULL,         f->n.shared,    moe_is_shared_fp8(f->c)};
}

// <a, w> + bias; e_a NULL: a is exact. In fp8, tensor cores truncate sums of 128 by up to 2^-6 of their magnitude.
static struct mix_value project(const double *a, const double *e_a, const double *w, int64_t k,
                                const double *bias, bool is_fp8) {
    struct mix_sum sum = {0};
    for (int64_t i = 0; i < k; i++) mix_add(&sum, a[i], e_a != NULL ? e_a[i] : 0, w[i], 0);
    if (bias != NULL) sum.value += *bias;
    struct mix_value value = mix_result(&sum);
    if (is_fp8) value.error += 0x1p-6 * (sum.magnitude + mix_carried(&sum));
    return value;
}

// A row rounded to e4m3 with a scale for each 128 columns: tessera/quantize.h.
static void quantize_row(const double *v, double *e, int64_t count) {
    for (int64_t first = 0; first < count; first += 128) {
        const int64_t end = first + 128 < count ? first + 128 : count;
        double most = 1e-10;
        for (int64_t i = first; i < end; i++)
            if (isfinite(v[i])) most = fmax(most, fabs(v[i]) + e[i]);
        for (int64_t i = first; i < end; i++)
            e[i] += (0x1p-4 + 0x1p-20) * (fabs(v[i]) + e[i]) + 0x1p-10 * most / 448;
    }
}

// Errors of a row of preact (before it is stored), of a, and of the output (stored). out NULL: of preact alone. room: 2
// inter doubles.
static void bound_mlp(const struct forward *f, const struct mlp *m, const double *x,
                      const double *e_x, double *e_preact, double *room, double *out,
                      double *e_out) {
    const int64_t hidden = f->n.hidden, inter = m->inter;
    const tsr_dtype dtype = f->c->dtype;
    double *a = room, *e_a = room != NULL ? room + inter : NULL;
    for (int64_t j = 0; j < inter; j++) {
        struct mix_value gate = {0, 0};
        struct mix_value up =
            project(x, e_x, m->up + j * hidden, hidden, at(m->b_up, j), m->is_fp8);
        if (m->gate != NULL) {
            gate = project(x, e_x, m->gate + j * hidden, hidden, at(m->b_gate, j), m->is_fp8);
            if (e_preact != NULL) e_preact[j] = gate.error;
        }
        if (e_preact != NULL) e_preact[(m->gate != NULL ? inter : 0) + j] = up.error;
        if (out == NULL) continue;
        up = mix_store(dtype, up);
        gate = m->gate != NULL ? mix_store(dtype, gate) : up;
        struct mix_value value = activate(f->c, gate, up);
        if (!m->is_fp8) value = mix_store(dtype, value);
        a[j] = value.value;
        e_a[j] = value.error;
    }
    if (m->is_fp8 && out != NULL) quantize_row(a, e_a, inter);
    for (int64_t h = 0; out != NULL && h < hidden; h++) {
        const struct mix_value value = mix_store(
            dtype, project(a, e_a, m->down + h * inter, inter, at(m->b_down, h), m->is_fp8));
        out[h] = value.value;
        e_out[h] = value.error;
    }
}

// The input of a row: its token, or that times the weight, stored.
static void input_of(const struct forward *f, int64_t row, double *in, double *e_in) {
    const int64_t hidden = f->n.hidden, choice = f->rows.choice[row];
    const double *x = (const double *)f->c->tensor[MIX_X].data + f->rows.token[row] * hidden;
    const bool is_weighted = f->c->param[MIX_ON_INPUT] != 0;
    for (int64_t h = 0; h < hidden; h++) {
        struct mix_value v = {x[h], 0};
        if (is_weighted) {
            v.value *= f->saved.weights[choice];
            v.error = fabs(x[h]) * f->e_weights[choice] + 9 * mix_u32 * fabs(v.value) + 0x1p-140;
            v = mix_store(f->c->dtype, v);
        }
        in[h] = v.value;
        e_in[h] = v.error;
    }
    if (moe_fp8_of(f->c) != FP8_NONE) quantize_row(in, e_in, hidden);
}

// Outputs of all rows with their errors; out NULL: errors of preact alone, the rows of no assignment are undefined.
static void bound_rows(const struct forward *f, double *e_preact, double *out, double *e_out) {
    const struct moe_sizes *n = &f->n;
    double *in = mix_doubles(n->hidden), *e_in = mix_doubles(n->hidden);
    double *room = mix_doubles(2 * n->inter);
    for (int64_t i = 0; i < n->rows * n->cols && e_preact != NULL; i++) e_preact[i] = -INFINITY;
    for (int64_t r = 0; r < f->rows.count; r++) {
        const struct mlp m = expert_of(f, f->rows.expert[r]);
        input_of(f, r, in, e_in);
        bound_mlp(f, &m, in, e_in, e_preact != NULL ? e_preact + r * n->cols : NULL, room,
                  out != NULL ? out + r * n->hidden : NULL,
                  e_out != NULL ? e_out + r * n->hidden : NULL);
    }
    free(in), free(e_in), free(room);
}

// The factor of a token's shared output: sigmoid(<x, shared_gate>).
static struct mix_value shared_factor(const struct op_case *c, const double *x, int64_t hidden) {
    const double *gate = case_values(c, "shared_gate");
    if (gate == NULL) return (struct mix_value){1, 0};
    const struct mix_value logit = mix_store(TSR_F32, project(x, NULL, gate, hidden, NULL, false));
    const double s = 1 / (1 + exp(-logit.value));
    return (struct mix_value){s, fmin(s * (1 - s) * exp(fmin(logit.error, 1)), 0.25) * logit.error};
}

static void bound_shared(const struct forward *f, int64_t t, double *e_preact, double *room,
                         double *out, double *e_out) {
    const double *x = (const double *)f->c->tensor[MIX_X].data + t * f->n.hidden;
    const struct mlp m = shared_of(f);
    double *e_x = mix_doubles(f->n.hidden);
    if (m.is_fp8) quantize_row(x, e_x, f->n.hidden);
    bound_mlp(f, &m, x, e_x, e_preact, room, out, e_out);
    free(e_x);
}

static void bound_y(const struct forward *f, double *bound) {
    const struct moe_sizes *n = &f->n;
    const bool has_shared = f->c->is_present[MIX_SHARED_W_UP];
    const bool is_weighted = f->c->param[MIX_ON_INPUT] == 0;
    const double *x = f->c->tensor[MIX_X].data, *residual = case_values(f->c, "residual");
    double *out = mix_doubles(n->rows * n->hidden), *e_out = mix_doubles(n->rows * n->hidden);
    double *shared = mix_doubles(n->hidden), *e_shared = mix_doubles(n->hidden);
    double *room = mix_doubles(2 * n->shared);
    bound_rows(f, NULL, out, e_out);
    for (int64_t t = 0; t < n->tokens; t++) {
        struct mix_value factor = {0, 0};
        if (has_shared) {
            bound_shared(f, t, NULL, room, shared, e_shared);
            factor = shared_factor(f->c, x + t * n->hidden, n->hidden);
        }
        for (int64_t h = 0; h < n->hidden; h++) {
            struct mix_sum sum = {0};
            for (int64_t k = 0; k < n->top_k; k++) {
                const int64_t choice = t * n->top_k + k, row = f->rows.row[choice];
                if (row < 0) continue;
                mix_add(&sum, out[row * n->hidden + h], e_out[row * n->hidden + h],
                        is_weighted ? f->saved.weights[choice] : 1,
                        is_weighted ? f->e_weights[choice] : 0);
            }
            if (has_shared) mix_add(&sum, shared[h], e_shared[h], factor.value, factor.error);
            const double others = (has_shared ? fabs(shared[h]) : 0) +
                                  (residual != NULL ? fabs(residual[t * n->hidden + h]) : 0);
            bound[t * n->hidden + h] =
                sum.errors +
                mix_u32 * (double)(n->top_k + 4) * (sum.magnitude + sum.errors + others) +
                8 * mix_u32 * (has_shared ? fabs(shared[h]) : 0) + 0x1p-120;
        }
    }
    free(out), free(e_out), free(shared), free(e_shared), free(room);
}

void moe_forward_bound(const struct op_case *c, int slot, double *bound) {
    struct forward f;
    forward_create(&f, c);
    const struct moe_sizes *n = &f.n;
    if (slot == MIX_Y) bound_y(&f, bound);
    if (slot == MIX_PREACT) bound_rows(&f, bound, NULL, NULL);
    if (slot == MIX_SHARED_PREACT)
        for (int64_t t = 0; t < n->tokens; t++)
            bound_shared(&f, t, bound + t * n->shared_cols, NULL, NULL, NULL);
    if (slot == MIX_WEIGHTS)
        memcpy(bound, f.e_weights, (size_t)(n->tokens * n->top_k) * sizeof *bound);
    if (slot > MIX_COUNTS) bound_loss(&f, slot, bound);
    forward_release(&f);
}
