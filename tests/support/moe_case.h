// SPDX-License-Identifier: Apache-2.0
// A layer of a mixture of experts for tests: its options, its numbers, and its definition in double by the formulas of
// tessera/moe.h, token by token, without rows and without the library.
#ifndef TESSERA_TESTS_MOE_CASE_H
#define TESSERA_TESTS_MOE_CASE_H

#include <math.h>

#include "test_support.h"

enum { TOKENS = 7, HIDDEN = 5, EXPERTS = 4, INNER = 3, TOP_K = 2, SHARED = 4 };

enum source { FROM_ROUTER, FROM_LOGITS, FROM_IDS };

struct layer_options {
    enum source source;
    bool is_gated, has_biases, has_shared, has_shared_gate, has_correction, has_residual;
    bool is_sigmoid, is_raw, is_on_input;
    double scaling;            // 1: none
    int capacity;              // 0: none
    tsr_activation activation; // NONE: what the layer takes then
    double dbalance, dz;       // gradients of the losses
};

// The numbers of a layer, or their gradients. The first three say where tokens go, one of them in each layer.
struct layer {
    double router[EXPERTS][HIDDEN], logits[TOKENS][EXPERTS], weights[TOKENS][TOP_K];
    double logits_bias[EXPERTS];
    double x[TOKENS][HIDDEN];
    double w_gate[EXPERTS][INNER][HIDDEN], w_up[EXPERTS][INNER][HIDDEN];
    double w_down[EXPERTS][HIDDEN][INNER];
    double b_gate[EXPERTS][INNER], b_up[EXPERTS][INNER], b_down[EXPERTS][HIDDEN];
    double shared_w_gate[SHARED][HIDDEN], shared_w_up[SHARED][HIDDEN],
        shared_w_down[HIDDEN][SHARED];
    double shared_gate[HIDDEN];
};

struct layer_inputs {
    double correction[EXPERTS], residual[TOKENS][HIDDEN], dy[TOKENS][HIDDEN];
};

struct layer_outputs {
    int32_t ids[TOKENS][TOP_K], counts[EXPERTS];
    double weights[TOKENS][TOP_K], y[TOKENS][HIDDEN], balance, z;
    int dropped;
};

// ---- The definition ---------------------------------------------------------------------------

static inline tsr_activation layer_activation(const struct layer_options *o) {
    return o->activation != TSR_ACTIVATION_NONE ? o->activation
           : o->is_gated                        ? TSR_ACTIVATION_SILU
                                                : TSR_ACTIVATION_GELU;
}

static inline double layer_act(tsr_activation kind, double gate, double up, bool is_gated) {
    const double x = is_gated ? gate : up;
    double y = x;
    switch (kind) {
    case TSR_ACTIVATION_GELU: y = x / 2 * erfc(-x / sqrt(2)); break;
    case TSR_ACTIVATION_GELU_TANH:
        y = x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        break;
    case TSR_ACTIVATION_SILU: y = x / (1 + exp(-x)); break;
    case TSR_ACTIVATION_RELU: y = x > 0 ? x : 0; break;
    case TSR_ACTIVATION_RELU2: y = x > 0 ? x * x : 0; break;
    case TSR_ACTIVATION_SWIGLU_CLAMPED: {
        const double g = fmin(x, 7), u = fmin(fmax(up, -7), 7);
        return g / (1 + exp(-1.702 * g)) * (u + 1);
    }
    default: break;
    }
    return is_gated ? y * up : y;
}

static inline double layer_dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// Adds scale times an MLP of x to y.
static inline void layer_mlp(const struct layer_options *o, const double *x, int inner,
                             const double (*gate)[HIDDEN], const double (*up)[HIDDEN],
                             const double *down, const double *b_gate, const double *b_up,
                             const double *b_down, double scale, double *y) {
    double a[SHARED];
    for (int i = 0; i < inner; i++) {
        const double g = layer_dot(gate[i], x, HIDDEN) + (b_gate != NULL ? b_gate[i] : 0);
        const double u = layer_dot(up[i], x, HIDDEN) + (b_up != NULL ? b_up[i] : 0);
        a[i] = layer_act(layer_activation(o), g, u, o->is_gated);
    }
    for (int h = 0; h < HIDDEN; h++)
        y[h] += scale * (layer_dot(down + h * inner, a, inner) + (b_down != NULL ? b_down[h] : 0));
}

