// SPDX-License-Identifier: Apache-2.0
// Shared by the layer's files: checked tensors and sizes, and a pass as a sequence of calls of operations.
#ifndef TSRI_MOE_PROBLEM_H
#define TSRI_MOE_PROBLEM_H

#include <tessera/moe.h>

#include "context/op_table.h"

struct moe_options {
    TSR_MOE_FIELDS;
};

// Where tokens go is said by the router, by logits, or by ids and weights.
enum moe_source { MOE_ROUTER, MOE_LOGITS, MOE_IDS };

// Tensors with tokens are (T, ...), leading dimensions collapsed. Absent tensors, and those that the pass does not have,
// are {0}. Gradients have a d in front of their tensor's name.
struct moe_problem {
    tsr_context *ctx; // plans the parts, with the same limits as the plan
    const char *op;
    bool is_backward, accumulate;
    enum moe_source source;
    int64_t num_tokens, hidden, num_experts, intermediate, top_k, num_rows, shared_intermediate;
    tsr_dtype real; // of logits and weights of experts: f32, or f64
    tsr_tensor x, router, logits_bias, logits, correction_bias;
    tsr_tensor w_gate, w_up, w_down, b_gate, b_up, b_down;
    tsr_tensor w_gate_scale, w_up_scale, w_down_scale; // present with fp8, and perhaps with f64
    tsr_tensor shared_w_gate_scale, shared_w_up_scale, shared_w_down_scale;
    tsr_tensor shared_w_gate, shared_w_up, shared_w_down, shared_gate;
    tsr_tensor preact, shared_preact, topk_ids,
        topk_weights; // written by forward, read by backward
    tsr_tensor residual, y, offsets, num_dropped;
    tsr_tensor tokens_per_expert, mean_probs, load_balance_loss, z_loss, usage_variance,
        num_nan_rows;
    tsr_tensor dy, dload_balance_loss, dz_loss;
    tsr_tensor dx, drouter, dlogits_bias, dlogits, dtopk_weights;
    tsr_tensor dw_gate, dw_up, dw_down, db_gate, db_up, db_down;
    tsr_tensor dshared_w_gate, dshared_w_up, dshared_w_down, dshared_gate;
    struct moe_options options;
};

static inline bool moe_is_gated(const struct moe_problem *p) { return tsri_is_present(&p->w_gate); }
static inline bool moe_is_fp8(const struct moe_problem *p) { return p->w_up.dtype == TSR_E4M3; }
static inline bool moe_is_shared_fp8(const struct moe_problem *p) {
    return p->shared_w_up.dtype == TSR_E4M3;
}
static inline bool moe_has_shared(const struct moe_problem *p) {
    return tsri_is_present(&p->shared_w_up);
}
// Columns of h.
static inline int64_t moe_preact_cols(const struct moe_problem *p, int64_t intermediate) {
    return (moe_is_gated(p) ? 2 : 1) * intermediate;
}

// Fills sizes from tensors and options, after checking all of them.
tsr_status moe_check(struct moe_problem *p);

// ---- Passes -----------------------------------------------------------------------------------

// One function lays out a pass over a base address and makes its calls: over the workspace to run it, or over MOE_NOWHERE
// to ask each part's prepare for its bytes. So the two cannot differ. It places all tensors before the first call.
struct moe_pass {
    const struct moe_problem *p;
    const char *variant; // of the parts, NULL for the library's choice
    uint32_t flags;
    bool is_running;
    char *base, *at;   // the workspace, and its first free byte
    size_t bytes;      // of the workspace, if is_running
    size_t most;       // of a part's workspace, if not
    tsr_status status; // of the first call that failed
};

// During planning, the parts' tensors in workspace have addresses that no object has, so that they overlap nothing.
#define MOE_NOWHERE ((char *)(UINTPTR_MAX / 2 + 1))

