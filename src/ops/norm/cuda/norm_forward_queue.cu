// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm like norm_forward.cu, for rows that fill the registers of a multiprocessor's only block or,
// with IS_CLUSTER, of a cluster of such blocks. Blocks go over the rows in steps and prefetch the next rows into
// a queue.
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory; in 16 bits a cluster has a single row on its way through its two barriers.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD, IS_CLUSTER for rows of a cluster
#include "cuda/device/row_queue.cuh"
#include "ops/norm/cuda/norm_moments.cuh"

// Where a row begins in each tensor. The residual is rare and not worth the registers.
struct row_place {
    long long row, x, y;
};

DEVICE struct row_place place_of(const struct norm_forward_params *p, long long row, int first) {
    struct row_place place = {row, row * p->x_stride + first, row * p->y_stride + first};
    return place;
}

// By additions, because 64-bit multiplications for each row would cost time.
DEVICE void move_on(struct row_place *place, const struct row_place *step) {
    place->row += step->row;
    place->x += step->x;
    place->y += step->y;
}

// Prefetches the row that is `lead` beyond a place.
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

DEVICE void go_over_rows(const struct norm_forward_params p, struct row_sums sums,
                         struct row_queue queue) {
    const struct slab slab = slab_of(&sums, p.cols, p.slab);
    const int block = blockIdx.x / slab.num_blocks, is_long = block < p.long_blocks;
    const int blocks = is_long ? p.long_blocks : gridDim.x / slab.num_blocks - p.long_blocks;
    const long long end = is_long ? p.long_rows : p.rows;
    const struct row_place step = place_of(&p, (long long)blocks * ROWS_PER_BLOCK, 0);
    struct row_place at = place_of(
        &p,
        (is_long ? 0 : p.long_rows) +
            (long long)(is_long ? block : block - p.long_blocks) * ROWS_PER_BLOCK + ROW_OF_BLOCK,
        slab.first);
    queue_clear(&queue, slab.cols);
    const struct row_place lead = place_of(&p, p.stages * step.row, 0);
    for (int stage = 0; stage < p.stages; stage++) {
        const struct row_place early = place_of(&p, stage * step.row, 0);
        ask_for_row(&queue, &p, slab, &at, &early, end);
    }
    for (; at.row - ROW_OF_BLOCK < end; move_on(&at, &step)) {
        int is_there = at.row < end; // missing rows still take part in shuffles
        int cols = is_there ? slab.cols : 0;
        const void *source = p.x;
        long long source_at = at.x;
        float s[FLOATS_PER_THREAD];
        queue_wait(&queue);
        queue_take(s, &queue, 0, is_there);
        if (p.residual != 0) {
            float residual[FLOATS_PER_THREAD];
            queue_take(residual, &queue, 1, is_there);
            EACH_FLOAT(e) s[e] = as_stored(s[e] + residual[e]);
            source = p.residual_out;
            source_at = at.row * p.residual_out_stride + slab.first;
            store_row(s, p.residual_out, source_at, cols, 1, 0);
        }
        ask_for_row(&queue, &p, slab, &at, &lead, end);

        float mean = 0, offset = 0;
        if (!p.is_rmsnorm) {
            mean = sum_one(sum_of(s), &sums) * (float)p.inverse_cols;
            subtract(s, mean, cols);
            offset = sum_of(s);
        }
        const struct row_moments moments = moments_of(mean, offset, squares_of(s), &p, &sums);
        int is_wide = moments.is_wide && is_there;
        if (__any_sync(0xffffffffu, is_wide)) {
            struct moments wide = wide_moments(source, source_at, cols, &p, &sums);
            if (is_wide) {
                store_moments(&p, slab.first, at.row, (float)wide.mean, (float)wide.rstd);
                store_wide(&p, slab.first, source, source_at, at.y, cols, wide);
                continue;
            }
        }
        if (is_there) store_moments(&p, slab.first, at.row, moments.mean, moments.rstd);
        EACH_FLOAT(e) s[e] = s[e] * moments.rstd - moments.shift;
        if (p.weight != 0) scale_and_shift(s, p.weight, p.bias, slab.first, cols, p.weight_is_f32);
        store_row(s, p.y, at.y, cols, 1, 0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 512 / BLOCK_THREADS)
    norm_forward_queue(const struct norm_forward_params p) {
    DECLARE_ROW_SUMS(sums);
    DECLARE_ROW_QUEUE(queue, p.stages, p.residual != 0 ? 2 : 1);
    begin_early();
    go_over_rows(p, sums, queue);
}
