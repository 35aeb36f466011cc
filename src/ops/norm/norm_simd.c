// SPDX-License-Identifier: Apache-2.0
// Fused norm kernels, compiled once per instruction set. Forward: a row takes one sweep for its
// statistics (norm_moments.h) and one to scale and shift, which also fetches the next row, so that
// reading, computing and writing overlap. Backward: the same with the sums of g and g h; the second
// sweep goes over several rows at once, so that the running sums of dweight and dbias move between
// cache and registers once for all of them. Every element takes the same operations in whole
// vectors and in tails, with FMA spelled out, so that a row's result does not depend on where it
// lies.
#include "ops/norm/norm_moments.h"

// One instantiation for each dtype and norm, with both constants inside.
#define BY_DTYPE(name)                                                                             \
    static void name(const struct norm_call *call, int64_t first, int64_t last, int thread) {      \
        const struct norm_problem *p = call->problem;                                              \
        switch (p->dtype) {                                                                        \
        case TSR_BF16:                                                                             \
            if (p->is_rmsnorm)                                                                     \
                name##_as(TSR_BF16, true, call, first, last, thread);                              \
            else                                                                                   \
                name##_as(TSR_BF16, false, call, first, last, thread);                             \
            break;                                                                                 \
        case TSR_F16:                                                                              \
            if (p->is_rmsnorm)                                                                     \
                name##_as(TSR_F16, true, call, first, last, thread);                               \
            else                                                                                   \
                name##_as(TSR_F16, false, call, first, last, thread);                              \
            break;                                                                                 \
        default:                                                                                   \
            if (p->is_rmsnorm)                                                                     \
                name##_as(TSR_F32, true, call, first, last, thread);                               \
            else                                                                                   \
                name##_as(TSR_F32, false, call, first, last, thread);                              \
        }                                                                                          \
        if (call->is_streaming) vf_stream_fence();                                                 \
    }

// ---- Residual ---------------------------------------------------------------------------------

SIMD_INLINE void add_rows(tsr_dtype dtype, const void *x, const void *residual, void *sum,
                          int64_t n) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store_as(dtype, sum, i, vf_load_as(dtype, x, i) + vf_load_as(dtype, residual, i));
    if (i < n)
        vf_store_as_n(dtype, sum, i,
                      vf_load_as_n(dtype, x, i, n - i) + vf_load_as_n(dtype, residual, i, n - i),
                      n - i);
}

// Bytes as they are, past the caches: a vector of floats carries two 16-bit elements a lane.
SIMD_INLINE void stream_bytes(const char *from, char *to, int64_t bytes) {
    enum { WIDTH = VL * 4 };
    int64_t head = (int64_t)((WIDTH - (uintptr_t)to % WIDTH) % WIDTH);
    if (head > bytes) head = bytes;
    memcpy(to, from, (size_t)head);
    int64_t i = head;
    for (; i + WIDTH <= bytes; i += WIDTH)
        vf_stream((float *)(void *)(to + i), vf_load((const float *)(const void *)(from + i)));
    memcpy(to + i, from + i, (size_t)(bytes - i));
}

// ---- Forward ----------------------------------------------------------------------------------

// y = ((x - mean) rstd - offset) weight + bias; offset is what the fp32 mean leaves over, times
// rstd.
struct scaling {
    vf mean, rstd, offset;
};

SIMD_INLINE vf scaled(bool is_rmsnorm, vf x, struct scaling s, vf weight, vf bias) {
    if (is_rmsnorm) return x * s.rstd * weight;
    return vf_fma(vf_fma(x - s.mean, s.rstd, s.offset), weight, bias);
}

SIMD_INLINE void scale_n(tsr_dtype dtype, bool is_rmsnorm, const void *x, struct scaling s,
                         const float *weight, const float *bias, void *y, int64_t i, int64_t n) {
    vf b = is_rmsnorm ? vf_set1(0.0f) : vf_load_n(bias + i, n);
    vf_store_as_n(dtype, y, i,
                  scaled(is_rmsnorm, vf_load_as_n(dtype, x, i, n), s, vf_load_n(weight + i, n), b),
                  n);
}

