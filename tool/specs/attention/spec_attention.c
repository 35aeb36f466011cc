// SPDX-License-Identifier: Apache-2.0
// Attention for verify, bench, apply and report: parameters, tensors, calls, work. Cases, fills and bounds
// are in the other files of the name.
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
    {"alibi_batch", "1: alibi_slopes of every batch", PARAM_SIZE, 0, NULL},
    {"ragged", "1: lengths drawn, NaN where no query looks", PARAM_SIZE, 0, NULL},
    {"mask", "which keys a query sees", PARAM_CHOICE, 0, masks},
    {"window_left", "keys kept before the diagonal one; -1: all", PARAM_INT, -1, NULL},
    {"window_right", "keys kept after the diagonal one; -1: all", PARAM_INT, -1, NULL},
    {"softmax_scale", "factor of q k; 0: 1 / sqrt(head_dim)", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"softcap", "scores become softcap tanh(score / softcap); 0: they do not", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"dropout_p", "share of the weights that are dropped", PARAM_REAL, 0, NULL},
    {"seed", "of dropout", PARAM_INT, 0, NULL, .most = 9e15},
    {"offset", "of dropout's counter", PARAM_INT, 0, NULL, .most = 9e15},
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

// ---- Sizes ------------------------------------------------------------------------------------

static int64_t or_else(double value, int64_t standard) {
    return value != 0 ? (int64_t)value : standard;
}

struct attention_sizes attention_sizes_of(const struct op_case *c) {
    const double *p = c->param;
    struct attention_sizes n = {.is_packed = c->is_present[ATTN_CU_SEQLENS_Q]};
    n.batch = (int64_t)p[ATTN_BATCH];
    n.seqlen_q = n.total_q = (int64_t)p[ATTN_SEQLEN_Q];
    n.seqlen_k = n.total_k = (int64_t)p[ATTN_SEQLEN_K];
    n.heads = (int64_t)p[ATTN_HEADS];
    n.kv_heads = or_else(p[ATTN_KV_HEADS], n.heads);
    n.head_dim = (int64_t)p[ATTN_HEAD_DIM];
    n.head_dim_v = or_else(p[ATTN_HEAD_DIM_V], n.head_dim);
    if (!n.is_packed) return n;
    n.total_q = or_else(p[ATTN_TOTAL_Q], n.batch * n.seqlen_q);
    n.total_k = or_else(p[ATTN_TOTAL_K], n.batch * n.seqlen_k);
    // max_seqlen 0 is the total, and no sequence is longer than that.
    if (n.seqlen_q == 0 || n.seqlen_q > n.total_q) n.seqlen_q = n.total_q;
    if (n.seqlen_k == 0 || n.seqlen_k > n.total_k) n.seqlen_k = n.total_k;
    return n;
}

static int main_shape(const struct attention_sizes *n, bool is_k, int64_t dim, int64_t *shape) {
    int ndim = 0;
    if (!n->is_packed) shape[ndim++] = n->batch;
    shape[ndim++] = is_k ? n->total_k : n->total_q;
    shape[ndim++] = is_k ? n->kv_heads : n->heads;
    shape[ndim++] = dim;
    return ndim;
}

static int bias_shape(const struct op_case *c, const struct attention_sizes *n, int64_t *shape) {
    const int64_t full[4] = {n->batch, n->heads, n->seqlen_q, n->seqlen_k};
    for (int d = 0; d < 4; d++)
        shape[d] = (int)c->param[ATTN_BIAS_BROADCAST] & 8 >> d ? 1 : full[d];
    return 4;
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
    case ATTN_DBIAS: return bias_shape(c, &n, shape);
    case ATTN_LSE:
        if (!n.is_packed) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        shape[ndim++] = n.total_q;
        return ndim;
    default: // a value of every head
        if (slot == ATTN_SLOPES && c->param[ATTN_SLOPES_BATCH] != 0) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        return ndim;
    }
}

// Packed sequences of a file are as long as they are said to be, else as bias is, else as their offsets make them.
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
    bias_shape(c, &n, full);
    for (int d = 0; c->is_present[ATTN_BIAS] && d < 4; d++)
        if (bias->shape[d] == 1 && full[d] != 1) c->param[ATTN_BIAS_BROADCAST] += 8 >> d;
    return true;
}

// What follows other sizes, spelt out.
static void complete(struct op_case *c) {
    struct attention_sizes n = attention_sizes_of(c);
    c->param[ATTN_KV_HEADS] = (double)n.kv_heads;
    c->param[ATTN_HEAD_DIM_V] = (double)n.head_dim_v;
}

// ---- Sequences --------------------------------------------------------------------------------

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

