// SPDX-License-Identifier: Apache-2.0
// The self-attention module for verify, bench, apply, memory and report: parameters, tensors, work. The other
// files spec_self_attention_* have sizes, calls, cases, fills and bounds.
#include "specs/attention/spec_self_attention.h"

#include <math.h>
#include <string.h>

#include "measure/traffic.h"

static const char *const masks[] = {"none", "causal", "causal-top-left", NULL};

// num_heads is no PARAM_SIZE, because no tensor gives it: apply needs it as an option. num_kv_heads follows from num_heads
// and w_qkv.
static const struct param_spec params[] = {
    {"batch_size", "sequences", PARAM_SIZE, 4, NULL},
    {"seqlen", "tokens of a sequence", PARAM_SIZE, 512, NULL},
    {"embed_dim", "columns of x and y", PARAM_SIZE, 768, NULL},
    {"num_heads", "heads of q; in bench 0: embed_dim / 64", PARAM_INT, 0, NULL},
    {"num_kv_heads", "heads of k and v; 0: as q", PARAM_SIZE, 0, NULL, SOURCE_OPTION},
    {"head_dim", "columns of a head; 0: embed_dim / num_heads", PARAM_SIZE, 0, NULL},
    {"rotary_dim", "with cos and sin: rotated columns; 0: all", PARAM_SIZE, 0, NULL},
    {"mask", "which keys a query sees", PARAM_CHOICE, 0, masks},
    {"window_left", "keys kept before the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"window_right", "keys kept after the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"softmax_scale", "factor of q k; 0: 1 / sqrt(head_dim)", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"softcap", "scores become softcap tanh(score / softcap); 0: unchanged", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"dropout_p", "share of the weights that are dropped", PARAM_REAL, 0, NULL},
    {"seed", "of dropout", PARAM_INT, 0, NULL, .most = 9e15},
    {"offset", "offset of dropout's counter", PARAM_INT, 0, NULL, .most = 9e15},
    {"interleaved", "RoPE's pairs are (2i, 2i + 1)", PARAM_FLAG, 0, NULL},
    {0},
};

#define SHARED_SLOTS(saved_role, saved_optional)                                                   \
    {"x", SLOT_IN, SLOT_MAIN, false, NULL, false},                                                 \
        {"w_qkv", SLOT_IN, SLOT_MAIN, false, NULL, false},                                         \
        {"w_out", SLOT_IN, SLOT_MAIN, false, NULL, false},                                         \
        {"cos", SLOT_IN, SLOT_F32, true, NULL, false},                                             \
        {"sin", SLOT_IN, SLOT_F32, true, NULL, false},                                             \
        {"qkv", saved_role, SLOT_MAIN, saved_optional, NULL, false},                               \
        {"attention", saved_role, SLOT_MAIN, saved_optional, NULL, false}, {                       \
        "lse", saved_role, SLOT_F32, saved_optional, NULL, false                                   \
    }

static const struct slot_spec forward_slots[] = {
    SHARED_SLOTS(SLOT_OUT, true),
    {"b_qkv", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"b_out", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {0},
};
static const struct slot_spec backward_slots[] = {
    SHARED_SLOTS(SLOT_IN, false),
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"dx", SLOT_OUT, SLOT_MAIN, true, NULL, false, "x"},
    {"dw_qkv", SLOT_OUT, SLOT_MAIN, true, NULL, false, "w_qkv"},
    {"db_qkv", SLOT_OUT, SLOT_SMALL, true, NULL, false, "b_qkv"},
    {"dw_out", SLOT_OUT, SLOT_MAIN, true, NULL, false, "w_out"},
    {"db_out", SLOT_OUT, SLOT_SMALL, true, NULL, false, "b_out"},
    {0},
};

// ---- Shapes -----------------------------------------------------------------------------------

static int shape_of(int64_t *shape, int ndim, int64_t first, int64_t second, int64_t third) {
    shape[0] = first;
    if (ndim > 1) shape[1] = second;
    if (ndim > 2) shape[2] = third;
    return ndim;
}

static int shared_shape(const struct self_attention_sizes *n, int slot, int64_t *shape) {
    switch (slot) {
    case SA_W_QKV: return shape_of(shape, 2, n->qkv_dim, n->embed_dim, 0);
    case SA_W_OUT: return shape_of(shape, 2, n->embed_dim, n->attention_dim, 0);
    case SA_COS:
    case SA_SIN: return shape_of(shape, 2, n->seqlen, n->pairs, 0);
    case SA_QKV: return shape_of(shape, 3, n->batch, n->seqlen, n->qkv_dim);
    case SA_ATTENTION: return shape_of(shape, 3, n->batch, n->seqlen, n->attention_dim);
    case SA_LSE: return shape_of(shape, 3, n->batch, n->heads, n->seqlen);
    default: return shape_of(shape, 3, n->batch, n->seqlen, n->embed_dim); // x, y, dy, dx
    }
}

