// SPDX-License-Identifier: Apache-2.0
// Promoted sums of matmul_fp8_sm90.cu. Tensor cores cut what they add off 13 bits below its largest. So sums of 128 columns at a
// time and 256 of k go to a second set of accumulators, half of the columns after the other; with scales of blocks those of
// 128 of k, times the scales. While one warpgroup adds them to the first set, the other multiplies.
//
// Scales come by way of shared memory, a table for each stage of the ring, that a warp beside the copying one fills: then those who
// multiply, and who have nothing else to do meanwhile, wait for no load, and find no addresses.
#ifndef TSRI_MATMUL_FP8_PROMOTED_CUH
#define TSRI_MATMUL_FP8_PROMOTED_CUH

#include "ops/matmul/matmul_fp8_block.cuh"

// ---- Scales of blocks -------------------------------------------------------------------------

enum {
    ROWS_OF_LANE = BLOCK_M / 32,
    // Of a table: those of a tile's rows, and two of its columns: of its halves, or of b and b_up.
    FACTORS = BLOCK_M + 4,
    FACTORS_AT = EMPTY_AT + 8 * STAGES,
};

DEVICE float *factors_of(int stage) { return (float *)(shared + FACTORS_AT) + stage * FACTORS; }

DEVICE const float *scale_of(const struct matmul_scale *s, const struct place *place, int number) {
    return s->data + place->index[0] * s->batch[0] + place->index[1] * s->batch[1] +
           place->index[2] * s->batch[2] + number * s->mn;
}

