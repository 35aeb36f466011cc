// SPDX-License-Identifier: Apache-2.0
// Every operation that the tool knows. A new one: its declaration and its line, here.
#include "specs/spec.h"

extern const struct op_spec activation_forward_spec, activation_backward_spec;
extern const struct op_spec adamw_step_spec;
extern const struct op_spec attention_forward_spec, attention_backward_spec;
extern const struct op_spec attention_decode_spec, attention_merge_spec;
extern const struct op_spec cast_spec;
extern const struct op_spec matmul_forward_spec, matmul_backward_spec;
extern const struct op_spec matmul_grouped_forward_spec, matmul_grouped_backward_spec;
extern const struct op_spec self_attention_forward_spec, self_attention_backward_spec;
extern const struct op_spec softmax_forward_spec, softmax_backward_spec;
extern const struct op_spec rope_table_spec, rope_forward_spec, rope_backward_spec;
extern const struct op_spec embedding_forward_spec, embedding_backward_spec;
extern const struct op_spec cross_entropy_forward_spec, cross_entropy_backward_spec;
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
    &matmul_forward_spec,
    &matmul_backward_spec,
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
    &layernorm_forward_spec,
    &layernorm_backward_spec,
    &rmsnorm_forward_spec,
    &rmsnorm_backward_spec,
    NULL,
};
// clang-format on
