// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "files/history_store.h"

#ifdef TSR_TOOL_HAS_SQLITE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/history_file.h"
#include "system/heap.h"

// ---- Writing ------------------------------------------------------------------------------------

static void bind_text(sqlite3_stmt *query, int index, const char *text) {
    sqlite3_bind_text(query, index, text, -1, SQLITE_TRANSIENT);
}

// NAN becomes NULL.
static void bind_number(sqlite3_stmt *query, int index, double value) {
    sqlite3_bind_double(query, index, value);
}

static bool add_rows(struct history *history, int64_t number, const struct run *run) {
    sqlite3_stmt *query =
        history_prepare(history, "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)");
    bool is_fine = query != NULL;
    for (int i = 0; is_fine && i < run->count; i++) {
        const struct run_row *row = &run->rows[i];
        sqlite3_bind_int64(query, 1, number);
        bind_text(query, 2, row->key);
        bind_text(query, 3, row->label);
        bind_text(query, 4, row->variant);
        bind_number(query, 5, row->ms);
        bind_number(query, 6, row->p20_ms);
        bind_number(query, 7, row->p80_ms);
        bind_number(query, 8, row->err_over_bound);
        sqlite3_bind_int(query, 9, row->is_throttled);
        (void)history_step(history, query);
        is_fine = *history->error == '\0';
        sqlite3_reset(query);
    }
    return history_end(history, query);
}

static int64_t find_digest(struct history *history, const char *digest) {
    sqlite3_stmt *query = history_prepare(history, "SELECT id FROM runs WHERE digest = ?");
    if (query == NULL) return 0;
    bind_text(query, 1, digest);
    int64_t number = history_step(history, query) ? sqlite3_column_int64(query, 0) : 0;
    sqlite3_finalize(query);
    return number;
}

static int64_t add_run(struct history *history, const struct run *run) {
    const char *const texts[] = {run->digest, run->date,    run->cpu,
                                 run->gpu,    run->version, run->command};
    sqlite3_stmt *query =
        history_prepare(history, "INSERT INTO runs (digest, date, cpu, gpu, version, "
                                 "command) VALUES (?, ?, ?, ?, ?, ?)");
    if (query == NULL) return 0;
    for (int i = 0; i < 6; i++) bind_text(query, i + 1, texts[i]);
    (void)history_step(history, query);
    if (!history_end(history, query)) return 0;
    int64_t number = sqlite3_last_insert_rowid(history->db);
    return add_rows(history, number, run) ? number : 0;
}

// One transaction: a run is added as a whole or not at all.
int64_t history_add(struct history *history, const struct run *run, bool *is_new) {
    int64_t number = 0;
    if (history_execute(history, "BEGIN IMMEDIATE")) number = find_digest(history, run->digest);
    *is_new = number == 0;
    if (*is_new && *history->error == '\0') number = add_run(history, run);
    if (number > 0 && history_execute(history, "COMMIT")) return number;
    sqlite3_exec(history->db, "ROLLBACK", NULL, NULL, NULL);
    return 0;
}

bool history_remove(struct history *history, int64_t number) {
    sqlite3_stmt *query = history_prepare(history, "DELETE FROM runs WHERE id = ?");
    if (query == NULL) return false;
    sqlite3_bind_int64(query, 1, number);
    (void)history_step(history, query);
    return history_end(history, query) && sqlite3_changes(history->db) == 1;
}

// ---- Reading ------------------------------------------------------------------------------------

int64_t history_last(struct history *history) {
    int64_t number = history_pragma(history, "SELECT max(id) FROM runs");
    return number > 0 ? number : 0;
}

static char *column_text(sqlite3_stmt *query, int column) {
    return run_clean(heap_text((const char *)sqlite3_column_text(query, column)));
}

static double column_number(sqlite3_stmt *query, int column) {
    return sqlite3_column_type(query, column) == SQLITE_NULL ? NAN
                                                             : sqlite3_column_double(query, column);
}

