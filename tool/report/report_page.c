// SPDX-License-Identifier: Apache-2.0
// The page's opening and prose: headline figures, the machine, bars of share and of fusion,
// the verdict on correctness, command lines. Bars are plain HTML, so they need no script and wrap
// on a phone.
#include "report/report_page.h"

#include <math.h>
#include <string.h>

// A size in binary units, as caches are counted.
static const char *size_text(double bytes, char *buffer, size_t length) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buffer, length, bytes < 10 && bytes != floor(bytes) ? "%.1f %s" : "%.0f %s", bytes,
             units[unit]);
    return buffer;
}

// ---- Headline ---------------------------------------------------------------------------------

static void figure(FILE *out, const char *tone, const char *number, const char *unit,
                   const char *label) {
    fprintf(out, "<div class=\"%s\"><dt>", tone);
    html_escape(out, label);
    fputs("</dt><dd>", out);
    html_escape(out, number);
    if (*unit != '\0') {
        fputs("<small>", out);
        html_escape(out, unit);
        fputs("</small>", out);
    }
    fputs("</dd></div>\n", out);
}

static void headline_figures(FILE *out, const struct report_summary *s) {
    char number[64], label[256], shape[112];
    fputs("<dl class=\"figures\">\n", out);
    if (s->best_share != NULL) {
        snprintf(number, sizeof number, "%.0f", 100 * s->best_share->share_of_ceiling);
        snprintf(label, sizeof label, "of the ceiling: %s %s, the best share",
                 s->best_share->c.spec->op, tsr_dtype_name(s->best_share->c.dtype));
        figure(out, "", number, "%", label);
    }
    if (s->best_fusion != NULL) {
        snprintf(number, sizeof number, "%.1f", s->best_fusion_speedup);
        snprintf(label, sizeof label, "faster fused: %s %s, %s", s->best_fusion->c.spec->op,
                 tsr_dtype_name(s->best_fusion->c.dtype),
                 result_shape(s->best_fusion, shape, sizeof shape));
        figure(out, "", number, "times", label);
    }
    if (s->best_fusion != NULL && isfinite(s->best_fusion_saved)) {
        snprintf(number, sizeof number, "%.0f", 100 * s->best_fusion_saved);
        figure(out, "", number, "%", "of its memory traffic saved by fusion");
    }
    bool is_right = s->num_failed == 0 && s->worst_err_over_bound <= 1;
    snprintf(number, sizeof number, "%lld", (long long)s->num_failed);
    snprintf(label, sizeof label,
             "wrong in %lld checks against the oracle; largest error %.2f of its bound",
             (long long)s->num_configs, s->worst_err_over_bound);
    figure(out, is_right ? "good" : "bad", number, "", label);
    fputs("</dl>\n", out);
}

