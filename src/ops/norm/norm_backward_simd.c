// SPDX-License-Identifier: Apache-2.0
// Fused backward of the norms, (rows, cols), in blocks, phases and strips like forward (norm_forward_simd.c). The first
// phase computes the two means that dx needs. The second computes dx and adds to the running sums of dweight and dbias,
// which stay in the first-level cache while all rows of a strip pass, two at a time.
// Floor: x and dy read once, dx written once.
// Limit: memory; in 16 bits arithmetic, more than forward.
// Figures: docs/kernels/norm.md, on 16 threads docs/kernels/rows.md.
#include "ops/norm/norm_backward_short.h"

// With non-temporal stores, this phase prefetches one half of the next block's input and the second phase the other
// half. Otherwise memory would be idle in one of them.
SIMD_INLINE void row_sums(tsr_dtype dtype, bool is_rmsnorm, bool is_split, bool is_careful,
                          bool is_fetching, const float *weight, int64_t cols, const char *ahead,
                          struct backward_row *row) {
    // f16 values have a usual size or are infinite; the sums show an infinity.
    const bool may_be_large = !is_careful && dtype != TSR_F16;
    const bool has_mean_h = is_careful && !is_rmsnorm;
    vf mean = vf_set1(row->mean), rstd = vf_set1(row->rstd), sum_g[UNROLL], sum_gc[UNROLL];
    vf most_a = vf_set1(0.0f), most_b = most_a; // maximum of |dy|
    const char *x = row->x, *dy = row->dy;
    double total_g = 0, total_gc = 0, total_h = 0;
    for (int64_t block = 0; block < cols; block += BLOCK) {
        int64_t end = cols - block < BLOCK ? cols : block + BLOCK, i = block;
        vf sum_h = vf_set1(0.0f);
        for (int u = 0; u < UNROLL; u++) sum_g[u] = sum_gc[u] = vf_set1(0.0f);
#define ADD(at, n, u, v)                                                                           \
    do {                                                                                           \
        struct vf_pair x_ = load_row(dtype, x, at, n), dy_ = load_row(dtype, dy, at, n);           \
        struct vf_pair w_ = load_vector(dtype, is_split, weight, at, n);                           \
        struct vf_pair c_ = {centred(is_rmsnorm, is_careful, x_.a, mean, rstd),                    \
                             centred(is_rmsnorm, is_careful, x_.b, mean, rstd)};                   \
        vf g_a = dy_.a * w_.a, g_b = dy_.b * w_.b;                                                 \
        if (may_be_large) most_a = vf_max_abs(most_a, dy_.a), most_b = vf_max_abs(most_b, dy_.b);  \
        if (!is_rmsnorm) sum_g[u] = sum_g[u] + g_a, sum_g[v] = sum_g[v] + g_b;                     \
        if ((n) < PAIR) c_ = vf_keep_pair_n(dtype, c_, n);                                         \
        if (has_mean_h) sum_h = sum_h + (c_.a + c_.b);                                             \
        sum_gc[u] = vf_fma(g_a, c_.a, sum_gc[u]);                                                  \
        sum_gc[v] = vf_fma(g_b, c_.b, sum_gc[v]);                                                  \
    } while (0)
        for (; i + UNROLL * VL <= end; i += UNROLL * VL) {
            if (is_fetching) fetch(dtype, ahead, i, 2 * PAIR);
            ADD(i, PAIR, 0, 1);
            ADD(i + PAIR, PAIR, 2, 3);
        }
        for (; i + PAIR <= end; i += PAIR) ADD(i, PAIR, 0, 1);
        if (i < end) ADD(i, end - i, 0, 1);
#undef ADD
        total_g += (double)vf_hsum((sum_g[0] + sum_g[1]) + (sum_g[2] + sum_g[3]));
        total_gc += (double)vf_hsum((sum_gc[0] + sum_gc[1]) + (sum_gc[2] + sum_gc[3]));
        if (has_mean_h) total_h += (double)vf_hsum(sum_h);
    }
    if (has_mean_h) take_mean_h(total_h, total_g, cols, &total_gc, row);
    finish_sums(total_g, total_gc, cols, is_careful, vf_hmax(vf_max(most_a, most_b)), row);
}

