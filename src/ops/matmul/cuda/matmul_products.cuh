// SPDX-License-Identifier: Apache-2.0
// The loop over the blocks of k, for kernels of matmul_stages.cuh. Besides that file's definitions, a kernel defines
//     A_IS_MN, B_IS_MN (lines run along m, n instead of k),
//     PRODUCT(acc, a, b, is_more): 64 rows by BLOCK_N columns and 32 bytes along k
#ifndef TSRI_MATMUL_PRODUCTS_CUH
#define TSRI_MATMUL_PRODUCTS_CUH

#include "ops/matmul/cuda/matmul_stages.cuh"

#if !defined(A_IS_MN) || !defined(B_IS_MN) || !defined(PRODUCT)
#error "A_IS_MN, B_IS_MN and PRODUCT are not all defined"
#endif

// The permanent state of a warp of the two multiplying groups. ring: of stages. staging: its two tiles of 16 rows;
// turn: which tile is next. residual, parity: barriers that report residuals in those tiles.
struct worker {
    struct ring ring;
    unsigned base, staging, residual, parity;
    int lane, group, warp, rank, turn; // warp: within its group
};

#define A_SLAB (A_IS_MN ? UNIT_BYTES : 16)
#define B_SLAB (B_IS_MN ? UNIT_BYTES : 16)
#define A_STEP (A_IS_MN ? 2048 : 32) // bytes per k of a PRODUCT
#define B_STEP (B_IS_MN ? 2048 : 32)
enum { STEPS = 4 };

// The warpgroups' turns at multiplying: named barriers at which one group waits and the other arrives.
DEVICE void wait_for_turn(int group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}
DEVICE void give_turn(int group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}

// acc = a b over the next num_blocks (at least 1) blocks of k. The products of one block run while those of the next
// are issued. A stage is free when the next stage's products have been issued and its own are complete.
DEVICE void multiply(float acc[TILES_M][EIGHTS][4], struct worker *me, int cluster, int num_blocks,
                     int gives_turn) {
    const int first_unit = IN_TURNS ? 0 : me->group * TILES_M;
    int before = 0, block = 0;
#pragma unroll 1
    do { // not `for`: products around a loop that may be empty can be serialized (C7515)
        const unsigned stage = me->base + me->ring.stage * STAGE_BYTES;
        const unsigned long long a = wgmma_tile(stage + first_unit * UNIT_BYTES, A_SLAB),
                                 b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, B_SLAB);
        barrier_wait(me->base + FULL_AT + 8 * me->ring.stage, me->ring.parity);
        WGMMA_BEGIN();
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int t = 0; t < TILES_M; t++)
                PRODUCT(acc[t], a + WGMMA_STEP(t * UNIT_BYTES + step * A_STEP),
                        b + WGMMA_STEP(step * B_STEP), block + step);
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (block > 0) release(me->base, before, cluster, me->lane);
        before = me->ring.stage;
        ring_advance(&me->ring, STAGES);
    } while (++block < num_blocks);
    if (IN_TURNS && gives_turn) give_turn(me->group ^ 1);
    WGMMA_WAIT(0);
#pragma unroll
    for (int t = 0; t < TILES_M; t++) WGMMA_HOLD(acc[t], EIGHTS);
    release(me->base, before, cluster, me->lane);
}

#endif
