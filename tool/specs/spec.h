// SPDX-License-Identifier: Apache-2.0
// One description of every operation, in the tool's terms: its parameters, tensors, work, random
// and edge cases, and error bound. verify, bench, apply, conformance and report are walks over these tables, so
// an operation joins them all with one spec_<op>.c and a line in spec_list.c.
#ifndef TOOL_SPEC_H
#define TOOL_SPEC_H

#include <stdbool.h>
#include <tessera/tessera.h>

#include "system/random.h"

enum { SPEC_MAX_PARAMS = 24, SPEC_MAX_SLOTS = 18 };

// ---- The parts of a description ---------------------------------------------------------------

enum param_kind { PARAM_SIZE, PARAM_INT, PARAM_REAL, PARAM_FLAG, PARAM_CHOICE };

// What tells apply a parameter.
enum param_source {
    SOURCE_BY_KIND, // a size: tensors; anything else: an option
    SOURCE_TENSORS, // dtypes and shapes, as whether b has batches
    SOURCE_OPTION   // a size that the inputs may leave open, as the rows of a table
};

// A dimension, option or flag; written rows=4 in specs and --rows 4 on the command line ('_'
// is '-').
struct param_spec {
    const char *name, *help;
    enum param_kind kind;
    double standard;            // the value where none is given
    const char *const *choices; // PARAM_CHOICE: NULL-terminated names of 0, 1, 2, ...
    enum param_source source;
    double least, most; // PARAM_INT, PARAM_REAL: what the field of the call holds; both 0: any
};
#define PARAM_FLOAT .least = -0x1.fffffep127, .most = 0x1.fffffep127 // the field is a float

enum slot_role { SLOT_IN, SLOT_OUT, SLOT_INOUT };
enum slot_kind {
    SLOT_MAIN,  // the case's dtype
    SLOT_SMALL, // the case's dtype, or f32 beside a 16-bit one (op_case.small_dtype)
    SLOT_F32,   // f32 always (f64 for the oracle)
    SLOT_I32
};

// A tensor of the call, named as its field and as in the files of `apply`.
struct slot_spec {
    const char *name;
    enum slot_role role;
    enum slot_kind kind;
    bool is_optional;
    const char
        *alias; // apply: a tensor of this name takes precedence, as residual_out for backward's x
    bool may_be_transposed; // the last two dimensions may come column-major
    // apply, outputs: the tensor that this is the gradient or the successor of. Has its shape and, where small, its
    // dtype; an optional one is left out where that tensor could be given and is not.
    const char *model;
};

struct op_traffic; // traffic.h

// One configuration of an operation.
struct op_case {
    const struct op_spec *spec;
    uint32_t flags; // of the call: TSR_DETERMINISTIC, TSR_BATCH_INVARIANT
    double param[SPEC_MAX_PARAMS];
    tsr_dtype dtype, small_dtype;
    bool is_present[SPEC_MAX_SLOTS]; // true for every slot that is not optional
    tsr_tensor tensor[SPEC_MAX_SLOTS];
};

// How verify fills and lays out an edge case.
enum edge_fill {
    FILL_NORMAL,            // standard normal
    FILL_LARGE,             // normal times 1e4 (f16: 1e2)
    FILL_HUGE,              // up to the largest finite value
    FILL_INFINITE,          // normal with -inf and +inf strewn in
    FILL_NEGATIVE_INFINITE, // every other row -inf throughout, -inf strewn into the rest
    FILL_NAN,               // normal with NaN strewn in
    FILL_SHIFTED,           // mean / sigma = 1e6 in f32, what the format can hold otherwise
    FILL_ZERO,
    FILL_SPECIAL // whatever the spec's own fill makes of it
};
enum edge_layout {
    LAYOUT_RANDOM, // strides, their order, gaps and misalignment drawn
    LAYOUT_CONTIGUOUS,
    LAYOUT_FAR,     // a dimension whose ends lie 2^31 elements apart
    LAYOUT_REPEATED // inputs with a row stride of 0
};
struct edge_case {
    const char *name;
    const char *params; // "rows=3 cols=5 +bias": what differs from the standard values; + and - for
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
    // The dtype of a slot where its kind does not tell; NULL: by its kind.
    tsr_dtype (*slot_dtype)(const struct op_case *c, int slot);
    // Sets size parameters from the tensors present (apply). False: their ranks do not fit.
    bool (*infer)(struct op_case *c);
    // bench: gives sizes that follow others where they are 0 their value. NULL: there are none.
    void (*complete)(struct op_case *c);
    // Runs the call, or its prepare when workspace_bytes is not NULL.
    tsr_status (*call)(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes);
    // Bytes of tensors and workspace by an estimate of the library's own; NAN where it does not speak of
    // this case. NULL: the tensors and what prepare says.
    double (*predict)(tsr_context *ctx, const struct op_case *c, const char *variant);
    double (*flops)(const struct op_case *c);
    // Bytes that must move; NULL: every present tensor once, SLOT_INOUT twice.
    double (*bytes)(const struct op_case *c);
    // Those of them that are written; NULL: in the proportion of the tensors.
    double (*written)(const struct op_case *c);
    // What a variant (NULL: the library's choice) moves, pass by pass; false where it is not described.
    // NULL: by the general rules of traffic.c.
    bool (*traffic)(const struct op_case *c, const char *variant, struct op_traffic *traffic);

