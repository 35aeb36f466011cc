// SPDX-License-Identifier: Apache-2.0
// Fused forward of the norms, (rows, cols), compiled once per instruction set. A block of rows stays in the
// second-level cache (norm_block_rows). The first phase reads every row of the block and computes its statistics. The
// second phase writes the block in strips of columns, all rows of a strip at a time, so that weight and bias stay in
// the first-level cache. With non-temporal stores, the second phase of a block and the first phase of the next
// alternate, pair by pair of vectors, and each pair prefetches a line: a core has few line buffers, and requests
// nothing while it only computes. Every element gets the same operations in whole vectors and in tails, with explicit
// FMA, so a row's result does not depend on its address.
// Floor: x read once, y written once.
// Limit: memory; in 16 bits on few threads arithmetic.
// Figures: docs/kernels/norm.md.
#include "ops/norm/norm_forward_short.h"

SIMD_INLINE struct vf_pair scale_at(tsr_dtype dtype, bool is_rmsnorm, bool is_split, const void *x,
                                    struct scaling s, const float *weight, const float *bias,
                                    int64_t i, int64_t n) {
    struct vf_pair v = load_row(dtype, x, i, n), w = load_vector(dtype, is_split, weight, i, n),
                   b = w;
    if (!is_rmsnorm) b = load_vector(dtype, is_split, bias, i, n);
    v.a = scaled(is_rmsnorm, v.a, s, w.a, b.a);
    v.b = scaled(is_rmsnorm, v.b, s, w.b, b.b);
    return v;
}

SIMD_INLINE void fetch_far(tsr_dtype dtype, uintptr_t far, int64_t i) {
    int64_t bytes = dtype_bytes(dtype);
    for (int64_t at = 0; VL > 1 && far != 0 && at < PAIR * bytes; at += 64)
        __builtin_prefetch(simd_far_line(far + (uintptr_t)(i * bytes + at)), 0, 2);
}

SIMD_INLINE void scale_strip(tsr_dtype dtype, bool is_rmsnorm, bool is_split, const void *x,
                             struct scaling s, const float *weight, const float *bias, void *y,
                             struct strip strip, uintptr_t far) {
    int64_t begin = strip.first_whole;
#define VALUE(i, n) scale_at(dtype, is_rmsnorm, is_split, x, s, weight, bias, i, n)
#define FETCH(i) fetch_far(dtype, far, (i)-begin)
    FOR_STRIP(dtype, strip, y, VALUE, FETCH);
#undef VALUE
#undef FETCH
}

// Adds the residual and computes the statistics. scratch holds the sum if the sum is written with non-temporal stores.
SIMD_INLINE struct forward_row first_phase(tsr_dtype dtype, bool is_rmsnorm,
                                           const struct norm_call *call, int64_t row,
                                           char *scratch) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, bytes = dtype_bytes(dtype);
    bool has_residual = p->residual.data != NULL;
    const char *x = cols > 0 ? tsri_row(&p->x, row) : NULL, *residual = NULL, *s = x;
    char *sum = NULL;
    if (has_residual) {
        residual = tsri_row(&p->residual, row);
        sum = call->is_streaming ? scratch : tsri_row(&p->residual_out, row);
        s = sum;
    }
    struct moments m = {0, 0};
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
        if (has_residual) add_rows(dtype, x + i * bytes, residual + i * bytes, sum + i * bytes, n);
        struct moments b = block_moments(dtype, is_rmsnorm, s + i * bytes, n);
        m = i == 0 ? b : merge(m, i, b, n);
    }
    if (has_residual && call->is_streaming)
        stream_bytes(sum, tsri_row(&p->residual_out, row), cols * bytes);
    return forward_row(is_rmsnorm, call, row, s, m);
}

// The first phase of a block during the second phase of the previous block, strip by strip, without a residual.
struct ahead {
    struct forward_row *rows;
    int64_t row, last,
        done; // rows [row, last) remain; columns [0, done) of row `row` are summed
    struct moments m;
    struct block_sums sums;
};

// Columns [begin, end) of a block of n columns, whose sums have been started.
struct step {
    const char *row, *block;
    int64_t first, n, begin, end; // first: the block's first column in its row
};

