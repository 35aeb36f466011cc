// SPDX-License-Identifier: Apache-2.0
// The fields of the mixture-of-experts layer, for args_table.c. Forms: router, logits without a gate, ids, router without a
// gate. Tokens q, hidden c, experts v, intermediate n, top_k s, columns of the shared expert m.
#include "args_fields.h"

#define MOE_INPUTS                                                                                 \
    IN(x, "qc", 'x'), IN(router, "vc|||vc", 'w'), IN_OPTIONAL(logits_bias, "v|||v", 'w'),          \
        IN(logits, "|qv||", 's')
#define MOE_WEIGHTS(type)                                                                          \
    IN(w_gate, "vnc||vnc|", type), IN(w_up, "vnc", type), IN(w_down, "vcn", type)
#define MOE_SHARED(type)                                                                           \
    IN_OPTIONAL(shared_w_gate, "mc||mc|", type), IN_OPTIONAL(shared_w_up, "mc", type),             \
        IN_OPTIONAL(shared_w_down, "cm", type), IN_OPTIONAL(shared_gate, "c", 'x')
#define MOE_OPTIONS                                                                                \
    INT64(top_k, "s"), ENUM(scoring), INT32(no_renormalize, NULL), FLOAT(routed_scaling),          \
        INT32(has_routed_scaling, NULL), INT32(num_groups, NULL), INT32(topk_groups, NULL),        \
        ENUM(group_score), ENUM(round_weights), ENUM(activation), INT32(weights_on_input, NULL),   \
        INT64(capacity, NULL), INT32(has_capacity, NULL)

