// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of (rows, cols), y = (x - mean) rstd weight + bias or x rstd weight, with an optional residual,
// for rows that fit into the registers of a block. A block has one row or a few short ones, and many blocks run at
// once.
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "ops/norm/norm_moments.cuh"

#define FULL_COLS (THREADS_PER_ROW * FLOATS_PER_THREAD)
// Threads for which a multiprocessor has registers: fewer with 32 floats per thread, except in 16 bits from sm_90 on.
#define SM_THREADS                                                                                 \
    (FLOATS_PER_THREAD < 32 ? 1024 : DTYPE == DTYPE_F32 ? 640 : __CUDA_ARCH__ < 900 ? 768 : 1024)

// The row to normalise: x, or the sum with the residual that was just stored.
DEVICE const void *source_of(const struct norm_forward_params *p) {
    return p->residual != 0 ? p->residual_out : p->x;
}
DEVICE long long source_at(const struct norm_forward_params *p, long long row) {
    return row * (p->residual != 0 ? p->residual_out_stride : p->x_stride);
}

// Loads a row; with a residual, loads the sum and stores it.
DEVICE void load_sum(float s[FLOATS_PER_THREAD], const struct norm_forward_params *p, long long row,
                     int cols, int is_aligned) {
    const long long x_at = row * p->x_stride, at = row * p->residual_stride;
    if (p->residual == 0) {
        load_row(s, p->x, x_at, cols, is_aligned, ROWS_KEPT, 0);
        return;
    }
    if (!is_aligned) {
        COMPARE_ANEW(cols);
        EACH_FLOAT(e) {
            int col = ROW_THREAD + e * THREADS_PER_ROW;
            s[e] = col < cols ? as_stored(load(p->x, x_at + col) + load(p->residual, at + col)) : 0;
        }
        store_row(s, p->residual_out, row * p->residual_out_stride, cols, 0, 0);
        return;
    }
    uint4 x[NUM_GROUPS], residual[NUM_GROUPS]; // both are loaded at once
    load_groups(x, p->x, x_at, cols, ROWS_KEPT, 0);
    load_groups(residual, p->residual, at, cols, ROWS_KEPT, 0);
#pragma unroll
    for (int v = 0; v < NUM_GROUPS; v++) {
        float *sum = s + v * GROUP, more[GROUP];
        widen(x[v], sum);
        widen(residual[v], more);
#pragma unroll
        for (int i = 0; i < GROUP; i++) sum[i] = as_stored(sum[i] + more[i]);
    }
    store_row(s, p->residual_out, row * p->residual_out_stride, cols, 1, 0);
}

// Each of the following functions returns 1, and leaves the row alone, if the row must be summed in double.

// A row in registers. Compiled once more for aligned rows that use all columns of the threads, so that all column tests
// disappear.
DEVICE int norm_held(const struct norm_forward_params p, long long row, int is_there, int cols,
                     int is_aligned, struct row_sums *sums) {
    float s[FLOATS_PER_THREAD], mean = 0, offset = 0;
    load_sum(s, &p, row, cols, is_aligned);
    if (!p.is_rmsnorm) {
        mean = sum_one(sum_of(s), sums) * (float)p.inverse_cols;
        subtract(s, mean, cols, is_aligned);
        offset = sum_of(s);
    }
    const struct row_moments moments = moments_of(mean, offset, squares_of(s), &p, sums);
    if (moments.is_wide || !is_there) return is_there;
    store_moments(&p, 0, row, moments.mean, moments.rstd);
    EACH_FLOAT(e) s[e] = s[e] * moments.rstd - moments.shift;
    if (p.weight != 0) scale_and_shift(s, p.weight, p.bias, 0, cols, is_aligned, p.weight_is_f32);
    store_row(s, p.y, row * p.y_stride, cols, is_aligned, 0);
    return 0;
}

// Unaligned rows with 32 floats per thread would take more registers than aligned ones. So they are swept element by
// element, and the first-level cache keeps the row between sweeps.
#define EACH_COLUMN(col, cols)                                                                     \
    _Pragma("unroll 8") for (int col = ROW_THREAD; col < cols; col += THREADS_PER_ROW)

DEVICE int norm_swept(const struct norm_forward_params p, long long row, int is_there, int cols,
                      struct row_sums *sums) {
    const void *source = source_of(&p);
    const long long at = source_at(&p, row);
    float mean = 0, offset = 0, squares = 0;
    for (int col = ROW_THREAD; p.residual != 0 && col < cols; col += THREADS_PER_ROW)
        store(p.residual_out, at + col,
              load(p.x, row * p.x_stride + col) + load(p.residual, row * p.residual_stride + col));
    if (!p.is_rmsnorm) {
        EACH_COLUMN(col, cols) mean += load(source, at + col);
        mean = sum_one(mean, sums) * (float)p.inverse_cols;
    }
    EACH_COLUMN(col, cols) {
        float centred = load(source, at + col) - mean;
        offset += centred;
        squares += centred * centred;
    }
    const struct row_moments moments =
        moments_of(mean, p.is_rmsnorm ? 0 : offset, squares, &p, sums);
    if (moments.is_wide || !is_there) return is_there;
    store_moments(&p, 0, row, moments.mean, moments.rstd);
    EACH_COLUMN(col, cols) {
        float h = (load(source, at + col) - mean) * moments.rstd - moments.shift;
        float scale = p.weight != 0 ? load_either(p.weight, col, p.weight_is_f32) : 1;
        float shift = p.bias != 0 ? load_either(p.bias, col, p.weight_is_f32) : 0;
        store(p.y, row * p.y_stride + col, h * scale + shift);
    }
    return 0;
}

// Normalises a row again, in double, from memory.
DEVICE void norm_wide(const struct norm_forward_params *p, long long row, int cols, int is_wide,
                      struct row_sums *sums) {
    const void *source = source_of(p);
    const long long at = source_at(p, row);
    const struct moments moments = wide_moments(source, at, cols, p, p->is_aligned, sums);
    if (!is_wide) return;
    store_moments(p, 0, row, (float)moments.mean, (float)moments.rstd);
    store_wide(p, 0, source, at, row * p->y_stride, cols, p->is_aligned, moments);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, SM_THREADS / BLOCK_THREADS)
    norm_forward(const struct norm_forward_params p) {
    DECLARE_ROW_SUMS(sums);
    const long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    const int is_there = ROWS_PER_BLOCK == 1 || row < p.rows; // missing rows take part in shuffles
    const int cols = is_there ? p.cols : 0;
    int is_wide;
    start_dependents();
    if (row < p.early_rows) fetch_row(p.x, row * p.x_stride, p.cols);
    wait_for_primary();
    if (ARE_ROWS_APART && p.is_aligned && cols == FULL_COLS)
        is_wide = norm_held(p, row, 1, FULL_COLS, 1, &sums);
    else if (p.is_aligned)
        is_wide = norm_held(p, row, is_there, cols, 1, &sums);
    else if (FLOATS_PER_THREAD < 32)
        is_wide = norm_held(p, row, is_there, cols, 0, &sums);
    else
        is_wide = norm_swept(p, row, is_there, cols, &sums);
    if (is_any_wide(is_wide)) norm_wide(&p, row, cols, is_wide, &sums);
}
