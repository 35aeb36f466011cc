// SPDX-License-Identifier: Apache-2.0
// The mixture-of-experts layer for verify, bench, apply, memory and report: parameters, tensors, work. The other files
// spec_moe_* have calls, cases, fills and bounds.
#include "specs/moe/spec_moe.h"

#include <math.h>
#include <string.h>

#include "measure/traffic.h"

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

static const struct param_spec forward_params[] = {SHARED_PARAMS, {0}};
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
    switch (slot) {
    case MIX_B_GATE:
    case MIX_B_UP: return shape_of(shape, 2, n.experts, n.inter, 0);
    case MIX_OFFSETS: return shape_of(shape, 1, n.experts + 1, 0, 0);
    case MIX_CORRECTION_BIAS:
    case MIX_COUNTS:
    case MIX_MEAN_PROBS: return shape_of(shape, 1, n.experts, 0, 0);
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

static tsr_dtype dtype_of(const struct op_case *c, int slot) {
    const tsr_dtype f32 = c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    switch (c->spec->slots[slot].kind) {
    case SLOT_I32: return TSR_I32;
    case SLOT_F32: return f32;
    case SLOT_MAIN: return c->dtype;
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
    if (c->is_present[MIX_SHARED_W_UP]) {
        if (shared->ndim != 2) return false;
        c->param[MIX_SHARED_INTERMEDIATE] = (double)shared->shape[0];
    }
    if (c->is_present[MIX_IDS]) {
        if (ids->ndim != 2) return false;
        if (c->param[MIX_TOP_K] < 0) c->param[MIX_TOP_K] = (double)ids->shape[1];
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
    return slot == MIX_DWEIGHTS && is_routed ? SLOT_NONE : backward_slots[slot].role;
}

// ---- Work and memory --------------------------------------------------------------------------

// Products of a pass over all projections once.
static double products(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double projections = n.is_gated ? 3 : 2, hidden = (double)n.hidden;
    double sum = projections * (double)n.rows * hidden * (double)n.inter;
    if (c->is_present[MIX_SHARED_W_UP])
        sum += projections * (double)n.tokens * hidden * (double)n.shared;
    if (c->is_present[MIX_ROUTER]) sum += (double)n.tokens * hidden * (double)n.experts;
    return sum;
}

static double forward_flops(const struct op_case *c) { return 2 * products(c); }

// Both gradients of each projection.
static double backward_flops(const struct op_case *c) { return 4 * products(c); }

// The share of the experts that have rows, if the router chooses evenly.
static double touched(const struct moe_sizes *n) {
    if (n->experts <= 0) return 0;
    const double share = fmin((double)n->top_k / (double)n->experts, 1);
    return 1 - pow(1 - share, (double)n->tokens);
}

// Every tensor once, but of the experts' weights only those that have rows.
static double bytes_of(const struct op_case *c) {
    const struct moe_sizes n = moe_sizes_of(c);
    double bytes = 0;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!c->is_present[s]) continue;
        const bool is_of_experts = s == MIX_W_GATE || s == MIX_W_UP || s == MIX_W_DOWN;
        bytes += case_elements(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s)) *
                 (is_of_experts ? touched(&n) : 1) * (case_role(c, s) == SLOT_INOUT ? 2 : 1);
    }
    return bytes;
}

// Adds a product: reads `a` and `b`, writes c; all in elements.
static void add_product(struct op_traffic *t, double element, double a, double b, double c) {
    t->num_passes++;
    t->read_bytes += element * (a + b);
    t->write_bytes += element * c;
}

// The sum over the parts of an MLP: rows of `inputs` columns, `cols` columns of h.
static void mlp_traffic(struct op_traffic *t, const struct op_case *c, double rows, double inner,
                        double cols, double weights) {
    const struct moe_sizes n = moe_sizes_of(c);
    const double element = (double)tsr_dtype_bytes(c->dtype), hidden = (double)n.hidden;
    const double up = weights * cols * hidden, down = weights * inner * hidden;
    if (!moe_is_backward(c)) {
        const bool is_saving = c->is_present[MIX_PREACT];
        add_product(t, element, rows * hidden, up, rows * (is_saving ? cols : inner));
        if (is_saving) add_product(t, element, rows * cols, 0, rows * inner);
        add_product(t, element, rows * inner, down, rows * hidden);
        return;
    }
    add_product(t, element, rows * hidden, down, rows * inner);               // da
    add_product(t, element, rows * (cols + inner), 0, rows * (cols + inner)); // dh, weighted a
    add_product(t, element, rows * inner, rows * hidden, down);               // dw_down
    add_product(t, element, rows * cols, rows * hidden, up);                  // dw_gate, dw_up
    add_product(t, element, rows * cols, up, rows * hidden);                  // dx of rows
}

