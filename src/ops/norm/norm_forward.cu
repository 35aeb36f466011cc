// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm of rows that fit into the registers of a block or, IS_CLUSTER, of a cluster of blocks: one read,
// one write, residual included. Blocks go over the rows in steps; aligned rows to come are on their way in a queue, but for
// threads of 16 floats, of which enough run at once to do without. The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD, and IS_CLUSTER for rows of a cluster
// The variance is the corrected two-pass one (Chan, Golub, LeVeque): about the mean as rounded, less what that is off
// by. Rows whose squares leave fp32's range, upwards or downwards, are summed again in double.
#include "cuda/device/row_queue.cuh"
#include "ops/norm/norm_device.cuh"
#include "ops/norm/norm_params.h"

#define HAS_QUEUE (FLOATS_PER_THREAD == 32)
#define IS_PAST(p) (!HAS_QUEUE && (p).is_streaming) // behind a queue it does not gain
#define FULL_COLS (THREADS_PER_ROW * FLOATS_PER_THREAD)
#define HAS_FULL_ROWS (!HAS_QUEUE && ROWS_PER_BLOCK == 1)
#define SM_THREADS (HAS_QUEUE ? 512 : 1024) // that a multiprocessor has registers for

struct moments {
    double mean, rstd;
};

// The row in double, from where it was read (a residual sum: from where it was just written).
DEVICE struct moments wide_moments(const void *s, long long at, int cols,
                                   const struct norm_forward_params *p, int is_aligned,
                                   struct row_sums *sums) {
    double sum = 0, squares = 0, mean = 0;
    if (!p->is_rmsnorm) {
#pragma unroll 1
        for (int e = 0; e < FLOATS_PER_THREAD; e++) {
            int col = column_of(e, is_aligned);
            if (col < cols) sum += load(s, at + col);
        }
        mean = sum_double(sum, sums) * p->inverse_cols;
    }
#pragma unroll 1
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        int col = column_of(e, is_aligned);
        double centred = col < cols ? load(s, at + col) - mean : 0;
        squares += centred * centred;
    }
    squares = sum_double(squares, sums);
    struct moments moments = {mean, rsqrt(squares * p->inverse_cols + p->eps)};
    return moments;
}

DEVICE void store_wide(const struct norm_forward_params *p, struct slab slab, const void *s,
                       long long at, long long y_at, int cols, int is_aligned,
                       struct moments moments) {
#pragma unroll 1
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        int col = column_of(e, is_aligned);
        if (col >= cols) continue;
        double h = (load(s, at + col) - moments.mean) * moments.rstd;
        if (p->weight != 0) h *= load_either(p->weight, slab.first + col, p->weight_is_f32);
        if (p->bias != 0) h += load_either(p->bias, slab.first + col, p->weight_is_f32);
        store(p->y, y_at + col, (float)h);
    }
}

DEVICE void store_moments(const struct norm_forward_params *p, struct slab slab, long long row,
                          float mean, float rstd) {
    if (ROW_THREAD != 0 || slab.first != 0) return;
    if (p->mean != 0) p->mean[row] = mean;
    if (p->rstd != 0) p->rstd[row] = rstd;
}

// Where a row begins in each tensor. The residual's place, which is rarely there, is not worth its registers.
struct row_place {
    long long row, x, y;
};

DEVICE struct row_place place_of(const struct norm_forward_params *p, long long row, int first) {
    struct row_place place = {row, row * p->x_stride + first, row * p->y_stride + first};
    return place;
}

// By additions where there is a queue: multiplications of 64 bits for each row would show. Without one a block has one row,
// as a rule, and registers are dearer.
DEVICE void move_on(struct row_place *place, const struct norm_forward_params *p,
                    const struct row_place *step, int first) {
    if (HAS_QUEUE) {
        place->row += step->row;
        place->x += step->x;
        place->y += step->y;
    } else {
        *place = place_of(p, place->row + step->row, first);
    }
}

// Asks for the row that is `lead` beyond a place.
DEVICE void ask_for_row(struct row_queue *queue, const struct norm_forward_params *p,
                        struct slab slab, const struct row_place *at, const struct row_place *lead,
                        long long end) {
    int cols = at->row + lead->row < end ? slab.cols : 0;
    queue_ask(queue, 0, p->x, at->x + lead->x, cols);
    if (p->residual != 0)
        queue_ask(queue, 1, p->residual, (at->row + lead->row) * p->residual_stride + slab.first,
                  cols);
    queue_commit(queue);
}

