// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "context/op_table.h"
#include "context/plan_memo.h"
#include "context/profile_internal.h"
#include "core/core_float.h"
#include "core/core_log.h"

// ---- Planning ---------------------------------------------------------------------------------

// Compares addresses first, because most callers pass the table's own name.
static const struct tsri_variant *find_variant(const struct tsri_op *op, const char *name) {
    for (int i = 0; i < op->num_variants; i++)
        if (op->variants[i].name == name) return &op->variants[i];
    for (int i = 0; i < op->num_variants; i++)
        if (strcmp(op->variants[i].name, name) == 0) return &op->variants[i];
    return NULL;
}

static bool is_for(const struct tsri_variant *variant, tsr_device device) {
    return ((variant->flags & TSR_VARIANT_CUDA) != 0) == (device.type == TSR_CUDA);
}

static tsr_status fail_unknown_variant(const struct tsri_op *op, const char *name) {
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < op->num_variants && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, i ? ", %s" : "%s",
                                 op->variants[i].name);
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: variant is '%s', expected one of %s", op->name,
                     name, names);
}

static tsr_status choose_built_in(const struct tsri_op *op, const void *problem,
                                  const struct tsri_limits *limits,
                                  const struct tsri_variant **chosen) {
    const char *preferred = op->prefer != NULL ? op->prefer(problem, limits) : NULL;
    *chosen = preferred != NULL ? find_variant(op, preferred) : NULL;
    if (*chosen != NULL && is_for(*chosen, limits->device) && (*chosen)->supports(problem, limits))
        return TSR_OK;
    for (int i = 0; i < op->num_variants; i++) {
        *chosen = &op->variants[i];
        if (is_for(*chosen, limits->device) && (*chosen)->supports(problem, limits)) return TSR_OK;
    }
    return tsri_fail(TSR_UNSUPPORTED, "%s: no variant supports this problem on %s", op->name,
                     tsri_device_text(limits->device));
}

// Applies the row of a tuning file, if one exists for this problem, to the built-in choice.
static void obey_row(const struct tsri_op *op, const void *problem, struct tsri_limits *limits,
                     const struct tsri_variant **chosen) {
    struct tsri_tuning_key key = {.dtype = TSR_DTYPE_NONE};
    op->tuning->key(problem, &key);
    const struct tsri_tuning_row *row = tsri_tuning_find(limits->tuning, op, &key);
    if (row == NULL || !is_for(row->variant, limits->device) ||
        !row->variant->supports(problem, limits))
        return;
    bool may_replace = op->tuning->may_replace != NULL
                           ? op->tuning->may_replace(problem, limits, *chosen, row->variant)
                           : limits->flags == 0;
    if (!may_replace) return; // nor blocks: they may be splits of sums
    *chosen = row->variant;
    memcpy(limits->block, row->block, sizeof limits->block);
}

static tsr_status choose(const struct tsri_op *op, const void *problem, struct tsri_limits *limits,
                         const struct tsri_call *call, const struct tsri_variant **chosen) {
    if (call->variant != NULL) {
        *chosen = find_variant(op, call->variant);
        if (*chosen == NULL) return fail_unknown_variant(op, call->variant);
        if (!is_for(*chosen, limits->device))
            return tsri_fail(
                TSR_UNSUPPORTED, "%s: variant '%s' is for contexts on %s, and this one is on %s",
                op->name, call->variant, limits->device.type == TSR_CUDA ? "the CPU" : "CUDA",
                tsri_device_text(limits->device));
        if (!(*chosen)->supports(problem, limits))
            return tsri_fail(TSR_UNSUPPORTED,
                             "%s: variant '%s' does not support this problem, leave variant NULL "
                             "to have one chosen",
                             op->name, call->variant);
        return TSR_OK;
    }
    TSRI_TRY(choose_built_in(op, problem, limits, chosen));
    if (limits->tuning != NULL && op->tuning != NULL) obey_row(op, problem, limits, chosen);
    return TSR_OK;
}

static tsr_status make_plan(const struct tsri_op *op, const void *problem,
                            struct tsri_limits *limits, const struct tsri_call *call,
                            struct tsri_plan *plan) {
    _Alignas(max_align_t) char key[TSRI_TUNING_PROBLEM_BYTES];
    struct tsri_plan_memo *memo =
        op->plan_key != NULL && call->variant == NULL ? limits->memo : NULL;
    if (memo != NULL) {
        op->plan_key(problem, key);
        const struct tsri_plan *known = tsri_plan_recall(memo, op, key, call->flags);
        if (known != NULL) {
            *plan = *known;
            return TSR_OK;
        }
    }
    *plan = (struct tsri_plan){.flags = call->flags};
    TSRI_TRY(choose(op, problem, limits, call, &plan->variant));
    plan->variant->plan(problem, limits, plan);
    TSRI_TRY(plan->status);
    if (memo != NULL) tsri_plan_remember(memo, op, key, plan);
    return TSR_OK;
}

