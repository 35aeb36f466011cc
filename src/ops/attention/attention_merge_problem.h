// SPDX-License-Identifier: Apache-2.0
// Merging of partial results as the variants see it: rows of up to three dimensions, and their parts.
#ifndef TSRI_ATTENTION_MERGE_PROBLEM_H
#define TSRI_ATTENTION_MERGE_PROBLEM_H

#include <tessera/attention_decode.h>

#include "context/op_table.h"

enum { MERGE_DIMS = 3 };

// Strides in elements; columns of outs and out are contiguous.
struct attention_merge_view {
    char *data; // NULL: absent
    tsr_dtype dtype;
    int64_t stride[MERGE_DIMS], part;
};

struct attention_merge_problem {
    struct attention_merge_view outs, lses, out, lse;
    int64_t num_parts, num_rows, dims, shape[MERGE_DIMS];
};

// Offset of a row of one part in elements.
static inline int64_t attention_merge_offset(const struct attention_merge_problem *p,
                                             const struct attention_merge_view *t, int64_t part,
                                             int64_t row) {
    int64_t offset = part * t->part;
    for (int i = MERGE_DIMS - 1; i >= 0; row /= p->shape[i], i--)
        offset += row % p->shape[i] * t->stride[i];
    return offset;
}

tsr_status attention_merge_ordered_run(tsr_context *, const void *, const struct tsri_plan *,
                                       void *);
tsr_status attention_merge_reference_run(tsr_context *, const void *, const struct tsri_plan *,
                                         void *);

bool attention_merge_cuda_serves(const void *problem, const struct tsri_limits *limits);
void attention_merge_cuda_plan(const void *problem, const struct tsri_limits *limits,
                               struct tsri_plan *plan);
tsr_status attention_merge_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status attention_merge_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool attention_merge_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program);

#endif
