// SPDX-License-Identifier: Apache-2.0
// The file of a history, which may come from anybody, and SQL statements on it.
#define _GNU_SOURCE
#include "files/history_store.h"

#ifdef TSR_TOOL_HAS_SQLITE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/history_file.h"
#include "system/heap.h"

enum { APPLICATION = 0x54535248, BUSY_MS = 5000 }; // "TSRH"

static const char schema[] =
    "BEGIN IMMEDIATE; PRAGMA application_id = 1414746696; PRAGMA user_version = 1;"
    "CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT UNIQUE,"
    " date TEXT, cpu TEXT, gpu TEXT, version TEXT, command TEXT);"
    "CREATE TABLE IF NOT EXISTS results (run INTEGER REFERENCES runs(id) ON DELETE CASCADE,"
    " key TEXT, label TEXT, variant TEXT, ms REAL, p20_ms REAL, p80_ms REAL, err_over_bound REAL,"
    " throttled INTEGER);"
    "CREATE INDEX IF NOT EXISTS results_run ON results(run); COMMIT;";

static const char *last_error(const struct history *history) {
    return history->steps_left > 0 ? sqlite3_errmsg(history->db)
                                   : "it takes longer than its size allows: it is damaged";
}

static bool fail(struct history *history, const char *path, char *error, size_t error_bytes) {
    snprintf(error, error_bytes, "'%s': %s", path, last_error(history));
    return false;
}

static void note_error(struct history *history) {
    if (*history->error == '\0')
        snprintf(history->error, sizeof history->error, "%s", last_error(history));
}

const char *history_error(const struct history *history) {
    return *history->error != '\0' ? history->error : NULL;
}

sqlite3_stmt *history_prepare(struct history *history, const char *sql) {
    sqlite3_stmt *query = NULL;
    if (sqlite3_prepare_v2(history->db, sql, -1, &query, NULL) == SQLITE_OK) return query;
    note_error(history);
    return NULL;
}

bool history_step(struct history *history, sqlite3_stmt *query) {
    int code = query != NULL ? sqlite3_step(query) : SQLITE_DONE;
    if (code != SQLITE_ROW && code != SQLITE_DONE) note_error(history);
    return code == SQLITE_ROW;
}

bool history_end(struct history *history, sqlite3_stmt *query) {
    sqlite3_finalize(query);
    return *history->error == '\0';
}

bool history_execute(struct history *history, const char *sql) {
    if (sqlite3_exec(history->db, sql, NULL, NULL, NULL) == SQLITE_OK) return true;
    note_error(history);
    return false;
}

int64_t history_pragma(struct history *history, const char *sql) {
    sqlite3_stmt *query = history_prepare(history, sql);
    int64_t value = history_step(history, query) ? sqlite3_column_int64(query, 0) : -1;
    sqlite3_finalize(query);
    return value;
}

// ---- Files from outside -------------------------------------------------------------------------

enum { STEPS_BETWEEN = 1000, STEPS_AT_LEAST = 20000000, STEPS_A_BYTE = 200 };

static int count_steps(void *user) {
    struct history *history = user;
    history->steps_left -= STEPS_BETWEEN;
    return history->steps_left <= 0;
}

