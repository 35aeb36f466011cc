// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu/attention_tile.h"

#include <math.h>
#include <string.h>

// ---- Memory -----------------------------------------------------------------------------------

int64_t attention_tile_floats(const struct attention_problem *p, int64_t block_m, int64_t block_n) {
    return block_m * (attention_row_stride(p->head_dim) + attention_row_stride(block_n) +
                      attention_row_stride(p->head_dim_v)) +
           2 * (int64_t)tsri_round_up((size_t)block_m, 16);
}

int64_t attention_state_floats(const struct attention_problem *p, int64_t rows) {
    return (int64_t)tsri_round_up((size_t)(rows * (attention_row_stride(p->head_dim_v) + 2)), 16);
}

void attention_tile_carve(struct attention_tile *t, const struct attention_problem *p, tsr_isa isa,
                          float *memory, int64_t block_m, int64_t block_n) {
    t->p = p;
    t->gemm = gemm_kernels(isa);
    t->gemm_bf16 = NULL;
    t->kernels = attention_kernels(isa);
    t->q_stride = attention_row_stride(p->head_dim);
    t->s_stride = attention_row_stride(block_n);
    t->o_stride = attention_row_stride(p->head_dim_v);
    t->q = memory;
    t->s = t->q + block_m * t->q_stride;
    t->o = t->s + block_m * t->s_stride;
    t->max = t->o + block_m * t->o_stride;
    t->sum = t->max + tsri_round_up((size_t)block_m, 16);
}

// ---- Rows -------------------------------------------------------------------------------------

int64_t attention_group_rows(const struct attention_problem *p,
                             const struct attention_sequence *seq) {
    return p->num_heads_q / p->num_heads_kv * seq->len_q;
}

void attention_tile_open(struct attention_tile *t, int64_t batch, int64_t kv_head, int64_t first,
                         int64_t num_rows) {
    const struct attention_problem *p = t->p;
    int64_t group = p->num_heads_q / p->num_heads_kv;
    t->batch = batch;
    t->kv_head = kv_head;
    t->seq = attention_sequence_at(p, batch);
    t->num_rows = num_rows;
    t->seen = (struct attention_range){INT64_MAX, 0};
    t->common = (struct attention_range){0, t->seq.len_k};
    int64_t len_q = tsri_max(t->seq.len_q, 1), i = first % len_q;
    int64_t head = kv_head * group + first / len_q;
    for (int64_t r = 0; r < num_rows; r++, i++) {
        struct attention_row *row = &t->row[r];
        if (i == len_q) head++, i = 0;
        row->head = head;
        row->i = i;
        row->visible = attention_visible(p, &t->seq, row->i);
        t->common.begin = tsri_max(t->common.begin, row->visible.begin);
        t->common.end = tsri_min(t->common.end, row->visible.end);
        if (row->visible.begin == row->visible.end) continue;
        t->seen.begin = tsri_min(t->seen.begin, row->visible.begin);
        t->seen.end = tsri_max(t->seen.end, row->visible.end);
    }
    if (t->seen.end == 0) t->seen.begin = 0;
}

void attention_tile_ask(const struct attention_tile *t, const struct attention_view *view,
                        int64_t r, int64_t dims) {
    if (r < t->num_rows)
        attention_prefetch_row(view, t->batch, t->seq.q_first + t->row[r].i, t->row[r].head, dims);
}

// The number of rows from r on that belong to one head. Their addresses have a constant stride.
static int64_t run_of_rows(const struct attention_tile *t, int64_t r) {
    return tsri_min(t->num_rows - r, t->seq.len_q - t->row[r].i);
}

void attention_tile_load_rows(const struct attention_tile *t, const struct attention_view *view,
                              int64_t dims, float scale, float *y, int64_t stride) {
    for (int64_t r = 0, n; r < t->num_rows; r += n) {
        n = run_of_rows(t, r);
        t->kernels->load_rows(
            view->dtype, attention_at(view, t->batch, t->seq.q_first + t->row[r].i, t->row[r].head),
            view->seq, n, dims, scale, y + r * stride, stride);
    }
}

void attention_tile_load_q(struct attention_tile *t) {
    const struct attention_problem *p = t->p;
    attention_tile_load_rows(t, &p->q, p->head_dim, (float)p->softmax_scale, t->q, t->q_stride);
}