// Computes dx for n columns from i on: PAIR columns with whole loads and stores, or fewer. is_stored: a strip without a
// head, so fewer columns are the row's last. dweight and dbias are the group's running sums, NULL if they are not
// wanted.
SIMD_INLINE struct vf_pair combine_at(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                                      bool is_careful, bool is_stored,
                                      const struct backward_row *row, const float *weight,
                                      float *dweight, float *dbias, int64_t i, int64_t n) {
    struct vf_pair x = load_row(dtype, row->x, i, n), dy = load_row(dtype, row->dy, i, n);
    struct vf_pair w = load_vector(dtype, is_split, weight, i, n), sum = w;
    if (dweight != NULL) sum = load_sums(dtype, is_stored, dweight, i, n);
    struct gradient a = gradient_of(is_rmsnorm, is_careful, row, x.a, dy.a, w.a, sum.a);
    struct gradient b = gradient_of(is_rmsnorm, is_careful, row, x.b, dy.b, w.b, sum.b);
    struct vf_pair dx = {a.dx, b.dx};
    if (row->dresidual_out != NULL) {
        struct vf_pair more = load_row(dtype, row->dresidual_out, i, n);
        dx.a = dx.a + more.a, dx.b = dx.b + more.b;
    }
    if (dweight == NULL) return dx;
    store_sums(dtype, is_stored, dweight, i, (struct vf_pair){a.weight, b.weight}, n);
    if (is_rmsnorm) return dx;
    sum = load_sums(dtype, is_stored, dbias, i, n);
    sum.a = dy.a + sum.a, sum.b = dy.b + sum.b;
    store_sums(dtype, is_stored, dbias, i, sum, n);
    return dx;
}

// `row` is passed by value, so its fields stay in registers despite the stores.
SIMD_INLINE void combine_strip(tsr_dtype dtype, bool is_rmsnorm, bool is_split, bool is_careful,
                               struct backward_row row, const float *weight, float *dweight,
                               float *dbias, struct strip strip, const char *ahead) {
#define VALUE(i, n)                                                                                \
    combine_at(dtype, is_rmsnorm, is_split, is_careful, strip.exit == STORED, &row, weight,        \
               dweight, dbias, i, n)
#define FETCH(i) fetch(dtype, ahead, i, PAIR)
    FOR_STRIP(dtype, strip, row.dx, VALUE, FETCH);
#undef VALUE
#undef FETCH
}

// The code for careful rows, compiled once for all dtypes and both norms.
static __attribute__((noinline)) void careful_sums(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                                                   const float *weight, int64_t cols,
                                                   struct backward_row *row) {
    row_sums(dtype, is_rmsnorm, is_split, true, false, weight, cols, NULL, row);
}
static __attribute__((noinline)) void combine_careful(tsr_dtype dtype, bool is_rmsnorm,
                                                      bool is_split, struct backward_row row,
                                                      const float *weight, float *dweight,
                                                      float *dbias, struct strip strip,
                                                      const char *ahead) {
    combine_strip(dtype, is_rmsnorm, is_split, true, row, weight, dweight, dbias, strip, ahead);
}

// Columns of a cache line if a pair is only part of one. Two rows with non-temporal stores then alternate line by line:
// if two lines are written alternately in parts, a core sends each part to memory separately.
SIMD_INLINE int64_t columns_of_a_line(tsr_dtype dtype) {
    int64_t line = 64 / dtype_bytes(dtype);
    return line > PAIR ? line : PAIR;
}