// Limits what the content of a file can cause: no code of its schema runs, sizes beyond those of histories are refused, and
// no statement runs forever over pages that contain each other.
static bool distrust(struct history *history, const char *path) {
    static const int limits[][2] = {
        {SQLITE_LIMIT_LENGTH, 1 << 20},     {SQLITE_LIMIT_SQL_LENGTH, 1 << 16},
        {SQLITE_LIMIT_COLUMN, 64},          {SQLITE_LIMIT_EXPR_DEPTH, 100},
        {SQLITE_LIMIT_COMPOUND_SELECT, 8},  {SQLITE_LIMIT_VDBE_OP, 25000},
        {SQLITE_LIMIT_FUNCTION_ARG, 16},    {SQLITE_LIMIT_ATTACHED, 0},
        {SQLITE_LIMIT_VARIABLE_NUMBER, 16}, {SQLITE_LIMIT_TRIGGER_DEPTH, 4},
        {SQLITE_LIMIT_WORKER_THREADS, 0},
    };
    static const int switches[][2] = {
        {SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
        {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
#ifdef SQLITE_DBCONFIG_DEFENSIVE
        {SQLITE_DBCONFIG_DEFENSIVE, 1},
#endif
#ifdef SQLITE_DBCONFIG_ENABLE_VIEW
        {SQLITE_DBCONFIG_ENABLE_VIEW, 0},
#endif
#ifdef SQLITE_DBCONFIG_TRUSTED_SCHEMA
        {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
#endif
    };
    struct stat info;
    double bytes = stat(path, &info) == 0 ? (double)info.st_size : 0;
    history->steps_left = STEPS_AT_LEAST + (int64_t)fmin(STEPS_A_BYTE * bytes, 1e15);
    sqlite3_progress_handler(history->db, STEPS_BETWEEN, count_steps, history);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        (void)sqlite3_limit(history->db, limits[i][0], limits[i][1]);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        (void)sqlite3_db_config(history->db, switches[i][0], switches[i][1], NULL);
    return history_execute(history, "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; "
                                    "PRAGMA mmap_size = 0");
}

// The whole schema in one text. NULL after an error.
static char *schema_text(struct history *history) {
    char *text = NULL;
    size_t bytes;
    FILE *out = heap_stream(&text, &bytes);
    sqlite3_stmt *query =
        history_prepare(history, "SELECT type, name, tbl_name, coalesce(sql, '') FROM "
                                 "sqlite_master ORDER BY type, name");
    while (history_step(history, query)) {
        for (int i = 0; i < 4; i++)
            fprintf(out, "%s\n", (const char *)sqlite3_column_text(query, i));
    }
    heap_stream_end(out);
    if (history_end(history, query)) return text;
    free(text);
    return NULL;
}

// The schema must have exactly a history's tables and index, and no view, trigger, virtual table or computed column. The
// integrity check must find every page in one place.
static bool is_a_history(struct history *history, const char *path, char *error,
                         size_t error_bytes) {
    struct history model = {.steps_left = STEPS_AT_LEAST};
    char *ours = NULL, *text = schema_text(history);
    if (text != NULL && sqlite3_open(":memory:", &model.db) == SQLITE_OK &&
        history_execute(&model, schema))
        ours = schema_text(&model);
    bool is_same = text != NULL && ours != NULL && strcmp(text, ours) == 0;
    if (text != NULL && ours != NULL && !is_same)
        snprintf(error, error_bytes, "'%s' has other tables than a history of this version", path);
    else if (!is_same)
        fail(text == NULL ? history : &model, path, error, error_bytes);
    sqlite3_close(model.db);
    free(ours);
    free(text);
    if (!is_same) return false;
    sqlite3_stmt *query = history_prepare(history, "PRAGMA quick_check(1)");
    bool is_sound = history_step(history, query) &&
                    strcmp((const char *)sqlite3_column_text(query, 0), "ok") == 0;
    if (!history_end(history, query)) return fail(history, path, error, error_bytes);
    if (!is_sound) snprintf(error, error_bytes, "'%s' is damaged", path);
    return is_sound;
}

static bool is_ready(struct history *history, bool can_create, const char *path, char *error,
                     size_t error_bytes) {
    sqlite3_busy_timeout(history->db, BUSY_MS);
    if (!distrust(history, path)) return fail(history, path, error, error_bytes);
    int64_t application = history_pragma(history, "PRAGMA application_id");
    int64_t tables = history_pragma(history, "SELECT count(*) FROM sqlite_master");
    if (application < 0 || tables < 0) return fail(history, path, error, error_bytes);
    bool is_ours =
        application == APPLICATION && history_pragma(history, "PRAGMA user_version") == 1;
    if (!is_ours && (application != 0 || tables > 0 || !can_create)) {
        snprintf(error, error_bytes, "'%s' is no history of this version", path);
        return false;
    }
    if (is_ours && !is_a_history(history, path, error, error_bytes)) return false;
    if (!is_ours && sqlite3_exec(history->db, schema, NULL, NULL, NULL) != SQLITE_OK)
        return fail(history, path, error, error_bytes);
    return history_execute(history, "PRAGMA foreign_keys = ON") ||
           fail(history, path, error, error_bytes);
}

// SQLite plays back a journal that a writer left. The journal may name a "super-journal", any file, which SQLite then
// removes. A history never has one, because it never writes to two files at once.
static bool names_another_file(const char *name) {
    static const unsigned char magic[] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    char journal[PATH_MAX + 16];
    unsigned char end[sizeof magic] = {0};
    snprintf(journal, sizeof journal, "%s-journal", name);
    FILE *file = fopen(journal, "re");
    if (file == NULL) return false;
    bool is_read = fseek(file, -(long)sizeof end, SEEK_END) == 0 &&
                   fread(end, 1, sizeof end, file) == sizeof end;
    fclose(file);
    return is_read && memcmp(end, magic, sizeof magic) == 0;
}

struct history *history_open(const char *path, bool can_create, char *error, size_t error_bytes) {
    struct history *history = heap_get(1, sizeof *history);
    struct stat info;
    char name[PATH_MAX + 2];
    history->steps_left = STEPS_AT_LEAST;
    int flags = SQLITE_OPEN_READWRITE | (can_create ? SQLITE_OPEN_CREATE : 0);
    if (!can_create && access(path, F_OK) != 0 && errno == ENOENT) {
        snprintf(error, error_bytes, "'%s' does not exist yet, 'tessera history add' makes it",
                 path);
        history_close(history);
        return NULL;
    }
    // A pipe would make this wait.
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        snprintf(error, error_bytes, "'%s' is no regular file", path);
        history_close(history);
        return NULL;
    }
    // To SQLite the names ":memory:" and "file:..." have a special meaning, but not with a folder before them. For a link,
    // the journal lies beside its target, so this opens the target.
    char *real = realpath(path, NULL);
    if (real != NULL)
        snprintf(name, sizeof name, "%s", real);
    else
        snprintf(name, sizeof name, "%s%s", *path == '/' ? "" : "./", path);
    free(real);
    if (names_another_file(name)) {
        snprintf(error, error_bytes, "'%s-journal' names another file, expected a plain journal",
                 path);
        history_close(history);
        return NULL;
    }
    bool is_fine = sqlite3_open_v2(name, &history->db, flags, NULL) == SQLITE_OK;
    if (!is_fine) fail(history, path, error, error_bytes);
    if (is_fine && is_ready(history, can_create, path, error, error_bytes)) return history;
    history_close(history);
    return NULL;
}

void history_close(struct history *history) {
    if (history != NULL) sqlite3_close(history->db);
    free(history);
}

#else // no SQLite: nothing can be opened

struct history *history_open(const char *path, bool can_create, char *error, size_t error_bytes) {
    (void)can_create;
    snprintf(error, error_bytes, "'%s' cannot be opened: this tessera was built without SQLite",
             path);
    return NULL;
}
void history_close(struct history *history) { (void)history; }
const char *history_error(const struct history *history) { return (void)history, NULL; }
#endif
