// SPDX-License-Identifier: Apache-2.0
// Progress on stderr: a moving line on a terminal, plain lines elsewhere, and nothing at all for
// work of less than two seconds.
#ifndef TOOL_PROGRESS_H
#define TOOL_PROGRESS_H

#include <stdint.h>

struct progress {
    const char *what; // "verify"
    int64_t total;    // 0: unknown
    double started, shown;
    int width;      // of the line on the terminal
    char note[800]; // the last note
};

void progress_start(struct progress *progress, const char *what, int64_t total);
// detail: the current step; NULL for none.
void progress_step(struct progress *progress, int64_t done, const char *detail);
// Wipes the moving line.
void progress_end(struct progress *progress);

// Prints a line on stderr above the moving line; a note equal to the last one is not repeated.
void progress_note(struct progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Seconds of the monotonic clock.
double seconds_now(void);

#endif