void page_headline(FILE *out, const struct page *page) {
    const struct report *report = page->report;
    const struct report_machine *machine = &report->machine;
    struct report_summary s = report_summarize(report);
    fputs("<p class=\"where\">", out);
    html_escape(out, machine->cpu);
    char units[32];
    fprintf(out, " · %s · %s · %s</p>\n", machine->isa, report_units(report, units, sizeof units),
            machine->started);
    if (isfinite(s.median_share))
        fprintf(out, "<h1>%.0f %% of what this machine can do</h1>\n", 100 * s.median_share);
    else
        fputs("<h1>Tessera on this machine</h1>\n", out);
    fputs("<p class=\"say\">", out);
    if (s.num_shares > 1)
        fprintf(out,
                "The median share of the ceiling over %d operations and dtypes, each at its "
                "largest shape. ",
                s.num_shares);
    fprintf(out,
            "The ceilings were measured in the same run: <b>%.4g GFLOP/s</b> of fp32 arithmetic "
            "and <b>%.3g GB/s</b> of copies through memory.</p>\n",
            s.peak_gflops, s.memory_gb_s);
    if (s.num_failed > 0 || !(s.worst_err_over_bound <= 1))
        fputs(
            "<p class=\"notice\" role=\"alert\"><b>Something is wrong on this machine:</b> results "
            "exceed their error bound. "
            "See <a href=\"#correct-section\">Correctness</a>.</p>\n",
            out);
    if (report->left_out[0] != '\0') {
        fputs("<p class=\"notice\">Left out, because they have no variant for CUDA: ", out);
        html_escape(out, report->left_out);
        fputs(".</p>\n", out);
    }
    if (report->is_stopped_early)
        fputs("<p class=\"hint\">The time limit ended the measuring early: shapes without figures "
              "are not shown. A larger --seconds measures more of them.</p>\n",
              out);
    headline_figures(out, &s);
    int count = report->results.count, disturbed = 0;
    for (int i = 0; i < count; i++) disturbed += report->results.items[i].is_throttled;
    if (10 * disturbed > count)
        fprintf(out,
                "<p class=\"hint after\">The machine was busy or slowed down during %d of %d "
                "measurements: on a quiet machine their figures would be better.</p>\n",
                disturbed, count);
}

// ---- Machine ----------------------------------------------------------------------------------

static void fact(FILE *out, const char *name, const char *value) {
    if (*value == '\0') return;
    fputs("<div><dt>", out);
    html_escape(out, name);
    fputs("</dt><dd>", out);
    html_escape(out, value);
    fputs("</dd></div>\n", out);
}

void page_machine(FILE *out, const struct page *page) {
    const struct report_machine *m = &page->report->machine;
    char text[256], l1[32], l2[32], l3[32];
    fputs("<dl class=\"facts\">\n", out);
    fact(out, m->is_gpu ? "GPU" : "Processor", m->cpu);
    fact(out, m->is_gpu ? "Architecture" : "Instruction set", m->isa);
    if (m->is_gpu)
        snprintf(text, sizeof text, "%d", m->num_sms);
    else
        snprintf(text, sizeof text, "%d of %d", m->num_threads, m->num_cpus);
    fact(out, m->is_gpu ? "Multiprocessors" : "Threads used", text);
    if (m->is_gpu)
        snprintf(text, sizeof text, "shared memory %s per multiprocessor, L2 %s",
                 size_text(m->l1_bytes, l1, sizeof l1), size_text(m->l2_bytes, l2, sizeof l2));
    else
        snprintf(text, sizeof text, "L1 %s, L2 %s per core; L3 %s",
                 size_text(m->l1_bytes, l1, sizeof l1), size_text(m->l2_bytes, l2, sizeof l2),
                 size_text(m->l3_bytes, l3, sizeof l3));
    fact(out, "Caches", text);
    fact(out, "Memory", m->memory_bytes > 0 ? size_text(m->memory_bytes, text, sizeof text) : "");
    snprintf(text, sizeof text, "%.4g GFLOP/s, fp32 FMA", m->peak_gflops);
    fact(out, "Arithmetic ceiling", text);
    fact(out, "Host", m->host);
    fact(out, "System", m->system);
    fputs("</dl>\n", out);
}

// ---- Bars -------------------------------------------------------------------------------------

static void bar_name(FILE *out, const struct result *r) {
    char shape[112];
    fputs("<span class=\"name\">", out);
    html_escape(out, r->c.spec->op);
    fprintf(out, " %s<small>", tsr_dtype_name(r->c.dtype));
    html_escape(out, result_shape(r, shape, sizeof shape));
    fputs("</small></span>", out);
}

static void share_bar(FILE *out, const struct page *page, const struct result *r) {
    double share = 100 * r->share_of_ceiling;
    if (!isfinite(share)) return;
    bool is_compute = result_is_compute_bound(page->report, r);
    fprintf(out, "<li class=\"%s\">", is_compute ? "compute" : "memory");
    bar_name(out, r);
    fprintf(out,
            "<span class=\"track\" aria-hidden=\"true\"><i style=\"width:%.1f%%\"></i></span>"
            "<span class=\"value\">%.0f %%<small>grade %c</small></span></li>\n",
            fmin(100, share), share, report_grade(r->share_of_ceiling));
}

