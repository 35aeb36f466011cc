// SPDX-License-Identifier: Apache-2.0
// Tiles of the fp32 kernels of attention's backward, on the host: their rows, and the shared memory that they take.
#ifndef TSRI_ATTENTION_BACKWARD_FMA_CUDA_H
#define TSRI_ATTENTION_BACKWARD_FMA_CUDA_H

#include "ops/attention/cuda/attention_cuda.h"

enum {
    BACKWARD_FMA_THREADS = 256,
    BACKWARD_FMA_BLOCK = 64, // rows of the highest tiles
};

// Floats of one row of a tile.
int64_t attention_backward_fma_stride(int64_t dims);
// Bytes of tiles of keys, values, queries and dout, and of num_scores matrices of scores, with `block` rows each.
int64_t attention_backward_fma_bytes(const struct attention_problem *p, int64_t block,
                                     int num_scores);
// Whether such tiles fit into shared memory, together with a mark for each row of the highest tiles.
bool attention_backward_has_fma_room(const struct attention_problem *p, int64_t block,
                                     int num_scores, const struct tsri_limits *limits);
// Rows of a tile: `most`, or half of it if shared memory is too small.
int64_t attention_backward_fma_rows(const struct attention_problem *p, int64_t most, int num_scores,
                                    const struct tsri_limits *limits);
// Whether tiles of the most rows fit in all plans.
bool attention_backward_has_whole_tiles(int cuda_arch);

#endif
