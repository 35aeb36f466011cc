// SPDX-License-Identifier: Apache-2.0
// One description of each operation for the tool: its parameters, tensors, work, random and edge
// cases, and error bound. verify, bench, apply, conformance and report are walks over these tables, so
// an operation needs only one spec_<op>.c and a line in spec_list.c for all of them.
#ifndef TOOL_SPEC_H
#define TOOL_SPEC_H

#include <stdbool.h>
#include <tessera/tessera.h>

#include "system/random.h"

enum { SPEC_MAX_PARAMS = 32, SPEC_MAX_SLOTS = 36 };

// ---- The parts of a description ---------------------------------------------------------------

enum param_kind { PARAM_SIZE, PARAM_INT, PARAM_REAL, PARAM_FLAG, PARAM_CHOICE };

// From where apply takes a parameter.
enum param_source {
    SOURCE_BY_KIND, // a size: from the tensors; anything else: from an option
    SOURCE_TENSORS, // from dtypes and shapes: whether b has batches
    SOURCE_OPTION   // from an option: a size that the inputs may leave open, like a table's rows
};

// A dimension, option or flag; written rows=4 in specs and --rows 4 on the command line ('_'
// is '-').
struct param_spec {
    const char *name, *help;
    enum param_kind kind;
    double standard;            // the default value
    const char *const *choices; // PARAM_CHOICE: NULL-terminated names of 0, 1, 2, ...
    enum param_source source;
    double least, most; // PARAM_INT, PARAM_REAL: range of the call's field; both 0: any value
};
#define PARAM_FLOAT .least = -0x1.fffffep127, .most = 0x1.fffffep127 // the field is a float

enum slot_role { SLOT_IN, SLOT_OUT, SLOT_INOUT, SLOT_NONE };
enum slot_kind {
    SLOT_MAIN,  // the case's dtype
    SLOT_SMALL, // op_case.small_dtype: the case's dtype, or f32 if that has 16 bits
    SLOT_F32,   // always f32 (f64 for the oracle)
    SLOT_I32,   // this and what follows: integers, which are compared exactly
    SLOT_U8
};

// A tensor of the call; its name is that of the field, and of the tensor in the files of `apply`.
struct slot_spec {
    const char *name;
    enum slot_role role;
    enum slot_kind kind;
    bool is_optional;
    const char
        *alias; // apply: a tensor of this name takes precedence: residual_out for backward's x
    bool may_be_transposed; // the last two dimensions may be column-major
    // apply, outputs: the tensor whose gradient or successor this output is. The output has its shape and, if small, its
    // dtype. An optional output is left out if that tensor could be given but is absent.
    const char *model;
    const char *comes_with; // apply: an optional output is left out without this input
    bool is_contiguous;     // the contract wants it so
    bool is_flat; // apply: the first dimension does not stand for the leading ones of a file
};

struct op_traffic; // traffic.h

// One configuration of an operation.
struct op_case {
    const struct op_spec *spec;
    uint32_t flags; // of the call: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    double param[SPEC_MAX_PARAMS];
    tsr_dtype dtype, small_dtype;
    bool is_present[SPEC_MAX_SLOTS]; // always true for slots that are not optional
    tsr_tensor tensor[SPEC_MAX_SLOTS];
};

// How verify fills and lays out an edge case.
enum edge_fill {
    FILL_NORMAL,            // standard normal
    FILL_LARGE,             // normal times 1e4 (f16: 1e2)
    FILL_HUGE,              // up to the largest finite value
    FILL_INFINITE,          // normal with some -inf and +inf
    FILL_NEGATIVE_INFINITE, // every other row all -inf, some -inf in the rest
    FILL_NAN,               // normal with some NaN
    FILL_SHIFTED,           // mean / sigma = 1e6 in f32, else what the format can hold
    FILL_ZERO,
    FILL_SPECIAL // defined by the spec's own fill
};
enum edge_layout {
    LAYOUT_RANDOM, // random strides, order of strides, gaps and misalignment
    LAYOUT_CONTIGUOUS,
    LAYOUT_FAR,     // a dimension whose ends are 2^31 elements apart
    LAYOUT_REPEATED // inputs with a row stride of 0
};
struct edge_case {
    const char *name;
    const char *params; // "rows=3 cols=5 +bias": values other than the defaults; + and - for
                        // optional tensors
    enum edge_fill fill;
    enum edge_layout layout;
};

struct op_spec {
    const char *op;                  // the library's name: "softmax_forward"
    const char *command;             // bench, apply: "softmax"
    const char *pass;                // "forward" or "backward"
    const struct param_spec *params; // ends with a NULL name, as do slots, edges and standard
    const struct slot_spec *slots;

