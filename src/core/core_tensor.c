// SPDX-License-Identifier: Apache-2.0
#include "core/core_tensor.h"

#include <stdio.h>

tsr_tensor tsr_tensor_contiguous(const void *data, tsr_dtype dtype, int ndim,
                                 const int64_t *shape) {
    tsr_tensor t = {0};
    if (ndim < 0 || ndim > TSR_MAX_DIMS) return t;
    t.data = (void *)(uintptr_t)data; // inputs and outputs share one tensor type
    t.dtype = dtype;
    t.ndim = ndim;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        if (__builtin_mul_overflow(stride, shape[i] > 0 ? shape[i] : 1, &stride))
            stride = INT64_MAX;
    }
    return t;
}

int64_t tsr_tensor_numel(const tsr_tensor *t) {
    int64_t n = 1;
    if (t->ndim < 0 || t->ndim > TSR_MAX_DIMS) return 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] <= 0) return 0;
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n)) return INT64_MAX;
    return n;
}

const char *tsri_shape_text(const tsr_tensor *t, char *buffer, size_t bytes) {
    size_t used = (size_t)snprintf(buffer, bytes, "(");
    // This also prints a tensor whose ndim is not checked yet.
    for (int i = 0; i < t->ndim && i < TSR_MAX_DIMS && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, i ? ", %lld" : "%lld",
                                 (long long)t->shape[i]);
    if (used < bytes) snprintf(buffer + used, bytes - used, t->ndim == 1 ? ",)" : ")");
    return buffer;
}

static _Thread_local tsr_device expected_device; // initially the CPU

void tsri_expect_device(tsr_device device) { expected_device = device; }

const char *tsri_device_text(tsr_device device) {
    static _Thread_local char text[2][32]; // a sentence may name two devices
    static _Thread_local unsigned turn;
    char *buffer = text[turn++ % 2];
    if (device.type == TSR_CPU && device.index == 0) return "cpu";
    if (device.type == TSR_CUDA)
        snprintf(buffer, sizeof *text, "cuda:%d", (int)device.index);
    else
        snprintf(buffer, sizeof *text, "{%d, %d}", (int)device.type, (int)device.index);
    return buffer;
}

// The checks have passed, so every stride in use and the number of elements are at most 2^48.
static void settle_strides(tsr_tensor *t, bool is_empty) {
    int64_t beyond = 1; // the stride of a dimension that holds all later ones without gaps
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (is_empty || t->shape[i] == 1) t->stride[i] = beyond;
        beyond = t->stride[i] * tsri_max(t->shape[i], 1);
    }
}

tsr_status tsri_check_tensor(const char *op, const char *field, tsr_tensor *t,
                             enum tsri_role role) {
    if (!tsri_is_present(t))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected a tensor", op, field);
    if ((unsigned)t->dtype >= TSR_DTYPE_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %d, expected a tsr_dtype", op,
                         field, (int)t->dtype);
    // A host has one CPU, so its index is ignored.
    if (t->device.type != expected_device.type ||
        (t->device.type != TSR_CPU && t->device.index != expected_device.index))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is on device %s, expected %s, the device of the context", op,
                         field, tsri_device_text(t->device), tsri_device_text(expected_device));
    if (t->ndim < 0 || t->ndim > TSR_MAX_DIMS)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected 0 to %d", op, field,
                         (int)t->ndim, TSR_MAX_DIMS);
    int64_t room = 1; // number of elements, a dimension of 0 counted as 1
    int64_t last = 0; // offset of the last element
    bool is_empty = false, is_too_large = false, is_too_long = false;
    for (int i = 0; i < t->ndim; i++) is_empty |= t->shape[i] == 0;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.shape[%d] is %lld, expected 0 or more",
                             op, field, i, (long long)t->shape[i]);
        bool is_taken = t->shape[i] > 1 && !is_empty;
        if (t->stride[i] < 0 && is_taken)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[%d] is %lld, expected 0 or more",
                             op, field, i, (long long)t->stride[i]);
        int64_t size = tsri_max(t->shape[i], 1), stride = is_taken ? t->stride[i] : 0, step;
        is_too_large |= __builtin_mul_overflow(room, size, &room);
        is_too_long |= __builtin_mul_overflow(size - 1, stride, &step) ||
                       __builtin_add_overflow(last, step, &last);
    }
    is_too_long |= last >= TSRI_MAX_ELEMENTS;
    if (is_too_large || room > TSRI_MAX_ELEMENTS || is_too_long)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s spans more elements than any memory holds, expected at most 2^48",
                         op, field);
    settle_strides(t, is_empty);
    if (is_empty) return TSR_OK;
    for (int i = 0; i < t->ndim && role == TSRI_OUT; i++)
        if (t->stride[i] == 0 && t->shape[i] > 1)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s.stride[%d] is 0, expected a stride that keeps the %lld "
                             "elements of an output apart",
                             op, field, i, (long long)t->shape[i]);
    if (t->data == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.data is NULL, expected %lld elements", op,
                         field, (long long)room);
    size_t bytes = (size_t)tsri_dtype_bytes(t->dtype);
    if (((uintptr_t)t->data & (bytes - 1)) != 0) // bytes is a power of 2
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.data is %p, expected an address that is a multiple of the %zu "
                         "bytes of %s",
                         op, field, t->data, bytes, tsr_dtype_name(t->dtype));
    return TSR_OK;
}

