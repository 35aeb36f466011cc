// SPDX-License-Identifier: Apache-2.0
// Describes every operation for the fuzzer: the fields of its args struct and their values in a plain call.
#ifndef ARGS_TABLE_H
#define ARGS_TABLE_H

#include <stdbool.h>
#include <tessera/tessera.h>

enum args_kind {
    ARGS_INPUT,
    ARGS_OUTPUT, // also in-out
    ARGS_INT32,
    ARGS_INT64,
    ARGS_FLOAT,
    ARGS_DOUBLE,
    ARGS_ENUM
};

// For a tensor, `form` gives its dimensions as letters, such as "bqhd". '|' separates the forms of a call, an empty
// form means that the tensor is absent, and the last one serves all further forms. The input chooses the sizes of the
// letters, except derived ones: h = g times a number, B = b + 1, D = (h + 2 g) d, O = h d, T = 2 R,
// A = q s, N = 2 n, M = 2 m; F is a format of quantised rows, one for each form, H = ceil(c / 2), Q, U, W = 34, 16, 32 m.
// For a number, `form` is the letter whose size a plain call passes, or NULL for 0.
struct args_field {
    const char *name, *form;
    size_t offset;
    enum args_kind kind;
    // tensors: x main, w main or f32, s f32 or f64, i int32, u u8, S s or (of MXFP4) u8, q f32 in fp8 calls only, 8 e4m3;
    // e: main, but e4m3 in fp8 calls, where main is then bf16
    char type;
    bool is_optional;
};

enum { ARGS_MAX_FIELDS = 64, ARGS_MAX_TENSORS = 40, ARGS_FORMS = 4 };

typedef tsr_status args_call(tsr_context *ctx, const void *args);
typedef tsr_status args_prepare(tsr_context *ctx, const void *args, size_t *workspace_bytes);

struct args_op {
    const char *name;
    size_t bytes; // of the args struct
    args_call *call;
    args_prepare *prepare;
    const struct args_field *fields; // ends with a NULL name
};

// One for each name of tsr_op_name.
const struct args_op *args_op_named(const char *name);

#endif
