// SPDX-License-Identifier: Apache-2.0
// Merging of partial attention for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

static const struct param_spec params[] = {
    {"num_parts", "parts of the keys", PARAM_SIZE, 8, NULL},
    {"batch_size", "first dimension of the rows; 0: none", PARAM_SIZE, 0, NULL},
    {"seqlen_q", "second dimension", PARAM_SIZE, 4096, NULL},
    {"num_heads", "third dimension; 0: none", PARAM_SIZE, 32, NULL},
    {"head_dim_v", "columns", PARAM_SIZE, 128, NULL},
    {"wide", "outs in f32, whatever the dtype of out", PARAM_FLAG, 0, NULL, SOURCE_TENSORS},
    {"row_dims", "dimensions between parts and columns; -1: those of sizes above 0", PARAM_INT, -1,
     NULL, SOURCE_TENSORS},
    {0},
};
enum { PARTS, BATCH, ROWS, HEADS, COLUMNS, WIDE, ROW_DIMS };

enum { OUTS, LSES, OUT, LSE };
static const struct slot_spec slots[] = {
    {"outs", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"lses", SLOT_IN, SLOT_F32, false, NULL, true},
    {"out", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {"lse", SLOT_OUT, SLOT_F32, true, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    int n = 0;
    if (slot == OUTS || slot == LSES) shape[n++] = (int64_t)c->param[PARTS];
    double dims = c->param[ROW_DIMS];
    if (dims < 0 ? c->param[BATCH] > 0 : dims > 2) shape[n++] = (int64_t)c->param[BATCH];
    if (dims != 0) shape[n++] = (int64_t)c->param[ROWS];
    if (dims < 0 ? c->param[HEADS] > 0 : dims > 1) shape[n++] = (int64_t)c->param[HEADS];
    if (slot == OUTS || slot == OUT) shape[n++] = (int64_t)c->param[COLUMNS];
    return n;
}

static tsr_dtype slot_dtype(const struct op_case *c, int slot) {
    bool is_small = slot == LSES || slot == LSE || (slot == OUTS && c->param[WIDE] != 0);
    return is_small && c->dtype != TSR_F64 ? TSR_F32 : c->dtype;
}

static bool infer(struct op_case *c) {
    const tsr_tensor *t = &c->tensor[OUTS];
    if (t->ndim < 2 || t->ndim > 5) return false;
    c->param[ROW_DIMS] = t->ndim - 2;
    c->param[PARTS] = (double)t->shape[0];
    c->param[BATCH] = t->ndim == 5 ? (double)t->shape[1] : 0;
    c->param[ROWS] = t->ndim == 2 ? 1 : (double)t->shape[t->ndim == 5 ? 2 : 1];
    c->param[HEADS] = t->ndim >= 4 ? (double)t->shape[t->ndim - 2] : 0;
    c->param[COLUMNS] = (double)t->shape[t->ndim - 1];
    c->param[WIDE] = t->dtype == TSR_F32;
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_attention_merge_args args =
        TSR_ATTENTION_MERGE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                 .workspace_bytes = given_bytes, .outs = c->tensor[OUTS],
                                 .lses = c->tensor[LSES], .out = c->tensor[OUT],
                                 .lse = c->tensor[LSE]);
    return workspace_bytes != NULL ? tsr_attention_merge_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_merge(ctx, &args);
}

static double flops(const struct op_case *c) {
    return 2 * c->param[PARTS] * (double)case_numel(c, OUT);
}

static void randomize(struct rng *rng, struct op_case *c) {
    c->param[PARTS] = (double)rng_dim(rng, rng_chance(rng, 0.1) ? 100 : 9);
    c->param[BATCH] = rng_chance(rng, 0.5) ? 0 : (double)rng_int(rng, 1, 3);
    c->param[ROWS] = (double)rng_dim(rng, 20);
    c->param[HEADS] = rng_chance(rng, 0.4) ? 0 : (double)rng_int(rng, 1, 5);
    c->param[COLUMNS] = (double)rng_dim(rng, rng_chance(rng, 0.2) ? 700 : 140);
    c->param[WIDE] = (double)rng_chance(rng, 0.3);
    c->is_present[LSE] = rng_chance(rng, 0.7);
    if (rng_chance(rng, 0.2)) c->param[ROW_DIMS] = (double)rng_int(rng, 0, 3);
}

// ZERO, SHIFTED: no part is empty. Other fills: weights from 0 to 1, and empty parts, whose outs are NaN.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    int64_t numel = case_numel(c, slot), rows = 0;
    if (slot == OUTS && fill == FILL_NEGATIVE_INFINITE) { // -inf only in lses
        for (int64_t i = 0; i < numel; i++) values[i] = rng_normal(rng);
        return true;
    }
    if (slot != LSES) return false;
    rows = c->param[PARTS] > 0 ? numel / (int64_t)c->param[PARTS] : 0;
    for (int64_t i = 0; i < numel; i++) {
        values[i] = rng_normal(rng) * (rng_chance(rng, 0.2) ? 100 : 2);
        if (fill == FILL_LARGE) values[i] *= 1e4;
        bool is_empty = fill == FILL_NEGATIVE_INFINITE && (i % rows) % 2 == 0;
        if (is_empty || (fill != FILL_ZERO && fill != FILL_SHIFTED && rng_chance(rng, 0.15)))
            values[i] = -INFINITY;
        if (fill == FILL_SPECIAL && rng_chance(rng, 0.1))
            values[i] = rng_chance(rng, 0.5) ? (double)NAN : (double)INFINITY;
        if (values[i] != -INFINITY) continue;
        double *outs = c->tensor[OUTS].data; // an empty part's outs must not matter
        int64_t columns = (int64_t)c->param[COLUMNS];
        for (int64_t d = 0; d < columns; d++) outs[i * columns + d] = (double)NAN;
    }
    return true;
}

