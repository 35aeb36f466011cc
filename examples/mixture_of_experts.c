// SPDX-License-Identifier: Apache-2.0
// A mixture of experts: the router's softmax, a loop that finds the best two experts of each token, tokens sorted by expert,
// and all experts in two grouped products with SwiGLU between them. The check computes each token's experts one at a time.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { TOKENS = 50, HIDDEN = 32, INNER = 48, EXPERTS = 6, TOP = 2, ROWS = TOKENS * TOP };

static float x[TOKENS][HIDDEN], router[EXPERTS][HIDDEN], share[TOKENS][EXPERTS], y[TOKENS][HIDDEN];
static float gate[EXPERTS][INNER][HIDDEN], up[EXPERTS][INNER][HIDDEN], down[EXPERTS][HIDDEN][INNER];
static float in[ROWS][HIDDEN], inner[ROWS][INNER], out[ROWS][HIDDEN]; // rows sorted by expert

// A token's experts, the best first, and its rows with them; a row's token; the first row of each expert.
static int expert[TOKENS][TOP], row_of[TOKENS][TOP];
static int32_t token_of[ROWS], offsets[EXPERTS + 1];

#define F32(data, ...) TSR_TENSOR(data, TSR_F32, __VA_ARGS__)
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, tsr_last_error());                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void draw(float *values, int count, float scale) {
    static unsigned state = 1;
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = scale * ((float)(int)(state >> 8) / (float)(1 << 23) - 1);
    }
}

// The library has no top-k: the program decides which tokens an expert gets.
static void route(void) {
    int count[EXPERTS] = {0};
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP; k++) {
            int best = -1;
            for (int e = 0; e < EXPERTS; e++)
                if ((k == 0 || e != expert[t][0]) && (best < 0 || share[t][e] > share[t][best]))
                    best = e;
            expert[t][k] = best;
            count[best]++;
        }
    for (int e = 0; e < EXPERTS; e++) offsets[e + 1] = offsets[e] + count[e], count[e] = offsets[e];
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP; k++) {
            row_of[t][k] = count[expert[t][k]]++;
            token_of[row_of[t][k]] = t;
        }
}

// Element c of a token's result, by the definition.
static double expected(int t, int c) {
    double sum = 0, weights = 0;
    for (int k = 0; k < TOP; k++) {
        int e = expert[t][k];
        double value = 0;
        for (int i = 0; i < INNER; i++) {
            double g = 0, u = 0;
            for (int h = 0; h < HIDDEN; h++) {
                g += (double)x[t][h] * (double)gate[e][i][h];
                u += (double)x[t][h] * (double)up[e][i][h];
            }
            value += g / (1 + exp(-g)) * u * (double)down[e][c][i];
        }
        sum += (double)share[t][e] * value;
        weights += (double)share[t][e];
    }
    return sum / weights;
}

int main(void) {
    draw(x[0], TOKENS * HIDDEN, 1);
    draw(router[0], EXPERTS * HIDDEN, 1);
    draw(gate[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(up[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(down[0][0], EXPERTS * HIDDEN * INNER, 0.4f);
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));

    tsr_tensor scores = F32(share, TOKENS, EXPERTS),
               groups = TSR_TENSOR(offsets, TSR_I32, EXPERTS + 1);
    TRY(tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = F32(x, TOKENS, HIDDEN),
                                                         .b = F32(router, EXPERTS, HIDDEN),
                                                         .c = scores, .transpose_b = 1)));
    TRY(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = scores, .y = scores)));
    route();
    // Sorts the tokens by expert. An embedding does this: it copies rows by index.
    TRY(tsr_embedding_forward(
        ctx,
        &TSR_EMBEDDING_FORWARD_ARGS(.ids = TSR_TENSOR(token_of, TSR_I32, ROWS),
                                    .weight = F32(x, TOKENS, HIDDEN), .y = F32(in, ROWS, HIDDEN))));
    TRY(tsr_matmul_grouped_forward(
        ctx,
        &TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = F32(in, ROWS, HIDDEN),
                                         .b = F32(gate, EXPERTS, INNER, HIDDEN),
                                         .b_up = F32(up, EXPERTS, INNER, HIDDEN), .offsets = groups,
                                         .c = F32(inner, ROWS, INNER), .transpose_b = 1,
                                         .activation = TSR_ACTIVATION_SILU)));
    TRY(tsr_matmul_grouped_forward(
        ctx,
        &TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = F32(inner, ROWS, INNER),
                                         .b = F32(down, EXPERTS, HIDDEN, INNER), .offsets = groups,
                                         .c = F32(out, ROWS, HIDDEN), .transpose_b = 1)));
    tsr_context_destroy(ctx);

    double errors = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < HIDDEN; c++) {
            float a = share[t][expert[t][0]], b = share[t][expert[t][1]];
            y[t][c] = (a * out[row_of[t][0]][c] + b * out[row_of[t][1]][c]) / (a + b);
            errors += fabs((double)y[t][c] - expected(t, c));
        }
    printf("%d tokens, %d experts for each; the mean error is %.1e\n", TOKENS, TOP,
           errors / (TOKENS * HIDDEN));
    return errors < 1e-6 * TOKENS * HIDDEN ? 0 : 1;
}
