// SPDX-License-Identifier: Apache-2.0
// Fused norm kernels, compiled once per instruction set. Rows are taken in blocks that stay in the
// second-level cache (norm_block_rows): a first phase reads every row of the block and finds its statistics,
// a second one goes over the block in strips of columns, all rows of a strip, so that weight, bias and the
// running sums of dweight and dbias stay in the first-level cache, and writes. With every line that goes
// past the caches it fetches one of the next block, so that memory reads and writes side by side. Every
// element takes the same operations in whole vectors and in tails, with FMA spelled out, so that a row's
// result does not depend on where it lies.
#include "ops/norm/norm_strips.h"

// One instantiation for each dtype and norm, and for where weight and bias are split, with all three
// constants inside.
#define AS(name, dtype, is_split)                                                                  \
    do {                                                                                           \
        if (call->problem->is_rmsnorm)                                                             \
            name##_as(dtype, true, is_split, call, first, last, thread);                           \
        else                                                                                       \
            name##_as(dtype, false, is_split, call, first, last, thread);                          \
    } while (0)
#define BY_DTYPE(name)                                                                             \
    static void name(const struct norm_call *call, int64_t first, int64_t last, int thread) {      \
        switch (call->problem->dtype) {                                                            \
        case TSR_BF16:                                                                             \
            if (vf_is_split(TSR_BF16) && call->is_split)                                           \
                AS(name, TSR_BF16, true);                                                          \
            else                                                                                   \
                AS(name, TSR_BF16, false);                                                         \
            break;                                                                                 \
        case TSR_F16: AS(name, TSR_F16, false); break;                                             \
        default: AS(name, TSR_F32, false);                                                         \
        }                                                                                          \
        if (call->is_streaming) vf_stream_fence();                                                 \
    }

