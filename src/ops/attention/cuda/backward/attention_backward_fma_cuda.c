// SPDX-License-Identifier: Apache-2.0
// The sizes of the tiles that attention_backward_fma.cuh has in shared memory.
#include "ops/attention/cuda/backward/attention_backward_fma_cuda.h"

int64_t attention_backward_fma_stride(int64_t dims) {
    return (int64_t)tsri_round_up((size_t)dims, 32) + 4;
}

int64_t attention_backward_fma_bytes(const struct attention_problem *p, int64_t block,
                                     int num_scores) {
    int64_t stride = attention_backward_fma_stride(p->head_dim),
            stride_v = attention_backward_fma_stride(p->head_dim_v);
    return block * (2 * (stride + stride_v) + num_scores * (block + 4)) * (int64_t)sizeof(float);
}

bool attention_backward_has_fma_room(const struct attention_problem *p, int64_t block,
                                     int num_scores, const struct tsri_limits *limits) {
    enum { MARKS = BACKWARD_FMA_BLOCK * sizeof(float) };
    return attention_backward_fma_bytes(p, block, num_scores) + MARKS <=
           limits->shared_bytes_per_block;
}

int64_t attention_backward_fma_rows(const struct attention_problem *p, int64_t most, int num_scores,
                                    const struct tsri_limits *limits) {
    return attention_backward_has_fma_room(p, most, num_scores, limits) ? most : most / 2;
}

bool attention_backward_has_whole_tiles(int cuda_arch) {
    return tsri_cuda_arch_shared_bytes(cuda_arch) >= tsri_cuda_arch_shared_bytes(90);
}
