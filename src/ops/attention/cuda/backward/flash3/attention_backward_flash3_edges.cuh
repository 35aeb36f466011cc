// SPDX-License-Identifier: Apache-2.0
// Tiles in which some pairs do not see each other, and gradients of scores that go through shared memory. For kernels in which one
// block computes all gradients of a tile of keys. The includer defines the memory layout and the tasks.
#ifndef TSRI_ATTENTION_BACKWARD_FLASH3_EDGES_CUH
#define TSRI_ATTENTION_BACKWARD_FLASH3_EDGES_CUH

#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_tasks.cuh"

// Which of this thread's pairs with the 64 queries from `query` on see each other.
DEVICE unsigned seen_pairs(const struct attention_params *p, const struct task *t, int query) {
    const int thread = (int)thread_now() - 128, col = thread % 4 * 2;
    const int row = thread / 32 * 16 + thread % 32 / 4, keys = t->key_end - t->key - row;
    const int far = t->key + row - query - col - t->s.shift;
    return see(far - p->window_right, far + p->window_left + 1, t->s.len_q - query - col, keys > 0,
               keys > 8);
}
#define mask_tile(a, p, t, query) mask(a, seen_pairs(p, t, query))

// Keys with numbers that are not finite become 0 and get a mark; their values become NaN, and so do the gradients of their scores.
// Nothing is done if every query sees every key.
DEVICE void clean_keys(unsigned slot, int has_edges, int thread) {
    float *marks = (float *)(memory + MARKS_AT) + slot % KEY_STAGES * OWNED;
    int *has_marks = (int *)(memory + HAS_MARKS_AT) + slot % KEY_STAGES;
    unsigned char *keys = memory + keys_at(slot);
    if (thread == 0) *has_marks = 0;
    if (!has_edges || !any_worker(search_rows(keys, OWNED_BYTES, thread))) return;
    if (thread < OWNED) marks[thread] = 0;
    workers_meet();
    clean_rows(keys, OWNED_BYTES, OWNED, marks, thread);
    workers_meet();
    if (thread < OWNED && marks[thread] != 0)
        *(unsigned short *)(memory + VALUES_AT + thread * 128) = 0x7fff; // NaN of both dtypes
    if (thread == 0) *has_marks = 1;
    WGMMA_SEE_SHARED();
    workers_meet();
}
DEVICE int has_marks(unsigned slot) {
    return *((const int *)(memory + HAS_MARKS_AT) + slot % KEY_STAGES);
}

// Whether some query of the tile is not finite. Then its score with any key is not finite, so each thread looks at one key.
DEVICE unsigned has_nonfinite(const float (*scores)[4], int groups) {
    float none = 0;
#pragma unroll
    for (int n = 0; n < groups; n++) none = fmaf(scores[n][0], 0, fmaf(scores[n][1], 0, none));
    return none != 0; // true for NaN
}
// Whether some row of dout is not finite. Then its delta is not finite. Rows of another sequence have no delta here.
DEVICE unsigned has_nonfinite_dout(const struct attention_params *p, unsigned count) {
    const unsigned stage = RING(anew(count));
    const int thread = (int)thread_now() - 128;
    if (p->is_packed)
        return search_rows(memory + DOUTS_AT + stage * V_PASSING_BYTES, V_PASSING_BYTES, thread);
    if (thread >= PASSING) return 0;
    return ((const float *)(memory + DELTA_AT + stage * STATISTIC_BYTES))[thread] * 0 != 0;
}

// Sets such rows of a step to 0, and their lse to NaN.
DEVICE void clean_step(unsigned count) {
    const unsigned stage = RING(anew(count));
    const int thread = (int)thread_now() - 128;
    float *lse = (float *)(memory + LSE_AT + stage * STATISTIC_BYTES);
    clean_rows(memory + QUERIES_AT + stage * PASSING_BYTES, PASSING_BYTES, PASSING, lse, thread);
    clean_rows(memory + DOUTS_AT + stage * V_PASSING_BYTES, V_PASSING_BYTES, PASSING, lse, thread);
    WGMMA_SEE_SHARED();
    workers_meet();
}

// The weights of such a key are invalid: its row of dv becomes NaN if a query saw it, as its row of dk is then NaN.
DEVICE void spread_marks(unsigned slot, float (*dv)[4], const float (*dk)[4], int groups) {
    const unsigned thread = thread_now() - 128;
    const float *marks = (const float *)(memory + MARKS_AT) + slot % KEY_STAGES * OWNED +
                         thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int n = 0; n < groups; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (marks[c / 2 * 8] != 0) dv[n][c] = dk[n][c] * 0;
}

// Whether some pair of the tile does not see each other.
DEVICE int is_edge_tile(const struct attention_params *p, const struct task *t, int query) {
    const int far = t->key - query - t->s.shift;
    return far + OWNED - 1 > p->window_right || far - (PASSING - 1) < -p->window_left ||
           t->key + OWNED > t->key_end || query + PASSING > t->s.len_q;
}

// Whether there may be such tiles.
DEVICE int has_edges(const struct attention_params *p, const struct task *t) {
    return p->window_left < ATTENTION_NO_WINDOW || p->window_right < ATTENTION_NO_WINDOW ||
           t->key + OWNED > t->key_end || t->last + PASSING > t->s.len_q;
}

// The task slot of the threads that multiply: the highest two bits of their count of steps count tasks.
#define COUNT_TASK 0x40000000u
DEVICE unsigned slot_of(unsigned count) { return KEY_STAGES == 1 ? 0 : anew(count) >> 30 & 1; }
DEVICE unsigned task_parity(unsigned count) { return TASK_PARITY(count >> 30); }
#define TASK_OF(count) ((const struct task *)task_at(slot_of(count)))

// The first query of a stage, read again.
DEVICE int query_at(unsigned stage) {
    int query;
    asm volatile("ld.shared.s32 %0, [%1];"
                 : "=r"(query)
                 : "r"(shared_address(memory) + STEPS_AT + STEP_BYTES * stage)
                 : "memory");
    return query;
}

// Stores gradients of scores of 64 queries, or of some steps of 16: one line for each key, laid out as an operand.
DEVICE void store_grads(unsigned tile, const unsigned (*a)[4], int begin, int end) {
    const unsigned thread = thread_now() - 128, row = thread / 32 * 16 + thread % 16;
    const unsigned at = row * 128 + ((thread % 32 / 16 ^ row % 8) * 16);
#pragma unroll
    for (int n = begin; n < end; n++) store_matrices(tile + (at ^ n * 32), a[n - begin]);
}

#endif
