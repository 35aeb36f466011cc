// SPDX-License-Identifier: Apache-2.0
// What matmul_split_sm90.cu gets, by value, and the arithmetic that it shares with the tests. Read by both compilers: no
// headers, no typedefs.
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
    int rows, cols; // of c; cols: a multiple of 8
    int groups; // warpgroups that multiply, each 64 columns of b (or of b_up: the second, with a gate)
    int lines;  // of 128 bytes, that b and b_up have of a slab
    int second; // of them, the first of the second group
    int slabs;  // of a stage
};

// Of matmul: the matrices of c and residual, the epilogue, m, n, k, batch, num_batches, b_is_mn. Maps and *_batch are those of
// matmul_wgmma_params.h.
struct matmul_split_params {
    struct tensor_map a, b, b_up;
    struct matmul_params matmul;
    int a_batch[3], b_batch[3], b_up_batch[3];
    struct matmul_split_tile tile;
    int tiles_m, tiles_n; // of whole clusters, where blocks share an operand
    int num_splits;       // blocks of a cluster, which share a tile: each has a part of k
    int share_m,
        share_n; // or so many of it, below and beside each other, have a tile each and share what they copy
    int k_least, k_more; // blocks of k of each part; how many parts have one more
    int is_short; // c takes products, with bias and activation, in 16 bits, 16 bytes at a time
    int boxes;    // that b is copied in, of a stage
    int stages;   // at least 2
    int ahead;    // slabs of b that go to the second-level cache while the kernel ahead ends
    unsigned num_tiles; // clusters from there on have nothing to do
};

enum {
    MATMUL_SPLIT_STRIDE = 68,    // floats of a row of 64 sums as a warpgroup leaves them
    MATMUL_SPLIT_UNIT = 8192,    // bytes of 64 columns of b, 64 of k
    MATMUL_SPLIT_EIGHT = 2048,   // of a group's sums of 8 rows and 64 columns
    MATMUL_SPLIT_PROMOTE = 2048, // columns of k whose sum is one of the tensor cores
};

// Columns of b are wgmma's rows, 64 of them to a group; of fewer the rest is what lies behind, and its sums go nowhere. Where b
// runs along n it comes in whole units. Else b_up lies right behind b.
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
// All stages, and what the last group's 64 lines have behind the last of them.
MATMUL_SPLIT_SHARED int matmul_split_ring(const struct matmul_split_tile *t, int stages) {
    const int end = (t->groups - 1) * t->second + 64, lines = t->lines + t->rows;
    return stages * matmul_split_stage(t) + (end > lines ? end - lines : 0) * 128;
}
// Whether there are registers for sums of sums: others leave all of a part of k to the tensor cores.
MATMUL_SPLIT_SHARED int matmul_split_has_parts(int rows) { return rows <= 64 || rows == 128; }

// The first of part `part` of k, whose blocks are those of a stage: all parts alike but for one block.
MATMUL_SPLIT_SHARED int matmul_split_first(int k_least, int k_more, int part) {
    return part * k_least + (part < k_more ? part : k_more);
}

// Bytes of a row of sums, and of all those of a group.
MATMUL_SPLIT_SHARED int matmul_split_row(void) { return MATMUL_SPLIT_STRIDE * 4; }
MATMUL_SPLIT_SHARED int matmul_split_sums(int rows) { return rows * matmul_split_row(); }

// Of a tile's eights of rows, those that one of its blocks finishes at most.
MATMUL_SPLIT_SHARED int matmul_split_most(int eights, int num_splits) {
    return (eights + num_splits - 1) / num_splits;
}
MATMUL_SPLIT_SHARED int matmul_split_received_bytes(int rows, int groups, int num_splits) {
    return groups * (num_splits - 1) * matmul_split_most(rows / 8, num_splits) * MATMUL_SPLIT_EIGHT;
}

// Byte of piece 0 or 1 of a row of 32 bytes: pieces of 8 rows, or all of 4, lie in different banks.
MATMUL_SPLIT_SHARED int matmul_split_piece(int row, int piece) {
    return row * 32 + (piece ^ (row >> 2 & 1)) * 16;
}

// Where what the other parts send begins: behind the stages, and behind the sums, which take their place. Then the barriers: two of
// each stage, and one for what is received.
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
