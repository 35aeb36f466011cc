// SPDX-License-Identifier: Apache-2.0
// Rows with an lse too large for the digits of one f32: their scores are summed again, one block of keys at a time, as in forward.
// The sums are over the same scores as the gradients, so a row's weights sum to 1.
#include "ops/attention/attention_lse_params.h"
#include "ops/attention/cpu/backward/attention_grad.h"
#include "ops/attention/cpu/backward/attention_grad_mixed.h"

#include <math.h>

bool attention_grad_is_coarse(const struct attention_problem *p, float lse) {
    return fabsf(lse) >= ATTENTION_LEAST_COARSE(p->dtype == TSR_F32) && isfinite(lse);
}

bool attention_grad_start_sums(const struct attention_tile *t,
                               const struct attention_statistics *stats,
                               struct attention_grad_sum *sums) {
    const struct attention_problem *p = t->p;
    bool has_coarse = false;
    for (int64_t r = 0; r < t->num_rows; r++) {
        float sink = (float)attention_sink_at(p, t->batch, t->row[r].head);
        sums[r] = (struct attention_grad_sum){sink, sink == -INFINITY ? 0 : 1};
        has_coarse |= attention_grad_is_coarse(p, stats[r].lse);
    }
    return has_coarse;
}

void attention_grad_sum_scores(const struct attention_tile *t, int64_t r, int64_t first, int64_t n,
                               float *s, struct attention_grad_sum *sum) {
    struct attention_terms terms = attention_row_terms(t, r);
    t->kernels->modify(&terms, first, n, s, NULL);
    float max = fmaxf(sum->max, t->kernels->max(s, n));
    if (max == -INFINITY) return;
    float added = t->kernels->weigh(s, n, max, 0);
    sum->sum = sum->sum * exp((double)sum->max - (double)max) + (double)added;
    sum->max = max;
}

void attention_grad_finish_sums(const struct attention_problem *p, int64_t num_rows,
                                const struct attention_grad_sum *sums,
                                struct attention_statistics *stats) {
    for (int64_t r = 0; r < num_rows; r++) {
        double lse = (double)stats[r].lse, low = log(sums[r].sum);
        if (!attention_grad_is_coarse(p, stats[r].lse)) continue;
        if (!(fabs((double)sums[r].max - lse + low) <= (double)ATTENTION_LSE_ROUNDING * fabs(lse)))
            continue;
        stats[r].lse = sums[r].max;
        stats[r].lse_low = (float)low;
    }
}

void attention_grad_sum_block(struct attention_grad *g, int64_t batch, int64_t kv_head,
                              int64_t first, int64_t num_rows,
                              const struct attention_statistics *stats,
                              struct attention_grad_sum *sums) {
    struct attention_tile *t = &g->tile;
    attention_tile_open(t, batch, kv_head, first, num_rows);
    if (t->seen.begin >= g->block.first + g->block.num_keys || t->seen.end <= g->block.first)
        return;
    attention_tile_load_q(t);
    attention_tile_scores(t, &g->block);
    for (int64_t r = 0; r < num_rows; r++) {
        struct attention_range part = attention_row_part(&t->row[r], &g->block);
        if (part.begin >= part.end || !attention_grad_is_coarse(t->p, stats[r].lse)) continue;
        attention_grad_sum_scores(t, r, g->block.first + part.begin, part.end - part.begin,
                                  t->s + r * t->s_stride + part.begin, &sums[r]);
    }
}
