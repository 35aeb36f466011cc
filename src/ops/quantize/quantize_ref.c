// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/quantize.h in double, block by block.
#include "core/core_activation.h"
#include "core/core_dtype.h"
#include "ops/quantize/quantize_problem.h"

// Infinite beyond the range of fp32.
static double in_range(double x) { return isinf((float)x) ? copysign((double)INFINITY, x) : x; }

static double value_at(const struct quantize_problem *p, int64_t source, int64_t col) {
    double grad, value;
    if (source < 0) return 0;
    value = tsri_activate(p->kind, tsri_load(p->x.dtype, tsri_row(&p->x, source), col), &grad);
    if (!p->is_gated) return in_range(value);
    return in_range(
        in_range(value) *
        tsri_gate(p->kind, tsri_load(p->up.dtype, tsri_row(&p->up, source), col), &grad));
}

static void quantize_block(const struct quantize_problem *p, int64_t row, int64_t block) {
    const int64_t source = quantize_source(p, row), first = block * QUANTIZE_BLOCK;
    const int64_t last = tsri_min(first + QUANTIZE_BLOCK, p->y.cols);
    double most = 1e-10;
    for (int64_t c = first; c < last; c++) {
        const double size = fabs(value_at(p, source, c));
        if (isfinite(size)) most = fmax(most, size);
    }
    const double scale = most / (double)quantize_largest(p->y.dtype);
    for (int64_t c = first; c < last; c++) {
        const double value = value_at(p, source, c);
        tsr_store(p->y.dtype, tsri_row(&p->y, row), c,
                  isfinite(value) ? value / scale : (double)NAN);
    }
    tsr_store(p->y_scale.dtype, tsri_row(&p->y_scale, row), block, scale);
}

tsr_status quantize_reference_run(tsr_context *ctx, const void *problem,
                                  const struct tsri_plan *plan, void *workspace) {
    const struct quantize_problem *p = problem;
    (void)ctx, (void)plan, (void)workspace;
    for (int64_t row = 0; row < p->y.rows; row++)
        for (int64_t block = 0; block < p->y_scale.cols; block++) quantize_block(p, row, block);
    return TSR_OK;
}