// In four chains, so that no addition waits for the one before.
DEVICE float sum_of(const float x[FLOATS_PER_THREAD]) {
    float sum[4] = {0};
    EACH_FLOAT(e) sum[e % 4] += x[e];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Compiled once for aligned rows, once for others and, is_full, once for aligned rows of all the columns that a block has, whose
// comparisons fall away: none pays for the other.
DEVICE void go_over_rows(const struct norm_forward_params p, int is_aligned, int is_full,
                         struct row_sums sums, struct row_queue queue) {
    const struct slab slab = slab_of(&sums, p.cols, p.slab);
    const int block = blockIdx.x / slab.num_blocks, is_long = HAS_QUEUE && block < p.long_blocks;
    const int blocks = is_long ? p.long_blocks : gridDim.x / slab.num_blocks - p.long_blocks;
    const long long end = is_long ? p.long_rows : p.rows;
    const struct row_place step = place_of(&p, (long long)blocks * ROWS_PER_BLOCK, 0);
    struct row_place at = place_of(
        &p,
        (is_long ? 0 : p.long_rows) +
            (long long)(is_long ? block : block - p.long_blocks) * ROWS_PER_BLOCK + ROW_OF_BLOCK,
        slab.first);
    float inverse_cols = (float)p.inverse_cols;
    int is_queued = HAS_QUEUE && is_aligned;
    if (is_queued) queue_clear(&queue, slab.cols);
    const struct row_place lead = place_of(&p, p.stages * step.row, 0);
    for (int stage = 0; is_queued && stage < p.stages; stage++) {
        const struct row_place early = place_of(&p, stage * step.row, 0);
        ask_for_row(&queue, &p, slab, &at, &early, end);
    }
    for (; at.row - ROW_OF_BLOCK < end; move_on(&at, &p, &step, slab.first)) {
        int is_there =
            is_full || at.row < end; // the last block's missing rows take part in shuffles
        int cols = is_full ? FULL_COLS : is_there ? slab.cols : 0;
        const void *source = p.x;
        long long source_at = at.x;
        float s[FLOATS_PER_THREAD];
        if (is_queued) {
            queue_wait(&queue);
            queue_take(s, &queue, 0, is_there);
        } else {
            load_row(s, p.x, at.x, cols, is_aligned, ROWS_ONCE, 0);
        }
        if (p.residual != 0) {
            float residual[FLOATS_PER_THREAD];
            if (is_queued)
                queue_take(residual, &queue, 1, is_there);
            else
                load_row(residual, p.residual, at.row * p.residual_stride + slab.first, cols,
                         is_aligned, ROWS_ONCE, 0);
            EACH_FLOAT(e) s[e] = as_stored(s[e] + residual[e]);
            source = p.residual_out;
            source_at = at.row * p.residual_out_stride + slab.first;
            store_row(s, p.residual_out, source_at, cols, is_aligned, IS_PAST(p));
        }
        if (is_queued) ask_for_row(&queue, &p, slab, &at, &lead, end);

        // Mean, then variance about it.
        float mean = 0, offset = 0, squares = 0;
        if (!p.is_rmsnorm) {
            mean = sum_one(sum_of(s), &sums) * inverse_cols;
            subtract(s, mean, cols, is_aligned);
            offset = sum_of(s);
        }
        float square[4] = {0}; // in four chains, as sum_of
        EACH_FLOAT(e) square[e % 4] += s[e] * s[e];
        squares = (square[0] + square[1]) + (square[2] + square[3]);
        sum_two(&offset, &squares, &sums);
        offset *= inverse_cols;
        squares *= inverse_cols;
        float variance = fmaxf(squares - offset * offset, 0) + (float)p.eps;
        float rstd = rsqrtf(variance);
        rstd =
            rstd * (1.5f - 0.5f * variance * rstd * rstd); // a Newton step: to the last bit or so

        int is_wide = !(squares <= 1e37f && variance >= 1e-30f && fabsf(mean) <= 1e37f) && is_there;
        if (__any_sync(0xffffffffu, is_wide)) { // all rows of a warp, for its shuffles
            struct moments wide = wide_moments(source, source_at, cols, &p, is_aligned, &sums);
            if (is_wide) {
                store_moments(&p, slab, at.row, (float)wide.mean, (float)wide.rstd);
                store_wide(&p, slab, source, source_at, at.y, cols, is_aligned, wide);
                continue;
            }
        }
        if (is_there) store_moments(&p, slab, at.row, mean + offset, rstd);
        EACH_FLOAT(e) s[e] = s[e] * rstd - offset * rstd;
        if (p.weight != 0)
            scale_and_shift(s, p.weight, p.bias, slab.first, cols, is_aligned, p.weight_is_f32);
        store_row(s, p.y, at.y, cols, is_aligned, IS_PAST(p));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, SM_THREADS / BLOCK_THREADS)
    norm_forward(const struct norm_forward_params p) {
    DECLARE_ROW_SUMS(sums);
    DECLARE_ROW_QUEUE(queue, p.stages, p.residual != 0 ? 2 : 1);
    begin_early();
    if (HAS_FULL_ROWS && p.is_aligned && p.cols == FULL_COLS)
        go_over_rows(p, 1, 1, sums, queue);
    else if (p.is_aligned)
        go_over_rows(p, 1, 0, sums, queue);
    else
        go_over_rows(p, 0, 0, sums, queue);
}
