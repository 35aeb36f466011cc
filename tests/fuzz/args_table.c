// SPDX-License-Identifier: Apache-2.0
// To add an operation: its fields in the order of its struct, and a row of the table.
#include <stdbool.h>
#include <string.h>

#include "args_table.h"

// Within OP(name, ...) ARGS is the operation's struct.
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

// What forward and backward of attention have alike, and what decode and self-attention have of it.
#define ATTENTION_INPUTS                                                                           \
    IN(q, "bqhd|qhd", 'x'), IN(k, "bkgd|kgd", 'x'), IN(v, "bkge|kge", 'x'),                        \
        IN_OPTIONAL(bias, "bhqk", 'w'), IN_OPTIONAL(alibi_slopes, "h|bh", 'w'),                    \
        IN_OPTIONAL(sinks, "h", 'w'), IN(cu_seqlens_q, "|B", 'i'), IN(cu_seqlens_k, "|B", 'i'),    \
        IN_OPTIONAL(seqused_k, "b", 'i')
#define ATTENTION_SCORES ENUM(mask), FLOAT(softmax_scale), FLOAT(softcap)
#define ATTENTION_WINDOWS                                                                          \
    INT32(has_window_left, NULL), INT32(has_window_right, NULL), INT64(window_left, NULL),         \
        INT64(window_right, NULL)
#define ATTENTION_DROPOUT DOUBLE(dropout_p), INT64(seed, NULL), INT64(offset, NULL)

#define ARGS tsr_attention_forward_args
static const struct args_field attention_forward_fields[] = {
    ATTENTION_INPUTS,          OUT(out, "bqhe|qhe", 'x'), OUT_OPTIONAL(lse, "bhq|hq", 's'),
    ATTENTION_SCORES,          ATTENTION_WINDOWS,         INT64(max_seqlen_q, NULL),
    INT64(max_seqlen_k, NULL), ATTENTION_DROPOUT,         {NULL},
};
#undef ARGS

#define ARGS tsr_attention_backward_args
static const struct args_field attention_backward_fields[] = {
    ATTENTION_INPUTS,
    IN(out, "bqhe|qhe", 'x'),
    IN(lse, "bhq|hq", 's'),
    IN(dout, "bqhe|qhe", 'x'),
    OUT_OPTIONAL(dq, "bqhd|qhd", 'x'),
    OUT_OPTIONAL(dk, "bkgd|kgd", 'x'),
    OUT_OPTIONAL(dv, "bkge|kge", 'x'),
    OUT_OPTIONAL(dbias, "bhqk", 'w'),
    OUT_OPTIONAL(dsinks, "h", 'w'),
    ATTENTION_SCORES,
    ATTENTION_WINDOWS,
    INT64(max_seqlen_q, NULL),
    INT64(max_seqlen_k, NULL),
    ATTENTION_DROPOUT,
    {NULL},
};
#undef ARGS

