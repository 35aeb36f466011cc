// SPDX-License-Identifier: Apache-2.0
// Matmul on Hopper where tiles of c are few: k is split over the blocks of a cluster, for 16-bit dtypes. The host defines
//     DTYPE, ROWS (16, 32, 64 or 128: rows of c of a tile)
//
// The weights' side, columns of b, are the 64 rows of wgmma, and rows of a its columns: few rows of a leave little of
// it idle. One warp has the copy engine fill a ring of stages; each of one or two warpgroups multiplies 64 columns of b.
// Then a block's sums lie in its shared memory, transposed to rows of c, and the copy engine sends each of the blocks that
// share the tile its rows of them; they are added in the order of k. Bits depend on the number
// of splits and, as parts begin at multiples of a stage, on whether ROWS is 128.
#include "cuda/device/cluster.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/matmul/matmul_epilogue.cuh"
#include "ops/matmul/matmul_split_params.h"

#if !defined(ROWS)
#error "ROWS is not defined"
#endif

enum {
    MAX_GROUPS = 2,
    UNIT = 64,
    SLABS = ROWS < 128 ? 2 : 1, // as in matmul_split_slabs
    PROMOTE = 2048,
    BLOCKS_OF_SM = ROWS < 128 ? 2 : 1,
    UNIT_BYTES = MATMUL_SPLIT_UNIT,
    EIGHTS = ROWS / 8,
    STRIDE = MATMUL_SPLIT_STRIDE,
};

#if ROWS == 16
#define PRODUCT WGMMA_TILES_16
#elif ROWS == 32
#define PRODUCT WGMMA_TILES_32
#elif ROWS == 64
#define PRODUCT WGMMA_TILES_64
#else
#define PRODUCT WGMMA_TILES_128
#endif

extern __shared__ __align__(1024) unsigned char shared[];

struct place {
    int row, col;     // of c
    int part;         // of k
    int first, count; // column of k, and blocks
    long long index[3];
};

DEVICE struct place find_place(const struct matmul_split_params *w) {
    const struct matmul_params *p = &w->matmul;
    unsigned number = cluster_register_number(), row = 0;
    struct place place;
    place.part = cluster_register_rank();
    place.first = matmul_split_first(w->k_least, w->k_more, place.part) * SLABS * UNIT;
    place.count = w->k_least + (place.part < w->k_more);
    if (w->tiles_m > 1) {
        const unsigned rows = (unsigned)w->tiles_m, next = number / rows;
        row = number - next * rows;
        number = next;
    }
    place.index[0] = place.index[1] = place.index[2] = 0;
    if (p->num_batches > 1) {
        const unsigned cols = (unsigned)w->tiles_n, batch = number / cols;
        number -= batch * cols;
        batch_index(place.index, p->batch, batch);
    }
    place.row = (int)row * ROWS;
    place.col = (int)number * (is_gated(p) ? UNIT : w->groups * UNIT);
    return place;
}

// ---- Copies -----------------------------------------------------------------------------------

// A box of b that moves along k.
struct box {
    const struct tensor_map *map;
    int at[5], step[2];
};

DEVICE struct box find_box(const struct matmul_split_params *w, const struct place *place,
                           int number) {
    const struct matmul_params *p = &w->matmul;
    const int is_up = is_gated(p) && number == 1, k = place->first;
    const int col = place->col + (is_gated(p) ? 0 : number * UNIT);
    struct box box;
    box.map = is_up ? &w->b_up : &w->b;
    box.at[0] = p->b_is_mn ? col : k;
    box.at[1] = p->b_is_mn ? k : col;
    box.step[0] = p->b_is_mn ? 0 : UNIT;
    box.step[1] = UNIT - box.step[0];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        const int at = (int)place->index[2 - i];
        box.at[2 + i] = at * (is_up ? w->b_up_batch[2 - i] : w->b_batch[2 - i]);
    }
    return box;
}
DEVICE void move_box(struct box *box) {
    box->at[0] += box->step[0];
    box->at[1] += box->step[1];
}

