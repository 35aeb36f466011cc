// SPDX-License-Identifier: Apache-2.0
// Rows on CPU threads. A row is a task; with fewer rows than threads, the passes over a row's groups are cut into slices, and
// only the choice is one task. Sums of weights are integers, so that cutting changes no bit.
#include "ops/sample/sample_row.h"

// Workspace: the rows' results, then the arrays of each row in work.
static size_t results_bytes(const struct sample_problem *p) {
    return tsri_round_up((size_t)p->logits.rows * sizeof(struct sample_result), 64);
}

// grain: rows of a task; block_n: slices of a row, tasks of their own if there are several.
void sample_plan(const void *problem, const struct tsri_limits *limits, struct tsri_plan *plan) {
    enum { LEAST_GROUPS = 16, LEAST_TOKENS = LEAST_GROUPS * SAMPLE_GROUP }; // of a task
    const struct sample_problem *p = problem;
    const int64_t rows = p->logits.rows, vocab = p->logits.cols, threads = limits->num_threads;
    plan->grain = tsri_ceil_div(LEAST_TOKENS, vocab);
    plan->block_n = 1;
    if (rows > 0 && rows < threads)
        plan->block_n =
            tsri_max(1, tsri_min(tsri_ceil_div(2 * threads, rows), vocab / LEAST_TOKENS));
    plan->num_tasks = plan->block_n > 1 ? rows * plan->block_n : tsri_ceil_div(rows, plan->grain);
    plan->workspace_bytes =
        results_bytes(p) + (size_t)tsri_min(rows, threads) * sample_row_bytes(p);
}

struct pass {
    const struct sample_problem *problem;
    const struct sample_kernels *kernels;
    struct sample_result *results;
    char *rows;
    size_t row_bytes;
    int64_t slices, grain; // as in the plan
    bool has_slot_each;    // each row has arrays of its own; otherwise each thread
};

static void open_row(const struct pass *pass, int64_t index, int64_t slot, struct sample_row *row) {
    sample_row_open(pass->problem, pass->kernels, index,
                    pass->rows + (size_t)slot * pass->row_bytes, row);
}

static void run_rows(void *arg, int64_t task, int thread) {
    const struct pass *pass = arg;
    const int64_t first = task * pass->grain;
    const int64_t last = tsri_min(first + pass->grain, pass->problem->logits.rows);
    struct sample_row row;
    for (int64_t index = first; index < last; index++) {
        open_row(pass, index, pass->has_slot_each ? index : thread, &row);
        sample_row_change(&row);
        sample_row_find_maxima(&row, 0, row.num_groups);
        sample_row_read_maxima(&row);
        sample_row_find_sums(&row, 0, row.num_groups);
        sample_row_choose(&row, &pass->results[index]);
    }
}

// ---- Slices -----------------------------------------------------------------------------------

static void change(void *arg, int64_t index, int thread) {
    struct sample_row row;
    (void)thread;
    open_row(arg, index, index, &row);
    sample_row_change(&row);
}

// Opens the row of a slice, which has groups [*first, *last).
static void open_slice(const struct pass *pass, int64_t task, struct sample_row *row,
                       int64_t *first, int64_t *last) {
    const int64_t index = task / pass->slices, slice = task % pass->slices;
    open_row(pass, index, index, row);
    *first = row->num_groups * slice / pass->slices;
    *last = row->num_groups * (slice + 1) / pass->slices;
}

static void find_maxima(void *arg, int64_t task, int thread) {
    struct sample_row row;
    int64_t first, last;
    (void)thread;
    open_slice(arg, task, &row, &first, &last);
    sample_row_find_maxima(&row, first, last);
}

static void find_sums(void *arg, int64_t task, int thread) {
    struct sample_row row;
    int64_t first, last;
    (void)thread;
    open_slice(arg, task, &row, &first, &last);
    sample_row_read_maxima(&row);
    sample_row_find_sums(&row, first, last);
}

static void choose(void *arg, int64_t index, int thread) {
    const struct pass *pass = arg;
    struct sample_row row;
    (void)thread;
    open_row(pass, index, index, &row);
    sample_row_read_maxima(&row);
    sample_row_choose(&row, &pass->results[index]);
}

tsr_status sample_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                      void *workspace) {
    const struct sample_problem *p = problem;
    const int64_t rows = p->logits.rows;
    struct pass pass = {p,
                        sample_kernels(tsr_context_isa(ctx)),
                        workspace,
                        (char *)workspace + results_bytes(p),
                        sample_row_bytes(p),
                        plan->block_n,
                        plan->grain,
                        rows <= tsri_context_limits(ctx)->num_threads};
    if (pass.slices == 1) {
        tsri_parallel(ctx, plan->num_tasks, run_rows, &pass);
    } else {
        if (sample_has_changes(p)) tsri_parallel(ctx, rows, change, &pass);
        tsri_parallel(ctx, plan->num_tasks, find_maxima, &pass);
        tsri_parallel(ctx, plan->num_tasks, find_sums, &pass);
        tsri_parallel(ctx, rows, choose, &pass);
    }
    if (p->num_nan_rows != NULL) *p->num_nan_rows = 0;
    for (int64_t r = 0; r < rows; r++) sample_store(p, r, &pass.results[r]);
    return TSR_OK;
}
