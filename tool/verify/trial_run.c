// SPDX-License-Identifier: Apache-2.0
// Runs a variant on a trial: poisons the outputs before, checks guards and hashes inputs afterwards.
#include <stdio.h>

#include "verify/mirror.h"
#include "verify/trial.h"

// ---- One run ----------------------------------------------------------------------------------

// Poisons outputs, restores in-out tensors.
static void reset_outputs(struct trial *trial) {
    for (int s = 0; trial->c.spec->slots[s].name != NULL; s++) {
        if (!trial_is_output(&trial->c, s)) continue;
        tensor_poison(&trial->given.c.tensor[s]);
        if (trial->initial[s] == NULL) continue;
        tsr_tensor initial = trial->oracle.c.tensor[s];
        initial.data = trial->initial[s];
        tensor_copy(&initial, &trial->given.c.tensor[s]);
    }
}

// The same on a GPU, with copies of the tensors.
static tsr_status run_mirrored(tsr_context *ctx, struct trial *trial, const char *variant,
                               size_t need, bool *is_workspace_intact) {
    const struct op_spec *spec = trial->c.spec;
    struct mirror mirror;
    struct buffer guarded = {0};
    void *workspace = NULL, *base = NULL;
    tsr_status status = mirror_create(&mirror, ctx, &trial->given);
    if (status == TSR_OK && variant != NULL) {
        if (!buffer_create(&guarded, need, &workspace)) status = TSR_OUT_OF_MEMORY;
        if (status == TSR_OK) status = tsr_memory_alloc(ctx, guarded.bytes, &base);
        if (status == TSR_OK) status = tsr_memory_copy(ctx, base, guarded.base, guarded.bytes);
        workspace = (char *)base + ((char *)workspace - (char *)guarded.base);
    }
    if (status == TSR_OK) status = spec->call(ctx, &mirror.c, variant, workspace, need, NULL);
    if (status == TSR_OK) status = mirror_fetch(&mirror);
    if (status == TSR_OK && base != NULL) {
        status = tsr_memory_copy(ctx, guarded.base, base, guarded.bytes);
        if (status == TSR_OK) status = tsr_context_synchronize(ctx);
        *is_workspace_intact = buffer_guards_intact(&guarded, need);
    }
    (void)tsr_memory_free(ctx, base);
    buffer_release(&guarded);
    mirror_release(&mirror);
    return status;
}

// The device's prepare expects tensors on the device.
static tsr_status prepare(tsr_context *ctx, const struct trial *trial, const char *variant,
                          size_t *need) {
    struct op_case c = trial->given.c;
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) c.tensor[s].device = tsr_context_device(ctx);
    return c.spec->call(ctx, &c, variant, NULL, 0, need);
}

// One run with an exact, poisoned and guarded workspace (the arena's for the default variant).
static tsr_status run_once(tsr_context *ctx, struct trial *trial, const char *variant,
                           bool *is_workspace_intact) {
    const struct op_spec *spec = trial->c.spec;
    size_t need = 0;
    *is_workspace_intact = true;
    tsr_status status = prepare(ctx, trial, variant, &need);
    if (status == TSR_OK) reset_outputs(trial);
    if (tsr_context_device(ctx).type != TSR_CPU) {
        if (status == TSR_OK) status = run_mirrored(ctx, trial, variant, need, is_workspace_intact);
        // The device may lack the memory for tensors beyond 2^31 elements, or other processes may use it.
        return status == TSR_OUT_OF_MEMORY && trial->layout == LAYOUT_FAR ? TSR_UNSUPPORTED
                                                                          : status;
    }
    if (status != TSR_OK) return status;
    if (variant == NULL) return spec->call(ctx, &trial->given.c, NULL, NULL, 0, NULL);
    struct buffer buffer;
    void *workspace;
    if (!buffer_create(&buffer, need, &workspace)) return TSR_OUT_OF_MEMORY;
    status = spec->call(ctx, &trial->given.c, variant, workspace, need, NULL);
    *is_workspace_intact = buffer_guards_intact(&buffer, need);
    buffer_release(&buffer);
    return status;
}

static const char no_memory[] = "no memory for its tensors or its workspace";

