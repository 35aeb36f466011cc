// SPDX-License-Identifier: Apache-2.0
// Forward of layernorm and rmsnorm. The bounds are derived in spec_norm.c.
#include <math.h>

#include "specs/spec_norm.h"

static const struct param_spec forward_params[] = {
    {"rows", "rows, each normalised by itself", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"eps", "added to the variance", PARAM_REAL, 1e-5, NULL, PARAM_FLOAT},
    NORM_COMMON_PARAMS,
    NORM_DTYPE_PARAM("residual"),
    NORM_DTYPE_PARAM("residual_out"),
    NORM_DTYPE_PARAM("y"),
    {0},
};

// ---- Forward: x, residual, weight, bias -> y, residual_out, mean, rstd ------------------------

static const struct slot_spec layernorm_forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL},
    {"residual", SLOT_IN, SLOT_MAIN, true, NULL},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"bias", SLOT_IN, SLOT_SMALL, true, NULL},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"residual_out", SLOT_OUT, SLOT_MAIN, true, NULL, false, "residual"},
    {"mean", SLOT_OUT, SLOT_F32, true, .is_contiguous = true},
    {"rstd", SLOT_OUT, SLOT_F32, true, .is_contiguous = true},
    {0},
};
static const struct slot_spec rmsnorm_forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL},
    {"residual", SLOT_IN, SLOT_MAIN, true, NULL},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL},
    {"residual_out", SLOT_OUT, SLOT_MAIN, true, NULL, false, "residual"},
    {"rstd", SLOT_OUT, SLOT_F32, true, .is_contiguous = true},
    {0},
};

// For the standard eps the call gets none, so that the library's default is tested.
static float given_eps(const struct op_case *c) {
    return c->param[2] != standard_eps ? (float)c->param[2] : 0;
}

static tsr_status layernorm_forward_call(tsr_context *ctx, const struct op_case *c,
                                         const char *variant, void *workspace, size_t given_bytes,
                                         size_t *workspace_bytes) {
    tsr_layernorm_forward_args args =
        TSR_LAYERNORM_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                   .workspace_bytes = given_bytes, .x = tensor_of(c, "x"),
                                   .residual = tensor_of(c, "residual"),
                                   .weight = tensor_of(c, "weight"), .bias = tensor_of(c, "bias"),
                                   .y = tensor_of(c, "y"),
                                   .residual_out = tensor_of(c, "residual_out"),
                                   .mean = tensor_of(c, "mean"), .rstd = tensor_of(c, "rstd"),
                                   .eps = given_eps(c), .has_eps = c->param[2] != standard_eps,
                                   .zero_centered_weight =
                                       (int32_t)case_int(c, "zero_centered_weight"));
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
                                 .residual_out = tensor_of(c, "residual_out"),
                                 .rstd = tensor_of(c, "rstd"), .eps = given_eps(c),
                                 .has_eps = c->param[2] != standard_eps,
                                 .zero_centered_weight =
                                     (int32_t)case_int(c, "zero_centered_weight"));
    return workspace_bytes != NULL ? tsr_rmsnorm_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rmsnorm_forward(ctx, &args);
}

// layernorm: x - shift, its sum, the sum of its squares, (x - mean) rstd + offset, scale and shift;
// rmsnorm: the sum of squares and two products. A residual adds one.
static double forward_flops(const struct op_case *c) {
    return ((is_rmsnorm(c) ? 4 : 9) + (has(c, "residual") ? 1 : 0)) * (double)norm_rows(c) *
           c->param[1];
}

static const char *const forward_dtypes[] = {"residual_dtype", "residual_out_dtype", "y_dtype",
                                             "weight_dtype", NULL};

