// SPDX-License-Identifier: Apache-2.0
// A mixture of experts: the router's product, the best two experts of each token with their weights, tokens sorted by expert, and
// all experts in two grouped products with SwiGLU between them. The check computes each token's experts one at a time.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { TOKENS = 50, HIDDEN = 32, INNER = 48, EXPERTS = 6, TOP = 2, ROWS = TOKENS * TOP };

static float x[TOKENS][HIDDEN], router[EXPERTS][HIDDEN], logits[TOKENS][EXPERTS], y[TOKENS][HIDDEN];
static float gate[EXPERTS][INNER][HIDDEN], up[EXPERTS][INNER][HIDDEN], down[EXPERTS][HIDDEN][INNER];
static float in[ROWS][HIDDEN], inner[ROWS][INNER], out[ROWS][HIDDEN]; // rows sorted by expert

// A token's experts, the best first, with their weights and its rows; a row's token; the tokens of each expert and its first row.
static int32_t expert[TOKENS][TOP], token_of[ROWS], tokens_of[EXPERTS], offsets[EXPERTS + 1];
static float weight[TOKENS][TOP];
static int row_of[TOKENS][TOP];

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

// Gives each token a row with each of its experts: rows of the first expert, then of the second, and so on.
static void sort_rows(void) {
    int next[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        offsets[e + 1] = offsets[e] + tokens_of[e], next[e] = offsets[e];
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP; k++) {
            row_of[t][k] = next[expert[t][k]]++;
            token_of[row_of[t][k]] = t;
        }
}

// Element c of a token's result, by the definition.
static double expected(int t, int c) {
    double sum = 0, shares = 0;
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
        double share = exp((double)logits[t][e] - (double)logits[t][expert[t][0]]);
        sum += share * value;
        shares += share;
    }
    return sum / shares;
}

int main(void) {
    draw(x[0], TOKENS * HIDDEN, 1);
    draw(router[0], EXPERTS * HIDDEN, 1);
    draw(gate[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(up[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(down[0][0], EXPERTS * HIDDEN * INNER, 0.4f);
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));

    tsr_tensor scores = F32(logits, TOKENS, EXPERTS),
               groups = TSR_TENSOR(offsets, TSR_I32, EXPERTS + 1);
    TRY(tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = F32(x, TOKENS, HIDDEN),
                                                         .b = F32(router, EXPERTS, HIDDEN),
                                                         .c = scores, .transpose_b = 1)));
    TRY(tsr_moe_route_forward(
        ctx,
        &TSR_MOE_ROUTE_FORWARD_ARGS(.logits = scores,
                                    .topk_ids = TSR_TENSOR(expert, TSR_I32, TOKENS, TOP),
                                    .topk_weights = F32(weight, TOKENS, TOP),
                                    .tokens_per_expert = TSR_TENSOR(tokens_of, TSR_I32, EXPERTS))));
    sort_rows();
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
            y[t][c] = 0;
            for (int k = 0; k < TOP; k++) y[t][c] += weight[t][k] * out[row_of[t][k]][c];
            errors += fabs((double)y[t][c] - expected(t, c));
        }
    printf("%d tokens, %d experts for each; the mean error is %.1e\n", TOKENS, TOP,
           errors / (TOKENS * HIDDEN));
    return errors < 1e-6 * TOKENS * HIDDEN ? 0 : 1;
}
