// SPDX-License-Identifier: Apache-2.0
// Backward of layernorm and rmsnorm. The bounds are derived in spec_norm.c.
#include <math.h>

#include "specs/spec_norm.h"

static const struct param_spec backward_params[] = {
    {"rows", "rows, each normalised by itself", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    NORM_COMMON_PARAMS,
    NORM_DTYPE_PARAM("dy"),
    NORM_DTYPE_PARAM("dresidual_out"),
    NORM_DTYPE_PARAM("dx"),
    {0},
};

// ---- Backward: x, weight, mean, rstd, dy, dresidual_out -> dx, dweight, dbias -----------------

static const struct slot_spec layernorm_backward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, "residual_out"},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"mean", SLOT_IN, SLOT_F32, false, .is_contiguous = true},
    {"rstd", SLOT_IN, SLOT_F32, false, .is_contiguous = true},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dresidual_out", SLOT_IN, SLOT_MAIN, true, NULL},
    {"dx", SLOT_OUT, SLOT_MAIN, false, NULL, false, "x"},
    {"dweight", SLOT_OUT, SLOT_SMALL, true, NULL, false, "weight"},
    {"dbias", SLOT_OUT, SLOT_SMALL, true, NULL, false, "bias"},
    {0},
};
static const struct slot_spec rmsnorm_backward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, "residual_out"},
    {"weight", SLOT_IN, SLOT_SMALL, true, NULL},
    {"rstd", SLOT_IN, SLOT_F32, false, .is_contiguous = true},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dresidual_out", SLOT_IN, SLOT_MAIN, true, NULL},
    {"dx", SLOT_OUT, SLOT_MAIN, false, NULL, false, "x"},
    {"dweight", SLOT_OUT, SLOT_SMALL, true, NULL, false, "weight"},
    {0},
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
                                    .dbias = tensor_of(c, "dbias"),
                                    .zero_centered_weight =
                                        (int32_t)case_int(c, "zero_centered_weight"));
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
                                  .dx = tensor_of(c, "dx"), .dweight = tensor_of(c, "dweight"),
                                  .zero_centered_weight =
                                      (int32_t)case_int(c, "zero_centered_weight"));
    return workspace_bytes != NULL ? tsr_rmsnorm_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_rmsnorm_backward(ctx, &args);
}

// h, g, their two sums, g - mean_g - h mean_gh, rstd; dweight and dbias.
static double backward_flops(const struct op_case *c) {
    return ((is_rmsnorm(c) ? 8 : 12) + (has(c, "dweight") ? 2 : 0) + (has(c, "dbias") ? 1 : 0) +
            (has(c, "dresidual_out") ? 1 : 0)) *
           (double)norm_rows(c) * c->param[1];
}

static const char *const backward_dtypes[] = {"dy_dtype", "dresidual_out_dtype", "dx_dtype",
                                              "weight_dtype", NULL};

static void backward_randomize(struct rng *rng, struct op_case *c) {
    norm_draw_sizes(rng, c);
    norm_set_presence(c, "weight", rng_chance(rng, 0.8));
    norm_set_presence(c, "dresidual_out", rng_chance(rng, 0.4));
    norm_set_presence(c, "dweight", rng_chance(rng, 0.7));
    norm_set_presence(c, "dbias", rng_chance(rng, 0.6));
    norm_draw_forms(rng, c, backward_dtypes);
}

// mean and rstd are x's own.
static bool backward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    if (!is_slot(c, slot, "mean") && !is_slot(c, slot, "rstd"))
        return norm_fill(rng, c, slot, fill, standard_eps, values);
    int64_t rows = norm_rows(c), cols = (int64_t)c->param[1];
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

// The error in h that comes from the rounding of mean.
static double error_of_mean(const struct op_case *c) {
    return is_rmsnorm(c) ? 0 : (80 + 2 * sqrt(c->param[1])) * u32;
}

static void vector_bound(const struct op_case *c, bool is_dweight, double *bound) {
    int64_t rows = norm_rows(c), cols = (int64_t)c->param[1];
    const double *dy = case_values(c, "dy");
    for (int64_t i = 0; i < cols; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += fabs(dy[r * cols + i]) * (is_dweight ? magnitude_of_h(c, r, i) : 1);
        bound[i] = (8 + 2 * sqrt((double)rows)) * u32 * sum + tiny;
        for (int64_t r = 0; is_dweight && r < rows; r++)
            bound[i] += error_of_mean(c) * fabs(dy[r * cols + i]);
    }
}

static void backward_bound(const struct op_case *c, int slot, double *bound) {
    if (!is_slot(c, slot, "dx")) {
        vector_bound(c, is_slot(c, slot, "dweight"), bound);
        return;
    }
    int64_t rows = norm_rows(c), cols = (int64_t)c->param[1];
    const double *dres = case_values(c, "dresidual_out");
    double k = (8 + sqrt((double)cols)) * u32;
    for (int64_t r = 0; r < rows; r++) {
        const double *dy = case_values(c, "dy") + r * cols;
        double mean_g = 0, mean_gh = 0, rstd = case_values(c, "rstd")[r];
        for (int64_t i = 0; i < cols; i++) {
            double g = fabs(dy[i] * norm_weight(c, i));
            mean_g += is_rmsnorm(c) ? 0 : g / (double)cols;
            mean_gh += g * magnitude_of_h(c, r, i) / (double)cols;
        }
        for (int64_t i = 0; i < cols; i++) {
            double g = fabs(dy[i] * norm_weight(c, i));
            double h = magnitude_of_h(c, r, i);
            bound[r * cols + i] = rstd * ((k + 4 * u32) * (mean_g + h * mean_gh) + 4 * u32 * g +
                                          error_of_mean(c) * (h * mean_g + mean_gh)) +
                                  2 * u32 * (dres != NULL ? fabs(dres[r * cols + i]) : 0) + tiny;
        }
    }
}

