// SPDX-License-Identifier: Apache-2.0
// Macros for the tables of fields, and the tables that have their own file.
#ifndef ARGS_FIELDS_H
#define ARGS_FIELDS_H

#include "args_table.h"

// ARGS is the operation's args struct.
#define IN(field, form, type)                                                                      \
    { #field, form, offsetof(ARGS, field), ARGS_INPUT, type, false }
#define IN_OPTIONAL(field, form, type)                                                             \
    { #field, form, offsetof(ARGS, field), ARGS_INPUT, type, true }
#define OUT(field, form, type)                                                                     \
    { #field, form, offsetof(ARGS, field), ARGS_OUTPUT, type, false }
#define OUT_OPTIONAL(field, form, type)                                                            \
    { #field, form, offsetof(ARGS, field), ARGS_OUTPUT, type, true }
#define INT32(field, letter)                                                                       \
    { #field, letter, offsetof(ARGS, field), ARGS_INT32, 0, false }
#define INT64(field, letter)                                                                       \
    { #field, letter, offsetof(ARGS, field), ARGS_INT64, 0, false }
#define FLOAT(field)                                                                               \
    { #field, NULL, offsetof(ARGS, field), ARGS_FLOAT, 0, false }
#define DOUBLE(field)                                                                              \
    { #field, NULL, offsetof(ARGS, field), ARGS_DOUBLE, 0, false }
#define ENUM(field)                                                                                \
    { #field, NULL, offsetof(ARGS, field), ARGS_ENUM, 0, false }

// In args_attention.c.
extern const struct args_field attention_forward_fields[], attention_backward_fields[],
    attention_decode_fields[], attention_merge_fields[], self_attention_forward_fields[],
    self_attention_backward_fields[];
// In args_sample.c.
extern const struct args_field sample_fields[];
// In args_moe.c.
extern const struct args_field moe_forward_fields[], moe_backward_fields[],
    moe_route_forward_fields[], moe_route_backward_fields[], moe_permute_fields[],
    moe_combine_forward_fields[], moe_combine_backward_fields[], moe_bias_backward_fields[];

#endif
