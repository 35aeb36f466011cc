// SPDX-License-Identifier: Apache-2.0
// Plans and launches of sample on CUDA. Blocks have slices of rows, so that few rows fill the card, and what they find meets in
// the workspace. The host cannot know what a row of options in device memory wants: it launches every pass that a row may want,
// and the blocks of other rows end at once.
#include "context/cuda_elements.h"
#include "ops/sample/sample_problem.h"

#include "ops/sample/sample_params.h"

static const char name[] = "sample";

// ---- Plan -------------------------------------------------------------------------------------

static tsr_dtype dtype_of_z(const struct sample_problem *p) {
    return sample_has_changes(p) ? TSR_F32 : p->logits.dtype;
}

// Of 16 bytes a lane; a row may begin within them.
static int64_t groups_of(const struct sample_problem *p, tsr_dtype dtype) {
    const int64_t unit = 16 / (int64_t)tsr_dtype_bytes(dtype);
    return tsri_ceil_div(p->logits.cols + unit - 1, 32 * unit);
}

static bool may_draw(const struct sample_problem *p) {
    return p->of_rows.temperature != NULL || p->given.temperature > 0;
}
static bool may_have_top_k(const struct sample_problem *p) {
    return may_draw(p) && (p->of_rows.top_k != NULL || sample_has_top_k(p, &p->given));
}
static bool may_have_top_p(const struct sample_problem *p) {
    return may_draw(p) && (p->of_rows.top_p != NULL || p->given.top_p < 1);
}

static void *take(uintptr_t *at, int64_t count, size_t bytes) {
    const uintptr_t taken = *at;
    *at += tsri_round_up((size_t)count * bytes, 256);
    return (void *)taken;
}

static void place_numbers(const struct sample_problem *p, tsr_dtype dtype, int64_t slices,
                          uintptr_t *at, struct sample_numbers *n) {
    const int64_t rows = p->logits.rows, all = rows * slices;
    n->group_key = take(at, rows * groups_of(p, dtype), sizeof *n->group_key);
    n->slice_key = take(at, all, sizeof *n->slice_key);
    n->slice_index = take(at, all, sizeof *n->slice_index);
}

static void place_sums(int64_t all, uintptr_t *at, struct sample_numbers *n) {
    n->slice_sum = take(at, all, sizeof *n->slice_sum);
    n->slice_equal = take(at, all, sizeof *n->slice_equal);
    n->slice_above = take(at, all, sizeof *n->slice_above);
}

// The arrays of a call at `at`. Returns their end.
static uintptr_t place(const struct sample_problem *p, int64_t slices, uintptr_t at,
                       struct sample_params *params) {
    const int64_t rows = p->logits.rows, vocab = p->logits.cols;
    const bool has_order = may_have_top_k(p) || may_have_top_p(p);
    params->states = take(&at, rows, sizeof *params->states);
    place_numbers(p, dtype_of_z(p), slices, &at, &params->z);
    place_sums(rows * slices, &at, &params->z);
    params->raw = params->z;
    if (sample_has_raw(p) && sample_has_changes(p))
        place_numbers(p, p->logits.dtype, slices, &at, &params->raw);
    if (sample_has_raw(p)) place_sums(rows * slices, &at, &params->raw);
    params->sums = has_order ? take(&at, rows * SAMPLE_NUM_DIGITS, sizeof *params->sums) : NULL;
    params->counts = sample_has_history(p) ? take(&at, rows * vocab, sizeof *params->counts) : NULL;
    params->changed_stride = (int64_t)tsri_round_up((size_t)vocab, 4);
    params->changed = sample_has_changes(p)
                          ? take(&at, rows * params->changed_stride, sizeof *params->changed)
                          : NULL;
    return at;
}

// block_n: slices of a row; num_tasks: of all rows.
void sample_cuda_plan(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    enum { SM_BLOCKS = 8, LEAST_GROUPS = SAMPLE_THREADS / 32 };
    const struct sample_problem *p = problem;
    struct sample_params params;
    const int64_t rows = p->logits.rows, most = groups_of(p, dtype_of_z(p)) / LEAST_GROUPS;
    plan->block_n = tsri_ceil_div(SM_BLOCKS * (int64_t)limits->num_sms, tsri_max(rows, 1));
    plan->block_n = tsri_max(1, tsri_min(tsri_min(plan->block_n, SAMPLE_MAX_SLICES), most));
    plan->num_tasks = tsri_min(rows * plan->block_n, INT32_MAX);
    plan->workspace_bytes = place(p, plan->block_n, 0, &params);
}

