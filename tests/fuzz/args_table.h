// SPDX-License-Identifier: Apache-2.0
// Every operation as bytes: where the fields of its args struct lie, and what a plain call puts there.
#ifndef ARGS_TABLE_H
#define ARGS_TABLE_H

#include <stdbool.h>
#include <tessera/tessera.h>

enum args_kind {
    ARGS_INPUT,
    ARGS_OUTPUT, // in and out too
    ARGS_INT32,
    ARGS_INT64,
    ARGS_FLOAT,
    ARGS_DOUBLE,
    ARGS_ENUM
};

// Dimensions of a tensor by letters, "bqhd"; the forms of a call are parted by '|', an empty one means that
// the tensor is absent there, and the last one stands for all that follow. Letters are sizes that the input
// chooses, but for these, which follow from them: h = g times a number, B = b + 1, D = (h + 2 g) d, O = h d, T = 2 R.
// For a number the letter whose size a plain call puts there, or NULL for 0.
struct args_field {
    const char *name, *form;
    size_t offset;
    enum args_kind kind;
    char
        type; // of a tensor: 'x' the call's, 'w' the call's or f32, 's' f32 (f64 beside f64), 'i' int32, 'q' f32
    // beside fp8, absent otherwise
    bool is_optional;
};

enum { ARGS_MAX_FIELDS = 40, ARGS_MAX_TENSORS = 20, ARGS_FORMS = 4 };

typedef tsr_status args_call(tsr_context *ctx, const void *args);
typedef tsr_status args_prepare(tsr_context *ctx, const void *args, size_t *workspace_bytes);

struct args_op {
    const char *name;
    size_t bytes; // of the struct
    args_call *call;
    args_prepare *prepare;
    const struct args_field *fields; // ends with a NULL name
};

// One for each that tsr_op_name names.
const struct args_op *args_op_named(const char *name);

#endif
