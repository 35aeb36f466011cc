// SPDX-License-Identifier: Apache-2.0
// Activations, plain and gated, for verify, bench, apply and report.
#include <math.h>

#include "specs/spec_activation.h"

static const char *const kinds[] = {"none", "gelu",  "gelu_tanh",      "silu",
                                    "relu", "relu2", "swiglu_clamped", NULL};

const struct param_spec activation_params[] = {
    {"rows", "rows", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"kind", "the function", PARAM_CHOICE, TSR_ACTIVATION_GELU, kinds},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    (void)slot;
    shape[0] = (int64_t)c->param[0];
    shape[1] = (int64_t)c->param[1];
    return 2;
}

bool activation_infer(struct op_case *c) {
    if (c->tensor[0].ndim != 2) return false;
    c->param[0] = (double)c->tensor[0].shape[0];
    c->param[1] = (double)c->tensor[0].shape[1];
    return true;
}

void activation_draw_sizes(struct rng *rng, struct op_case *c) {
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 3000);
    int64_t rows = rng_dim(rng, cols > 2000 ? 4 : 20);
    bool is_tall = rng_chance(rng, 0.1);
    c->param[0] = (double)(is_tall ? cols : rows);
    c->param[1] = (double)(is_tall ? rows : cols);
    c->param[2] = (double)rng_int(rng, 0, TSR_ACTIVATION_COUNT - 1);
}

// ---- The functions as F(x): x F(x) ------------------------------------------------------------

struct parts activation_parts(tsr_activation kind, double x) {
    const bool is_clamped = kind == TSR_ACTIVATION_SWIGLU_CLAMPED;
    if (is_clamped) x = x > 7 ? 7 : x;
    double t = fabs(x), s = t, ds = 1;
    struct parts at = {.x = x, .whole = x < 0 ? 0 : 1, .more = is_clamped};
    if (kind == TSR_ACTIVATION_RELU2) at.whole = at.slope = fmax(x, 0);
    if (kind == TSR_ACTIVATION_NONE || kind == TSR_ACTIVATION_RELU ||
        kind == TSR_ACTIVATION_RELU2 || t > 150)
        return at;
    if (kind == TSR_ACTIVATION_GELU) {
        at.tail = 0.5 * erfc(t * sqrt(0.5));
        at.slope = 0.3989422804 * t * exp(-0.5 * t * t);
        at.loss = 1.5 * t * t;
    } else {
        if (is_clamped) s = 1.702 * t, ds = 1.702;
        if (kind == TSR_ACTIVATION_GELU_TANH) {
            s = 1.5957691216 * (t + 0.044715 * t * t * t);
            ds = 1.5957691216 * (1 + 3 * 0.044715 * t * t);
        }
        at.tail = exp(-s) / (1 + exp(-s));
        at.slope = t * at.tail * (1 - at.tail) * ds;
        at.loss = kind == TSR_ACTIVATION_SILU ? 2 * s : 4 * s;
    }
    at.whole = x < 0 ? at.tail : 1 - at.tail;
    return at;
}

double activation_value_bound(const struct parts *at, double value, double factor, double eighth) {
    double tail = fmin(fabs(at->x), 150) * at->tail * fabs(factor);
    return u32 * ((2 + at->more) * fabs(value) + (8 + at->loss) * tail) + eighth * tail +
           (eighth > 0 ? 0x1p-118 : 0x1p-140) * fabs(factor) + 0x1p-149;
}

double activation_value(tsr_activation kind, double x) {
    struct parts at = activation_parts(kind, x);
    if (kind == TSR_ACTIVATION_NONE) return x;
    if (kind == TSR_ACTIVATION_RELU2) return fmax(x, 0) * fmax(x, 0);
    return fmax(at.x, 0) - fmin(fabs(at.x), 150) * at.tail;
}