static void forward_randomize(struct rng *rng, struct op_case *c) {
    static const double epses[] = {1e-6, 1e-3, 1e-12, 0};
    norm_draw_sizes(rng, c);
    bool has_residual = rng_chance(rng, 0.4), has_weight = rng_chance(rng, 0.8);
    norm_set_presence(c, "residual", has_residual);
    norm_set_presence(c, "residual_out", has_residual);
    norm_set_presence(c, "weight", has_weight);
    norm_set_presence(c, "bias", has_weight && rng_chance(rng, 0.7));
    norm_set_presence(c, "mean", rng_chance(rng, 0.5));
    norm_set_presence(c, "rstd", rng_chance(rng, 0.5));
    // No eps 0 with a residual: a sum that rounds to equal elements would have no variance left.
    if (rng_chance(rng, 0.3)) c->param[2] = epses[rng_int(rng, 0, has_residual ? 2 : 3)];
    norm_draw_forms(rng, c, forward_dtypes);
}

static bool forward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    return norm_fill(rng, c, slot, fill, c->param[2], values);
}

// Unit roundoff of the residual sum as stored, and the spacing of its subnormal numbers.
static double sum_roundoff(tsr_dtype dtype) {
    return dtype == TSR_BF16 ? 0x1p-8 + u32 : dtype == TSR_F16 ? 0x1p-11 + u32 : u32;
}

struct row_statistics {
    double mean, rms, sigma; // rms of x - mean; sigma with eps
    double mean_d, rms_d;    // of the changes by rounding the residual sum
};

static double summed(const struct op_case *c, int64_t i) {
    const double *x = case_values(c, "x"), *residual = case_values(c, "residual");
    return x[i] + (residual != NULL ? residual[i] : 0);
}

