// SPDX-License-Identifier: Apache-2.0
// The summary of a profile as tables in markdown, and as JSON.
#include <jansson.h>
#include <math.h>
#include <stdarg.h>

#include "measure/profile_steps.h"

static bool is_on_cuda(const struct profile *profile) { return profile->device.type == TSR_CUDA; }

// ---- Markdown ---------------------------------------------------------------------------------

static void cell(FILE *out, double value, double scale, const char *unit) {
    double v = fabs(value * scale);
    if (isfinite(value))
        fprintf(out, " %.*f%s |", v < 1 ? 3 : v < 100 ? 2 : v < 1000 ? 1 : 0, value * scale, unit);
    else
        fputs(" - |", out);
}

static void share(FILE *out, double value) {
    if (isfinite(value))
        fprintf(out, " %.*f %% |", value < 0.1 ? 1 : 0, 100 * value);
    else
        fputs(" - |", out);
}

static void write_kernels(FILE *out, const struct profile *profile,
                          const struct profile_summary *summary, int top) {
    bool is_cuda = is_on_cuda(profile);
    fprintf(out,
            "\n%s by time\n\n| %s | operation | number | total us | mean us | min | max | of %s |",
            is_cuda ? "Kernels" : "Calls", is_cuda ? "kernel" : "variant",
            is_cuda ? "kernels" : "calls");
    fputs(is_cuda ? " blocks x threads | registers | shared bytes |\n" : "\n", out);
    fputs(is_cuda ? "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
                  : "|---|---|--:|--:|--:|--:|--:|--:|\n",
          out);
    for (int i = 0; i < summary->num_kernels && i < top; i++) {
        const struct profile_kernel *k = &summary->kernels[i];
        fprintf(out, "| %s | %s | %lld |", k->name, k->op, (long long)k->count);
        cell(out, k->total_us, 1, "");
        cell(out, k->total_us / (double)k->count, 1, "");
        cell(out, k->min_us, 1, "");
        cell(out, k->max_us, 1, "");
        share(out, k->share);
        if (is_cuda)
            fprintf(out, " %lld x %d | %d | %d |", (long long)k->num_blocks, k->block_threads,
                    k->num_registers, k->shared_bytes);
        fputc('\n', out);
    }
    if (summary->num_kernels > top)
        fprintf(out, "\n%d more; --top %d shows them.\n", summary->num_kernels - top,
                summary->num_kernels);
}

static void write_steps(FILE *out, const struct profile *profile,
                        const struct profile_summary *summary) {
    bool is_cuda = is_on_cuda(profile);
    fprintf(out,
            "\nOperations, calls in a row\n\n| operation | variant | %s | %s us | GB/s "
            "| of bandwidth | TFLOP/s | of compute | bound by |%s\n",
            is_cuda ? "kernels" : "loops", is_cuda ? "device" : "call",
            is_cuda ? "" : " threads at work |");
    fprintf(out, "|---|---|--:|--:|--:|--:|--:|--:|---|%s\n", is_cuda ? "" : "--:|");
    for (int s = 0; s < profile->num_steps; s++) {
        const struct profile_step *step = &profile->steps[s];
        const struct profile_figures *f = &summary->steps[s];
        fprintf(out, "| %s | %s |", step->label, step->variant);
        cell(out, is_cuda ? f->num_kernels : f->num_loops, 1, "");
        cell(out, f->device_us, 1, "");
        cell(out, f->gb_s, 1, "");
        share(out, f->bandwidth_share);
        cell(out, f->tflops, 1, "");
        share(out, f->compute_share);
        fprintf(out, " %s |",
                !isfinite(f->bandwidth_share)            ? "-"
                : f->bandwidth_share >= f->compute_share ? "memory"
                                                         : "compute");
        if (!is_cuda) share(out, f->threads_busy);
        fputc('\n', out);
    }
}

static void write_overhead(FILE *out, const struct profile *profile,
                           const struct profile_summary *summary) {
    fputs("\nLaunches\n\n| operation | host us | call to kernel us | launch to kernel us "
          "| gap us |\n|---|--:|--:|--:|--:|\n",
          out);
    for (int s = 0; s < profile->num_steps; s++) {
        const struct profile_figures *f = &summary->steps[s];
        fprintf(out, "| %s |", profile->steps[s].label);
        cell(out, f->host_us, 1, "");
        cell(out, f->start_us, 1, "");
        cell(out, f->launch_us, 1, "");
        cell(out, f->gap_us, 1, "");
        fputc('\n', out);
    }
    if (isfinite(summary->busy_share))
        fprintf(out, "\nWhile calls run in a row the device is busy %.0f %% of the time.\n",
                100 * summary->busy_share);
    fputs("\nhost: time of the calling thread for a call in a row; call to kernel, launch to "
          "kernel: on an idle stream, from the call or the driver's launch to the start of the "
          "first kernel; gap: between kernels in a row. All include the overhead of recording.\n",
          out);
}

