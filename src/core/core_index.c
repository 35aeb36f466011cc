// SPDX-License-Identifier: Apache-2.0
#include "core/core_index.h"

#include <inttypes.h>
#include <stdio.h>

tsr_status tsri_check_index_tensor(const char *op, const char *field, tsr_tensor *t,
                                   struct tsri_indices *indices) {
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_IN));
    if (t->dtype != TSR_I32)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected i32", op, field,
                         tsr_dtype_name(t->dtype));
    if (t->ndim >= TSR_MAX_DIMS)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected 0 to %d", op, field,
                         (int)t->ndim, TSR_MAX_DIMS - 1);
    tsr_tensor column = *t; // as rows of one element
    column.shape[column.ndim] = 1;
    column.stride[column.ndim++] = 1;
    struct tsri_rows rows;
    TSRI_TRY(tsri_check_rows(op, field, &column, TSRI_IN, &rows));
    *indices = (struct tsri_indices){(const int32_t *)t->data, rows.rows, rows.stride};
    return TSR_OK;
}

tsr_status tsri_check_index_values(const char *op, const char *field,
                                   const struct tsri_indices *indices, int64_t limit,
                                   const int32_t *exempt, int64_t first_index) {
    // Cast to unsigned, a negative value exceeds every bound.
    const uint32_t bound = (uint32_t)tsri_min(limit, (int64_t)INT32_MAX + 1);
    const int32_t pass = exempt != NULL ? *exempt : 0;
    const bool has_exempt = exempt != NULL;
    for (int64_t i = 0; i < indices->count; i++) {
        int32_t value = indices->data[i * indices->stride];
        if ((uint32_t)value < bound || (has_exempt && value == pass)) continue;
        char also[48] = "";
        if (has_exempt) snprintf(also, sizeof also, " or %" PRId32, pass);
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: element %lld of %s is %" PRId32 ", expected 0 to %lld%s", op,
                         (long long)(first_index + i), field, value, (long long)(limit - 1), also);
    }
    return TSR_OK;
}

tsr_status tsri_check_index_rows(const char *op, const char *field, const struct tsri_rows *rows,
                                 int64_t limit, const int32_t *exempt) {
    const bool is_one_run = rows->stride == rows->cols;
    const int64_t num_runs = is_one_run ? tsri_min(rows->rows, 1) : rows->rows;
    const int64_t length = is_one_run ? rows->rows * rows->cols : rows->cols;
    for (int64_t r = 0; r < num_runs; r++) {
        const struct tsri_indices run = {tsri_row(rows, r), length, 1};
        TSRI_TRY(tsri_check_index_values(op, field, &run, limit, exempt, r * length));
    }
    return TSR_OK;
}
