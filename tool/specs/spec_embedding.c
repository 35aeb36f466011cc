// SPDX-License-Identifier: Apache-2.0
// Embedding for verify, bench, apply and report.
#include <math.h>
#include <stdlib.h>

#include "specs/spec.h"
#include "system/heap.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32

static const struct param_spec params[] = {
    {"tokens", "ids", PARAM_SIZE, 16384, NULL},
    {"vocab", "rows of the table", PARAM_SIZE, 50257, NULL},
    {"hidden", "elements of a row", PARAM_SIZE, 1024, NULL},
    {0},
};

static const struct param_spec backward_params[] = {
    {"tokens", "ids", PARAM_SIZE, 16384, NULL},
    {"vocab", "rows of the table", PARAM_SIZE, 50257, NULL, SOURCE_OPTION},
    {"hidden", "elements of a row", PARAM_SIZE, 1024, NULL},
    {"accumulate", "add to dweight", PARAM_FLAG, 0, NULL},
    {"padding_id", "id without a gradient; -1: none", PARAM_INT, -1, NULL, .least = INT32_MIN,
     .most = INT32_MAX},
    {0},
};

enum { IDS, TABLE_OR_ROWS, OUT };

static void infer_sizes(struct op_case *c, const tsr_tensor *ids, const tsr_tensor *wide) {
    c->param[0] = (double)tsr_tensor_numel(ids);
    c->param[2] = wide->ndim > 0 ? (double)wide->shape[wide->ndim - 1] : 0;
}

// Half of the ids come from a few values, so some rows occur often, most once or never.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    if (slot != IDS) return false;
    int64_t tokens = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    for (int64_t t = 0; t < tokens; t++) {
        int64_t id = rng_int(rng, 0, vocab - 1);
        if (rng_chance(rng, 0.5)) id %= 7;
        values[t] = (double)(fill == FILL_SPECIAL ? vocab - 1 : id); // special: always one id
    }
    return true;
}

static void randomize_sizes(struct rng *rng, struct op_case *c) {
    int64_t hidden = rng_dim(rng, rng_chance(rng, 0.1) ? 5000 : 600);
    c->param[2] = (double)hidden;
    c->param[1] = (double)rng_int(rng, 1, 1 + 60000 / (hidden + 60));
    c->param[0] = (double)rng_dim(rng, 1 + 60000 / (hidden + 60));
}

static const char *const standard[] = {"tokens=32768 vocab=50257 hidden=768",
                                       "tokens=16384 vocab=32000 hidden=4096",
                                       "tokens=16384 vocab=128256 hidden=1024", NULL};

// ---- Forward: ids, weight -> y ----------------------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {"ids", SLOT_IN, SLOT_I32, false, NULL, false},
    {"weight", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {0},
};

static int forward_shape(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = (int64_t)(slot == TABLE_OR_ROWS ? c->param[1] : c->param[0]);
    shape[1] = (int64_t)c->param[2];
    return slot == IDS ? 1 : 2;
}

static bool forward_infer(struct op_case *c) {
    const tsr_tensor *ids = &c->tensor[IDS], *weight = &c->tensor[TABLE_OR_ROWS];
    if (ids->ndim != 1 || weight->ndim != 2) return false;
    infer_sizes(c, ids, weight);
    c->param[1] = (double)weight->shape[0];
    return true;
}

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_embedding_forward_args args =
        TSR_EMBEDDING_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                   .workspace_bytes = given_bytes, .ids = c->tensor[IDS],
                                   .weight = c->tensor[TABLE_OR_ROWS], .y = c->tensor[OUT]);
    return workspace_bytes != NULL ? tsr_embedding_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_embedding_forward(ctx, &args);
}

static double forward_flops(const struct op_case *c) {
    (void)c;
    return 0;
}

// Reads and writes each token's row once, and reads the ids.
static double forward_bytes(const struct op_case *c) {
    return c->param[0] * (4 + 2 * c->param[2] * (double)tsr_dtype_bytes(c->dtype));
}

