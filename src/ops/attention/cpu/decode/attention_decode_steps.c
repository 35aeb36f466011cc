// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu/decode/attention_decode_steps.h"

#include <math.h>
#include <string.h>

enum { APPEND_ROWS = 32 }; // new rows of a task, at most

struct attention_decode_work attention_decode_work_of(tsr_context *ctx,
                                                      const struct attention_decode_problem *p,
                                                      const struct tsri_plan *plan) {
    tsr_isa isa = tsr_context_isa(ctx);
    return (struct attention_decode_work){p, plan, isa, attention_kernels(isa),
                                          attention_decode_kernels(isa)};
}

void attention_decode_rows(const struct attention_decode_problem *p,
                           const struct attention_view *cache,
                           const struct attention_decode_sequence *seq, int64_t first,
                           int64_t num_keys, const char **rows) {
    int64_t step = cache->seq * tsri_dtype_bytes(cache->dtype);
    first += seq->s.k_first;
    for (int64_t j = 0; j < num_keys;) { // page by page
        int64_t left = p->page_size - (first + j) % p->page_size;
        int64_t end = tsri_min(num_keys, j + left);
        const char *row = attention_decode_row(p, cache, seq->batch, first + j);
        for (; j < end; j++, row += step) rows[j] = row;
    }
}

struct attention_problem attention_decode_part(const struct attention_decode_problem *p,
                                               const struct attention_decode_sequence *seq) {
    struct attention_problem part = p->a;
    int64_t element = tsri_dtype_bytes(p->a.dtype);
    part.q.data += (seq->batch * part.q.batch + seq->s.q_first * part.q.seq) * element;
    part.out.data += (seq->batch * part.out.batch + seq->s.q_first * part.out.seq) * element;
    if (part.lse != NULL)
        part.lse += attention_lse_index(&p->a, seq->batch, 0, seq->s.q_first) *
                    (int64_t)(p->a.dtype == TSR_F64 ? sizeof(double) : sizeof(float));
    if (part.slopes.data != NULL)
        part.slopes.data += seq->batch * part.slopes.batch * tsri_dtype_bytes(part.slopes.dtype);
    part.cu_seqlens_q = part.cu_seqlens_k = NULL;
    part.is_packed = false;
    part.num_batches = 1;
    part.seqlen_q = part.total_q = seq->s.len_q;
    part.seqlen_k = part.total_k = seq->s.len_k;
    return part;
}

// ---- Norm and rotation ------------------------------------------------------------------------

// Loads a head of q or k_new: normalised, rotated at a position, times scale, in fp32.
static void load_head(const struct attention_decode_work *w,
                      const struct attention_decode_weight *norm, const void *x, int64_t position,
                      float scale, float *head) {
    const struct attention_decode_problem *p = w->p;
    w->rows->load(p->a.dtype, x, p->a.head_dim, norm->data != NULL ? 1.0f : scale, head);
    if (norm->data != NULL) {
        float weight[ATTENTION_MAX_HEAD_DIM];
        w->rows->load(norm->dtype, norm->data, p->a.head_dim, 1.0f, weight);
        w->kernels->normalise(head, p->a.head_dim, weight, (float)p->norm_offset,
                              (float)p->norm_eps, scale);
    }
    if (p->cos.data == NULL) return;
    int64_t angle = attention_decode_angle(p, position);
    w->kernels->rotate(head, tsri_row(&p->cos, angle), tsri_row(&p->sin, angle), p->rotary_dim / 2,
                       p->is_interleaved);
}

// ---- Append -----------------------------------------------------------------------------------

// Writes row t of k_new or v_new to its place in the cache, unchanged except that keys are normalised and rotated, and that a
// cache of e4m3 has a scale.
static void append_row(const struct attention_decode_work *w,
                       const struct attention_decode_sequence *seq, int64_t t, bool is_key) {
    const struct attention_decode_problem *p = w->p;
    const struct attention_view *from = is_key ? &p->a.k : &p->a.v;
    const struct attention_view *cache = is_key ? &p->k_cache : &p->v_cache;
    int64_t dims = is_key ? p->a.head_dim : p->a.head_dim_v, position = seq->cache_len + t;
    const struct attention_per_head *scale = is_key ? &p->k_scale : &p->v_scale;
    const bool is_changed = is_key && (p->cos.data != NULL || p->k_norm.data != NULL);
    size_t element = tsr_dtype_bytes(cache->dtype);
    char *row = attention_decode_row(p, cache, seq->batch, seq->s.k_first + position);
    for (int64_t h = 0; h < p->a.num_heads_kv; h++) {
        const void *x = attention_at(from, seq->batch, seq->s.q_first + t, h);
        char *y = row + h * cache->head * (int64_t)element;
        if (!is_changed && scale->data == NULL) {
            memcpy(y, x, (size_t)dims * element);
            continue;
        }
        float wide[ATTENTION_MAX_HEAD_DIM];
        if (is_changed)
            load_head(w, &p->k_norm, x, position, 1.0f, wide);
        else
            w->rows->load(p->a.dtype, x, dims, 1.0f, wide);
        if (scale->data == NULL)
            w->rows->store(p->a.dtype, wide, dims, 1.0f, y);
        else
            w->kernels->store_e4m3(wide, dims, (float)attention_decode_scale(scale, seq->batch, h),
                                   (uint8_t *)y);
    }
}

