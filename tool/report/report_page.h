// SPDX-License-Identifier: Apache-2.0
// The parts of the page that are neither table nor chart.
#ifndef TOOL_REPORT_PAGE_H
#define TOOL_REPORT_PAGE_H

#include "report/report.h"

struct page {
    const struct report *report;
    const struct report_tables *tables;
    const struct report_charts *charts;
    const struct report_text *svg; // one per chart; NULL bytes if there is no picture
    bool has_gnuplot, has_chart_js;
};

void page_headline(FILE *out, const struct page *page);
void page_machine(FILE *out, const struct page *page);
void page_share(FILE *out, const struct page *page);
void page_fusion(FILE *out, const struct page *page);
void page_correct(FILE *out, const struct page *page);
void page_reproduce(FILE *out, const struct page *page);
void page_footer(FILE *out, const struct page *page);

// report_escape.c: for text and attributes, and for JSON within <script>.
void html_escape(FILE *out, const char *text);
void json_escape(FILE *out, const char *text); // with its quotes
void json_number(FILE *out, double number);    // null if not finite

#endif
