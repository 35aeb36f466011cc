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
// A thread takes some words at once, so that their loads do not wait for each other: words v, v + 1, ... of a row of `cols`
// columns, v a constant. Its registers hold more of them from sm_90 on.
#if __CUDA_ARCH__ >= 900
#define RING_SOME 2
#else
#define RING_SOME 1
#endif
#define EACH_SOME_WORDS(v, cols)                                                                   \
    _Pragma("unroll") for (int v = 0; v < RING_WORDS; v += RING_SOME) if (v * RING_STEP < (cols))
#define EACH_OF_SOME(j) _Pragma("unroll") for (int j = 0; j < RING_SOME; j++)
#define EACH_OF_WORD(i) _Pragma("unroll") for (int i = 0; i < PER_WORD; i++)
#define RING_GROUPS                                                                                \
    ((FLOATS_PER_THREAD + GROUP - 1) / GROUP + 1) // of a thread: a row may lie in one more
#define DO_LANES_DIFFER (THREADS_PER_ROW < 32)    // rows share a warp
#define ALL_LANES 0xffffffffu

// The stages of all of a block's rows, and some bytes more, because words beyond a row are read, too.
extern __shared__ __align__(16) char ring_memory[];

struct ring {
    int first;                // of this row's stages in ring_memory, in bytes
    int stage_bytes, tensors; // of one tensor's row; tensors in a stage
    int num_stages;
};

