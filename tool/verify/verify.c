// SPDX-License-Identifier: Apache-2.0
// The walk over every operation, variant, dtype and instruction set, on edge cases and random ones.
#define _GNU_SOURCE
#include "verify/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands/command.h"
#include "system/device_option.h"
#include "system/heap.h"
#include "system/signals.h"
#include "verify/verify_walk.h"

tsr_status verify_case(tsr_context *ctx, const struct op_case *c, const char *variant,
                       uint64_t seed, enum edge_fill fill, enum edge_layout layout,
                       struct verdict *verdict) {
    struct trial trial;
    tsr_status status = trial_create(&trial, c, seed, fill, layout);
    if (status != TSR_OK) return status;
    status = trial_run(ctx, NULL, &trial, variant, verdict);
    trial_release(&trial);
    return status;
}

// ---- The walk ---------------------------------------------------------------------------------

// For each instruction set one context, and another with a different number of threads and almost no shared cache, so that
// it uses non-temporal stores. Both must give the same bits.
struct contexts {
    tsr_context *main[TSR_ISA_COUNT], *other[TSR_ISA_COUNT];
    tsr_isa best;
};

// On a device there is one context, and another on its own stream.
static bool contexts_create_on_device(struct contexts *contexts, tsr_device device, char *error,
                                      size_t error_bytes) {
    const tsr_context_options with = TSR_CONTEXT_OPTIONS(.device = device);
    void *stream;
    *contexts = (struct contexts){.best = TSR_ISA_SCALAR};
    if (tsr_context_create(&with, &contexts->main[TSR_ISA_SCALAR]) == TSR_OK &&
        tsr_context_create(&with, &contexts->other[TSR_ISA_SCALAR]) == TSR_OK &&
        tsr_stream_create(contexts->other[TSR_ISA_SCALAR], &stream) == TSR_OK &&
        tsr_context_set_stream(contexts->other[TSR_ISA_SCALAR], stream) == TSR_OK)
        return true;
    snprintf(error, error_bytes, "%s", tsr_last_error());
    return false;
}

static bool contexts_create(struct contexts *contexts, const struct verify_options *options,
                            bool *lacks_memory, char *error, size_t error_bytes) {
    // A supported instruction set's context can only fail for lack of memory; devices were checked before.
    *lacks_memory = true;
    if (options->device.type != TSR_CPU)
        return contexts_create_on_device(contexts, options->device, error, error_bytes);
    *contexts = (struct contexts){.best = TSR_ISA_AUTO};
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        if (options->isa != NULL && strcmp(options->isa, tsr_isa_name((tsr_isa)isa)) != 0) continue;
        if (!tsr_isa_is_supported((tsr_isa)isa)) continue;
        tsr_context_options with =
            TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = options->num_threads);
        if (tsr_context_create(&with, &contexts->main[isa]) != TSR_OK) {
            snprintf(error, error_bytes, "%s", tsr_last_error());
            return false;
        }
        with.num_threads = tsr_context_num_threads(contexts->main[isa]) == 3 ? 2 : 3;
        with.l3_bytes = 1;
        if (tsr_context_create(&with, &contexts->other[isa]) != TSR_OK) {
            snprintf(error, error_bytes, "%s", tsr_last_error());
            return false;
        }
        contexts->best = (tsr_isa)isa;
    }
    *lacks_memory = false;
    if (contexts->best != TSR_ISA_AUTO) return true;
    snprintf(error, error_bytes, "isa '%s' is not supported by this machine", options->isa);
    return false;
}

static void contexts_destroy(struct contexts *contexts) {
    for (int isa = 0; isa < TSR_ISA_COUNT; isa++) {
        tsr_context *other = contexts->other[isa];
        if (other != NULL && tsr_context_device(other).type != TSR_CPU)
            (void)tsr_stream_destroy(other, tsr_context_stream(other));
        tsr_context_destroy(contexts->main[isa]);
        tsr_context_destroy(other);
    }
}