static int forward_shape(const struct op_case *c, int slot, int64_t *shape) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    if (slot == SA_B_QKV) return shape_of(shape, 1, n.qkv_dim, 0, 0);
    if (slot == SA_B_OUT) return shape_of(shape, 1, n.embed_dim, 0, 0);
    return shared_shape(&n, slot == SA_Y ? SA_X : slot, shape);
}

static int backward_shape(const struct op_case *c, int slot, int64_t *shape) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    switch (slot) {
    case SA_DB_QKV: return shape_of(shape, 1, n.qkv_dim, 0, 0);
    case SA_DB_OUT: return shape_of(shape, 1, n.embed_dim, 0, 0);
    case SA_DW_QKV: return shared_shape(&n, SA_W_QKV, shape);
    case SA_DW_OUT: return shared_shape(&n, SA_W_OUT, shape);
    case SA_DY:
    case SA_DX: return shared_shape(&n, SA_X, shape);
    default: return shared_shape(&n, slot, shape);
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *x = &c->tensor[SA_X], *w_qkv = &c->tensor[SA_W_QKV];
    const tsr_tensor *w_out = &c->tensor[SA_W_OUT], *cos = &c->tensor[SA_COS];
    if (x->ndim != 3 || w_qkv->ndim != 2 || w_out->ndim != 2 ||
        (c->is_present[SA_COS] && cos->ndim != 2))
        return false;
    c->param[SA_BATCH] = (double)x->shape[0];
    c->param[SA_SEQLEN] = (double)x->shape[1];
    c->param[SA_EMBED_DIM] = (double)x->shape[2];
    int64_t heads = (int64_t)c->param[SA_HEADS];
    int64_t head_dim = heads > 0 ? w_out->shape[1] / heads : 0, kv_heads = 0;
    if (head_dim > 0) kv_heads = (w_qkv->shape[0] / head_dim - heads) / 2;
    c->param[SA_HEAD_DIM] = (double)head_dim;
    c->param[SA_KV_HEADS] = kv_heads > 0 ? (double)kv_heads : 0;
    if (c->is_present[SA_COS]) c->param[SA_ROTARY_DIM] = 2 * (double)cos->shape[1];
    return true;
}

// Sets the sizes that follow from others.
static void complete(struct op_case *c) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    c->param[SA_HEADS] = (double)n.heads;
    c->param[SA_KV_HEADS] = (double)n.kv_heads;
    c->param[SA_HEAD_DIM] = (double)n.head_dim;
}

// ---- Work and memory --------------------------------------------------------------------------

static double projection_flops(const struct op_case *c) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    return 2 * (double)n.rows * (double)n.embed_dim * (double)(n.qkv_dim + n.attention_dim);
}

static double forward_flops(const struct op_case *c) {
    struct op_case core = self_attention_core(c, false);
    return projection_flops(c) + core.spec->flops(&core);
}

// Both gradients of each projection.
static double backward_flops(const struct op_case *c) {
    struct op_case core = self_attention_core(c, true);
    return 2 * projection_flops(c) + core.spec->flops(&core);
}

// The library's estimate, if it covers the case: both biases or none, all tensors saved or none, every
// gradient.
static double forward_predict(tsr_context *ctx, const struct op_case *c, const char *variant) {
    const bool *is = c->is_present;
    tsr_self_attention_memory m;
    bool is_saved = is[SA_QKV] && is[SA_ATTENTION] && is[SA_LSE];
    bool is_plain = !is[SA_QKV] && !is[SA_ATTENTION] && !is[SA_LSE];
    if (is[SA_B_QKV] != is[SA_B_OUT] || (is[SA_B_QKV] && c->small_dtype != c->dtype) ||
        !(is_saved || is_plain) ||
        !self_attention_estimate(ctx, c, variant, is[SA_COS], is[SA_B_QKV], &m))
        return NAN;
    return is_plain ? (double)m.inference_bytes
                    : (double)(m.weight_bytes + m.activation_bytes + m.saved_bytes +
                               m.forward_workspace_bytes);
}

