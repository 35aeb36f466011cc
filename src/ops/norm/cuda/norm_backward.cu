// SPDX-License-Identifier: Apache-2.0
// Gradients of LayerNorm and RMSNorm, (rows, cols), for aligned rows that fit into the registers of a block, with
// h = (x - mean) rstd and g = dy weight:
//     dx = rstd (g - mean(g) - h mean(g h)) + dresidual_out
// As many blocks as run at once go over all rows, in steps, and prefetch the next rows into a queue. Each block keeps
// its columns' sums of dy h and dy in registers and writes them once, for norm_reduce.cu. The rows of a block depend on
// the number of rows only, so the sums are the same in every run.
// Floor: x and dy read once, dx written once. Limit: memory, of which blocks with equal shares of the rows get unequal ones.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#define BLOCK_THREADS 512
#include "cuda/device/row_queue.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_gather.cuh"
#include "ops/norm/cuda/norm_params.h"

// Writes a block's sums; each four columns are contiguous.
DEVICE void write_sums(float *to, const float sum[FLOATS_PER_THREAD], int cols) {
#pragma unroll
    for (int e = 0; e < FLOATS_PER_THREAD; e += 4) {
        int col = column_of(e, 1);
        if (col < cols)
            *(float4 *)&to[col] = make_float4(sum[e], sum[e + 1], sum[e + 2], sum[e + 3]);
    }
}

// Where a row begins in each tensor. It moves by additions, because 64-bit multiplications for each row would cost
// time. The residual is rare and not worth the registers.
struct row_place {
    long long row, x, dy, dx;
};

DEVICE struct row_place place_of(const struct norm_backward_params *p, long long row) {
    struct row_place place = {row, row * p->x_stride, row * p->dy_stride, row * p->dx_stride};
    return place;
}

DEVICE void move_on(struct row_place *place, const struct row_place *step) {
    place->row += step->row;
    place->x += step->x;
    place->dy += step->dy;
    place->dx += step->dx;
}

// Prefetches the row that is `lead` beyond a place.
DEVICE void ask_for_row(struct row_queue *queue, const struct norm_backward_params *p,
                        struct row_place at, const struct row_place *lead) {
    move_on(&at, lead);
    int cols = at.row < p->rows ? p->cols : 0;
    queue_ask(queue, 0, p->x, at.x, cols);
    queue_ask(queue, 1, p->dy, at.dy, cols);
    if (p->dresidual_out != 0)
        queue_ask(queue, 2, p->dresidual_out, at.row * p->dresidual_out_stride, cols);
    queue_commit(queue);
}

// Prefetches the queue's first rows into the second-level cache while the previous kernel ends.
DEVICE void fetch_first_rows(const struct norm_backward_params *p) {
    for (int stage = 0; stage < p->stages; stage++) {
        long long row = ((long long)stage * gridDim.x + blockIdx.x) * ROWS_PER_BLOCK + ROW_OF_BLOCK;
        if (row >= p->rows) break;
        fetch_row(p->x, row * p->x_stride, p->cols);
        fetch_row(p->dy, row * p->dy_stride, p->cols);
    }
}