void attention_tile_clear(struct attention_tile *t) {
    const struct attention_problem *p = t->p;
    for (int64_t r = 0; r < t->num_rows; r++) {
        float sink = (float)attention_sink_at(p, t->batch, t->row[r].head);
        t->max[r] = sink;
        t->sum[r] = sink == -INFINITY ? 0.0f : 1.0f;
        memset(t->o + r * t->o_stride, 0, (size_t)p->head_dim_v * sizeof(float));
    }
}

// ---- Scores -----------------------------------------------------------------------------------

void attention_tile_product(const struct attention_tile *t, const struct attention_block *b,
                            const float *a, int64_t a_stride, int64_t depth, const float *panels,
                            int64_t panel_stride, float *c) {
    int64_t nr = t->gemm->nr;
    if (attention_is_common(t, b)) {
        t->gemm->block(t->num_rows, b->num_keys, depth, GEMM_ROWS, a, a_stride, panels,
                       panel_stride, false, c, t->s_stride, false);
        return;
    }
    // Each register tile computes scores up to the last key that one of its rows sees.
    int64_t mr = t->gemm->mr;
    for (int64_t j = 0; j < b->num_keys; j += nr)
        for (int64_t r = 0; r < t->num_rows; r += mr) {
            int64_t rows = tsri_min(mr, t->num_rows - r), begin = b->num_keys, end = 0;
            for (int64_t i = r; i < r + rows; i++) {
                struct attention_range part = attention_row_part(&t->row[i], b);
                if (part.begin >= part.end) continue;
                begin = tsri_min(begin, part.begin);
                end = tsri_max(end, part.end);
            }
            end = tsri_min(end, j + nr);
            if (tsri_max(begin, j) < end)
                t->gemm->block(rows, end - j, depth, GEMM_ROWS, a + r * a_stride, a_stride,
                               panels + j / nr * panel_stride, panel_stride, false,
                               c + r * t->s_stride + j, t->s_stride, false);
        }
}

void attention_tile_scores(struct attention_tile *t, const struct attention_block *b) {
    attention_tile_product(t, b, t->q, t->q_stride, t->p->head_dim, b->k, b->k_stride, t->s);
}

// ---- Values -----------------------------------------------------------------------------------

// Rows [r, r + num_rows) of c += keys [keys.begin, keys.end) of s times b.
static void accumulate_rows(const struct attention_tile *t, const float *s, int64_t r,
                            int64_t num_rows, struct attention_range keys, const float *panels,
                            int64_t panel_stride, int64_t dims, float *c, int64_t c_stride) {
    if (keys.begin >= keys.end) return;
    t->gemm->block(num_rows, dims, keys.end - keys.begin, GEMM_ROWS,
                   s + r * t->s_stride + keys.begin, t->s_stride, panels + keys.begin * t->gemm->nr,
                   panel_stride, false, c + r * c_stride, c_stride, true);
}

// The keys that at least one row of [r, r + num_rows) sees. Where a row does not see one of them, its weight becomes 0.
static struct attention_range share_keys(const struct attention_tile *t,
                                         const struct attention_block *b, float *s, int64_t r,
                                         int64_t num_rows) {
    struct attention_range shared = {b->num_keys, 0};
    for (int64_t i = r; i < r + num_rows; i++) {
        struct attention_range part = attention_row_part(&t->row[i], b);
        if (part.begin >= part.end) continue;
        shared.begin = tsri_min(shared.begin, part.begin);
        shared.end = tsri_max(shared.end, part.end);
    }
    if (shared.begin >= shared.end) return (struct attention_range){0, 0};
    for (int64_t i = r; i < r + num_rows; i++) {
        struct attention_range part = attention_row_part(&t->row[i], b);
        if (part.begin >= part.end) part.begin = part.end = shared.end;
        float *row = s + i * t->s_stride;
        for (int64_t j = shared.begin; j < part.begin; j++) row[j] = 0;
        for (int64_t j = part.end; j < shared.end; j++) row[j] = 0;
    }
    return shared;
}

