// SPDX-License-Identifier: Apache-2.0
#include "context/cuda_elements.h"

const tsr_dtype tsri_cuda_dtypes[TSRI_NUM_CUDA_DTYPES] = {TSR_F32, TSR_BF16, TSR_F16};

enum { LOG_THREADS = 8, LOG_WARP = 5 };
_Static_assert(ELEMENTS_THREADS == 1 << LOG_THREADS, "threads of a block");

// Computes where rows start modulo a unit. If the views disagree, the kernel works element by element.
static void align(struct elements_grid *grid, const struct tsri_rows *const *views, int num_views,
                  int unit) {
    int64_t base = -1, growth = 0;
    for (int i = 0; i < num_views; i++) {
        const struct tsri_rows *v = views[i];
        if (v->dtype == TSR_DTYPE_NONE) continue;
        int64_t first = (int64_t)((uintptr_t)v->data / tsr_dtype_bytes(v->dtype)) % unit;
        int64_t step = v->rows > 1 ? v->stride % unit : 0;
        grid->is_apart |= base >= 0 && (first != base || step != growth);
        grid->is_apart |= v->group > 0 && (step != 0 || v->group_stride % unit != 0);
        base = first;
        growth = step;
    }
    grid->base = (int)base;
    grid->growth = (int)growth;
}

// Threads side by side in a row: as many as leave at most an eighth of them idle.
static int choose_log_width(int64_t units) {
    int log_width = 0;
    while (log_width < LOG_WARP && units > (int64_t)1 << log_width) log_width++;
    if (log_width < LOG_WARP) return log_width;
    for (log_width = LOG_THREADS; log_width > LOG_WARP; log_width--) {
        int64_t width = (int64_t)1 << log_width;
        if (8 * (tsri_ceil_div(units, width) * width - units) <= units) break;
    }
    return log_width;
}

void tsri_cuda_elements_grid(struct elements_grid *grid, const struct tsri_rows *const *views,
                             int num_views, int unit, int at_once) {
    *grid = (struct elements_grid){.rows = views[0]->rows, .cols = views[0]->cols};
    if (grid->rows == 0 || grid->cols == 0) return;
    align(grid, views, num_views, unit);
    bool is_shifted = !grid->is_apart && (grid->base != 0 || grid->growth != 0);
    int64_t units = tsri_ceil_div(grid->cols + (is_shifted ? unit - 1 : 0), unit);
    grid->is_flat = grid->rows == 1 && !grid->is_apart && !is_shifted;
    bool is_wide = grid->rows < at_once || units >= (int64_t)8 * at_once * ELEMENTS_THREADS;
    grid->log_width = grid->is_flat ? LOG_THREADS : choose_log_width(units);
    int64_t width = (int64_t)1 << grid->log_width, lines = ELEMENTS_THREADS / width;
    grid->row_step = is_wide ? 0 : (int)lines;
    grid->unit_step = is_wide ? (int)width : 0;
    grid->tile_rows = is_wide ? lines : lines * at_once;
    grid->tile_units = is_wide ? width * at_once : width;
    grid->tiles_per_row = tsri_ceil_div(units, grid->tile_units);
    grid->tiles = tsri_ceil_div(grid->rows, grid->tile_rows) * grid->tiles_per_row;
}

tsr_status tsri_cuda_elements_launch(tsr_context *ctx, const char *op,
                                     const struct tsri_cuda_program *program,
                                     const struct elements_grid *grid, const void *params) {
    const struct tsri_cuda_launch launch = {
        .num_blocks = tsri_min(grid->tiles, INT32_MAX), // then a block takes several tiles
        .num_threads = ELEMENTS_THREADS,
        .params = params,
    };
    if (grid->tiles == 0) return TSR_OK;
    return tsri_cuda_launch(op, tsri_context_queue(ctx), program, &launch);
}

struct tsri_cuda_program tsri_cuda_dtype_program(const char *source, const char *entry,
                                                 tsr_dtype dtype) {
    return (struct tsri_cuda_program){source, entry, 1, {{"DTYPE", (int)dtype}}};
}

bool tsri_cuda_dtype_kernel(const char *source, const char *entry, int index,
                            struct tsri_cuda_program *program) {
    if (index >= TSRI_NUM_CUDA_DTYPES) return false;
    *program = tsri_cuda_dtype_program(source, entry, tsri_cuda_dtypes[index]);
    return true;
}