double activation_gate(tsr_activation kind, double up, double *slope) {
    *slope = 1;
    if (kind != TSR_ACTIVATION_SWIGLU_CLAMPED) return up;
    *slope = fabs(up) > 7 ? 0 : 1;
    return (up > 7 ? 7 : up < -7 ? -7 : up) + 1;
}

// ---- Forward: x, up -> y ----------------------------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {.name = "x", .role = SLOT_IN},
    {.name = "up", .role = SLOT_IN, .is_optional = true},
    {.name = "y", .role = SLOT_OUT},
    {0},
};

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_activation_forward_args args =
        TSR_ACTIVATION_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                    .workspace_bytes = given_bytes, .x = c->tensor[0],
                                    .y = c->tensor[2], .kind = kind_of(c));
    if (c->is_present[1]) args.up = c->tensor[1];
    return workspace_bytes != NULL ? tsr_activation_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_activation_forward(ctx, &args);
}

// exp counts as 10, a division as 1; gelu also has a rational function.
double activation_flops(const struct op_case *c) {
    switch (kind_of(c)) {
    case TSR_ACTIVATION_GELU: return 36;
    case TSR_ACTIVATION_GELU_TANH: return 20;
    case TSR_ACTIVATION_SILU: return 16;
    case TSR_ACTIVATION_SWIGLU_CLAMPED: return 21;
    case TSR_ACTIVATION_RELU2: return 2;
    default: return 1;
    }
}

static double forward_flops(const struct op_case *c) {
    return (activation_flops(c) + c->is_present[1]) * c->param[0] * c->param[1];
}

static void forward_randomize(struct rng *rng, struct op_case *c) {
    activation_draw_sizes(rng, c);
    c->is_present[1] = rng_chance(rng, 0.5) || kind_of(c) == TSR_ACTIVATION_SWIGLU_CLAMPED;
}

static void forward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t numel = (int64_t)c->param[0] * (int64_t)c->param[1];
    double eighth = eighth_of_rounding(c, slot);
    const double *x = c->tensor[0].data, *up = case_values(c, "up"), *y = c->tensor[2].data;
    for (int64_t i = 0; i < numel; i++) {
        struct parts at = activation_parts(kind_of(c), x[i]);
        double slope, factor = up != NULL ? activation_gate(kind_of(c), up[i], &slope) : 1;
        bound[i] = activation_value_bound(&at, y[i], factor, eighth);
    }
}

