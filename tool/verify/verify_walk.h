// SPDX-License-Identifier: Apache-2.0
// The cases of a walk in their order, each drawn and with the oracle's outputs: a thread of its own makes them, some ahead
// of the one that variants run on. Where no thread can be had each is made when it is asked for.
#ifndef TOOL_VERIFY_WALK_H
#define TOOL_VERIFY_WALK_H

#include "verify/trial.h"

struct walk_step {
    struct trial trial;
    bool is_edge;     // else a random one
    bool is_repeated; // also with other threads and outputs past the caches
    bool is_refused;  // by the oracle, or memory: case, seed, edge and refusal are left of it
    bool lacks_memory;
};

struct walk; // in progress

// Whether the options let an operation through.
bool walk_wants_op(const struct verify_options *options, const struct op_spec *spec);
bool walk_has_dtype(const char *name);

// The options outlive it; until walk_end no other thread may make a trial.
struct walk *walk_start(const struct verify_options *options);
// The next case, to be released as a trial is unless it is refused, before the one after it is asked for; false when there is
// none, or a signal came.
bool walk_next(struct walk *walk, struct walk_step *step);
// Drops what is left of it. False, and why, where walk_next came to a case that cannot be read.
bool walk_end(struct walk *walk, char *error, size_t error_bytes);

#endif