static double rounding_of(const struct op_case *c, double s) {
    if (!has(c, "residual")) return 0;
    const tsr_dtype dtype = case_slot_dtype(c, spec_slot(c->spec, "residual_out"));
    return sum_roundoff(dtype) * fabs(s) + (dtype == TSR_F16 ? 0x1p-25 : 0);
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
    int64_t rows = norm_rows(c), cols = (int64_t)c->param[1];
    const double *bias = case_values(c, "bias");
    double k = (8 + sqrt((double)cols)) * u32, widest = sqrt((double)cols);
    for (int64_t r = 0; r < rows; r++) {
        struct row_statistics t = statistics_of(c, r);
        bool is_finite = t.sigma < INFINITY; // otherwise the expected values are 0 or NaN, exactly
        double left = t.sigma - t.rms_d;     // the smallest possible sigma
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
            double w = fabs(norm_weight(c, i)), h = fabs(s - t.mean) / t.sigma;
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
        {"heads", "rows=37 heads=5 cols=128 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},           \
        {"two heads", "rows=300 heads=2 cols=64 +weight", FILL_NORMAL, LAYOUT_RANDOM},             \
        {"heads of no rows", "rows=0 heads=4 cols=64 +weight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"heads of 301 and a residual",                                                            \
         "rows=9 heads=3 cols=301 +weight +residual +residual_out +rstd", FILL_NORMAL,             \
         LAYOUT_RANDOM},                                                                           \
        {"heads beyond 2^31 elements", "rows=3 heads=4 cols=256 +weight +residual +residual_out",  \
         FILL_NORMAL, LAYOUT_FAR},                                                                 \
        {"one row of heads for all", "rows=17 heads=3 cols=65 +weight", FILL_NORMAL,               \
         LAYOUT_REPEATED},                                                                         \
        {"weight centred at zero", "rows=9 cols=2304 zero_centered_weight=1 +weight +rstd",        \
         FILL_NORMAL, LAYOUT_RANDOM},                                                              \
        {"no weight centred at zero", "rows=9 cols=301 zero_centered_weight=1", FILL_NORMAL,       \
         LAYOUT_RANDOM},                                                                           \
        {"stream in f32",                                                                          \
         "rows=9 cols=3584 residual_dtype=f32 residual_out_dtype=f32 +weight +residual "           \
         "+residual_out +rstd",                                                                    \
         FILL_NORMAL, LAYOUT_RANDOM},                                                              \
        {"f32 in, bf16 out, huge values", "rows=9 cols=301 y_dtype=bf16 weight_dtype=f16 +weight", \
         FILL_HUGE, LAYOUT_RANDOM},                                                                \
        {"f32 in, f16 out, infinities", "rows=40 cols=301 y_dtype=f16 +weight", FILL_INFINITE,     \
         LAYOUT_RANDOM},                                                                           \
        {"several dtypes, NaN in some rows",                                                       \
         "rows=40 cols=77 residual_dtype=f32 residual_out_dtype=f32 y_dtype=bf16 +weight "         \
         "+residual +residual_out",                                                                \
         FILL_NAN, LAYOUT_RANDOM},                                                                 \
        {"several dtypes, 40,000 columns",                                                         \
         "rows=2 cols=40000 residual_dtype=f32 residual_out_dtype=f32 y_dtype=f16 +weight "        \
         "+residual +residual_out +rstd",                                                          \
         FILL_NORMAL, LAYOUT_RANDOM},                                                              \
        {"several dtypes, mean / sigma 1e6", "rows=9 cols=9001 y_dtype=f16 +weight +rstd",         \
         FILL_SHIFTED, LAYOUT_RANDOM},                                                             \
        {"50,257 columns", "rows=2 cols=50257 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},         \
        {"50,257 columns with residual", "rows=2 cols=50257 +residual +residual_out", FILL_NORMAL, \
         LAYOUT_RANDOM},                                                                           \
        {"2,000 columns", "rows=2 cols=2000 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},           \
        {"4,000 columns", "rows=2 cols=4000 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},           \
        {"8,000 columns", "rows=2 cols=8000 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},           \
        {"16,000 columns", "rows=2 cols=16000 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},         \
        {"30,000 columns", "rows=2 cols=30000 +weight +rstd", FILL_NORMAL, LAYOUT_RANDOM},         \
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
        {"huge residual", "rows=9 cols=301 +weight +residual +residual_out +rstd", FILL_HUGE,      \
         LAYOUT_RANDOM},                                                                           \
        {"infinite residual", "rows=40 cols=301 +residual +residual_out", FILL_INFINITE,           \
         LAYOUT_RANDOM},                                                                           \
        {"NaN in some residuals", "rows=40 cols=301 +weight +residual +residual_out +rstd",        \
         FILL_NAN, LAYOUT_RANDOM},                                                                 \
        {"beyond 2^31 elements", "rows=3 cols=33 +weight +residual +residual_out", FILL_NORMAL,    \
         LAYOUT_FAR},                                                                              \
        {"beyond 2^31 elements, vectors", "rows=3 cols=256 +weight +residual +residual_out",       \
         FILL_NORMAL, LAYOUT_FAR},                                                                 \
    {                                                                                              \
        "one row for all", "rows=17 cols=65 +weight +residual +residual_out", FILL_NORMAL,         \
            LAYOUT_REPEATED                                                                        \
    }

static const struct edge_case rmsnorm_forward_edges[] = {BOTH_FORWARD_EDGES, {0}};
static const struct edge_case layernorm_forward_edges[] = {
    BOTH_FORWARD_EDGES,
    {"34,000 rows", "rows=34000 cols=8", FILL_NORMAL, LAYOUT_CONTIGUOUS},
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
    .shape = norm_shape,
    .slot_dtype = norm_slot_dtype,
    .infer = norm_infer,
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
    .shape = norm_shape,
    .slot_dtype = norm_slot_dtype,
    .infer = norm_infer,
    .call = rmsnorm_forward_call,
    .flops = forward_flops,
    .randomize = forward_randomize,
    .fill = forward_fill,
    .bound = forward_bound,
    .edges = rmsnorm_forward_edges,
    .standard = rmsnorm_forward_standard,
    .baseline = "unfused",
};