// One warp fills the tables, as copy_tiles does the stages. The next factors are on their way while it waits.
DEVICE void copy_factors(const struct matmul_fp8_params *w, unsigned base, int rank, int cluster) {
    const struct matmul_params *p = &w->matmul;
    const int lane = threadIdx.x % 32, num_blocks = blocks_of(p);
    const int first = blockIdx.x / cluster, step = gridDim.x / cluster;
    const int is_up = is_gated(p) && lane % 2, last_row = (int)p->m - 1, last_col = (int)p->n - 1;
    const struct matmul_scale *scale_b = is_up ? &p->b_up_scale : &p->b_scale;
    struct ring ring = {0, 0};
#pragma unroll 1
    for (unsigned number = (unsigned)first; number < w->num_tiles; number += (unsigned)step) {
        const struct place place = find_place(w, number, rank, cluster);
        const int row = place.row + lane, col = place.col + (is_gated(p) ? 0 : lane % 2 * 128);
        const float *a[ROWS_OF_LANE],
            *b = scale_of(scale_b, &place, (col < last_col ? col : last_col) / 128);
#pragma unroll
        for (int i = 0; i < ROWS_OF_LANE; i++)
            a[i] = scale_of(&p->a_scale, &place, row + 32 * i < last_row ? row + 32 * i : last_row);
#pragma unroll 1
        for (int block = 0; block < num_blocks; block++) {
            float *factors = factors_of(ring.stage), of_a[ROWS_OF_LANE];
            const float of_b = *b;
            b += scale_b->k;
#pragma unroll
            for (int i = 0; i < ROWS_OF_LANE; i++) {
                of_a[i] = *a[i];
                a[i] += p->a_scale.k;
            }
            barrier_wait(base + EMPTY_AT + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll
            for (int i = 0; i < ROWS_OF_LANE; i++) factors[lane + 32 * i] = of_a[i];
            if (lane < 2) factors[BLOCK_M + lane] = of_b;
            __syncwarp();
            if (lane == 0) barrier_arrive(base + FULL_AT + 8 * ring.stage);
            ring_advance(&ring, STAGES);
        }
    }
}

// What a thread finds in tables: those of rows lane / 4 and 8 below, and two of columns. row, col: where.
struct factors {
    float a[2], b[2];
    int row, col;
};

DEVICE struct factors find_factors(const struct worker *me) {
    // Those of columns are the same for all threads, which the compiler must not see: it would keep them for the whole warp, and
    // wait for them at once. So their place is 0 more, by way of the neighbour's lane.
    const int zero = __shfl_xor_sync(0xffffffff, me->lane, 1) ^ me->lane ^ 1;
    const struct factors f = {
        {}, {}, me->group * UNIT + me->warp * 16 + me->lane / 4, BLOCK_M + zero};
    return f;
}

DEVICE void read_factors(struct factors *f, int stage) {
    const float *table = factors_of(stage);
    const float2 b = *(const float2 *)(table + f->col);
    f->a[0] = table[f->row];
    f->a[1] = table[f->row + 8];
    f->b[0] = b.x;
    f->b[1] = b.y;
}

// ---- Sums -------------------------------------------------------------------------------------

// Of the 64 columns of a unit, and of both rows: with a gate units are of b and of b_up in turns, else of a half of the tile.
DEVICE void factors_of_half(float x[4], const struct factors *f, int half, int is_gated) {
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = f->a[i % 2] * (is_gated ? f->b[i / 2] : f->b[half]);
    hold4(x); // now, while tensor cores work
}

// Sums of half of the columns to those of all of k.
DEVICE void promote(float (*acc)[4], float (*part)[4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 2; i++) acc[i / 4][i % 4] += part[i / 4][i % 4];
}
DEVICE void promote_scaled(float (*acc)[4], float (*part)[4], const float x[4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 2; i++)
        acc[i / 4][i % 4] =
            fmaf(part[i / 4][i % 4], x[i / EIGHTS * 2 + i % 4 / 2], acc[i / 4][i % 4]);
}

// The products of the next `count` blocks of k, added to acc. count, is_scaled: constants.
DEVICE void add_blocks(float acc[EIGHTS][4], struct worker *me, int cluster,
                       const struct matmul_params *p, struct factors *factors, int count) {
    float part[EIGHTS / 2][4];
    float x[4];
    struct ring ring = me->ring;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct ring now = ring;
#pragma unroll
        for (int block = 0; block < count; block++) {
            const unsigned stage = me->base + now.stage * STAGE_BYTES;
            const unsigned long long a = wgmma_tile(stage + me->group * UNIT_BYTES, 16),
                                     b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, 16);
            if (half == 0) barrier_wait(me->base + FULL_AT + 8 * now.stage, now.parity);
            WGMMA_BEGIN();
#pragma unroll
            for (int step = 0; step < STEPS; step++)
                WGMMA_FP8_128(TYPES, part, a + WGMMA_STEP(step * 32),
                              b + WGMMA_STEP(half * 2 * UNIT_BYTES + step * 32), block + step);
            WGMMA_COMMIT();
            if (half == 0 && factors != 0) read_factors(factors, now.stage);
            if (factors != 0) factors_of_half(x, factors, half, is_gated(p));
            if (half == 1 && block > 0) {
                WGMMA_WAIT(1);
                release(me->base, me->ring.stage, cluster, me->lane);
                ring_advance(&me->ring, STAGES);
            }
            ring_advance(&now, STAGES);
        }
        WGMMA_WAIT(0);
        WGMMA_HOLD(part, EIGHTS / 2);
        if (half == 1) {
            release(me->base, me->ring.stage, cluster, me->lane);
            ring_advance(&me->ring, STAGES);
        }
        if (factors != 0)
            promote_scaled(acc + half * (EIGHTS / 2), part, x);
        else
            promote(acc + half * (EIGHTS / 2), part);
    }
}

// acc = a b over all of k, times the scales of blocks where there are such.
DEVICE void multiply_promoted(float acc[EIGHTS][4], struct worker *me, int num_blocks, int cluster,
                              const struct matmul_params *p) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
    if (p->is_block_scaled) {
        struct factors factors = find_factors(me);
#pragma unroll 1
        for (int block = 0; block < num_blocks; block++)
            add_blocks(acc, me, cluster, p, &factors, 1);
    } else { // an even number of blocks
#pragma unroll 1
        for (int block = 0; block < num_blocks; block += 2) add_blocks(acc, me, cluster, p, 0, 2);
    }
}

#endif
