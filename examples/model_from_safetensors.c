// SPDX-License-Identifier: Apache-2.0
// A whole model from a safetensors file: a small bf16 decoder with Llama's layers and names reads a prompt and generates one
// token at a time. The same tokens read in one pass must give the same logits. The weights are views of the file.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/safetensors.h> // libtessera_model
#include <tessera/tessera.h>

enum { LAYERS = 2, HIDDEN = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, INNER = 96, VOCAB = 101 };
enum { Q = HEADS * HEAD_DIM, KV = KV_HEADS * HEAD_DIM, CAPACITY = 32, PROMPT = 5, STEPS = 8 };

// The weights of each layer, then of the whole model. Linear layers have (outputs, inputs), norms (hidden).
enum { WQ, WK, WV, WO, GATE, UP, DOWN, NORM_1, NORM_2, PARTS, TABLE = LAYERS * PARTS, LAST, COUNT };
static const struct {
    const char *name;
    int64_t shape[2];
} parts[] = {{"self_attn.q_proj", {Q, HIDDEN}},
             {"self_attn.k_proj", {KV, HIDDEN}},
             {"self_attn.v_proj", {KV, HIDDEN}},
             {"self_attn.o_proj", {HIDDEN, Q}},
             {"mlp.gate_proj", {INNER, HIDDEN}},
             {"mlp.up_proj", {INNER, HIDDEN}},
             {"mlp.down_proj", {HIDDEN, INNER}},
             {"input_layernorm", {HIDDEN}},
             {"post_attention_layernorm", {HIDDEN}},
             {"embed_tokens", {VOCAB, HIDDEN}},
             {"norm", {HIDDEN}}};

static char names[COUNT][64];
static tsr_tensor weights[COUNT], cos_table, sin_table;
static uint16_t k_cache[LAYERS][CAPACITY][KV], v_cache[LAYERS][CAPACITY][KV];
static float logits[VOCAB];
static const char path[] = "example_model.safetensors";

#define BF16(data, ...) TSR_TENSOR(data, TSR_BF16, __VA_ARGS__)

static void remove_checkpoint(void) { remove(path); }

static void must(tsr_status status) {
    if (status == TSR_OK) return;
    fprintf(stderr, "%s\n", tsr_last_error());
    exit(1);
}

// Writes random weights in place of a real checkpoint: matrices around 0, norms around 1. Fills in `names`.
static void write_checkpoint(void) {
    static uint16_t memory[COUNT][VOCAB * HIDDEN];
    tsr_safetensors_entry entries[COUNT];
    unsigned state = 1;
    for (int e = 0; e < COUNT; e++) {
        int part = e < TABLE ? e % PARTS : e - TABLE + PARTS;
        int ndim = parts[part].shape[1] > 0 ? 2 : 1, of_layer = 0;
        if (e < TABLE) of_layer = snprintf(names[e], 64, "model.layers.%d.", e / PARTS);
        snprintf(names[e] + of_layer, 64 - (size_t)of_layer, "%s%s.weight",
                 e < TABLE ? "" : "model.", parts[part].name);
        entries[e].name = names[e];
        entries[e].tensor = tsr_tensor_contiguous(memory[e], TSR_BF16, ndim, parts[part].shape);
        for (int64_t i = 0; i < tsr_tensor_numel(&entries[e].tensor); i++) {
            state = state * 1664525u + 1013904223u;
            tsr_store(TSR_BF16, memory[e], i, ((double)state / 0x1p31 - 1) / 4 + (ndim == 1));
        }
    }
    must(tsr_safetensors_write(path, entries, COUNT, NULL, 0));
}

// y = act(x w^T) (x up^T) + residual: a linear layer, or with `up` the gated half of an MLP. y may be the residual.
static void linear(tsr_context *ctx, tsr_tensor x, tsr_tensor w, tsr_tensor up, tsr_tensor residual,
                   tsr_tensor y) {
    tsr_activation kind = up.dtype != TSR_DTYPE_NONE ? TSR_ACTIVATION_SILU : TSR_ACTIVATION_NONE;
    must(tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = x, .b = w, .b_up = up,
                                                          .residual = residual, .c = y,
                                                          .transpose_b = 1, .activation = kind)));
}

static void norm(tsr_context *ctx, tsr_tensor x, tsr_tensor weight, tsr_tensor y) {
    must(tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = x, .weight = weight, .y = y,
                                                            .eps = 1e-6f, .has_eps = 1)));
}