#define ARGS tsr_attention_decode_args
static const struct args_field attention_decode_fields[] = {
    IN(q, "bqhd|qhd|bqhd|qhd", 'x'),
    IN_OPTIONAL(k_new, "bqgd|qgd|bqgd|qgd", 'x'),
    IN_OPTIONAL(v_new, "bqge|qge|bqge|qge", 'x'),
    OUT(k_cache, "bkgd|bkgd|nsgd", 'x'),
    OUT(v_cache, "bkge|bkge|nsge", 'x'),
    IN(cache_seqlens, "b", 'i'),
    IN(page_table, "||bp", 'i'),
    IN(cu_seqlens_q, "|B||B", 'i'),
    IN_OPTIONAL(cos, "kR", 's'),
    IN_OPTIONAL(sin, "kR", 's'),
    IN_OPTIONAL(alibi_slopes, "h|bh", 'w'),
    IN_OPTIONAL(sinks, "h", 'w'),
    OUT(out, "bqhe|qhe|bqhe|qhe", 'x'),
    OUT_OPTIONAL(lse, "bhq|hq|bhq|hq", 's'),
    ATTENTION_SCORES,
    INT32(interleaved, NULL),
    ATTENTION_WINDOWS,
    INT64(max_seqlen_q, NULL),
    INT64(max_seqlen_k, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_attention_merge_args
static const struct args_field attention_merge_fields[] = {
    IN(outs, "nbhe|nbqhe|ne", 'x'),
    IN(lses, "nbh|nbqh|n", 's'),
    OUT(out, "bhe|bqhe|e", 'x'),
    OUT_OPTIONAL(lse, "bh|bqh||", 's'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_cast_args
static const struct args_field cast_fields[] = {
    IN(x, "rsc", 'w'), OUT(y, "rsc", 'x'), FLOAT(scale), INT32(has_scale, NULL), {NULL},
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

// Forms: offsets, counts, offsets, counts with the matrices transposed. b groups, q rows.
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
    {NULL},
};
#undef ARGS

#define ARGS tsr_matmul_grouped_backward_args
static const struct args_field matmul_grouped_backward_fields[] = {
    IN(a, "qk|bqk|qk|bqk", 'x'),     IN(dc, "qn|bqn|qn|bqn", 'x'),
    IN(offsets, "B||B|", 'i'),       IN(counts, "|b||b", 'i'),
    OUT(db, "bkn|bkn|bkn|bnk", 'w'), INT32(transpose_b, "t"),
    INT32(accumulate, NULL),         FLOAT(alpha),
    INT32(has_alpha, NULL),          {NULL},
};
#undef ARGS

#define SELF_ATTENTION_SETTINGS                                                                    \
    INT64(num_heads, "h"), INT64(num_kv_heads, "g"), ATTENTION_SCORES, ATTENTION_WINDOWS,          \
        ATTENTION_DROPOUT, INT32(interleaved, NULL)

#define ARGS tsr_self_attention_forward_args
static const struct args_field self_attention_forward_fields[] = {
    IN(x, "bqm", 'x'),
    IN(w_qkv, "Dm", 'x'),
    IN_OPTIONAL(b_qkv, "D", 'w'),
    IN(w_out, "mO", 'x'),
    IN_OPTIONAL(b_out, "m", 'w'),
    IN_OPTIONAL(cos, "qR|pR", 's'),
    IN_OPTIONAL(sin, "qR|pR", 's'),
    OUT(y, "bqm", 'x'),
    OUT_OPTIONAL(qkv, "bqD", 'x'),
    OUT_OPTIONAL(attention, "bqO", 'x'),
    OUT_OPTIONAL(lse, "bhq", 's'),
    SELF_ATTENTION_SETTINGS,
    {NULL},
};
#undef ARGS

#define ARGS tsr_self_attention_backward_args
static const struct args_field self_attention_backward_fields[] = {
    IN(x, "bqm", 'x'),
    IN(w_qkv, "Dm", 'x'),
    IN(w_out, "mO", 'x'),
    IN_OPTIONAL(cos, "qR|pR", 's'),
    IN_OPTIONAL(sin, "qR|pR", 's'),
    IN(qkv, "bqD", 'x'),
    IN(attention, "bqO", 'x'),
    IN(lse, "bhq", 's'),
    IN(dy, "bqm", 'x'),
    OUT_OPTIONAL(dx, "bqm", 'x'),
    OUT_OPTIONAL(dw_qkv, "Dm", 'x'),
    OUT_OPTIONAL(db_qkv, "D", 'w'),
    OUT_OPTIONAL(dw_out, "mO", 'x'),
    OUT_OPTIONAL(db_out, "m", 'w'),
    SELF_ATTENTION_SETTINGS,
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
    {NULL},
};
#undef ARGS

// The calls with one type for all structs: calling through a cast pointer would be undefined.
#define FUNCTIONS(op)                                                                              \
    static tsr_status op##_call(tsr_context *ctx, const void *args) {                              \
        return tsr_##op(ctx, args);                                                                \
    }                                                                                              \
    static tsr_status op##_prepare(tsr_context *ctx, const void *args, size_t *bytes) {            \
        return tsr_##op##_prepare(ctx, args, bytes);                                               \
    }
FUNCTIONS(activation_forward)
FUNCTIONS(activation_backward)
FUNCTIONS(adamw_step)
FUNCTIONS(attention_forward)
FUNCTIONS(attention_backward)
FUNCTIONS(attention_decode)
FUNCTIONS(attention_merge)
FUNCTIONS(cast)
FUNCTIONS(matmul_forward)
FUNCTIONS(matmul_backward)
FUNCTIONS(matmul_grouped_forward)
FUNCTIONS(matmul_grouped_backward)
FUNCTIONS(self_attention_forward)
FUNCTIONS(self_attention_backward)
FUNCTIONS(softmax_forward)
FUNCTIONS(softmax_backward)
FUNCTIONS(rope_table)
FUNCTIONS(rope_forward)
FUNCTIONS(rope_backward)
FUNCTIONS(embedding_forward)
FUNCTIONS(embedding_backward)
FUNCTIONS(cross_entropy_forward)
FUNCTIONS(cross_entropy_backward)
FUNCTIONS(layernorm_forward)
FUNCTIONS(layernorm_backward)
FUNCTIONS(rmsnorm_forward)
FUNCTIONS(rmsnorm_backward)

#define ROW(op)                                                                                    \
    { #op, sizeof(tsr_##op##_args), op##_call, op##_prepare, op##_fields }
static const struct args_op ops[] = {
    ROW(activation_forward),
    ROW(activation_backward),
    ROW(adamw_step),
    ROW(attention_forward),
    ROW(attention_backward),
    ROW(attention_decode),
    ROW(attention_merge),
    ROW(cast),
    ROW(matmul_forward),
    ROW(matmul_backward),
    ROW(matmul_grouped_forward),
    ROW(matmul_grouped_backward),
    ROW(self_attention_forward),
    ROW(self_attention_backward),
    ROW(softmax_forward),
    ROW(softmax_backward),
    ROW(rope_table),
    ROW(rope_forward),
    ROW(rope_backward),
    ROW(embedding_forward),
    ROW(embedding_backward),
    ROW(cross_entropy_forward),
    ROW(cross_entropy_backward),
    ROW(layernorm_forward),
    ROW(layernorm_backward),
    ROW(rmsnorm_forward),
    ROW(rmsnorm_backward),
};

const struct args_op *args_op_named(const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(ops[i].name, name) == 0) return &ops[i];
    return NULL;
}
