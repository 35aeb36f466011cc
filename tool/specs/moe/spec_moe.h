// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the mixture-of-experts layer's spec.
#ifndef TOOL_SPEC_MOE_H
#define TOOL_SPEC_MOE_H

#include "specs/spec.h"

// The slots of both passes up to MIX_SHARED_PREACT, then those of forward, then those of backward.
enum moe_slot {
    MIX_X,
    MIX_ROUTER,
    MIX_LOGITS_BIAS,
    MIX_LOGITS,
    MIX_W_GATE,
    MIX_W_UP,
    MIX_W_DOWN,
    MIX_B_DOWN,
    MIX_SHARED_W_GATE,
    MIX_SHARED_W_UP,
    MIX_SHARED_W_DOWN,
    MIX_SHARED_GATE,
    MIX_IDS,
    MIX_WEIGHTS,
    MIX_PREACT,
    MIX_SHARED_PREACT,
    MIX_CORRECTION_BIAS,
    MIX_B_GATE,
    MIX_B_UP,
    MIX_RESIDUAL,
    MIX_Y,
    MIX_OFFSETS,
    MIX_COUNTS,
    MIX_MEAN_PROBS,
    MIX_BALANCE,
    MIX_Z,
    MIX_VARIANCE,
    MIX_NAN_ROWS,
    MIX_DROPPED,
    MIX_W_GATE_SCALE,
    MIX_W_UP_SCALE,
    MIX_W_DOWN_SCALE,
    MIX_SHARED_W_GATE_SCALE,
    MIX_SHARED_W_UP_SCALE,
    MIX_SHARED_W_DOWN_SCALE,
    MIX_DY = MIX_CORRECTION_BIAS,
    MIX_DBALANCE,
    MIX_DZ,
    MIX_DX,
    MIX_DROUTER,
    MIX_DLOGITS_BIAS,
    MIX_DLOGITS,
    MIX_DWEIGHTS,
    MIX_DW_GATE,
    MIX_DW_UP,
    MIX_DW_DOWN,
    MIX_DB_GATE,
    MIX_DB_UP,
    MIX_DB_DOWN,
    MIX_DSHARED_W_GATE,
    MIX_DSHARED_W_UP,
    MIX_DSHARED_W_DOWN,
    MIX_DSHARED_GATE
};

enum moe_param {
    MIX_TOKENS,
    MIX_HIDDEN,
    MIX_INTERMEDIATE,
    MIX_EXPERTS,
    MIX_TOP_K,
    MIX_SHARED_INTERMEDIATE,
    MIX_SCORING,
    MIX_NO_RENORMALIZE,
    MIX_ROUTED_SCALING,
    MIX_NUM_GROUPS,
    MIX_TOPK_GROUPS,
    MIX_GROUP_SCORE,
    MIX_ROUND_WEIGHTS,
    MIX_ACTIVATION,
    MIX_ON_INPUT,
    MIX_CAPACITY,        // 0: by the factor
    MIX_CAPACITY_FACTOR, // 0: no capacity
    MIX_ROUTING,
    MIX_ACCUMULATE,           // of backward
    MIX_FP8 = MIX_ACCUMULATE, // of forward: scales of the experts' weights
    MIX_SHARED_FP8            // and whether the shared expert has them too, of blocks
};

enum moe_fp8 { FP8_NONE, FP8_EXPERTS, FP8_BLOCKS };

enum moe_routing { ROUTING_RANDOM, ROUTING_BALANCED, ROUTING_SKEWED };

// cols and shared_cols: of preact and shared_preact; rows: of preact. capacity: 0 if there is none.
struct moe_sizes {
    int64_t tokens, hidden, inter, experts, top_k, shared, capacity, rows, cols, shared_cols;
    bool is_gated, is_routed; // is_routed: by router or logits
};
struct moe_sizes moe_sizes_of(const struct op_case *c);

