// SPDX-License-Identifier: Apache-2.0
// Charts as values: points, names and axes. Chart.js draws them in the page, gnuplot in plots/.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "system/heap.h"

struct report_chart *chart_begin(struct report_charts *charts, enum chart_kind kind, const char *id,
                                 const char *title, const char *x_title, const char *y_title,
                                 const char *note) {
    if (charts->count == REPORT_MAX_CHARTS) abort();
    struct report_chart *chart = &charts->chart[charts->count++];
    *chart = (struct report_chart){
        .id = id, .title = title, .x_title = x_title, .y_title = y_title, .kind = kind};
    snprintf(chart->note, sizeof chart->note, "%s", note);
    return chart;
}

struct chart_series *chart_series_of(struct report_chart *chart, const char *name,
                                     enum series_style style) {
    for (int i = 0; i < chart->num_series; i++)
        if (strcmp(chart->series[i].name, name) == 0) return &chart->series[i];
    if (chart->num_series == CHART_MAX_SERIES) return NULL;
    struct chart_series *series = &chart->series[chart->num_series++];
    *series = (struct chart_series){.style = style};
    snprintf(series->name, sizeof series->name, "%s", name);
    return series;
}

void chart_add(struct chart_series *series, double x, double y, const char *label) {
    if (series == NULL || !isfinite(y)) return;
    if (series->count == series->capacity) {
        series->capacity = 2 * series->capacity + 8;
        series->points =
            heap_grow(series->points, (size_t)series->capacity, sizeof *series->points);
    }
    struct chart_point *point = &series->points[series->count++];
    *point = (struct chart_point){x, y, ""};
    snprintf(point->label, sizeof point->label, "%s", label);
}

void chart_end(struct report_charts *charts, struct report_chart *chart) {
    int points = 0;
    for (int i = 0; i < chart->num_series; i++)
        if (chart->series[i].style != STYLE_CEILING) points += chart->series[i].count;
    if (points > 0) return;
    for (int i = 0; i < chart->num_series; i++) free(chart->series[i].points);
    charts->count--;
}

void report_charts_free(struct report_charts *charts) {
    for (int c = 0; c < charts->count; c++)
        for (int i = 0; i < charts->chart[c].num_series; i++)
            free(charts->chart[c].series[i].points);
    charts->count = 0;
}