SIMD_INLINE struct step start_step(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                                   struct ahead *a) {
    enum { STEP = (int)BLOCK < (int)STRIP ? (int)BLOCK : (int)STRIP };
    struct step step = {0};
    if (a->row == a->last) return step;
    int64_t cols = call->problem->cols;
    step.row = tsri_row(&call->problem->x, a->row);
    step.first = a->done / BLOCK * BLOCK;
    step.block = step.row + step.first * dtype_bytes(dtype);
    step.n = cols - step.first < BLOCK ? cols - step.first : BLOCK;
    step.begin = a->done - step.first;
    step.end = step.begin + STEP < step.n ? step.begin + STEP : step.n;
    if (step.begin == 0) begin_sums(is_rmsnorm ? 0 : shift_of(dtype, step.block, step.n), &a->sums);
    return step;
}

SIMD_INLINE void finish_step(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                             struct ahead *a, struct step step) {
    if (step.n == 0) return;
    if (a->sums.shift == 0)
        add_columns(dtype, is_rmsnorm, false, step.block, step.begin, step.end, &a->sums);
    else
        add_columns(dtype, is_rmsnorm, true, step.block, step.begin, step.end, &a->sums);
    a->done = step.first + step.end;
    if (step.end < step.n) return;
    struct moments b =
        finish_block(dtype, is_rmsnorm, step.block, step.n, a->sums.shift, totals_of(&a->sums));
    a->m = step.first == 0 ? b : merge(a->m, step.first, b, step.n);
    if (a->done < call->problem->cols) return;
    *a->rows++ = forward_row(is_rmsnorm, call, a->row, step.row, a->m);
    a->row++;
    a->done = 0;
}

// Processes the whole pairs that both have, alternately, so that the load on memory is even; prefetches lines for a
// later step. On return, *strip and *step are the unprocessed rests.
SIMD_INLINE void scale_beside(tsr_dtype dtype, bool is_rmsnorm, bool is_split, const void *x,
                              struct scaling s, const float *weight, const float *bias, void *y,
                              struct strip *strip, struct step *step, struct block_sums *ahead) {
    int64_t i = strip->begin, at = step->begin;
    struct block_sums sums;
    copy_sums(ahead, &sums);
    for (; i + 2 * PAIR <= strip->end && at + 2 * PAIR <= step->end; i += 2 * PAIR, at += 2 * PAIR)
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            fetch_far(dtype, (uintptr_t)step->block, at + u * PAIR);
            struct vf_pair v = vf_load_pair(dtype, step->block, at + u * PAIR);
            add_pair(is_rmsnorm, v, 2 * u, &sums);
            vf_stream_pair_up(
                dtype, y, i + u * PAIR,
                scale_at(dtype, is_rmsnorm, is_split, x, s, weight, bias, i + u * PAIR, PAIR));
        }
    copy_sums(&sums, ahead);
    strip->begin = strip->first_whole = i;
    step->begin = at;
}

SIMD_INLINE void second_phase(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                              const struct norm_call *call, const struct forward_row *f,
                              bool is_near, struct strip strip, uintptr_t far, struct step *step,
                              struct block_sums *ahead) {
    struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset), is_near};
    if (step->n > 0 && ahead->shift == 0 && strip.exit == STREAMED &&
        strip.first_whole == strip.begin)
        scale_beside(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias, f->y, &strip,
                     step, ahead);
    if (step->begin < step->end)
        far = (uintptr_t)step->block + (uintptr_t)(step->begin * dtype_bytes(dtype));
    scale_strip(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias, f->y, strip, far);
}

