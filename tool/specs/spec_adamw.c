// SPDX-License-Identifier: Apache-2.0
// The AdamW step for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32

enum { ROWS, COLS, STEP, LR, BETA1, BETA2, EPS, WEIGHT_DECAY, GRAD_SCALE, HAS_GRAD_SCALE };
enum { PARAM, GRAD, M, V, MASTER };

static const struct param_spec params[] = {
    {"rows", "rows", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"step", "number of the step, from 1", PARAM_INT, 10, NULL},
    {"lr", "learning rate", PARAM_REAL, 1e-3, NULL},
    {"beta1", "decay of the first moment", PARAM_REAL, 0.9, NULL},
    {"beta2", "decay of the second moment", PARAM_REAL, 0.999, NULL},
    {"eps", "added to the root", PARAM_REAL, 1e-8, NULL},
    {"weight_decay", "decoupled decay", PARAM_REAL, 0.01, NULL},
    {"grad_scale", "factor of grad", PARAM_REAL, 1, NULL},
    {"has_grad_scale", "multiply grad by grad_scale", PARAM_FLAG, 0, NULL},
    {0},
};

static const struct slot_spec slots[] = {
    {.name = "param", .role = SLOT_INOUT},
    {.name = "grad", .role = SLOT_IN, .kind = SLOT_SMALL},
    {.name = "m", .role = SLOT_INOUT, .kind = SLOT_F32},
    {.name = "v", .role = SLOT_INOUT, .kind = SLOT_F32},
    {.name = "master", .role = SLOT_INOUT, .kind = SLOT_F32, .is_optional = true},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    (void)slot;
    shape[0] = (int64_t)c->param[ROWS];
    shape[1] = (int64_t)c->param[COLS];
    return 2;
}

static bool infer(struct op_case *c) {
    if (c->tensor[PARAM].ndim != 2) return false;
    c->param[ROWS] = (double)c->tensor[PARAM].shape[0];
    c->param[COLS] = (double)c->tensor[PARAM].shape[1];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_adamw_step_args args =
        TSR_ADAMW_STEP_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                            .workspace_bytes = given_bytes, .param = c->tensor[PARAM],
                            .grad = c->tensor[GRAD], .m = c->tensor[M], .v = c->tensor[V],
                            .lr = c->param[LR], .beta1 = c->param[BETA1], .beta2 = c->param[BETA2],
                            .eps = c->param[EPS], .weight_decay = c->param[WEIGHT_DECAY],
                            .has_grad_scale = c->param[HAS_GRAD_SCALE] != 0,
                            .step = (int64_t)c->param[STEP]);
    if (args.has_grad_scale) args.grad_scale = c->param[GRAD_SCALE];
    if (c->is_present[MASTER]) args.master = c->tensor[MASTER];
    return workspace_bytes != NULL ? tsr_adamw_step_prepare(ctx, &args, workspace_bytes)
                                   : tsr_adamw_step(ctx, &args);
}

static double flops(const struct op_case *c) { return 15 * c->param[ROWS] * c->param[COLS]; }

// With a master, param is only written.
static double bytes(const struct op_case *c) {
    double param = (double)tsr_dtype_bytes(case_slot_dtype(c, PARAM));
    double grad = (double)tsr_dtype_bytes(case_slot_dtype(c, GRAD));
    double each = grad + 16 + (c->is_present[MASTER] ? 8 + param : 2 * param);
    return each * c->param[ROWS] * c->param[COLS];
}

static void randomize(struct rng *rng, struct op_case *c) {
    static const double beta1s[] = {0, 0.5, 0.9, 0.95, 0.99};
    static const double beta2s[] = {0, 0.9, 0.95, 0.999, 0.9999};
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 3000);
    int64_t rows = rng_dim(rng, cols > 2000 ? 4 : 20);
    bool is_tall = rng_chance(rng, 0.1);
    c->param[ROWS] = (double)(is_tall ? cols : rows);
    c->param[COLS] = (double)(is_tall ? rows : cols);
    c->param[STEP] = rng_chance(rng, 0.3) ? 1 : floor(exp(rng_uniform(rng) * 15));
    c->param[LR] = exp(-12 * rng_uniform(rng));
    c->param[BETA1] = beta1s[rng_int(rng, 0, 4)];
    c->param[BETA2] = beta2s[rng_int(rng, 0, 4)];
    c->param[EPS] = rng_chance(rng, 0.1) ? 0 : pow(10, -rng_uniform(rng) * 12);
    c->param[WEIGHT_DECAY] = rng_chance(rng, 0.3) ? 0 : 0.3 * rng_uniform(rng);
    c->param[HAS_GRAD_SCALE] = rng_chance(rng, 0.5);
    c->param[GRAD_SCALE] = exp(8 * (rng_uniform(rng) - 0.5));
    c->is_present[MASTER] = rng_chance(rng, 0.4);
}

