// SPDX-License-Identifier: Apache-2.0
// Grouped matmul's gradient of b.
#include <math.h>

#include "specs/matmul/spec_matmul_grouped.h"

static const struct param_spec backward_params[] = {
    GROUPED_PARAMS,
    {"rows_of_dc", "with dc_rows: rows of dc; 0: as many as rows", PARAM_SIZE, 0, NULL},
    {0},
};

static const struct slot_spec backward_slots[] = {
    {"offsets", SLOT_IN, SLOT_I32, true, NULL, false},
    {"counts", SLOT_IN, SLOT_I32, true, NULL, false},
    {"a_rows", SLOT_IN, SLOT_I32, true, NULL, false},
    {"a", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"dc_rows", SLOT_IN, SLOT_I32, true, NULL, false},
    {"dc", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"db", SLOT_INOUT, SLOT_SMALL, false, NULL, false, "b"},
    {0},
};

static int backward_shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case OFFSETS:
    case COUNTS: return grouped_shape_of_starts(c, slot, shape);
    case A_ROWS:
    case DC_ROWS: return grouped_shape_of_list(c, shape);
    case GROUPED_A: return grouped_shape_of_rows(c, K, A_ROWS, ROWS_OF_A, shape);
    case GROUPED_DC: return grouped_shape_of_rows(c, N, DC_ROWS, ROWS_OF_DC, shape);
    default: return grouped_shape_of_matrices(c, shape);
    }
}

static tsr_dtype backward_dtype(const struct op_case *c, int slot) {
    if (slot <= A_ROWS || slot == DC_ROWS) return TSR_I32;
    if (slot == GROUPED_DB && is(c, GROUPED_ACCUMULATE))
        return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    return slot == GROUPED_DB ? c->small_dtype : c->dtype;
}

static bool backward_infer(struct op_case *c) {
    const tsr_tensor *dc = &c->tensor[GROUPED_DC];
    if (dc->ndim < 2) return false;
    c->param[N] = (double)dc->shape[dc->ndim - 1];
    if (c->is_present[DC_ROWS]) c->param[ROWS_OF_DC] = (double)dc->shape[dc->ndim - 2];
    return grouped_infer_rows(c);
}

static void backward_complete(struct op_case *c) {
    grouped_complete(c);
    if (c->is_present[DC_ROWS] && c->param[ROWS_OF_DC] == 0) c->param[ROWS_OF_DC] = c->param[ROWS];
}

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_matmul_grouped_backward_args args =
        TSR_MATMUL_GROUPED_BACKWARD_ARGS(.flags = c->flags, .variant = variant,
                                         .workspace = workspace, .workspace_bytes = given_bytes,
                                         .a = c->tensor[GROUPED_A], .dc = c->tensor[GROUPED_DC],
                                         .offsets = c->tensor[OFFSETS], .counts = c->tensor[COUNTS],
                                         .db = c->tensor[GROUPED_DB],
                                         .transpose_b = is(c, GROUPED_TRANSPOSE_B),
                                         .accumulate = is(c, GROUPED_ACCUMULATE),
                                         .alpha = (float)c->param[GROUPED_ALPHA], .has_alpha = 1,
                                         .a_rows = c->tensor[A_ROWS],
                                         .dc_rows = c->tensor[DC_ROWS]);
    return workspace_bytes != NULL
               ? tsr_matmul_grouped_backward_prepare(ctx, &args, workspace_bytes)
               : tsr_matmul_grouped_backward(ctx, &args);
}

static double backward_flops(const struct op_case *c) { return 2 * grouped_products(c); }

static bool backward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    if (slot == GROUPED_DB) {
        for (int64_t i = 0; i < case_numel(c, slot); i++)
            values[i] = is(c, GROUPED_ACCUMULATE) ? rng_normal(rng) : (double)NAN;
        return true;
    }
    if (slot == A_ROWS || slot == DC_ROWS) {
        grouped_fill_list(rng, c, (int64_t)c->param[slot == A_ROWS ? ROWS_OF_A : ROWS_OF_DC],
                          values);
        return true;
    }
    bool is_done = grouped_fill_rows(rng, c, slot, fill, values);
    if (is_done && slot >= GROUPED_A)
        grouped_spoil_rows(c, slot, slot == GROUPED_A ? A_ROWS : DC_ROWS, values);
    return is_done;
}

static void backward_randomize(struct rng *rng, struct op_case *c) {
    grouped_randomize_rows(rng, c);
    grouped_randomize_list(rng, c, DC_ROWS, ROWS_OF_DC);
}