SIMD_INLINE void forward_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                            const struct norm_call *call, int64_t first, int64_t last, int thread) {
    int64_t cols = call->problem->cols, block = norm_block_rows(call->problem);
    // Short rows that do not start on lines are mostly heads and tails, which are processed one after the other.
    bool is_even = cols >= 4 * STRIP || cols % PAIR == 0;
    bool is_beside = call->is_streaming && call->problem->residual.data == NULL && is_even;
    char *scratch = call->scratch;
    if (call->scratch_per_thread > 0) scratch += (size_t)thread * call->scratch_per_thread;
    struct forward_row both[2][NORM_MAX_BLOCK_ROWS], *rows = both[0], *later = both[1];
    for (int64_t row = first; row < last; row += block) {
        int64_t num = last - row < block ? last - row : block;
        for (int64_t r = 0; r < num && (row == first || !is_beside); r++) {
            rows[r] = first_phase(dtype, is_rmsnorm, call, row + r, scratch);
            if (call->scratch_per_thread > 0) scratch += call->scratch_per_row;
        }
        if (call->scratch_per_thread > 0) scratch -= (size_t)num * call->scratch_per_row;
        int64_t next = row + num, next_last = last - next < block ? last : next + block;
        struct ahead ahead = {.rows = later, .row = next, .last = is_beside ? next_last : next};
        for (int64_t begin = 0; begin < cols; begin += STRIP)
            for (int64_t r = 0; r < num; r++) {
                const struct forward_row *f = &rows[r];
                uintptr_t far = 0; // without a step beside: a window before the next block
                if (!is_beside && call->is_streaming && next + r < last)
                    far = (uintptr_t)tsri_row(&call->problem->x, next + r) +
                          (uintptr_t)(begin * dtype_bytes(dtype)) - SIMD_FAR_BYTES;
                struct step step = start_step(dtype, is_rmsnorm, call, &ahead);
                if (!f->is_done) {
                    struct strip strip = strip_of(dtype, f->y, begin, cols, call->is_streaming);
                    if (is_rmsnorm || f->is_near)
                        second_phase(dtype, is_rmsnorm, is_split, call, f, true, strip, far, &step,
                                     &ahead.sums);
                    else
                        second_phase(dtype, is_rmsnorm, is_split, call, f, false, strip, far, &step,
                                     &ahead.sums);
                }
                finish_step(dtype, is_rmsnorm, call, &ahead, step);
            }
        if (!is_beside) continue;
        while (ahead.row < ahead.last)
            finish_step(dtype, is_rmsnorm, call, &ahead,
                        start_step(dtype, is_rmsnorm, call, &ahead));
        struct forward_row *swap = rows;
        rows = later, later = swap;
    }
}
NORM_BY_DTYPE(forward)

// Rows [first, last) of residual_out, all at once if they are contiguous.
SIMD_INLINE void add_residual_as(tsr_dtype dtype, const struct norm_problem *p, int64_t first,
                                 int64_t last) {
    int64_t cols = p->cols, num = last - first;
    bool is_dense =
        p->x.stride == cols && p->residual.stride == cols && p->residual_out.stride == cols;
    if (is_dense) cols *= num, num = 1;
    for (int64_t r = first; r < first + num; r++)
        add_rows(dtype, tsri_row(&p->x, r), tsri_row(&p->residual, r),
                 tsri_row(&p->residual_out, r), cols);
}

static void add_residual(const struct norm_problem *p, int64_t first, int64_t last) {
    if (p->dtype == TSR_BF16)
        add_residual_as(TSR_BF16, p, first, last);
    else if (p->dtype == TSR_F16)
        add_residual_as(TSR_F16, p, first, last);
    else
        add_residual_as(TSR_F32, p, first, last);
}

// Short rows with a residual: the sums of some rows are stored, stay in the first-level cache, and are then normalised
// like rows of x.
static void sum_then_short(const struct norm_call *call, int64_t first, int64_t last, int thread) {
    enum { ROWS = 4 * VL };
    struct norm_problem of_sum = *call->problem;
    struct norm_call short_call = *call;
    of_sum.x = of_sum.residual_out;
    of_sum.residual.data = of_sum.residual_out.data = NULL;
    short_call.problem = &of_sum;
    for (int64_t row = first; row < last; row += ROWS) {
        int64_t end = last - row < ROWS ? last : row + ROWS;
        add_residual(call->problem, row, end);
        forward_short(&short_call, row, end, thread);
    }
}

static void run(const struct norm_call *call, int64_t first, int64_t last, int thread) {
    int64_t cols = call->problem->cols;
    if (VL == 1 || cols == 0 || cols > SHORT_COLS)
        forward(call, first, last, thread);
    else if (call->problem->residual.data != NULL)
        sum_then_short(call, first, last, thread);
    else
        forward_short(call, first, last, thread);
}

const struct norm_forward_kernels TSRI_KERNEL_TABLE(norm_forward) = {run};
