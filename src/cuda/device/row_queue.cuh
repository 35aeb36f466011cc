// SPDX-License-Identifier: Apache-2.0
// Aligned rows on their way from memory, in shared memory: a queue of stages, each with one row of every tensor. A
// thread asks (cp.async) for the groups of 16 bytes that rows.cuh gives it and later takes what it asked for itself,
// so that no barrier is needed, and what is in flight takes no registers. Each stage is a group of copies, of no
// copies where the rows have ended. Beyond a row's last column its slots stay zero.
#ifndef TSRI_DEVICE_ROW_QUEUE_CUH
#define TSRI_DEVICE_ROW_QUEUE_CUH

#include "cuda/device/copy_async.cuh"
#include "cuda/device/rows.cuh"

struct row_queue {
    uint4 *memory;       // (stages, tensors, NUM_GROUPS, BLOCK_THREADS)
    int stages, tensors; // stages: up to 4
    int stage;           // whose turn it is
};

#define DECLARE_ROW_QUEUE(name, num_stages, num_tensors)                                           \
    extern __shared__ uint4 name##_memory[];                                                       \
    struct row_queue name = {name##_memory, num_stages, num_tensors, 0}

DEVICE uint4 *queue_slot(const struct row_queue *queue, int tensor) {
    return queue->memory + (queue->stage * queue->tensors + tensor) * NUM_GROUPS * BLOCK_THREADS +
           threadIdx.x;
}

// Zeros, before anything is asked for, where rows of so many columns leave slots empty.
DEVICE void queue_clear(const struct row_queue *queue, int cols) {
    for (int slot = 0; slot < queue->stages * queue->tensors * NUM_GROUPS; slot++)
        if ((ROW_THREAD + slot % NUM_GROUPS * THREADS_PER_ROW) * GROUP >= cols)
            queue->memory[slot * BLOCK_THREADS + threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// Into the stage whose turn it is: after it was taken, or before the first.
DEVICE void queue_ask(const struct row_queue *queue, int tensor, const void *data, long long at,
                      int cols) {
    unsigned slot = shared_address(queue_slot(queue, tensor));
    const char *from = (const char *)data + (at + ROW_THREAD * GROUP) * ELEMENT_BYTES;
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++)
        if ((ROW_THREAD + v * THREADS_PER_ROW) * GROUP < cols)
            copy_async_whole(slot + v * BLOCK_THREADS * 16, from + v * THREADS_PER_ROW * 16);
}

// Ends what was asked for this stage, and goes on to the next.
DEVICE void queue_commit(struct row_queue *queue) {
    copy_commit();
    queue->stage = queue->stage + 1 < queue->stages ? queue->stage + 1 : 0;
}

// Until the stage whose turn it is has come: all but the later ones.
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

// Zeros where there is no row.
DEVICE void queue_take(float x[FLOATS_PER_THREAD], const struct row_queue *queue, int tensor,
                       int is_there) {
    const uint4 *slot = queue_slot(queue, tensor);
    if (is_there) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) widen(slot[v * BLOCK_THREADS], x + v * GROUP);
    } else {
        EACH_FLOAT(e) x[e] = 0;
    }
}

#endif