static const struct edge_case backward_edges[] = {
    {"no rows", "rows=0 n=5 k=7 groups=3 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"no rows, accumulate", "rows=0 n=5 k=7 groups=3 accumulate=1 +offsets", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no groups", "rows=9 n=5 k=7 groups=0 ragged=1 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"no columns of a", "rows=9 n=5 k=0 groups=3 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column of each", "rows=39 n=1 k=1 groups=3 ragged=1 +offsets", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"all groups empty", "rows=40 n=33 k=50 groups=5 ragged=1 +offsets", FILL_ZERO, LAYOUT_RANDOM},
    {"all counts 0, accumulate", "rows=40 n=33 k=50 groups=5 ragged=1 accumulate=1 +counts",
     FILL_ZERO, LAYOUT_RANDOM},
    {"one group has everything", "rows=700 n=40 k=30 groups=5 ragged=1 +offsets", FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"a row each", "rows=70 n=33 k=65 groups=70 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"1,100 groups", "rows=900 n=9 k=16 groups=1100 ragged=1 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"ragged", "rows=297 n=70 k=40 groups=4 ragged=1 +offsets", FILL_NORMAL, LAYOUT_RANDOM},
    {"db (n, k)", "rows=297 n=70 k=40 groups=4 ragged=1 transpose_b=1 +offsets", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"multiples of 8", "rows=300 n=72 k=136 groups=5 ragged=1 +offsets", FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"multiples of 8, counts", "rows=150 n=72 k=136 groups=3 ragged=1 transpose_b=1 +counts",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"accumulate", "rows=99 n=70 k=65 groups=3 ragged=1 accumulate=1 alpha=-0.5 +offsets",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"same-sign sums", "rows=9000 n=8 k=8 groups=2 +offsets", FILL_SHIFTED, LAYOUT_CONTIGUOUS},
    {"NaN in some rows", "rows=90 n=33 k=50 groups=3 ragged=1 +offsets", FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements, tiles", "rows=90 n=136 k=72 groups=3 ragged=1 +offsets", FILL_NORMAL,
     LAYOUT_FAR},
    {"beyond 2^31 elements", "rows=5 n=17 k=3 groups=2 +offsets", FILL_NORMAL, LAYOUT_FAR},
    {"a list of a", "rows=297 rows_of_a=130 n=70 k=40 groups=4 ragged=1 +offsets +a_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"a list of dc, db (n, k)",
     "rows=297 rows_of_dc=130 n=70 k=40 groups=4 ragged=1 transpose_b=1 +offsets +dc_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"two lists, multiples of 8",
     "rows=300 rows_of_a=99 rows_of_dc=400 n=72 k=136 groups=5 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"two lists, accumulate",
     "rows=99 rows_of_a=9 rows_of_dc=40 n=70 k=65 groups=3 ragged=1 accumulate=1 alpha=-0.5 "
     "+offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"lists of one row",
     "rows=90 rows_of_a=1 rows_of_dc=1 n=33 k=50 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"lists, one column of each",
     "rows=39 rows_of_a=20 rows_of_dc=30 n=1 k=1 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"lists, one column of a, adjacent",
     "rows=39 rows_of_a=20 rows_of_dc=30 n=19 k=1 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"a list of dc, one column of a, adjacent",
     "rows=39 rows_of_dc=30 n=19 k=1 groups=3 ragged=1 +offsets +dc_rows", FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"lists, one column of dc, adjacent",
     "rows=39 rows_of_a=20 rows_of_dc=30 n=1 k=19 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"lists of nothing",
     "rows=40 rows_of_a=0 rows_of_dc=0 n=33 k=50 groups=5 ragged=1 +offsets +a_rows +dc_rows",
     FILL_ZERO, LAYOUT_RANDOM},
    {"empty lists", "rows=0 rows_of_a=3 rows_of_dc=4 n=5 k=7 groups=3 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"lists, same-sign sums",
     "rows=9000 rows_of_a=70 rows_of_dc=80 n=8 k=8 groups=2 +offsets +a_rows +dc_rows",
     FILL_SHIFTED, LAYOUT_CONTIGUOUS},
    {"lists, NaN in some rows",
     "rows=90 rows_of_a=99 rows_of_dc=99 n=33 k=50 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NAN, LAYOUT_RANDOM},
    {"lists, beyond 2^31 elements",
     "rows=90 rows_of_a=40 rows_of_dc=30 n=136 k=72 groups=3 ragged=1 +offsets +a_rows +dc_rows",
     FILL_NORMAL, LAYOUT_FAR},
    {0},
};

static const char *const backward_standard[] = {"rows=2048 n=1024 k=512 groups=8", NULL};

const struct op_spec matmul_grouped_backward_spec = {
    .op = "matmul_grouped_backward",
    .command = "matmul-grouped",
    .pass = "backward",
    .params = backward_params,
    .slots = backward_slots,
    .shape = backward_shape,
    .slot_dtype = backward_dtype,
    .infer = backward_infer,
    .complete = backward_complete,
    .call = backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .fill = backward_fill,
    .bound = matmul_grouped_backward_bound,
    .edges = backward_edges,
    .standard = backward_standard,
    .baseline = "naive",
};
