// SPDX-License-Identifier: Apache-2.0
// Decode: entries, checks, variants. See tessera/attention_decode.h for the contract.
#include <tessera/attention_decode.h>

#include "ops/attention/attention_check.h"
#include "ops/attention/attention_decode_problem.h"

static const char op[] = "attention_decode";

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here, its supports, plan and run; verify, bench and the tests find it.

static bool is_float32_or_less(const void *problem, const struct tsri_limits *limits) {
    (void)limits;
    return ((const struct attention_decode_problem *)problem)->a.dtype != TSR_F64;
}

static const struct tsri_variant variants[] = {
    {"split", "few queries: one pass over the cache, in splits of the keys; many: tiles",
     TSR_VARIANT_ISA, is_float32_or_less, attention_decode_plan_split, attention_decode_split_run},
    {"naive", "a copy of each sequence's cache, then query after query",
     TSR_VARIANT_ISA | TSR_VARIANT_BASELINE, is_float32_or_less, attention_decode_plan_naive,
     attention_decode_naive_run},
    {"cuda-split", "chunks of the keys, read once for all query heads of a key head",
     TSR_VARIANT_CUDA, attention_decode_cuda_serves, attention_decode_cuda_plan,
     attention_decode_cuda_run, attention_decode_cuda_prepare},
    {"cuda-naive", "a block for each query head, key after key",
     TSR_VARIANT_CUDA | TSR_VARIANT_BASELINE, attention_decode_cuda_serves,
     attention_decode_cuda_plan_naive, attention_decode_cuda_run_naive,
     attention_decode_cuda_prepare_naive},
    {"reference", "double precision, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     tsri_plan_serial, attention_decode_reference_run},
};

// Caches with room for few keys. Only that room decides: a sequence's bits do not depend on the others.
static const char *prefer(const void *problem, const struct tsri_limits *limits) {
    enum { FEW_KEYS = 2 };
    const struct attention_decode_problem *p = problem;
    return limits->device.type == TSR_CPU && p->most_keys <= FEW_KEYS ? "naive" : NULL;
}

const struct tsri_op tsri_attention_decode_op = {op, variants, TSRI_COUNT(variants), prefer,
                                                 attention_decode_cuda_kernel};

// ---- Checks -----------------------------------------------------------------------------------

static tsr_status fail_shape(const char *field, const tsr_tensor *t, const char *expected) {
    char text[128];
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s has shape %s, expected %s", op, field,
                     tsri_shape_text(t, text, sizeof text), expected);
}

static tsr_status check_beside(const char *field, const tsr_tensor *t, const char *other_field,
                               const tsr_tensor *other) {
    if (tsri_is_present(t) == tsri_is_present(other)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is absent, expected it beside %s", op,
                     tsri_is_present(t) ? other_field : field,
                     tsri_is_present(t) ? field : other_field);
}

