// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of rows that fit into the registers of a block: one read, one write, residual included. A block has
// one row, or a few short ones, and many of them run at once. The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "ops/norm/norm_moments.cuh"

#define FULL_COLS (THREADS_PER_ROW * FLOATS_PER_THREAD)
// Threads that a multiprocessor has registers for. Before sm_90 rows of 16 bits take more of them.
#define SM_THREADS (FLOATS_PER_THREAD < 32 || __CUDA_ARCH__ >= 900 ? 1024 : 768)

// Where the row that the norm is of lies, x or the sum with the residual that was just stored.
DEVICE const void *source_of(const struct norm_forward_params *p) {
    return p->residual != 0 ? p->residual_out : p->x;
}
DEVICE long long source_at(const struct norm_forward_params *p, long long row) {
    return row * (p->residual != 0 ? p->residual_out_stride : p->x_stride);
}

// An aligned row, or its sum with the residual, which is stored.
DEVICE void load_sum(float s[FLOATS_PER_THREAD], const struct norm_forward_params *p, long long row,
                     int cols) {
    if (p->residual == 0) {
        load_row(s, p->x, row * p->x_stride, cols, 1, ROWS_KEPT, 0);
        return;
    }
    uint4 x[NUM_GROUPS], residual[NUM_GROUPS]; // both on their way at once
    load_groups(x, p->x, row * p->x_stride, cols, ROWS_KEPT, 0);
    load_groups(residual, p->residual, row * p->residual_stride, cols, ROWS_KEPT, 0);
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

// Each of the following leaves a row alone, and says so, that is to be summed in double.

// An aligned row, in registers. Compiled once more for rows of all the columns that its threads have, whose comparisons fall away.
DEVICE int norm_aligned(const struct norm_forward_params p, long long row, int is_there, int cols,
                        struct row_sums *sums) {
    float s[FLOATS_PER_THREAD], mean = 0, offset = 0;
    load_sum(s, &p, row, cols);
    if (!p.is_rmsnorm) {
        mean = sum_one(sum_of(s), sums) * (float)p.inverse_cols;
        subtract(s, mean, cols, 1);
        offset = sum_of(s);
    }
    const struct row_moments moments = moments_of(mean, offset, squares_of(s), &p, sums);
    if (moments.is_wide || !is_there) return is_there;
    store_moments(&p, 0, row, moments.mean, moments.rstd);
    EACH_FLOAT(e) s[e] = s[e] * moments.rstd - moments.shift;
    if (p.weight != 0) scale_and_shift(s, p.weight, p.bias, 0, cols, 1, p.weight_is_f32);
    store_row(s, p.y, row * p.y_stride, cols, 1, 0);
    return 0;
}

// Another row, element by element, which the first-level cache keeps from one sweep to the next: in registers it would take more
// of them than an aligned one.
#define EACH_COLUMN(col, cols)                                                                     \
    _Pragma("unroll 4") for (int col = ROW_THREAD; col < cols; col += THREADS_PER_ROW)

DEVICE int norm_other(const struct norm_forward_params p, long long row, int is_there, int cols,
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

// Once more, from where it lies.
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
        is_wide = norm_aligned(p, row, 1, FULL_COLS, &sums);
    else if (p.is_aligned)
        is_wide = norm_aligned(p, row, is_there, cols, &sums);
    else
        is_wide = norm_other(p, row, is_there, cols, &sums);
    if (is_any_wide(is_wide)) norm_wide(&p, row, cols, is_wide, &sums);
}
