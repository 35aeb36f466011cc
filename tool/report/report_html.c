// SPDX-License-Identifier: Apache-2.0
// The page: the template tool/report/page.html with its {{names}} filled in. The one file contains
// style, script, Chart.js, data and pictures. Text from outside is escaped.
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "report/report_page.h"
#include "system/heap.h"

extern const unsigned char embedded_report_page_html[], embedded_report_page_css[],
    embedded_report_page_js[], embedded_report_early_js[], embedded_chart_js[];
extern const size_t embedded_report_page_html_bytes, embedded_report_page_css_bytes,
    embedded_report_page_js_bytes, embedded_report_early_js_bytes, embedded_chart_js_bytes;

// ---- Tables and charts ------------------------------------------------------------------------

enum { MANY_ROWS = 30 }; // longer tables scroll in a box

static const char *const tones[] = {"", " good", " fair", " bad", " quiet"};

static void write_cell(FILE *out, const struct report_table *table, int row, int column) {
    const struct report_cell *cell = &table->cells[row * table->num_columns + column];
    char text[64];
    if (column == 0)
        fputs("<th scope=\"row\">", out);
    else if (cell->kind == CELL_NUMBER &&
             cell->heat > 0) // squared, so that half as good is nearly white
        fprintf(out,
                "<td class=\"n\" data-value=\"%.10g\" style=\"background:color-mix(in srgb,"
                "var(--good) %.0f%%,transparent)\">",
                cell->number, 60 * cell->heat * cell->heat);
    else if (cell->kind == CELL_NUMBER)
        fprintf(out, "<td class=\"n%s\" data-value=\"%.10g\">", tones[cell->tone], cell->number);
    else
        fprintf(out, "<td class=\"%s%s%s%s\">", table->is_number[column] ? "n" : "t",
                tones[cell->tone], cell->kind == CELL_ABSENT ? " none" : "",
                strlen(cell->text) > 16 ? " wide" : "");
    html_escape(out, report_cell_text(cell, text, sizeof text));
    fputs(column == 0 ? "</th>" : "</td>", out);
}

