// SPDX-License-Identifier: Apache-2.0
// Charts of attention by length, of scaling and of utilisation.
#include <math.h>
#include <string.h>

#include "report/report.h"

static bool is_of(const struct result *r, const char *study, const char *op) {
    return r->study != NULL && strcmp(r->study, study) == 0 && r->peer == NULL &&
           (op == NULL || strcmp(r->c.spec->op, op) == 0);
}

// ---- Attention by length ----------------------------------------------------------------------

// One line for each variant, in this order, whatever the order of measuring.
static const struct line {
    const char *study, *variant, *name;
    enum series_style style;
} lines[] = {
    {"length", "tuned", "tuned", STYLE_SOLID},          {"length", "naive", "naive", STYLE_QUIET},
    {"length", "flash1", "flash1", STYLE_SOLID},        {"length", "flash2", "flash2", STYLE_SOLID},
    {"length-gqa", "tuned", "tuned, GQA", STYLE_SOLID},
};
enum { NUM_LINES = sizeof lines / sizeof *lines };

static double time_of(const struct report *report, const struct result *r) {
    (void)report;
    return result_device_ms(r);
}
static double rate_of(const struct report *report, const struct result *r) {
    (void)report;
    return 1e3 * r->tflops;
}
static double memory_of(const struct report *report, const struct result *r) {
    (void)report;
    return r->peak_bytes / 1e6;
}
static double speedup_of(const struct report *report, const struct result *r) {
    const struct result *before = report_baseline_of(report, r);
    return before != NULL && before != r ? result_device_ms(before) / result_device_ms(r) : NAN;
}

static struct report_chart *
by_length(const struct report *report, struct report_charts *charts, const char *id,
          const char *title, const char *y_title, const char *note,
          double (*value)(const struct report *report, const struct result *r)) {
    struct report_chart *chart =
        chart_begin(charts, CHART_LINES, id, title, "sequence length S", y_title, note);
    chart->is_log_x = true;
    for (int l = 0; l < NUM_LINES; l++)
        for (int i = 0; i < report->results.count; i++) {
            const struct result *r = &report->results.items[i];
            if (!is_of(r, lines[l].study, "attention_forward") ||
                !result_is_variant(r, lines[l].variant) || !isfinite(value(report, r)))
                continue;
            chart_add(chart_series_of(chart, lines[l].name, lines[l].style),
                      case_real(&r->c, "seqlen_q"), value(report, r), "");
        }
    return chart;
}

// A dashed line over all lengths.
static void add_ceiling(struct report_chart *chart, const char *name, double value) {
    double first = INFINITY, last = 0;
    for (int s = 0; s < chart->num_series; s++)
        for (int i = 0; i < chart->series[s].count; i++) {
            first = fmin(first, chart->series[s].points[i].x);
            last = fmax(last, chart->series[s].points[i].x);
        }
    if (!(last > first)) return;
    struct chart_series *ceiling = chart_series_of(chart, name, STYLE_CEILING);
    chart_add(ceiling, first, value, "");
    chart_add(ceiling, last, value, "");
}

void charts_build_attention(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart =
        by_length(report, charts, "attention-time", "Attention: time by length", "ms",
                  "Lower is better. Forward, every variant, both axes logarithmic: doubling S "
                  "means four times the arithmetic.",
                  time_of);
    chart->is_log_y = true;
    chart_end(charts, chart);
    chart =
        by_length(report, charts, "attention-rate", "Attention: throughput by length", "GFLOP/s",
                  "Higher is better. Forward, every variant; the dashed line is the measured fp32 "
                  "FMA peak.",
                  rate_of);
    add_ceiling(chart, "fp32 peak", report->machine.peak_gflops);
    chart_end(charts, chart);
    chart = by_length(
        report, charts, "attention-memory", "Attention: memory by length", "MB",
        "Lower is better. High-water mark of tensors and workspace, both axes logarithmic: "
        "naive grows with the square of S, the others grow linearly.",
        memory_of);
    chart->is_log_y = true;
    chart_end(charts, chart);
    chart = by_length(
        report, charts, "attention-speedup", "Attention: speed-up over naive", "times faster",
        "Higher is better. The time of naive, which writes the matrix of scores, divided by the "
        "time of the variant: 1 is equally fast.",
        speedup_of);
    chart_end(charts, chart);

    chart = chart_begin(
        charts, CHART_BARS, "attention-grid", "Attention, fused over unfused", "times faster", "",
        "How many times faster than naive, forward and backward, on the published grid of "
        "shapes: sequence length S, head size D, batch × heads.");
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        const struct result *before = report_baseline_of(report, r);
        if (!is_of(r, "grid", NULL) || before == NULL || result_is_baseline(r)) continue;
        char label[112];
        snprintf(label, sizeof label, "S %.0f, D %.0f, %.0f × %.0f heads",
                 case_real(&r->c, "seqlen_q"), case_real(&r->c, "head_dim"),
                 case_real(&r->c, "batch_size"), case_real(&r->c, "num_heads"));
        bool is_forward = strcmp(r->c.spec->op, "attention_forward") == 0;
        chart_add(chart_series_of(chart, is_forward ? "forward" : "backward", STYLE_SOLID), i,
                  result_device_ms(before) / result_device_ms(r), label);
    }
    chart_end(charts, chart);
}