static void bound(const struct op_case *c, int slot, double *bound) {
    const double *outs = c->tensor[OUTS].data, *lses = c->tensor[LSES].data;
    int64_t parts = (int64_t)c->param[PARTS], columns = (int64_t)c->param[COLUMNS];
    int64_t rows = case_numel(c, LSE);
    for (int64_t r = 0; r < rows; r++) {
        double largest = -INFINITY;
        for (int64_t s = 0; s < parts; s++) largest = fmax(largest, lses[s * rows + r]);
        if (slot == LSE) {
            bound[r] = ((double)parts + 16) * 0x1p-24 + 0x1p-23 * fabs(largest);
            if (largest == -INFINITY) bound[r] = 0;
            continue;
        }
        for (int64_t d = 0; d < columns; d++) {
            double most = 0;
            for (int64_t s = 0; s < parts; s++)
                if (lses[s * rows + r] > -INFINITY)
                    most = fmax(most, fabs(outs[(s * rows + r) * columns + d]));
            bound[r * columns + d] = ((double)parts + 16) * 0x1p-23 * most;
        }
    }
}

static const struct edge_case edges[] = {
    {"no parts", "num_parts=0 seqlen_q=5 head_dim_v=16 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows", "num_parts=3 seqlen_q=0 head_dim_v=16 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"no columns", "num_parts=3 seqlen_q=4 head_dim_v=0 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"one part", "num_parts=1 seqlen_q=9 head_dim_v=64 +lse", FILL_ZERO, LAYOUT_RANDOM},
    {"two parts", "num_parts=2 seqlen_q=9 num_heads=3 head_dim_v=128 +lse", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"many parts", "num_parts=300 seqlen_q=3 num_heads=0 head_dim_v=33 +lse", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"empty rows", "num_parts=2 seqlen_q=30 num_heads=2 head_dim_v=40 +lse", FILL_NEGATIVE_INFINITE,
     LAYOUT_RANDOM},
    {"all but one empty", "num_parts=9 seqlen_q=30 num_heads=0 head_dim_v=5 +lse",
     FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"far apart", "num_parts=4 seqlen_q=30 num_heads=2 head_dim_v=40 +lse", FILL_LARGE,
     LAYOUT_RANDOM},
    {"NaN and infinity", "num_parts=4 seqlen_q=40 num_heads=2 head_dim_v=8 +lse", FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"NaN in outs", "num_parts=4 seqlen_q=40 num_heads=2 head_dim_v=40", FILL_NAN, LAYOUT_RANDOM},
    {"f32 parts", "num_parts=5 batch_size=2 seqlen_q=7 num_heads=3 head_dim_v=72 wide=1 +lse",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"wide columns", "num_parts=3 seqlen_q=4 num_heads=0 head_dim_v=1000 +lse", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"beyond 2^31 elements", "num_parts=3 seqlen_q=4 num_heads=2 head_dim_v=8 +lse", FILL_NORMAL,
     LAYOUT_FAR},
    {"one part for all", "num_parts=3 seqlen_q=4 num_heads=2 head_dim_v=8 +lse", FILL_SHIFTED,
     LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "num_parts=8 seqlen_q=4096 num_heads=32 head_dim_v=128 wide=1",
    "num_parts=2 seqlen_q=16384 num_heads=32 head_dim_v=128",
    "num_parts=64 seqlen_q=32 num_heads=32 head_dim_v=128 wide=1", NULL};

const struct op_spec attention_merge_spec = {
    .op = "attention_merge",
    .command = "attention-merge",
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
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