struct verdict *verify_row_of(struct verify_report *report, const char *op, const char *variant,
                              tsr_dtype dtype, tsr_isa isa) {
    for (int i = 0; i < report->num_rows; i++) {
        struct verify_row *row = &report->rows[i];
        if (row->dtype == dtype && row->isa == isa && strcmp(row->op, op) == 0 &&
            strcmp(row->variant, variant) == 0)
            return &row->verdict;
    }
    report->rows = heap_grow(report->rows, (size_t)(report->num_rows + 1), sizeof *report->rows);
    report->rows[report->num_rows] = (struct verify_row){op, variant, dtype, isa, {0}};
    return &report->rows[report->num_rows++].verdict;
}

// Runs one trial on every variant and instruction set that the options allow.
static void run_everywhere(const struct verify_options *options, struct contexts *contexts,
                           struct trial *trial, bool is_repeated, struct verify_report *report) {
    const char *op = trial->c.spec->op;
    int num_variants = tsr_variant_count(op);
    for (int v = -1; v < num_variants; v++) {
        tsr_variant_info info = {.name = NULL, .flags = 0};
        if (v >= 0 && tsr_variant_info_get(op, v, &info) != TSR_OK) continue;
        if (v >= 0 && !device_has_variant(options->device, &info)) continue;
        const char *name = v < 0 ? "(default)" : info.name;
        if (options->variant != NULL && strcmp(options->variant, name) != 0) continue;
        for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
            if (contexts->main[isa] == NULL) continue;
            bool is_per_isa = v >= 0 && (info.flags & TSR_VARIANT_ISA) != 0;
            if (!is_per_isa && isa != (int)contexts->best) continue;
            struct verdict *verdict = verify_row_of(report, op, name, trial->c.dtype, (tsr_isa)isa);
            int64_t failed = verdict->num_failed, not_run = verdict->num_not_run;
            verdict->is_hashed = options->is_hashed;
            tsr_status status =
                trial_run(contexts->main[isa], is_repeated ? contexts->other[isa] : NULL, trial,
                          info.name, verdict);
            if (status == TSR_OK && options->repeats > 1)
                status = trial_repeat(contexts->main[isa], contexts->other[isa], trial, info.name,
                                      options->repeats, verdict);
            report->num_runs += status != TSR_UNSUPPORTED && status != TSR_OUT_OF_MEMORY;
            report->num_failed += verdict->num_failed - failed;
            report->num_not_run += verdict->num_not_run - not_run;
        }
    }
}

static double seconds_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void say_no_op(const struct verify_options *options, char *error, size_t bytes) {
    char names[512];
    snprintf(error, bytes, "there is no operation '%s' for %s, expected one of %s",
             options->op != NULL ? options->op : "any", tsr_device_name(options->device),
             spec_commands_text(", ", names, sizeof names));
}

static bool has_variant(const struct op_spec *spec, tsr_device device, const char *name) {
    tsr_variant_info info;
    for (int v = 0; v < tsr_variant_count(spec->op); v++)
        if (tsr_variant_info_get(spec->op, v, &info) == TSR_OK &&
            device_has_variant(device, &info) && strcmp(info.name, name) == 0)
            return true;
    return false;
}

// Explains why nothing ran: no selected operation has the variant, there are no cases, or the variant supports none of
// them.
static void say_no_variant(const struct verify_options *options, int64_t num_cases, char *error,
                           size_t bytes) {
    const char *name = options->variant != NULL ? options->variant : "(default)";
    const struct op_spec *last = NULL;
    bool is_known = strcmp(name, "(default)") == 0;
    for (int i = 0; op_specs[i] != NULL; i++) {
        if (!walk_wants_op(options, op_specs[i])) continue;
        last = op_specs[i];
        is_known |= has_variant(last, options->device, name);
    }
    if (is_known && num_cases == 0) {
        snprintf(error, bytes, "there are no cases: --configs, --edges and --cases give none");
        return;
    }
    if (is_known) {
        snprintf(error, bytes, "variant '%s' supports none of the cases", name);
        return;
    }
    size_t used = (size_t)snprintf(error, bytes, "there is no variant '%s' for %s", name,
                                   tsr_device_name(options->device));
    if (options->op == NULL || used >= bytes) return;
    used += (size_t)snprintf(error + used, bytes - used, ", %s has (default)", last->op);
    tsr_variant_info info;
    for (int v = 0; v < tsr_variant_count(last->op) && used < bytes; v++)
        if (tsr_variant_info_get(last->op, v, &info) == TSR_OK &&
            device_has_variant(options->device, &info))
            used += (size_t)snprintf(error + used, bytes - used, ", %s", info.name);
}