DEVICE int ring_stage(const struct ring *ring, int stage, int tensor) {
    return ring->first + (stage * ring->tensors + tensor) * ring->stage_bytes;
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

// The groups of a row of `cols` columns that begins `shift` elements into its stage: those from lo to hi are whole. The first group
// is not whole if lo is 1; the one after the last whole group holds the row's other words, if there are any.
struct ring_groups {
    int lo, hi, has_more;
};
DEVICE struct ring_groups ring_groups(int shift, int cols) {
    const int end = shift + cols, hi = end / GROUP;
    const int words_end = shift + (cols + PER_WORD - 1) / PER_WORD * PER_WORD;
    struct ring_groups groups = {shift > 0, hi, words_end > hi * GROUP};
    if (hi == 0 && shift > 0) groups.has_more = 0; // the first group is the last one
    return groups;
}
// A thread's group; the row's groups are those of its threads in turn.
#define RING_GROUP(v) (ROW_THREAD + (v)*THREADS_PER_ROW)
DEVICE int is_whole(const struct ring_groups *groups, int group) {
    return (unsigned)(group - groups->lo) < (unsigned)(groups->hi - groups->lo) &&
           groups->hi > groups->lo;
}
DEVICE int has_first(const struct ring_groups *groups) { return groups->lo > 0 && ROW_THREAD == 0; }
DEVICE int has_last(const struct ring_groups *groups) {
    return groups->has_more && ROW_THREAD == groups->hi % THREADS_PER_ROW;
}

// Starts to copy the words of a group that is not whole: those of the row, and zeros behind them. The word in whose middle an odd
// row begins is read whole: memory begins at a multiple of 4 bytes, so the element before the row is in the same allocation. It is
// used for nothing.
DEVICE void ring_ask_edge(unsigned place, const char *from, int group, int shift, int cols) {
    const int col = group * GROUP - shift;
#pragma unroll
    for (int i = 0; i < GROUP; i += PER_WORD) {
        const int there = min(cols - (col + i), PER_WORD); // elements up to the row's end
        if (col + i + PER_WORD > 0)
            copy_async_word(place + group * 16 + i * ELEMENT_BYTES,
                            from + group * 16 + i * ELEMENT_BYTES, max(there, 0) * ELEMENT_BYTES);
    }
}

// Starts to copy a row into its stage; its last word is whole.
DEVICE void ring_ask(int stage, const void *data, long long at, int cols) {
    const int shift = shift_of(data, at);
    const struct ring_groups groups = ring_groups(shift, cols);
    const unsigned place = shared_address(ring_memory) + stage;
    const char *from = (const char *)data + (at - shift) * ELEMENT_BYTES;
    if (cols <= 0) return;
#pragma unroll
    for (int v = 0; v < RING_GROUPS; v++)
        if (is_whole(&groups, RING_GROUP(v)))
            copy_async_whole(place + RING_GROUP(v) * 16, from + RING_GROUP(v) * 16);
    if (has_first(&groups)) ring_ask_edge(place, from, 0, shift, cols);
    if (has_last(&groups)) ring_ask_edge(place, from, groups.hi, shift, cols);
}

DEVICE void ring_give_edge(const struct stage *s, char *to, int group, int shift, int cols) {
    const int col = group * GROUP - shift;
    for (int c = max(col, 0); c < min(col + GROUP, cols); c++)
        store(to, shift + c, staged_element(s, c));
}

// Copies a row out of its stage, in which it begins at element `from`. Then the stage may be asked to take another row, if rows
// share a warp after a __syncwarp.
DEVICE void ring_give(int stage, int from, void *data, long long at, int cols) {
    const int shift = shift_of(data, at), is_alike = shift == from;
    const struct ring_groups groups = ring_groups(shift, cols);
    const struct stage s = {ring_memory + stage, from};
    char *to = (char *)data + (at - shift) * ELEMENT_BYTES;
    if (is_alike) {
        uint4 raw[RING_GROUPS];
#pragma unroll
        for (int v = 0; v < RING_GROUPS; v++)
            if (is_whole(&groups, RING_GROUP(v)))
                raw[v] = *(const uint4 *)(ring_memory + stage + RING_GROUP(v) * 16);
#pragma unroll
        for (int v = 0; v < RING_GROUPS; v++)
            if (is_whole(&groups, RING_GROUP(v))) *(uint4 *)(to + RING_GROUP(v) * 16) = raw[v];
    } else {
#pragma unroll 1
        for (int group = ROW_THREAD; group < groups.hi; group += THREADS_PER_ROW) {
            float x[GROUP];
            if (!is_whole(&groups, group)) continue;
            load_staged(x, &s, group * GROUP - shift);
            *(uint4 *)(to + group * 16) = narrow(x);
        }
    }
    if (has_first(&groups)) ring_give_edge(&s, to, 0, shift, cols);
    if (has_last(&groups)) ring_give_edge(&s, to, groups.hi, shift, cols);
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

// Where this thread's first word of a staged row is that lies at `at` in `data`.
DEVICE int ring_words(int stage, const void *data, long long at) {
    return stage + (shift_of(data, at) + ring_column()) * ELEMENT_BYTES;
}

// Some of a thread's words from number v on; left: columns from the thread's first one on. What is beyond the row is 0. With
// are_odd the words may begin in the middle of one.
DEVICE void ring_take(float x[RING_SOME][PER_WORD], int words, int v, int left, int are_odd) {
    EACH_OF_SOME(j) {
        const int col = (v + j) * RING_STEP;
        const char *word = ring_memory + words + col * ELEMENT_BYTES;
        if (PER_WORD == 1 || !are_odd) {
            const unsigned raw = *(const unsigned *)word;
            widen_word(col < left ? raw : 0, x[j]);
        } else {
            EACH_OF_WORD(i) {
                const float element = load(word, i);
                x[j][i] = col < left ? element : 0;
            }
        }
    }
}
DEVICE void ring_put(const float x[RING_SOME][PER_WORD], int words, int v, int left, int are_odd) {
    EACH_OF_SOME(j) {
        char *word = ring_memory + words + (v + j) * RING_STEP * ELEMENT_BYTES;
        const unsigned pair = narrow_word(x[j]);
        if ((v + j) * RING_STEP >= left) continue;
        if (PER_WORD == 1 || !are_odd) {
            *(unsigned *)word = pair;
        } else {
            *(unsigned short *)word = (unsigned short)pair;
            *(unsigned short *)(word + 2) = (unsigned short)(pair >> 16);
        }
    }
}

// A vector of columns for this thread's words, which starts at `first`; 0 beyond the row. All are loaded at once.
#define RING_VECTOR(load_column)                                                                   \
    _Pragma("unroll") for (int e = 0; e < FLOATS_PER_THREAD; e++) {                                \
        const int col = ring_column() + e / PER_WORD * RING_STEP + e % PER_WORD;                   \
        const long long at = first + min(col, cols - 1);                                           \
        const float loaded = load_column;                                                          \
        x[e] = col < cols ? loaded : 0;                                                            \
    }
DEVICE void ring_vector(float x[FLOATS_PER_THREAD], const void *vector, int first, int cols,
                        int is_f32, float otherwise) {
    if (vector == 0 || cols <= 0) {
#pragma unroll
        for (int e = 0; e < FLOATS_PER_THREAD; e++) x[e] = otherwise;
    } else if (is_f32) {
        RING_VECTOR(((const float *)vector)[at])
    } else {
        RING_VECTOR(load(vector, at))
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
    }
    if (!has_c) return;
#pragma unroll
    for (int i = lanes / 2; i > 0; i /= 2) sum->c += __shfl_xor_sync(ALL_LANES, sum->c, i);
}

DEVICE void ring_give_sums(struct three *sum, int has_c, const struct ring_slots *slots, int turn) {
    add_lanes(sum, ROW_LANES, has_c);
    if (ROW_WARPS > 1 && threadIdx.x % 32 == 0)
        slots->of_warps[turn][threadIdx.x / 32] = make_float4(sum->a, sum->b, sum->c, 0);
}

// sum: what ring_give_sums left. The warps' sums are added in their order, by every thread.
DEVICE struct three ring_take_sums(const struct three *sum, const struct ring_slots *slots,
                                   int turn) {
    if (ROW_WARPS <= 1) return *sum;
    struct three all = {0, 0, 0};
#pragma unroll 4
    for (int warp = 0; warp < ROW_WARPS; warp++) {
        const float4 of_warp = slots->of_warps[turn][ROW_OF_BLOCK * ROW_WARPS + warp];
        all.a += of_warp.x;
        all.b += of_warp.y;
        all.c += of_warp.z;
    }
    return all;
}

#endif
