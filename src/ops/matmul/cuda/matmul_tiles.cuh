// SPDX-License-Identifier: Apache-2.0
// Finds a block's tile and its matrices. Tiles are ordered in groups of group_m rows of tiles, column by column, so
// that blocks that run together share lines of a and b in the second-level cache.
//
// With b_up, the columns of a tile alternate between 32 of b and 32 of b_up: a thread that holds column j of 64 also
// has column j + 32, and so both factors of the gate. A tile still computes one product.
#ifndef TSRI_MATMUL_TILES_CUH
#define TSRI_MATMUL_TILES_CUH

#include "cuda/device/numbers.cuh"
#include "ops/matmul/matmul_params.h"

struct tile {
    long long row, col; // in c
    long long end_row;  // of c or of its group; a tile that begins there is empty
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

// For column j of a tile: whether it belongs to b_up, and its column in c relative to the tile's first.
DEVICE int is_of_up(const struct matmul_params *p, int j) { return is_gated(p) && (j & 32); }
DEVICE int column_in_c(const struct matmul_params *p, int j) {
    return is_gated(p) ? (j >> 6) * 32 + (j & 31) : j;
}

// ---- Groups -----------------------------------------------------------------------------------

DEVICE int clamp(int x, int least, int most) { return x < least ? least : x > most ? most : x; }

// The rows [first, end) of a group, clamped to the existing rows (at most 2^28), whatever memory contains.
DEVICE void group_rows(const struct matmul_params *p, int group, int *first, int *end) {
    const struct matmul_group_params *g = &p->groups;
    const int rows = (int)(g->are_depths ? p->k : p->m);
    const int *start = g->starts + group * g->step;
    *first = g->are_counts ? 0 : clamp(start[0], 0, rows);
    *end = clamp(start[g->are_counts ? 0 : g->step], *first, rows);
}

// The line of an operand that its row i is; -1: there is none.
DEVICE int line_of(const struct matmul_list_params *list, long long i) {
    if (list->lines == 0) return (int)i;
    const int line = list->lines[i * list->step];
    return (unsigned)line < (unsigned)list->num_lines ? line : -1;
}

// The group of row `row` of tiles (numbered through all groups), and that row's number in the group; -1: none. The
// whole warp must call it.
DEVICE int find_group(const struct matmul_params *p, int *row, int block_m) {
    const int lane = threadIdx.x % 32, num_groups = (int)p->num_batches;
#pragma unroll 1
    for (int base = 0; base < num_groups; base += 32) {
        int first, end, tiles = 0;
        if (base + lane < num_groups) {
            group_rows(p, base + lane, &first, &end);
            tiles = (end - first + block_m - 1) / block_m;
        }
        int sum = tiles; // sum up to this lane's group
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(0xffffffff, sum, step);
            if (lane >= step) sum += other;
        }
        const unsigned beyond = __ballot_sync(0xffffffff, sum > *row);
        if (beyond != 0) {
            const int at = __ffs(beyond) - 1;
            *row -= __shfl_sync(0xffffffff, sum - tiles, at);
            return base + at;
        }
        *row -= __shfl_sync(0xffffffff, sum, 31);
    }
    return -1;
}

// The number of rows of tiles of all groups. The whole warp must call it.
DEVICE unsigned count_rows_of_tiles(const struct matmul_params *p, int block_m) {
    unsigned rows = 0;
#pragma unroll 1
    for (int group = (int)threadIdx.x % 32; group < (int)p->num_batches; group += 32) {
        int first, end;
        group_rows(p, group, &first, &end);
        rows += (unsigned)(end - first + block_m - 1) / block_m;
    }
    return __reduce_add_sync(0xffffffff, rows);
}

// Corrects a tile that was found as if there were no groups.
DEVICE void place_in_group(const struct matmul_params *p, struct tile *t, int block_m) {
    const struct matmul_group_params *g = &p->groups;
    int first, end;
    if (!g->are_depths && !g->are_counts) {
        int row = (int)(t->row / block_m), group = find_group(p, &row, block_m);
        if (group < 0) {
            t->end_row = t->row;
            return;
        }
        t->batch = t->index[2] = group;
        t->row = row * block_m;
    }
    group_rows(p, (int)t->batch, &first, &end);
    if (g->are_depths) {
        t->first_k = first;
        t->end_k = end;
    } else {
        t->row += first;
        t->end_row = end;
    }
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
    t.end_row = p->m;
    if (p->groups.starts != 0) place_in_group(p, &t, block_m);
    return t;
}

// Hide a number's origin, or the thread's index, from the compiler, so that it recomputes derived values after the
// products instead of keeping them in registers.
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
