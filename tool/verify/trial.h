// SPDX-License-Identifier: Apache-2.0
// A trial: one configuration with its inputs, the oracle's outputs and the bound of every element.
// Any number of variants can run on it.
#ifndef TOOL_TRIAL_H
#define TOOL_TRIAL_H

#include "verify/tensors.h"
#include "verify/verify.h"

struct trial {
    struct op_case c;      // the case under test, without tensors
    struct tensors oracle; // f64, contiguous: rounded inputs and the oracle's outputs
    struct tensors given;  // in the layout under test
    double *bound[SPEC_MAX_SLOTS];
    void *initial[SPEC_MAX_SLOTS]; // SLOT_INOUT: its values before the oracle ran, f64 or i32
    uint64_t seed, inputs;         // inputs: a hash of their bytes
    enum edge_layout layout;
    const char *edge;  // its name, or NULL
    char refusal[512]; // why the trial could not be made
};

// Draws inputs, asks the oracle, derives the bounds. If the oracle refuses the case, its status is returned; a refused
// trial has only its case, seed and refusal.
tsr_status trial_create(struct trial *trial, const struct op_case *c, uint64_t seed,
                        enum edge_fill fill, enum edge_layout layout);
// The same with the inputs of c, for outputs that are made elsewhere: only trial_compare may be used on it.
tsr_status trial_create_of(struct trial *trial, const struct op_case *c);
void trial_release(struct trial *trial);

static inline bool trial_is_output(const struct op_case *c, int slot) {
    return c->is_present[slot] && case_role(c, slot) != SLOT_IN;
}
uint64_t trial_hash_inputs(const struct trial *trial); // with the bytes between their rows
// Hashes the values of all outputs; gaps between rows are poison in every run. All NaNs count as equal, because a NaN's
// sign depends on the order of operands, which the compiler chooses.
uint64_t trial_hash_outputs(const struct trial *trial);

// Runs a variant (NULL: the default one) on poisoned outputs with an exact, guarded workspace and
// compares. other: NULL, or a context with another number of threads, which must give the same
// bits. TSR_UNSUPPORTED, and nothing added to the verdict, if the variant cannot serve the case.
// TSR_OUT_OF_MEMORY is no failure: the case was not run.
tsr_status trial_run(tsr_context *ctx, tsr_context *other, struct trial *trial, const char *variant,
                     struct verdict *verdict);

// Runs the variant repeatedly; the values must be the same each time. In the second half of the runs the other context
// takes part: on a device the same calls run on its stream at the same time, on the CPU it does the runs.
tsr_status trial_repeat(tsr_context *ctx, tsr_context *other, struct trial *trial,
                        const char *variant, int64_t repeats, struct verdict *verdict);

// Compares an output, in any layout, and adds the errors to the verdict. False, with the worst element in words, if an
// element is beyond its bound.
bool trial_compare(const struct trial *trial, int slot, const tsr_tensor *got,
                   struct verdict *verdict, char *what, size_t what_bytes);

// Counts a case that could not run for lack of memory, and keeps the first one's description.
void trial_not_run(struct verdict *verdict, const struct trial *trial, const char *variant,
                   const tsr_context *ctx, const char *what);
// Counts a failure, and keeps the first one's description.
void trial_fail(struct verdict *verdict, const struct trial *trial, const char *variant,
                const tsr_context *ctx, const char *what);

#endif
