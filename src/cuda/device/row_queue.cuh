// SPDX-License-Identifier: Apache-2.0
// Prefetches rows into shared memory: a queue of stages, each with one row of every tensor. A thread starts copies (cp.async) of
// the 16-byte groups, or with IN_WORDS of the words of rows that begin anywhere, that rows.cuh assigns to it, and later takes the
// same ones. So no barrier is needed, and data in flight takes no registers. Each stage is one group of copies, an empty one after
// the last row. Slots beyond a row's last column stay zero.
#ifndef TSRI_DEVICE_ROW_QUEUE_CUH
#define TSRI_DEVICE_ROW_QUEUE_CUH

#include "cuda/device/copy_async.cuh"
#include "cuda/device/row_queue_params.h"
#include "cuda/device/rows.cuh"

#ifndef IN_WORDS
#define IN_WORDS 0
#endif

struct row_queue {
    uint4 *
        memory; // (stages, tensors, NUM_GROUPS, BLOCK_THREADS), or as many words, and the words after
                // those of the last lanes (row_words.cuh): (stages, tensors, ROW_QUEUE_ENDS)
    int stages, tensors; // stages: up to 4
    int stage;           // the current stage
};

#define DECLARE_ROW_QUEUE(name, num_stages, num_tensors)                                           \
    extern __shared__ uint4 name##_memory[];                                                       \
    struct row_queue name = {name##_memory, num_stages, num_tensors, 0}

#if !IN_WORDS
DEVICE uint4 *queue_slot(const struct row_queue *queue, int tensor) {
    return queue->memory + (queue->stage * queue->tensors + tensor) * NUM_GROUPS * BLOCK_THREADS +
           threadIdx.x;
}

// Zeroes the slots that rows of `cols` columns leave empty; call it before the first queue_ask.
DEVICE void queue_clear(const struct row_queue *queue, int cols) {
    for (int slot = 0; slot < queue->stages * queue->tensors * NUM_GROUPS; slot++)
        if ((ROW_THREAD + slot % NUM_GROUPS * THREADS_PER_ROW) * GROUP >= cols)
            queue->memory[slot * BLOCK_THREADS + threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// Starts copies into the current stage, after its data was taken or before its first use.
DEVICE void queue_ask(const struct row_queue *queue, int tensor, const void *data, long long at,
                      int cols) {
    unsigned slot = shared_address(queue_slot(queue, tensor));
    const char *from = (const char *)data + (at + ROW_THREAD * GROUP) * ELEMENT_BYTES;
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++)
        if ((ROW_THREAD + v * THREADS_PER_ROW) * GROUP < cols)
            copy_async_whole(slot + v * BLOCK_THREADS * 16, from + v * THREADS_PER_ROW * 16);
}

// Takes the row of the current stage; zeros if there is no row.
DEVICE void queue_take(float x[FLOATS_PER_THREAD], const struct row_queue *queue, int tensor,
                       const void *data, long long at, int is_there) {
    const uint4 *slot = queue_slot(queue, tensor);
    if (is_there) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) widen(slot[v * BLOCK_THREADS], x + v * GROUP);
    } else {
        EACH_FLOAT(e) x[e] = 0;
    }
}

#else

DEVICE unsigned *queue_words(const struct row_queue *queue, int tensor) {
    return (unsigned *)(queue->memory +
                        (queue->stage * queue->tensors + tensor) * NUM_GROUPS * BLOCK_THREADS) +
           threadIdx.x;
}
DEVICE unsigned *queue_end(const struct row_queue *queue, int tensor) {
    unsigned *ends =
        (unsigned *)(queue->memory + queue->stages * queue->tensors * NUM_GROUPS * BLOCK_THREADS);
    return ends + (queue->stage * queue->tensors + tensor) * ROW_QUEUE_ENDS +
           threadIdx.x / ROW_LANES;
}

// Zeroes all slots; `cols` is for the other form.
DEVICE void queue_clear(const struct row_queue *queue, int cols) {
    const int rows = queue->stages * queue->tensors;
    unsigned *words = (unsigned *)queue->memory;
    for (int slot = 0; slot < rows * NUM_WORDS; slot++)
        words[slot * BLOCK_THREADS + threadIdx.x] = 0;
    words += rows * NUM_WORDS * BLOCK_THREADS;
    for (int row = 0; IS_LAST_LANE && row < rows; row++)
        words[row * ROW_QUEUE_ENDS + threadIdx.x / ROW_LANES] = 0;
}

// Starts copies into the current stage.
DEVICE void queue_ask(const struct row_queue *queue, int tensor, const void *data, long long at,
                      int cols) {
    const unsigned slot = shared_address(queue_words(queue, tensor));
    const int odd = is_odd(data, at), left = cols - first_column() + odd;
    const char *from = (const char *)data + (at - odd + first_column()) * ELEMENT_BYTES;
    if (cols == 0) return;
    EACH_WORD(v) {
        const int there = left - v * WORD_STEP; // of the word's elements and all that follow
        if (there >= (PER_WORD == 1))
            copy_async_word(slot + v * BLOCK_THREADS * 4, from + v * WORD_STEP * ELEMENT_BYTES,
                            there >= PER_WORD ? 4
                            : there > 0       ? 2
                                              : 0);
    }
    if (odd && IS_LAST_LANE && left > NUM_WORDS * WORD_STEP - 2 * ROW_LANES + 2)
        copy_async_word(shared_address(queue_end(queue, tensor)),
                        from + ((NUM_WORDS - 1) * WORD_STEP + 2) * ELEMENT_BYTES, 2);
}

// Takes the row of the current stage, which lies at `at`, in pairs of columns (row_words.cuh); zeros if there is no row. All
// lanes of a warp call it.
DEVICE void queue_take_pairs(unsigned pairs[NUM_WORDS + 1], const struct row_queue *queue,
                             int tensor, const void *data, long long at, int is_there) {
    const unsigned *words = queue_words(queue, tensor);
    EACH_WORD(v) pairs[v] = is_there ? words[v * BLOCK_THREADS] : 0;
    pairs[NUM_WORDS] = PER_WORD == 2 && is_there ? *queue_end(queue, tensor) : 0;
    join_words(pairs, is_odd(data, at));
}
DEVICE void queue_take(float x[FLOATS_PER_THREAD], const struct row_queue *queue, int tensor,
                       const void *data, long long at, int is_there) {
    unsigned pairs[NUM_WORDS + 1];
    queue_take_pairs(pairs, queue, tensor, data, at, is_there);
    EACH_WORD(v) widen_word(pairs[v], x + v * PER_WORD);
}

#endif

// Ends the copies of this stage and moves to the next stage.
DEVICE void queue_commit(struct row_queue *queue) {
    copy_commit();
    queue->stage = queue->stage + 1 < queue->stages ? queue->stage + 1 : 0;
}

// Waits until the current stage has arrived; only later stages may be pending.
DEVICE void queue_wait(const struct row_queue *queue) {
    if (queue->stages == 1)
        COPY_WAIT(0);
    else if (queue->stages == 2)
        COPY_WAIT(1);
    else if (queue->stages == 3)
        COPY_WAIT(2);
    else
        COPY_WAIT(3);
}

#endif
