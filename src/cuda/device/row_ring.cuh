// SPDX-License-Identifier: Apache-2.0
// A ring of stages in shared memory for the rows that THREADS_PER_ROW threads go over in steps. Rows lie in it as in memory
// (staged_rows.cuh), so that they move in groups of 16 bytes wherever they begin. A row is copied in (cp.async), read and replaced
// by its result, and copied out.
// Columns are in words, pairs of columns in 16 bits, that do not depend on a row's address: so sums have the same order wherever
// a row lies, and vectors of columns stay in registers. Of each row a thread has FLOATS_PER_THREAD columns.
// A thread copies the same groups of a stage in and out for every row, so that one barrier a step is enough.
#ifndef TSRI_DEVICE_ROW_RING_CUH
#define TSRI_DEVICE_ROW_RING_CUH

#ifndef BLOCK_THREADS
#define BLOCK_THREADS 512
#endif
#include "cuda/device/staged_rows.cuh"

#define RING_WORDS (FLOATS_PER_THREAD / PER_WORD)
#define RING_STEP (THREADS_PER_ROW * PER_WORD) // columns from one of a thread's words to the next
// A thread's words that begin in front of column `cols`; col: the first one's column.
#define EACH_RING_WORD(v, col, cols)                                                               \
    _Pragma("unroll") for (int v = 0; v < RING_WORDS; v++) if (col + v * RING_STEP < (cols))
#define DO_LANES_DIFFER (THREADS_PER_ROW < 32) // rows share a warp
#define ALL_LANES 0xffffffffu

struct ring {
    char *memory;             // of this row's first stage
    int stage_bytes, tensors; // of one tensor's row; tensors in a stage
    int num_stages;
};

DEVICE char *ring_stage(const struct ring *ring, int stage, int tensor) {
    return ring->memory + (stage * ring->tensors + tensor) * ring->stage_bytes;
}
DEVICE int ring_next(const struct ring *ring, int stage) {
    return stage + 1 < ring->num_stages ? stage + 1 : 0;
}

DEVICE void ring_barrier(void) {
    if (THREADS_PER_ROW <= 32)
        __syncwarp();
    else
        row_barrier();
}

// ---- Rows in and out -----------------------------------------------------------------------------

// Starts to copy the words of a group that is not whole: those of the row, and zeros behind them. The word in whose middle an odd
// row begins is read whole: memory begins at a multiple of 4 bytes, so the element before the row is in the same allocation. It is
// used for nothing.
DEVICE void ring_ask_edge(char *place, const char *from, int col, int cols) {
#pragma unroll
    for (int i = 0; i < GROUP; i += PER_WORD) {
        const int there = min(cols - (col + i), PER_WORD); // elements up to the row's end
        if (col + i + PER_WORD > 0)
            copy_async_word(shared_address(place + i * ELEMENT_BYTES), from + i * ELEMENT_BYTES,
                            max(there, 0) * ELEMENT_BYTES);
    }
}

// Starts to copy a row in; its last word is whole.
DEVICE void ring_ask(char *memory, const void *data, long long at, int cols) {
    const int shift = shift_of(data, at);
    const char *row = (const char *)data + at * ELEMENT_BYTES;
    if (cols <= 0) return;
    EACH_GROUP(col, shift, (cols + PER_WORD - 1) / PER_WORD * PER_WORD) {
        char *place = memory + (shift + col) * ELEMENT_BYTES;
        const char *from = row + (long long)col * ELEMENT_BYTES;
        if (is_whole_group(col, cols))
            copy_async_whole(shared_address(place), from);
        else
            ring_ask_edge(place, from, col, cols);
    }
}

// Copies a row out. Then its stage may be asked to take another row, if rows share a warp after a __syncwarp.
DEVICE void ring_give(const struct stage *s, void *data, long long at, int cols) {
    const int shift = shift_of(data, at), is_alike = shift == s->shift;
    EACH_GROUP(col, shift, cols) {
        float v[GROUP];
        if (!is_whole_group(col, cols)) {
            for (int i = max(-col, 0); i < min(cols - col, GROUP); i++)
                store(data, at + col + i, staged_element(s, col + i));
        } else if (is_alike) {
            store_bytes(data, at + col,
                        *(const uint4 *)(s->memory + (shift + col) * ELEMENT_BYTES));
        } else {
            load_staged(v, s, col);
            store_bytes(data, at + col, narrow(v));
        }
    }
    if (!is_alike && !DO_LANES_DIFFER) ring_barrier(); // then other threads' groups were read
}

