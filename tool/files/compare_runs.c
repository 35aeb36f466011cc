// SPDX-License-Identifier: Apache-2.0
// tessera compare A B: which cases of two runs became slower, faster or wrong, beyond the scatter of their samples. Rows are
// matched by what was measured. Their variants may differ if each side has one row left, because the library's choice may
// have changed.
#define _GNU_SOURCE
#include "files/compare_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands/bench_options.h"
#include "commands/command.h"
#include "system/files.h"
#include "system/heap.h"

// ---- Matching rows ------------------------------------------------------------------------------

// Sorts by case, then by variant, then by position.
static int by_case(const void *a, const void *b) {
    const struct run_row *const *x = a, *const *y = b;
    int order = strcmp((*x)->key, (*y)->key);
    if (order == 0) order = strcmp((*x)->variant, (*y)->variant);
    return order != 0 ? order : (*x > *y) - (*x < *y);
}

static const struct run_row **sort(const struct run *run) {
    const struct run_row **rows = heap_get((size_t)run->count + 1, sizeof *rows);
    for (int i = 0; i < run->count; i++) rows[i] = &run->rows[i];
    qsort(rows, (size_t)run->count, sizeof *rows, by_case);
    return rows; // ends with NULL
}

static bool has_key(const struct run_row *row, const char *key) {
    return row != NULL && strcmp(row->key, key) == 0;
}

// partner[i] is the old row of the new row i, or -1. Files may have many rows, so this sorts both runs and walks them once.
static void match(const struct run *old, const struct run *new, int *partner) {
    const struct run_row **old_rows = sort(old), **new_rows = sort(new);
    const struct run_row **before = old_rows, **now = new_rows;
    while (*now != NULL) {
        const char *key = (*now)->key;
        const struct run_row *left = NULL; // the last old row without a partner
        int num_left = 0, num_alone = 0, alone = -1;
        while (*before != NULL && strcmp((*before)->key, key) < 0) before++;
        for (;;) {
            bool is_before = has_key(*before, key), is_now = has_key(*now, key);
            if (!is_before && !is_now) break;
            int order = !is_before ? 1 : !is_now ? -1 : strcmp((*before)->variant, (*now)->variant);
            if (order < 0) {
                left = *before++;
                num_left++;
                continue;
            }
            int i = (int)(*now++ - new->rows);
            partner[i] = order == 0 ? (int)(*before++ - old->rows) : -1;
            if (order == 0) continue;
            alone = i;
            num_alone++;
        }
        if (num_left == 1 && num_alone == 1) partner[alone] = (int)(left - old->rows);
    }
    free(old_rows);
    free(new_rows);
}

// ---- The table ----------------------------------------------------------------------------------

static void write_ms(FILE *out, double ms) {
    if (isfinite(ms))
        fprintf(out, " %.4g |", ms);
    else
        fputs(" - |", out);
}

static void write_row(FILE *out, const struct run_row *old, const struct run_row *new,
                      enum run_verdict verdict) {
    bool is_other = strcmp(old->variant, new->variant) != 0;
    fprintf(out, "| %s | %s%s%s |", new->label, is_other ? old->variant : "",
            is_other ? " -> " : "", new->variant);
    write_ms(out, old->ms);
    write_ms(out, new->ms);
    if (isfinite(new->ms / old->ms))
        fprintf(out, " %.3f |", new->ms / old->ms);
    else
        fputs(" - |", out);
    fprintf(out, " %s", run_verdict_names[verdict]);
    if (new->err_over_bound > 1) fprintf(out, ", err/bound %.3g", new->err_over_bound);
    fputs(" |\n", out);
}

