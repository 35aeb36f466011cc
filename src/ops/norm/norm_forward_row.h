// SPDX-License-Identifier: Apache-2.0
// A row in the norms' forward: its values between the two phases, and the result of each element.
#ifndef TSRI_NORM_FORWARD_ROW_H
#define TSRI_NORM_FORWARD_ROW_H

#include "ops/norm/norm_strips.h"

// y = ((x - mean) rstd - offset) weight + bias, where offset is rstd times the rounding error of the fp32 mean. If the
// mean is within a standard deviation of 0 (is_near), y = (x rstd + offset) weight + bias with offset = -mean rstd,
// whose rounding is that of a number near 1.
struct scaling {
    vf mean, rstd, offset;
    bool is_near;
};

SIMD_INLINE vf scaled(bool is_rmsnorm, vf x, struct scaling s, vf weight, vf bias) {
    if (is_rmsnorm) return x * s.rstd * weight;
    if (s.is_near) return vf_fma(vf_fma(x, s.rstd, s.offset), weight, bias);
    return vf_fma(vf_fma(x - s.mean, s.rstd, s.offset), weight, bias);
}

// A row between the two phases.
struct forward_row {
    const char *s; // the row to normalise
    char *y;
    float mean, rstd, offset;
    bool is_near; // see struct scaling
    bool is_done; // done by norm_forward_wide_row
};

// Stores a row's statistics and prepares its second phase.
SIMD_INLINE struct forward_row forward_row(bool is_rmsnorm, const struct norm_call *call,
                                           int64_t row, const char *s, struct moments m) {
    const struct norm_problem *p = call->problem;
    int64_t cols = p->cols;
    struct forward_row out = {.s = s, .is_done = true};
    double variance_eps = m.m2 / (double)(cols > 0 ? cols : 1) + p->eps;
    if (is_beyond_fp32(variance_eps)) {
        norm_forward_wide_row(call, row, s);
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

#endif