    // Draws parameters and presence of a random case. Cheap ones: at most some 10^5 elements.
    void (*randomize)(struct rng *rng, struct op_case *c);
    enum edge_fill random_fill; // of random cases
    // Fills a slot with doubles, row-major; earlier slots are filled already (tensors of c are f64
    // and contiguous). NULL, or false returned: by `fill`, in the general way.
    bool (*fill)(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values);
    // Error allowed in each element of an output, but for the rounding to its dtype, which is
    // added. Tensors of c are f64 and contiguous: the rounded inputs and the oracle's outputs.
    // dtype of the case is the one under test.
    void (*bound)(const struct op_case *c, int slot, double *bound);
    // The contract says so: a NaN of the other sign is wrong, but where its bound is NaN.
    bool keeps_nan_sign;
    const struct edge_case *edges;

    // bench: the parameter strings of the standard shapes, and the variant that speed-ups refer to; the one of
    // CUDA, where there is one, is named like it, with cuda- before.
    const char *const *standard;
    const char *baseline;
    bool is_composed; // of other operations, which choose their variants for themselves
};

// ---- Working with cases -----------------------------------------------------------------------

// A case with standard values, every optional slot absent, dtype f32.
struct op_case case_default(const struct op_spec *spec);
// Applies "rows=3 cols=5 +bias". False, with a sentence in error, for what the spec does not know.
bool case_set(struct op_case *c, const char *params, char *error, size_t error_bytes);
// "rows=3 cols=5 +bias" of a case: what differs from the standard values, and every size (but for those
// that are 0 unless given).
const char *case_text(const struct op_case *c, char *buffer, size_t bytes);

// Whether a command line may mean it: "matmul-grouped" all its passes, "matmul_grouped_forward" it alone; - and _ alike.
bool spec_is_named(const struct op_spec *spec, const char *name);
// Whether two names are the same but for - and _.
bool spec_names_are_alike(const char *a, const char *b);
int spec_param(const struct op_spec *spec, const char *name); // index; -1 if none
int spec_slot(const struct op_spec *spec, const char *name);
// Whether a variant is the baseline, or what plays its part on CUDA: "unfused", "cuda-unfused".
bool spec_is_baseline(const struct op_spec *spec, const char *variant);
int64_t case_int(const struct op_case *c, const char *name); // aborts on an unknown name
double case_real(const struct op_case *c, const char *name);
tsr_dtype case_slot_dtype(const struct op_case *c, int slot);
// An eighth of what rounding to a slot's dtype may lose, where it has 16 bits.
double eighth_of_rounding(const struct op_case *c, int slot);
int64_t case_numel(const struct op_case *c, int slot);   // INT64_MAX when there are more
double case_elements(const struct op_case *c, int slot); // the same, however many
double case_bytes(const struct op_case *c);              // spec->bytes or the general rule
// Doubles of a slot of an f64 case, NULL when absent.
const double *case_values(const struct op_case *c, const char *slot);

// ---- All of them: spec_list.c -----------------------------------------------------------------

extern const struct op_spec *const op_specs[];   // NULL-terminated
const struct op_spec *spec_find(const char *op); // by the library's name; NULL if none
// The operations by the name that the command line has for them, each once; ends with NULL.
const char *const *spec_commands(void);
// The same with a separator between.
const char *spec_commands_text(const char *separator, char *buffer, size_t bytes);

#endif
