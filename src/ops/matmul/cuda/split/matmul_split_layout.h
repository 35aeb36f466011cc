// SPDX-License-Identifier: Apache-2.0
// A way to lay a product out for matmul_split_sm90.cu, and its account: matmul_split_layout.c.
#ifndef TSRI_MATMUL_SPLIT_LAYOUT_H
#define TSRI_MATMUL_SPLIT_LAYOUT_H

#include "ops/matmul/cuda/matmul_cuda.h"
#include "ops/matmul/cuda/split/matmul_split_params.h"

enum {
    MATMUL_SPLIT_COLS = 64,              // of b, that a warpgroup has at most
    MATMUL_SPLIT_MOST_GROUPS = 2,        // as in matmul_split_sm90.cu
    MATMUL_SPLIT_MOST_SPLITS = 8,        // blocks of a cluster
    MATMUL_SPLIT_MOST_BYTES = 232448,    // of shared memory of a block
    MATMUL_SPLIT_CACHE_BYTES = 40 << 20, // of b, beyond which it comes out of memory
    MATMUL_SPLIT_LAUNCH_NS = 1600,
    MATMUL_SPLIT_MEMORY_BYTES_PER_NS = 4200,
};

// What a cluster is, as a number, which rows of tuning files have too: blocks that share a tile, each a part of k; or 10 and
// 100 times how many blocks below and beside each other share what they copy.
enum { MATMUL_SPLIT_BELOW = 10, MATMUL_SPLIT_BESIDE = 100 };

struct matmul_split_layout {
    struct matmul_split_tile tile;
    int rows, groups;                                       // of it
    int num_splits, share_m, share_n, stages, shared_bytes; // the first three: as in the params
    int ahead;        // slabs of b that are ordered into the second-level cache early
    int blocks_of_sm; // that a multiprocessor has room for
    int64_t tiles_m, tiles_n, num_blocks;
    int64_t num_held;    // blocks beside them, without a tile
    int64_t blocks_of_k; // at most, of a part
};

struct matmul_split_layout matmul_split_lay_out(const struct matmul_problem *p, bool b_is_mn,
                                                int rows, int cols, int cluster, int num_sms);
int matmul_split_blocks_of_cluster(const struct matmul_split_layout *l);
// Rows of tiles that are chosen for blocks that share what they copy.
static inline bool matmul_split_may_prefer_shared(int rows) { return rows == 48 || rows == 96; }

// Blocks of k, of a stage each, of the whole product; columns of k of a part, at most.
int64_t matmul_split_blocks_of_k(const struct matmul_problem *p, const struct matmul_split_tile *t);
int64_t matmul_split_k_of_part(const struct matmul_split_layout *l);

double matmul_split_bytes_of_b(const struct matmul_problem *p); // and of b_up

// Few rows, and a b that comes out of memory along its lines.
bool matmul_split_is_streamed(const struct matmul_problem *p, bool b_is_mn);

// Columns of a tile so that multiprocessors have equally many blocks each: as many as that takes, of equal tiles.
int matmul_split_even_cols(const struct matmul_problem *p, int rows, int num_splits, int num_sms);

// Nanoseconds that it takes; INFINITY where others are better for sure.
double matmul_split_account(const struct matmul_problem *p, const struct matmul_split_layout *l,
                            bool b_is_mn, int num_sms);
// What a bias and an activation add; tiles are chosen without.
double matmul_split_account_end(const struct matmul_problem *p,
                                const struct matmul_split_layout *l);

#endif
