// SPDX-License-Identifier: Apache-2.0
// The keys for sorting tokens by id. An id without a row of its own (out of range or the padding) sorts after all
// others.
#ifndef TSRI_EMBEDDING_SORT_DEVICE_CUH
#define TSRI_EMBEDDING_SORT_DEVICE_CUH

#include "ops/embedding/embedding_params.h"

static __device__ __forceinline__ int key_of(const struct embedding_sort_params *p, int t) {
    if (p->ids == 0) return p->keys_in[t];
    int id = p->ids[t * p->ids_stride];
    return id < 0 || id >= p->vocab || id == p->padding_id ? p->vocab : id;
}

static __device__ __forceinline__ int digit_of(const struct embedding_sort_params *p, int key) {
    return key >> p->shift & (p->digits - 1);
}

#endif
