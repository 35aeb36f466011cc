// SPDX-License-Identifier: Apache-2.0
// A block of keys against the rows of its head, span by span, in fp32 and in bf16.
#include "ops/attention/cpu/backward/attention_backward_block.h"

#include <string.h>

// The thread's memory for products in bf16.
static void carve_mixed(const struct attention_backward_work *w, struct attention_grad_mixed *g,
                        int thread) {
    attention_grad_mixed_carve(g, w->p, w->isa, w->gemm_bf16, w->threads + thread * w->plan->grain,
                               w->plan->block_m, w->plan->block_n);
}

// The dk and dv of one span. add_span adds them to those of the spans before.
struct span {
    int64_t end_row;
    float *dk, *dv;
};

static struct span span_at(const struct attention_backward_work *w,
                           const struct attention_backward_block *b, int64_t row) {
    struct span s = {tsri_min(row + w->span_rows, b->end_row), b->dk, b->dv};
    if (row == b->row) return s;
    s.dk = b->next;
    s.dv = s.dk + w->plan->block_n * w->dk_stride;
    return s;
}

static void add_span(const struct attention_backward_work *w,
                     const struct attention_backward_block *b, const struct span *s) {
    const struct attention_kernels *kernels = attention_kernels(w->isa);
    if (s->dk == b->dk) return;
    kernels->add(s->dk, b->num_keys * w->dk_stride, b->dk);
    kernels->add(s->dv, b->num_keys * w->dv_stride, b->dv);
}

// Adds a tile's share to the sums of dq.
static void add_queries(const struct attention_backward_work *w, const struct attention_grad *g,
                        const struct attention_backward_block *b, int64_t row, int64_t num_rows) {
    int64_t floats = num_rows * w->dq_stride;
    for (int64_t begin = 0, end; b->dq != NULL && begin < b->num_keys; begin = end) {
        int64_t key = b->first + begin, run = key / w->run_keys * w->run_keys;
        int64_t sum_at = key / w->sum_keys - b->first / w->sum_keys;
        float *sum = b->dq + sum_at * w->dq_sum + (row - b->dq_row) * w->dq_stride;
        bool has_begun = run % w->sum_keys != 0; // other runs have begun this sum
        if (has_begun) memset(b->part, 0, (size_t)floats * sizeof *b->part);
        end = tsri_min(run + w->run_keys - b->first, b->num_keys);
        attention_grad_queries(g, begin, end, has_begun ? b->part : sum, w->dq_stride);
        if (has_begun) g->tile.kernels->add(b->part, floats, sum);
    }
}

void attention_backward_add(const struct attention_backward_work *w, struct attention_grad *g,
                            const struct attention_backward_block *b) {
    const struct attention_problem *p = w->p;
    const struct attention_statistics *stats = w->stats + b->pair * w->rows;
    int64_t batch = b->pair / p->num_heads_kv, kv_head = b->pair % p->num_heads_kv;
    int64_t row = b->row, block_m = w->plan->block_m, num_rows;
    attention_grad_load_keys(g, batch, kv_head, b->first, b->num_keys, b->dq != NULL);
    do {
        struct span s = span_at(w, b, row);
        memset(s.dk, 0, (size_t)(b->num_keys * w->dk_stride) * sizeof *s.dk);
        memset(s.dv, 0, (size_t)(b->num_keys * w->dv_stride) * sizeof *s.dv);
        for (; row < s.end_row; row += num_rows) {
            num_rows = tsri_min(block_m, s.end_row - row);
            if (!attention_grad_open(g, batch, kv_head, row, num_rows, stats + row)) continue;
            attention_grad_scores(g);
            attention_grad_keys(g, p->dk.data != NULL ? s.dk : NULL, w->dk_stride,
                                p->dv.data != NULL ? s.dv : NULL, w->dv_stride);
            add_queries(w, g, b, row, num_rows);
        }
        add_span(w, b, &s);
    } while (row < b->end_row);
}

bool attention_backward_add_mixed(const struct attention_backward_work *w, int thread,
                                  const struct attention_backward_block *b) {
    const struct attention_problem *p = w->p;
    struct attention_grad_mixed m;
    struct attention_grad_mixed_dq to = {.stride = w->dq_stride,
                                         .run_keys = w->run_keys,
                                         .sum_keys = w->sum_keys,
                                         .next = w->dq_sum,
                                         .part = b->part};
    int64_t row = b->row, block_m = w->plan->block_m, num_rows;
    carve_mixed(w, &m, thread);
    if (!attention_grad_mixed_load_keys(&m, b->pair / p->num_heads_kv, b->pair % p->num_heads_kv,
                                        b->first, b->num_keys))
        return false;
    do {
        struct span s = span_at(w, b, row);
        attention_grad_mixed_start(&m);
        w->gemm_bf16->open();
        for (; row < s.end_row; row += num_rows) {
            num_rows = tsri_min(block_m, s.end_row - row);
            if (b->dq != NULL) to.sum = b->dq + (row - b->dq_row) * w->dq_stride;
            attention_grad_mixed_add(&m, row, num_rows, w->stats + b->pair * w->rows + row, &to);
        }
        w->gemm_bf16->close();
        attention_grad_mixed_finish(&m, s.dk, w->dk_stride, s.dv, w->dv_stride);
        add_span(w, b, &s);
    } while (row < b->end_row);
    return true;
}

void attention_backward_refine(const struct attention_backward_work *w, struct attention_grad *g,
                               int thread, int64_t pair, int64_t first, int64_t num_rows,
                               bool may_be_mixed) {
    const struct attention_problem *p = w->p;
    int64_t batch = pair / p->num_heads_kv, kv_head = pair % p->num_heads_kv;
    struct attention_statistics *stats = w->stats + pair * w->rows + first;
    struct attention_grad_sum sums[ATTENTION_MAX_ROWS];
    attention_tile_open(&g->tile, batch, kv_head, first, num_rows);
    if (!attention_grad_start_sums(&g->tile, stats, sums)) return;
    int64_t len_k = g->tile.seq.len_k, num_keys;
    for (int64_t j = 0; j < len_k; j += num_keys) {
        struct attention_grad_mixed m;
        num_keys = tsri_min(w->plan->block_n, len_k - j);
        if (may_be_mixed) {
            carve_mixed(w, &m, thread);
            if (attention_grad_mixed_load_keys(&m, batch, kv_head, j, num_keys)) {
                w->gemm_bf16->open();
                attention_grad_mixed_sum_block(&m, first, num_rows, stats, sums);
                w->gemm_bf16->close();
                continue;
            }
        }
        attention_grad_load_keys(g, batch, kv_head, j, num_keys, false);
        attention_grad_sum_block(g, batch, kv_head, first, num_rows, stats, sums);
    }
    attention_grad_finish_sums(p, num_rows, sums, stats);
}
