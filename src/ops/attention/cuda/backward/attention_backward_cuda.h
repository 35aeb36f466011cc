// SPDX-License-Identifier: Apache-2.0
// What the variants of attention's backward on CUDA share: statistics of the rows before, dsinks and dbias after.
#ifndef TSRI_ATTENTION_BACKWARD_CUDA_H
#define TSRI_ATTENTION_BACKWARD_CUDA_H

#include "ops/attention/cuda/attention_cuda.h"
#include "ops/attention/cuda/backward/attention_backward_params.h"

enum { ATTENTION_BACKWARD_PROGRAMS = 9 }; // that a variant launches, at most

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
// Of all heads, padded; and how many floats the statistics have at the start of the workspace.
int64_t attention_backward_statistics(const struct attention_problem *p);
int64_t attention_backward_statistics_floats(const struct attention_problem *p);

struct attention_backward_params attention_backward_params_of(const struct attention_problem *p,
                                                              void *workspace);
// sums_rows: rows of a large lse beside a bias are summed again by the variant itself.
int attention_backward_shared_programs(tsr_context *ctx, const struct attention_problem *p,
                                       bool sums_rows, struct tsri_cuda_program *programs);
tsr_status attention_backward_prepare(tsr_context *ctx, const struct attention_problem *p,
                                      const struct tsri_cuda_program *programs, int count);
// Clears what belongs to no sequence and computes the statistics.
tsr_status attention_backward_start(tsr_context *ctx, const struct attention_problem *p,
                                    struct attention_backward_params b, bool sums_rows);
// dsinks and dbias.
tsr_status attention_backward_finish(tsr_context *ctx, const struct attention_problem *p,
                                     struct attention_backward_params b);

// For kernels of any dtype. In fp32 they read pieces of four elements where all rows start at multiples of 16 bytes.
void attention_backward_set_any_dtype(const struct attention_problem *p,
                                      struct attention_backward_params *b);

// Shared memory for the kernel of dbias, where it is asked for.
bool attention_backward_has_room_for_dbias(const struct attention_problem *p,
                                           const struct tsri_limits *limits);

// The i-th kernel of what all variants share, of flash1 and naive, of flash2, of flash3, of small; *index falls by how many there
// are.
bool attention_backward_shared_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash1_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash2_kernel(int *index, int cuda_arch, struct tsri_cuda_program *program);
bool attention_backward_flash3_kernel(int *index, struct tsri_cuda_program *program);
bool attention_backward_small_kernel(int *index, struct tsri_cuda_program *program);

// Whether cuda-small is faster than the others.
bool attention_backward_prefers_small(const struct attention_problem *p,
                                      const struct tsri_limits *limits);

#endif
