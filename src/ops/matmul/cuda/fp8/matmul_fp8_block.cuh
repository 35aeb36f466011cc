// SPDX-License-Identifier: Apache-2.0
// A block of matmul_fp8_sm90.cu: its tiles, its shared memory, and a tile's place in c.
#ifndef TSRI_MATMUL_FP8_BLOCK_CUH
#define TSRI_MATMUL_FP8_BLOCK_CUH

#define HAS_SCALES
#include "ops/matmul/cuda/fp8/matmul_fp8_params.h"
#include "ops/matmul/cuda/matmul_epilogue.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

#if !defined(A_FORMAT) || !defined(B_FORMAT) || !defined(IS_FAST)
#error "A_FORMAT, B_FORMAT and IS_FAST are not all defined"
#endif
#if A_FORMAT == 5 && B_FORMAT == 5
#define TYPES "e4m3.e4m3"
#elif A_FORMAT == 5
#define TYPES "e4m3.e5m2"
#elif B_FORMAT == 5
#define TYPES "e5m2.e4m3"
#else
#define TYPES "e5m2.e5m2"
#endif

#define BLOCK_M 128
#define BLOCK_N 256
#define BLOCK_K 128
#define STAGES 4
#define IN_TURNS 0
#define A_IS_MN 0
#define B_IS_MN 0
#define PRODUCT(c, a, b, is_more) WGMMA_FP8_256(TYPES, c, a, b, is_more)
#include "ops/matmul/cuda/matmul_products.cuh"

#define PICKED 8
#include "ops/matmul/cuda/matmul_staged.cuh"

struct place {
    int row, col; // in c
    int end_row;  // of c or of the group
    long long batch, index[3];
};

// The tiles of the product. rows: rows of tiles of clusters, of all groups or of one matrix.
struct tiles {
    unsigned rows, count;
};
DEVICE struct tiles find_tiles(const struct matmul_fp8_params *w) {
#ifdef GROUPED
    const unsigned rows = count_rows_of_tiles(&w->matmul, BLOCK_M);
    return {rows, rows * (unsigned)w->matmul.tiles_n};
#else
    return {(unsigned)w->matmul.tiles_m, w->num_tiles};
#endif
}

// With groups the whole warp must call it.
DEVICE struct place find_place(const struct matmul_fp8_params *w, unsigned number, unsigned rows,
                               int rank, int cluster) {
    const struct matmul_params *p = &w->matmul;
    const struct matmul_wgmma_place in_tiles =
        matmul_wgmma_place(number, rows, (unsigned)p->tiles_n, (unsigned)p->group_m);
    struct place place;
    place.col = (int)in_tiles.col * (is_gated(p) ? BLOCK_N / 2 : BLOCK_N);
#ifdef GROUPED
    int row = (int)in_tiles.row, first;
    place.batch = find_group(p, &row, BLOCK_M);
    group_rows(p, (int)place.batch, &first, &place.end_row);
    place.row = first + row * BLOCK_M;
    place.index[0] = place.index[1] = 0;
    place.index[2] = place.batch;
#else
    place.row = (int)(in_tiles.row * cluster + rank) * BLOCK_M;
    place.end_row = (int)p->m;
    place.batch = in_tiles.batch;
    batch_index(place.index, p->batch, in_tiles.batch);
#endif
    return place;
}

// Whether the copy engine may store 16 rows: it omits those beyond c, but not those of the next group.
DEVICE int may_store_box(const struct place *place, int row) {
#ifdef GROUPED
    return row + 16 <= place->end_row;
#else
    return 1;
#endif
}

// The number of blocks of k; even if they are summed in pairs, because the copy engine fills up with zeros beyond k.
DEVICE int blocks_of(const struct matmul_params *p) {
    const int count = ((int)p->k + BLOCK_K - 1) / BLOCK_K;
    return IS_FAST || p->is_block_scaled ? count : (count + 1) / 2 * 2;
}

#endif
