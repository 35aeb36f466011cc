// SPDX-License-Identifier: Apache-2.0
// The fields of the choice of the next token, for args_table.c. Forms: a bias for all rows, one for each.
#include "args_fields.h"

#define ARGS tsr_sample_args
const struct args_field sample_fields[] = {
    IN(logits, "rc", 'x'),
    IN_OPTIONAL(history, "rn", 'i'),
    IN_OPTIONAL(logit_bias, "c|rc", 's'),
    IN_OPTIONAL(row_temperature, "r", 's'),
    IN_OPTIONAL(row_top_k, "r", 'i'),
    IN_OPTIONAL(row_top_p, "r", 's'),
    IN_OPTIONAL(row_min_p, "r", 's'),
    IN_OPTIONAL(row_repetition_penalty, "r", 's'),
    IN_OPTIONAL(row_presence_penalty, "r", 's'),
    IN_OPTIONAL(row_frequency_penalty, "r", 's'),
    IN_OPTIONAL(row_seed, "r", 'i'),
    IN_OPTIONAL(row_offset, "r", 'i'),
    OUT(ids, "r", 'i'),
    OUT_OPTIONAL(logprobs, "r", 's'),
    OUT_OPTIONAL(kept, "r", 'i'),
    OUT_OPTIONAL(num_nan_rows, "1", 'i'),
    FLOAT(temperature),
    INT32(top_k, NULL),
    FLOAT(top_p),
    INT32(has_top_p, NULL),
    FLOAT(min_p),
    FLOAT(repetition_penalty),
    FLOAT(presence_penalty),
    FLOAT(frequency_penalty),
    ENUM(logprobs_of),
    INT64(seed, NULL),
    INT64(offset, NULL),
    {NULL},
};
#undef ARGS