#define CLAMPED " kind=swiglu_clamped +up"
static const struct edge_case forward_edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0 +up", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=3000 cols=1 kind=silu +up", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one column, apart", "rows=300 cols=1 kind=silu", FILL_NORMAL, LAYOUT_RANDOM},
    {"one long row", "rows=1 cols=300001", FILL_NORMAL, LAYOUT_RANDOM},
    {"rows as one", "rows=301 cols=301 +up", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"large, none", "rows=9 cols=301 kind=none +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, gelu", "rows=9 cols=301 kind=gelu +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, gelu_tanh", "rows=9 cols=301 kind=gelu_tanh +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, silu", "rows=9 cols=301 kind=silu +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, relu", "rows=9 cols=301 kind=relu +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, relu2", "rows=9 cols=301 kind=relu2 +up", FILL_LARGE, LAYOUT_RANDOM},
    {"huge, relu2", "rows=9 cols=301 kind=relu2", FILL_HUGE, LAYOUT_RANDOM},
    {"large, swiglu_clamped", "rows=9 cols=301" CLAMPED, FILL_LARGE, LAYOUT_RANDOM},
    {"infinite, relu2", "rows=40 cols=301 kind=relu2", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, swiglu_clamped", "rows=40 cols=301" CLAMPED, FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN, relu2", "rows=40 cols=301 kind=relu2 +up", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, swiglu_clamped", "rows=40 cols=301" CLAMPED, FILL_NAN, LAYOUT_RANDOM},
    {"the whole tail, swiglu_clamped", "rows=5 cols=4001" CLAMPED, FILL_SPECIAL, LAYOUT_RANDOM},
    {"at the clamps, swiglu_clamped", "rows=5 cols=401" CLAMPED, FILL_NORMAL, LAYOUT_RANDOM},
    {"huge, gelu_tanh", "rows=9 cols=301 kind=gelu_tanh", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite, gelu", "rows=40 cols=301 kind=gelu", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, gelu_tanh", "rows=40 cols=301 kind=gelu_tanh +up", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, silu", "rows=40 cols=301 kind=silu +up", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, relu", "rows=40 cols=301 kind=relu", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, none", "rows=40 cols=301 kind=none", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN, gelu", "rows=40 cols=301 kind=gelu", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, gelu_tanh", "rows=40 cols=301 kind=gelu_tanh", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, silu", "rows=40 cols=301 kind=silu +up", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, relu", "rows=40 cols=301 kind=relu", FILL_NAN, LAYOUT_RANDOM},
    {"the whole tail, gelu", "rows=5 cols=4001 kind=gelu", FILL_SPECIAL, LAYOUT_RANDOM},
    {"the whole tail, gelu_tanh", "rows=5 cols=4001 kind=gelu_tanh", FILL_SPECIAL, LAYOUT_RANDOM},
    {"the whole tail, silu", "rows=5 cols=4001 kind=silu", FILL_SPECIAL, LAYOUT_RANDOM},
    {"huge factors, gelu", "rows=9 cols=3001 kind=gelu +up", FILL_HUGE, LAYOUT_RANDOM},
    {"huge factors, gelu_tanh", "rows=9 cols=3001 kind=gelu_tanh +up", FILL_HUGE, LAYOUT_RANDOM},
    {"huge factors, silu", "rows=9 cols=3001 kind=silu +up", FILL_HUGE, LAYOUT_RANDOM},
    {"huge factors, relu", "rows=9 cols=3001 kind=relu +up", FILL_HUGE, LAYOUT_RANDOM},
    {"zeros", "rows=3 cols=100 kind=silu", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33 +up", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256 +up", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 cols=65 +up", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

// FILL_SPECIAL: x over the whole range where the tail is not 0, and somewhat beyond. FILL_HUGE with a gate: the same x,
// with huge factors.
bool activation_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                     double *values) {
    bool is_gated = c->is_present[spec_slot(c->spec, "up")];
    if (kind_of(c) == TSR_ACTIVATION_SWIGLU_CLAMPED && fill == FILL_NORMAL) {
        for (int64_t i = 0; i < case_numel(c, slot); i++) // the clamps themselves too
            values[i] =
                rng_chance(rng, 0.1) ? (rng_chance(rng, 0.5) ? 7 : -7) : 5 * rng_normal(rng);
        return true;
    }
    if (slot != 0 || !(fill == FILL_SPECIAL || (fill == FILL_HUGE && is_gated))) return false;
    double limit = kind_of(c) == TSR_ACTIVATION_SILU             ? 120
                   : kind_of(c) == TSR_ACTIVATION_SWIGLU_CLAMPED ? 72
                                                                 : 16;
    for (int64_t i = 0; i < (int64_t)c->param[0] * (int64_t)c->param[1]; i++)
        values[i] = (2 * rng_uniform(rng) - 1) * limit;
    return true;
}

static const char *const standard[] = {
    "rows=4096 cols=11008 kind=relu", "rows=4096 cols=11008 kind=gelu",
    "rows=4096 cols=11008 kind=gelu_tanh", "rows=4096 cols=11008 kind=silu +up", NULL};

const struct op_spec activation_forward_spec = {
    .op = "activation_forward",
    .command = "activation",
    .pass = "forward",
    .params = activation_params,
    .slots = forward_slots,
    .shape = shape,
    .infer = activation_infer,
    .call = forward_call,
    .flops = forward_flops,
    .randomize = forward_randomize,
    .fill = activation_fill,
    .bound = forward_bound,
    .edges = forward_edges,
    .standard = standard,
    .baseline = "unfused",
};
