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

// A tile for heads up to head_dim, head_dim_v: warpgroups that multiply, keys, the tiles of queries and of keys (and values) that
// shared memory holds, and the terms that its registers allow. flash3 only: the least keys, tiles of the bias. cuda-few only:
// nanoseconds for each tile of keys of a block.
struct flash3_tile {
    int head_dim, head_dim_v, groups, block_n, q_stages, stages, terms;
    int64_t least_keys;
    int bias_stages, ns;
};
int64_t attention_cuda_flash3_bytes(const struct flash3_tile *tile); // of shared memory
struct tsri_cuda_program attention_cuda_flash3_program(const struct flash3_tile *tile,
                                                       tsr_dtype dtype);

// Whether a tensor of `dims` columns has a map with boxes of `rows` rows. The stride of a dimension of one element does not
// matter, and a repeated dimension counts as one element.
bool attention_cuda_map_flash3(const struct attention_problem *p, const struct attention_view *view,
                               bool is_of_keys, int64_t dims, int rows,
                               struct tsri_tensor_map_args *args,
                               struct attention_flash3_tensor *tensor);

// All parameters except maps and rounds.
struct attention_flash3_params attention_cuda_flash3_params(const struct attention_problem *p,
                                                            const struct tsri_plan *plan);
// Sets the maps of keys and values and launches the kernel, with as many blocks as run at once.
tsr_status attention_cuda_flash3_launch(tsr_context *ctx, const struct attention_problem *p,
                                        const struct tsri_plan *plan,
                                        const struct flash3_tile *tile,
                                        const struct tsri_cuda_program *program,
                                        struct attention_flash3_params *params);

// flash3's rows of a tile, tiles of queries of all heads, and the tiles of keys that these go through in all.
struct attention_flash3_work {
    int64_t rows, num_tasks, num_tiles;
};
struct attention_flash3_work attention_cuda_flash3_work(const struct attention_problem *p,
                                                        const struct tsri_limits *limits);

#endif
