// SPDX-License-Identifier: Apache-2.0
// Layer and root mean square normalisation for verify, bench, apply and report. One set of
// functions serves the four descriptions: rmsnorm is the one without a slot "mean".
//
// The bounds, u = 2^-24, n = cols, K = 8 + sqrt(n), sigma = sqrt(variance + eps), h the normalised
// value:
//   mean, variance   fp32 sums of x - shift, the shift within a standard deviation of the mean:
//   errors of
//                    K u sigma and K u sigma^2, whatever the mean is.
//   y                h is off by K u (1 + |h|), and weight carries that over; product and sum round
//   once.
//                    rmsnorm has no mean, hence K u |h|.
//   residual         s is rounded: s + d, |d| <= u_dtype |s|. With E the root mean square of d and
//                    D_i = |d_i| + mean |d|, the triangle inequality gives |sigma' - sigma| <= E
//                    and |h' - h| <= (D_i + |h_i| E) / (sigma - E); and |h'| <= sqrt(n) always.
//   dx               K u (mean |g| + |h_i| mean |g h|) from the sums, 4 u of each term.
//   dweight, dbias   sums over rows in groups, (8 + 2 sqrt(rows)) u of the sum of magnitudes.
// What the rounding to the output's dtype adds, verify adds itself. Products below the normal
// numbers may lose all: 2^-126.
#include <math.h>

#include "spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32
static const double tiny = 0x1p-126;
static const double standard_eps = 1e-5;

static const struct param_spec forward_params[] = {
    {"rows", "rows, every one normalised on its own", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"eps", "added to the variance", PARAM_REAL, 1e-5, NULL},
    {0},
};
static const struct param_spec backward_params[] = {
    {"rows", "rows, every one normalised on its own", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {0},
};

// ---- Both passes ------------------------------------------------------------------------------

static bool is_rmsnorm(const struct op_case *c) { return spec_slot(c->spec, "mean") < 0; }

static bool is_slot(const struct op_case *c, int slot, const char *name) {
    return spec_slot(c->spec, name) == slot;
}

static bool has(const struct op_case *c, const char *name) {
    int slot = spec_slot(c->spec, name);
    return slot >= 0 && c->is_present[slot];
}

static void set_presence(struct op_case *c, const char *name, bool is_present) {
    int slot = spec_slot(c->spec, name);
    if (slot >= 0) c->is_present[slot] = is_present;
}

// An absent tensor for a name that this operation does not have.
static tsr_tensor tensor_of(const struct op_case *c, const char *name) {
    return has(c, name) ? c->tensor[spec_slot(c->spec, name)] : (tsr_tensor){0};
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    bool is_statistic = is_slot(c, slot, "mean") || is_slot(c, slot, "rstd");
    bool is_vector = is_slot(c, slot, "weight") || is_slot(c, slot, "bias") ||
                     is_slot(c, slot, "dweight") || is_slot(c, slot, "dbias");
    shape[0] = (int64_t)c->param[is_vector ? 1 : 0];
    shape[1] = (int64_t)c->param[1];
    return is_statistic || is_vector ? 1 : 2;
}

// residual_out comes with residual.
static bool infer(struct op_case *c) {
    if (c->tensor[0].ndim != 2) return false;
    c->param[0] = (double)c->tensor[0].shape[0];
    c->param[1] = (double)c->tensor[0].shape[1];
    set_presence(c, "residual_out", has(c, "residual"));
    return true;
}

static void draw_sizes(struct rng *rng, struct op_case *c) {
    if (rng_chance(rng, 0.15)) { // many rows: groups of dweight and dbias
        c->param[0] = (double)rng_dim(rng, 4000);
        c->param[1] = (double)rng_int(rng, 0, 24);
        return;
    }
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 5000);
    c->param[0] = (double)rng_dim(rng, cols > 2000 ? 6 : 24);
    c->param[1] = (double)cols;
}

