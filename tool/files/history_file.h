// SPDX-License-Identifier: Apache-2.0
// Shared by the two halves of a history: the file and its SQL statements (history_file.c), and its runs (history_store.c).
#ifndef TOOL_HISTORY_FILE_H
#define TOOL_HISTORY_FILE_H

#include <sqlite3.h>

#include "files/history_store.h"

struct history {
    sqlite3 *db;
    char error[256]; // of the first statement that failed; "" if none has
    int64_t steps_left;
};

sqlite3_stmt *history_prepare(struct history *history, const char *sql); // NULL after an error
// Whether there is another row: false after the last one and after an error; the error is kept.
bool history_step(struct history *history, sqlite3_stmt *query);
// False if this statement or an earlier one failed.
bool history_end(struct history *history, sqlite3_stmt *query);
bool history_execute(struct history *history, const char *sql);
int64_t history_pragma(struct history *history, const char *sql); // -1 after an error

#endif
