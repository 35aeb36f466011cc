// SPDX-License-Identifier: Apache-2.0
// A block of matmul_wgmma_sm90.cu: its shared memory, its tiles, and the roles of its warps.
#ifndef TSRI_MATMUL_WGMMA_BLOCK_CUH
#define TSRI_MATMUL_WGMMA_BLOCK_CUH

#include "cuda/device/wgmma.cuh"
#include "ops/matmul/cuda/matmul_wgmma_params.h"

#define BLOCK_K (128 / ELEMENT_BYTES)
#if DTYPE == DTYPE_F32 && BLOCK_N == 256
#define PRODUCT WGMMA_TF32_256
#elif DTYPE == DTYPE_F32
#define PRODUCT WGMMA_TF32_128
#elif BLOCK_N == 256
#define PRODUCT(c, a, b, is_more) WGMMA_TILES_256(c, a, b, is_more, A_IS_MN, B_IS_MN)
#elif BLOCK_N == 192
#define PRODUCT(c, a, b, is_more) WGMMA_TILES_192(c, a, b, is_more, A_IS_MN, B_IS_MN)
#elif BLOCK_N == 128
#define PRODUCT(c, a, b, is_more) WGMMA_TILES_128(c, a, b, is_more, A_IS_MN, B_IS_MN)
#else
#define PRODUCT(c, a, b, is_more) WGMMA_TILES_64(c, a, b, is_more, A_IS_MN, B_IS_MN)
#endif
#include "ops/matmul/cuda/matmul_products.cuh"

#if DTYPE == DTYPE_F32 || defined(PLANES)
#define IS_F32 1 // c, bias and residual are fp32
#else
#define IS_F32 0
#endif
enum {
    AT_ONCE = IN_TURNS ? 2 : 1,          // tiles that a block works on
    CHUNKS = BLOCK_N / 64,               // chunks of 64 columns
    RESIDUAL_AT = EMPTY_AT + 8 * STAGES, // one barrier for each of a warp's two tiles
    BIAS_AT = RESIDUAL_AT + 16 * WARPS,  // the bias of a group's tile, in fp32
    BIAS_BYTES = BLOCK_N * 4,
};

DEVICE int is_gated(const struct matmul_params *p) { return p->b_up.data != 0; }

struct place {
    int row, col, batch[3]; // in c; batch starts with the last dimension
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

// Where the tile's matrix of an operand begins.
DEVICE long long matrix_at(const struct matmul_operand *x, const struct place *place) {
    return place->batch[2] * x->batch[0] + place->batch[1] * x->batch[1] +
           place->batch[0] * x->batch[2];
}

#endif
