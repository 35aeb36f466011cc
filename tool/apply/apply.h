// SPDX-License-Identifier: Apache-2.0
// Applying an operation to named tensors: the state that the passes of a command share.
#ifndef TOOL_APPLY_H
#define TOOL_APPLY_H

#include <tessera/safetensors.h>

#include "specs/spec.h"

enum {
    APPLY_MAX_VALUES = 4 * SPEC_MAX_SLOTS,
    APPLY_MAX_OPTIONS = 2 * SPEC_MAX_PARAMS,
    APPLY_MAX_NAME = 32
};

// A named tensor, contiguous, in its shape in the files.
struct apply_value {
    const char *name;
    tsr_tensor tensor;
    void *memory;   // owned; NULL if borrowed from the input file
    bool is_result; // a pass made it; else it comes from the input file
    bool is_used;   // a pass reads it
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
    tsr_dtype dtype; // NONE: the output's own
};

struct apply {
    const char *command;                      // "softmax"
    const char *input_path;                   // for messages
    const struct op_spec *forward, *backward; // backward may be NULL
    tsr_device device;
    tsr_context *ctx;
    uint32_t flags;      // of every call: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    const char *variant; // NULL, or a pass has no variant of this name: the library chooses
    struct apply_option options[APPLY_MAX_OPTIONS];
    int num_options;
    struct apply_result results[2 * SPEC_MAX_SLOTS];
    int num_results; // 0: all that the inputs imply
    struct apply_value values[APPLY_MAX_VALUES];
    int num_values;
    bool runs_backward;  // after the current pass
    struct op_case last; // the previous pass, whose sizes still hold; spec NULL before the first
    double bytes_beside; // further memory that the caller needs for each element of an output
    int exit_code;       // after a failure
    char error[800];     // one sentence, without the program's name
};

// Stores the sentence and the exit code; returns false.
bool apply_fail(struct apply *apply, int exit_code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The same with tsr_last_error's sentence and the exit code of the status.
bool apply_fail_status(struct apply *apply, tsr_status status);

// The value of this name; NULL if there is none. A result comes before a value from the file.
struct apply_value *apply_find(struct apply *apply, const char *name);
// NULL after a failure: there are too many values.
struct apply_value *apply_add(struct apply *apply, const char *name, const tsr_tensor *tensor,
                              void *memory);
// Allocates zeroed, 64-byte aligned memory for a contiguous tensor of this dtype and shape.
bool apply_allocate(struct apply *apply, const char *name, tsr_dtype dtype, int ndim,
                    const int64_t *shape, tsr_tensor *tensor);
// "window-left", a parameter's name on the command line.
const char *apply_option_name(const struct param_spec *param, char *text, size_t bytes);
// The value of a parameter's option if it was given, else `otherwise`.
double apply_option_value(const struct apply *apply, const char *name, double otherwise);

// Finds an operation by its name on the command line, with all its passes or with one ("softmax_backward").
bool apply_find_operation(struct apply *apply, const char *name);
// Adds the options of a pass (NULL: none): its parameters, except those that the tensors give, and except has_x, which
// the option x sets.
void apply_add_params(struct apply *apply, const struct op_spec *spec);
// Sets the options to the values of a case.
void apply_set_options(struct apply *apply, const struct op_case *c);
// Borrows the tensors of a file as values, floating-point ones in dtype (NONE: as they are).
bool apply_load(struct apply *apply, const tsr_safetensors *file, tsr_dtype dtype);
// Frees the values.
void apply_release(struct apply *apply);

// The slot for a tensor's name in the file; NULL if no pass reads it.
const struct slot_spec *apply_input_slot(const struct apply *apply, const char *name);

// ---- Outputs (apply_outputs.c) ----------------------------------------------------------------

// Reads "c:f32,dbias" of --results. False after a failure: an unknown name or dtype.
bool apply_ask(struct apply *apply, const char *list);
// The text of --help below the options: how tensors are named, and the operation's tensors (command NULL: none).
const char *apply_notes(const struct apply *apply, char *text, size_t bytes);
// Whether the output file gets a result of this name.
bool apply_is_asked(const struct apply *apply, const char *name);
// Whether every result that --results names exists; false after a failure.
bool apply_has_asked(struct apply *apply);
// Whether a pass should give an output, which has this role in its case. apply_model: the value of which the output is the
// gradient or the successor, NULL if that is absent.
bool apply_is_wanted(struct apply *apply, const struct op_spec *spec, int slot,
                     enum slot_role role);
const struct apply_value *apply_model(struct apply *apply, const struct slot_spec *slot);
// The dtype of an output: that of --results, else that of its value before the call (NULL: none), else that of its model
// if the slot is small, else the description's.
tsr_dtype apply_output_dtype(struct apply *apply, const struct op_case *c, int slot,
                             const struct apply_value *before);

// "(3, 4)"
const char *apply_shape_text(int ndim, const int64_t *shape, char *text, size_t bytes);
// Whether a tensor is matmul's pre-activation, which is only read with an activation, and which apply makes itself.
bool apply_is_of_activation(const struct op_spec *spec, const char *name);
// Whether a pass reads a slot. An output that may be added to (c of matmul) is read only under accumulate, one that is
// updated (an optimiser's) always.
bool apply_reads(const struct apply *apply, const struct op_spec *spec, int slot);
// Prepares a pass on the values in the description's shapes: binds inputs, infers sizes, checks shapes and dtypes, and
// adds zeroed outputs to the values.
bool apply_case(struct apply *apply, const struct op_spec *spec, struct op_case *c);
// Runs a pass on the values and adds its outputs to them.
bool apply_pass(struct apply *apply, const struct op_spec *spec);
// Runs forward, then backward if the file has the inputs for it. Every tensor of the file must be used.
bool apply_passes(struct apply *apply);

#endif
