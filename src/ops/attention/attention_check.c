// SPDX-License-Identifier: Apache-2.0
// The contract of tessera/attention.h: args become a problem, or a status and one sentence.
#include "ops/attention/attention_check.h"

#include <math.h>

// ---- Views ------------------------------------------------------------------------------------

// Shape: (batch, seq, heads, dim); packed: (total, heads, dim).
tsr_status attention_check_view(const char *op, const char *field, tsr_tensor *t,
                                enum tsri_role role, bool is_packed, const int64_t shape[4],
                                tsr_dtype dtype, struct attention_view *view) {
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    char text[128];
    int first = is_packed ? 1 : 0, ndim = 4 - first;
    bool fits = t->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++) fits = t->shape[i] == shape[first + i];
    if (!fits && is_packed)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%lld, %lld, %lld)",
                         op, field, tsri_shape_text(t, text, sizeof text), (long long)shape[1],
                         (long long)shape[2], (long long)shape[3]);
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has shape %s, expected (%lld, %lld, %lld, %lld)", op, field,
                         tsri_shape_text(t, text, sizeof text), (long long)shape[0],
                         (long long)shape[1], (long long)shape[2], (long long)shape[3]);
    if (t->dtype != dtype)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s as q", op, field,
                         tsr_dtype_name(t->dtype), tsr_dtype_name(dtype));
    if (t->stride[ndim - 1] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.stride[%d] is %lld, expected 1 (a contiguous last dimension)", op,
                         field, ndim - 1, (long long)t->stride[ndim - 1]);
    if (role == TSRI_OUT) TSRI_TRY(tsri_check_apart(op, field, t));
    *view = (struct attention_view){.data = t->data,
                                    .dtype = dtype,
                                    .batch = is_packed ? 0 : t->stride[0],
                                    .seq = t->stride[1 - first],
                                    .head = t->stride[2 - first]};
    return TSR_OK;
}

tsr_status attention_check_small_dtype(const char *op, const char *field, const tsr_tensor *t,
                                       tsr_dtype dtype) {
    if (t->dtype == dtype || (t->dtype == TSR_F32 && dtype != TSR_F64)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected %s%s", op, field,
                     tsr_dtype_name(t->dtype), tsr_dtype_name(dtype),
                     dtype == TSR_F64 || dtype == TSR_F32 ? "" : " or f32");
}

static tsr_status check_bias(const char *op, const char *field, tsr_tensor *t, enum tsri_role role,
                             const struct attention_problem *p, struct attention_bias *bias) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(attention_check_small_dtype(op, field, t, p->dtype));
    const int64_t full[4] = {p->num_batches, p->num_heads_q, p->seqlen_q, p->seqlen_k};
    bool fits = t->ndim == 4;
    for (int i = 0; fits && i < 4; i++) fits = t->shape[i] == full[i] || t->shape[i] == 1;
    char text[128];
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s has shape %s, expected (%lld, %lld, %lld, %lld) or 1 in any of "
                         "them",
                         op, field, tsri_shape_text(t, text, sizeof text), (long long)full[0],
                         (long long)full[1], (long long)full[2], (long long)full[3]);
    if (role == TSRI_OUT) TSRI_TRY(tsri_check_apart(op, field, t));
    *bias = (struct attention_bias){.data = t->data, .dtype = t->dtype};
    for (int i = 0; i < 4; i++) {
        bias->shape[i] = t->shape[i];
        bias->stride[i] = t->shape[i] == 1 ? 0 : t->stride[i];
    }
    return TSR_OK;
}

tsr_status attention_check_per_head(const char *op, const char *field, tsr_tensor *t,
                                    enum tsri_role role, bool may_have_batch,
                                    const struct attention_problem *p,
                                    struct attention_per_head *per_head) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, field, t, role));
    TSRI_TRY(attention_check_small_dtype(op, field, t, p->dtype));
    bool has_batch = may_have_batch && t->ndim == 2;
    char text[128];
    if ((t->ndim != 1 && !has_batch) || t->shape[t->ndim - 1] != p->num_heads_q ||
        (has_batch && t->shape[0] != p->num_batches))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%lld,)%s", op, field,
                         tsri_shape_text(t, text, sizeof text), (long long)p->num_heads_q,
                         may_have_batch ? " or (batch, num_heads_q)" : "");
    if (t->stride[t->ndim - 1] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[%d] is %lld, expected 1", op, field,
                         t->ndim - 1, (long long)t->stride[t->ndim - 1]);
    *per_head = (struct attention_per_head){t->data, t->dtype, has_batch ? t->stride[0] : 0, 1};
    return TSR_OK;
}

