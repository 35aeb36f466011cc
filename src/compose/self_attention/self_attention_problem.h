// SPDX-License-Identifier: Apache-2.0
// The self-attention module between its rooms: checked tensors and sizes, and how each pass is made of
// calls of the operations.
#ifndef TSRI_SELF_ATTENTION_PROBLEM_H
#define TSRI_SELF_ATTENTION_PROBLEM_H

#include <tessera/matmul.h>
#include <tessera/rope.h>
#include <tessera/self_attention.h>

#include "context/op_table.h"

struct self_attention_options {
    TSR_SELF_ATTENTION_FIELDS;
};

// Absent tensors are {0}; those that the pass has not are too.
struct self_attention_problem {
    tsr_context *ctx; // plans the parts: its limits are those of the plan
    const char *op;
    bool is_backward;
    int64_t batch, seqlen, embed_dim, num_heads, num_kv_heads, head_dim, qkv_dim, attention_dim;
    tsr_tensor x, w_qkv, b_qkv, w_out, b_out, cos, sin;
    tsr_tensor qkv, attention, lse; // out of forward, into backward
    tsr_tensor y, dy, dx, dw_qkv, db_qkv, dw_out, db_out;
    struct self_attention_options options;
};

// Fills sizes from tensors and options, after checking all of them.
tsr_status self_attention_check(struct self_attention_problem *p);

// ---- Passes -----------------------------------------------------------------------------------

// A part of the pass that lies in workspace while the plan is made lies nowhere: at addresses that no
// object has, where it overlaps nothing.
#define SELF_ATTENTION_NOWHERE ((char *)(UINTPTR_MAX / 2 + 1))

// What a pass calls, in this order; those that are not wanted are not called.
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

// Bytes of workspace of a pass: the tensors between the parts, then the largest part's own.
// variant: of the module, NULL for any.
tsr_status self_attention_workspace(const struct self_attention_problem *p, const char *variant,
                                    uint32_t flags, size_t *bytes);

tsr_status self_attention_forward_run(tsr_context *ctx, const void *problem,
                                      const struct tsri_plan *plan, void *workspace);
tsr_status self_attention_backward_run(tsr_context *ctx, const void *problem,
                                       const struct tsri_plan *plan, void *workspace);

#endif
