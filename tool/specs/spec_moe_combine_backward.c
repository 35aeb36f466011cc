// SPDX-License-Identifier: Apache-2.0
// The gradients of the weighted sum of each token's rows for verify, bench, apply and report.
#include <math.h>

#include "specs/spec_moe_combine.h"

enum { DY = COMBINE_GATE + 1, DROWS, DWEIGHTS, DSHARED, DGATE };

static const struct slot_spec slots[] = {
    {"token_rows", SLOT_IN, SLOT_I32, true, NULL, false},
    {"rows", SLOT_IN, SLOT_MAIN, true, NULL, false},
    {"weights", SLOT_IN, SLOT_F32, true, NULL, false},
    {"shared", SLOT_IN, SLOT_MAIN, true, NULL, false},
    {"shared_gate", SLOT_IN, SLOT_F32, true, NULL, false},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"drows", SLOT_OUT, SLOT_MAIN, true, NULL, false, "rows"},
    {"dweights", SLOT_OUT, SLOT_F32, true, NULL, false, "weights"},
    {"dshared", SLOT_OUT, SLOT_MAIN, true, NULL, false, "shared"},
    {"dshared_gate", SLOT_OUT, SLOT_F32, true, NULL, false, "shared_gate"},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case COMBINE_ROWS:
    case DROWS: return combine_shape_of_rows(c, shape);
    case COMBINE_TOKEN_ROWS:
    case COMBINE_WEIGHTS:
    case DWEIGHTS: return combine_shape_of_assignments(c, shape);
    case COMBINE_GATE:
    case DGATE: return combine_shape_of_tokens(c, shape) - 1;
    default: return combine_shape_of_tokens(c, shape);
    }
}

// Without rows and without an option, drows has a row for each assignment.
static bool infer(struct op_case *c) {
    const tsr_tensor *rows = &c->tensor[COMBINE_ROWS], *dy = &c->tensor[DY];
    if (dy->ndim != 2 || (c->is_present[COMBINE_ROWS] && rows->ndim != 2)) return false;
    c->param[COMBINE_TOKENS] = (double)dy->shape[0];
    c->param[COMBINE_HIDDEN] = (double)dy->shape[1];
    for (int s = COMBINE_WEIGHTS; s >= COMBINE_TOKEN_ROWS; s -= COMBINE_WEIGHTS) {
        if (!c->is_present[s]) continue;
        if (c->tensor[s].ndim != 2) return false;
        c->param[COMBINE_TOP_K] = (double)c->tensor[s].shape[1];
    }
    if (c->is_present[COMBINE_ROWS])
        c->param[COMBINE_NUM_ROWS] = (double)rows->shape[0];
    else if (c->param[COMBINE_NUM_ROWS] < 0)
        c->param[COMBINE_NUM_ROWS] = c->param[COMBINE_TOKENS] * c->param[COMBINE_TOP_K];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_combine_backward_args args =
        TSR_MOE_COMBINE_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                      .workspace_bytes = given_bytes, .dy = c->tensor[DY],
                                      .rows = c->tensor[COMBINE_ROWS],
                                      .token_rows = c->tensor[COMBINE_TOKEN_ROWS],
                                      .weights = c->tensor[COMBINE_WEIGHTS],
                                      .shared = c->tensor[COMBINE_SHARED],
                                      .shared_gate = c->tensor[COMBINE_GATE],
                                      .drows = c->tensor[DROWS], .dweights = c->tensor[DWEIGHTS],
                                      .dshared = c->tensor[DSHARED],
                                      .dshared_gate = c->tensor[DGATE]);
    return workspace_bytes != NULL ? tsr_moe_combine_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_combine_backward(ctx, &args);
}

static double flops(const struct op_case *c) {
    const double rows =
        c->param[COMBINE_NUM_ROWS] * (c->is_present[DROWS] + 2.0 * c->is_present[DWEIGHTS]);
    const double tokens =
        c->param[COMBINE_TOKENS] * (c->is_present[DSHARED] + 2.0 * c->is_present[DGATE]);
    return (rows + tokens) * c->param[COMBINE_HIDDEN];
}

// rows are read for dweights alone, shared for dshared_gate.
static double bytes(const struct op_case *c) {
    double sum = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        const bool is_read = (s != COMBINE_ROWS || c->is_present[DWEIGHTS]) &&
                             (s != COMBINE_SHARED || c->is_present[DGATE]);
        if (c->is_present[s] && is_read)
            sum += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s));
    }
    return sum;
}

