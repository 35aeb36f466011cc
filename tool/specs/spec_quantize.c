// SPDX-License-Identifier: Apache-2.0
// Quantize for verify, bench, apply and report. The case's dtype is x's; a parameter names y's.
#include <math.h>
#include <stdlib.h>

#include "specs/spec_activation.h"
#include "system/heap.h"

enum { ROWS, COLS, KIND, X_ROWS_SIZE, TO }; // the first three as kind_of() expects them
enum { X_ROWS, X, UP, Y, Y_SCALE };         // fills of later slots depend on earlier ones
enum { BLOCK = 128 };

static const char *const kinds[] = {"none", "gelu",  "gelu_tanh",      "silu",
                                    "relu", "relu2", "swiglu_clamped", NULL};
static const char *const to_names[] = {"e4m3", "e5m2", NULL};

static const struct param_spec params[] = {
    {"rows", "rows of y", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"kind", "the function", PARAM_CHOICE, TSR_ACTIVATION_NONE, kinds},
    {"num_x_rows", "with x_rows: rows of x; 0: as many as rows", PARAM_SIZE, 0, NULL},
    {"to", "dtype of y", PARAM_CHOICE, 0, to_names},
    {0},
};

static const struct slot_spec slots[] = {
    {.name = "x_rows", .role = SLOT_IN, .kind = SLOT_I32, .is_optional = true},
    {.name = "x", .role = SLOT_IN},
    {.name = "up", .role = SLOT_IN, .is_optional = true},
    {.name = "y", .role = SLOT_OUT},
    {.name = "y_scale", .role = SLOT_OUT, .kind = SLOT_F32},
    {0},
};

static bool is_e5m2(const struct op_case *c) { return c->param[TO] != 0; }
static int64_t blocks_of(const struct op_case *c) {
    return ((int64_t)c->param[COLS] + BLOCK - 1) / BLOCK;
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const bool is_source = c->is_present[X_ROWS] && (slot == X || slot == UP);
    shape[0] = (int64_t)c->param[is_source ? X_ROWS_SIZE : ROWS];
    shape[1] = slot == Y_SCALE ? blocks_of(c) : (int64_t)c->param[COLS];
    return slot == X_ROWS ? 1 : 2;
}

static tsr_dtype slot_dtype(const struct op_case *c, int slot) {
    switch (slot) {
    case X_ROWS: return TSR_I32;
    case Y: return is_e5m2(c) ? TSR_E5M2 : TSR_E4M3;
    case Y_SCALE: return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    default: return c->dtype;
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[X], *list = &c->tensor[X_ROWS];
    if (x->ndim != 2 || (c->is_present[X_ROWS] && list->ndim != 1)) return false;
    c->param[ROWS] = c->param[X_ROWS_SIZE] = (double)x->shape[0];
    c->param[COLS] = (double)x->shape[1];
    if (c->is_present[X_ROWS]) c->param[ROWS] = (double)list->shape[0];
    return true;
}

static void complete(struct op_case *c) {
    if (c->param[X_ROWS_SIZE] == 0) c->param[X_ROWS_SIZE] = c->param[ROWS];
}

// The oracle's y is f64, which has the scale of e4m3. That of e5m2 is a power of two smaller.
static void to_e5m2(const tsr_tensor *y, const tsr_tensor *y_scale) {
    const double step = 57344.0 / 448;
    double *values = y->data, *scales = y_scale->data;
    for (int64_t i = 0; i < tsr_tensor_numel(y); i++) values[i] *= step;
    for (int64_t i = 0; i < tsr_tensor_numel(y_scale); i++) scales[i] /= step;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_quantize_args args =
        TSR_QUANTIZE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                          .workspace_bytes = given_bytes, .x = c->tensor[X], .y = c->tensor[Y],
                          .y_scale = c->tensor[Y_SCALE], .kind = kind_of(c));
    if (c->is_present[X_ROWS]) args.x_rows = c->tensor[X_ROWS];
    if (c->is_present[UP]) args.up = c->tensor[UP];
    if (workspace_bytes != NULL) return tsr_quantize_prepare(ctx, &args, workspace_bytes);
    const tsr_status status = tsr_quantize(ctx, &args);
    if (status == TSR_OK && is_e5m2(c) && args.y.dtype == TSR_F64) to_e5m2(&args.y, &args.y_scale);
    return status;
}

