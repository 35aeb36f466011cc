// SPDX-License-Identifier: Apache-2.0
// Scales of fp8 operands on the CPU. They are applied to operands that have been widened to fp32 and packed, so every
// tiled variant multiplies fp8 like f32.
#include "ops/matmul/matmul_problem.h"

float matmul_scale_at(const struct matmul_matrix *scale, int64_t i, int64_t j) {
    return scale->data != NULL ? *(const float *)(const void *)matmul_at(scale, i, j) : 1;
}

// The number of steps from `step` on, up to `end`, that share one scale.
static int64_t run_of(int64_t step, int64_t end) {
    return tsri_min(MATMUL_SCALE_BLOCK - step % MATMUL_SCALE_BLOCK, end - step);
}

void matmul_scale_a(const struct matmul_matrix *scale, int64_t row, int64_t m, int64_t step,
                    int64_t depth, int64_t mr, float *panels) {
    enum { MOST_ROWS = 16 };
    if (scale->data == NULL) return;
    for (int64_t first = 0; first < m; first += mr)
        for (int64_t at = step, run; at < step + depth; at += run) {
            float factor[MOST_ROWS] = {0};
            run = run_of(at, step + depth);
            for (int64_t r = 0; r < tsri_min(mr, m - first); r++)
                factor[r] = matmul_scale_at(scale, row + first + r, at / MATMUL_SCALE_BLOCK);
            for (int64_t i = 0; i < run; i++, panels += mr)
                for (int64_t r = 0; r < mr; r++) panels[r] *= factor[r];
        }
}

void matmul_scale_b(const struct matmul_matrix *scale, int64_t step, int64_t depth, int64_t col,
                    int64_t nr, float *panel) {
    if (scale->data == NULL) return;
    for (int64_t at = step, run; at < step + depth; at += run) {
        run = run_of(at, step + depth);
        float factor = matmul_scale_at(scale, at / MATMUL_SCALE_BLOCK, col / MATMUL_SCALE_BLOCK);
        for (int64_t i = 0; i < run * nr; i++) panel[i] *= factor;
        panel += run * nr;
    }
}