static void write_copies(FILE *out, const struct profile_summary *summary) {
    fputs("\nCopies of the tensors, pageable memory\n\n| | number | MB | us | GB/s |\n"
          "|---|--:|--:|--:|--:|\n",
          out);
    for (int i = 0; i < summary->num_copies; i++) {
        const struct profile_copies *c = &summary->copies[i];
        fprintf(out, "| %s | %lld |", c->name, (long long)c->count);
        cell(out, c->bytes, 1e-6, "");
        cell(out, c->total_us, 1, "");
        cell(out, c->gb_s, 1, "");
        fputc('\n', out);
    }
    if (isfinite(summary->copy_share))
        fprintf(out,
                "\nIf every call copied its tensors from the host and back, copies would take "
                "%.1f %% of the device's time.\n",
                100 * summary->copy_share);
}

void profile_write_md(FILE *out, const struct profile *profile,
                      const struct profile_summary *summary, int top) {
    fprintf(out, "Profile on %s: %s; %d calls of each operation one at a time, then %d in a row\n",
            profile->device_name, profile->machine, profile->rep, profile->rep);
    write_kernels(out, profile, summary, top);
    write_steps(out, profile, summary);
    if (is_on_cuda(profile)) write_overhead(out, profile, summary);
    if (summary->num_copies > 0) write_copies(out, summary);
    if (profile->num_lost > 0)
        fprintf(out, "\n%lld records were lost; a smaller --rep avoids that.\n",
                (long long)profile->num_lost);
}

// ---- JSON -------------------------------------------------------------------------------------

static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }
static json_t *text(const char *value) {
    json_t *string = *value != '\0' ? json_string(value) : NULL;
    return string != NULL ? string : json_null();
}

static json_t *kernel_json(const struct profile_kernel *k) {
    return json_pack("{s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:i, s:i, s:i}", "name",
                     text(k->name), "op", text(k->op), "number", (json_int_t)k->count, "total_us",
                     number(k->total_us), "min_us", number(k->min_us), "max_us", number(k->max_us),
                     "share", number(k->share), "blocks", (json_int_t)k->num_blocks, "threads",
                     k->block_threads, "registers", k->num_registers, "shared_bytes",
                     k->shared_bytes);
}

static json_t *step_json(const struct profile_step *step, const struct profile_figures *f) {
    json_t *object = json_object();
    char params[256];
#define SET(name, value) json_object_set_new(object, name, value)
    SET("op", text(step->c->spec->op));
    SET("params", text(case_text(step->c, params, sizeof params)));
    SET("dtype", text(tsr_dtype_name(step->c->dtype)));
    SET("variant", text(step->variant));
    SET("kernels", number(f->num_kernels));
    SET("loops", number(f->num_loops));
    SET("device_us", number(f->device_us));
    SET("gb_s", number(f->gb_s));
    SET("share_of_bandwidth", number(f->bandwidth_share));
    SET("tflops", number(f->tflops));
    SET("share_of_compute", number(f->compute_share));
    SET("host_us", number(f->host_us));
    SET("call_to_kernel_us", number(f->start_us));
    SET("launch_to_kernel_us", number(f->launch_us));
    SET("gap_us", number(f->gap_us));
    SET("threads_at_work", number(f->threads_busy));
#undef SET
    return object;
}

bool profile_write_json(FILE *out, const struct profile *profile,
                        const struct profile_summary *summary) {
    json_t *kernels = json_array(), *steps = json_array(), *copies = json_array();
    for (int i = 0; i < summary->num_kernels; i++)
        json_array_append_new(kernels, kernel_json(&summary->kernels[i]));
    for (int s = 0; s < profile->num_steps; s++)
        json_array_append_new(steps, step_json(&profile->steps[s], &summary->steps[s]));
    for (int i = 0; i < summary->num_copies; i++) {
        const struct profile_copies *c = &summary->copies[i];
        json_array_append_new(copies,
                              json_pack("{s:s, s:I, s:o, s:o, s:o}", "name", c->name, "number",
                                        (json_int_t)c->count, "bytes", number(c->bytes), "total_us",
                                        number(c->total_us), "gb_s", number(c->gb_s)));
    }
    json_t *document =
        json_pack("{s:i, s:o, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:I}", "schema", 1, "env",
                  result_env_json(), "device", profile->device_name, "machine", profile->machine,
                  "rep", profile->rep, "kernels", kernels, "operations", steps, "copies", copies,
                  "share_at_work", number(summary->busy_share), "copy_share",
                  number(summary->copy_share), "lost", (json_int_t)profile->num_lost);
    bool is_written = json_dumpf(document, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(document);
    return is_written && fputc('\n', out) != EOF;
}
