// SPDX-License-Identifier: Apache-2.0
// Random and edge cases of the self-attention module. Weights are scaled so that projections are near 1, as
// in a network. NAN: in the last token of every sequence. LARGE: scores of some tens. ZERO: x and dy are 0.
#include <math.h>

#include "specs/attention/spec_self_attention.h"

// ---- Random cases -----------------------------------------------------------------------------

static double projection_cost(const struct op_case *c) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    return (double)n.rows * (double)n.embed_dim * (double)(n.qkv_dim + n.attention_dim);
}

static double core_cost(const struct op_case *c) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    return (double)(n.rows * n.heads) * (double)n.seqlen * (double)n.head_dim;
}

static void draw_sizes(struct rng *rng, struct op_case *c) {
    static const int groups[] = {1, 1, 2, 3};
    static const int dims[] = {8, 16, 32, 64, 24, 1};
    double *p = c->param;
    p[SA_BATCH] = rng_chance(rng, 0.02) ? 0 : (double)rng_int(rng, 1, 3);
    p[SA_SEQLEN] = (double)rng_dim(rng, 120);
    p[SA_EMBED_DIM] = (double)rng_dim(rng, 100);
    p[SA_KV_HEADS] = (double)rng_int(rng, 1, 3);
    p[SA_HEADS] = p[SA_KV_HEADS] * groups[rng_int(rng, 0, 3)];
    p[SA_HEAD_DIM] = rng_chance(rng, 0.6) ? dims[rng_int(rng, 0, 5)] : (double)rng_int(rng, 1, 80);
    if (p[SA_HEADS] == p[SA_KV_HEADS] && rng_chance(rng, 0.5)) p[SA_KV_HEADS] = 0;
}

void self_attention_randomize(struct rng *rng, struct op_case *c) {
    static const double scales[] = {1, 0.3, -0.2, 0.01}, drops[] = {0.1, 0.5};
    bool *is_present = c->is_present, is_backward = spec_slot(c->spec, "dy") >= 0;
    double most = is_backward ? 1.5e5 : 4e5,
           *p = c->param; // multiplications, because the oracle is slow
    do draw_sizes(rng, c);
    while (projection_cost(c) > most || core_cost(c) > most / 2);
    int64_t head_dim = (int64_t)p[SA_HEAD_DIM], longest = (int64_t)p[SA_SEQLEN] + 5;
    p[SA_MASK] = rng_chance(rng, 0.35) ? 0 : rng_chance(rng, 0.6) ? 1 : 2;
    for (int side = SA_WINDOW_LEFT; side <= SA_WINDOW_RIGHT; side++)
        if (rng_chance(rng, 0.15)) p[side] = (double)rng_int(rng, 0, longest);
    if (rng_chance(rng, 0.2)) p[SA_SOFTMAX_SCALE] = scales[rng_int(rng, 0, 3)];
    if (rng_chance(rng, 0.1)) p[SA_SOFTCAP] = exp(4 * rng_uniform(rng) - 0.5);
    if (rng_chance(rng, 0.15)) {
        p[SA_DROPOUT_P] = drops[rng_int(rng, 0, 1)];
        p[SA_SEED] = (double)rng_int(rng, 0, 1000000007);
        p[SA_OFFSET] = rng_chance(rng, 0.7) ? 0 : (double)rng_int(rng, 1, 9999999999);
    }
    is_present[SA_COS] = is_present[SA_SIN] = head_dim > 1 && rng_chance(rng, 0.35);
    if (is_present[SA_COS]) {
        p[SA_ROTARY_DIM] = rng_chance(rng, 0.6) ? 0 : 2 * (double)rng_int(rng, 1, head_dim / 2);
        p[SA_INTERLEAVED] = rng_chance(rng, 0.3);
    }
    if (is_backward) {
        for (int s = SA_DX; s <= SA_DB_OUT; s++) is_present[s] = rng_chance(rng, 0.75);
        return;
    }
    for (int s = SA_QKV; s <= SA_B_OUT; s++) is_present[s] = rng_chance(rng, 0.5);
}

// ---- Values of the tensors --------------------------------------------------------------------

// Large cases are only measured, so any plausible values are good enough.
static bool is_large(const struct op_case *c) { return projection_cost(c) + core_cost(c) > 5e7; }

static void fill_tables(const struct op_case *c, int slot, double *values) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    for (int64_t t = 0; t < n.seqlen; t++)
        for (int64_t i = 0; i < n.pairs; i++) {
            double angle = (double)t * pow(10000, -(double)i / (double)n.pairs);
            values[t * n.pairs + i] = slot == SA_COS ? cos(angle) : sin(angle);
        }
}

// The tensors saved by forward: the oracle fills all three when qkv is filled.
static bool fill_saved(const struct op_case *c, int slot) {
    return slot != SA_QKV ||
           self_attention_oracle(c, c->tensor[SA_QKV].data, c->tensor[SA_ATTENTION].data,
                                 c->tensor[SA_LSE].data, NULL) == TSR_OK;
}

static double scale_of(const struct op_case *c, int slot, enum edge_fill fill) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    switch (slot) {
    case SA_X: return fill == FILL_LARGE ? 3 : fill == FILL_ZERO ? 0 : 1;
    case SA_W_QKV: return 1 / sqrt((double)n.embed_dim + 1);
    case SA_W_OUT: return 1 / sqrt((double)n.attention_dim + 1);
    case SA_ATTENTION: return 0.3;
    case SA_DY: // and b_qkv
        return spec_slot(c->spec, "dy") >= 0 && fill == FILL_ZERO ? 0 : 1;
    default: return 1;
    }
}

