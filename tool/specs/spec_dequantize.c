// SPDX-License-Identifier: Apache-2.0
// Dequantize for verify, bench, apply and report. The case's dtype is y's; the bytes of x are codes and scales of its format.
#include <math.h>

#include "specs/spec_quant.h"

enum { ROWS, COLS, FORMAT, GROUP, X_ROWS_SIZE };
enum { X_ROWS, X, SCALE, ZERO, MINIMUM, Y };

static const struct param_spec params[] = {
    {"rows", "rows of y", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row of y", PARAM_SIZE, 4096, NULL, .source = SOURCE_OPTION},
    {"quant", "how bytes hold the numbers of a row", PARAM_CHOICE, 0, spec_quant_names},
    {"group", "with int8 and int4: columns of a scale, a multiple of 32; 0: all", PARAM_INT, 0,
     NULL, .most = INT32_MAX},
    {"num_x_rows", "with x_rows: rows of x; 0: as many as rows", PARAM_SIZE, 0, NULL},
    {0},
};

static const struct slot_spec slots[] = {
    {.name = "x_rows", .role = SLOT_IN, .kind = SLOT_I32, .is_optional = true},
    {.name = "x", .role = SLOT_IN, .kind = SLOT_U8},
    {.name = "scale", .role = SLOT_IN, .kind = SLOT_SMALL, .is_optional = true},
    {.name = "zero", .role = SLOT_IN, .kind = SLOT_SMALL, .is_optional = true},
    {.name = "minimum", .role = SLOT_IN, .kind = SLOT_SMALL, .is_optional = true},
    {.name = "y", .role = SLOT_OUT},
    {0},
};

static tsr_quant_format format_of(const struct op_case *c) {
    return (tsr_quant_format)(TSR_QUANT_Q8_0 + (int)c->param[FORMAT]);
}

static enum slot_kind kind(const struct op_case *c, int slot) {
    if (slot == SCALE && format_of(c) == TSR_QUANT_MXFP4) return SLOT_U8;
    return slots[slot].kind;
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const int64_t bytes = tsr_quant_row_bytes(format_of(c), (int64_t)c->param[COLS]);
    shape[0] =
        (int64_t)
            c->param[c->is_present[X_ROWS] && slot != X_ROWS && slot != Y ? X_ROWS_SIZE : ROWS];
    shape[1] = slot == Y ? (int64_t)c->param[COLS]
               : slot == X
                   ? bytes
                   : (int64_t)spec_quant_groups(format_of(c), c->param[COLS], c->param[GROUP]);
    if (shape[1] < 0) shape[1] = 0; // a row that the format does not have: the call refuses it
    return slot == X_ROWS ? 1 : 2;
}

// Columns follow from bytes but for int4, whose last byte may have one or two.
static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[X], *list = &c->tensor[X_ROWS];
    if (x->ndim != 2 || (c->is_present[X_ROWS] && list->ndim != 1)) return false;
    c->param[ROWS] = c->param[X_ROWS_SIZE] = (double)x->shape[0];
    if (c->is_present[X_ROWS]) c->param[ROWS] = (double)list->shape[0];
    const int64_t unit = spec_quant_unit(format_of(c)),
                  bytes = tsr_quant_row_bytes(format_of(c), unit);
    const double cols = floor((double)x->shape[1] * (double)unit / (double)bytes);
    if (format_of(c) != TSR_QUANT_INT4 || c->param[COLS] < 0 ||
        ceil(c->param[COLS] / 2) != cols / 2)
        c->param[COLS] = cols;
    return true;
}

static void complete(struct op_case *c) {
    if (c->param[X_ROWS_SIZE] == 0) c->param[X_ROWS_SIZE] = c->param[ROWS];
    c->is_present[SCALE] = spec_quant_has_scales(format_of(c));
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_dequantize_args args =
        TSR_DEQUANTIZE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                            .workspace_bytes = given_bytes, .x = c->tensor[X], .y = c->tensor[Y],
                            .quant = format_of(c), .group = (int32_t)c->param[GROUP]);
    if (c->is_present[X_ROWS]) args.x_rows = c->tensor[X_ROWS];
    if (c->is_present[SCALE]) args.scale = c->tensor[SCALE];
    if (c->is_present[ZERO]) args.zero = c->tensor[ZERO];
    if (c->is_present[MINIMUM]) args.minimum = c->tensor[MINIMUM];
    if (workspace_bytes != NULL) return tsr_dequantize_prepare(ctx, &args, workspace_bytes);
    return tsr_dequantize(ctx, &args);
}

static double flops(const struct op_case *c) {
    return (1 + c->is_present[ZERO] + c->is_present[MINIMUM]) * c->param[ROWS] * c->param[COLS];
}

