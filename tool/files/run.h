// SPDX-License-Identifier: Apache-2.0
// A run: the results of one bench or report, read back from its file; and two runs side by side.
#ifndef TOOL_RUN_H
#define TOOL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct run_row {
    char *key;                 // what was measured, all but the variant: equal keys may be compared
    char *label;               // the same for people
    char *variant;             // what ran
    double ms, p20_ms, p80_ms; // NAN where unknown
    double err_over_bound;
    bool is_throttled;
};

// The machine's words are "" where the file has none.
struct run {
    char *date, *cpu, *gpu, *version, *command, *digest;
    struct run_row *rows; // of our own variants; peers are left out
    int count;
};

// Of a file that bench or report wrote as JSON, or of a report's folder. Returns -1, or the exit code after one sentence
// on stderr.
int run_read(const char *command, const char *path, struct run *run);
void run_free(struct run *run);

// Words of files that others wrote, made fit for a table, a terminal and JSON, in place: control characters and what is no
// UTF-8, as a character that was cut, become '?', and '|' becomes '/'. Returns text.
char *run_clean(char *text);

enum run_verdict { RUN_SAME, RUN_FASTER, RUN_NOISY, RUN_SLOWER, RUN_WRONG, NUM_VERDICTS };
extern const char *const run_verdict_names[];

// Slower: by more than the limit (1.05: five percent), and the fast end of the new samples, p20, beyond the slow end of the
// old ones, p80. A change whose spreads meet, or of throttled samples, is noise. Wrong: an error beyond the bound, a new
// row without a time, or one without an error where the old one has one.
enum run_verdict run_judge(const struct run_row *old, const struct run_row *new, double limit);

#endif
