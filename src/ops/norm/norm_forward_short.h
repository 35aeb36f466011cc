// SPDX-License-Identifier: Apache-2.0
// Forward for rows of a few vectors. As many rows as a vector has lanes are processed together, so that their sums are
// reduced side by side, one lane per row.
#ifndef TSRI_NORM_FORWARD_SHORT_H
#define TSRI_NORM_FORWARD_SHORT_H

#include "ops/norm/norm_forward_row.h"

SIMD_INLINE struct vf_pair scale_pair(bool is_rmsnorm, enum part part, struct vf_pair v,
                                      struct scaling s, const float *weight, const float *bias) {
    struct vf_pair w = vf_load_pair(TSR_F32, weight, 0), b = w;
    if (!is_rmsnorm) b = vf_load_pair(TSR_F32, bias, 0);
    v.a = scaled(is_rmsnorm, v.a, s, w.a, b.a);
    if (part != LESS) v.b = scaled(is_rmsnorm, v.b, s, w.b, b.b);
    return v;
}

// The sums of a row's elements and of their squares.
SIMD_INLINE void sum_short(tsr_dtype dtype, enum part part, const char *x, int64_t whole, int64_t n,
                           vf *sum, vf *squares) {
    vf one = vf_set1(0.0f), two = one;
    for (int64_t i = 0; i < whole; i += PAIR) {
        struct vf_pair v = vf_load_pair(dtype, x, i);
        one = one + v.a + v.b;
        two = vf_fma(v.b, v.b, vf_fma(v.a, v.a, two));
    }
    struct vf_pair v = load_part(dtype, part, x, whole, n);
    one = one + v.a, two = vf_fma(v.a, v.a, two);
    if (part != LESS) one = one + v.b, two = vf_fma(v.b, v.b, two);
    *sum = one, *squares = two;
}

// part: the kind of a row's last pair. is_narrow: the row has only that pair.
SIMD_INLINE void short_rows_of(tsr_dtype dtype, bool is_rmsnorm, bool is_split, enum part part,
                               bool is_narrow, const struct norm_call *call, int64_t first,
                               int64_t last) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, whole = is_narrow ? 0 : (cols - 1) / PAIR * PAIR, n = cols - whole;
    int64_t row_bytes = cols * dtype_bytes(dtype);
    float weight[SHORT_COLS] __attribute__((aligned(64)));
    float bias[SHORT_COLS] __attribute__((aligned(64)));
    char gathered[SHORT_BYTES] __attribute__((aligned(64)));
    for (int64_t i = 0; i <= whole; i += PAIR) {
        int64_t num = i == whole ? n : PAIR;
        vf_store_pair(TSR_F32, weight, i, load_vector(dtype, is_split, call->weight, i, num));
        if (is_rmsnorm) continue;
        vf_store_pair(TSR_F32, bias, i, load_vector(dtype, is_split, call->bias, i, num));
    }
    for (int64_t row = first; row < last; row += VL) {
        int64_t num = last - row < VL ? last - row : VL;
        struct spaced x = spaced(dtype, &p->x, row), y = spaced(dtype, &p->y, row), to = y;
        struct forward_row rows[VL];
        struct vf_pair held[VL];
        vf one[VL], two[VL];
        float sums[VL], squares[VL];
        if (call->is_streaming) to = (struct spaced){gathered, row_bytes};
        for (int64_t r = 0; r < num; r++) {
            for (int64_t i = 0; call->is_streaming && i < row_bytes; i += 64)
                simd_prefetch(x.data, (r + VL) * x.step + i, 1);
            sum_short(dtype, part, x.data + r * x.step, whole, n, &one[r], &two[r]);
        }
        if (!is_rmsnorm) vf_store(sums, vf_sums_of(one, num));
        vf_store(squares, vf_sums_of(two, num));
        for (int64_t r = 0; r < num; r++) {
            const char *at = x.data + r * x.step;
            struct totals t = {is_rmsnorm ? 0 : sums[r], squares[r]};
            struct moments m = {0, (double)t.two};
            if (!is_rmsnorm) m = moments_of_totals(dtype, at, cols, t);
            rows[r] = forward_row(is_rmsnorm, call, row + r, at, m);
            if (rows[r].is_done && call->is_streaming)
                memcpy(gathered + r * row_bytes, y.data + r * y.step, (size_t)row_bytes);
        }
        for (int64_t r = 0; r < num; r++) {
            const struct forward_row *f = &rows[r];
            struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset), f->is_near};
            char *out = (char *)to.data + r * to.step;
            if (f->is_done) continue;
            for (int64_t i = 0; i < whole; i += PAIR)
                vf_store_pair_up(dtype, out, i,
                                 scale_pair(is_rmsnorm, WHOLE, vf_load_pair(dtype, f->s, i), s,
                                            weight + i, bias + i));
            held[r] = scale_pair(is_rmsnorm, part, load_part(dtype, part, f->s, whole, n), s,
                                 weight + whole, bias + whole);
            if (whole > 0) store_part(dtype, part, true, out, whole, held[r], n);
        }
        // A partial vector store may overlap the next row, and a load of that row would wait for it if both rows have
        // the same offset within a page. So rows of one pair are stored after all loads.
        for (int64_t r = 0; whole == 0 && r < num; r++)
            if (!rows[r].is_done)
                store_part(dtype, part, true, (char *)to.data + r * to.step, 0, held[r], n);
        if (call->is_streaming) stream_rows(gathered, row_bytes, num, (char *)y.data, y.step);
    }
}

