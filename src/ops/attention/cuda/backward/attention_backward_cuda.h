// SPDX-License-Identifier: Apache-2.0
// What the variants of attention's backward on CUDA share: statistics of the rows first, dsinks and dbias last.
#ifndef TSRI_ATTENTION_BACKWARD_CUDA_H
#define TSRI_ATTENTION_BACKWARD_CUDA_H

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/attention/cuda/backward/attention_backward_params.h"

enum { ATTENTION_BACKWARD_PROGRAMS = 9 }; // that one variant launches, at most

// Softcap, bias, ALiBi or dropout.
bool attention_backward_has_features(const struct attention_problem *p);
// The larger head dim.
static inline int64_t attention_backward_deepest(const struct attention_problem *p) {
    return tsri_max(p->head_dim, p->head_dim_v);
}
// Columns of the tensor cores' tiles: 64, 128 or 256, at least both head dims.
int64_t attention_backward_tile_dims(const struct attention_problem *p);
// Whether rows of q, k, v, dout and of the gradients move in pieces of 16 bytes.
bool attention_backward_is_aligned(const struct attention_problem *p);
// Rows of the statistics of all heads, padded; and the floats of the statistics at the start of the workspace.
int64_t attention_backward_statistics(const struct attention_problem *p);
int64_t attention_backward_statistics_floats(const struct attention_problem *p);

struct attention_backward_params attention_backward_params_of(const struct attention_problem *p,
                                                              void *workspace);
// sums_rows: with a bias, the variant itself sums rows with a large lse again.
int attention_backward_shared_programs(tsr_context *ctx, const struct attention_problem *p,
                                       bool sums_rows, struct tsri_cuda_program *programs);
tsr_status attention_backward_prepare(tsr_context *ctx, const struct attention_problem *p,
                                      const struct tsri_cuda_program *programs, int count);
// Clears rows of no sequence and computes the statistics.
tsr_status attention_backward_start(tsr_context *ctx, const struct attention_problem *p,
                                    struct attention_backward_params b, bool sums_rows);
// dsinks and dbias.
tsr_status attention_backward_finish(tsr_context *ctx, const struct attention_problem *p,
                                     struct attention_backward_params b);

// For kernels of any dtype. In fp32 they read pieces of four elements if all rows start at multiples of 16 bytes.
void attention_backward_set_any_dtype(const struct attention_problem *p,
                                      struct attention_backward_params *b);

// Shared memory of the kernel of dbias, if dbias is wanted.
bool attention_backward_has_room_for_dbias(const struct attention_problem *p,
                                           const struct tsri_limits *limits);

// The i-th kernel of one group: shared by all variants, flash1 and naive, flash2, flash3, small. If the group has fewer, *index
// falls by their number.
bool attention_backward_shared_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash1_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash2_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash3_kernel(int *index, struct tsri_cuda_program *program);
bool attention_backward_small_kernel(int *index, struct tsri_cuda_program *program);

// Whether cuda-small is faster than the others.
bool attention_backward_prefers_small(const struct attention_problem *p,
                                      const struct tsri_limits *limits);

#endif
