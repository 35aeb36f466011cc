// SPDX-License-Identifier: Apache-2.0
// What attention's forward and backward share on the host: what CUDA kernels serve, the problem as they read it, and the
// kernel that clears what belongs to no sequence.
#ifndef TSRI_ATTENTION_CUDA_H
#define TSRI_ATTENTION_CUDA_H

#include "cuda/cuda_kernel.h"
#include "cuda/cuda_tensor_map.h"
#include "ops/attention/attention_params.h"
#include "ops/attention/attention_problem.h"

// A supports: f32, bf16 and f16, of lengths that an int holds with room to spare.
bool attention_cuda_serves(const void *problem, const struct tsri_limits *limits);

struct attention_params attention_cuda_params(const struct attention_problem *p);

// Whether rows of a tensor move in pieces of 16 bytes: its address and the strides that are used.
bool attention_cuda_is_aligned(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys);

// How the copy engine sees a bias, in boxes of 128 bytes of keys times so many queries. What is there once has a stride of no
// account; where all heads or batches have one, head or batch is 0, else 1, and one row that all queries have is a box by
// itself. False: it does not take it, as it does not one value for all keys.
struct attention_bias_map {
    int head, batch, rows; // rows: of a box
};
bool attention_cuda_map_bias(const struct attention_bias *bias, int64_t seqlen_k, int rows,
                             struct tsri_tensor_map_args *args, struct attention_bias_map *map);

// A program of the three dtypes: DTYPE, and one macro more where name is not NULL.
struct tsri_cuda_program attention_cuda_program(const char *source, const char *entry,
                                                tsr_dtype dtype);
void attention_cuda_define(struct tsri_cuda_program *program, const char *name, int64_t value);

// Launches with params; nothing where there are no blocks.
tsr_status attention_cuda_launch(tsr_context *ctx, const char *op,
                                 const struct tsri_cuda_program *program, int64_t num_blocks,
                                 int num_threads, int64_t shared_bytes, const void *params);

// Packed: rows of view (as q or as k) that belong to no sequence become 0, in lse -inf where has_lse. Launches nothing where
// the problem is not packed; prepare goes with it.
struct tsri_cuda_program attention_cuda_clear_program(void);
tsr_status attention_cuda_prepare_clear(tsr_context *ctx, const char *op,
                                        const struct attention_problem *p);
tsr_status attention_cuda_clear(tsr_context *ctx, const char *op, const struct attention_problem *p,
                                const struct attention_view *view, int64_t dims, bool is_of_keys,
                                bool has_lse);

#endif