// ---- Forward ----------------------------------------------------------------------------------

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
                             struct strip strip, const char *next) {
#define VALUE(i, n) scale_at(dtype, is_rmsnorm, is_split, x, s, weight, bias, i, n)
#define FETCH(i) fetch(dtype, next, i)
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
        for (int64_t begin = 0; begin < cols; begin += STRIP)
            for (int64_t r = 0; r < num; r++) {
                const struct forward_row *f = &rows[r];
                if (f->is_done) continue;
                struct strip strip = strip_of(dtype, f->y, begin, cols, call->is_streaming);
                const char *next =
                    row + num + r < last ? tsri_row(&call->problem->x, row + num + r) : f->s;
                struct scaling s = {vf_set1(f->mean), vf_set1(f->rstd), vf_set1(f->offset), true};
                if (is_rmsnorm || f->is_near) {
                    scale_strip(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias,
                                f->y, strip, next);
                } else {
                    s.is_near = false;
                    scale_strip(dtype, is_rmsnorm, is_split, f->s, s, call->weight, call->bias,
                                f->y, strip, next);
                }
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

SIMD_INLINE void row_sums(tsr_dtype dtype, bool is_rmsnorm, bool is_split, bool is_careful,
                          const float *weight, int64_t cols, struct backward_row *row) {
    vf mean = vf_set1(row->mean), rstd = vf_set1(row->rstd), sum_g[UNROLL], sum_gc[UNROLL];
    const char *x = row->x, *dy = row->dy;
    double total_g = 0, total_gc = 0;
    for (int64_t block = 0; block < cols; block += BLOCK) {
        int64_t end = cols - block < BLOCK ? cols : block + BLOCK, i = block;
        for (int u = 0; u < UNROLL; u++) sum_g[u] = sum_gc[u] = vf_set1(0.0f);
#define ADD(at, n, u, v)                                                                           \
    do {                                                                                           \
        struct vf_pair x_ = load_row(dtype, x, at, n), dy_ = load_row(dtype, dy, at, n);           \
        struct vf_pair w_ = load_vector(dtype, is_split, weight, at, n);                           \
        vf c_a = centred(is_rmsnorm, is_careful, x_.a, mean, rstd), g_a = dy_.a * w_.a;            \
        vf c_b = centred(is_rmsnorm, is_careful, x_.b, mean, rstd), g_b = dy_.b * w_.b;            \
        if (!is_rmsnorm) sum_g[u] = sum_g[u] + g_a, sum_g[v] = sum_g[v] + g_b;                     \
        if ((n) < PAIR) keep_row(dtype, n, &c_a, &c_b);                                            \
        sum_gc[u] = vf_fma(g_a, c_a, sum_gc[u]);                                                   \
        sum_gc[v] = vf_fma(g_b, c_b, sum_gc[v]);                                                   \
    } while (0)
        for (; i + UNROLL * VL <= end; i += UNROLL * VL) {
            ADD(i, PAIR, 0, 1);
            ADD(i + PAIR, PAIR, 2, 3);
        }
        for (; i + PAIR <= end; i += PAIR) ADD(i, PAIR, 0, 1);
        if (i < end) ADD(i, end - i, 0, 1);
#undef ADD
        total_g += (double)vf_hsum((sum_g[0] + sum_g[1]) + (sum_g[2] + sum_g[3]));
        total_gc += (double)vf_hsum((sum_gc[0] + sum_gc[1]) + (sum_gc[2] + sum_gc[3]));
    }
    row->mean_g = (float)(total_g / (double)cols);
    row->mean_gh = (float)(total_gc / (double)cols * (is_careful ? 1 : (double)row->rstd));
}

// dx before its factor rstd, and h.
SIMD_INLINE vf dx_of(bool is_rmsnorm, bool is_careful, const struct backward_row *row, vf x, vf dy,
                     vf w, vf *h_out) {
    vf rstd = vf_set1(row->rstd);
    vf h = centred(is_rmsnorm, is_careful, x, vf_set1(row->mean), rstd);
    if (!is_careful) h = h * rstd;
    *h_out = h;
    vf dx = dy * w;
    if (!is_rmsnorm) dx = vf_fma(dy, w, vf_set1(0.0f - row->mean_g));
    return vf_fma(h, vf_set1(0.0f - row->mean_gh), dx);
}

// Columns from i on, n of them: PAIR, with whole loads and stores, or less. dweight and dbias are the group's
// running sums, NULL where they are not wanted. Returns dx.
SIMD_INLINE struct vf_pair combine_at(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                                      bool is_careful, const struct backward_row *row,
                                      const float *weight, float *dweight, float *dbias, int64_t i,
                                      int64_t n) {
    vf rstd = vf_set1(row->rstd);
    struct vf_pair x = load_row(dtype, row->x, i, n), dy = load_row(dtype, row->dy, i, n);
    struct vf_pair w = load_vector(dtype, is_split, weight, i, n), h, dx;
    dx.a = dx_of(is_rmsnorm, is_careful, row, x.a, dy.a, w.a, &h.a);
    dx.b = dx_of(is_rmsnorm, is_careful, row, x.b, dy.b, w.b, &h.b);
    if (row->dresidual_out != NULL) {
        struct vf_pair more = load_row(dtype, row->dresidual_out, i, n);
        dx.a = vf_fma(dx.a, rstd, more.a), dx.b = vf_fma(dx.b, rstd, more.b);
    } else {
        dx.a = dx.a * rstd, dx.b = dx.b * rstd;
    }
    if (dweight == NULL) return dx;
    struct vf_pair sum = load_sums(dtype, dweight, i, n);
    sum.a = vf_fma(dy.a, h.a, sum.a), sum.b = vf_fma(dy.b, h.b, sum.b);
    store_sums(dtype, dweight, i, sum, n);
    if (is_rmsnorm) return dx;
    sum = load_sums(dtype, dbias, i, n);
    sum.a = dy.a + sum.a, sum.b = dy.b + sum.b;
    store_sums(dtype, dbias, i, sum, n);
    return dx;
}

// row by value: its fields stay in registers beside the stores.
SIMD_INLINE void combine_strip(tsr_dtype dtype, bool is_rmsnorm, bool is_split, bool is_careful,
                               struct backward_row row, const float *weight, float *dweight,
                               float *dbias, struct strip strip, const char *next_x,
                               const char *next_dy) {
#define VALUE(i, n)                                                                                \
    combine_at(dtype, is_rmsnorm, is_split, is_careful, &row, weight, dweight, dbias, i, n)
#define FETCH(i) (fetch(dtype, next_x, i), fetch(dtype, next_dy, i))
    FOR_STRIP(dtype, strip, row.dx, VALUE, FETCH);
#undef VALUE
#undef FETCH
}

// Without the low half of a NaN (vf_store_pair).
static float clean(float x) { return x == x ? x : __builtin_nanf(""); }

SIMD_INLINE struct backward_row backward_row(const struct norm_problem *p, bool is_rmsnorm,
                                             int64_t r) {
    float rstd = clean(((const float *)p->rstd.data)[r]);
    return (struct backward_row){
        .x = tsri_row(&p->x, r),
        .dy = tsri_row(&p->dy, r),
        .dresidual_out = p->dresidual_out.data != NULL ? tsri_row(&p->dresidual_out, r) : NULL,
        .dx = tsri_row(&p->dx, r),
        .mean = is_rmsnorm ? 0 : clean(((const float *)p->mean.data)[r]),
        .rstd = rstd,
        .is_careful = !(rstd >= 0x1p-30f && rstd <= 0x1p30f),
    };
}

SIMD_INLINE void backward_as(tsr_dtype dtype, bool is_rmsnorm, bool is_split,
                             const struct norm_call *call, int64_t first, int64_t last,
                             int thread) {
    (void)thread;
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols, padded = norm_padded_cols(p), block = norm_block_rows(p);
    bool streams = call->is_streaming;
    const float *weight = call->weight;
    float *dweight = NULL, *dbias = NULL;
    if (cols == 0) return;
    if (p->dweight.data != NULL || p->dbias.data != NULL) {
        dweight = call->partial + first / norm_group_rows(p->rows) * 2 * padded;
        dbias = dweight + padded;
        memset(dweight, 0, (size_t)(is_rmsnorm ? padded : 2 * padded) * sizeof(float));
    }
    struct backward_row rows[NORM_MAX_BLOCK_ROWS];
    for (int64_t row = first; row < last; row += block) {
        int64_t num = last - row < block ? last - row : block;
        for (int64_t r = 0; r < num; r++) {
            rows[r] = backward_row(p, is_rmsnorm, row + r);
            if (rows[r].is_careful)
                row_sums(dtype, is_rmsnorm, is_split, true, weight, cols, &rows[r]);
            else
                row_sums(dtype, is_rmsnorm, is_split, false, weight, cols, &rows[r]);
        }
        // A column's sums take the rows in order: where strips are shifted, by another width in each row, a row goes whole.
        bool is_shifted = false;
        for (int64_t r = 0; streams && !vf_is_split(dtype) && r < num; r++)
            is_shifted = is_shifted || simd_line_head(dtype, rows[r].dx) > 0;
        int64_t together = is_shifted ? 1 : num;
        for (int64_t from = 0; from < num; from += together)
            for (int64_t begin = 0; begin < cols; begin += STRIP)
                for (int64_t r = from; r < from + together; r++) {
                    struct strip s = strip_of(dtype, rows[r].dx, begin, cols, streams);
                    int64_t next = row + num + r < last ? row + num + r : row + r;
                    const char *next_x = tsri_row(&p->x, next), *next_dy = tsri_row(&p->dy, next);
                    if (rows[r].is_careful)
                        combine_strip(dtype, is_rmsnorm, is_split, true, rows[r], weight, dweight,
                                      dbias, s, next_x, next_dy);
                    else
                        combine_strip(dtype, is_rmsnorm, is_split, false, rows[r], weight, dweight,
                                      dbias, s, next_x, next_dy);
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

#if defined(SIMD_HAS_PAIRS)
SIMD_INLINE void split_as(tsr_dtype dtype, const void *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += PAIR) {
        struct vf_pair v = pair_at(dtype, from, i, n, 0.0f);
        vf_store_pair(TSR_F32, to, i, vf_is_split(dtype) ? v : vf_split(v));
    }
}
static void split(tsr_dtype dtype, const void *from, float *to, int64_t n) {
    switch (dtype) {
    case TSR_BF16: split_as(TSR_BF16, from, to, n); break;
    case TSR_F16: split_as(TSR_F16, from, to, n); break;
    default: split_as(TSR_F32, from, to, n);
    }
}
#endif

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
    int64_t groups = tsri_ceil_div(p->rows, norm_group_rows(p->rows)), padded = norm_padded_cols(p);
    const struct norm_vector *out[2] = {&p->dweight, &p->dbias};
    for (int v = 0; v < 2; v++)
        for (int64_t i = first; out[v]->data != NULL && i < last; i += PAIR) {
            int64_t n = last - i < PAIR ? last - i : PAIR;
            struct vf_pair sum = {vf_set1(0.0f), vf_set1(0.0f)};
            for (int64_t g = 0; g < groups; g++) {
                const float *of_group = call->partial + (2 * g + v) * padded;
                struct vf_pair s = vf_load_pair(TSR_F32, of_group, i);
                sum.a = sum.a + s.a, sum.b = sum.b + s.b;
            }
            if (call->is_partial_split) sum = vf_join(sum);
            store_vector(out[v], i, sum.a, n < VL ? n : VL);
            if (n > VL) store_vector(out[v], i + VL, sum.b, n - VL);
        }
}

const struct norm_kernels TSRI_KERNEL_TABLE(norm) = {
    .forward = forward,
    .backward = backward,
    .widen = widen,
#if defined(SIMD_HAS_PAIRS)
    .split = split,
#endif
    .reduce = reduce,
};
