// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm like norm_forward.cu, for rows of any width that begin anywhere, in shared memory. A row that is wider than
// its stage goes through it in chunks, twice; the second time from the last one, which is still there, to the first. The chunks'
// moments are joined in double (Chan, Golub, LeVeque).
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory, and the weight's way from the second-level cache; of rows in several chunks that of all but the last one, too.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW
#include "cuda/device/staged_rows.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_params.h"

// The moments of the columns so far.
struct totals {
    double mean, squares; // squares: sum of (x - mean)^2
    int cols, is_wide;    // is_wide: fp32 cannot hold the squares
};

DEVICE void store_group_anywhere(void *data, long long at, const float v[GROUP], int is_aligned) {
    if (is_aligned) {
        store_bytes(data, at, narrow(v));
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) store(data, at + i, v[i]);
}

// Adds the residual to a staged chunk, as stored, and stores the sum at `at` of residual_out.
DEVICE void add_residual(const struct stage *x, const struct stage *residual, int cols, void *out,
                         long long at) {
    const int edge = edge_column(x->shift, cols), is_alike = shift_of(out, at) == x->shift;
    float v[GROUP], more[GROUP];
    EACH_WHOLE_GROUP(col, x->shift, cols) {
        load_staged(v, x, col);
        load_staged(more, residual, col);
#pragma unroll
        for (int i = 0; i < GROUP; i++) v[i] = as_stored(v[i] + more[i]);
        *(uint4 *)(x->memory + (x->shift + col) * ELEMENT_BYTES) = narrow(v);
        store_group_anywhere(out, at + col, v, is_alike);
    }
    if (edge >= 0 && edge < cols) {
        const float sum = staged_element(x, edge) + staged_element(residual, edge);
        store(x->memory, x->shift + edge, sum);
        store(out, at + edge, sum);
    }
}

// Adds the moments of a staged chunk: about its rounded mean, corrected by the error of that mean.
DEVICE void add_moments(struct totals *t, const struct stage *x, int cols, int is_rmsnorm,
                        float slots[2][BLOCK_THREADS], struct row_sums *sums) {
    const int odd = is_stage_odd(x);
    float v[PER_WORD], offset[PER_WORD] = {0}, squares[PER_WORD] = {0}, mean = 0;
    if (!is_rmsnorm) {
        float sum[PER_WORD] = {0};
#pragma unroll 4
        EACH_STAGED_WORD(col, odd, cols) {
            load_staged_word(v, x, col);
#pragma unroll
            for (int i = 0; i < PER_WORD; i++) sum[i] += v[i];
        }
        mean = sum_one(sum_of_words(sum, odd, slots[0]), sums) / (float)cols;
    }
#pragma unroll 4
    EACH_STAGED_WORD(col, odd, cols) {
        load_staged_word(v, x, col);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            const int is_column = PER_WORD == 1 || (i == 0 ? col >= 0 : col + 1 < cols);
            const float centred = is_column ? v[i] - mean : 0;
            offset[i] += centred;
            squares[i] = fmaf(centred, centred, squares[i]);
        }
    }
    float all = sum_of_words(squares, odd, slots[1]);
    float error = is_rmsnorm ? 0 : sum_of_words(offset, odd, slots[0]);
    sum_two(&error, &all, sums);
    const double chunk_mean = mean + (double)error / cols, apart = chunk_mean - t->mean;
    const double share = (double)cols / (t->cols + cols);
    t->is_wide |= !(all <= 1e38f && fabsf(mean) <= 1e37f);
    t->squares += all - (double)error * error / cols + apart * apart * t->cols * share;
    t->mean += is_rmsnorm ? 0 : apart * share;
    t->cols += cols;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1024 / BLOCK_THREADS)
    norm_forward_staged(const struct norm_forward_params p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float slots[2][BLOCK_THREADS];
    DECLARE_ROW_SUMS(sums);
    const int num_stages = p.residual != 0 ? 2 : 1;
    struct stage x = {memory + ROW_OF_BLOCK * num_stages * p.stage_bytes, 0};
    struct stage residual = {x.memory + p.stage_bytes, 0};
    const int last = (p.cols - 1) / p.chunk * p.chunk;
    begin_early();
    for (long long row = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK; row < p.rows;
         row += (long long)gridDim.x * ROWS_PER_BLOCK) {
        const long long to = row * p.y_stride;
        struct totals t = {0, 0, 0, 0};
        for (int first = 0; first <= last; first += p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            stage_row(&x, p.x, row * p.x_stride + first, cols, 0);
            if (p.residual != 0)
                stage_row(&residual, p.residual, row * p.residual_stride + first, cols, 0);
            wait_for_stages();
            if (p.residual != 0) {
                add_residual(&x, &residual, cols, p.residual_out,
                             row * p.residual_out_stride + first);
                wait_for_stages();
            }
            add_moments(&t, &x, cols, p.is_rmsnorm, slots, &sums);
            if (first < last) wait_for_stages(); // before the next chunk takes its place
        }
        const double variance = fmax(t.squares, 0.0) * p.inverse_cols + p.eps;
        const float rstd = (float)rsqrt(variance), mean = (float)t.mean,
                    shift = (float)((t.mean - mean) * rstd);
        if (t.is_wide || !(variance >= 1e-30)) {
            norm_wide(&p, row, p.cols, 1, &sums);
            wait_for_stages(); // before the next row takes its place
            continue;
        }
        store_moments(&p, 0, row, mean, rstd);
        for (int first = last; first >= 0; first -= p.chunk) {
            const int cols = first < last ? p.chunk : p.cols - last;
            if (first < last) {
                stage_row(&x, source_of(&p), source_at(&p, row) + first, cols, 0);
                wait_for_stages();
            }
            const int y_shift = shift_of(p.y, to + first), edge = edge_column(y_shift, cols);
            EACH_WHOLE_GROUP(col, y_shift, cols) {
                float v[GROUP], of_column[GROUP];
                load_staged(v, &x, col);
#pragma unroll
                for (int i = 0; i < GROUP; i++) v[i] = (v[i] - mean) * rstd - shift;
                if (p.weight != 0) {
                    load_group_near(of_column, p.weight, first + col, p.cols, p.weight_is_f32);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) v[i] *= of_column[i];
                }
                if (p.bias != 0) {
                    load_group_near(of_column, p.bias, first + col, p.cols, p.weight_is_f32);
#pragma unroll
                    for (int i = 0; i < GROUP; i++) v[i] += of_column[i];
                }
                store_bytes(p.y, to + first + col, narrow(v));
            }
            if (edge >= 0 && edge < cols) {
                const int at = first + edge;
                float h = (staged_element(&x, edge) - mean) * rstd - shift;
                if (p.weight != 0) h *= load_either(p.weight, at, p.weight_is_f32);
                if (p.bias != 0) h += load_either(p.bias, at, p.weight_is_f32);
                store(p.y, to + at, h);
            }
            wait_for_stages(); // before what comes next takes its place
        }
    }
}
