// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of rows of any width, whose tensors have several dtypes or rows of two strides: a residual stream in
// fp32 beside rows of 16 bits, the heads inside a packed qkv.
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory; rows wider than a tile are read three times, from the second-level cache.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE (2: the tensors' dtypes are known at run time), THREADS_PER_ROW
#define FLOATS_PER_THREAD 8 // x and the residual at once
#include "ops/norm/cuda/norm_mixed.cuh"
#include "ops/norm/cuda/norm_moments.cuh"

// A tile of the row to normalise; with a residual the sum, which is stored.
DEVICE void load_sum(float s[FLOATS_PER_THREAD], const struct norm_mixed_params *p, long long row,
                     int first, int cols) {
    float more[FLOATS_PER_THREAD];
    load_tile(s, &p->x, row_at(&p->x.rows, row), first, cols, p->is_aligned);
    if (p->residual.rows.data == 0) return;
    load_tile(more, &p->residual, row_at(&p->residual.rows, row), first, cols, p->is_aligned);
    EACH_FLOAT(e) s[e] = as_stored_any(s[e] + more[e], p->residual_out.dtype);
    store_tile(s, &p->residual_out, row_at(&p->residual_out.rows, row), first, cols, p->is_aligned);
}

DEVICE void subtract_mean(float s[FLOATS_PER_THREAD], float mean, int left) {
    EACH_FLOAT(e) s[e] = column_of(e, 1) < left ? s[e] - mean : 0;
}

// Returns 1, and leaves y alone, if the row must be summed in double.
DEVICE int norm_row(const struct norm_mixed_params *p, long long row, int is_there, int cols,
                    struct row_sums *sums) {
    const struct norm_forward_params *f = &p->forward;
    const struct norm_view *source = p->residual.rows.data != 0 ? &p->residual_out : &p->x;
    const int is_long = p->cols > TILE_COLS;
    const long long at = row_at(&source->rows, row), y_at = row_at(&p->y.rows, row);
    float s[FLOATS_PER_THREAD], mean = 0, offset = 0, squares = 0;
    EACH_TILE(first, cols) {
        load_sum(s, p, row, first, cols);
        if (!p->is_rmsnorm) mean += sum_of(s);
    }
    if (!p->is_rmsnorm) mean = sum_one(mean, sums) * (float)f->inverse_cols;
    EACH_TILE(first, cols) {
        if (is_long) load_tile(s, source, at, first, cols, p->is_aligned);
        if (!p->is_rmsnorm) {
            subtract_mean(s, mean, cols - first);
            offset += sum_of(s);
        }
        squares += squares_of(s);
    }
    const struct row_moments moments = moments_of(mean, offset, squares, f, sums);
    if (moments.is_wide || !is_there) return is_there;
    store_moments(f, 0, row, moments.mean, moments.rstd);
    EACH_TILE(first, cols) {
        float bias[FLOATS_PER_THREAD];
        if (is_long) {
            load_tile(s, source, at, first, cols, p->is_aligned);
            if (!p->is_rmsnorm) subtract_mean(s, mean, cols - first);
        }
        EACH_FLOAT(e) s[e] = s[e] * moments.rstd - moments.shift;
        scale_tile(s, p, first, cols);
        if (p->bias.rows.data != 0) {
            load_tile(bias, &p->bias, 0, first, cols, p->is_aligned);
            EACH_FLOAT(e) s[e] += bias[e];
        }
        store_tile(s, &p->y, y_at, first, cols, p->is_aligned);
    }
    return 0;
}

// Normalises a row again, in double, from memory.
DEVICE void norm_row_wide(const struct norm_mixed_params *p, long long row, int cols, int is_wide,
                          struct row_sums *sums) {
    const struct norm_forward_params *f = &p->forward;
    const struct norm_view *source = p->residual.rows.data != 0 ? &p->residual_out : &p->x;
    const long long at = row_at(&source->rows, row), y_at = row_at(&p->y.rows, row);
    double squares = 0, mean = 0;
    // The row's threads have stored the sum, each its own columns, not those that it reads here.
    if (THREADS_PER_ROW > 32)
        row_barrier();
    else
        __syncwarp();
    if (!p->is_rmsnorm) {
        EACH_COLUMN(col, cols) mean += load_any(source->rows.data, at + col, source->dtype);
        mean = sum_double(mean, sums) * f->inverse_cols;
    }
    EACH_COLUMN(col, cols) {
        const double centred = load_any(source->rows.data, at + col, source->dtype) - mean;
        squares += centred * centred;
    }
    squares = sum_double(squares, sums);
    const double rstd = rsqrt(squares * f->inverse_cols + f->eps);
    if (!is_wide) return;
    store_moments(f, 0, row, (float)mean, (float)rstd);
    EACH_COLUMN(col, cols) {
        double h = (load_any(source->rows.data, at + col, source->dtype) - mean) * rstd;
        if (p->weight.rows.data != 0)
            h *= (double)load_any(p->weight.rows.data, col, p->weight.dtype) + p->weight_offset;
        if (p->bias.rows.data != 0) h += load_any(p->bias.rows.data, col, p->bias.dtype);
        store_any(p->y.rows.data, y_at + col, (float)h, p->y.dtype);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1024 / BLOCK_THREADS)
    norm_mixed_forward(const struct norm_mixed_params p) {
    DECLARE_ROW_SUMS(sums);
    begin_early();
    for (long long base = (long long)blockIdx.x * ROWS_PER_BLOCK; base < p.rows;
         base += (long long)gridDim.x * ROWS_PER_BLOCK) {
        const long long row = base + ROW_OF_BLOCK;
        const int is_there = ROWS_PER_BLOCK == 1 || row < p.rows; // others take part in shuffles
        const int cols = is_there ? p.cols : 0;
        const int is_wide = norm_row(&p, row, is_there, cols, &sums);
        if (is_any_wide(is_wide)) norm_row_wide(&p, row, cols, is_wide, &sums);
    }
}
