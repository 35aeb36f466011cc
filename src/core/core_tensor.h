// SPDX-License-Identifier: Apache-2.0
// Checks for the entry of every operation, and the plain views that kernels take.
#ifndef TSRI_CORE_TENSOR_H
#define TSRI_CORE_TENSOR_H

#include <stdbool.h>
#include <tessera/types.h>

#include "core/core_dtype.h"
#include "core/core_status.h"

static inline bool tsri_is_present(const tsr_tensor *t) { return t->dtype != TSR_DTYPE_NONE; }

static inline int64_t tsri_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tsri_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t tsri_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline size_t tsri_round_up(size_t a, size_t multiple) {
    return (a + multiple - 1) / multiple * multiple;
}
// The last band whose start n has reached, or the first band.
static inline int tsri_band_of(int64_t n, const int64_t *from, int num_bands) {
    int band = num_bands - 1;
    while (band > 0 && n < from[band]) band--;
    return band;
}

// A tensor as rows: element (r, c) is data[r * stride + c]. The strides are in elements. Rows of two strides, as the heads in a
// packed qkv, lie in groups: row r is row r % group of group r / group. Only tsri_check_row_groups gives a group; 0: none.
struct tsri_rows {
    char *data;
    tsr_dtype dtype;
    int64_t rows, cols, stride;
    int64_t group, group_stride;
};

static inline int64_t tsri_row_offset(const struct tsri_rows *t, int64_t row) {
    if (t->group == 0) return row * t->stride;
    return row / t->group * t->group_stride + row % t->group * t->stride;
}
static inline void *tsri_row(const struct tsri_rows *t, int64_t row) {
    return t->data + tsri_row_offset(t, row) * tsri_dtype_bytes(t->dtype);
}
static inline void *tsri_element(const struct tsri_rows *t, int64_t row, int64_t col) {
    return t->data + (tsri_row_offset(t, row) + col) * tsri_dtype_bytes(t->dtype);
}

// The largest span of a tensor. Its product with a thread count, a byte size or a small factor stays far below 2^63, so
// plans need no overflow checks.
#define TSRI_MAX_ELEMENTS ((int64_t)1 << 48)

// "cpu" or "cuda:1", in a buffer of the calling thread.
const char *tsri_device_text(tsr_device device);

// Sets the device on which this thread's tensors must be from now on. Every entry calls it first, in
// tsri_check_context, so no check of a tensor can forget the device.
void tsri_expect_device(tsr_device device);

// The role of a tensor in a call. An output must not repeat an element.
enum tsri_role { TSRI_IN, TSRI_OUT };

// Checks dtype, rank, shape, strides, NULL data and alignment. A required tensor must be present. A dimension of 0 or 1
// elements, and every dimension of an empty tensor, may have any stride: the check replaces it by the row-major one, so
// later code can use strides without testing sizes.
tsr_status tsri_check_tensor(const char *op, const char *field, tsr_tensor *t, enum tsri_role role);

// The same checks, then the tensor as rows: the last dimension is contiguous, the others collapse.
tsr_status tsri_check_rows(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                           struct tsri_rows *rows);
// The same for rows of one stride or two.
tsr_status tsri_check_row_groups(const char *op, const char *field, tsr_tensor *t,
                                 enum tsri_role role, struct tsri_rows *rows);

// Checks a vector of `count` contiguous elements.
tsr_status tsri_check_vector(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             int64_t count);

// Checks a contiguous tensor of one element per row of `like` (..., cols): shape (...), dtype f32, or f64 if `like` is
// f64.
tsr_status tsri_check_per_row(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                              const char *like_field, const tsr_tensor *like);

tsr_status tsri_check_same_shape(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like);

tsr_status tsri_check_dtype(const char *op, const char *field, const tsr_tensor *t,
                            tsr_dtype expected);
tsr_status tsri_check_same_dtype(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like);

// Accepts f32, bf16, f16 and f64.
tsr_status tsri_check_float(const char *op, const char *field, const tsr_tensor *t);

// Checks that no two elements of an output share memory: with dimensions sorted by stride, each stride is at least
// the span of all dimensions below it.
tsr_status tsri_check_apart(const char *op, const char *field, const tsr_tensor *t);

// Checks that out and other share no memory. With may_be_same, they may be the very same view.
tsr_status tsri_check_disjoint(const char *op, const char *out_field, const tsr_tensor *out,
                               const char *other_field, const tsr_tensor *other, bool may_be_same);

// Writes "(2, 3, 4)" into the caller's buffer and returns it.
const char *tsri_shape_text(const tsr_tensor *t, char *buffer, size_t bytes);

// The tensors of a call, for one check of all pairs: the first num_in are inputs, the others outputs, which overlap nothing.
struct tsri_named_tensor {
    const char *name;
    const tsr_tensor *tensor;
};
tsr_status tsri_check_all_disjoint(const char *op, const struct tsri_named_tensor *all, int num_in,
                                   int num);

// Checks an optional vector and its dtype; *data stays as it is if the tensor is absent.
tsr_status tsri_check_optional_vector(const char *op, const char *field, tsr_tensor *t,
                                      enum tsri_role role, int64_t count, tsr_dtype dtype,
                                      void **data);

#endif
