// SPDX-License-Identifier: Apache-2.0
// Attention over a cache for verify, bench, apply and report: parameters, tensors, call, work. The other files
// spec_attention_decode_* have sizes, cases and fills, edge cases and bounds.
#include "specs/attention/spec_attention_decode.h"

#include <math.h>

static const char *const masks[] = {"none", "causal", NULL};

static const struct param_spec params[] = {
    {"batch_size", "sequences", PARAM_SIZE, 16, NULL},
    {"seqlen_q", "new tokens of a sequence; packed: of the longest", PARAM_SIZE, 1, NULL},
    {"seqlen_k", "keys of a sequence, including the new ones", PARAM_SIZE, 8192, NULL},
    {"num_heads", "heads of q", PARAM_SIZE, 32, NULL},
    {"num_kv_heads", "heads of the cache", PARAM_SIZE, 8, NULL},
    {"head_dim", "columns of q and k", PARAM_SIZE, 128, NULL},
    {"head_dim_v", "columns of v; 0: as q", PARAM_SIZE, 0, NULL},
    {"capacity", "room of the cache, in keys; 0: seqlen_k", PARAM_SIZE, 0, NULL},
    {"page_size", "with page_table: keys of a page", PARAM_SIZE, 16, NULL},
    {"num_pages", "with page_table: pages, with cache_batch_idx: slots; 0: as many as needed",
     PARAM_SIZE, 0, NULL},
    {"total_q", "packed: rows of q; 0: batch_size times seqlen_q", PARAM_SIZE, 0, NULL},
    {"rotary_dim", "with cos: rotated elements of a head; 0: all", PARAM_SIZE, 0, NULL},
    {"num_positions", "with cos: rows of the tables; 0: capacity + 1", PARAM_SIZE, 0, NULL},
    {"alibi_batch", "1: alibi_slopes for every batch", PARAM_SIZE, 0, NULL},
    {"tree_batch", "1: tree_mask for every batch", PARAM_SIZE, 0, NULL},
    {"e4m3", "1: caches of e4m3, with k_scale and v_scale", PARAM_SIZE, 0, NULL},
    {"scale_dims", "of k_scale and v_scale: 0 to 2", PARAM_SIZE, 0, NULL},
    {"ragged", "1: random lengths, NaN where no query looks", PARAM_SIZE, 0, NULL},
    {"mask", "which keys a query sees", PARAM_CHOICE, 1, masks},
    {"interleaved", "RoPE pairs (2i, 2i + 1)", PARAM_FLAG, 0, NULL},
    {"window_left", "keys kept before the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"window_right", "keys kept after the diagonal key; -1: all", PARAM_INT, -1, NULL},
    {"softmax_scale", "factor of q k; 0: 1 / sqrt(head_dim)", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"softcap", "scores become softcap tanh(score / softcap); 0: unchanged", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"max_seqlen_q", "packed: new tokens of a sequence that count; 0: all", PARAM_INT, 0, NULL},
    {"max_seqlen_k", "keys of a sequence that count; 0: all", PARAM_INT, 0, NULL},
    {"norm_eps", "added to the mean of squares by q_norm and k_norm", PARAM_REAL, 1e-6, NULL,
     PARAM_FLOAT},
    {"zero_centered_weight", "q_norm and k_norm are weights minus 1", PARAM_FLAG, 0, NULL},
    {0},
};
static const double standard_eps = 1e-6; // the library's

static const struct slot_spec slots[] = {
    {"cu_seqlens_q", SLOT_IN, SLOT_I32, true, NULL, false},
    {"cache_seqlens", SLOT_IN, SLOT_I32, false, NULL, false},
    {"leftpad_k", SLOT_IN, SLOT_I32, true, NULL, false},
    {"page_table", SLOT_IN, SLOT_I32, true, NULL, false},
    {"cache_batch_idx", SLOT_IN, SLOT_I32, true, NULL, false},
    {"tree_mask", SLOT_IN, SLOT_U8, true, NULL, false},
    {"q", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"k_new", SLOT_IN, SLOT_MAIN, true, NULL, false},
    {"v_new", SLOT_IN, SLOT_MAIN, true, NULL, false},
    {"cos", SLOT_IN, SLOT_F32, true, NULL, false},
    {"sin", SLOT_IN, SLOT_F32, true, NULL, false},
    {"q_norm", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"k_norm", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"k_scale", SLOT_IN, SLOT_F32, true, NULL, false},
    {"v_scale", SLOT_IN, SLOT_F32, true, NULL, false},
    {"alibi_slopes", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"sinks", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"k_cache", SLOT_INOUT, SLOT_MAIN, false, NULL, false},
    {"v_cache", SLOT_INOUT, SLOT_MAIN, false, NULL, false},
    {"out", SLOT_OUT, SLOT_MAIN, false, NULL, false},
    {"lse", SLOT_OUT, SLOT_F32, true, NULL, false},
    {0},
};

// ---- Shapes -----------------------------------------------------------------------------------

static int slot_shape(const struct op_case *c, int slot, int64_t *shape) {
    struct decode_sizes n = decode_sizes_of(c);
    bool is_kv = slot == DEC_K_NEW || slot == DEC_V_NEW;
    bool is_v = slot == DEC_V_NEW || slot == DEC_V_CACHE || slot == DEC_OUT;
    int ndim = 0;
    switch (slot) {
    case DEC_CU_SEQLENS_Q: shape[0] = n.batch + 1; return 1;
    case DEC_CACHE_SEQLENS:
    case DEC_LEFTPAD_K:
    case DEC_CACHE_BATCH_IDX: shape[0] = n.batch; return 1;
    case DEC_PAGE_TABLE:
        shape[0] = n.batch;
        shape[1] = n.max_pages;
        return 2;
    case DEC_COS:
    case DEC_SIN:
        shape[0] = n.num_positions;
        shape[1] = n.rotary_dim / 2;
        return 2;
    case DEC_Q_NORM:
    case DEC_K_NORM: shape[0] = n.head_dim; return 1;
    case DEC_SLOPES:
    case DEC_SINKS:
        if (slot == DEC_SLOPES && c->param[DEC_ALIBI_BATCH] != 0) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        return ndim;
    case DEC_TREE_MASK:
        if (c->param[DEC_TREE_BATCH] != 0) shape[ndim++] = n.batch;
        shape[ndim++] = n.seqlen_q;
        shape[ndim++] = n.seqlen_q;
        return ndim;
    case DEC_K_SCALE:
    case DEC_V_SCALE:
        if (c->param[DEC_SCALE_DIMS] > 1) shape[ndim++] = n.batch;
        if (c->param[DEC_SCALE_DIMS] > 0) shape[ndim++] = n.kv_heads;
        return ndim;
    case DEC_K_CACHE:
    case DEC_V_CACHE:
        shape[ndim++] = n.num_pages;
        shape[ndim++] = n.page_size;
        shape[ndim++] = n.kv_heads;
        shape[ndim++] = is_v ? n.head_dim_v : n.head_dim;
        return ndim;
    case DEC_LSE:
        if (!n.is_packed) shape[ndim++] = n.batch;
        shape[ndim++] = n.heads;
        shape[ndim++] = n.total_q;
        return ndim;
    default:
        if (!n.is_packed) shape[ndim++] = n.batch;
        shape[ndim++] = n.total_q;
        shape[ndim++] = is_kv ? n.kv_heads : n.heads;
        shape[ndim++] = is_v ? n.head_dim_v : n.head_dim;
        return ndim;
    }
}

static tsr_dtype slot_dtype(const struct op_case *c, int slot) {
    const bool is_cache = slot == DEC_K_CACHE || slot == DEC_V_CACHE;
    if (is_cache && c->param[DEC_E4M3] != 0 && c->dtype != TSR_F64) return TSR_E4M3;
    switch (slots[slot].kind) {
    case SLOT_I32: return TSR_I32;
    case SLOT_U8: return TSR_U8;
    case SLOT_SMALL: return c->small_dtype;
    case SLOT_F32: return c->dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    default: return c->dtype;
    }
}

static bool infer(struct op_case *c) {
    const tsr_tensor *q = &c->tensor[DEC_Q], *k = &c->tensor[DEC_K_CACHE];
    const tsr_tensor *v = &c->tensor[DEC_V_CACHE], *table = &c->tensor[DEC_PAGE_TABLE];
    const tsr_tensor *cosines = &c->tensor[DEC_COS], *cu = &c->tensor[DEC_CU_SEQLENS_Q];
    bool is_packed = c->is_present[DEC_CU_SEQLENS_Q], is_paged = c->is_present[DEC_PAGE_TABLE];
    double *p = c->param;
    if (q->ndim != (is_packed ? 3 : 4) || k->ndim != 4 || v->ndim != 4 ||
        (is_packed && (cu->ndim != 1 || cu->shape[0] < 1)) || (is_paged && table->ndim != 2) ||
        (c->is_present[DEC_COS] && cosines->ndim != 2))
        return false;
    p[DEC_BATCH] = (double)(is_packed ? cu->shape[0] - 1 : q->shape[0]);
    p[DEC_SEQLEN_Q] = p[DEC_TOTAL_Q] = (double)q->shape[q->ndim - 3];
    p[DEC_HEADS] = (double)q->shape[q->ndim - 2];
    p[DEC_HEAD_DIM] = (double)q->shape[q->ndim - 1];
    p[DEC_KV_HEADS] = (double)k->shape[2];
    p[DEC_HEAD_DIM_V] = (double)v->shape[3];
    p[DEC_PAGE_SIZE] = p[DEC_CAPACITY] = p[DEC_SEQLEN_K] = (double)k->shape[1];
    p[DEC_NUM_PAGES] = (double)k->shape[0];
    if (is_paged) {
        p[DEC_CAPACITY] = p[DEC_SEQLEN_K] = (double)(k->shape[1] * table->shape[1]);
    }
    if (c->is_present[DEC_COS]) {
        p[DEC_NUM_POSITIONS] = (double)cosines->shape[0];
        p[DEC_ROTARY_DIM] = 2 * (double)cosines->shape[1];
    }
    p[DEC_TREE_BATCH] = c->is_present[DEC_TREE_MASK] && c->tensor[DEC_TREE_MASK].ndim == 3 ? 1 : 0;
    p[DEC_E4M3] = k->dtype == TSR_E4M3;
    p[DEC_SCALE_DIMS] = c->is_present[DEC_K_SCALE] ? c->tensor[DEC_K_SCALE].ndim : 0;
    p[DEC_ALIBI_BATCH] = c->is_present[DEC_SLOPES] && c->tensor[DEC_SLOPES].ndim == 2 ? 1 : 0;
    return true;
}

static void complete(struct op_case *c) {
    c->param[DEC_HEAD_DIM_V] = (double)decode_sizes_of(c).head_dim_v;
    c->is_present[DEC_K_SCALE] = c->is_present[DEC_V_SCALE] = c->param[DEC_E4M3] != 0;
}

// ---- Call and work ----------------------------------------------------------------------------

// max_seqlen_q for the call: the given one, else the case's.
static int64_t longest_q(const struct op_case *c) {
    if (c->param[DEC_MAX_SEQLEN_Q] != 0) return (int64_t)c->param[DEC_MAX_SEQLEN_Q];
    return c->is_present[DEC_CU_SEQLENS_Q] ? (int64_t)c->param[DEC_SEQLEN_Q] : 0;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    const double *p = c->param;
    bool has_eps = p[DEC_NORM_EPS] != standard_eps; // else the library's default is tested
    tsr_attention_decode_args args = TSR_ATTENTION_DECODE_ARGS(
            .flags = c->flags, .variant = variant, .workspace = workspace,
            .workspace_bytes = given_bytes, .q = c->tensor[DEC_Q], .k_new = c->tensor[DEC_K_NEW],
            .v_new = c->tensor[DEC_V_NEW], .k_cache = c->tensor[DEC_K_CACHE],
            .v_cache = c->tensor[DEC_V_CACHE], .cache_seqlens = c->tensor[DEC_CACHE_SEQLENS],
            .leftpad_k = c->tensor[DEC_LEFTPAD_K], .page_table = c->tensor[DEC_PAGE_TABLE],
            .cache_batch_idx = c->tensor[DEC_CACHE_BATCH_IDX],
            .cu_seqlens_q = c->tensor[DEC_CU_SEQLENS_Q], .cos = c->tensor[DEC_COS],
            .sin = c->tensor[DEC_SIN], .alibi_slopes = c->tensor[DEC_SLOPES],
            .sinks = c->tensor[DEC_SINKS], .out = c->tensor[DEC_OUT], .lse = c->tensor[DEC_LSE],
            .mask = (tsr_mask)p[DEC_MASK], .softmax_scale = (float)p[DEC_SOFTMAX_SCALE],
            .softcap = (float)p[DEC_SOFTCAP], .interleaved = p[DEC_INTERLEAVED] != 0,
            .has_window_left = p[DEC_WINDOW_LEFT] != -1,
            .has_window_right = p[DEC_WINDOW_RIGHT] != -1,
            .window_left = (int64_t)p[DEC_WINDOW_LEFT],
            .window_right = (int64_t)p[DEC_WINDOW_RIGHT], .max_seqlen_q = longest_q(c),
            .max_seqlen_k = (int64_t)p[DEC_MAX_SEQLEN_K], .q_norm = c->tensor[DEC_Q_NORM],
            .k_norm = c->tensor[DEC_K_NORM], .norm_eps = has_eps ? (float)p[DEC_NORM_EPS] : 0,
            .has_norm_eps = has_eps, .zero_centered_weight = p[DEC_ZERO_CENTERED] != 0,
            .k_scale = c->tensor[DEC_K_SCALE], .v_scale = c->tensor[DEC_V_SCALE],
            .tree_mask = c->tensor[DEC_TREE_MASK]);
    return workspace_bytes != NULL ? tsr_attention_decode_prepare(ctx, &args, workspace_bytes)
                                   : tsr_attention_decode(ctx, &args);
}

// Counts the visible pairs of query and key, and the keys that any query sees, of all sequences.
static void count(const struct op_case *c, double *pairs, double *keys) {
    const double *p = c->param;
    struct decode_sizes n = decode_sizes_of(c);
    *pairs = *keys = 0;
    for (int64_t b = 0; b < n.batch; b++) {
        struct decode_rows rows = decode_rows_of(c, b);
        double first = (double)rows.len_k, last = 0;
        for (int64_t i = 0; i < rows.len_q; i++) {
            double d = (double)(i + rows.len_k - rows.len_q), low = 0, high = (double)rows.len_k;
            if (p[DEC_WINDOW_LEFT] >= 0) low = fmax(low, d - p[DEC_WINDOW_LEFT]);
            if (p[DEC_WINDOW_RIGHT] >= 0) high = fmin(high, d + p[DEC_WINDOW_RIGHT] + 1);
            if (p[DEC_MASK] != TSR_MASK_NONE) high = fmin(high, d + 1);
            if (low >= high) continue;
            *pairs += high - low;
            first = fmin(first, low);
            last = fmax(last, high);
        }
        *keys += fmax(last - first, 0);
    }
}

static double flops(const struct op_case *c) {
    struct decode_sizes n = decode_sizes_of(c);
    double pairs, keys;
    count(c, &pairs, &keys);
    return 2 * pairs * (double)n.heads * (double)(n.head_dim + n.head_dim_v);
}

// The visible part of the caches, new keys and values, q and out, once each.
static double bytes(const struct op_case *c) {
    struct decode_sizes n = decode_sizes_of(c);
    double pairs, keys, element = (double)tsr_dtype_bytes(c->dtype);
    double cached = (double)tsr_dtype_bytes(slot_dtype(c, DEC_K_CACHE));
    double columns = (double)(n.head_dim + n.head_dim_v);
    double rows = (double)n.total_q * (n.is_packed ? 1 : (double)n.batch);
    count(c, &pairs, &keys);
    return columns * (cached * keys * (double)n.kv_heads + element * rows * (double)n.heads +
                      (n.has_new ? (element + cached) * rows * (double)n.kv_heads : 0));
}

// The written part: out, and the keys and values appended to the caches.
static double written(const struct op_case *c) {
    struct decode_sizes n = decode_sizes_of(c);
    double rows = (double)n.total_q * (n.is_packed ? 1 : (double)n.batch);
    double of_row = (double)tsr_dtype_bytes(c->dtype) * (double)(n.heads * n.head_dim_v);
    double of_key = (double)tsr_dtype_bytes(slot_dtype(c, DEC_K_CACHE)) *
                    (double)(n.kv_heads * (n.head_dim + n.head_dim_v));
    return rows * (of_row + (n.has_new ? of_key : 0));
}

static const char *const standard[] = {
    "batch_size=16 seqlen_k=8192 num_heads=32 num_kv_heads=8 head_dim=128 +k_new +v_new",
    "batch_size=16 seqlen_k=8192 num_heads=32 num_kv_heads=8 head_dim=128 +k_new +v_new "
    "+page_table",
    "batch_size=16 seqlen_k=8192 num_heads=32 num_kv_heads=8 head_dim=128 e4m3=1 scale_dims=1 "
    "+k_new +v_new +k_scale +v_scale",
    "batch_size=16 seqlen_k=8192 num_heads=8 num_kv_heads=8 head_dim=128 +k_new +v_new",
    "batch_size=16 seqlen_k=8192 num_heads=64 num_kv_heads=8 head_dim=128 +k_new +v_new",
    "batch_size=1 seqlen_k=131072 num_heads=32 num_kv_heads=8 head_dim=128 +k_new +v_new",
    "batch_size=4 seqlen_q=256 seqlen_k=4096 num_heads=32 num_kv_heads=8 head_dim=128 +k_new "
    "+v_new +cos +sin",
    NULL};

const struct op_spec attention_decode_spec = {
    .op = "attention_decode",
    .command = "attention-decode",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = slot_shape,
    .slot_dtype = slot_dtype,
    .infer = infer,
    .complete = complete,
    .call = call,
    .flops = flops,
    .bytes = bytes,
    .written = written,
    .randomize = decode_randomize,
    .fill = decode_fill,
    .bound = decode_bound,
    .edges = decode_edges,
    .standard = standard,
    .baseline = "naive",
};