tsr_status tsri_op_plan(const struct tsri_op *op, const void *problem,
                        const struct tsri_limits *device, const struct tsri_call *call,
                        struct tsri_plan *plan) {
    struct tsri_limits with_flags = *device, *limits = &with_flags;
    limits->flags = call->flags;
    memset(limits->block, 0, sizeof limits->block); // an outer call's do not apply here
    if (call->flags & ~(uint32_t)(TSR_DETERMINISTIC | TSR_BATCH_INVARIANT))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: flags is 0x%x, expected a sum of TSR_DETERMINISTIC and "
                         "TSR_BATCH_INVARIANT",
                         op->name, (unsigned)call->flags);
    TSRI_TRY(make_plan(op, problem, limits, call, plan));
    if (tsri_log_is_on(TSRI_LOG_PLAN))
        tsri_log("plan %s: variant %s, isa %s, %lld tasks of %lld, block %lld x %lld x %lld, "
                 "%zu bytes of workspace%s",
                 op->name, plan->variant->name, tsr_isa_name(limits->isa),
                 (long long)plan->num_tasks, (long long)plan->grain, (long long)plan->block_m,
                 (long long)plan->block_n, (long long)plan->block_k, plan->workspace_bytes,
                 plan->is_streaming ? ", streaming stores" : "");
    return TSR_OK;
}

bool tsri_supports_all(const void *problem, const struct tsri_limits *limits) {
    (void)problem;
    (void)limits;
    return true;
}

void tsri_plan_serial(const void *problem, const struct tsri_limits *limits,
                      struct tsri_plan *plan) {
    (void)problem;
    (void)limits;
    plan->num_tasks = 1;
}

void tsri_plan_rows(struct tsri_plan *plan, const struct tsri_limits *limits, int64_t rows,
                    int64_t bytes_per_row) {
    enum { MIN_BYTES = 16 << 10, GOOD_BYTES = 1 << 20, TASKS_PER_THREAD = 4 };
    if (rows <= 0) return; // nothing to do: no tasks
    int64_t row = tsri_max(bytes_per_row, 1);
    int64_t fair = tsri_ceil_div(rows, (int64_t)limits->num_threads * TASKS_PER_THREAD);
    int64_t grain = tsri_min(tsri_ceil_div(GOOD_BYTES, row), fair);
    plan->grain = tsri_min(tsri_max(grain, tsri_ceil_div(MIN_BYTES, row)), rows);
    plan->num_tasks = tsri_ceil_div(rows, plan->grain);
}

bool tsri_should_stream(const struct tsri_limits *limits, int64_t total_bytes) {
    return total_bytes / 2 > limits->l3_bytes;
}

bool tsri_is_slow_past_caches(const struct tsri_limits *limits) {
    return !tsri_gains_from_far_lines() && limits->isa == TSR_ISA_AVX2;
}

// Bytes of a call's tensors up to which they count as held by the caches. If that is a share of the last-level cache,
// several of AMD's cores hold twice as much, because they share it with few others; a single core does not.
static int64_t held_bytes(const struct tsri_limits *limits, int num_threads) {
    int64_t l3 = tsri_cache_sizes().l3, held = limits->l3_bytes;
    if (!tsri_is_slow_past_caches(limits) || held >= l3 || num_threads == 1) return held;
    return held > l3 / 2 ? l3 : 2 * held;
}

// On those cores, a line that is written partly with non-temporal stores and partly without takes 0.1 to 0.3 us, as
// long as writing 10 KiB. This concerns the first and last line of a row that does not begin or end at a store's
// vector. Rows of at least a 512th of the cache (40 KiB of 20 MiB) hardly notice.
bool tsri_should_stream_rows_of(const struct tsri_limits *limits, int num_threads,
                                int64_t total_bytes, const struct tsri_rows *output) {
    enum { VECTOR = 32, PART = 512 };
    int64_t held = held_bytes(limits, num_threads), bytes = (int64_t)tsr_dtype_bytes(output->dtype);
    int64_t row_bytes = output->cols * bytes, step = output->stride * bytes;
    bool is_whole = row_bytes % VECTOR == 0 && (step % VECTOR == 0 || output->rows <= 1);
    if (total_bytes <= held) return false;
    return !tsri_is_slow_past_caches(limits) || is_whole || row_bytes >= held / PART;
}

bool tsri_should_stream_rows(const struct tsri_limits *limits, int64_t total_bytes,
                             const struct tsri_rows *output) {
    return tsri_should_stream_rows_of(limits, limits->num_threads, total_bytes, output);
}

int64_t tsri_bytes_better_cached(const struct tsri_limits *limits, int64_t total_bytes) {
    return tsri_is_slow_past_caches(limits) ? total_bytes / 16 : total_bytes;
}

