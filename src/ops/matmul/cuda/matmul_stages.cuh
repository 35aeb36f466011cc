// SPDX-License-Identifier: Apache-2.0
// Shared by Hopper's kernels of matmul: a block has one warpgroup that makes the copy engine fill a ring of stages, and
// two that multiply. A kernel first defines
//     BLOCK_M, BLOCK_N, STAGES,
//     BLOCK_K: columns of k per stage; they are 128 bytes of a line if lines run along k,
//     IN_TURNS: 0: each warpgroup multiplies half of a tile's rows; 1: the groups alternate between tiles, and one finishes
//         its tile during the other's products
//     STAGING_OF_BLOCK, or not: bytes of the memory through which tiles go to c, in place of two tiles of 16 rows a warp
//
// Tiles in shared memory consist of units of 64 lines: 64 rows (or columns of b) with BLOCK_K of k, or, if lines of the
// operand run along m or n, 64 of k with 64 rows. Both are 8 KiB, copied in one box each; a unit of b belongs to b or
// to b_up.
//
// full[stage] completes when the bytes of a stage have arrived, empty[stage] when every warp of every block that reads
// the stage is done with it.
#ifndef TSRI_MATMUL_STAGES_CUH
#define TSRI_MATMUL_STAGES_CUH

#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(BLOCK_K) || !defined(STAGES) ||             \
    !defined(IN_TURNS)
#error "BLOCK_M, BLOCK_N, BLOCK_K, STAGES and IN_TURNS are not all defined"
#endif

enum {
    GROUPS = 2, // warpgroups that multiply
    THREADS = 128 * (GROUPS + 1),
    WARPS = 4 * GROUPS,
    UNIT = 64, // lines
    UNIT_BYTES = UNIT * 128,
    UNITS_A = BLOCK_M / UNIT,
    UNITS_B = BLOCK_N / UNIT,
    STAGE_BYTES = (BLOCK_M + BLOCK_N) * 128,
    TILES_M = IN_TURNS ? UNITS_A : UNITS_A / GROUPS, // of 64 rows, per warpgroup
    READERS = IN_TURNS ? 4 : WARPS,                  // warps per block that read a stage
    EIGHTS = BLOCK_N / 8,
    STAGED_BYTES = 2048,              // 16 rows of 128 bytes
    STAGING_BYTES = 2 * STAGED_BYTES, // per warp
    STAGING_AT = STAGES * STAGE_BYTES,
#ifdef STAGING_OF_BLOCK
    FULL_AT = STAGING_AT + STAGING_OF_BLOCK,
#else
    FULL_AT = STAGING_AT + WARPS * STAGING_BYTES,
#endif
    EMPTY_AT = FULL_AT + 8 * STAGES,
};

extern __shared__ __align__(1024) unsigned char shared[];

// Initialises the barriers of all stages; called by one thread. writers: arrivals that fill a stage.
DEVICE void start_stages(unsigned base, int cluster, int writers) {
    for (int stage = 0; stage < STAGES; stage++) {
        barrier_start(base + FULL_AT + 8 * stage, writers);
        barrier_start(base + EMPTY_AT + 8 * stage, READERS * cluster);
    }
}

// What a tile with so many rows of c from its first one on needs of a: whole units, then lines of another one, and the bytes of a
// stage. The copy engine takes longer for lines beyond c than for others. last_rows: 0 if c's last tile is whole.
struct units_of_a {
    int whole, lines, bytes;
};
DEVICE struct units_of_a units_of_a(int last_rows, int left) {
    struct units_of_a units = {UNITS_A, 0, STAGE_BYTES};
    if (last_rows == 0 || left >= BLOCK_M) return units;
    units.whole = max(left, 0) / UNIT;
    units.lines = max(left, 0) % UNIT;
    units.bytes -= (UNITS_A - units.whole) * UNIT_BYTES - units.lines * 128;
    return units;
}

// The registers of the warpgroup that copies, and of one that multiplies; SOME where its threads copy rows themselves.
#define TAKE_FEW_REGISTERS() asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define TAKE_MANY_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")
#define TAKE_SOME_REGISTERS() asm volatile("setmaxnreg.dec.sync.aligned.u32 56;")
#define TAKE_MOST_REGISTERS() asm volatile("setmaxnreg.inc.sync.aligned.u32 224;")

// At the end of a kernel: the other block's copies and arrivals may still be on their way here.
DEVICE void leave_cluster(int cluster) {
    if (cluster <= 1) return;
    __syncwarp();
    cluster_barrier();
}

// Reports that this warp is done with a stage.
DEVICE void release(unsigned base, int stage, int cluster, int lane) {
    const unsigned empty = base + EMPTY_AT + 8 * stage;
    if (cluster > 1) {
        if (lane < cluster) barrier_arrive_in(empty, lane);
    } else if (lane == 0) {
        barrier_arrive(empty);
    }
}

#endif
