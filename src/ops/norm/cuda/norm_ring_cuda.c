// SPDX-License-Identifier: Apache-2.0
// Rings of stages for the norms' rows at any address (cuda/device/row_ring.cuh): threads of a row and stages of a block.
#include "ops/norm/cuda/norm_cuda.h"

static const int ring_sizes[NORM_NUM_RINGS] = {8, 32, 64, 128, 256, NORM_MAX_THREADS};

// A row's bytes in its stage, wherever it begins; its last word is whole.
static int64_t ring_bytes(tsr_dtype dtype, int64_t cols) {
    const int64_t bytes = (int64_t)tsr_dtype_bytes(dtype);
    return (int64_t)tsri_round_up((size_t)((cols + cols % 2) * bytes + 16 - bytes), 16);
}

bool norm_ring_fits(tsr_dtype dtype, const struct tsri_limits *limits, int64_t cols,
                    int least_threads, int floats, int num_tensors, struct norm_ring *ring) {
    enum { LEAST_STAGES = 3 }; // the row before, the row itself, the next row
    enum { MOST_STAGES = 7 };
    const int64_t bytes = ring_bytes(dtype, cols);
    for (int i = 0; i < NORM_NUM_RINGS; i++) {
        const int64_t of_step = NORM_MAX_THREADS / ring_sizes[i] * num_tensors * bytes;
        const int64_t slack = (int64_t)sizeof(double) * ring_sizes[i]; // RING_SOME words each
        const int64_t stages =
            (limits->shared_bytes_per_block - NORM_OTHER_BYTES - slack) / of_step;
        if (cols > (int64_t)ring_sizes[i] * floats || stages < LEAST_STAGES ||
            ring_sizes[i] < least_threads)
            continue;
        *ring = (struct norm_ring){.threads = ring_sizes[i],
                                   .floats = floats,
                                   .stages = (int)tsri_min(stages, MOST_STAGES),
                                   .stage_bytes = (int)bytes};
        ring->shared_bytes = (int)(of_step * ring->stages + slack);
        return true;
    }
    return false;
}

static struct tsri_plan plan_of(int floats, int threads, int blocks) {
    return (struct tsri_plan){.block_m = threads, .block_n = floats, .block_k = blocks};
}

struct tsri_plan norm_ring_size(int floats, int index) {
    return index < NORM_NUM_RINGS ? plan_of(floats, ring_sizes[index], 1)
                                  : plan_of(floats, NORM_MAX_THREADS, 2);
}

void norm_plan_ring(const struct norm_problem *p, const struct tsri_limits *limits,
                    const struct norm_ring *ring, int blocks, struct tsri_plan *plan) {
    const struct tsri_plan of_row = plan_of(ring->floats, ring->threads, blocks);
    plan->block_m = of_row.block_m;
    plan->block_n = of_row.block_n;
    plan->block_k = of_row.block_k;
    plan->grain = NORM_MAX_THREADS / plan->block_m;
    if (blocks > 1)
        norm_plan_clusters(p, limits, blocks, plan);
    else
        plan->num_tasks = norm_even_blocks(tsri_ceil_div(p->rows, plan->grain), limits->num_sms);
}
