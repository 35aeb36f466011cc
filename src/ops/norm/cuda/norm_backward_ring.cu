// SPDX-License-Identifier: Apache-2.0
// Gradients of LayerNorm and RMSNorm like norm_backward.cu, for rows that begin anywhere and have any width that the sums of a
// block's columns, in registers, or with IS_CLUSTER those of a cluster of blocks allow.
// As many blocks as run at once go over all rows, in steps. In each step, with one barrier,
//     the row before leaves its stage, and the row of the farthest step is copied into it;
//     the sums of the next row are begun;
//     the sums of this row are there, and its dx replaces x in the stage.
// Floor: x and dy read once, dx written once. Limit: memory and the instructions of words, some 20 an element. Figures:
// docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD, IS_CLUSTER for rows of a cluster
#include "cuda/device/row_ring.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_gather.cuh"
#include "ops/norm/cuda/norm_params.h"

// A row on its way: its place, and its statistics. cols: 0 if there is no such row.
struct row {
    long long at;
    int stage, cols;
    float mean, rstd;
};

// This thread's first words of a staged row.
struct operands {
    int x, dy, more; // more: negative if there is none
    int are_odd;
};

struct block {
    const struct norm_backward_params *p;
    struct ring ring;
    struct slab slab;
};

DEVICE struct operands operands_of(const struct block *block, const struct row *row) {
    const struct norm_backward_params *p = block->p;
    const int first = block->slab.first;
    const long long x = row->at * p->x_stride + first, dy = row->at * p->dy_stride + first,
                    more = row->at * p->dresidual_out_stride + first;
    struct operands of = {ring_words(ring_stage(&block->ring, row->stage, 0), p->x, x),
                          ring_words(ring_stage(&block->ring, row->stage, 1), p->dy, dy), -1,
                          DO_LANES_DIFFER || is_odd(p->x, x) || is_odd(p->dy, dy)};
    if (p->dresidual_out == 0) return of;
    of.more = ring_words(ring_stage(&block->ring, row->stage, 2), p->dresidual_out, more);
    of.are_odd |= is_odd(p->dresidual_out, more);
    return of;
}

// ---- A row's sums, and its gradient ----------------------------------------------------------------

// h of x: (x - mean) rstd - rest, from halves, so that the difference of finite numbers never overflows.
#define H_OF(x) fmaf(fmaf(x, 0.5f, half_mean), twice_rstd, -rest)

// Of g and of g h, with g = dy weight.
DEVICE struct three sums_of(const struct operands *of, const struct row *row,
                            const float weight[FLOATS_PER_THREAD], int are_odd) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd, rest = 0;
    const int left = row->cols - ring_column();
    float sum_g[2] = {0, 0}, sum_gh[2] = {0, 0}; // two chains
    EACH_SOME_WORDS(v, row->cols) {
        float x[RING_SOME][PER_WORD], dy[RING_SOME][PER_WORD];
        ring_take(x, of->x, v, left, are_odd);
        ring_take(dy, of->dy, v, left, are_odd);
        EACH_OF_SOME(j) EACH_OF_WORD(i) {
            const float g = dy[j][i] * weight[(v + j) * PER_WORD + i];
            sum_g[j % 2] += g;
            sum_gh[j % 2] = fmaf(g, H_OF(x[j][i]), sum_gh[j % 2]);
        }
    }
    const struct three sum = {sum_g[0] + sum_g[1], sum_gh[0] + sum_gh[1], 0};
    return sum;
}

// A row whose mean is far, which is rare: its sums once more, and that of h. Beyond the row (x - mean) rstd may be infinite.
DEVICE void sums_of_far(struct three *sum, const struct operands *of, const struct row *row,
                        const float weight[FLOATS_PER_THREAD]) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd, rest = 0;
    const int left = row->cols - ring_column();
    sum->b = sum->c = 0;
    EACH_SOME_WORDS(v, row->cols) {
        float x[RING_SOME][PER_WORD], dy[RING_SOME][PER_WORD];
        ring_take(x, of->x, v, left, 1);
        ring_take(dy, of->dy, v, left, 1);
        EACH_OF_SOME(j) EACH_OF_WORD(i) {
            const float h = (v + j) * RING_STEP + i < left ? H_OF(x[j][i]) : 0;
            sum->b = fmaf(dy[j][i] * weight[(v + j) * PER_WORD + i], h, sum->b);
            sum->c += h;
        }
    }
}