// A row is read as often as the list names it.
static double bytes(const struct op_case *c) {
    double row = 0, sum = 0;
    for (int s = X; s <= Y; s++)
        if (c->is_present[s]) {
            int64_t size[TSR_MAX_DIMS];
            (void)shape(c, s, size);
            row += (double)size[1] * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
        }
    sum = row * c->param[ROWS];
    return c->is_present[X_ROWS] ? sum + 4 * c->param[ROWS] : sum;
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    c->param[FORMAT] = (double)rng_int(rng, 0, TSR_QUANT_COUNT - 2);
    const int unit = spec_quant_has_groups(format_of(c)) ? 1 : (int)spec_quant_unit(format_of(c));
    c->param[COLS] =
        ceil((double)rng_dim(rng, spec_quant_unit(format_of(c)) > 32 ? 2000 : 700) / unit) * unit;
    c->param[ROWS] = (double)rng_dim(rng, 40);
    if (spec_quant_has_groups(format_of(c))) {
        c->param[GROUP] = rng_chance(rng, 0.2) ? 0 : 32 * (double)rng_int(rng, 1, 5);
        c->is_present[ZERO] = rng_chance(rng, 0.5);
        c->is_present[MINIMUM] = rng_chance(rng, 0.4);
    }
    c->is_present[SCALE] = spec_quant_has_scales(format_of(c));
    c->is_present[X_ROWS] = rng_chance(rng, 0.4);
    c->param[X_ROWS_SIZE] = c->is_present[X_ROWS] ? (double)rng_int(rng, 1, 40) : 0;
}

static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot == X_ROWS) {
        const int64_t most = (int64_t)c->param[X_ROWS_SIZE] - 1;
        for (int64_t r = 0; r < (int64_t)c->param[ROWS]; r++)
            values[r] = most < 0 || rng_chance(rng, 0.1) ? -1 : (double)rng_int(rng, 0, most);
        return true;
    }
    if (slot == X) {
        spec_quant_fill(rng, format_of(c), fill, case_numel(c, X), values);
        return true;
    }
    if (kind(c, slot) != SLOT_U8) return false;
    spec_quant_fill_powers(rng, fill, case_numel(c, slot), values);
    return true;
}

// The bits are defined: only the rounding to y's dtype remains.
static void bound(const struct op_case *c, int slot, double *bound) {
    for (int64_t i = 0; i < case_numel(c, slot); i++) bound[i] = 0;
}

#define LIST " num_x_rows=7 +x_rows"
#define EDGE(name, params)                                                                         \
    { name, params, FILL_NORMAL, LAYOUT_RANDOM }
#define OF_FORMAT(format, cols, rest)                                                              \
    EDGE(format, "rows=9 cols=" cols " quant=" format rest),                                       \
        EDGE(format " by a list", "rows=30 cols=" cols " quant=" format rest LIST),                \
        {format " of any bytes", "rows=40 cols=" cols " quant=" format rest, FILL_SPECIAL,         \
         LAYOUT_CONTIGUOUS},                                                                       \
        {format " in vectors", "rows=40 cols=" cols " quant=" format rest, FILL_NORMAL,            \
         LAYOUT_CONTIGUOUS},                                                                       \
        EDGE(format " without columns", "rows=4 cols=0 quant=" format rest)

static const struct edge_case edges[] = {
    OF_FORMAT("q8_0", "160", ""),
    OF_FORMAT("q4_0", "160", ""),
    OF_FORMAT("q4_1", "160", ""),
    OF_FORMAT("q4_k", "768", ""),
    OF_FORMAT("q6_k", "768", ""),
    OF_FORMAT("mxfp4_gguf", "160", ""),
    OF_FORMAT("mxfp4", "160", " +scale"),
    OF_FORMAT("int8", "333", " group=64 +scale +zero"),
    OF_FORMAT("int4", "333", " group=128 +scale +minimum"),
    EDGE("zero rows", "rows=0 cols=64"),
    EDGE("zero rows of a list", "rows=0 cols=64 quant=q4_0" LIST),
    EDGE("a list of an empty x", "rows=5 cols=64 num_x_rows=0 +x_rows"),
    EDGE("one column", "rows=99 cols=1 quant=int4 +scale"),
    EDGE("one column, with a zero", "rows=99 cols=1 quant=int4 +scale +zero"),
    EDGE("one scale a row", "rows=9 cols=301 quant=int8 +scale"),
    EDGE("zero and minimum", "rows=9 cols=301 quant=int4 group=32 +scale +zero +minimum"),
    EDGE("one long row", "rows=1 cols=300000 quant=int4 group=32 +scale"),
    {"one long row, vectors", "rows=1 cols=262144 quant=q4_k", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"scales are 0", "rows=9 cols=301 quant=int8 group=32 +scale +minimum", FILL_ZERO,
     LAYOUT_RANDOM},
    {"NaN in scales", "rows=40 cols=301 quant=int8 group=32 +scale +zero +minimum", FILL_NAN,
     LAYOUT_RANDOM},
    {"infinite scales", "rows=40 cols=301 quant=int4 group=32 +scale", FILL_INFINITE,
     LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=160 quant=q4_0", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, a list", "rows=3 cols=160 quant=int4 +scale" LIST, FILL_NORMAL,
     LAYOUT_FAR},
    {"one row for all", "rows=17 cols=160 quant=q8_0", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "rows=4096 cols=4096 quant=q4_0", "rows=14336 cols=4096 quant=q8_0",
    "rows=4096 cols=14336 quant=q4_k", "rows=4096 cols=4096 quant=int4 group=128 +scale +zero",
    NULL};

const struct op_spec dequantize_spec = {
    .op = "dequantize",
    .command = "dequantize",
    .pass = "forward", // the only one
    .params = params,
    .slots = slots,
    .shape = shape,
    .kind = kind,
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
