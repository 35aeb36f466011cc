// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/progress.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "system/environment.h"

static const double quiet_seconds = 2.0, line_seconds = 10.0, refresh_seconds = 0.1;

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_terminal(void) {
    const char *term = environment_value("TERM");
    return isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
}

static bool has_color(void) {
    const char *no_color = environment_value("NO_COLOR");
    return no_color == NULL || *no_color == '\0';
}

void progress_start(struct progress *progress, const char *what, int64_t total) {
    *progress = (struct progress){.what = what, .total = total, .started = seconds_now()};
}

static void wipe(struct progress *progress) {
    if (progress->width > 0) fprintf(stderr, "\r%*s\r", progress->width, "");
    progress->width = 0;
}

void progress_step(struct progress *progress, int64_t done, const char *detail) {
    double now = seconds_now();
    bool is_moving = is_terminal();
    double wait = is_moving ? refresh_seconds : line_seconds;
    if (now - progress->started < quiet_seconds || now - progress->shown < wait) return;
    progress->shown = now;
    char text[160];
    int used = snprintf(text, sizeof text, "%s: %lld", progress->what, (long long)done);
    if (progress->total > 0)
        used += snprintf(text + used, sizeof text - (size_t)used, " of %lld",
                         (long long)progress->total);
    snprintf(text + used, sizeof text - (size_t)used, ", %.0f s%s%.80s", now - progress->started,
             detail ? ", " : "", detail ? detail : "");
    if (!is_moving) {
        fprintf(stderr, "%s\n", text);
        return;
    }
    wipe(progress);
    text[79] = '\0'; // a wrapped line could not be wiped
    progress->width = (int)strlen(text);
    bool is_dim = has_color();
    fprintf(stderr, "%s%s%s", is_dim ? "\033[2m" : "", text, is_dim ? "\033[0m" : "");
    fflush(stderr);
}

void progress_end(struct progress *progress) { wipe(progress); }

void progress_note(struct progress *progress, const char *format, ...) {
    char note[sizeof progress->note];
    va_list list;
    va_start(list, format);
    vsnprintf(note, sizeof note, format, list);
    va_end(list);
    if (strcmp(note, progress->note) == 0) return;
    memcpy(progress->note, note, sizeof note);
    wipe(progress);
    fprintf(stderr, "tessera: %s\n", note);
}
