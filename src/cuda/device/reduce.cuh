// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over the THREADS_PER_ROW threads of a row; all of them get the result. Additions follow a fixed tree,
// so every run gives the same result. Rows wider than a warp use shared memory. The slots alternate, so that one
// barrier per reduction is enough: before a thread writes a slot again, it has passed the barrier of the reduction in
// between. A kernel with several such rows per block defines BLOCK_THREADS first.
#ifndef TSRI_DEVICE_REDUCE_CUH
#define TSRI_DEVICE_REDUCE_CUH

#include "cuda/device/numbers.cuh"

#ifndef THREADS_PER_ROW
#error "THREADS_PER_ROW is not defined: a power of two, at most 1024"
#endif

// Threads of a block, its rows, and this thread's place in both. By default, a row wider than a warp has its own block.
#ifndef BLOCK_THREADS
#define BLOCK_THREADS (THREADS_PER_ROW <= 32 ? 128 : THREADS_PER_ROW)
#endif
#define ROWS_PER_BLOCK (BLOCK_THREADS / THREADS_PER_ROW)
#define ROW_THREAD ((int)(threadIdx.x % THREADS_PER_ROW))
#define ROW_OF_BLOCK ((int)(threadIdx.x / THREADS_PER_ROW))

#define ROW_WARPS (THREADS_PER_ROW / 32)
#define ROW_LANES (THREADS_PER_ROW < 32 ? THREADS_PER_ROW : 32)

// After the barrier, each thread itself adds the warps' values, in the order of the shuffles, if they fit in as many
// registers as ARE_FEW allows: a round of shuffles costs more.
#define ARE_FEW(type) (ROW_WARPS * sizeof(type) <= 32)

struct reducer {
    double (*slots)[32]; // two slots: a number or a pair of floats per warp of the block
    int turn;
};

// Synchronizes the threads of a row wider than a warp; each row of a block has its own barrier.
DEVICE void row_barrier(void) {
    if (ROWS_PER_BLOCK == 1)
        __syncthreads();
    else
        asm volatile("barrier.sync %0, %1;" ::"r"(1 + ROW_OF_BLOCK), "n"(THREADS_PER_ROW)
                     : "memory");
}

#if THREADS_PER_ROW > 32
#define DECLARE_REDUCER(name)                                                                      \
    __shared__ double name##_slots[2][32];                                                         \
    struct reducer name = {name##_slots, 0}
#else
#define DECLARE_REDUCER(name) struct reducer name = {0, 0}
#endif

#define DEFINE_REDUCE(name, type, combine, identity)                                               \
    DEVICE type name(type x, struct reducer *reducer) {                                            \
        _Pragma("unroll") for (int i = ROW_LANES / 2; i > 0; i /= 2) {                             \
            type other = __shfl_xor_sync(0xffffffffu, x, i);                                       \
            x = combine(x, other);                                                                 \
        }                                                                                          \
        if (ROW_WARPS > 1) {                                                                       \
            type *slots = (type *)reducer->slots[reducer->turn];                                   \
            int lane = threadIdx.x % 32;                                                           \
            reducer->turn ^= 1;                                                                    \
            if (lane == 0) slots[threadIdx.x / 32] = x;                                            \
            row_barrier();                                                                         \
            if (ARE_FEW(type)) {                                                                   \
                type all[ROW_WARPS > 0 ? ROW_WARPS : 1];                                           \
                _Pragma("unroll") for (int i = 0; i < ROW_WARPS; i++) all[i] =                     \
                    slots[ROW_OF_BLOCK * ROW_WARPS + i];                                           \
                _Pragma("unroll") for (int i = ROW_WARPS / 2; i > 0; i /= 2)                       \
                    _Pragma("unroll") for (int j = 0; j < i; j++) all[j] =                         \
                        combine(all[j], all[j + i]);                                               \
                return all[0];                                                                     \
            }                                                                                      \
            x = lane < ROW_WARPS ? slots[ROW_OF_BLOCK * ROW_WARPS + lane] : identity;              \
            _Pragma("unroll") for (int i = ROW_WARPS / 2; i > 0; i /= 2) {                         \
                type other = __shfl_xor_sync(0xffffffffu, x, i);                                   \
                x = combine(x, other);                                                             \
            }                                                                                      \
            x = __shfl_sync(0xffffffffu, x, 0);                                                    \
        }                                                                                          \
        return x;                                                                                  \
    }

#define ADD(a, b) ((a) + (b))
DEFINE_REDUCE(reduce_sum, float, ADD, 0.0f)
DEFINE_REDUCE(reduce_sum_double, double, ADD, 0.0)
DEFINE_REDUCE(reduce_max, float, fmaxf, -INFINITE)

// Two sums with one barrier.
DEVICE void reduce_two_sums(float *a, float *b, struct reducer *reducer) {
#pragma unroll
    for (int i = ROW_LANES / 2; i > 0; i /= 2) {
        *a += __shfl_xor_sync(0xffffffffu, *a, i);
        *b += __shfl_xor_sync(0xffffffffu, *b, i);
    }
    if (ROW_WARPS > 1) {
        float2 *slots = (float2 *)reducer->slots[reducer->turn];
        int lane = threadIdx.x % 32;
        reducer->turn ^= 1;
        if (lane == 0) slots[threadIdx.x / 32] = make_float2(*a, *b);
        row_barrier();
        if (ARE_FEW(float2)) {
            float2 all[ROW_WARPS > 0 ? ROW_WARPS : 1];
#pragma unroll
            for (int i = 0; i < ROW_WARPS; i++) all[i] = slots[ROW_OF_BLOCK * ROW_WARPS + i];
#pragma unroll
            for (int i = ROW_WARPS / 2; i > 0; i /= 2)
#pragma unroll
                for (int j = 0; j < i; j++) {
                    all[j].x += all[j + i].x;
                    all[j].y += all[j + i].y;
                }
            *a = all[0].x;
            *b = all[0].y;
            return;
        }
        float2 pair = make_float2(0, 0);
        if (lane < ROW_WARPS) pair = slots[ROW_OF_BLOCK * ROW_WARPS + lane];
#pragma unroll
        for (int i = ROW_WARPS / 2; i > 0; i /= 2) {
            pair.x += __shfl_xor_sync(0xffffffffu, pair.x, i);
            pair.y += __shfl_xor_sync(0xffffffffu, pair.y, i);
        }
        *a = __shfl_sync(0xffffffffu, pair.x, 0);
        *b = __shfl_sync(0xffffffffu, pair.y, 0);
    }
}

#endif
