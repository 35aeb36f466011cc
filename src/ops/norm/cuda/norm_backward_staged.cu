// SPDX-License-Identifier: Apache-2.0
// Gradients of LayerNorm and RMSNorm like norm_backward.cu, for rows that begin anywhere and have any width that the sums of a
// block's columns, in registers, or with IS_CLUSTER those of a cluster of blocks allow.
// As many blocks as run at once go over all rows, in steps. THREADS_PER_ROW threads have a ring of stages in shared memory, in
// which rows lie as in memory (staged_rows.cuh). In each step, with one barrier,
//     the row before leaves its stage, and the row of the farthest step is copied into it;
//     the sums of the next row are begun;
//     the sums of this row are there, and its dx replaces x in the stage.
// Columns are in words, pairs of columns in 16 bits, that do not depend on a row's address: so sums have the same order wherever
// a row lies.
// Floor: x and dy read once, dx written once. Limit: memory and the instructions of words, some 20 an element. Figures:
// docs/kernels/norm.md.
// The host defines
//     DTYPE, THREADS_PER_ROW, FLOATS_PER_THREAD, IS_CLUSTER for rows of a cluster
#define BLOCK_THREADS 512
#include "cuda/device/staged_rows.cuh"
#include "ops/norm/cuda/norm_device.cuh"
#include "ops/norm/cuda/norm_params.h"

#define NUM_WORDS (FLOATS_PER_THREAD / PER_WORD)
#define WORD_COLS (THREADS_PER_ROW * PER_WORD) // from one of a thread's words to the next
#define EACH_WORD(v, col, cols)                                                                    \
    _Pragma("unroll") for (int v = 0; v < NUM_WORDS; v++) if (col + v * WORD_COLS < (cols))
#define FEW_LANES (THREADS_PER_ROW < 32) // rows share a warp
#define ALL_LANES 0xffffffffu

DEVICE void barrier_of_row(void) {
    if (THREADS_PER_ROW <= 32)
        __syncwarp();
    else
        row_barrier();
}

// ---- A row in its stage ------------------------------------------------------------------------

// Starts to copy the words of a group that is not whole: those of the row, and zeros behind them. The word that an odd row begins in
// is read whole: memory begins at a multiple of 4 bytes, so the element before the row is in the same allocation. It is used for
// nothing.
DEVICE void ask_edge(char *place, const char *from, int col, int cols) {
#pragma unroll
    for (int i = 0; i < GROUP; i += PER_WORD) {
        const int there = min(cols - (col + i), PER_WORD); // elements up to the row's end
        if (col + i + PER_WORD > 0)
            copy_async_word(shared_address(place + i * ELEMENT_BYTES), from + i * ELEMENT_BYTES,
                            max(there, 0) * ELEMENT_BYTES);
    }
}

// Starts to copy a row into its stage. A thread copies the same groups of a stage for every row, and takes them out again.
DEVICE void ask_for(char *memory, const void *data, long long at, int cols) {
    const int shift = shift_of(data, at);
    const char *row = (const char *)data + at * ELEMENT_BYTES;
    EACH_GROUP(col, shift, (cols + PER_WORD - 1) / PER_WORD * PER_WORD) {
        char *place = memory + (shift + col) * ELEMENT_BYTES;
        const char *from = row + (long long)col * ELEMENT_BYTES;
        if (is_whole_group(col, cols))
            copy_async_whole(shared_address(place), from);
        else
            ask_edge(place, from, col, cols);
    }
}

// Stores a staged row.
DEVICE void give(const struct stage *s, void *data, long long at, int cols) {
    const int shift = shift_of(data, at), is_alike = shift == s->shift;
    EACH_GROUP(col, shift, cols) {
        float v[GROUP];
        if (!is_whole_group(col, cols)) {
            for (int i = max(-col, 0); i < min(cols - col, GROUP); i++)
                store(data, at + col + i, staged_element(s, col + i));
        } else if (is_alike) {
            store_bytes(data, at + col,
                        *(const uint4 *)(s->memory + (shift + col) * ELEMENT_BYTES));
        } else {
            load_staged(v, s, col);
            store_bytes(data, at + col, narrow(v));
        }
    }
    if (!is_alike && !FEW_LANES) barrier_of_row(); // then other threads' groups were read
}

