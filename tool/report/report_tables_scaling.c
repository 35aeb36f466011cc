// SPDX-License-Identifier: Apache-2.0
// Tables on scaling, and on each operation's utilisation of the machine.
#include <math.h>
#include <string.h>

#include "report/report.h"

static bool is_of(const struct result *r, const char *study) {
    return r->study != NULL && strcmp(r->study, study) == 0 && r->peer == NULL;
}

static enum cell_tone efficiency_tone(double share) {
    return share > 0.85 ? TONE_GOOD : share > 0.6 ? TONE_PLAIN : TONE_FAIR;
}

// ---- Over batch and problem -------------------------------------------------------------------

static void build_sweep(const struct report *report, struct report_tables *tables,
                        const char *study, const char *id, const char *title, const char *size,
                        const char *note) {
    const char *const columns[] = {size,       "#ms",           "#times the first", "#tokens/s",
                                   "#GFLOP/s", "#efficiency %", "#% of ceiling",    NULL};
    struct report_table *table = table_begin(tables, id, title, columns);
    const struct result *first = NULL;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (!is_of(r, study)) continue;
        if (first == NULL) first = r;
        double tokens = case_real(&r->c, "batch_size") * case_real(&r->c, "seqlen_q");
        table_row(table);
        table_text(table, TONE_PLAIN, "%.0f",
                   case_real(&r->c, strcmp(study, "batch") == 0 ? "batch_size" : "seqlen_q"));
        table_number(table, TONE_PLAIN, result_device_ms(r), 4);
        table_number(table, TONE_QUIET, result_device_ms(r) / result_device_ms(first), 3);
        table_number(table, TONE_PLAIN, tokens / result_device_ms(r) * 1e3, 4);
        table_number(table, TONE_PLAIN, 1e3 * r->tflops, 4);
        table_number(table, efficiency_tone(r->efficiency), 100 * r->efficiency, 3);
        table_number(table, TONE_PLAIN, 100 * r->share_of_ceiling, 3);
    }
    table_note(
        table,
        "Attention forward in %s, %s, %s Efficiency: GFLOP/s divided by those of the first row.",
        first != NULL ? tsr_dtype_name(first->c.dtype) : "",
        report->options->is_non_causal ? "without a mask" : "causal", note);
}

// ---- Over threads -----------------------------------------------------------------------------

static void build_threads(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"operation", "shape",     "threads",
                                          "#ms",       "#speed-up", "#efficiency %",
                                          "#GFLOP/s",  "#GB/s",     NULL};
    if (report->machine.num_threads < 2) return;
    struct report_table *table =
        table_begin(tables, "scaling-threads", "Strong scaling over threads", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        char shape[112];
        if (!is_of(r, "threads")) continue;
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", r->c.spec->op);
        table_text(table, TONE_QUIET, "%s", result_shape(r, shape, sizeof shape));
        table_text(table, TONE_PLAIN, "%d", r->num_threads);
        table_number(table, TONE_PLAIN, result_device_ms(r), 4);
        table_number(table, TONE_PLAIN, r->times * r->efficiency, 3);
        table_number(table, efficiency_tone(r->efficiency), 100 * r->efficiency, 3);
        table_number(table, TONE_PLAIN, 1e3 * r->tflops, 3);
        table_number(table, TONE_PLAIN, r->gb_s, 3);
    }
    table_note(table,
               "The same call with more threads; efficiency is the speed-up divided by the number "
               "of threads. Two hardware threads of one core, and memory bandwidth that one thread "
               "can saturate, limit the gain.");
}

// ---- Utilisation ------------------------------------------------------------------------------

static double overhead_ms(const struct report *report) {
    for (int i = 0; i < report->results.count; i++)
        if (is_of(&report->results.items[i], "overhead")) return report->results.items[i].median_ms;
    return NAN;
}

static void build_utilisation(const struct report *report, struct report_tables *tables) {
    static const char *const ops[] = {
        "attention_forward", "attention_backward", "attention_decode", "matmul_forward",
        "layernorm_forward", "rmsnorm_forward",    "softmax_forward",  NULL};
    static const char *const columns[] = {
        "operation",        "dtype",     "shape",          "#compute %", "#bandwidth %",
        "#call overhead %", "#copies %", "#fusion, times", "limit",      NULL};
    struct report_table *table = table_begin(tables, "utilisation", "Utilisation", columns);
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    double call_ms = overhead_ms(report), copy = NAN;
    const struct report_machine *machine = &report->machine;
    if (machine->num_levels > 0) copy = machine->levels[machine->num_levels - 1].copy_gb_s;
    for (int i = 0; i < num_rows; i++) {
        const struct result *r = rows[i], *before = report_baseline_of(report, r);
        bool is_shown = false;
        for (int o = 0; ops[o] != NULL; o++) is_shown |= strcmp(r->c.spec->op, ops[o]) == 0;
        if (!is_shown) continue;
        char shape[112];
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", r->c.spec->op);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(r->c.dtype));
        table_text(table, TONE_QUIET, "%s", result_shape(r, shape, sizeof shape));
        table_number(table, TONE_PLAIN, 1e5 * r->tflops / report_peak_gflops(report, r), 3);
        table_number(table, TONE_PLAIN, 100 * r->gb_s / copy, 3);
        table_number(table, TONE_QUIET, 100 * call_ms / result_device_ms(r), 2);
        table_count(table, TONE_QUIET, 0);
        table_number(table, TONE_PLAIN,
                     before != NULL ? result_device_ms(before) / result_device_ms(r) : NAN, 3);
        table_text(table, TONE_QUIET, "%s",
                   result_is_compute_bound(report, r) ? "compute" : "memory");
    }
    char call[32] = "not measured";
    if (isfinite(call_ms)) snprintf(call, sizeof call, "%.2g µs", 1e3 * call_ms);
    table_note(
        table,
        "The largest shape of each operation. Compute: GFLOP/s divided by the measured peak. "
        "Bandwidth: useful GB/s divided by the copy bandwidth of memory; data in the caches may "
        "exceed 100 %%. Call overhead: the time of a softmax of one element (%s) divided by the "
        "call's. Copies: none between devices, because kernels read the caller's memory. Fusion: "
        "the unfused form's time divided by the fused one's.",
        call);
}

void tables_build_scaling(const struct report *report, struct report_tables *tables) {
    build_sweep(report, tables, "batch", "scaling-batch", "Scaling over the batch", "batch",
                "512 tokens, 8 heads of 64.");
    build_sweep(report, tables, "problem", "scaling-problem", "Scaling over the problem", "S",
                "batch 1, 8 heads of 64: the tokens double, the arithmetic grows fourfold.");
    build_threads(report, tables);
    build_utilisation(report, tables);
}
