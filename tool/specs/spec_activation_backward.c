// SPDX-License-Identifier: Apache-2.0
// Backward of activations, plain, gated and of weighted rows: x, dy, up, row_weights -> dx, dup, weighted_y, drow_weights.
#include <math.h>

#include "specs/spec_activation.h"

enum { X, DY, UP, ROW_WEIGHTS, DX, DUP, WEIGHTED_Y, DROW_WEIGHTS };

static const struct slot_spec backward_slots[] = {
    {.name = "x", .role = SLOT_IN},
    {.name = "dy", .role = SLOT_IN},
    {.name = "up", .role = SLOT_IN, .is_optional = true},
    {.name = "row_weights", .role = SLOT_IN, .kind = SLOT_F32, .is_optional = true},
    {.name = "dx", .role = SLOT_OUT, .model = "x"},
    {.name = "dup", .role = SLOT_OUT, .is_optional = true, .model = "up"},
    {.name = "weighted_y", .role = SLOT_OUT, .is_optional = true, .comes_with = "row_weights"},
    {.name = "drow_weights",
     .role = SLOT_OUT,
     .kind = SLOT_F32,
     .is_optional = true,
     .model = "row_weights"},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *dims) {
    dims[0] = (int64_t)c->param[0];
    dims[1] = (int64_t)c->param[1];
    return slot == ROW_WEIGHTS || slot == DROW_WEIGHTS ? 1 : 2;
}

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_activation_backward_args args =
        TSR_ACTIVATION_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                     .workspace_bytes = given_bytes, .x = c->tensor[X],
                                     .dy = c->tensor[DY], .dx = c->tensor[DX], .kind = kind_of(c));
    tsr_tensor *const optional[] = {[UP] = &args.up,
                                    [ROW_WEIGHTS] = &args.row_weights,
                                    [DUP] = &args.dup,
                                    [WEIGHTED_Y] = &args.weighted_y,
                                    [DROW_WEIGHTS] = &args.drow_weights};
    for (int s = UP; s <= DROW_WEIGHTS; s++)
        if (optional[s] != NULL && c->is_present[s]) *optional[s] = c->tensor[s];
    return workspace_bytes != NULL ? tsr_activation_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_activation_backward(ctx, &args);
}

static double backward_flops(const struct op_case *c) {
    return (activation_flops(c) + (c->is_present[UP] ? 9 : 5) + c->is_present[ROW_WEIGHTS] +
            2 * c->is_present[WEIGHTED_Y] + 2 * c->is_present[DROW_WEIGHTS]) *
           c->param[0] * c->param[1];
}

static void backward_randomize(struct rng *rng, struct op_case *c) {
    activation_draw_sizes(rng, c);
    c->is_present[UP] = rng_chance(rng, 0.5) || kind_of(c) == TSR_ACTIVATION_SWIGLU_CLAMPED;
    c->is_present[DUP] = c->is_present[UP];
    bool is_weighted = rng_chance(rng, 0.5);
    c->is_present[ROW_WEIGHTS] = is_weighted && rng_chance(rng, 0.7);
    c->is_present[WEIGHTED_Y] = is_weighted && rng_chance(rng, 0.7);
    c->is_present[DROW_WEIGHTS] = is_weighted && rng_chance(rng, 0.7);
}

// act' = F + x F'.
static double gradient_bound(const struct parts *at, double dy, double factor, double eighth) {
    return u32 * fabs(dy * factor) *
               ((4 + at->more) * (at->whole + at->slope) +
                (12 + at->loss + eighth / u32) * (at->tail + at->slope)) +
           (eighth > 0 ? 0x1p-118 : 0x1p-140) * fabs(dy * factor) + 0x1p-147 * fabs(factor) +
           0x1p-149;
}

// Sums of fp32 terms dy y: each term's own error, and the roundings of additions.
static void sum_bound(const struct op_case *c, double *bound) {
    int64_t cols = (int64_t)c->param[1];
    const double *x = c->tensor[X].data, *dy = c->tensor[DY].data, *up = case_values(c, "up");
    double eighth = eighth_of_rounding(c, X), additions = fmin((double)cols, 64) + 8;
    additions += (double)cols / 128;
    for (int64_t r = 0; r < (int64_t)c->param[0]; r++) {
        double sum = 0, error = 0;
        for (int64_t i = r * cols; i < (r + 1) * cols; i++) {
            struct parts at = activation_parts(kind_of(c), x[i]);
            double slope, factor = up != NULL ? activation_gate(kind_of(c), up[i], &slope) : 1;
            double y = activation_value(kind_of(c), x[i]) * factor;
            error += fabs(dy[i]) * activation_value_bound(&at, y, factor, eighth);
            sum += fabs(dy[i] * y);
        }
        bound[r] = error + additions * u32 * sum + (double)cols * 0x1p-149;
    }
}

