// SPDX-License-Identifier: Apache-2.0
// Checks of the module's tensors and options. The parts check theirs again; the sentences here name the module's own
// fields.
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "compose/self_attention/self_attention_problem.h"

enum { MAX_DIMS = 3 };

enum dtype_rule { AS_X, AS_X_OR_F32, F32 }; // F32: f64 if x is f64

// One tensor: its name, its place and what it should be.
struct field {
    const char *name;
    tsr_tensor *t;
    enum tsri_role role;
    bool is_optional;
    enum dtype_rule rule;
    int ndim;
    int64_t shape[MAX_DIMS];
};

static tsr_status check_dtype(const struct self_attention_problem *p, const struct field *f) {
    tsr_dtype x = p->x.dtype, f32 = x == TSR_F64 ? TSR_F64 : TSR_F32, got = f->t->dtype;
    if (got == (f->rule == F32 ? f32 : x) || (f->rule == AS_X_OR_F32 && got == TSR_F32))
        return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s%s", p->op, f->name,
                     tsr_dtype_name(got), tsr_dtype_name(f->rule == F32 ? f32 : x),
                     f->rule == F32    ? ""
                     : f->rule == AS_X ? " as x"
                                       : " as x, or f32");
}

static tsr_status check_field(const struct self_attention_problem *p, const struct field *f) {
    if (f->is_optional && !tsri_is_present(f->t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(p->op, f->name, f->t, f->role));
    TSRI_TRY(check_dtype(p, f));
    tsr_tensor expected = tsr_tensor_contiguous(NULL, p->x.dtype, f->ndim, f->shape);
    bool fits = f->t->ndim == f->ndim;
    for (int i = 0; fits && i < f->ndim; i++) fits = f->t->shape[i] == f->shape[i];
    char got[128], text[128];
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", p->op, f->name,
                         tsri_shape_text(f->t, got, sizeof got),
                         tsri_shape_text(&expected, text, sizeof text));
    int last = f->ndim - 1;
    if (f->t->stride[last] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[%d] is %lld, expected 1", p->op,
                         f->name, last, (long long)f->t->stride[last]);
    return f->role == TSRI_OUT ? tsri_check_apart(p->op, f->name, f->t) : TSR_OK;
}

// ---- Sizes ------------------------------------------------------------------------------------

static tsr_status check_rank(const struct self_attention_problem *p, const char *name,
                             tsr_tensor *t, int ndim, const char *expected) {
    char text[128];
    TSRI_TRY(tsri_check_tensor(p->op, name, t, TSRI_IN));
    if (t->ndim == ndim) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", p->op, name,
                     tsri_shape_text(t, text, sizeof text), expected);
}

static tsr_status check_heads(struct self_attention_problem *p) {
    const struct self_attention_options *o = &p->options;
    if (o->num_heads < 1 || o->num_heads > TSRI_MAX_ELEMENTS)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: num_heads is %lld, expected 1 or more", p->op,
                         (long long)o->num_heads);
    if (o->num_kv_heads < 0 || o->num_kv_heads > o->num_heads ||
        (o->num_kv_heads > 0 && o->num_heads % o->num_kv_heads != 0))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: num_kv_heads is %lld, expected a divisor of num_heads, %lld", p->op,
                         (long long)o->num_kv_heads, (long long)o->num_heads);
    p->num_heads = o->num_heads;
    p->num_kv_heads = o->num_kv_heads > 0 ? o->num_kv_heads : o->num_heads;
    return TSR_OK;
}

static tsr_status check_sizes(struct self_attention_problem *p) {
    TSRI_TRY(check_rank(p, "x", &p->x, 3, "(batch, seqlen, embed_dim)"));
    TSRI_TRY(tsri_check_float(p->op, "x", &p->x));
    TSRI_TRY(check_heads(p));
    TSRI_TRY(check_rank(p, "w_qkv", &p->w_qkv, 2, "(qkv_dim, embed_dim)"));
    int64_t num_heads = p->num_heads + 2 * p->num_kv_heads, rows;
    p->batch = p->x.shape[0];
    p->seqlen = p->x.shape[1];
    p->embed_dim = p->x.shape[2];
    p->qkv_dim = p->w_qkv.shape[0];
    if (p->qkv_dim == 0 || p->qkv_dim % num_heads != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: w_qkv has %lld rows, expected a multiple of num_heads + 2 "
                         "num_kv_heads, %lld",
                         p->op, (long long)p->qkv_dim, (long long)num_heads);
    p->head_dim = p->qkv_dim / num_heads;
    p->attention_dim = p->num_heads * p->head_dim;
    // The tensors between the parts may be larger than all tensors of the caller.
    if (__builtin_mul_overflow(p->batch, p->seqlen, &rows) ||
        rows > TSRI_MAX_ELEMENTS / tsri_max(p->qkv_dim, p->embed_dim))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: batch seqlen is %lld x %lld, expected fewer rows: qkv would span "
                         "more than 2^48 elements",
                         p->op, (long long)p->batch, (long long)p->seqlen);
    return TSR_OK;
}

// ---- RoPE -------------------------------------------------------------------------------------

static tsr_status check_tables(struct self_attention_problem *p) {
    const tsr_tensor *present = tsri_is_present(&p->cos) ? &p->cos : &p->sin;
    bool is_cos = present == &p->cos;
    if (!tsri_is_present(present)) return TSR_OK;
    if (!tsri_is_present(is_cos ? &p->sin : &p->cos))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected it beside %s", p->op,
                         is_cos ? "sin" : "cos", is_cos ? "cos" : "sin");
    char text[128];
    TSRI_TRY(check_rank(p, "cos", &p->cos, 2, "(num_positions, rotary_dim / 2)"));
    if (p->cos.shape[0] < p->seqlen || p->cos.shape[1] < 1 || p->cos.shape[1] > p->head_dim / 2)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cos has shape %s, expected at least %lld positions and 1 to %lld "
                         "pairs",
                         p->op, tsri_shape_text(&p->cos, text, sizeof text), (long long)p->seqlen,
                         (long long)(p->head_dim / 2));
    return TSR_OK;
}

