// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of (rows, cols), y = (x - mean) rstd weight + bias or x rstd weight, with an optional residual,
// for rows that fit into the registers of a block and move in groups of 16 bytes. A block has one row or a few short
// ones, and many blocks run at once.
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "ops/norm/cuda/norm_moments.cuh"

#define FULL_COLS (THREADS_PER_ROW * FLOATS_PER_THREAD)
#define HAS_FULL_FORM (THREADS_PER_ROW > 32 && FLOATS_PER_THREAD < 32)
// Threads for which a multiprocessor has registers: fewer with 32 floats per thread, except in 16 bits from sm_90 on.
#define SM_THREADS                                                                                 \
    (FLOATS_PER_THREAD < 32 ? 1024 : DTYPE == DTYPE_F32 ? 640 : __CUDA_ARCH__ < 900 ? 768 : 1024)

// Loads a row; with a residual, loads the sum and stores it.
DEVICE void load_sum(float s[FLOATS_PER_THREAD], const struct norm_forward_params *p, long long row,
                     int cols) {
    const long long x_at = row * p->x_stride, at = row * p->residual_stride;
    if (p->residual == 0) {
        load_row(s, p->x, x_at, cols, 1, 0);
        return;
    }
    uint4 x[NUM_GROUPS], residual[NUM_GROUPS]; // both are loaded at once
    load_groups(x, p->x, x_at, cols, 0);
    load_groups(residual, p->residual, at, cols, 0);
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

// A row in registers. Compiled once more for rows that use all columns of the threads, so that all column tests disappear; not
// where the registers are too few for two such forms.
// Returns 1, and leaves the row alone, if it must be summed in double.
DEVICE int norm_held(const struct norm_forward_params p, long long row, int is_there, int cols,
                     struct row_sums *sums) {
    float s[FLOATS_PER_THREAD], mean = 0, offset = 0;
    load_sum(s, &p, row, cols);
    if (!p.is_rmsnorm) {
        mean = sum_one(sum_of(s), sums) * (float)p.inverse_cols;
        subtract(s, mean, cols);
        offset = sum_of(s);
    }
    const struct row_moments moments = moments_of(mean, offset, squares_of(s), &p, sums);
    if (moments.is_wide || !is_there) return is_there;
    store_moments(&p, 0, row, moments.mean, moments.rstd);
    EACH_FLOAT(e) s[e] = s[e] * moments.rstd - moments.shift;
    if (p.weight != 0) scale_and_shift(s, p.weight, p.bias, 0, cols, p.weight_is_f32);
    store_row(s, p.y, row * p.y_stride, cols, 1, 0);
    return 0;
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
    if (HAS_FULL_FORM && cols == FULL_COLS)
        is_wide = norm_held(p, row, 1, FULL_COLS, &sums);
    else
        is_wide = norm_held(p, row, is_there, cols, &sums);
    if (is_any_wide(is_wide)) norm_wide(&p, row, cols, is_wide, &sums);
}