// What a row of x becomes: FILL_SPECIAL takes turns between [40000 ... 40003], equal elements and
// tiny ones; eps 0 makes all of them tiny, so that their squares underflow.
static void fill_special(struct rng *rng, bool is_all_tiny, double *x, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++, x++)
            *x = is_all_tiny || r % 3 == 2 ? rng_normal(rng) * 1e-30
                 : r % 3 == 0              ? 40000 + (double)(i % 4)
                                           : 40000.1 / (double)(r + 1);
}

// Fills that are about x leave the other inputs ordinary.
static bool fill_common(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                        double eps, double *values) {
    int64_t numel = case_numel(c, slot);
    if (is_slot(c, slot, "x")) {
        if (fill == FILL_SPECIAL)
            fill_special(rng, eps == 0, values, (int64_t)c->param[0], (int64_t)c->param[1]);
        return fill == FILL_SPECIAL;
    }
    if (fill == FILL_NORMAL || fill == FILL_NAN || fill == FILL_LARGE) return false;
    bool is_weight = is_slot(c, slot, "weight");
    bool is_shifted = fill == FILL_SHIFTED && is_slot(c, slot, "residual");
    if (is_shifted) return false;
    for (int64_t i = 0; i < numel; i++)
        values[i] = is_weight ? 1 + 0.5 * rng_normal(rng) : rng_normal(rng);
    return true;
}

// ---- Forward: x, residual, weight, bias -> y, residual_out, mean, rstd ------------------------

static const struct slot_spec layernorm_forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL},
    {"residual", SLOT_IN, SLOT_MAIN, true, NULL},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"bias", SLOT_IN, SLOT_SMALL, true, NULL},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"residual_out", SLOT_OUT, SLOT_MAIN, true, NULL},
    {"mean", SLOT_OUT, SLOT_F32, true, NULL},
    {"rstd", SLOT_OUT, SLOT_F32, true, NULL},
    {0},
};
static const struct slot_spec rmsnorm_forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL},
    {"residual", SLOT_IN, SLOT_MAIN, true, NULL},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"residual_out", SLOT_OUT, SLOT_MAIN, true, NULL},
    {"rstd", SLOT_OUT, SLOT_F32, true, NULL},
    {0},
};

// The standard eps is left to the library's default.
static tsr_status layernorm_forward_call(tsr_context *ctx, const struct op_case *c,
                                         const char *variant, void *workspace, size_t given_bytes,
                                         size_t *workspace_bytes) {
    tsr_layernorm_forward_args args =
        TSR_LAYERNORM_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                   .workspace_bytes = given_bytes, .x = tensor_of(c, "x"),
                                   .residual = tensor_of(c, "residual"),
                                   .weight = tensor_of(c, "weight"), .bias = tensor_of(c, "bias"),
                                   .y = tensor_of(c, "y"), .mean = tensor_of(c, "mean"),
                                   .rstd = tensor_of(c, "rstd"), .eps = (float)c->param[2],
                                   .has_eps = c->param[2] != standard_eps);
    if (has(c, "residual")) args.residual_out = tensor_of(c, "residual_out");
    return workspace_bytes != NULL ? tsr_layernorm_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_layernorm_forward(ctx, &args);
}

static tsr_status rmsnorm_forward_call(tsr_context *ctx, const struct op_case *c,
                                       const char *variant, void *workspace, size_t given_bytes,
                                       size_t *workspace_bytes) {
    tsr_rmsnorm_forward_args args =
        TSR_RMSNORM_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                 .workspace_bytes = given_bytes, .x = tensor_of(c, "x"),
                                 .residual = tensor_of(c, "residual"),
                                 .weight = tensor_of(c, "weight"), .y = tensor_of(c, "y"),
                                 .rstd = tensor_of(c, "rstd"), .eps = (float)c->param[2],
                                 .has_eps = c->param[2] != standard_eps);
    if (has(c, "residual")) args.residual_out = tensor_of(c, "residual_out");
    return workspace_bytes != NULL ? tsr_rmsnorm_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rmsnorm_forward(ctx, &args);
}

// layernorm: x - shift, its sum, its square's sum, (x - mean) rstd + offset, scale and shift;
// rmsnorm: the square's sum and two products. A residual adds one.
static double forward_flops(const struct op_case *c) {
    return ((is_rmsnorm(c) ? 4 : 9) + (has(c, "residual") ? 1 : 0)) * c->param[0] * c->param[1];
}