#define BOTH_BACKWARD_EDGES                                                                        \
    {"zero rows", "rows=0 cols=5 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},                   \
        {"zero columns", "rows=5 cols=0 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},            \
        {"one column", "rows=7 cols=1 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},              \
        {"heads", "rows=37 heads=5 cols=128 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"two heads", "rows=300 heads=2 cols=64 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},    \
        {"heads of no rows", "rows=0 heads=4 cols=64 +weight +dweight", FILL_NORMAL,               \
         LAYOUT_RANDOM},                                                                           \
        {"heads of 301", "rows=9 heads=3 cols=301 +weight +dresidual_out +dweight", FILL_NORMAL,   \
         LAYOUT_RANDOM},                                                                           \
        {"heads beyond 2^31 elements", "rows=3 heads=4 cols=256 +weight +dweight +dresidual_out",  \
         FILL_NORMAL, LAYOUT_FAR},                                                                 \
        {"one row of heads for all", "rows=17 heads=3 cols=65 +weight +dweight", FILL_NORMAL,      \
         LAYOUT_REPEATED},                                                                         \
        {"weight centred at zero", "rows=9 cols=2304 zero_centered_weight=1 +weight +dweight",     \
         FILL_NORMAL, LAYOUT_RANDOM},                                                              \
        {"stream in f32",                                                                          \
         "rows=9 cols=3584 dy_dtype=bf16 dresidual_out_dtype=f32 dx_dtype=f32 +weight "            \
         "+dresidual_out +dweight",                                                                \
         FILL_NORMAL, LAYOUT_RANDOM},                                                              \
        {"several dtypes, 5,000 rows",                                                             \
         "rows=5000 cols=33 dy_dtype=f16 weight_dtype=bf16 +weight +dweight", FILL_NORMAL,         \
         LAYOUT_RANDOM},                                                                           \
        {"several dtypes, 20,001 columns",                                                         \
         "rows=5 cols=20001 dy_dtype=f16 dx_dtype=bf16 +weight +dweight", FILL_NORMAL,             \
         LAYOUT_RANDOM},                                                                           \
        {"several dtypes, mean / sigma 1e6",                                                       \
         "rows=9 cols=301 dy_dtype=bf16 dx_dtype=f32 +weight +dweight", FILL_SHIFTED,              \
         LAYOUT_RANDOM},                                                                           \
        {"several dtypes, mean / sigma 1e6, wide",                                                 \
         "rows=3 cols=20001 dy_dtype=bf16 dx_dtype=f32 +weight +dweight", FILL_SHIFTED,            \
         LAYOUT_RANDOM},                                                                           \
        {"50,257 columns", "rows=5 cols=50257 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},      \
        {"1,000 columns", "rows=2 cols=1000 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"2,000 columns", "rows=2 cols=2000 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"4,000 columns", "rows=2 cols=4000 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"8,000 columns", "rows=2 cols=8000 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},        \
        {"16,000 columns", "rows=2 cols=16000 +weight +dweight", FILL_NORMAL, LAYOUT_RANDOM},      \
        {"5,000 rows", "rows=5000 cols=33 +weight +dweight +dresidual_out", FILL_NORMAL,           \
         LAYOUT_RANDOM},                                                                           \
        {"no weight", "rows=9 cols=301 +dweight", FILL_NORMAL, LAYOUT_RANDOM},                     \
        {"dx only", "rows=9 cols=301 +weight", FILL_NORMAL, LAYOUT_RANDOM},                        \
        {"mean / sigma 1e6", "rows=9 cols=301 +weight +dweight", FILL_SHIFTED, LAYOUT_RANDOM},     \
        {"mean / sigma 1e6, narrow", "rows=90 cols=7 +weight +dweight", FILL_SHIFTED,              \
         LAYOUT_RANDOM},                                                                           \
        {"mean / sigma 1e6, wide", "rows=3 cols=20001 +weight +dweight", FILL_SHIFTED,             \
         LAYOUT_RANDOM},                                                                           \
        {"large gradients", "rows=9 cols=301 +weight +dweight", FILL_LARGE, LAYOUT_RANDOM},        \
        {"huge values", "rows=9 cols=301 +weight +dweight", FILL_HUGE, LAYOUT_RANDOM},             \
        {"40000 to 40003, equal, tiny", "rows=9 cols=301 +weight +dweight", FILL_SPECIAL,          \
         LAYOUT_RANDOM},                                                                           \
        {"infinities", "rows=40 cols=301 +weight +dweight", FILL_INFINITE, LAYOUT_RANDOM},         \
        {"NaN in some rows", "rows=40 cols=301 +weight", FILL_NAN, LAYOUT_RANDOM},                 \
        {"beyond 2^31 elements", "rows=3 cols=33 +weight +dweight +dresidual_out", FILL_NORMAL,    \
         LAYOUT_FAR},                                                                              \
        {"beyond 2^31 elements, vectors", "rows=3 cols=256 +weight +dweight +dresidual_out",       \
         FILL_NORMAL, LAYOUT_FAR},                                                                 \
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
    .shape = norm_shape,
    .slot_dtype = norm_slot_dtype,
    .infer = norm_infer,
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
    .shape = norm_shape,
    .slot_dtype = norm_slot_dtype,
    .infer = norm_infer,
    .call = rmsnorm_backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .fill = backward_fill,
    .bound = backward_bound,
    .edges = rmsnorm_backward_edges,
    .standard = rmsnorm_backward_standard,
    .baseline = "unfused",
};
