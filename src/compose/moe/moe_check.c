// SPDX-License-Identifier: Apache-2.0
// Checks of the layer's tensors and sizes. The parts check theirs again, options among them; the sentences here name the
// layer's own fields.
#include <assert.h>
#include <string.h>

#include "compose/moe/moe_problem.h"

enum { MAX_EXPERTS = 1024, MAX_TOP_K = 32 };

enum dtype_rule { AS_X, AS_X_OR_F32, REAL, INT32, AS_ROUTER, AS_WEIGHTS, AS_SHARED };

// TOKENS: x's leading dimensions, then shape[0]; WEIGHTS: 1 in one of the last two strides; ROWS: 1 in the last one;
// VECTOR: contiguous.
enum layout { TOKENS, WEIGHTS, ROWS, VECTOR };

struct field {
    const char *name;
    tsr_tensor *t;
    enum tsri_role role;
    enum { OPTIONAL, REQUIRED, EXCLUDED } presence;
    enum dtype_rule rule;
    enum layout layout;
    int ndim;
    int64_t shape[3];
};

// ---- One field --------------------------------------------------------------------------------

static tsr_status check_dtype(const struct moe_problem *p, const struct field *f) {
    const tsr_dtype x = p->x.dtype, got = f->t->dtype;
    const bool may_be_fp8 = !p->is_backward && x != TSR_F64;
    const tsr_dtype expected = f->rule == REAL        ? p->real
                               : f->rule == INT32     ? TSR_I32
                               : f->rule == AS_ROUTER ? p->router.dtype
                               : f->rule == AS_WEIGHTS && moe_is_fp8(p) && may_be_fp8 ? TSR_E4M3
                               : f->rule == AS_SHARED && moe_is_shared_fp8(p) && may_be_fp8
                                   ? TSR_E4M3
                                   : x;
    const bool may_be_f32 = f->rule == AS_X_OR_F32 || f->rule == AS_ROUTER;
    if (got == expected || (may_be_f32 && got == p->real)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s%s", p->op, f->name,
                     tsr_dtype_name(got), tsr_dtype_name(expected),
                     f->rule == AS_X_OR_F32                   ? " as x, or f32"
                     : f->rule == AS_WEIGHTS && expected != x ? " as w_up"
                     : f->rule == AS_SHARED && expected != x  ? " as shared_w_up"
                     : f->rule == AS_ROUTER                   ? " as router, or f32"
                     : f->rule == REAL || f->rule == INT32    ? ""
                                                              : " as x");
}

// Checks x's leading dimensions and shape[0], and makes the tensor (T, shape[0]).
static tsr_status check_tokens(const struct moe_problem *p, const struct field *f) {
    struct tsri_rows rows;
    tsr_tensor *t = f->t, like = p->x;
    like.shape[like.ndim - 1] = f->shape[0];
    TSRI_TRY(tsri_check_rows(p->op, f->name, t, f->role, &rows));
    char got[128], expected[128];
    bool fits = t->ndim == like.ndim;
    for (int i = 0; fits && i < t->ndim; i++) fits = t->shape[i] == like.shape[i];
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", p->op, f->name,
                         tsri_shape_text(t, got, sizeof got),
                         tsri_shape_text(&like, expected, sizeof expected));
    return TSR_OK;
}

static tsr_status check_strides(const struct moe_problem *p, const struct field *f) {
    const tsr_tensor *t = f->t;
    const int last = t->ndim - 1;
    if (f->layout == WEIGHTS && (t->stride[last] == 1 || t->stride[last - 1] == 1 ||
                                 t->shape[last] <= 1 || t->shape[last - 1] <= 1))
        return TSR_OK; // a stride that is never used counts as 1
    if (f->layout == VECTOR) return tsri_check_vector(p->op, f->name, f->t, f->role, f->shape[0]);
    if (t->stride[last] == 1) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[%d] is %lld, expected 1%s", p->op,
                     f->name, last, (long long)t->stride[last],
                     f->layout == WEIGHTS ? ", or 1 in the dimension before" : "");
}