    // Shape of a slot in this case; returns its number of dimensions.
    int (*shape)(const struct op_case *c, int slot, int64_t *shape);
    // The dtype of a slot. NULL: its kind determines it.
    tsr_dtype (*slot_dtype)(const struct op_case *c, int slot);
    // Sets size parameters from the tensors present (apply). False: their ranks do not fit.
    bool (*infer)(struct op_case *c);
    // The role of a tensor where it depends on the other inputs and the options: ids of experts are made by a router, or
    // given. SLOT_NONE: the call cannot make this optional output. NULL: the slot's own.
    enum slot_role (*role)(const struct op_case *c, int slot);
    // The kind of a tensor where it depends on the options: scales of some formats are bytes. NULL: the slot's own.
    enum slot_kind (*kind)(const struct op_case *c, int slot);
    // bench: sets sizes that are 0 and follow from others. NULL: there are none.
    void (*complete)(struct op_case *c);
    // Runs the call, or its prepare when workspace_bytes is not NULL.
    tsr_status (*call)(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes);
    // Bytes of tensors and workspace by the library's own estimate; NAN if the estimate does not cover
    // this case. NULL: the tensors and the workspace by _prepare.
    double (*predict)(tsr_context *ctx, const struct op_case *c, const char *variant);
    double (*flops)(const struct op_case *c);
    // Bytes that must move; NULL: every present tensor once, SLOT_INOUT twice.
    double (*bytes)(const struct op_case *c);
    // The written part of these bytes; NULL: in the proportion of the tensors.
    double (*written)(const struct op_case *c);
    // The traffic of a variant (NULL: the library's choice), pass by pass; false if it is not described.
    // NULL: by the general rules of traffic.c.
    bool (*traffic)(const struct op_case *c, const char *variant, struct op_traffic *traffic);

    // Draws parameters and presence of a random case. Keep it cheap: at most some 10^5 elements.
    void (*randomize)(struct rng *rng, struct op_case *c);
    enum edge_fill random_fill; // the fill of random cases
    // Fills a slot with doubles, row-major; earlier slots are filled already (tensors of c are f64
    // and contiguous). NULL, or false returned: the general fill.
    bool (*fill)(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values);
    // bench: whether an input is drawn in its full size; others repeat what a smaller case draws. NULL: indices alone.
    bool (*is_drawn_whole)(const struct op_case *c, int slot);
    // Error allowed in each element of an output, without the rounding to its dtype, which verify
    // adds. Tensors of c are f64 and contiguous: the rounded inputs and the oracle's outputs.
    // c->dtype is the dtype under test. -INFINITY: the contract leaves the element undefined.
    void (*bound)(const struct op_case *c, int slot, double *bound);
    // By the contract a NaN of the other sign is wrong, except where its bound is NaN.
    bool keeps_nan_sign;
    const struct edge_case *edges;

    // bench: the parameter strings of the standard shapes, and the variant that speed-ups refer to; on CUDA it is
    // the variant of this name with cuda- in front, if there is one.
    const char *const *standard;
    const char *const *standard_gpu; // the same on a GPU; NULL: standard
    const char *const *decode, *const
                                   *decode_gpu; // bench --decode: the shapes of steps; NULL: none
    const char *baseline;
    bool is_composed; // made of other operations, which choose their own variants
};

// ---- Working with cases -----------------------------------------------------------------------

// A case with default values, every optional slot absent, dtype f32.
struct op_case case_default(const struct op_spec *spec);
// Applies "rows=3 cols=5 +bias". False, with a sentence in error, for a word that the spec does not have.
bool case_set(struct op_case *c, const char *params, char *error, size_t error_bytes);
// The text "rows=3 cols=5 +bias" of a case: every value that is not the default, and every size (except sizes
// whose default is 0).
const char *case_text(const struct op_case *c, char *buffer, size_t bytes);

// Whether a name on the command line means this spec: "matmul-grouped" means all passes, "matmul_grouped_forward" this
// one. - and _ are equal.
bool spec_is_named(const struct op_spec *spec, const char *name);
// Whether two names are equal if - and _ are equal.
bool spec_names_are_alike(const char *a, const char *b);
int spec_param(const struct op_spec *spec, const char *name); // index; -1 if none
int spec_slot(const struct op_spec *spec, const char *name);
// The standard shapes on a device.
static inline const char *const *spec_standard(const struct op_spec *spec, tsr_device device) {
    return device.type != TSR_CPU && spec->standard_gpu != NULL ? spec->standard_gpu
                                                                : spec->standard;
}
// Whether a variant is the baseline on the CPU or on CUDA: "unfused", "cuda-unfused".
bool spec_is_baseline(const struct op_spec *spec, const char *variant);
int64_t case_int(const struct op_case *c, const char *name); // aborts on an unknown name
double case_real(const struct op_case *c, const char *name);
tsr_dtype case_slot_dtype(const struct op_case *c, int slot);
enum slot_role case_role(const struct op_case *c, int slot);
enum slot_kind case_kind(const struct op_case *c, int slot);
tsr_dtype case_integer(const struct op_case *c,
                       int slot); // the dtype of a slot of integers; else NONE
// An eighth of the rounding error of a slot's dtype, if that has 16 bits; else 0.
double eighth_of_rounding(const struct op_case *c, int slot);
int64_t case_numel(const struct op_case *c, int slot);   // INT64_MAX if there are more
double case_elements(const struct op_case *c, int slot); // the same, without a limit
double case_bytes(const struct op_case *c);              // spec->bytes or the general rule
// The doubles of a slot of an f64 case; NULL if absent.
const double *case_values(const struct op_case *c, const char *slot);

// ---- All operations: spec_list.c --------------------------------------------------------------

extern const struct op_spec *const op_specs[];   // NULL-terminated
const struct op_spec *spec_find(const char *op); // by the library's name; NULL if none
// The operations' names on the command line, each once; ends with NULL.
const char *const *spec_commands(void);
// The same with a separator between.
const char *spec_commands_text(const char *separator, char *buffer, size_t bytes);

#endif
