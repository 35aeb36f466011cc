// SPDX-License-Identifier: Apache-2.0
// The mixture-of-experts layer for verify, bench, apply, memory and report: parameters, tensors, work. The other files
// spec_moe_* have calls, cases, fills and bounds.
#include "specs/moe/spec_moe.h"

static const char *const scoring_names[] = {"softmax", "sigmoid", NULL};
static const char *const group_score_names[] = {"top2", "max", NULL};
static const char *const round_names[] = {"none", "f64", "f32", "bf16", "f16", NULL};
static const char *const activation_names[] = {"none", "gelu",  "gelu_tanh",      "silu",
                                               "relu", "relu2", "swiglu_clamped", NULL};
static const char *const routing_names[] = {"random", "balanced", "skewed", NULL};

// experts is the number of them, which tensors give; top_k follows from topk_ids if they are given.
#define SHARED_PARAMS                                                                              \
    {"tokens", "tokens", PARAM_SIZE, 2048, NULL},                                                  \
        {"hidden", "columns of x and y", PARAM_SIZE, 1024, NULL},                                  \
        {"intermediate", "columns inside an expert", PARAM_SIZE, 512, NULL},                       \
        {"experts", "experts, at most 1024", PARAM_SIZE, 32, NULL},                                \
        {"top_k", "experts of a token", PARAM_SIZE, 2, NULL, SOURCE_OPTION},                       \
        {"shared_intermediate", "columns inside the shared expert", PARAM_SIZE, 0, NULL},          \
        {"scoring", "score of an expert", PARAM_CHOICE, 0, scoring_names},                         \
        {"no_renormalize", "weights are not divided by their sum", PARAM_FLAG, 0, NULL},           \
        {"routed_scaling", "factor of the weights", PARAM_REAL, 1, NULL, PARAM_FLOAT},             \
        {"num_groups", "groups of experts; 0: one", PARAM_INT,        0,                           \
         NULL,         .least = INT32_MIN,          .most = INT32_MAX},                            \
        {"topk_groups", "groups that remain; 0: all", PARAM_INT,        0,                         \
         NULL,          .least = INT32_MIN,           .most = INT32_MAX},                          \
        {"group_score", "score of a group", PARAM_CHOICE, 0, group_score_names},                   \
        {"round_weights", "dtype to which weights are rounded", PARAM_CHOICE, 0, round_names},     \
        {"activation", "of the experts; none: silu with w_gate, gelu without", PARAM_CHOICE, 0,    \
         activation_names},                                                                        \
        {"weights_on_input", "an expert's input is weighted, not its output", PARAM_FLAG, 0,       \
         NULL},                                                                                    \
        {"capacity", "tokens that an expert takes at most; 0: by capacity_factor", PARAM_INT, 0,   \
         NULL},                                                                                    \
        {"capacity_factor", "of an even share; 0: no limit", PARAM_REAL, 0, NULL}, {               \
        "routing", "with logits or ids: where tokens go", PARAM_CHOICE, 0, routing_names,          \
            SOURCE_TENSORS                                                                         \
    }

static const char *const fp8_names[] = {"none", "experts", "blocks", NULL};

static const struct param_spec forward_params[] = {
    SHARED_PARAMS,
    {"fp8", "the experts' weights are e4m3, with a scale for each of these", PARAM_CHOICE, 0,
     fp8_names, SOURCE_TENSORS},
    {"shared_fp8", "and the shared expert's, with a scale for each 128 x 128", PARAM_FLAG, 0, NULL,
     SOURCE_TENSORS},
    {0},
};
static const struct param_spec backward_params[] = {
    SHARED_PARAMS,
    {"accumulate", "add the gradients of the experts' weights", PARAM_FLAG, 0, NULL},
    {0},
};

#define MAIN_IN(name, optional)                                                                    \
    { name, SLOT_IN, SLOT_MAIN, optional, NULL, false }
#define SMALL_IN(name)                                                                             \
    { name, SLOT_IN, SLOT_SMALL, true, NULL, false }