// A thread's word of a staged row; with are_odd it may begin in the middle of one.
DEVICE void take_word(float x[PER_WORD], const char *row, int v, int are_odd) {
    const char *word = row + v * WORD_COLS * ELEMENT_BYTES;
    if (PER_WORD == 1 || !are_odd) {
        widen_word(*(const unsigned *)word, x);
    } else {
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) x[i] = load(word, i);
    }
}
DEVICE void put_word(const float x[PER_WORD], char *row, int v, int are_odd) {
    char *word = row + v * WORD_COLS * ELEMENT_BYTES;
    const unsigned pair = narrow_word(x);
    if (PER_WORD == 1 || !are_odd) {
        *(unsigned *)word = pair;
    } else {
        *(unsigned short *)word = (unsigned short)pair;
        *(unsigned short *)(word + 2) = (unsigned short)(pair >> 16);
    }
}

// ---- Sums of a row ------------------------------------------------------------------------------

// g = dy weight. h is summed for rows whose mean is far, and corrected by what rounding left of its own mean.
struct sums {
    float g, gh, h;
};

// A row on its way: its place in the ring, whether it is there, and its statistics.
struct row {
    long long at;
    int stage, cols;
    float mean, rstd;
};

struct place {
    char *memory; // of the first stage of the thread's row
    int stage_bytes, tensors, first_col, col;
};

DEVICE char *stage_of(const struct place *place, int stage, int tensor) {
    return place->memory + (stage * place->tensors + tensor) * place->stage_bytes;
}
// This thread's first word of a staged row that lies at `at` in `data`.
DEVICE char *words_of(const struct place *place, int stage, int tensor, const void *data,
                      long long at) {
    return stage_of(place, stage, tensor) + (shift_of(data, at) + place->col) * ELEMENT_BYTES;
}

struct operands {
    char *x, *dy, *more;
    int are_odd;
};

DEVICE struct operands operands_of(const struct norm_backward_params *p, const struct place *place,
                                   const struct row *row) {
    const long long x = row->at * p->x_stride + place->first_col,
                    dy = row->at * p->dy_stride + place->first_col,
                    more = row->at * p->dresidual_out_stride + place->first_col;
    struct operands of = {words_of(place, row->stage, 0, p->x, x),
                          words_of(place, row->stage, 1, p->dy, dy), 0,
                          FEW_LANES || is_odd(p->x, x) || is_odd(p->dy, dy)};
    if (p->dresidual_out == 0) return of;
    of.more = words_of(place, row->stage, 2, p->dresidual_out, more);
    of.are_odd |= is_odd(p->dresidual_out, more);
    return of;
}

// h of x: (x - mean) rstd - rest, from halves, so that the difference of finite numbers never overflows.
#define H_OF(x) fmaf(fmaf(x, 0.5f, half_mean), twice_rstd, -rest)

DEVICE struct sums sums_of(const struct operands *of, const struct row *row,
                           const float weight[FLOATS_PER_THREAD], int col, int are_odd) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd, rest = 0;
    struct sums sum = {0, 0, 0};
    EACH_WORD(v, col, row->cols) {
        float x[PER_WORD], dy[PER_WORD];
        take_word(x, of->x, v, are_odd);
        take_word(dy, of->dy, v, are_odd);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            const float g = dy[i] * weight[v * PER_WORD + i];
            sum.g += g;
            sum.gh = fmaf(g, H_OF(x[i]), sum.gh);
        }
    }
    return sum;
}

// The sum of h over a row whose mean is far; rare.
DEVICE float sum_of_h(const struct operands *of, const struct row *row, int col) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd, rest = 0;
    float sum = 0;
#pragma unroll 1
    for (int v = 0; v < NUM_WORDS && col + v * WORD_COLS < row->cols; v++) {
        float x[PER_WORD];
        take_word(x, of->x, v, 1);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++)
            if (col + v * WORD_COLS + i < row->cols) sum += H_OF(x[i]);
    }
    return sum;
}

