// SPDX-License-Identifier: Apache-2.0
// The gradients of the experts' biases for verify, bench, apply and report.
#include <math.h>
#include <stdlib.h>

#include "specs/spec.h"
#include "system/heap.h"

#define u32 0x1p-24 // unit roundoff of fp32

enum { NUM_ROWS, COLS, EXPERTS, SOURCE_ROWS, SIZES };
enum { OFFSETS, ROW_TOKENS, ROWS, ROW_WEIGHTS, DBIAS }; // fills of later slots depend on earlier ones
enum { EQUAL, RAGGED, SKEWED };

static const char *const sizes[] = {"equal", "ragged", "skewed", NULL};

static const struct param_spec params[] = {
    {"num_rows", "rows of all experts", PARAM_SIZE, 262144, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 2048, NULL},
    {"num_experts", "experts", PARAM_SIZE, 128, NULL},
    {"num_source_rows", "with row_tokens: rows of rows; 0: as many as num_rows", PARAM_SIZE, 0,
     NULL},
    {"sizes", "rows of experts: equal, random with rows of no expert, or half of all on one",
     PARAM_CHOICE, EQUAL, sizes, SOURCE_TENSORS},
    {0},
};

static const struct slot_spec slots[] = {
    {"offsets", SLOT_IN, SLOT_I32, false, NULL, false},
    {"row_tokens", SLOT_IN, SLOT_I32, true, NULL, false},
    {"rows", SLOT_IN, SLOT_MAIN, false, NULL, false, .is_flat = true},
    {"row_weights", SLOT_IN, SLOT_F32, true, NULL, false, .is_flat = true},
    {"dbias", SLOT_OUT, SLOT_SMALL, false, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const bool is_listed = slot == ROWS && c->is_present[ROW_TOKENS];
    shape[0] = (int64_t)c->param[is_listed         ? SOURCE_ROWS
                                 : slot == OFFSETS ? EXPERTS
                                 : slot == DBIAS   ? EXPERTS
                                                   : NUM_ROWS];
    if (slot == OFFSETS) shape[0]++;
    shape[1] = (int64_t)c->param[COLS];
    return slot == ROWS || slot == DBIAS ? 2 : 1;
}

static bool infer(struct op_case *c) {
    const tsr_tensor *rows = &c->tensor[ROWS], *offsets = &c->tensor[OFFSETS];
    if (rows->ndim != 2 || offsets->ndim != 1 || offsets->shape[0] < 1) return false;
    c->param[EXPERTS] = (double)offsets->shape[0] - 1;
    c->param[NUM_ROWS] = c->param[SOURCE_ROWS] = (double)rows->shape[0];
    c->param[COLS] = (double)rows->shape[1];
    if (!c->is_present[ROW_TOKENS]) return true;
    c->param[NUM_ROWS] = (double)c->tensor[ROW_TOKENS].shape[0];
    return c->tensor[ROW_TOKENS].ndim == 1;
}

static void complete(struct op_case *c) {
    if (c->param[SOURCE_ROWS] == 0) c->param[SOURCE_ROWS] = c->param[NUM_ROWS];
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_bias_backward_args args =
        TSR_MOE_BIAS_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                   .workspace_bytes = given_bytes, .rows = c->tensor[ROWS],
                                   .row_tokens = c->tensor[ROW_TOKENS],
                                   .row_weights = c->tensor[ROW_WEIGHTS],
                                   .offsets = c->tensor[OFFSETS], .dbias = c->tensor[DBIAS]);
    return workspace_bytes != NULL ? tsr_moe_bias_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_bias_backward(ctx, &args);
}

static double flops(const struct op_case *c) {
    return (c->is_present[ROW_WEIGHTS] ? 2 : 1) * c->param[NUM_ROWS] * c->param[COLS];
}