SIMD_INLINE void scale_row(tsr_dtype dtype, bool is_rmsnorm, const void *x, struct scaling s,
                           const float *weight, const float *bias, void *y, int64_t cols,
                           bool is_streaming, const char *next, const char *next_residual) {
    int64_t i = 0;
    if (is_streaming) {
        i = simd_stream_head(dtype, y);
        if (i > cols) i = cols;
        if (i > 0) scale_n(dtype, is_rmsnorm, x, s, weight, bias, y, 0, i);
    }
    for (int64_t base = i; i + VL <= cols; i += VL) {
        prefetch_at(dtype, next, i - base);
        if (next_residual != NULL) prefetch_at(dtype, next_residual, i - base);
        vf b = is_rmsnorm ? vf_set1(0.0f) : vf_load(bias + i);
        vf value = scaled(is_rmsnorm, vf_load_as(dtype, x, i), s, vf_load(weight + i), b);
        if (is_streaming)
            vf_stream_as(dtype, y, i, value);
        else
            vf_store_as(dtype, y, i, value);
    }
    if (i < cols) scale_n(dtype, is_rmsnorm, x, s, weight, bias, y, i, cols - i);
}

SIMD_INLINE void forward_as(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                            int64_t first, int64_t last, int thread) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, bytes = dtype_bytes(dtype);
    bool has_residual = p->residual.data != NULL;
    for (int64_t row = first; row < last; row++) {
        const char *x = p->x.data != NULL ? tsri_row(&p->x, row) : NULL, *s = x, *residual = NULL;
        int64_t ahead = row + 1 < last ? row + 1 : row;
        char *sum = NULL;
        if (has_residual) {
            residual = tsri_row(&p->residual, row);
            sum = call->is_streaming ? call->scratch + (size_t)thread * call->scratch_per_thread
                                     : tsri_row(&p->residual_out, row);
            s = sum;
        }
        struct moments m = {0, 0};
        for (int64_t i = 0; i < cols; i += BLOCK) {
            int64_t n = cols - i < BLOCK ? cols - i : BLOCK;
            if (has_residual)
                add_rows(dtype, x + i * bytes, residual + i * bytes, sum + i * bytes, n);
            struct moments b = block_moments(dtype, is_rmsnorm, s + i * bytes, n);
            m = i == 0 ? b : merge(m, i, b, n);
        }
        if (has_residual && call->is_streaming)
            stream_bytes(sum, tsri_row(&p->residual_out, row), cols * bytes);
        double variance_eps = m.m2 / (double)(cols > 0 ? cols : 1) + p->eps;
        if (is_beyond_fp32(variance_eps)) {
            norm_forward_wide_row(call, row, s);
            continue;
        }
        double rstd = 1 / sqrt(variance_eps);
        float mean = (float)m.mean;
        if (p->mean.data != NULL) ((float *)p->mean.data)[row] = mean;
        if (p->rstd.data != NULL) ((float *)p->rstd.data)[row] = (float)rstd;
        if (cols == 0) continue;
        struct scaling scaling = {vf_set1(mean), vf_set1((float)rstd),
                                  vf_set1((float)(((double)mean - m.mean) * rstd))};
        scale_row(dtype, is_rmsnorm, s, scaling, call->weight, call->bias, tsri_row(&p->y, row),
                  cols, call->is_streaming, tsri_row(&p->x, ahead),
                  has_residual ? tsri_row(&p->residual, ahead) : NULL);
    }
}
BY_DTYPE(forward)

// ---- Backward ---------------------------------------------------------------------------------

enum { BACKWARD_ROWS = 4 }; // of the second sweep

// A row in the backward pass. h = (x/2 - mean/2) (2 rstd): halves, so that the difference of two
// finite numbers is finite; the products by 2 are exact.
struct gradient_row {
    const char *x, *dy, *dresidual_out;
    char *dx;
    float half_mean, twice_rstd, rstd;
    float mean_g, mean_gh; // over the columns
};

SIMD_INLINE vf normalised(bool is_rmsnorm, vf x, vf half_mean, vf twice_rstd, vf rstd) {
    if (is_rmsnorm) return x * rstd;
    return vf_fma(x, vf_set1(0.5f), vf_set1(0.0f) - half_mean) * twice_rstd;
}