static void forward_randomize(struct rng *rng, struct op_case *c) {
    static const double epses[] = {1e-6, 1e-3, 1e-12, 0};
    draw_sizes(rng, c);
    bool has_residual = rng_chance(rng, 0.4), has_weight = rng_chance(rng, 0.8);
    set_presence(c, "residual", has_residual);
    set_presence(c, "residual_out", has_residual);
    set_presence(c, "weight", has_weight);
    set_presence(c, "bias", has_weight && rng_chance(rng, 0.7));
    set_presence(c, "mean", rng_chance(rng, 0.5));
    set_presence(c, "rstd", rng_chance(rng, 0.5));
    // With eps 0 a residual sum that rounds to equal elements would have no variance left.
    if (rng_chance(rng, 0.3)) c->param[2] = epses[rng_int(rng, 0, has_residual ? 2 : 3)];
}

static bool forward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    return fill_common(rng, c, slot, fill, c->param[2], values);
}

// Unit roundoff of the residual sum as stored, and the spacing of its subnormal numbers.
static double sum_roundoff(tsr_dtype dtype) {
    return dtype == TSR_BF16 ? 0x1p-8 + u32 : dtype == TSR_F16 ? 0x1p-11 + u32 : u32;
}

struct row_statistics {
    double mean, rms, sigma; // rms of x - mean; sigma with eps
    double mean_d, rms_d;    // of what the rounding of the residual sum changes
};

static double summed(const struct op_case *c, int64_t i) {
    const double *x = case_values(c, "x"), *residual = case_values(c, "residual");
    return x[i] + (residual != NULL ? residual[i] : 0);
}

static double rounding_of(const struct op_case *c, double s) {
    if (!has(c, "residual")) return 0;
    return sum_roundoff(c->dtype) * fabs(s) + (c->dtype == TSR_F16 ? 0x1p-25 : 0);
}

static struct row_statistics statistics_of(const struct op_case *c, int64_t row) {
    struct row_statistics t = {0};
    int64_t cols = (int64_t)c->param[1];
    double n = cols > 0 ? (double)cols : 1;
    for (int64_t i = 0; i < cols; i++) {
        double s = summed(c, row * cols + i), d = rounding_of(c, s);
        t.mean += is_rmsnorm(c) ? 0 : s / n;
        t.mean_d += d / n;
        t.rms_d += d * d / n;
    }
    for (int64_t i = 0; i < cols; i++) {
        double centred = summed(c, row * cols + i) - t.mean;
        t.rms += centred * centred / n;
    }
    t.sigma = sqrt(t.rms + c->param[2]);
    t.rms = sqrt(t.rms);
    t.rms_d = sqrt(t.rms_d);
    return t;
}

static void forward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    const double *weight = case_values(c, "weight"), *bias = case_values(c, "bias");
    double k = (8 + sqrt((double)cols)) * u32, widest = sqrt((double)cols);
    for (int64_t r = 0; r < rows; r++) {
        struct row_statistics t = statistics_of(c, r);
        bool is_finite = t.sigma < INFINITY; // otherwise the expected values are 0 or NaN, exactly
        double left = t.sigma - t.rms_d;     // of sigma, at worst
        if (is_slot(c, slot, "mean")) {
            bound[r] = is_finite ? k * t.rms + t.mean_d : 0;
            continue;
        }
        if (is_slot(c, slot, "rstd")) {
            bound[r] = !is_finite ? 0 : (k + (left > 0 ? t.rms_d / left : INFINITY)) / t.sigma;
            continue;
        }
        for (int64_t i = 0; i < cols; i++) {
            double s = summed(c, r * cols + i), d = rounding_of(c, s), *b = &bound[r * cols + i];
            if (is_slot(c, slot, "residual_out")) {
                *b = u32 * fabs(s);
                continue;
            }
            double w = weight != NULL ? fabs(weight[i]) : 1, h = fabs(s - t.mean) / t.sigma;
            double moved =
                left > 0 ? (d + (is_rmsnorm(c) ? 0 : t.mean_d) + h * t.rms_d) / left : INFINITY;
            *b = !is_finite ? 0
                            : w * (k * ((is_rmsnorm(c) ? 0 : 1) + h) + fmin(moved, widest + h)) +
                                  2 * u32 * (w * h + (bias != NULL ? fabs(bias[i]) : 0)) + tiny;
        }
    }
}

