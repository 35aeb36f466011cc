// SPDX-License-Identifier: Apache-2.0
// How CUDA kernels that hold rows in registers (cuda/device/rows.cuh) are planned and listed: the threads of a row are
// the fewest of a few sizes that hold it, so that a pack with all of them stays small.
#ifndef TSRI_CUDA_ROWS_H
#define TSRI_CUDA_ROWS_H

#include "context/op_table.h"

enum {
    TSRI_ROWS_MAX_THREADS = 1024,
    TSRI_ROWS_NUM_SIZES = 7,
    TSRI_ROWS_BLOCK = 128,          // threads that rows of a warp or less share
    TSRI_SWEEPS_THREADS = 512,      // of a row that is gone over in sweeps
    TSRI_ROWS_ORDINARY_COLS = 16384 // wider ones are a vocabulary's, which sweeps are for, or rare
};

// Whether threads that hold so many floats each, at most max_threads, hold a row.
bool tsri_cuda_rows_fit(int64_t cols, int floats_per_thread, int max_threads);

// block_m threads a row, block_n floats a thread, grain rows a block, num_tasks blocks.
void tsri_plan_cuda_rows(struct tsri_plan *plan, int64_t rows, int64_t cols, int floats_per_thread);
// A block for each row, whatever its width: block_m threads.
void tsri_plan_cuda_sweeps(struct tsri_plan *plan, int64_t rows);

// Where a thread's floats go by the row's width: as many threads as hold the first of the widths, from narrow to wide, that
// the row does not exceed.
struct tsri_cuda_width {
    int cols; // the widest of them
    int floats_per_thread;
};
void tsri_plan_cuda_widths(struct tsri_plan *plan, int64_t rows, int64_t cols,
                           const struct tsri_cuda_width *widths);

// The program of a plan: DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD (left out where the plan has none).
struct tsri_cuda_program tsri_cuda_rows_program(const char *source, const char *entry,
                                                tsr_dtype dtype, const struct tsri_plan *plan);

// The i-th program that such plans can ask for, up to max_threads a row, and then the sweeps of each dtype; false after the last.
struct tsri_cuda_rows_list {
    const char *source, *entry;
    int floats_per_thread, max_threads;
    const char *sweeps_source, *sweeps_entry;
    bool are_sweeps_rare; // those of f16 are
};
bool tsri_cuda_rows_kernel(const struct tsri_cuda_rows_list *list, int index,
                           struct tsri_cuda_program *program);

// One block for each task of the plan, in threads of whole rows. The kernel comes in early, and begins with
// begin_early().
tsr_status tsri_cuda_rows_launch(tsr_context *ctx, const char *op, const struct tsri_plan *plan,
                                 const struct tsri_cuda_program *program, const void *params);

// Threads of a block of such a plan.
int tsri_cuda_block_threads(const struct tsri_plan *plan);

// Whether rows move in groups of 16 bytes: address, stride and width are multiples of that.
bool tsri_is_aligned(const struct tsri_rows *rows);

#endif