static tsr_status check_field(const struct moe_problem *p, const struct field *f) {
    const bool is_present = tsri_is_present(f->t);
    if (!is_present && f->presence != REQUIRED) return TSR_OK;
    if (f->presence == EXCLUDED)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is present, expected it absent beside the other fields", p->op,
                         f->name);
    TSRI_TRY(tsri_check_tensor(p->op, f->name, f->t, f->role));
    TSRI_TRY(check_dtype(p, f));
    if (f->layout == TOKENS) return check_tokens(p, f);
    tsr_tensor expected = tsr_tensor_contiguous(NULL, p->x.dtype, f->ndim, f->shape);
    bool fits = f->t->ndim == f->ndim;
    for (int i = 0; fits && i < f->ndim; i++) fits = f->t->shape[i] == f->shape[i];
    char got[128], text[128];
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", p->op, f->name,
                         tsri_shape_text(f->t, got, sizeof got),
                         tsri_shape_text(&expected, text, sizeof text));
    TSRI_TRY(check_strides(p, f));
    return f->role == TSRI_OUT ? tsri_check_apart(p->op, f->name, f->t) : TSR_OK;
}

// ---- Sizes ------------------------------------------------------------------------------------

static tsr_status check_rank(const struct moe_problem *p, const char *name, tsr_tensor *t, int ndim,
                             const char *expected) {
    char text[128];
    TSRI_TRY(tsri_check_tensor(p->op, name, t, TSRI_IN));
    if (t->ndim == ndim) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", p->op, name,
                     tsri_shape_text(t, text, sizeof text), expected);
}

// Who says where tokens go.
static tsr_status check_source(struct moe_problem *p) {
    const bool has_router = tsri_is_present(&p->router), has_logits = tsri_is_present(&p->logits);
    if (has_router && has_logits)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: router and logits are both present, expected one of them", p->op);
    p->source = has_router ? MOE_ROUTER : has_logits ? MOE_LOGITS : MOE_IDS;
    if (p->source == MOE_IDS && !tsri_is_present(&p->topk_ids))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: router, logits and topk_ids are absent, expected one of them", p->op);
    return TSR_OK;
}

static tsr_status check_top_k(struct moe_problem *p) {
    const int64_t given = p->options.top_k;
    p->top_k = given;
    if (given == 0 && tsri_is_present(&p->topk_ids)) {
        TSRI_TRY(tsri_check_tensor(p->op, "topk_ids", &p->topk_ids, TSRI_IN));
        if (p->topk_ids.ndim > 0) p->top_k = p->topk_ids.shape[p->topk_ids.ndim - 1];
    }
    const int64_t most = p->source == MOE_IDS ? MAX_TOP_K : tsri_min(p->num_experts, MAX_TOP_K);
    if (p->top_k < 1 || p->top_k > most)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: top_k is %lld, expected 1 to %lld of num_experts %lld", p->op,
                         (long long)p->top_k, (long long)most, (long long)p->num_experts);
    return TSR_OK;
}

static tsr_status check_capacity(struct moe_problem *p) {
    const struct moe_options *o = &p->options;
    TSRI_TRY(tsri_check_flag(p->op, "capacity", o->has_capacity, (double)o->capacity, false));
    if (o->has_capacity && o->capacity < 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: capacity is %lld, expected 1 or more", p->op,
                         (long long)o->capacity);
    if (p->num_tokens > INT32_MAX / p->top_k)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: x has %lld tokens of %lld experts each, expected fewer than 2^31 "
                         "assignments",
                         p->op, (long long)p->num_tokens, (long long)p->top_k);
    p->num_rows = p->num_tokens * p->top_k;
    if (o->has_capacity && o->capacity <= p->num_rows)
        p->num_rows = tsri_min(p->num_rows, p->num_experts * o->capacity);
    return TSR_OK;
}

