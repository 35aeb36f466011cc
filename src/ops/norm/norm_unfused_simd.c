// SPDX-License-Identifier: Apache-2.0
// The baselines of the norms, (rows, cols), compiled once per instruction set. Each kernel is one pass of the chain
// that a framework without fusion runs, with every value in memory between two passes. As accurate as the fused
// kernels.
// Floor: that of norm_forward_simd.c and norm_backward_simd.c.
// Limit: each pass reads and writes the tensor again.
// Figures: docs/kernels/norm.md (unfused).
#include "ops/norm/norm_moments.h"

SIMD_INLINE float sum_of(tsr_dtype dtype, const void *x, int64_t n) {
    vf sum[UNROLL];
    for (int u = 0; u < UNROLL; u++) sum[u] = vf_set1(0.0f);
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        for (int u = 0; u < UNROLL; u += 2) {
            struct vf_pair v = vf_load_pair(dtype, x, i + u * VL);
            sum[u] = sum[u] + v.a;
            sum[u + 1] = sum[u + 1] + v.b;
        }
    for (; i < n; i += PAIR) {
        struct vf_pair v = pair_at(dtype, x, i, n, 0.0f);
        sum[0] = sum[0] + v.a;
        sum[1] = sum[1] + v.b;
    }
    return vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

#define PASS(name)                                                                                 \
    static void name(const struct norm_call *call, int64_t first, int64_t last, int thread) {      \
        (void)thread;                                                                              \
        for (int64_t row = first; row < last; row++) switch (call->problem->dtype) {               \
            case TSR_BF16: name##_row(TSR_BF16, call, row); break;                                 \
            case TSR_F16: name##_row(TSR_F16, call, row); break;                                   \
            default: name##_row(TSR_F32, call, row);                                               \
            }                                                                                      \
    }

// The first n lanes from column i on; n < VL in the tail.
#define FOR_LANES(i, n, cols)                                                                      \
    for (int64_t i = 0, n; n = (cols)-i < VL ? (cols)-i : VL, i < (cols); i += VL)

SIMD_INLINE float *scratch_row(const struct norm_call *call, int which, int64_t row) {
    const struct norm_problem *p = call->problem;
    return (float *)(void *)call->scratch + (which * p->rows + row) * p->cols;
}
// 0: mean (backward: mean of g), 1: rstd (backward: mean of g h), 2: the rounding error of the fp32 mean.
SIMD_INLINE float *statistic(const struct norm_call *call, int which, int64_t row) {
    return call->statistics + which * call->problem->rows + row;
}

// ---- Forward ----------------------------------------------------------------------------------

SIMD_INLINE const void *summed(const struct norm_problem *p, int64_t row) {
    return tsri_row(p->residual.data != NULL ? &p->residual_out : &p->x, row);
}

SIMD_INLINE void add_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    const void *x = tsri_row(&p->x, row), *residual = tsri_row(&p->residual, row);
    void *sum = tsri_row(&p->residual_out, row);
    FOR_LANES(i, n, p->cols)
    vf_store_as_n(dtype, sum, i, vf_load_as_n(dtype, x, i, n) + vf_load_as_n(dtype, residual, i, n),
                  n);
}
PASS(add)

SIMD_INLINE void mean_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    const char *s = p->cols > 0 ? summed(p, row) : NULL;
    double sum = 0;
    for (int64_t i = 0; i < p->cols; i += BLOCK)
        sum += (double)sum_of(dtype, s + i * dtype_bytes(dtype),
                              p->cols - i < BLOCK ? p->cols - i : BLOCK);
    *statistic(call, 0, row) = (float)(sum / (double)(p->cols > 0 ? p->cols : 1));
}
PASS(mean)

SIMD_INLINE void variance_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    const char *s = p->cols > 0 ? summed(p, row) : NULL;
    float mean = p->is_rmsnorm ? 0 : *statistic(call, 0, row);
    struct moments m = {0, 0};
    for (int64_t i = 0; i < p->cols; i += BLOCK) {
        int64_t n = p->cols - i < BLOCK ? p->cols - i : BLOCK;
        const char *block = s + i * dtype_bytes(dtype);
        struct moments b = p->is_rmsnorm ? block_moments(dtype, true, block, n)
                                         : moments_about(dtype, block, n, mean);
        m = i == 0 ? b : merge(m, i, b, n);
    }
    double variance_eps = m.m2 / (double)(p->cols > 0 ? p->cols : 1) + p->eps;
    // A negative rstd makes the last pass call norm_forward_wide_row.
    double rstd = is_beyond_fp32(variance_eps) ? -1 : 1 / sqrt(variance_eps);
    *statistic(call, 0, row) = (float)m.mean;
    *statistic(call, 1, row) = (float)rstd;
    *statistic(call, 2, row) = (float)(((double)(float)m.mean - m.mean) * rstd);
    if (p->mean.data != NULL) ((float *)p->mean.data)[row] = (float)m.mean;
    if (p->rstd.data != NULL) ((float *)p->rstd.data)[row] = (float)rstd;
}
PASS(variance)

SIMD_INLINE void normalise_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    const void *s = summed(p, row);
    float *h = scratch_row(call, 0, row);
    vf mean = vf_set1(*statistic(call, 0, row)), rstd = vf_set1(*statistic(call, 1, row));
    vf offset = vf_set1(*statistic(call, 2, row));
    FOR_LANES(i, n, p->cols)
    vf_store_n(h + i, vf_fma(vf_load_as_n(dtype, s, i, n) - mean, rstd, offset), n);
}
PASS(normalise)