struct columns {
    float weight[FLOATS_PER_THREAD], dweight[FLOATS_PER_THREAD], dbias[FLOATS_PER_THREAD];
};

// dx takes the place of x; adds to the columns' sums. What rounding left of h's mean is known only now.
DEVICE void finish_row(const struct operands *of, const struct row *row, const struct three *sum,
                       int cols, int is_rmsnorm, struct columns *columns, int are_odd) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd;
    const float rest = rest_of(sum->c, cols), inverse_cols = 1.0f / cols;
    const float of_h = -row->rstd * (fmaf(-rest, sum->a, sum->b) * inverse_cols),
                shift = is_rmsnorm ? 0 : -row->rstd * (sum->a * inverse_cols);
    const int left = row->cols - ring_column();
    EACH_SOME_WORDS(v, row->cols) {
        float x[RING_SOME][PER_WORD], dy[RING_SOME][PER_WORD], more[RING_SOME][PER_WORD] = {{0}};
        ring_take(x, of->x, v, left, are_odd);
        ring_take(dy, of->dy, v, left, are_odd);
        if (of->more >= 0) ring_take(more, of->more, v, left, are_odd);
        EACH_OF_SOME(j) EACH_OF_WORD(i) {
            const int e = (v + j) * PER_WORD + i;
            const float h = H_OF(x[j][i]), g = dy[j][i] * columns->weight[e];
            columns->dweight[e] = fmaf(dy[j][i], h, columns->dweight[e]);
            columns->dbias[e] += dy[j][i];
            x[j][i] = fmaf(h, of_h, fmaf(g, row->rstd, shift)) + more[j][i];
        }
        ring_put(x, of->x, v, left, are_odd);
    }
}

// ---- Sums over a cluster ---------------------------------------------------------------------------

#if IS_CLUSTER
struct exchange {
    float4 (*of_blocks)[CLUSTER_MAX_BLOCKS]; // of two steps
    int rank, size;
};

// Sends the block's sums to all blocks of the cluster, and later adds theirs, in the same order in each.
DEVICE void send_sums(const struct three *sum, const struct exchange *exchange, int turn) {
    if (threadIdx.x < exchange->size) {
        const unsigned there = cluster_address(
            shared_address(&exchange->of_blocks[turn][exchange->rank]), threadIdx.x);
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %3};" ::"r"(there), "f"(sum->a),
                     "f"(sum->b), "f"(sum->c)
                     : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
DEVICE struct three receive_sums(const struct exchange *exchange, int turn) {
    struct three all = {0, 0, 0};
    cluster_wait();
    for (int i = 0; i < exchange->size; i++) {
        const float4 of_block = exchange->of_blocks[turn][i];
        all.a += of_block.x;
        all.b += of_block.y;
        all.c += of_block.z;
    }
    return all;
}
#endif

// ---- The block's sums of columns -------------------------------------------------------------------

DEVICE void write_sums(float *to, const float sum[FLOATS_PER_THREAD], int cols) {
#pragma unroll
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        const int col = ring_column() + e / PER_WORD * RING_STEP + e % PER_WORD;
        if (col < cols) to[col] = sum[e];
    }
}

// ---- Steps -----------------------------------------------------------------------------------------

DEVICE struct row row_at(const struct block *block, long long at, int stage) {
    const struct norm_backward_params *p = block->p;
    struct row row = {at, stage, 0, 0, 0};
    if (at >= p->rows) return row;
    row.cols = block->slab.cols;
    row.mean = p->mean != 0 ? p->mean[at] : 0;
    row.rstd = p->rstd[at];
    return row;
}

DEVICE void ask_for_row(const struct block *block, long long at, int stage) {
    const struct norm_backward_params *p = block->p;
    const int first = block->slab.first, cols = block->slab.cols;
    if (at < p->rows) {
        ring_ask(ring_stage(&block->ring, stage, 0), p->x, at * p->x_stride + first, cols);
        ring_ask(ring_stage(&block->ring, stage, 1), p->dy, at * p->dy_stride + first, cols);
        if (p->dresidual_out != 0)
            ring_ask(ring_stage(&block->ring, stage, 2), p->dresidual_out,
                     at * p->dresidual_out_stride + first, cols);
    }
    copy_commit();
}

DEVICE void give_row(const struct block *block, const struct row *row) {
    const struct norm_backward_params *p = block->p;
    const int first = block->slab.first;
    if (row->cols > 0)
        ring_give(ring_stage(&block->ring, row->stage, 0),
                  shift_of(p->x, row->at * p->x_stride + first), p->dx,
                  row->at * p->dx_stride + first, row->cols);
    if (DO_LANES_DIFFER) __syncwarp();
}

