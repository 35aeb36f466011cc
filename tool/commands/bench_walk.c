// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "commands/bench_walk.h"

#include <stdlib.h>

#include "commands/command.h"
#include "system/signals.h"

int bench_walk_build(struct bench_walk *walk, const struct bench_options *options) {
    const struct bench_selection *selection = &options->selection;
    char error[512];
    walk->options = options;
    for (int i = 0; i < selection->num_specs; i++) {
        const struct op_spec *spec = selection->specs[i];
        const char *const *standard = spec_standard(spec, options->measure.device);
        if (options->is_decoding)
            standard = options->measure.device.type == TSR_CUDA ? spec->decode_gpu : spec->decode;
        walk->counts[i] =
            bench_cases(selection, spec, standard, &walk->cases[i], error, sizeof error);
        if (walk->counts[i] < 0) return usage_error(options->help->name, "%s", error);
        walk->num_cases += (int64_t)walk->counts[i] * options->num_dtypes;
    }
    return -1;
}

// ---- The walk -----------------------------------------------------------------------------------

static void run_cases(struct bench_walk *walk, struct op_case *c,
                      void (*run)(void *command, const struct op_case *c), void *command) {
    char text[256];
    for (int d = 0; d < walk->options->num_dtypes && signals_seen() == 0; d++) {
        c->dtype = c->small_dtype = walk->options->dtypes[d];
        progress_step(&walk->progress, walk->num_done++, case_text(c, text, sizeof text));
        run(command, c);
    }
}

void bench_walk_run(struct bench_walk *walk, void (*run)(void *command, const struct op_case *c),
                    void *command) {
    signals_hold(true);
    for (int i = 0; i < walk->options->selection.num_specs; i++)
        for (int k = 0; k < walk->counts[i]; k++) run_cases(walk, &walk->cases[i][k], run, command);
}

void bench_walk_free(struct bench_walk *walk) {
    for (int i = 0; i < BENCH_MAX_SPECS; i++) free(walk->cases[i]);
}