// The stride with which a leading dimension goes on as the rows of a view lie.
static int64_t fitting_stride(const struct tsri_rows *view) {
    return view->group > 0 ? view->rows / view->group * view->group_stride
                           : view->rows * view->stride;
}

// Adds a leading dimension to a view: to its rows, or as its groups if it has none yet. False if it fits neither.
static bool add_dimension(struct tsri_rows *view, int64_t size, int64_t stride, bool may_group) {
    const int64_t fitting = fitting_stride(view);
    if (view->rows == 1)
        view->stride = stride;
    else if (stride != fitting && may_group && view->group == 0)
        view->group = view->rows, view->group_stride = stride;
    else if (stride != fitting)
        return false;
    view->rows *= size;
    return true;
}

static tsr_status check_rows(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             bool may_group, struct tsri_rows *view) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    if (t->ndim < 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is 0, expected at least 1", op, field);
    int last = t->ndim - 1;
    if (t->stride[last] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.stride[%d] is %lld, expected 1 (a contiguous last dimension)", op,
                         field, last, (long long)t->stride[last]);
    *view = (struct tsri_rows){t->data, t->dtype, 1, t->shape[last], 0, 0, 0};
    bool is_empty = tsr_tensor_numel(t) == 0;
    for (int i = last - 1; i >= 0; i--) {
        if (t->shape[i] == 1) continue;
        if (is_empty)
            view->rows *= t->shape[i];
        else if (!add_dimension(view, t->shape[i], t->stride[i], may_group))
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s.stride[%d] is %lld, expected %lld so that the leading "
                             "dimensions collapse to rows of %s",
                             op, field, i, (long long)t->stride[i], (long long)fitting_stride(view),
                             may_group ? "one stride or two" : "one stride");
    }
    if (view->rows <= 1 || is_empty) view->stride = view->cols;
    if (role == TSRI_OUT && view->group > 0) return tsri_check_apart(op, field, t);
    if (role == TSRI_OUT && view->stride < view->cols)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has rows of %lld elements at a stride of %lld, expected a stride "
                         "that keeps the rows of an output apart",
                         op, field, (long long)view->cols, (long long)view->stride);
    return TSR_OK;
}

tsr_status tsri_check_rows(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                           struct tsri_rows *view) {
    return check_rows(op, field, t, role, false, view);
}

tsr_status tsri_check_row_groups(const char *op, const char *field, tsr_tensor *t,
                                 enum tsri_role role, struct tsri_rows *view) {
    return check_rows(op, field, t, role, true, view);
}

tsr_status tsri_check_vector(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             int64_t count) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    char text[128];
    if (t->ndim != 1 || t->shape[0] != count)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%lld,)", op, field,
                         tsri_shape_text(t, text, sizeof text), (long long)count);
    if (t->stride[0] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[0] is %lld, expected 1", op, field,
                         (long long)t->stride[0]);
    return TSR_OK;
}

// Fast path: each stride is at least the span of all later dimensions.
static bool is_in_order(const tsr_tensor *t) {
    int64_t span = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 1) continue;
        if (t->stride[i] < span) return false;
        span += (t->shape[i] - 1) * t->stride[i];
    }
    return true;
}

tsr_status tsri_check_apart(const char *op, const char *field, const tsr_tensor *t) {
    bool is_done[TSR_MAX_DIMS] = {false};
    int64_t span = 1;
    if (tsr_tensor_numel(t) == 0 || is_in_order(t)) return TSR_OK;
    for (int n = 0; n < t->ndim; n++) {
        int next = -1;
        for (int i = 0; i < t->ndim; i++)
            if (!is_done[i] && (next < 0 || t->stride[i] < t->stride[next] ||
                                (t->stride[i] == t->stride[next] && t->shape[i] == 1)))
                next = i;
        is_done[next] = true;
        if (t->shape[next] == 1) continue;
        if (t->stride[next] < span)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s.stride[%d] is %lld, expected at least %lld, which keeps the "
                             "elements of an output apart",
                             op, field, next, (long long)t->stride[next], (long long)span);
        span += (t->shape[next] - 1) * t->stride[next];
    }
    return TSR_OK;
}

tsr_status tsri_check_same_shape(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like) {
    bool same = t->ndim == like->ndim;
    for (int i = 0; same && i < t->ndim; i++) same = t->shape[i] == like->shape[i];
    if (same) return TSR_OK;
    char got[128], expected[128];
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s as %s", op, field,
                     tsri_shape_text(t, got, sizeof got),
                     tsri_shape_text(like, expected, sizeof expected), like_field);
}

tsr_status tsri_check_dtype(const char *op, const char *field, const tsr_tensor *t,
                            tsr_dtype expected) {
    if (t->dtype == expected) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s", op, field,
                     tsr_dtype_name(t->dtype), tsr_dtype_name(expected));
}

