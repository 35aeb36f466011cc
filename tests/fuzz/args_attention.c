// SPDX-License-Identifier: Apache-2.0
// The fields of attention's operations, for args_table.c.
#include "args_fields.h"

// Inputs that forward and backward share, some of them also with decode and self-attention.
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
const struct args_field attention_forward_fields[] = {
    ATTENTION_INPUTS,          OUT(out, "bqhe|qhe", 'x'), OUT_OPTIONAL(lse, "bhq|hq", 's'),
    ATTENTION_SCORES,          ATTENTION_WINDOWS,         INT64(max_seqlen_q, NULL),
    INT64(max_seqlen_k, NULL), ATTENTION_DROPOUT,         {NULL},
};
#undef ARGS

#define ARGS tsr_attention_backward_args
const struct args_field attention_backward_fields[] = {
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
const struct args_field attention_decode_fields[] = {
    IN(q, "bqhd|qhd|bqhd|qhd", 'x'),
    IN_OPTIONAL(k_new, "bqgd|qgd|bqgd|qgd", 'x'),
    IN_OPTIONAL(v_new, "bqge|qge|bqge|qge", 'x'),
    OUT(k_cache, "bkgd|bkgd|nsgd", 'e'),
    OUT(v_cache, "bkge|bkge|nsge", 'e'),
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
    OUT_OPTIONAL(num_errors, "|||", 'i'),
    IN_OPTIONAL(cache_batch_idx, "b|b||", 'i'),
    IN_OPTIONAL(leftpad_k, "b", 'i'),
    IN_OPTIONAL(q_norm, "d", 'w'),
    IN_OPTIONAL(k_norm, "d", 'w'),
    FLOAT(norm_eps),
    INT32(has_norm_eps, NULL),
    INT32(zero_centered_weight, NULL),
    IN(k_scale, "g|bg|g|bg", 'q'),
    IN(v_scale, "g|bg|g|bg", 'q'),
    IN_OPTIONAL(tree_mask, "qq|||", 'u'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_attention_merge_args
const struct args_field attention_merge_fields[] = {
    IN(outs, "nbhe|nbqhe|ne", 'x'),
    IN(lses, "nbh|nbqh|n", 's'),
    OUT(out, "bhe|bqhe|e", 'x'),
    OUT_OPTIONAL(lse, "bh|bqh||", 's'),
    {NULL},
};
#undef ARGS

#define SELF_ATTENTION_SETTINGS                                                                    \
    INT64(num_heads, "h"), INT64(num_kv_heads, "g"), ATTENTION_SCORES, ATTENTION_WINDOWS,          \
        ATTENTION_DROPOUT, INT32(interleaved, NULL)

#define ARGS tsr_self_attention_forward_args
const struct args_field self_attention_forward_fields[] = {
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
const struct args_field self_attention_backward_fields[] = {
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
