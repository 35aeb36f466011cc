// SPDX-License-Identifier: Apache-2.0
// Which tiles a cluster of blocks works on, and on which part of k (stream-K: Osama et al., arXiv:2301.03598). Whole tiles
// go round the clusters. If the last round would leave clusters without a tile, its tiles and those of the round before are
// cut along k into equal shares, counted in grains, as if their k lay in one line. So a share begins and ends within
// tiles. The cluster whose share holds the end of a tile finishes it: the others hand it their sums through memory that
// stays in the second-level cache. It adds them in a fixed order, so every run gives the same bits.
//
// A cluster first works on what it hands over and last on what it takes, so that it rarely waits. It waits only for
// clusters with lower numbers, which started before it.
//
// For kernels of matmul_stages.cuh without turns.
#ifndef TSRI_MATMUL_SHARES_CUH
#define TSRI_MATMUL_SHARES_CUH

#include "ops/matmul/cuda/matmul_products.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

struct work {
    unsigned tile;
    int first, end; // grains of the tile's k
};

// What follows a work's products: its sums are handed over; are c; or are c together with those of other clusters.
enum { WORK_BEGINS, WORK_IS_WHOLE, WORK_ENDS };
DEVICE int kind_of(const struct work *work, unsigned of_tile) {
    return work->end < (int)of_tile ? WORK_BEGINS : work->first > 0 ? WORK_ENDS : WORK_IS_WHOLE;
}

DEVICE unsigned num_clusters_of(int cluster) { return gridDim.x >> (cluster - 1); }

// Where this cluster's share begins and ends. cluster: blocks of a cluster, 1 or 2.
struct share {
    unsigned from, to; // grains
};
DEVICE struct share find_share(const struct matmul_shares *s, int cluster) {
    const unsigned mine = blockIdx.x >> (cluster - 1), all = num_clusters_of(cluster);
    return {matmul_share_begin(s->num_grains, mine, all),
            matmul_share_begin(s->num_grains, mine + 1, all)};
}

// The cluster's work number `number`; returns 0 after the last. of_tile: grains of k of a tile. All is computed anew each
// time, so that little has to stay in registers during the products.
DEVICE int find_work(const struct matmul_shares *s, unsigned number, unsigned of_tile, int cluster,
                     struct work *work) {
    const unsigned all = num_clusters_of(cluster);
    struct share share = {0, 0};
    if (s->num_grains > 0) {
        share = find_share(s, cluster);
        const unsigned last = (share.to - 1) / of_tile, begin = last * of_tile;
        if (share.to % of_tile != 0) { // to be handed over
            const unsigned first = share.from > begin ? share.from - begin : 0;
            *work = {s->num_whole + last, (int)first, (int)(share.to - begin)};
            if (number == 0) return 1;
            share.to = begin + first;
            number--;
        }
    }
    const unsigned tile = (blockIdx.x >> (cluster - 1)) + number * all;
    if (tile < s->num_whole) {
        *work = {tile, 0, (int)of_tile};
        return 1;
    }
    if (share.from >= share.to) return 0;
    const unsigned before = number - s->num_whole / all, end = share.to / of_tile;
    if (end <= before || (end - before) * of_tile <= share.from) return 0;
    const unsigned begin = (end - before - 1) * of_tile;
    *work = {s->num_whole + end - before - 1, share.from > begin ? (int)(share.from - begin) : 0,
             (int)of_tile};
    return 1;
}

// ---- Sums on their way -------------------------------------------------------------------------------

enum { SUMS_OF_BLOCK = TILES_M * EIGHTS * 128 * GROUPS }; // of 16 bytes

DEVICE float4 *sums_of(const struct matmul_shares *s, unsigned block) {
    return (float4 *)s->sums + (long long)block * SUMS_OF_BLOCK + (threadIdx.x - 128);
}

DEVICE unsigned long long *mark_of(const struct matmul_shares *s, unsigned block) {
    return s->marks + block * WARPS + (threadIdx.x / 32 - 4);
}

DEVICE void hand_over(const struct matmul_shares *s, float acc[TILES_M][EIGHTS][4]) {
    float4 *sums = sums_of(s, blockIdx.x);
#pragma unroll
    for (int i = 0; i < TILES_M * EIGHTS; i++) {
        const float *x = acc[i / EIGHTS][i % EIGHTS];
        sums[i * (128 * GROUPS)] = make_float4(x[0], x[1], x[2], x[3]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(mark_of(s, blockIdx.x)),
                     "l"(s->mark)
                     : "memory");
}

// Waits for the sums of this warp's counterpart in a block, and removes its mark, so that a graph that is launched again
// finds none.
DEVICE void wait_for_sums(const struct matmul_shares *s, unsigned block) {
    if (threadIdx.x % 32 == 0) {
        unsigned long long *mark = mark_of(s, block), found;
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                         : "=l"(found)
                         : "l"(mark)
                         : "memory");
        } while (found != s->mark);
        *mark = 0;
    }
    __syncwarp();
}

// Adds the sums of all clusters that worked on a tile before this one, from the last to the first. The tile is the first of
// the cluster's share.
DEVICE void take_over(const struct matmul_shares *s, unsigned of_tile, int cluster,
                      float acc[TILES_M][EIGHTS][4]) {
    const unsigned begin = find_share(s, cluster).from / of_tile * of_tile;
    const unsigned all = num_clusters_of(cluster);
    unsigned block = blockIdx.x;
#pragma unroll 1
    do {
        block -= cluster;
        const float4 *sums = sums_of(s, block);
        wait_for_sums(s, block);
#pragma unroll
        for (int i = 0; i < TILES_M * EIGHTS; i++) {
            float *x = acc[i / EIGHTS][i % EIGHTS];
            const float4 y = sums[i * (128 * GROUPS)];
            x[0] += y.x;
            x[1] += y.y;
            x[2] += y.z;
            x[3] += y.w;
        }
    } while (matmul_share_begin(s->num_grains, block >> (cluster - 1), all) > begin);
}

#endif
