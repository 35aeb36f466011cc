// SPDX-License-Identifier: Apache-2.0
// Trains one attention block, with every step written out: forward with saved tensors, the gradient of the loss, backward,
// AdamW. The block learns to output the previous token. The memory of a step is known before it runs.
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { BATCH = 4, SEQLEN = 32, EMBED = 32, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8, STEPS = 60 };
enum {
    ROWS = BATCH * SEQLEN,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    ATTENTION = HEADS * HEAD_DIM
};

static float x[ROWS][EMBED], target[ROWS][EMBED], y[ROWS][EMBED], dy[ROWS][EMBED];
static float qkv[ROWS][QKV], attention[ROWS][ATTENTION], lse[BATCH][HEADS][SEQLEN];
static float cosines[SEQLEN][HEAD_DIM / 2], sines[SEQLEN][HEAD_DIM / 2];

// A parameter, its gradient and the optimiser's state.
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

static struct parameter make_parameter(int64_t rows, int64_t cols, float scale) {
    float *memory = calloc((size_t)(4 * rows * cols), sizeof *memory);
    if (memory == NULL) fail("calloc");
    for (int64_t i = 0; i < rows * cols; i++) memory[i] = scale * draw();
    struct parameter p;
    p.value = TSR_TENSOR(memory, TSR_F32, rows, cols);
    p.gradient = TSR_TENSOR(memory + rows * cols, TSR_F32, rows, cols);
    p.m = TSR_TENSOR(memory + 2 * rows * cols, TSR_F32, rows, cols);
    p.v = TSR_TENSOR(memory + 3 * rows * cols, TSR_F32, rows, cols);
    return p;
}

static void update(tsr_context *ctx, struct parameter *p, int step) {
    TRY(tsr_adamw_step(ctx, &TSR_ADAMW_STEP_ARGS(.param = p->value, .grad = p->gradient, .m = p->m,
                                                 .v = p->v, .lr = 0.02, .beta1 = 0.9, .beta2 = 0.99,
                                                 .eps = 1e-8, .step = step)));
}

// Returns the loss, half the mean squared error, and writes its gradient to dy.
static double loss_and_gradient(void) {
    double loss = 0, count = ROWS * EMBED;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < EMBED; c++) {
            double error = (double)y[r][c] - (double)target[r][c];
            loss += error * error / (2 * count);
            dy[r][c] = (float)(error / count);
        }
    return loss;
}

int main(void) {
    tsr_context *ctx;
    TRY(tsr_context_create(NULL, &ctx));
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < EMBED; c++) {
            x[r][c] = draw();
            target[r][c] = r % SEQLEN > 0 ? x[r - 1][c] : 0;
        }
    struct parameter w_qkv = make_parameter(QKV, EMBED, 0.3f);
    struct parameter w_out = make_parameter(EMBED, ATTENTION, 0.3f);
    tsr_tensor cos = TSR_TENSOR(cosines, TSR_F32, SEQLEN, HEAD_DIM / 2);
    tsr_tensor sin = TSR_TENSOR(sines, TSR_F32, SEQLEN, HEAD_DIM / 2);
    TRY(tsr_rope_table(ctx, &TSR_ROPE_TABLE_ARGS(.cos = cos, .sin = sin)));

    tsr_self_attention_memory memory;
    TRY(tsr_self_attention_estimate(
        ctx,
        &TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_F32, .batch = BATCH, .seqlen = SEQLEN,
                                          .embed_dim = EMBED, .rotary_dim = HEAD_DIM,
                                          .num_heads = HEADS, .num_kv_heads = KV_HEADS,
                                          .mask = TSR_MASK_CAUSAL),
        &memory));
    printf("a step takes %.0f KB, of which %.0f KB are saved for backward\n",
           (double)memory.training_bytes / 1e3, (double)memory.saved_bytes / 1e3);

    tsr_self_attention_forward_args forward =
        TSR_SELF_ATTENTION_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, BATCH, SEQLEN, EMBED),
                                        .w_qkv = w_qkv.value, .w_out = w_out.value, .cos = cos,
                                        .sin = sin,
                                        .y = TSR_TENSOR(y, TSR_F32, BATCH, SEQLEN, EMBED),
                                        .qkv = TSR_TENSOR(qkv, TSR_F32, BATCH, SEQLEN, QKV),
                                        .attention = TSR_TENSOR(attention, TSR_F32, BATCH, SEQLEN,
                                                                ATTENTION),
                                        .lse = TSR_TENSOR(lse, TSR_F32, BATCH, HEADS, SEQLEN),
                                        .num_heads = HEADS, .num_kv_heads = KV_HEADS,
                                        .mask = TSR_MASK_CAUSAL);
    tsr_self_attention_backward_args backward =
        TSR_SELF_ATTENTION_BACKWARD_ARGS(.x = forward.x, .w_qkv = forward.w_qkv,
                                         .w_out = forward.w_out, .cos = cos, .sin = sin,
                                         .qkv = forward.qkv, .attention = forward.attention,
                                         .lse = forward.lse,
                                         .dy = TSR_TENSOR(dy, TSR_F32, BATCH, SEQLEN, EMBED),
                                         .dw_qkv = w_qkv.gradient, .dw_out = w_out.gradient,
                                         .num_heads = HEADS, .num_kv_heads = KV_HEADS,
                                         .mask = TSR_MASK_CAUSAL);

    double first = 0, loss = 0;
    for (int step = 1; step <= STEPS; step++) {
        TRY(tsr_self_attention_forward(ctx, &forward));
        loss = loss_and_gradient();
        if (step == 1) first = loss;
        if (step == 1 || step % 10 == 0) printf("step %2d: loss %.4f\n", step, loss);
        TRY(tsr_self_attention_backward(ctx, &backward));
        update(ctx, &w_qkv, step);
        update(ctx, &w_out, step);
    }
    free(w_qkv.value.data);
    free(w_out.value.data);
    tsr_context_destroy(ctx);
    return loss < first / 2 ? 0 : 1;
}