// The first stages of b, on their way to the second-level cache while the kernel ahead ends: whatever that still changes is
// seen there. All of the warp goes through loops of copies, so that the compiler knows addresses for the warp as a whole.
DEVICE void prefetch_tiles(const struct matmul_split_params *w, const struct place *place,
                           int is_elected) {
    const int count = (place->count < w->stages ? place->count : w->stages) * SLABS;
    struct box one = find_box(w, place, 0), two = find_box(w, place, 1);
    if (is_elected) {
        tma_prefetch(&w->a);
        tma_prefetch(&w->b);
        if (is_gated(&w->matmul)) tma_prefetch(&w->b_up);
    }
#pragma unroll 1
    for (int i = 0; i < count; i++) {
        if (is_elected) {
            tma_prefetch_box(one.map, one.at);
            if (w->boxes > 1) tma_prefetch_box(two.map, two.at);
        }
        move_box(&one);
        move_box(&two);
    }
}

DEVICE void copy_tiles(const struct matmul_split_params *w, const struct place *place,
                       unsigned base, unsigned barriers, int is_elected) {
    const int slab_bytes = matmul_split_slab(ROWS, w->groups), stages = w->stages;
    const int has_two = w->boxes > 1;
    struct box one = find_box(w, place, 0), two = find_box(w, place, 1);
    int a[5] = {place->first, place->row, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 3; i++) a[2 + i] = (int)place->index[2 - i] * w->a_batch[2 - i];
    struct ring ring = {0, 0};
#pragma unroll 1
    for (int i = 0; i < place->count; i++) {
        const unsigned full = barriers + 8 * ring.stage;
        if (i >= stages) barrier_wait(full + 8 * stages, ring.parity ^ 1);
        if (is_elected) barrier_expect(full, SLABS * slab_bytes);
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            const unsigned to = base + (ring.stage * SLABS + slab) * slab_bytes;
            if (is_elected) {
                tma_load(to, one.map, one.at, full);
                if (has_two) tma_load(to + UNIT_BYTES, two.map, two.at, full);
                tma_load(to + w->groups * UNIT_BYTES, &w->a, a, full);
            }
            move_box(&one);
            move_box(&two);
            a[0] += UNIT;
        }
        ring_advance(&ring, stages);
    }
}

// ---- Products ---------------------------------------------------------------------------------

// Of the warps that multiply.
DEVICE void meet(const struct matmul_split_params *w) {
    asm volatile("bar.sync 1, %0;" ::"r"(w->groups * 128) : "memory");
}

// Which way lines of b run is part of the instruction, so that all of a warpgroup's work is compiled twice: is_mn is a constant.
DEVICE void product(float acc[EIGHTS][4], unsigned long long b, unsigned long long a, int is_mn) {
    if (is_mn)
        PRODUCT(acc, b, a, 1, 1, 0);
    else
        PRODUCT(acc, b, a, 1, 0, 0);
}

// acc = the products of `count` of the block's blocks of k, from number `first` on. Those of one stage are on their way while
// those of the next are ordered.
DEVICE void multiply_part(const struct matmul_split_params *w, const struct place *place,
                          struct ring *ring, float acc[EIGHTS][4], unsigned base, unsigned barriers,
                          int group, int lane, int first, int count, int is_mn) {
    const int stages = w->stages, slab_bytes = matmul_split_slab(ROWS, w->groups);
    const unsigned long long next = WGMMA_STEP(slab_bytes);
    int before = -1; // a stage that somebody waits for
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
#pragma unroll 1
    for (int i = first; i < first + count; i++) {
        const unsigned stage = base + ring->stage * SLABS * slab_bytes;
        const unsigned long long b = wgmma_tile(stage + group * UNIT_BYTES, 16),
                                 a = wgmma_tile(stage + w->groups * UNIT_BYTES, 16);
        barrier_wait(barriers + 8 * ring->stage, ring->parity);
        WGMMA_BEGIN();
#pragma unroll
        for (int step = 0; step < SLABS * UNIT / 16; step++)
            product(acc, b + step / 4 * next + WGMMA_STEP(step % 4 * (is_mn ? 2048 : 32)),
                    a + step / 4 * next + WGMMA_STEP(step % 4 * 32), is_mn);
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        if (before >= 0 && lane == 0) barrier_arrive(barriers + 8 * (stages + before));
        before = i + stages < place->count ? ring->stage : -1;
        ring_advance(ring, stages);
    }
    WGMMA_WAIT(0);
    WGMMA_HOLD(acc, EIGHTS);
    if (before >= 0 && lane == 0) barrier_arrive(barriers + 8 * (stages + before));
}

