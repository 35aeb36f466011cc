// SPDX-License-Identifier: Apache-2.0
// Reads results back. A file may come from any program, so each field is checked before it is used.
#define _GNU_SOURCE
#include "files/run.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands/command.h"
#include "system/heap.h"

const char *const run_verdict_names[] = {"same", "faster", "noise", "slower", "WRONG"};

// The bytes of the UTF-8 character that starts at c; 0 if there is none.
static int character_bytes(const unsigned char *c) {
    int count = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;
    for (int i = 1; i < count; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    bool is_too_long = (*c == 0xe0 && c[1] < 0xa0) || (*c == 0xf0 && c[1] < 0x90);
    bool is_no_code = (*c == 0xed && c[1] >= 0xa0) || (*c == 0xf4 && c[1] >= 0x90);
    return is_too_long || is_no_code ? 0 : count;
}

char *run_clean(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c != '\0';) {
        int count = character_bytes(c);
        bool is_upper_control = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; // U+0080 to U+009F
        if (is_upper_control) c[1] = '?';
        if (is_upper_control || count == 0 || *c < ' ' || *c == 0x7f) *c = '?';
        if (*c == '|') *c = '/';
        c += count > 0 ? count : 1;
    }
    return text;
}

static char *copy_of(const char *text) { return run_clean(heap_text(text)); }

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static double number_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

// ---- What was measured --------------------------------------------------------------------------

static char *make_key(const json_t *result) {
    static const char *const fields[] = {"op",      "params", "dtype", "device",      "isa",
                                         "threads", "cache",  "study", "scaled_from", NULL};
    json_t *key = json_object();
    for (int i = 0; fields[i] != NULL; i++) {
        json_t *value = json_object_get(result, fields[i]);
        if (value != NULL) json_object_set(key, fields[i], value);
    }
    char *text = json_dumps(key, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    json_decref(key);
    if (text == NULL) heap_exhausted();
    return text;
}

// Leaves out parameters with the values 0, -1, false and none.
static char *make_label(const json_t *result) {
    char *label = NULL;
    size_t bytes = 0;
    const char *name;
    json_t *value;
    FILE *out = heap_stream(&label, &bytes);
    fputs(text_of(result, "op"), out);
    json_object_foreach(json_object_get(result, "params"), name, value) {
        const char *word = json_string_value(value);
        double number = json_number_value(value);
        if (json_is_true(value))
            fprintf(out, " +%s", name);
        else if (word != NULL && strcmp(word, "none") != 0)
            fprintf(out, " %s=%s", name, word);
        else if (json_is_number(value) && number != 0 && number != -1)
            fprintf(out, " %s=%.6g", name, number);
    }
    fprintf(out, " %s", text_of(result, "dtype"));
    json_int_t threads = json_integer_value(json_object_get(result, "threads"));
    if (threads > 0) fprintf(out, ", %lld thread%s", (long long)threads, threads > 1 ? "s" : "");
    if (*text_of(result, "study") != '\0') fprintf(out, " (%s)", text_of(result, "study"));
    heap_stream_end(out);
    return run_clean(label);
}

// For a device the times are those of its own clock, with the relative spread of the calls.
static void read_times(const json_t *result, struct run_row *row) {
    double graph = number_of(result, "graph_ms"), median = number_of(result, "median_ms");
    double scale = isfinite(graph) && median > 0 ? graph / median : 1;
    row->ms = scale * median;
    row->p20_ms = scale * number_of(result, "p20_ms");
    row->p80_ms = scale * number_of(result, "p80_ms");
    row->err_over_bound = number_of(result, "err_over_bound");
    row->is_throttled = json_is_true(json_object_get(result, "throttled"));
}

static void read_rows(const json_t *results, struct run *run) {
    run->rows = heap_get(json_array_size(results) + 1, sizeof *run->rows);
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *result = json_array_get(results, i);
        if (!json_is_object(result) || *text_of(result, "op") == '\0') continue;
        if (json_is_string(json_object_get(result, "peer"))) continue;
        struct run_row *row = &run->rows[run->count++];
        row->key = make_key(result);
        row->label = make_label(result);
        row->variant = copy_of(text_of(result, "variant"));
        read_times(result, row);
    }
}

