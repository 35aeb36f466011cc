// SPDX-License-Identifier: Apache-2.0
// What variants on the CPU read and write of a row beside its logits: options, the number that is drawn, outputs.
#include "ops/sample/sample_problem.h"

static float option_of(const struct sample_problem *p, const void *of_rows, int64_t row,
                       float given) {
    return of_rows != NULL ? (float)tsri_load(sample_real(p), of_rows, row) : given;
}

struct sample_options sample_options_of(const struct sample_problem *p, int64_t row) {
    const struct sample_rows_options *of_rows = &p->of_rows;
    struct sample_options o = p->given;
    o.temperature = option_of(p, of_rows->temperature, row, o.temperature);
    o.top_p = option_of(p, of_rows->top_p, row, o.top_p);
    o.min_p = option_of(p, of_rows->min_p, row, o.min_p);
    o.repetition_penalty = sample_repetition_penalty(
        option_of(p, of_rows->repetition_penalty, row, o.repetition_penalty));
    o.presence_penalty = option_of(p, of_rows->presence_penalty, row, o.presence_penalty);
    o.frequency_penalty = option_of(p, of_rows->frequency_penalty, row, o.frequency_penalty);
    if (of_rows->top_k != NULL) o.top_k = of_rows->top_k[row];
    return o;
}

uint64_t sample_row_target(const struct sample_problem *p, int64_t row, uint64_t sum) {
    const struct sample_rows_options *of_rows = &p->of_rows;
    const uint64_t more = of_rows->offset != NULL ? (uint32_t)of_rows->offset[row] : 0;
    return sample_target(p->seed, p->offset + more,
                         of_rows->seed != NULL ? (uint32_t)of_rows->seed[row] : (uint64_t)row, sum);
}

void sample_store(const struct sample_problem *p, int64_t row, const struct sample_result *result) {
    p->ids[row] = result->id;
    if (p->kept != NULL) p->kept[row] = result->kept;
    if (p->logprobs != NULL)
        tsr_store(sample_real(p), p->logprobs, row,
                  isnan(result->logprob) ? -(double)NAN : result->logprob);
    if (p->num_nan_rows != NULL && result->is_nan) ++*p->num_nan_rows;
}