// A warpgroup's sums over the block's part of k, to shared memory as rows of c: 64 of them each. Tensor cores cut off what
// does not fit instead of rounding, so that sums of PROMOTE columns are added in fp32.
DEVICE void multiply(const struct matmul_split_params *w, const struct place *place, unsigned base,
                     unsigned barriers, int warp, int lane, int is_mn) {
    const int group = warp / 4, of_part = PROMOTE / (SLABS * UNIT);
    float acc[EIGHTS][4], sum[EIGHTS][4] = {};
    struct ring ring = {0, 0};
#pragma unroll 1
    for (int first = 0; first < place->count; first += of_part) {
        const int left = place->count - first, count = left < of_part ? left : of_part;
        multiply_part(w, place, &ring, acc, base, barriers, group, lane, first, count, is_mn);
#pragma unroll
        for (int i = 0; i < EIGHTS * 4; i++) sum[i / 4][i % 4] += acc[i / 4][i % 4];
    }
    // The sums take the place of the stages, when all warps are done with those.
    float *to = (float *)(shared + group * matmul_split_sums(ROWS));
    to += lane % 4 * 2 * STRIDE + warp % 4 * 16 + lane / 4;
    meet(w);
#pragma unroll
    for (int i = 0; i < EIGHTS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) to[(i * 8 + j % 2) * STRIDE + j / 2 * 8] = sum[i][j];
}

// ---- From sums to c -----------------------------------------------------------------------------

// Number `part` among what a block receives, or sends.
DEVICE int other(int part, int mine) { return part < mine ? part : part - 1; }

// The block's sums to where they are added: rows to each of the other blocks that share the tile.
DEVICE void send_sums(const struct matmul_split_params *w, const struct place *place, unsigned base,
                      unsigned received, unsigned barrier, int is_elected) {
    const int num_splits = w->num_splits, most = matmul_split_rows(ROWS, num_splits);
#pragma unroll 1
    for (int i = 0; i < num_splits; i++) {
        if (i == place->part) continue;
        const int first = i * most;
        const int rows = ROWS - first < most ? ROWS - first : most;
        const unsigned arrived = cluster_address(barrier, i);
        for (int g = 0; g < w->groups; g++) {
            const int slot = g * (num_splits - 1) + other(place->part, i);
            const unsigned there = cluster_address(received + slot * matmul_split_sums(most), i);
            const unsigned from = base + g * matmul_split_sums(ROWS) + matmul_split_sums(first);
            if (is_elected) cluster_copy(there, from, matmul_split_sums(rows), arrived);
        }
    }
}

DEVICE void expect_sums(const struct matmul_split_params *w, const struct place *place,
                        unsigned barrier) {
    const int most = matmul_split_rows(ROWS, w->num_splits), left = ROWS - place->part * most;
    barrier_expect(barrier,
                   w->groups * (w->num_splits - 1) * matmul_split_sums(left < most ? left : most));
}