static tsr_status check_sizes(struct moe_problem *p) {
    struct tsri_rows rows;
    TSRI_TRY(tsri_check_rows(p->op, "x", &p->x, TSRI_IN, &rows));
    TSRI_TRY(tsri_check_float(p->op, "x", &p->x));
    p->real = p->x.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    p->num_tokens = rows.rows;
    p->hidden = rows.cols;
    TSRI_TRY(check_rank(p, "w_up", &p->w_up, 3, "(num_experts, intermediate, hidden)"));
    p->num_experts = p->w_up.shape[0];
    p->intermediate = p->w_up.shape[1];
    if (p->num_experts < 1 || p->num_experts > MAX_EXPERTS)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: w_up has %lld experts, expected 1 to %d", p->op,
                         (long long)p->num_experts, MAX_EXPERTS);
    if (moe_has_shared(p)) {
        TSRI_TRY(check_rank(p, "shared_w_up", &p->shared_w_up, 2, "(intermediate_s, hidden)"));
        p->shared_intermediate = p->shared_w_up.shape[0];
    }
    TSRI_TRY(check_source(p));
    TSRI_TRY(check_top_k(p));
    TSRI_TRY(check_capacity(p));
    const int64_t most = tsri_max(tsri_max(2 * p->intermediate, p->hidden), 1);
    if (p->num_rows > TSRI_MAX_ELEMENTS / most ||
        p->num_tokens > TSRI_MAX_ELEMENTS / tsri_max(2 * p->shared_intermediate, 1))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: x has %lld tokens of %lld experts each, expected fewer: preact would "
                         "span more than 2^48 elements",
                         p->op, (long long)p->num_tokens, (long long)p->top_k);
    return TSR_OK;
}

// ---- The whole --------------------------------------------------------------------------------

enum { MAX_FIELDS = 64 };

#define OF(name) #name, &p->name

enum { BLOCK = 128 }; // rows and columns of weights that share a scale

// The scale of weights (experts, rows, cols): of each expert or of blocks, as its rank says.
static struct field scale_field(const char *name, tsr_tensor *t, int presence, int64_t experts,
                                int64_t rows, int64_t cols) {
    if (t->ndim == 1) return (struct field){name, t, TSRI_IN, presence, REAL, VECTOR, 1, {experts}};
    return (struct field){
        name, t,       TSRI_IN, presence,
        REAL, WEIGHTS, 3,       {experts, tsri_ceil_div(rows, BLOCK), tsri_ceil_div(cols, BLOCK)}};
}

// The scales of some weights, of which any are present: with fp8 all are needed, in f64 all or none.
static int scales_presence(const struct moe_problem *p, bool is_fp8, bool has_any) {
    if (p->is_backward) return OPTIONAL;
    if (p->x.dtype == TSR_F64) return has_any ? REQUIRED : OPTIONAL;
    return is_fp8 ? REQUIRED : EXCLUDED;
}

