// SPDX-License-Identifier: Apache-2.0
// The walk over all cases of a command line: every operation, every case of it, every dtype. The cases are built before
// the first is run: a wrong option of the last operation must not cost the results of the others.
#ifndef TOOL_BENCH_WALK_H
#define TOOL_BENCH_WALK_H

#include "commands/bench_options.h"
#include "system/progress.h"

struct bench_walk {
    const struct bench_options *options;
    struct op_case *cases[BENCH_MAX_SPECS]; // of each operation selected
    int counts[BENCH_MAX_SPECS];
    int64_t num_cases, num_done; // dtypes count
    struct progress progress;
};

// -1, or the exit code after a sentence on stderr. bench_walk_free in either case.
int bench_walk_build(struct bench_walk *walk, const struct bench_options *options);
// Each case in turn, between progress_start and progress_end, which are the caller's. A signal (signals.h) ends the walk after
// the case that runs: the caller writes what it has and ends by signals_end.
void bench_walk_run(struct bench_walk *walk, void (*run)(void *command, const struct op_case *c),
                    void *command);
void bench_walk_free(struct bench_walk *walk);

#endif