static double elements(const struct op_case *c) { return c->param[ROWS] * c->param[COLS]; }

static double flops(const struct op_case *c) {
    const double function = kind_of(c) == TSR_ACTIVATION_NONE ? 0 : activation_flops(c);
    return (function + c->is_present[UP] + 1) * elements(c);
}

// A row is read as often as the list names it.
static double bytes(const struct op_case *c) {
    double sum = (1 + c->is_present[UP]) * elements(c) * (double)tsr_dtype_bytes(c->dtype);
    for (int s = 0; s <= Y_SCALE; s++)
        if (s != X && s != UP && c->is_present[s])
            sum += case_elements(c, s) * (double)tsr_dtype_bytes(slot_dtype(c, s));
    return sum;
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    activation_draw_sizes(rng, c);
    if (rng_chance(rng, 0.4)) c->param[KIND] = TSR_ACTIVATION_NONE;
    c->param[TO] = rng_chance(rng, 0.3);
    c->is_present[UP] = rng_chance(rng, 0.4) || kind_of(c) == TSR_ACTIVATION_SWIGLU_CLAMPED;
    c->is_present[X_ROWS] = rng_chance(rng, 0.4);
    c->param[X_ROWS_SIZE] = c->is_present[X_ROWS] ? (double)rng_int(rng, 1, 40) : 0;
    while (c->param[X_ROWS_SIZE] * c->param[COLS] > 100000) c->param[X_ROWS_SIZE] = 1;
}

static int64_t source_of(const struct op_case *c, int64_t row) {
    return c->is_present[X_ROWS] ? ((const int32_t *)c->tensor[X_ROWS].data)[row] : row;
}

// Rows of x that the list does not name are NaN: nothing may read them.
static void spoil(const struct op_case *c, double *values) {
    const int64_t cols = (int64_t)c->param[COLS], num_rows = (int64_t)c->param[X_ROWS_SIZE];
    bool *is_used = heap_get((size_t)num_rows + 1, sizeof *is_used);
    for (int64_t r = 0; r < (int64_t)c->param[ROWS]; r++)
        if (source_of(c, r) >= 0) is_used[source_of(c, r)] = true;
    for (int64_t i = 0; i < num_rows * cols; i++)
        if (!is_used[i / cols]) values[i] = (double)NAN;
    free(is_used);
}

// Blocks of every magnitude, and in them elements of every magnitude below: subnormal numbers of fp8, numbers next to the middle of
// two, zeros.
static void fill_magnitudes(struct rng *rng, const struct op_case *c, int slot, double *values) {
    const int most = c->dtype == TSR_F16 ? 14 : 120;
    int exponent = 0;
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        if (i % 64 == 0) exponent = (int)rng_int(rng, slot == UP ? -3 : -60, slot == UP ? 3 : most);
        double value = 1 + floor(rng_uniform(rng) * 16) / 16;
        if (rng_chance(rng, 0.5)) value = -value;
        value = ldexp(value, exponent - (int)rng_int(rng, 0, 24));
        values[i] = rng_chance(rng, 0.05) ? 0 : value;
    }
}

static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot == X_ROWS) {
        const int64_t most = (int64_t)c->param[X_ROWS_SIZE] - 1;
        for (int64_t r = 0; r < (int64_t)c->param[ROWS]; r++)
            values[r] = most < 0 || rng_chance(rng, 0.1) ? -1 : (double)rng_int(rng, 0, most);
        return true;
    }
    if (fill != FILL_NORMAL && fill != FILL_SPECIAL) return false;
    if (fill == FILL_SPECIAL)
        fill_magnitudes(rng, c, slot, values);
    else
        for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = 3 * rng_normal(rng);
    if (c->is_present[X_ROWS]) spoil(c, values);
    return true;
}

