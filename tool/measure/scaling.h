// SPDX-License-Identifier: Apache-2.0
// Sweeps of one call over its batch, over the size of its problem and over threads: their members, and their efficiency.
// For scale and report.
#ifndef TOOL_SCALING_H
#define TOOL_SCALING_H

#include "files/result.h"

enum scaling_study { SCALING_BATCH, SCALING_PROBLEM, SCALING_THREADS, SCALING_NUM_STUDIES };
extern const char *const
    scaling_names[]; // "batch", "problem", "threads": names for result.study; NULL-terminated

// The default first shape of an operation's sweeps; NULL for none.
const char *scaling_base(const struct op_spec *spec);

// The member of a sweep whose batch or problem is `times` that of `first`. False if the operation has no such size.
bool scaling_case(const struct op_case *first, enum scaling_study study, int times,
                  struct op_case *c);

// The number after `threads` in 1, 2, 4, ... all; 0 after the last.
int scaling_next_threads(int threads, int all);

// Sorts the members of each sweep together, ascending, at the place of its first result, and fills in times and efficiency.
void scaling_finish(struct result_list *results);

#endif