// Waits until all copies of this thread but those of the newest `steps` have arrived.
DEVICE void ring_wait(int steps) {
    if (steps <= 0)
        COPY_WAIT(0);
    else if (steps == 1)
        COPY_WAIT(1);
    else if (steps == 2)
        COPY_WAIT(2);
    else
        COPY_WAIT(3);
}

// ---- Words ----------------------------------------------------------------------------------------

// The first column of a thread's first word.
DEVICE int ring_column(void) { return ROW_THREAD * PER_WORD; }

// This thread's first word of a staged row that lies at `at` in `data`.
DEVICE char *ring_words(char *memory, const void *data, long long at) {
    return memory + (shift_of(data, at) + ring_column()) * ELEMENT_BYTES;
}

// A thread's word; with are_odd it may begin in the middle of one.
DEVICE void ring_take(float x[PER_WORD], const char *row, int v, int are_odd) {
    const char *word = row + v * RING_STEP * ELEMENT_BYTES;
    if (PER_WORD == 1 || !are_odd) {
        widen_word(*(const unsigned *)word, x);
    } else {
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) x[i] = load(word, i);
    }
}
DEVICE void ring_put(const float x[PER_WORD], char *row, int v, int are_odd) {
    char *word = row + v * RING_STEP * ELEMENT_BYTES;
    const unsigned pair = narrow_word(x);
    if (PER_WORD == 1 || !are_odd) {
        *(unsigned *)word = pair;
    } else {
        *(unsigned short *)word = (unsigned short)pair;
        *(unsigned short *)(word + 2) = (unsigned short)(pair >> 16);
    }
}

// A vector of columns for this thread's words, `otherwise` if it is absent; 0 beyond the row. It starts at `first`.
DEVICE void ring_vector(float x[FLOATS_PER_THREAD], const void *vector, int first, int cols,
                        int is_f32, float otherwise) {
#pragma unroll
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        const int col = ring_column() + e / PER_WORD * RING_STEP + e % PER_WORD;
        x[e] = 0;
        if (col < cols) x[e] = vector != 0 ? load_either(vector, first + col, is_f32) : otherwise;
    }
}

// ---- Sums over a row's threads: given before a barrier, taken after it ------------------------------

struct three {
    float a, b, c; // c is summed with has_c only
};
struct ring_slots {
    float4 (*of_warps)[BLOCK_THREADS / 32]; // of two steps
};
#define DECLARE_RING_SLOTS(name)                                                                   \
    __shared__ float4 name##_of_warps[2][BLOCK_THREADS / 32];                                      \
    const struct ring_slots name = {name##_of_warps}

DEVICE void add_lanes(struct three *sum, int lanes, int has_c) {
#pragma unroll
    for (int i = lanes / 2; i > 0; i /= 2) {
        sum->a += __shfl_xor_sync(ALL_LANES, sum->a, i);
        sum->b += __shfl_xor_sync(ALL_LANES, sum->b, i);
        if (has_c) sum->c += __shfl_xor_sync(ALL_LANES, sum->c, i);
    }
}

DEVICE void ring_give_sums(struct three *sum, int has_c, const struct ring_slots *slots, int turn) {
    add_lanes(sum, ROW_LANES, has_c);
    if (ROW_WARPS > 1 && threadIdx.x % 32 == 0)
        slots->of_warps[turn][threadIdx.x / 32] = make_float4(sum->a, sum->b, sum->c, 0);
}

// sum: what ring_give_sums left.
DEVICE struct three ring_take_sums(const struct three *sum, int has_c,
                                   const struct ring_slots *slots, int turn) {
    if (ROW_WARPS <= 1) return *sum;
    const int lane = threadIdx.x % 32;
    float4 of_warp = make_float4(0, 0, 0, 0);
    if (lane < ROW_WARPS) of_warp = slots->of_warps[turn][ROW_OF_BLOCK * ROW_WARPS + lane];
    struct three all = {of_warp.x, of_warp.y, of_warp.z};
    add_lanes(&all, ROW_WARPS, has_c);
    all.a = __shfl_sync(ALL_LANES, all.a, 0);
    all.b = __shfl_sync(ALL_LANES, all.b, 0);
    if (has_c) all.c = __shfl_sync(ALL_LANES, all.c, 0);
    return all;
}

#endif
