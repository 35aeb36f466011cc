// SPDX-License-Identifier: Apache-2.0
// Plans and lists of CUDA kernels that hold rows in registers (cuda/device/rows.cuh). The thread count of a row is the
// smallest of a few sizes that hold it, so that a pack with all sizes stays small.
#ifndef TSRI_CUDA_ROWS_H
#define TSRI_CUDA_ROWS_H

#include "context/op_table.h"

enum {
    TSRI_ROWS_MAX_THREADS = 1024,
    TSRI_ROWS_NUM_SIZES = 7,
    TSRI_ROWS_BLOCK = 128,          // threads of a block of rows up to a warp's width
    TSRI_SWEEPS_THREADS = 512,      // threads of a row that is swept
    TSRI_ROWS_ORDINARY_COLS = 16384 // wider rows are a vocabulary's, for sweeps, or rare
};

// Whether at most max_threads threads, with floats_per_thread floats each, hold a row.
bool tsri_cuda_rows_fit(int64_t cols, int floats_per_thread, int max_threads);

// Sets block_m (threads per row), block_n (floats per thread), grain (rows per block) and num_tasks (blocks).
void tsri_plan_cuda_rows(struct tsri_plan *plan, int64_t rows, int64_t cols, int floats_per_thread);
// One block of block_m threads for each row, whatever its width.
void tsri_plan_cuda_sweeps(struct tsri_plan *plan, int64_t rows);

// Floats per thread by the row's width: uses the first entry, in increasing order of width, that is at least as wide as
// the row, and the number of threads that holds it.
struct tsri_cuda_width {
    int cols; // largest width of this entry
    int floats_per_thread;
};
void tsri_plan_cuda_widths(struct tsri_plan *plan, int64_t rows, int64_t cols,
                           const struct tsri_cuda_width *widths);

// Rows in shared memory (cuda/device/staged_rows.cuh), of any width, each of `num_tensors` tensors in a stage of its own: sets
// block_m, grain, num_tasks and block_k, the columns of a chunk: the whole row where it fits.
void tsri_plan_cuda_stages(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                           int64_t cols, tsr_dtype dtype, int num_tensors);
// Bytes of a stage, and of all of a block.
int tsri_cuda_stage_bytes(const struct tsri_plan *plan, tsr_dtype dtype);
static inline int tsri_cuda_stages_bytes(const struct tsri_plan *plan, tsr_dtype dtype,
                                         int num_tensors) {
    return (int)plan->grain * num_tensors * tsri_cuda_stage_bytes(plan, dtype);
}
// The plan of the index-th of the TSRI_NUM_STAGED_SIZES kernels that such plans can use for a dtype.
enum { TSRI_NUM_STAGED_SIZES = 4 };
struct tsri_plan tsri_cuda_staged_size(int index);

// The program of a plan: DTYPE, THREADS_PER_ROW and, if the plan has it, FLOATS_PER_THREAD.
struct tsri_cuda_program tsri_cuda_rows_program(const char *source, const char *entry,
                                                tsr_dtype dtype, const struct tsri_plan *plan);

// The i-th program that such plans can use, up to max_threads per row; false after the last.
struct tsri_cuda_rows_list {
    const char *source, *entry;
    int floats_per_thread, max_threads;
};
bool tsri_cuda_rows_kernel(const struct tsri_cuda_rows_list *list, int index,
                           struct tsri_cuda_program *program);

// Launches one block per task of the plan, with whole rows of threads and so many bytes of shared memory beside the kernel's
// own. The kernel starts early and begins with begin_early().
tsr_status tsri_cuda_rows_launch(tsr_context *ctx, const char *op, const struct tsri_plan *plan,
                                 const struct tsri_cuda_program *program, int shared_bytes,
                                 const void *params);

// Threads per block of such a plan.
int tsri_cuda_block_threads(const struct tsri_plan *plan);

// Whether rows move in groups of 16 bytes: address, stride and width are multiples of 16 bytes.
bool tsri_is_aligned(const struct tsri_rows *rows);

#endif
