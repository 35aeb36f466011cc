// SPDX-License-Identifier: Apache-2.0
// A check that the estimates of memory share.
#ifndef TSRI_ESTIMATE_CHECK_H
#define TSRI_ESTIMATE_CHECK_H

#include "core/core_tensor.h"

// Checks that value is at least `least`, and multiplies *product by it, which stays within the largest span of a tensor.
static inline tsr_status tsri_estimate_check_size(const char *op, const char *field, int64_t value,
                                                  int64_t least, int64_t *product) {
    if (value < least)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %lld, expected %lld or more", op, field,
                         (long long)value, (long long)least);
    if (__builtin_mul_overflow(*product, tsri_max(value, 1), product) ||
        *product > TSRI_MAX_ELEMENTS)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is %lld, expected less: the tensors would span more than 2^48 "
                         "elements",
                         op, field, (long long)value);
    return TSR_OK;
}

#endif
