// SPDX-License-Identifier: Apache-2.0
// The calls of the layer that a case describes, its sizes, and the oracle's results of a case.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specs/moe/spec_moe.h"
#include "system/heap.h"

extern const struct op_spec moe_route_forward_spec, moe_route_backward_spec;

// ---- Sizes ------------------------------------------------------------------------------------

int64_t moe_capacity_of(const struct op_case *c) {
    const double *p = c->param;
    if (p[MIX_CAPACITY] != 0) return (int64_t)p[MIX_CAPACITY];
    if (!(p[MIX_CAPACITY_FACTOR] > 0) || p[MIX_EXPERTS] <= 0) return 0;
    const double each =
        ceil(p[MIX_CAPACITY_FACTOR] * p[MIX_TOKENS] * p[MIX_TOP_K] / p[MIX_EXPERTS]);
    return (int64_t)fmin(fmax(each, 1), 0x1p40);
}

struct moe_sizes moe_sizes_of(const struct op_case *c) {
    const double *p = c->param;
    struct moe_sizes n = {.tokens = (int64_t)p[MIX_TOKENS],
                          .hidden = (int64_t)p[MIX_HIDDEN],
                          .inter = (int64_t)p[MIX_INTERMEDIATE],
                          .experts = (int64_t)p[MIX_EXPERTS],
                          .top_k = (int64_t)p[MIX_TOP_K],
                          .shared = (int64_t)p[MIX_SHARED_INTERMEDIATE],
                          .capacity = moe_capacity_of(c),
                          .is_gated = c->is_present[MIX_W_GATE],
                          .is_routed = c->is_present[MIX_ROUTER] || c->is_present[MIX_LOGITS]};
    n.rows = n.tokens * n.top_k;
    if (n.capacity > 0 && n.capacity <= n.rows && n.experts * n.capacity < n.rows)
        n.rows = n.experts * n.capacity;
    n.cols = (n.is_gated ? 2 : 1) * n.inter;
    n.shared_cols = (n.is_gated ? 2 : 1) * n.shared;
    return n;
}

// ---- Calls ------------------------------------------------------------------------------------

#define CALL                                                                                       \
    .flags = c->flags, .variant = variant, .workspace = workspace, .workspace_bytes = given_bytes
#define T(slot) c->tensor[slot]
#define SHARED_TENSORS                                                                             \
    .x = T(MIX_X), .router = T(MIX_ROUTER), .logits_bias = T(MIX_LOGITS_BIAS),                     \
    .logits = T(MIX_LOGITS), .w_gate = T(MIX_W_GATE), .w_up = T(MIX_W_UP),                         \
    .w_down = T(MIX_W_DOWN), .b_down = T(MIX_B_DOWN), .shared_w_gate = T(MIX_SHARED_W_GATE),       \
    .shared_w_up = T(MIX_SHARED_W_UP), .shared_w_down = T(MIX_SHARED_W_DOWN),                      \
    .shared_gate = T(MIX_SHARED_GATE)
#define SAVED_TENSORS                                                                              \
    .topk_ids = T(MIX_IDS), .topk_weights = T(MIX_WEIGHTS), .preact = T(MIX_PREACT),               \
    .shared_preact = T(MIX_SHARED_PREACT)

tsr_status moe_call_forward(tsr_context *ctx, const struct op_case *c, const char *variant,
                            void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_forward_args args = TSR_MOE_FORWARD_ARGS(
        CALL, SHARED_TENSORS, SAVED_TENSORS, .correction_bias = T(MIX_CORRECTION_BIAS),
        .b_gate = T(MIX_B_GATE), .b_up = T(MIX_B_UP), .residual = T(MIX_RESIDUAL), .y = T(MIX_Y),
        .offsets = T(MIX_OFFSETS), .tokens_per_expert = T(MIX_COUNTS),
        .mean_probs = T(MIX_MEAN_PROBS), .load_balance_loss = T(MIX_BALANCE), .z_loss = T(MIX_Z),
        .usage_variance = T(MIX_VARIANCE), .num_nan_rows = T(MIX_NAN_ROWS),
        .num_dropped = T(MIX_DROPPED), .w_gate_scale = T(MIX_W_GATE_SCALE),
        .w_up_scale = T(MIX_W_UP_SCALE), .w_down_scale = T(MIX_W_DOWN_SCALE),
        .shared_w_gate_scale = T(MIX_SHARED_W_GATE_SCALE),
        .shared_w_up_scale = T(MIX_SHARED_W_UP_SCALE),
        .shared_w_down_scale = T(MIX_SHARED_W_DOWN_SCALE), MOE_OPTIONS(c));
    return workspace_bytes != NULL ? tsr_moe_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_forward(ctx, &args);
}