#define WEIGHT_IN(name, optional)                                                                  \
    { name, SLOT_IN, SLOT_MAIN, optional, NULL, true }
#define SHARED_SLOTS(saved, is_optional, choice)                                                   \
    MAIN_IN("x", false), SMALL_IN("router"), SMALL_IN("logits_bias"),                              \
        {"logits", SLOT_IN, SLOT_F32, true, NULL, false}, WEIGHT_IN("w_gate", true),               \
        WEIGHT_IN("w_up", false), WEIGHT_IN("w_down", false), SMALL_IN("b_down"),                  \
        WEIGHT_IN("shared_w_gate", true), WEIGHT_IN("shared_w_up", true),                          \
        WEIGHT_IN("shared_w_down", true), MAIN_IN("shared_gate", true),                            \
        {"topk_ids", choice, SLOT_I32, is_optional, NULL, false},                                  \
        {"topk_weights", choice, SLOT_F32, is_optional, NULL, false},                              \
        {"preact", saved, SLOT_MAIN, is_optional, NULL, false, NULL, .is_flat = true}, {           \
        "shared_preact", saved, SLOT_MAIN, true, NULL, false, NULL, .is_flat = true                \
    }

#define OUT(name, kind)                                                                            \
    { name, SLOT_OUT, kind, true, NULL, false }
