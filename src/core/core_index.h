// SPDX-License-Identifier: Apache-2.0
// Index tensors on the CPU: token ids, positions, class targets. The library checks their range before a call writes
// anything, so no kernel ever uses a bad index.
#ifndef TSRI_CORE_INDEX_H
#define TSRI_CORE_INDEX_H

#include "core/core_tensor.h"

// An int32 tensor as one run: element i is data[i * stride].
struct tsri_indices {
    const int32_t *data;
    int64_t count, stride;
};

static inline int64_t tsri_index_at(const struct tsri_indices *indices, int64_t i) {
    return indices->data[i * indices->stride];
}

// Checks an int32 tensor of at most four dimensions that collapse to one stride.
tsr_status tsri_check_index_tensor(const char *op, const char *field, tsr_tensor *t,
                                   struct tsri_indices *indices);

// Checks that every value is in [0, limit) or equals *exempt (if exempt is not NULL). It reads the values, so a call
// uses it and _prepare does not. Messages add first_index to the index that they name.
tsr_status tsri_check_index_values(const char *op, const char *field,
                                   const struct tsri_indices *indices, int64_t limit,
                                   const int32_t *exempt, int64_t first_index);

// The same for int32 rows of one stride.
tsr_status tsri_check_index_rows(const char *op, const char *field, const struct tsri_rows *rows,
                                 int64_t limit, const int32_t *exempt);

#endif