// A row is read as often as the list names it.
static double bytes(const struct op_case *c) {
    double sum = c->param[NUM_ROWS] * c->param[COLS] * (double)tsr_dtype_bytes(c->dtype);
    for (int s = 0; s <= DBIAS; s++)
        if (s != ROWS && c->is_present[s])
            sum += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
    return sum;
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    enum { MOST = 200000 };
    const int64_t cols = rng_dim(rng, rng_chance(rng, 0.2) ? 5000 : 300);
    const int64_t rows = rng_dim(rng, 1 + MOST / (cols + 20));
    const int64_t most_experts = rng_chance(rng, 0.2) ? 300 : 9;
    c->param[COLS] = (double)cols;
    c->param[NUM_ROWS] = (double)rows;
    c->param[EXPERTS] = (double)rng_int(rng, 1, most_experts);
    c->param[SIZES] = (double)rng_int(rng, EQUAL, SKEWED);
    c->is_present[ROW_TOKENS] = rng_chance(rng, 0.6);
    c->is_present[ROW_WEIGHTS] = rng_chance(rng, 0.6);
    c->param[SOURCE_ROWS] =
        c->is_present[ROW_TOKENS] ? fmax((double)rng_dim(rng, 1 + MOST / (cols + 20)), 1) : 0;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// FILL_SPECIAL: the second to last expert has all rows. FILL_ZERO: no expert has any.
static void fill_offsets(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                         double *values) {
    const int64_t rows = (int64_t)c->param[NUM_ROWS], experts = (int64_t)c->param[EXPERTS];
    const int64_t chosen = experts > 1 ? experts - 2 : 0, half = rows / 2;
    const int kind = (int)c->param[SIZES];
    for (int64_t e = 0; e <= experts; e++) {
        const int64_t share = experts > 0 ? (rows - half) * e / experts : 0;
        if (fill == FILL_SPECIAL || fill == FILL_ZERO)
            values[e] = fill == FILL_SPECIAL && e > chosen ? (double)rows : 0;
        else if (kind == EQUAL)
            values[e] = experts > 0 ? (double)(rows * e / experts) : 0;
        else if (kind == SKEWED)
            values[e] = (double)(share + (e > experts / 3 ? half : 0));
        else
            values[e] = e > 0 && rng_chance(rng, 0.25) ? values[e - 1]
                                                       : (double)rng_int(rng, 0, rows);
    }
    qsort(values, (size_t)experts + 1, sizeof *values, by_value);
}

// The rows [first, end) of an expert.
static void rows_of(const struct op_case *c, int64_t expert, int64_t *first, int64_t *end) {
    const int32_t *offsets = c->tensor[OFFSETS].data;
    *first = offsets[expert];
    *end = offsets[expert + 1];
}

static int64_t source_of(const struct op_case *c, int64_t row) {
    const int32_t *tokens = c->tensor[ROW_TOKENS].data;
    return c->is_present[ROW_TOKENS] ? tokens[row] : row;
}

// Elements of no expert are no indices.
static void fill_tokens(struct rng *rng, const struct op_case *c, double *values) {
    static const double none[] = {-1, INT32_MIN, INT32_MAX};
    const int32_t *offsets = c->tensor[OFFSETS].data;
    const int64_t first = offsets[0], end = offsets[(int64_t)c->param[EXPERTS]];
    for (int64_t r = 0; r < (int64_t)c->param[NUM_ROWS]; r++)
        values[r] = r >= first && r < end
                        ? (double)rng_int(rng, 0, (int64_t)c->param[SOURCE_ROWS] - 1)
                        : none[rng_int(rng, 0, 2)];
}

// Rows and weights of no expert are NaN: nothing may read them.
static void spoil(const struct op_case *c, int slot, double *values) {
    const int64_t width = slot == ROWS ? (int64_t)c->param[COLS] : 1, numel = case_numel(c, slot);
    bool *is_used = heap_get((size_t)numel + 1, sizeof *is_used);
    for (int64_t e = 0, first, end; e < (int64_t)c->param[EXPERTS]; e++) {
        rows_of(c, e, &first, &end);
        for (int64_t r = first; r < end; r++)
            if (width > 0) is_used[slot == ROWS ? source_of(c, r) : r] = true;
    }
    for (int64_t i = 0; i < numel; i++)
        if (!is_used[i / width]) values[i] = (double)NAN;
    free(is_used);
}

static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    const bool is_usual = fill == FILL_NORMAL || fill == FILL_SPECIAL || fill == FILL_ZERO;
    if (slot == OFFSETS) {
        fill_offsets(rng, c, fill, values);
        return true;
    }
    if (slot == ROW_TOKENS) {
        fill_tokens(rng, c, values);
        return true;
    }
    if (!is_usual && slot == ROWS) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = rng_normal(rng);
    spoil(c, slot, values);
    return true;
}