SIMD_INLINE void row_sums(tsr_dtype dtype, bool is_rmsnorm, const float *weight, int64_t cols,
                          struct gradient_row *row) {
    vf half_mean = vf_set1(row->half_mean), twice_rstd = vf_set1(row->twice_rstd);
    vf rstd = vf_set1(row->rstd), sum_g[UNROLL], sum_gh[UNROLL];
    double total_g = 0, total_gh = 0;
    for (int64_t block = 0; block < cols; block += BLOCK) {
        int64_t end = cols - block < BLOCK ? cols : block + BLOCK, i = block;
        for (int u = 0; u < UNROLL; u++) sum_g[u] = sum_gh[u] = vf_set1(0.0f);
        for (; i + UNROLL * VL <= end; i += UNROLL * VL)
            for (int u = 0; u < UNROLL; u++) {
                int64_t at = i + u * VL;
                vf h = normalised(is_rmsnorm, vf_load_as(dtype, row->x, at), half_mean, twice_rstd,
                                  rstd);
                vf dy = vf_load_as(dtype, row->dy, at), w = vf_load(weight + at);
                if (!is_rmsnorm) sum_g[u] = vf_fma(dy, w, sum_g[u]);
                sum_gh[u] = vf_fma(dy * w, h, sum_gh[u]);
            }
        for (; i < end; i += VL) {
            int64_t n = end - i < VL ? end - i : VL;
            vf h = normalised(is_rmsnorm, vf_load_as_n(dtype, row->x, i, n), half_mean, twice_rstd,
                              rstd);
            vf dy = vf_load_as_n(dtype, row->dy, i, n), w = vf_load_n(weight + i, n);
            if (!is_rmsnorm) sum_g[0] = vf_fma(dy, w, sum_g[0]);
            sum_gh[0] = sum_gh[0] + vf_keep_n(dy * w * h, n, 0.0f);
        }
        total_g += (double)vf_hsum((sum_g[0] + sum_g[1]) + (sum_g[2] + sum_g[3]));
        total_gh += (double)vf_hsum((sum_gh[0] + sum_gh[1]) + (sum_gh[2] + sum_gh[3]));
    }
    row->mean_g = (float)(total_g / (double)cols);
    row->mean_gh = (float)(total_gh / (double)cols);
}

// n = VL, with whole loads and stores, or less. dweight and dbias are the group's running sums,
// NULL where they are not wanted.
SIMD_INLINE void combine_at(tsr_dtype dtype, bool is_rmsnorm, const struct gradient_row *rows,
                            int num_rows, const float *weight, float *dweight, float *dbias,
                            int64_t i, int64_t n, bool is_streaming) {
    bool is_whole = n == VL;
    vf w = is_whole ? vf_load(weight + i) : vf_load_n(weight + i, n);
    vf sum_w = vf_set1(0.0f), sum_b = sum_w;
    if (dweight != NULL) sum_w = is_whole ? vf_load(dweight + i) : vf_load_n(dweight + i, n);
    if (dweight != NULL && !is_rmsnorm)
        sum_b = is_whole ? vf_load(dbias + i) : vf_load_n(dbias + i, n);
    for (int r = 0; r < num_rows; r++) {
        const struct gradient_row *row = &rows[r];
        vf x = is_whole ? vf_load_as(dtype, row->x, i) : vf_load_as_n(dtype, row->x, i, n);
        vf dy = is_whole ? vf_load_as(dtype, row->dy, i) : vf_load_as_n(dtype, row->dy, i, n);
        vf rstd = vf_set1(row->rstd);
        vf h = normalised(is_rmsnorm, x, vf_set1(row->half_mean), vf_set1(row->twice_rstd), rstd);
        sum_w = vf_fma(dy, h, sum_w);
        if (!is_rmsnorm) sum_b = sum_b + dy;
        vf dx = vf_fma(dy, w, vf_set1(0.0f - row->mean_g));
        dx = vf_fma(h, vf_set1(0.0f - row->mean_gh), dx);
        if (row->dresidual_out != NULL)
            dx = vf_fma(dx, rstd,
                        is_whole ? vf_load_as(dtype, row->dresidual_out, i)
                                 : vf_load_as_n(dtype, row->dresidual_out, i, n));
        else
            dx = dx * rstd;
        if (!is_whole)
            vf_store_as_n(dtype, row->dx, i, dx, n);
        else if (is_streaming)
            vf_stream_as(dtype, row->dx, i, dx);
        else
            vf_store_as(dtype, row->dx, i, dx);
    }
    if (dweight == NULL) return;
    if (is_whole)
        vf_store(dweight + i, sum_w);
    else
        vf_store_n(dweight + i, sum_w, n);
    if (is_rmsnorm) return;
    if (is_whole)
        vf_store(dbias + i, sum_b);
    else
        vf_store_n(dbias + i, sum_b, n);
}

SIMD_INLINE void combine_rows(tsr_dtype dtype, bool is_rmsnorm, const struct gradient_row *rows,
                              int num_rows, const float *weight, float *dweight, float *dbias,
                              int64_t cols, bool is_streaming, const struct gradient_row *next) {
    int64_t i = 0;
    if (is_streaming) {
        i = simd_stream_head(dtype, rows->dx);
        if (i > cols) i = cols;
        if (i > 0)
            combine_at(dtype, is_rmsnorm, rows, num_rows, weight, dweight, dbias, 0, i, false);
    }
    for (int64_t base = i; i + VL <= cols; i += VL) {
        for (int r = 0; r < num_rows; r++) {
            prefetch_at(dtype, next[r].x, i - base);
            prefetch_at(dtype, next[r].dy, i - base);
        }
        combine_at(dtype, is_rmsnorm, rows, num_rows, weight, dweight, dbias, i, VL, is_streaming);
    }
    if (i < cols)
        combine_at(dtype, is_rmsnorm, rows, num_rows, weight, dweight, dbias, i, cols - i, false);
}