static void append_task(void *arg, int64_t index, int thread) {
    const struct attention_decode_work *w = arg;
    const struct attention_decode_problem *p = w->p;
    int64_t pieces = tsri_ceil_div(p->a.seqlen_q, APPEND_ROWS), batch = index / pieces;
    int64_t first = index % pieces * APPEND_ROWS;
    (void)thread;
    struct attention_decode_sequence seq = attention_decode_sequence_at(p, batch);
    // Drops rows that do not fit, and rows without a valid page.
    int64_t first_row = seq.s.k_first + seq.cache_len;
    int64_t last = tsri_min(first + APPEND_ROWS, tsri_min(seq.num_new, p->capacity - first_row));
    for (int64_t t = first; t < last; t++) {
        int64_t page = attention_decode_page(p, batch, first_row + t);
        if (page < 0 || page >= p->num_pages) continue;
        append_row(w, &seq, t, true);
        append_row(w, &seq, t, false);
    }
}

void attention_decode_append(tsr_context *ctx, const struct attention_decode_work *w) {
    const struct attention_decode_problem *p = w->p;
    if (p->a.k.data == NULL) return;
    tsri_parallel(ctx, p->a.num_batches * tsri_ceil_div(p->a.seqlen_q, APPEND_ROWS), append_task,
                  (void *)(uintptr_t)w);
}

static int64_t kv_head_of(const struct attention_problem *a, int64_t head) {
    return head / (a->num_heads_q / a->num_heads_kv);
}

// ---- Queries ----------------------------------------------------------------------------------

void attention_decode_load_q(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             float *q) {
    const struct attention_decode_problem *p = w->p;
    double k_scale = attention_decode_scale(&p->k_scale, seq->batch, kv_head_of(&p->a, head));
    load_head(w, &p->q_norm, attention_at(&p->a.q, seq->batch, seq->s.q_first + i, head),
              i + seq->s.shift, (float)(p->a.softmax_scale * k_scale), q);
}

// ---- Softmax ----------------------------------------------------------------------------------

// Scores become those after softcap and ALiBi, and -inf where tree_mask hides a key: in this order, as a cap is finite.
static void finish_scores(const struct attention_decode_work *w,
                          const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                          int64_t first, int64_t n, float *s) {
    const struct attention_problem *a = &w->p->a;
    struct attention_terms terms = {.softcap = (float)a->softcap, .diagonal = i + seq->s.shift};
    if (a->slopes.data != NULL)
        terms.slope = (float)attention_per_head_at(&a->slopes, seq->batch, head);
    if (a->softcap != 0 || a->slopes.data != NULL) w->rows->modify(&terms, first, n, s, NULL);
    if (w->p->tree_mask == NULL) return;
    for (int64_t j = tsri_max(seq->s.shift - first, 0); j < n; j++)
        if (!attention_decode_sees(w->p, seq, i, first + j)) s[j] = -INFINITY;
}

float attention_decode_weigh(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             int64_t first, int64_t n, float *s, float *max, float *sum) {
    finish_scores(w, seq, i, head, first, n, s);
    float top = fmaxf(*max, w->rows->max(s, n));
    if (top == -INFINITY) { // only -inf so far, or NaN, which a maximum ignores
        if (attention_has_nan(s, n)) *sum = NAN;
        memset(s, 0, (size_t)n * sizeof *s);
        return 1;
    }
    float added = w->rows->weigh(s, n, top, 0), before = *max == top ? 1 : expf(*max - top);
    *sum = *sum * before + added;
    *max = top;
    return before;
}

// ---- Results ----------------------------------------------------------------------------------

void attention_decode_finish(const struct attention_decode_work *w,
                             const struct attention_decode_sequence *seq, int64_t i, int64_t head,
                             const struct attention_decode_state *parts, int64_t num_parts,
                             tsr_dtype lanes, float *scratch) {
    const struct attention_problem *a = &w->p->a;
    int64_t floats = attention_lane_floats(a->head_dim_v), row = seq->s.q_first + i;
    const float sink = (float)attention_sink_at(a, 0, head);
    float max = sink, sum = 0, *plain = scratch + floats;
    const float *o = scratch;
    bool is_blind = true; // no key has weight
    for (int64_t s = 0; s < num_parts; s++) {
        max = fmaxf(max, parts[s].max);
        is_blind &= parts[s].max == -INFINITY && parts[s].sum == 0;
    }
    if (!(sink == -INFINITY)) sum = expf(sink - max);               // NaN, if the sink is
    if (num_parts == 1 && parts[0].max == max && max > -INFINITY) { // needs no scaling
        sum += parts[0].sum;
        o = parts[0].o;
    } else {
        memset(scratch, 0, (size_t)floats * sizeof *scratch);
        for (int64_t s = 0; s < num_parts; s++) {
            float weight = parts[s].max == -INFINITY ? 0.0f : expf(parts[s].max - max);
            // A part's sum of NaN stays NaN with any weight, and so do its values.
            sum += weight * parts[s].sum;
            w->kernels->add_scaled(TSR_F32, parts[s].o, floats, weight, scratch);
        }
    }
    w->kernels->from_lanes(lanes, o, a->head_dim_v, plain);
    double scale = attention_decode_scale(&w->p->v_scale, seq->batch, kv_head_of(a, head));
    w->rows->store(a->dtype, plain, a->head_dim_v, is_blind ? 0.0f : (float)scale / sum,
                   attention_at(&a->out, seq->batch, row, head));
    float lse = sum == 0 ? -INFINITY : max + logf(sum);
    if (a->lse != NULL)
        ((float *)(void *)a->lse)[attention_lse_index(a, seq->batch, head, row)] =
            isnan(lse) ? NAN : lse;
}