tsr_status trial_run(tsr_context *ctx, tsr_context *other, struct trial *trial, const char *variant,
                     struct verdict *verdict) {
    char what[256];
    bool is_workspace_intact;
    tsr_status status = run_once(ctx, trial, variant, &is_workspace_intact);
    if (status == TSR_UNSUPPORTED) return status;
    if (status == TSR_OUT_OF_MEMORY) {
        trial_not_run(verdict, trial, variant, ctx, no_memory);
        return status;
    }
    verdict->num_configs++;
    if (status != TSR_OK) {
        trial_fail(verdict, trial, variant, ctx, tsr_last_error());
        return status;
    }
    uint64_t outputs = other != NULL || verdict->is_hashed ? trial_hash_outputs(trial) : 0;
    if (verdict->is_hashed) verdict->bits = (verdict->bits ^ outputs) * 0x9e3779b97f4a7c15u;
    bool is_right = true;
    for (int s = 0; trial->c.spec->slots[s].name != NULL && is_right; s++)
        if (trial_is_output(&trial->c, s))
            is_right =
                trial_compare(trial, s, &trial->given.c.tensor[s], verdict, what, sizeof what);
    if (is_right && other != NULL) {
        bool is_intact;
        status = run_once(other, trial, variant, &is_intact);
        bool has_no_room = (status == TSR_UNSUPPORTED && trial->layout == LAYOUT_FAR) ||
                           status == TSR_OUT_OF_MEMORY;
        if (status == TSR_OUT_OF_MEMORY) trial_not_run(verdict, trial, variant, other, no_memory);
        if (!has_no_room &&
            (status != TSR_OK || !is_intact || trial_hash_outputs(trial) != outputs)) {
            is_right = false;
            snprintf(what, sizeof what, "other values with %d threads and uncached stores",
                     (int)tsr_context_num_threads(other));
        }
    }
    if (is_right && !is_workspace_intact) {
        is_right = false;
        snprintf(what, sizeof what, "wrote outside of its workspace");
    }
    uint64_t inputs = trial_hash_inputs(trial);
    if (is_right && inputs != trial->inputs) {
        is_right = false;
        snprintf(what, sizeof what, "wrote to an input");
    }
    for (int s = 0; trial->c.spec->slots[s].name != NULL && is_right; s++)
        if (trial_is_output(&trial->c, s) &&
            !buffer_is_clean(&trial->given.buffer[s], &trial->given.c.tensor[s])) {
            is_right = false;
            snprintf(what, sizeof what, "wrote outside of %s", trial->c.spec->slots[s].name);
        }
    trial->inputs = inputs; // so that the next variant is not blamed
    if (!is_right) trial_fail(verdict, trial, variant, ctx, what);
    verdict->mean_abs_err =
        verdict->num_elements > 0 ? verdict->sum_abs_err / verdict->num_elements : 0;
    return TSR_OK;
}

// ---- Repeated runs ----------------------------------------------------------------------------

enum { CALLS_BESIDE = 3, CALLS_QUEUED = 96 };

// Queues calls on the stream of another context, and waits for them only now and then.
static tsr_status call_beside(struct mirror *mirror, const char *variant, int64_t repeat) {
    tsr_status status = TSR_OK;
    for (int i = 0; i < CALLS_BESIDE && status == TSR_OK; i++)
        status = mirror->c.spec->call(mirror->ctx, &mirror->c, variant, NULL, 0, NULL);
    if (status == TSR_OK && repeat % (CALLS_QUEUED / CALLS_BESIDE) == 0)
        status = tsr_context_synchronize(mirror->ctx);
    return status;
}

tsr_status trial_repeat(tsr_context *ctx, tsr_context *other, struct trial *trial,
                        const char *variant, int64_t repeats, struct verdict *verdict) {
    bool is_on_device = tsr_context_device(ctx).type != TSR_CPU, is_intact, is_same = true;
    struct mirror beside = {0};
    tsr_status status = run_once(ctx, trial, variant, &is_intact);
    uint64_t first = trial_hash_outputs(trial);
    if (status == TSR_OK && is_on_device) status = mirror_create(&beside, other, &trial->given);
    for (int64_t i = 1; i < repeats && status == TSR_OK && is_same; i++) {
        bool is_beside = i >= repeats / 2;
        if (is_beside && is_on_device) status = call_beside(&beside, variant, i);
        if (status == TSR_OK)
            status = run_once(is_beside && !is_on_device ? other : ctx, trial, variant, &is_intact);
        is_same = status != TSR_OK || trial_hash_outputs(trial) == first;
        if (is_same) continue;
        char what[128];
        snprintf(what, sizeof what, "other values in run %lld of %lld, %s", (long long)i + 1,
                 (long long)repeats,
                 !is_beside     ? "alone"
                 : is_on_device ? "with calls on another stream"
                                : "with other threads and uncached stores");
        trial_fail(verdict, trial, variant, ctx, what);
    }
    if (status == TSR_OUT_OF_MEMORY)
        trial_not_run(verdict, trial, variant, ctx, no_memory);
    else if (status != TSR_OK)
        trial_fail(verdict, trial, variant, ctx, tsr_last_error());
    mirror_release(&beside);
    return status;
}
