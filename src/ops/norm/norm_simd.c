// SPDX-License-Identifier: Apache-2.0
// Fused norm kernels, compiled once per instruction set. Rows are taken in blocks that stay in the
// second-level cache (norm_block_rows): a first phase reads every row of the block and finds its statistics,
// a second one goes over the block in strips of columns, all rows of a strip, so that weight, bias and the
// running sums of dweight and dbias stay in the first-level cache, and writes. With every line that goes
// past the caches it fetches one of the next block, so that memory reads and writes side by side. Every
// element takes the same operations in whole vectors and in tails, with FMA spelled out, so that a row's
// result does not depend on where it lies.
#include "cpu/simd_pairs.h"
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

// ---- Strips -----------------------------------------------------------------------------------

enum { STRIP = 1024 }; // columns: x, weight and bias of it take 12 KiB

// The two vectors from column i on of a row of the next block, into the second-level cache.
SIMD_INLINE void fetch(tsr_dtype dtype, const char *row, int64_t i) {
    int64_t bytes = dtype_bytes(dtype);
    for (int64_t at = 0; VL > 1 && at < 2 * VL * bytes; at += 64)
        __builtin_prefetch(row + i * bytes + at, 0, 2);
}

// Columns [begin, end) of a row. Streaming stores want whole aligned vectors: strips of a row that starts
// off that alignment are shifted by it, and the first one has a head, [begin, first_whole).
struct strip {
    int64_t begin, first_whole, end;
};

SIMD_INLINE struct strip strip_of(tsr_dtype dtype, const void *out, int64_t begin, int64_t cols,
                                  bool is_streaming) {
    int64_t head = is_streaming ? simd_line_head(dtype, out) : 0;
    struct strip s = {begin == 0 ? 0 : begin + head, begin + head, begin + head + STRIP};
    if (s.begin > cols) s.begin = cols;
    if (s.first_whole > cols) s.first_whole = cols;
    if (s.end > cols) s.end = cols;
    return s;
}

// ---- Forward ----------------------------------------------------------------------------------

// y = ((x - mean) rstd - offset) weight + bias; offset is what the fp32 mean leaves over,
// times rstd.
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

SIMD_INLINE vf scale_at(tsr_dtype dtype, bool is_rmsnorm, const void *x, struct scaling s,
                        const float *weight, const float *bias, int64_t i) {
    vf b = is_rmsnorm ? vf_set1(0.0f) : vf_load(bias + i);
    return scaled(is_rmsnorm, vf_load_as(dtype, x, i), s, vf_load(weight + i), b);
}

// Columns [begin, end).
SIMD_INLINE void scale_strip(tsr_dtype dtype, bool is_rmsnorm, const void *x, struct scaling s,
                             const float *weight, const float *bias, void *y, struct strip strip,
                             const char *next, bool is_streaming) {
    int64_t i = strip.begin;
    if (i < strip.first_whole) {
        int64_t head = strip.first_whole - i;
        scale_n(dtype, is_rmsnorm, x, s, weight, bias, y, i, head < VL ? head : VL);
        if (head > VL) scale_n(dtype, is_rmsnorm, x, s, weight, bias, y, i + VL, head - VL);
        i = strip.first_whole;
    }
    for (; is_streaming && i + 2 * VL <= strip.end; i += 2 * VL) {
        fetch(dtype, next, i);
        vf_stream_two_as(dtype, y, i, scale_at(dtype, is_rmsnorm, x, s, weight, bias, i),
                         scale_at(dtype, is_rmsnorm, x, s, weight, bias, i + VL));
    }
    for (; i + VL <= strip.end; i += VL)
        vf_store_as(dtype, y, i, scale_at(dtype, is_rmsnorm, x, s, weight, bias, i));
    if (i < strip.end) scale_n(dtype, is_rmsnorm, x, s, weight, bias, y, i, strip.end - i);
}

// A row between the two phases.
struct forward_row {
    const char *s; // what is normalised
    char *y;
    float mean, rstd, offset;
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
    out.mean = (float)m.mean;
    out.rstd = (float)rstd;
    out.offset = (float)(((double)out.mean - m.mean) * rstd);
    if (p->mean.data != NULL) ((float *)p->mean.data)[row] = out.mean;
    if (p->rstd.data != NULL) ((float *)p->rstd.data)[row] = out.rstd;
    if (cols == 0) return out;
    out.y = tsri_row(&p->y, row);
    out.is_done = false;
    return out;
}