// Makes a call, or prepares it; nothing after a failure. A part uses the layer's workspace and never the arena, which
// belongs to the layer: a NULL workspace would make it grow.
#define MOE_CALL(pass, name, ...)                                                                  \
    do {                                                                                           \
        if ((pass)->status != TSR_OK) break;                                                       \
        const tsr_##name##_args call_ = {                                                          \
            .size = sizeof call_,                                                                  \
            .flags = (pass)->flags,                                                                \
            .variant = (pass)->variant,                                                            \
            .workspace = (pass)->at,                                                               \
            .workspace_bytes =                                                                     \
                (pass)->is_running ? (pass)->bytes - (size_t)((pass)->at - (pass)->base) : 0,      \
            __VA_ARGS__};                                                                          \
        size_t bytes_ = 0;                                                                         \
        (pass)->status = (pass)->is_running                                                        \
                             ? tsr_##name((pass)->p->ctx, &call_)                                  \
                             : tsr_##name##_prepare((pass)->p->ctx, &call_, &bytes_);              \
        if (bytes_ > (pass)->most) (pass)->most = bytes_;                                          \
    } while (0)

enum { MOE_NO_COLS = -1 };

// moe_pass.c
// Places a contiguous tensor of rows in the workspace; cols MOE_NO_COLS: without that dimension.
tsr_tensor moe_place(struct moe_pass *pass, tsr_dtype dtype, int64_t rows, int64_t cols);
// The tensor itself if it is present, else a placed one.
tsr_tensor moe_place_absent(struct moe_pass *pass, const tsr_tensor *t, tsr_dtype dtype,
                            int64_t rows, int64_t cols);
// Rows of e4m3 and their scales; rows of another dtype have none.
struct moe_rows {
    tsr_tensor t, scale;
};
struct moe_rows moe_place_rows(struct moe_pass *pass, tsr_dtype dtype, int64_t rows, int64_t cols);
// Columns [first, first + count) of (rows, cols).
tsr_tensor moe_cols(const tsr_tensor *t, int64_t first, int64_t count);
// The two halves of h: *gate is {0} without a gate.
void moe_split(const struct moe_problem *p, const tsr_tensor *preact, tsr_tensor *gate,
               tsr_tensor *up);
// One tensor (..., 2 rows, cols) of which first and second are the halves; false if they are not.
bool moe_join(const tsr_tensor *first, const tsr_tensor *second, tsr_tensor *both);
tsr_activation moe_activation(const struct moe_problem *p);
// Whether products of so many columns, and gradients of weights, read copied rows of x or dy in place of rows by a list.
bool moe_copies_rows(const struct moe_pass *pass, int64_t columns, int64_t columns_of_gradients);

// moe_forward.c, moe_backward.c, moe_shared.c
void moe_forward_pass(struct moe_pass *pass);
void moe_backward_pass(struct moe_pass *pass);
// logits = x router^T + logits_bias, from x in the router's dtype.
void moe_make_logits(struct moe_pass *pass, const tsr_tensor *x, const tsr_tensor *logits);

// The shared expert. Its tensors in workspace, placed by the pass before its calls.
struct moe_shared {
    tsr_tensor preact, out;        // (T, cols), (T, hidden)
    struct moe_rows x, a;          // (T, hidden), x itself without fp8; (T, intermediate_s)
    tsr_tensor logit, weight, ids; // (T, 1): of shared_gate
    tsr_tensor logit_of_tokens;    // logit as (T)
    tsr_tensor da, dpreact, dweight, dlogit, dlogit_x;
};
void moe_shared_place(struct moe_pass *pass, struct moe_shared *s);
void moe_shared_forward(struct moe_pass *pass, const struct moe_shared *s);
// s->out is the shared expert's part of dx.
void moe_shared_backward(struct moe_pass *pass, const struct moe_shared *s);

// moe_run.c
// Workspace bytes of a pass: the tensors between the parts, and the largest workspace of a part.
tsr_status moe_workspace(const struct moe_problem *p, const char *variant, uint32_t flags,
                         size_t *bytes);
tsr_status moe_run(tsr_context *ctx, const void *problem, const struct tsri_plan *plan,
                   void *workspace);

#endif
