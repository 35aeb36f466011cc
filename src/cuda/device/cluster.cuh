// SPDX-License-Identifier: Apache-2.0
// Sums over the blocks of a cluster that share a row (sm_90): each block writes its own into the shared memory of
// all, and one barrier of the cluster later each adds them in the same order. The slots alternate as in reduce.cuh.
#ifndef TSRI_DEVICE_CLUSTER_CUH
#define TSRI_DEVICE_CLUSTER_CUH

#include "cuda/device/numbers.cuh"

enum { CLUSTER_MAX_BLOCKS = 8 };

struct cluster {
    float2 (*slots)[CLUSTER_MAX_BLOCKS];
    int turn, rank, size;
};

#define DECLARE_CLUSTER(name)                                                                      \
    __shared__ float2 name##_slots[2][CLUSTER_MAX_BLOCKS];                                         \
    struct cluster name = {name##_slots, 0, cluster_register_rank(), cluster_register_size()}

DEVICE int cluster_register_rank(void) {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE int cluster_register_size(void) {
    int size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

DEVICE void cluster_barrier(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// Of two numbers that all threads of a block have; all threads of the cluster get the sums. No block may have ended,
// nor begun late: the first call comes after a cluster_barrier, the last write before the last barrier.
DEVICE void cluster_two_sums(float *a, float *b, struct cluster *cluster) {
    float2 *slots = cluster->slots[cluster->turn];
    cluster->turn ^= 1;
    if (threadIdx.x < cluster->size) {
        unsigned mine = (unsigned)__cvta_generic_to_shared(slots + cluster->rank), theirs;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(threadIdx.x));
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(theirs), "f"(*a), "f"(*b)
                     : "memory");
    }
    cluster_barrier();
    *a = *b = 0;
    for (int i = 0; i < cluster->size; i++) {
        *a += slots[i].x;
        *b += slots[i].y;
    }
}

#endif