// ---- Options ----------------------------------------------------------------------------------

// Attention's own check of the options that it shares with the module, on views whose data is not read. Its sentence
// then names the module.
static tsr_status check_options(const struct self_attention_problem *p) {
    const struct self_attention_options *o = &p->options;
    char *nowhere = SELF_ATTENTION_NOWHERE;
    tsr_tensor q = TSR_TENSOR(nowhere, p->x.dtype, 0, p->seqlen, p->num_heads, p->head_dim);
    tsr_tensor k = TSR_TENSOR(nowhere, p->x.dtype, 0, p->seqlen, p->num_kv_heads, p->head_dim);
    size_t bytes;
    q.device = k.device = p->x.device;
    tsr_status status = tsr_attention_forward_prepare(
        p->ctx,
        &TSR_ATTENTION_FORWARD_ARGS(.workspace = nowhere, .q = q, .k = k, .v = k, .out = q,
                                    .mask = o->mask, .softmax_scale = o->softmax_scale,
                                    .softcap = o->softcap, .has_window_left = o->has_window_left,
                                    .has_window_right = o->has_window_right,
                                    .window_left = o->window_left, .window_right = o->window_right,
                                    .dropout_p = o->dropout_p),
        &bytes);
    if (status == TSR_OK) return TSR_OK;
    char sentence[512];
    const char *error = tsr_last_error(), *colon = strchr(error, ':');
    snprintf(sentence, sizeof sentence, "%s", colon != NULL ? colon : error);
    return tsri_fail(status, "%s%s", p->op, sentence);
}

// ---- The whole --------------------------------------------------------------------------------

enum { NUM_FIELDS = 16 };

// Inputs come first. Tensors of the other pass are absent and optional.
static void list_fields(struct self_attention_problem *p, struct field *fields) {
    int64_t b = p->batch, s = p->seqlen, e = p->embed_dim, q = p->qkv_dim, a = p->attention_dim;
    int64_t h = p->num_heads, positions = p->cos.shape[0], pairs = p->cos.shape[1];
    bool is_backward = p->is_backward;
    enum tsri_role saved = is_backward ? TSRI_IN : TSRI_OUT;
    const struct field all[NUM_FIELDS] = {
        {"x", &p->x, TSRI_IN, false, AS_X, 3, {b, s, e}},
        {"w_qkv", &p->w_qkv, TSRI_IN, false, AS_X, 2, {q, e}},
        {"b_qkv", &p->b_qkv, TSRI_IN, true, AS_X_OR_F32, 1, {q}},
        {"w_out", &p->w_out, TSRI_IN, false, AS_X, 2, {e, a}},
        {"b_out", &p->b_out, TSRI_IN, true, AS_X_OR_F32, 1, {e}},
        {"cos", &p->cos, TSRI_IN, true, F32, 2, {positions, pairs}},
        {"sin", &p->sin, TSRI_IN, true, F32, 2, {positions, pairs}},
        {"qkv", &p->qkv, saved, !is_backward, AS_X, 3, {b, s, q}},
        {"attention", &p->attention, saved, !is_backward, AS_X, 3, {b, s, a}},
        {"lse", &p->lse, saved, !is_backward, F32, 3, {b, h, s}},
        {is_backward ? "dy" : "y",
         is_backward ? &p->dy : &p->y,
         is_backward ? TSRI_IN : TSRI_OUT,
         false,
         AS_X,
         3,
         {b, s, e}},
        {"dx", &p->dx, TSRI_OUT, true, AS_X, 3, {b, s, e}},
        {"dw_qkv", &p->dw_qkv, TSRI_OUT, true, AS_X, 2, {q, e}},
        {"db_qkv", &p->db_qkv, TSRI_OUT, true, AS_X_OR_F32, 1, {q}},
        {"dw_out", &p->dw_out, TSRI_OUT, true, AS_X, 2, {e, a}},
        {"db_out", &p->db_out, TSRI_OUT, true, AS_X_OR_F32, 1, {e}},
    };
    memcpy(fields, all, sizeof all);
}

tsr_status self_attention_check(struct self_attention_problem *p) {
    TSRI_TRY(check_sizes(p));
    TSRI_TRY(check_tables(p));
    struct field fields[NUM_FIELDS];
    list_fields(p, fields);
    for (int i = 0; i < NUM_FIELDS; i++) TSRI_TRY(check_field(p, &fields[i]));
    for (int out = 0; out < NUM_FIELDS; out++)
        for (int other = 0; other < NUM_FIELDS; other++)
            if (fields[out].role == TSRI_OUT && other != out &&
                (fields[other].role == TSRI_IN || other < out))
                TSRI_TRY(tsri_check_disjoint(p->op, fields[out].name, fields[out].t,
                                             fields[other].name, fields[other].t, false));
    // The checks of the parts must not change the variant of this call.
    const char *variant = tsr_context_last_variant(p->ctx);
    size_t bytes;
    tsr_status status = check_options(p);
    // Every part accepts its arguments.
    if (status == TSR_OK) status = self_attention_workspace(p, NULL, 0, &bytes);
    tsri_context_set_variant(p->ctx, variant);
    return status;
}