#define BOTH_FORWARD_EDGES                                                                         \
    {"zero rows", "rows=0 cols=5 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},                      \
        {"zero columns", "rows=5 cols=0 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},               \
        {"zero columns, eps 0", "rows=5 cols=0 eps=0 +rstd", FILL_NORMAL, LAYOUT_RANDOM},          \
        {"one column", "rows=7 cols=1 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},                 \
        {"50,257 columns", "rows=2 cols=50257 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},         \
        {"50,257 columns with residual", "rows=2 cols=50257 +residual +residual_out", FILL_NORMAL, \
         LAYOUT_RANDOM},                                                                           \
        {"residual", "rows=9 cols=1027 +weight +residual +residual_out +rstd", FILL_NORMAL,        \
         LAYOUT_RANDOM},                                                                           \
        {"shifted residual", "rows=9 cols=301 +weight +residual +residual_out", FILL_SHIFTED,      \
         LAYOUT_RANDOM},                                                                           \
        {"mean / sigma 1e6", "rows=9 cols=301 +weight +rstd", FILL_SHIFTED, LAYOUT_RANDOM},        \
        {"mean / sigma 1e6, wide", "rows=3 cols=9001", FILL_SHIFTED, LAYOUT_RANDOM},               \
        {"large values", "rows=9 cols=301 +weight +rstd", FILL_LARGE, LAYOUT_RANDOM},              \
        {"huge values", "rows=9 cols=301 +weight +rstd", FILL_HUGE, LAYOUT_RANDOM},                \
        {"huge values, wide", "rows=3 cols=5003", FILL_HUGE, LAYOUT_RANDOM},                       \
        {"40000 to 40003, equal, tiny", "rows=9 cols=301 +weight +rstd", FILL_SPECIAL,             \
         LAYOUT_RANDOM},                                                                           \
        {"1e-30 without eps", "rows=9 cols=301 eps=0 +weight +rstd", FILL_SPECIAL, LAYOUT_RANDOM}, \
        {"zeros", "rows=3 cols=1000 +weight +rstd", FILL_ZERO, LAYOUT_RANDOM},                     \
        {"infinities", "rows=40 cols=301 +weight +rstd", FILL_INFINITE, LAYOUT_RANDOM},            \
        {"NaN in some rows", "rows=40 cols=301 +rstd", FILL_NAN, LAYOUT_RANDOM},                   \
        {"beyond 2^31 elements", "rows=3 cols=33 +weight +residual +residual_out", FILL_NORMAL,    \
         LAYOUT_FAR},                                                                              \
    {                                                                                              \
        "one row for all", "rows=17 cols=65 +weight +residual +residual_out", FILL_NORMAL,         \
            LAYOUT_REPEATED                                                                        \
    }

static const struct edge_case rmsnorm_forward_edges[] = {BOTH_FORWARD_EDGES, {0}};
static const struct edge_case layernorm_forward_edges[] = {
    BOTH_FORWARD_EDGES,
    {"all statistics of zero columns", "rows=5 cols=0 +mean +rstd", FILL_NORMAL, LAYOUT_RANDOM},
    {"mean of 1e6", "rows=9 cols=4099 +weight +bias +mean +rstd", FILL_SHIFTED, LAYOUT_RANDOM},
    {"mean of 40000 to 40003", "rows=9 cols=4 +weight +bias +mean +rstd", FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"mean of huge values", "rows=9 cols=301 +mean +rstd", FILL_HUGE, LAYOUT_RANDOM},
    {"mean of infinities", "rows=40 cols=70 +weight +bias +mean", FILL_INFINITE, LAYOUT_RANDOM},
    {0},
};

