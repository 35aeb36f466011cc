// SPDX-License-Identifier: Apache-2.0
// Grouped matmul for verify, bench, apply and report: the forward pass, and functions of both passes.
#include <math.h>
#include <stdlib.h>

#include "specs/matmul/spec_matmul_grouped.h"
#include "system/heap.h"

static const char *const scale_names[] = {"tensors", "groups", "rows", "blocks", NULL};

static const struct param_spec forward_params[] = {
    GROUPED_PARAMS,
    {"activation", "epilogue: the function of a b + bias", PARAM_CHOICE, 0, matmul_activations},
    {"fp8", "dtypes of a and b; --dtype is then c's", PARAM_CHOICE, 0, matmul_fp8_names},
    {"scales", "of fp8: of tensors; of each b; of 128 columns of a, and of each b; of blocks",
     PARAM_CHOICE, 0, scale_names, SOURCE_TENSORS},
    {"b_dtype", "dtype of b and b_up beside a of f32", PARAM_CHOICE, 0, matmul_b_dtype_names},
    {0},
};

bool grouped_has_counts(const struct op_case *c) { return c->is_present[COUNTS]; }

int grouped_shape_of_starts(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = (int64_t)c->param[GROUPS] + (slot == OFFSETS);
    return 1;
}

int grouped_shape_of_rows(const struct op_case *c, int cols, int list, int size, int64_t *shape) {
    int ndim = 0;
    if (grouped_has_counts(c)) shape[ndim++] = (int64_t)c->param[GROUPS];
    shape[ndim++] = (int64_t)c->param[c->is_present[list] ? size : ROWS];
    shape[ndim++] = (int64_t)c->param[cols];
    return ndim;
}

int grouped_shape_of_list(const struct op_case *c, int64_t *shape) {
    shape[0] = (int64_t)c->param[ROWS];
    return 1;
}

int grouped_shape_of_matrices(const struct op_case *c, int64_t *shape) {
    bool is_transposed = is(c, GROUPED_TRANSPOSE_B);
    shape[0] = (int64_t)c->param[GROUPS];
    shape[1] = (int64_t)c->param[is_transposed ? N : K];
    shape[2] = (int64_t)c->param[is_transposed ? K : N];
    return 3;
}

double grouped_products(const struct op_case *c) {
    double rows = c->param[ROWS] * (grouped_has_counts(c) ? c->param[GROUPS] : 1);
    return rows * c->param[N] * c->param[K];
}

void grouped_complete(struct op_case *c) {
    c->is_present[OFFSETS] = !grouped_has_counts(c);
    if (c->is_present[A_ROWS] && c->param[ROWS_OF_A] == 0) c->param[ROWS_OF_A] = c->param[ROWS];
}

bool grouped_infer_rows(struct op_case *c) {
    const tsr_tensor *a = &c->tensor[GROUPED_A];
    const tsr_tensor *starts = &c->tensor[grouped_has_counts(c) ? COUNTS : OFFSETS];
    if (a->ndim != (grouped_has_counts(c) ? 3 : 2) || starts->ndim != 1) return false;
    c->param[GROUPS] = (double)starts->shape[0] - !grouped_has_counts(c);
    c->param[ROWS] = (double)a->shape[a->ndim - 2];
    c->param[K] = (double)a->shape[a->ndim - 1];
    if (!c->is_present[A_ROWS]) return true;
    c->param[ROWS_OF_A] = c->param[ROWS];
    c->param[ROWS] = (double)c->tensor[A_ROWS].shape[0];
    return c->tensor[A_ROWS].ndim == 1;
}

void grouped_randomize_rows(struct rng *rng, struct op_case *c) {
    enum { MOST = 400000 }; // multiplications, because the oracle is slow
    c->is_present[COUNTS] = rng_chance(rng, 0.3);
    grouped_complete(c);
    grouped_randomize_list(rng, c, A_ROWS, ROWS_OF_A);
    do {
        c->param[GROUPS] = (double)rng_dim(rng, rng_chance(rng, 0.1) ? 80 : 9);
        c->param[ROWS] = (double)rng_dim(rng, grouped_has_counts(c) ? 150 : 700);
        c->param[N] = (double)rng_dim(rng, 300);
        c->param[K] = (double)rng_dim(rng, 900);
        if (rng_chance(rng, 0.5)) // as tensor maps need
            for (int i = N; i <= K; i++) c->param[i] = 8 * ceil(c->param[i] / 8);
    } while (grouped_products(c) > MOST || c->param[GROUPS] * c->param[N] * c->param[K] > MOST);
    c->param[RAGGED] = rng_chance(rng, 0.8);
    c->param[GROUPED_TRANSPOSE_B] = rng_chance(rng, 0.5);
    c->param[GROUPED_ACCUMULATE] = rng_chance(rng, 0.3);
    c->param[GROUPED_ALPHA] = rng_chance(rng, 0.8) ? 1 : 0.375 * (double)rng_int(rng, -2, 2);
}