// Rows of key, label, variant, ms, p20, p80, err/bound, throttled.
static bool read_rows(struct history *history, sqlite3_stmt *query, struct run *run) {
    int room = 0;
    while (history_step(history, query)) {
        if (run->count == room) {
            room = room > 0 ? 2 * room : 64;
            run->rows = heap_grow(run->rows, (size_t)room, sizeof *run->rows);
        }
        run->rows[run->count++] = (struct run_row){.key = column_text(query, 0),
                                                   .label = column_text(query, 1),
                                                   .variant = column_text(query, 2),
                                                   .ms = column_number(query, 3),
                                                   .p20_ms = column_number(query, 4),
                                                   .p80_ms = column_number(query, 5),
                                                   .err_over_bound = column_number(query, 6),
                                                   .is_throttled = sqlite3_column_int(query, 7)};
    }
    return history_end(history, query);
}

bool history_get(struct history *history, int64_t number, struct run *run) {
    *run = (struct run){0};
    sqlite3_stmt *query = history_prepare(
        history, "SELECT date, cpu, gpu, version, command, digest FROM runs WHERE id = ?");
    if (query == NULL) return false;
    sqlite3_bind_int64(query, 1, number);
    bool is_found = history_step(history, query);
    if (is_found) {
        char **const texts[] = {&run->date,    &run->cpu,     &run->gpu,
                                &run->version, &run->command, &run->digest};
        for (int i = 0; i < 6; i++) *texts[i] = column_text(query, i);
    }
    sqlite3_finalize(query);
    query = is_found
                ? history_prepare(history, "SELECT key, label, variant, ms, p20_ms, p80_ms, "
                                           "err_over_bound, throttled FROM results WHERE run = ?")
                : NULL;
    if (query == NULL) return false;
    sqlite3_bind_int64(query, 1, number);
    return read_rows(history, query, run);
}

// ---- The earlier runs ---------------------------------------------------------------------------

static bool execute_with(struct history *history, const char *sql, int64_t first, int64_t second) {
    sqlite3_stmt *query = history_prepare(history, sql);
    if (query == NULL) return false;
    sqlite3_bind_int64(query, 1, first);
    if (sqlite3_bind_parameter_count(query) > 1) sqlite3_bind_int64(query, 2, second);
    (void)history_step(history, query);
    return history_end(history, query);
}

static const char earlier_runs[] =
    "CREATE TEMP TABLE earlier AS SELECT a.id AS id FROM runs a, runs b WHERE b.id = ?1 AND "
    "a.id < b.id AND a.cpu = b.cpu AND a.gpu = b.gpu";
// Rows of the run and of the earlier ones, each with the number of rows that its run has for its case.
static const char counted_rows[] =
    "CREATE TEMP TABLE counted AS SELECT *, count(*) OVER (PARTITION BY run, key) AS number_of_key "
    "FROM results WHERE run = ?1 OR run IN (SELECT id FROM earlier)";
// For each row of the run, the matching rows of the earlier runs: those of its variant, or of another variant if both runs
// have one row of the case, because the library's choice may have changed. Throttled rows are left out.
static const char met_rows[] =
    "CREATE TEMP TABLE met AS WITH now AS (SELECT DISTINCT key, label, variant, number_of_key FROM "
    "counted WHERE run = ?1) "
    "SELECT * FROM (SELECT now.key AS key, now.label AS label, now.variant AS now_variant, "
    "old.variant AS variant, old.run AS run, old.ms AS ms, old.p20_ms AS p20_ms, "
    "old.p80_ms AS p80_ms, old.err_over_bound AS err_over_bound, "
    "dense_rank() OVER (PARTITION BY now.key, now.variant ORDER BY old.run DESC) AS age "
    "FROM now JOIN counted old ON old.key = now.key AND (old.variant = now.variant OR "
    "(old.number_of_key = 1 AND now.number_of_key = 1)) "
    "WHERE old.run < ?1 AND old.ms IS NOT NULL AND NOT old.throttled) WHERE age <= ?2";
