// SPDX-License-Identifier: Apache-2.0
// Promoted sums of matmul_fp8_sm90.cu. Tensor cores truncate each term 13 bits below the largest one. So sums of 128
// columns and 256 of k are added to a second set of accumulators, one half of the columns after the other; with block
// scales, sums of 128 of k times the scales. While one warpgroup adds, the other multiplies.
#ifndef TSRI_MATMUL_FP8_PROMOTED_CUH
#define TSRI_MATMUL_FP8_PROMOTED_CUH

#include "ops/matmul/cuda/fp8/matmul_fp8_block.cuh"

// ---- Scales of blocks -------------------------------------------------------------------------

// A thread's factors of sums: for two rows of a, and for the two halves of a tile (of b, or of b and b_up).
struct factors {
    float a[2], b[2];
};
// at_a, at_b: addresses of the factors for the next block of k.
struct scales {
    const float *at_a[2], *at_b[2];
    struct factors now, next;
};

DEVICE const float *scale_of(const struct matmul_scale *s, const struct place *place, int number) {
    return s->data + place->index[0] * s->batch[0] + place->index[1] * s->batch[1] +
           place->index[2] * s->batch[2] + number * s->mn;
}

// The factors of b are the same for all threads, and the compiler must not know: it would keep them in uniform
// registers, and all threads would wait for each load at once, before the products. So the address contains a 0 that is
// computed from the neighbour's lane.
DEVICE struct scales find_scales(const struct matmul_params *p, const struct place *place, int row,
                                 int lane) {
    const int zero = __shfl_xor_sync(0xffffffff, lane, 1) ^ lane ^ 1;
    struct scales s;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = row + i * 8, last = (int)p->m - 1;
        const int col = place->col + (is_gated(p) ? 0 : i * 128), last_col = (int)p->n - 1;
        s.at_a[i] = scale_of(&p->a_scale, place, line < last ? line : last);
        s.at_b[i] = scale_of(i == 1 && is_gated(p) ? &p->b_up_scale : &p->b_scale, place,
                             (col < last_col ? col : last_col) / 128) +
                    zero;
    }
    return s;
}

DEVICE float ask_for(const float *at) {
    float x;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(x) : "l"(at));
    return x;
}

// Loads the factors of the next block of k (step 1), or of the same block after the last (step 0). Only before this
// block's products: between them, the tensor cores would wait.
DEVICE void ask_for_next(struct scales *s, const struct matmul_params *p, int step) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        s->at_a[i] += step * p->a_scale.k;
        s->at_b[i] += step * (i == 1 && is_gated(p) ? p->b_up_scale.k : p->b_scale.k);
        s->next.a[i] = ask_for(s->at_a[i]);
        s->next.b[i] = ask_for(s->at_b[i]);
    }
}

// ---- Sums -------------------------------------------------------------------------------------

// Adds the sums of half of the columns to the sums over all of k.
DEVICE void promote(float (*acc)[4], float (*part)[4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 2; i++) acc[i / 4][i % 4] += part[i / 4][i % 4];
}
// The same times scales, for the 64 columns of a unit: with a gate alternately of b and b_up, else of one half of the
// tile.
DEVICE void promote_scaled(float (*acc)[4], float (*part)[4], const struct factors *f, int half,
                           int is_gated) {
#pragma unroll
    for (int unit = 0; unit < 2; unit++) {
        const float y = is_gated ? f->b[unit] : f->b[half];
        const float upper = f->a[0] * y, lower = f->a[1] * y;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float *sum = acc[unit * 8 + i / 4] + i % 4;
            *sum = fmaf(part[unit * 8 + i / 4][i % 4], i % 4 < 2 ? upper : lower, *sum);
        }
    }
}

// Adds the products of the next `count` blocks of k to acc. count is a constant; so is whether scales is NULL.
DEVICE void add_blocks(float acc[EIGHTS][4], struct worker *me, int cluster,
                       const struct matmul_params *p, struct scales *scales, int count) {
    float part[EIGHTS / 2][4];
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
        if (scales != 0)
            promote_scaled(acc + half * (EIGHTS / 2), part, &scales->now, half, is_gated(p));
        else
            promote(acc + half * (EIGHTS / 2), part);
    }
}

DEVICE void clear(float acc[EIGHTS][4]) {
#pragma unroll
    for (int i = 0; i < EIGHTS * 4; i++) acc[i / 4][i % 4] = 0;
}

// acc = a b over all of k, for an even number of blocks.
DEVICE void multiply_promoted(float acc[EIGHTS][4], struct worker *me, int num_blocks, int cluster,
                              const struct matmul_params *p) {
    clear(acc);
#pragma unroll 1
    for (int block = 0; block < num_blocks; block += 2) add_blocks(acc, me, cluster, p, 0, 2);
}

// The same, times block scales, which are loaded one block ahead.
DEVICE void multiply_scaled(float acc[EIGHTS][4], struct worker *me, int num_blocks, int cluster,
                            const struct matmul_fp8_params *w, unsigned number, unsigned rows,
                            int rank) {
    const struct matmul_params *p = &w->matmul;
    const struct place place = find_place(w, number, rows, rank, cluster);
    const int row = place.row + me->group * UNIT + me->warp * 16 + me->lane / 4;
    struct scales scales = find_scales(p, &place, row, me->lane);
    clear(acc);
    ask_for_next(&scales, p, 0);
#pragma unroll 1
    for (int block = 0; block < num_blocks; block++) {
        scales.now = scales.next;
        ask_for_next(&scales, p, block + 1 < num_blocks);
        add_blocks(acc, me, cluster, p, &scales, 1);
    }
}

#endif
