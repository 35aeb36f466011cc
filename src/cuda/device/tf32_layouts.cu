// SPDX-License-Identifier: Apache-2.0
// One tf32 product of a warpgroup, 64 x COLS x 32, that exposes every step on which kernels rely: boxes that the copy
// engine rounds and fills up with zeros, permuted tiles, wgmma, and the layout of its results. For
// tests/cuda/test_cuda_tf32.c. The host defines COLS (128 or 256).
#define DTYPE 2
#include "cuda/device/tf32_layouts_params.h"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"

#define TILE_BYTES 8192 // 64 lines of 32 floats
#define NUM_TILES (1 + COLS / 64)
#if COLS == 256
#define PRODUCT WGMMA_TF32_256
#else
#define PRODUCT WGMMA_TF32_128
#endif

extern __shared__ __align__(1024) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(128)
    tf32_layouts(const __grid_constant__ struct tf32_layouts_params p) {
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const unsigned base = shared_address(shared), barrier = base + NUM_TILES * TILE_BYTES;
    if (threadIdx.x == 0) {
        barrier_start(barrier, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_expect(barrier, NUM_TILES * TILE_BYTES);
        for (int i = 0; i < NUM_TILES; i++) {
            const int at[5] = {p.first_k, i == 0 ? 0 : (i - 1) * 64, 0, 0, 0};
            tma_load(base + i * TILE_BYTES, i == 0 ? &p.a : &p.b, at, barrier);
        }
    }
    barrier_wait(barrier, 0);
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_BYTES / 4; i += 128) p.tile[i] = ((unsigned *)shared)[i];

    float c[COLS / 8][4] = {};
    const unsigned long long a = wgmma_tile(base, 16), b = wgmma_tile(base + TILE_BYTES, 16);
    const int first = p.step < 0 ? 0 : p.step, end = p.step < 0 ? 4 : p.step + 1;
    for (int i = 0; i < p.repeats; i++) {
        for (int step = first; step < end; step++) {
            WGMMA_BEGIN();
            PRODUCT(c, a + WGMMA_STEP(step * 32), b + WGMMA_STEP(step * 32), i + step - first);
            WGMMA_COMMIT();
            WGMMA_WAIT(0);
            WGMMA_HOLD(c, COLS / 8);
        }
    }
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p.fragments[(warp * 16 + lane / 4 + i / 2 * 8) * COLS + n * 8 + lane % 4 * 2 + i % 2] =
                c[n][i];
}