// dx takes the place of x; adds to the columns' sums.
DEVICE void finish_row(const struct operands *of, const struct row *row, struct sums sum,
                       int cols, int is_rmsnorm, const float weight[FLOATS_PER_THREAD],
                       float dweight[FLOATS_PER_THREAD], float dbias[FLOATS_PER_THREAD], int col,
                       int are_odd) {
    const float half_mean = -0.5f * row->mean, twice_rstd = 2 * row->rstd;
    const float rest = rest_of(sum.h, cols), inverse_cols = 1.0f / cols;
    const float mean_gh = fmaf(-rest, sum.g, sum.gh) * inverse_cols;
    const float of_h = -row->rstd * mean_gh,
                shift = is_rmsnorm ? 0 : -row->rstd * (sum.g * inverse_cols);
    EACH_WORD(v, col, row->cols) {
        float x[PER_WORD], dy[PER_WORD], more[PER_WORD] = {0};
        take_word(x, of->x, v, are_odd);
        take_word(dy, of->dy, v, are_odd);
        if (of->more != 0) take_word(more, of->more, v, are_odd);
#pragma unroll
        for (int i = 0; i < PER_WORD; i++) {
            const int e = v * PER_WORD + i;
            const float h = H_OF(x[i]), g = dy[i] * weight[e];
            dweight[e] = fmaf(dy[i], h, dweight[e]);
            dbias[e] += dy[i];
            x[i] = fmaf(h, of_h, fmaf(g, row->rstd, shift)) + more[i];
        }
        put_word(x, of->x, v, are_odd);
    }
}

// ---- Sums over a row's threads: given before a barrier, taken after it ------------------------------

struct exchange {
    float4 (*slots)[BLOCK_THREADS / 32]; // two steps' sums of the block's warps
#if IS_CLUSTER
    float4 (*of_blocks)[CLUSTER_MAX_BLOCKS];
    struct cluster cluster;
#endif
};

#define ROW_IS_FAR(row) is_mean_far((row)->mean, (row)->rstd)

DEVICE void add_lanes(struct sums *sum, int lanes, int is_far) {
    for (int i = lanes / 2; i > 0; i /= 2) {
        sum->g += __shfl_xor_sync(ALL_LANES, sum->g, i);
        sum->gh += __shfl_xor_sync(ALL_LANES, sum->gh, i);
        if (is_far) sum->h += __shfl_xor_sync(ALL_LANES, sum->h, i);
    }
}

DEVICE void give_sums(struct sums *sum, int is_far, const struct exchange *exchange, int turn) {
    add_lanes(sum, ROW_LANES, is_far);
    if (ROW_WARPS > 1 && threadIdx.x % 32 == 0)
        exchange->slots[turn][threadIdx.x / 32] = make_float4(sum->g, sum->gh, sum->h, 0);
}

// In the order of the warps, in each of them.
DEVICE struct sums take_sums(struct sums sum, int is_far, const struct exchange *exchange,
                             int turn) {
    if (ROW_WARPS <= 1) return sum;
    const int lane = threadIdx.x % 32;
    float4 of_warp = make_float4(0, 0, 0, 0);
    if (lane < ROW_WARPS) of_warp = exchange->slots[turn][ROW_OF_BLOCK * ROW_WARPS + lane];
    struct sums all = {of_warp.x, of_warp.y, of_warp.z};
    add_lanes(&all, ROW_WARPS, is_far);
    all.g = __shfl_sync(ALL_LANES, all.g, 0);
    all.gh = __shfl_sync(ALL_LANES, all.gh, 0);
    if (is_far) all.h = __shfl_sync(ALL_LANES, all.h, 0);
    return all;
}

