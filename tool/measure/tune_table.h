// SPDX-License-Identifier: Apache-2.0
// The results of tune: the candidates with their times, and the rows for the tuning file.
#ifndef TOOL_TUNE_TABLE_H
#define TOOL_TUNE_TABLE_H

#include "files/result.h"
#include "files/tuning_file.h"

struct tune_row {
    struct result result;
    char candidate[64];
    double model, ratio; // ratio: its time / the built-in choice's
    bool is_built_in, is_chosen, is_dropped;
};

struct tune_table {
    struct tune_row *rows;
    int num_rows;
    struct tuning_line *lines;
    int num_lines;
};

void tune_table_write_md(FILE *out, const struct tune_table *table);
// file: the tuning file; NULL if none is written.
void tune_table_write_json(FILE *out, const struct tune_table *table, const char *file);

#endif
