// SPDX-License-Identifier: Apache-2.0
// dx of LayerNorm and RMSNorm for rows of any width, whose tensors have any dtypes and rows of two strides; of rows of one tile
// also the block's sums for dweight and dbias. norm_columns.cu sums wider ones.
// Floor: x and dy read once, dx written once.
// Limit: memory; rows wider than a tile are read twice.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE (2: the tensors' dtypes are known at run time), THREADS_PER_ROW
#define BLOCK_THREADS 512
#include "ops/norm/cuda/norm_mixed.cuh"

#include "ops/norm/cuda/norm_gather.cuh" // of FLOATS_PER_THREAD columns

struct row_here {
    long long x, dy, dx, dresidual_out;
    float mean, rstd, rest;
};

// h of a tile; 0 beyond the row.
DEVICE void load_h(float h[FLOATS_PER_THREAD], const struct norm_mixed_params *p,
                   const struct row_here *row, int first, int cols) {
    load_tile(h, &p->x, row->x, first, cols, p->is_aligned);
    EACH_FLOAT(e)
    h[e] = column_of(e, 1) < cols - first ? normalised(h[e], row->mean, row->rstd) - row->rest : 0;
}

// The rounding error of the row's mean, where it matters. All threads of a warp call it.
DEVICE float find_rest(const struct norm_mixed_params *p, const struct row_here *row, int cols,
                       struct row_sums *sums) {
    const int is_far = is_mean_far(row->mean, row->rstd);
    float h[FLOATS_PER_THREAD], sum = 0;
    if (!(THREADS_PER_ROW < 32 ? __any_sync(0xffffffffu, is_far) : is_far)) return 0;
    EACH_TILE(first, cols) {
        load_h(h, p, row, first, cols);
        EACH_FLOAT(e) sum += h[e];
    }
    sum = rest_of(sum_one(sum, sums), p->cols);
    return is_far ? sum : 0;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    norm_mixed_backward(const struct norm_mixed_params p) {
    __shared__ float gathered[BLOCK_THREADS / 2 * FLOATS_PER_THREAD];
    DECLARE_ROW_SUMS(sums);
    const float inverse_cols = 1.0f / p.cols;
    const int is_long = p.cols > TILE_COLS;
    float dweight[FLOATS_PER_THREAD], dbias[FLOATS_PER_THREAD];
    EACH_FLOAT(e) dweight[e] = dbias[e] = 0;
    begin_early();
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows;
         base += (long long)gridDim.x * ROWS_PER_BLOCK) {
        const long long r = base + ROW_OF_BLOCK;
        const int is_there = ROWS_PER_BLOCK == 1 || r < p.rows, cols = is_there ? p.cols : 0;
        struct row_here row = {row_at(&p.x.rows, r), row_at(&p.dy.rows, r), row_at(&p.dx.rows, r),
                               row_at(&p.dresidual_out.rows, r)};
        float h[FLOATS_PER_THREAD], g[FLOATS_PER_THREAD], sum_g = 0, sum_gh = 0;
        row.mean = is_there && p.mean != 0 ? p.mean[r] : 0;
        row.rstd = is_there ? p.rstd[r] : 0;
        row.rest = 0;
        if (!p.is_rmsnorm) row.rest = find_rest(&p, &row, cols, &sums);
        EACH_TILE(first, cols) {
            load_h(h, &p, &row, first, cols);
            load_tile(g, &p.dy, row.dy, first, cols, p.is_aligned);
            EACH_FLOAT(e) { // of rows of one tile; others are not asked for sums
                dweight[e] = fmaf(g[e], h[e], dweight[e]);
                dbias[e] += g[e];
            }
            scale_tile(g, &p, first, cols);
            EACH_FLOAT(e) {
                sum_g += g[e];
                sum_gh = fmaf(g[e], h[e], sum_gh);
            }
        }
        sum_two(&sum_g, &sum_gh, &sums);
        const float mean_gh = sum_gh * inverse_cols,
                    mean_g = p.is_rmsnorm ? 0 : sum_g * inverse_cols;
        EACH_TILE(first, cols) {
            if (is_long) {
                load_h(h, &p, &row, first, cols);
                load_tile(g, &p.dy, row.dy, first, cols, p.is_aligned);
                scale_tile(g, &p, first, cols);
            }
            EACH_FLOAT(e) h[e] = row.rstd * (g[e] - mean_g - h[e] * mean_gh);
            if (p.dresidual_out.rows.data != 0) {
                load_tile(g, &p.dresidual_out, row.dresidual_out, first, cols, p.is_aligned);
                EACH_FLOAT(e) h[e] += g[e];
            }
            store_tile(h, &p.dx, row.dx, first, cols, p.is_aligned);
        }
    }
    start_dependents();
    if (p.partial == 0 || is_long) return;
    gather(dweight, gathered);
    gather(dbias, gathered);
    if (ROW_OF_BLOCK > 0) return;
    float *to = p.partial + 2LL * blockIdx.x * p.cols;
    EACH_FLOAT(e)
    if (column_of(e, 1) < p.cols) {
        to[column_of(e, 1)] = dweight[e];
        to[p.cols + column_of(e, 1)] = dbias[e];
    }
}
