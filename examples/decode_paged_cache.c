// SPDX-License-Identifier: Apache-2.0
// Generation with a paged cache: two sequences of different lengths take pages from one pool. One packed call reads both
// prompts, then each call adds one token to each sequence. The last step is checked against attention over all keys.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum {
    BATCH = 2,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 16,
    PAGE = 8,
    POOL = 12,
    PAGES = 6,
    STEPS = 9
};
enum { LONGEST = PAGES * PAGE, PROMPTS = 13 + 6, KV = KV_HEADS * HEAD_DIM };

static const int prompt[BATCH] = {13, 6};

// The pool, and the pages of each sequence, which takes them as it grows.
static float k_pool[POOL][PAGE][KV], v_pool[POOL][PAGE][KV];
static int32_t page_table[BATCH][PAGES], lengths[BATCH], starts[BATCH + 1];
static int taken;

static float q[PROMPTS][HEADS][HEAD_DIM], k[PROMPTS][KV], v[PROMPTS][KV];
static float out[PROMPTS][HEADS][HEAD_DIM];
static float all_k[BATCH][LONGEST][KV], all_v[BATCH][LONGEST][KV]; // for the check alone
static float expected[HEADS][HEAD_DIM];

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, tsr_last_error());                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// Uniform in [-1, 1).
static float draw(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int)(state >> 8) / (float)(1 << 23) - 1;
}

// Draws rows of q, k and v for num_new[b] tokens of each sequence b, one sequence after the other, and takes pages for them.
static void take_tokens(const int *num_new) {
    for (int b = 0, row = 0; b < BATCH; b++) {
        starts[b] = row;
        for (int t = 0; t < num_new[b]; t++, row++) {
            int position = lengths[b] + t;
            if (position % PAGE == 0) page_table[b][position / PAGE] = taken++;
            for (int i = 0; i < HEADS * HEAD_DIM; i++) q[row][i / HEAD_DIM][i % HEAD_DIM] = draw();
            for (int i = 0; i < KV; i++) {
                all_k[b][position][i] = k[row][i] = draw();
                all_v[b][position][i] = v[row][i] = draw();
            }
        }
        starts[b + 1] = row;
    }
}

// In one call, appends the new keys and values to the cache and attends to all keys in it.
static void decode(tsr_context *ctx, const int *num_new) {
    take_tokens(num_new);
    int64_t rows = starts[BATCH];
    TRY(tsr_attention_decode(
        ctx, &TSR_ATTENTION_DECODE_ARGS(.q = TSR_TENSOR(q, TSR_F32, rows, HEADS, HEAD_DIM),
                                        .k_new = TSR_TENSOR(k, TSR_F32, rows, KV_HEADS, HEAD_DIM),
                                        .v_new = TSR_TENSOR(v, TSR_F32, rows, KV_HEADS, HEAD_DIM),
                                        .k_cache = TSR_TENSOR(k_pool, TSR_F32, POOL, PAGE, KV_HEADS,
                                                              HEAD_DIM),
                                        .v_cache = TSR_TENSOR(v_pool, TSR_F32, POOL, PAGE, KV_HEADS,
                                                              HEAD_DIM),
                                        .cache_seqlens = TSR_TENSOR(lengths, TSR_I32, BATCH),
                                        .page_table = TSR_TENSOR(page_table, TSR_I32, BATCH, PAGES),
                                        .cu_seqlens_q = TSR_TENSOR(starts, TSR_I32, BATCH + 1),
                                        .out = TSR_TENSOR(out, TSR_F32, rows, HEADS, HEAD_DIM),
                                        .mask = TSR_MASK_CAUSAL)));
    for (int b = 0; b < BATCH; b++) lengths[b] += num_new[b];
}

int main(void) {
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));
    decode(ctx, prompt);
    for (int step = 0; step < STEPS; step++) decode(ctx, (const int[BATCH]){1, 1});

    double errors = 0;
    for (int b = 0; b < BATCH; b++) {
        TRY(tsr_attention_forward(
            ctx, &TSR_ATTENTION_FORWARD_ARGS(
                         .q = TSR_TENSOR(q[b], TSR_F32, 1, 1, HEADS, HEAD_DIM),
                         .k = TSR_TENSOR(all_k[b], TSR_F32, 1, lengths[b], KV_HEADS, HEAD_DIM),
                         .v = TSR_TENSOR(all_v[b], TSR_F32, 1, lengths[b], KV_HEADS, HEAD_DIM),
                         .out = TSR_TENSOR(expected, TSR_F32, 1, 1, HEADS, HEAD_DIM))));
        for (int i = 0; i < HEADS * HEAD_DIM; i++) {
            int h = i / HEAD_DIM, d = i % HEAD_DIM;
            errors += fabs((double)out[b][h][d] - (double)expected[h][d]);
        }
    }
    tsr_context_destroy(ctx);
    printf("sequences of %d and %d keys on %d of %d pages, errors add up to %.1e\n",
           (int)lengths[0], (int)lengths[1], taken, POOL, errors);
    return errors < 1e-4 ? 0 : 1;
}