// Rows of at most one pair, with vectors of few lanes: first the statistics of some rows, then their results.
enum { NARROW_ROWS = 64 };
SIMD_INLINE void narrow_rows(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                             const struct norm_call *call, int64_t first, int64_t last) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols;
    struct forward_row rows[NARROW_ROWS];
    struct vf_pair w = load_vector(dtype, is_split, call->weight, 0, cols), b = w;
    if (!is_rmsnorm) b = load_vector(dtype, is_split, call->bias, 0, cols);
    for (int64_t row = first; row < last; row += NARROW_ROWS) {
        int64_t num = last - row < NARROW_ROWS ? last - row : NARROW_ROWS;
        for (int64_t r = 0; r < num; r++) {
            const char *x = tsri_row(&p->x, row + r);
            struct vf_pair v = load_row(dtype, x, 0, cols);
            struct totals t = {vf_hsum(v.a + v.b), vf_hsum(vf_fma(v.a, v.a, v.b * v.b))};
            struct moments m = {0, (double)t.two};
            if (!is_rmsnorm) m = moments_of_totals(dtype, x, cols, t);
            rows[r] = forward_row(is_rmsnorm, call, row + r, x, m);
        }
        for (int64_t r = 0; r < num; r++) {
            const struct forward_row *f = &rows[r];
            if (f->is_done) continue;
            struct vf_pair v = load_row(dtype, f->s, 0, cols);
            struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset), true};
            if (!is_rmsnorm && !f->is_near) {
                s.is_near = false;
                v.a = scaled(false, v.a, s, w.a, b.a), v.b = scaled(false, v.b, s, w.b, b.b);
            } else {
                v.a = scaled(is_rmsnorm, v.a, s, w.a, b.a);
                v.b = scaled(is_rmsnorm, v.b, s, w.b, b.b);
            }
            vf_store_pair_up_n(dtype, f->y, 0, v, cols);
        }
    }
}

SIMD_INLINE void forward_short_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                                  const struct norm_call *call, int64_t first, int64_t last,
                                  int thread) {
    int64_t cols = call->problem->cols;
    (void)thread;
    if (cols <= PAIR && VL < 16) {
        narrow_rows(dtype, is_rmsnorm, is_split, call, first, last);
        return;
    }
    enum part part = part_of(dtype, cols - (cols - 1) / PAIR * PAIR);
#define ROWS(part)                                                                                 \
    do {                                                                                           \
        if (cols <= PAIR)                                                                          \
            short_rows_of(dtype, is_rmsnorm, is_split, part, true, call, first, last);             \
        else                                                                                       \
            short_rows_of(dtype, is_rmsnorm, is_split, part, false, call, first, last);            \
    } while (0)
    if (part == WHOLE)
        ROWS(WHOLE);
    else if (part == MORE)
        ROWS(MORE);
    else
        ROWS(LESS);
#undef ROWS
}
NORM_BY_DTYPE(forward_short)

#endif
