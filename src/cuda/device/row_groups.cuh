// SPDX-License-Identifier: Apache-2.0
// Rows of one stride or two (struct tsri_rows of the host).
#ifndef TSRI_DEVICE_ROW_GROUPS_CUH
#define TSRI_DEVICE_ROW_GROUPS_CUH

#include "cuda/device/elements_params.h"
#include "cuda/device/numbers.cuh"

// The place of a row's first element.
DEVICE long long row_at(const struct elements_view *view, long long row) {
    if (view->group == 0) return row * view->stride;
    if ((row | view->group) >> 32 == 0) { // a short division
        const unsigned r = (unsigned)row, group = (unsigned)view->group;
        return r / group * view->group_stride + r % group * view->stride;
    }
    return row / view->group * view->group_stride + row % view->group * view->stride;
}

#endif
