// SPDX-License-Identifier: Apache-2.0
// Products whose last tiles are cut along k (matmul_shares.cuh): which tiles, and their place in the workspace.
#include "context/cuda_marks.h"
#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

enum { WARPS = 8, MARK_BYTES = 8 }; // warps that multiply; a mark for each

static size_t bytes_of_sums(const struct matmul_cuda_layout *l, int64_t num_blocks) {
    return (size_t)(num_blocks * l->tile->block_m * l->tile->block_n) * sizeof(float);
}

size_t matmul_cuda_shares_bytes(const struct matmul_cuda_layout *l, int64_t num_blocks) {
    if (!l->tile->shares_k) return 0;
    return bytes_of_sums(l, num_blocks) + (size_t)num_blocks * WARPS * MARK_BYTES;
}

int64_t matmul_cuda_num_shared(const struct matmul_cuda_layout *l, int64_t num_clusters) {
    const int64_t left = l->num_tiles % num_clusters;
    return left == 0 || !l->tile->shares_k ? 0 : tsri_min(left + num_clusters, l->num_tiles);
}

bool matmul_cuda_may_share(const struct matmul_problem *p, const struct matmul_cuda_layout *l,
                           int64_t num_clusters) {
    enum {
        MOST_OF_TILE = 3
    }; // clusters that a tile waits for, because it reads their sums one after the other
    const int64_t shared = matmul_cuda_num_shared(l, num_clusters);
    const int64_t grains = shared * matmul_cuda_grains(p, l);
    return shared > 0 && MOST_OF_TILE * shared >= num_clusters && grains >= num_clusters &&
           grains <= INT32_MAX;
}

int64_t matmul_cuda_grains(const struct matmul_problem *p, const struct matmul_cuda_layout *l) {
    const bool is_pair = // sums of 256 of k
        matmul_is_fp8(p->a.dtype) && !p->may_sum_fast && !p->is_block_scaled;
    return tsri_ceil_div(p->k, (is_pair ? 2 : 1) * l->tile->block_k);
}

struct matmul_shares matmul_cuda_shares(const struct matmul_problem *p,
                                        const struct matmul_cuda_layout *l, int64_t num_blocks,
                                        char *workspace) {
    const int64_t num_clusters = num_blocks / tsri_max(l->tile->cluster, 1);
    const int64_t shared = matmul_cuda_num_shared(l, num_clusters);
    if (shared == 0) return (struct matmul_shares){.num_whole = (unsigned)l->num_tiles};
    return (struct matmul_shares){
        .sums = (float *)(void *)workspace,
        .marks = (unsigned long long *)(void *)(workspace + bytes_of_sums(l, num_blocks)),
        .mark = tsri_cuda_new_mark(),
        .num_whole = (unsigned)(l->num_tiles - shared),
        .num_grains = (unsigned)(shared * matmul_cuda_grains(p, l)),
    };
}
