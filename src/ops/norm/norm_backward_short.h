// SPDX-License-Identifier: Apache-2.0
// Backward for rows of a few vectors. As many rows as a vector has lanes are processed together: their sums, and
// everything computed from them, are side by side, one lane per row; a single row would wait for two reductions and a
// division. Then the work goes column by column, so that weight and the running sums stay in registers.
#ifndef TSRI_NORM_BACKWARD_SHORT_H
#define TSRI_NORM_BACKWARD_SHORT_H

#include "ops/norm/norm_backward_row.h"

// For careful rows, defined at the end of norm_backward_simd.c: a row's sums, and a strip.
static void careful_sums(tsr_dtype dtype, bool is_rmsnorm, bool is_split, const float *weight,
                         int64_t cols, struct backward_row *row);
static void combine_careful(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                            struct backward_row row, const float *weight, float *dweight,
                            float *dbias, struct strip strip, const char *ahead);

// At most VL rows. Further lanes have sums of 0 and an rstd of 1.
struct block {
    int64_t num;
    struct spaced x, dy, dresidual_out, dx;
    float mean[VL], rstd[VL], c_scale[VL], offset[VL]; // as in struct backward_row
    float careful[VL];                                 // not 0: a careful row
    bool has_careful;
};

// Computes c_scale and offset, and whether a row is careful (finish_sums). That depends on the row's own sums and
// statistics, because `most`, the largest |dy|, covers all rows.
SIMD_INLINE void finish_block_sums(bool is_rmsnorm, vf *sum_g, vf *sum_gc, int64_t cols, float most,
                                   struct block *b) {
    vf rstd = vf_load(b->rstd), count = vf_set1((float)cols), zero = vf_set1(0.0f);
    vf one = vf_set1(1.0f), total_gc = vf_sums_of(sum_gc, b->num), mean_g = zero;
    if (!is_rmsnorm) mean_g = vf_sums_of(sum_g, b->num) / count;
    vf c_scale = vf_fnma(rstd * rstd, total_gc / count * rstd, zero), size = vf_abs(c_scale);
    vf is_small = vf_select_lt(zero, vf_abs(total_gc), one, zero);
    vf careful = vf_select_lt(size, vf_set1(0x1p-80f), is_small, zero) +
                 vf_select_lt(size, vf_set1(0x1p100f), zero, one) +
                 vf_select_lt(vf_set1(0x1p-12f), rstd, zero, one) +
                 vf_select_lt(rstd, vf_set1(0x1p20f), zero, one);
    if (!is_rmsnorm) {
        vf distance = vf_abs(vf_load(b->mean)) * rstd;
        careful = careful + vf_select_lt(vf_set1(NORM_FAR_MEAN), distance, one, zero);
    }
    vf_store(b->c_scale, c_scale);
    vf_store(b->offset, vf_fnma(rstd, mean_g, zero));
    vf_store(b->careful, careful);
    b->has_careful = vf_hsum(careful) != 0 || !(most * vf_hmax(rstd) <= 0x1p100f);
}

// The running sums and dx of a pair of columns from i on. is_held: all loads come before the stores, because a partial
// vector store may overlap the next row, and a load of that row would wait for it if both rows have the same offset
// within a page.
SIMD_INLINE void combine_block(tsr_dtype dtype, bool is_rmsnorm, enum part part, bool is_held,
                               const struct block *b, const float *weight, float *dweight,
                               float *dbias, int64_t i, int64_t n) {
    const bool has_second = part != LESS;
    struct vf_pair w = vf_load_pair(TSR_F32, weight, i), sum = w, bias = w, held[VL];
    if (dweight != NULL) sum = vf_load_pair(TSR_F32, dweight, i);
    if (dweight != NULL && !is_rmsnorm) bias = vf_load_pair(TSR_F32, dbias, i);
    for (int64_t r = 0; r < b->num; r++) {
        if (b->has_careful && b->careful[r] != 0) continue;
        struct backward_row row = {.mean = b->mean[r],
                                   .rstd = b->rstd[r],
                                   .c_scale = b->c_scale[r],
                                   .offset = b->offset[r]};
        struct vf_pair x = load_part(dtype, part, b->x.data + r * b->x.step, i, n);
        struct vf_pair dy = load_part(dtype, part, b->dy.data + r * b->dy.step, i, n);
        struct gradient first = gradient_of(is_rmsnorm, false, &row, x.a, dy.a, w.a, sum.a), second;
        if (has_second) second = gradient_of(is_rmsnorm, false, &row, x.b, dy.b, w.b, sum.b);
        struct vf_pair dx = {first.dx, has_second ? second.dx : first.dx};
        sum.a = first.weight;
        if (has_second) sum.b = second.weight;
        if (!is_rmsnorm) bias.a = dy.a + bias.a;
        if (!is_rmsnorm && has_second) bias.b = dy.b + bias.b;
        if (b->dresidual_out.data != NULL) {
            const char *at = b->dresidual_out.data + r * b->dresidual_out.step;
            struct vf_pair more = load_part(dtype, part, at, i, n);
            dx.a = dx.a + more.a, dx.b = dx.b + more.b;
        }
        if (is_held)
            held[r] = dx;
        else
            store_part(dtype, part, true, (char *)b->dx.data + r * b->dx.step, i, dx, n);
    }
    for (int64_t r = 0; is_held && r < b->num; r++)
        if (!b->has_careful || b->careful[r] == 0)
            store_part(dtype, part, true, (char *)b->dx.data + r * b->dx.step, i, held[r], n);
    if (dweight != NULL) vf_store_pair(TSR_F32, dweight, i, sum);
    if (dweight != NULL && !is_rmsnorm) vf_store_pair(TSR_F32, dbias, i, bias);
}

