// SPDX-License-Identifier: Apache-2.0
// Applying an operation to named tensors: what the passes of one command share.
#ifndef TOOL_APPLY_H
#define TOOL_APPLY_H

#include <tessera/safetensors.h>

#include "specs/spec.h"

enum {
    APPLY_MAX_VALUES = 4 * SPEC_MAX_SLOTS,
    APPLY_MAX_OPTIONS = 2 * SPEC_MAX_PARAMS,
    APPLY_MAX_NAME = 32
};

// A named tensor, contiguous, in the shape that it has in the files.
struct apply_value {
    const char *name;
    tsr_tensor tensor;
    void *memory;   // owned; NULL when borrowed from the input file
    bool is_result; // of a pass; else from the input file
    bool is_used;   // by a pass
};

// An option of the command line that is a parameter of a pass.
struct apply_option {
    const struct param_spec *param;
    bool is_given;
    double value;
};

// An output that --results names.
struct apply_result {
    char name[APPLY_MAX_NAME];
    tsr_dtype dtype; // NONE: as it is by itself
};

struct apply {
    const char *command;                      // "softmax"
    const char *input_path;                   // for messages
    const struct op_spec *forward, *backward; // backward may be NULL
    tsr_device device;
    tsr_context *ctx;
    uint32_t flags;      // of every call: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    const char *variant; // NULL: the library chooses; a pass without a variant of this name too
    struct apply_option options[APPLY_MAX_OPTIONS];
    int num_options;
    struct apply_result results[2 * SPEC_MAX_SLOTS];
    int num_results; // 0: all that the inputs ask for
    struct apply_value values[APPLY_MAX_VALUES];
    int num_values;
    bool runs_backward;  // after the pass under way
    struct op_case last; // the pass before, whose sizes hold on; spec NULL before the first
    double bytes_beside; // of each element of an output, that its maker will need too
    int exit_code;       // after a failure
    char error[800];     // one sentence, without the program's name
};

// Keeps the sentence and the exit code; returns false.
bool apply_fail(struct apply *apply, int exit_code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The same with tsr_last_error's sentence and the exit code that goes with the status.
bool apply_fail_status(struct apply *apply, tsr_status status);

// A value of this name, a result before one from the file; NULL when there is none.
struct apply_value *apply_find(struct apply *apply, const char *name);
// NULL, after a failure, when there are too many.
struct apply_value *apply_add(struct apply *apply, const char *name, const tsr_tensor *tensor,
                              void *memory);
// 64-byte aligned memory for a contiguous tensor of this dtype and shape, zeroed.
bool apply_allocate(struct apply *apply, const char *name, tsr_dtype dtype, int ndim,
                    const int64_t *shape, tsr_tensor *tensor);
// "window-left", as the command line has a parameter.
const char *apply_option_name(const struct param_spec *param, char *text, size_t bytes);
// The value of a parameter: as given, else its standard.
double apply_option_value(const struct apply *apply, const char *name, double otherwise);

// Finds what the command line calls an operation, all its passes or one alone ("softmax_backward").
bool apply_find_operation(struct apply *apply, const char *name);
// Adds the options of a pass (NULL: of none): its parameters but for those that the tensors tell, and has_x, which is
// set by giving x.
void apply_add_params(struct apply *apply, const struct op_spec *spec);
// Gives the options the values of a case.
void apply_set_options(struct apply *apply, const struct op_case *c);
// Borrows the tensors of a file as values, floating-point ones in dtype (NONE: as they are).
bool apply_load(struct apply *apply, const tsr_safetensors *file, tsr_dtype dtype);
// Frees the values.
void apply_release(struct apply *apply);

// The slot that a name of the file stands for; NULL when no pass reads it.
const struct slot_spec *apply_input_slot(const struct apply *apply, const char *name);

// ---- Outputs (apply_outputs.c) ----------------------------------------------------------------

// Reads "c:f32,dbias" of --results. False, after a failure, for names and dtypes that there are not.
bool apply_ask(struct apply *apply, const char *list);
// What --help says below the options: how tensors are named, and those of the operation (command NULL: of none).
const char *apply_notes(const struct apply *apply, char *text, size_t bytes);
// Whether the output file gets a result of this name.
bool apply_is_asked(const struct apply *apply, const char *name);
// Whether every result that --results names is there.
bool apply_has_asked(struct apply *apply);
// Whether a pass is to give an output; what it is the gradient or the successor of, NULL where that is not there.
bool apply_is_wanted(struct apply *apply, const struct op_spec *spec, int slot);
const struct apply_value *apply_model(struct apply *apply, const struct slot_spec *slot);
// As --results says, else as it is before the call (NULL: it is not), else as its model where it is small, else by the
// description.
tsr_dtype apply_output_dtype(struct apply *apply, const struct op_case *c, int slot,
                             const struct apply_value *before);

// "(3, 4)"
const char *apply_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes);
// Whether a pass reads a slot: an output that is added to (c of matmul) under accumulate alone, one that
// is updated (an optimiser's) always.
bool apply_reads(const struct apply *apply, const struct op_spec *spec, int slot);
// A pass on the values before its call, as its description has it: inputs bound, sizes inferred, shapes and dtypes
// checked, zeroed outputs added to the values.
bool apply_case(struct apply *apply, const struct op_spec *spec, struct op_case *c);
// Runs a pass on the values and adds its outputs to them.
bool apply_pass(struct apply *apply, const struct op_spec *spec);
// Forward, then backward where the file has what it needs; every tensor of the file must be of use.
bool apply_passes(struct apply *apply);

#endif