// Inputs come first. Tensors of the other pass are absent and optional.
static int list_fields(struct moe_problem *p, struct field *fields) {
    const int64_t e = p->num_experts, i = p->intermediate, h = p->hidden, k = p->top_k;
    const int64_t s = p->shared_intermediate, rows = p->num_rows, tokens = p->num_tokens;
    const int64_t cols = moe_preact_cols(p, i), shared_cols = moe_preact_cols(p, s);
    const bool is_backward = p->is_backward, is_gated = moe_is_gated(p),
               has_shared = moe_has_shared(p);
    const enum tsri_role saved = is_backward ? TSRI_IN : TSRI_OUT;
    const enum tsri_role choice = is_backward || p->source == MOE_IDS ? TSRI_IN : TSRI_OUT;
    const int need = REQUIRED, may = OPTIONAL, no = EXCLUDED;
    const int chosen = choice == TSRI_IN ? need : may, routed = p->source == MOE_IDS ? no : may;
    const int with_router = p->source == MOE_ROUTER ? may : no, with_gate = is_gated ? may : no;
    const int with_shared = has_shared ? may : no;
    const bool has_scales = tsri_is_present(&p->w_gate_scale) || tsri_is_present(&p->w_up_scale) ||
                            tsri_is_present(&p->w_down_scale);
    const bool has_shared_scales = tsri_is_present(&p->shared_w_gate_scale) ||
                                   tsri_is_present(&p->shared_w_up_scale) ||
                                   tsri_is_present(&p->shared_w_down_scale);
    const int scaled = scales_presence(p, moe_is_fp8(p), has_scales);
    const int shared_scaled =
        has_shared ? scales_presence(p, moe_is_shared_fp8(p), has_shared_scales) : no;
    const int64_t of_h = tsri_ceil_div(h, BLOCK), of_s = tsri_ceil_div(s, BLOCK);
    const int shared_gated = !has_shared || !is_gated ? no : need;
    const struct field all[] = {
        {OF(x), TSRI_IN, need, AS_X, TOKENS, 0, {h}},
        {OF(router), TSRI_IN, may, AS_X_OR_F32, ROWS, 2, {e, h}},
        {OF(logits_bias), TSRI_IN, with_router, AS_X_OR_F32, VECTOR, 1, {e}},
        {OF(logits), TSRI_IN, may, REAL, TOKENS, 0, {e}},
        {OF(correction_bias), TSRI_IN, routed, REAL, VECTOR, 1, {e}},
        {OF(w_gate), TSRI_IN, may, AS_WEIGHTS, WEIGHTS, 3, {e, i, h}},
        {OF(w_up), TSRI_IN, need, AS_WEIGHTS, WEIGHTS, 3, {e, i, h}},
        {OF(w_down), TSRI_IN, need, AS_WEIGHTS, WEIGHTS, 3, {e, h, i}},
        scale_field(OF(w_gate_scale), is_gated ? scaled : no, e, i, h),
        scale_field(OF(w_up_scale), scaled, e, i, h),
        scale_field(OF(w_down_scale), scaled, e, h, i),
        {OF(b_gate), TSRI_IN, with_gate, AS_X_OR_F32, ROWS, 2, {e, i}},
        {OF(b_up), TSRI_IN, may, AS_X_OR_F32, ROWS, 2, {e, i}},
        {OF(b_down), TSRI_IN, may, AS_X_OR_F32, ROWS, 2, {e, h}},
        {OF(shared_w_gate), TSRI_IN, shared_gated, AS_SHARED, WEIGHTS, 2, {s, h}},
        {OF(shared_w_up), TSRI_IN, may, AS_SHARED, WEIGHTS, 2, {s, h}},
        {OF(shared_w_down), TSRI_IN, has_shared ? need : no, AS_SHARED, WEIGHTS, 2, {h, s}},
        {OF(shared_w_gate_scale),
         TSRI_IN,
         is_gated ? shared_scaled : no,
         REAL,
         WEIGHTS,
         2,
         {of_s, of_h}},
        {OF(shared_w_up_scale), TSRI_IN, shared_scaled, REAL, WEIGHTS, 2, {of_s, of_h}},
        {OF(shared_w_down_scale), TSRI_IN, shared_scaled, REAL, WEIGHTS, 2, {of_h, of_s}},
        {OF(shared_gate), TSRI_IN, with_shared, AS_X, VECTOR, 1, {h}},
        {OF(preact), saved, is_backward ? need : may, AS_X, ROWS, 2, {rows, cols}},
        {OF(shared_preact),
         saved,
         !has_shared   ? no
         : is_backward ? need
                       : may,
         AS_X,
         ROWS,
         2,
         {tokens, shared_cols}},
        {OF(topk_ids), choice, chosen, INT32, TOKENS, 0, {k}},
        {OF(topk_weights), choice, chosen, REAL, TOKENS, 0, {k}},
        {OF(residual), TSRI_IN, may, AS_X, TOKENS, 0, {h}},
        {OF(dy), TSRI_IN, is_backward ? need : may, AS_X, TOKENS, 0, {h}},
        {OF(dload_balance_loss), TSRI_IN, routed, REAL, VECTOR, 1, {1}},
        {OF(dz_loss), TSRI_IN, routed, REAL, VECTOR, 1, {1}},
        {OF(y), TSRI_OUT, is_backward ? may : need, AS_X, TOKENS, 0, {h}},
        {OF(offsets), TSRI_OUT, may, INT32, VECTOR, 1, {e + 1}},
        {OF(tokens_per_expert), TSRI_OUT, may, INT32, VECTOR, 1, {e}},
        {OF(mean_probs), TSRI_OUT, routed, REAL, VECTOR, 1, {e}},
        {OF(load_balance_loss), TSRI_OUT, routed, REAL, VECTOR, 1, {1}},
        {OF(z_loss), TSRI_OUT, routed, REAL, VECTOR, 1, {1}},
        {OF(usage_variance), TSRI_OUT, routed, REAL, VECTOR, 1, {1}},
        {OF(num_nan_rows), TSRI_OUT, routed, INT32, VECTOR, 1, {1}},
        {OF(num_dropped), TSRI_OUT, may, INT32, VECTOR, 1, {1}},
        {OF(dx), TSRI_OUT, may, AS_X, TOKENS, 0, {h}},
        {OF(drouter), TSRI_OUT, with_router, AS_ROUTER, ROWS, 2, {e, h}},
        {OF(dlogits_bias), TSRI_OUT, with_router, AS_X_OR_F32, VECTOR, 1, {e}},
        {OF(dlogits), TSRI_OUT, p->source == MOE_LOGITS ? may : no, REAL, TOKENS, 0, {e}},
        {OF(dtopk_weights), TSRI_OUT, p->source == MOE_IDS ? may : no, REAL, TOKENS, 0, {k}},
        {OF(dw_gate), TSRI_OUT, with_gate, AS_X_OR_F32, ROWS, 3, {e, i, h}},
        {OF(dw_up), TSRI_OUT, may, AS_X_OR_F32, ROWS, 3, {e, i, h}},
        {OF(dw_down), TSRI_OUT, may, AS_X_OR_F32, ROWS, 3, {e, h, i}},
        {OF(db_gate), TSRI_OUT, with_gate, AS_X_OR_F32, ROWS, 2, {e, i}},
        {OF(db_up), TSRI_OUT, may, AS_X_OR_F32, ROWS, 2, {e, i}},
        {OF(db_down), TSRI_OUT, may, AS_X_OR_F32, ROWS, 2, {e, h}},
        {OF(dshared_w_gate), TSRI_OUT, has_shared ? with_gate : no, AS_X, ROWS, 2, {s, h}},
        {OF(dshared_w_up), TSRI_OUT, with_shared, AS_X, ROWS, 2, {s, h}},
        {OF(dshared_w_down), TSRI_OUT, with_shared, AS_X, ROWS, 2, {h, s}},
        {OF(dshared_gate),
         TSRI_OUT,
         tsri_is_present(&p->shared_gate) ? may : no,
         AS_X,
         VECTOR,
         1,
         {h}},
    };
    static_assert(sizeof all <= MAX_FIELDS * sizeof *all, "room for every field");
    memcpy(fields, all, sizeof all);
    return TSRI_COUNT(all);
}