#define ARGS tsr_moe_forward_args
const struct args_field moe_forward_fields[] = {
    MOE_INPUTS,
    IN_OPTIONAL(correction_bias, "v|v||v", 's'),
    MOE_WEIGHTS('e'),
    IN_OPTIONAL(b_gate, "vn||vn|", 'w'),
    IN_OPTIONAL(b_up, "vn", 'w'),
    IN_OPTIONAL(b_down, "vc", 'w'),
    MOE_SHARED('e'),
    IN_OPTIONAL(residual, "qc", 'x'),
    OUT(y, "qc", 'x'),
    OUT_OPTIONAL(preact, "AN|An|AN|An", 'x'),
    OUT_OPTIONAL(shared_preact, "qM|qm|qM|qm", 'x'),
    OUT_OPTIONAL(topk_ids, "qs", 'i'),
    OUT_OPTIONAL(topk_weights, "qs", 's'),
    OUT_OPTIONAL(offsets, "V", 'i'),
    OUT_OPTIONAL(tokens_per_expert, "v", 'i'),
    OUT_OPTIONAL(mean_probs, "v|v||v", 's'),
    OUT_OPTIONAL(load_balance_loss, "1|1||1", 's'),
    OUT_OPTIONAL(z_loss, "1|1||1", 's'),
    OUT_OPTIONAL(usage_variance, "1|1||1", 's'),
    OUT_OPTIONAL(num_nan_rows, "1|1||1", 'i'),
    OUT_OPTIONAL(num_dropped, "1", 'i'),
    MOE_OPTIONS,
    IN_OPTIONAL(w_gate_scale, "v||v11|", 'q'),
    IN_OPTIONAL(w_up_scale, "v|v11|v11|v", 'q'),
    IN_OPTIONAL(w_down_scale, "v11|v|v11|v", 'q'),
    IN_OPTIONAL(shared_w_gate_scale, "11||11|", 'q'),
    IN_OPTIONAL(shared_w_up_scale, "11", 'q'),
    IN_OPTIONAL(shared_w_down_scale, "11", 'q'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_backward_args
const struct args_field moe_backward_fields[] = {
    MOE_INPUTS,
    MOE_WEIGHTS('x'),
    IN_OPTIONAL(b_down, "vc", 'w'),
    MOE_SHARED('x'),
    IN(preact, "AN|An|AN|An", 'x'),
    IN_OPTIONAL(shared_preact, "qM|qm|qM|qm", 'x'),
    IN(topk_ids, "qs", 'i'),
    IN(topk_weights, "qs", 's'),
    IN(dy, "qc", 'x'),
    IN_OPTIONAL(dload_balance_loss, "1|1||1", 's'),
    IN_OPTIONAL(dz_loss, "1|1||1", 's'),
    OUT_OPTIONAL(dx, "qc", 'x'),
    OUT_OPTIONAL(drouter, "vc|||vc", 'w'),
    OUT_OPTIONAL(dlogits_bias, "v|||v", 'w'),
    OUT_OPTIONAL(dlogits, "|qv||", 's'),
    OUT_OPTIONAL(dtopk_weights, "||qs|", 's'),
    OUT_OPTIONAL(dw_gate, "vnc||vnc|", 'w'),
    OUT_OPTIONAL(dw_up, "vnc", 'w'),
    OUT_OPTIONAL(dw_down, "vcn", 'w'),
    OUT_OPTIONAL(db_gate, "vn||vn|", 'w'),
    OUT_OPTIONAL(db_up, "vn", 'w'),
    OUT_OPTIONAL(db_down, "vc", 'w'),
    OUT_OPTIONAL(dshared_w_gate, "mc||mc|", 'x'),
    OUT_OPTIONAL(dshared_w_up, "mc", 'x'),
    OUT_OPTIONAL(dshared_w_down, "cm", 'x'),
    OUT_OPTIONAL(dshared_gate, "c", 'x'),
    INT32(accumulate, NULL),
    MOE_OPTIONS,
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_route_forward_args
const struct args_field moe_route_forward_fields[] = {
    IN(logits, "qv|bqv", 'x'),
    IN_OPTIONAL(correction_bias, "v", 's'),
    OUT(topk_ids, "qs|bqs", 'i'),
    OUT(topk_weights, "qs|bqs", 's'),
    OUT_OPTIONAL(tokens_per_expert, "v", 'i'),
    OUT_OPTIONAL(mean_probs, "v", 's'),
    OUT_OPTIONAL(load_balance_loss, "1", 's'),
    OUT_OPTIONAL(z_loss, "1", 's'),
    OUT_OPTIONAL(usage_variance, "1", 's'),
    OUT_OPTIONAL(lse, "q|bq", 's'),
    OUT_OPTIONAL(num_nan_rows, "1", 'i'),
    ENUM(scoring),
    INT32(no_renormalize, NULL),
    FLOAT(routed_scaling),
    INT32(has_routed_scaling, NULL),
    INT32(num_groups, NULL),
    INT32(topk_groups, NULL),
    ENUM(group_score),
    ENUM(round_weights),
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_route_backward_args
const struct args_field moe_route_backward_fields[] = {
    IN(logits, "qv|bqv", 'x'),
    IN(topk_ids, "qs|bqs", 'i'),
    IN(dtopk_weights, "qs|bqs", 's'),
    IN_OPTIONAL(tokens_per_expert, "v", 'i'),
    IN_OPTIONAL(dload_balance_loss, "1", 's'),
    IN_OPTIONAL(dz_loss, "1", 's'),
    OUT(dlogits, "qv|bqv", 'x'),
    ENUM(scoring),
    INT32(no_renormalize, NULL),
    FLOAT(routed_scaling),
    INT32(has_routed_scaling, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_permute_args
const struct args_field moe_permute_fields[] = {
    IN(topk_ids, "qs|rqs", 'i'),
    IN_OPTIONAL(topk_weights, "qs|rqs", 's'),
    OUT(offsets, "V", 'i'),
    OUT_OPTIONAL(row_tokens, "c|D", 'i'),
    OUT_OPTIONAL(row_weights, "c|D", 's'),
    OUT_OPTIONAL(token_rows, "qs|rqs", 'i'),
    OUT_OPTIONAL(tokens_per_expert, "v", 'i'),
    OUT_OPTIONAL(num_dropped, "1", 'i'),
    INT64(capacity, NULL),
    INT32(has_capacity, NULL),
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_combine_forward_args
const struct args_field moe_combine_forward_fields[] = {
    IN(rows, "vc", 'x'),
    IN(token_rows, "qs|bqs", 'i'),
    IN_OPTIONAL(weights, "qs|bqs", 's'),
    IN_OPTIONAL(shared, "qc|bqc", 'x'),
    IN_OPTIONAL(shared_gate, "q|bq", 's'),
    IN_OPTIONAL(residual, "qc|bqc", 'w'),
    OUT(y, "qc|bqc", 'x'),
    {NULL},
};
#undef ARGS

#define ARGS tsr_moe_combine_backward_args
const struct args_field moe_combine_backward_fields[] = {
    IN(dy, "qc|bqc", 'x'),
    IN_OPTIONAL(rows, "vc", 'x'),
    IN_OPTIONAL(token_rows, "qs|bqs", 'i'),
    IN_OPTIONAL(weights, "qs|bqs", 's'),
    IN_OPTIONAL(shared, "qc|bqc", 'x'),
    IN_OPTIONAL(shared_gate, "q|bq", 's'),
    OUT_OPTIONAL(drows, "vc", 'x'),
    OUT_OPTIONAL(dweights, "qs|bqs", 's'),
    OUT_OPTIONAL(dshared, "qc|bqc", 'x'),
    OUT_OPTIONAL(dshared_gate, "q|bq", 's'),
    {NULL},
};
#undef ARGS

// Without a list, rows has as many rows as there are.
#define ARGS tsr_moe_bias_backward_args
const struct args_field moe_bias_backward_fields[] = {
    IN(rows, "qc|rc", 'x'),
    IN_OPTIONAL(row_tokens, "|q", 'i'),
    IN_OPTIONAL(row_weights, "q", 's'),
    IN(offsets, "V", 'i'),
    OUT(dbias, "vc", 'w'),
    {NULL},
};
#undef ARGS
