// SPDX-License-Identifier: Apache-2.0
// Turns scores into weights, in fp32. If nothing comes between the products and the exponentials, a vector of rows goes at a time.
// Then a row's own work (its maximum and sum over lanes, the factor of earlier results) is done in vectors too.
#include <math.h>
#include <string.h>

#include "ops/attention/cpu/attention_tile.h"

static const float log2e = 1.44269504089f;

struct attention_terms attention_row_terms(const struct attention_tile *t, int64_t r) {
    const struct attention_problem *p = t->p;
    const struct attention_row *row = &t->row[r];
    struct attention_terms terms = {.softcap = (float)p->softcap,
                                    .diagonal = row->i + t->seq.shift};
    if (p->bias.data != NULL) {
        terms.bias = attention_bias_at(&p->bias, t->batch, row->head, row->i, 0);
        terms.bias_dtype = p->bias.dtype;
        terms.bias_stride = p->bias.stride[3];
    }
    if (p->slopes.data != NULL)
        terms.slope = (float)attention_per_head_at(&p->slopes, t->batch, row->head);
    return terms;
}

struct attention_dropout attention_row_dropout(const struct attention_tile *t, int64_t r) {
    const struct attention_problem *p = t->p;
    return (struct attention_dropout){.seed = p->seed,
                                      .offset = p->offset,
                                      .threshold = p->dropout_threshold,
                                      .i = (uint32_t)t->row[r].i,
                                      .head = (uint32_t)t->row[r].head,
                                      .batch = (uint32_t)t->batch,
                                      .scale = (float)(1 / (1 - p->dropout_p))};
}

static void modify_row(const struct attention_tile *t, const struct attention_block *b, int64_t r) {
    struct attention_range part = attention_row_part(&t->row[r], b);
    if (part.begin >= part.end) return;
    struct attention_terms terms = attention_row_terms(t, r);
    t->kernels->modify(&terms, b->first + part.begin, part.end - part.begin,
                       t->s + r * t->s_stride + part.begin, NULL);
}

static void drop_row(const struct attention_tile *t, const struct attention_block *b, int64_t r) {
    struct attention_range part = attention_row_part(&t->row[r], b);
    if (part.begin >= part.end) return;
    struct attention_dropout dropout = attention_row_dropout(t, r);
    t->kernels->drop(&dropout, b->first + part.begin, part.end - part.begin,
                     t->s + r * t->s_stride + part.begin);
}

static void softmax_row(struct attention_tile *t, const struct attention_block *b, int64_t r) {
    const struct attention_kernels *kernels = t->kernels;
    struct attention_range part = attention_row_part(&t->row[r], b);
    int64_t begin = part.begin, n = part.end - begin;
    t->alpha[r] = 1;
    if (n <= 0) return;
    float *s = t->s + r * t->s_stride + begin;
    float max = fmaxf(t->max[r], kernels->max(s, n));
    if (max == -INFINITY) { // only -inf so far, or NaN, which a maximum ignores
        if (attention_has_nan(s, n)) t->sum[r] = NAN;
        memset(s, 0, (size_t)n * sizeof *s);
        return;
    }
    float sum = kernels->weigh(s, n, max, 0);
    t->alpha[r] = exp2f((t->max[r] - max) * log2e);
    t->sum[r] = t->sum[r] * t->alpha[r] + sum;
    t->max[r] = max;
}

// Weighs rows [r, r + num_rows) at once. False: nothing done, these rows must go one by one.
static bool softmax_rows(struct attention_tile *t, const struct attention_block *b, int64_t r,
                         int64_t num_rows) {
    int64_t begin[ATTENTION_MOST_SET], end[ATTENTION_MOST_SET];
    for (int64_t i = 0; i < num_rows; i++) {
        struct attention_range part = attention_row_part(&t->row[r + i], b);
        int64_t first = tsri_min(part.begin, b->num_keys); // rows may see none
        begin[i] = first / ATTENTION_SET_STEP * ATTENTION_SET_STEP;
        end[i] = tsri_max(part.end, begin[i]);
        float *s = t->s + (r + i) * t->s_stride;
        for (int64_t j = begin[i]; j < tsri_min(part.begin, end[i]); j++) s[j] = -INFINITY;
    }
    return t->kernels->weigh_rows((int)num_rows, begin, end, t->s + r * t->s_stride, t->s_stride,
                                  t->max + r, t->sum + r, t->alpha + r);
}

void attention_tile_softmax(struct attention_tile *t, const struct attention_block *b) {
    const struct attention_problem *p = t->p;
    bool has_terms = p->softcap != 0 || p->bias.data != NULL || p->slopes.data != NULL;
    for (int64_t r = 0; r < t->num_rows; r += t->kernels->set) {
        int64_t end = tsri_min(r + t->kernels->set, t->num_rows);
        for (int64_t i = r; i < end && has_terms; i++) modify_row(t, b, i);
        for (int64_t i = softmax_rows(t, b, r, end - r) ? end : r; i < end; i++)
            if (!softmax_rows(t, b, i, 1)) softmax_row(t, b, i);
        for (int64_t i = r; i < end && p->dropout_threshold != 0; i++) drop_row(t, b, i);
    }
}