SIMD_INLINE void forward_as(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                            int64_t first, int64_t last, int thread) {
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
        for (int64_t begin = 0; begin < cols; begin += STRIP)
            for (int64_t r = 0; r < num; r++) {
                const struct forward_row *f = &rows[r];
                if (f->is_done) continue;
                struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset)};
                scale_strip(dtype, is_rmsnorm, f->s, s, call->weight, call->bias, f->y,
                            strip_of(dtype, f->y, begin, cols, call->is_streaming),
                            row + num + r < last ? tsri_row(&call->problem->x, row + num + r)
                                                 : f->s,
                            call->is_streaming);
            }
    }
}
BY_DTYPE(forward)

// ---- Backward ---------------------------------------------------------------------------------

// A row between the two phases.
struct backward_row {
    const char *x, *dy, *dresidual_out;
    char *dx;
    float mean, rstd;
    float mean_g, mean_gh; // over the columns
    bool is_careful;
};

// x - mean, to be multiplied by rstd. Where that product is of a usual size, so are its factors. Elsewhere
// (is_careful) h comes first, as (x/2 - mean/2) (2 rstd): the difference of two finite halves is finite,
// and the factors 2 are exact.
SIMD_INLINE vf centred(bool is_rmsnorm, bool is_careful, vf x, vf mean, vf rstd) {
    if (is_careful && is_rmsnorm) return x * rstd;
    if (is_rmsnorm) return x;
    if (is_careful) return vf_fma(x, vf_set1(0.5f), mean * vf_set1(-0.5f)) * (rstd + rstd);
    return x - mean;
}

SIMD_INLINE void row_sums(tsr_dtype dtype, bool is_rmsnorm, bool is_careful, const float *weight,
                          int64_t cols, struct backward_row *row) {
    vf mean = vf_set1(row->mean), rstd = vf_set1(row->rstd), sum_g[UNROLL], sum_gc[UNROLL];
    const char *x = row->x, *dy = row->dy;
    double total_g = 0, total_gc = 0;
    for (int64_t block = 0; block < cols; block += BLOCK) {
        int64_t end = cols - block < BLOCK ? cols : block + BLOCK, i = block;
        for (int u = 0; u < UNROLL; u++) sum_g[u] = sum_gc[u] = vf_set1(0.0f);
        for (; i + UNROLL * VL <= end; i += UNROLL * VL)
            for (int u = 0; u < UNROLL; u++) {
                int64_t at = i + u * VL;
                vf c = centred(is_rmsnorm, is_careful, vf_load_as(dtype, x, at), mean, rstd);
                vf g = vf_load_as(dtype, dy, at) * vf_load(weight + at);
                if (!is_rmsnorm) sum_g[u] = sum_g[u] + g;
                sum_gc[u] = vf_fma(g, c, sum_gc[u]);
            }
        for (; i < end; i += VL) {
            int64_t n = end - i < VL ? end - i : VL;
            vf c = centred(is_rmsnorm, is_careful, vf_load_as_n(dtype, x, i, n), mean, rstd);
            vf g = vf_load_as_n(dtype, dy, i, n) * vf_load_n(weight + i, n);
            if (!is_rmsnorm) sum_g[0] = sum_g[0] + g;
            sum_gc[0] = vf_fma(g, vf_keep_n(c, n, 0.0f), sum_gc[0]);
        }
        total_g += (double)vf_hsum((sum_g[0] + sum_g[1]) + (sum_g[2] + sum_g[3]));
        total_gc += (double)vf_hsum((sum_gc[0] + sum_gc[1]) + (sum_gc[2] + sum_gc[3]));
    }
    row->mean_g = (float)(total_g / (double)cols);
    row->mean_gh = (float)(total_gc / (double)cols * (is_careful ? 1 : (double)row->rstd));
}

// Columns from i on, n of them: VL, with whole loads and stores, or less. dweight and dbias are the group's
// running sums, NULL where they are not wanted. Returns dx.
SIMD_INLINE vf combine_at(tsr_dtype dtype, bool is_rmsnorm, bool is_careful,
                          const struct backward_row *row, const float *weight, float *dweight,
                          float *dbias, int64_t i, int64_t n) {
    bool is_whole = n == VL;
    vf w = is_whole ? vf_load(weight + i) : vf_load_n(weight + i, n);
    vf x = is_whole ? vf_load_as(dtype, row->x, i) : vf_load_as_n(dtype, row->x, i, n);
    vf dy = is_whole ? vf_load_as(dtype, row->dy, i) : vf_load_as_n(dtype, row->dy, i, n);
    vf rstd = vf_set1(row->rstd);
    vf h = centred(is_rmsnorm, is_careful, x, vf_set1(row->mean), rstd);
    if (!is_careful) h = h * rstd;
    vf dx = vf_fma(dy, w, vf_set1(0.0f - row->mean_g));
    dx = vf_fma(h, vf_set1(0.0f - row->mean_gh), dx);
    if (row->dresidual_out != NULL) {
        vf dresidual_out = is_whole ? vf_load_as(dtype, row->dresidual_out, i)
                                    : vf_load_as_n(dtype, row->dresidual_out, i, n);
        dx = vf_fma(dx, rstd, dresidual_out);
    } else {
        dx = dx * rstd;
    }
    if (dweight == NULL) return dx;
    if (is_whole)
        vf_store(dweight + i, vf_fma(dy, h, vf_load(dweight + i)));
    else
        vf_store_n(dweight + i, vf_fma(dy, h, vf_load_n(dweight + i, n)), n);
    if (is_rmsnorm) return dx;
    if (is_whole)
        vf_store(dbias + i, dy + vf_load(dbias + i));
    else
        vf_store_n(dbias + i, dy + vf_load_n(dbias + i, n), n);
    return dx;
}

