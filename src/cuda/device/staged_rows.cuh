// SPDX-License-Identifier: Apache-2.0
// Rows in shared memory, as they lie in memory: a row's stage begins at the row's own address modulo 16 bytes. So groups
// of 16 bytes move at once wherever a row begins and ends; only what is left at its two ends moves element by element, one
// element to a thread. THREADS_PER_ROW threads, 32 or more, share a row and its stage. A wide row goes through the stage in
// chunks.
#ifndef TSRI_DEVICE_STAGED_ROWS_CUH
#define TSRI_DEVICE_STAGED_ROWS_CUH

#include "cuda/device/copy_async.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/words.cuh"

// Element c of the row is element shift + c of memory, which is aligned to 16 bytes.
struct stage {
    char *memory;
    int shift;
};

// How many elements the first one of a row is past an address that is a multiple of 16 bytes.
DEVICE int shift_of(const void *data, long long at) {
    return (int)(((unsigned long long)data / ELEMENT_BYTES + (unsigned long long)at) % GROUP);
}

// The first columns of this thread's groups of a row that begins `shift` elements past a multiple of 16 bytes. That of the
// row's first group may be below 0, and the last group may end beyond cols: neither is whole then.
#define EACH_GROUP(col, shift, cols)                                                               \
    for (int col = ROW_THREAD * GROUP - (shift); col < (cols); col += THREADS_PER_ROW * GROUP)
#define EACH_WHOLE_GROUP(col, shift, cols)                                                         \
    EACH_GROUP(col, shift, cols)                                                                   \
    if (is_whole_group(col, cols))

DEVICE int is_whole_group(int col, int cols) { return col >= 0 && col + GROUP <= cols; }

// The column of this thread in a first or last group that is not whole; it is outside of [0, cols) for a place that is no
// column of the row. NO_EDGE: the thread has none.
#define NO_EDGE (-2 * GROUP)
DEVICE int edge_column(int shift, int cols) {
    const int thread = ROW_THREAD, last = (shift + cols - 1) / GROUP * GROUP - shift;
    const int group = thread < GROUP ? -shift : last;
    if (thread >= 2 * GROUP || (thread >= GROUP && last == -shift) || is_whole_group(group, cols))
        return NO_EDGE;
    return group + thread % GROUP;
}

// Starts to copy columns of a row, one at least. In end groups what is no column becomes `fill`, 0 or -inf.
DEVICE void stage_row(struct stage *s, const void *data, long long at, int cols, float fill) {
    s->shift = shift_of(data, at);
    EACH_WHOLE_GROUP(col, s->shift, cols) {
        copy_async_whole(shared_address(s->memory + (s->shift + col) * ELEMENT_BYTES),
                         (const char *)data + (at + col) * ELEMENT_BYTES);
    }
    copy_commit();
    const int edge = edge_column(s->shift, cols);
    if (edge != NO_EDGE)
        store(s->memory, s->shift + edge, edge >= 0 && edge < cols ? load(data, at + edge) : fill);
}

// All that this row's threads have started to copy is there for each of them.
DEVICE void wait_for_stages(void) {
    COPY_WAIT(0);
    if (THREADS_PER_ROW == 32)
        __syncwarp();
    else
        row_barrier();
}

// Columns [col, col + GROUP) of a staged row: at once where they are a group of the stage.
DEVICE void load_staged(float x[GROUP], const struct stage *s, int col) {
    const int at = s->shift + col;
    if (at % GROUP == 0) {
        widen(*(const uint4 *)(s->memory + at * ELEMENT_BYTES), x);
    } else {
#pragma unroll
        for (int i = 0; i < GROUP; i++) x[i] = load(s->memory, at + i);
    }
}

// One column of a staged row.
DEVICE float staged_element(const struct stage *s, int col) {
    return load(s->memory, s->shift + col);
}

// Sums of rows that are not aligned, in words as they lie in the stage, but by columns, so that a row has the same bits at every
// address. (Where all rows are aligned, EACH_GROUP with a shift of 0 goes by columns too.) A thread's word k is columns 2 k - odd
// and the next, `odd` elements after a word's begin. So a thread always has the same even columns; its odd ones are those of the
// thread before it if the row is odd, and sum_of_words returns them to their thread. Elements in end groups that are no columns
// are what stage_row filled in.
#define EACH_STAGED_WORD(col, odd, cols)                                                           \
    for (int col = ROW_THREAD * PER_WORD - (odd); col < (cols); col += THREADS_PER_ROW * PER_WORD)

DEVICE int is_stage_odd(const struct stage *s) { return PER_WORD == 2 ? s->shift & 1 : 0; }
DEVICE void load_staged_word(float x[PER_WORD], const struct stage *s, int col) {
    widen_word(*(const unsigned *)(s->memory + (s->shift + col) * ELEMENT_BYTES), x);
}

// From a thread's sums of its words' first and second elements. slots: a float of each thread; between two calls with the same
// slots the row's threads pass a barrier.
DEVICE float sum_of_words(const float sum[PER_WORD], int odd, float *slots) {
#if PER_WORD == 2
    const float even = odd ? sum[1] : sum[0];
    float others = odd ? sum[0] : sum[1];
    if (THREADS_PER_ROW == 32) {
        others = __shfl_sync(0xffffffffu, others, ROW_THREAD + odd);
    } else {
        float *row = slots + ROW_OF_BLOCK * THREADS_PER_ROW;
        row[(ROW_THREAD - odd) & (THREADS_PER_ROW - 1)] = others;
        row_barrier();
        others = row[ROW_THREAD];
    }
    return even + others;
#else
    return sum[0];
#endif
}

#endif
