// SPDX-License-Identifier: Apache-2.0
// The file of runs, SQLite: runs (one row each) and results (one row for each case of a run).
#ifndef TOOL_HISTORY_STORE_H
#define TOOL_HISTORY_STORE_H

#include <stdint.h>
#include <stdio.h>

#include "files/run.h"

struct history;

// NULL with a sentence if the file is no history, cannot be opened, or the tool was built without SQLite. With can_create a
// missing file is made.
struct history *history_open(const char *path, bool can_create, char *error, size_t error_bytes);
void history_close(struct history *history);

// SQLite's message for the first of the calls below that failed; NULL if none has. Check it before you trust their results:
// "no such run" may come from a damaged or locked file.
const char *history_error(const struct history *history);

// The run's number; a run that is there already keeps its number. 0 after an error.
int64_t history_add(struct history *history, const struct run *run, bool *is_new);
// False if there is no such run.
bool history_remove(struct history *history, int64_t number);
// The number of the last run; 0 if there is none.
int64_t history_last(struct history *history);
bool history_get(struct history *history, int64_t number, struct run *run);
// For each case, the last `most` runs before `number` on the same machine that have it, with any variant. base has the
// median of their medians, their slowest p80 and their fastest p20, so that their spread from run to run counts as noise.
// base also has, without times, the cases that `number` lacks. *num_runs is the number of runs that were used.
bool history_before(struct history *history, int64_t number, int most, struct run *base,
                    int *num_runs);

void history_list(struct history *history, FILE *out);
// Writes every case whose label contains text ("" for all), with its times in all runs.
int history_show(struct history *history, const char *text, FILE *out);

#endif
