// SPDX-License-Identifier: Apache-2.0
// Charts by gnuplot, a child process without a shell. Each chart has a .dat, a .gp that reads it, and
// the .png and .svg that the .gp makes. Without gnuplot only the first two are written, to be drawn
// elsewhere.
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "report/report.h"
#include "system/heap.h"
#include "system/helper.h"
#include "system/signals.h"

enum { GNUPLOT_SECONDS = 60 };

// Medium tones, readable on white and on black; ceilings are grey.
static const char *const colors[] = {"#3b82c4", "#d9822b", "#2f9e77", "#a463b0",
                                     "#c9556a", "#7a8b2a", "#5d6fcf", "#b07d3c"};

// ---- Data and script --------------------------------------------------------------------------

static void write_quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc(*text == '\n' ? ' ' : *text == '`' ? '\'' : *text, out); // gnuplot would run `...`
    }
    fputc('"', out);
}

// The places of bars: one for each name, in whichever series it is.
struct bar_places {
    const char *name[256];
    int count;
};

static int bar_place(struct bar_places *places, const char *name) {
    for (int i = 0; i < places->count; i++)
        if (strcmp(places->name[i], name) == 0) return i;
    if (places->count == 256) return 255;
    places->name[places->count] = name;
    return places->count++;
}

static struct bar_places find_places(const struct report_chart *chart) {
    struct bar_places places = {.count = 0};
    for (int s = 0; s < chart->num_series; s++)
        for (int i = 0; i < chart->series[s].count; i++)
            bar_place(&places, chart->series[s].points[i].label);
    return places;
}

// Writes each series as a block (gnuplot's index) with the columns x, y, label; for bars place, value,
// label.
static void write_data(FILE *out, const struct report_chart *chart) {
    struct bar_places places = find_places(chart);
    fprintf(out, "# %s\n", chart->title);
    for (int s = 0; s < chart->num_series; s++) {
        const struct chart_series *series = &chart->series[s];
        fprintf(out, "%s# %s\n", s ? "\n\n" : "", series->name);
        for (int i = 0; i < series->count; i++) {
            const struct chart_point *p = &series->points[i];
            double x = chart->kind == CHART_BARS ? bar_place(&places, p->label) : p->x;
            fprintf(out, "%.10g %.10g ", x, p->y);
            write_quoted(out, p->label);
            fputc('\n', out);
        }
    }
}

static const char *color_of(const struct report_chart *chart, int s) {
    static const char *const greys[] = {"#b4b4b4", "#9a9a9a", "#828282", "#6c6c6c", "#5a5a5a"};
    if (chart->series[s].style == STYLE_CEILING) return greys[s % 5];
    if (chart->series[s].style == STYLE_QUIET) return "#d9822b";
    int place = 0;
    for (int i = 0; i < s; i++) place += chart->series[i].style == STYLE_SOLID;
    if (place >= 1 && chart->num_series > 2) place++; // the second colour is for the quiet style
    return colors[place % 8];
}

static void write_bars(FILE *out, const struct report_chart *chart) {
    struct bar_places places = find_places(chart);
    int num_series = chart->num_series;
    bool is_grouped =
        num_series > 1 && chart->series[1].count > 0 && chart->series[0].count == places.count;
    double height = is_grouped ? 0.8 / num_series : 0.7;
    fprintf(out, "set yrange [%d.5:-0.5]\nset xrange [0:*]\nunset ylabel\nset ytics (",
            places.count - 1);
    for (int i = 0; i < places.count; i++) {
        fputs(i ? ", " : "", out);
        write_quoted(out, places.name[i]);
        fprintf(out, " %d", i);
    }
    fputs(")\nset style fill solid 1.0 noborder\nset grid noytics xtics\nplot ", out);
    for (int s = 0; s < num_series; s++) {
        double shift = is_grouped ? (s - 0.5 * (num_series - 1)) * height : 0;
        fprintf(out, "%sdata index %d using ($2/2):($1+%.4f):($2/2):(%.4f) with boxxyerror title ",
                s ? ", \\\n     " : "", s, shift, height / 2 * 0.94);
        write_quoted(out, chart->series[s].name);
        fprintf(out, " linecolor rgb \"%s\"", color_of(chart, s));
    }
    fputc('\n', out);
}

static void write_lines(FILE *out, const struct report_chart *chart) {
    if (chart->is_log_x) fprintf(out, "set logscale x %d\n", chart->kind == CHART_LINES ? 2 : 10);
    if (chart->is_log_y)
        fputs("set logscale y 10\n", out);
    else
        fputs("set yrange [0:*]\n", out);
    fputs("plot ", out);
    int dash = 2; // a different one for each ceiling
    for (int s = 0; s < chart->num_series; s++) {
        const struct chart_series *series = &chart->series[s];
        bool is_ceiling = series->style == STYLE_CEILING;
        fprintf(out, "%sdata index %d using 1:2 with ", s ? ", \\\n     " : "", s);
        if (is_ceiling)
            fprintf(out, "lines dashtype %d linewidth 1.5", dash++);
        else
            fprintf(out, "%s pointtype 7 pointsize 0.7 linewidth 2.5",
                    chart->kind == CHART_SCATTER ? "points" : "linespoints");
        fprintf(out, " linecolor rgb \"%s\" title ", color_of(chart, s));
        write_quoted(out, series->name);
    }
    fputc('\n', out);
}