// ---- Files --------------------------------------------------------------------------------------

// FNV-1a of the whole document, so that a history takes the same file only once.
static char *make_digest(const json_t *document) {
    char *text = json_dumps(document, JSON_COMPACT | JSON_SORT_KEYS), digest[20];
    uint64_t hash = 14695981039346656037u;
    for (const char *c = text; c != NULL && *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    free(text);
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)hash);
    return copy_of(digest);
}

static int refuse(const char *command, const char *path, const char *why) {
    fprintf(stderr, "tessera %s: '%s' is no results.json of bench or report: %s\n", command, path,
            why);
    return EXIT_USAGE;
}

int run_read(const char *command, const char *path, struct run *run) {
    char inner[PATH_MAX];
    struct stat info;
    json_error_t error;
    *run = (struct run){0};
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    int length = snprintf(inner, sizeof inner, "%s%s", path, is_folder ? "/results.json" : "");
    bool is_whole = length < (int)sizeof inner;
    // The user may name a pipe, but a pipe in a folder would make this wait.
    if (is_folder && is_whole && stat(inner, &info) == 0 && !S_ISREG(info.st_mode))
        return refuse(command, inner, "it is no regular file");
    FILE *file = is_whole ? fopen(inner, "re") : NULL;
    if (!is_whole) errno = ENAMETOOLONG;
    if (file == NULL) {
        fprintf(stderr, "tessera %s: cannot read '%s': %s\n", command, inner, strerror(errno));
        return EXIT_COULD_NOT_RUN;
    }
    json_t *document = json_loadf(file, 0, &error);
    fclose(file);
    if (document == NULL) return refuse(command, inner, run_clean(error.text));
    const json_t *results = json_object_get(document, "results");
    const json_t *env = json_object_get(document, "env");
    int code = -1;
    if (json_integer_value(json_object_get(document, "schema")) != 1)
        code = refuse(command, inner, "expected \"schema\": 1");
    else if (!json_is_array(results))
        code = refuse(command, inner, "it has no results");
    if (code < 0) {
        run->date = copy_of(text_of(env, "date"));
        run->cpu = copy_of(text_of(env, "cpu"));
        run->gpu = copy_of(text_of(env, "gpu"));
        run->version = copy_of(text_of(env, "version"));
        run->command = copy_of(text_of(env, "command"));
        run->digest = make_digest(document);
        read_rows(results, run);
    }
    json_decref(document);
    return code;
}

void run_free(struct run *run) {
    for (int i = 0; i < run->count; i++) {
        free(run->rows[i].key);
        free(run->rows[i].label);
        free(run->rows[i].variant);
    }
    free(run->rows);
    free(run->date);
    free(run->cpu);
    free(run->gpu);
    free(run->version);
    free(run->command);
    free(run->digest);
    *run = (struct run){0};
}

// ---- Judging ------------------------------------------------------------------------------------

enum run_verdict run_judge(const struct run_row *old, const struct run_row *new, double limit) {
    // JSON has no infinity: an infinite error is null. A result that failed verification has no time.
    bool is_proof_lost = !isfinite(new->err_over_bound) && isfinite(old->err_over_bound);
    if (new->err_over_bound > 1 || is_proof_lost || !isfinite(new->ms)) return RUN_WRONG;
    double ratio = new->ms / old->ms;
    bool is_slower = ratio > limit, is_faster = ratio < 1 / limit;
    if (!is_slower && !is_faster) return RUN_SAME; // also if the old time is unknown
    if (old->is_throttled || new->is_throttled) return RUN_NOISY;
    // fmax and fmin take the median if a percentile is NAN
    bool is_apart = is_slower ? fmin(new->p20_ms, new->ms) > fmax(old->p80_ms, old->ms)
                              : fmax(new->p80_ms, new->ms) < fmin(old->p20_ms, old->ms);
    if (!is_apart) return RUN_NOISY;
    return is_slower ? RUN_SLOWER : RUN_FASTER;
}
