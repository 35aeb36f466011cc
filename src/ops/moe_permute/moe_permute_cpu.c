// SPDX-License-Identifier: Apache-2.0
// The permutation on CPU threads, a counting sort: each task counts the experts of a chunk of tokens, one thread makes the
// counts into places, and each task puts its chunk's assignments into theirs, in order.
// Floor: ids read, 4 bytes an assignment, and up to 12 written.
// Limit: the chain through an expert's counter if one expert has most assignments; the row writes are scattered.
// Figures: docs/kernels/moe.md.
#include <string.h>

#include "ops/moe_permute/moe_permute_problem.h"

// A chunk's counts must be few beside its assignments.
void moe_permute_plan(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    enum { LEAST = 4096 }; // assignments of a task: some 25 us
    const struct moe_permute_problem *p = problem;
    const int64_t least = tsri_max(LEAST, 4 * p->num_experts);
    const int64_t most = tsri_max(moe_num_assignments(p) / least, 1);
    const int64_t num_tasks = tsri_min(most, limits->num_threads);
    plan->grain = tsri_max(tsri_ceil_div(p->ids.rows, num_tasks), 1);
    plan->num_tasks = tsri_max(tsri_ceil_div(p->ids.rows, plan->grain), 1);
    plan->workspace_bytes =
        tsri_round_up((size_t)(plan->num_tasks * p->num_experts) * sizeof(int32_t), 64);
}

struct pass {
    const struct moe_permute_problem *problem;
    const struct tsri_plan *plan;
    int32_t
        *places; // (num_tasks, num_experts): counts, then the next row of the chunk's assignments
};

static const int32_t *ids_of(const struct moe_permute_problem *p, int64_t t) {
    return tsri_row(&p->ids, t);
}

static void count_chunk(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct moe_permute_problem *p = pass->problem;
    int32_t *counts = pass->places + index * p->num_experts;
    const int64_t first = index * pass->plan->grain;
    const int64_t last = tsri_min(first + pass->plan->grain, p->ids.rows);
    (void)thread;
    memset(counts, 0, (size_t)p->num_experts * sizeof *counts);
    for (int64_t t = first; t < last; t++)
        for (int64_t k = 0; k < p->ids.cols; k++)
            if (ids_of(p, t)[k] != MOE_NO_ROW) counts[ids_of(p, t)[k]]++;
}

// Counts become places. An expert's last chunks may have places beyond its rows: those are dropped.
static void find_places(const struct pass *pass) {
    const struct moe_permute_problem *p = pass->problem;
    int64_t begin = 0, num_dropped = 0;
    p->offsets[0] = 0;
    for (int64_t e = 0; e < p->num_experts; e++) {
        int64_t next = begin;
        for (int64_t c = 0; c < pass->plan->num_tasks; c++) {
            int32_t *place = &pass->places[c * p->num_experts + e];
            const int64_t count = *place;
            *place = (int32_t)next;
            next += count;
        }
        const int64_t kept = tsri_min(next - begin, p->capacity);
        if (p->tokens_per_expert != NULL) p->tokens_per_expert[e] = (int32_t)(next - begin);
        num_dropped += next - begin - kept;
        begin += kept;
        p->offsets[e + 1] = (int32_t)begin;
    }
    if (p->num_dropped != NULL) *p->num_dropped = (int32_t)num_dropped;
}

static void place_chunk(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    const struct moe_permute_problem *p = pass->problem;
    int32_t *next = pass->places + index * p->num_experts;
    float *row_weights = p->row_weights;
    const int64_t first = index * pass->plan->grain;
    const int64_t last = tsri_min(first + pass->plan->grain, p->ids.rows);
    const bool has_token_rows = p->token_rows.dtype != TSR_DTYPE_NONE;
    (void)thread;
    for (int64_t t = first; t < last; t++) {
        const int32_t *ids = ids_of(p, t);
        int32_t *rows = has_token_rows ? tsri_row(&p->token_rows, t) : NULL;
        const float *weights = row_weights != NULL ? tsri_row(&p->weights, t) : NULL;
        for (int64_t k = 0; k < p->ids.cols; k++) {
            const int32_t id = ids[k];
            int32_t row = id == MOE_NO_ROW ? MOE_NO_ROW : next[id]++;
            if (row != MOE_NO_ROW && row >= p->offsets[id + 1]) row = MOE_NO_ROW;
            if (rows != NULL) rows[k] = row;
            if (row == MOE_NO_ROW) continue;
            if (p->row_tokens != NULL) p->row_tokens[row] = (int32_t)t;
            if (weights != NULL) memcpy(&row_weights[row], &weights[k], sizeof(float));
        }
    }
}

tsr_status moe_permute_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                           void *workspace) {
    const struct moe_permute_problem *p = problem;
    struct pass pass = {p, plan, workspace};
    tsri_parallel(ctx, plan->num_tasks, count_chunk, &pass);
    find_places(&pass);
    tsri_parallel(ctx, plan->num_tasks, place_chunk, &pass);
    const int64_t end = p->offsets[p->num_experts];
    for (int64_t row = end; p->row_tokens != NULL && row < p->num_rows; row++)
        p->row_tokens[row] = MOE_NO_ROW;
    if (p->row_weights != NULL && p->num_rows > end)
        memset((float *)p->row_weights + end, 0, (size_t)(p->num_rows - end) * sizeof(float));
    return TSR_OK;
}