// NULL where the case has no data (yet).
static bool has_data(const struct op_case *c, int slot) {
    return c->is_present[slot] && c->tensor[slot].data != NULL;
}

static int64_t index_at(const struct op_case *c, int slot, int64_t i) {
    return (int64_t)tsr_load(TSR_I32, c->tensor[slot].data, i);
}

static void locate(const struct op_case *c, int cu, int64_t b, int64_t total, int64_t longest,
                   int64_t *first, int64_t *length) {
    *first = clamp(index_at(c, cu, b), 0, total);
    *length = clamp(clamp(index_at(c, cu, b + 1), *first, total) - *first, 0, longest);
}

struct attention_rows attention_rows_of(const struct op_case *c, int64_t batch) {
    struct attention_sizes n = attention_sizes_of(c);
    struct attention_rows rows = {0, 0, n.seqlen_q, n.seqlen_k};
    if (has_data(c, ATTN_CU_SEQLENS_Q) && has_data(c, ATTN_CU_SEQLENS_K)) {
        locate(c, ATTN_CU_SEQLENS_Q, batch, n.total_q, n.seqlen_q, &rows.q_first, &rows.len_q);
        locate(c, ATTN_CU_SEQLENS_K, batch, n.total_k, n.seqlen_k, &rows.k_first, &rows.len_k);
    }
    if (has_data(c, ATTN_SEQUSED_K))
        rows.len_k = clamp(index_at(c, ATTN_SEQUSED_K, batch), 0, rows.len_k);
    return rows;
}

static int64_t diagonal(const struct op_case *c, const struct attention_rows *rows, int64_t i) {
    return c->param[ATTN_MASK] == TSR_MASK_CAUSAL_TOP_LEFT ? i : i + rows->len_k - rows->len_q;
}

bool attention_sees(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                    int64_t j) {
    const double *p = c->param;
    int64_t d = diagonal(c, rows, i);
    if (p[ATTN_MASK] != TSR_MASK_NONE && j > d) return false;
    if (p[ATTN_WINDOW_LEFT] >= 0 && j < d - (int64_t)p[ATTN_WINDOW_LEFT]) return false;
    return p[ATTN_WINDOW_RIGHT] < 0 || j <= d + (int64_t)p[ATTN_WINDOW_RIGHT];
}

double attention_distance(const struct op_case *c, const struct attention_rows *rows, int64_t i,
                          int64_t j) {
    return fabs((double)(j - diagonal(c, rows, i)));
}

double attention_scale(const struct op_case *c) {
    double scale = (double)(float)c->param[ATTN_SOFTMAX_SCALE];
    return scale != 0 ? scale : 1 / sqrt(c->param[ATTN_HEAD_DIM]);
}

// ---- Elements of contiguous tensors -----------------------------------------------------------

int64_t attention_at_q(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t i, int64_t dim) {
    int64_t row = (n->is_packed ? 0 : batch * n->total_q) + rows->q_first + i;
    return (row * n->heads + head) * dim;
}

int64_t attention_at_k(const struct attention_sizes *n, const struct attention_rows *rows,
                       int64_t batch, int64_t head, int64_t j, int64_t dim) {
    int64_t row = (n->is_packed ? 0 : batch * n->total_k) + rows->k_first + j;
    return (row * n->kv_heads + head / (n->heads / n->kv_heads)) * dim;
}

int64_t attention_at_lse(const struct attention_sizes *n, const struct attention_rows *rows,
                         int64_t batch, int64_t head, int64_t i) {
    return ((n->is_packed ? 0 : batch * n->heads) + head) * n->total_q + rows->q_first + i;
}

int64_t attention_at_bias(const struct op_case *c, const struct attention_sizes *n, int64_t batch,
                          int64_t head, int64_t i, int64_t j) {
    int64_t shape[4];
    const int64_t index[4] = {batch, head, i, j};
    int64_t at = 0;
    bias_shape(c, n, shape);
    for (int d = 0; d < 4; d++) at = at * shape[d] + (shape[d] == 1 ? 0 : index[d]);
    return at;
}

// ---- Calls and work ---------------------------------------------------------------------------

// What the call is told of the longest sequence: as given, else as the case has it.
static int64_t longest(const struct op_case *c, int given, int seqlen) {
    if (c->param[given] != 0) return (int64_t)c->param[given];
    return c->is_present[ATTN_CU_SEQLENS_Q] ? (int64_t)c->param[seqlen] : 0;
}

