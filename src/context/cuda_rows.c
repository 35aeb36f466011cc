// SPDX-License-Identifier: Apache-2.0
#include "context/cuda_rows.h"

static const int sizes[TSRI_ROWS_NUM_SIZES] = {8, 32, 64, 128, 256, 512, TSRI_ROWS_MAX_THREADS};

// With 1024 threads, each has 64 registers, of which at most MOST_OF_1024 hold the row.
static int floats_of(int threads, int floats_per_thread) {
    enum { MOST_OF_1024 = 24 };
    return threads == TSRI_ROWS_MAX_THREADS ? (int)tsri_min(floats_per_thread, MOST_OF_1024)
                                            : floats_per_thread;
}

bool tsri_cuda_rows_fit(int64_t cols, int floats_per_thread, int max_threads) {
    return cols <= (int64_t)floats_of(max_threads, floats_per_thread) * max_threads;
}

int tsri_cuda_block_threads(const struct tsri_plan *plan) {
    return plan->block_m <= 32 ? TSRI_ROWS_BLOCK : (int)plan->block_m;
}

static void cut(struct tsri_plan *plan, int64_t rows) {
    enum { MOST = INT32_MAX };
    plan->num_tasks =
        tsri_min(tsri_ceil_div(rows, plan->grain), MOST); // then a block takes several tasks
}

void tsri_plan_cuda_rows(struct tsri_plan *plan, int64_t rows, int64_t cols,
                         int floats_per_thread) {
    int size = 0;
    while (size < TSRI_ROWS_NUM_SIZES - 1 &&
           !tsri_cuda_rows_fit(cols, floats_per_thread, sizes[size]))
        size++;
    plan->block_m = sizes[size];
    plan->block_n = floats_of(sizes[size], floats_per_thread);
    plan->grain = tsri_cuda_block_threads(plan) / sizes[size];
    cut(plan, rows);
}

void tsri_plan_cuda_widths(struct tsri_plan *plan, int64_t rows, int64_t cols,
                           const struct tsri_cuda_width *widths) {
    while (cols > widths->cols) widths++;
    tsri_plan_cuda_rows(plan, rows, widths->cols, widths->floats_per_thread);
}

void tsri_plan_cuda_sweeps(struct tsri_plan *plan, int64_t rows) {
    plan->block_m = TSRI_SWEEPS_THREADS;
    plan->grain = 1;
    cut(plan, rows);
}

// ---- Stages -----------------------------------------------------------------------------------

// Threads of a staged row, by the bytes of one tensor's stage: each has some groups of 16 bytes to copy at once. The last: of
// one whose block has a multiprocessor for itself.
static const struct staged_size {
    int64_t most_bytes;
    int threads;
} staged_sizes[TSRI_NUM_STAGED_SIZES] = {
    {8192, 32}, {32768, 128}, {INT64_MAX, 512}, {INT64_MAX, TSRI_ROWS_MAX_THREADS}};
enum { STAGE_GROUP = 16 }; // bytes that move at once

// Of a chunk of one row and one tensor, with what else is in its first and last group.
int tsri_cuda_stage_bytes(const struct tsri_plan *plan, tsr_dtype dtype) {
    const int64_t bytes = (int64_t)tsr_dtype_bytes(dtype);
    return (int)(tsri_ceil_div(plan->block_k * bytes + STAGE_GROUP - bytes, STAGE_GROUP) *
                 STAGE_GROUP);
}

// Columns that so many bytes hold, wherever they begin.
static int64_t staged_cols(tsr_dtype dtype, int64_t bytes) {
    const int64_t groups = bytes / STAGE_GROUP - 1;
    return tsri_max(groups * STAGE_GROUP / (int64_t)tsr_dtype_bytes(dtype), 1);
}

// If a row does not fit, two blocks share a multiprocessor, so that one computes while the other reads.
void tsri_plan_cuda_stages(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                           int64_t cols, tsr_dtype dtype, int num_tensors) {
    enum { OTHER_BYTES = 10240 }; // of a block: what the system takes, and a kernel's own
    const int64_t most = limits->shared_bytes_per_block;
    const struct staged_size *size = staged_sizes;
    plan->block_k = tsri_max(cols, 1);
    if (cols > staged_cols(dtype, (most - OTHER_BYTES) / num_tensors))
        plan->block_k = staged_cols(dtype, (most / 2 - OTHER_BYTES) / num_tensors);
    const int64_t bytes = tsri_cuda_stage_bytes(plan, dtype);
    while (bytes > size->most_bytes) size++;
    if (bytes * num_tensors > most / 2 - OTHER_BYTES)
        size = &staged_sizes[TSRI_NUM_STAGED_SIZES - 1];
    plan->block_m = size->threads;
    plan->grain = tsri_cuda_block_threads(plan) / plan->block_m;
    cut(plan, rows);
}

struct tsri_plan tsri_cuda_staged_size(int index) {
    return (struct tsri_plan){.block_m = staged_sizes[index].threads, .block_k = 1};
}

// ---- Programs and launches ----------------------------------------------------------------------

static void define(struct tsri_cuda_program *program, const char *name, int64_t value) {
    program->defines[program->num_defines++] = (struct tsri_cuda_define){name, (int)value};
}

struct tsri_cuda_program tsri_cuda_rows_program(const char *source, const char *entry,
                                                tsr_dtype dtype, const struct tsri_plan *plan) {
    struct tsri_cuda_program program = {.source = source, .entry = entry};
    define(&program, "DTYPE", dtype);
    define(&program, "THREADS_PER_ROW", plan->block_m);
    if (plan->block_n > 0) define(&program, "FLOATS_PER_THREAD", plan->block_n);
    return program;
}

bool tsri_cuda_rows_kernel(const struct tsri_cuda_rows_list *list, int index,
                           struct tsri_cuda_program *program) {
    enum { ORDINARY_COLS = 8192 };
    struct tsri_plan plan = {0};
    for (int d = 0; d < TSRI_NUM_CUDA_DTYPES; d++) {
        tsr_dtype dtype = tsri_cuda_dtypes[d];
        for (int s = 0; s < TSRI_ROWS_NUM_SIZES && sizes[s] <= list->max_threads; s++) {
            plan.block_m = sizes[s];
            plan.block_n = floats_of(sizes[s], list->floats_per_thread);
            if (index-- > 0) continue;
            *program = tsri_cuda_rows_program(list->source, list->entry, dtype, &plan);
            program->is_rare = dtype == TSR_F16 || plan.block_m * plan.block_n > ORDINARY_COLS;
            return true;
        }
    }
    return false;
}

tsr_status tsri_cuda_rows_launch(tsr_context *ctx, const char *op, const struct tsri_plan *plan,
                                 const struct tsri_cuda_program *program, int shared_bytes,
                                 const void *params) {
    struct tsri_cuda_launch launch = {
        .num_blocks = plan->num_tasks,
        .num_threads = tsri_cuda_block_threads(plan),
        .shared_bytes = shared_bytes,
        .is_early = true,
        .params = params,
    };
    if (plan->num_tasks == 0) return TSR_OK;
    return tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

bool tsri_is_aligned(const struct tsri_rows *rows) {
    int64_t bytes = (int64_t)tsr_dtype_bytes(rows->dtype);
    return (uintptr_t)rows->data % 16 == 0 && rows->stride * bytes % 16 == 0 &&
           rows->cols * bytes % 16 == 0;
}