static tsr_status check_overlaps(const struct moe_problem *p, const struct field *fields, int num) {
    for (int out = 0; out < num; out++)
        for (int other = 0; other < num; other++) {
            if (fields[out].role != TSRI_OUT || other == out ||
                (fields[other].role == TSRI_OUT && other > out))
                continue;
            bool may_be_same = fields[out].t == &p->y && fields[other].t == &p->residual;
            TSRI_TRY(tsri_check_disjoint(p->op, fields[out].name, fields[out].t, fields[other].name,
                                         fields[other].t, may_be_same));
        }
    return TSR_OK;
}

// Makes the tensors with tokens (T, cols).
static void collapse(const struct moe_problem *p, const struct field *f) {
    struct tsri_rows rows;
    if (f->layout != TOKENS || !tsri_is_present(f->t)) return;
    (void)tsri_check_rows(p->op, f->name, f->t, f->role, &rows);
    f->t->ndim = 2;
    f->t->shape[0] = rows.rows;
    f->t->shape[1] = rows.cols;
    f->t->stride[0] = rows.stride;
    f->t->stride[1] = 1;
}

tsr_status moe_check(struct moe_problem *p) {
    TSRI_TRY(check_sizes(p));
    struct field fields[MAX_FIELDS];
    const int num = list_fields(p, fields);
    for (int i = 0; i < num; i++) TSRI_TRY(check_field(p, &fields[i]));
    TSRI_TRY(check_overlaps(p, fields, num));
    for (int i = num - 1; i >= 0; i--) collapse(p, &fields[i]); // x last, to which others compare
    // The checks of the parts must not change the variant of this call.
    const char *variant = tsr_context_last_variant(p->ctx);
    size_t bytes;
    const tsr_status status = moe_workspace(p, NULL, 0, &bytes); // every part accepts its arguments
    tsri_context_set_variant(p->ctx, variant);
    return status;
}