// Ranks and sizes of everything that is not the cache.
static tsr_status check_queries(tsr_attention_decode_args *args, struct attention_problem *a) {
    a->is_packed = tsri_is_present(&args->cu_seqlens_q);
    int ndim = a->is_packed ? 3 : 4;
    TSRI_TRY(tsri_check_tensor(op, "q", &args->q, TSRI_IN));
    TSRI_TRY(tsri_check_float(op, "q", &args->q));
    TSRI_TRY(tsri_check_tensor(op, "k_cache", &args->k_cache, TSRI_OUT));
    TSRI_TRY(tsri_check_tensor(op, "v_cache", &args->v_cache, TSRI_OUT));
    if (args->q.ndim != ndim)
        return fail_shape("q", &args->q,
                          a->is_packed ? "(total_q, num_heads_q, head_dim)"
                                       : "(batch, seqlen_q, num_heads_q, head_dim)");
    if (args->k_cache.ndim != 4)
        return fail_shape("k_cache", &args->k_cache, "(batch, capacity, num_heads_kv, head_dim)");
    if (args->v_cache.ndim != 4)
        return fail_shape("v_cache", &args->v_cache, "(batch, capacity, num_heads_kv, head_dim_v)");
    if (args->max_seqlen_q < 0 || args->max_seqlen_k < 0)
        return tsri_fail(
            TSR_INVALID_ARGUMENT, "%s: max_seqlen_%s is %lld, expected 0 or more", op,
            args->max_seqlen_q < 0 ? "q" : "k",
            (long long)(args->max_seqlen_q < 0 ? args->max_seqlen_q : args->max_seqlen_k));
    a->dtype = args->q.dtype;
    a->seqlen_q = a->total_q = args->q.shape[ndim - 3];
    a->num_heads_q = args->q.shape[ndim - 2];
    a->head_dim = args->q.shape[ndim - 1];
    a->num_heads_kv = args->k_cache.shape[2];
    a->head_dim_v = args->v_cache.shape[3];
    a->num_batches = args->q.shape[0];
    if (a->is_packed) {
        if (args->cu_seqlens_q.ndim != 1 || args->cu_seqlens_q.shape[0] < 1)
            return fail_shape("cu_seqlens_q", &args->cu_seqlens_q, "(batch + 1,)");
        a->num_batches = args->cu_seqlens_q.shape[0] - 1;
        TSRI_TRY(attention_check_offsets(op, "cu_seqlens_q", &args->cu_seqlens_q,
                                         a->num_batches + 1, &a->cu_seqlens_q, &a->cu_stride_q));
        if (args->max_seqlen_q > 0) a->seqlen_q = tsri_min(a->seqlen_q, args->max_seqlen_q);
    }
    // The new keys have the queries' rows.
    a->seqlen_k = a->seqlen_q;
    a->total_k = a->total_q;
    a->cu_seqlens_k = a->cu_seqlens_q;
    a->cu_stride_k = a->cu_stride_q;
    return TSR_OK;
}

static tsr_status check_cache(tsr_attention_decode_args *args, struct attention_decode_problem *p) {
    const struct attention_problem *a = &p->a;
    bool is_paged = tsri_is_present(&args->page_table);
    p->has_slots = tsri_is_present(&args->cache_batch_idx);
    if (is_paged && p->has_slots)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: cache_batch_idx is present beside page_table, expected only one", op);
    tsr_dtype dtype = args->k_cache.dtype == TSR_E4M3 ? TSR_E4M3 : a->dtype;
    p->num_pages = is_paged || p->has_slots ? args->k_cache.shape[0] : a->num_batches;
    p->page_size = args->k_cache.shape[1];
    p->capacity = p->num_pages == 0 ? 0 : p->page_size;
    const int64_t of_k[4] = {p->num_pages, p->page_size, a->num_heads_kv, a->head_dim};
    const int64_t of_v[4] = {p->num_pages, p->page_size, a->num_heads_kv, a->head_dim_v};
    TSRI_TRY(attention_check_view(op, "k_cache", &args->k_cache, TSRI_OUT, false, of_k, dtype,
                                  &p->k_cache));
    TSRI_TRY(attention_check_view(op, "v_cache", &args->v_cache, TSRI_OUT, false, of_v, dtype,
                                  &p->v_cache));
    TSRI_TRY(attention_check_offsets(op, "cache_seqlens", &args->cache_seqlens, a->num_batches,
                                     &p->cache_seqlens, &p->cache_seqlens_stride));
    if (tsri_is_present(&args->leftpad_k))
        TSRI_TRY(attention_check_offsets(op, "leftpad_k", &args->leftpad_k, a->num_batches,
                                         &p->leftpad_k, &p->leftpad_stride));
    if (is_paged) {
        tsr_tensor *t = &args->page_table;
        TSRI_TRY(tsri_check_tensor(op, "page_table", t, TSRI_IN));
        if (t->dtype != TSR_I32)
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: page_table.dtype is %s, expected i32", op,
                             tsr_dtype_name(t->dtype));
        if (t->ndim != 2 || t->shape[0] != a->num_batches)
            return fail_shape("page_table", t, "(batch, max_pages)");
        p->page_table = t->data;
        for (int i = 0; i < 2; i++) p->page_table_stride[i] = t->stride[i];
        if (__builtin_mul_overflow(t->shape[1], p->capacity, &p->capacity) ||
            p->capacity > TSRI_MAX_ELEMENTS)
            return tsri_fail(TSR_INVALID_ARGUMENT,
                             "%s: page_table has room for more keys than 2^48", op);
    }
    if (p->has_slots)
        TSRI_TRY(attention_check_offsets(op, "cache_batch_idx", &args->cache_batch_idx,
                                         a->num_batches, &p->page_table, &p->page_table_stride[0]));
    p->most_keys = args->max_seqlen_k > 0 ? tsri_min(args->max_seqlen_k, p->capacity) : p->capacity;
    return TSR_OK;
}