// A strip of two rows at once; the running sums and weight are loaded and stored once for both. Processes whole pairs,
// whole lines with non-temporal stores, and for stores through the caches also the rest. For rows that are not careful
// and whose strips have the same exit. On return, *strip is the unprocessed rest.
SIMD_INLINE void combine_two(tsr_dtype dtype, bool is_rmsnorm, bool is_split, bool is_streamed,
                             struct backward_row one, struct backward_row two, const float *weight,
                             float *dweight, float *dbias, struct strip *strip,
                             const char *const *ahead) {
    const int64_t step = columns_of_a_line(dtype), bytes = dtype_bytes(dtype);
    char lines[2][64] __attribute__((aligned(64)));
    int64_t i = strip->begin, end = strip->end - PAIR;
    if (is_streamed) end = i + (strip->end - i) / step * step - PAIR;
#define ROW(r, ahead, line, n)                                                                     \
    do {                                                                                           \
        struct vf_pair x_ = load_row(dtype, (r).x, i, n), dy_ = load_row(dtype, (r).dy, i, n);     \
        struct gradient a_ = gradient_of(is_rmsnorm, false, &(r), x_.a, dy_.a, w.a, sum.a);        \
        struct gradient b_ = gradient_of(is_rmsnorm, false, &(r), x_.b, dy_.b, w.b, sum.b);        \
        struct vf_pair dx_ = {a_.dx, b_.dx};                                                       \
        sum.a = a_.weight, sum.b = b_.weight;                                                      \
        if (!is_rmsnorm) bias.a = dy_.a + bias.a, bias.b = dy_.b + bias.b;                         \
        if ((n) < PAIR) {                                                                          \
            vf_store_pair_up_n(dtype, (r).dx, i, dx_, n);                                          \
        } else if (is_streamed) {                                                                  \
            fetch(dtype, ahead, i, PAIR);                                                          \
            if (step == PAIR)                                                                      \
                vf_stream_pair_up(dtype, (r).dx, i, dx_);                                          \
            else                                                                                   \
                vf_store_pair_up(dtype, line, i % step, dx_);                                      \
        } else {                                                                                   \
            store_upwards(dtype, (r).dx, i, dx_);                                                  \
        }                                                                                          \
    } while (0)
#define BOTH(n)                                                                                    \
    do {                                                                                           \
        struct vf_pair w = load_vector(dtype, is_split, weight, i, n);                             \
        struct vf_pair sum = load_sums(dtype, true, dweight, i, n), bias = sum;                    \
        if (!is_rmsnorm) bias = load_sums(dtype, true, dbias, i, n);                               \
        ROW(one, ahead[0], lines[0], n);                                                           \
        ROW(two, ahead[1], lines[1], n);                                                           \
        store_sums(dtype, true, dweight, i, sum, n);                                               \
        if (!is_rmsnorm) store_sums(dtype, true, dbias, i, bias, n);                               \
    } while (0)
    for (; i <= end; i += PAIR) {
        BOTH(PAIR);
        if (is_streamed && step > PAIR && (i + PAIR) % step == 0) {
            int64_t at = (i + PAIR - step) * bytes;
            stream_bytes(lines[0], one.dx + at, 64);
            stream_bytes(lines[1], two.dx + at, 64);
        }
    }
    if (!is_streamed && i < strip->end) { // the last columns of the rows
        BOTH(strip->end - i);
        i = strip->end;
    }
#undef BOTH
#undef ROW
    strip->begin = strip->first_whole = i;
}

// Whether two rows may be processed together: their strips have the same exit, and with non-temporal stores start on
// whole lines.
static bool are_alike(tsr_dtype dtype, struct strip s, struct strip t, const char *dx,
                      const char *other) {
    if (s.exit == STREAMED && columns_of_a_line(dtype) > PAIR &&
        ((uintptr_t)dx | (uintptr_t)other) % 64 != 0)
        return false;
    return s.exit == t.exit && s.exit != GATHERED && s.begin == t.begin && s.end == t.end &&
           s.first_whole == s.begin && t.first_whole == t.begin;
}

