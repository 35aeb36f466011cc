// SPDX-License-Identifier: Apache-2.0
// Promoted sums of matmul_fp8_sm90.cu. Tensor cores cut what they add off 13 bits below its largest. So sums of 128 columns at a
// time and 256 of k go to a second set of accumulators, half of the columns after the other; with scales of blocks those of
// 128 of k, times the scales. While one warpgroup adds them to the first set, the other multiplies.
#ifndef TSRI_MATMUL_FP8_PROMOTED_CUH
#define TSRI_MATMUL_FP8_PROMOTED_CUH

#include "ops/matmul/matmul_fp8_block.cuh"

// Where the scales are that a thread needs: those of two rows of a, and of two of a tile's halves: of b, or of b and b_up.
struct scales {
    const float *a[2], *b[2];
};

DEVICE const float *scale_of(const struct matmul_scale *s, const struct place *place, int number) {
    return s->data + place->index[0] * s->batch[0] + place->index[1] * s->batch[1] +
           place->index[2] * s->batch[2] + number * s->mn;
}

// Those of b are the same for all threads, which the compiler must not see: it would keep them in registers of the whole warp,
// and wait for each as soon as it has been asked for. So an address is 0 more, by way of the neighbour's lane.
DEVICE struct scales find_scales(const struct matmul_params *p, const struct place *place, int row,
                                 int lane) {
    const int zero = __shfl_xor_sync(0xffffffff, lane, 1) ^ lane ^ 1;
    struct scales s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = row + i * 8, last = (int)p->m - 1;
        const int col = place->col + (is_gated(p) ? 0 : i * 128), last_col = (int)p->n - 1;
        s.a[i] = scale_of(&p->a_scale, place, line < last ? line : last);
        s.b[i] = scale_of(i == 1 && is_gated(p) ? &p->b_up_scale : &p->b_scale, place,
                          (col < last_col ? col : last_col) / 128) +
                 zero;
    }
    return s;
}

// Factors of a block of k: of rows lane / 4 and 8 below, and of both halves.
DEVICE void load_factors(float of_a[2], float of_b[2], const struct scales *s) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        of_a[i] = *s->a[i];
        of_b[i] = *s->b[i];
    }
}

DEVICE void next_factors(struct scales *s, const struct matmul_params *p) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s->a[i] += p->a_scale.k;
        s->b[i] += i == 1 && is_gated(p) ? p->b_up_scale.k : p->b_scale.k;
    }
}

// Sums of half of the columns to those of all of k: times the scales of blocks, where there are such.
DEVICE void promote(float (*acc)[4], float (*part)[4], const float of_a[2], const float of_b[2],
                    int half, const struct matmul_params *p, int is_scaled) {
    if (!is_scaled) {
#pragma unroll
        for (int i = 0; i < EIGHTS * 2; i++) acc[i / 4][i % 4] += part[i / 4][i % 4];
        return;
    }
    // The 64 columns of a unit: with a gate of b and of b_up in turns, else of a half of the tile.
#pragma unroll
    for (int unit = 0; unit < 2; unit++) {
        const float y = is_gated(p) ? of_b[unit] : of_b[half];
        const float upper = of_a[0] * y, lower = of_a[1] * y;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float *x = part[unit * 8 + i], *sum = acc[unit * 8 + i];
            sum[0] = fmaf(x[0], upper, sum[0]);
            sum[1] = fmaf(x[1], upper, sum[1]);
            sum[2] = fmaf(x[2], lower, sum[2]);
            sum[3] = fmaf(x[3], lower, sum[3]);
        }
    }
}

// Warpgroups multiply in turns, half a tile at a time: where both did so at once, both would add at once too, and tensor cores
// would have nothing to do. The other one's turn begins when the last but LAST_STEPS of a half's products are complete, and so its
// first products are there before tensor cores run out of them. A barrier in shared memory, since the compiler moves
// additions beyond a named one.
enum { TURN_AT = EMPTY_AT + 8 * STAGES, LAST_STEPS = 2 };