// Scales come with caches of e4m3. The oracle, whose caches are f64, takes caches with scales for those.
static tsr_status check_scale(const char *field, tsr_tensor *t,
                              const struct attention_decode_problem *p,
                              struct attention_per_head *scale) {
    const struct attention_problem *a = &p->a;
    const bool is_e4m3 = p->k_cache.dtype == TSR_E4M3;
    if (!tsri_is_present(t) && is_e4m3)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is absent, expected it beside caches of e4m3", op, field);
    if (!tsri_is_present(t)) return TSR_OK;
    if (!is_e4m3 && a->dtype != TSR_F64)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s is present beside caches of %s, expected it beside e4m3", op,
                         field, tsr_dtype_name(p->k_cache.dtype));
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_IN));
    TSRI_TRY(tsri_check_dtype(op, field, t, a->dtype == TSR_F64 ? TSR_F64 : TSR_F32));
    if (t->ndim > 2 || (t->ndim > 0 && t->shape[t->ndim - 1] != a->num_heads_kv) ||
        (t->ndim == 2 && t->shape[0] != a->num_batches))
        return fail_shape(field, t, "(), (num_heads_kv,) or (batch, num_heads_kv)");
    *scale = (struct attention_per_head){t->data, t->dtype, t->ndim == 2 ? t->stride[0] : 0,
                                         t->ndim > 0 ? t->stride[t->ndim - 1] : 0};
    return TSR_OK;
}

static tsr_status check_scales(tsr_attention_decode_args *args,
                               struct attention_decode_problem *p) {
    TSRI_TRY(check_beside("k_scale", &args->k_scale, "v_scale", &args->v_scale));
    TSRI_TRY(check_scale("k_scale", &args->k_scale, p, &p->k_scale));
    return check_scale("v_scale", &args->v_scale, p, &p->v_scale);
}

static tsr_status check_rotation(tsr_attention_decode_args *args,
                                 struct attention_decode_problem *p) {
    TSRI_TRY(check_beside("cos", &args->cos, "sin", &args->sin));
    if (!tsri_is_present(&args->cos)) return TSR_OK;
    tsr_dtype dtype = p->a.dtype == TSR_F64 ? TSR_F64 : TSR_F32;
    TSRI_TRY(tsri_check_rows(op, "cos", &args->cos, TSRI_IN, &p->cos));
    TSRI_TRY(tsri_check_rows(op, "sin", &args->sin, TSRI_IN, &p->sin));
    if (args->cos.ndim != 2 || args->cos.shape[0] < 1 || args->cos.shape[1] > p->a.head_dim / 2)
        return fail_shape("cos", &args->cos,
                          "(num_positions, rotary_dim / 2), with at least one position and a "
                          "rotary_dim of at most head_dim");
    TSRI_TRY(tsri_check_same_shape(op, "sin", &args->sin, "cos", &args->cos));
    TSRI_TRY(tsri_check_same_dtype(op, "sin", &args->sin, "cos", &args->cos));
    TSRI_TRY(tsri_check_dtype(op, "cos", &args->cos, dtype));
    p->cos.rows = p->sin.rows = args->cos.shape[0];
    p->rotary_dim = 2 * args->cos.shape[1];
    if (p->rotary_dim == 0) p->cos.data = p->sin.data = NULL;
    p->is_interleaved = args->interleaved != 0;
    return TSR_OK;
}

static tsr_status check_weight(const char *field, tsr_tensor *t,
                               const struct attention_decode_problem *p,
                               struct attention_decode_weight *weight) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, field, t, TSRI_IN));
    TSRI_TRY(attention_check_small_dtype(op, field, t, p->a.dtype));
    if (t->ndim != 1 || t->shape[0] != p->a.head_dim) return fail_shape(field, t, "(head_dim,)");
    if (t->stride[0] != 1)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.stride[0] is %lld, expected 1", op, field,
                         (long long)t->stride[0]);
    *weight = (struct attention_decode_weight){t->data, t->dtype};
    return TSR_OK;
}

