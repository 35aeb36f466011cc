// SPDX-License-Identifier: Apache-2.0
// The weighted sum of each token's rows in a mixture of experts for verify, bench, apply and report: forward, and what both passes
// share.
#include <math.h>
#include <stdlib.h>

#include "specs/spec_moe_combine.h"
#include "system/heap.h"

// ---- Shared with backward ---------------------------------------------------------------------

const struct param_spec combine_params[] = {
    {"tokens", "tokens", PARAM_SIZE, 32768, NULL},
    {"top_k", "assignments of a token", PARAM_SIZE, 8, NULL},
    {"hidden", "elements of a row", PARAM_SIZE, 4096, NULL},
    {"num_rows", "rows; bench: 0 is one an assignment", PARAM_SIZE, 0, NULL, SOURCE_OPTION},
    {0},
};

int combine_shape_of_rows(const struct op_case *c, int64_t *shape) {
    shape[0] = (int64_t)c->param[COMBINE_NUM_ROWS];
    shape[1] = (int64_t)c->param[COMBINE_HIDDEN];
    return 2;
}

int combine_shape_of_assignments(const struct op_case *c, int64_t *shape) {
    shape[0] = (int64_t)c->param[COMBINE_TOKENS];
    shape[1] = (int64_t)c->param[COMBINE_TOP_K];
    return 2;
}

int combine_shape_of_tokens(const struct op_case *c, int64_t *shape) {
    shape[0] = (int64_t)c->param[COMBINE_TOKENS];
    shape[1] = (int64_t)c->param[COMBINE_HIDDEN];
    return 2;
}

void combine_complete(struct op_case *c) {
    if (c->param[COMBINE_NUM_ROWS] == 0)
        c->param[COMBINE_NUM_ROWS] = c->param[COMBINE_TOKENS] * c->param[COMBINE_TOP_K];
}

void combine_randomize(struct rng *rng, struct op_case *c, int64_t spare_rows) {
    enum { MOST = 100000 };
    const int64_t hidden = rng_dim(rng, rng_chance(rng, 0.2) ? 9000 : 700);
    const int64_t top_k = rng_int(rng, 1, rng_chance(rng, 0.2) ? 40 : 9);
    const int64_t tokens = rng_dim(rng, 1 + MOST / ((hidden + 40) * top_k));
    const int64_t most = tokens * top_k;
    c->param[COMBINE_HIDDEN] = (double)hidden;
    c->param[COMBINE_TOP_K] = (double)top_k;
    c->param[COMBINE_TOKENS] = (double)tokens;
    c->param[COMBINE_NUM_ROWS] = (double)most;
    if (rng_chance(rng, 0.5)) c->param[COMBINE_NUM_ROWS] = (double)rng_int(rng, 0, most);
    if (rng_chance(rng, 0.3)) c->param[COMBINE_NUM_ROWS] += (double)rng_int(rng, 0, spare_rows);
}

// Each row has at most one assignment, and if there are enough assignments exactly one. FILL_SPECIAL: no assignment has
// a row.
static void fill_token_rows(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                            double *values) {
    const int64_t num_rows = (int64_t)c->param[COMBINE_NUM_ROWS];
    const int64_t all = case_numel(c, COMBINE_TOKEN_ROWS);
    int64_t *order = heap_get((size_t)num_rows + 1, sizeof *order), used = 0;
    for (int64_t r = 0; r < num_rows; r++) order[r] = r;
    for (int64_t i = 0; i < all; i++) {
        const double left = (double)(num_rows - used), chance = left / (double)(all - i);
        values[i] = -1;
        if (fill == FILL_SPECIAL || left <= 0 || !rng_chance(rng, chance)) continue;
        const int64_t other = rng_int(rng, used, num_rows - 1), row = order[other];
        order[other] = order[used++];
        values[i] = (double)row;
    }
    free(order);
}

int64_t combine_row(const struct op_case *c, int64_t token, int64_t k) {
    const int32_t *rows = c->tensor[COMBINE_TOKEN_ROWS].data;
    return rows[token * (int64_t)c->param[COMBINE_TOP_K] + k];
}

