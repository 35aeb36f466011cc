// SPDX-License-Identifier: Apache-2.0
// A row in the norms' backward: its values between the two phases, and the gradient of each element.
#ifndef TSRI_NORM_BACKWARD_ROW_H
#define TSRI_NORM_BACKWARD_ROW_H

#include "ops/norm/norm_strips.h"

// A row between the two phases.
struct backward_row {
    const char *x, *dy, *dresidual_out;
    char *dx;
    float mean, rstd;
    float mean_g, mean_gh; // means over the columns
    float c_scale, offset; // dx = dy rstd weight + (x - mean) c_scale + offset
    float mean_h;          // is_careful: rounding error of the mean, as part of h
    bool is_careful;
};

SIMD_INLINE bool is_plain(const struct backward_row *row) {
    return !row->is_careful && row->dresidual_out == NULL;
}

// x - mean, which is later multiplied by rstd; with products of usual size, that is safe. Otherwise (is_careful), h is
// computed first, as (x/2 - mean/2) (2 rstd): the difference of two finite halves is finite, and the factors 2 are
// exact.
SIMD_INLINE vf centred(bool is_rmsnorm, bool is_careful, vf x, vf mean, vf rstd) {
    if (is_careful && is_rmsnorm) return x * rstd;
    if (is_rmsnorm) return x;
    if (is_careful) return vf_fma(x, vf_set1(0.5f), mean * vf_set1(-0.5f)) * (rstd + rstd);
    return x - mean;
}

// Corrects a careful row for the rounding of mean: the mean of h is subtracted from h, and so from each sum.
SIMD_INLINE void take_mean_h(double total_h, double total_g, int64_t cols, double *total_gh,
                             struct backward_row *row) {
    double mean_h = total_h / (double)cols;
    if (!(fabs(mean_h) < 0x1p100)) return; // x is not finite
    row->mean_h = (float)mean_h;
    *total_gh -= (double)row->mean_h * total_g;
}

// Computes the row's values for dx from the sums of g and of g c, and the largest |dy|.
SIMD_INLINE void finish_sums(double total_g, double total_gc, int64_t cols, bool is_careful,
                             float most, struct backward_row *row) {
    row->mean_g = (float)(total_g / (double)cols);
    row->mean_gh = (float)(total_gc / (double)cols * (is_careful ? 1 : (double)row->rstd));
    row->c_scale = 0 - row->rstd * row->rstd * row->mean_gh;
    row->offset = 0 - row->rstd * row->mean_g;
    // If one of these products leaves the usual range, so would products of single elements.
    row->is_careful = is_careful || !(fabsf(row->c_scale) <= 0x1p100f) ||
                      (row->mean_gh != 0 && fabsf(row->c_scale) < 0x1p-80f) ||
                      !(most * row->rstd <= 0x1p100f);
}

// dx = rstd (g - mean_g - h mean_gh), and dweight's share dy h, computed as (dy rstd) (x - mean), because both need dy
// rstd.
struct gradient {
    vf dx, weight;
};
SIMD_INLINE struct gradient gradient_of(bool is_rmsnorm, bool is_careful,
                                        const struct backward_row *row, vf x, vf dy, vf w, vf sum) {
    vf rstd = vf_set1(row->rstd), c = centred(is_rmsnorm, is_careful, x, vf_set1(row->mean), rstd);
    if (is_careful) { // c is h here
        if (!is_rmsnorm) c = c - vf_set1(row->mean_h);
        vf g = dy * w;
        if (!is_rmsnorm) g = vf_fma(dy, w, vf_set1(0.0f - row->mean_g));
        return (struct gradient){vf_fma(c, vf_set1(0.0f - row->mean_gh), g) * rstd,
                                 vf_fma(dy, c, sum)};
    }
    vf scaled_dy = dy * rstd, c_part = c * vf_set1(row->c_scale);
    if (!is_rmsnorm) c_part = vf_fma(c, vf_set1(row->c_scale), vf_set1(row->offset));
    return (struct gradient){vf_fma(scaled_dy, w, c_part), vf_fma(scaled_dy, c, sum)};
}

// Replaces a NaN by one with a zero low half (vf_store_pair).
static float clean(float x) { return x == x ? x : __builtin_nanf(""); }

SIMD_INLINE struct backward_row backward_row(const struct norm_problem *p, bool is_rmsnorm,
                                             int64_t r) {
    float rstd = clean(((const float *)p->rstd.data)[r]);
    float mean = is_rmsnorm ? 0 : clean(((const float *)p->mean.data)[r]);
    return (struct backward_row){
        .x = tsri_row(&p->x, r),
        .dy = tsri_row(&p->dy, r),
        .dresidual_out = p->dresidual_out.data != NULL ? tsri_row(&p->dresidual_out, r) : NULL,
        .dx = tsri_row(&p->dx, r),
        .mean = mean,
        .rstd = rstd,
        .is_careful = !(rstd >= 0x1p-12f && rstd <= 0x1p20f) || is_mean_far(mean, rstd),
    };
}

// The running sums of dweight, then of dbias, for the group that starts with this row; NULL if nobody wants them.
SIMD_INLINE float *cleared_sums(bool is_rmsnorm, const struct norm_call *call, int64_t first) {
    const struct norm_problem *p = call->problem;
    int64_t padded = norm_padded_cols(p);
    if (p->dweight.data == NULL && p->dbias.data == NULL) return NULL;
    float *sums = call->partial + first / norm_group_rows(p) * 2 * padded;
    memset(sums, 0, (size_t)(is_rmsnorm ? padded : 2 * padded) * sizeof(float));
    return sums;
}

#endif