void grouped_randomize_list(struct rng *rng, struct op_case *c, int list, int size) {
    c->is_present[list] = !grouped_has_counts(c) && rng_chance(rng, 0.4);
    c->param[size] = c->is_present[list] ? fmax((double)rng_dim(rng, 300), 1) : 0;
}

// ---- Values -------------------------------------------------------------------------------------

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// SPECIAL: the second to last group has all rows. ZERO: no group has rows.
static void fill_starts(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                        double *values) {
    int64_t rows = (int64_t)c->param[ROWS], num_groups = (int64_t)c->param[GROUPS];
    int64_t chosen = num_groups > 1 ? num_groups - 2 : 0;
    bool is_ragged = is(c, RAGGED);
    for (int64_t g = 0; g < num_groups + (slot == OFFSETS); g++) {
        int64_t equal = slot == COUNTS ? rows : num_groups > 0 ? rows * g / num_groups : 0;
        bool is_whole = slot == COUNTS ? g == chosen : g > chosen;
        if (fill == FILL_SPECIAL || fill == FILL_ZERO)
            values[g] = fill == FILL_SPECIAL && is_whole ? (double)rows : 0;
        else if (!is_ragged)
            values[g] = (double)equal;
        else if (g > 0 && slot == OFFSETS && rng_chance(rng, 0.25))
            values[g] = values[g - 1]; // an empty group
        else
            values[g] = rng_chance(rng, 0.15)  ? 0
                        : rng_chance(rng, 0.2) ? (double)rows
                                               : (double)rng_int(rng, 0, rows);
    }
    if (slot == OFFSETS) qsort(values, (size_t)num_groups + 1, sizeof *values, by_value);
}

void grouped_spoil_rows(const struct op_case *c, int slot, int list, double *values) {
    const tsr_tensor *t = &c->tensor[slot];
    int64_t cols = t->shape[t->ndim - 1], rows = t->shape[t->ndim - 2];
    if (grouped_has_counts(c)) rows *= t->shape[0];
    bool *is_used = heap_get((size_t)rows + 1, sizeof *is_used);
    for (int64_t g = 0, first, end; g < (int64_t)c->param[GROUPS]; g++) {
        matmul_grouped_rows(c, g, &first, &end);
        for (int64_t i = first; i < end; i++) is_used[matmul_grouped_row(c, list, i)] = true;
    }
    for (int64_t i = 0; i < rows * cols; i++)
        if (!is_used[i / cols]) values[i] = (double)NAN;
    free(is_used);
}

void grouped_fill_list(struct rng *rng, const struct op_case *c, int64_t num_rows, double *values) {
    static const double none[] = {-1, INT32_MIN, INT32_MAX};
    const int32_t *offsets = c->tensor[OFFSETS].data;
    int64_t first = offsets[0], end = offsets[(int64_t)c->param[GROUPS]];
    for (int64_t i = 0; i < (int64_t)c->param[ROWS]; i++)
        values[i] = i >= first && i < end ? (double)rng_int(rng, 0, num_rows - 1)
                                          : none[rng_int(rng, 0, 2)];
}

bool grouped_fill_rows(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                       double *values) {
    if (slot == OFFSETS || slot == COUNTS) {
        fill_starts(rng, c, slot, fill, values);
        return true;
    }
    if (fill != FILL_NORMAL && fill != FILL_SPECIAL && fill != FILL_ZERO) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = rng_normal(rng);
    return true;
}

// ---- Forward ----------------------------------------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {"offsets", SLOT_IN, SLOT_I32, true, NULL, false},
    {"counts", SLOT_IN, SLOT_I32, true, NULL, false},
    {"a_rows", SLOT_IN, SLOT_I32, true, NULL, false},
    {"a", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"b", SLOT_IN, SLOT_MAIN, false, NULL, true},
    {"b_up", SLOT_IN, SLOT_MAIN, true, NULL, true},
    {"bias", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"bias_up", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"c", SLOT_INOUT, SLOT_SMALL, false, NULL, false},
    {"a_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"b_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"b_up_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {0},
};

static int shape_of_scale(const struct op_case *c, int slot, int64_t *shape) {
    const int kind = (int)c->param[GROUPED_SCALES];
    struct op_case blocks = *c;
    shape[0] = 1;
    if (kind == SCALES_OF_TENSORS || (slot == GROUPED_A_SCALE && kind == SCALES_OF_GROUPS))
        return 1;
    blocks.param[K] = ceil(c->param[K] / 128);
    if (slot == GROUPED_A_SCALE) return grouped_shape_of_rows(&blocks, K, A_ROWS, ROWS_OF_A, shape);
    blocks.param[N] = ceil(c->param[N] / 128);
    if (kind == SCALES_OF_BLOCKS) return grouped_shape_of_matrices(&blocks, shape);
    shape[0] = (int64_t)c->param[GROUPS];
    return 1;
}

