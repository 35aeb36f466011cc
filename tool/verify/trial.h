// SPDX-License-Identifier: Apache-2.0
// A trial: one configuration with its inputs, the oracle's outputs and the bound of every element.
// Any number of variants can then be run on it.
#ifndef TOOL_TRIAL_H
#define TOOL_TRIAL_H

#include "verify/tensors.h"
#include "verify/verify.h"

struct trial {
    struct op_case c;      // as under test, without tensors
    struct tensors oracle; // f64, contiguous: rounded inputs and the oracle's outputs
    struct tensors given;  // in the layout under test
    double *bound[SPEC_MAX_SLOTS];
    double *initial[SPEC_MAX_SLOTS]; // SLOT_INOUT: what it held before the oracle ran
    uint64_t seed, inputs;           // inputs: a hash of their bytes
    enum edge_layout layout;
    const char *edge;  // its name, or NULL
    char refusal[512]; // of a trial that could not be made: why
};

// Draws inputs, asks the oracle, derives the bounds. A refusal by the oracle is the trial's status; of a trial that is
// refused no more than case, seed and refusal are left.
tsr_status trial_create(struct trial *trial, const struct op_case *c, uint64_t seed,
                        enum edge_fill fill, enum edge_layout layout);
// The same of the inputs that c holds, for outputs that are made elsewhere: trial_compare alone is for it.
tsr_status trial_create_of(struct trial *trial, const struct op_case *c);
void trial_release(struct trial *trial);

static inline bool trial_is_output(const struct op_case *c, int slot) {
    return c->is_present[slot] && c->spec->slots[slot].role != SLOT_IN;
}
uint64_t trial_hash_inputs(const struct trial *trial); // their bytes, and those between their rows
// The values of all outputs; gaps between their rows are poison in every run. One NaN is as good as another: its
// sign follows the order of operands, which is the compiler's.
uint64_t trial_hash_outputs(const struct trial *trial);

// Runs a variant (NULL: the default one) on poisoned outputs with an exact, guarded workspace and
// compares. other: NULL, or a context with another number of threads, where the bits must be the
// same. TSR_UNSUPPORTED, and nothing added to the verdict, where the variant cannot serve the case.
// TSR_OUT_OF_MEMORY is no failure: the case was not run.
tsr_status trial_run(tsr_context *ctx, tsr_context *other, struct trial *trial, const char *variant,
                     struct verdict *verdict);

// Runs it again and again: the same values each time. The second half of the runs is with the other context: on a
// device beside calls of the same on its stream, on the CPU in it.
tsr_status trial_repeat(tsr_context *ctx, tsr_context *other, struct trial *trial,
                        const char *variant, int64_t repeats, struct verdict *verdict);

// Compares an output, in any layout, and adds what it sees to the verdict. False, with the worst element in words,
// where one is beyond its bound.
bool trial_compare(const struct trial *trial, int slot, const tsr_tensor *got,
                   struct verdict *verdict, char *what, size_t what_bytes);

// Counts a case that could not be run for want of memory, and keeps the first one's words.
void trial_not_run(struct verdict *verdict, const struct trial *trial, const char *variant,
                   const tsr_context *ctx, const char *what);
// Counts a failure and keeps the first one's words.
void trial_fail(struct verdict *verdict, const struct trial *trial, const char *variant,
                const tsr_context *ctx, const char *what);

#endif
