// SPDX-License-Identifier: Apache-2.0
// Checks that every operation's entry makes, and the plain views that kernels take.
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
// A table's band for n: the last of num_bands, by where they begin, that n has reached, or the first.
static inline int tsri_band_of(int64_t n, const int64_t *from, int num_bands) {
    int band = num_bands - 1;
    while (band > 0 && n < from[band]) band--;
    return band;
}

// A tensor as rows: element (r, c) is data[r * stride + c]. The stride is in elements.
struct tsri_rows {
    char *data;
    tsr_dtype dtype;
    int64_t rows, cols, stride;
};

static inline void *tsri_row(const struct tsri_rows *t, int64_t row) {
    return t->data + row * t->stride * tsri_dtype_bytes(t->dtype);
}

// No tensor spans more: products of its elements with a thread count, a byte size or a small factor
// stay far from the end of 64 bits, so that plans need not check them.
#define TSRI_MAX_ELEMENTS ((int64_t)1 << 48)

// "cpu" or "cuda:1", in a buffer of the thread.
const char *tsri_device_text(tsr_device device);

// The device that tensors of this thread's calls must be on from here: every entry says so first, in
// tsri_check_context, so that no check of a tensor can forget it.
void tsri_expect_device(tsr_device device);

// What a tensor is to a call. Outputs must not repeat an element.
enum tsri_role { TSRI_IN, TSRI_OUT };

// dtype, rank, shape, strides, NULL data, alignment. A required tensor must be present. Nobody steps along a dimension of 0 or 1
// elements, nor within an empty tensor: their strides may be any number, and become those of rows without gaps, so that what
// looks at strides from here on need not ask for sizes.
tsr_status tsri_check_tensor(const char *op, const char *field, tsr_tensor *t, enum tsri_role role);

// The same, then the tensor as rows: last dimension contiguous, leading ones collapsed.
tsr_status tsri_check_rows(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                           struct tsri_rows *rows);

// A vector of count contiguous elements.
tsr_status tsri_check_vector(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             int64_t count);

// One element for each row of `like` (..., cols): (...), contiguous, f32, or f64 beside f64.
tsr_status tsri_check_per_row(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                              const char *like_field, const tsr_tensor *like);

tsr_status tsri_check_same_shape(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like);

tsr_status tsri_check_same_dtype(const char *op, const char *field, const tsr_tensor *t,
                                 const char *like_field, const tsr_tensor *like);

// f32, bf16, f16 or f64.
tsr_status tsri_check_float(const char *op, const char *field, const tsr_tensor *t);

// An output keeps its elements apart: sorted by stride, each dimension steps over everything that the
// ones below it span.
tsr_status tsri_check_apart(const char *op, const char *field, const tsr_tensor *t);

// out and other must not share memory. With may_be_same, the very same view is fine.
tsr_status tsri_check_disjoint(const char *op, const char *out_field, const tsr_tensor *out,
                               const char *other_field, const tsr_tensor *other, bool may_be_same);

// "(2, 3, 4)" into a buffer of the caller's; returns it.
const char *tsri_shape_text(const tsr_tensor *t, char *buffer, size_t bytes);

#endif