// The scores, and the ids of the best unless ids are given already.
static inline void layer_route(const struct layer_options *o, const double *logits,
                               const double *correction, bool is_chosen, int32_t *ids,
                               double *weights, double *probs) {
    double score[EXPERTS], sum = 0, of_chosen = 0;
    for (int e = 0; e < EXPERTS; e++) {
        score[e] = o->is_sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e]);
        sum += score[e];
    }
    for (int e = 0; e < EXPERTS; e++) {
        probs[e] = score[e] / (sum + (o->is_sigmoid ? 1e-20 : 0));
        if (!o->is_sigmoid) score[e] = probs[e];
    }
    for (int k = 0; k < TOP_K && !is_chosen; k++) {
        ids[k] = -1;
        for (int e = 0; e < EXPERTS; e++) {
            bool is_taken = false;
            for (int other = 0; other < k; other++) is_taken |= ids[other] == e;
            const double c = score[e] + (o->has_correction ? correction[e] : 0);
            if (is_taken) continue;
            if (ids[k] < 0 || c > score[ids[k]] + (o->has_correction ? correction[ids[k]] : 0))
                ids[k] = e;
        }
    }
    for (int k = 0; k < TOP_K; k++) of_chosen += score[ids[k]];
    if (o->is_sigmoid) of_chosen += 1e-20;
    for (int k = 0; k < TOP_K; k++)
        weights[k] = score[ids[k]] / (o->is_raw ? 1 : of_chosen) * o->scaling;
}

// All outputs; is_chosen: out->ids are given. Returns the loss whose gradient backward computes.
static inline double layer_define(const struct layer_options *o, const struct layer *m,
                                  const struct layer_inputs *in, bool is_chosen,
                                  struct layer_outputs *out) {
    double probs[EXPERTS] = {0}, loss = 0;
    int rows[EXPERTS] = {0};
    memset(out->counts, 0, sizeof out->counts);
    out->z = out->balance = 0;
    out->dropped = 0;
    for (int t = 0; t < TOKENS; t++) {
        double logits[EXPERTS], p[EXPERTS], sum = 0, *y = out->y[t];
        for (int e = 0; e < EXPERTS; e++) {
            logits[e] = o->source == FROM_LOGITS ? m->logits[t][e]
                                                 : layer_dot(m->router[e], m->x[t], HIDDEN) +
                                                       (o->has_biases ? m->logits_bias[e] : 0);
            sum += exp(logits[e]);
        }
        if (o->source == FROM_IDS) {
            memcpy(out->weights[t], m->weights[t], sizeof out->weights[t]);
        } else {
            layer_route(o, logits, in->correction, is_chosen, out->ids[t], out->weights[t], p);
            for (int e = 0; e < EXPERTS; e++) probs[e] += p[e] / TOKENS;
            out->z += log(sum) * log(sum) / TOKENS;
        }
        for (int h = 0; h < HIDDEN; h++) y[h] = o->has_residual ? in->residual[t][h] : 0;
        for (int k = 0; k < TOP_K; k++) {
            const int e = out->ids[t][k];
            const double w = out->weights[t][k];
            double x[HIDDEN];
            if (e < 0) continue;
            out->counts[e]++;
            if (o->capacity > 0 && rows[e] == o->capacity) {
                out->dropped++;
                continue;
            }
            rows[e]++;
            for (int h = 0; h < HIDDEN; h++) x[h] = m->x[t][h] * (o->is_on_input ? w : 1);
            layer_mlp(o, x, INNER, m->w_gate[e], m->w_up[e], m->w_down[e][0],
                      o->has_biases && o->is_gated ? m->b_gate[e] : NULL,
                      o->has_biases ? m->b_up[e] : NULL, o->has_biases ? m->b_down[e] : NULL,
                      o->is_on_input ? 1 : w, y);
        }
        if (o->has_shared) {
            const double gate = layer_dot(m->shared_gate, m->x[t], HIDDEN);
            layer_mlp(o, m->x[t], SHARED, m->shared_w_gate, m->shared_w_up, m->shared_w_down[0],
                      NULL, NULL, NULL, o->has_shared_gate ? 1 / (1 + exp(-gate)) : 1, y);
        }
        loss += layer_dot(y, in->dy[t], HIDDEN);
    }
    if (o->source == FROM_IDS) return loss;
    for (int e = 0; e < EXPERTS; e++)
        out->balance += EXPERTS * probs[e] * out->counts[e] / (double)(TOKENS * TOP_K);
    return loss + o->dbalance * out->balance + o->dz * out->z;
}

#endif
