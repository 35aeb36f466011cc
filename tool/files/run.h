// SPDX-License-Identifier: Apache-2.0
// A run: the results of one bench or report, read back from its file, and the comparison of two rows.
#ifndef TOOL_RUN_H
#define TOOL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct run_row {
    char *key;                 // all but the variant: rows with equal keys may be compared
    char *label;               // the same, readable
    char *variant;             // the variant that ran
    double ms, p20_ms, p80_ms; // NAN where unknown
    double err_over_bound;
    bool is_throttled;
};

// The texts about the machine are "" if the file has none.
struct run {
    char *date, *cpu, *gpu, *version, *command, *digest;
    struct run_row *rows; // the library's variants; peers are left out
    int count;
};

// Reads a JSON file of bench or report, or a report's folder. Returns -1, or the exit code after one sentence on stderr.
int run_read(const char *command, const char *path, struct run *run);
void run_free(struct run *run);

// Makes text from a file safe for a table, a terminal and JSON, in place: control characters and invalid UTF-8, such as a
// cut character, become '?', and '|' becomes '/'. Returns text.
char *run_clean(char *text);

enum run_verdict { RUN_SAME, RUN_FASTER, RUN_NOISY, RUN_SLOWER, RUN_WRONG, NUM_VERDICTS };
extern const char *const run_verdict_names[];

// Slower: the median is more than limit times the old one (1.05: five percent), and the new p20 is above the old p80. A
// change is noise if the spreads overlap or samples were throttled. Wrong: the error is above the bound, the new row has no
// time, or it has no error although the old one has.
enum run_verdict run_judge(const struct run_row *old, const struct run_row *new, double limit);

#endif