// v is a mean of squares, so it is positive; only FILL_ZERO makes it 0.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot != V || fill == FILL_ZERO) return false;
    for (int64_t i = 0; i < (int64_t)c->param[ROWS] * (int64_t)c->param[COLS]; i++) {
        double x = rng_normal(rng);
        values[i] = 1e-6 + x * x;
    }
    return true;
}

// The step of an element, from its results: beta1 m and beta2 v are the new moments minus the
// gradient's share.
struct parts {
    double m_error, v_error, quotient, quotient_error;
};

static struct parts parts_of(const struct op_case *c, double grad, double m, double v) {
    double g = grad * (c->param[HAS_GRAD_SCALE] != 0 ? c->param[GRAD_SCALE] : 1);
    double share1 = (1 - c->param[BETA1]) * g, share2 = (1 - c->param[BETA2]) * g * g;
    double rate = c->param[LR] / (1 - pow(c->param[BETA1], c->param[STEP]));
    double factor = 1 / sqrt(1 - pow(c->param[BETA2], c->param[STEP]));
    struct parts at;
    at.m_error = u32 * (3 * fabs(m - share1) + 4 * fabs(share1)) + 0x1p-147;
    at.v_error = u32 * (3 * fabs(v - share2) + 6 * share2) + 0x1p-147;
    double root = sqrt(v), denominator = root * factor + c->param[EPS];
    double root_error = v > at.v_error ? at.v_error / root : sqrt(v + at.v_error);
    double error = factor * (root_error + 3 * u32 * root) + u32 * (2 * c->param[EPS] + denominator);
    at.quotient = rate * m / denominator;
    double left = denominator - error;
    at.quotient_error = left <= 0 ? INFINITY
                                  : rate / left * (at.m_error + fabs(m) * error / denominator) +
                                        4 * u32 * fabs(at.quotient) + 0x1p-147;
    if (v >= 0x1.fffffp127) at.quotient_error += fabs(at.quotient); // v may be +inf, the quotient 0
    return at;
}

static void bound(const struct op_case *c, int slot, double *bound) {
    int64_t numel = (int64_t)c->param[ROWS] * (int64_t)c->param[COLS];
    const double *grad = c->tensor[GRAD].data, *m = c->tensor[M].data, *v = c->tensor[V].data;
    const double *p = c->tensor[c->is_present[MASTER] ? MASTER : PARAM].data;
    double decay = c->param[LR] * c->param[WEIGHT_DECAY];
    for (int64_t i = 0; i < numel; i++) {
        struct parts at = parts_of(c, grad[i], m[i], v[i]);
        double before = (p[i] + at.quotient) / (1 - decay);
        bound[i] = slot == M ? at.m_error
                   : slot == V
                       ? at.v_error
                       : fabs(at.quotient_error) +
                             u32 * (fabs(p[i]) + 2 * fabs(at.quotient) + 3 * fabs(decay * before)) +
                             0x1p-147;
    }
}

static const struct edge_case edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0 +master", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=3000 cols=1", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one long row", "rows=1 cols=300001 +master", FILL_NORMAL, LAYOUT_RANDOM},
    {"rows as one", "rows=301 cols=301", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"first step", "rows=9 cols=301 step=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"a late step", "rows=9 cols=301 step=1000000000", FILL_NORMAL, LAYOUT_RANDOM},
    {"betas of 0", "rows=9 cols=301 beta1=0 beta2=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"betas near 1", "rows=9 cols=301 step=1 beta1=0.999999 beta2=0.9999999", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"rate of 0", "rows=9 cols=301 lr=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"a tiny decay", "rows=9 cols=301 lr=1e-6 weight_decay=0.01", FILL_LARGE, LAYOUT_RANDOM},
    {"large gradients", "rows=9 cols=301 +master", FILL_LARGE, LAYOUT_RANDOM},
    {"huge gradients", "rows=9 cols=301", FILL_HUGE, LAYOUT_RANDOM},
    {"huge gradients, master", "rows=9 cols=301 +master", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite gradients", "rows=40 cols=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN in some gradients", "rows=40 cols=301 +master", FILL_NAN, LAYOUT_RANDOM},
    {"all zero", "rows=9 cols=301 +master", FILL_ZERO, LAYOUT_RANDOM},
    {"0 / 0", "rows=9 cols=301 eps=0", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33 +master", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256 +master", FILL_NORMAL, LAYOUT_FAR},
    {"one gradient for all rows", "rows=17 cols=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"rows=4096 cols=4096", "rows=4096 cols=11008",
                                       "rows=4096 cols=11008 +master", NULL};

const struct op_spec adamw_step_spec = {
    .op = "adamw_step",
    .command = "adamw",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .call = call,
    .flops = flops,
    .bytes = bytes,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "unfused",
};