static tsr_status check_norms(tsr_attention_decode_args *args, struct attention_decode_problem *p) {
    TSRI_TRY(check_weight("q_norm", &args->q_norm, p, &p->q_norm));
    TSRI_TRY(check_weight("k_norm", &args->k_norm, p, &p->k_norm));
    TSRI_TRY(tsri_check_flag(op, "norm_eps", args->has_norm_eps, (double)args->norm_eps, true));
    p->norm_eps = args->has_norm_eps ? (double)args->norm_eps : 1e-6;
    p->norm_offset = args->zero_centered_weight != 0 ? 1 : 0;
    if (p->norm_eps >= 0 && p->norm_eps <= 3.5e38) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT,
                     "%s: norm_eps is %g, expected a finite number, 0 or more", op, p->norm_eps);
}

static tsr_status check_tree(tsr_tensor *t, struct attention_decode_problem *p) {
    const struct attention_problem *a = &p->a;
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, "tree_mask", t, TSRI_IN));
    if (a->is_packed)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: tree_mask is present beside cu_seqlens_q, expected only one", op);
    if (t->dtype != TSR_U8)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: tree_mask.dtype is %s, expected u8", op,
                         tsr_dtype_name(t->dtype));
    const int first = t->ndim - 2;
    if (first < 0 || first > 1 || t->shape[first] != a->seqlen_q ||
        t->shape[first + 1] != a->seqlen_q || (first == 1 && t->shape[0] != a->num_batches))
        return fail_shape("tree_mask", t, "([batch,] seqlen_q, seqlen_q)");
    p->tree_mask = t->data;
    for (int i = 0; i < t->ndim; i++) p->tree_stride[3 - t->ndim + i] = t->stride[i];
    return TSR_OK;
}

// No output overlaps an input or another output.
static tsr_status check_overlaps(const tsr_attention_decode_args *args) {
    const struct {
        const char *field;
        const tsr_tensor *t;
    } outs[] = {{"out", &args->out},
                {"lse", &args->lse},
                {"k_cache", &args->k_cache},
                {"v_cache", &args->v_cache},
                {"num_errors", &args->num_errors}},
      ins[] = {{"q", &args->q},
               {"k_new", &args->k_new},
               {"v_new", &args->v_new},
               {"cache_seqlens", &args->cache_seqlens},
               {"page_table", &args->page_table},
               {"cache_batch_idx", &args->cache_batch_idx},
               {"leftpad_k", &args->leftpad_k},
               {"q_norm", &args->q_norm},
               {"k_norm", &args->k_norm},
               {"k_scale", &args->k_scale},
               {"v_scale", &args->v_scale},
               {"tree_mask", &args->tree_mask},
               {"cu_seqlens_q", &args->cu_seqlens_q},
               {"cos", &args->cos},
               {"sin", &args->sin},
               {"alibi_slopes", &args->alibi_slopes},
               {"sinks", &args->sinks}};
    for (int o = 0; o < TSRI_COUNT(outs); o++) {
        for (int i = 0; i < TSRI_COUNT(ins); i++)
            TSRI_TRY(
                tsri_check_disjoint(op, outs[o].field, outs[o].t, ins[i].field, ins[i].t, false));
        for (int other = 0; other < o; other++)
            TSRI_TRY(tsri_check_disjoint(op, outs[o].field, outs[o].t, outs[other].field,
                                         outs[other].t, false));
    }
    return TSR_OK;
}

static tsr_status check_num_errors(tsr_tensor *t, struct attention_decode_problem *p) {
    if (!tsri_is_present(t)) return TSR_OK;
    TSRI_TRY(tsri_check_tensor(op, "num_errors", t, TSRI_OUT));
    if (t->dtype != TSR_I32)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: num_errors.dtype is %s, expected i32", op,
                         tsr_dtype_name(t->dtype));
    if (t->ndim > 1 || tsr_tensor_numel(t) != 1) return fail_shape("num_errors", t, "() or (1,)");
    p->num_errors = t->data;
    return TSR_OK;
}

