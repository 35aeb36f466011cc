// SPDX-License-Identifier: Apache-2.0
// The charts of the report, in order; those of attention and of scaling are in report_charts_attention.c.
#include <math.h>
#include <string.h>

#include "report/report.h"

// "layernorm_forward bf16": the name of a bar.
static const char *row_name(const struct result *r, char *buffer, size_t bytes) {
    snprintf(buffer, bytes, "%s %s", r->c.spec->op, tsr_dtype_name(r->c.dtype));
    return buffer;
}

static void build_share(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_BARS, "share", "Share of the measured ceiling", "% of ceiling", "",
        "How close the largest shape of each operation comes to this machine's ceiling.");
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    for (int i = 0; i < num_rows; i++) {
        char name[112];
        bool is_compute = result_is_compute_bound(report, rows[i]);
        chart_add(chart_series_of(chart, is_compute ? "limited by compute" : "limited by memory",
                                  STYLE_SOLID),
                  i, 100 * rows[i]->share_of_ceiling, row_name(rows[i], name, sizeof name));
    }
    chart_end(charts, chart);
}

static void build_fusion(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_BARS, "fusion", "Fused over unfused", "times faster", "",
        "How many times faster the fused form is than the unfused one, largest shapes.");
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    for (int i = 0; i < num_rows; i++) {
        const struct result *baseline = report_baseline_of(report, rows[i]);
        char name[112];
        if (baseline != NULL && result_has_unfused(rows[i]))
            chart_add(chart_series_of(chart, "speed-up", STYLE_SOLID), i,
                      result_device_ms(baseline) / result_device_ms(rows[i]),
                      row_name(rows[i], name, sizeof name));
    }
    chart_end(charts, chart);
}

static void build_traffic(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_BARS, "traffic", "Bytes moved, by form", "MB", "",
        "Bytes that each form moves between kernels and memory, counted from its passes.");
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    for (int i = 0; i < num_rows; i++) {
        struct op_traffic fused, unfused;
        char name[112];
        if (report_baseline_of(report, rows[i]) == NULL ||
            !traffic_of(&rows[i]->c, false, &fused) || !traffic_of(&rows[i]->c, true, &unfused))
            continue;
        row_name(rows[i], name, sizeof name);
        chart_add(chart_series_of(chart, "unfused", STYLE_QUIET), i,
                  (unfused.read_bytes + unfused.write_bytes) / 1e6, name);
        chart_add(chart_series_of(chart, "fused", STYLE_SOLID), i,
                  (fused.read_bytes + fused.write_bytes) / 1e6, name);
    }
    chart_end(charts, chart);
}

// GB/s of the fused and the unfused form of a row operation over one of its sizes.
static void build_rows(const struct report *report, struct report_charts *charts, const char *op,
                       const char *id, const char *title, const char *x_title) {
    struct report_chart *chart = chart_begin(
        charts, CHART_LINES, id, title, x_title, "GB/s",
        "Higher is better. fp32 unless --dtype is given. GB/s count every tensor once, so an "
        "unfused form, which reads tensors several times, shows less. The dashed line is the copy "
        "bandwidth of memory; shapes that fit into the caches may exceed it.");
    chart->is_log_x = true;
    double first = INFINITY, last = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (strcmp(r->c.spec->op, op) != 0 || r->c.dtype != report_row_dtype(report) ||
            !report_is_plain(report, r))
            continue;
        bool is_baseline = result_is_baseline(r);
        double cols = case_real(&r->c, "cols");
        chart_add(chart_series_of(chart, is_baseline ? "unfused" : "fused",
                                  is_baseline ? STYLE_QUIET : STYLE_SOLID),
                  cols, r->gb_s, "");
        first = fmin(first, cols);
        last = fmax(last, cols);
    }
    const struct report_machine *machine = &report->machine;
    if (machine->num_levels > 0 && last > first) {
        double copy = machine->levels[machine->num_levels - 1].copy_gb_s;
        struct chart_series *ceiling = chart_series_of(chart, "copy through memory", STYLE_CEILING);
        chart_add(ceiling, first, copy, "");
        chart_add(ceiling, last, copy, "");
    }
    chart_end(charts, chart);
}

static void build_matmul(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_LINES, "matmul", "Matrix product by size", "N = K", "GFLOP/s",
        "Higher is better. Square products, M = N = K (the largest with fewer rows), by dtype. The "
        "dashed line is the measured fp32 FMA peak; a unit for 16-bit products may exceed "
        "it.");
    chart->is_log_x = true;
    double first = INFINITY, last = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (strcmp(r->c.spec->op, "matmul_forward") != 0 || result_is_baseline(r) ||
            !report_is_plain(report, r))
            continue;
        double n = case_real(&r->c, "n");
        if (n != case_real(&r->c, "k")) continue;
        chart_add(chart_series_of(chart, tsr_dtype_name(r->c.dtype), STYLE_SOLID), n,
                  1e3 * r->tflops, r->scaled_from[0] ? "fewer rows" : "");
        first = fmin(first, n);
        last = fmax(last, n);
    }
    if (last > first) {
        struct chart_series *ceiling = chart_series_of(chart, "fp32 peak", STYLE_CEILING);
        chart_add(ceiling, first, report->machine.peak_gflops, "");
        chart_add(ceiling, last, report->machine.peak_gflops, "");
    }
    chart_end(charts, chart);
}

