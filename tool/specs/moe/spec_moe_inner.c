// SPDX-License-Identifier: Apache-2.0
// Gradients inside an expert, and inside the shared one, with their errors: da, then h's, the weighted a, the weight's.
#include "specs/moe/spec_moe_inner.h"

void mix_inner_create(struct mix_inner *in, int64_t rows, int64_t cols, int64_t inter) {
    *in = (struct mix_inner){mix_matrix_of(rows, cols), mix_matrix_of(rows, inter),
                             mix_matrix_of(rows, 1)};
}
void mix_inner_release(struct mix_inner *in) {
    mix_matrix_release(&in->dh), mix_matrix_release(&in->a), mix_matrix_release(&in->dweights);
}

void mix_inner_row(const struct op_case *c, struct mix_inner *in, int64_t row, const double *h,
                   const double *dy, const double *w_down, int64_t hidden,
                   struct mix_value weight) {
    const int64_t inter = in->a.cols;
    const bool is_gated = c->is_present[MIX_W_GATE];
    const double eighth = eighth_of_rounding(c, MIX_X), w = fabs(weight.value);
    struct mix_sum dweight = {0};
    for (int64_t j = 0; j < inter; j++) {
        const double gate = h[j], up = is_gated ? h[inter + j] : 1;
        const struct mix_act act = mix_act_of(c, gate, up);
        struct mix_sum sum = {0};
        for (int64_t x = 0; x < hidden; x++) mix_add(&sum, dy[x], 0, w_down[x * inter + j], 0);
        const struct mix_value da = mix_store(c->dtype, mix_result(&sum));
        const double d = fabs(da.value) + da.error;
        // Own errors of act' and act relative to their factors, and the products' roundings.
        const double steep = fmax(fabs(act.slope), 1), high = fmax(fabs(gate), fabs(act.f));
        const double own_slope =
            (16 * mix_u32 * steep + 0.6 * eighth) * fabs(act.factor) + 0x1p-118 * fabs(act.factor);
        const double own_f = 20 * mix_u32 * high + eighth * act.tail + 0x1p-118;
        const double own_value = own_f * fabs(act.factor) + 4 * mix_u32 * fabs(act.value);
        struct mix_value dgate = {weight.value * da.value * act.by_gate, 0};
        dgate.error = (w + weight.error) * (d * own_slope + da.error * fabs(act.by_gate)) +
                      weight.error * d * fabs(act.by_gate) + 4 * mix_u32 * fabs(dgate.value) +
                      mix_tiny;
        mix_put(&in->dh, row, j, mix_store(c->dtype, dgate));
        if (is_gated) {
            struct mix_value dup = {weight.value * da.value * act.by_up, 0};
            dup.error = (w + weight.error) * (d * own_f + da.error * fabs(act.by_up)) +
                        weight.error * d * fabs(act.by_up) + 4 * mix_u32 * fabs(dup.value) +
                        mix_tiny;
            mix_put(&in->dh, row, inter + j, mix_store(c->dtype, dup));
        }
        const struct mix_value a = {weight.value * act.value,
                                    (w + weight.error) * own_value +
                                        weight.error * fabs(act.value) +
                                        4 * mix_u32 * fabs(weight.value * act.value) + mix_tiny};
        mix_put(&in->a, row, j, mix_store(c->dtype, a));
        mix_add(&dweight, act.value, own_value, da.value, da.error);
    }
    struct mix_value result = mix_result(&dweight);
    result.error += ((double)inter / 128 + 72) * mix_u32 * dweight.magnitude;
    mix_put(&in->dweights, row, 0, result);
}

// ---- The shared expert ------------------------------------------------------------------------

void mix_shared_create(const struct mix_backward *b, struct mix_shared *s) {
    const struct moe_sizes *n = &b->n;
    const double *gate = case_values(b->c, "shared_gate"),
                 *h = b->c->tensor[MIX_SHARED_PREACT].data;
    const double *down = b->c->tensor[MIX_SHARED_W_DOWN].data;
    mix_inner_create(&s->in, n->tokens, n->shared_cols, n->shared);
    s->dlogit = mix_matrix_of(n->tokens, 1);
    for (int64_t t = 0; t < n->tokens; t++) {
        struct mix_value weight = {1, 0}, logit = {0, 0};
        struct mix_sum sum = {0};
        for (int64_t i = 0; i < n->hidden && gate != NULL; i++)
            mix_add(&sum, b->x[t * n->hidden + i], 0, gate[i], 0);
        if (gate != NULL) {
            logit = mix_store(TSR_F32, mix_result(&sum));
            const double value = 1 / (1 + exp(-logit.value));
            const double slope = fmin(value * (1 - value) * exp(fmin(logit.error, 1)), 0.25);
            weight =
                (struct mix_value){value, 16 * mix_u32 * value + slope * logit.error + 0x1p-125};
        }
        mix_inner_row(b->c, &s->in, t, h + t * n->shared_cols, b->dy + t * n->hidden, down,
                      n->hidden, weight);
        if (gate == NULL) continue;
        const struct mix_value d = {s->in.dweights.value[t], s->in.dweights.error[t]};
        const double w = weight.value, slope = w * (1 - w), e = logit.error;
        struct mix_value dlogit = {d.value * slope, 0};
        dlogit.error = slope * (1 + e) * d.error +
                       (slope * fabs(1 - 2 * w) * e + e * e) * (fabs(d.value) + d.error) +
                       44 * mix_u32 * fabs(dlogit.value) + 0x1p-118 * (1 + fabs(d.value));
        mix_put(&s->dlogit, t, 0, mix_store(b->c->dtype, mix_store(TSR_F32, dlogit)));
    }
}

void mix_shared_release(struct mix_shared *s) {
    mix_inner_release(&s->in);
    mix_matrix_release(&s->dlogit);
}

struct mix_value mix_shared_input(const struct mix_backward *b, const struct mix_shared *s,
                                  int64_t t, int64_t h) {
    const struct moe_sizes *n = &b->n;
    const tsr_dtype dtype = b->c->dtype;
    static const char *const names[] = {"shared_w_gate", "shared_w_up", "shared_gate"};
    struct mix_value dx = {0, 0};
    for (int part = 0; part < 3; part++) {
        const double *w = case_values(b->c, names[part]);
        const int64_t first = part == 1 ? n->shared_cols - n->shared : 0;
        struct mix_sum sum = {0};
        if (w == NULL) continue;
        if (part == 2) mix_add_product(&sum, &s->dlogit, t, 0, w[h], 0);
        for (int64_t j = 0; j < n->shared && part < 2; j++)
            mix_add_product(&sum, &s->in.dh, t, first + j, w[j * n->hidden + h], 0);
        const struct mix_value more = mix_result(&sum);
        dx.error += more.error + 3 * mix_u32 * (fabs(dx.value) + fabs(more.value));
        dx.value += more.value;
        dx = mix_store(dtype, dx);
    }
    return dx;
}