static const char *const layernorm_forward_standard[] = {"rows=16384 cols=256 +weight +bias",
                                                         "rows=16384 cols=512 +weight +bias",
                                                         "rows=16384 cols=768 +weight +bias",
                                                         "rows=16384 cols=1024 +weight +bias",
                                                         "rows=16384 cols=2048 +weight +bias",
                                                         "rows=16384 cols=4096 +weight +bias",
                                                         NULL};
static const char *const rmsnorm_forward_standard[] = {"rows=16384 cols=256 +weight",
                                                       "rows=16384 cols=512 +weight",
                                                       "rows=16384 cols=768 +weight",
                                                       "rows=16384 cols=1024 +weight",
                                                       "rows=16384 cols=2048 +weight",
                                                       "rows=16384 cols=4096 +weight",
                                                       NULL};

const struct op_spec layernorm_forward_spec = {
    .op = "layernorm_forward",
    .command = "layernorm",
    .pass = "forward",
    .params = forward_params,
    .slots = layernorm_forward_slots,
    .shape = shape,
    .infer = infer,
    .call = layernorm_forward_call,
    .flops = forward_flops,
    .randomize = forward_randomize,
    .fill = forward_fill,
    .bound = forward_bound,
    .edges = layernorm_forward_edges,
    .standard = layernorm_forward_standard,
    .baseline = "unfused",
};

const struct op_spec rmsnorm_forward_spec = {
    .op = "rmsnorm_forward",
    .command = "rmsnorm",
    .pass = "forward",
    .params = forward_params,
    .slots = rmsnorm_forward_slots,
    .shape = shape,
    .infer = infer,
    .call = rmsnorm_forward_call,
    .flops = forward_flops,
    .randomize = forward_randomize,
    .fill = forward_fill,
    .bound = forward_bound,
    .edges = rmsnorm_forward_edges,
    .standard = rmsnorm_forward_standard,
    .baseline = "unfused",
};

// ---- Backward: x, weight, mean, rstd, dy, dresidual_out -> dx, dweight, dbias -----------------

static const struct slot_spec layernorm_backward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, "residual_out"},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"mean", SLOT_IN, SLOT_F32, false, NULL},
    {"rstd", SLOT_IN, SLOT_F32, false, NULL},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dresidual_out", SLOT_IN, SLOT_MAIN, true, NULL},
    {"dx", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"dweight", SLOT_OUT, SLOT_SMALL, true, NULL},
    {"dbias", SLOT_OUT, SLOT_SMALL, true, NULL},
    {0},
};
static const struct slot_spec rmsnorm_backward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, "residual_out"},  {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"rstd", SLOT_IN, SLOT_F32, false, NULL},          {"dy", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dresidual_out", SLOT_IN, SLOT_MAIN, true, NULL}, {"dx", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"dweight", SLOT_OUT, SLOT_SMALL, true, NULL},     {0},
};

static tsr_status layernorm_backward_call(tsr_context *ctx, const struct op_case *c,
                                          const char *variant, void *workspace, size_t given_bytes,
                                          size_t *workspace_bytes) {
    tsr_layernorm_backward_args args =
        TSR_LAYERNORM_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                    .workspace_bytes = given_bytes, .x = tensor_of(c, "x"),
                                    .weight = tensor_of(c, "weight"), .mean = tensor_of(c, "mean"),
                                    .rstd = tensor_of(c, "rstd"), .dy = tensor_of(c, "dy"),
                                    .dresidual_out = tensor_of(c, "dresidual_out"),
                                    .dx = tensor_of(c, "dx"), .dweight = tensor_of(c, "dweight"),
                                    .dbias = tensor_of(c, "dbias"));
    return workspace_bytes != NULL ? tsr_layernorm_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_layernorm_backward(ctx, &args);
}