static int forward_shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case OFFSETS:
    case COUNTS: return grouped_shape_of_starts(c, slot, shape);
    case A_ROWS: return grouped_shape_of_list(c, shape);
    case GROUPED_A: return grouped_shape_of_rows(c, K, A_ROWS, ROWS_OF_A, shape);
    case GROUPED_B:
    case GROUPED_B_UP: return grouped_shape_of_matrices(c, shape);
    case GROUPED_BIAS:
    case GROUPED_BIAS_UP:
        shape[0] = (int64_t)c->param[GROUPS];
        shape[1] = (int64_t)c->param[N];
        return 2;
    case GROUPED_C: return grouped_shape_of_rows(c, N, COUNTS, ROWS, shape);
    default: return shape_of_scale(c, slot, shape);
    }
}

static tsr_dtype forward_dtype(const struct op_case *c, int slot) {
    if (slot <= A_ROWS) return TSR_I32;
    if (c->dtype != TSR_F64 && slot >= GROUPED_A_SCALE) return TSR_F32;
    if (c->dtype != TSR_F64 && is(c, GROUPED_FP8) && slot <= GROUPED_B_UP)
        return matmul_fp8_dtype(c, GROUPED_FP8, slot != GROUPED_A);
    if (c->dtype == TSR_E4M3 || c->dtype == TSR_E5M2) // apply
        return slot <= GROUPED_B_UP ? c->dtype : TSR_F32;
    if (slot == GROUPED_C && is(c, GROUPED_ACCUMULATE))
        return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    if (slot == GROUPED_B || slot == GROUPED_B_UP) return matmul_b_dtype(c, GROUPED_B_DTYPE);
    return slot >= GROUPED_BIAS ? c->small_dtype : c->dtype;
}

static bool forward_infer(struct op_case *c) {
    const tsr_tensor *b = &c->tensor[GROUPED_B];
    if (b->ndim != 3) return false;
    c->param[N] = (double)b->shape[is(c, GROUPED_TRANSPOSE_B) ? 1 : 2];
    c->param[GROUPED_FP8] = matmul_fp8_of(c->tensor[GROUPED_A].dtype, b->dtype);
    c->param[GROUPED_B_DTYPE] = matmul_b_dtype_of(c->tensor[GROUPED_A].dtype, b->dtype);
    const bool has_rows = c->is_present[GROUPED_A_SCALE] && c->tensor[GROUPED_A_SCALE].ndim > 1;
    const tsr_tensor *scale = &c->tensor[GROUPED_B_SCALE];
    c->param[GROUPED_SCALES] = !c->is_present[GROUPED_B_SCALE] ? SCALES_OF_TENSORS
                               : scale->ndim > 1               ? SCALES_OF_BLOCKS
                               : has_rows                      ? SCALES_OF_ROWS
                               : scale->shape[0] != 1          ? SCALES_OF_GROUPS
                                                               : SCALES_OF_TENSORS;
    return grouped_infer_rows(c);
}

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_matmul_grouped_forward_args args = TSR_MATMUL_GROUPED_FORWARD_ARGS(
            .flags = c->flags, .variant = variant, .workspace = workspace,
            .workspace_bytes = given_bytes, .a = c->tensor[GROUPED_A], .b = c->tensor[GROUPED_B],
            .b_up = c->tensor[GROUPED_B_UP], .bias = c->tensor[GROUPED_BIAS],
            .bias_up = c->tensor[GROUPED_BIAS_UP], .offsets = c->tensor[OFFSETS],
            .counts = c->tensor[COUNTS], .c = c->tensor[GROUPED_C],
            .transpose_b = is(c, GROUPED_TRANSPOSE_B),
            .activation = (tsr_activation)c->param[GROUPED_ACTIVATION],
            .accumulate = is(c, GROUPED_ACCUMULATE), .alpha = (float)c->param[GROUPED_ALPHA],
            .has_alpha = 1, .a_rows = c->tensor[A_ROWS], .a_scale = c->tensor[GROUPED_A_SCALE],
            .b_scale = c->tensor[GROUPED_B_SCALE], .b_up_scale = c->tensor[GROUPED_B_UP_SCALE]);
    return workspace_bytes != NULL ? tsr_matmul_grouped_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_matmul_grouped_forward(ctx, &args);
}

static double forward_flops(const struct op_case *c) {
    return 2 * grouped_products(c) * (c->is_present[GROUPED_B_UP] ? 2 : 1);
}

