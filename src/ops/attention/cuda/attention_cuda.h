// SPDX-License-Identifier: Apache-2.0
// What attention's forward and backward share on the host: which calls CUDA kernels serve, the problem as kernels read it, and the
// kernel that clears rows of no sequence.
#ifndef TSRI_ATTENTION_CUDA_H
#define TSRI_ATTENTION_CUDA_H

#include "cuda/cuda_kernel.h"
#include "cuda/cuda_tensor_map.h"
#include "ops/attention/attention_params.h"
#include "ops/attention/attention_problem.h"

// A variant's supports: f32, bf16 and f16, with lengths well below the limit of an int.
bool attention_cuda_serves(const void *problem, const struct tsri_limits *limits);

struct attention_params attention_cuda_params(const struct attention_problem *p);

// Whether rows of a tensor move in pieces of 16 bytes: true if its address and the strides in use are multiples of 16 bytes.
bool attention_cuda_is_aligned(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys);

// The bias as the copy engine sees it: boxes of 128 bytes of keys by some queries. Strides of dimensions of one element do not
// matter. head (batch) is 0 if all heads (batches) share one bias, otherwise 1. If all queries share one row, that row is a box.
// False: the copy engine cannot read it, for example one value for all keys.
struct attention_bias_map {
    int head, batch, rows; // rows: of a box
};
bool attention_cuda_map_bias(const struct attention_bias *bias, int64_t seqlen_k, int rows,
                             struct tsri_tensor_map_args *args, struct attention_bias_map *map);

// A program for each of the three dtypes: defines DTYPE, and one more macro if name is not NULL.
struct tsri_cuda_program attention_cuda_program(const char *source, const char *entry,
                                                tsr_dtype dtype);
void attention_cuda_define(struct tsri_cuda_program *program, const char *name, int64_t value);

// Launches with params; does nothing if there are no blocks.
tsr_status attention_cuda_launch(tsr_context *ctx, const char *op,
                                 const struct tsri_cuda_program *program, int64_t num_blocks,
                                 int num_threads, int64_t shared_bytes, const void *params);

// Packed: sets rows of view (laid out as q or as k) that belong to no sequence to 0, and their lse to -inf if has_lse. Launches
// nothing if the problem is not packed. The prepare function belongs to it.
struct tsri_cuda_program attention_cuda_clear_program(void);
tsr_status attention_cuda_prepare_clear(tsr_context *ctx, const char *op,
                                        const struct attention_problem *p);
tsr_status attention_cuda_clear(tsr_context *ctx, const char *op, const struct attention_problem *p,
                                const struct attention_view *view, int64_t dims, bool is_of_keys,
                                bool has_lse);

#endif