static void fusion_bar(FILE *out, const struct page *page, const struct result *r) {
    const struct result *before = report_baseline_of(page->report, r);
    if (before == NULL || !result_has_unfused(r)) return;
    double longest = fmax(result_device_ms(before), result_device_ms(r));
    fputs("<li>", out);
    bar_name(out, r);
    fprintf(out,
            "<span class=\"track\" aria-hidden=\"true\"><i class=\"before\" "
            "style=\"width:%.1f%%\"></i><i style=\"width:%.1f%%\"></i></span>"
            "<span class=\"value\">%.2f×",
            100 * result_device_ms(before) / longest, 100 * result_device_ms(r) / longest,
            result_device_ms(before) / result_device_ms(r));
    struct op_traffic fused, unfused;
    if (traffic_of(&r->c, false, &fused) && traffic_of(&r->c, true, &unfused))
        fprintf(out, "<small>−%.0f %% bytes</small>",
                100 * (1 - (fused.read_bytes + fused.write_bytes) /
                               (unfused.read_bytes + unfused.write_bytes)));
    fputs("</span></li>\n", out);
}

// Shows the bars of one dtype, and folds those of the others away.
static void write_bars(FILE *out, const struct page *page, const char *kind,
                       void (*bar)(FILE *out, const struct page *page, const struct result *r)) {
    const struct result *rows[256];
    int num_rows = report_representatives(page->report, rows, 256), num_folded = 0;
    if (num_rows == 0) return;
    tsr_dtype first = rows[0]->c.dtype;
    fprintf(out, "<ul class=\"bars%s\">\n", kind);
    for (int i = 0; i < num_rows; i++)
        if (rows[i]->c.dtype == first)
            bar(out, page, rows[i]);
        else
            num_folded++;
    fputs("</ul>\n", out);
    if (num_folded == 0) return;
    fprintf(out, "<details><summary>The same in the other dtypes</summary><ul class=\"bars%s\">\n",
            kind);
    for (int i = 0; i < num_rows; i++)
        if (rows[i]->c.dtype != first) bar(out, page, rows[i]);
    fputs("</ul></details>\n", out);
}

void page_share(FILE *out, const struct page *page) {
    fputs("<ul class=\"key\"><li style=\"--c: var(--series-1)\">limited by compute</li>"
          "<li style=\"--c: var(--series-3)\">limited by memory</li></ul>\n",
          out);
    write_bars(out, page, "", share_bar);
    for (int i = 0; i < page->report->results.count; i++)
        if (page->report->results.items[i].share_of_ceiling > 1.03) {
            fputs("<p class=\"hint\">A share above 100 % means that the machine was busier during "
                  "the "
                  "measurement of its ceilings than later: repeat the report on a quiet "
                  "machine.</p>\n",
                  out);
            break;
        }
}

void page_fusion(FILE *out, const struct page *page) {
    fputs("<ul class=\"key\"><li style=\"--c: var(--series-2)\">unfused</li>"
          "<li style=\"--c: var(--series-1)\">fused</li></ul>\n",
          out);
    write_bars(out, page, " two", fusion_bar);
}

// ---- Correctness ------------------------------------------------------------------------------