bool tsri_should_stream_beside(const struct tsri_limits *limits, int64_t output_bytes,
                               int64_t total_bytes) {
    return tsri_should_stream(limits, 2 * total_bytes) &&
           (tsri_gains_from_far_lines() || tsri_should_stream(limits, output_bytes));
}

// ---- Running ----------------------------------------------------------------------------------

tsr_status tsri_check_context(const tsr_context *ctx, const char *op) {
    if (ctx == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: ctx is NULL, expected a context", op);
    tsr_device device = tsri_context_limits(ctx)->device;
    tsri_expect_device(device);
    if (device.type == TSR_CPU) return TSR_OK;
    return tsri_check_usable(ctx, op);
}

// Plans a call and tells the context which variant was chosen.
static tsr_status plan_call(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                            const struct tsri_call *call, struct tsri_plan *plan) {
    const char *before = tsr_context_last_variant(ctx); // planning a part may change it
    tsr_status status = tsri_op_plan(op, problem, tsri_context_limits(ctx), call, plan);
    tsri_context_set_variant(ctx, status == TSR_OK ? plan->variant->name : before);
    return status;
}

static tsr_status run(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                      const struct tsri_call *call, const struct tsri_plan *plan) {
    void *workspace;
    TSRI_TRY(tsri_context_workspace(ctx, op->name, call->workspace, call->workspace_bytes,
                                    plan->workspace_bytes, &workspace));
    tsr_status status = plan->variant->run(ctx, problem, plan, workspace);
    tsri_context_set_variant(ctx, plan->variant->name); // running a part may have changed it
    return status;
}

tsr_status tsri_name_op(const char *op, tsr_status status) {
    if (status == TSR_OK || strstr(tsr_last_error(), op) != NULL) return status;
    return tsri_fail(status, "%s: %s", op, tsr_last_error());
}

static tsr_status plan_and_run(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                               const struct tsri_call *call) {
    struct tsri_plan plan;
    struct tsri_cuda_visit visit;
    TSRI_TRY(plan_call(ctx, op, problem, call, &plan));
    TSRI_TRY(tsri_context_enter(ctx, op->name, &visit));
    return tsri_context_leave(ctx, &visit,
                              tsri_name_op(op->name, run(ctx, op, problem, call, &plan)));
}

static tsr_status call_op(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                          const struct tsri_call *call) {
    if (!tsri_profile_is_on()) return plan_and_run(ctx, op, problem, call);
    int64_t id = tsri_profile_open_call(op->name);
    tsr_status status = plan_and_run(ctx, op, problem, call);
    tsri_profile_close_call(id, tsr_context_last_variant(ctx));
    return status;
}

// Prepares the kernels, and the arena if the call will use it, because a capture may neither compile nor allocate.
static tsr_status prepare_on_device(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                                    const struct tsri_call *call, const struct tsri_plan *plan) {
    void *workspace;
    TSRI_TRY(plan->variant->prepare(ctx, problem, plan));
    if (call->workspace != NULL) return TSR_OK;
    return tsri_context_workspace(ctx, op->name, NULL, 0, plan->workspace_bytes, &workspace);
}

static tsr_status prepare_op(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                             const struct tsri_call *call, size_t *workspace_bytes) {
    if (workspace_bytes == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s_prepare: workspace_bytes is NULL, expected an address", op->name);
    struct tsri_plan plan;
    TSRI_TRY(plan_call(ctx, op, problem, call, &plan));
    tsri_context_keep_prepared(ctx, op, problem, call->flags);
    *workspace_bytes = plan.workspace_bytes;
    if (plan.variant->prepare == NULL) return TSR_OK;
    struct tsri_cuda_visit visit;
    TSRI_TRY(tsri_context_enter(ctx, op->name, &visit));
    return tsri_context_leave(
        ctx, &visit, tsri_name_op(op->name, prepare_on_device(ctx, op, problem, call, &plan)));
}

tsr_status tsri_op_serve(tsr_context *ctx, const struct tsri_op *op, const void *problem,
                         const struct tsri_call *call, struct tsri_goal goal) {
    return goal.is_prepare ? prepare_op(ctx, op, problem, call, goal.workspace_bytes)
                           : call_op(ctx, op, problem, call);
}

// ---- The way in -------------------------------------------------------------------------------

static tsr_status enter(tsri_entry entry, tsr_context *ctx, const void *given,
                        struct tsri_goal goal) {
    tsri_float_environment before;
    tsri_float_enter(&before);
    tsr_status status = entry(ctx, given, goal);
    tsri_float_leave(&before);
    return status;
}

tsr_status tsri_entry_call(tsri_entry entry, tsr_context *ctx, const void *given) {
    return enter(entry, ctx, given, (struct tsri_goal){.is_prepare = false});
}

tsr_status tsri_entry_prepare(tsri_entry entry, tsr_context *ctx, const void *given,
                              size_t *workspace_bytes) {
    return enter(entry, ctx, given, (struct tsri_goal){true, workspace_bytes});
}