// The estimate without y and biases, because backward has no y, and db without b.
static double backward_predict(tsr_context *ctx, const struct op_case *c, const char *variant) {
    const bool *is = c->is_present;
    struct self_attention_sizes n = self_attention_sizes_of(c);
    tsr_self_attention_memory m;
    if (!is[SA_DX] || !is[SA_DW_QKV] || !is[SA_DW_OUT] || is[SA_DB_QKV] != is[SA_DB_OUT] ||
        (is[SA_DB_QKV] && c->small_dtype != c->dtype) ||
        !self_attention_estimate(ctx, c, variant, is[SA_COS], is[SA_DB_QKV], &m))
        return NAN;
    double element = (double)tsr_dtype_bytes(c->dtype);
    double biases = is[SA_DB_QKV] ? (double)(n.qkv_dim + n.embed_dim) * element : 0;
    double y = (double)(n.rows * n.embed_dim) * element;
    return (double)(m.weight_bytes + m.activation_bytes + m.saved_bytes + m.gradient_bytes +
                    m.backward_workspace_bytes) -
           biases - y;
}

// The sum over the parts: each moves its own tensors once, attention as its variant does.
static bool traffic(const struct op_case *c, const char *variant, struct op_traffic *t) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    double element = (double)tsr_dtype_bytes(c->dtype), rows = (double)n.rows;
    double x = element * rows * (double)n.embed_dim, qkv = element * rows * (double)n.qkv_dim;
    double attention = element * rows * (double)n.attention_dim;
    double w_qkv = element * (double)n.embed_dim * (double)n.qkv_dim;
    double w_out = element * (double)n.embed_dim * (double)n.attention_dim;
    double rotated =
        c->is_present[SA_COS] ? element * rows * (double)((n.heads + n.kv_heads) * n.head_dim) : 0;
    bool backward = self_attention_is_backward(c);
    struct op_case core = self_attention_core(c, backward);
    core.is_present[ATTN_LSE] = backward || c->is_present[SA_LSE];
    for (int s = ATTN_DQ; s <= ATTN_DV; s++) core.is_present[s] = backward;
    const char *within = variant != NULL && strcmp(variant, "default") != 0 ? variant : NULL;
    if (!core.spec->traffic(&core, within, t)) return false;
    t->num_passes += (backward ? 4 : 2) + (rotated > 0);
    t->read_bytes += rotated + (backward ? 3 * x + attention + w_out + 2 * qkv + w_qkv
                                         : x + w_qkv + attention + w_out);
    t->write_bytes += rotated + (backward ? attention + w_out + x + w_qkv : qkv + x);
    // Biases are read; their gradients take one more pass over the tensors that they sum.
    if (!backward) {
        t->read_bytes += c->is_present[SA_B_QKV] ? element * (double)n.qkv_dim : 0;
        t->read_bytes += c->is_present[SA_B_OUT] ? element * (double)n.embed_dim : 0;
        return true;
    }
    t->num_passes += c->is_present[SA_DB_QKV] + c->is_present[SA_DB_OUT];
    t->read_bytes += (c->is_present[SA_DB_QKV] ? qkv : 0) + (c->is_present[SA_DB_OUT] ? x : 0);
    return true;
}

// ---- The two descriptions ---------------------------------------------------------------------

#define STANDARD(extra)                                                                            \
    "batch_size=4 seqlen=128 embed_dim=768 num_heads=12 num_kv_heads=12 head_dim=64" extra,        \
        "batch_size=4 seqlen=256 embed_dim=768 num_heads=12 num_kv_heads=12 head_dim=64" extra,    \
        "batch_size=1 seqlen=1024 embed_dim=768 num_heads=12 num_kv_heads=12 head_dim=64" extra,   \
        NULL
static const char *const forward_standard[] = {STANDARD("")};
static const char *const backward_standard[] = {STANDARD(" +dx +dw_qkv +dw_out")};

const struct op_spec self_attention_forward_spec = {
    .op = "self_attention_forward",
    .command = "self-attention",
    .pass = "forward",
    .is_composed = true,
    .params = params,
    .slots = forward_slots,
    .shape = forward_shape,
    .infer = infer,
    .complete = complete,
    .call = self_attention_call_forward,
    .predict = forward_predict,
    .flops = forward_flops,
    .traffic = traffic,
    .randomize = self_attention_randomize,
    .fill = self_attention_fill,
    .bound = self_attention_forward_bound,
    .edges = self_attention_forward_edges,
    .standard = forward_standard,
    .baseline = "naive",
};

const struct op_spec self_attention_backward_spec = {
    .op = "self_attention_backward",
    .command = "self-attention",
    .pass = "backward",
    .is_composed = true,
    .params = params,
    .slots = backward_slots,
    .shape = backward_shape,
    .infer = infer,
    .complete = complete,
    .call = self_attention_call_backward,
    .predict = backward_predict,
    .flops = backward_flops,
    .traffic = traffic,
    .randomize = self_attention_randomize,
    .fill = self_attention_fill,
    .bound = self_attention_backward_bound,
    .edges = self_attention_backward_edges,
    .standard = backward_standard,
    .baseline = "naive",
};