SIMD_INLINE void scale_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (*statistic(call, 1, row) < 0) {
        norm_forward_wide_row(call, row, p->cols > 0 ? summed(p, row) : NULL);
        return;
    }
    if (p->cols == 0) return;
    const float *h = scratch_row(call, 0, row);
    void *y = tsri_row(&p->y, row);
    FOR_LANES(i, n, p->cols) {
        vf bias = p->is_rmsnorm ? vf_set1(0.0f) : vf_load_n(call->bias + i, n);
        vf_store_as_n(dtype, y, i,
                      vf_fma(vf_load_n(h + i, n), vf_load_n(call->weight + i, n), bias), n);
    }
}
PASS(scale)

// ---- Backward ---------------------------------------------------------------------------------

// h = (x/2 - mean/2) (2 rstd), corrected by its own mean if the rounding of mean matters: see norm_backward_row.h.
SIMD_INLINE void centre_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    const void *x = tsri_row(&p->x, row);
    float mean = p->is_rmsnorm ? 0 : ((const float *)p->mean.data)[row];
    vf half_mean = vf_set1(-0.5f * mean), twice = vf_set1(2 * ((const float *)p->rstd.data)[row]);
    float *h = scratch_row(call, 0, row);
    FOR_LANES(i, n, p->cols)
    vf_store_n(h + i, vf_fma(vf_load_as_n(dtype, x, i, n), vf_set1(0.5f), half_mean) * twice, n);
    if (!is_mean_far(mean, ((const float *)p->rstd.data)[row])) return;
    double sum = 0;
    for (int64_t i = 0; i < p->cols; i += BLOCK)
        sum += (double)sum_of(TSR_F32, h + i, p->cols - i < BLOCK ? p->cols - i : BLOCK);
    sum /= (double)p->cols;
    if (!(fabs(sum) < 0x1p100)) return;
    FOR_LANES(i, n, p->cols)
    vf_store_n(h + i, vf_load_n(h + i, n) - vf_set1((float)sum), n);
}
PASS(centre)

SIMD_INLINE void product_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    const void *dy = tsri_row(&p->dy, row);
    float *g = scratch_row(call, 1, row);
    FOR_LANES(i, n, p->cols)
    vf_store_n(g + i, vf_load_as_n(dtype, dy, i, n) * vf_load_n(call->weight + i, n), n);
}
PASS(product)

SIMD_INLINE void sums_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    (void)dtype;
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    const float *h = scratch_row(call, 0, row), *g = scratch_row(call, 1, row);
    double sum_g = 0, sum_gh = 0;
    for (int64_t block = 0; block < p->cols; block += BLOCK) {
        int64_t count = p->cols - block < BLOCK ? p->cols - block : BLOCK;
        vf sum = vf_set1(0.0f);
        FOR_LANES(i, n, count)
        sum = vf_fma(vf_load_n(g + block + i, n), vf_load_n(h + block + i, n), sum);
        sum_gh += (double)vf_hsum(sum);
        if (!p->is_rmsnorm) sum_g += (double)sum_of(TSR_F32, g + block, count);
    }
    *statistic(call, 0, row) = (float)(sum_g / (double)p->cols);
    *statistic(call, 1, row) = (float)(sum_gh / (double)p->cols);
}
PASS(sums)

// The group's sums over rows; the first row of a group initialises them.
SIMD_INLINE void columns_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    int64_t group_rows = norm_group_rows(p), padded = norm_padded_cols(p);
    float *dweight = call->partial + row / group_rows * 2 * padded, *dbias = dweight + padded;
    if (row % group_rows == 0) memset(dweight, 0, 2 * (size_t)padded * sizeof(float));
    const void *dy = tsri_row(&p->dy, row);
    const float *h = scratch_row(call, 0, row);
    FOR_LANES(i, n, p->cols) {
        vf value = vf_load_as_n(dtype, dy, i, n);
        vf_store_n(dweight + i, vf_fma(value, vf_load_n(h + i, n), vf_load_n(dweight + i, n)), n);
        vf_store_n(dbias + i, value + vf_load_n(dbias + i, n), n);
    }
}
PASS(columns)

SIMD_INLINE void combine_row(tsr_dtype dtype, const struct norm_call *call, int64_t row) {
    const struct norm_problem *p = call->problem;
    if (p->cols == 0) return;
    const float *h = scratch_row(call, 0, row), *g = scratch_row(call, 1, row);
    const void *dresidual_out =
        p->dresidual_out.data != NULL ? tsri_row(&p->dresidual_out, row) : NULL;
    void *dx = tsri_row(&p->dx, row);
    vf mean_g = vf_set1(*statistic(call, 0, row)), mean_gh = vf_set1(-*statistic(call, 1, row));
    vf rstd = vf_set1(((const float *)p->rstd.data)[row]);
    FOR_LANES(i, n, p->cols) {
        vf value = vf_fma(vf_load_n(h + i, n), mean_gh, vf_load_n(g + i, n) - mean_g) * rstd;
        if (dresidual_out != NULL) value = value + vf_load_as_n(dtype, dresidual_out, i, n);
        vf_store_as_n(dtype, dx, i, value, n);
    }
}
PASS(combine)

const struct norm_unfused_kernels TSRI_KERNEL_TABLE(norm_unfused) = {
    .add = add,
    .mean = mean,
    .variance = variance,
    .normalise = normalise,
    .scale = scale,
    .centre = centre,
    .product = product,
    .sums = sums,
    .columns = columns,
    .combine = combine,
};
