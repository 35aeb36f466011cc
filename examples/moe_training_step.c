// SPDX-License-Identifier: Apache-2.0
// Trains a mixture of experts, with every step written out: forward with saved pre-activations, the gradient of the loss,
// backward, AdamW. Tokens come from four clusters, each with a linear map of its own to learn. The load-balance loss and the
// z-loss of the router count as well; the memory of a step is known before it runs.
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { TOKENS = 256, HIDDEN = 16, INNER = 24, EXPERTS = 6, TOP = 2, CLUSTERS = 4, STEPS = 120 };
enum { ROWS = TOKENS * TOP };
static const float balance_factor = 0.01f, z_factor = 0.001f;

static float x[TOKENS][HIDDEN], target[TOKENS][HIDDEN], y[TOKENS][HIDDEN], dy[TOKENS][HIDDEN];
static float preact[ROWS][2 * INNER], weights[TOKENS][TOP], balance, z, variance;
static int32_t ids[TOKENS][TOP];

// A parameter (count, rows, cols), its gradient and the optimiser's state.
struct parameter {
    tsr_tensor value, gradient, m, v;
};

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tsr_last_error());
    exit(1);
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK) fail(#call);                                                         \
    } while (0)

// Uniform in [-1, 1).
static float draw(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int)(state >> 8) / (float)(1 << 23) - 1;
}

static struct parameter make_parameter(int64_t count, int64_t rows, int64_t cols, float scale) {
    const int64_t numel = count * rows * cols;
    float *memory = calloc((size_t)(4 * numel), sizeof *memory);
    if (memory == NULL) fail("calloc");
    for (int64_t i = 0; i < numel; i++) memory[i] = scale * draw();
    struct parameter p;
    p.value = TSR_TENSOR(memory, TSR_F32, count, rows, cols);
    p.gradient = TSR_TENSOR(memory + numel, TSR_F32, count, rows, cols);
    p.m = TSR_TENSOR(memory + 2 * numel, TSR_F32, count, rows, cols);
    p.v = TSR_TENSOR(memory + 3 * numel, TSR_F32, count, rows, cols);
    return p;
}

static void update(tsr_context *ctx, struct parameter *p, int step) {
    TRY(tsr_adamw_step(ctx, &TSR_ADAMW_STEP_ARGS(.param = p->value, .grad = p->gradient, .m = p->m,
                                                 .v = p->v, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99,
                                                 .eps = 1e-8, .step = step)));
}

// One half of (experts, 2 INNER, HIDDEN): the first is w_gate, the second w_up. The layer multiplies by both at once.
static tsr_tensor half_of(tsr_tensor both, int which) {
    both.shape[1] = INNER;
    both.data = (float *)both.data + which * INNER * HIDDEN;
    return both;
}

// The matrix (rows, cols) of a parameter with one.
static tsr_tensor matrix_of(tsr_tensor t) {
    return TSR_TENSOR(t.data, TSR_F32, t.shape[1], t.shape[2]);
}

// Tokens around the centres of clusters; the target is the token times its cluster's matrix.
static void make_data(void) {
    static float centre[CLUSTERS][HIDDEN], map[CLUSTERS][HIDDEN][HIDDEN];
    for (int c = 0; c < CLUSTERS; c++)
        for (int h = 0; h < HIDDEN; h++) {
            centre[c][h] = 2 * draw();
            for (int k = 0; k < HIDDEN; k++) map[c][h][k] = 0.4f * draw();
        }
    for (int t = 0; t < TOKENS; t++) {
        const int c = t % CLUSTERS;
        for (int h = 0; h < HIDDEN; h++) x[t][h] = centre[c][h] + 0.5f * draw();
        for (int h = 0; h < HIDDEN; h++)
            for (int k = 0; k < HIDDEN; k++) target[t][h] += map[c][h][k] * x[t][k];
    }
}