tsr_status moe_call_backward(tsr_context *ctx, const struct op_case *c, const char *variant,
                             void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_backward_args args = TSR_MOE_BACKWARD_ARGS(
        CALL, SHARED_TENSORS, SAVED_TENSORS, .dy = T(MIX_DY), .dload_balance_loss = T(MIX_DBALANCE),
        .dz_loss = T(MIX_DZ), .dx = T(MIX_DX), .drouter = T(MIX_DROUTER),
        .dlogits_bias = T(MIX_DLOGITS_BIAS), .dlogits = T(MIX_DLOGITS),
        .dtopk_weights = T(MIX_DWEIGHTS), .dw_gate = T(MIX_DW_GATE), .dw_up = T(MIX_DW_UP),
        .dw_down = T(MIX_DW_DOWN), .db_gate = T(MIX_DB_GATE), .db_up = T(MIX_DB_UP),
        .db_down = T(MIX_DB_DOWN), .dshared_w_gate = T(MIX_DSHARED_W_GATE),
        .dshared_w_up = T(MIX_DSHARED_W_UP), .dshared_w_down = T(MIX_DSHARED_W_DOWN),
        .dshared_gate = T(MIX_DSHARED_GATE), .accumulate = (int32_t)c->param[MIX_ACCUMULATE],
        MOE_OPTIONS(c));
    return workspace_bytes != NULL ? tsr_moe_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_backward(ctx, &args);
}

// ---- The oracle -------------------------------------------------------------------------------

tsr_context *moe_oracle_context(void) {
    static tsr_context *ctx; // used by one thread at a time
    if (ctx == NULL &&
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 1, .isa = TSR_ISA_SCALAR), &ctx) !=
            TSR_OK)
        heap_exhausted(); // there is no other reason for a failure
    return ctx;
}

tsr_status moe_oracle(const struct op_case *c, const struct moe_saved *saved) {
    const struct moe_sizes n = moe_sizes_of(c);
    const int64_t choices = n.tokens * n.top_k;
    double *y = heap_get((size_t)(n.tokens * n.hidden) + 1, sizeof *y);
    tsr_moe_forward_args args =
        TSR_MOE_FORWARD_ARGS(.variant = "reference", SHARED_TENSORS, MOE_OPTIONS(c));
    args.y = TSR_TENSOR(y, TSR_F64, n.tokens, n.hidden);
    args.topk_ids = TSR_TENSOR(saved->ids, TSR_I32, n.tokens, n.top_k);
    args.topk_weights = TSR_TENSOR(saved->weights, TSR_F64, n.tokens, n.top_k);
    args.preact = TSR_TENSOR(saved->preact, TSR_F64, n.rows, n.cols);
    if (c->is_present[MIX_SHARED_W_UP])
        args.shared_preact = TSR_TENSOR(saved->shared_preact, TSR_F64, n.tokens, n.shared_cols);
    if (!n.is_routed) { // inputs of this call
        if (T(MIX_IDS).data != saved->ids && choices > 0)
            memcpy(saved->ids, T(MIX_IDS).data, (size_t)choices * sizeof *saved->ids);
        if (T(MIX_WEIGHTS).data != saved->weights && choices > 0)
            memcpy(saved->weights, T(MIX_WEIGHTS).data, (size_t)choices * sizeof *saved->weights);
    }
    if (!moe_is_backward(c)) {
        args.correction_bias = T(MIX_CORRECTION_BIAS);
        args.b_gate = T(MIX_B_GATE);
        args.b_up = T(MIX_B_UP);
        args.w_gate_scale = T(MIX_W_GATE_SCALE);
        args.w_up_scale = T(MIX_W_UP_SCALE);
        args.w_down_scale = T(MIX_W_DOWN_SCALE);
        args.shared_w_gate_scale = T(MIX_SHARED_W_GATE_SCALE);
        args.shared_w_up_scale = T(MIX_SHARED_W_UP_SCALE);
        args.shared_w_down_scale = T(MIX_SHARED_W_DOWN_SCALE);
    }
    tsr_status status = tsr_moe_forward(moe_oracle_context(), &args);
    free(y);
    return status;
}

struct op_case moe_route_case(const struct op_case *c, bool is_backward) {
    struct op_case route =
        case_default(is_backward ? &moe_route_backward_spec : &moe_route_forward_spec);
    static const char *const names[] = {"num_experts",    "top_k",          "scoring",
                                        "no_renormalize", "routed_scaling", "num_groups",
                                        "topk_groups",    "group_score",    "round_weights"};
    static const int params[] = {MIX_EXPERTS,        MIX_TOP_K,          MIX_SCORING,
                                 MIX_NO_RENORMALIZE, MIX_ROUTED_SCALING, MIX_NUM_GROUPS,
                                 MIX_TOPK_GROUPS,    MIX_GROUP_SCORE,    MIX_ROUND_WEIGHTS};
    route.dtype = route.small_dtype = c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    route.param[spec_param(route.spec, "tokens")] = c->param[MIX_TOKENS];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int at = spec_param(route.spec, names[i]);
        if (at >= 0) route.param[at] = c->param[params[i]];
    }
    return route;
}
