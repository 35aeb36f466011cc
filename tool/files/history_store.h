// SPDX-License-Identifier: Apache-2.0
// The file of runs, SQLite: runs (one row each) and results (one row for each case of a run).
#ifndef TOOL_HISTORY_STORE_H
#define TOOL_HISTORY_STORE_H

#include <stdint.h>
#include <stdio.h>

#include "files/run.h"

struct history;

// NULL with a sentence where the file is none of ours, cannot be opened, or the tool was built without SQLite. A file that
// is not there is made, with its folder, where can_create is set.
struct history *history_open(const char *path, bool can_create, char *error, size_t error_bytes);
void history_close(struct history *history);

// What SQLite said of the first of the calls below that failed, NULL while none has. To be asked before what they return
// is believed: a file that is damaged or locked does not say that a run is not there.
const char *history_error(const struct history *history);

// The run's number, the same as before for a run that is there already; 0 after an error.
int64_t history_add(struct history *history, const struct run *run, bool *is_new);
// False when there is no such run.
bool history_remove(struct history *history, int64_t number);
// 0 where there is none.
int64_t history_last(struct history *history);
bool history_get(struct history *history, int64_t number, struct run *run);
// Of each case the latest `most` runs before `number` on the same machine that have it, whichever variant was chosen: the
// middle median, the slowest p80 and the fastest p20 of them, so that their spread from run to run counts as noise; and,
// without times, the cases that `number` lacks. *num_runs is how many runs took part.
bool history_before(struct history *history, int64_t number, int most, struct run *base,
                    int *num_runs);

void history_list(struct history *history, FILE *out);
// Every case whose words hold text ("" for all), with its times in all runs.
int history_show(struct history *history, const char *text, FILE *out);

#endif
