// SPDX-License-Identifier: Apache-2.0
// The bias of cuda-flash3's backward on the host: which tensors have maps, and which kernel writes dbias.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_BIAS_CUDA_H
#define TSRI_ATTENTION_BACKWARD_FLASH3_BIAS_CUDA_H

#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

// Whether the copy engine can read the bias.
bool attention_backward_has_bias_map(const struct attention_problem *p);
// Whether dbias is wanted and flash3 writes it, in the kernel of keys or in a kernel of its own. Otherwise the shared kernel does.
bool attention_backward_flash3_has_dbias(const struct attention_problem *p);
// Floats of the sums over queries, for each batch, head and key. 0 if dbias has a row for each query, or is not wanted.
int64_t attention_backward_dbias_sums(const struct attention_problem *p);
// Sets the bias for boxes of `rows` queries.
tsr_status attention_backward_set_bias(tsr_context *ctx, const struct attention_problem *p,
                                       int rows, struct attention_flash3_bias *to);
// The kernel that runs after the kernel of keys, with the same params; returns the number of programs, at most one.
int attention_backward_dbias_programs(const struct attention_problem *p, int64_t head_dim,
                                      struct tsri_cuda_program *programs);
tsr_status attention_backward_finish_dbias(tsr_context *ctx, const struct attention_problem *p,
                                           struct attention_backward_flash3_params params);
// The i-th rare program; *index falls by their number.
bool attention_backward_dbias_kernel(int *index, struct tsri_cuda_program *program);

#endif