DEVICE void go_over_rows(const struct norm_backward_params p, struct row_sums sums,
                         struct row_queue queue) {
    const struct row_place step = place_of(&p, (long long)gridDim.x * ROWS_PER_BLOCK);
    struct row_place at = place_of(&p, (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK);
    float inverse_cols = 1.0f / p.cols, mean = 0, rstd = 0;
    float dweight[FLOATS_PER_THREAD], dbias[FLOATS_PER_THREAD];
    EACH_FLOAT(e) dweight[e] = dbias[e] = 0;
    queue_clear(&queue, p.cols);
    const struct row_place lead = place_of(&p, p.stages * step.row);
    for (int stage = 0; stage < p.stages; stage++) {
        const struct row_place early = place_of(&p, stage * step.row);
        ask_for_row(&queue, &p, at, &early);
    }
    if (at.row < p.rows) {
        mean = p.mean != 0 ? p.mean[at.row] : 0;
        rstd = p.rstd[at.row];
    }
    for (; at.row - ROW_OF_BLOCK < p.rows; move_on(&at, &step)) {
        int is_there = ROWS_PER_BLOCK == 1 || at.row < p.rows, cols = is_there ? p.cols : 0;
        float h[FLOATS_PER_THREAD], g[FLOATS_PER_THREAD];
        queue_wait(&queue);
        queue_take(h, &queue, 0, is_there);
        queue_take(g, &queue, 1, is_there);
        NOT_ALL_AT_ONCE;
        if (p.dresidual_out == 0) ask_for_row(&queue, &p, at, &lead);
        float this_rstd = rstd, sum_g = 0, sum_gh = 0;
        EACH_FLOAT(e) h[e] = normalised(h[e], mean, rstd);
        int is_far = is_mean_far(mean, rstd); // rare; rows that share a warp take the sums together
        if (THREADS_PER_ROW < 32 ? __any_sync(0xffffffffu, is_far) : is_far) {
            float rest = 0;
            EACH_FLOAT(e) rest += column_of(e, 1) < cols ? h[e] : 0;
            rest = rest_of(sum_one(rest, &sums), p.cols);
            if (THREADS_PER_ROW < 32 && !is_far) rest = 0;
            EACH_FLOAT(e) h[e] = column_of(e, 1) < cols ? h[e] - rest : 0; // finite beyond the row
        }
        EACH_FLOAT(e) {                                // g is 0 beyond the row
            dweight[e] = fmaf(g[e], h[e], dweight[e]); // an explicit FMA, or the compiler
            dbias[e] += g[e];                          // keeps g h for the sums without weight
        }
        if (p.weight != 0) // from the first-level cache, to save registers
            scale_and_shift(g, p.weight, 0, 0, cols, p.weight_is_f32);
        EACH_FLOAT(e) {
            sum_g += g[e];
            sum_gh = fmaf(g[e], h[e], sum_gh);
        }
        if (at.row + step.row < p.rows) { // loaded early, for the next row
            mean = p.mean != 0 ? p.mean[at.row + step.row] : 0;
            rstd = p.rstd[at.row + step.row];
        } else {
            mean = rstd = 0;
        }
        sum_two(&sum_g, &sum_gh, &sums);
        float mean_gh = sum_gh * inverse_cols, mean_g = p.is_rmsnorm ? 0 : sum_g * inverse_cols;
        float of_h = -this_rstd * mean_gh, shift = -this_rstd * mean_g;
        EACH_FLOAT(e) h[e] = fmaf(h[e], of_h, fmaf(g[e], this_rstd, shift));
        if (p.dresidual_out != 0) { // loaded late, to save registers
            queue_take(g, &queue, 2, is_there);
            ask_for_row(&queue, &p, at, &lead);
            EACH_FLOAT(e) h[e] += g[e];
        }
        store_row(h, p.dx, at.dx, cols, 1, 0);
    }
    start_dependents();
    if (p.partial == 0) return;
    asm volatile("cp.async.wait_all;" ::: "memory"); // no copy is pending, but empty groups may be
    gather(dweight, (float *)queue.memory);
    gather(dbias, (float *)queue.memory);
    if (ROW_OF_BLOCK > 0) return;
    float *to = p.partial + 2LL * blockIdx.x * p.cols;
    write_sums(to, dweight, p.cols);
    write_sums(to + p.cols, dbias, p.cols);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    norm_backward(const struct norm_backward_params p) {
    DECLARE_ROW_SUMS(sums);
    DECLARE_ROW_QUEUE(queue, p.stages, p.dresidual_out != 0 ? 3 : 2);
    fetch_first_rows(&p);
    wait_for_primary();
    go_over_rows(p, sums, queue);
}