void attention_tile_accumulate(const struct attention_tile *t, const struct attention_block *b,
                               float *s, const float *panels, int64_t panel_stride, int64_t dims,
                               bool is_exact, float *c, int64_t c_stride) {
    // Row by row, as 0 times NaN is NaN: no row may touch a key that it does not see.
    for (int64_t r = 0; r < t->num_rows && is_exact; r++)
        accumulate_rows(t, s, r, 1, attention_row_part(&t->row[r], b), panels, panel_stride, dims,
                        c, c_stride);
    if (is_exact) return;
    if (attention_is_common(t, b)) {
        accumulate_rows(t, s, 0, t->num_rows, (struct attention_range){0, b->num_keys}, panels,
                        panel_stride, dims, c, c_stride);
        return;
    }
    // The rows of one register tile share a range of keys. Neighbouring register tiles with equal ranges go together.
    int64_t mr = t->gemm->mr, from = 0;
    struct attention_range keys = {0, 0};
    for (int64_t r = 0; r < t->num_rows; r += mr) {
        struct attention_range shared = share_keys(t, b, s, r, tsri_min(mr, t->num_rows - r));
        if (shared.begin == keys.begin && shared.end == keys.end) continue;
        accumulate_rows(t, s, from, r - from, keys, panels, panel_stride, dims, c, c_stride);
        from = r;
        keys = shared;
    }
    accumulate_rows(t, s, from, t->num_rows - from, keys, panels, panel_stride, dims, c, c_stride);
}

void attention_tile_values(struct attention_tile *t, const struct attention_block *b) {
    for (int64_t r = 0; r < t->num_rows; r++)
        if (t->alpha[r] != 1.0f)
            t->kernels->scale(t->o + r * t->o_stride, t->p->head_dim_v, t->alpha[r]);
    attention_tile_accumulate(t, b, t->s, b->v, b->v_stride, t->p->head_dim_v, b->v_has_nonfinite,
                              t->o, t->o_stride);
}

// ---- All blocks -------------------------------------------------------------------------------

struct attention_block attention_block_at(const struct attention_tile *t,
                                          const struct attention_head *head, int64_t j) {
    int64_t end = tsri_min(t->seq.len_k, t->seen.end);
    struct attention_block b = {.first = j,
                                .num_keys = tsri_min(head->block_n, end - j),
                                .k = head->k + (j - head->first) * head->k_row,
                                .v = head->v + (j - head->first) * head->v_row,
                                .k_stride = head->k_stride,
                                .v_stride = head->v_stride,
                                .is_nonfinite =
                                    head->is_nonfinite + (j - head->first) / ATTENTION_CHUNK};
    for (int64_t i = 0; i < b.num_keys; i += ATTENTION_CHUNK)
        b.v_has_nonfinite |= b.is_nonfinite[i / ATTENTION_CHUNK];
    return b;
}

static void sweep(struct attention_tile *t, const struct attention_head *head,
                  struct attention_range keys) {
    for (int64_t j = keys.begin; j < keys.end; j += head->block_n) {
        struct attention_block b = attention_block_at(t, head, j);
        attention_tile_scores(t, &b);
        attention_tile_softmax(t, &b);
        attention_tile_values(t, &b);
    }
}

// ---- Results ----------------------------------------------------------------------------------

static void store_lse(const struct attention_problem *p, int64_t batch, int64_t head, int64_t row,
                      float max, float sum) {
    if (p->lse == NULL) return;
    float lse = sum == 0 ? -INFINITY : max + logf(sum);
    ((float *)(void *)p->lse)[attention_lse_index(p, batch, head, row)] = isnan(lse) ? NAN : lse;
}

void attention_tile_finish(const struct attention_tile *t) {
    const struct attention_problem *p = t->p;
    float factor[ATTENTION_MAX_ROWS];
    for (int64_t r = 0; r < t->num_rows; r++) {
        factor[r] = t->sum[r] == 0 ? 0 : 1 / t->sum[r];
        store_lse(p, t->batch, t->row[r].head, t->seq.q_first + t->row[r].i, t->max[r], t->sum[r]);
    }
    for (int64_t r = 0, n; r < t->num_rows; r += n) {
        void *out = attention_at(&p->out, t->batch, t->seq.q_first + t->row[r].i, t->row[r].head);
        n = run_of_rows(t, r);
        t->kernels->store_rows(p->dtype, t->o + r * t->o_stride, t->o_stride, n, p->head_dim_v,
                               factor + r, out, p->out.seq);
    }
}