tsr_status attention_check_lse(const char *op, tsr_tensor *t, enum tsri_role role,
                               struct attention_problem *p) {
    TSRI_TRY(tsri_check_tensor(op, "lse", t, role));
    TSRI_TRY(tsri_check_dtype(op, "lse", t, p->dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    int first = p->is_packed ? 1 : 0;
    const int64_t shape[3] = {p->num_batches, p->num_heads_q, p->total_q};
    bool fits = t->ndim == 3 - first;
    for (int i = 0; fits && i < t->ndim; i++) fits = t->shape[i] == shape[first + i];
    char text[128];
    if (!fits)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: lse has shape %s, expected %s%lld, %lld), (%snum_heads_q, %s)", op,
                         tsri_shape_text(t, text, sizeof text), p->is_packed ? "(" : "(batch, ",
                         (long long)shape[1], (long long)shape[2], p->is_packed ? "" : "batch, ",
                         p->is_packed ? "total_q" : "seqlen_q");
    if (t->stride[t->ndim - 1] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: lse.stride[%d] is %lld, expected 1", op,
                         t->ndim - 1, (long long)t->stride[t->ndim - 1]);
    if (role == TSRI_OUT) TSRI_TRY(tsri_check_apart(op, "lse", t));
    p->lse = t->data;
    p->lse_batch = p->is_packed ? 0 : t->stride[0];
    p->lse_head = t->stride[1 - first];
    return TSR_OK;
}

// ---- Sequences --------------------------------------------------------------------------------

tsr_status attention_check_offsets(const char *op, const char *field, tsr_tensor *t, int64_t count,
                                   const int32_t **data, int64_t *stride) {
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_IN));
    char text[128];
    if (t->dtype != TSR_I32)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.dtype is %s, expected i32", op, field,
                         tsr_dtype_name(t->dtype));
    if (t->ndim != 1 || t->shape[0] != count)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%lld,)", op, field,
                         tsri_shape_text(t, text, sizeof text), (long long)count);
    *data = t->data;
    *stride = t->stride[0];
    return TSR_OK;
}

static tsr_status check_sequences(const struct attention_fields *f, struct attention_problem *p) {
    const char *op = f->op;
    p->is_packed = tsri_is_present(f->cu_seqlens_q);
    if (p->is_packed != tsri_is_present(f->cu_seqlens_k))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected it beside %s", op,
                         p->is_packed ? "cu_seqlens_k" : "cu_seqlens_q",
                         p->is_packed ? "cu_seqlens_q" : "cu_seqlens_k");
    int ndim = p->is_packed ? 3 : 4;
    tsr_tensor *const all[3] = {f->q, f->k, f->v};
    static const char *const names[3] = {"q", "k", "v"};
    char text[128];
    for (int i = 0; i < 3; i++) {
        TSRI_TRY(tsri_check_tensor(op, names[i], all[i], TSRI_IN));
        if (all[i]->ndim != ndim)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected (%s%s)", op,
                             names[i], tsri_shape_text(all[i], text, sizeof text),
                             p->is_packed ? "total, " : "batch, seqlen, ", "num_heads, head_dim");
    }
    p->total_q = f->q->shape[ndim - 3];
    p->total_k = f->k->shape[ndim - 3];
    p->num_heads_q = f->q->shape[ndim - 2];
    p->num_heads_kv = f->k->shape[ndim - 2];
    p->head_dim = f->q->shape[ndim - 1];
    p->head_dim_v = f->v->shape[ndim - 1];
    p->seqlen_q = p->total_q;
    p->seqlen_k = p->total_k;
    p->num_batches = p->is_packed ? 0 : f->q->shape[0];
    if (p->is_packed) {
        if (f->max_seqlen_q < 0 || f->max_seqlen_k < 0)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: max_seqlen_%s is %lld, expected 0 or more",
                             op, f->max_seqlen_q < 0 ? "q" : "k",
                             (long long)(f->max_seqlen_q < 0 ? f->max_seqlen_q : f->max_seqlen_k));
        TSRI_TRY(tsri_check_tensor(op, "cu_seqlens_q", f->cu_seqlens_q, TSRI_IN));
        if (f->cu_seqlens_q->ndim != 1 || f->cu_seqlens_q->shape[0] < 1)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: cu_seqlens_q has shape %s, expected (batch + 1,)", op,
                             tsri_shape_text(f->cu_seqlens_q, text, sizeof text));
        p->num_batches = f->cu_seqlens_q->shape[0] - 1;
        if (f->max_seqlen_q > 0) p->seqlen_q = tsri_min(p->seqlen_q, f->max_seqlen_q);
        if (f->max_seqlen_k > 0) p->seqlen_k = tsri_min(p->seqlen_k, f->max_seqlen_k);
        TSRI_TRY(attention_check_offsets(op, "cu_seqlens_q", f->cu_seqlens_q, p->num_batches + 1,
                                         &p->cu_seqlens_q, &p->cu_stride_q));
        TSRI_TRY(attention_check_offsets(op, "cu_seqlens_k", f->cu_seqlens_k, p->num_batches + 1,
                                         &p->cu_seqlens_k, &p->cu_stride_k));
    }
    if (tsri_is_present(f->seqused_k))
        TSRI_TRY(attention_check_offsets(op, "seqused_k", f->seqused_k, p->num_batches,
                                         &p->seqused_k, &p->seqused_stride));
    return TSR_OK;
}

