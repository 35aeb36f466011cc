// SPDX-License-Identifier: Apache-2.0
// Dequantize for verify, bench, apply and report. The case's dtype is y's; the bytes of x are codes and scales of its format.
#include <math.h>

#include "specs/spec.h"

enum { ROWS, COLS, FORMAT, GROUP, X_ROWS_SIZE };
enum { X_ROWS, X, SCALE, ZERO, MINIMUM, Y };

// From q8_0 on, in the order of tsr_quant_format.
static const char *const formats[] = {"q8_0",       "q4_0", "q4_1", "q4_k",  "q6_k",
                                      "mxfp4_gguf", "int8", "int4", "mxfp4", NULL};

static const struct param_spec params[] = {
    {"rows", "rows of y", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row of y", PARAM_SIZE, 4096, NULL, .source = SOURCE_OPTION},
    {"quant", "how bytes hold the numbers of a row", PARAM_CHOICE, 0, formats},
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
static bool has_scales(const struct op_case *c) { return format_of(c) >= TSR_QUANT_INT8; }
static bool is_of_groups(const struct op_case *c) {
    return has_scales(c) && format_of(c) != TSR_QUANT_MXFP4;
}
static bool is_q_k(const struct op_case *c) {
    return format_of(c) == TSR_QUANT_Q4_K || format_of(c) == TSR_QUANT_Q6_K;
}

static enum slot_kind kind(const struct op_case *c, int slot) {
    if (slot == SCALE && format_of(c) == TSR_QUANT_MXFP4) return SLOT_U8;
    return slots[slot].kind;
}

static int64_t groups_of(const struct op_case *c) {
    const int64_t cols = (int64_t)c->param[COLS], group = (int64_t)c->param[GROUP];
    if (!is_of_groups(c)) return (cols + 31) / 32;
    return group > 0 ? (cols + group - 1) / group : cols > 0;
}

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const int64_t bytes = tsr_quant_row_bytes(format_of(c), (int64_t)c->param[COLS]);
    shape[0] =
        (int64_t)
            c->param[c->is_present[X_ROWS] && slot != X_ROWS && slot != Y ? X_ROWS_SIZE : ROWS];
    shape[1] = slot == Y ? (int64_t)c->param[COLS] : slot == X ? bytes : groups_of(c);
    if (shape[1] < 0) shape[1] = 0; // a row that the format does not have: the call refuses it
    return slot == X_ROWS ? 1 : 2;
}

// Columns follow from bytes but for int4, whose last byte may have one or two.
static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[X], *list = &c->tensor[X_ROWS];
    if (x->ndim != 2 || (c->is_present[X_ROWS] && list->ndim != 1)) return false;
    c->param[ROWS] = c->param[X_ROWS_SIZE] = (double)x->shape[0];
    if (c->is_present[X_ROWS]) c->param[ROWS] = (double)list->shape[0];
    const int64_t unit = is_q_k(c) ? 256 : 32, bytes = tsr_quant_row_bytes(format_of(c), unit);
    const double cols = floor((double)x->shape[1] * (double)unit / (double)bytes);
    if (format_of(c) != TSR_QUANT_INT4 || c->param[COLS] < 0 ||
        ceil(c->param[COLS] / 2) != cols / 2)
        c->param[COLS] = cols;
    return true;
}

static void complete(struct op_case *c) {
    if (c->param[X_ROWS_SIZE] == 0) c->param[X_ROWS_SIZE] = c->param[ROWS];
    c->is_present[SCALE] = has_scales(c);
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
    const int unit = is_q_k(c) ? 256 : is_of_groups(c) ? 1 : 32;
    c->param[COLS] = ceil((double)rng_dim(rng, is_q_k(c) ? 2000 : 700) / unit) * unit;
    c->param[ROWS] = (double)rng_dim(rng, 40);
    if (is_of_groups(c)) {
        c->param[GROUP] = rng_chance(rng, 0.2) ? 0 : 32 * (double)rng_int(rng, 1, 5);
        c->is_present[ZERO] = rng_chance(rng, 0.5);
        c->is_present[MINIMUM] = rng_chance(rng, 0.4);
    }
    c->is_present[SCALE] = has_scales(c);
    c->is_present[X_ROWS] = rng_chance(rng, 0.4);
    c->param[X_ROWS_SIZE] = c->is_present[X_ROWS] ? (double)rng_int(rng, 1, 40) : 0;
}

static void put_f16(double *bytes, double value) {
    uint8_t raw[2];
    tsr_store(TSR_F16, raw, 0, value);
    bytes[0] = raw[0];
    bytes[1] = raw[1];
}

// The scales in a block, where its format has them.
static void fill_scales(struct rng *rng, tsr_quant_format format, double *block) {
    switch (format) {
    case TSR_QUANT_Q4_1:
    case TSR_QUANT_Q4_K:
        put_f16(block + 2, rng_normal(rng)); // and d
    // fall through
    case TSR_QUANT_Q8_0:
    case TSR_QUANT_Q4_0: put_f16(block, rng_normal(rng)); break;
    case TSR_QUANT_Q6_K: put_f16(block + 208, rng_normal(rng)); break;
    case TSR_QUANT_MXFP4_GGUF: block[0] = (double)rng_int(rng, 110, 135); break;
    default: break;
    }
}

// SPECIAL: any bytes, so scales of every kind: infinite ones and NaN too.
static void fill_x(struct rng *rng, const struct op_case *c, enum edge_fill fill, double *values) {
    const int64_t unit = is_q_k(c) ? 256 : 32, bytes = tsr_quant_row_bytes(format_of(c), unit);
    const int64_t numel = case_numel(c, X);
    for (int64_t i = 0; i < numel; i++) values[i] = (double)rng_int(rng, 0, 255);
    for (int64_t i = 0; i + bytes <= numel && fill != FILL_SPECIAL; i += bytes)
        fill_scales(rng, format_of(c), values + i);
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
        fill_x(rng, c, fill, values);
        return true;
    }
    if (kind(c, slot) != SLOT_U8) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        values[i] = (double)(fill == FILL_SPECIAL ? rng_int(rng, 0, 255) : rng_int(rng, 110, 135));
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
