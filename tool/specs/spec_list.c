// SPDX-License-Identifier: Apache-2.0
// The list of all operations of the tool, and the search by name. To add an operation, declare its spec and add its line
// here.
#include "specs/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct op_spec activation_forward_spec, activation_backward_spec;
extern const struct op_spec adamw_step_spec;
extern const struct op_spec attention_forward_spec, attention_backward_spec;
extern const struct op_spec attention_decode_spec, attention_merge_spec;
extern const struct op_spec cast_spec;
extern const struct op_spec quantize_spec, dequantize_spec;
extern const struct op_spec matmul_forward_spec, matmul_backward_spec, matmul_quant_spec;
extern const struct op_spec matmul_grouped_forward_spec, matmul_grouped_backward_spec;
extern const struct op_spec self_attention_forward_spec, self_attention_backward_spec;
extern const struct op_spec softmax_forward_spec, softmax_backward_spec;
extern const struct op_spec rope_table_spec, rope_forward_spec, rope_backward_spec;
extern const struct op_spec embedding_forward_spec, embedding_backward_spec;
extern const struct op_spec cross_entropy_forward_spec, cross_entropy_backward_spec;
extern const struct op_spec sample_spec;
extern const struct op_spec moe_route_forward_spec, moe_route_backward_spec;
extern const struct op_spec moe_forward_spec, moe_backward_spec;
extern const struct op_spec moe_permute_spec;
extern const struct op_spec moe_combine_forward_spec, moe_combine_backward_spec;
extern const struct op_spec moe_bias_backward_spec;
extern const struct op_spec layernorm_forward_spec, layernorm_backward_spec;
extern const struct op_spec rmsnorm_forward_spec, rmsnorm_backward_spec;

// clang-format off
const struct op_spec *const op_specs[] = {
    &activation_forward_spec,
    &activation_backward_spec,
    &adamw_step_spec,
    &attention_forward_spec,
    &attention_backward_spec,
    &attention_decode_spec,
    &attention_merge_spec,
    &cast_spec,
    &quantize_spec,
    &dequantize_spec,
    &matmul_forward_spec,
    &matmul_backward_spec,
    &matmul_quant_spec,
    &matmul_grouped_forward_spec,
    &matmul_grouped_backward_spec,
    &self_attention_forward_spec,
    &self_attention_backward_spec,
    &softmax_forward_spec,
    &softmax_backward_spec,
    &rope_table_spec,
    &rope_forward_spec,
    &rope_backward_spec,
    &embedding_forward_spec,
    &embedding_backward_spec,
    &cross_entropy_forward_spec,
    &cross_entropy_backward_spec,
    &sample_spec,
    &moe_forward_spec,
    &moe_backward_spec,
    &moe_route_forward_spec,
    &moe_route_backward_spec,
    &moe_permute_spec,
    &moe_combine_forward_spec,
    &moe_combine_backward_spec,
    &moe_bias_backward_spec,
    &layernorm_forward_spec,
    &layernorm_backward_spec,
    &rmsnorm_forward_spec,
    &rmsnorm_backward_spec,
    NULL,
};
// clang-format on

const struct op_spec *spec_find(const char *op) {
    for (int i = 0; op_specs[i] != NULL; i++)
        if (strcmp(op_specs[i]->op, op) == 0) return op_specs[i];
    return NULL;
}

const char *const *spec_commands(void) {
    enum { MAX_COMMANDS = 128 };
    static const char *names[MAX_COMMANDS + 1]; // the tool is single-threaded
    int count = 0;
    for (int i = 0; op_specs[i] != NULL; i++) {
        bool is_new = true;
        for (int k = 0; k < count; k++) is_new &= strcmp(names[k], op_specs[i]->command) != 0;
        if (is_new && count == MAX_COMMANDS) abort(); // specs have outgrown the table
        if (is_new) names[count++] = op_specs[i]->command;
    }
    names[count] = NULL;
    return names;
}

const char *spec_commands_text(const char *separator, char *buffer, size_t bytes) {
    const char *const *names = spec_commands();
    size_t used = 0;
    for (int i = 0; names[i] != NULL && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", i ? separator : "", names[i]);
    return buffer;
}