// Rows that no token has are NaN: nothing may read them.
static void spoil_rows(const struct op_case *c, double *values) {
    const int64_t num_rows = (int64_t)c->param[COMBINE_NUM_ROWS];
    const int64_t hidden = (int64_t)c->param[COMBINE_HIDDEN];
    bool *is_used = heap_get((size_t)num_rows + 1, sizeof *is_used);
    for (int64_t t = 0; t < (int64_t)c->param[COMBINE_TOKENS]; t++)
        for (int64_t k = 0; k < (int64_t)c->param[COMBINE_TOP_K]; k++)
            if (combine_row(c, t, k) >= 0) is_used[combine_row(c, t, k)] = true;
    for (int64_t i = 0; i < num_rows * hidden; i++)
        if (!is_used[i / hidden]) values[i] = (double)NAN;
    free(is_used);
}

bool combine_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                  double *values) {
    const bool is_usual = fill == FILL_NORMAL || fill == FILL_SPECIAL;
    if (slot == COMBINE_TOKEN_ROWS) {
        fill_token_rows(rng, c, fill, values);
        return true;
    }
    if (!is_usual && slot != COMBINE_WEIGHTS && slot != COMBINE_GATE) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        values[i] = rng_normal(rng) * (slot == COMBINE_GATE ? 4 : 1);
    if (slot == COMBINE_ROWS && c->is_present[COMBINE_TOKEN_ROWS]) spoil_rows(c, values);
    return true;
}

// ---- Forward: rows, token_rows, [weights, shared, shared_gate, residual] -> y --------------------

enum { RESIDUAL = COMBINE_GATE + 1, Y };

static const struct slot_spec slots[] = {
    {"token_rows", SLOT_IN, SLOT_I32, false, NULL, false},
    {"rows", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"weights", SLOT_IN, SLOT_F32, true, NULL, false},
    {"shared", SLOT_IN, SLOT_MAIN, true, NULL, false},
    {"shared_gate", SLOT_IN, SLOT_F32, true, NULL, false},
    {"residual", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case COMBINE_ROWS: return combine_shape_of_rows(c, shape);
    case COMBINE_TOKEN_ROWS:
    case COMBINE_WEIGHTS: return combine_shape_of_assignments(c, shape);
    case COMBINE_GATE: return combine_shape_of_tokens(c, shape) - 1;
    default: return combine_shape_of_tokens(c, shape);
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *rows = &c->tensor[COMBINE_ROWS], *ids = &c->tensor[COMBINE_TOKEN_ROWS];
    if (rows->ndim != 2 || ids->ndim != 2) return false;
    c->param[COMBINE_NUM_ROWS] = (double)rows->shape[0];
    c->param[COMBINE_HIDDEN] = (double)rows->shape[1];
    c->param[COMBINE_TOKENS] = (double)ids->shape[0];
    c->param[COMBINE_TOP_K] = (double)ids->shape[1];
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_combine_forward_args args =
        TSR_MOE_COMBINE_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                     .workspace_bytes = given_bytes,
                                     .rows = c->tensor[COMBINE_ROWS],
                                     .token_rows = c->tensor[COMBINE_TOKEN_ROWS],
                                     .weights = c->tensor[COMBINE_WEIGHTS],
                                     .shared = c->tensor[COMBINE_SHARED],
                                     .shared_gate = c->tensor[COMBINE_GATE],
                                     .residual = c->tensor[RESIDUAL], .y = c->tensor[Y]);
    return workspace_bytes != NULL ? tsr_moe_combine_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_combine_forward(ctx, &args);
}

static double flops(const struct op_case *c) {
    const double rows = c->param[COMBINE_NUM_ROWS] + c->is_present[COMBINE_SHARED] * c->param[0];
    return 2 * rows * c->param[COMBINE_HIDDEN];
}

static void randomize(struct rng *rng, struct op_case *c) {
    combine_randomize(rng, c, 20);
    c->is_present[COMBINE_WEIGHTS] = rng_chance(rng, 0.7);
    c->is_present[COMBINE_SHARED] = rng_chance(rng, 0.4);
    c->is_present[COMBINE_GATE] = c->is_present[COMBINE_SHARED] && rng_chance(rng, 0.5);
    c->is_present[RESIDUAL] = rng_chance(rng, 0.4);
}

