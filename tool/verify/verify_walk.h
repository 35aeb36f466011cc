// SPDX-License-Identifier: Apache-2.0
// The cases of a walk in order, each with drawn inputs and the oracle's outputs. A thread makes them, a few ahead of the one
// on which variants run. Without such a thread walk_next makes each case.
#ifndef TOOL_VERIFY_WALK_H
#define TOOL_VERIFY_WALK_H

#include "verify/trial.h"

struct walk_step {
    struct trial trial;
    bool is_edge;     // else a random one
    bool is_repeated; // also run with other threads and uncached stores
    bool is_refused;  // by the oracle or for lack of memory: has only case, seed, edge, refusal
    bool lacks_memory;
};

struct walk; // in progress

// Whether the options select an operation.
bool walk_wants_op(const struct verify_options *options, const struct op_spec *spec);
bool walk_has_dtype(const char *name);

// The options must outlive the walk. Until walk_end no other thread may make a trial.
struct walk *walk_start(const struct verify_options *options);
// The next case; false if there is none, or if a signal came. Unless the case is refused, release its trial before the
// next call.
bool walk_next(struct walk *walk, struct walk_step *step);
// Frees the walk and its remaining cases. False, with the reason in error, if walk_next met a case that cannot be read.
bool walk_end(struct walk *walk, char *error, size_t error_bytes);

#endif
