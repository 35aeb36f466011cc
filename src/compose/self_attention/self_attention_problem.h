// SPDX-License-Identifier: Apache-2.0
// Shared by the module's files: checked tensors and sizes, and the calls of operations that make up each pass.
#ifndef TSRI_SELF_ATTENTION_PROBLEM_H
#define TSRI_SELF_ATTENTION_PROBLEM_H

#include <tessera/matmul.h>
#include <tessera/rope.h>
#include <tessera/self_attention.h>

#include "context/op_table.h"

struct self_attention_options {
    TSR_SELF_ATTENTION_FIELDS;
};

// Absent tensors, and those that the pass does not have, are {0}.
struct self_attention_problem {
    tsr_context *ctx; // plans the parts, with the same limits as the plan
    const char *op;
    bool is_backward;
    int64_t batch, seqlen, embed_dim, num_heads, num_kv_heads, head_dim, qkv_dim, attention_dim;
    tsr_tensor x, w_qkv, b_qkv, w_out, b_out, cos, sin;
    tsr_tensor qkv, attention, lse; // written by forward, read by backward
    tsr_tensor y, dy, dx, dw_qkv, db_qkv, dw_out, db_out;
    struct self_attention_options options;
};

// Fills sizes from tensors and options, after checking all of them.
tsr_status self_attention_check(struct self_attention_problem *p);

// ---- Passes -----------------------------------------------------------------------------------

// During planning, the parts' tensors in workspace have addresses that no object has, so that they overlap nothing.
#define SELF_ATTENTION_NOWHERE ((char *)(UINTPTR_MAX / 2 + 1))

// The calls of a pass, in this order; unwanted ones are skipped.
struct self_attention_forward_steps {
    tsr_matmul_forward_args qkv;
    tsr_rope_forward_args rope;
    tsr_attention_forward_args attention;
    tsr_matmul_forward_args out;
    bool has_rope;
};
struct self_attention_backward_steps {
    tsr_matmul_backward_args out;
    tsr_attention_backward_args attention;
    tsr_rope_backward_args rope;
    tsr_matmul_backward_args qkv;
    bool has_out, has_qkv, has_rope;
};

// Workspace bytes of a pass: the tensors between the parts, and the largest workspace of a part. variant: the module's,
// NULL for any.
tsr_status self_attention_workspace(const struct self_attention_problem *p, const char *variant,
                                    uint32_t flags, size_t *bytes);

tsr_status self_attention_forward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace);
tsr_status self_attention_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace);

#endif