DEVICE int is_far(const struct row *row) {
    const int is_mean = is_mean_far(row->mean, row->rstd);
    return DO_LANES_DIFFER ? __any_sync(ALL_LANES, is_mean) : is_mean;
}

DEVICE struct three begin_row(const struct block *block, const struct row *row,
                              const struct columns *columns, const struct ring_slots *slots,
                              int turn) {
    const struct operands of = operands_of(block, row);
    struct three sum =
        of.are_odd ? sums_of(&of, row, columns->weight, 1) : sums_of(&of, row, columns->weight, 0);
    const int has_far = is_far(row);
    if (has_far && is_mean_far(row->mean, row->rstd)) sums_of_far(&sum, &of, row, columns->weight);
    ring_give_sums(&sum, has_far, slots, turn);
    return sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    norm_backward_ring(const struct norm_backward_params p) {
    DECLARE_RING_SLOTS(slots);
    struct slab slab = {0, p.cols, 1};
#if IS_CLUSTER
    __shared__ float4 of_blocks[2][CLUSTER_MAX_BLOCKS];
    const struct exchange exchange = {of_blocks, cluster_register_rank(), cluster_register_size()};
    slab.first = exchange.rank * p.slab;
    slab.cols = max(min(p.cols - slab.first, p.slab), 0);
    slab.num_blocks = exchange.size;
    cluster_barrier(); // all blocks have begun
#endif
    const struct ring ring = {ROW_OF_BLOCK * p.stages * p.num_tensors * p.stage_bytes,
                              p.stage_bytes, p.num_tensors, p.stages};
    const struct block block = {&p, ring, slab};
    const long long step = (long long)(gridDim.x / slab.num_blocks) * ROWS_PER_BLOCK;
    const long long first =
        (long long)(blockIdx.x / slab.num_blocks) * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    struct columns columns;
    wait_for_primary();
    for (int stage = 0; stage + 1 < p.stages; stage++)
        ask_for_row(&block, first + stage * step, stage);
    ring_vector(columns.weight, p.weight, slab.first, slab.cols, p.weight_is_f32, 1);
#pragma unroll
    for (int e = 0; e < FLOATS_PER_THREAD; e++) columns.dweight[e] = columns.dbias[e] = 0;
    struct row before = {first, p.stages - 1, 0, 0, 0}, now = row_at(&block, first, 0),
               next = row_at(&block, first + step, 1);
    ring_wait(p.stages - 2);
    ring_barrier();
    struct three sum = begin_row(&block, &now, &columns, &slots, 0);
    for (int turn = 0;; turn ^= 1) {
        ring_wait(p.stages - 3);
        ring_barrier();
        struct three all = ring_take_sums(&sum, &slots, turn);
#if IS_CLUSTER
        send_sums(&all, &exchange, turn);
#endif
        give_row(&block, &before);
        if (now.at - ROW_OF_BLOCK >= p.rows) break; // alike in all of the block's threads
        ask_for_row(&block, now.at + (p.stages - 1) * step, before.stage);
        const struct row after = row_at(&block, next.at + step, ring_next(&ring, next.stage));
        sum = begin_row(&block, &next, &columns, &slots, turn ^ 1);
#if IS_CLUSTER
        all = receive_sums(&exchange, turn);
#endif
        const struct operands of = operands_of(&block, &now);
        if (of.are_odd)
            finish_row(&of, &now, &all, p.cols, p.is_rmsnorm, &columns, 1);
        else
            finish_row(&of, &now, &all, p.cols, p.is_rmsnorm, &columns, 0);
        before = now;
        now = next;
        next = after;
    }
    start_dependents();
#if IS_CLUSTER
    cluster_wait(); // no block ends before the last step's sums arrive
#endif
    if (p.partial == 0) return;
    COPY_WAIT(0); // no copy is pending, but empty groups may be
    gather(columns.dweight, (float *)ring_memory);
    gather(columns.dbias, (float *)ring_memory);
    if (ROW_OF_BLOCK > 0) return;
    float *to = p.partial + 2LL * (blockIdx.x / slab.num_blocks) * p.cols + slab.first;
    write_sums(to, columns.dweight, slab.cols);
    write_sums(to + p.cols, columns.dbias, slab.cols);
}