int compare_runs_write(FILE *out, const struct run *old, const struct run *new, double limit,
                       bool has_all) {
    int *partner = heap_get((size_t) new->count + 1, sizeof *partner), both = 0, timed = 0;
    int verdicts[NUM_VERDICTS] = {0}, num_new_wrong = 0;
    bool is_begun = false;
    double logarithms = 0;
    match(old, new, partner);
    for (int i = 0; i < new->count; i++) {
        const struct run_row *row = &new->rows[i];
        const struct run_row none = {.variant = row->variant,
                                     .ms = NAN,
                                     .p20_ms = NAN,
                                     .p80_ms = NAN,
                                     .err_over_bound = NAN};
        const struct run_row *before = partner[i] >= 0 ? &old->rows[partner[i]] : &none;
        enum run_verdict verdict = run_judge(before, row, limit);
        if (partner[i] < 0 && verdict != RUN_WRONG) continue;
        if (!is_begun)
            fputs("| case | variant | before ms | now ms | now / before | |\n"
                  "|---|---|--:|--:|--:|---|\n",
                  out);
        is_begun = true;
        both += partner[i] >= 0;
        num_new_wrong += partner[i] < 0;
        verdicts[verdict] += partner[i] >= 0;
        if (has_all || verdict == RUN_FASTER || verdict >= RUN_SLOWER)
            write_row(out, before, row, verdict);
        if (partner[i] < 0 || !(row->ms > 0) || !(before->ms > 0)) continue;
        logarithms += log(row->ms / before->ms);
        timed++;
    }
    bool is_bad = verdicts[RUN_SLOWER] > 0 || verdicts[RUN_WRONG] > 0 || num_new_wrong > 0;
    if (is_begun)
        fprintf(out,
                "\n%d cases in both: %d slower, %d wrong, %d faster, %d same, %d within noise; ",
                both, verdicts[RUN_SLOWER], verdicts[RUN_WRONG], verdicts[RUN_FASTER],
                verdicts[RUN_SAME], verdicts[RUN_NOISY]);
    if (timed > 0)
        fprintf(out, "geometric mean of now / before is %.3f; ", exp(logarithms / timed));
    if (is_begun) fprintf(out, "%d only before, %d only now", old->count - both, new->count - both);
    if (num_new_wrong > 0) fprintf(out, ", %d of them wrong", num_new_wrong);
    if (is_begun) fputs(".\n", out);
    free(partner);
    if (is_bad) return EXIT_WRONG;
    return both > 0 ? EXIT_FINE : EXIT_NOT_COMPARABLE;
}

// ---- The command --------------------------------------------------------------------------------

// The first operand decides, that is the first word that is no option and no option's value. The name of an operation is
// never a file, even if a file of this name exists (./softmax is a path).
bool compare_runs_asked(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool is_value = i > 1 && argv[i - 1][0] == '-' && strchr(argv[i - 1], '=') == NULL &&
                        strcmp(argv[i - 1], "--all") != 0 && strcmp(argv[i - 1], "--") != 0;
        if (word[0] == '-' || is_value) continue;
        if (bench_is_operation(word)) return false;
        return strchr(word, '/') != NULL || strstr(word, ".json") != NULL ||
               access(word, F_OK) == 0;
    }
    return false;
}

static int compare_files(const char *const *paths, double limit, bool has_all, FILE *out) {
    struct run old, new = {0};
    int code = run_read("compare", paths[0], &old);
    if (code < 0) code = run_read("compare", paths[1], &new);
    if (code < 0 && (strcmp(old.cpu, new.cpu) != 0 || strcmp(old.gpu, new.gpu) != 0)) {
        fprintf(stderr, "tessera compare: the runs are of different machines, %s%s%s and %s%s%s\n",
                old.cpu, *old.gpu ? " with " : "", old.gpu, new.cpu, *new.gpu ? " with " : "",
                new.gpu);
        code = EXIT_NOT_COMPARABLE;
    }
    if (code < 0) {
        code = compare_runs_write(out, &old, &new, limit, has_all);
        if (code == EXIT_NOT_COMPARABLE)
            fprintf(stderr, "tessera compare: '%s' and '%s' have no case in common\n", paths[0],
                    paths[1]);
    }
    run_free(&old);
    run_free(&new);
    return code;
}

int compare_runs(int argc, char **argv, const struct command_help *help) {
    const char *path = NULL;
    bool has_all = false;
    double limit = 1.05;
    struct text_list operands = {0};
    const struct option_spec options[] = {
        {"slower", 0, "R", "a case counts as slower above this ratio of the medians (1.05)",
         OPTION_REAL, &limit, NULL, 1, 100},
        {"all", 0, NULL, "show every case, not only those that differ", OPTION_FLAG, &has_all, NULL,
         0, 0},
        {"out", 0, "FILE", "output file (standard output)", OPTION_TEXT, &path, NULL, 0, 0},
        {0},
    };
    int code = options_parse(help, options, argc, argv, &operands);
    if (code >= 0) return code;
    if (operands.count != 2)
        return usage_error("compare",
                           "%d file%s given, expected two: the run before and the run now",
                           operands.count, operands.count == 1 ? "" : "s");
    // The comparison ends before the output file is written, because that may be one of the two runs.
    char *text = NULL;
    size_t bytes;
    FILE *out = heap_stream(&text, &bytes);
    code = compare_files(operands.items, limit, has_all, out);
    heap_stream_end(out);
    bool is_judged = code == EXIT_FINE || code == EXIT_WRONG;
    if (is_judged && !file_write_text(path, text)) code = EXIT_COULD_NOT_RUN;
    free(text);
    return code;
}
