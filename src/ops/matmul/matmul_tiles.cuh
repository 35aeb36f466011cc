// SPDX-License-Identifier: Apache-2.0
// Which tile a block has, and where its matrices lie. Tiles go in groups of group_m rows of tiles, column by column, so
// that blocks that run together share lines of a and b in the second-level cache.
//
// With b_up the columns of a tile are taken in turns, 32 of b and 32 of b_up: a thread that holds column j of a 64 has
// column j + 32 too, and so both factors of the gate. What a tile computes stays one product.
#ifndef TSRI_MATMUL_TILES_CUH
#define TSRI_MATMUL_TILES_CUH

#include "cuda/device/numbers.cuh"
#include "ops/matmul/matmul_params.h"

struct tile {
    long long row, col; // of c
    long long first_k, end_k;
    long long split, batch, index[3]; // index: of the batch, along its dimensions
};

DEVICE void batch_index(long long index[3], const long long batch[3], long long number) {
    index[0] = index[1] = index[2] = 0;
    if (number == 0) return;
    index[2] = number % batch[2];
    number /= batch[2];
    index[1] = number % batch[1];
    index[0] = number / batch[1];
}

DEVICE long long batch_offset(const struct matmul_operand *x, const long long index[3]) {
    return index[0] * x->batch[0] + index[1] * x->batch[1] + index[2] * x->batch[2];
}

DEVICE int is_gated(const struct matmul_params *p) { return p->b_up.data != 0; }

// Of column j of a tile: whether it belongs to b_up, and its place in c from the tile's first.
DEVICE int is_of_up(const struct matmul_params *p, int j) { return is_gated(p) && (j & 32); }
DEVICE int column_in_c(const struct matmul_params *p, int j) {
    return is_gated(p) ? (j >> 6) * 32 + (j & 31) : j;
}

DEVICE struct tile find_tile(const struct matmul_params *p, long long number, int block_m,
                             int block_n) {
    struct tile t;
    long long tiles = p->tiles_m * p->tiles_n, in_batch = number % tiles, rest = number / tiles;
    t.split = rest / p->num_batches;
    t.batch = rest % p->num_batches;
    batch_index(t.index, p->batch, t.batch);
    long long in_group = p->group_m * p->tiles_n, first = in_batch / in_group * p->group_m;
    long long rows = p->tiles_m - first < p->group_m ? p->tiles_m - first : p->group_m;
    t.row = (first + in_batch % in_group % rows) * block_m;
    t.col = in_batch % in_group / rows * (is_gated(p) ? block_n / 2 : block_n);
    t.first_k = t.split * p->k_of_split;
    t.end_k = t.first_k + p->k_of_split < p->k ? t.first_k + p->k_of_split : p->k;
    return t;
}

// The same number, and this thread's, of which the compiler knows nothing: what follows from them is found again after
// the products instead of being kept in registers during them.
DEVICE long long forgotten(long long number) {
    asm volatile("" : "+l"(number));
    return number;
}
DEVICE int thread_again(void) {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

#endif
