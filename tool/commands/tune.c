// SPDX-License-Identifier: Apache-2.0
// tessera tune: finds the variant and the blocks that serve an operation best on this machine, and writes them into the
// tuning file that contexts read.
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/bench_walk.h"
#include "commands/command.h"
#include "measure/tune_candidates.h"
#include "measure/tune_table.h"
#include "system/device_option.h"
#include "system/files.h"
#include "system/heap.h"
#include "system/signals.h"

static const char *const formats[] = {"md", "json", NULL};
enum { AS_MD, AS_JSON };
static const char *const fallback[] = {"matmul", "attention", NULL};

enum { MOST = MEASURE_MAX_CONTENDERS };
static const double lead = 0.97;    // a candidate must take less than this share of the time to win
static const double hopeless = 1.5; // slower than this times the short round's best: dropped
static const double short_budget = 0.05;

struct tune {
    struct bench_options options;
    bool is_dry_run, is_clear;
    const char *output;
    char path[PATH_MAX];

    struct bench_walk walk;
    struct measure_session *session;
    struct tune_table table;
    int code;
};

static const struct command_help help = {
    .name = "tune",
    .synopsis = "[OP...] [options]",
    .summary =
        "Verifies and measures every variant that can serve an operation, in turns, and writes the "
        "best into the tuning file\nthat contexts read. For matmul it also tries the most "
        "promising blocks (on CUDA tiles, clusters and splits of k, as\nranked by the library's "
        "cost model). A candidate replaces the built-in choice, or one earlier in the library's "
        "order,\nonly if it is more than 3 % faster and their p20 to p80 do not overlap.",
    .notes =
        "Without an operation: matmul and attention. Other operations must give the same bits "
        "with every file, so they have\nnothing to choose. Numbers take lists (512,1024) and "
        "sweeps (256:8192:x2). Without sizes the operation's standard\nshapes are tuned. A row "
        "applies to all sizes with the same nearest powers of two; for matmul on CUDA only to "
        "its own\nsizes. The column model is the expected cost: microseconds on CUDA, without a "
        "unit elsewhere. Rows of other devices\nand sizes stay in the file. $TSR_TUNING_FILE "
        "names another file than the user's. Existing contexts do not see the change.\n"
        "Ctrl-C ends it after the current case, and it keeps the choices so far; a second Ctrl-C "
        "ends it at once.",
    .examples = "tessera tune attention --seqlen-q 512 --seqlen-k 512 --dry-run\n"
                "tessera tune matmul --m 256 --n 256 --k 256 --output tuning",
};

// ---- The command line -------------------------------------------------------------------------

static int parse(struct tune *tune, int argc, char **argv) {
    const struct option_spec own[] = {
        {"dry-run", 0, NULL, "show the table but write no file", OPTION_FLAG, &tune->is_dry_run,
         NULL, 0, 0},
        {"clear", 0, NULL, "remove the tuning file and measure nothing", OPTION_FLAG,
         &tune->is_clear, NULL, 0, 0},
        {"output", 0, "FILE", "the tuning file (the user's)", OPTION_TEXT, &tune->output, NULL, 0,
         0},
        {0},
    };
    tune->options.pass = PASS_BOTH;
    int code = bench_options_parse(&tune->options, own, argc, argv);
    if (code >= 0) return code;
    if (tune->output != NULL && strlen(tune->output) < sizeof tune->path)
        strcpy(tune->path, tune->output);
    else if (tune->output != NULL)
        return usage_error("tune", "--output is too long");
    else if (!tune->is_dry_run && tsr_tuning_path(tune->path, sizeof tune->path) != TSR_OK)
        return usage_error("tune", "%s; --output can name a file", tsr_last_error());
    if (tune->options.measure.is_unproved && !tune->is_dry_run)
        return usage_error("tune", "--no-verify needs --dry-run: a choice must be verified");
    return -1;
}

// ---- Choosing ---------------------------------------------------------------------------------

static bool is_faster(const struct result *a, const struct result *b) {
    bool is_apart = isfinite(a->graph_ms) || a->p80_ms < b->p20_ms;
    return is_apart && result_device_ms(a) < lead * result_device_ms(b);
}

// The file has one row for each key. If shapes of one key disagree, the built-in choice stays.
static void add_line(struct tune *tune, const char *key, const char *choice, double ratio) {
    struct tuning_line line = {.choice = ""};
    snprintf(line.key, sizeof line.key, "%s", key);
    if (choice[0] != '\0')
        snprintf(line.choice, sizeof line.choice, "%s # %.2f of the built-in choice's time", choice,
                 ratio);
    for (int i = 0; i < tune->table.num_lines; i++) {
        struct tuning_line *old = &tune->table.lines[i];
        if (strcmp(old->key, key) != 0) continue;
        size_t length = strcspn(old->choice, "#");
        bool is_same =
            strlen(choice) + 1 == length && strncmp(old->choice, choice, length - 1) == 0;
        if (!is_same) old->choice[0] = '\0';
        return;
    }
    tune->table.lines = heap_grow(tune->table.lines, (size_t)(tune->table.num_lines + 1),
                                  sizeof *tune->table.lines);
    tune->table.lines[tune->table.num_lines++] = line;
}