tsr_status tsri_check_per_row(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                              const char *like_field, const tsr_tensor *like) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(tsri_check_dtype(op, field, t, like->dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    char name[64];
    tsr_tensor shape = *like;
    shape.ndim--;
    snprintf(name, sizeof name, "%s without its last dimension", like_field);
    TSRI_TRY(tsri_check_same_shape(op, field, t, name, &shape));
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->stride[i] != stride)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: %s.stride[%d] is %lld, expected %lld (contiguous)", op, field, i,
                             (long long)t->stride[i], (long long)stride);
        stride *= tsri_max(t->shape[i], 1);
    }
    return TSR_OK;
}

tsr_status tsri_check_same_dtype(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like) {
    if (t->dtype == like->dtype) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s as %s", op, field,
                     tsr_dtype_name(t->dtype), tsr_dtype_name(like->dtype), like_field);
}

tsr_status tsri_check_float(const char *op, const char *field, const tsr_tensor *t) {
    if (t->dtype == TSR_F32 || t->dtype == TSR_BF16 || t->dtype == TSR_F16 || t->dtype == TSR_F64)
        return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected f32, bf16, f16 or f64", op,
                     field, tsr_dtype_name(t->dtype));
}

// The first byte and the byte after the last one. False for an empty tensor, whose strides mean nothing.
static bool extent(const tsr_tensor *t, uintptr_t *begin, uintptr_t *end) {
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] <= 0) return false;
    for (int i = 0; i < t->ndim; i++) last += (t->shape[i] - 1) * t->stride[i];
    size_t bytes = tsr_dtype_bytes(t->dtype);
    *begin = (uintptr_t)t->data;
    *end = *begin + ((size_t)last + 1) * bytes;
    return true;
}

// Describes a tensor's bytes as runs of `width` bytes that start at multiples of `period` from its first byte. The last
// dimensions, as far as they are contiguous, form one run. False if the other strides are not multiples of the smallest
// one.
static bool is_periodic(const tsr_tensor *t, size_t *width, size_t *period) {
    size_t bytes = tsr_dtype_bytes(t->dtype);
    int64_t run = 1, step = 0;
    int last = t->ndim;
    while (last > 0 && (t->stride[last - 1] == run || t->shape[last - 1] == 1))
        run *= t->shape[--last];
    for (int i = 0; i < last; i++)
        if (t->shape[i] > 1 && (step == 0 || t->stride[i] < step)) step = t->stride[i];
    for (int i = 0; i < last; i++)
        if (t->shape[i] > 1 && (step == 0 || t->stride[i] % step != 0)) return false;
    *width = (size_t)run * bytes;
    *period = (size_t)step * bytes;
    return step == 0 || run <= step;
}

// True if both are interleaved views of one buffer, as the q, k and v columns of a fused projection.
static bool is_interleaved(const tsr_tensor *a, const tsr_tensor *b) {
    size_t width_a, width_b, period_a, period_b;
    if (!is_periodic(a, &width_a, &period_a) || !is_periodic(b, &width_b, &period_b)) return false;
    if (period_a == 0) period_a = period_b;
    if (period_b == 0) period_b = period_a;
    if (period_a == 0 || period_a != period_b) return false;
    uintptr_t first_a = (uintptr_t)a->data, first_b = (uintptr_t)b->data;
    size_t distance = first_b >= first_a ? (first_b - first_a) % period_a
                                         : (period_a - (first_a - first_b) % period_a) % period_a;
    return distance >= width_a && distance + width_b <= period_a;
}

static bool is_same_view(const tsr_tensor *a, const tsr_tensor *b) {
    bool same = a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i] && a->stride[i] == b->stride[i];
    return same;
}

tsr_status tsri_check_disjoint(const char *op, const char *out_field, const tsr_tensor *out,
                               const char *other_field, const tsr_tensor *other, bool may_be_same) {
    if (!tsri_is_present(out) || !tsri_is_present(other)) return TSR_OK;
    uintptr_t begin, end, other_begin, other_end;
    if (!extent(out, &begin, &end) || !extent(other, &other_begin, &other_end)) return TSR_OK;
    if (end <= other_begin || other_end <= begin) return TSR_OK;
    if ((may_be_same && is_same_view(out, other)) || is_interleaved(out, other)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s overlaps %s in memory, expected %s", op,
                     out_field, other_field,
                     may_be_same ? "the same view or none of its bytes" : "none of its bytes");
}

tsr_status tsri_check_all_disjoint(const char *op, const struct tsri_named_tensor *all, int num_in,
                                   int num) {
    for (int i = num_in; i < num; i++)
        for (int j = 0; j < i; j++)
            TSRI_TRY(tsri_check_disjoint(op, all[i].name, all[i].tensor, all[j].name, all[j].tensor,
                                         false));
    return TSR_OK;
}

tsr_status tsri_check_optional_vector(const char *op, const char *field, tsr_tensor *t,
                                      enum tsri_role role, int64_t count, tsr_dtype dtype,
                                      void **data) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_vector(op, field, t, role, count));
    TSRI_TRY(tsri_check_dtype(op, field, t, dtype));
    *data = t->data;
    return TSR_OK;
}
