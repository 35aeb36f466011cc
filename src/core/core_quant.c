// SPDX-License-Identifier: Apache-2.0
// Formats of quantised rows, and the checks that operations with such rows share.
#include "core/core_quant.h"

#include <stdio.h>

#include "core/core_status.h"

static bool is_format(tsr_quant_format format) {
    return format > TSR_QUANT_NONE && (unsigned)format < TSR_QUANT_COUNT;
}

const char *tsr_quant_format_name(tsr_quant_format format) {
    static const char *const names[TSR_QUANT_COUNT] = {
        "none", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "mxfp4_gguf", "int8", "int4", "mxfp4"};
    return (unsigned)format < TSR_QUANT_COUNT ? names[format] : "unknown format";
}

int64_t tsr_quant_row_bytes(tsr_quant_format format, int64_t cols) {
    if (!is_format(format) || cols < 0 || cols > TSRI_MAX_ELEMENTS) return -1;
    if (format == TSR_QUANT_INT8) return cols;
    if (format == TSR_QUANT_INT4) return tsri_ceil_div(cols, 2);
    const struct tsri_quant_block block = tsri_quant_block(format);
    return cols % block.cols == 0 ? cols / block.cols * block.bytes : -1;
}

// ---- Checks -------------------------------------------------------------------------------------

tsr_status tsri_check_quant_format(const char *op, tsr_quant_format format) {
    if (is_format(format)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: quant is %d, expected a tsr_quant_format but none",
                     op, (int)format);
}

tsr_status tsri_check_quant_rows(const char *op, const struct tsri_quant_fields *f,
                                 struct tsri_quant_rows *q) {
    q->format = f->format;
    TSRI_TRY(tsri_check_rows(op, f->name, f->x, TSRI_IN, &q->x));
    return tsri_check_dtype(op, f->name, f->x, TSR_U8);
}

tsr_status tsri_check_quant_bytes(const char *op, const struct tsri_quant_fields *f,
                                  const char *of_field, int of_dim, int64_t cols,
                                  const struct tsri_quant_rows *q) {
    const int64_t bytes = tsr_quant_row_bytes(f->format, cols);
    if (bytes < 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.shape[%d] is %lld, expected a multiple of %d for %s", op, of_field,
                         of_dim, (long long)cols, tsri_quant_block(f->format).cols,
                         tsr_quant_format_name(f->format));
    if (q->x.cols == bytes) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: %s.shape[%d] is %lld, expected the %lld bytes of %lld columns of %s", op,
                     f->name, (int)f->x->ndim - 1, (long long)q->x.cols, (long long)bytes,
                     (long long)cols, tsr_quant_format_name(f->format));
}

static tsr_status check_group(const char *op, const struct tsri_quant_fields *f, int64_t cols,
                              struct tsri_quant_rows *q) {
    enum { UNIT = 32 };
    const bool has_groups = f->format == TSR_QUANT_INT8 || f->format == TSR_QUANT_INT4;
    q->group = f->format == TSR_QUANT_MXFP4 ? UNIT : tsri_max(cols, 1);
    if (has_groups && f->group > 0) q->group = f->group;
    if (f->group == 0 || (has_groups && f->group > 0 && f->group % UNIT == 0)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: group is %d, expected 0%s for %s", op,
                     (int)f->group, has_groups ? " or a multiple of 32" : "",
                     tsr_quant_format_name(f->format));
}

// A tensor beside x, with an element for each group of a row.
static tsr_status check_beside(const char *op, const struct tsri_quant_fields *f, const char *field,
                               tsr_tensor *t, int64_t cols, bool may_be_there,
                               const struct tsri_quant_rows *q, struct tsri_rows *rows) {
    if (!tsri_is_present(t)) return TSR_OK;
    if (!may_be_there)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is present, expected it absent with quant %s", op, field,
                         tsr_quant_format_name(f->format));
    TSRI_TRY(tsri_check_rows(op, field, t, TSRI_IN, rows));
    if (f->format == TSR_QUANT_MXFP4) {
        TSRI_TRY(tsri_check_dtype(op, field, t, TSR_U8));
    } else {
        TSRI_TRY(tsri_check_float(op, field, t));
        if (t->dtype == TSR_F64) TSRI_TRY(tsri_check_dtype(op, f->like_name, f->like, TSR_F64));
        TSRI_TRY(tsri_check_same_dtype(op, field, t, f->scale_name, f->scale));
    }
    char shape[64];
    tsr_tensor expected = *f->x;
    expected.shape[expected.ndim - 1] = tsri_ceil_div(cols, q->group);
    snprintf(shape, sizeof shape, "%s with an element for each group", f->name);
    return tsri_check_same_shape(op, field, t, shape, &expected);
}

tsr_status tsri_check_quant_scales(const char *op, const struct tsri_quant_fields *f, int64_t cols,
                                   struct tsri_quant_rows *q) {
    const bool has_scales = tsri_quant_block(f->format).has_scales;
    const bool has_zeros = has_scales && f->format != TSR_QUANT_MXFP4;
    TSRI_TRY(check_group(op, f, cols, q));
    if (has_scales && !tsri_is_present(f->scale))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected a tensor with quant %s",
                         op, f->scale_name, tsr_quant_format_name(f->format));
    TSRI_TRY(check_beside(op, f, f->scale_name, f->scale, cols, has_scales, q, &q->scale));
    TSRI_TRY(check_beside(op, f, f->zero_name, f->zero, cols, has_zeros, q, &q->zero));
    return check_beside(op, f, f->minimum_name, f->minimum, cols, has_zeros, q, &q->minimum);
}