void page_correct(FILE *out, const struct page *page) {
    const struct verify_report *v = &page->report->verify;
    struct report_summary s = report_summarize(page->report);
    bool is_right = s.num_failed == 0 && s.worst_err_over_bound <= 1;
    fprintf(
        out,
        "<p class=\"lead\">%s %lld random configurations and %lld edge cases, over every variant, "
        "dtype and instruction set: %lld runs, %lld wrong. The largest error of any element is "
        "%.2f "
        "of its derived bound.</p>\n",
        is_right ? "Yes." : "No.", (long long)v->num_configs, (long long)v->num_edges,
        (long long)v->num_runs, (long long)v->num_failed, s.worst_err_over_bound);
    if (v->num_not_run > 0)
        fprintf(out, "<p class=\"notice\">%lld could not run, because memory was short.</p>\n",
                (long long)v->num_not_run);
    for (int i = 0; i < v->num_rows; i++) {
        if (v->rows[i].verdict.num_failed == 0) continue;
        fputs("<p class=\"notice\">", out);
        html_escape(out, v->rows[i].verdict.failure);
        fputs("</p>\n", out);
    }
}

// ---- Reproduce --------------------------------------------------------------------------------

static void command(FILE *out, const char *what, const char *line) {
    fputs("<p>", out);
    html_escape(out, what);
    fputs("</p><div class=\"command\"><pre><code>", out);
    html_escape(out, line);
    fputs("</code></pre></div>\n", out);
}

void page_reproduce(FILE *out, const struct page *page) {
    const struct report *report = page->report;
    char line[1400], options[96] = "";
    size_t used = (size_t)snprintf(line, sizeof line, "tessera");
    for (int i = 0; i < report->options->argc && used < sizeof line; i++) {
        const char *word = report->options->argv[i];
        bool is_plain = *word != '\0';
        for (const char *at = word; *at != '\0'; at++)
            if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,+@%",
                       *at) == NULL)
                is_plain = false;
        if (is_plain) {
            used += (size_t)snprintf(line + used, sizeof line - used, " %s", word);
            continue;
        }
        used += (size_t)snprintf(line + used, sizeof line - used, " '");
        for (const char *at = word; *at != '\0' && used < sizeof line; at++)
            used += (size_t)snprintf(line + used, sizeof line - used, *at == '\'' ? "'\\''" : "%c",
                                     *at);
        if (used < sizeof line) used += (size_t)snprintf(line + used, sizeof line - used, "'");
    }
    command(out, "This report:", line);
    bool is_gpu = report->machine.is_gpu;
    const char *device = tsr_device_name(report->options->device);
    if (is_gpu)
        snprintf(options, sizeof options, " --device %s", device);
    else
        snprintf(options, sizeof options, " --threads %d", report->machine.num_threads);
    const char *where = is_gpu ? options : "";
    snprintf(line, sizeof line,
             "tessera info%s\ntessera verify%s\ntessera bench softmax --rows 4096 --cols 4096%s\n"
             "tessera bench %s%s",
             where, where, options,
             is_gpu ? "layernorm --rows 16384 --cols 4096"
                    : "matmul --m 2048 --n 2048 --k 2048 --dtype f32",
             options);
    command(out, "Its parts, one by one:", line);
    fputs("<p class=\"hint\">Each figure is the median of repeated calls after a warm-up. The "
          "forms of an operation take turns call by call, and every variant is verified against "
          "the oracle before it is timed. <code>results.json</code> has the same rows as data, "
          "<code>results.md</code> as text; <code>plots/</code> has the pictures, each with its "
          "gnuplot script and data.",
          out);
    if (!page->has_chart_js)
        fputs(" Charts are pictures, because this build has no Chart.js.", out);
    if (!page->has_gnuplot)
        fputs(" gnuplot was not found, so <code>plots/</code> has only scripts and data.", out);
    fputs("</p>\n", out);
}

void page_footer(FILE *out, const struct page *page) {
    fprintf(out, "Tessera %s, measured in %.0f s%s.", tsr_version(), page->report->seconds,
            page->report->options->is_quick ? " (quick)" : "");
    if (page->has_chart_js)
        fputs(" Charts by Chart.js 3.9.1, © 2022 Chart.js Contributors, MIT licence.", out);
}