// The summary of those rows, and the cases that the run lacks.
static const char base_rows[] =
    "SELECT key, label, coalesce(max(CASE WHEN variant = now_variant THEN variant END), "
    "max(variant)), avg(CASE WHEN 2 * place IN (number, number + 1, number + 2) THEN ms END), "
    "min(p20_ms), max(p80_ms), min(err_over_bound), 0 FROM "
    "(SELECT *, row_number() OVER (PARTITION BY key, now_variant ORDER BY ms) AS place, "
    "count(*) OVER (PARTITION BY key, now_variant) AS number FROM met) AS sorted "
    "GROUP BY key, label, now_variant UNION ALL "
    "SELECT key, max(label), variant, NULL, NULL, NULL, NULL, 0 FROM results "
    "WHERE run IN (SELECT id FROM earlier) AND "
    "key NOT IN (SELECT key FROM results WHERE run = ?1) GROUP BY key, variant";

bool history_before(struct history *history, int64_t number, int most, struct run *base,
                    int *num_runs) {
    *base = (struct run){0};
    if (!history_execute(history,
                         "DROP TABLE IF EXISTS temp.earlier; DROP TABLE IF EXISTS temp.counted; "
                         "DROP TABLE IF EXISTS temp.met") ||
        !execute_with(history, earlier_runs, number, most) ||
        !execute_with(history, counted_rows, number, most) ||
        !history_execute(history, "CREATE INDEX temp.counted_key ON counted (key)") ||
        !execute_with(history, met_rows, number, most))
        return false;
    *num_runs = (int)history_pragma(history, "SELECT count(DISTINCT run) FROM met");
    sqlite3_stmt *query = history_prepare(history, base_rows);
    if (query == NULL) return false;
    sqlite3_bind_int64(query, 1, number);
    return read_rows(history, query, base);
}

// ---- Tables -------------------------------------------------------------------------------------

static void write_text(FILE *out, sqlite3_stmt *query, int column) {
    char *text = column_text(query, column);
    fprintf(out, " %s |", text);
    free(text);
}

void history_list(struct history *history, FILE *out) {
    sqlite3_stmt *query =
        history_prepare(history, "SELECT id, date, CASE WHEN gpu = '' THEN cpu ELSE gpu "
                                 "END, version, (SELECT count(*) FROM results "
                                 "WHERE run = id), command FROM runs ORDER BY id");
    fputs("| run | date | machine | version | cases | command |\n|--:|---|---|---|--:|---|\n", out);
    while (history_step(history, query)) {
        fputs("|", out);
        for (int i = 0; i < 6; i++) write_text(out, query, i);
        fputs("\n", out);
    }
    sqlite3_finalize(query);
}

int history_show(struct history *history, const char *text, FILE *out) {
    sqlite3_stmt *query = history_prepare(
        history, "SELECT label, variant, run, ms, p20_ms, p80_ms FROM results WHERE "
                 "instr(label, ?) > 0 ORDER BY label, key, variant, run");
    int count = 0;
    if (query == NULL) return 0;
    bind_text(query, 1, text);
    while (history_step(history, query)) {
        if (count++ == 0)
            fputs("| case | variant | run | ms | p20 | p80 |\n|---|---|--:|--:|--:|--:|\n", out);
        fputs("|", out);
        for (int i = 0; i < 3; i++) write_text(out, query, i);
        for (int i = 3; i < 6; i++)
            if (isfinite(column_number(query, i)))
                fprintf(out, " %.4g |", column_number(query, i));
            else
                fputs(" - |", out);
        fputs("\n", out);
    }
    sqlite3_finalize(query);
    return count;
}

#else // no SQLite: nothing can be opened

int64_t history_add(struct history *history, const struct run *run, bool *is_new) {
    return (void)history, (void)run, (void)is_new, 0;
}
bool history_remove(struct history *history, int64_t number) {
    return (void)history, (void)number, false;
}
int64_t history_last(struct history *history) { return (void)history, 0; }
bool history_get(struct history *history, int64_t number, struct run *run) {
    return (void)history, (void)number, (void)run, false;
}
bool history_before(struct history *history, int64_t number, int most, struct run *base,
                    int *num_runs) {
    return (void)history, (void)number, (void)most, (void)base, (void)num_runs, false;
}
void history_list(struct history *history, FILE *out) { (void)history, (void)out; }
int history_show(struct history *history, const char *text, FILE *out) {
    return (void)history, (void)text, (void)out, 0;
}
#endif
