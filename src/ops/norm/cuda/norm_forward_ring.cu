// SPDX-License-Identifier: Apache-2.0
// LayerNorm and RMSNorm like norm_forward.cu, for rows that begin anywhere and whose weights the registers of a block hold.
// As many blocks as run at once go over all rows, in steps. In each step, with one barrier,
//     the row before leaves its stage, and the row of the farthest step is copied into it;
//     the second row from now is added to its residual, and its mean is begun;
//     the next row's mean is there, and its squares about it are begun;
//     this row's moments are there, and y replaces x in the stage, or the residual if there is one.
// Floor: x read once, y written once; with a residual that is read and residual_out written, too.
// Limit: memory and the instructions of words.
// Figures: docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD
#include "cuda/device/row_ring.cuh"
#include "ops/norm/cuda/norm_moments.cuh"

struct operands {
    char *x, *residual; // this thread's first words of a staged row
    int are_odd;
};

// A row on its way. cols: -1 if there is no such row.
struct row {
    long long at;
    int stage, cols;
    float mean; // rounded
};

struct block {
    const struct norm_forward_params *p;
    struct ring ring;
};

DEVICE struct operands operands_of(const struct block *block, const struct row *row) {
    const struct norm_forward_params *p = block->p;
    const long long x = row->at * p->x_stride, residual = row->at * p->residual_stride;
    struct operands of = {ring_words(ring_stage(&block->ring, row->stage, 0), p->x, x, row->cols),
                          0, DO_LANES_DIFFER || is_odd(p->x, x)};
    if (p->residual == 0) return of;
    of.residual =
        ring_words(ring_stage(&block->ring, row->stage, 1), p->residual, residual, row->cols);
    of.are_odd |= is_odd(p->residual, residual);
    return of;
}

// The staged row to normalise, and where y is staged.
DEVICE struct stage stage_of_x(const struct block *block, const struct row *row) {
    const struct stage x = {ring_stage(&block->ring, row->stage, 0),
                            shift_of(block->p->x, row->at * block->p->x_stride)};
    return x;
}
DEVICE struct stage stage_of_y(const struct block *block, const struct row *row) {
    const struct norm_forward_params *p = block->p;
    if (p->residual == 0) return stage_of_x(block, row);
    const struct stage y = {ring_stage(&block->ring, row->stage, 1),
                            shift_of(p->residual, row->at * p->residual_stride)};
    return y;
}

// ---- A row's three steps ---------------------------------------------------------------------------

// The thread's sum of x; with a residual, the sum replaces x.
DEVICE float begin_row(const struct operands *of, int cols, int are_odd) {
    const int left = cols - ring_column();
    float sum[2] = {0, 0}; // two chains
    EACH_SOME_WORDS(v, cols) {
        float x[RING_SOME][PER_WORD], more[RING_SOME][PER_WORD];
        ring_take(x, of->x, v, left, are_odd);
        if (of->residual != 0) {
            ring_take(more, of->residual, v, left, are_odd);
            EACH_OF_SOME(j) EACH_OF_WORD(i) x[j][i] = as_stored(x[j][i] + more[j][i]);
            ring_put(x, of->x, v, left, are_odd);
        }
        EACH_OF_SOME(j) EACH_OF_WORD(i) sum[j % 2] += x[j][i];
    }
    return sum[0] + sum[1];
}

// The thread's sums of x - mean, and of its squares.
DEVICE void square_row(const struct operands *of, const struct row *row, struct three *sums,
                       int are_odd) {
    const int left = row->cols - ring_column();
    float offset[2] = {0, 0}, squares[2] = {0, 0};
    EACH_SOME_WORDS(v, row->cols) {
        float x[RING_SOME][PER_WORD];
        ring_take(x, of->x, v, left, are_odd);
        EACH_OF_SOME(j) EACH_OF_WORD(i) {
            const float centred = (v + j) * RING_STEP + i < left ? x[j][i] - row->mean : 0;
            offset[j % 2] += centred;
            squares[j % 2] = fmaf(centred, centred, squares[j % 2]);
        }
    }
    sums->a = offset[0] + offset[1];
    sums->b = squares[0] + squares[1];
}

DEVICE void finish_row(const struct operands *of, const struct row *row,
                       const struct row_moments *moments, const float weight[FLOATS_PER_THREAD],
                       const float bias[FLOATS_PER_THREAD], int are_odd) {
    const int left = row->cols - ring_column();
    char *y = of->residual != 0 ? of->residual : of->x;
    EACH_SOME_WORDS(v, row->cols) {
        float x[RING_SOME][PER_WORD];
        ring_take(x, of->x, v, left, are_odd);
        EACH_OF_SOME(j) EACH_OF_WORD(i) {
            const int e = (v + j) * PER_WORD + i;
            x[j][i] =
                fmaf((x[j][i] - row->mean) * moments->rstd - moments->shift, weight[e], bias[e]);
        }
        ring_put(x, y, v, left, are_odd);
    }
}