// ---- Scaling and utilisation ------------------------------------------------------------------

static void build_efficiency(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_LINES, "scaling", "Scaling over batch and problem", "times the first",
        "% of the first's GFLOP/s",
        "Attention forward: throughput relative to the smallest size, as the batch or the sequence "
        "grows. 100 % is perfect scaling.");
    static const char *const studies[] = {"batch", "problem"};
    static const char *const names[] = {"batch 1 to 16", "S 512 to 4096"};
    chart->is_log_x = true;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < report->results.count; i++) {
            const struct result *r = &report->results.items[i];
            if (!is_of(r, studies[s], NULL)) continue;
            chart_add(chart_series_of(chart, names[s], STYLE_SOLID), r->times, 100 * r->efficiency,
                      "");
        }
    }
    add_ceiling(chart, "perfect", 100);
    chart_end(charts, chart);
}

static void build_threads(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_LINES, "scaling-threads", "Scaling over threads", "threads", "times faster",
        "The same call with more threads; the dashed line is as many "
        "times faster as there are threads.");
    int all = report->machine.num_threads;
    chart->is_log_x = true;
    for (int i = 0; all > 1 && i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (is_of(r, "threads", NULL))
            chart_add(chart_series_of(chart, r->c.spec->op, STYLE_SOLID), r->num_threads,
                      r->times * r->efficiency, "");
    }
    if (chart->num_series > 0) {
        struct chart_series *ideal = chart_series_of(chart, "perfect", STYLE_CEILING);
        chart_add(ideal, 1, 1, "");
        chart_add(ideal, all, all, "");
    }
    chart_end(charts, chart);
}

static void build_utilisation(const struct report *report, struct report_charts *charts) {
    static const char *const ops[] = {"attention_forward", "attention_backward", "matmul_forward",
                                      "layernorm_forward", "softmax_forward",    NULL};
    struct report_chart *chart = chart_begin(
        charts, CHART_BARS, "utilisation", "Utilisation of the machine", "% of the measured peak",
        "",
        "The largest shape of each operation: GFLOP/s divided by the measured peak of its unit, "
        "and useful GB/s divided by the copy bandwidth of memory. A good kernel has one of the two "
        "near 100 %; data in the caches may exceed it.");
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    const struct report_machine *machine = &report->machine;
    for (int i = 0; i < num_rows && machine->num_levels > 0; i++) {
        bool is_shown = false;
        for (int o = 0; ops[o] != NULL; o++) is_shown |= strcmp(rows[i]->c.spec->op, ops[o]) == 0;
        if (!is_shown) continue;
        char name[112];
        snprintf(name, sizeof name, "%s %s", rows[i]->c.spec->op, tsr_dtype_name(rows[i]->c.dtype));
        chart_add(chart_series_of(chart, "compute", STYLE_SOLID), i,
                  1e5 * rows[i]->tflops / report_peak_gflops(report, rows[i]), name);
        chart_add(chart_series_of(chart, "bandwidth", STYLE_QUIET), i,
                  100 * rows[i]->gb_s / machine->levels[machine->num_levels - 1].copy_gb_s, name);
    }
    chart_end(charts, chart);
}

void charts_build_scaling(const struct report *report, struct report_charts *charts) {
    build_efficiency(report, charts);
    build_threads(report, charts);
    build_utilisation(report, charts);
}