static void write_table(FILE *out, const struct report_table *table) {
    if (table == NULL || table->num_rows == 0) return;
    fprintf(out,
            "<div class=\"table%s\" id=\"table-%s\"><div class=\"scroll\" role=\"region\" "
            "tabindex=\"0\" aria-label=\"",
            table->num_rows > MANY_ROWS ? " tall" : "", table->id);
    html_escape(out, table->title);
    fputs("\"><table class=\"sortable\"><caption>", out);
    html_escape(out, table->title);
    if (table->num_rows > MANY_ROWS)
        fprintf(out, "<small>%d rows, scroll</small>", table->num_rows);
    fputs("</caption>\n<thead><tr>", out);
    for (int c = 0; c < table->num_columns; c++) {
        fprintf(out, "<th scope=\"col\"%s>", table->is_number[c] ? " class=\"n\"" : "");
        html_escape(out, table->columns[c]);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int r = 0; r < table->num_rows; r++) {
        fputs("<tr>", out);
        for (int c = 0; c < table->num_columns; c++) write_cell(out, table, r, c);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>", out);
    if (table->note[0] != '\0') {
        fputs("<p class=\"note\">", out);
        html_escape(out, table->note);
        fputs("</p>", out);
    }
    fputs("</div>\n", out);
}

// gnuplot's picture inside the page: without its prologue, and with ids that are unique to the chart.
static void write_svg(FILE *out, const char *id, const struct report_text *svg) {
    const char *at = strstr(svg->bytes, "<svg");
    if (at == NULL) return;
    static const struct {
        const char *from, *to;
        bool takes_id;
    } rules[] = {
        {"xmlns=\"http://www.w3.org/2000/svg\"", "", false},
        {"xmlns:xlink=\"http://www.w3.org/1999/xlink\"", "", false},
        {" id=\"", " id=\"", true},
        {" id='", " id='", true},
        {"href=\"#", "href=\"#", true},
        {"href='#", "href='#", true},
        {"url(#", "url(#", true},
    };
    while (*at != '\0') {
        size_t rule = 0, num_rules = sizeof rules / sizeof *rules;
        while (rule < num_rules && strncmp(at, rules[rule].from, strlen(rules[rule].from)) != 0)
            rule++;
        if (rule == num_rules) {
            fputc(*at++, out);
            continue;
        }
        fputs(rules[rule].to, out);
        if (rules[rule].takes_id) fprintf(out, "%s-", id);
        at += strlen(rules[rule].from);
    }
}

static void write_chart(FILE *out, const struct page *page, const char *id) {
    int i = 0;
    while (i < page->charts->count && strcmp(page->charts->chart[i].id, id) != 0) i++;
    if (i == page->charts->count) return;
    const struct report_chart *chart = &page->charts->chart[i];
    bool has_picture = page->svg[i].bytes != NULL;
    if (!has_picture && embedded_chart_js_bytes == 0) return; // the tables have the same figures
    fprintf(out, "<figure%s id=\"chart-%s\"><h3>",
            chart->kind == CHART_SCATTER ? " class=\"tall\"" : "", chart->id);
    html_escape(out, chart->title);
    fprintf(out, "</h3><div class=\"canvas\"><canvas role=\"img\" data-chart=\"%s\" aria-label=\"",
            chart->id);
    html_escape(out, chart->title);
    fputs(". ", out);
    html_escape(out, chart->note);
    fputs("\"></canvas></div>", out);
    if (has_picture) {
        fputs("<div class=\"picture\">", out);
        write_svg(out, chart->id, &page->svg[i]);
        fputs("</div>", out);
    }
    fputs("<figcaption>", out);
    html_escape(out, chart->note);
    fputs("</figcaption></figure>\n", out);
}

// ---- Data -------------------------------------------------------------------------------------

static void write_charts_json(FILE *out, const struct report_charts *charts) {
    static const char *const kinds[] = {"bars", "lines", "scatter"};
    static const char *const styles[] = {"solid", "ceiling", "quiet"};
    fputc('[', out);
    for (int c = 0; c < charts->count; c++) {
        const struct report_chart *chart = &charts->chart[c];
        fprintf(out, "%s{\"id\":\"%s\",\"kind\":\"%s\",\"logX\":%s,\"logY\":%s,\"xTitle\":",
                c ? ",\n" : "", chart->id, kinds[chart->kind], chart->is_log_x ? "true" : "false",
                chart->is_log_y ? "true" : "false");
        json_escape(out, chart->x_title);
        fputs(",\"yTitle\":", out);
        json_escape(out, chart->y_title);
        fputs(",\"series\":[", out);
        for (int s = 0; s < chart->num_series; s++) {
            const struct chart_series *series = &chart->series[s];
            fprintf(out, "%s{\"style\":\"%s\",\"name\":", s ? "," : "", styles[series->style]);
            json_escape(out, series->name);
            fputs(",\"points\":[", out);
            for (int i = 0; i < series->count; i++) {
                fputs(i ? ",{\"x\":" : "{\"x\":", out);
                json_number(out, series->points[i].x);
                fputs(",\"y\":", out);
                json_number(out, series->points[i].y);
                fputs(",\"label\":", out);
                json_escape(out, series->points[i].label);
                fputc('}', out);
            }
            fputs("]}", out);
        }
        fputs("]}", out);
    }
    fputc(']', out);
}

// results.json again, with '<' escaped, so that no string can close the script element.
static void write_data(FILE *out, const struct page *page) {
    fputs("{\"results\":", out);
    char *bytes = NULL;
    size_t length = 0;
    FILE *memory = heap_stream(&bytes, &length);
    bool is_fine = result_write(memory, &page->report->results, FORMAT_JSON);
    heap_stream_end(memory);
    if (!is_fine) fputs("null", out);
    for (size_t i = 0; is_fine && i < length; i++)
        if (bytes[i] == '<')
            fputs("\\u003c", out);
        else
            fputc(bytes[i], out);
    free(bytes);
    fputs(",\"charts\":", out);
    write_charts_json(out, page->charts);
    fputc('}', out);
}

// ---- The template -----------------------------------------------------------------------------

static void write_embedded(FILE *out, const unsigned char *bytes, size_t length) {
    fwrite(bytes, 1, length, out);
}

static void write_title(FILE *out, const struct page *page) {
    fputs("Tessera on ", out);
    html_escape(out, page->report->machine.cpu);
}

static void write_theme(FILE *out, const struct page *page) {
    if (strcmp(page->report->options->theme, "auto") != 0)
        fprintf(out, " data-theme=\"%s\"", page->report->options->theme);
}
static void write_css(FILE *out, const struct page *page) {
    (void)page;
    write_embedded(out, embedded_report_page_css, embedded_report_page_css_bytes);
}
static void write_js(FILE *out, const struct page *page) {
    (void)page;
    write_embedded(out, embedded_report_page_js, embedded_report_page_js_bytes);
}
static void write_early_js(FILE *out, const struct page *page) {
    (void)page;
    write_embedded(out, embedded_report_early_js, embedded_report_early_js_bytes);
}
static void write_chart_js(FILE *out, const struct page *page) {
    (void)page;
    write_embedded(out, embedded_chart_js, embedded_chart_js_bytes);
}

static const struct {
    const char *name;
    void (*write)(FILE *out, const struct page *page);
} parts[] = {
    {"theme", write_theme},
    {"title", write_title},
    {"css", write_css},
    {"early_js", write_early_js},
    {"js", write_js},
    {"chart_js", write_chart_js},
    {"data", write_data},
    {"headline", page_headline},
    {"machine", page_machine},
    {"share", page_share},
    {"fusion", page_fusion},
    {"correct", page_correct},
    {"reproduce", page_reproduce},
    {"footer", page_footer},
};

static void write_part(FILE *out, const struct page *page, const char *name) {
    if (strncmp(name, "table:", 6) == 0) {
        write_table(out, report_table_find(page->tables, name + 6));
        return;
    }
    if (strncmp(name, "chart:", 6) == 0) {
        write_chart(out, page, name + 6);
        return;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, name) == 0) {
            parts[i].write(out, page);
            return;
        }
    fprintf(stderr, "tessera report: the template has an unknown part, %s\n", name);
    abort();
}

// {{name}} is a part; {{?id}} ... {{/}} is kept only if the table id has rows.
static void write_template(FILE *out, const struct page *page, const char *at, const char *end) {
    bool is_shown = true;
    while (at < end) {
        const char *open = strstr(at, "{{"), *close = open != NULL ? strstr(open, "}}") : NULL;
        if (close == NULL) open = end;
        if (is_shown) fwrite(at, 1, (size_t)(open - at), out);
        if (close == NULL) return;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(close - open - 2), open + 2);
        if (name[0] == '?') {
            const struct report_table *table = report_table_find(page->tables, name + 1);
            is_shown = table != NULL && table->num_rows > 0;
        } else if (name[0] == '/')
            is_shown = true;
        else if (is_shown)
            write_part(out, page, name);
        at = close + 2;
    }
}

void report_write_html(FILE *out, const struct report *report, const struct report_tables *tables,
                       const struct report_charts *charts, const struct report_text *svg,
                       bool has_gnuplot) {
    const struct page page = {report, tables,      charts,
                              svg,    has_gnuplot, embedded_chart_js_bytes > 0};
    write_template(out, &page, (const char *)embedded_report_page_html,
                   (const char *)embedded_report_page_html + embedded_report_page_html_bytes);
}
