// SPDX-License-Identifier: Apache-2.0
// What cuda-flash3's forward and cuda-few share on the host.
#ifndef TSRI_ATTENTION_FLASH3_CUDA_H
#define TSRI_ATTENTION_FLASH3_CUDA_H

#include "ops/attention/cuda/forward/attention_flash3_params.h"
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

enum {
    FLASH3_SLAB = 64,       // columns of a box
    FLASH3_GROUP_ROWS = 64, // queries of a warpgroup
};

// A tile for heads up to these: warpgroups that multiply, keys, and how many tiles of queries, and of keys and of values, shared
// memory holds; terms that scores may have, which registers decide. Of flash3: keys that it is for, tiles of the bias. Of
// cuda-few: nanoseconds for each tile of keys that a block goes through.
struct flash3_tile {
    int head_dim, head_dim_v, groups, block_n, q_stages, stages, terms;
    int64_t least_keys;
    int bias_stages, ns;
};
int64_t attention_cuda_flash3_bytes(const struct flash3_tile *tile); // of shared memory
struct tsri_cuda_program attention_cuda_flash3_program(const struct flash3_tile *tile,
                                                       tsr_dtype dtype);

// Whether a tensor of `dims` columns has a map, of boxes of `rows` rows. What is there once has a stride of no account, and what
// repeats itself is there once.
bool attention_cuda_map_flash3(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys, int64_t dims, int rows,
                               struct tsri_tensor_map_args *args,
                               struct attention_flash3_tensor *tensor);

// All but maps and rounds.
struct attention_flash3_params attention_cuda_flash3_params(const struct attention_problem *p,
                                                            const struct tsri_plan *plan);
// Maps of keys and values, and the kernel, by as many blocks as run at once.
tsr_status attention_cuda_flash3_launch(tsr_context *ctx, const struct attention_problem *p,
                                        const struct tsri_plan *plan,
                                        const struct flash3_tile *tile,
                                        const struct tsri_cuda_program *program,
                                        struct attention_flash3_params *params);

// Rows of a tile, tiles of queries of all heads, and tiles of keys that they go through together, as flash3 would have it.
struct attention_flash3_work {
    int64_t rows, num_tasks, num_tiles;
};
struct attention_flash3_work attention_cuda_flash3_work(const struct attention_problem *p,
                                                        const struct tsri_limits *limits);

#endif