static tsr_status check(const tsr_context *ctx, const tsr_attention_decode_args *given,
                        tsr_attention_decode_args *args, struct attention_decode_problem *p) {
    struct attention_problem *a = &p->a;
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, *args, given));
    TSRI_TRY(check_queries(args, a));
    struct attention_fields fields = {.op = op,
                                      .options = {.mask = args->mask,
                                                  .softmax_scale = args->softmax_scale,
                                                  .softcap = args->softcap,
                                                  .has_window_left = args->has_window_left,
                                                  .has_window_right = args->has_window_right,
                                                  .window_left = args->window_left,
                                                  .window_right = args->window_right}};
    TSRI_TRY(attention_check_heads(&fields, a));
    const int64_t b = a->num_batches, h = a->num_heads_q, h_kv = a->num_heads_kv;
    const int64_t of_q[4] = {b, a->total_q, h, a->head_dim};
    const int64_t of_k[4] = {b, a->total_q, h_kv, a->head_dim};
    const int64_t of_v[4] = {b, a->total_q, h_kv, a->head_dim_v};
    const int64_t of_out[4] = {b, a->total_q, h, a->head_dim_v};
    TSRI_TRY(attention_check_view(op, "q", &args->q, TSRI_IN, a->is_packed, of_q, a->dtype, &a->q));
    TSRI_TRY(check_beside("k_new", &args->k_new, "v_new", &args->v_new));
    if (tsri_is_present(&args->k_new)) {
        TSRI_TRY(attention_check_view(op, "k_new", &args->k_new, TSRI_IN, a->is_packed, of_k,
                                      a->dtype, &a->k));
        TSRI_TRY(attention_check_view(op, "v_new", &args->v_new, TSRI_IN, a->is_packed, of_v,
                                      a->dtype, &a->v));
    }
    TSRI_TRY(attention_check_view(op, "out", &args->out, TSRI_OUT, a->is_packed, of_out, a->dtype,
                                  &a->out));
    if (tsri_is_present(&args->lse)) TSRI_TRY(attention_check_lse(op, &args->lse, TSRI_OUT, a));
    TSRI_TRY(check_cache(args, p));
    TSRI_TRY(check_rotation(args, p));
    TSRI_TRY(check_norms(args, p));
    TSRI_TRY(check_scales(args, p));
    TSRI_TRY(check_tree(&args->tree_mask, p));
    TSRI_TRY(attention_check_scores(&fields, a));
    if (a->mask == TSR_MASK_CAUSAL_TOP_LEFT)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: mask is causal-top-left, expected none or causal", op);
    TSRI_TRY(attention_check_per_head(op, "alibi_slopes", &args->alibi_slopes, TSRI_IN, true, a,
                                      &a->slopes));
    TSRI_TRY(attention_check_per_head(op, "sinks", &args->sinks, TSRI_IN, false, a, &a->sinks));
    TSRI_TRY(check_num_errors(&args->num_errors, p));
    return check_overlaps(args);
}

// On CUDA lengths and pages are on the device, so the kernels clamp them to their bounds.
static tsr_status check_metadata(const tsr_context *ctx, const struct attention_decode_problem *p) {
    return tsri_host_reads(ctx) ? attention_decode_check_metadata(p) : TSR_OK;
}

// ---- Entries ----------------------------------------------------------------------------------

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_attention_decode_args args;
    struct attention_decode_problem p = {0};
    TSRI_TRY(check(ctx, given, &args, &p));
    if (goal.is_prepare)
        return tsri_op_serve(ctx, &tsri_attention_decode_op, &p, TSRI_CALL(args), goal);
    TSRI_TRY(check_metadata(ctx, &p));
    TSRI_TRY(tsri_op_serve(ctx, &tsri_attention_decode_op, &p, TSRI_CALL(args), goal));
    if (tsri_host_reads(ctx) && p.num_errors != NULL) *p.num_errors = 0; // such calls are refused
    return TSR_OK;
}

TSRI_ENTRY(tsr_attention_decode, enter)