static void write_script(FILE *out, const struct report_chart *chart) {
    int height = chart->kind == CHART_SCATTER ? 560 : 420;
    if (chart->kind == CHART_BARS) // title, key and axis, and the names
        height = 170 + (26 + 6 * (chart->num_series - 1)) * find_places(chart).count;
    fprintf(out, "# gnuplot %s.gp\ndata = \"%s.dat\"\nset encoding utf8\n", chart->id, chart->id);
    fputs("set title ", out);
    write_quoted(out, chart->title);
    fputs(" noenhanced\nset xlabel ", out);
    write_quoted(out, chart->x_title);
    fputs(" noenhanced\nset ylabel ", out);
    write_quoted(out, chart->y_title);
    fputs(" noenhanced\nset key above horizontal Left reverse noenhanced\n"
          "set grid linecolor rgb \"#999999\" linewidth 0.4 dashtype 3\nset border 3\n"
          "set tics nomirror out scale 0.5 noenhanced\n",
          out);
    // The same plot on both terminals: the plot commands are written once, then replayed.
    fprintf(out,
            "set terminal svg size 760,%d dynamic font \"sans-serif,13\"\n"
            "set output \"%s.svg\"\n",
            height, chart->id);
    (chart->kind == CHART_BARS ? write_bars : write_lines)(out, chart);
    fprintf(out,
            "set terminal pngcairo size 1520,%d font \"sans,13\" fontscale 2 linewidth 2 "
            "pointscale 2\nset output \"%s.png\"\nreplot\nunset output\n",
            2 * height, chart->id);
}

// ---- The child --------------------------------------------------------------------------------

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

// Runs gnuplot NAME.gp in the folder. Returns its exit code, or -1 if it could not start.
static int run_gnuplot(const char *folder, const char *script) {
    char program[PATH_MAX];
    if (!helper_find("gnuplot", program)) return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL); // the report ignores it
        int null = open("/dev/null", O_RDWR);
        if (null >= 0) {
            dup2(null, STDIN_FILENO);
            dup2(null, STDOUT_FILENO);
            dup2(null, STDERR_FILENO);
        }
        if (chdir(folder) != 0) _exit(126);
        execl(program, "gnuplot", script, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    for (long waited = 0; waited < GNUPLOT_SECONDS * 1000L && signals_seen() == 0; waited += 5) {
        pid_t ended = waitpid(child, &status, WNOHANG);
        if (ended == child)
            return WIFEXITED(status) && WEXITSTATUS(status) != 127 ? WEXITSTATUS(status)
                   : WIFEXITED(status)                             ? -1
                                                                   : 1;
        if (ended < 0 && errno != EINTR) return -1;
        sleep_ms(5);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

static struct report_text read_file(const char *path) {
    struct report_text text = {0};
    FILE *file = fopen(path, "r");
    if (file == NULL) return text;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        if (size > 0) text.bytes = heap_get((size_t)size + 1, 1);
        if (text.bytes != NULL) {
            text.length = fread(text.bytes, 1, (size_t)size, file);
            text.bytes[text.length] = '\0';
        }
    }
    fclose(file);
    return text;
}

// ---- All of them ------------------------------------------------------------------------------

bool report_write_plots(const char *folder, const struct report_charts *charts,
                        struct report_text *svg, bool *has_gnuplot, char *error,
                        size_t error_bytes) {
    char plots[1200], name[96], path[1400];
    snprintf(plots, sizeof plots, "%s/plots", folder);
    if (mkdir(plots, 0777) != 0) {
        snprintf(error, error_bytes, "cannot make %s: %s", plots, strerror(errno));
        return false;
    }
    *has_gnuplot = true;
    for (int i = 0; i < charts->count; i++) {
        const struct report_chart *chart = &charts->chart[i];
        for (int part = 0; part < 2; part++) {
            snprintf(name, sizeof name, "%s.%s", chart->id, part ? "gp" : "dat");
            FILE *out = report_open(plots, name, error, error_bytes);
            if (out == NULL) return false;
            (part ? write_script : write_data)(out, chart);
            if (!report_close(out, name, error, error_bytes)) return false;
        }
        if (signals_seen() != 0) return true; // the caller checks for signals
        if (!*has_gnuplot) continue;
        int code = run_gnuplot(plots, name);
        if (code < 0)
            *has_gnuplot = false;
        else if (code > 0)
            fprintf(stderr, "tessera report: gnuplot could not draw plots/%s\n", name);
        else {
            snprintf(path, sizeof path, "%s/%s.svg", plots, chart->id);
            svg[i] = read_file(path);
        }
    }
    return true;
}