static void forward_bound(const struct op_case *c, int slot, double *bound) {
    for (int64_t i = 0; i < case_numel(c, slot); i++) bound[i] = 0; // a copy
}

static const struct edge_case forward_edges[] = {
    {"no tokens", "tokens=0 vocab=5 hidden=9", FILL_NORMAL, LAYOUT_RANDOM},
    {"no tokens, no vocabulary", "tokens=0 vocab=0 hidden=9", FILL_NORMAL, LAYOUT_RANDOM},
    {"hidden 0", "tokens=7 vocab=5 hidden=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "tokens=100 vocab=50257 hidden=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"one row", "tokens=9 vocab=1 hidden=33", FILL_NORMAL, LAYOUT_RANDOM},
    {"one id throughout", "tokens=99 vocab=300 hidden=65", FILL_SPECIAL, LAYOUT_RANDOM},
    {"wide rows", "tokens=3 vocab=4 hidden=30001", FILL_NORMAL, LAYOUT_RANDOM},
    {"infinite weights", "tokens=40 vocab=40 hidden=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN in weights", "tokens=40 vocab=40 hidden=301", FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 vocab=4 hidden=33", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "tokens=3 vocab=4 hidden=256", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "tokens=17 vocab=9 hidden=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

const struct op_spec embedding_forward_spec = {
    .op = "embedding_forward",
    .command = "embedding",
    .pass = "forward",
    .params = params,
    .slots = forward_slots,
    .shape = forward_shape,
    .infer = forward_infer,
    .call = forward_call,
    .flops = forward_flops,
    .bytes = forward_bytes,
    .randomize = randomize_sizes,
    .fill = fill,
    .bound = forward_bound,
    .keeps_nan_sign = true,
    .edges = forward_edges,
    .standard = standard,
    .baseline = "gather",
};

// ---- Backward: ids, dy -> dweight -------------------------------------------------------------

static const struct slot_spec backward_slots[] = {
    {"ids", SLOT_IN, SLOT_I32, false, NULL, false},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"dweight", SLOT_INOUT, SLOT_SMALL, false, NULL, false, "weight"},
    {0},
};

static int backward_shape(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = (int64_t)(slot == OUT ? c->param[1] : c->param[0]);
    shape[1] = (int64_t)c->param[2];
    return slot == IDS ? 1 : 2;
}

// If the call adds to dweight, dweight gives the vocabulary, else the parameter does.
static bool backward_infer(struct op_case *c) {
    const tsr_tensor *ids = &c->tensor[IDS], *dy = &c->tensor[TABLE_OR_ROWS];
    if (ids->ndim != 1 || dy->ndim != 2) return false;
    infer_sizes(c, ids, dy);
    if (c->tensor[OUT].ndim == 2) c->param[1] = (double)c->tensor[OUT].shape[0];
    return true;
}

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    int padding_id = (int)case_int(c, "padding_id");
    tsr_embedding_backward_args args =
        TSR_EMBEDDING_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                    .workspace_bytes = given_bytes, .ids = c->tensor[IDS],
                                    .dy = c->tensor[TABLE_OR_ROWS], .dweight = c->tensor[OUT],
                                    .accumulate = case_int(c, "accumulate") != 0,
                                    .padding_id = padding_id, .has_padding_id = padding_id != -1);
    return workspace_bytes != NULL ? tsr_embedding_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_embedding_backward(ctx, &args);
}

static double backward_flops(const struct op_case *c) { return c->param[0] * c->param[2]; }

// Reads dy and ids and writes dweight; with accumulate it reads and writes only the rows that occur, at
// most one per token.
static double backward_bytes(const struct op_case *c) {
    double table_bytes = (double)tsr_dtype_bytes(case_slot_dtype(c, OUT));
    double rows = case_int(c, "accumulate") ? 2 * fmin(c->param[0], c->param[1]) : c->param[1];
    return c->param[0] * (4 + c->param[2] * (double)tsr_dtype_bytes(c->dtype)) +
           rows * c->param[2] * table_bytes;
}

