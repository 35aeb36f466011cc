// SPDX-License-Identifier: Apache-2.0
// Layer and root mean square normalisation for verify, bench, apply and report: the functions of all
// four descriptions, which are in spec_norm_forward.c and spec_norm_backward.c. One set of functions
// serves both norms; rmsnorm has no slot "mean".
//
// The bounds, u = 2^-24, n = cols, K = 8 + sqrt(n), sigma = sqrt(variance + eps),
// h the normalised value:
//   mean, variance   fp32 sums of x - shift, the shift within a standard deviation of the mean:
//                    errors of K u sigma and K u sigma^2, whatever the mean is.
//   y                h has the error K u (1 + |h|), times the weight; product and sum round once.
//                    rmsnorm has no mean, hence K u |h|.
//   residual         s is rounded: s + d, |d| <= u_dtype |s|. With E the root mean square of d and
//                    D_i = |d_i| + mean |d|, the triangle inequality gives |sigma' - sigma| <= E
//                    and |h' - h| <= (D_i + |h_i| E) / (sigma - E); and |h'| <= sqrt(n) always.
//   dx               K u (mean |g| + |h_i| mean |g h|) from the sums, 4 u of each term.
//   dweight, dbias   sums over rows in groups, (8 + 2 sqrt(rows)) u of the sum of magnitudes.
// verify adds the rounding to the output's dtype. Subnormal products may become 0: 2^-126.
#include <stdio.h>

#include "specs/spec_norm.h"

int norm_shape(const struct op_case *c, int slot, int64_t *shape) {
    bool is_statistic = is_slot(c, slot, "mean") || is_slot(c, slot, "rstd");
    bool is_vector = is_slot(c, slot, "weight") || is_slot(c, slot, "bias") ||
                     is_slot(c, slot, "dweight") || is_slot(c, slot, "dbias");
    int ndim = 0;
    if (!is_vector) shape[ndim++] = (int64_t)c->param[0];
    if (!is_vector && case_int(c, "heads") > 0) shape[ndim++] = case_int(c, "heads");
    if (!is_statistic) shape[ndim++] = (int64_t)c->param[1];
    return ndim;
}

const char *const norm_dtype_names[] = {"main", "f32", "bf16", "f16", NULL};

static tsr_dtype chosen(double choice, tsr_dtype otherwise) {
    static const tsr_dtype dtypes[] = {TSR_DTYPE_NONE, TSR_F32, TSR_BF16, TSR_F16};
    return choice > 0 ? dtypes[(int)choice] : otherwise;
}

tsr_dtype norm_slot_dtype(const struct op_case *c, int slot) {
    const tsr_dtype weight = chosen(case_real(c, "weight_dtype"), c->small_dtype);
    char name[64];
    if (c->dtype == TSR_F64) return TSR_F64;
    if (is_slot(c, slot, "x")) return c->dtype;
    if (is_slot(c, slot, "mean") || is_slot(c, slot, "rstd")) return TSR_F32;
    if (is_slot(c, slot, "weight") || is_slot(c, slot, "bias")) return weight;
    if (is_slot(c, slot, "dweight") || is_slot(c, slot, "dbias")) // in f32 or in weight's dtype
        return c->small_dtype == TSR_F32 || !has(c, "weight") ? c->small_dtype : weight;
    snprintf(name, sizeof name, "%s_dtype", c->spec->slots[slot].name);
    return chosen(case_real(c, name), c->dtype);
}

// A large tensor that the files give determines its dtype. residual_out is present with residual.
bool norm_infer(struct op_case *c) {
    if (c->tensor[0].ndim != 2) return false;
    for (int s = 1; c->spec->slots[s].name != NULL; s++) {
        const tsr_dtype dtype = c->tensor[s].dtype;
        char name[64];
        snprintf(name, sizeof name, "%s_dtype", c->spec->slots[s].name);
        const int param = spec_param(c->spec, name);
        if (param < 0 || !c->is_present[s] || c->spec->slots[s].role != SLOT_IN ||
            c->spec->slots[s].kind != SLOT_MAIN)
            continue;
        c->param[param] = dtype == c->dtype ? 0 : dtype == TSR_F32 ? 1 : dtype == TSR_BF16 ? 2 : 3;
    }
    c->param[0] = (double)c->tensor[0].shape[0];
    c->param[1] = (double)c->tensor[0].shape[1];
    norm_set_presence(c, "residual_out", has(c, "residual"));
    return true;
}

void norm_set_presence(struct op_case *c, const char *name, bool is_present) {
    int slot = spec_slot(c->spec, name);
    if (slot >= 0) c->is_present[slot] = is_present;
}

void norm_draw_sizes(struct rng *rng, struct op_case *c) {
    if (rng_chance(rng, 0.15)) { // many rows, for several groups of dweight and dbias
        c->param[0] = (double)rng_dim(rng, 4000);
        c->param[1] = (double)rng_int(rng, 0, 24);
        return;
    }
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 5000);
    c->param[0] = (double)rng_dim(rng, cols > 2000 ? 6 : 24);
    c->param[1] = (double)cols;
}

void norm_draw_forms(struct rng *rng, struct op_case *c, const char *const *dtype_params) {
    const int64_t rows = (int64_t)c->param[0];
    if (rng_chance(rng, 0.3)) {
        c->param[spec_param(c->spec, "heads")] = (double)rng_int(rng, 1, 5);
        c->param[0] = (double)((rows + 3) / 4);
    }
    if (rng_chance(rng, 0.3)) c->param[spec_param(c->spec, "zero_centered_weight")] = 1;
    if (rng_chance(rng, 0.6)) return;
    for (; *dtype_params != NULL; dtype_params++)
        if (rng_chance(rng, 0.5))
            c->param[spec_param(c->spec, *dtype_params)] = (double)rng_int(rng, 1, 3);
}

// FILL_SPECIAL: rows of x are in turn from 40000 to 40003, all equal, and tiny; with eps 0 all rows are
// tiny, so that their squares underflow.
static void fill_special(struct rng *rng, bool is_all_tiny, double *x, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++, x++)
            *x = is_all_tiny || r % 3 == 2 ? rng_normal(rng) * 1e-30
                 : r % 3 == 0              ? 40000 + (double)(i % 4)
                                           : 40000.1 / (double)(r + 1);
}

bool norm_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill, double eps,
               double *values) {
    int64_t numel = case_numel(c, slot);
    if (is_slot(c, slot, "x")) {
        if (fill == FILL_SPECIAL)
            fill_special(rng, eps == 0, values, norm_rows(c), (int64_t)c->param[1]);
        return fill == FILL_SPECIAL;
    }
    if (fill == FILL_NORMAL || fill == FILL_NAN || fill == FILL_LARGE) return false;
    bool is_weight = is_slot(c, slot, "weight");
    bool is_shifted = fill == FILL_SHIFTED && is_slot(c, slot, "residual");
    if (is_shifted) return false;
    for (int64_t i = 0; i < numel; i++)
        values[i] = is_weight ? 1 + 0.5 * rng_normal(rng) : rng_normal(rng);
    return true;
}