// The block's rows of the tile: COLS sums of a row, of all parts in their order. at: where others' sums lie.
DEVICE void add_parts(float v[COLS], const struct matmul_split_params *w, const struct place *place,
                      int at, int group, int first, int row, int col) {
    const int num_splits = w->num_splits, offset = matmul_split_sums(row) + col * 4;
    const unsigned char *mine =
        shared + group * matmul_split_sums(ROWS) + matmul_split_sums(first) + offset;
    const int slot = matmul_split_sums(matmul_split_rows(ROWS, num_splits));
    const unsigned char *others = shared + at + group * (num_splits - 1) * slot + offset;
    EACH_COL(i) v[i] = 0;
#pragma unroll 2
    for (int part = 0; part < num_splits; part++) {
        float x[COLS];
        const int is_mine = part == place->part;
        load_cols(x, is_mine ? mine : others + other(part, place->part) * slot, 0, 1, COLS, 1);
        EACH_COL(i) v[i] += x[i];
    }
}

DEVICE void finish_rows(const struct matmul_split_params *w, const struct place *place, int at) {
    const struct matmul_params *p = &w->matmul;
    const int pieces = (is_gated(p) ? 1 : w->groups) * (UNIT / COLS); // of a row
    const int most = matmul_split_rows(ROWS, w->num_splits), first = place->part * most;
    int rows = ROWS - first < most ? ROWS - first : most;
    if (rows > (int)p->m - place->row - first) rows = (int)p->m - place->row - first;
    unsigned short *c = (unsigned short *)p->c.data;
    if (w->is_plain) c += batch_offset(&p->c, place->index) + place->col;
    for (int i = threadIdx.x; i < rows * pieces; i += w->groups * 128) {
        const int row = i / pieces, col = (i - row * pieces) * COLS;
        const int group = col / UNIT;
        float v[COLS], up[COLS];
        add_parts(v, w, place, at, group, first, row, col % UNIT);
        if (w->is_plain) {
            if (place->col + col >= (int)p->n) continue;
            EACH_COL(j) v[j] *= p->alpha;
            *(uint4 *)(c + (place->row + first + row) * p->c.line + col) = narrow(v);
            continue;
        }
        if (is_gated(p)) add_parts(up, w, place, at, 1, first, row, col);
        finish(p, place->index, place->row + first + row, place->col + col, v, up);
    }
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(MAX_GROUPS * 128 + 32, BLOCKS_OF_SM)
    matmul_split(const __grid_constant__ struct matmul_split_params w) {
    const unsigned base = shared_address(shared);
    const int is_split = w.num_splits > 1;
    const int received = matmul_split_received(ROWS, w.groups, w.stages);
    const unsigned barriers = base + matmul_split_barriers(ROWS, w.groups, w.stages, w.num_splits);
    const unsigned arrived = barriers + 16 * w.stages;
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < w.stages; stage++) {
            barrier_start(barriers + 8 * stage, 1);
            barrier_start(barriers + 8 * (w.stages + stage), 4 * w.groups);
        }
        barrier_start(arrived, 1);
        barrier_publish_starts();
    }
    __syncthreads();
    if (is_split) cluster_arrive();
    start_dependents();
    const struct place place = find_place(&w);
    if (is_split && threadIdx.x == 0) expect_sums(&w, &place, arrived);
    if (warp == 4 * w.groups) {
        const int is_elected = elect_one();
        prefetch_tiles(&w, &place, is_elected);
        __syncwarp();
        wait_for_primary();
        copy_tiles(&w, &place, base, barriers, is_elected);
        __syncwarp();
        if (is_split) cluster_wait();
        if (is_split) cluster_arrive();
    } else {
        wait_for_primary();
        if (w.matmul.b_is_mn)
            multiply(&w, &place, base, barriers, warp, lane, 1);
        else
            multiply(&w, &place, base, barriers, warp, lane, 0);
        tma_see_shared();
        if (is_split) cluster_wait(); // the others are there
        meet(&w);
        if (is_split) {
            if (warp == 0) send_sums(&w, &place, base, base + received, arrived, elect_one());
            barrier_wait(arrived, 0);
            __syncwarp();
        }
        if (is_split) cluster_arrive(); // nobody sends to this block from now on
        finish_rows(&w, &place, received);
        __syncwarp();
    }
    if (is_split) cluster_wait(); // nor do its sums and barriers have to be there
}
