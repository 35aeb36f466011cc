// SPDX-License-Identifier: Apache-2.0
// The parameters of matmul_split_sm90.cu, passed by value, and arithmetic that it shares with the tests. Both compilers
// read this file: no headers, no typedefs.
#ifndef TSRI_MATMUL_SPLIT_PARAMS_H
#define TSRI_MATMUL_SPLIT_PARAMS_H

#include "cuda/device/tensor_map.h"
#include "ops/matmul/matmul_params.h"

#if defined(__CUDACC__)
#define MATMUL_SPLIT_SHARED static __device__ __forceinline__
#else
#define MATMUL_SPLIT_SHARED static inline
#endif

struct matmul_split_tile {
    int rows, cols; // of c; cols is a multiple of 8
    int groups; // multiplying warpgroups, each 64 columns of b (the second of b_up, with a gate)
    int lines;  // lines of 128 bytes of b and b_up per slab
    int second; // the second group's first line
    int slabs;  // per stage
};

// Used fields of matmul: the matrices of c and residual, the epilogue, m, n, k, batch, num_batches, b_is_mn; of e4m3 the scales.
// Maps and *_batch as in matmul_wgmma_params.h; of e4m3, two elements count as one of 16 bits.
struct matmul_split_params {
    struct tensor_map a, b, b_up;
    struct tensor_map a_last; // of the last row of tiles, whose boxes end with c
    int last_rows;            // its rows of c; 0: it is whole, or its boxes do not end with c
    struct matmul_params matmul;
    int a_batch[3], b_batch[3], b_up_batch[3];
    struct matmul_split_tile tile;
    int tiles_m, tiles_n; // of whole clusters if blocks share an operand
    int num_splits;       // blocks of a cluster that share a tile: each has a part of k
    int share_m,
        share_n; // or so many blocks in a column and in a row have a tile each and share copies
    int k_least, k_more; // blocks of k per part; number of parts with one more
    int is_short; // c is products, with bias and activation, in 16 bits, stored 16 bytes at a time
    int boxes;    // boxes of b per stage
    int stages;   // at least 2
    int ahead;    // slabs of b that are prefetched while the previous kernel ends
    unsigned num_tiles; // clusters from here on have no tile
};

enum {
    MATMUL_SPLIT_STRIDE = 68,       // floats per row of 64 sums of a warpgroup
    MATMUL_SPLIT_UNIT = 8192,       // bytes of 64 columns of b and 64 of k
    MATMUL_SPLIT_EIGHT = 2048,      // bytes of a group's sums of 8 rows and 64 columns
    MATMUL_SPLIT_PROMOTE = 2048,    // columns of k that tensor cores sum in one part
    MATMUL_SPLIT_PROMOTE_FP8 = 256, // of e4m3, if sums are promoted
};

// Columns of b are the rows of wgmma, 64 per group. With fewer columns, the remaining rows read the memory that
// follows, and their sums are ignored. If b runs along n, it comes in whole units; else b_up directly follows b.
MATMUL_SPLIT_SHARED struct matmul_split_tile matmul_split_tile_of(int rows, int cols, int slabs,
                                                                  int is_gated, int b_is_mn) {
    struct matmul_split_tile t;
    t.rows = rows, t.cols = cols;
    t.groups = is_gated ? 2 : (cols + 63) / 64;
    t.lines = b_is_mn ? t.groups * 64 : is_gated ? 2 * cols : cols;
    t.second = is_gated && !b_is_mn ? cols : 64;
    t.slabs = slabs;
    return t;
}

// A slab has 64 of k: first b and b_up, then a.
MATMUL_SPLIT_SHARED int matmul_split_slab(const struct matmul_split_tile *t) {
    return (t->lines + t->rows) * 128;
}
MATMUL_SPLIT_SHARED int matmul_split_stage(const struct matmul_split_tile *t) {
    return t->slabs * matmul_split_slab(t);
}
// All stages, and the memory after the last stage that the last group's 64 lines may read.
MATMUL_SPLIT_SHARED int matmul_split_ring(const struct matmul_split_tile *t, int stages) {
    const int end = (t->groups - 1) * t->second + 64, lines = t->lines + t->rows;
    return stages * matmul_split_stage(t) + (end > lines ? end - lines : 0) * 128;
}
// Whether registers suffice for sums of sums; other tiles leave a whole part of k to the tensor cores. Of 16 bits: a kernel of
// e4m3 has them for all rows, or none.
MATMUL_SPLIT_SHARED int matmul_split_has_parts(int rows) { return rows <= 64; }

// The first block of part `part` of k, counted in stages; parts differ by at most one block.
MATMUL_SPLIT_SHARED int matmul_split_first(int k_least, int k_more, int part) {
    return part * k_least + (part < k_more ? part : k_more);
}

// Bytes of a row of sums, and of all sums of a group.
MATMUL_SPLIT_SHARED int matmul_split_row(void) { return MATMUL_SPLIT_STRIDE * 4; }
MATMUL_SPLIT_SHARED int matmul_split_sums(int rows) { return rows * matmul_split_row(); }

// The most eights of a tile's rows that one of its blocks finishes.
MATMUL_SPLIT_SHARED int matmul_split_most(int eights, int num_splits) {
    return (eights + num_splits - 1) / num_splits;
}
MATMUL_SPLIT_SHARED int matmul_split_received_bytes(int rows, int groups, int num_splits) {
    return groups * (num_splits - 1) * matmul_split_most(rows / 8, num_splits) * MATMUL_SPLIT_EIGHT;
}

// Byte offset of piece 0 or 1 of a row of 32 bytes: the same piece of 8 rows, or all pieces of 4 rows, are in different
// banks.
MATMUL_SPLIT_SHARED int matmul_split_piece(int row, int piece) {
    return row * 32 + (piece ^ (row >> 2 & 1)) * 16;
}

// Where the data received from other parts begins: after the stages, and after the sums, which reuse their memory. Then
// the barriers follow: two per stage, and one for the received data.
MATMUL_SPLIT_SHARED int matmul_split_received(const struct matmul_split_tile *t, int stages) {
    int ring = matmul_split_ring(t, stages), sums = t->groups * matmul_split_sums(t->rows);
    return ring > sums ? ring : sums;
}
MATMUL_SPLIT_SHARED int matmul_split_barriers(const struct matmul_split_tile *t, int stages,
                                              int num_splits) {
    return matmul_split_received(t, stages) +
           matmul_split_received_bytes(t->rows, t->groups, num_splits);
}
MATMUL_SPLIT_SHARED int matmul_split_bytes(const struct matmul_split_tile *t, int stages,
                                           int num_splits) {
    return matmul_split_barriers(t, stages, num_splits) + 8 * (2 * stages + 1);
}

#endif