// Absent tensors are {0} in the case.
#define SHARED_FIELDS                                                                              \
    .flags = c->flags, .variant = variant, .workspace = workspace, .workspace_bytes = given_bytes, \
    .q = c->tensor[ATTN_Q], .k = c->tensor[ATTN_K], .v = c->tensor[ATTN_V],                        \
    .bias = c->tensor[ATTN_BIAS], .alibi_slopes = c->tensor[ATTN_SLOPES],                          \
    .sinks = c->tensor[ATTN_SINKS], .cu_seqlens_q = c->tensor[ATTN_CU_SEQLENS_Q],                  \
    .cu_seqlens_k = c->tensor[ATTN_CU_SEQLENS_K], .seqused_k = c->tensor[ATTN_SEQUSED_K],          \
    .out = c->tensor[ATTN_OUT], .lse = c->tensor[ATTN_LSE], .mask = (tsr_mask)p[ATTN_MASK],        \
    .softmax_scale = (float)p[ATTN_SOFTMAX_SCALE], .softcap = (float)p[ATTN_SOFTCAP],              \
    .has_window_left = p[ATTN_WINDOW_LEFT] != -1, .has_window_right = p[ATTN_WINDOW_RIGHT] != -1,  \
    .window_left = (int64_t)p[ATTN_WINDOW_LEFT], .window_right = (int64_t)p[ATTN_WINDOW_RIGHT],    \
    .max_seqlen_q = longest(c, ATTN_MAX_SEQLEN_Q, ATTN_SEQLEN_Q),                                  \
    .max_seqlen_k = longest(c, ATTN_MAX_SEQLEN_K, ATTN_SEQLEN_K), .dropout_p = p[ATTN_DROPOUT_P],  \
    .seed = (uint64_t)p[ATTN_SEED], .offset = (uint64_t)p[ATTN_OFFSET]

tsr_status attention_call_forward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                  void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_attention_forward_args args = TSR_ATTENTION_FORWARD_ARGS(SHARED_FIELDS);
    return workspace_bytes != NULL ? tsr_attention_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_forward(ctx, &args);
}

static tsr_status call_backward(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    const double *p = c->param;
    tsr_attention_backward_args args = TSR_ATTENTION_BACKWARD_ARGS(
        SHARED_FIELDS, .dout = c->tensor[ATTN_DOUT], .dq = c->tensor[ATTN_DQ],
        .dk = c->tensor[ATTN_DK], .dv = c->tensor[ATTN_DV], .dbias = c->tensor[ATTN_DBIAS],
        .dsinks = c->tensor[ATTN_DSINKS]);
    return workspace_bytes != NULL ? tsr_attention_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_backward(ctx, &args);
}

double attention_visible_pairs(const struct op_case *c) {
    const double *p = c->param;
    struct attention_sizes n = attention_sizes_of(c);
    bool has_lengths = has_data(c, ATTN_CU_SEQLENS_Q) || has_data(c, ATTN_SEQUSED_K);
    double pairs = 0;
    for (int64_t b = 0; b < (has_lengths ? n.batch : n.batch > 0); b++) {
        struct attention_rows rows = attention_rows_of(c, b);
        for (int64_t i = 0; i < rows.len_q; i++) {
            int64_t d = diagonal(c, &rows, i), first = 0, last = rows.len_k - 1;
            if (p[ATTN_MASK] != TSR_MASK_NONE && last > d) last = d;
            if (p[ATTN_WINDOW_RIGHT] >= 0 && (double)last > (double)d + p[ATTN_WINDOW_RIGHT])
                last = d + (int64_t)p[ATTN_WINDOW_RIGHT];
            if (p[ATTN_WINDOW_LEFT] >= 0 && (double)d - p[ATTN_WINDOW_LEFT] > 0)
                first = d - (int64_t)p[ATTN_WINDOW_LEFT];
            if (last >= first) pairs += (double)(last - first + 1);
        }
    }
    return has_lengths ? pairs : pairs * (double)n.batch;
}

// Two products of every pair.
static double forward_flops(const struct op_case *c) {
    struct attention_sizes n = attention_sizes_of(c);
    return 2 * attention_visible_pairs(c) * (double)n.heads * (double)(n.head_dim + n.head_dim_v);
}

// Five: the scores again, dout v, and dq, dk, dv, as every paper counts them.
static double backward_flops(const struct op_case *c) { return 2.5 * forward_flops(c); }

// ---- The two descriptions ---------------------------------------------------------------------

// B4 H8 D64, with fewer of both where the sequence is long.
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
    .call = call_backward,
    .flops = backward_flops,
    .traffic = attention_traffic,
    .randomize = attention_randomize,
    .fill = attention_fill,
    .bound = attention_backward_bound,
    .edges = attention_backward_edges,
    .standard = backward_standard,
    .baseline = "naive",
};
