// SPDX-License-Identifier: Apache-2.0
// Prefetches aligned rows into shared memory: a queue of stages, each with one row of every tensor. A thread starts copies
// (cp.async) of the 16-byte groups that rows.cuh assigns to it, and later takes the same ones. So no barrier is needed, and
// data in flight takes no registers. Each stage is one group of copies, an empty one after the last row. Slots beyond a row's
// last column stay zero.
#ifndef TSRI_DEVICE_ROW_QUEUE_CUH
#define TSRI_DEVICE_ROW_QUEUE_CUH

#include "cuda/device/copy_async.cuh"
#include "cuda/device/rows.cuh"

struct row_queue {
    uint4 *memory;       // (stages, tensors, NUM_GROUPS, BLOCK_THREADS)
    int stages, tensors; // stages: up to 4
    int stage;           // the current stage
};

#define DECLARE_ROW_QUEUE(name, num_stages, num_tensors)                                           \
    extern __shared__ uint4 name##_memory[];                                                       \
    struct row_queue name = {name##_memory, num_stages, num_tensors, 0}

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
                       int is_there) {
    const uint4 *slot = queue_slot(queue, tensor);
    if (is_there) {
#pragma unroll
        for (int v = 0; v < NUM_GROUPS; v++) widen(slot[v * BLOCK_THREADS], x + v * GROUP);
    } else {
        EACH_FLOAT(e) x[e] = 0;
    }
}

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