// Returns half the mean squared error, and writes its gradient to dy.
static double loss_and_gradient(void) {
    double loss = 0, count = TOKENS * HIDDEN;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++) {
            double error = (double)y[t][h] - (double)target[t][h];
            loss += error * error / (2 * count);
            dy[t][h] = (float)(error / count);
        }
    return loss;
}

int main(void) {
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));
    make_data();
    struct parameter router = make_parameter(1, EXPERTS, HIDDEN, 0.3f);
    struct parameter w_in = make_parameter(EXPERTS, 2 * INNER, HIDDEN, 0.3f);
    struct parameter w_down = make_parameter(EXPERTS, HIDDEN, INNER, 0.3f);

    tsr_moe_memory memory;
    TRY(tsr_moe_estimate(ctx,
                         &TSR_MOE_ESTIMATE_ARGS(.dtype = TSR_F32, .is_gated = 1, .is_joined = 1,
                                                .num_tokens = TOKENS, .hidden = HIDDEN,
                                                .intermediate = INNER, .num_experts = EXPERTS,
                                                .top_k = TOP),
                         &memory));
    printf("a step takes %.0f KB, of which %.0f KB are kept for backward\n",
           (double)memory.training_bytes / 1e3, (double)memory.saved_bytes / 1e3);

    float dbalance = balance_factor, dz = z_factor;
    tsr_moe_forward_args forward =
        TSR_MOE_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, TOKENS, HIDDEN),
                             .router = matrix_of(router.value), .w_gate = half_of(w_in.value, 0),
                             .w_up = half_of(w_in.value, 1), .w_down = w_down.value,
                             .y = TSR_TENSOR(y, TSR_F32, TOKENS, HIDDEN),
                             .preact = TSR_TENSOR(preact, TSR_F32, ROWS, 2 * INNER),
                             .topk_ids = TSR_TENSOR(ids, TSR_I32, TOKENS, TOP),
                             .topk_weights = TSR_TENSOR(weights, TSR_F32, TOKENS, TOP),
                             .load_balance_loss = TSR_TENSOR(&balance, TSR_F32, 1),
                             .z_loss = TSR_TENSOR(&z, TSR_F32, 1),
                             .usage_variance = TSR_TENSOR(&variance, TSR_F32, 1), .top_k = TOP);
    tsr_moe_backward_args backward =
        TSR_MOE_BACKWARD_ARGS(.x = forward.x, .router = forward.router, .w_gate = forward.w_gate,
                              .w_up = forward.w_up, .w_down = forward.w_down,
                              .preact = forward.preact, .topk_ids = forward.topk_ids,
                              .topk_weights = forward.topk_weights,
                              .dy = TSR_TENSOR(dy, TSR_F32, TOKENS, HIDDEN),
                              .dload_balance_loss = TSR_TENSOR(&dbalance, TSR_F32, 1),
                              .dz_loss = TSR_TENSOR(&dz, TSR_F32, 1),
                              .drouter = matrix_of(router.gradient),
                              .dw_gate = half_of(w_in.gradient, 0),
                              .dw_up = half_of(w_in.gradient, 1), .dw_down = w_down.gradient,
                              .top_k = TOP);

    double first = 0, total = 0;
    for (int step = 1; step <= STEPS; step++) {
        TRY(tsr_moe_forward(ctx, &forward));
        const double error = loss_and_gradient();
        total = error + (double)(balance_factor * balance) + (double)(z_factor * z);
        if (step == 1) first = total;
        if (step == 1 || step % 20 == 0)
            printf("step %3d: loss %.4f, error %.4f, balance %.3f, z %.3f, usage variance %.4f\n",
                   step, total, error, (double)balance, (double)z, (double)variance);
        TRY(tsr_moe_backward(ctx, &backward));
        update(ctx, &router, step);
        update(ctx, &w_in, step);
        update(ctx, &w_down, step);
    }
    free(router.value.data);
    free(w_in.value.data);
    free(w_down.value.data);
    tsr_context_destroy(ctx);
    return total < first / 4 ? 0 : 1;
}