// Reads n tokens after the `length` tokens that the cache already holds, and writes the last one's logits.
static void read_tokens(tsr_context *ctx, const int32_t *ids, int n, int32_t length) {
    static uint16_t of_x[CAPACITY][HIDDEN], of_h[CAPACITY][HIDDEN], of_q[CAPACITY][Q],
        of_k[CAPACITY][KV];
    static uint16_t of_v[CAPACITY][KV], of_out[CAPACITY][Q], of_inner[CAPACITY][INNER];
    tsr_tensor x = BF16(of_x, n, HIDDEN), h = BF16(of_h, n, HIDDEN),
               inner = BF16(of_inner, n, INNER);
    const tsr_tensor none = {0}, *w = weights;
    must(tsr_embedding_forward(ctx, &TSR_EMBEDDING_FORWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, n),
                                                                .weight = weights[TABLE], .y = x)));
    for (int l = 0; l < LAYERS; l++, w += PARTS) {
        norm(ctx, x, w[NORM_1], h);
        linear(ctx, h, w[WQ], none, none, BF16(of_q, n, Q));
        linear(ctx, h, w[WK], none, none, BF16(of_k, n, KV));
        linear(ctx, h, w[WV], none, none, BF16(of_v, n, KV));
        must(tsr_attention_decode(
            ctx,
            &TSR_ATTENTION_DECODE_ARGS(.q = BF16(of_q, 1, n, HEADS, HEAD_DIM),
                                       .k_new = BF16(of_k, 1, n, KV_HEADS, HEAD_DIM),
                                       .v_new = BF16(of_v, 1, n, KV_HEADS, HEAD_DIM),
                                       .k_cache = BF16(k_cache[l], 1, CAPACITY, KV_HEADS, HEAD_DIM),
                                       .v_cache = BF16(v_cache[l], 1, CAPACITY, KV_HEADS, HEAD_DIM),
                                       .cache_seqlens = TSR_TENSOR(&length, TSR_I32, 1),
                                       .cos = cos_table, .sin = sin_table, .mask = TSR_MASK_CAUSAL,
                                       .out = BF16(of_out, 1, n, HEADS, HEAD_DIM))));
        linear(ctx, BF16(of_out, n, Q), w[WO], none, x, x);
        norm(ctx, x, w[NORM_2], h);
        linear(ctx, h, w[GATE], w[UP], none, inner);
        linear(ctx, inner, w[DOWN], none, x, x);
    }
    norm(ctx, x, weights[LAST], h);
    linear(ctx, BF16(of_h[n - 1], 1, HIDDEN), weights[TABLE], none, none,
           TSR_TENSOR(logits, TSR_F32, 1, VOCAB));
}

int main(void) {
    static float angles[2][CAPACITY][HEAD_DIM / 2];
    tsr_context *ctx;
    tsr_safetensors *file;
    atexit(remove_checkpoint); // also after a failure
    write_checkpoint();
    must(tsr_context_create(NULL, &ctx));
    must(tsr_safetensors_open(path, &file));
    for (int i = 0; i < COUNT; i++) must(tsr_safetensors_tensor(file, names[i], &weights[i]));
    cos_table = TSR_TENSOR(angles[0], TSR_F32, CAPACITY, HEAD_DIM / 2);
    sin_table = TSR_TENSOR(angles[1], TSR_F32, CAPACITY, HEAD_DIM / 2);
    must(tsr_rope_table(ctx, &TSR_ROPE_TABLE_ARGS(.cos = cos_table, .sin = sin_table)));

    int32_t ids[PROMPT + STEPS] = {3, 14, 15, 92, 65};
    float by_steps[VOCAB], errors = 0, sizes = 0;
    read_tokens(ctx, ids, PROMPT, 0);
    for (int t = PROMPT; t < PROMPT + STEPS; t++) {
        for (int i = 0; i < VOCAB; i++) ids[t] = logits[i] > logits[ids[t]] ? i : ids[t];
        read_tokens(ctx, ids + t, 1, t);
    }
    for (int i = 0; i < VOCAB; i++) by_steps[i] = logits[i];
    read_tokens(ctx, ids, PROMPT + STEPS, 0);
    for (int i = 0; i < VOCAB; i++) {
        errors += fabsf(logits[i] - by_steps[i]);
        sizes += fabsf(logits[i]);
    }
    printf("after %d tokens: mean logit size %.2f, mean difference %.1e\n", PROMPT + STEPS,
           (double)sizes / VOCAB, (double)errors / VOCAB);
    tsr_safetensors_close(file); // the weights are invalid from here on
    tsr_context_destroy(ctx);
    return errors < 0.02f * sizes ? 0 : 1;
}
