// SPDX-License-Identifier: Apache-2.0
// results.md: the same tables as text, for a terminal, a review or a README.
#include <math.h>
#include <string.h>

#include "report/report.h"

static void write_escaped(FILE *out, const char *text) {
    for (; *text != '\0'; text++) {
        if (strchr("\\`*_|<>[]#", *text) != NULL) fputc('\\', out);
        fputc(*text == '\n' ? ' ' : *text, out);
    }
}

static void write_table(FILE *out, const struct report_table *table) {
    if (table->num_rows == 0) return;
    fprintf(out, "\n## ");
    write_escaped(out, table->title);
    fputs("\n\n|", out);
    for (int c = 0; c < table->num_columns; c++) {
        fputc(' ', out);
        write_escaped(out, table->columns[c]);
        fputs(" |", out);
    }
    fputs("\n|", out);
    for (int c = 0; c < table->num_columns; c++)
        fputs(table->is_number[c] ? " ---: |" : " --- |", out);
    fputc('\n', out);
    for (int r = 0; r < table->num_rows; r++) {
        fputc('|', out);
        for (int c = 0; c < table->num_columns; c++) {
            char text[64];
            fputc(' ', out);
            write_escaped(out, report_cell_text(&table->cells[r * table->num_columns + c], text,
                                                sizeof text));
            fputs(" |", out);
        }
        fputc('\n', out);
    }
    if (table->note[0] != '\0') {
        fputc('\n', out);
        write_escaped(out, table->note);
        fputc('\n', out);
    }
}

void report_write_markdown(FILE *out, const struct report *report,
                           const struct report_tables *tables, const struct report_charts *charts,
                           bool has_pictures) {
    const struct report_machine *m = &report->machine;
    struct report_summary s = report_summarize(report);
    bool is_right = s.num_failed == 0 && s.worst_err_over_bound <= 1;
    char units[32];
    fputs("# Tessera on ", out);
    write_escaped(out, m->cpu);
    fprintf(out, "\n\n- %s, %s, %s, Tessera %s, %s\n", m->isa,
            report_units(report, units, sizeof units), m->host, tsr_version(), m->started);
    fprintf(out, "- Ceilings: %.4g GFLOP/s fp32, %.3g GB/s copy through memory\n", s.peak_gflops,
            s.memory_gb_s);
    if (isfinite(s.median_share))
        fprintf(out, "- Median share of the ceiling over %d operations and dtypes: %.0f %%\n",
                s.num_shares, 100 * s.median_share);
    if (s.best_fusion != NULL)
        fprintf(out, "- Fusion gains up to %.1f times (%s %s), with %.0f %% of the traffic saved\n",
                s.best_fusion_speedup, s.best_fusion->c.spec->op,
                tsr_dtype_name(s.best_fusion->c.dtype), 100 * s.best_fusion_saved);
    fprintf(out, "- %s: %lld checks against the oracle, %lld wrong, worst err/bound %.2f\n",
            is_right ? "Correct" : "WRONG", (long long)s.num_configs, (long long)s.num_failed,
            s.worst_err_over_bound);
    if (report->is_stopped_early)
        fputs("- The time limit ended the measuring early; shapes without figures are not shown.\n",
              out);
    if (report->left_out[0] != '\0') {
        fputs("- Left out, because they have no variant for CUDA: ", out);
        write_escaped(out, report->left_out);
        fputc('\n', out);
    }
    for (int i = 0; i < tables->count; i++) write_table(out, &tables->table[i]);
    if (!has_pictures) return;
    fputs("\n## Plots\n", out);
    for (int i = 0; i < charts->count; i++) {
        fputs("\n![", out);
        write_escaped(out, charts->chart[i].title);
        fprintf(out, "](plots/%s.png)\n", charts->chart[i].id);
    }
}
