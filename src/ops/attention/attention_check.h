// SPDX-License-Identifier: Apache-2.0
// The arguments of the check that forward and backward share.
#ifndef TSRI_ATTENTION_CHECK_H
#define TSRI_ATTENTION_CHECK_H

#include <tessera/attention.h>

#include "ops/attention/attention_problem.h"

// The fields of TSR_ATTENTION_FIELDS that shape the scores.
struct attention_options {
    tsr_mask mask;
    float softmax_scale, softcap;
    int32_t has_window_left, has_window_right;
    int64_t window_left, window_right;
    double dropout_p;
    uint64_t seed, offset;
};

// Tensors by address, as the args hold them; NULL where the pass does not have the tensor.
struct attention_fields {
    const char *op;
    bool is_backward;
    tsr_tensor *q, *k, *v, *bias, *alibi_slopes, *sinks;
    tsr_tensor *cu_seqlens_q, *cu_seqlens_k, *seqused_k, *out, *lse;
    tsr_tensor *dout, *dq, *dk, *dv, *dbias, *dsinks;
    int64_t max_seqlen_q, max_seqlen_k;
    struct attention_options options;
};

// The fields that both args structs contain.
#define ATTENTION_SHARED_FIELDS(a)                                                                 \
    .q = &(a).q, .k = &(a).k, .v = &(a).v, .bias = &(a).bias, .alibi_slopes = &(a).alibi_slopes,   \
    .sinks = &(a).sinks, .cu_seqlens_q = &(a).cu_seqlens_q, .cu_seqlens_k = &(a).cu_seqlens_k,     \
    .seqused_k = &(a).seqused_k, .out = &(a).out, .lse = &(a).lse,                                 \
    .max_seqlen_q = (a).max_seqlen_q, .max_seqlen_k = (a).max_seqlen_k,                            \
    .options = {(a).mask,                                                                          \
                (a).softmax_scale,                                                                 \
                (a).softcap,                                                                       \
                (a).has_window_left,                                                               \
                (a).has_window_right,                                                              \
                (a).window_left,                                                                   \
                (a).window_right,                                                                  \
                (a).dropout_p,                                                                     \
                (a).seed,                                                                          \
                (a).offset}

// ---- Parts that decode's check shares ---------------------------------------------------------

// Shape: (batch, seq, heads, dim); packed: (total, heads, dim).
tsr_status attention_check_view(const char *op, const char *field, tsr_tensor *t,
                                enum tsri_role role, bool is_packed, const int64_t shape[4],
                                tsr_dtype dtype, struct attention_view *view);
// dtype or f32.
tsr_status attention_check_small_dtype(const char *op, const char *field, const tsr_tensor *t,
                                       tsr_dtype dtype);
tsr_status attention_check_per_head(const char *op, const char *field, tsr_tensor *t,
                                    enum tsri_role role, bool may_have_batch,
                                    const struct attention_problem *p,
                                    struct attention_per_head *per_head);
tsr_status attention_check_lse(const char *op, tsr_tensor *t, enum tsri_role role,
                               struct attention_problem *p);
// A vector of count int32.
tsr_status attention_check_offsets(const char *op, const char *field, tsr_tensor *t, int64_t count,
                                   const int32_t **data, int64_t *stride);
tsr_status attention_check_heads(const struct attention_fields *f,
                                 const struct attention_problem *p);
tsr_status attention_check_scores(const struct attention_fields *f, struct attention_problem *p);

// ---- The whole --------------------------------------------------------------------------------

tsr_status attention_check(const struct attention_fields *fields, struct attention_problem *p);

#endif