// Adds a pair of columns of a row to the row's sums.
SIMD_INLINE void add_part(tsr_dtype dtype, bool is_rmsnorm, enum part part, const struct block *b,
                          int64_t r, const float *weight, int64_t i, int64_t n, vf *g, vf *gc,
                          vf *most) {
    vf mean = vf_set1(b->mean[r]);
    struct vf_pair w = vf_load_pair(TSR_F32, weight, i);
    struct vf_pair x = load_part(dtype, part, b->x.data + r * b->x.step, i, n);
    struct vf_pair dy = load_part(dtype, part, b->dy.data + r * b->dy.step, i, n);
    struct vf_pair c = {centred(is_rmsnorm, false, x.a, mean, mean),
                        centred(is_rmsnorm, false, x.b, mean, mean)};
    if (part != WHOLE && !is_rmsnorm) c = vf_keep_pair_n(dtype, c, n);
    vf g_a = dy.a * w.a, g_b = dy.b * w.b;
    *g = *g + g_a;
    *gc = vf_fma(g_a, c.a, *gc);
    if (dtype != TSR_F16) *most = vf_max_abs(*most, dy.a);
    if (part == LESS) return;
    *g = *g + g_b;
    *gc = vf_fma(g_b, c.b, *gc);
    if (dtype != TSR_F16) *most = vf_max_abs(*most, dy.b);
}

// Finds the careful rows, each by itself: the result must not depend on other rows.
static __attribute__((noinline)) void find_careful(tsr_dtype dtype, int64_t cols, struct block *b) {
    for (int64_t r = 0; r < b->num; r++) {
        vf most = vf_set1(0.0f);
        for (int64_t i = 0; i < cols; i += PAIR) {
            int64_t n = cols - i < PAIR ? cols - i : PAIR;
            struct vf_pair dy = load_row(dtype, b->dy.data + r * b->dy.step, i, n);
            most = vf_max_abs(vf_max_abs(most, dy.a), dy.b);
        }
        if (dtype != TSR_F16 && !(vf_hmax(most) * b->rstd[r] <= 0x1p100f)) b->careful[r] = 1;
    }
}

SIMD_INLINE vf clean_lanes(vf x) {
    return vf_select_lt(vf_set1(-1.0f), vf_abs(x), x, vf_set1(__builtin_nanf("")));
}

// Set field by field, because an initialiser would first clear the arrays.
SIMD_INLINE void start_block(tsr_dtype dtype, bool is_rmsnorm, const struct norm_problem *p,
                             int64_t row, int64_t num, struct block *b) {
    b->num = num;
    b->x = spaced(dtype, &p->x, row);
    b->dy = spaced(dtype, &p->dy, row);
    b->dresidual_out = spaced(dtype, &p->dresidual_out, row);
    b->dx = spaced(dtype, &p->dx, row);
    vf rstd = vf_load_n((const float *)p->rstd.data + row, num), mean = rstd;
    vf_store(b->rstd, clean_lanes(vf_keep_n(rstd, num, 1.0f)));
    if (!is_rmsnorm) mean = vf_load_n((const float *)p->mean.data + row, num);
    vf_store(b->mean, clean_lanes(mean));
}

