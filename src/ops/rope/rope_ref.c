// SPDX-License-Identifier: Apache-2.0
// The oracle: the definitions of tessera/rope.h in double, element by element.
#include <math.h>

#include "core/core_dtype.h"
#include "ops/rope/rope_problem.h"

tsr_status rope_reference_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                              void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct rope_problem *p = problem;
    int64_t half = p->rotary_dim / 2;
    for (int64_t t = 0; t < p->tokens; t++) {
        int64_t b = t / p->seqlen, s = t % p->seqlen, position = rope_position(p, b, s);
        const void *cos_row = tsri_row(&p->cos, position), *sin_row = tsri_row(&p->sin, position);
        for (int64_t h = 0; h < p->num_heads; h++) {
            const void *x = rope_head(p, &p->x, b, s, h);
            void *y = rope_head(p, &p->y, b, s, h);
            for (int64_t i = 0; i < half; i++) {
                int64_t first = p->is_interleaved ? 2 * i : i;
                int64_t second = p->is_interleaved ? 2 * i + 1 : i + half;
                double cosine = tsri_load(p->cos.dtype, cos_row, i);
                double sine = tsri_load(p->sin.dtype, sin_row, i);
                double left = tsri_load(p->dtype, x, first), right = tsri_load(p->dtype, x, second);
                if (p->is_backward) sine = -sine;
                tsr_store(p->dtype, y, first, left * cosine - right * sine);
                tsr_store(p->dtype, y, second, right * cosine + left * sine);
            }
            for (int64_t i = p->rotary_dim; i < p->head_dim; i++)
                tsr_store(p->dtype, y, i, tsri_load(p->dtype, x, i));
        }
    }
    return TSR_OK;
}

tsr_status rope_table_reference_run(tsr_context *ctx, const void *problem,
                                    const struct tsri_plan *plan, void *workspace) {
    (void)ctx, (void)plan, (void)workspace;
    const struct rope_table_problem *p = problem;
    for (int64_t i = 0; i < p->cos.cols; i++) {
        double frequency = rope_frequency(p, i);
        for (int64_t position = 0; position < p->cos.rows; position++) {
            double angle = (double)position * frequency;
            tsr_store(p->cos.dtype, tsri_row(&p->cos, position), i,
                      p->attention_factor * cos(angle));
            tsr_store(p->sin.dtype, tsri_row(&p->sin, position), i,
                      p->attention_factor * sin(angle));
        }
    }
    return TSR_OK;
}
