// SPDX-License-Identifier: Apache-2.0
// Cast for verify, bench, apply and report. The case's dtype is x's. Parameters name y's dtype, and
// dtypes of x that a case cannot have.
#include <math.h>

#include "specs/spec.h"

enum { ROWS, COLS, TO, FROM, SCALE, HAS_SCALE, HEADS };

static const char *const to_names[] = {"bf16", "f16", "f32", "e4m3", "e5m2", "f64", NULL};
static const tsr_dtype to_dtypes[] = {TSR_BF16, TSR_F16, TSR_F32, TSR_E4M3, TSR_E5M2, TSR_F64};
static const char *const from_names[] = {"main", "e4m3", "e5m2", "f64", NULL};
static const tsr_dtype from_dtypes[] = {TSR_DTYPE_NONE, TSR_E4M3, TSR_E5M2, TSR_F64};

static const struct param_spec params[] = {
    {"rows", "rows", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"to", "dtype of y", PARAM_CHOICE, 0, to_names},
    {"from", "dtype of x; main is that of --dtype", PARAM_CHOICE, 0, from_names},
    {"scale", "factor before the rounding", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {"has_scale", "multiply by scale", PARAM_FLAG, 0, NULL},
    {"heads", "rows lie in groups of so many, with a stride of their own; 0: one stride",
     PARAM_SIZE, 0, NULL},
    {0},
};

static const struct slot_spec slots[] = {
    {.name = "x", .role = SLOT_IN},
    {.name = "y", .role = SLOT_OUT},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    (void)slot;
    int ndim = 0;
    shape[ndim++] = (int64_t)c->param[ROWS];
    if (c->param[HEADS] > 0) shape[ndim++] = (int64_t)c->param[HEADS];
    shape[ndim++] = (int64_t)c->param[COLS];
    return ndim;
}

static tsr_dtype slot_dtype(const struct op_case *c, int slot) {
    if (slot == 1) return to_dtypes[(int)c->param[TO]];
    return c->param[FROM] == 0 ? c->dtype : from_dtypes[(int)c->param[FROM]];
}

static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[0];
    if (x->ndim != 2) return false;
    c->param[ROWS] = (double)x->shape[0];
    c->param[COLS] = (double)x->shape[1];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_cast_args args =
        TSR_CAST_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                      .workspace_bytes = given_bytes, .x = c->tensor[0], .y = c->tensor[1],
                      .has_scale = c->param[HAS_SCALE] != 0);
    if (args.has_scale) args.scale = (float)c->param[SCALE];
    return workspace_bytes != NULL ? tsr_cast_prepare(ctx, &args, workspace_bytes)
                                   : tsr_cast(ctx, &args);
}

static double flops(const struct op_case *c) {
    return (1 + c->param[HAS_SCALE]) * case_elements(c, 0);
}

static void randomize(struct rng *rng, struct op_case *c) {
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 3000);
    int64_t rows = rng_dim(rng, cols > 2000 ? 4 : 20);
    bool is_tall = rng_chance(rng, 0.1);
    c->param[ROWS] = (double)(is_tall ? cols : rows);
    c->param[COLS] = (double)(is_tall ? rows : cols);
    if (rng_chance(rng, 0.25)) {
        c->param[HEADS] = (double)rng_int(rng, 1, 5);
        c->param[ROWS] = ceil(c->param[ROWS] / 4);
    }
    c->param[TO] = (double)rng_int(rng, 0, 5);
    c->param[FROM] = rng_chance(rng, 0.6) ? 0 : (double)rng_int(rng, 1, 3);
    c->param[HAS_SCALE] = rng_chance(rng, 0.5);
    c->param[SCALE] = (double)(float)(1 + rng_uniform(rng));
    c->param[SCALE] = ldexp(c->param[SCALE], (int)rng_int(rng, -12, 12));
}

// FILL_SPECIAL: magnitudes with every exponent of x's dtype, and the midpoints of y's dtype near them:
// ties, subnormals, the last values before overflow.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot != 0 || fill != FILL_SPECIAL) return false;
    static const int digits[] = {8, 11, 24, 4, 3, 53}; // in the order of to_dtypes
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        int exponent = (int)rng_int(rng, 0, 3) == 0 ? (int)rng_int(rng, -149, 127)
                                                    : (int)rng_int(rng, -28, 16);
        double last = ldexp(1, -digits[(int)c->param[TO]]); // half of y's last place
        double value = 1 + 2 * last * floor(rng_uniform(rng) / last / 2);
        double half = last * (double)rng_int(rng, 0, 1);
        value += half + ldexp((double)rng_int(rng, -1, 1), c->param[FROM] == 3 ? -45 : -23);
        values[i] = ldexp(rng_chance(rng, 0.5) ? -value : value, exponent);
    }
    return true;
}