// The bound in tessera/moe_permute.h.
static void bound(const struct op_case *c, int slot, double *bound) {
    const int64_t cols = (int64_t)c->param[COLS];
    const double *rows = c->tensor[ROWS].data, *weights = c->tensor[ROW_WEIGHTS].data;
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        int64_t first, end;
        double sum = 0;
        rows_of(c, i / cols, &first, &end);
        for (int64_t r = first; r < end; r++)
            sum += fabs((c->is_present[ROW_WEIGHTS] ? weights[r] : 1) *
                        rows[source_of(c, r) * cols + i % cols]);
        bound[i] = u32 * (8 + 4 * sqrt((double)(end - first))) * sum + 0x1p-120;
    }
}

#define ALL " +row_tokens +row_weights"

static const struct edge_case edges[] = {
    {"no rows", "num_rows=0 cols=9 num_experts=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows of many", "num_rows=0 cols=9 num_experts=5 num_source_rows=7" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no experts", "num_rows=9 cols=9 num_experts=0 num_source_rows=7" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no columns", "num_rows=9 cols=0 num_experts=3 num_source_rows=7" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"experts without rows", "num_rows=90 cols=70 num_experts=5 num_source_rows=40" ALL, FILL_ZERO,
     LAYOUT_RANDOM},
    {"a list of nothing", "num_rows=90 cols=70 num_experts=5 num_source_rows=0" ALL, FILL_ZERO,
     LAYOUT_RANDOM},
    {"one element", "num_rows=1 cols=1 num_experts=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "num_rows=5000 cols=1 num_experts=3 sizes=ragged", FILL_NORMAL, LAYOUT_RANDOM},
    {"a row each", "num_rows=70 cols=33 num_experts=70 num_source_rows=70" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"more experts than rows", "num_rows=7 cols=65 num_experts=300 sizes=ragged +row_weights",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"5000 experts", "num_rows=9000 cols=9 num_experts=5000 num_source_rows=900 sizes=ragged" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"rows alone", "num_rows=900 cols=256 num_experts=8", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"a list", "num_rows=900 cols=301 num_experts=8 num_source_rows=120 sizes=ragged" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"a list of one row", "num_rows=900 cols=130 num_experts=3 num_source_rows=1" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"parts", "num_rows=5000 cols=40 num_experts=2 sizes=ragged +row_weights", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"parts, all rows", "num_rows=4096 cols=72 num_experts=4", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"parts, one row more", "num_rows=2052 cols=24 num_experts=4 num_source_rows=9" ALL,
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one expert has everything", "num_rows=3000 cols=65 num_experts=5 num_source_rows=700" ALL,
     FILL_SPECIAL, LAYOUT_RANDOM},
    {"one expert has half", "num_rows=6000 cols=33 num_experts=20 num_source_rows=70 sizes=skewed" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"66 parts", "num_rows=33500 cols=8 num_experts=1", FILL_SHIFTED, LAYOUT_CONTIGUOUS},
    {"wide rows", "num_rows=40 cols=5003 num_experts=3 num_source_rows=20 sizes=ragged" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"wide rows, vectors", "num_rows=40 cols=4352 num_experts=3 +row_weights", FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"rows of no expert first", "num_rows=4000 cols=24 num_experts=1 sizes=ragged +row_weights",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"large rows", "num_rows=300 cols=65 num_experts=4 num_source_rows=90" ALL, FILL_LARGE,
     LAYOUT_RANDOM},
    {"same-sign sums", "num_rows=3000 cols=40 num_experts=3 sizes=ragged", FILL_SHIFTED,
     LAYOUT_RANDOM},
    {"infinite rows", "num_rows=300 cols=65 num_experts=4 num_source_rows=90" ALL, FILL_INFINITE,
     LAYOUT_RANDOM},
    {"NaN in rows", "num_rows=300 cols=65 num_experts=40 num_source_rows=900" ALL, FILL_NAN,
     LAYOUT_RANDOM},
    {"beyond 2^31 elements", "num_rows=5 cols=33 num_experts=2 num_source_rows=3" ALL, FILL_NORMAL,
     LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "num_rows=5 cols=256 num_experts=2", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "num_rows=600 cols=65 num_experts=3", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "num_rows=262144 cols=2048 num_experts=128",
    "num_rows=262144 cols=2048 num_experts=128 sizes=skewed",
    "num_rows=262144 cols=2048 num_experts=128 num_source_rows=32768" ALL,
    "num_rows=8192 cols=4096 num_experts=8",
    "num_rows=512 cols=2048 num_experts=128 sizes=ragged",
    NULL};

const struct op_spec moe_bias_backward_spec = {
    .op = "moe_bias_backward",
    .command = "moe-bias",
    .pass = "backward",
    .params = params,
    .slots = slots,
    .shape = shape,
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
