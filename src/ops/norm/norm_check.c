// SPDX-License-Identifier: Apache-2.0
// Checks that the entries of layernorm and rmsnorm share.
#include "ops/norm/norm_problem.h"

tsr_status norm_check_x(const char *op, tsr_tensor *x, struct norm_problem *p) {
    TSRI_TRY(tsri_check_row_groups(op, "x", x, TSRI_IN, &p->x));
    TSRI_TRY(tsri_check_float(op, "x", x));
    p->is_mixed = p->x.group > 0;
    p->rows = p->x.rows;
    p->cols = p->x.cols;
    p->dtype = p->x.dtype;
    return TSR_OK;
}

// f64 goes with f64 only, the other dtypes with each other.
static tsr_status check_dtype(const char *op, const char *field, const tsr_tensor *t,
                              tsr_dtype of_x) {
    TSRI_TRY(tsri_check_float(op, field, t));
    if ((t->dtype == TSR_F64) == (of_x == TSR_F64)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s as x is %s", op, field,
                     tsr_dtype_name(t->dtype), of_x == TSR_F64 ? "f64" : "f32, bf16 or f16",
                     tsr_dtype_name(of_x));
}

tsr_status norm_check_like_x(const char *op, const struct norm_field *field, const tsr_tensor *x,
                             bool is_optional, struct norm_problem *p, struct tsri_rows *rows) {
    if (is_optional && !tsri_is_present(field->tensor)) return TSR_OK;
    TSRI_TRY(tsri_check_row_groups(op, field->name, field->tensor, field->role, rows));
    TSRI_TRY(check_dtype(op, field->name, field->tensor, x->dtype));
    p->is_mixed |= rows->group > 0 || rows->dtype != x->dtype;
    return tsri_check_same_shape(op, field->name, field->tensor, "x", x);
}

tsr_status norm_check_residual(const char *op, const struct norm_field *residual,
                               const struct norm_field *residual_out, const tsr_tensor *x,
                               struct norm_problem *p) {
    bool has_residual = tsri_is_present(residual->tensor);
    if (has_residual != tsri_is_present(residual_out->tensor))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is present and %s absent, expected both or none", op,
                         has_residual ? residual->name : residual_out->name,
                         has_residual ? residual_out->name : residual->name);
    TSRI_TRY(norm_check_like_x(op, residual, x, true, p, &p->residual));
    return norm_check_like_x(op, residual_out, x, true, p, &p->residual_out);
}

tsr_status norm_check_vector(const char *op, const struct norm_field *field, struct norm_problem *p,
                             struct norm_vector *vector) {
    tsr_tensor *t = field->tensor;
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, field->name, t, field->role, p->cols));
    if (t->dtype != TSR_F32) TSRI_TRY(check_dtype(op, field->name, t, p->dtype));
    p->is_mixed |= t->dtype != TSR_F32 && t->dtype != p->dtype;
    *vector = (struct norm_vector){t->data, t->dtype};
    return TSR_OK;
}

tsr_status norm_check_gradient(const char *op, const struct norm_field *field,
                               const struct norm_problem *p, const tsr_tensor *weight,
                               struct norm_vector *vector) {
    tsr_tensor *t = field->tensor;
    const tsr_dtype like = tsri_is_present(weight) ? weight->dtype : p->dtype;
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, field->name, t, field->role, p->cols));
    if (t->dtype != like && t->dtype != TSR_F32)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s%s", op, field->name,
                         tsr_dtype_name(t->dtype), tsr_dtype_name(like),
                         like == TSR_F32 ? "" : " or f32");
    *vector = (struct norm_vector){t->data, t->dtype};
    return TSR_OK;
}

tsr_status norm_check_statistic(const char *op, const struct norm_field *field, const tsr_tensor *x,
                                bool is_optional, struct norm_vector *vector) {
    tsr_tensor *t = field->tensor;
    if (is_optional && !tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_per_row(op, field->name, t, field->role, "x", x));
    *vector = (struct norm_vector){t->data, t->dtype};
    return TSR_OK;
}

tsr_status norm_check_eps(const char *op, float eps, int32_t has_eps, struct norm_problem *p) {
    TSRI_TRY(tsri_check_flag(op, "eps", has_eps, (double)eps, true));
    p->eps = has_eps ? (double)eps : 1e-5;
    if (p->eps >= 0 && p->eps <= 3.5e38) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: eps is %g, expected a finite number, 0 or more", op,
                     p->eps);
}

tsr_status norm_check_overlaps(const char *op, const struct norm_field *fields, int num_fields,
                               struct norm_problem *p) {
    for (int o = 0; o < num_fields; o++) {
        const struct norm_field *out = &fields[o];
        if (out->role != TSRI_OUT || !tsri_is_present(out->tensor)) continue;
        for (int f = 0; f < num_fields; f++) {
            const struct norm_field *other = &fields[f];
            if (f == o || (other->role == TSRI_OUT && f > o)) continue;
            bool may_be_same = other->role == TSRI_IN && out->may_alias && other->may_alias;
            TSRI_TRY(tsri_check_disjoint(op, out->name, out->tensor, other->name, other->tensor,
                                         may_be_same));
            p->is_in_place |= may_be_same && out->tensor->data == other->tensor->data;
        }
    }
    return TSR_OK;
}