// The fields of TSR_MOE_FIELDS.
#define MOE_OPTIONS(c)                                                                             \
    .top_k = (int64_t)(c)->param[MIX_TOP_K], .scoring = (tsr_moe_scoring)(c)->param[MIX_SCORING],  \
    .no_renormalize = (int32_t)(c)->param[MIX_NO_RENORMALIZE],                                     \
    .routed_scaling =                                                                              \
        (c)->param[MIX_ROUTED_SCALING] != 1 ? (float)(c)->param[MIX_ROUTED_SCALING] : 0,           \
    .has_routed_scaling = (c)->param[MIX_ROUTED_SCALING] != 1,                                     \
    .num_groups = (int32_t)(c)->param[MIX_NUM_GROUPS],                                             \
    .topk_groups = (int32_t)(c)->param[MIX_TOPK_GROUPS],                                           \
    .group_score = (tsr_moe_group_score)(c)->param[MIX_GROUP_SCORE],                               \
    .round_weights = (tsr_dtype)(c)->param[MIX_ROUND_WEIGHTS],                                     \
    .activation = (tsr_activation)(c)->param[MIX_ACTIVATION],                                      \
    .weights_on_input = (int32_t)(c)->param[MIX_ON_INPUT], .capacity = moe_capacity_of(c),         \
    .has_capacity = (c)->param[MIX_CAPACITY] != 0 || (c)->param[MIX_CAPACITY_FACTOR] != 0
int64_t moe_capacity_of(const struct op_case *c); // 0: none

static inline bool moe_is_backward(const struct op_case *c) { return c->spec->pass[0] == 'b'; }
static inline enum moe_fp8 moe_fp8_of(const struct op_case *c) {
    return moe_is_backward(c) ? FP8_NONE : (enum moe_fp8)c->param[MIX_FP8];
}
static inline bool moe_is_shared_fp8(const struct op_case *c) {
    return !moe_is_backward(c) && c->param[MIX_SHARED_FP8] != 0 && c->is_present[MIX_SHARED_W_UP];
}
static inline tsr_activation moe_activation_of(const struct op_case *c) {
    tsr_activation kind = (tsr_activation)c->param[MIX_ACTIVATION];
    if (kind != TSR_ACTIVATION_NONE) return kind;
    return c->is_present[MIX_W_GATE] ? TSR_ACTIVATION_SILU : TSR_ACTIVATION_GELU;
}

// ---- spec_moe_calls.c -------------------------------------------------------------------------

// As op_spec.call.
tsr_status moe_call_forward(tsr_context *ctx, const struct op_case *c, const char *variant,
                            void *workspace, size_t given_bytes, size_t *workspace_bytes);
tsr_status moe_call_backward(tsr_context *ctx, const struct op_case *c, const char *variant,
                             void *workspace, size_t given_bytes, size_t *workspace_bytes);

// Forward's choice and what it saves, f64 (ids int32) and contiguous; rows of preact that no assignment has are not
// written.
struct moe_saved {
    int32_t *ids;                             // (tokens, top_k)
    double *weights, *preact, *shared_preact; // shared_preact: without a shared expert not used
};
// Runs forward with the oracle. c has the inputs of either pass, f64.
tsr_status moe_oracle(const struct op_case *c, const struct moe_saved *saved);
tsr_context *moe_oracle_context(void);
// The routing of a case as a case of moe_route_forward or moe_route_backward, without tensors.
struct op_case moe_route_case(const struct op_case *c, bool is_backward);

// ---- spec_moe_work.c ------------------------------------------------------------------------------

double moe_forward_flops(const struct op_case *c);
double moe_backward_flops(const struct op_case *c);
double moe_bytes_of(const struct op_case *c);
bool moe_traffic(const struct op_case *c, const char *variant, struct op_traffic *traffic);
double moe_forward_predict(tsr_context *ctx, const struct op_case *c, const char *variant);
double moe_backward_predict(tsr_context *ctx, const struct op_case *c, const char *variant);

// ---- spec_moe_cases.c, spec_moe_fill.c, spec_moe_bound.c, spec_moe_gradients.c --------------------

void moe_randomize(struct rng *rng, struct op_case *c);
extern const struct edge_case moe_forward_edges[], moe_backward_edges[];
bool moe_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
              double *values);
bool moe_is_drawn_whole(const struct op_case *c, int slot);
void moe_forward_bound(const struct op_case *c, int slot, double *bound);
void moe_backward_bound(const struct op_case *c, int slot, double *bound);

#endif