// Adds a level's slope from `first` to the point where it meets the roof.
static void add_slope(struct report_chart *chart, const struct report_level *level, double first,
                      double last, double roof) {
    char name[64];
    double bend = fmin(roof / level->copy_gb_s, last);
    snprintf(name, sizeof name, "%s %.0f GB/s", level->name, level->copy_gb_s);
    if (!(bend > first)) return;
    struct chart_series *series = chart_series_of(chart, name, STYLE_CEILING);
    chart_add(series, first, first * level->copy_gb_s, "");
    chart_add(series, bend, bend * level->copy_gb_s, "");
}

// The roofs for the dtypes of the chart: fp32 FMA, and the unit for 16-bit products if it is faster.
static void add_roofs(const struct report *report, struct report_chart *chart, double first,
                      double last, double unit) {
    const struct report_machine *machine = &report->machine;
    bool has_unit = unit > 1.05 * machine->peak_gflops;
    const double roofs[] = {machine->peak_gflops, unit};
    static const char *const names[] = {"fp32 peak", "16-bit peak"};
    double steepest = 0;
    for (int i = 0; i < machine->num_levels; i++) {
        add_slope(chart, &machine->levels[i], first, last, roofs[has_unit]);
        steepest = fmax(steepest, machine->levels[i].copy_gb_s);
    }
    for (int i = 0; i <= has_unit; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %.0f GFLOP/s", names[i], roofs[i]);
        struct chart_series *series = chart_series_of(chart, name, STYLE_CEILING);
        double bend = steepest > 0 ? roofs[i] / steepest : first;
        chart_add(series, fmin(fmax(bend, first), last / 10), roofs[i], "");
        chart_add(series, last, roofs[i], "");
    }
}

static void build_roofline(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_SCATTER, "roofline", "Roofline", "FLOP per byte", "GFLOP/s",
        "Each dot is one measured case: further right it computes more on each byte, further up it "
        "runs faster. A slanted line is the bandwidth of a level of memory, a flat line the peak "
        "of "
        "arithmetic. A dot close below the line of the level that holds its tensors has little "
        "left to gain. Left of the bend memory is the limit, right of it arithmetic.");
    chart->is_log_x = chart->is_log_y = true;
    double first = INFINITY, last = 0, unit = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        bool is_overhead = r->study != NULL && strcmp(r->study, "overhead") == 0;
        if (r->peer != NULL || r->num_threads != report->machine.num_threads || is_overhead)
            continue;
        double flops = result_flops(r), intensity = flops / result_bytes(r);
        if (!(flops > 0) || !(intensity > 0) || !isfinite(intensity)) continue;
        char shape[64], label[112];
        snprintf(label, sizeof label, "%s %s %s, %s", r->c.spec->op, tsr_dtype_name(r->c.dtype),
                 r->variant, result_shape(r, shape, sizeof shape));
        bool is_baseline = result_is_baseline(r);
        bool is_attention = strncmp(r->c.spec->op, "attention", 9) == 0;
        chart_add(chart_series_of(chart,
                                  is_baseline    ? "unfused"
                                  : is_attention ? "attention, fused"
                                                 : "fused, tuned",
                                  is_baseline ? STYLE_QUIET : STYLE_SOLID),
                  intensity, flops / result_device_ms(r) / 1e6, label);
        if (r->c.dtype != TSR_F32) unit = fmax(unit, report_peak_gflops(report, r));
        first = fmin(first, intensity);
        last = fmax(last, intensity);
    }
    if (last > 0)
        add_roofs(report, chart, pow(10, floor(log10(fmin(first, 0.25)))),
                  pow(10, ceil(log10(fmax(last, 40)))), unit);
    chart_end(charts, chart);
}

static void build_errors(const struct report *report, struct report_charts *charts) {
    struct report_chart *chart = chart_begin(
        charts, CHART_BARS, "errors", "Worst error over its bound", "err / bound", "",
        "The largest error of any element of any variant in verification, divided by its derived "
        "bound: up to 1 is right. An operation without a bar is exact. 16-bit results are near 1, "
        "because rounding, which no kernel can avoid, uses up most of the bound.");
    for (int i = 0; i < report->verify.num_rows; i++) {
        const struct verify_row *row = &report->verify.rows[i];
        if (row->verdict.num_configs == 0) continue;
        struct chart_series *series =
            chart_series_of(chart, tsr_dtype_name(row->dtype), STYLE_SOLID);
        if (series == NULL) continue;
        int same = 0;
        while (same < series->count && strcmp(series->points[same].label, row->op) != 0) same++;
        if (same == series->count)
            chart_add(series, same, row->verdict.err_over_bound, row->op);
        else
            series->points[same].y = fmax(series->points[same].y, row->verdict.err_over_bound);
    }
    chart_end(charts, chart);
}

void report_charts_build(const struct report *report, struct report_charts *charts) {
    *charts = (struct report_charts){0};
    build_share(report, charts);
    build_fusion(report, charts);
    build_traffic(report, charts);
    build_rows(report, charts, "softmax_forward", "softmax", "Softmax, N × N", "N");
    build_rows(report, charts, "layernorm_forward", "layernorm", "Layer norm by hidden size",
               "hidden size");
    build_matmul(report, charts);
    charts_build_attention(report, charts);
    charts_build_scaling(report, charts);
    build_roofline(report, charts);
    build_errors(report, charts);
}