tsr_status attention_check_heads(const struct attention_fields *f,
                                 const struct attention_problem *p) {
    const char *op = f->op;
    if (p->head_dim < 1 || p->head_dim > ATTENTION_MAX_HEAD_DIM)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: head_dim of q is %lld, expected 1 to %d", op,
                         (long long)p->head_dim, ATTENTION_MAX_HEAD_DIM);
    if (p->head_dim_v < 1 || p->head_dim_v > ATTENTION_MAX_HEAD_DIM)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: head_dim of v is %lld, expected 1 to %d", op,
                         (long long)p->head_dim_v, ATTENTION_MAX_HEAD_DIM);
    if (p->num_heads_kv < 1 ? p->num_heads_q != 0 : p->num_heads_q % p->num_heads_kv != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: q has %lld heads and k %lld, expected a multiple of k's in q", op,
                         (long long)p->num_heads_q, (long long)p->num_heads_kv);
    return TSR_OK;
}

// ---- Scores -----------------------------------------------------------------------------------

// A larger scale may have an inverse, or a product with log2 e, that fp32 cannot hold.
#define MOST_SCALE 0x1p100f

tsr_status attention_check_scores(const struct attention_fields *f, struct attention_problem *p) {
    const struct attention_options *o = &f->options;
    const char *op = f->op;
    if ((unsigned)o->mask >= TSR_MASK_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: mask is %d, expected a tsr_mask", op,
                         (int)o->mask);
    if (!(fabsf(o->softmax_scale) <= MOST_SCALE))
        return tsri_fail(
            TSR_INVALID_ARGUMENT,
            "%s: softmax_scale is %g, expected a number of at most 2^100 in size, or 0 "
            "for 1 / sqrt(head_dim)",
            op, (double)o->softmax_scale);
    if (o->softcap != 0 && !(o->softcap >= 1 / MOST_SCALE && o->softcap <= MOST_SCALE))
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: softcap is %g, expected a number from 2^-100 to 2^100, or 0 for none",
                         op, (double)o->softcap);
    if (!(o->dropout_p >= 0 && o->dropout_p < 1))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: dropout_p is %g, expected 0 to below 1", op,
                         o->dropout_p);
    if ((o->has_window_left && o->window_left < 0) || (o->has_window_right && o->window_right < 0))
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: window_%s is %lld, expected 0 or more", op,
                         o->has_window_left && o->window_left < 0 ? "left" : "right",
                         (long long)(o->has_window_left && o->window_left < 0 ? o->window_left
                                                                              : o->window_right));
    TSRI_TRY(TSRI_CHECK_FLAG(op, o, window_left));
    TSRI_TRY(TSRI_CHECK_FLAG(op, o, window_right));
    p->mask = o->mask;
    p->softmax_scale =
        o->softmax_scale != 0 ? (double)o->softmax_scale : 1 / sqrt((double)p->head_dim);
    p->softcap = (double)o->softcap;
    p->has_window_left = o->has_window_left != 0;
    p->has_window_right = o->has_window_right != 0;
    p->window_left = o->window_left;
    p->window_right = o->window_right;
    p->dropout_p = o->dropout_p;
    p->dropout_threshold = (uint64_t)ceil(o->dropout_p * 0x1p32);
    p->seed = o->seed;
    p->offset = o->offset;
    return TSR_OK;
}

