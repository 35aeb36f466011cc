// SPDX-License-Identifier: Apache-2.0
// dq that is complete with a block's part: that block rounds and stores it, so that it is not read again.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_FINAL_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH3_FINAL_CUH

// What the blocks of earlier keys have added to a tile of dq. The loads are volatile, as they added through another cache.
DEVICE void load_added(float (*x)[4], const struct attention_backward_flash3_params *f,
                       const struct task *t, unsigned base, unsigned count) {
    const unsigned thread = thread_now() - 128, stage = RING(count);
    if (rank_of(t->tile, query_at(stage), t->lead) == 0) return;
    barrier_wait(base + TURN_IS_HERE + 8 * (count % WRITERS), count / WRITERS & 1);
    const int at = *(const int *)(memory + STEPS_AT + STEP_BYTES * stage + 4);
    const float *from = f->dq + (long long)at * (FLASH3_TURN_ROWS * HEAD_DIM) +
                        thread / 128 * 4096 + thread % 128 * 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
        asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[n][0]), "=f"(x[n][1]), "=f"(x[n][2]), "=f"(x[n][3])
                     : "l"(from + n * 512)
                     : "memory");
}
// The last step's part of a tile: hands dq itself to a writer, rounded, in lines.
DEVICE void hand_on_final(const float (*dq)[4], const float (*added)[4], float scale, unsigned base,
                          unsigned count) {
    const unsigned thread = thread_now() - 128, lane = thread % 32;
    const unsigned tile =
        base + DQ_AT + thread / 128 * (64 * 128) + (thread % 128 / 32 * 16 + lane % 16) * 128;
    barrier_wait(base + DQ_IS_FREE, count & 1 ^ 1);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        unsigned x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int group = n + i / 2, c = i % 2 * 2;
            x[i] = pair_of_floats((added[group][c] + dq[group][c]) * scale,
                                  (added[group][c + 1] + dq[group][c + 1]) * scale);
        }
        store_matrices(tile + ((n + lane / 16 ^ lane % 8) * 16), x);
    }
    tma_see_shared();
    __syncwarp();
    if (lane == 0) barrier_arrive(base + DQ_IS_THERE + 8 * (count % WRITERS));
}

#endif
