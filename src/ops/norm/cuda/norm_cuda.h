// SPDX-License-Identifier: Apache-2.0
// Shared by the norms' plans and launches on CUDA, forward and backward.
#ifndef TSRI_NORM_CUDA_H
#define TSRI_NORM_CUDA_H

#include "context/cuda_rows.h"
#include "ops/norm/cuda/norm_params.h"
#include "ops/norm/norm_problem.h"

enum { NORM_MAX_THREADS = 512 }; // per row; with more, each thread has too few registers
enum { NORM_CUDA_MAX_COLS = INT32_MAX - 65536 };

struct norm_kernel {
    const char *source, *entry;
};

// The number of blocks that go over the groups of rows in steps: at most as many as run at once, so that their numbers
// of steps differ by at most one.
static inline int64_t norm_even_blocks(int64_t groups, int64_t resident) {
    return groups > 0 ? tsri_ceil_div(groups, tsri_ceil_div(groups, resident)) : 0;
}

// ---- Clusters: num_tasks blocks of block_m threads, block_k of them for each row -------------------

enum { NORM_MAX_CLUSTER = 8 };

static inline int64_t norm_slab_of(int64_t cols, int64_t blocks) {
    return (int64_t)tsri_round_up((size_t)tsri_ceil_div(cols, blocks), 8);
}

static inline bool norm_is_cluster(const struct tsri_plan *plan) {
    return plan->block_n > 0 && plan->block_k > 1;
}

// For rows of a few slabs; a slab is the columns that one block holds.
static inline bool norm_clusters_fit(const struct norm_problem *p, const struct tsri_limits *limits,
                                     int64_t slab) {
    return limits->cuda_arch >= 90 && p->dtype != TSR_F64 && p->cols > slab &&
           p->cols <= slab * NORM_MAX_CLUSTER;
}

// As many clusters of so many blocks, a power of two, as run at once; a multiprocessor has one block. Clusters lie within groups of
// an even number of multiprocessors, at most 18 (H100).
static inline void norm_plan_clusters(const struct norm_problem *p,
                                      const struct tsri_limits *limits, int blocks,
                                      struct tsri_plan *plan) {
    enum { GROUP_OF_SMS = 18 };
    const int64_t groups = tsri_max(limits->num_sms / GROUP_OF_SMS, 1);
    const int64_t resident =
        blocks == 2 ? limits->num_sms / 2 : groups * (limits->num_sms / groups / blocks);
    plan->block_m = NORM_MAX_THREADS;
    plan->block_k = blocks;
    plan->num_tasks = norm_even_blocks(p->rows, tsri_max(resident, 1)) * blocks;
}

static inline int norm_slab(const struct norm_problem *p, const struct tsri_plan *plan) {
    int64_t blocks = norm_is_cluster(plan) ? plan->block_k : 1;
    return (int)norm_slab_of(p->cols, blocks);
}

// ---- Rings: blocks of NORM_MAX_THREADS threads, block_m of them for each row; a cluster shares it where block_k > 1 ------

enum { NORM_NUM_RINGS = 6 }; // numbers of threads
enum {
    NORM_OTHER_BYTES = 2048
}; // of shared memory: what the system and a kernel's own arrays take

struct norm_ring {
    int threads, floats; // of a row; of a thread
    int stages, stage_bytes, shared_bytes;
};
// The ring of the fewest threads, at least so many, with so many floats each that hold a row; false: there is none.
bool norm_ring_fits(tsr_dtype dtype, const struct tsri_limits *limits, int64_t cols,
                    int least_threads, int floats, int num_tensors, struct norm_ring *ring);
// As many blocks as run at once, or clusters of so many.
void norm_plan_ring(const struct norm_problem *p, const struct tsri_limits *limits,
                    const struct norm_ring *ring, int blocks, struct tsri_plan *plan);
// The plan of the index-th kernel; the one after NORM_NUM_RINGS is that of a cluster's blocks.
struct tsri_plan norm_ring_size(int floats, int index);

static inline const char *norm_cuda_name(const struct norm_problem *p, bool is_backward) {
    if (is_backward) return p->is_rmsnorm ? "rmsnorm_backward" : "layernorm_backward";
    return p->is_rmsnorm ? "rmsnorm_forward" : "layernorm_forward";
}

// dweight and dbias from the sums of so many groups of rows (norm_reduce_cuda.c).
struct tsri_cuda_program norm_cuda_reduce_program(void);
tsr_status norm_cuda_prepare_reduce(tsr_context *ctx, const struct norm_problem *p);
tsr_status norm_cuda_reduce(tsr_context *ctx, const struct norm_problem *p, const float *partial,
                            int64_t groups);

// Kernels of norm_mixed_cuda.c.
enum { NORM_NUM_MIXED_FORWARD = 7, NORM_NUM_MIXED_BACKWARD = 8 };

// ---- Programs ---------------------------------------------------------------------------------

static inline struct tsri_cuda_program norm_program(const struct norm_kernel *kernel,
                                                    const struct norm_problem *p,
                                                    const struct tsri_plan *plan) {
    struct tsri_cuda_program program =
        tsri_cuda_rows_program(kernel->source, kernel->entry, p->dtype, plan);
    if (norm_is_cluster(plan))
        program.defines[program.num_defines++] = (struct tsri_cuda_define){"IS_CLUSTER", 1};
    return program;
}

static inline bool norm_is_vector_aligned(const struct norm_vector *vector) {
    return (uintptr_t)vector->data % 16 == 0; // absent vectors are aligned
}

static inline bool norm_are_aligned(const struct tsri_rows *const *rows, int count) {
    bool aligned = true;
    for (int i = 0; i < count; i++) aligned &= rows[i]->data == NULL || tsri_is_aligned(rows[i]);
    return aligned;
}

#endif