// row by value: its fields stay in registers beside the stores.
SIMD_INLINE void combine_strip(tsr_dtype dtype, bool is_rmsnorm, bool is_careful,
                               struct backward_row row, const float *weight, float *dweight,
                               float *dbias, struct strip strip, const char *next_x,
                               const char *next_dy, bool is_streaming) {
#define DX(i, n) combine_at(dtype, is_rmsnorm, is_careful, &row, weight, dweight, dbias, i, n)
    int64_t i = strip.begin, head = strip.first_whole - i;
    if (head > 0) {
        vf_store_as_n(dtype, row.dx, i, DX(i, head < VL ? head : VL), head < VL ? head : VL);
        if (head > VL) vf_store_as_n(dtype, row.dx, i + VL, DX(i + VL, head - VL), head - VL);
        i = strip.first_whole;
    }
    for (; is_streaming && i + 2 * VL <= strip.end; i += 2 * VL) {
        fetch(dtype, next_x, i);
        fetch(dtype, next_dy, i);
        vf a = DX(i, VL), b = DX(i + VL, VL);
        vf_stream_two_as(dtype, row.dx, i, a, b);
    }
    for (; i + VL <= strip.end; i += VL) vf_store_as(dtype, row.dx, i, DX(i, VL));
    if (i < strip.end) vf_store_as_n(dtype, row.dx, i, DX(i, strip.end - i), strip.end - i);
#undef DX
}

SIMD_INLINE struct backward_row backward_row(const struct norm_problem *p, bool is_rmsnorm,
                                             int64_t r) {
    float rstd = ((const float *)p->rstd.data)[r];
    return (struct backward_row){
        .x = tsri_row(&p->x, r),
        .dy = tsri_row(&p->dy, r),
        .dresidual_out = p->dresidual_out.data != NULL ? tsri_row(&p->dresidual_out, r) : NULL,
        .dx = tsri_row(&p->dx, r),
        .mean = is_rmsnorm ? 0 : ((const float *)p->mean.data)[r],
        .rstd = rstd,
        .is_careful = !(rstd >= 0x1p-30f && rstd <= 0x1p30f),
    };
}

SIMD_INLINE void backward_as(tsr_dtype dtype, bool is_rmsnorm, const struct norm_call *call,
                             int64_t first, int64_t last, int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, block = norm_block_rows(p);
    bool streams = call->is_streaming;
    const float *weight = call->weight;
    float *dweight = NULL, *dbias = NULL;
    if (cols == 0) return;
    if (p->dweight.data != NULL || p->dbias.data != NULL) {
        dweight = call->partial + first / norm_group_rows(p->rows) * 2 * cols;
        dbias = dweight + cols;
        memset(dweight, 0, (size_t)(is_rmsnorm ? cols : 2 * cols) * sizeof(float));
    }
    struct backward_row rows[NORM_MAX_BLOCK_ROWS];
    for (int64_t row = first; row < last; row += block) {
        int64_t num = last - row < block ? last - row : block;
        for (int64_t r = 0; r < num; r++) {
            rows[r] = backward_row(p, is_rmsnorm, row + r);
            if (rows[r].is_careful)
                row_sums(dtype, is_rmsnorm, true, weight, cols, &rows[r]);
            else
                row_sums(dtype, is_rmsnorm, false, weight, cols, &rows[r]);
        }
        for (int64_t begin = 0; begin < cols; begin += STRIP)
            for (int64_t r = 0; r < num; r++) {
                struct strip s = strip_of(dtype, rows[r].dx, begin, cols, streams);
                int64_t next = row + num + r < last ? row + num + r : row + r;
                const char *next_x = tsri_row(&p->x, next), *next_dy = tsri_row(&p->dy, next);
                if (rows[r].is_careful)
                    combine_strip(dtype, is_rmsnorm, true, rows[r], weight, dweight, dbias, s,
                                  next_x, next_dy, streams);
                else
                    combine_strip(dtype, is_rmsnorm, false, rows[r], weight, dweight, dbias, s,
                                  next_x, next_dy, streams);
            }
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