// The bound in tessera/moe_permute.h.
static void bound(const struct op_case *c, int slot, double *bound) {
    const int64_t hidden = (int64_t)c->param[COMBINE_HIDDEN];
    const int64_t top_k = (int64_t)c->param[COMBINE_TOP_K];
    const double *rows = c->tensor[COMBINE_ROWS].data, *weights = c->tensor[COMBINE_WEIGHTS].data;
    const double *shared = c->tensor[COMBINE_SHARED].data, *residual = c->tensor[RESIDUAL].data;
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        const int64_t t = i / hidden, col = i % hidden;
        double sum = 0;
        for (int64_t k = 0; k < top_k; k++) {
            const int64_t row = combine_row(c, t, k);
            const double w = c->is_present[COMBINE_WEIGHTS] ? weights[t * top_k + k] : 1;
            if (row >= 0) sum += fabs(w * rows[row * hidden + col]);
        }
        const double of_shared = c->is_present[COMBINE_SHARED] ? fabs(shared[i]) : 0;
        if (c->is_present[RESIDUAL]) sum += fabs(residual[i]);
        bound[i] = combine_u32 * ((double)(top_k + 4) * (sum + of_shared) + 8 * of_shared);
        bound[i] += 0x1p-140;
    }
}

#define ALL " +weights +shared +shared_gate +residual"

static const struct edge_case edges[] = {
    {"no tokens", "tokens=0 top_k=2 hidden=9 num_rows=5" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows", "tokens=7 top_k=2 hidden=9 num_rows=0 +weights", FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows, other summands", "tokens=7 top_k=2 hidden=99 num_rows=0" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"tokens without rows", "tokens=7 top_k=9 hidden=257 num_rows=40" ALL, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"hidden 0", "tokens=7 top_k=3 hidden=0 num_rows=21" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "tokens=900 top_k=3 hidden=1 num_rows=2700" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"one row a token", "tokens=40 top_k=1 hidden=1536 num_rows=40 +weights", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"sums alone", "tokens=40 top_k=8 hidden=768 num_rows=320", FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"one token", "tokens=1 top_k=8 hidden=7168 num_rows=8" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"vectors", "tokens=20 top_k=8 hidden=2048 num_rows=160" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"unused rows", "tokens=9 top_k=4 hidden=301 num_rows=60" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"nine rows", "tokens=20 top_k=9 hidden=515 num_rows=170" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"16 rows", "tokens=20 top_k=16 hidden=1024 num_rows=310" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"40 rows", "tokens=9 top_k=40 hidden=200 num_rows=350" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"70 rows", "tokens=9 top_k=70 hidden=200 num_rows=600" ALL, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"a wide token", "tokens=2 top_k=2 hidden=30001 num_rows=4" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"large rows", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_LARGE, LAYOUT_RANDOM},
    {"zeros", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_ZERO, LAYOUT_RANDOM},
    {"infinite rows", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_INFINITE, LAYOUT_RANDOM},
    {"NaN in rows", "tokens=20 top_k=4 hidden=301 num_rows=80" ALL, FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 top_k=2 hidden=33 num_rows=6" ALL, FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "tokens=3 top_k=2 hidden=256 num_rows=6" ALL, FILL_NORMAL,
     LAYOUT_FAR},
    {"one row for all", "tokens=17 top_k=3 hidden=65 num_rows=51" ALL, FILL_NORMAL,
     LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"tokens=32768 top_k=8 hidden=4096 +weights",
                                       "tokens=32768 top_k=8 hidden=1536 +weights",
                                       "tokens=8192 top_k=8 hidden=2048 +weights +shared +residual",
                                       "tokens=4096 top_k=2 hidden=4096 +weights",
                                       "tokens=64 top_k=8 hidden=2048 +weights",
                                       "tokens=1 top_k=8 hidden=7168 +weights",
                                       NULL};

const struct op_spec moe_combine_forward_spec = {
    .op = "moe_combine_forward",
    .command = "moe-combine",
    .pass = "forward",
    .params = combine_params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .complete = combine_complete,
    .call = call,
    .flops = flops,
    .randomize = randomize,
    .fill = combine_fill,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