static void backward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t cols = (int64_t)c->param[1], numel = (int64_t)c->param[0] * cols;
    const double *x = c->tensor[X].data, *dy = c->tensor[DY].data, *up = case_values(c, "up");
    const double *out = c->tensor[slot].data, *weights = case_values(c, "row_weights");
    const double eighth = eighth_of_rounding(c, slot), largest = 0x1.fffffep127;
    if (slot == DROW_WEIGHTS) {
        sum_bound(c, bound);
        return;
    }
    for (int64_t i = 0; i < numel; i++) {
        struct parts at = activation_parts(kind_of(c), x[i]);
        double factor = 1, of_up = 1, weight = weights != NULL ? weights[i / cols] : 1;
        if (up != NULL) factor = activation_gate(kind_of(c), up[i], &of_up);
        double value = activation_value(kind_of(c), x[i]);
        double rounding = weights != NULL ? u32 * fabs(out[i]) : 0, lost = 0;
        if (slot == DUP) {
            bound[i] = activation_value_bound(&at, out[i], weight * dy[i] * of_up, eighth);
            lost = fabs(value);
        } else if (slot == WEIGHTED_Y) {
            bound[i] = fabs(weight) * activation_value_bound(&at, value * factor, factor, eighth);
            lost = 1;
        } else {
            bound[i] = gradient_bound(&at, weight * dy[i], factor, eighth);
            lost = (at.whole + at.slope) * fabs(factor);
        }
        bound[i] += rounding + (weights != NULL ? 0x1p-149 * lost : 0);
        if (weights != NULL && fabs(slot == WEIGHTED_Y ? value * factor : weight * dy[i]) > largest)
            bound[i] = INFINITY;
    }
}