bool self_attention_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    struct self_attention_sizes n = self_attention_sizes_of(c);
    int64_t numel = case_numel(c, slot);
    if (slot == SA_COS || slot == SA_SIN) {
        fill_tables(c, slot, values);
        return true;
    }
    if (slot >= SA_QKV && slot <= SA_LSE && !is_large(c)) return fill_saved(c, slot);
    double scale = scale_of(c, slot, fill);
    for (int64_t i = 0; i < numel; i++)
        values[i] = slot == SA_LSE ? log((double)n.seqlen + 1) + 0.5 : scale * rng_normal(rng);
    for (int64_t row = n.seqlen - 1; slot == SA_X && fill == FILL_NAN && row < n.rows;
         row += n.seqlen)
        for (int64_t i = 0; row >= 0 && i < n.embed_dim; i++) values[row * n.embed_dim + i] = NAN;
    return true;
}

// ---- Edge cases -------------------------------------------------------------------------------

#define SMALL "batch_size=2 embed_dim=40 num_heads=4 head_dim=10 "
#define SAVED " +qkv +attention +lse"
#define GRADIENTS " +dx +dw_qkv +db_qkv +dw_out +db_out"

const struct edge_case self_attention_forward_edges[] = {
    {"no batch", "batch_size=0 seqlen=5 embed_dim=12 num_heads=2 head_dim=4" SAVED, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no tokens", SMALL "seqlen=0 +b_qkv +b_out" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"no columns", "batch_size=2 seqlen=7 embed_dim=0 num_heads=2 head_dim=8 +b_qkv" SAVED,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"one of each", "batch_size=1 seqlen=1 embed_dim=1 num_heads=1 head_dim=1" SAVED, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"one token", SMALL "seqlen=1 mask=causal" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"causal", SMALL "seqlen=67 mask=causal +b_qkv +b_out" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"causal, nothing saved", SMALL "seqlen=67 mask=causal +b_qkv +b_out", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"rows that follow one another", SMALL "seqlen=33 +b_qkv +b_out" SAVED, FILL_NORMAL,
     LAYOUT_CONTIGUOUS},
    {"grouped heads", SMALL "num_kv_heads=2 seqlen=33 mask=causal" SAVED, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"one key head", SMALL "num_kv_heads=1 seqlen=33" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"heads wider than the model", "batch_size=2 seqlen=19 embed_dim=10 num_heads=3 head_dim=72",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"RoPE", SMALL "seqlen=40 mask=causal +cos +sin" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"RoPE on a part of each head, pairs beside each other",
     SMALL "seqlen=40 rotary_dim=6 interleaved=1 num_kv_heads=2 +cos +sin +b_qkv", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"window", SMALL "seqlen=70 mask=causal window_left=5" SAVED, FILL_NORMAL, LAYOUT_RANDOM},
    {"softcap and dropout", SMALL "seqlen=40 softcap=5 dropout_p=0.3 seed=7" SAVED, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"equal tokens", SMALL "seqlen=33 +b_qkv" SAVED, FILL_ZERO, LAYOUT_RANDOM},
    {"large scores", SMALL "seqlen=33" SAVED, FILL_LARGE, LAYOUT_RANDOM},
    {"NaN in the last token, which others do not see", SMALL "seqlen=33 mask=causal" SAVED,
     FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "batch_size=3 seqlen=5 embed_dim=12 num_heads=2 head_dim=4" SAVED,
     FILL_NORMAL, LAYOUT_FAR},
    {"one sequence for all", SMALL "seqlen=9" SAVED, FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

const struct edge_case self_attention_backward_edges[] = {
    {"no batch", "batch_size=0 seqlen=5 embed_dim=12 num_heads=2 head_dim=4" GRADIENTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"no tokens", SMALL "seqlen=0" GRADIENTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"no columns", "batch_size=2 seqlen=7 embed_dim=0 num_heads=2 head_dim=8" GRADIENTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"one of each", "batch_size=1 seqlen=1 embed_dim=1 num_heads=1 head_dim=1" GRADIENTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"nothing wanted", SMALL "seqlen=9", FILL_NORMAL, LAYOUT_RANDOM},
    {"the output projection alone", SMALL "seqlen=33 +dw_out +db_out", FILL_NORMAL, LAYOUT_RANDOM},
    {"one bias alone", SMALL "seqlen=33 +db_qkv", FILL_NORMAL, LAYOUT_RANDOM},
    {"causal", SMALL "seqlen=67 mask=causal" GRADIENTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"rows that follow one another", SMALL "seqlen=33" GRADIENTS, FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"grouped heads", SMALL "num_kv_heads=2 seqlen=33 mask=causal" GRADIENTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"RoPE", SMALL "seqlen=40 mask=causal +cos +sin" GRADIENTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"RoPE on a part of each head, pairs beside each other",
     SMALL "seqlen=40 rotary_dim=6 interleaved=1 num_kv_heads=2 +cos +sin" GRADIENTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"softcap and dropout", SMALL "seqlen=40 softcap=5 dropout_p=0.3 seed=7" GRADIENTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"window", SMALL "seqlen=70 mask=causal window_left=5" GRADIENTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"large scores", SMALL "seqlen=33" GRADIENTS, FILL_LARGE, LAYOUT_RANDOM},
    {"NaN in the last token", SMALL "seqlen=33 mask=causal" GRADIENTS, FILL_NAN, LAYOUT_RANDOM},
    {"no gradient arrives", SMALL "seqlen=20 mask=causal" GRADIENTS, FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "batch_size=3 seqlen=5 embed_dim=12 num_heads=2 head_dim=4" GRADIENTS,
     FILL_NORMAL, LAYOUT_FAR},
    {0},
};