tsr_status attention_check(const struct attention_fields *f, struct attention_problem *p) {
    const char *op = f->op;
    TSRI_TRY(check_sequences(f, p));
    TSRI_TRY(tsri_check_float(op, "q", f->q));
    TSRI_TRY(attention_check_heads(f, p));
    p->dtype = f->q->dtype;
    const int64_t b = p->num_batches, h = p->num_heads_q, h_kv = p->num_heads_kv;
    const int64_t of_q[4] = {b, p->total_q, h, p->head_dim};
    const int64_t of_k[4] = {b, p->total_k, h_kv, p->head_dim};
    const int64_t of_v[4] = {b, p->total_k, h_kv, p->head_dim_v};
    const int64_t of_out[4] = {b, p->total_q, h, p->head_dim_v};
    const struct {
        const char *field;
        tsr_tensor *t;
        enum tsri_role role;
        const int64_t *shape;
        struct attention_view *view;
    } views[] = {
        {"q", f->q, TSRI_IN, of_q, &p->q},
        {"k", f->k, TSRI_IN, of_k, &p->k},
        {"v", f->v, TSRI_IN, of_v, &p->v},
        {"out", f->out, f->is_backward ? TSRI_IN : TSRI_OUT, of_out, &p->out},
        {"dout", f->dout, TSRI_IN, of_out, &p->dout},
        {"dq", f->dq, TSRI_OUT, of_q, &p->dq},
        {"dk", f->dk, TSRI_OUT, of_k, &p->dk},
        {"dv", f->dv, TSRI_OUT, of_v, &p->dv},
    };
    for (int i = 0; i < TSRI_COUNT(views); i++) {
        bool is_optional = i > 4; // gradients may be left out
        if (views[i].t == NULL || (is_optional && !tsri_is_present(views[i].t))) continue;
        TSRI_TRY(attention_check_view(op, views[i].field, views[i].t, views[i].role, p->is_packed,
                                      views[i].shape, p->dtype, views[i].view));
    }
    if (f->is_backward || tsri_is_present(f->lse))
        TSRI_TRY(attention_check_lse(op, f->lse, f->is_backward ? TSRI_IN : TSRI_OUT, p));
    TSRI_TRY(attention_check_scores(f, p));
    TSRI_TRY(check_bias(op, "bias", f->bias, TSRI_IN, p, &p->bias));
    TSRI_TRY(attention_check_per_head(op, "alibi_slopes", f->alibi_slopes, TSRI_IN, true, p,
                                      &p->slopes));
    TSRI_TRY(attention_check_per_head(op, "sinks", f->sinks, TSRI_IN, false, p, &p->sinks));
    if (f->dbias != NULL && tsri_is_present(f->dbias)) {
        TSRI_TRY(tsri_check_tensor(op, "dbias", f->dbias, TSRI_OUT));
        TSRI_TRY(tsri_check_same_shape(op, "dbias", f->dbias, "bias", f->bias));
        TSRI_TRY(tsri_check_same_dtype(op, "dbias", f->dbias, "bias", f->bias));
        TSRI_TRY(check_bias(op, "dbias", f->dbias, TSRI_OUT, p, &p->dbias));
    }
    if (f->dsinks != NULL && tsri_is_present(f->dsinks)) {
        TSRI_TRY(tsri_check_same_dtype(op, "dsinks", f->dsinks, "sinks", f->sinks));
        TSRI_TRY(attention_check_per_head(op, "dsinks", f->dsinks, TSRI_OUT, false, p, &p->dsinks));
    }

    // No output overlaps an input or another output.
    const struct {
        const char *field;
        const tsr_tensor *t;
    } outs[] = {{"out", f->is_backward ? NULL : f->out},
                {"lse", f->is_backward ? NULL : f->lse},
                {"dq", f->dq},
                {"dk", f->dk},
                {"dv", f->dv},
                {"dbias", f->dbias},
                {"dsinks", f->dsinks}},
      ins[] = {{"q", f->q},
               {"k", f->k},
               {"v", f->v},
               {"bias", f->bias},
               {"alibi_slopes", f->alibi_slopes},
               {"sinks", f->sinks},
               {"cu_seqlens_q", f->cu_seqlens_q},
               {"cu_seqlens_k", f->cu_seqlens_k},
               {"seqused_k", f->seqused_k},
               {"out", f->is_backward ? f->out : NULL},
               {"lse", f->is_backward ? f->lse : NULL},
               {"dout", f->dout}};
    for (int o = 0; o < TSRI_COUNT(outs); o++) {
        if (outs[o].t == NULL || !tsri_is_present(outs[o].t)) continue;
        for (int i = 0; i < TSRI_COUNT(ins); i++)
            if (ins[i].t != NULL && tsri_is_present(ins[i].t))
                TSRI_TRY(tsri_check_disjoint(op, outs[o].field, outs[o].t, ins[i].field, ins[i].t,
                                             false));
        for (int other = 0; other < o; other++)
            if (outs[other].t != NULL && tsri_is_present(outs[other].t))
                TSRI_TRY(tsri_check_disjoint(op, outs[o].field, outs[o].t, outs[other].field,
                                             outs[other].t, false));
    }
    return TSR_OK;
}