static tsr_status rmsnorm_backward_call(tsr_context *ctx, const struct op_case *c,
                                        const char *variant, void *workspace, size_t given_bytes,
                                        size_t *workspace_bytes) {
    tsr_rmsnorm_backward_args args =
        TSR_RMSNORM_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                  .workspace_bytes = given_bytes, .x = tensor_of(c, "x"),
                                  .weight = tensor_of(c, "weight"), .rstd = tensor_of(c, "rstd"),
                                  .dy = tensor_of(c, "dy"),
                                  .dresidual_out = tensor_of(c, "dresidual_out"),
                                  .dx = tensor_of(c, "dx"), .dweight = tensor_of(c, "dweight"));
    return workspace_bytes != NULL ? tsr_rmsnorm_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rmsnorm_backward(ctx, &args);
}

// h, g, their two sums, g - mean_g - h mean_gh, rstd; dweight and dbias.
static double backward_flops(const struct op_case *c) {
    return ((is_rmsnorm(c) ? 8 : 12) + (has(c, "dweight") ? 2 : 0) + (has(c, "dbias") ? 1 : 0) +
            (has(c, "dresidual_out") ? 1 : 0)) *
           c->param[0] * c->param[1];
}

static void backward_randomize(struct rng *rng, struct op_case *c) {
    draw_sizes(rng, c);
    set_presence(c, "weight", rng_chance(rng, 0.8));
    set_presence(c, "dresidual_out", rng_chance(rng, 0.4));
    set_presence(c, "dweight", rng_chance(rng, 0.7));
    set_presence(c, "dbias", rng_chance(rng, 0.6));
}

// mean and rstd are x's own.
static bool backward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    if (!is_slot(c, slot, "mean") && !is_slot(c, slot, "rstd"))
        return fill_common(rng, c, slot, fill, standard_eps, values);
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    double n = cols > 0 ? (double)cols : 1;
    const double *x = case_values(c, "x");
    for (int64_t r = 0; r < rows; r++, x += cols) {
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < cols && !is_rmsnorm(c); i++) mean += x[i] / n;
        for (int64_t i = 0; i < cols; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
        values[r] = is_slot(c, slot, "mean") ? mean : 1 / sqrt(variance + standard_eps);
    }
    return true;
}

// |h| of element i of row r.
static double magnitude_of_h(const struct op_case *c, int64_t r, int64_t i) {
    const double *mean = case_values(c, "mean");
    double x = case_values(c, "x")[r * (int64_t)c->param[1] + i];
    return fabs(x - (mean != NULL ? mean[r] : 0)) * case_values(c, "rstd")[r];
}

static void vector_bound(const struct op_case *c, bool is_dweight, double *bound) {
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    const double *dy = case_values(c, "dy");
    for (int64_t i = 0; i < cols; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += fabs(dy[r * cols + i]) * (is_dweight ? magnitude_of_h(c, r, i) : 1);
        bound[i] = (8 + 2 * sqrt((double)rows)) * u32 * sum + tiny;
    }
}

static void backward_bound(const struct op_case *c, int slot, double *bound) {
    if (!is_slot(c, slot, "dx")) {
        vector_bound(c, is_slot(c, slot, "dweight"), bound);
        return;
    }
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    const double *weight = case_values(c, "weight"), *dres = case_values(c, "dresidual_out");
    double k = (8 + sqrt((double)cols)) * u32;
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = case_values(c, "dy") + r * cols;
        double mean_g = 0, mean_gh = 0, rstd = case_values(c, "rstd")[r];
        for (int64_t i = 0; i < cols; i++) {
            double g = fabs(dy[i] * (weight != NULL ? weight[i] : 1));
            mean_g += is_rmsnorm(c) ? 0 : g / (double)cols;
            mean_gh += g * magnitude_of_h(c, r, i) / (double)cols;
        }
        for (int64_t i = 0; i < cols; i++) {
            double g = fabs(dy[i] * (weight != NULL ? weight[i] : 1));
            double h = magnitude_of_h(c, r, i);
            bound[r * cols + i] = rstd * ((k + 4 * u32) * (mean_g + h * mean_gh) + 4 * u32 * g) +
                                  2 * u32 * (dres != NULL ? fabs(dres[r * cols + i]) : 0) + tiny;
        }
    }
}

