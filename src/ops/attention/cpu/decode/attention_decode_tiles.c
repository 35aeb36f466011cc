// SPDX-License-Identifier: Apache-2.0
// Many queries: flash2's tiles. Keys and values are packed block by block from their pages.
#include <string.h>

#include "ops/attention/cpu/attention_tile.h"
#include "ops/attention/cpu/decode/attention_decode_split.h"

static int64_t gathered_floats(const struct attention_problem *a, int nr) {
    return (int64_t)tsri_round_up((size_t)(nr * a->head_dim), 16);
}

int64_t decode_tile_floats(const struct attention_decode_problem *p, const struct tsri_plan *plan,
                           tsr_isa isa) {
    const struct attention_problem *a = &p->a;
    int nr = gemm_kernels(isa)->nr;
    return (int64_t)tsri_round_up((size_t)(attention_tile_floats(a, plan->block_m, plan->block_n) +
                                           attention_k_floats(a, plan->block_n, nr) +
                                           attention_v_floats(a, plan->block_n, nr) +
                                           gathered_floats(a, nr)),
                                  16);
}

// How many rows from the first on lie `step` bytes apart.
static int64_t run_of(const char *const *rows, int64_t num_rows, int64_t step) {
    int64_t n = 1;
    while (n < num_rows && rows[n] - rows[n - 1] == step) n++;
    return n;
}

// Packs keys in panels of nr, [dim][nr]. A panel with keys on several pages is gathered first.
static void pack_keys(const struct decode_work *w, const struct attention_tile *t,
                      const char *const *rows, int64_t num_keys, char *gathered, float *panels) {
    const struct attention_view *k = &w->base.p->k_cache;
    int64_t nr = t->gemm->nr, dims = t->p->head_dim;
    int64_t element = (int64_t)tsr_dtype_bytes(k->dtype), head = t->kv_head * k->head * element;
    for (int64_t j = 0; j < num_keys; j += nr) {
        int64_t keys = tsri_min(nr, num_keys - j), stride = k->seq;
        const char *from = rows[j] + head;
        if (run_of(rows + j, keys, k->seq * element) < keys) {
            for (int64_t i = 0; i < keys; i++)
                memcpy(gathered + i * dims * element, rows[j + i] + head, (size_t)(dims * element));
            from = gathered;
            stride = dims;
        }
        t->gemm->pack_b(k->dtype, from, 1, stride, dims, keys, panels + j * dims);
    }
}

// e4m3 has no infinity.
static bool has_nan(const char *row, int64_t dims) {
    int found = 0;
    for (int64_t c = 0; c < dims; c++) found |= (row[c] & 0x7f) == 0x7f;
    return found != 0;
}

// Packs values in panels of nr dims, [key][nr], run by run. True: something is not finite.
static bool pack_values(const struct decode_work *w, const struct attention_tile *t,
                        const char *const *rows, int64_t num_keys, float *panels,
                        int64_t panel_stride) {
    const struct attention_view *v = &w->base.p->v_cache;
    int64_t nr = t->gemm->nr, dims = t->p->head_dim_v;
    int64_t element = (int64_t)tsr_dtype_bytes(v->dtype), head = t->kv_head * v->head * element;
    bool has_nonfinite = false;
    for (int64_t j = 0; j < num_keys && !has_nonfinite; j++)
        has_nonfinite = v->dtype == TSR_E4M3
                            ? has_nan(rows[j] + head, dims)
                            : t->kernels->have_nonfinite(v->dtype, rows[j] + head, 0, 1, dims);
    for (int64_t j = 0, keys; j < num_keys; j += keys) {
        keys = run_of(rows + j, num_keys - j, v->seq * element);
        for (int64_t c = 0; c < dims; c += nr)
            t->gemm->pack_b(v->dtype, rows[j] + head + c * element, v->seq, 1, keys,
                            tsri_min(nr, dims - c), panels + c / nr * panel_stride + j * nr);
    }
    return has_nonfinite;
}

// The softmax of a block with keys that tree_mask hides from some rows.
static void weigh_seen(const struct decode_work *w, const struct attention_decode_sequence *seq,
                       struct attention_tile *t, const struct attention_block *b) {
    for (int64_t r = 0; r < t->num_rows; r++) {
        const struct attention_row *row = &t->row[r];
        struct attention_range part = attention_row_part(row, b);
        t->alpha[r] = 1;
        if (part.begin < part.end)
            t->alpha[r] = attention_decode_weigh(
                &w->base, seq, row->i, row->head, b->first + part.begin, part.end - part.begin,
                t->s + r * t->s_stride + part.begin, &t->max[r], &t->sum[r]);
    }
}