// Exact except for the product, which is rounded to fp32 unless x or y is f64. The bound is NaN for a NaN that the scale
// makes: it may have either sign.
static void bound(const struct op_case *c, int slot, double *bound) {
    int64_t numel = case_numel(c, slot);
    const double *x = c->tensor[0].data, *y = c->tensor[slot].data;
    bool is_exact = c->param[HAS_SCALE] == 0 || c->param[FROM] == 3 || c->param[TO] == 5;
    for (int64_t i = 0; i < numel; i++) {
        bool is_kept = is_exact || isnan(x[i]); // y is exactly x, or x times the scale in f64
        bound[i] = is_kept ? 0 : 0x1p-24 * fabs(y[i]) + 0x1p-150;
        if (isnan(y[i]) && !isnan(x[i])) bound[i] = NAN;
    }
}

static const struct edge_case edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0 to=e4m3", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=3000 cols=1", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"heads", "rows=37 heads=5 cols=128", FILL_NORMAL, LAYOUT_RANDOM},
    {"heads, copied", "rows=37 heads=3 cols=80 to=f32", FILL_NORMAL, LAYOUT_RANDOM},
    {"heads of no rows", "rows=0 heads=3 cols=80", FILL_NORMAL, LAYOUT_RANDOM},
    {"heads beyond 2^31 elements", "rows=3 heads=2 cols=256 to=f16", FILL_NORMAL, LAYOUT_FAR},
    {"one row of heads for all", "rows=17 heads=3 cols=65", FILL_NORMAL, LAYOUT_REPEATED},
    {"one long row", "rows=1 cols=300001 to=f16", FILL_NORMAL, LAYOUT_RANDOM},
    {"rows as one", "rows=301 cols=301", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"every exponent to bf16", "rows=9 cols=3001 to=bf16", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every exponent to f16", "rows=9 cols=3001 to=f16", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every exponent to f32", "rows=9 cols=3001 to=f32", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every exponent to e4m3", "rows=9 cols=3001 to=e4m3", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every exponent to e5m2", "rows=9 cols=3001 to=e5m2", FILL_SPECIAL, LAYOUT_RANDOM},
    {"f64 to bf16", "rows=9 cols=3001 from=f64 to=bf16", FILL_SPECIAL, LAYOUT_RANDOM},
    {"f64 to f16", "rows=9 cols=3001 from=f64 to=f16", FILL_SPECIAL, LAYOUT_RANDOM},
    {"f64 to f32", "rows=9 cols=3001 from=f64 to=f32", FILL_SPECIAL, LAYOUT_RANDOM},
    {"f64 to e4m3", "rows=9 cols=3001 from=f64 to=e4m3", FILL_SPECIAL, LAYOUT_RANDOM},
    {"f64 to e5m2", "rows=9 cols=3001 from=f64 to=e5m2", FILL_SPECIAL, LAYOUT_RANDOM},
    {"e4m3 to f32", "rows=9 cols=3001 from=e4m3 to=f32", FILL_SPECIAL, LAYOUT_RANDOM},
    {"e5m2 to e4m3", "rows=9 cols=3001 from=e5m2 to=e4m3", FILL_SPECIAL, LAYOUT_RANDOM},
    {"large, scaled", "rows=9 cols=301 to=e4m3 has_scale=1 scale=0.037", FILL_LARGE, LAYOUT_RANDOM},
    {"huge to f16", "rows=9 cols=301 to=f16", FILL_HUGE, LAYOUT_RANDOM},
    {"huge to e4m3", "rows=9 cols=301 to=e4m3", FILL_HUGE, LAYOUT_RANDOM},
    {"huge, scaled", "rows=9 cols=301 to=f32 has_scale=1 scale=3", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite to f16", "rows=40 cols=301 to=f16", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite to bf16", "rows=40 cols=301 to=bf16", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite to e4m3", "rows=40 cols=301 to=e4m3", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite to e5m2", "rows=40 cols=301 to=e5m2", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN to f16", "rows=40 cols=301 to=f16", FILL_NAN, LAYOUT_RANDOM},
    {"NaN to bf16", "rows=40 cols=301 to=bf16", FILL_NAN, LAYOUT_RANDOM},
    {"NaN to e4m3", "rows=40 cols=301 to=e4m3", FILL_NAN, LAYOUT_RANDOM},
    {"NaN to e5m2", "rows=40 cols=301 to=e5m2", FILL_NAN, LAYOUT_RANDOM},
    {"NaN to f64", "rows=40 cols=301 to=f64", FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33 to=f16", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256 to=f16", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 cols=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"rows=16384 cols=4096 to=bf16",
                                       "rows=16384 cols=4096 to=f16", "rows=16384 cols=4096 to=f32",
                                       "rows=16384 cols=4096 to=e4m3 scale=0.5 has_scale=1", NULL};

const struct op_spec cast_spec = {
    .op = "cast",
    .command = "cast",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = shape,
    .slot_dtype = slot_dtype,
    .infer = infer,
    .call = call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .keeps_nan_sign = true,
    .edges = edges,
    .standard = standard,
};
