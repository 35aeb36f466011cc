// SPDX-License-Identifier: Apache-2.0
// A layout of a product for matmul_split_sm90.cu and its estimated time: matmul_split_layout.c.
#ifndef TSRI_MATMUL_SPLIT_LAYOUT_H
#define TSRI_MATMUL_SPLIT_LAYOUT_H

#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/split/matmul_split_params.h"

enum {
    MATMUL_SPLIT_COLS = 64,           // columns of b per warpgroup, at most
    MATMUL_SPLIT_MOST_GROUPS = 2,     // as in matmul_split_sm90.cu
    MATMUL_SPLIT_MOST_SPLITS = 8,     // blocks per cluster
    MATMUL_SPLIT_MOST_BYTES = 232448, // of shared memory per block
    MATMUL_SPLIT_CACHE_BYTES =
        24 << 20, // of b, in each half of the cache; a larger b comes from memory
    MATMUL_SPLIT_LARGE_BYTES = 8 << 20, // a larger one may come from memory
    MATMUL_SPLIT_SOME_ROWS = 144,       // more rows than these do not only read b
    MATMUL_SPLIT_LAUNCH_NS = 1600,
    MATMUL_SPLIT_MEMORY_BYTES_PER_NS = 4200,
};

// The kind of a cluster as one number, also used in rows of tuning files: the number of blocks that share a tile, each
// with a part of k; or 10 times the blocks in a column plus 100 times the blocks in a row that share their copies.
enum { MATMUL_SPLIT_BELOW = 10, MATMUL_SPLIT_BESIDE = 100 };

// The directions of a product's operands, and its sums: of 16 bits; or of e4m3, where tensor cores sum a block's part of k, or
// MATMUL_SPLIT_PROMOTE_FP8 of it.
enum matmul_split_sums { MATMUL_SPLIT_16_BITS, MATMUL_SPLIT_FAST, MATMUL_SPLIT_PROMOTED };
struct matmul_split_ways {
    bool a_is_mn, b_is_mn;
    enum matmul_split_sums sums;
};

// The product as the kernel, its layout and its account see it. Of e4m3 with lines along k, two elements are one of 16 bits, of
// the dtype that c and what is added to it have; k and the strides are half as large.
struct matmul_problem matmul_split_problem(const struct matmul_problem *p);

struct matmul_split_layout {
    struct matmul_split_tile tile;
    enum matmul_split_sums sums;
    int rows, groups;                                       // of the tile
    int num_splits, share_m, share_n, stages, shared_bytes; // the first three as in the params
    int ahead;        // slabs of b that are prefetched into the second-level cache
    int blocks_of_sm; // blocks that fit on a multiprocessor
    int64_t tiles_m, tiles_n, num_blocks;
    bool ends_with_c;    // the boxes of a: where no blocks share them, and lines run along k
    int64_t copied_rows; // of a, for the first row of tiles
    int64_t num_held;    // additional blocks without a tile
    int64_t blocks_of_k; // per part, at most
};

struct matmul_split_layout matmul_split_lay_out(const struct matmul_problem *p,
                                                struct matmul_split_ways ways, int rows, int cols,
                                                int cluster, int num_sms);
int matmul_split_blocks_of_cluster(const struct matmul_split_layout *l);
// Whether b is read once, by clusters that leave no multiprocessor unused.
static inline bool matmul_split_reads_b_once(const struct matmul_split_layout *l) {
    return l->tiles_m == 1 && matmul_split_blocks_of_cluster(l) <= 2;
}
// Numbers of rows for which blocks that share copies are chosen, where tiles have even columns or other ones.
static inline bool matmul_split_may_prefer_shared(int rows, bool is_even) {
    return is_even ? rows >= 64 && rows % 16 == 0 : rows == 48 || rows == 96 || rows == 112;
}

// The number of blocks of k (one stage each) of the whole product; the most columns of k of a part.
int64_t matmul_split_blocks_of_k(const struct matmul_problem *p, const struct matmul_split_tile *t);
int64_t matmul_split_k_of_part(const struct matmul_split_layout *l);

double matmul_split_bytes_of_b(const struct matmul_problem *p); // and of b_up

// Small m, and a b that comes from memory along its lines.
bool matmul_split_is_streamed(const struct matmul_problem *p, bool b_is_mn);

// Columns of a tile that give every multiprocessor the same number of equal tiles.
int matmul_split_even_cols(const struct matmul_problem *p, int rows, int num_splits, int num_sms);

// Estimated nanoseconds; INFINITY if others are certainly better.
double matmul_split_account(const struct matmul_problem *p, const struct matmul_split_layout *l,
                            bool b_is_mn, int num_sms);
// The additional time of a bias and an activation; tiles are chosen without it.
double matmul_split_account_end(const struct matmul_problem *p,
                                const struct matmul_split_layout *l);

#endif
