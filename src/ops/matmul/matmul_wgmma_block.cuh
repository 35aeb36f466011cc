// SPDX-License-Identifier: Apache-2.0
// What a block of matmul_wgmma_sm90.cu has: shared memory, tiles, and who works on them.
#ifndef TSRI_MATMUL_WGMMA_BLOCK_CUH
#define TSRI_MATMUL_WGMMA_BLOCK_CUH

#include "cuda/device/tma.cuh"
#include "ops/matmul/matmul_wgmma_params.h"

#if !defined(BLOCK_M) || !defined(BLOCK_N) || !defined(STAGES) || !defined(A_IS_MN) ||             \
    !defined(B_IS_MN) || !defined(IN_TURNS)
#error "BLOCK_M, BLOCK_N, STAGES, A_IS_MN, B_IS_MN and IN_TURNS are not all defined"
#endif

enum {
    GROUPS = 2, // warpgroups that multiply
    THREADS = 128 * (GROUPS + 1),
    WARPS = 4 * GROUPS,
    AT_ONCE = IN_TURNS ? 2 : 1,     // tiles that a block is at
    READERS = IN_TURNS ? 4 : WARPS, // warps of a block that read a stage
    BLOCK_K = 64,
    UNIT = 64,
    UNIT_BYTES = UNIT * BLOCK_K * 2,
    UNITS_A = BLOCK_M / UNIT,
    UNITS_B = BLOCK_N / UNIT,
    STAGE_BYTES = (UNITS_A + UNITS_B) * UNIT_BYTES,
    TILES_M = IN_TURNS ? UNITS_A : UNITS_A / GROUPS, // of 64 rows, of a warpgroup
    EIGHTS = BLOCK_N / 8,
    CHUNKS = BLOCK_N / 64,            // of 64 columns
    STAGED_BYTES = 2048,              // 16 rows of 128 bytes
    STAGING_BYTES = 2 * STAGED_BYTES, // of a warp
    STAGING_AT = STAGES * STAGE_BYTES,
    FULL_AT = STAGING_AT + WARPS * STAGING_BYTES,
    EMPTY_AT = FULL_AT + 8 * STAGES,
    RESIDUAL_AT = EMPTY_AT + 8 * STAGES, // a barrier for each of a warp's two
    BIAS_AT = RESIDUAL_AT + 16 * WARPS,  // that of a group's tile, in fp32
    BIAS_BYTES = BLOCK_N * 4,
};

DEVICE int is_gated(const struct matmul_params *p) { return p->b_up.data != 0; }

static_assert(TILES_M * CHUNKS == 4, "pick() has as many cases");

extern __shared__ __align__(1024) unsigned char shared[];

struct place {
    int row, col, batch[3]; // of c; the last dimension of the batch first
};

DEVICE struct place find_place(const struct matmul_wgmma_params *w, unsigned number, int rank) {
    const struct matmul_params *p = &w->matmul;
    const struct matmul_wgmma_place in_tiles = matmul_wgmma_place(
        number, (unsigned)p->tiles_m, (unsigned)p->tiles_n, (unsigned)p->group_m);
    struct place place;
    place.row = (int)(in_tiles.row * w->cluster + rank) * BLOCK_M;
    place.col = (int)in_tiles.col * (is_gated(p) ? BLOCK_N / 2 : BLOCK_N);
    place.batch[0] = place.batch[1] = place.batch[2] = 0;
    if (in_tiles.batch > 0) {
        const unsigned x = (unsigned)p->batch[2], y = (unsigned)p->batch[1];
        place.batch[0] = (int)(in_tiles.batch % x);
        place.batch[1] = (int)(in_tiles.batch / x % y);
        place.batch[2] = (int)(in_tiles.batch / x / y);
    }
    return place;
}

// Where its matrix of an operand begins.
DEVICE long long matrix_at(const struct matmul_operand *x, const struct place *place) {
    return place->batch[2] * x->batch[0] + place->batch[1] * x->batch[1] +
           place->batch[0] * x->batch[2];
}

// What a warp of the two multiplying groups knows all along. ring: of stages. turn: which of its two staged tiles is the
// next; parity: of the barriers that tell when residuals are in them.
struct worker {
    struct ring ring;
    unsigned base, staging, residual, parity;
    int lane, group, warp, rank, turn; // warp: of its group
};

#endif