// Forward's ids and weights are outputs with router or logits, else inputs.
static const struct slot_spec forward_slots[] = {
    SHARED_SLOTS(SLOT_OUT, true, SLOT_INOUT),
    {"correction_bias", SLOT_IN, SLOT_F32, true, "router_bias", false},
    SMALL_IN("b_gate"),
    SMALL_IN("b_up"),
    MAIN_IN("residual", true),
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    OUT("offsets", SLOT_I32),
    OUT("tokens_per_expert", SLOT_I32),
    OUT("mean_probs", SLOT_F32),
    OUT("load_balance_loss", SLOT_F32),
    OUT("z_loss", SLOT_F32),
    OUT("usage_variance", SLOT_F32),
    OUT("num_nan_rows", SLOT_I32),
    OUT("num_dropped", SLOT_I32),
    {"w_gate_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"w_up_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"w_down_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"shared_w_gate_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"shared_w_up_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"shared_w_down_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {0},
};
#define GRADIENT(name, kind, of)                                                                   \
    { name, SLOT_OUT, kind, true, NULL, false, of }
#define ADDED_TO(name, of)                                                                         \
    { name, SLOT_INOUT, SLOT_SMALL, true, NULL, false, of }
static const struct slot_spec backward_slots[] = {
    SHARED_SLOTS(SLOT_IN, false, SLOT_IN),
    MAIN_IN("dy", false),
    {"dload_balance_loss", SLOT_IN, SLOT_F32, true, NULL, false},
    {"dz_loss", SLOT_IN, SLOT_F32, true, NULL, false},
    GRADIENT("dx", SLOT_MAIN, "x"),
    GRADIENT("drouter", SLOT_SMALL, "router"),
    GRADIENT("dlogits_bias", SLOT_SMALL, "logits_bias"),
    GRADIENT("dlogits", SLOT_F32, "logits"),
    GRADIENT("dtopk_weights", SLOT_F32, "topk_weights"),
    ADDED_TO("dw_gate", "w_gate"),
    ADDED_TO("dw_up", "w_up"),
    ADDED_TO("dw_down", "w_down"),
    GRADIENT("db_gate", SLOT_SMALL, "b_gate"),
    GRADIENT("db_up", SLOT_SMALL, "b_up"),
    GRADIENT("db_down", SLOT_SMALL, "b_down"),
    GRADIENT("dshared_w_gate", SLOT_MAIN, "shared_w_gate"),
    GRADIENT("dshared_w_up", SLOT_MAIN, "shared_w_up"),
    GRADIENT("dshared_w_down", SLOT_MAIN, "shared_w_down"),
    GRADIENT("dshared_gate", SLOT_MAIN, "shared_gate"),
    {0},
};

// ---- Shapes and dtypes ------------------------------------------------------------------------

static int shape_of(int64_t *shape, int ndim, int64_t first, int64_t second, int64_t third) {
    shape[0] = first;
    if (ndim > 1) shape[1] = second;
    if (ndim > 2) shape[2] = third;
    return ndim;
}

static int shared_shape(const struct moe_sizes *n, int slot, int64_t *shape) {
    switch (slot) {
    case MIX_ROUTER: return shape_of(shape, 2, n->experts, n->hidden, 0);
    case MIX_LOGITS_BIAS: return shape_of(shape, 1, n->experts, 0, 0);
    case MIX_LOGITS: return shape_of(shape, 2, n->tokens, n->experts, 0);
    case MIX_W_GATE:
    case MIX_W_UP: return shape_of(shape, 3, n->experts, n->inter, n->hidden);
    case MIX_W_DOWN: return shape_of(shape, 3, n->experts, n->hidden, n->inter);
    case MIX_B_DOWN: return shape_of(shape, 2, n->experts, n->hidden, 0);
    case MIX_SHARED_W_GATE:
    case MIX_SHARED_W_UP: return shape_of(shape, 2, n->shared, n->hidden, 0);
    case MIX_SHARED_W_DOWN: return shape_of(shape, 2, n->hidden, n->shared, 0);
    case MIX_SHARED_GATE: return shape_of(shape, 1, n->hidden, 0, 0);
    case MIX_IDS:
    case MIX_WEIGHTS: return shape_of(shape, 2, n->tokens, n->top_k, 0);
    case MIX_PREACT: return shape_of(shape, 2, n->rows, n->cols, 0);
    case MIX_SHARED_PREACT: return shape_of(shape, 2, n->tokens, n->shared_cols, 0);
    default: return shape_of(shape, 2, n->tokens, n->hidden, 0); // x, residual, y, dy, dx
    }
}

static int forward_shape(const struct op_case *c, int slot, int64_t *shape) {
    struct moe_sizes n = moe_sizes_of(c);
    const int64_t of_inter = (n.inter + 127) / 128, of_hidden = (n.hidden + 127) / 128,
                  of_shared = (n.shared + 127) / 128;
    switch (slot) {
    case MIX_B_GATE:
    case MIX_B_UP: return shape_of(shape, 2, n.experts, n.inter, 0);
    case MIX_OFFSETS: return shape_of(shape, 1, n.experts + 1, 0, 0);
    case MIX_CORRECTION_BIAS:
    case MIX_COUNTS:
    case MIX_MEAN_PROBS: return shape_of(shape, 1, n.experts, 0, 0);
    case MIX_W_GATE_SCALE:
    case MIX_W_UP_SCALE:
    case MIX_W_DOWN_SCALE: {
        const bool is_down = slot == MIX_W_DOWN_SCALE;
        return shape_of(shape, c->param[MIX_FP8] == FP8_BLOCKS ? 3 : 1, n.experts,
                        is_down ? of_hidden : of_inter, is_down ? of_inter : of_hidden);
    }
    case MIX_SHARED_W_GATE_SCALE:
    case MIX_SHARED_W_UP_SCALE: return shape_of(shape, 2, of_shared, of_hidden, 0);
    case MIX_SHARED_W_DOWN_SCALE: return shape_of(shape, 2, of_hidden, of_shared, 0);
    default:
        return slot > MIX_Y ? shape_of(shape, 1, 1, 0, 0)
                            : shared_shape(&n, slot > MIX_SHARED_PREACT ? MIX_X : slot, shape);
    }
}

static int backward_shape(const struct op_case *c, int slot, int64_t *shape) {
    static const int like[] = {
        [MIX_DY] = MIX_X,
        [MIX_DX] = MIX_X,
        [MIX_DROUTER] = MIX_ROUTER,
        [MIX_DLOGITS_BIAS] = MIX_LOGITS_BIAS,
        [MIX_DLOGITS] = MIX_LOGITS,
        [MIX_DWEIGHTS] = MIX_WEIGHTS,
        [MIX_DW_GATE] = MIX_W_GATE,
        [MIX_DW_UP] = MIX_W_UP,
        [MIX_DW_DOWN] = MIX_W_DOWN,
        [MIX_DB_DOWN] = MIX_B_DOWN,
        [MIX_DSHARED_W_GATE] = MIX_SHARED_W_GATE,
        [MIX_DSHARED_W_UP] = MIX_SHARED_W_UP,
        [MIX_DSHARED_W_DOWN] = MIX_SHARED_W_DOWN,
        [MIX_DSHARED_GATE] = MIX_SHARED_GATE,
    };
    struct moe_sizes n = moe_sizes_of(c);
    if (slot == MIX_DBALANCE || slot == MIX_DZ) return shape_of(shape, 1, 1, 0, 0);
    if (slot == MIX_DB_GATE || slot == MIX_DB_UP) return shape_of(shape, 2, n.experts, n.inter, 0);
    return shared_shape(&n, slot > MIX_SHARED_PREACT ? like[slot] : slot, shape);
}

static bool is_of_fp8(const struct op_case *c, int slot) {
    if (slot >= MIX_W_GATE && slot <= MIX_W_DOWN) return moe_fp8_of(c) != FP8_NONE;
    return slot >= MIX_SHARED_W_GATE && slot <= MIX_SHARED_W_DOWN && moe_is_shared_fp8(c);
}

static tsr_dtype dtype_of(const struct op_case *c, int slot) {
    const tsr_dtype f32 = c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    switch (c->spec->slots[slot].kind) {
    case SLOT_I32: return TSR_I32;
    case SLOT_F32: return f32;
    case SLOT_MAIN: return c->dtype != TSR_F64 && is_of_fp8(c, slot) ? TSR_E4M3 : c->dtype;
    default:
        return c->spec->slots[slot].role == SLOT_INOUT && c->param[MIX_ACCUMULATE] != 0
                   ? f32
                   : c->small_dtype;
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[MIX_X], *w_up = &c->tensor[MIX_W_UP];
    const tsr_tensor *shared = &c->tensor[MIX_SHARED_W_UP], *ids = &c->tensor[MIX_IDS];
    if (x->ndim != 2 || w_up->ndim != 3) return false;
    c->param[MIX_TOKENS] = (double)x->shape[0];
    c->param[MIX_HIDDEN] = (double)x->shape[1];
    c->param[MIX_EXPERTS] = (double)w_up->shape[0];
    c->param[MIX_INTERMEDIATE] = (double)w_up->shape[1];
    if (!moe_is_backward(c) && w_up->dtype == TSR_E4M3)
        c->param[MIX_FP8] = c->tensor[MIX_W_UP_SCALE].ndim == 3 ? FP8_BLOCKS : FP8_EXPERTS;
    if (c->is_present[MIX_SHARED_W_UP]) {
        if (shared->ndim != 2) return false;
        if (!moe_is_backward(c)) c->param[MIX_SHARED_FP8] = shared->dtype == TSR_E4M3;
        c->param[MIX_SHARED_INTERMEDIATE] = (double)shared->shape[0];
    }
    if (c->is_present[MIX_IDS]) {
        if (ids->ndim != 2) return false;
        if (c->param[MIX_TOP_K] <= 0) c->param[MIX_TOP_K] = (double)ids->shape[1];
    }
    return true;
}

static enum slot_role forward_role(const struct op_case *c, int slot) {
    const bool is_routed = c->is_present[MIX_ROUTER] || c->is_present[MIX_LOGITS];
    if (slot == MIX_IDS || slot == MIX_WEIGHTS) return is_routed ? SLOT_OUT : SLOT_IN;
    const bool is_missing = (slot >= MIX_MEAN_PROBS && slot <= MIX_NAN_ROWS && !is_routed) ||
                            (slot == MIX_SHARED_PREACT && !c->is_present[MIX_SHARED_W_UP]);
    return is_missing ? SLOT_NONE : forward_slots[slot].role;
}

static enum slot_role backward_role(const struct op_case *c, int slot) {
    if (slot >= MIX_DW_GATE && slot <= MIX_DW_DOWN)
        return c->param[MIX_ACCUMULATE] != 0 ? SLOT_INOUT : SLOT_OUT;
    const bool is_routed = c->is_present[MIX_ROUTER] || c->is_present[MIX_LOGITS];
    const bool is_missing =
        (slot == MIX_DWEIGHTS && is_routed) || (slot == MIX_DB_GATE && !c->is_present[MIX_W_GATE]);
    return is_missing ? SLOT_NONE : backward_slots[slot].role;
}

// ---- bench --------------------------------------------------------------------------------------

// A router, or logits where tokens go by a plan; with a shared expert its weights; the gradients of the tensors that are
// there in place of those of others.
static void complete(struct op_case *c) {
    bool *is = c->is_present;
    const bool is_planned = c->param[MIX_ROUTING] != ROUTING_RANDOM, backward = moe_is_backward(c);
    if (!is[MIX_ROUTER] && !is[MIX_LOGITS] && (backward || !is[MIX_IDS])) is[MIX_ROUTER] = true;
    if (is[MIX_ROUTER] && is_planned) {
        is[MIX_ROUTER] = is[MIX_LOGITS_BIAS] = false;
        is[MIX_LOGITS] = true;
    }
    if (c->param[MIX_SHARED_INTERMEDIATE] > 0) {
        is[MIX_SHARED_W_UP] = is[MIX_SHARED_W_DOWN] = true;
        is[MIX_SHARED_W_GATE] = is[MIX_W_GATE];
        is[MIX_SHARED_PREACT] |= backward;
    }
    if (!backward) {
        is[MIX_W_UP_SCALE] = is[MIX_W_DOWN_SCALE] = c->param[MIX_FP8] != FP8_NONE;
        is[MIX_W_GATE_SCALE] = is[MIX_W_UP_SCALE] && is[MIX_W_GATE];
        is[MIX_SHARED_W_UP_SCALE] = is[MIX_SHARED_W_DOWN_SCALE] = moe_is_shared_fp8(c);
        is[MIX_SHARED_W_GATE_SCALE] = moe_is_shared_fp8(c) && is[MIX_W_GATE];
        return;
    }
    if (is[MIX_DROUTER] || is[MIX_DLOGITS]) {
        is[MIX_DROUTER] = is[MIX_ROUTER];
        is[MIX_DLOGITS] = is[MIX_LOGITS];
        is[MIX_DLOGITS_BIAS] &= is[MIX_LOGITS_BIAS];
    }
    if (is[MIX_DW_UP]) is[MIX_DW_GATE] = is[MIX_W_GATE];
}

// ---- The two descriptions ---------------------------------------------------------------------

// The shapes that other libraries publish, for a GPU, and smaller ones of the same kinds for a CPU.
#define ROUTED(tokens, hidden, inter, experts, top_k)                                              \
    "tokens=" #tokens " hidden=" #hidden " intermediate=" #inter " experts=" #experts              \
    " top_k=" #top_k " +router"
#define GATED " +w_gate"
#define PLAIN_GRADIENTS " +dx +drouter +dw_up +dw_down"
#define GATED_GRADIENTS GATED PLAIN_GRADIENTS " +dw_gate"
static const char *const forward_standard[] = {
    ROUTED(8, 1024, 3584, 8, 2) GATED,     ROUTED(64, 1024, 384, 128, 8) GATED,
    ROUTED(512, 512, 1376, 32, 2),         ROUTED(1024, 768, 128, 128, 8) GATED,
    ROUTED(1024, 1024, 256, 128, 8) GATED, ROUTED(512, 1024, 3584, 8, 2) GATED,
    ROUTED(2048, 512, 1376, 32, 2),        NULL};
static const char *const backward_standard[] = {
    ROUTED(512, 512, 1376, 32, 2) PLAIN_GRADIENTS,   ROUTED(1024, 768, 128, 128, 8) GATED_GRADIENTS,
    ROUTED(1024, 1024, 256, 128, 8) GATED_GRADIENTS, ROUTED(512, 1024, 3584, 8, 2) GATED_GRADIENTS,
    ROUTED(2048, 512, 1376, 32, 2) PLAIN_GRADIENTS,  NULL};
static const char *const forward_standard_gpu[] = {ROUTED(8, 4096, 14336, 8, 2) GATED,
                                                   ROUTED(64, 2048, 768, 128, 8) GATED,
                                                   ROUTED(2048, 4096, 11008, 32, 2),
                                                   ROUTED(32768, 1536, 256, 128, 8) GATED,
                                                   ROUTED(32768, 4096, 1024, 128, 8) GATED,
                                                   ROUTED(24576, 2048, 768, 128, 8) GATED,
                                                   ROUTED(4096, 4096, 14336, 8, 2) GATED,
                                                   ROUTED(32768, 4096, 11008, 32, 2),
                                                   NULL};
static const char *const backward_standard_gpu[] = {
    ROUTED(2048, 4096, 11008, 32, 2) PLAIN_GRADIENTS,
    ROUTED(32768, 1536, 256, 128, 8) GATED_GRADIENTS,
    ROUTED(32768, 4096, 1024, 128, 8) GATED_GRADIENTS,
    ROUTED(24576, 2048, 768, 128, 8) GATED_GRADIENTS,
    ROUTED(4096, 4096, 14336, 8, 2) GATED_GRADIENTS,
    ROUTED(32768, 4096, 11008, 32, 2) PLAIN_GRADIENTS,
    NULL};

#define STEPS(...)                                                                                 \
    ROUTED(1, __VA_ARGS__) GATED, ROUTED(8, __VA_ARGS__) GATED, ROUTED(64, __VA_ARGS__) GATED
static const char *const decode[] = {STEPS(1024, 2816, 8, 2), STEPS(2048, 768, 32, 8), NULL};
static const char *const decode_gpu[] = {STEPS(2048, 768, 128, 8), STEPS(4096, 14336, 8, 2), NULL};

const struct op_spec moe_forward_spec = {
    .op = "moe_forward",
    .command = "moe",
    .pass = "forward",
    .is_composed = true,
    .params = forward_params,
    .slots = forward_slots,
    .shape = forward_shape,
    .slot_dtype = dtype_of,
    .infer = infer,
    .complete = complete,
    .role = forward_role,
    .call = moe_call_forward,
    .predict = moe_forward_predict,
    .flops = moe_forward_flops,
    .bytes = moe_bytes_of,
    .traffic = moe_traffic,
    .randomize = moe_randomize,
    .fill = moe_fill,
    .is_drawn_whole = moe_is_drawn_whole,
    .bound = moe_forward_bound,
    .edges = moe_forward_edges,
    .standard = forward_standard,
    .decode = decode,
    .decode_gpu = decode_gpu,
    .standard_gpu = forward_standard_gpu,
};

const struct op_spec moe_backward_spec = {
    .op = "moe_backward",
    .command = "moe",
    .pass = "backward",
    .is_composed = true,
    .params = backward_params,
    .slots = backward_slots,
    .shape = backward_shape,
    .slot_dtype = dtype_of,
    .infer = infer,
    .complete = complete,
    .role = backward_role,
    .call = moe_call_backward,
    .predict = moe_backward_predict,
    .flops = moe_backward_flops,
    .bytes = moe_bytes_of,
    .traffic = moe_traffic,
    .randomize = moe_randomize,
    .fill = moe_fill,
    .is_drawn_whole = moe_is_drawn_whole,
    .bound = moe_backward_bound,
    .edges = moe_backward_edges,
    .standard = backward_standard,
    .standard_gpu = backward_standard_gpu,
};