static void forward_randomize(struct rng *rng, struct op_case *c) {
    grouped_randomize_rows(rng, c);
    if (rng_chance(rng, 0.25)) { // few rows, and lines as a kernel for them needs
        const double groups = grouped_has_counts(c) ? 1 : c->param[GROUPS];
        c->param[GROUPED_TRANSPOSE_B] = 1;
        c->param[K] = 8 * ceil(c->param[K] / 8);
        c->param[ROWS] = fmin(c->param[ROWS], ceil(8 * groups * rng_uniform(rng)));
    }
    c->param[GROUPED_ACTIVATION] =
        rng_chance(rng, 0.5) ? 0 : (double)rng_int(rng, 1, TSR_ACTIVATION_RELU2);
    c->is_present[GROUPED_B_UP] = rng_chance(rng, 0.3);
    if (c->is_present[GROUPED_B_UP] && rng_chance(rng, 0.3))
        c->param[GROUPED_ACTIVATION] = TSR_ACTIVATION_SWIGLU_CLAMPED;
    c->is_present[GROUPED_BIAS] = rng_chance(rng, 0.3);
    c->is_present[GROUPED_BIAS_UP] = c->is_present[GROUPED_B_UP] && rng_chance(rng, 0.4);
    c->param[GROUPED_FP8] = rng_chance(rng, 0.6) ? 0 : (double)rng_int(rng, 1, 4);
    if (!is(c, GROUPED_FP8) && rng_chance(rng, 0.3))
        c->param[GROUPED_B_DTYPE] = (double)rng_int(rng, 1, 2);
    if (!is(c, GROUPED_FP8)) return;
    c->is_present[A_ROWS] = false;
    c->param[ROWS_OF_A] = 0;
    if (rng_chance(rng, 0.7)) { // as Hopper's tensor cores need
        c->param[GROUPED_FP8] = c->param[GROUPED_TRANSPOSE_B] = 1;
        c->param[K] = 16 * ceil(c->param[K] / 16);
    }
    c->param[GROUPED_SCALES] = (double)rng_int(rng, SCALES_OF_TENSORS, SCALES_OF_BLOCKS);
    const bool is_scaled = is(c, GROUPED_SCALES) || rng_chance(rng, 0.7);
    c->is_present[GROUPED_A_SCALE] = c->is_present[GROUPED_B_SCALE] = is_scaled;
    c->is_present[GROUPED_B_UP_SCALE] = is_scaled && c->is_present[GROUPED_B_UP];
    if (!is(c, GROUPED_SCALES) && rng_chance(rng, 0.2)) c->is_present[GROUPED_A_SCALE] = false;
}

// c before the call is NaN in elements that the call overwrites; this must not matter.
static bool forward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    int64_t n = (int64_t)c->param[N], first, end;
    if (slot == GROUPED_C) {
        for (int64_t i = 0; i < case_numel(c, slot); i++) values[i] = rng_normal(rng);
        for (int64_t g = 0; g < (int64_t)c->param[GROUPS] && !is(c, GROUPED_ACCUMULATE); g++) {
            matmul_grouped_rows(c, g, &first, &end);
            for (int64_t i = first * n; i < end * n; i++) values[i] = (double)NAN;
        }
        return true;
    }
    if (slot == A_ROWS) {
        grouped_fill_list(rng, c, (int64_t)c->param[ROWS_OF_A], values);
        return true;
    }
    if (slot >= GROUPED_A_SCALE) {
        matmul_fill_scale(rng, c, slot, values);
        if (slot == GROUPED_A_SCALE && c->tensor[slot].ndim > 1)
            grouped_spoil_rows(c, slot, A_ROWS, values);
        return true;
    }
    bool is_done = grouped_fill_rows(rng, c, slot, fill, values);
    if (is_done && slot == GROUPED_A) grouped_spoil_rows(c, slot, A_ROWS, values);
    return is_done;
}

static const char *const forward_standard[] = {
    "rows=2048 n=1024 k=512 groups=8", "rows=2048 n=1024 k=512 groups=64 transpose_b=1", NULL};

const struct op_spec matmul_grouped_forward_spec = {
    .op = "matmul_grouped_forward",
    .command = "matmul-grouped",
    .pass = "forward",
    .params = forward_params,
    .slots = forward_slots,
    .shape = forward_shape,
    .slot_dtype = forward_dtype,
    .infer = forward_infer,
    .complete = grouped_complete,
    .call = forward_call,
    .flops = forward_flops,
    .randomize = forward_randomize,
    .fill = forward_fill,
    .bound = matmul_grouped_forward_bound,
    .edges = matmul_grouped_forward_edges,
    .standard = forward_standard,
    .baseline = "naive",
};
