// SPDX-License-Identifier: Apache-2.0
// One product of a warpgroup, 64 x COLS x 64, that exposes every step on which kernels for Hopper rely: copies of boxes
// that fill up with zeros, permuted tiles with lines along k or along m and n, wgmma on both, the layout of its
// results, and their way back to memory by stmatrix and a clipped copy. For tests/cuda/test_cuda_wgmma.c, which checks
// the results to the bit. The host defines
//     DTYPE (bf16 or f16), COLS (16, 32, 64, 128 or 256; below 128, B_IS_MN is 0 and nothing is copied back), A_IS_MN, B_IS_MN
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/device/wgmma_layouts_params.h"

#define TILE_BYTES 8192 // 64 lines of 64 elements
#define NUM_TILES (1 + (COLS + 63) / 64)
#define A_SLAB (A_IS_MN ? TILE_BYTES : 16)
#define B_SLAB (B_IS_MN ? TILE_BYTES : 16)
#define A_STEP (A_IS_MN ? 2048 : 32)
#define B_STEP (B_IS_MN ? 2048 : 32)
#if COLS == 256
#define PRODUCT WGMMA_TILES_256
#elif COLS == 64
#define PRODUCT WGMMA_TILES_64
#elif COLS == 32
#define PRODUCT WGMMA_TILES_32
#elif COLS == 16
#define PRODUCT WGMMA_TILES_16
#else
#define PRODUCT WGMMA_TILES_128
#endif

extern __shared__ __align__(1024) unsigned char shared[];

extern "C" __global__ void __launch_bounds__(128)
    wgmma_layouts(const __grid_constant__ struct wgmma_layouts_params p) {
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    const unsigned base = shared_address(shared), barrier = base + NUM_TILES * TILE_BYTES;
    if (threadIdx.x == 0) {
        barrier_start(barrier, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    // Loads twice, to wait for both parities; the first load has another k and is overwritten.
    for (unsigned parity = 0; parity < 2; parity++) {
        int k = parity == 0 ? p.first_k + 64 : p.first_k;
        if (threadIdx.x == 0) {
            barrier_expect(barrier, NUM_TILES * TILE_BYTES);
            for (int i = 0; i < NUM_TILES; i++) {
                int mn = i == 0 ? 0 : (i - 1) * 64, is_mn = i == 0 ? A_IS_MN : B_IS_MN;
                const int at[5] = {is_mn ? mn : k, is_mn ? k : mn, 0, 0, 0};
                tma_load(base + i * TILE_BYTES, i == 0 ? &p.a : &p.b, at, barrier);
            }
        }
        barrier_wait(barrier, parity);
        __syncthreads();
    }

    float c[COLS / 8][4] = {};
    const unsigned long long a = wgmma_tile(base, A_SLAB),
                             b = wgmma_tile(base + TILE_BYTES, B_SLAB);
    WGMMA_BEGIN();
#pragma unroll
    for (int i = 0; i < 4; i++) { // a single step is multiplied four times, each time from zero
        int step = p.step < 0 ? i : p.step;
        PRODUCT(c, a + WGMMA_STEP(step * A_STEP), b + WGMMA_STEP(step * B_STEP), p.step < 0 ? i : 0,
                A_IS_MN, B_IS_MN);
    }
    WGMMA_COMMIT();
    WGMMA_WAIT(0);
    WGMMA_HOLD(c, COLS / 8);
#pragma unroll
    for (int n = 0; n < COLS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p.fragments[(warp * 16 + lane / 4 + i / 2 * 8) * COLS + n * 8 + lane % 4 * 2 + i % 2] =
                c[n][i];

#if COLS >= 128
    // Stores the first 64 columns, each warp its own 16 rows, over the tile of a.
    __syncthreads();
    const unsigned tile = base + warp * 2048;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const unsigned x[4] = {pair_of_floats(c[n][0], c[n][1]), pair_of_floats(c[n][2], c[n][3]),
                               pair_of_floats(c[n + 1][0], c[n + 1][1]),
                               pair_of_floats(c[n + 1][2], c[n + 1][3])};
        int row = lane % 16, piece = n + lane / 16;
        store_matrices(tile + row * 128 + (piece ^ (row & 7)) * 16, x);
    }
    tma_see_shared();
    __syncwarp();
    if (lane == 0) {
        const int at[5] = {64, (p.first_row + warp) * 16, 0, 0, 0};
        tma_store(tile, &p.out, at);
        TMA_STORES_DONE();
    }
#endif
}