#define BOTH_BACKWARD_EDGES                                                                        \
    {"zero rows", "rows=0 cols=5 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},                   \
        {"zero columns", "rows=5 cols=0 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},            \
        {"one column", "rows=7 cols=1 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},              \
        {"50,257 columns", "rows=5 cols=50257 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},      \
        {"5,000 rows", "rows=5000 cols=33 +weight +dweight +dresidual_out", FILL_NORMAL,           \
         LAYOUT_RANDOM},                                                                           \
        {"no weight", "rows=9 cols=301 +dweight", FILL_NORMAL, LAYOUT_RANDOM},                     \
        {"dx only", "rows=9 cols=301 +weight", FILL_NORMAL, LAYOUT_RANDOM},                        \
        {"mean / sigma 1e6", "rows=9 cols=301 +weight +dweight", FILL_SHIFTED, LAYOUT_RANDOM},     \
        {"large gradients", "rows=9 cols=301 +weight +dweight", FILL_LARGE, LAYOUT_RANDOM},        \
        {"huge values", "rows=9 cols=301 +weight +dweight", FILL_HUGE, LAYOUT_RANDOM},             \
        {"40000 to 40003, equal, tiny", "rows=9 cols=301 +weight +dweight", FILL_SPECIAL,          \
         LAYOUT_RANDOM},                                                                           \
        {"infinities", "rows=40 cols=301 +weight +dweight", FILL_INFINITE, LAYOUT_RANDOM},         \
        {"NaN in some rows", "rows=40 cols=301 +weight", FILL_NAN, LAYOUT_RANDOM},                 \
        {"beyond 2^31 elements", "rows=3 cols=33 +weight +dweight +dresidual_out", FILL_NORMAL,    \
         LAYOUT_FAR},                                                                              \
    {                                                                                              \
        "one row for all", "rows=17 cols=65 +weight +dweight +dresidual_out", FILL_NORMAL,         \
            LAYOUT_REPEATED                                                                        \
    }

static const struct edge_case rmsnorm_backward_edges[] = {BOTH_BACKWARD_EDGES, {0}};
static const struct edge_case layernorm_backward_edges[] = {
    BOTH_BACKWARD_EDGES,
    {"dbias of zero rows", "rows=0 cols=5 +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"dbias alone", "rows=300 cols=77 +weight +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"dweight and dbias", "rows=2100 cols=70 +weight +dweight +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {0},
};

static const char *const layernorm_backward_standard[] = {
    "rows=16384 cols=256 +weight +dweight +dbias",
    "rows=16384 cols=512 +weight +dweight +dbias",
    "rows=16384 cols=768 +weight +dweight +dbias",
    "rows=16384 cols=1024 +weight +dweight +dbias",
    "rows=16384 cols=2048 +weight +dweight +dbias",
    "rows=16384 cols=4096 +weight +dweight +dbias",
    NULL};
static const char *const rmsnorm_backward_standard[] = {"rows=16384 cols=256 +weight +dweight",
                                                        "rows=16384 cols=512 +weight +dweight",
                                                        "rows=16384 cols=768 +weight +dweight",
                                                        "rows=16384 cols=1024 +weight +dweight",
                                                        "rows=16384 cols=2048 +weight +dweight",
                                                        "rows=16384 cols=4096 +weight +dweight",
                                                        NULL};

const struct op_spec layernorm_backward_spec = {
    .op = "layernorm_backward",
    .command = "layernorm",
    .pass = "backward",
    .params = backward_params,
    .slots = layernorm_backward_slots,
    .shape = shape,
    .infer = infer,
    .call = layernorm_backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .fill = backward_fill,
    .bound = backward_bound,
    .edges = layernorm_backward_edges,
    .standard = layernorm_backward_standard,
    .baseline = "unfused",
};

const struct op_spec rmsnorm_backward_spec = {
    .op = "rmsnorm_backward",
    .command = "rmsnorm",
    .pass = "backward",
    .params = backward_params,
    .slots = rmsnorm_backward_slots,
    .shape = shape,
    .infer = infer,
    .call = rmsnorm_backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .fill = backward_fill,
    .bound = backward_bound,
    .edges = rmsnorm_backward_edges,
    .standard = rmsnorm_backward_standard,
    .baseline = "unfused",
};
