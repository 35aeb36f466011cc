// SPDX-License-Identifier: Apache-2.0
// Attention for verify, bench, apply and report: parameters, tensors, work. The other files spec_attention_*
// have sizes, calls, cases, fills and bounds.
#include "specs/attention/spec_attention.h"

#include <math.h>

static const char *const masks[] = {"none", "causal", "causal-top-left", NULL};

static const struct param_spec params[] = {
    {"batch_size", "sequences", PARAM_SIZE, 4, NULL},
    {"seqlen_q", "queries of a sequence; packed: of the longest", PARAM_SIZE, 1024, NULL},
    {"seqlen_k", "keys of a sequence; packed: of the longest", PARAM_SIZE, 1024, NULL},
    {"num_heads", "heads of q", PARAM_SIZE, 8, NULL},
    {"num_kv_heads", "heads of k and v; 0: as q", PARAM_SIZE, 0, NULL},
    {"head_dim", "columns of q and k", PARAM_SIZE, 64, NULL},
    {"head_dim_v", "columns of v; 0: as q", PARAM_SIZE, 0, NULL},
    {"total_q", "packed: rows of q; 0: batch_size times seqlen_q", PARAM_SIZE, 0, NULL},
    {"total_k", "packed: rows of k; 0: batch_size times seqlen_k", PARAM_SIZE, 0, NULL},
    {"bias_broadcast", "dimensions of bias that are 1: 8 batch + 4 heads + 2 queries + 1 keys",
     PARAM_SIZE, 0, NULL},
    {"alibi_batch", "1: alibi_slopes for every batch", PARAM_SIZE, 0, NULL},
    {"ragged", "1: random lengths, NaN where no query looks", PARAM_SIZE, 0, NULL},
    {"mask", "which keys a query sees", PARAM_CHOICE, 0, masks},
    {"window_left", "keys kept before the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"window_right", "keys kept after the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"softmax_scale", "factor of q k; 0: 1 / sqrt(head_dim)", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"softcap", "scores become softcap tanh(score / softcap); 0: unchanged", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"dropout_p", "share of the weights that are dropped", PARAM_REAL, 0, NULL},
    {"seed", "of dropout", PARAM_INT, 0, NULL, .most = 9e15},
    {"offset", "offset of dropout's counter", PARAM_INT, 0, NULL, .most = 9e15},
    {"max_seqlen_q", "packed: queries of a sequence that count; 0: all", PARAM_INT, 0, NULL},
    {"max_seqlen_k", "packed: keys of a sequence that count; 0: all", PARAM_INT, 0, NULL},
    {0},
};

#define SHARED_INPUTS                                                                              \
    {"cu_seqlens_q", SLOT_IN, SLOT_I32, true, NULL, false},                                        \
        {"cu_seqlens_k", SLOT_IN, SLOT_I32, true, NULL, false},                                    \
        {"seqused_k", SLOT_IN, SLOT_I32, true, NULL, false},                                       \
        {"q", SLOT_IN, SLOT_MAIN, false, NULL, false},                                             \
        {"k", SLOT_IN, SLOT_MAIN, false, NULL, false},                                             \
        {"v", SLOT_IN, SLOT_MAIN, false, NULL, false},                                             \
        {"bias", SLOT_IN, SLOT_SMALL, true, NULL, true},                                           \
        {"alibi_slopes", SLOT_IN, SLOT_SMALL, true, NULL, false}, {                                \
        "sinks", SLOT_IN, SLOT_SMALL, true, NULL, false                                            \
    }