#define GATED " +up +dup"
#define CLAMPED " kind=swiglu_clamped" GATED
#define WEIGHTED " +row_weights +weighted_y +drow_weights"
static const struct edge_case backward_edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0 +up +dup", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=3000 cols=1 kind=silu +up +dup", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one long row", "rows=1 cols=300001", FILL_NORMAL, LAYOUT_RANDOM},
    {"rows as one", "rows=301 cols=301 +up +dup", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"large, none", "rows=9 cols=301 kind=none +up +dup", FILL_LARGE, LAYOUT_RANDOM},
    {"large, gelu", "rows=9 cols=301 kind=gelu +up +dup", FILL_LARGE, LAYOUT_RANDOM},
    {"large, gelu_tanh", "rows=9 cols=301 kind=gelu_tanh +up +dup", FILL_LARGE, LAYOUT_RANDOM},
    {"large, silu", "rows=9 cols=301 kind=silu +up +dup", FILL_LARGE, LAYOUT_RANDOM},
    {"large, relu", "rows=9 cols=301 kind=relu +up +dup", FILL_LARGE, LAYOUT_RANDOM},
    {"huge, silu", "rows=9 cols=301 kind=silu", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite, gelu", "rows=40 cols=301 kind=gelu", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, gelu_tanh", "rows=40 cols=301 kind=gelu_tanh", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, silu", "rows=40 cols=301 kind=silu +up +dup", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, relu", "rows=40 cols=301 kind=relu", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN, gelu", "rows=40 cols=301 kind=gelu", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, gelu_tanh", "rows=40 cols=301 kind=gelu_tanh +up +dup", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, silu", "rows=40 cols=301 kind=silu", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, relu", "rows=40 cols=301 kind=relu", FILL_NAN, LAYOUT_RANDOM},
    {"the whole tail, gelu", "rows=5 cols=4001 kind=gelu", FILL_SPECIAL, LAYOUT_RANDOM},
    {"the whole tail, gelu_tanh", "rows=5 cols=4001 kind=gelu_tanh", FILL_SPECIAL, LAYOUT_RANDOM},
    {"the whole tail, silu", "rows=5 cols=4001 kind=silu", FILL_SPECIAL, LAYOUT_RANDOM},
    {"huge factors, gelu", "rows=9 cols=3001 kind=gelu +up +dup", FILL_HUGE, LAYOUT_RANDOM},
    {"huge factors, gelu_tanh", "rows=9 cols=3001 kind=gelu_tanh +up +dup", FILL_HUGE,
     LAYOUT_RANDOM},
    {"huge factors, silu", "rows=9 cols=3001 kind=silu +up +dup", FILL_HUGE, LAYOUT_RANDOM},
    {"huge factors, relu", "rows=9 cols=3001 kind=relu +up +dup", FILL_HUGE, LAYOUT_RANDOM},
    {"zeros", "rows=3 cols=100 kind=relu", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33 +up +dup", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256 +up +dup", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 cols=65 +up +dup", FILL_NORMAL, LAYOUT_REPEATED},
    {"large, relu2", "rows=9 cols=301 kind=relu2" GATED, FILL_LARGE, LAYOUT_RANDOM},
    {"infinite, relu2", "rows=40 cols=301 kind=relu2", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN, relu2", "rows=40 cols=301 kind=relu2" GATED, FILL_NAN, LAYOUT_RANDOM},
    {"large, swiglu_clamped", "rows=9 cols=301" CLAMPED, FILL_LARGE, LAYOUT_RANDOM},
    {"infinite, swiglu_clamped", "rows=40 cols=301" CLAMPED, FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN, swiglu_clamped", "rows=40 cols=301" CLAMPED, FILL_NAN, LAYOUT_RANDOM},
    {"the whole tail, swiglu_clamped", "rows=5 cols=4001" CLAMPED, FILL_SPECIAL, LAYOUT_RANDOM},
    {"at the clamps, swiglu_clamped", "rows=5 cols=401" CLAMPED, FILL_NORMAL, LAYOUT_RANDOM},
    {"weighted, swiglu_clamped", "rows=9 cols=701" CLAMPED WEIGHTED, FILL_NORMAL, LAYOUT_RANDOM},
    {"weighted, relu2", "rows=9 cols=701 kind=relu2" WEIGHTED, FILL_NORMAL, LAYOUT_RANDOM},
    {"weighted, zero rows", "rows=0 cols=5 kind=silu" GATED WEIGHTED, FILL_NORMAL, LAYOUT_RANDOM},
    {"weighted, zero columns", "rows=5 cols=0 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"weighted, one column", "rows=3000 cols=1 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"weighted, one long row", "rows=1 cols=300001 kind=gelu" WEIGHTED, FILL_NORMAL, LAYOUT_RANDOM},
    {"weighted, two rows of a warp", "rows=41 cols=200 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"weighted, rows of a warp", "rows=9 cols=1024 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"weighted, rows of a block", "rows=9 cols=5000 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"weighted, large, silu", "rows=9 cols=301 kind=silu" GATED WEIGHTED, FILL_LARGE,
     LAYOUT_RANDOM},
    {"weighted, large, relu", "rows=9 cols=301 kind=relu" WEIGHTED, FILL_LARGE, LAYOUT_RANDOM},
    {"weighted, infinite, silu", "rows=40 cols=301 kind=silu" GATED WEIGHTED, FILL_INFINITE,
     LAYOUT_RANDOM},
    {"weighted, NaN, silu", "rows=40 cols=301 kind=silu" GATED WEIGHTED, FILL_NAN, LAYOUT_RANDOM},
    {"weighted, NaN, gelu", "rows=40 cols=301 kind=gelu" WEIGHTED, FILL_NAN, LAYOUT_RANDOM},
    {"weighted, huge factors", "rows=9 cols=3001 kind=silu +up +dup +row_weights +weighted_y",
     FILL_HUGE, LAYOUT_RANDOM},
    {"weighted, beyond 2^31 elements", "rows=3 cols=256 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_FAR},
    {"weighted, one row for all", "rows=17 cols=65 kind=silu" GATED WEIGHTED, FILL_NORMAL,
     LAYOUT_REPEATED},
    {0},
};

// FILL_HUGE: weights of at most 1, because w dy is rounded before its other factors.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill how,
                 double *values) {
    if (slot != ROW_WEIGHTS || how != FILL_HUGE) return activation_fill(rng, c, slot, how, values);
    for (int64_t i = 0; i < (int64_t)c->param[0]; i++) values[i] = 2 * rng_uniform(rng) - 1;
    return true;
}

static const char *const backward_standard[] = {
    "rows=4096 cols=11008 kind=gelu", "rows=4096 cols=11008 kind=silu +up +dup",
    "rows=16384 cols=1024 kind=silu" GATED WEIGHTED, NULL};

const struct op_spec activation_backward_spec = {
    .op = "activation_backward",
    .command = "activation",
    .pass = "backward",
    .params = activation_params,
    .slots = backward_slots,
    .shape = shape,
    .infer = activation_infer,
    .call = backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .fill = fill,
    .bound = backward_bound,
    .edges = backward_edges,
    .standard = backward_standard,
    .baseline = "unfused",
};