// Rare rows whose squares fp32 cannot hold: in double.
DEVICE void finish_wide(const struct block *block, const struct row *row, int is_wide,
                        struct row_sums *sums) {
    const struct norm_forward_params *p = block->p;
    const struct stage x = stage_of_x(block, row), y = stage_of_y(block, row);
    const struct moments moments = wide_moments(x.memory, x.shift, row->cols, p, sums);
    if (!is_wide) return;
    store_moments(p, 0, row->at, (float)moments.mean, (float)moments.rstd);
    EACH_COLUMN(col, row->cols) {
        double h = (staged_element(&x, col) - moments.mean) * moments.rstd;
        if (p->weight != 0) h *= load_either(p->weight, col, p->weight_is_f32);
        if (p->bias != 0) h += load_either(p->bias, col, p->weight_is_f32);
        store(y.memory, y.shift + col, (float)h);
    }
}

// ---- Steps -----------------------------------------------------------------------------------------

DEVICE void ask_for_row(const struct block *block, long long at, int stage) {
    const struct norm_forward_params *p = block->p;
    if (at < p->rows) {
        ring_ask(ring_stage(&block->ring, stage, 0), p->x, at * p->x_stride, p->cols);
        if (p->residual != 0)
            ring_ask(ring_stage(&block->ring, stage, 1), p->residual, at * p->residual_stride,
                     p->cols);
    }
    copy_commit();
}

DEVICE void give_row(const struct block *block, const struct row *row) {
    const struct norm_forward_params *p = block->p;
    const struct stage x = stage_of_x(block, row), y = stage_of_y(block, row);
    if (row->cols > 0) {
        ring_give(&y, p->y, row->at * p->y_stride, row->cols);
        if (p->residual != 0)
            ring_give(&x, p->residual_out, row->at * p->residual_out_stride, row->cols);
    }
    if (DO_LANES_DIFFER) __syncwarp();
}

DEVICE struct row row_at(const struct block *block, long long at, int stage) {
    const struct row row = {at, stage, at < block->p->rows ? block->p->cols : -1, 0};
    return row;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    norm_forward_ring(const struct norm_forward_params p) {
    extern __shared__ __align__(16) char memory[];
    DECLARE_RING_SLOTS(slots);
    DECLARE_ROW_SUMS(sums);
    const int tensors = p.residual != 0 ? 2 : 1, has_mean = !p.is_rmsnorm;
    const struct ring ring = {memory + ROW_OF_BLOCK * p.stages * tensors * p.stage_bytes,
                              p.stage_bytes, tensors, p.stages};
    const struct block block = {&p, ring};
    const long long step = (long long)gridDim.x * ROWS_PER_BLOCK;
    const long long first = (long long)blockIdx.x * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    float weight[FLOATS_PER_THREAD], bias[FLOATS_PER_THREAD];
    begin_early();
    for (int stage = 0; stage + 1 < p.stages; stage++)
        ask_for_row(&block, first + stage * step, stage);
    ring_vector(weight, p.weight, 0, p.cols, p.weight_is_f32, 1);
    ring_vector(bias, p.bias, 0, p.cols, p.weight_is_f32, 0);
    struct row before = {first, p.stages - 1, -1, 0}, now = before, next = before;
    struct row after = row_at(&block, first, 0);
    struct three sum = {0, 0, 0};
    // In the first two steps there are no rows but the later ones.
    for (int early = 2, turn = 0;; early = max(early - 1, 0), turn ^= 1) {
        ring_wait(p.stages - 4 + early);
        ring_barrier();
        const struct three all = ring_take_sums(&sum, has_mean, &slots, turn);
        give_row(&block, &before);
        if (now.at - ROW_OF_BLOCK >= p.rows) break; // alike in all of the block's threads
        if (early == 0) ask_for_row(&block, now.at + (p.stages - 1) * step, before.stage);
        next.mean = has_mean ? all.c * (float)p.inverse_cols : 0;
        sum.a = sum.b = sum.c = 0;
        if (after.cols > 0 && (has_mean || p.residual != 0)) {
            const struct operands of = operands_of(&block, &after);
            sum.c = of.are_odd ? begin_row(&of, after.cols, 1) : begin_row(&of, after.cols, 0);
        }
        if (next.cols > 0) {
            const struct operands of = operands_of(&block, &next);
            if (of.are_odd)
                square_row(&of, &next, &sum, 1);
            else
                square_row(&of, &next, &sum, 0);
        }
        ring_give_sums(&sum, has_mean, &slots, turn ^ 1);
        const int is_there = now.cols >= 0;
        const struct row_moments moments =
            moments_from(now.mean, p.is_rmsnorm ? 0 : all.a, all.b, &p);
        const int is_wide = is_there && moments.is_wide;
        if (is_any_wide(is_wide)) finish_wide(&block, &now, is_wide, &sums);
        if (is_there && !is_wide) {
            const struct operands of = operands_of(&block, &now);
            store_moments(&p, 0, now.at, moments.mean, moments.rstd);
            if (of.are_odd)
                finish_row(&of, &now, &moments, weight, bias, 1);
            else
                finish_row(&of, &now, &moments, weight, bias, 0);
        }
        if (early == 0) before = now;
        now = next;
        next = after;
        after = row_at(&block, next.at + step, ring_next(&ring, next.stage));
    }
}
