// SPDX-License-Identifier: Apache-2.0
// Softmax backward for rows of a few vectors. As many rows as a vector has lanes are processed together; their sums are
// reduced side by side, one lane per row.
#ifndef TSRI_SOFTMAX_BLOCK_H
#define TSRI_SOFTMAX_BLOCK_H

#include "cpu/simd_nan.h"
#include "ops/softmax/softmax_short.h"

enum { BLOCK_COLS = 4 * PAIR, BLOCK_BYTES = VL * BLOCK_COLS * 4 };

SIMD_INLINE struct vf_pair combine(struct vf_pair y, struct vf_pair dy, vf sum) {
    return (struct vf_pair){y.a * (dy.a - sum), y.b * (dy.b - sum)};
}

// part: the kind of a row's last pair.
SIMD_INLINE void block_backward_of(tsr_dtype dtype, enum part part, const struct softmax_problem *p,
                                   int64_t first, int64_t last, bool is_streaming) {
    int64_t cols = p->out.cols, whole = (cols - 1) / PAIR * PAIR, n = cols - whole;
    int64_t bytes = dtype == TSR_F32 ? 4 : 2, row_bytes = cols * bytes;
    int64_t y_step = p->in[0].stride * bytes, dy_step = p->in[1].stride * bytes;
    int64_t dx_step = p->out.stride * bytes;
    char gathered[BLOCK_BYTES] __attribute__((aligned(64)));
    for (int64_t row = first; row < last; row += VL) {
        int64_t num = last - row < VL ? last - row : VL;
        const char *y = (const char *)p->in[0].data + row * y_step;
        const char *dy = (const char *)p->in[1].data + row * dy_step;
        char *dx = (char *)p->out.data + row * dx_step;
        // Non-temporal stores need whole lines, so results are gathered first.
        char *to = is_streaming ? gathered : dx;
        int64_t to_step = is_streaming ? row_bytes : dx_step;
        vf dot[VL];
        float sums[VL];
        struct vf_pair held[VL];
        for (int64_t r = 0; r < num; r++) {
            vf sum = vf_set1(0.0f);
            for (int64_t at = 0; is_streaming && at < row_bytes; at += 64) {
                simd_prefetch(y, (r + VL) * y_step + at, 1);
                simd_prefetch(dy, (r + VL) * dy_step + at, 1);
            }
            for (int64_t i = 0; i < whole; i += PAIR) {
                struct vf_pair a = vf_load_pair(dtype, y + r * y_step, i);
                struct vf_pair b = vf_load_pair(dtype, dy + r * dy_step, i);
                sum = vf_fma(a.b, b.b, vf_fma(a.a, b.a, sum));
            }
            struct vf_pair a = load_part(dtype, part, y + r * y_step, whole, n);
            struct vf_pair b = load_part(dtype, part, dy + r * dy_step, whole, n);
            sum = vf_fma(a.a, b.a, sum);
            if (part != LESS) sum = vf_fma(a.b, b.b, sum);
            dot[r] = sum;
        }
        vf_store(sums, vf_sums_of(dot, num));
        for (int64_t r = 0; r < num; r++) {
            vf sum = vf_set1(sums[r]);
            for (int64_t i = 0; i < whole; i += PAIR)
                vf_store_pair(dtype, to + r * to_step, i,
                              combine(vf_load_pair(dtype, y + r * y_step, i),
                                      vf_load_pair(dtype, dy + r * dy_step, i), sum));
            held[r] = combine(load_part(dtype, part, y + r * y_step, whole, n),
                              load_part(dtype, part, dy + r * dy_step, whole, n), sum);
            if (part == WHOLE) store_part(dtype, part, false, to + r * to_step, whole, held[r], n);
        }
        // A partial vector store may overlap the next row, and a load of that row would wait for it if both rows have
        // the same offset within a page. So these stores come after all loads.
        for (int64_t r = 0; part != WHOLE && r < num; r++)
            store_part(dtype, part, false, to + r * to_step, whole, held[r], n);
        for (int64_t r = 0; r < num; r++)
            if (sums[r] != sums[r]) simd_fill_nan(dtype, to + r * to_step, cols);
        if (is_streaming) stream_rows(gathered, row_bytes, num, dx, dx_step);
    }
}

SIMD_INLINE void block_backward(tsr_dtype dtype, const struct softmax_problem *p, int64_t first,
                                int64_t last, bool is_streaming) {
    int64_t cols = p->out.cols;
    enum part part = part_of(dtype, cols - (cols - 1) / PAIR * PAIR);
    if (part == WHOLE)
        block_backward_of(dtype, WHOLE, p, first, last, is_streaming);
    else if (part == MORE)
        block_backward_of(dtype, MORE, p, first, last, is_streaming);
    else
        block_backward_of(dtype, LESS, p, first, last, is_streaming);
}

#endif