// ---- The bound of tessera/quantize.h ------------------------------------------------------------

// The values of a block as the definition has them, and what fp32 may have instead.
struct block {
    double value[BLOCK], error[BLOCK];
    double least_scale, most_scale;
    bool is_undefined; // it depends on rounding whether a value is infinite
};

static void find_value(const struct op_case *c, int64_t at, double *value, double *error) {
    const double *x = c->tensor[X].data, *up = case_values(c, "up");
    const struct parts parts = activation_parts(kind_of(c), x[at]);
    double slope, factor = up != NULL ? activation_gate(kind_of(c), up[at], &slope) : 1;
    *value = activation_value(kind_of(c), x[at]);
    if (isinf((float)*value)) *value = INFINITY; // that of relu2
    *value *= factor;
    *error = activation_value_bound(&parts, *value, factor, eighth_of_rounding(c, X));
}

static struct block find_block(const struct op_case *c, int64_t row, int64_t first, int64_t count) {
    const double largest = 0x1.fffffep127, limit = is_e5m2(c) ? 57344 : 448;
    struct block b = {.least_scale = 1e-10, .most_scale = 1e-10};
    const int64_t source = source_of(c, row);
    for (int64_t i = 0; i < count && source >= 0; i++) {
        double *value = &b.value[i], *error = &b.error[i];
        find_value(c, source * (int64_t)c->param[COLS] + first + i, value, error);
        if (!isfinite(*value)) continue;
        const double size = fabs(*value), end = largest * (1 + u32 / 2);
        if (fabs(size - end) <= *error + u32 * size) b.is_undefined = true;
        if (size > end) continue;
        b.least_scale = fmax(b.least_scale, size - *error);
        b.most_scale = fmax(b.most_scale, size + *error);
    }
    b.least_scale *= (1 - u32) / limit; // and the rounding to fp32, which verify adds
    b.most_scale *= (1 + u32) / limit;
    return b;
}

static double element_bound(const struct block *b, int64_t i, double y) {
    const double size = fabs(b->value[i]), error = b->error[i];
    const double high = (size + error) / b->least_scale * (1 + 4 * u32);
    const double low = (size - error) / (size > error ? b->most_scale : b->least_scale);
    if (b->is_undefined) return -INFINITY;
    return fmax(high - fabs(y), fabs(y) - low * (1 - 4 * u32));
}

static void bound(const struct op_case *c, int slot, double *bound) {
    const int64_t cols = (int64_t)c->param[COLS], blocks = blocks_of(c);
    const double *y = c->tensor[Y].data, *scale = c->tensor[Y_SCALE].data;
    for (int64_t n = 0; n < (int64_t)c->param[ROWS] * blocks; n++) {
        const int64_t row = n / blocks, first = n % blocks * BLOCK;
        const int64_t count = cols - first < BLOCK ? cols - first : BLOCK;
        const struct block b = find_block(c, row, first, count);
        if (slot == Y_SCALE)
            bound[n] = b.is_undefined ? -INFINITY
                                      : fmax(b.most_scale - scale[n], scale[n] - b.least_scale);
        for (int64_t i = 0; i < count && slot == Y; i++)
            bound[row * cols + first + i] = element_bound(&b, i, y[row * cols + first + i]);
    }
}

// ---- Edge cases -------------------------------------------------------------------------------