// The sum over the parts: each moves its own tensors once.
static bool traffic(const struct op_case *c, const char *variant, struct op_traffic *t) {
    (void)variant;
    const struct moe_sizes n = moe_sizes_of(c);
    const double element = (double)tsr_dtype_bytes(c->dtype), hidden = (double)n.hidden;
    const double rows = (double)n.rows, tokens = (double)n.tokens, experts = (double)n.experts;
    *t = (struct op_traffic){0};
    const double router = c->is_present[MIX_ROUTER] ? experts * hidden : 0;
    if (router > 0) { // logits in fp32, and backward both gradients
        const double logits = 4 * tokens * experts;
        add_product(t, element, tokens * hidden, router, 0);
        t->write_bytes += logits;
        if (moe_is_backward(c)) {
            add_product(t, element, tokens * hidden, 0, router);
            add_product(t, element, 0, router, tokens * hidden);
            t->read_bytes += 2 * logits;
        }
    }
    if (n.is_routed) add_product(t, 4, tokens * experts, 0, 2 * rows);
    add_product(t, 4, rows, 0, 3 * rows); // permutation
    mlp_traffic(t, c, rows, (double)n.inter, (double)n.cols, experts * touched(&n));
    if (c->is_present[MIX_SHARED_W_UP])
        mlp_traffic(t, c, tokens, (double)n.shared, (double)n.shared_cols, 1);
    add_product(t, element, rows * hidden, 0, tokens * hidden); // the weighted sum
    return true;
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
    if (!backward) return;
    if (is[MIX_DROUTER] || is[MIX_DLOGITS]) {
        is[MIX_DROUTER] = is[MIX_ROUTER];
        is[MIX_DLOGITS] = is[MIX_LOGITS];
        is[MIX_DLOGITS_BIAS] &= is[MIX_LOGITS_BIAS];
    }
    if (is[MIX_DW_UP]) is[MIX_DW_GATE] = is[MIX_W_GATE];
}

// ---- The two descriptions ---------------------------------------------------------------------

// The shapes that other libraries publish.
#define STANDARD(gated, plain)                                                                     \
    "tokens=2048 hidden=4096 intermediate=11008 experts=32 top_k=2 +router" plain,                 \
        "tokens=32768 hidden=4096 intermediate=11008 experts=32 top_k=2 +router" plain,            \
        "tokens=32768 hidden=1536 intermediate=256 experts=128 top_k=8 +router" gated,             \
        "tokens=32768 hidden=4096 intermediate=1024 experts=128 top_k=8 +router" gated,            \
        "tokens=24576 hidden=2048 intermediate=768 experts=128 top_k=8 +router" gated,             \
        "tokens=4096 hidden=4096 intermediate=14336 experts=8 top_k=2 +router" gated
static const char *const forward_standard[] = {
    STANDARD(" +w_gate", ""),
    "tokens=64 hidden=2048 intermediate=768 experts=128 top_k=8 +router +w_gate",
    "tokens=8 hidden=4096 intermediate=14336 experts=8 top_k=2 +router +w_gate", NULL};
static const char *const backward_standard[] = {
    STANDARD(" +w_gate +dx +drouter +dw_gate +dw_up +dw_down", " +dx +drouter +dw_up +dw_down"),
    NULL};

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
    .flops = forward_flops,
    .bytes = bytes_of,
    .traffic = traffic,
    .randomize = moe_randomize,
    .fill = moe_fill,
    .is_drawn_whole = moe_is_drawn_whole,
    .bound = moe_forward_bound,
    .edges = moe_forward_edges,
    .standard = forward_standard,
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
    .flops = backward_flops,
    .bytes = bytes_of,
    .traffic = traffic,
    .randomize = moe_randomize,
    .fill = moe_fill,
    .is_drawn_whole = moe_is_drawn_whole,
    .bound = moe_backward_bound,
    .edges = moe_backward_edges,
    .standard = backward_standard,
};
