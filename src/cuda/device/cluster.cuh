// SPDX-License-Identifier: Apache-2.0
// Sums over the blocks of a cluster that share a row (sm_90). Each block writes its value into the shared memory of all
// blocks; after one cluster barrier, each adds the values in the same order. The slots alternate as in reduce.cuh.
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

// The cluster's number in the grid; without clusters, the block's number.
DEVICE unsigned cluster_register_number(void) {
    unsigned number;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
    return number;
}

DEVICE void cluster_barrier(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// The two halves of the barrier. They do not order ordinary stores; for copies and for barriers in shared memory.
DEVICE void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in block `rank` that corresponds to this block's shared-memory address.
DEVICE unsigned cluster_address(unsigned shared, int rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    return there;
}
// Copies bytes, a multiple of 16, to another block; they count at that block's barrier. Ordinary stores must be fenced
// first, as before a copy to global memory.
DEVICE void cluster_copy(unsigned there, unsigned shared, int bytes, unsigned barrier_there) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(there),
                 "r"(shared), "r"(bytes), "r"(barrier_there)
                 : "memory");
}

// Sends a pair, or a double, that all threads of a block hold, to all blocks of the cluster. All blocks must be
// running: the first call comes after a cluster_barrier, the last write before the last barrier.
DEVICE const float2 *cluster_exchange(float2 pair, struct cluster *cluster) {
    float2 *slots = cluster->slots[cluster->turn];
    cluster->turn ^= 1;
    if (threadIdx.x < cluster->size) {
        unsigned mine = (unsigned)__cvta_generic_to_shared(slots + cluster->rank), theirs;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(threadIdx.x));
        asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(theirs), "f"(pair.x),
                     "f"(pair.y)
                     : "memory");
    }
    cluster_barrier();
    return slots;
}

// Sums over the blocks in the same order in each block; all threads of the cluster get them.
DEVICE void cluster_two_sums(float *a, float *b, struct cluster *cluster) {
    const float2 *slots = cluster_exchange(make_float2(*a, *b), cluster);
    *a = *b = 0;
    for (int i = 0; i < cluster->size; i++) {
        *a += slots[i].x;
        *b += slots[i].y;
    }
}

DEVICE double cluster_sum_double(double x, struct cluster *cluster) {
    float2 pair = make_float2(__int_as_float(__double2loint(x)), __int_as_float(__double2hiint(x)));
    const float2 *slots = cluster_exchange(pair, cluster);
    x = 0;
    for (int i = 0; i < cluster->size; i++)
        x += __hiloint2double(__float_as_int(slots[i].y), __float_as_int(slots[i].x));
    return x;
}

#endif