void attention_clear_gaps(const struct attention_problem *p) {
    if (!p->is_packed) return;
    int64_t covered = 0; // rows below are of a sequence or cleared
    for (int64_t b = 0; b <= p->num_batches; b++) {
        struct attention_sequence seq = {.q_first = p->total_q};
        if (b < p->num_batches) seq = attention_sequence_at(p, b);
        for (; covered < seq.q_first; covered++)
            for (int64_t h = 0; h < p->num_heads_q; h++) {
                memset(attention_at(&p->out, 0, covered, h), 0,
                       (size_t)p->head_dim_v * tsr_dtype_bytes(p->dtype));
                store_lse(p, 0, h, covered, 0, 0);
            }
        covered = tsri_max(covered, seq.q_first + seq.len_q);
    }
}

// ---- Packing ----------------------------------------------------------------------------------

int64_t attention_k_floats(const struct attention_problem *p, int64_t num_keys, int nr) {
    return (int64_t)tsri_round_up((size_t)num_keys, (size_t)nr) * p->head_dim;
}

int64_t attention_v_floats(const struct attention_problem *p, int64_t num_keys, int nr) {
    return (int64_t)tsri_round_up((size_t)p->head_dim_v, (size_t)nr) * num_keys;
}

struct attention_packed attention_packed(const struct attention_problem *p, int64_t num_keys,
                                         int nr) {
    return (struct attention_packed){.num_keys = num_keys,
                                     .k_row = p->head_dim,
                                     .v_row = nr,
                                     .v_stride = num_keys * nr,
                                     .k_floats = attention_k_floats(p, num_keys, nr),
                                     .v_floats = attention_v_floats(p, num_keys, nr)};
}

// Rows of one head have a large stride, so they are prefetched some rows before they are packed.
enum { PACK_AHEAD = 64, PACK_ROWS = 16 };

static void ask_ahead(const struct attention_tile *t, const struct attention_view *view,
                      int64_t dims, int64_t first, int64_t num_rows, int64_t end) {
    for (int64_t j = first; j < tsri_min(first + num_rows, end); j++)
        attention_prefetch_row(view, t->batch, t->seq.k_first + j, t->kv_head, dims);
}

void attention_pack_keys(const struct attention_tile *t, const struct attention_view *view,
                         int64_t dims, int64_t first, int64_t num_keys, float *panels) {
    int64_t nr = t->gemm->nr, end = first + num_keys;
    ask_ahead(t, view, dims, first, nr, end);
    for (int64_t j = 0; j < num_keys; j += nr) {
        ask_ahead(t, view, dims, first + j + nr, nr, end);
        t->gemm->pack_b(view->dtype,
                        attention_at(view, t->batch, t->seq.k_first + first + j, t->kv_head), 1,
                        view->seq, dims, tsri_min(nr, num_keys - j), panels + j * dims);
    }
}

bool attention_pack_dims(const struct attention_tile *t, const struct attention_view *view,
                         int64_t dims, int64_t first, int64_t num_keys, float *panels,
                         int64_t panel_stride) {
    int64_t nr = t->gemm->nr, end = first + num_keys;
    bool has_nonfinite = false;
    ask_ahead(t, view, dims, first, PACK_AHEAD, end);
    for (int64_t j = 0; j < num_keys; j += PACK_ROWS) {
        int64_t rows = tsri_min(PACK_ROWS, num_keys - j);
        const char *from = attention_at(view, t->batch, t->seq.k_first + first + j, t->kv_head);
        size_t bytes = tsr_dtype_bytes(view->dtype);
        ask_ahead(t, view, dims, first + j + PACK_AHEAD, rows, end);
        has_nonfinite |= t->kernels->have_nonfinite(view->dtype, from, view->seq, rows, dims);
        for (int64_t c = 0; c < dims; c += nr)
            t->gemm->pack_b(view->dtype, from + (size_t)c * bytes, view->seq, 1, rows,
                            tsri_min(nr, dims - c), panels + c / nr * panel_stride + j * nr);
    }
    return has_nonfinite;
}

void attention_pack_k(const struct attention_tile *t, int64_t first, int64_t num_keys, float *k) {
    attention_pack_keys(t, &t->p->k, t->p->head_dim, first, num_keys, k);
}

bool attention_pack_v(const struct attention_tile *t, int64_t first, int64_t num_keys, float *v,
                      int64_t v_stride) {
    return attention_pack_dims(t, &t->p->v, t->p->head_dim_v, first, num_keys, v, v_stride);
}

const struct attention_steps attention_fp32_steps = {
    .load_q = attention_tile_load_q,
    .sweep = sweep,
    .pack_k = attention_pack_k,
    .pack_v = attention_pack_v,
};