static void count_refusal(const struct walk_step *step, const struct contexts *contexts,
                          struct verify_report *report) {
    const struct op_case *c = &step->trial.c;
    struct verdict *verdict =
        verify_row_of(report, c->spec->op, "reference", c->dtype, contexts->best);
    if (step->lacks_memory)
        report->num_not_run++;
    else
        verdict->num_configs++, report->num_failed++;
    (step->lacks_memory ? trial_not_run : trial_fail)(
        verdict, &step->trial, "reference", contexts->main[contexts->best], step->trial.refusal);
}

static bool walk_all(const struct verify_options *options, struct contexts *contexts,
                     struct verify_report *report, char *error, size_t error_bytes) {
    struct walk *walk = walk_start(options);
    struct walk_step step;
    while (walk_next(walk, &step)) {
        if (step.is_refused) {
            count_refusal(&step, contexts, report);
        } else {
            run_everywhere(options, contexts, &step.trial, step.is_repeated, report);
            trial_release(&step.trial);
        }
        report->num_edges += step.is_edge;
        report->num_configs += !step.is_edge;
        if (options->progress != NULL)
            options->progress(options->progress_user, report, step.trial.c.spec->op);
    }
    return walk_end(walk, error, error_bytes);
}

bool verify_run(const struct verify_options *options, struct verify_report *report, char *error,
                size_t error_bytes) {
    struct contexts contexts;
    *report = (struct verify_report){0};
    int num_specs = 0;
    for (int i = 0; op_specs[i] != NULL; i++) num_specs += walk_wants_op(options, op_specs[i]);
    if (num_specs == 0) {
        say_no_op(options, error, error_bytes);
        return false;
    }
    if (options->dtype != NULL && !walk_has_dtype(options->dtype)) {
        snprintf(error, error_bytes, "dtype is '%s', expected f32, bf16 or f16", options->dtype);
        return false;
    }
    if (!contexts_create(&contexts, options, &report->lacks_memory, error, error_bytes)) {
        contexts_destroy(&contexts);
        return false;
    }
    snprintf(report->device, sizeof report->device, "%s", tsr_device_name(options->device));
    if (options->device.type != TSR_CPU)
        snprintf(report->arch, sizeof report->arch, "%s",
                 device_arch(contexts.main[contexts.best]));
    double start = seconds_now();
    bool is_fine = walk_all(options, &contexts, report, error, error_bytes);
    report->seconds = seconds_now() - start;
    for (int i = 0; i < report->num_rows; i++)
        report->worst_err_over_bound =
            fmax(report->worst_err_over_bound, report->rows[i].verdict.err_over_bound);
    contexts_destroy(&contexts);
    report->is_interrupted = signals_seen() != 0;
    if (is_fine && report->num_runs + report->num_failed + report->num_not_run == 0 &&
        !report->is_interrupted) {
        say_no_variant(options, report->num_edges + report->num_configs, error, error_bytes);
        return false;
    }
    return is_fine;
}

int verify_exit_code(const struct verify_report *report, const char *command) {
    if (report->num_not_run > 0) {
        const char *obstacle = "";
        for (int i = report->num_rows - 1; i >= 0; i--)
            if (report->rows[i].verdict.num_not_run > 0)
                obstacle = report->rows[i].verdict.obstacle;
        fprintf(stderr, "tessera %s: %lld of the cases could not run: %s\n", command,
                (long long)report->num_not_run, obstacle);
    }
    return report->num_failed > 0    ? EXIT_WRONG
           : report->num_not_run > 0 ? EXIT_COULD_NOT_RUN
                                     : EXIT_FINE;
}

void verify_report_free(struct verify_report *report) {
    free(report->rows);
    *report = (struct verify_report){0};
}
