// SPDX-License-Identifier: Apache-2.0
// The tiles of matmul_grouped_sm90.cu: their sizes, and where each of them is.
#ifndef TSRI_MATMUL_GROUPED_TILES_CUH
#define TSRI_MATMUL_GROUPED_TILES_CUH

#include "ops/matmul/cuda/matmul_tiles.cuh"
#include "ops/matmul/matmul_grouped_params.h"

#if !defined(A_IS_MN) || !defined(B_IS_MN)
#error "A_IS_MN and B_IS_MN are not both defined"
#endif
#define BLOCK_M 128
#define BLOCK_N 256
#define BLOCK_K 64
#define STAGES 4
#define IN_TURNS 0
#define PICKED 4
#include "ops/matmul/cuda/matmul_staged.cuh"

// ---- Tiles ------------------------------------------------------------------------------------

// Boxes of the copy engine ignore groups. If groups cut m, rows after a group's end are multiplied but not stored: the
// 16 rows that contain the end are stored by the threads. If groups cut k, the last block has fewer steps, and of the last step
// lines after the end are set to zero in shared memory before the products, in both operands, because they may hold NaN.
enum { STEP_K = 16, MOST_STEPS = BLOCK_K / STEP_K };

DEVICE int steps_of_block(int lines) {
    return lines >= BLOCK_K ? MOST_STEPS : (lines + STEP_K - 1) / STEP_K;
}

struct place {
    int row, col, group; // in c: if all rows are in one matrix, row counts from its start
    int end_row;         // of c or of the group
    int first_k, size_k;
};

// rows: rows of tiles, of all groups or, if they cut k, of one. The whole warp must call it.
DEVICE struct place find_place(const struct matmul_params *p, unsigned number, unsigned rows) {
    const struct matmul_wgmma_place in_tiles =
        matmul_wgmma_place(number, rows, (unsigned)p->tiles_n, (unsigned)p->group_m);
    struct place place;
    int row = (int)in_tiles.row, first, end;
    place.group = A_IS_MN ? (int)in_tiles.batch : find_group(p, &row, BLOCK_M);
    group_rows(p, place.group, &first, &end);
    place.row = row * BLOCK_M + (A_IS_MN ? 0 : first);
    place.col = (int)in_tiles.col * (is_gated(p) ? BLOCK_N / 2 : BLOCK_N);
    place.end_row = A_IS_MN ? (int)p->m : end;
    place.first_k = A_IS_MN ? first : 0;
    place.size_k = A_IS_MN ? end - first : (int)p->k;
    return place;
}

// The tile that begins with a stage, for the warps that multiply: {row, col, group, end_row}. They would take long to find it.
enum { PLACE_AT = EMPTY_AT + 8 * STAGES };
static_assert(PLACE_AT % 16 == 0, "places are int4");

DEVICE void give_place(const struct place *place, int stage) {
    *(int4 *)(shared + PLACE_AT + 16 * stage) =
        make_int4(place->row, place->col, place->group, place->end_row);
}

// Waits for the next stage, with which the tile begins. If groups cut k, a tile may have no stage.
DEVICE struct place take_place(const struct matmul_params *p, const struct ring *ring,
                               unsigned base) {
    barrier_wait(base + FULL_AT + 8 * ring->stage, ring->parity);
    const int4 at = *(const int4 *)(shared + PLACE_AT + 16 * ring->stage);
    return {at.x, at.y, at.z, at.w, 0, (int)p->k};
}

#endif
