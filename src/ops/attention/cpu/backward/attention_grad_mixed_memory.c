// SPDX-License-Identifier: Apache-2.0
// The memory layout of a tile of backward with bf16 products.
#include "ops/attention/cpu/backward/attention_grad_mixed.h"

enum { STRIP = ATTENTION_STRIP, PANEL = GEMM_BF16_NR };

static int64_t round_depth(int64_t n) { return (int64_t)tsri_round_up((size_t)n, GEMM_BF16_DEPTH); }
static int64_t round_panels(int64_t n) { return (int64_t)tsri_round_up((size_t)n, PANEL); }

// The stride of a row: one cache line more than whole steps, to avoid powers of two.
static int64_t pair_stride(int64_t n) { return round_depth(n) + GEMM_BF16_DEPTH; }

// Floats of `count` rows of bf16.
static int64_t pair_floats(int64_t count, int64_t stride) { return count * stride / 2; }

struct layout {
    int64_t s, dims, k_cols, v_cols, k_rows, q, dout, q_cols, dout_cols, p;
};

static struct layout layout_of(const struct attention_problem *p, int64_t block_m,
                               int64_t block_n) {
    int64_t depth = round_depth(p->head_dim), depth_v = round_depth(p->head_dim_v);
    return (struct layout){.s = STRIP * attention_row_stride(block_n),
                           .dims = attention_row_stride(block_n),
                           .k_cols = pair_floats(block_n, depth),
                           .v_cols = pair_floats(block_n, depth_v),
                           .k_rows = pair_floats(block_n, round_panels(p->head_dim)),
                           .q = pair_floats(block_m, pair_stride(depth)),
                           .dout = pair_floats(block_m, pair_stride(depth_v)),
                           .q_cols = pair_floats(depth, pair_stride(block_m)),
                           .dout_cols = pair_floats(depth_v, pair_stride(block_m)),
                           .p = pair_floats(block_m, block_n)};
}

int64_t attention_grad_mixed_floats(const struct attention_problem *p, int64_t block_m,
                                    int64_t block_n) {
    struct layout l = layout_of(p, block_m, block_n);
    return 2 * l.s + l.dims * (round_depth(p->head_dim) + round_depth(p->head_dim_v)) + l.k_cols +
           l.v_cols + l.k_rows + l.q + l.dout + l.q_cols + l.dout_cols + 2 * l.p +
           pair_floats(block_m, pair_stride(block_n));
}

static float *take(float **memory, int64_t floats) {
    float *from = *memory;
    *memory += floats;
    return from;
}

static uint16_t *take_pairs(float **memory, int64_t floats) {
    return (uint16_t *)(void *)take(memory, floats);
}

void attention_grad_mixed_carve(struct attention_grad_mixed *g, const struct attention_problem *p,
                                tsr_isa isa, const struct gemm_bf16_kernels *gemm, float *memory,
                                int64_t block_m, int64_t block_n) {
    struct layout l = layout_of(p, block_m, block_n);
    struct attention_tile *t = &g->tile;
    t->p = p;
    t->gemm = gemm_kernels(isa);
    t->kernels = attention_kernels(isa);
    t->s_stride = attention_row_stride(block_n);
    g->gemm = gemm;
    g->factor = attention_split_scale(p, &g->power);
    g->block_m = block_m;
    g->block_n = block_n;
    g->depth = round_depth(p->head_dim);
    g->depth_v = round_depth(p->head_dim_v);
    g->key_stride = l.dims;
    g->q_stride = pair_stride(g->depth);
    g->dout_stride = pair_stride(g->depth_v);
    g->row_stride = pair_stride(block_m);
    g->ds_stride = pair_stride(block_n);
    t->s = take(&memory, l.s);
    g->dp = take(&memory, l.s);
    g->dk = take(&memory, l.dims * g->depth);
    g->dv = take(&memory, l.dims * g->depth_v);
    g->k_cols = take_pairs(&memory, l.k_cols);
    g->v_cols = take_pairs(&memory, l.v_cols);
    g->k_rows = take_pairs(&memory, l.k_rows);
    g->q = take_pairs(&memory, l.q);
    g->dout = take_pairs(&memory, l.dout);
    g->q_cols = take_pairs(&memory, l.q_cols);
    g->dout_cols = take_pairs(&memory, l.dout_cols);
    g->p = take_pairs(&memory, l.p);
    g->ds = take_pairs(&memory, l.p);
    g->ds_rows = take_pairs(&memory, pair_floats(block_m, g->ds_stride));
}
