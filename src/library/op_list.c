// SPDX-License-Identifier: Apache-2.0
// Every operation of the library. A new one needs its declaration and a line here.
#include "library/op_list.h"

extern const struct tsri_op tsri_activation_forward_op, tsri_activation_backward_op;
extern const struct tsri_op tsri_adamw_step_op;
extern const struct tsri_op tsri_attention_forward_op, tsri_attention_backward_op;
extern const struct tsri_op tsri_attention_decode_op, tsri_attention_merge_op;
extern const struct tsri_op tsri_cast_op;
extern const struct tsri_op tsri_quantize_op, tsri_dequantize_op;
extern const struct tsri_op tsri_sample_op;
extern const struct tsri_op tsri_matmul_forward_op, tsri_matmul_backward_op, tsri_matmul_quant_op;
extern const struct tsri_op tsri_matmul_grouped_forward_op, tsri_matmul_grouped_backward_op;
extern const struct tsri_op tsri_self_attention_forward_op, tsri_self_attention_backward_op;
extern const struct tsri_op tsri_softmax_forward_op, tsri_softmax_backward_op;
extern const struct tsri_op tsri_rope_table_op, tsri_rope_forward_op, tsri_rope_backward_op;
extern const struct tsri_op tsri_embedding_forward_op, tsri_embedding_backward_op;
extern const struct tsri_op tsri_cross_entropy_forward_op, tsri_cross_entropy_backward_op;
extern const struct tsri_op tsri_moe_forward_op, tsri_moe_backward_op;
extern const struct tsri_op tsri_moe_route_forward_op, tsri_moe_route_backward_op;
extern const struct tsri_op tsri_moe_permute_op;
extern const struct tsri_op tsri_moe_combine_forward_op, tsri_moe_combine_backward_op;
extern const struct tsri_op tsri_moe_bias_backward_op;
extern const struct tsri_op tsri_layernorm_forward_op, tsri_layernorm_backward_op;
extern const struct tsri_op tsri_rmsnorm_forward_op, tsri_rmsnorm_backward_op;

// clang-format off
const struct tsri_op *const tsri_ops[] = {
    &tsri_activation_forward_op,
    &tsri_activation_backward_op,
    &tsri_adamw_step_op,
    &tsri_attention_forward_op,
    &tsri_attention_backward_op,
    &tsri_attention_decode_op,
    &tsri_attention_merge_op,
    &tsri_cast_op,
    &tsri_quantize_op,
    &tsri_dequantize_op,
    &tsri_matmul_forward_op,
    &tsri_matmul_backward_op,
    &tsri_matmul_quant_op,
    &tsri_matmul_grouped_forward_op,
    &tsri_matmul_grouped_backward_op,
    &tsri_self_attention_forward_op,
    &tsri_self_attention_backward_op,
    &tsri_softmax_forward_op,
    &tsri_softmax_backward_op,
    &tsri_rope_table_op,
    &tsri_rope_forward_op,
    &tsri_rope_backward_op,
    &tsri_embedding_forward_op,
    &tsri_embedding_backward_op,
    &tsri_cross_entropy_forward_op,
    &tsri_cross_entropy_backward_op,
    &tsri_sample_op,
    &tsri_moe_forward_op,
    &tsri_moe_backward_op,
    &tsri_moe_route_forward_op,
    &tsri_moe_route_backward_op,
    &tsri_moe_permute_op,
    &tsri_moe_combine_forward_op,
    &tsri_moe_combine_backward_op,
    &tsri_moe_bias_backward_op,
    &tsri_layernorm_forward_op,
    &tsri_layernorm_backward_op,
    &tsri_rmsnorm_forward_op,
    &tsri_rmsnorm_backward_op,
};
// clang-format on

const int tsri_num_ops = TSRI_COUNT(tsri_ops);
