// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bench_walk.h"

#include <signal.h>
#include <stdlib.h>

#include "command.h"

int bench_walk_build(struct bench_walk *walk, const struct bench_options *options) {
    const struct bench_selection *selection = &options->selection;
    char error[512];
    walk->options = options;
    for (int i = 0; i < selection->num_specs; i++) {
        walk->counts[i] =
            bench_cases(selection, selection->specs[i], NULL, &walk->cases[i], error, sizeof error);
        if (walk->counts[i] < 0) return usage_error(options->help->name, "%s", error);
        walk->num_cases += (int64_t)walk->counts[i] * options->num_dtypes;
    }
    return -1;
}

// ---- Stopping early -----------------------------------------------------------------------------

static volatile sig_atomic_t signal_seen;

static const int held[] = {SIGINT, SIGTERM, SIGHUP};

enum { NUM_HELD = sizeof held / sizeof *held };

// What was ignored has no handler of ours and stays ignored.
static void set_handler(void (*from)(int number), void (*to)(int number)) {
    struct sigaction action = {.sa_handler = to, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUM_HELD; i++)
        if (sigaction(held[i], NULL, &old) == 0 && old.sa_handler == from)
            sigaction(held[i], &action, NULL);
}

// The second one, of whichever kind, ends the process.
static void note_signal(int number) {
    signal_seen = number;
    set_handler(note_signal, SIG_DFL);
}

// Calls go on after it: a peer's answer that is being read is not lost.
void bench_walk_hold_signals(void) { set_handler(SIG_DFL, note_signal); }

void bench_walk_end_by_signal(void) {
    if (signal_seen == 0) return;
    signal(signal_seen, SIG_DFL);
    raise(signal_seen);
}

// ---- The walk -----------------------------------------------------------------------------------

static void run_cases(struct bench_walk *walk, struct op_case *c,
                      void (*run)(void *command, const struct op_case *c), void *command) {
    char text[256];
    for (int d = 0; d < walk->options->num_dtypes && signal_seen == 0; d++) {
        c->dtype = c->small_dtype = walk->options->dtypes[d];
        progress_step(&walk->progress, walk->num_done++, case_text(c, text, sizeof text));
        run(command, c);
    }
}

void bench_walk_run(struct bench_walk *walk, void (*run)(void *command, const struct op_case *c),
                    void *command) {
    for (int i = 0; i < walk->options->selection.num_specs; i++)
        for (int k = 0; k < walk->counts[i]; k++) run_cases(walk, &walk->cases[i][k], run, command);
}

void bench_walk_free(struct bench_walk *walk) {
    for (int i = 0; i < BENCH_MAX_SPECS; i++) free(walk->cases[i]);
}
