// SPDX-License-Identifier: Apache-2.0
// The gradients of sinks and bias.
//
// An element of dbias sums over every dimension that bias repeats. A task owns a tile of dbias. It goes through all batches, heads
// and queries that add to the tile, in order, and computes their scores again. So memory is one tile, there are no atomics, and
// any number of threads gives the same bits.
#include "ops/attention/cpu/backward/attention_grad.h"

#include <math.h>
#include <string.h>

struct work {
    const struct attention_problem *p;
    tsr_isa isa;
    int64_t rows;                             // of a group, at most
    const struct attention_statistics *stats; // [pair][row of the group]
    float *threads;
    int64_t thread_floats;
};

// ---- Sinks ------------------------------------------------------------------------------------

static void sink_task(void *arg, int64_t head, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    (void)thread;
    int64_t group = p->num_heads_q / p->num_heads_kv;
    double sink = attention_sink_at(p, 0, head), sum = 0;
    for (int64_t b = 0; b < p->num_batches; b++) {
        struct attention_sequence seq = attention_sequence_at(p, b);
        const struct attention_statistics *row =
            w->stats + (b * p->num_heads_kv + head / group) * w->rows + head % group * seq.len_q;
        for (int64_t i = 0; i < seq.len_q; i++) {
            if (row[i].lse != -INFINITY)
                sum -=
                    exp(sink - (double)row[i].lse - (double)row[i].lse_low) * (double)row[i].delta;
        }
    }
    tsr_store(p->dsinks.dtype, p->dsinks.data, head * p->dsinks.head,
              isnan(sum) ? (double)NAN : sum);
}

void attention_grad_sinks(tsr_context *ctx, const struct attention_problem *p,
                          const struct attention_statistics *stats) {
    if (p->dsinks.data == NULL || p->num_heads_kv == 0) return;
    struct work w = {.p = p, .stats = stats};
    w.rows = p->num_heads_q / p->num_heads_kv * p->seqlen_q;
    tsri_parallel(ctx, p->num_heads_q, sink_task, &w);
}

// ---- Bias -------------------------------------------------------------------------------------

enum { BLOCK_M = 96, BLOCK_N = 256 };

int64_t attention_grad_bias_floats(const struct attention_problem *p, int nr) {
    return attention_grad_floats(p, BLOCK_M, BLOCK_N, nr) + BLOCK_M * BLOCK_N + BLOCK_N;
}

struct bias_tile {
    struct attention_grad g;
    const struct work *w;
    int64_t batch, head, row, num_rows; // of dbias
    int64_t stride;                     // of sum
    float *sum;                         // [num_rows][stride]
};

// sum += ds of the current tile, whose rows start at query i.
static void add_tile(struct bias_tile *t, int64_t i) {
    const struct attention_tile *tile = &t->g.tile;
    bool has_rows = t->w->p->dbias.shape[2] > 1, has_cols = t->w->p->dbias.shape[3] > 1;
    for (int64_t r = 0; r < tile->num_rows; r++) {
        struct attention_range part = attention_row_part(&tile->row[r], &t->g.block);
        if (part.begin >= part.end) continue;
        const float *ds = t->g.ds + r * tile->s_stride + part.begin;
        float *sum = t->sum + (has_rows ? i + r - t->row : 0) * t->stride;
        if (has_cols) {
            tile->kernels->add(ds, part.end - part.begin, sum + part.begin);
            continue;
        }
        float row = 0;
        for (int64_t j = 0; j < part.end - part.begin; j++) row += ds[j];
        *sum += row;
    }
}