// o += s v, key by key, for values that are not finite beside a mask with holes: as 0 times NaN is NaN.
static void add_seen_values(const struct decode_work *w,
                            const struct attention_decode_sequence *seq, struct attention_tile *t,
                            const struct attention_block *b, const char *const *rows) {
    const struct attention_view *v = &w->base.p->v_cache;
    int64_t head = t->kv_head * v->head * tsri_dtype_bytes(v->dtype);
    for (int64_t r = 0; r < t->num_rows; r++) {
        struct attention_range part = attention_row_part(&t->row[r], b);
        float *o = t->o + r * t->o_stride;
        if (t->alpha[r] != 1.0f) t->kernels->scale(o, t->p->head_dim_v, t->alpha[r]);
        for (int64_t j = part.begin; j < part.end; j++)
            if (attention_decode_sees(w->base.p, seq, t->row[r].i, b->first + j))
                w->base.kernels->add_scaled(v->dtype, rows[j] + head, t->p->head_dim_v,
                                            t->s[r * t->s_stride + j], o);
    }
}

static void attend(const struct decode_work *w, const struct attention_decode_sequence *seq,
                   struct attention_tile *t, float *memory) {
    const struct attention_decode_problem *p = w->base.p;
    int64_t block_n = w->base.plan->block_n;
    float *k = memory, *v = k + attention_k_floats(t->p, block_n, t->gemm->nr);
    char *gathered = (char *)(v + attention_v_floats(t->p, block_n, t->gemm->nr));
    const char *rows[512];
    for (int64_t j = t->seen.begin; j < t->seen.end; j += block_n) {
        struct attention_block b = {
            .first = j, .num_keys = tsri_min(block_n, t->seen.end - j), .k = k, .v = v};
        b.k_stride = t->p->head_dim * t->gemm->nr;
        b.v_stride = b.num_keys * t->gemm->nr;
        attention_decode_rows(p, &p->k_cache, seq, j, b.num_keys, rows);
        pack_keys(w, t, rows, b.num_keys, gathered, k);
        attention_decode_rows(p, &p->v_cache, seq, j, b.num_keys, rows);
        b.v_has_nonfinite = pack_values(w, t, rows, b.num_keys, v, b.v_stride);
        const bool has_holes = p->tree_mask != NULL && j + b.num_keys > seq->s.shift;
        attention_tile_scores(t, &b);
        if (has_holes)
            weigh_seen(w, seq, t, &b);
        else
            attention_tile_softmax(t, &b);
        if (has_holes && b.v_has_nonfinite)
            add_seen_values(w, seq, t, &b, rows);
        else
            attention_tile_values(t, &b);
    }
}

void decode_tile_task(const struct decode_work *w, const struct decode_job *job, int64_t index,
                      float *memory) {
    const struct attention_decode_problem *p = w->base.p;
    const struct tsri_plan *plan = w->base.plan;
    struct attention_decode_sequence seq = attention_decode_sequence_at(p, job->batch);
    struct attention_problem part = attention_decode_part(p, &seq);
    int64_t group_rows = attention_group_rows(&part, &seq.s);
    int64_t tiles = tsri_ceil_div(group_rows, plan->block_m);
    // Under a causal mask the last tiles are the heaviest, so they come first.
    int64_t head = index / tiles, first = (tiles - 1 - index % tiles) * plan->block_m;
    struct attention_tile t;
    attention_tile_carve(&t, &part, w->base.isa, memory, plan->block_m, plan->block_n);
    attention_tile_open(&t, 0, head, first, tsri_min(plan->block_m, group_rows - first));
    for (int64_t r = 0; r < t.num_rows; r++)
        attention_decode_load_q(&w->base, &seq, t.row[r].i, t.row[r].head, t.q + r * t.q_stride);
    attention_tile_clear(&t);
    attend(w, &seq, &t, memory + attention_tile_floats(&part, plan->block_m, plan->block_n));
    for (int64_t r = 0; r < t.num_rows && p->v_scale.data != NULL; r++)
        t.kernels->scale(t.o + r * t.o_stride, part.head_dim_v,
                         (float)attention_decode_scale(&p->v_scale, seq.batch, head));
    attention_tile_finish(&t);
}