DEVICE void start_turns(unsigned base) {
    for (int group = 0; group < GROUPS; group++) barrier_start(base + TURN_AT + 8 * group, 4);
}

DEVICE void take_turn(struct worker *me) {
    barrier_wait(me->base + TURN_AT + 8 * me->group, me->parity);
    me->parity ^= 1;
}

DEVICE void pass_turn(const struct worker *me) {
    if (me->lane == 0) barrier_arrive(me->base + TURN_AT + 8 * (me->group ^ 1));
}

// The products of the next `count` blocks of k, added to acc. count, is_scaled: constants.
DEVICE void add_blocks(float acc[EIGHTS][4], struct worker *me, int cluster,
                       const struct matmul_params *p, const float of_a[2], const float of_b[2],
                       int count, int is_scaled) {
    float part[EIGHTS / 2][4];
    const struct ring ring = me->ring;
#pragma unroll
    for (int block = 0; block < count; block++) {
        barrier_wait(me->base + FULL_AT + 8 * me->ring.stage, me->ring.parity);
        ring_advance(&me->ring, STAGES);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct ring now = ring;
        take_turn(me);
        WGMMA_BEGIN();
#pragma unroll
        for (int block = 0; block < count; block++) {
            const unsigned stage = me->base + now.stage * STAGE_BYTES;
            const unsigned long long a = wgmma_tile(stage + me->group * UNIT_BYTES, 16),
                                     b = wgmma_tile(stage + UNITS_A * UNIT_BYTES, 16);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                if (block + 1 == count && step + LAST_STEPS == STEPS) WGMMA_COMMIT();
                WGMMA_FP8_128(TYPES, part, a + WGMMA_STEP(step * 32),
                              b + WGMMA_STEP(half * 2 * UNIT_BYTES + step * 32), block + step);
            }
            ring_advance(&now, STAGES);
        }
        WGMMA_COMMIT();
        WGMMA_WAIT(1);
        pass_turn(me);
        now = ring;
#pragma unroll
        for (int block = 0; block < count; block++) {
            if (block + 1 == count) WGMMA_WAIT(0);
            if (half == 1) release(me->base, now.stage, cluster, me->lane);
            ring_advance(&now, STAGES);
        }
        WGMMA_HOLD(part, EIGHTS / 2);
        promote(acc + half * (EIGHTS / 2), part, of_a, of_b, half, p, is_scaled);
    }
}

DEVICE void clear(float acc[EIGHTS][4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
}

// acc = a b over all of k, an even number of blocks.
DEVICE void multiply_promoted(float acc[EIGHTS][4], struct worker *me, int num_blocks, int cluster,
                              const struct matmul_params *p) {
    const float none[2] = {};
    clear(acc);
#pragma unroll 1
    for (int block = 0; block < num_blocks; block += 2)
        add_blocks(acc, me, cluster, p, none, none, 2, 0);
}

// The same, times the scales of blocks.
DEVICE void multiply_scaled(float acc[EIGHTS][4], struct worker *me, int num_blocks, int cluster,
                            const struct matmul_fp8_params *w, unsigned number, int rank) {
    const struct matmul_params *p = &w->matmul;
    const struct place place = find_place(w, number, rank, cluster);
    const int row = place.row + me->group * UNIT + me->warp * 16 + me->lane / 4;
    struct scales scales = find_scales(p, &place, row, me->lane);
    float of_a[2], of_b[2], next_a[2], next_b[2];
    clear(acc);
    load_factors(next_a, next_b, &scales);
#pragma unroll 1
    for (int block = 0; block < num_blocks; block++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            of_a[i] = next_a[i];
            of_b[i] = next_b[i];
        }
        if (block + 1 < num_blocks) next_factors(&scales, p);
        load_factors(next_a, next_b, &scales);
        add_blocks(acc, me, cluster, p, of_a, of_b, 1, 1);
    }
}

#endif
