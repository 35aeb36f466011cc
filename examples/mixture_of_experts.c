// SPDX-License-Identifier: Apache-2.0
// A mixture of experts in one call: the router chooses two of six experts for each token, every expert is a SwiGLU MLP, and a
// shared expert sees all tokens. The check computes each token's experts one at a time, by the definition.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { TOKENS = 50, HIDDEN = 32, INNER = 48, EXPERTS = 6, TOP = 2, SHARED = 40 };

static float x[TOKENS][HIDDEN], router[EXPERTS][HIDDEN], y[TOKENS][HIDDEN];
static float gate[EXPERTS][INNER][HIDDEN], up[EXPERTS][INNER][HIDDEN], down[EXPERTS][HIDDEN][INNER];
static float shared_gate[SHARED][HIDDEN], shared_up[SHARED][HIDDEN], shared_down[HIDDEN][SHARED];

// What the call also tells: a token's experts, the best first, with their weights; the tokens of each expert.
static int32_t expert[TOKENS][TOP], tokens_of[EXPERTS];
static float weight[TOKENS][TOP], balance;

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

static double dot(const float *a, const float *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

// Adds scale times the MLP of a token to its result.
static void add_expert(const float *token, int inner, const float *w_gate, const float *w_up,
                       const float *w_down, double scale, double *result) {
    for (int i = 0; i < inner; i++) {
        const double g = dot(token, w_gate + i * HIDDEN, HIDDEN);
        const double a = g / (1 + exp(-g)) * dot(token, w_up + i * HIDDEN, HIDDEN);
        for (int h = 0; h < HIDDEN; h++) result[h] += scale * a * (double)w_down[h * inner + i];
    }
}

// A token's result by the definition: its best experts, weighted by the softmax of their logits.
static void expect(int t, double *result) {
    double logits[EXPERTS], best[TOP], sum = 0;
    int chosen[TOP];
    for (int e = 0; e < EXPERTS; e++) logits[e] = dot(x[t], router[e], HIDDEN);
    for (int k = 0; k < TOP; k++) {
        chosen[k] = 0;
        for (int e = 1; e < EXPERTS; e++)
            if (logits[e] > logits[chosen[k]]) chosen[k] = e;
        best[k] = exp(logits[chosen[k]]);
        sum += best[k];
        logits[chosen[k]] = -INFINITY;
    }
    for (int h = 0; h < HIDDEN; h++) result[h] = 0;
    for (int k = 0; k < TOP; k++)
        add_expert(x[t], INNER, gate[chosen[k]][0], up[chosen[k]][0], down[chosen[k]][0],
                   best[k] / sum, result);
    add_expert(x[t], SHARED, shared_gate[0], shared_up[0], shared_down[0], 1, result);
}

int main(void) {
    draw(x[0], TOKENS * HIDDEN, 1);
    draw(router[0], EXPERTS * HIDDEN, 1);
    draw(gate[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(up[0][0], EXPERTS * INNER * HIDDEN, 0.4f);
    draw(down[0][0], EXPERTS * HIDDEN * INNER, 0.4f);
    draw(shared_gate[0], SHARED * HIDDEN, 0.4f);
    draw(shared_up[0], SHARED * HIDDEN, 0.4f);
    draw(shared_down[0], HIDDEN * SHARED, 0.4f);
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));
    TRY(tsr_moe_forward(
        ctx,
        &TSR_MOE_FORWARD_ARGS(.x = F32(x, TOKENS, HIDDEN), .router = F32(router, EXPERTS, HIDDEN),
                              .w_gate = F32(gate, EXPERTS, INNER, HIDDEN),
                              .w_up = F32(up, EXPERTS, INNER, HIDDEN),
                              .w_down = F32(down, EXPERTS, HIDDEN, INNER),
                              .shared_w_gate = F32(shared_gate, SHARED, HIDDEN),
                              .shared_w_up = F32(shared_up, SHARED, HIDDEN),
                              .shared_w_down = F32(shared_down, HIDDEN, SHARED),
                              .y = F32(y, TOKENS, HIDDEN),
                              .topk_ids = TSR_TENSOR(expert, TSR_I32, TOKENS, TOP),
                              .topk_weights = F32(weight, TOKENS, TOP),
                              .tokens_per_expert = TSR_TENSOR(tokens_of, TSR_I32, EXPERTS),
                              .load_balance_loss = F32(&balance, 1), .top_k = TOP)));
    tsr_context_destroy(ctx);

    double errors = 0;
    for (int t = 0; t < TOKENS; t++) {
        double expected[HIDDEN];
        expect(t, expected);
        for (int h = 0; h < HIDDEN; h++) errors += fabs((double)y[t][h] - expected[h]);
    }
    printf("token 0 goes to experts %d and %d by %.2f and %.2f; expert 0 has %d of %d tokens;\n"
           "load-balance loss %.3f; mean error %.1e\n",
           expert[0][0], expert[0][1], (double)weight[0][0], (double)weight[0][1], tokens_of[0],
           TOKENS, (double)balance, errors / (TOKENS * HIDDEN));
    return errors < 1e-6 * TOKENS * HIDDEN ? 0 : 1;
}
