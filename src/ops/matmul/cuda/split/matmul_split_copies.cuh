// SPDX-License-Identifier: Apache-2.0
// The copying warp of matmul_split_sm90.cu, which defines ROWS, SLABS, SHARES and a block's place first.
#ifndef TSRI_MATMUL_SPLIT_COPIES_CUH
#define TSRI_MATMUL_SPLIT_COPIES_CUH

// A box of b that moves along k.
struct box {
    const struct tensor_map *map;
    int at[5], step[2];
};

DEVICE struct box find_box(const struct matmul_split_params *w, const struct place *place,
                           int number) {
    const struct matmul_params *p = &w->matmul;
    const int is_up = is_gated(p) && number == 1, k = place->first;
    int col = place->col + (is_gated(p) ? 0 : number * UNIT);
#if SHARES
    if (!p->b_is_mn) col += place->down * (w->tile.cols / w->share_m); // its share of the lines
#endif
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

// Prefetches the first stages of b into the second-level cache while the previous kernel ends; later writes of that
// kernel remain visible. The whole warp runs the copy loops, so that the compiler can use uniform addresses.
DEVICE void prefetch_tiles(const struct matmul_split_params *w, const struct place *place,
                           int is_elected) {
    const int all = place->count * SLABS, some = all < w->ahead ? all : w->ahead;
    const int is_first = place->row == place->down * ROWS;
    const int count = is_first ? some : 0; // tiles in the same column share them
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
    const int slab_bytes = matmul_split_slab(&w->tile), stages = w->stages;
    const int b_bytes = w->tile.lines * 128, second = w->tile.second * 128;
    const int has_two = w->boxes > 1;
    struct box one = find_box(w, place, 0), two = find_box(w, place, 1);
    const int a_is_mn = A_MAY_BE_MN && w->matmul.a_is_mn, a_step = a_is_mn ? 0 : UNIT;
    const int share_m = SHARES ? w->share_m : 1, share_n = SHARES ? w->share_n : 1;
    const int a_share = place->beside * (ROWS / share_n);
    const int b_share = place->down * (has_two ? second : w->tile.cols / share_m * 128);
    int a_blocks = 0, b_blocks = ((1 << share_m) - 1) << place->beside * share_m;
    for (int i = 0; i < share_n; i++) a_blocks |= 1 << (i * share_m + place->down);
    if (share_m > 1 && place->down > 0 && has_two) one = two; // each copies one of the two boxes
    // Lines beyond c's last row would cost the copy engine more time than others.
    const int is_last = w->last_rows > 0 && place->row + ROWS > (int)w->matmul.m;
    const struct tensor_map *map_a = is_last ? &w->a_last : &w->a;
    const int stage_bytes = SLABS * (slab_bytes - (is_last ? ROWS - w->last_rows : 0) * 128);
    int a[5] = {place->first, place->row + a_share, 0, 0, 0};
    if (a_is_mn) a[0] = place->row, a[1] = place->first;
#pragma unroll
    for (int i = 0; i < 3; i++) a[2 + i] = (int)place->index[2 - i] * w->a_batch[2 - i];
    struct ring ring = {0, 0};
#pragma unroll 1
    for (int i = 0; i < place->count; i++) {
        const unsigned full = barriers + 8 * ring.stage;
        if (i >= stages) barrier_wait(full + 8 * stages, ring.parity ^ 1);
        if (is_elected) barrier_expect(full, stage_bytes);
        if (i == 0) {                   // all addresses are computed: the first copy follows
            if (SHARES) cluster_wait(); // the others' barriers are initialised
            if (!w->matmul.is_beside) wait_for_primary();
        }
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            const unsigned to = base + (ring.stage * SLABS + slab) * slab_bytes;
            if (is_elected && share_m > 1) {
                tma_load_to_all(to + b_share, one.map, one.at, full, b_blocks);
            } else if (is_elected) {
                tma_load(to, one.map, one.at, full);
                if (has_two) tma_load(to + second, two.map, two.at, full);
            }
            if (is_elected && share_n > 1) {
                tma_load_to_all(to + b_bytes + a_share * 128, &w->a, a, full, a_blocks);
            } else if (is_elected) {
                tma_load(to + b_bytes, map_a, a, full);
                if (ROWS == 128 && a_is_mn) {
                    const int at[5] = {a[0] + UNIT, a[1], a[2], a[3], a[4]};
                    tma_load(to + b_bytes + UNIT_BYTES, &w->a, at, full);
                }
            }
            move_box(&one);
            move_box(&two);
            a[0] += a_step;
            a[1] += UNIT - a_step;
        }
        ring_advance(&ring, stages);
    }
}

#endif