static struct tune_row *add_row(struct tune *tune) {
    tune->table.rows =
        heap_grow(tune->table.rows, (size_t)(tune->table.num_rows + 1), sizeof *tune->table.rows);
    return &tune->table.rows[tune->table.num_rows++];
}

// ---- Measuring --------------------------------------------------------------------------------

// Measures the candidates that are not dropped. results and outcomes have the candidates' indices.
static void measure(struct tune *tune, const struct op_case *c, const struct tune_candidate *list,
                    int count, struct result *results, enum measure_outcome *outcomes) {
    struct measure_entry entries[MOST] = {0};
    struct result measured[MOST];
    enum measure_outcome ended[MOST];
    int used = 0;
    for (int i = 0; i < count; i++)
        if (!list[i].is_dropped)
            entries[used++] = (struct measure_entry){
                .variant = list[i].variant,
                .tuning_file = list[i].file[0] != '\0' ? list[i].file : NULL};
    measure_entries(tune->session, c, entries, used, measured, ended);
    for (int i = 0, k = 0; i < count; i++) {
        if (list[i].is_dropped) continue;
        results[i] = measured[k];
        outcomes[i] = ended[k++];
    }
}

// Whether the context followed the candidate's tuning file; a promise or an unsupported variant may forbid it. A candidate
// without blocks that has the built-in choice's name does not count either.
static bool is_obeyed(const struct tune_candidate *candidate, const struct result *result,
                      const struct result *built_in) {
    size_t length = strcspn(candidate->name, " ");
    bool has_blocks = candidate->name[length] != '\0';
    return strncmp(candidate->name, result->variant, length) == 0 &&
           result->variant[length] == '\0' &&
           (has_blocks || strcmp(result->variant, built_in->variant) != 0);
}

static void raise_code(struct tune *tune, enum measure_outcome outcome) {
    if (outcome == MEASURE_WRONG) tune->code = EXIT_WRONG;
    if (tune->code != EXIT_FINE || outcome == MEASURE_OK) return;
    tune->code = outcome == MEASURE_INVALID ? EXIT_USAGE : EXIT_COULD_NOT_RUN;
}

static void drop_hopeless(struct tune_candidate *list, int count, const struct result *results,
                          const enum measure_outcome *outcomes) {
    double best = INFINITY;
    for (int i = 0; i < count; i++)
        if (outcomes[i] == MEASURE_OK && (i == 0 || is_obeyed(&list[i], &results[i], &results[0])))
            best = fmin(best, result_device_ms(&results[i]));
    for (int i = 1; i < count; i++)
        list[i].is_dropped = outcomes[i] != MEASURE_OK ||
                             !is_obeyed(&list[i], &results[i], &results[0]) ||
                             result_device_ms(&results[i]) > hopeless * best;
}

static void add_rows(struct tune *tune, const char *key, const struct tune_candidate *list,
                     int count, const struct result *results,
                     const enum measure_outcome *outcomes) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (outcomes[i] == MEASURE_OK && !list[i].is_dropped &&
            is_faster(&results[i], &results[best]))
            best = i;
    double built_in = result_device_ms(&results[0]);
    for (int i = 0; i < count; i++) {
        if (outcomes[i] != MEASURE_OK) continue;
        if (i > 0 && !is_obeyed(&list[i], &results[i], &results[0])) continue;
        struct tune_row *row = add_row(tune);
        *row = (struct tune_row){.result = results[i],
                                 .model = list[i].model,
                                 .ratio = result_device_ms(&results[i]) / built_in,
                                 .is_built_in = i == 0,
                                 .is_chosen = i == best,
                                 .is_dropped = list[i].is_dropped};
        snprintf(row->candidate, sizeof row->candidate, "%.63s",
                 list[i].name[0] != '\0' ? list[i].name : results[0].variant);
    }
    add_line(tune, key, best == 0 ? "" : list[best].name,
             result_device_ms(&results[best]) / built_in);
}

