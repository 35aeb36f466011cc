// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of attention with a cache: both forms of the cache, new tokens, and a call on some of them. One
// test program includes this file.
#ifndef ATTENTION_DECODE_CASE_H
#define ATTENTION_DECODE_CASE_H

#include <math.h>

#include "test_support.h"

enum { BATCH = 3, CAPACITY = 640, HEADS = 6, KV_HEADS = 2, DIM = 24, DIM_V = 20, PAGE = 16 };
enum { PAGES = CAPACITY / PAGE, PAIRS = 8, TOKENS = 40 };

static tsr_context *ctx;

// One cache in each form, and new tokens for TOKENS steps.
struct world {
    float k[BATCH][CAPACITY][KV_HEADS][DIM], v[BATCH][CAPACITY][KV_HEADS][DIM_V];
    float k_pages[BATCH * PAGES][PAGE][KV_HEADS][DIM],
        v_pages[BATCH * PAGES][PAGE][KV_HEADS][DIM_V];
    float q[BATCH][TOKENS][HEADS][DIM], k_new[BATCH][TOKENS][KV_HEADS][DIM];
    float v_new[BATCH][TOKENS][KV_HEADS][DIM_V], cos[CAPACITY][PAIRS], sin[CAPACITY][PAIRS];
    float out[2][BATCH][TOKENS][HEADS][DIM_V], lse[2][BATCH][HEADS][TOKENS];
    int32_t lengths[BATCH], table[BATCH][PAGES];
};
static struct world w;

static inline tsr_tensor strided(const void *data, int ndim, const int64_t *shape,
                                 const int64_t *stride) {
    tsr_tensor t = tsr_tensor_contiguous(data, TSR_F32, ndim, shape);
    memcpy(t.stride, stride, (size_t)ndim * sizeof *stride);
    return t;
}

static inline void draw(float *values, size_t bytes, uint64_t *seed) {
    for (size_t i = 0; i < bytes / sizeof *values; i++) values[i] = test_float(seed) / 4;
}

static inline int setup(void **state) {
    (void)state;
    uint64_t seed = 7;
    ctx = test_context(2);
    draw(&w.q[0][0][0][0], sizeof w.q, &seed);
    draw(&w.k_new[0][0][0][0], sizeof w.k_new, &seed);
    draw(&w.v_new[0][0][0][0], sizeof w.v_new, &seed);
    for (int j = 0; j < CAPACITY; j++)
        for (int i = 0; i < PAIRS; i++) {
            w.cos[j][i] = cosf((float)j * powf(0.4f, (float)i));
            w.sin[j][i] = sinf((float)j * powf(0.4f, (float)i));
        }
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

// Fills both forms of the cache with the same values up to the given lengths and NaN beyond. Pages are stored in
// reverse order.
static inline void fill_caches(const int32_t lengths[BATCH]) {
    uint64_t seed = 11;
    draw(&w.k[0][0][0][0], sizeof w.k, &seed);
    draw(&w.v[0][0][0][0], sizeof w.v, &seed);
    memcpy(w.lengths, lengths, sizeof w.lengths);
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < CAPACITY; j++) {
            int page = w.table[b][j / PAGE] = (BATCH - 1 - b) * PAGES + PAGES - 1 - j / PAGE;
            float *k = &w.k[b][j][0][0], *v = &w.v[b][j][0][0];
            for (int i = 0; i < KV_HEADS * DIM && j >= lengths[b]; i++) k[i] = NAN;
            for (int i = 0; i < KV_HEADS * DIM_V && j >= lengths[b]; i++) v[i] = NAN;
            memcpy(w.k_pages[page][j % PAGE], w.k[b][j], sizeof w.k[b][j]);
            memcpy(w.v_pages[page][j % PAGE], w.v[b][j], sizeof w.v[b][j]);
        }
}

// The call for tokens [first, first + num) of sequences [batch, batch + num_batches). It writes to w.out[side].
static inline tsr_attention_decode_args call_of(int batch, int num_batches, int first, int num,
                                                int side, bool is_paged) {
    tsr_attention_decode_args args = TSR_ATTENTION_DECODE_ARGS(.mask = TSR_MASK_CAUSAL);
#define VIEW(data, heads, dim)                                                                     \
    strided((data), 4, (int64_t[]){num_batches, num, (heads), (dim)},                              \
            (int64_t[]){TOKENS * (heads) * (dim), (heads) * (dim), (dim), 1})
    args.q = VIEW(w.q[batch][first], HEADS, DIM);
    args.k_new = VIEW(w.k_new[batch][first], KV_HEADS, DIM);
    args.v_new = VIEW(w.v_new[batch][first], KV_HEADS, DIM_V);
    args.out = VIEW(w.out[side][batch][first], HEADS, DIM_V);
#undef VIEW
    args.lse = strided(&w.lse[side][batch][0][first], 3, (int64_t[]){num_batches, HEADS, num},
                       (int64_t[]){HEADS * TOKENS, TOKENS, 1});
    args.cos = TSR_TENSOR(w.cos, TSR_F32, CAPACITY, PAIRS);
    args.sin = TSR_TENSOR(w.sin, TSR_F32, CAPACITY, PAIRS);
    args.cache_seqlens = TSR_TENSOR(w.lengths + batch, TSR_I32, num_batches);
    if (is_paged) {
        args.k_cache = TSR_TENSOR(w.k_pages, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM);
        args.v_cache = TSR_TENSOR(w.v_pages, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM_V);
        args.page_table = TSR_TENSOR(w.table[batch], TSR_I32, num_batches, PAGES);
    } else {
        args.k_cache = TSR_TENSOR(w.k[batch], TSR_F32, num_batches, CAPACITY, KV_HEADS, DIM);
        args.v_cache = TSR_TENSOR(w.v[batch], TSR_F32, num_batches, CAPACITY, KV_HEADS, DIM_V);
    }
    return args;
}

static const int32_t mixed[BATCH] = {0, 300, CAPACITY - TOKENS};

#endif
