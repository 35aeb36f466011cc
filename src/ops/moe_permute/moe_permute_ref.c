// SPDX-License-Identifier: Apache-2.0
// The oracle: the definition of tessera/moe_permute.h, assignment by assignment.
#include <string.h>

#include "ops/moe_permute/moe_permute_problem.h"

// Space for the number of rows that each expert has so far.
void moe_permute_reference_plan(const void *problem, const struct tsri_limits *limits,
                                struct tsri_plan *plan) {
    const struct moe_permute_problem *p = problem;
    (void)limits;
    plan->num_tasks = 1;
    plan->workspace_bytes = tsri_round_up((size_t)p->num_experts * sizeof(int64_t), 64);
}

static void count(const struct moe_permute_problem *p, int64_t *counts) {
    memset(counts, 0, (size_t)p->num_experts * sizeof *counts);
    for (int64_t t = 0; t < p->ids.rows; t++)
        for (int64_t k = 0; k < p->ids.cols; k++) {
            const int32_t id = ((const int32_t *)tsri_row(&p->ids, t))[k];
            if (id != MOE_NO_ROW) counts[id]++;
        }
}

// offsets and what depends on the counts alone.
static void store_counts(const struct moe_permute_problem *p, const int64_t *counts) {
    int64_t num_dropped = 0;
    p->offsets[0] = 0;
    for (int64_t e = 0; e < p->num_experts; e++) {
        const int64_t kept = tsri_min(counts[e], p->capacity);
        p->offsets[e + 1] = (int32_t)(p->offsets[e] + kept);
        num_dropped += counts[e] - kept;
        if (p->tokens_per_expert != NULL) p->tokens_per_expert[e] = (int32_t)counts[e];
    }
    if (p->num_dropped != NULL) *p->num_dropped = (int32_t)num_dropped;
}

static void store_row(const struct moe_permute_problem *p, int64_t t, int64_t k, int64_t row) {
    const size_t bytes = tsr_dtype_bytes(p->weights_dtype);
    if (p->row_tokens != NULL) p->row_tokens[row] = (int32_t)t;
    if (p->row_weights == NULL) return;
    memcpy((char *)p->row_weights + (size_t)row * bytes,
           (const char *)tsri_row(&p->weights, t) + (size_t)k * bytes, bytes); // the bits
}

tsr_status moe_permute_reference_run(tsr_context *ctx, const void *problem,
                                     const struct tsri_plan *plan, void *workspace) {
    const struct moe_permute_problem *p = problem;
    const bool has_token_rows = p->token_rows.dtype != TSR_DTYPE_NONE;
    int64_t *taken = workspace;
    (void)ctx, (void)plan;
    count(p, taken);
    store_counts(p, taken);
    memset(taken, 0, (size_t)p->num_experts * sizeof *taken);
    for (int64_t t = 0; t < p->ids.rows; t++)
        for (int64_t k = 0; k < p->ids.cols; k++) {
            const int32_t id = ((const int32_t *)tsri_row(&p->ids, t))[k];
            const bool has_row = id != MOE_NO_ROW && taken[id] < p->capacity;
            const int64_t row = has_row ? p->offsets[id] + taken[id]++ : MOE_NO_ROW;
            if (has_row) store_row(p, t, k, row);
            if (has_token_rows) ((int32_t *)tsri_row(&p->token_rows, t))[k] = (int32_t)row;
        }
    for (int64_t row = p->offsets[p->num_experts]; row < p->num_rows; row++) {
        if (p->row_tokens != NULL) p->row_tokens[row] = MOE_NO_ROW;
        if (p->row_weights != NULL) tsr_store(p->weights_dtype, p->row_weights, row, 0);
    }
    return TSR_OK;
}
