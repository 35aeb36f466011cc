// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul_wgmma_sm90.cu and matmul_swapped_sm90.cu, passed by value, and arithmetic that they share with the
// tests. Both compilers read this file: no headers, no typedefs.
#ifndef TSRI_MATMUL_WGMMA_PARAMS_H
#define TSRI_MATMUL_WGMMA_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/matmul/matmul_params.h"

#if defined(__CUDACC__)
#define MATMUL_WGMMA_SHARED static __device__ __forceinline__
#else
#define MATMUL_WGMMA_SHARED static inline
#endif

// Used fields of matmul: the matrices of c and residual, the epilogue, m, n, k, batch, group_m, a_is_mn, b_is_mn;
// tiles_m counts rows of tiles of a whole cluster, of swapped tiles tiles_n columns. Maps have the dimensions (along a line,
// lines, batch[2], batch[1], batch[0]). If all matrices of a batch dimension are one, its size is 1 and *_batch is 0.
struct matmul_wgmma_params {
    struct tensor_map a, b, b_up, c, residual;
    struct tensor_map
        a_last;    // of the last row of tiles, whose boxes end with c; where lines of a run along k
    int last_rows; // its rows of c; 0: it is whole
    struct matmul_params matmul;
    float *sums; // of parts of k: block_m * block_n per block; 0 with one part
    unsigned num_tiles;
    int a_batch[3], b_batch[3], b_up_batch[3]; // 1 or 0
    int blocks_of_part;                        // blocks of k that tensor cores sum in one part
    int cluster;                               // blocks per cluster: 1 or 2
    int has_c_map;        // the copy engine stores c: n is whole pieces of 16 bytes
    int end;              // the end of the product: one of those below
    int has_residual_map; // the copy engine loads the residual
};

// Ends of a product with code of their own: the copy engine stores c in 16 bits, as products times alpha only, or with
// bias and activation. Everything else, and every end with c in fp32, is RICH.
enum { MATMUL_END_RICH, MATMUL_END_PLAIN, MATMUL_END_ACTIVATED };

// Tiles of matmul_swapped_sm90.cu have any multiple of eight rows of c. Rows that are staged at a time; and lines of a that
// each block of a cluster copies: both copy the middle eight if the number of eights is odd.
#define MATMUL_SWAPPED_CHUNK(rows)                                                                 \
    ((rows) == 200 ? 40 : (rows) > 160 ? (rows) / 3 : (rows)) // registers suffice for few of them
#define MATMUL_SWAPPED_HALF(rows) (((rows) / 8 + 1) / 2 * 8)

// Where a tile is, counted in tiles; row: of a cluster's tiles.
struct matmul_wgmma_place {
    unsigned row, col, batch;
};

// Tiles are ordered in groups of group_m rows of tiles, column by column.
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

// A tile's columns come in units of 64, which alternate between b and b_up with a gate. These return the owner of unit
// `unit`, and its first column of c relative to the tile's.
MATMUL_WGMMA_SHARED int matmul_wgmma_is_of_up(int is_gated, int unit) {
    return is_gated && (unit & 1);
}
MATMUL_WGMMA_SHARED int matmul_wgmma_column(int is_gated, int unit) {
    return (is_gated ? unit >> 1 : unit) * 64;
}

// Tensor cores truncate: a sum of k terms of one sign is too small by up to this share of it. Sums that are stored in
// 16 bits get half of it back through alpha, so the error is at most half in either direction; rounding to 16 bits
// restores values that are exactly representable.
MATMUL_WGMMA_SHARED float matmul_wgmma_drift(int k) { return (float)k / 13 / (1 << 24); }

// fp32 by bf16 products: a number is the sum of three planes; the first is nearest to the number, the second to what
// remains, and so on. Products of planes whose numbers (from 0) add up to more than 2 are omitted. The product of the
// first planes comes last, because tensor cores truncate sums by their size.
enum { MATMUL_PLANES = 3, MATMUL_PLANE_PAIRS = 6 };
MATMUL_WGMMA_SHARED int matmul_plane_of_a(int pair) { return 0x52 >> pair * 2 & 3; } // 2 0 1 1 0 0
MATMUL_WGMMA_SHARED int matmul_plane_of_b(int pair) {
    return 0x118 >> pair * 2 & 3; // 0 2 1 0 1 0
}

// Byte offset of 16-byte piece `piece` of row `row` of a tile, whose rows of 128 bytes are permuted as the copy engine
// does.
MATMUL_WGMMA_SHARED unsigned matmul_wgmma_piece(int row, int piece) {
    return (unsigned)(row * 128 + (piece ^ (row & 7)) * 16);
}

#endif