static void backward_randomize(struct rng *rng, struct op_case *c) {
    randomize_sizes(rng, c);
    c->param[3] = (double)rng_chance(rng, 0.3);
    c->param[4] = rng_chance(rng, 0.3) ? (double)rng_int(rng, 0, (int64_t)c->param[1] - 1) : -1;
}

// n u sum |dy| for n occurrences. `accumulate` adds one addition, to a value of at most
// |result| + sum |dy|.
static void backward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t tokens = (int64_t)c->param[0], vocab = (int64_t)c->param[1],
            hidden = (int64_t)c->param[2];
    const double *dy = c->tensor[TABLE_OR_ROWS].data, *result = c->tensor[OUT].data;
    double *count = heap_get((size_t)vocab + 1, sizeof *count);
    (void)slot;
    for (int64_t i = 0; i < vocab * hidden; i++) bound[i] = 0;
    for (int64_t t = 0; t < tokens; t++, dy += hidden) {
        int64_t v = (int64_t)tsr_load(TSR_I32, c->tensor[IDS].data, t);
        if (v == case_int(c, "padding_id")) continue;
        count[v]++;
        for (int64_t i = 0; i < hidden; i++) bound[v * hidden + i] += fabs(dy[i]);
    }
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t i = 0; i < hidden && count[v] > 0; i++) {
            double *b = &bound[v * hidden + i], sum = *b;
            *b = count[v] * u32 * sum;
            if (case_int(c, "accumulate")) *b += u32 * (fabs(result[v * hidden + i]) + sum);
        }
    free(count);
}

static const struct edge_case backward_edges[] = {
    {"no tokens", "tokens=0 vocab=5 hidden=9", FILL_NORMAL, LAYOUT_RANDOM},
    {"no tokens, accumulated", "tokens=0 vocab=5 hidden=9 accumulate=1", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no tokens, no vocabulary", "tokens=0 vocab=0 hidden=9", FILL_NORMAL, LAYOUT_RANDOM},
    {"hidden 0", "tokens=7 vocab=5 hidden=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "tokens=500 vocab=5025 hidden=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"one id throughout", "tokens=999 vocab=30 hidden=65", FILL_SPECIAL, LAYOUT_RANDOM},
    {"one id throughout, wide", "tokens=9 vocab=3 hidden=5001", FILL_SPECIAL, LAYOUT_RANDOM},
    {"one id throughout, the padding", "tokens=9 vocab=4 hidden=65 padding_id=3", FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"padding, accumulated", "tokens=50 vocab=10 hidden=65 padding_id=2 accumulate=1", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"padding 0", "tokens=50 vocab=10 hidden=65 padding_id=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"50,257 rows", "tokens=30 vocab=50257 hidden=3", FILL_NORMAL, LAYOUT_RANDOM},
    {"large gradients", "tokens=90 vocab=20 hidden=65", FILL_LARGE, LAYOUT_RANDOM},
    {"NaN in gradients", "tokens=40 vocab=40 hidden=301", FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 vocab=4 hidden=33", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "tokens=3 vocab=4 hidden=256", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "tokens=17 vocab=9 hidden=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

const struct op_spec embedding_backward_spec = {
    .op = "embedding_backward",
    .command = "embedding",
    .pass = "backward",
    .params = backward_params,
    .slots = backward_slots,
    .shape = backward_shape,
    .infer = backward_infer,
    .call = backward_call,
    .flops = backward_flops,
    .bytes = backward_bytes,
    .randomize = backward_randomize,
    .fill = fill,
    .bound = backward_bound,
    .edges = backward_edges,
    .standard = standard,
    .baseline = "unfused",
};
