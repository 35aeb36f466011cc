// SPDX-License-Identifier: Apache-2.0
// The bias of cuda-flash3's backward on the host: which tensors have maps, who writes dbias.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_BIAS_CUDA_H
#define TSRI_ATTENTION_BACKWARD_FLASH3_BIAS_CUDA_H

#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

// Whether the copy engine takes the bias.
bool attention_backward_has_bias_map(const struct attention_problem *p);
// Whether dbias is asked for and flash3 writes it: by the kernel of keys, or by one of its own. Else it is that of all variants.
bool attention_backward_flash3_has_dbias(const struct attention_problem *p);
// Floats of sums over queries, of each batch, head and key; 0 where dbias has a row for each query, or there is none.
int64_t attention_backward_dbias_sums(const struct attention_problem *p);
// For boxes of so many queries.
tsr_status attention_backward_set_bias(tsr_context *ctx, const struct attention_problem *p,
                                       int rows, struct attention_flash3_bias *to);
// What is launched behind the kernel of keys, whose params these are; the number of programs, at most one.
int attention_backward_dbias_programs(const struct attention_problem *p, int64_t head_dim,
                                      struct tsri_cuda_program *programs);
tsr_status attention_backward_finish_dbias(tsr_context *ctx, const struct attention_problem *p,
                                           struct attention_backward_flash3_params params);
// Rare programs: the i-th; *index falls by how many there are.
bool attention_backward_dbias_kernel(int *index, struct tsri_cuda_program *program);

#endif
