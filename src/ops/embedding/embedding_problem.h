// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the embedding: the problems that the entries make, and the kernels of one ISA.
#ifndef TSRI_EMBEDDING_PROBLEM_H
#define TSRI_EMBEDDING_PROBLEM_H

#include "context/op_table.h"
#include "core/core_index.h"
#include "cpu/cpu_isa.h"

// Forward: table = weight, rows = y. Backward: table = dweight, rows = dy. table is (vocab,
// hidden), rows (tokens, hidden), ids (tokens).
struct embedding_problem {
    struct tsri_indices ids;
    struct tsri_rows table, rows;
    int64_t padding_id; // backward; -1: none
    bool is_accumulating;
};

// Whether the sums of "unfused", a table in fp32, stay in the cache of the adding thread.
static inline bool embedding_sums_stay(const struct embedding_problem *p,
                                       const struct tsri_limits *limits) {
    return p->table.rows * p->table.cols * (int64_t)sizeof(float) <= limits->l2_bytes / 2;
}

// Rows [first, last) of y.
typedef void embedding_gather_kernel(const struct embedding_problem *problem, int64_t first,
                                     int64_t last, bool is_streaming);

// Rows [first, last) and columns [begin, end) of dweight. The tokens of row v are token[start[v]] ... token[start[v +
// 1] - 1], ascending.
typedef void embedding_sum_kernel(const struct embedding_problem *problem, const int64_t *start,
                                  const int64_t *token, int64_t first, int64_t last, int64_t begin,
                                  int64_t end, bool is_streaming);

// The unfused baseline: sums is (vocab, hidden) in fp32.
typedef void embedding_scatter_kernel(const struct embedding_problem *problem, float *sums);
typedef void embedding_convert_kernel(const struct embedding_problem *problem, const float *sums,
                                      int64_t first, int64_t last);

struct embedding_kernels {
    embedding_gather_kernel *gather;
    embedding_sum_kernel *sum;
    embedding_scatter_kernel *scatter;
    embedding_convert_kernel *convert;
};
TSRI_DECLARE_KERNELS(embedding)

// embedding_cpu.c
tsr_status embedding_gather_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status embedding_sorted_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status embedding_unfused_run(tsr_context *, const void *, const struct tsri_plan *, void *);

// embedding_cuda.c
bool embedding_cuda_fits(const void *, const struct tsri_limits *);
tsr_status embedding_cuda_gather_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status embedding_cuda_gather_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool embedding_cuda_forward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);
void embedding_cuda_plan(const void *, const struct tsri_limits *, struct tsri_plan *);
tsr_status embedding_cuda_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status embedding_cuda_prepare(tsr_context *, const void *, const struct tsri_plan *);
bool embedding_cuda_backward_kernel(int index, int cuda_arch, struct tsri_cuda_program *);

// embedding_ref.c
tsr_status embedding_reference_run(tsr_context *, const void *, const struct tsri_plan *, void *);
tsr_status embedding_reference_backward_run(tsr_context *, const void *, const struct tsri_plan *,
                                            void *);

#endif