// ---- Launches ---------------------------------------------------------------------------------

struct steps {
    int count;
    struct step {
        struct tsri_cuda_program program;
        struct sample_params params;
        int64_t num_blocks;
        int num_threads;
    } list[20];
};

static struct step *add(struct steps *steps, const char *source, const char *entry, tsr_dtype dtype,
                        const struct tsri_plan *plan, const struct sample_params *params) {
    struct step *step = &steps->list[steps->count++];
    *step = (struct step){tsri_cuda_dtype_program(source, entry, dtype), *params, plan->num_tasks,
                          SAMPLE_THREADS};
    return step;
}

static const char maxima_source[] = "ops/sample/sample_maxima.cu",
                  weigh_source[] = "ops/sample/sample_weigh.cu",
                  digits_source[] = "ops/sample/sample_digits.cu",
                  draw_source[] = "ops/sample/sample_draw.cu",
                  change_source[] = "ops/sample/sample_change.cu",
                  penalise_source[] = "ops/sample/sample_penalise.cu";
static const char maxima_entry[] = "sample_maxima", weigh_entry[] = "sample_weigh",
                  digits_entry[] = "sample_digits", draw_entry[] = "sample_draw",
                  change_entry[] = "sample_change", penalise_entry[] = "sample_penalise";

static struct sample_params params_of(const struct sample_problem *p, const struct tsri_plan *plan,
                                      void *workspace) {
    const struct sample_rows_options *of_rows = &p->of_rows;
    struct sample_params params = {
        .history = (const int *)(const void *)p->history.data,
        .bias = (const float *)(const void *)p->bias.data,
        .history_stride = p->history.stride,
        .bias_stride = p->bias.stride,
        .rows = p->logits.rows,
        .given = p->given,
        .temperature = of_rows->temperature,
        .top_p = of_rows->top_p,
        .min_p = of_rows->min_p,
        .repetition_penalty = of_rows->repetition_penalty,
        .presence_penalty = of_rows->presence_penalty,
        .frequency_penalty = of_rows->frequency_penalty,
        .top_k = of_rows->top_k,
        .row_seed = of_rows->seed,
        .row_offset = of_rows->offset,
        .seed = p->seed,
        .offset = p->offset,
        .ids = p->ids,
        .kept = p->kept,
        .num_nan_rows = p->num_nan_rows,
        .logprobs = p->logprobs,
        .raw_dtype = (int)p->logits.dtype,
        .vocab = (int)p->logits.cols,
        .history_len = (int)p->history.cols,
        .num_groups = (int)groups_of(p, dtype_of_z(p)),
        .num_slices = (int)plan->block_n,
        .is_logprob_raw = p->is_logprob_raw,
    };
    place(p, plan->block_n, (uintptr_t)workspace, &params);
    params.z.x = params.raw.x = p->logits.data;
    params.z.stride = params.raw.stride = p->logits.stride;
    if (sample_has_changes(p)) {
        params.z.x = params.changed;
        params.z.stride = params.changed_stride;
    }
    return params;
}

static void add_changes(const struct sample_problem *p, const struct tsri_plan *plan,
                        const struct sample_params *params, struct steps *steps) {
    if (sample_has_changes(p)) add(steps, change_source, change_entry, TSR_F32, plan, params);
    for (int is_apply = 0; is_apply < 2 && sample_has_history(p); is_apply++)
        add(steps, penalise_source, penalise_entry, TSR_F32, plan, params)->params.is_apply =
            is_apply;
}

// Sums of the raw logits' weights.
static void add_raw(const struct sample_problem *p, const struct tsri_plan *plan,
                    const struct sample_params *params, struct steps *steps) {
    const tsr_dtype dtype = p->logits.dtype;
    struct sample_params raw = *params;
    if (!sample_has_raw(p)) return;
    raw.z = raw.raw;
    raw.is_raw = 1;
    raw.num_groups = (int)groups_of(p, dtype);
    if (sample_has_changes(p)) add(steps, maxima_source, maxima_entry, dtype, plan, &raw);
    add(steps, weigh_source, weigh_entry, dtype, plan, &raw);
}