static void randomize(struct rng *rng, struct op_case *c) {
    combine_randomize(rng, c, 0); // every row has a token, so that drows is written everywhere
    for (int s = DROWS; s <= DGATE; s++) c->is_present[s] = rng_chance(rng, 0.6);
    if (!c->is_present[DROWS] && !c->is_present[DWEIGHTS] && !c->is_present[DGATE])
        c->is_present[DSHARED] = true;
    c->is_present[COMBINE_TOKEN_ROWS] =
        c->is_present[DROWS] || c->is_present[DWEIGHTS] || rng_chance(rng, 0.5);
    c->is_present[COMBINE_ROWS] = c->is_present[DWEIGHTS] || rng_chance(rng, 0.3);
    c->is_present[COMBINE_WEIGHTS] = rng_chance(rng, 0.7);
    c->is_present[COMBINE_SHARED] = c->is_present[DGATE] || rng_chance(rng, 0.2);
    c->is_present[COMBINE_GATE] = c->is_present[DGATE] || rng_chance(rng, 0.4);
}

// ---- The bounds in tessera/moe_permute.h ------------------------------------------------------------

static double product(const struct op_case *c, int64_t token, int other, int64_t row) {
    const int64_t hidden = (int64_t)c->param[COMBINE_HIDDEN];
    const double *dy = (const double *)c->tensor[DY].data + token * hidden;
    const double *x = (const double *)c->tensor[other].data + row * hidden;
    double sum = 0;
    for (int64_t i = 0; i < hidden; i++) sum += fabs(dy[i] * x[i]);
    return sum;
}

static void bound(const struct op_case *c, int slot, double *bound) {
    const double *result = c->tensor[slot].data, root = sqrt(c->param[COMBINE_HIDDEN]);
    const int64_t top_k = (int64_t)c->param[COMBINE_TOP_K];
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        if (slot == DWEIGHTS) {
            const int64_t row = combine_row(c, i / top_k, i % top_k);
            const double sum = row >= 0 ? product(c, i / top_k, COMBINE_ROWS, row) : 0;
            bound[i] = combine_u32 * (8 + 4 * root) * sum + 0x1p-120;
        } else if (slot == DGATE) {
            bound[i] = combine_u32 * (24 + 4 * root) * product(c, i, COMBINE_SHARED, i) + 0x1p-120;
        } else {
            bound[i] = combine_u32 * 9 * fabs(result[i]) + 0x1p-140;
        }
}

#define ROWS " +token_rows +rows +weights +drows +dweights"
#define ALL ROWS " +shared +shared_gate +dshared +dshared_gate"

static const struct edge_case edges[] = {
    {"no tokens", "tokens=0 top_k=2 hidden=9 num_rows=0" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows", "tokens=7 top_k=2 hidden=9 num_rows=0" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"hidden 0", "tokens=7 top_k=3 hidden=0 num_rows=21" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "tokens=900 top_k=3 hidden=1 num_rows=2700" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"one row a token", "tokens=40 top_k=1 hidden=1536 num_rows=40" ROWS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"a scatter", "tokens=20 top_k=8 hidden=768 num_rows=160 +token_rows +weights +drows",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"copies", "tokens=20 top_k=8 hidden=768 num_rows=150 +token_rows +drows +shared +dshared",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"shared alone", "tokens=20 top_k=8 hidden=768 +shared +shared_gate +dshared +dshared_gate",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"weights alone", "tokens=20 top_k=8 hidden=768 num_rows=90 +token_rows +rows +dweights",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one token", "tokens=1 top_k=8 hidden=7168 num_rows=8" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"vectors", "tokens=20 top_k=8 hidden=2048 num_rows=160" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"nine rows", "tokens=20 top_k=9 hidden=515 num_rows=170" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"16 rows", "tokens=20 top_k=16 hidden=1024 num_rows=310" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"40 rows", "tokens=9 top_k=40 hidden=200 num_rows=350" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"a wide token", "tokens=2 top_k=2 hidden=30001 num_rows=4" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"large gradients", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_LARGE, LAYOUT_RANDOM},
    {"zeros", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_ZERO, LAYOUT_RANDOM},
    {"infinite gradients", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_INFINITE,
     LAYOUT_RANDOM},
    {"NaN in gradients", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 top_k=2 hidden=33 num_rows=6" ALL, FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "tokens=3 top_k=2 hidden=256 num_rows=6" ALL, FILL_NORMAL,
     LAYOUT_FAR},
    {"one row for all", "tokens=17 top_k=1 hidden=65 num_rows=1" ALL, FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {
    "tokens=32768 top_k=8 hidden=4096" ROWS, "tokens=32768 top_k=8 hidden=1536" ROWS,
    "tokens=8192 top_k=8 hidden=2048" ALL,
    "tokens=8192 top_k=8 hidden=2048 +token_rows +weights +drows", NULL};

const struct op_spec moe_combine_backward_spec = {
    .op = "moe_combine_backward",
    .command = "moe-combine",
    .pass = "backward",
    .params = combine_params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .complete = combine_complete,
    .call = call,
    .flops = flops,
    .bytes = bytes,
    .randomize = randomize,
    .fill = combine_fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