// part: the kind of a row's last pair.
SIMD_INLINE void short_rows_of(tsr_dtype dtype, bool is_rmsnorm, bool is_split, enum part part,
                               const struct norm_call *call, int64_t first, int64_t last,
                               float *dweight) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, whole = (cols - 1) / PAIR * PAIR, n = cols - whole;
    int64_t row_bytes = cols * dtype_bytes(dtype);
    float *dbias = dweight == NULL ? NULL : dweight + norm_padded_cols(p);
    float weight[SHORT_COLS] __attribute__((aligned(64)));
    char gathered[SHORT_BYTES] __attribute__((aligned(64)));
    for (int64_t i = 0; i < cols; i += PAIR)
        vf_store_pair(TSR_F32, weight, i,
                      load_vector(dtype, is_split, call->weight, i, i == whole ? n : PAIR));
    for (int64_t row = first; row < last; row += VL) {
        struct block b;
        start_block(dtype, is_rmsnorm, p, row, last - row < VL ? last - row : VL, &b);
        vf sum_g[VL], sum_gc[VL], most = vf_set1(0.0f);
        for (int64_t r = 0; r < b.num; r++) {
            vf g = vf_set1(0.0f), gc = g;
            for (int64_t at = 0; call->is_streaming && at < row_bytes; at += 64) {
                __builtin_prefetch(
                    (const char *)((uintptr_t)b.x.data + (uintptr_t)((r + VL) * b.x.step + at)), 0,
                    2);
                __builtin_prefetch(
                    (const char *)((uintptr_t)b.dy.data + (uintptr_t)((r + VL) * b.dy.step + at)),
                    0, 2);
            }
            for (int64_t i = 0; i < whole; i += PAIR)
                add_part(dtype, is_rmsnorm, WHOLE, &b, r, weight, i, PAIR, &g, &gc, &most);
            add_part(dtype, is_rmsnorm, part, &b, r, weight, whole, n, &g, &gc, &most);
            sum_g[r] = g, sum_gc[r] = gc;
        }
        finish_block_sums(is_rmsnorm, sum_g, sum_gc, cols, vf_hmax(most), &b);
        if (b.has_careful) find_careful(dtype, cols, &b);
        // Non-temporal stores need whole lines, so results are gathered first.
        struct spaced dx = b.dx;
        if (call->is_streaming) b.dx = (struct spaced){gathered, row_bytes};
        for (int64_t i = 0; i < whole; i += PAIR)
            combine_block(dtype, is_rmsnorm, WHOLE, false, &b, weight, dweight, dbias, i, PAIR);
        if (whole == 0 && !call->is_streaming)
            combine_block(dtype, is_rmsnorm, part, true, &b, weight, dweight, dbias, whole, n);
        else
            combine_block(dtype, is_rmsnorm, part, false, &b, weight, dweight, dbias, whole, n);
        if (call->is_streaming) stream_rows(gathered, row_bytes, b.num, (char *)dx.data, dx.step);
        for (int64_t r = 0; b.has_careful && r < b.num; r++) {
            if (b.careful[r] == 0) continue;
            struct backward_row rare = backward_row(p, is_rmsnorm, row + r);
            struct strip strip = {0, 0, cols, STORED};
            careful_sums(dtype, is_rmsnorm, is_split, call->weight, cols, &rare);
            combine_careful(dtype, is_rmsnorm, is_split, rare, call->weight, dweight, dbias, strip,
                            rare.dy);
        }
    }
}

SIMD_INLINE void backward_short_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                                   const struct norm_call *call, int64_t first, int64_t last,
                                   int thread) {
    int64_t cols = call->problem->cols;
    float *dweight = cleared_sums(is_rmsnorm, call, first);
    (void)thread;
    enum part part = part_of(dtype, cols - (cols - 1) / PAIR * PAIR);
    if (part == WHOLE)
        short_rows_of(dtype, is_rmsnorm, is_split, WHOLE, call, first, last, dweight);
    else if (part == MORE)
        short_rows_of(dtype, is_rmsnorm, is_split, MORE, call, first, last, dweight);
    else
        short_rows_of(dtype, is_rmsnorm, is_split, LESS, call, first, last, dweight);
}
NORM_BY_DTYPE(backward_short)

#endif