static const struct slot_spec forward_slots[] = {
    SHARED_INPUTS,
    {"out", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {"lse", SLOT_OUT, SLOT_F32, true, NULL, false},
    {0},
};
static const struct slot_spec backward_slots[] = {
    SHARED_INPUTS,
    {"out", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"lse", SLOT_IN, SLOT_F32, false, NULL, false},
    {"dout", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"dq", SLOT_OUT, SLOT_MAIN, true, NULL, false, "q"},
    {"dk", SLOT_OUT, SLOT_MAIN, true, NULL, false, "k"},
    {"dv", SLOT_OUT, SLOT_MAIN, true, NULL, false, "v"},
    {"dbias", SLOT_OUT, SLOT_SMALL, true, NULL, true, "bias"},
    {"dsinks", SLOT_OUT, SLOT_SMALL, true, NULL, false, "sinks"},
    {0},
};

// ---- Shapes -----------------------------------------------------------------------------------

static int main_shape(const struct attention_sizes *n, bool is_k, int64_t dim, int64_t *shape) {
    int ndim = 0;
    if (!n->is_packed) shape[ndim++] = n->batch;
    shape[ndim++] = is_k ? n->total_k : n->total_q;
    shape[ndim++] = is_k ? n->kv_heads : n->heads;
    shape[ndim++] = dim;
    return ndim;
}

static int slot_shape(const struct op_case *c, int slot, int64_t *shape) {
    struct attention_sizes n = attention_sizes_of(c);
    int ndim = 0;
    switch (slot) {
    case ATTN_CU_SEQLENS_Q:
    case ATTN_CU_SEQLENS_K: shape[0] = n.batch + 1; return 1;
    case ATTN_SEQUSED_K: shape[0] = n.batch; return 1;
    case ATTN_Q:
    case ATTN_DQ: return main_shape(&n, false, n.head_dim, shape);
    case ATTN_K:
    case ATTN_DK: return main_shape(&n, true, n.head_dim, shape);
    case ATTN_V:
    case ATTN_DV: return main_shape(&n, true, n.head_dim_v, shape);
    case ATTN_OUT:
    case ATTN_DOUT: return main_shape(&n, false, n.head_dim_v, shape);
    case ATTN_BIAS:
    case ATTN_DBIAS: return attention_bias_shape(c, &n, shape);
    case ATTN_LSE:
        if (!n.is_packed) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        shape[ndim++] = n.total_q;
        return ndim;
    default: // one value per head
        if (slot == ATTN_SLOPES && c->param[ATTN_SLOPES_BATCH] != 0) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        return ndim;
    }
}

// The longest packed sequence of a file: max_seqlen if given, else by the shape of bias, else by the offsets.
static void infer_longest(struct op_case *c) {
    static const struct {
        int cu, seqlen, given, bias_dim;
    } sides[2] = {{ATTN_CU_SEQLENS_Q, ATTN_SEQLEN_Q, ATTN_MAX_SEQLEN_Q, 2},
                  {ATTN_CU_SEQLENS_K, ATTN_SEQLEN_K, ATTN_MAX_SEQLEN_K, 3}};
    const tsr_tensor *bias = &c->tensor[ATTN_BIAS];
    for (int side = 0; side < 2; side++) {
        const tsr_tensor *cu = &c->tensor[sides[side].cu];
        double total = c->param[side == 0 ? ATTN_TOTAL_Q : ATTN_TOTAL_K], longest = 0;
        for (int64_t b = 0; c->is_present[sides[side].cu] && b + 1 < tsr_tensor_numel(cu); b++)
            longest = fmax(longest, tsr_load(TSR_I32, cu->data, b + 1) -
                                        fmax(0, tsr_load(TSR_I32, cu->data, b)));
        if (c->is_present[ATTN_BIAS] && bias->shape[sides[side].bias_dim] > 1)
            longest = (double)bias->shape[sides[side].bias_dim];
        if (c->param[sides[side].given] > 0) longest = c->param[sides[side].given];
        c->param[sides[side].seqlen] = fmin(longest, total);
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *q = &c->tensor[ATTN_Q], *k = &c->tensor[ATTN_K], *v = &c->tensor[ATTN_V];
    const tsr_tensor *bias = &c->tensor[ATTN_BIAS], *cu_q = &c->tensor[ATTN_CU_SEQLENS_Q];
    bool is_packed = c->is_present[ATTN_CU_SEQLENS_Q];
    int ndim = is_packed ? 3 : 4;
    if (q->ndim != ndim || k->ndim != ndim || v->ndim != ndim ||
        (is_packed && (cu_q->ndim != 1 || cu_q->shape[0] < 1)) ||
        (c->is_present[ATTN_BIAS] && bias->ndim != 4))
        return false;
    c->param[ATTN_BATCH] = (double)(is_packed ? cu_q->shape[0] - 1 : q->shape[0]);
    c->param[ATTN_SEQLEN_Q] = (double)q->shape[ndim - 3];
    c->param[ATTN_SEQLEN_K] = (double)k->shape[ndim - 3];
    c->param[ATTN_HEADS] = (double)q->shape[ndim - 2];
    c->param[ATTN_KV_HEADS] = (double)k->shape[ndim - 2];
    c->param[ATTN_HEAD_DIM] = (double)q->shape[ndim - 1];
    c->param[ATTN_HEAD_DIM_V] = (double)v->shape[ndim - 1];
    c->param[ATTN_SLOPES_BATCH] =
        c->is_present[ATTN_SLOPES] && c->tensor[ATTN_SLOPES].ndim == 2 ? 1 : 0;
    if (is_packed) {
        c->param[ATTN_TOTAL_Q] = c->param[ATTN_SEQLEN_Q];
        c->param[ATTN_TOTAL_K] = c->param[ATTN_SEQLEN_K];
        infer_longest(c);
    }
    c->param[ATTN_BIAS_BROADCAST] = 0;
    struct attention_sizes n = attention_sizes_of(c);
    int64_t full[4];
    attention_bias_shape(c, &n, full);
    for (int d = 0; c->is_present[ATTN_BIAS] && d < 4; d++)
        if (bias->shape[d] == 1 && full[d] != 1) c->param[ATTN_BIAS_BROADCAST] += 8 >> d;
    return true;
}

// Sets the sizes that follow from others.
static void complete(struct op_case *c) {
    struct attention_sizes n = attention_sizes_of(c);
    c->param[ATTN_KV_HEADS] = (double)n.kv_heads;
    c->param[ATTN_HEAD_DIM_V] = (double)n.head_dim_v;
}

// ---- Work -------------------------------------------------------------------------------------

// Two products for every visible pair of query and key.
static double forward_flops(const struct op_case *c) {
    struct attention_sizes n = attention_sizes_of(c);
    return 2 * attention_visible_pairs(c) * (double)n.heads * (double)(n.head_dim + n.head_dim_v);
}

// Five products, as every paper counts them: the scores again, dout v, dq, dk and dv.
static double backward_flops(const struct op_case *c) { return 2.5 * forward_flops(c); }

// ---- The two descriptions ---------------------------------------------------------------------

// B4 H8 D64, with a smaller batch and fewer heads for long sequences.
#define STANDARD(extra)                                                                            \
    "batch_size=4 num_heads=8 seqlen_q=256 seqlen_k=256" extra,                                    \
        "batch_size=4 num_heads=8 seqlen_q=512 seqlen_k=512" extra,                                \
        "batch_size=4 num_heads=8 seqlen_q=1024 seqlen_k=1024" extra,                              \
        "batch_size=1 num_heads=8 seqlen_q=2048 seqlen_k=2048" extra,                              \
        "batch_size=1 num_heads=2 seqlen_q=4096 seqlen_k=4096" extra, NULL
static const char *const forward_standard[] = {STANDARD("")};
static const char *const backward_standard[] = {STANDARD(" +dq +dk +dv")};

const struct op_spec attention_forward_spec = {
    .op = "attention_forward",
    .command = "attention",
    .pass = "forward",
    .params = params,
    .slots = forward_slots,
    .shape = slot_shape,
    .infer = infer,
    .complete = complete,
    .call = attention_call_forward,
    .flops = forward_flops,
    .traffic = attention_traffic,
    .randomize = attention_randomize,
    .fill = attention_fill,
    .bound = attention_forward_bound,
    .edges = attention_forward_edges,
    .standard = forward_standard,
    .baseline = "naive",
};

const struct op_spec attention_backward_spec = {
    .op = "attention_backward",
    .command = "attention",
    .pass = "backward",
    .params = params,
    .slots = backward_slots,
    .shape = slot_shape,
    .infer = infer,
    .complete = complete,
    .call = attention_call_backward,
    .flops = backward_flops,
    .traffic = attention_traffic,
    .randomize = attention_randomize,
    .fill = attention_fill,
    .bound = attention_backward_bound,
    .edges = attention_backward_edges,
    .standard = backward_standard,
    .baseline = "naive",
};
