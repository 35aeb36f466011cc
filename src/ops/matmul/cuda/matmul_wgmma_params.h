// SPDX-License-Identifier: Apache-2.0
// What matmul_wgmma_sm90.cu gets, by value, and the arithmetic that it shares with the tests. Read by both compilers: no
// headers, no typedefs.
#ifndef TSRI_MATMUL_WGMMA_PARAMS_H
#define TSRI_MATMUL_WGMMA_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/matmul/matmul_params.h"

#if defined(__CUDACC__)
#define MATMUL_WGMMA_SHARED static __device__ __forceinline__
#else
#define MATMUL_WGMMA_SHARED static inline
#endif

// Of matmul: the matrices of c and residual, the epilogue, m, n, k, batch, group_m, a_is_mn, b_is_mn; tiles_m counts rows
// of tiles of a whole cluster. Maps have the dimensions (along a line, lines, batch[2], batch[1], batch[0]); where all matrices
// of a batch dimension are one, it has size 1 there and 0 in *_batch.
struct matmul_wgmma_params {
    struct tensor_map a, b, b_up, c, residual;
    struct matmul_params matmul;
    float *sums; // of parts of k: block_m * block_n of each block; 0 where there is one part
    unsigned num_tiles;
    int a_batch[3], b_batch[3], b_up_batch[3]; // 1 or 0
    int blocks_of_part;                        // blocks of k whose sum is one of the tensor cores
    int cluster;                               // blocks: 1 or 2
    int has_c_map;        // c is stored by the copy engine: n is whole pieces of 16 bytes
    int end;              // what follows the products: one of those below
    int has_residual_map; // the residual comes by the copy engine
};

// Ends of a product that have code of their own: c in 16 bits by the copy engine, products times alpha alone, or with bias and
// activation. Everything else, and all of it for c of fp32, is RICH.
enum { MATMUL_END_RICH, MATMUL_END_PLAIN, MATMUL_END_ACTIVATED };

// Where a tile lies, counted in tiles; row: of a cluster's tiles.
struct matmul_wgmma_place {
    unsigned row, col, batch;
};

// Tiles go in groups of group_m rows of tiles, column by column.
MATMUL_WGMMA_SHARED struct matmul_wgmma_place
matmul_wgmma_place(unsigned number, unsigned tiles_m, unsigned tiles_n, unsigned group_m) {
    struct matmul_wgmma_place place;
    unsigned tiles = tiles_m * tiles_n, in_batch, group, in_group, first, rows;
    place.batch = number / tiles;
    in_batch = number - place.batch * tiles;
    group = in_batch / (group_m * tiles_n);
    in_group = in_batch - group * (group_m * tiles_n);
    first = group * group_m;
    rows = tiles_m - first < group_m ? tiles_m - first : group_m;
    place.col = in_group / rows;
    place.row = first + (in_group - place.col * rows);
    return place;
}

// Of a tile's columns, 64 at a time: with a gate, those of b and of b_up in turns. Whose is unit `unit`, and at which column of
// c, from the tile's first, it begins.
MATMUL_WGMMA_SHARED int matmul_wgmma_is_of_up(int is_gated, int unit) {
    return is_gated && (unit & 1);
}
MATMUL_WGMMA_SHARED int matmul_wgmma_column(int is_gated, int unit) {
    return (is_gated ? unit >> 1 : unit) * 64;
}

// Tensor cores cut off what does not fit: a sum of k terms of one sign comes out too small by up to this share of it. Sums
// that end in 16 bits get half of it back, by way of alpha, and so err by half of it either way; what 16 bits
// can hold exactly they round back to.
MATMUL_WGMMA_SHARED float matmul_wgmma_drift(int k) { return (float)k / 13 / (1 << 24); }

// fp32 by products of bf16: a number is the sum of three planes, the first of which is nearest to it, the second to what that
// leaves, and so on. Products of planes whose numbers, from 0, add up to more than 2 do not count; those of the first planes
// come last, since tensor cores cut sums off by their size.
enum { MATMUL_PLANES = 3, MATMUL_PLANE_PAIRS = 6 };
MATMUL_WGMMA_SHARED int matmul_plane_of_a(int pair) { return 0x52 >> pair * 2 & 3; } // 2 0 1 1 0 0
MATMUL_WGMMA_SHARED int matmul_plane_of_b(int pair) {
    return 0x118 >> pair * 2 & 3; // 0 2 1 0 1 0
}

// Byte of 16-byte piece `piece` of row `row` of a tile whose rows of 128 bytes are permuted as the copy engine does.
MATMUL_WGMMA_SHARED unsigned matmul_wgmma_piece(int row, int piece) {
    return (unsigned)(row * 128 + (piece ^ (row & 7)) * 16);
}

#endif
