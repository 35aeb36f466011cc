// SPDX-License-Identifier: Apache-2.0
// Gradients of LayerNorm and RMSNorm of rows that fit into the registers of a block, with h = (x - mean) rstd and
// g = dy weight:
//     dx = rstd (g - mean(g) - h mean(g h)) + dresidual_out
// As many blocks as run at once go over all rows, in steps; each keeps its columns' sums of dy h and dy in registers and
// writes them once, for norm_reduce.cu. Which rows a block has depends on their number alone, so the sums are the same in
// every run. The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "cuda/device/rows.cuh"
#include "ops/norm/norm_device.cuh"
#include "ops/norm/norm_params.h"

// Adds what the rows of a block have, in their order, and gives it to the first of them.
#if ROWS_PER_BLOCK > 1
DEVICE void gather(float sum[FLOATS_PER_THREAD]) {
    __shared__ float shared[FLOATS_PER_THREAD][THREADS_PER_ROW];
    for (int r = 1; r < ROWS_PER_BLOCK; r++) {
        __syncthreads();
        if (ROW_OF_BLOCK == r) EACH_FLOAT(e) shared[e][ROW_THREAD] = sum[e];
        __syncthreads();
        if (ROW_OF_BLOCK == 0) EACH_FLOAT(e) sum[e] += shared[e][ROW_THREAD];
    }
}
#else
DEVICE void gather(float sum[FLOATS_PER_THREAD]) { (void)sum; }
#endif

// Where the registers allow it, the next row is asked for before this one is reduced.
#define IS_AHEAD (THREADS_PER_ROW <= 256)
#define MAX_RESIDENT (DTYPE == DTYPE_F32 ? 384 : 512) // threads, as norm_cuda.c plans
#define MIN_BLOCKS (BLOCK_THREADS > MAX_RESIDENT ? 1 : MAX_RESIDENT / BLOCK_THREADS)

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS)
    norm_backward(const struct norm_backward_params p) {
    DECLARE_REDUCER(reducer);
    long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    long long base = (long long)blockIdx.x * ROWS_PER_BLOCK, row = base + ROW_OF_BLOCK;
    float inverse_cols = 1.0f / p.cols;
    float dweight[FLOATS_PER_THREAD], dbias[FLOATS_PER_THREAD];
    struct raw_row next_x, next_dy;
    EACH_FLOAT(e) dweight[e] = dbias[e] = 0;
    if (IS_AHEAD && p.is_aligned) {
        fetch_row(&next_x, p.x, row * p.x_stride, row < p.rows ? p.cols : 0);
        fetch_row(&next_dy, p.dy, row * p.dy_stride, row < p.rows ? p.cols : 0);
    }
    for (; base < p.rows; base += step, row += step) {
        int cols = row < p.rows ? p.cols : 0;
        float h[FLOATS_PER_THREAD], g[FLOATS_PER_THREAD], sum_g = 0, sum_gh = 0;
        if (IS_AHEAD && p.is_aligned) {
            long long next = row + step;
            widen_row(h, &next_x, cols, 0);
            widen_row(g, &next_dy, cols, 0);
            fetch_row(&next_x, p.x, next * p.x_stride, next < p.rows ? p.cols : 0);
            fetch_row(&next_dy, p.dy, next * p.dy_stride, next < p.rows ? p.cols : 0);
        } else {
            load_row(h, p.x, row * p.x_stride, cols, p.is_aligned, 0);
            load_row(g, p.dy, row * p.dy_stride, cols, p.is_aligned, 0);
        }
        float mean = p.mean != 0 && cols > 0 ? p.mean[row] : 0, rstd = cols > 0 ? p.rstd[row] : 0;
        EACH_FLOAT(e) {
            h[e] = column_of(e, p.is_aligned) < cols ? normalised(h[e], mean, rstd) : 0;
            dweight[e] += g[e] * h[e];
            dbias[e] += g[e];
        }
        if (p.weight != 0) // from the first-level cache: registers are dearer
            scale_and_shift(g, p.weight, 0, cols, p.is_aligned, p.weight_is_f32);
        EACH_FLOAT(e) {
            sum_g += g[e];
            sum_gh += g[e] * h[e];
        }
        float mean_gh = reduce_sum(sum_gh, &reducer) * inverse_cols, mean_g = 0;
        if (!p.is_rmsnorm) mean_g = reduce_sum(sum_g, &reducer) * inverse_cols;
        EACH_FLOAT(e) h[e] = rstd * (g[e] - mean_g - h[e] * mean_gh);
        if (p.dresidual_out != 0) {
            load_row(g, p.dresidual_out, row * p.dresidual_out_stride, cols, p.is_aligned, 0);
            EACH_FLOAT(e) h[e] += g[e];
        }
        store_row(h, p.dx, row * p.dx_stride, cols, p.is_aligned);
    }
    if (p.partial == 0) return;
    gather(dweight);
    gather(dbias);
    if (ROW_OF_BLOCK > 0) return;
    float *to = p.partial + 2LL * blockIdx.x * p.cols;
    EACH_FLOAT(e) {
        int col = column_of(e, p.is_aligned);
        if (col >= p.cols) continue;
        to[col] = dweight[e];
        to[p.cols + col] = dbias[e];
    }
}