// Adds everything that one head of one batch adds to the tile for keys [key, key + BLOCK_N).
static void add_head(struct bias_tile *t, int64_t batch, int64_t head, int64_t key) {
    const struct attention_problem *p = t->w->p;
    struct attention_sequence seq = attention_sequence_at(p, batch);
    int64_t num_keys = tsri_min(BLOCK_N, seq.len_k - key);
    int64_t end = p->dbias.shape[2] > 1 ? tsri_min(t->row + t->num_rows, seq.len_q) : seq.len_q;
    int64_t begin = p->dbias.shape[2] > 1 ? t->row : 0, group = p->num_heads_q / p->num_heads_kv;
    if (num_keys <= 0 || begin >= end) return;
    attention_grad_load_keys(&t->g, batch, head / group, key, num_keys, false);
    for (int64_t i = begin; i < end; i += BLOCK_M) {
        int64_t row = head % group * seq.len_q + i;
        if (!attention_grad_open(&t->g, batch, head / group, row, tsri_min(BLOCK_M, end - i),
                                 t->w->stats +
                                     (batch * p->num_heads_kv + head / group) * t->w->rows + row))
            continue;
        attention_grad_scores(&t->g);
        add_tile(t, i);
    }
}

static void store_tile(const struct bias_tile *t, int64_t key, int64_t num_keys) {
    const struct attention_bias *dbias = &t->w->p->dbias;
    for (int64_t r = 0; r < t->num_rows; r++) {
        void *to = attention_bias_at(dbias, t->batch, t->head, t->row + r, key);
        for (int64_t j = 0; j < num_keys; j++) {
            float sum = t->sum[r * t->stride + j];
            tsr_store(dbias->dtype, to, j * dbias->stride[3], (double)(isnan(sum) ? NAN : sum));
        }
    }
}

static void bias_task(void *arg, int64_t index, int thread) {
    const struct work *w = arg;
    const struct attention_problem *p = w->p;
    const int64_t *shape = p->dbias.shape;
    int64_t tiles = tsri_ceil_div(shape[2], BLOCK_M);
    struct bias_tile t = {.w = w, .row = index % tiles * BLOCK_M};
    t.head = index / tiles % shape[1];
    t.batch = index / tiles / shape[1];
    t.num_rows = tsri_min(BLOCK_M, shape[2] - t.row);
    t.stride = shape[3] > 1 ? BLOCK_N : 1;
    float *memory = w->threads + thread * w->thread_floats;
    attention_grad_carve(&t.g, p, w->isa, memory, BLOCK_M, BLOCK_N);
    t.g.is_before_cap = true;
    t.sum = memory + attention_grad_floats(p, BLOCK_M, BLOCK_N, t.g.tile.gemm->nr);
    size_t sum_bytes = (size_t)(t.num_rows * t.stride) * sizeof(float);
    memset(t.sum, 0, sum_bytes);
    for (int64_t key = 0; key < p->seqlen_k; key += BLOCK_N) {
        for (int64_t b = 0; b < p->num_batches; b++)
            for (int64_t h = 0; h < p->num_heads_q; h++)
                if ((shape[0] == 1 || b == t.batch) && (shape[1] == 1 || h == t.head))
                    add_head(&t, b, h, key);
        if (shape[3] == 1 && p->seqlen_k > 1) continue;
        store_tile(&t, key, tsri_min(BLOCK_N, shape[3] - key));
        memset(t.sum, 0, sum_bytes);
    }
    if (shape[3] == 1 && p->seqlen_k != 1) store_tile(&t, 0, 1);
}

void attention_grad_bias(tsr_context *ctx, const struct attention_problem *p,
                         const struct attention_statistics *stats, float *threads,
                         int64_t thread_floats) {
    if (p->dbias.data == NULL) return;
    struct work w = {p, tsr_context_isa(ctx), 0, stats, threads, thread_floats};
    if (p->num_heads_kv > 0) w.rows = p->num_heads_q / p->num_heads_kv * p->seqlen_q;
    const int64_t *shape = p->dbias.shape;
    tsri_parallel(ctx, shape[0] * shape[1] * tsri_ceil_div(shape[2], BLOCK_M), bias_task, &w);
}