// The second phase of some rows of a block.
SIMD_INLINE void combine_rows(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                              const struct norm_call *call, const struct backward_row *rows,
                              const char *const *ahead, int64_t num, float *dweight) {
    const float *weight = call->weight;
    int64_t cols = call->problem->cols;
    float *dbias = dweight == NULL ? NULL : dweight + norm_padded_cols(call->problem);
    // Here a line of floats takes two stores, and a store to another row could come between them: one row at a time.
    bool is_apart =
        VL == 8 && dtype == TSR_F32 && call->is_streaming && call->problem->dx.stride * 4 % 64 == 0;
    for (int64_t begin = 0; begin < cols; begin += STRIP)
        for (int64_t r = 0, together; r < num; r += together) {
            struct strip s = strip_of(dtype, rows[r].dx, begin, cols, call->is_streaming);
            together = 1;
            if (!is_apart && dweight != NULL && r + 1 < num && is_plain(&rows[r]) &&
                is_plain(&rows[r + 1]) &&
                are_alike(dtype, s,
                          strip_of(dtype, rows[r + 1].dx, begin, cols, call->is_streaming),
                          rows[r].dx, rows[r + 1].dx)) {
                together = 2;
                if (s.exit == STREAMED)
                    combine_two(dtype, is_rmsnorm, is_split, true, rows[r], rows[r + 1], weight,
                                dweight, dbias, &s, ahead + r);
                else
                    combine_two(dtype, is_rmsnorm, is_split, false, rows[r], rows[r + 1], weight,
                                dweight, dbias, &s, ahead + r);
            }
            for (int64_t k = r; s.begin < s.end && k < r + together; k++)
                if (rows[k].is_careful)
                    combine_careful(dtype, is_rmsnorm, is_split, rows[k], weight, dweight, dbias, s,
                                    ahead[k]);
                else
                    combine_strip(dtype, is_rmsnorm, is_split, false, rows[k], weight, dweight,
                                  dbias, s, ahead[k]);
        }
}

SIMD_INLINE void backward_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                             const struct norm_call *call, int64_t first, int64_t last,
                             int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, block = norm_block_rows(p);
    if (cols == 0) return;
    float *dweight = cleared_sums(is_rmsnorm, call, first);
    struct backward_row rows[NORM_MAX_BLOCK_ROWS];
    const char
        *ahead[NORM_MAX_BLOCK_ROWS]; // dy in the same row of the next block, prefetched meanwhile
    for (int64_t row = first; row < last; row += block) {
        int64_t num = last - row < block ? last - row : block;
        // A column's sums must add the rows in order. If strips are shifted, each row by its own width, a row is
        // processed as a whole.
        bool is_shifted = false;
        for (int64_t r = 0; r < num; r++) {
            // The two rows of a pair are half a block apart, because streams through one page hinder each other.
            int64_t at = row + r / 2 + r % 2 * tsri_ceil_div(num, 2);
            rows[r] = backward_row(p, is_rmsnorm, at);
            int64_t next = at + num < last ? at + num : at;
            ahead[r] = tsri_row(&p->dy, next);
            if (!rows[r].is_careful && call->is_streaming)
                row_sums(dtype, is_rmsnorm, is_split, false, true, call->weight, cols,
                         tsri_row(&p->x, next), &rows[r]);
            else if (!rows[r].is_careful)
                row_sums(dtype, is_rmsnorm, is_split, false, false, call->weight, cols, NULL,
                         &rows[r]);
            if (rows[r].is_careful) // from the start, or after the sums
                careful_sums(dtype, is_rmsnorm, is_split, call->weight, cols, &rows[r]);
            if (call->is_streaming && !vf_is_split(dtype))
                is_shifted = is_shifted || simd_line_head(dtype, rows[r].dx) > 0;
        }
        int64_t together = is_shifted ? 1 : num;
        for (int64_t r = 0; r < num; r += together)
            combine_rows(dtype, is_rmsnorm, is_split, call, rows + r, ahead + r, together, dweight);
    }
}
NORM_BY_DTYPE(backward)

static void run(const struct norm_call *call, int64_t first, int64_t last, int thread) {
    int64_t cols = call->problem->cols;
    (VL > 1 && cols > 0 && cols <= SHORT_COLS ? backward_short : backward)(call, first, last,
                                                                           thread);
}

const struct norm_backward_kernels TSRI_KERNEL_TABLE(norm_backward) = {run};
