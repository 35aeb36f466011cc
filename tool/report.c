// SPDX-License-Identifier: Apache-2.0
// tessera report: measures, then writes report.html, results.json, results.md and plots/ into one
// folder, which keeps its previous report until the new one is complete.
#define _XOPEN_SOURCE 700
#include "report.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "device_option.h"
#include "options.h"

// ---- Writing ----------------------------------------------------------------------------------

static bool write_pages(const char *folder, const struct report *report,
                        const struct report_tables *tables, const struct report_charts *charts,
                        const struct report_text *svg, bool has_gnuplot, char *error,
                        size_t error_bytes) {
    FILE *out = report_open(folder, "results.json", error, error_bytes);
    if (out == NULL) return false;
    bool is_written = result_write(out, &report->results, FORMAT_JSON);
    if (!report_close(out, "results.json", error, error_bytes)) return false;
    if (!is_written) {
        snprintf(error, error_bytes, "cannot write results.json");
        return false;
    }
    if ((out = report_open(folder, "results.md", error, error_bytes)) == NULL) return false;
    report_write_markdown(out, report, tables, charts, has_gnuplot && report->options->has_plots);
    if (!report_close(out, "results.md", error, error_bytes)) return false;
    if ((out = report_open(folder, "report.html", error, error_bytes)) == NULL) return false;
    report_write_html(out, report, tables, charts, svg, has_gnuplot);
    return report_close(out, "report.html", error, error_bytes);
}

static bool write_all(struct report_folder *folder, const struct report *report, char *error,
                      size_t error_bytes) {
    struct report_tables tables;
    struct report_charts charts;
    struct report_text svg[REPORT_MAX_CHARTS] = {{0}};
    bool has_gnuplot = true, is_fine = true;
    report_tables_build(report, &tables);
    report_charts_build(report, &charts);
    if (report->options->has_plots)
        is_fine =
            report_write_plots(folder->partial, &charts, svg, &has_gnuplot, error, error_bytes);
    if (!has_gnuplot)
        fprintf(stderr,
                "tessera report: gnuplot was not found; plots/ has its scripts and data only "
                "(Debian: apt install gnuplot-nox, then run gnuplot on the .gp files)\n");
    is_fine = is_fine && write_pages(folder->partial, report, &tables, &charts, svg, has_gnuplot,
                                     error, error_bytes);
    for (int i = 0; i < REPORT_MAX_CHARTS; i++) free(svg[i].bytes);
    report_charts_free(&charts);
    report_tables_free(&tables);
    return is_fine;
}

static int write_report(const struct report *report) {
    char error[1600] = "";
    struct report_folder folder;
    report_signals_hold();
    bool is_fine = report_folder_begin(&folder, report->options->save_dir, error, sizeof error) &&
                   write_all(&folder, report, error, sizeof error);
    if (is_fine && report_signal() == 0)
        is_fine = report_folder_publish(&folder, error, sizeof error);
    else
        report_folder_discard(&folder);
    if (report_signal() != 0 && !is_fine) error[0] = '\0';
    if (report_signal() != 0) { // end as the signal would have ended us
        signal(report_signal(), SIG_DFL);
        raise(report_signal());
    }
    if (is_fine) return EXIT_FINE;
    fprintf(stderr, "tessera report: %s; a previous report is left as it was\n", error);
    return EXIT_COULD_NOT_RUN;
}

// ---- The command ------------------------------------------------------------------------------

int command_report(int argc, char **argv) {
    static const char *const themes[] = {"auto", "light", "dark", NULL};
    static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
    static const struct command_help help = {
        "report", "[options]",
        "Measures and proves everything on this machine, and writes one folder: report.html "
        "(self-contained), results.json, results.md and plots/.",
        "A run that fails or is interrupted leaves the previous report as it was."};
    const char *save_dir = "report", *device_name = NULL;
    tsr_device device;
    int theme = 0, dtype = -1, isa = 0;
    int64_t num_threads = 0, rep = 0, warmup = -1;
    double seconds = 0;
    bool is_quick = false, is_full = false, has_no_plots = false, is_non_causal = false;
    const struct option_spec options[] = {
        {"quick", 0, NULL, "under two minutes (on a GPU three): fewer shapes and repetitions",
         OPTION_FLAG, &is_quick, NULL, 0, 0},
        {"full", 0, NULL, "under fifteen minutes (the default)", OPTION_FLAG, &is_full, NULL, 0, 0},
        {"seconds", 0, "S", "of measuring at most, before the proofs (quick 55, full 600)",
         OPTION_REAL, &seconds, NULL, 0.001, 1e6},
        {"save-dir", 'o', "DIR", "the folder (default: report)", OPTION_TEXT, &save_dir, NULL, 0,
         0},
        {"theme", 0, "T", "colours the page opens in", OPTION_CHOICE, &theme, themes, 0, 0},
        {"non-causal", 0, NULL, "attention's sweeps without the causal mask", OPTION_FLAG,
         &is_non_causal, NULL, 0, 0},
        {"no-plots", 0, NULL, "no plots/ folder", OPTION_FLAG, &has_no_plots, NULL, 0, 0},
        {"dtype", 0, "T", "one alone (default: all)", OPTION_CHOICE, &dtype, dtypes, 0, 0},
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &device_name, NULL, 0, 0},
        {"isa", 0, "I", "instruction set", OPTION_CHOICE, &isa, isas, 0, 0},
        {"threads", 't', "N", "threads (default: all)", OPTION_INT, &num_threads, NULL, 1, 4096},
        {"rep", 0, "N", "repetitions of each measurement", OPTION_INT, &rep, NULL, 1, 1e6},
        {"warmup", 0, "N", "calls before the first repetition", OPTION_INT, &warmup, NULL, 0, 1e6},
        {0}};
    int code = options_parse(&help, options, argc, argv, NULL);
    if (code >= 0) return code;
    code = device_parse("report", device_name, &device);
    if (code >= 0) return code;
    if (is_quick && is_full) return usage_error("report", "--quick and --full exclude each other");
    const struct report_options given = {.save_dir = save_dir,
                                         .theme = themes[theme],
                                         .dtype = dtype >= 0 ? dtypes[dtype] : NULL,
                                         .isa = isa > 0 ? isas[isa] : NULL,
                                         .device = device,
                                         .num_threads = (int)num_threads,
                                         .rep = (int)rep,
                                         .warmup = (int)warmup,
                                         .is_quick = is_quick,
                                         .seconds = seconds,
                                         .has_plots = !has_no_plots,
                                         .is_non_causal = is_non_causal,
                                         .argc = argc,
                                         .argv = argv};
    // Minutes of measuring should not end at a folder that cannot be written.
    char error[1600];
    struct report_folder probe;
    if (!report_folder_begin(&probe, save_dir, error, sizeof error)) {
        fprintf(stderr, "tessera report: %s\n", error);
        return EXIT_COULD_NOT_RUN;
    }
    report_folder_discard(&probe);
    struct report report;
    code = report_collect(&given, &report);
    if (code == EXIT_FINE || code == EXIT_WRONG) {
        int written = write_report(&report);
        if (written != EXIT_FINE)
            code = written;
        else
            fprintf(stderr, "tessera report: wrote %s/report.html\n", save_dir);
    }
    report_free(&report);
    return code;
}
