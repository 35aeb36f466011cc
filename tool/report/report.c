// SPDX-License-Identifier: Apache-2.0
// tessera report: measures, then writes report.html, results.json, results.md and plots/ into one
// folder, which keeps its previous report until the new one is complete.
#define _XOPEN_SOURCE 700
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

#include "commands/command.h"
#include "system/device_option.h"
#include "system/options.h"
#include "system/signals.h"

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
        fprintf(stderr, "tessera report: gnuplot was not found; plots/ has only scripts and data "
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
    signals_hold(false);      // a second signal must not leave the partial folder
    signal(SIGPIPE, SIG_IGN); // a closed pipe is an error to report, and must not end the process
    bool is_fine = report_folder_begin(&folder, report->options->save_dir, error, sizeof error) &&
                   write_all(&folder, report, error, sizeof error);
    if (is_fine && signals_seen() == 0)
        is_fine = report_folder_publish(&folder, error, sizeof error);
    else
        report_folder_discard(&folder);
    signals_end();
    if (is_fine) return EXIT_FINE;
    fprintf(stderr, "tessera report: %s; a previous report is unchanged\n", error);
    return EXIT_COULD_NOT_RUN;
}

// ---- The command ------------------------------------------------------------------------------

// --embed-dim with one of the two others determines the third; alone it keeps heads at 64 columns.
static int divide_heads(int64_t embed_dim, int64_t *num_heads, int64_t *head_dim) {
    if (embed_dim == 0) return -1;
    if (*num_heads > 0 && *head_dim > 0)
        return usage_error("report",
                           "--embed-dim, --num-heads and --head-dim: expected at most two");
    if (*num_heads == 0 && *head_dim == 0) *head_dim = 64;
    int64_t *follows = *num_heads == 0 ? num_heads : head_dim;
    int64_t divisor = *num_heads == 0 ? *head_dim : *num_heads;
    *follows = embed_dim / divisor;
    if (*follows * divisor != embed_dim || *follows > (follows == head_dim ? 256 : 4096))
        return usage_error("report", "--embed-dim %lld makes no %s with %s %lld",
                           (long long)embed_dim,
                           follows == head_dim ? "head-dim of 1 to 256" : "number of heads",
                           follows == head_dim ? "--num-heads" : "--head-dim", (long long)divisor);
    return -1;
}

int command_report(int argc, char **argv) {
    static const char *const themes[] = {"auto", "light", "dark", NULL};
    static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", NULL};
    static const struct command_help help = {
        "report",
        "[options]",
        "Measures and verifies all operations on this machine, and writes one folder: report.html "
        "(self-contained), results.json, results.md and plots/.",
        "If a run fails or is interrupted, the previous report stays unchanged.",
        NULL,
        "tessera report --quick\ntessera report --quick --dtype f32 --threads 2 --save-dir f32"};
    const char *save_dir = "report", *device_name = NULL;
    tsr_device device;
    int theme = 0, dtype = -1, isa = 0;
    int64_t num_threads = 0, rep = 0, warmup = -1;
    int64_t max_seq_len = 0, batch_size = 0, embed_dim = 0, num_heads = 0, head_dim = 0;
    double seconds = 0;
    bool is_quick = false, is_full = false, has_no_plots = false, is_non_causal = false;
    const struct option_spec options[] = {
        {"quick", 0, NULL, "under two minutes (on a GPU three): fewer shapes and repetitions",
         OPTION_FLAG, &is_quick, NULL, 0, 0},
        {"full", 0, NULL, "under fifteen minutes (the default)", OPTION_FLAG, &is_full, NULL, 0, 0},
        {"seconds", 0, "S",
         "time limit of the measuring, verification excluded (quick 55, full 600)", OPTION_REAL,
         &seconds, NULL, 0.001, 1e6},
        {"save-dir", 'o', "DIR", "output folder (report)", OPTION_TEXT, &save_dir, NULL, 0, 0},
        {"theme", 0, "T", "colours of the page at the start", OPTION_CHOICE, &theme, themes, 0, 0},
        {"non-causal", 0, NULL, "attention sweeps without the causal mask", OPTION_FLAG,
         &is_non_causal, NULL, 0, 0},
        {"max-seq-len", 0, "N", "attention sweeps: longest sequence (8192 and 4096)", OPTION_INT,
         &max_seq_len, NULL, 1, 1048576},
        {"batch-size", 0, "N", "attention sweeps: sequences (4)", OPTION_INT, &batch_size, NULL, 1,
         65536},
        {"embed-dim", 0, "N", "attention sweeps: heads times head_dim (768 and 512)", OPTION_INT,
         &embed_dim, NULL, 1, 1048576},
        {"num-heads", 0, "N", "attention sweeps: heads (12 and 8)", OPTION_INT, &num_heads, NULL, 1,
         4096},
        {"head-dim", 0, "N", "attention sweeps: columns of a head (64)", OPTION_INT, &head_dim,
         NULL, 1, 256},
        {"no-plots", 0, NULL, "do not write the folder plots/", OPTION_FLAG, &has_no_plots, NULL, 0,
         0},
        {"dtype", 0, "T", "only tensors of this dtype, else all three", OPTION_CHOICE, &dtype,
         dtypes, 0, 0},
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &device_name, NULL, 0, 0},
        {"isa", 0, "I", "instruction set", OPTION_CHOICE, &isa, isas, 0, 0},
        {"threads", 't', "N", "threads (all CPUs)", OPTION_INT, &num_threads, NULL, 1, 4096},
        {"rep", 0, "N", "samples of each measurement (as many as the time allows)", OPTION_INT,
         &rep, NULL, 1, 1e6},
        {"warmup", 0, "N", "calls before the first sample (until the times settle)", OPTION_INT,
         &warmup, NULL, 0, 1e6},
        {0}};
    int code = options_parse(&help, options, argc, argv, NULL);
    if (code >= 0) return code;
    code = device_parse("report", device_name, &device);
    if (code >= 0) return code;
    if (*save_dir == '\0') return usage_error("report", "--save-dir is empty, expected a folder");
    if (is_quick && is_full) return usage_error("report", "--quick and --full exclude each other");
    code = divide_heads(embed_dim, &num_heads, &head_dim);
    if (code >= 0) return code;
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
                                         .max_seq_len = (int)max_seq_len,
                                         .batch_size = (int)batch_size,
                                         .num_heads = (int)num_heads,
                                         .head_dim = (int)head_dim,
                                         .argc = argc,
                                         .argv = argv};
    // Check first that the folder can be written, before minutes of measuring.
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
        if (code == EXIT_FINE) code = verify_exit_code(&report.verify, "report");
    }
    report_free(&report);
    return code;
}
