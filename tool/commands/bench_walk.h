// SPDX-License-Identifier: Apache-2.0
// The walk over all cases of a command line: every operation, every case of it, every dtype. All cases are built before
// the first one runs, so that a wrong option of the last operation does not cost the results of the others.
#ifndef TOOL_BENCH_WALK_H
#define TOOL_BENCH_WALK_H

#include "commands/bench_options.h"
#include "system/progress.h"

struct bench_walk {
    const struct bench_options *options;
    struct op_case *cases[BENCH_MAX_SPECS]; // of each selected operation
    int counts[BENCH_MAX_SPECS];
    int64_t num_cases, num_done; // each dtype of a case counts as one
    struct progress progress;
};

// Returns -1, or the exit code after a sentence on stderr. Call bench_walk_free in either case.
int bench_walk_build(struct bench_walk *walk, const struct bench_options *options);
// Runs each case in turn. The caller calls progress_start before and progress_end after it. A signal (signals.h) ends the
// walk after the current case: the caller then writes its results and calls signals_end.
void bench_walk_run(struct bench_walk *walk, void (*run)(void *command, const struct op_case *c),
                    void *command);
void bench_walk_free(struct bench_walk *walk);

#endif