static void add_selection(const struct sample_problem *p, const struct tsri_plan *plan,
                          const struct sample_params *params, bool is_top_p, struct steps *steps) {
    static const int shifts[] = {SAMPLE_FIRST_SHIFT, SAMPLE_SECOND_SHIFT, 0};
    const tsr_dtype dtype = dtype_of_z(p);
    const int passes = dtype == TSR_F32 ? 3 : 2; // the last digit of 16-bit numbers is known
    if (is_top_p) add(steps, weigh_source, weigh_entry, dtype, plan, params);
    for (int i = 0; i < passes; i++) {
        struct step *step = add(steps, digits_source, digits_entry, dtype, plan, params);
        step->params.shift = shifts[i];
        step->params.is_last = i == passes - 1;
        step->params.is_top_p = is_top_p;
    }
}

static void find_steps(const struct sample_problem *p, const struct tsri_plan *plan,
                       void *workspace, struct steps *steps) {
    const struct sample_params params = params_of(p, plan, workspace);
    const tsr_dtype dtype = dtype_of_z(p);
    steps->count = 0;
    add_changes(p, plan, &params, steps);
    struct step *maxima = add(steps, maxima_source, maxima_entry, dtype, plan, &params);
    if (p->num_nan_rows != NULL) maxima->num_blocks = tsri_max(plan->num_tasks, 1); // writes 0
    add_raw(p, plan, &params, steps);
    if (may_have_top_k(p)) add_selection(p, plan, &params, false, steps);
    if (may_have_top_p(p)) add_selection(p, plan, &params, true, steps);
    if (may_draw(p))
        add(steps, weigh_source, weigh_entry, dtype, plan, &params)->params.has_min_p = 1;
    struct step *draw = add(steps, draw_source, draw_entry, dtype, plan, &params);
    draw->num_threads = SAMPLE_DRAW_THREADS;
    draw->num_blocks = tsri_min(p->logits.rows, INT32_MAX);
}

tsr_status sample_cuda_prepare(tsr_context *ctx, const void *problem,
                               const struct tsri_plan *plan) {
    struct steps steps;
    find_steps(problem, plan, NULL, &steps);
    for (int i = 0; i < steps.count; i++)
        TSRI_TRY(tsri_cuda_prepare(name, tsri_context_queue(ctx), &steps.list[i].program));
    return TSR_OK;
}

tsr_status sample_cuda_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                           void *workspace) {
    struct steps steps;
    find_steps(problem, plan, workspace, &steps);
    for (int i = 0; i < steps.count; i++) {
        const struct step *step = &steps.list[i];
        const struct tsri_cuda_launch launch = {.num_blocks = step->num_blocks,
                                                .num_threads = step->num_threads,
                                                .is_early = true,
                                                .params = &step->params};
        if (step->num_blocks > 0)
            TSRI_TRY(tsri_cuda_launch(name, tsri_context_queue(ctx), &step->program, &launch));
    }
    return TSR_OK;
}

bool sample_cuda_kernel(int index, int cuda_arch, struct tsri_cuda_program *program) {
    static const struct {
        const char *source, *entry;
    } kernels[] = {{maxima_source, maxima_entry},
                   {weigh_source, weigh_entry},
                   {digits_source, digits_entry},
                   {draw_source, draw_entry}};
    const int of_dtypes = TSRI_COUNT(kernels) * TSRI_NUM_CUDA_DTYPES;
    (void)cuda_arch;
    if (index < of_dtypes) {
        const int kernel = index / TSRI_NUM_CUDA_DTYPES;
        return tsri_cuda_dtype_kernel(kernels[kernel].source, kernels[kernel].entry,
                                      index % TSRI_NUM_CUDA_DTYPES, program);
    }
    *program = index == of_dtypes
                   ? tsri_cuda_dtype_program(change_source, change_entry, TSR_F32)
                   : tsri_cuda_dtype_program(penalise_source, penalise_entry, TSR_F32);
    return index <= of_dtypes + 1;
}