static void run_case(void *command, const struct op_case *c) {
    struct tune *tune = command;
    struct tune_candidate list[MOST];
    struct result results[MOST];
    enum measure_outcome outcomes[MOST] = {MEASURE_FAILED};
    struct measure_options *options = measure_options_of(tune->session);
    struct measure_options full = *options;
    char text[256], key[192], device[64];
    // A run of the built-in choice alone tells whether rows can choose for the case, and by which key.
    options->budget_s = short_budget;
    if (options->num_rep == 0 || options->num_rep > 3) options->num_rep = 3;
    list[0] = (struct tune_candidate){.model = NAN};
    measure(tune, c, list, 1, results, outcomes);
    snprintf(key, sizeof key, "%s", measure_tuning_key(tune->session));
    int count = 0;
    if (outcomes[0] == MEASURE_OK && sscanf(key, "%*s %63s", device) == 1) {
        count = tune_candidates(tune->session, tune->options.measure.device, c, results[0].variant,
                                list);
        bool is_written = tune_candidates_write(c, device, list, count);
        for (int i = 0; i < count; i++) outcomes[i] = MEASURE_FAILED;
        if (is_written) measure(tune, c, list, count, results, outcomes);
        drop_hopeless(list, count, results, outcomes);
        *options = full;
        if (is_written) measure(tune, c, list, count, results, outcomes);
        if (!is_written)
            progress_note(&tune->walk.progress, "cannot write the candidates' files to /tmp: %s",
                          strerror(errno));
        tune_candidates_remove(list, count);
    }
    *options = full;
    raise_code(tune, outcomes[0]);
    for (int i = 1; i < count; i++)
        if (outcomes[i] == MEASURE_WRONG) tune->code = EXIT_WRONG;
    if (outcomes[0] != MEASURE_OK)
        progress_note(&tune->walk.progress, "%s, %s: %s", case_text(c, text, sizeof text),
                      tsr_dtype_name(c->dtype), measure_error(tune->session));
    else if (count == 0)
        progress_note(&tune->walk.progress,
                      "%s: there is nothing to choose, every call must keep the built-in variant",
                      c->spec->op);
    else
        add_rows(tune, key, list, count, results, outcomes);
}

static bool write_table(FILE *out, const void *what) {
    const struct tune *tune = what;
    if (tune->options.format == AS_JSON)
        tune_table_write_json(out, &tune->table, tune->is_dry_run ? NULL : tune->path);
    else
        tune_table_write_md(out, &tune->table);
    return fflush(out) == 0 && !ferror(out);
}

// ---- All of it --------------------------------------------------------------------------------

static int keep(struct tune *tune) {
    char error[512];
    int won = 0;
    for (int i = 0; i < tune->table.num_lines; i++) won += tune->table.lines[i].choice[0] != '\0';
    if (tune->is_dry_run) return EXIT_FINE;
    if (!tuning_file_merge(tune->path, tune->table.lines, tune->table.num_lines, error,
                           sizeof error)) {
        fprintf(stderr, "tessera tune: %s\n", error);
        return EXIT_COULD_NOT_RUN;
    }
    fprintf(stderr, "tessera tune: %d of %d choices differ from the built-in ones, in %s\n", won,
            tune->table.num_lines, tune->path);
    return EXIT_FINE;
}

static int measure_all(struct tune *tune) {
    int code;
    tune->session = bench_open(&tune->options, &code);
    if (tune->session == NULL) return code;
    progress_start(&tune->walk.progress, "tune", tune->walk.num_cases);
    bench_walk_run(&tune->walk, run_case, tune);
    progress_end(&tune->walk.progress);
    measure_close(tune->session);
    if (tune->table.num_rows == 0) signals_end();
    if (tune->table.num_rows == 0) return tune->code == EXIT_FINE ? EXIT_COULD_NOT_RUN : tune->code;
    // The tuning file comes first, because standard output may be a pipe that its reader closes. After a wrong result
    // nothing is kept.
    code = tune->code == EXIT_WRONG ? EXIT_WRONG : keep(tune);
    if (!file_write(tune->options.out, write_table, tune)) return EXIT_COULD_NOT_RUN;
    if (code != EXIT_COULD_NOT_RUN) signals_end();
    return code == EXIT_FINE ? tune->code : code;
}

static int check_file(const struct tune *tune) {
    char error[PATH_MAX + 128];
    if (tune->is_dry_run || tuning_file_can_merge(tune->path, error, sizeof error)) return -1;
    fprintf(stderr, "tessera tune: %s\n", error);
    return EXIT_COULD_NOT_RUN;
}

static int clear(const struct tune *tune) {
    char error[512];
    if (tuning_file_clear(tune->path, error, sizeof error)) return EXIT_FINE;
    fprintf(stderr, "tessera tune: %s\n", error);
    return EXIT_COULD_NOT_RUN;
}

int command_tune(int argc, char **argv) {
    struct tune tune = {.options =
                            BENCH_OPTIONS(.help = &help, .formats = formats, .fallback = fallback)};
    tune.options.measure.tuning_file =
        ""; // no file: candidates are compared with the built-in choice
    int code = parse(&tune, argc, argv);
    if (code < 0 && tune.is_clear) return clear(&tune);
    if (code < 0) code = bench_walk_build(&tune.walk, &tune.options);
    if (code < 0) code = check_file(&tune);
    if (code < 0) code = measure_all(&tune);
    bench_walk_free(&tune.walk);
    free(tune.table.rows);
    free(tune.table.lines);
    return code;
}