#if IS_CLUSTER
// Sends the block's sums to all blocks of the cluster, and later adds theirs, in the same order in each.
DEVICE void send_sums(const struct sums *sum, const struct exchange *exchange, int turn) {
    if (threadIdx.x < exchange->cluster.size) {
        const unsigned there = cluster_address(
            shared_address(&exchange->of_blocks[turn][exchange->cluster.rank]), threadIdx.x);
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %3};" ::"r"(there), "f"(sum->g),
                     "f"(sum->gh), "f"(sum->h)
                     : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
DEVICE struct sums receive_sums(const struct exchange *exchange, int turn) {
    struct sums all = {0, 0, 0};
    cluster_wait();
    for (int i = 0; i < exchange->cluster.size; i++) {
        const float4 of_block = exchange->of_blocks[turn][i];
        all.g += of_block.x;
        all.gh += of_block.y;
        all.h += of_block.z;
    }
    return all;
}
#endif

// ---- The block's sums of columns ------------------------------------------------------------------

// Adds the sums of a block's rows, in a tree; its first row gets the result.
DEVICE void gather(float sum[FLOATS_PER_THREAD], float *shared) {
    for (int half = ROWS_PER_BLOCK / 2; half > 0; half /= 2) {
        float *slot =
            shared + ROW_OF_BLOCK % half * FLOATS_PER_THREAD * THREADS_PER_ROW + ROW_THREAD;
        __syncthreads();
        if (ROW_OF_BLOCK >= half && ROW_OF_BLOCK < 2 * half)
            for (int e = 0; e < FLOATS_PER_THREAD; e++) slot[e * THREADS_PER_ROW] = sum[e];
        __syncthreads();
        if (ROW_OF_BLOCK < half)
            for (int e = 0; e < FLOATS_PER_THREAD; e++) sum[e] += slot[e * THREADS_PER_ROW];
    }
}

DEVICE void write_sums(float *to, const float sum[FLOATS_PER_THREAD], int col, int cols) {
    EACH_WORD(v, col, cols) {
        to[col + v * WORD_COLS] = sum[v * PER_WORD];
        if (PER_WORD == 2 && col + v * WORD_COLS + 1 < cols)
            to[col + v * WORD_COLS + 1] = sum[v * PER_WORD + PER_WORD - 1];
    }
}

// Waits until all copies of this thread except those of the newest `steps` have arrived.
DEVICE void wait_but_for(int steps) {
    if (steps <= 0)
        COPY_WAIT(0);
    else if (steps == 1)
        COPY_WAIT(1);
    else if (steps == 2)
        COPY_WAIT(2);
    else
        COPY_WAIT(3);
}

DEVICE struct row row_at(const struct norm_backward_params *p, long long at, int stage, int cols) {
    struct row row = {at, stage, at < p->rows ? cols : 0, 0, 0};
    if (at >= p->rows) return row;
    row.mean = p->mean != 0 ? p->mean[at] : 0;
    row.rstd = p->rstd[at];
    return row;
}

DEVICE void ask_for_row(const struct norm_backward_params *p, const struct place *place,
                        long long at, int stage, int cols) {
    if (at < p->rows) {
        ask_for(stage_of(place, stage, 0), p->x, at * p->x_stride + place->first_col, cols);
        ask_for(stage_of(place, stage, 1), p->dy, at * p->dy_stride + place->first_col, cols);
        if (p->dresidual_out != 0)
            ask_for(stage_of(place, stage, 2), p->dresidual_out,
                    at * p->dresidual_out_stride + place->first_col, cols);
    }
    copy_commit();
}

// The sums of a row, as far as its warp, and then its other warps', go.
DEVICE struct sums begin_row(const struct norm_backward_params *p, const struct place *place,
                             const struct row *row, const float weight[FLOATS_PER_THREAD],
                             const struct exchange *exchange, int turn) {
    const struct operands of = operands_of(p, place, row);
    struct sums sum = of.are_odd ? sums_of(&of, row, weight, place->col, 1)
                                 : sums_of(&of, row, weight, place->col, 0);
    int is_far = ROW_IS_FAR(row);
    if (FEW_LANES) is_far = __any_sync(ALL_LANES, is_far);
    if (is_far && ROW_IS_FAR(row)) sum.h = sum_of_h(&of, row, place->col);
    give_sums(&sum, is_far, exchange, turn);
    return sum;
}

DEVICE void go_over_rows(const struct norm_backward_params *p, struct slab slab,
                         struct exchange exchange, char *memory) {
    const int num_stages = p->stages, cols = slab.cols;
    const struct place place = {memory +
                                    ROW_OF_BLOCK * num_stages * p->num_tensors * p->stage_bytes,
                                p->stage_bytes, p->num_tensors, slab.first, ROW_THREAD * PER_WORD};
    const long long step = (long long)(gridDim.x / slab.num_blocks) * ROWS_PER_BLOCK;
    const long long first =
        (long long)(blockIdx.x / slab.num_blocks) * ROWS_PER_BLOCK + ROW_OF_BLOCK;
    float weight[FLOATS_PER_THREAD], dweight[FLOATS_PER_THREAD], dbias[FLOATS_PER_THREAD];
#pragma unroll
    for (int e = 0; e < FLOATS_PER_THREAD; e++) {
        const int col = place.col + e / PER_WORD * WORD_COLS + e % PER_WORD;
        dweight[e] = dbias[e] = weight[e] = 0;
        if (col < cols)
            weight[e] =
                p->weight != 0 ? load_either(p->weight, slab.first + col, p->weight_is_f32) : 1;
    }
    for (int stage = 0; stage + 1 < num_stages; stage++)
        ask_for_row(p, &place, first + stage * step, stage, cols);
    struct row before = {first, num_stages - 1, 0, 0, 0}, now = row_at(p, first, 0, cols),
               next = row_at(p, first + step, 1, cols);
    wait_but_for(num_stages - 2);
    barrier_of_row();
    struct sums sum = begin_row(p, &place, &now, weight, &exchange, 0);
    for (int turn = 0;; turn ^= 1) {
        wait_but_for(num_stages - 3);
        barrier_of_row();
        struct sums all = take_sums(sum, ROW_IS_FAR(&now), &exchange, turn);
#if IS_CLUSTER
        send_sums(&all, &exchange, turn);
#endif
        if (before.cols > 0) {
            const long long at = before.at * p->x_stride + slab.first;
            const struct stage dx = {stage_of(&place, before.stage, 0), shift_of(p->x, at)};
            give(&dx, p->dx, before.at * p->dx_stride + slab.first, before.cols);
        }
        if (FEW_LANES) __syncwarp(); // as in give, for rows that share a warp
        if (now.at - ROW_OF_BLOCK >= p->rows) break; // alike in all of the block's threads
        ask_for_row(p, &place, now.at + (num_stages - 1) * step, before.stage, cols);
        const struct row after = row_at(
            p, next.at + step, next.stage + 1 < num_stages ? next.stage + 1 : 0, cols);
        sum = begin_row(p, &place, &next, weight, &exchange, turn ^ 1);
#if IS_CLUSTER
        all = receive_sums(&exchange, turn);
#endif
        const struct operands of = operands_of(p, &place, &now);
        if (of.are_odd)
            finish_row(&of, &now, all, p->cols, p->is_rmsnorm, weight, dweight, dbias,
                       place.col, 1);
        else
            finish_row(&of, &now, all, p->cols, p->is_rmsnorm, weight, dweight, dbias,
                       place.col, 0);
        before = now;
        now = next;
        next = after;
    }
    start_dependents();
    if (p->partial == 0) return;
    COPY_WAIT(0); // no copy is pending, but empty groups may be
    gather(dweight, (float *)memory);
    gather(dbias, (float *)memory);
    if (ROW_OF_BLOCK > 0) return;
    float *to = p->partial + 2LL * (blockIdx.x / slab.num_blocks) * p->cols + slab.first;
    write_sums(to, dweight, place.col, cols);
    write_sums(to + p->cols, dbias, place.col, cols);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    norm_backward_staged(const struct norm_backward_params p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float4 slots[2][BLOCK_THREADS / 32];
#if IS_CLUSTER
    __shared__ float4 of_blocks[2][CLUSTER_MAX_BLOCKS];
    const struct cluster cluster = {0, 0, cluster_register_rank(), cluster_register_size()};
    const struct exchange exchange = {slots, of_blocks, cluster};
    const int first = cluster.rank * p.slab;
    const struct slab slab = {first, max(min(p.cols - first, p.slab), 0), cluster.size};
    cluster_barrier(); // all blocks have begun
#else
    const struct exchange exchange = {slots};
    const struct slab slab = {0, p.cols, 1};
#endif
    wait_for_primary();
    go_over_rows(&p, slab, exchange, memory);
#if IS_CLUSTER
    cluster_wait(); // for the last step's sums: no block has ended before they arrive
#endif
}