SIMD_INLINE struct gradient_row gradient_row(const struct norm_problem *p, bool is_rmsnorm,
                                             int64_t r) {
    float mean = is_rmsnorm ? 0 : ((const float *)p->mean.data)[r];
    float rstd = ((const float *)p->rstd.data)[r];
    return (struct gradient_row){
        .x = tsri_row(&p->x, r),
        .dy = tsri_row(&p->dy, r),
        .dresidual_out = p->dresidual_out.data != NULL ? tsri_row(&p->dresidual_out, r) : NULL,
        .dx = tsri_row(&p->dx, r),
        .half_mean = 0.5f * mean,
        .twice_rstd = 2 * rstd,
        .rstd = rstd,
    };
}

SIMD_INLINE void backward_as(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                             int64_t first, int64_t last, int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols;
    float *dweight = NULL, *dbias = NULL;
    if (cols == 0) return;
    if (p->dweight.data != NULL || p->dbias.data != NULL) {
        dweight = call->partial + first / norm_group_rows(p->rows) * 2 * cols;
        dbias = dweight + cols;
        memset(dweight, 0, (size_t)(is_rmsnorm ? cols : 2 * cols) * sizeof(float));
    }
    // Streaming stores to several rows need rows of the same alignment.
    bool is_aligned = p->dx.stride * dtype_bytes(dtype) % (VL * dtype_bytes(dtype)) == 0;
    int block = call->is_streaming && !is_aligned ? 1 : BACKWARD_ROWS;
    struct gradient_row rows[2 * BACKWARD_ROWS];
    int num = (int)(last - first < block ? last - first : block);
    for (int r = 0; r < num; r++) rows[r] = gradient_row(p, is_rmsnorm, first + r);
    for (int64_t row = first; row < last;) {
        struct gradient_row *next = rows + BACKWARD_ROWS;
        int64_t left = last - row - num;
        int num_next = (int)(left < block ? left : block);
        for (int r = 0; r < num; r++)
            next[r] = r < num_next ? gradient_row(p, is_rmsnorm, row + num + r) : rows[r];
        for (int r = 0; r < num; r++) row_sums(dtype, is_rmsnorm, call->weight, cols, &rows[r]);
        if (num == BACKWARD_ROWS)
            combine_rows(dtype, is_rmsnorm, rows, BACKWARD_ROWS, call->weight, dweight, dbias, cols,
                         call->is_streaming, next);
        else
            for (int r = 0; r < num; r++)
                combine_rows(dtype, is_rmsnorm, rows + r, 1, call->weight, dweight, dbias, cols,
                             call->is_streaming, next + r);
        row += num;
        num = num_next;
        for (int r = 0; r < num; r++) rows[r] = next[r];
    }
}
BY_DTYPE(backward)

// ---- Vectors ----------------------------------------------------------------------------------

static void widen(tsr_dtype dtype, const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += VL) {
        int64_t lanes = n - i < VL ? n - i : VL;
        vf_store_n(to + i,
                   dtype == TSR_BF16 ? vf_load_as_n(TSR_BF16, from, i, lanes)
                                     : vf_load_as_n(TSR_F16, from, i, lanes),
                   lanes);
    }
}

static void store_vector(const struct norm_vector *v, int64_t i, vf value, int64_t n) {
    switch (v->dtype) {
    case TSR_BF16: vf_store_as_n(TSR_BF16, v->data, i, value, n); break;
    case TSR_F16: vf_store_as_n(TSR_F16, v->data, i, value, n); break;
    default: vf_store_as_n(TSR_F32, v->data, i, value, n);
    }
}

static void reduce(const struct norm_call *call, int64_t first, int64_t last, int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t groups = tsri_ceil_div(p->rows, norm_group_rows(p->rows));
    const struct norm_vector *out[2] = {&p->dweight, &p->dbias};
    for (int v = 0; v < 2; v++)
        for (int64_t i = first; out[v]->data != NULL && i < last; i += VL) {
            int64_t n = last - i < VL ? last - i : VL;
            vf sum = vf_set1(0.0f);
            for (int64_t g = 0; g < groups; g++)
                sum = sum + vf_load_n(call->partial + (2 * g + v) * p->cols + i, n);
            store_vector(out[v], i, sum, n);
        }
}

const struct norm_kernels TSRI_KERNEL_TABLE(norm) = {
    .forward = forward,
    .backward = backward,
    .widen = widen,
    .reduce = reduce,
};
