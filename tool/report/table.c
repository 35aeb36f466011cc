// SPDX-License-Identifier: Apache-2.0
// Tables as values: built once, then written as HTML and markdown alike.
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"
#include "system/heap.h"

void report_tables_free(struct report_tables *tables) {
    for (int i = 0; i < tables->count; i++) free(tables->table[i].cells);
    tables->count = 0;
}

const struct report_table *report_table_find(const struct report_tables *tables, const char *id) {
    for (int i = 0; i < tables->count; i++)
        if (strcmp(tables->table[i].id, id) == 0) return &tables->table[i];
    return NULL;
}

const char *report_cell_text(const struct report_cell *cell, char *buffer, size_t bytes) {
    if (cell->kind == CELL_TEXT) return cell->text;
    if (cell->kind == CELL_ABSENT) return "–";
    double size = fabs(cell->number);
    if (cell->digits == 0) {
        snprintf(buffer, bytes, "%.0f", cell->number);
        return buffer;
    }
    if (size == 0)
        snprintf(buffer, bytes, "0");
    else if (size < 1e-3 || size >= 1e9)
        snprintf(buffer, bytes, "%.*e", cell->digits - 1, cell->number);
    else {
        int decimals = cell->digits - 1 - (int)floor(log10(size) + 1e-9);
        snprintf(buffer, bytes, "%.*f", decimals > 0 ? decimals : 0, cell->number);
    }
    return buffer;
}

// ---- Building ---------------------------------------------------------------------------------

struct report_table *table_begin(struct report_tables *tables, const char *id, const char *title,
                                 const char *const *columns) {
    if (tables->count == REPORT_MAX_TABLES) abort();
    struct report_table *table = &tables->table[tables->count++];
    *table = (struct report_table){.id = id, .title = title};
    for (; columns[table->num_columns] != NULL; table->num_columns++) {
        if (table->num_columns == TABLE_MAX_COLUMNS) abort();
        const char *name = columns[table->num_columns];
        table->is_number[table->num_columns] = *name == '#';
        table->columns[table->num_columns] = *name == '#' ? name + 1 : name;
    }
    return table;
}

// A new row has only absent cells; table->capacity counts the cells added so far.
void table_row(struct report_table *table) {
    size_t width = (size_t)table->num_columns, rows = (size_t)table->num_rows;
    table->cells = heap_grow(table->cells, (rows + 1) * width, sizeof *table->cells);
    for (size_t i = 0; i < width; i++)
        table->cells[rows * width + i] = (struct report_cell){.kind = CELL_ABSENT};
    table->capacity = (int)(rows * width);
    table->num_rows++;
}

static struct report_cell *next_cell(struct report_table *table) {
    if (table->capacity >= table->num_rows * table->num_columns) abort();
    return &table->cells[table->capacity++];
}

void table_text(struct report_table *table, enum cell_tone tone, const char *format, ...) {
    struct report_cell *cell = next_cell(table);
    cell->kind = CELL_TEXT;
    cell->tone = tone;
    va_list list;
    va_start(list, format);
    vsnprintf(cell->text, sizeof cell->text, format, list);
    va_end(list);
}

static void number_cell(struct report_table *table, enum cell_tone tone, double number, int digits,
                        double heat) {
    struct report_cell *cell = next_cell(table);
    if (isfinite(number)) *cell = (struct report_cell){CELL_NUMBER, tone, number, digits, "", heat};
}

void table_number(struct report_table *table, enum cell_tone tone, double number, int digits) {
    number_cell(table, tone, number, digits, 0);
}

void table_heat(struct report_table *table, double number, int digits, double share) {
    number_cell(table, TONE_PLAIN, number, digits, share);
}

void table_count(struct report_table *table, enum cell_tone tone, double number) {
    table_number(table, tone, number, 0);
}

void table_note(struct report_table *table, const char *format, ...) {
    size_t used = strlen(table->note);
    va_list list;
    va_start(list, format);
    vsnprintf(table->note + used, sizeof table->note - used, format, list);
    va_end(list);
}
