// SPDX-License-Identifier: Apache-2.0
// To add an operation: its fields in the order of its struct, and its name in OPERATIONS.
#include <string.h>

#include "args_fields.h"

#define ARGS tsr_activation_forward_args
static const struct args_field activation_forward_fields[] = {
    IN(x, "rsc", 'x'), IN_OPTIONAL(up, "rsc", 'x'), OUT(y, "rsc", 'x'), ENUM(kind), {NULL},
};
#undef ARGS

#define ARGS tsr_activation_backward_args
static const struct args_field activation_backward_fields[] = {
    IN(x, "rsc", 'x'),
    IN_OPTIONAL(up, "rsc", 'x'),
    IN(dy, "rsc", 'x'),
    OUT(dx, "rsc", 'x'),
    OUT_OPTIONAL(dup, "rsc", 'x'),
    ENUM(kind),
    IN_OPTIONAL(row_weights, "rs", 's'),
    OUT_OPTIONAL(weighted_y, "rsc", 'x'),
    OUT_OPTIONAL(drow_weights, "rs", 's'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_adamw_step_args
static const struct args_field adamw_step_fields[] = {
    OUT(param, "rsc", 'x'),
    IN(grad, "rsc", 'w'),
    OUT(m, "rsc", 's'),
    OUT(v, "rsc", 's'),
    OUT_OPTIONAL(master, "rsc", 's'),
    DOUBLE(lr),
    DOUBLE(beta1),
    DOUBLE(beta2),
    DOUBLE(eps),
    DOUBLE(weight_decay),
    DOUBLE(grad_scale),
    INT32(has_grad_scale, NULL),
    INT64(step, "1"),
    {NULL},
};
#undef ARGS

#define ARGS tsr_cast_args
static const struct args_field cast_fields[] = {
    IN(x, "rsc", 'w'), OUT(y, "rsc", 'x'), FLOAT(scale), INT32(has_scale, NULL), {NULL},
};
#undef ARGS

#define ARGS tsr_quantize_args
static const struct args_field quantize_fields[] = {
    IN(x, "rsc|bc|rc", 'x'),
    IN_OPTIONAL(up, "rsc|bc|rc", 'x'),
    IN_OPTIONAL(x_rows, "|r|", 'i'),
    OUT(y, "rsc|rc|rc", '8'),
    OUT(y_scale, "rs1|r1|r1", 's'),
    ENUM(kind),
    {NULL},
};
#undef ARGS

#define ARGS tsr_dequantize_args
static const struct args_field dequantize_fields[] = {
    IN(x, "rsc|bH|rQ|rU", 'u'),
    IN_OPTIONAL(x_rows, "|r||", 'i'),
    IN_OPTIONAL(scale, "rs1|b1||rm", 'S'),
    IN_OPTIONAL(zero, "rs1|||", 's'),
    IN_OPTIONAL(minimum, "|b1||", 's'),
    OUT(y, "rsc|rc|rW|rW", 'x'),
    INT32(quant, "F"),
    INT32(group, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_matmul_quant_args
static const struct args_field matmul_quant_fields[] = {
    IN(a, "mc|mc|mW|mW", 'x'),
    IN(b, "nc|nH|nQ|nU", 'u'),
    IN_OPTIONAL(b_scale, "n1|n1||nm", 'S'),
    IN_OPTIONAL(b_zero, "n1|||", 's'),
    IN_OPTIONAL(b_minimum, "|n1||", 's'),
    IN_OPTIONAL(b_up, "nc|||nU", 'u'),
    IN_OPTIONAL(b_up_scale, "n1|||nm", 'S'),
    IN_OPTIONAL(b_up_zero, "n1|||", 's'),
    IN_OPTIONAL(b_up_minimum, "", 's'),
    IN_OPTIONAL(bias, "n", 'w'),
    IN_OPTIONAL(bias_up, "n|||n", 'w'),
    IN_OPTIONAL(residual, "mn", 'w'),
    OUT(c, "mn", 'w'),
    INT32(quant, "F"),
    INT32(group, NULL),
    ENUM(activation),
    INT32(accumulate, NULL),
    FLOAT(alpha),
    INT32(has_alpha, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_matmul_forward_args
static const struct args_field matmul_forward_fields[] = {
    IN(a, "mk|bmk|bmk|bkm", 'x'),
    IN(b, "kn|bkn|kn|bnk", 'x'),
    IN_OPTIONAL(b_up, "kn|bkn|kn|bnk", 'x'),
    IN_OPTIONAL(bias, "n", 'w'),
    IN_OPTIONAL(residual, "mn|bmn", 'w'),
    OUT(c, "mn|bmn", 'w'),
    INT32(transpose_a, "t"),
    INT32(transpose_b, "t"),
    ENUM(activation),
    INT32(accumulate, NULL),
    FLOAT(alpha),
    INT32(has_alpha, NULL),
    IN_OPTIONAL(a_scale, "1|||b1m", 'q'),
    IN_OPTIONAL(b_scale, "1||1|11", 'q'),
    IN_OPTIONAL(b_up_scale, "1|||11", 'q'),
    INT32(fast_accumulate, NULL),
    ENUM(math),
    IN_OPTIONAL(bias_up, "n", 'w'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_matmul_backward_args
static const struct args_field matmul_backward_fields[] = {
    IN(a, "mk|bmk|bmk|bkm", 'x'),
    IN(b, "kn|bkn|kn|bnk", 'x'),
    IN_OPTIONAL(preact, "mn|bmn", 'x'),
    IN(dc, "mn|bmn", 'x'),
    OUT_OPTIONAL(da, "mk|bmk|bmk|bkm", 'x'),
    OUT_OPTIONAL(db, "kn|bkn|kn|bnk", 'x'),
    OUT_OPTIONAL(dbias, "n", 'w'),
    INT32(transpose_a, "t"),
    INT32(transpose_b, "t"),
    ENUM(activation),
    {NULL},
};
#undef ARGS

// The four forms: offsets, counts, offsets, counts with transposed matrices. b: groups, q: rows.
#define ARGS tsr_matmul_grouped_forward_args
static const struct args_field matmul_grouped_forward_fields[] = {
    IN(a, "qk|bqk|qk|bqk", 'x'),
    IN(b, "bkn|bkn|bkn|bnk", 'x'),
    IN_OPTIONAL(b_up, "bkn|bkn|bkn|bnk", 'x'),
    IN_OPTIONAL(bias, "bn", 'w'),
    IN(offsets, "B||B|", 'i'),
    IN(counts, "|b||b", 'i'),
    OUT(c, "qn|bqn|qn|bqn", 'w'),
    INT32(transpose_b, "t"),
    ENUM(activation),
    INT32(accumulate, NULL),
    FLOAT(alpha),
    INT32(has_alpha, NULL),
    IN_OPTIONAL(a_rows, "q||q|", 'i'),
    IN_OPTIONAL(bias_up, "bn", 'w'),
    IN_OPTIONAL(a_scale, "q1|bq1|1|1", 'q'),
    IN_OPTIONAL(b_scale, "b11|b|1|b", 'q'),
    IN_OPTIONAL(b_up_scale, "b11|b|1|b", 'q'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_matmul_grouped_backward_args
static const struct args_field matmul_grouped_backward_fields[] = {
    IN(a, "qk|bqk|qk|bqk", 'x'),
    IN(dc, "qn|bqn|qn|bqn", 'x'),
    IN(offsets, "B||B|", 'i'),
    IN(counts, "|b||b", 'i'),
    OUT(db, "bkn|bkn|bkn|bnk", 'w'),
    INT32(transpose_b, "t"),
    INT32(accumulate, NULL),
    FLOAT(alpha),
    INT32(has_alpha, NULL),
    IN_OPTIONAL(a_rows, "q||q|", 'i'),
    IN_OPTIONAL(dc_rows, "q||q|", 'i'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_softmax_forward_args
static const struct args_field softmax_forward_fields[] = {
    IN(x, "rsc", 'x'),
    OUT(y, "rsc", 'x'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_softmax_backward_args
static const struct args_field softmax_backward_fields[] = {
    IN(y, "rsc", 'x'),
    IN(dy, "rsc", 'x'),
    OUT(dx, "rsc", 'x'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_rope_table_args
static const struct args_field rope_table_fields[] = {
    IN_OPTIONAL(inv_freq, "R", 's'),
    OUT(cos, "pR", 's'),
    OUT(sin, "pR", 's'),
    DOUBLE(base),
    INT32(has_base, NULL),
    INT32(has_scaling, NULL),
    DOUBLE(scaling.factor),
    DOUBLE(scaling.low_freq_factor),
    DOUBLE(scaling.high_freq_factor),
    DOUBLE(scaling.original_max_position),
    DOUBLE(attention_factor),
    {NULL},
};
#undef ARGS

#define ARGS tsr_rope_forward_args
static const struct args_field rope_forward_fields[] = {
    IN(x, "bqhd|qhd", 'x'),   IN(cos, "kR", 's'),
    IN(sin, "kR", 's'),       IN_OPTIONAL(positions, "bq|q", 'i'),
    OUT(y, "bqhd|qhd", 'x'),  INT64(rotary_dim, "T"),
    INT32(interleaved, NULL), {NULL},
};
#undef ARGS

#define ARGS tsr_rope_backward_args
static const struct args_field rope_backward_fields[] = {
    IN(dy, "bqhd|qhd", 'x'),  IN(cos, "kR", 's'),
    IN(sin, "kR", 's'),       IN_OPTIONAL(positions, "bq|q", 'i'),
    OUT(dx, "bqhd|qhd", 'x'), INT64(rotary_dim, "T"),
    INT32(interleaved, NULL), {NULL},
};
#undef ARGS

#define ARGS tsr_embedding_forward_args
static const struct args_field embedding_forward_fields[] = {
    IN(ids, "q|bq", 'i'),
    IN(weight, "vc", 'x'),
    OUT(y, "qc|bqc", 'x'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_embedding_backward_args
static const struct args_field embedding_backward_fields[] = {
    IN(ids, "q|bq", 'i'),
    IN(dy, "qc|bqc", 'x'),
    OUT(dweight, "vc", 'w'),
    INT32(accumulate, NULL),
    INT32(padding_id, NULL),
    INT32(has_padding_id, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_cross_entropy_forward_args
static const struct args_field cross_entropy_forward_fields[] = {
    IN(logits, "qv|bqv", 'x'), IN(targets, "q|bq", 'i'),
    OUT(loss, "q|bq", 's'),    OUT_OPTIONAL(lse, "q|bq", 's'),
    INT32(ignore_index, NULL), INT32(has_ignore_index, NULL),
    FLOAT(label_smoothing),    {NULL},
};
#undef ARGS

#define ARGS tsr_cross_entropy_backward_args
static const struct args_field cross_entropy_backward_fields[] = {
    IN(logits, "qv|bqv", 'x'),     IN(targets, "q|bq", 'i'),    IN(lse, "q|bq", 's'),
    IN(dloss, "q|bq", 's'),        OUT(dlogits, "qv|bqv", 'x'), INT32(ignore_index, NULL),
    INT32(has_ignore_index, NULL), FLOAT(label_smoothing),      {NULL},
};
#undef ARGS

#define ARGS tsr_layernorm_forward_args
static const struct args_field layernorm_forward_fields[] = {
    IN(x, "rsc", 'x'),
    IN_OPTIONAL(residual, "rsc", 'x'),
    IN_OPTIONAL(weight, "c", 'w'),
    IN_OPTIONAL(bias, "c", 'w'),
    OUT(y, "rsc", 'x'),
    OUT_OPTIONAL(residual_out, "rsc", 'x'),
    OUT_OPTIONAL(mean, "rs", 's'),
    OUT_OPTIONAL(rstd, "rs", 's'),
    FLOAT(eps),
    INT32(has_eps, NULL),
    INT32(zero_centered_weight, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_layernorm_backward_args
static const struct args_field layernorm_backward_fields[] = {
    IN(x, "rsc", 'x'),
    IN_OPTIONAL(weight, "c", 'w'),
    IN(mean, "rs", 's'),
    IN(rstd, "rs", 's'),
    IN(dy, "rsc", 'x'),
    IN_OPTIONAL(dresidual_out, "rsc", 'x'),
    OUT(dx, "rsc", 'x'),
    OUT_OPTIONAL(dweight, "c", 'w'),
    OUT_OPTIONAL(dbias, "c", 'w'),
    INT32(zero_centered_weight, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_rmsnorm_forward_args
static const struct args_field rmsnorm_forward_fields[] = {
    IN(x, "rsc", 'x'),
    IN_OPTIONAL(residual, "rsc", 'x'),
    IN_OPTIONAL(weight, "c", 'w'),
    OUT(y, "rsc", 'x'),
    OUT_OPTIONAL(residual_out, "rsc", 'x'),
    OUT_OPTIONAL(rstd, "rs", 's'),
    FLOAT(eps),
    INT32(has_eps, NULL),
    INT32(zero_centered_weight, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_rmsnorm_backward_args
static const struct args_field rmsnorm_backward_fields[] = {
    IN(x, "rsc", 'x'),
    IN_OPTIONAL(weight, "c", 'w'),
    IN(rstd, "rs", 's'),
    IN(dy, "rsc", 'x'),
    IN_OPTIONAL(dresidual_out, "rsc", 'x'),
    OUT(dx, "rsc", 'x'),
    OUT_OPTIONAL(dweight, "c", 'w'),
    INT32(zero_centered_weight, NULL),
    {NULL},
};
#undef ARGS

// clang-format off
#define OPERATIONS(X)                                    \
    X(activation_forward) X(activation_backward)         \
    X(adamw_step)                                        \
    X(attention_forward) X(attention_backward)           \
    X(attention_decode)                                  \
    X(attention_merge)                                   \
    X(cast)                                              \
    X(quantize) X(dequantize)                            \
    X(matmul_forward) X(matmul_backward) X(matmul_quant) \
    X(matmul_grouped_forward) X(matmul_grouped_backward) \
    X(self_attention_forward) X(self_attention_backward) \
    X(softmax_forward) X(softmax_backward)               \
    X(rope_table)                                        \
    X(rope_forward) X(rope_backward)                     \
    X(embedding_forward) X(embedding_backward)           \
    X(cross_entropy_forward) X(cross_entropy_backward)   \
    X(sample)                                            \
    X(moe_forward) X(moe_backward)                       \
    X(moe_route_forward) X(moe_route_backward)           \
    X(moe_permute)                                       \
    X(moe_combine_forward) X(moe_combine_backward)       \
    X(moe_bias_backward)                                 \
    X(layernorm_forward) X(layernorm_backward)           \
    X(rmsnorm_forward) X(rmsnorm_backward)
// clang-format on

// All calls with one function type, because calling through a cast pointer is undefined.
#define FUNCTIONS(op)                                                                              \
    static tsr_status op##_call(tsr_context *ctx, const void *args) {                              \
        return tsr_##op(ctx, args);                                                                \
    }                                                                                              \
    static tsr_status op##_prepare(tsr_context *ctx, const void *args, size_t *bytes) {            \
        return tsr_##op##_prepare(ctx, args, bytes);                                               \
    }
OPERATIONS(FUNCTIONS)

#define ROW(op) {#op, sizeof(tsr_##op##_args), op##_call, op##_prepare, op##_fields},
static const struct args_op ops[] = {OPERATIONS(ROW)};

const struct args_op *args_op_named(const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(ops[i].name, name) == 0) return &ops[i];
    return NULL;
}