#define LIST " num_x_rows=7 +x_rows"
static const struct edge_case edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero rows of a list", "rows=0 cols=5 +up" LIST, FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0 +up" LIST, FILL_NORMAL, LAYOUT_RANDOM},
    {"a list of an empty x", "rows=5 cols=150 num_x_rows=0 +x_rows", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=3000 cols=1 kind=silu +up", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one column, apart", "rows=300 cols=1 to=e5m2", FILL_NORMAL, LAYOUT_RANDOM},
    {"one long row", "rows=1 cols=300001", FILL_NORMAL, LAYOUT_RANDOM},
    {"one long row, vectors", "rows=1 cols=300032 to=e5m2", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"127 columns", "rows=33 cols=127", FILL_NORMAL, LAYOUT_RANDOM},
    {"128 columns", "rows=33 cols=128 +up" LIST, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"129 columns", "rows=33 cols=129 to=e5m2", FILL_NORMAL, LAYOUT_RANDOM},
    {"136 columns, vectors", "rows=33 cols=136", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"many blocks", "rows=70 cols=1408 kind=silu +up", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"a list", "rows=90 cols=384 kind=gelu +up" LIST, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"a list, strided", "rows=90 cols=301 to=e5m2" LIST, FILL_NORMAL, LAYOUT_RANDOM},
    {"a list of one row", "rows=90 cols=256 num_x_rows=1 +x_rows", FILL_NORMAL, LAYOUT_RANDOM},
    {"zeros", "rows=9 cols=301", FILL_ZERO, LAYOUT_RANDOM},
    {"zeros, e5m2", "rows=9 cols=301 to=e5m2 +up", FILL_ZERO, LAYOUT_RANDOM},
    {"every magnitude", "rows=40 cols=1001", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every magnitude, vectors", "rows=40 cols=1024", FILL_SPECIAL, LAYOUT_CONTIGUOUS},
    {"every magnitude, e5m2", "rows=40 cols=1001 to=e5m2", FILL_SPECIAL, LAYOUT_RANDOM},
    {"every magnitude, gated", "rows=40 cols=512 kind=relu +up" LIST, FILL_SPECIAL, LAYOUT_RANDOM},
    {"large", "rows=9 cols=301 kind=gelu_tanh +up", FILL_LARGE, LAYOUT_RANDOM},
    {"large, swiglu_clamped", "rows=9 cols=301 kind=swiglu_clamped +up", FILL_LARGE, LAYOUT_RANDOM},
    {"huge", "rows=9 cols=301", FILL_HUGE, LAYOUT_RANDOM},
    {"huge, e5m2", "rows=9 cols=301 to=e5m2", FILL_HUGE, LAYOUT_RANDOM},
    {"huge, squared", "rows=9 cols=301 kind=relu2", FILL_HUGE, LAYOUT_RANDOM},
    {"huge, gated", "rows=9 cols=301 kind=silu +up", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite", "rows=40 cols=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite, e5m2", "rows=40 cols=384 to=e5m2", FILL_INFINITE, LAYOUT_CONTIGUOUS},
    {"infinite, gated", "rows=40 cols=301 kind=silu +up" LIST, FILL_INFINITE, LAYOUT_RANDOM},
    {"nothing finite", "rows=40 cols=301", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN", "rows=40 cols=301", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, e5m2", "rows=40 cols=301 to=e5m2 kind=gelu", FILL_NAN, LAYOUT_RANDOM},
    {"NaN, gated", "rows=40 cols=384 kind=swiglu_clamped +up", FILL_NAN, LAYOUT_CONTIGUOUS},
    {"beyond 2^31 elements", "rows=3 cols=133 +up", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256 num_x_rows=3 +x_rows", FILL_NORMAL,
     LAYOUT_FAR},
    {"one row for all", "rows=17 cols=165 +up", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"rows=16384 cols=4096", "rows=16384 cols=7168",
                                       "rows=65536 cols=2048 kind=silu +up",
                                       "rows=65536 cols=7168 num_x_rows=8192 +x_rows", NULL};

const struct op_spec quantize_spec = {
    .op = "quantize",
    .command = "quantize",
    .pass = "forward", // the only one
    .params = params,
    .slots = slots,
    .shape = shape,
    .slot_dtype = slot_dtype,
    .infer = infer,
    .complete = complete,
    .call = call,
    .flops = flops,
    .bytes = bytes,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
