// SPDX-License-Identifier: Apache-2.0
// Fused forward of the norms, compiled once per instruction set. Rows are taken in blocks that stay in the
// second-level cache (norm_block_rows): a first phase reads every row of the block and finds its statistics,
// a second one goes over the block in strips of columns, all rows of a strip, so that weight and bias stay in
// the first-level cache, and writes. With every line that goes past the caches it fetches one of the next
// block, so that memory reads and writes side by side. Every element takes the same operations in whole
// vectors and in tails, with FMA spelled out, so that a row's result does not depend on where it lies.
#include "ops/norm/norm_strips.h"

// y = ((x - mean) rstd - offset) weight + bias; offset is what the fp32 mean leaves over, times rstd. Where the
// mean is near 0, within a standard deviation, y = (x rstd + offset) weight + bias with the offset -mean rstd:
// its rounding is that of 1.
struct scaling {
    vf mean, rstd, offset;
    bool is_near;
};

SIMD_INLINE vf scaled(bool is_rmsnorm, vf x, struct scaling s, vf weight, vf bias) {
    if (is_rmsnorm) return x * s.rstd * weight;
    if (s.is_near) return vf_fma(vf_fma(x, s.rstd, s.offset), weight, bias);
    return vf_fma(vf_fma(x - s.mean, s.rstd, s.offset), weight, bias);
}

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

SIMD_INLINE void scale_strip(tsr_dtype dtype, bool is_rmsnorm, bool is_split, const void *x,
                             struct scaling s, const float *weight, const float *bias, void *y,
                             struct strip strip, struct far_lines far) {
    int64_t begin = strip.first_whole;
#define VALUE(i, n) scale_at(dtype, is_rmsnorm, is_split, x, s, weight, bias, i, n)
#define FETCH(i) fetch_far(dtype, &far, begin, i)
    FOR_STRIP(dtype, strip, y, VALUE, FETCH);
#undef VALUE
#undef FETCH
}

// A row between the two phases.
struct forward_row {
    const char *s; // what is normalised
    char *y;
    float mean, rstd, offset;
    bool is_near; // see scaling
    bool is_done; // by norm_forward_wide_row
};

// Adds the residual, finds and stores the statistics. scratch holds the sum where that goes past
// the caches.
SIMD_INLINE struct forward_row first_phase(tsr_dtype dtype, bool is_rmsnorm,
                                           const struct norm_call *call, int64_t row,
                                           char *scratch) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, bytes = dtype_bytes(dtype);
    bool has_residual = p->residual.data != NULL;
    struct forward_row out = {.is_done = true};
    const char *x = cols > 0 ? tsri_row(&p->x, row) : NULL, *residual = NULL;
    char *sum = NULL;
    out.s = x;
    if (has_residual) {
        residual = tsri_row(&p->residual, row);
        sum = call->is_streaming ? scratch : tsri_row(&p->residual_out, row);
        out.s = sum;
    }
    struct moments m = {0, 0};
    for (int64_t i = 0; i < cols; i += BLOCK) {
        int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
        if (has_residual) add_rows(dtype, x + i * bytes, residual + i * bytes, sum + i * bytes, n);
        struct moments b = block_moments(dtype, is_rmsnorm, out.s + i * bytes, n);
        m = i == 0 ? b : merge(m, i, b, n);
    }
    if (has_residual && call->is_streaming)
        stream_bytes(sum, tsri_row(&p->residual_out, row), cols * bytes);
    double variance_eps = m.m2 / (double)(cols > 0 ? cols : 1) + p->eps;
    if (is_beyond_fp32(variance_eps)) {
        norm_forward_wide_row(call, row, out.s);
        return out;
    }
    double rstd = 1 / sqrt(variance_eps);
    out.rstd = (float)rstd;
    if (!is_rmsnorm) {
        out.mean = (float)m.mean;
        out.is_near = fabs(m.mean) * rstd <= 1;
        out.offset = (float)((out.is_near ? 0 - m.mean : (double)out.mean - m.mean) * rstd);
    }
    if (p->mean.data != NULL) ((float *)p->mean.data)[row] = out.mean;
    if (p->rstd.data != NULL) ((float *)p->rstd.data)[row] = out.rstd;
    if (cols == 0) return out;
    out.y = tsri_row(&p->y, row);
    out.is_done = false;
    return out;
}

SIMD_INLINE void forward_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                            const struct norm_call *call, int64_t first, int64_t last, int thread) {
    int64_t cols = call->problem->cols, block = norm_block_rows(call->problem);
    char *scratch = call->scratch;
    if (call->scratch_per_thread > 0) scratch += (size_t)thread * call->scratch_per_thread;
    struct forward_row rows[NORM_MAX_BLOCK_ROWS];
    for (int64_t row = first; row < last; row += block) {
        int64_t num = last - row < block ? last - row : block;
        for (int64_t r = 0; r < num; r++) {
            rows[r] = first_phase(dtype, is_rmsnorm, call, row + r, scratch);
            if (call->scratch_per_thread > 0) scratch += call->scratch_per_row;
        }
        if (call->scratch_per_thread > 0) scratch -= (size_t)num * call->scratch_per_row;
        int64_t next_num = last - row - num < num ? last - row - num : num, apart = 0;
        const char *next = next_num > 0 ? tsri_row(&call->problem->x, row + num) : NULL;
        if (next_num > 1) apart = (char *)tsri_row(&call->problem->x, row + num + 1) - next;
        for (int64_t begin = 0; begin < cols; begin += STRIP)
            for (int64_t r = 0; r < num; r++) {
                const struct forward_row *f = &rows[r];
                if (f->is_done) continue;
                struct strip strip = strip_of(dtype, f->y, begin, cols, call->is_streaming);
                struct far_lines far = {.own = f->s};
                if (next != NULL && row + num + r < last)
                    far = far_lines(dtype, next, apart, r, next_num, begin, cols);
                struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset), true};
                if (is_rmsnorm || f->is_near) {
                    scale_strip(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias,
                                f->y, strip, far);
                } else {
                    s.is_near = false;
                    scale_strip(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias,
                                f->y, strip, far);
                }
            }
    }
}
NORM_BY_DTYPE(forward)

const struct norm_forward_kernels TSRI_KERNEL_TABLE(norm_forward) = {forward};
