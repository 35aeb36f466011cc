// SPDX-License-Identifier: Apache-2.0
// What the variants of attention's forward on CUDA share on the host, and each variant's list of kernels.
#ifndef TSRI_ATTENTION_FORWARD_CUDA_H
#define TSRI_ATTENTION_FORWARD_CUDA_H

#include "ops/attention/cuda/attention_cuda.h"

// Whether sinks and scores are finite in the units of maxima; and whether the call needs features, for which tensor core kernels
// have separate forms: softcap, bias, ALiBi, dropout or any other scale.
bool attention_cuda_is_scale_plain(const struct attention_problem *p);
bool attention_cuda_has_features(const struct attention_problem *p);
// Whether rows of q, k, v and out move in pieces of 16 bytes.
bool attention_cuda_is_forward_aligned(const struct attention_problem *p);

// The columns of the smallest tile that holds both heads: 64, 128 or 256.
int attention_cuda_head_tile(const struct attention_problem *p);

// block_m: queries of a tile. block_n: columns of the kernel's tile. block_k: heads of a section. Also num_tasks.
void attention_cuda_plan_tiles(const struct attention_problem *p, const struct tsri_limits *limits,
                               int block_m, int tile, struct tsri_plan *plan);
struct attention_forward_params attention_cuda_forward_params(const struct attention_problem *p,
                                                              const struct tsri_plan *plan);

// The *index-th standard program of a variant. False: there are fewer, and *index falls by their number.
bool attention_cuda_flash3_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);
bool attention_cuda_small_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);
bool attention_cuda_few_kernel(int *index, tsr_dtype dtype, struct tsri_cuda_program *program);
struct tsri_cuda_program attention_cuda_few_merge_program(void);
bool attention_cuda_flash2_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                  struct tsri_cuda_program *program);
bool attention_cuda_flash1_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                  struct tsri_cuda_program *program);
bool attention_cuda_naive_kernel(int *index, tsr_dtype dtype, int cuda_arch,
                                 struct tsri_cuda_program *program);

// Whether cuda-small (cuda-few) takes less time than flash3.
bool attention_cuda_prefers_small(const struct attention_problem *p,
                                  const struct tsri_limits *limits);
bool attention_cuda_prefers_few(const struct attention_problem *p,
                                const struct tsri_limits *limits);

#endif
