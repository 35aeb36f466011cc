// SPDX-License-Identifier: Apache-2.0
// The rows of each expert of a mixture of experts for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

enum { TOKENS, EXPERTS, TOP_K, NUM_ROWS, CAPACITY };
enum { IDS, WEIGHTS, OFFSETS, ROW_TOKENS, ROW_WEIGHTS, TOKEN_ROWS, COUNTS, NUM_DROPPED };

static const struct param_spec params[] = {
    {"tokens", "tokens", PARAM_SIZE, 32768, NULL},
    {"num_experts", "experts", PARAM_SIZE, 128, NULL, SOURCE_OPTION},
    {"top_k", "assignments of a token", PARAM_SIZE, 8, NULL},
    {"num_rows", "elements of row_tokens; bench: 0 is as many as needed", PARAM_SIZE, 0, NULL,
     SOURCE_OPTION},
    {"capacity", "rows of an expert at most; 0: any number", PARAM_INT, 0, NULL, .least = -0x1p52,
     .most = 0x1p52},
    {0},
};

static const struct slot_spec slots[] = {
    {"topk_ids", SLOT_IN, SLOT_I32, false, NULL, false},
    {"topk_weights", SLOT_IN, SLOT_F32, true, NULL, false},
    {"offsets", SLOT_OUT, SLOT_I32, false, NULL, false},
    {"row_tokens", SLOT_OUT, SLOT_I32, true, NULL, false},
    {"row_weights", SLOT_OUT, SLOT_F32, true, NULL, false, .comes_with = "topk_weights"},
    {"token_rows", SLOT_OUT, SLOT_I32, true, NULL, false},
    {"tokens_per_expert", SLOT_OUT, SLOT_I32, true, NULL, false},
    {"num_dropped", SLOT_OUT, SLOT_I32, true, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const bool is_of_assignments = slot == IDS || slot == WEIGHTS || slot == TOKEN_ROWS;
    shape[0] = (int64_t)c->param[slot == OFFSETS || slot == COUNTS           ? EXPERTS
                                 : slot == ROW_TOKENS || slot == ROW_WEIGHTS ? NUM_ROWS
                                                                             : TOKENS];
    if (slot == OFFSETS) shape[0]++;
    if (slot == NUM_DROPPED) shape[0] = 1;
    shape[1] = (int64_t)c->param[TOP_K];
    return is_of_assignments ? 2 : 1;
}

static double least_rows(const struct op_case *c) {
    const double all = c->param[TOKENS] * c->param[TOP_K];
    return c->param[CAPACITY] > 0 ? fmin(all, c->param[EXPERTS] * c->param[CAPACITY]) : all;
}

static void complete(struct op_case *c) {
    if (c->param[NUM_ROWS] == 0) c->param[NUM_ROWS] = least_rows(c);
}

// Without an option, row_tokens is as long as it must be.
static bool infer(struct op_case *c) {
    if (c->tensor[IDS].ndim != 2) return false;
    c->param[TOKENS] = (double)c->tensor[IDS].shape[0];
    c->param[TOP_K] = (double)c->tensor[IDS].shape[1];
    if (c->param[NUM_ROWS] < 0) c->param[NUM_ROWS] = least_rows(c);
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_moe_permute_args args =
        TSR_MOE_PERMUTE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                             .workspace_bytes = given_bytes, .topk_ids = c->tensor[IDS],
                             .topk_weights = c->tensor[WEIGHTS], .offsets = c->tensor[OFFSETS],
                             .row_tokens = c->tensor[ROW_TOKENS],
                             .row_weights = c->tensor[ROW_WEIGHTS],
                             .token_rows = c->tensor[TOKEN_ROWS],
                             .tokens_per_expert = c->tensor[COUNTS],
                             .num_dropped = c->tensor[NUM_DROPPED],
                             .capacity = (int64_t)c->param[CAPACITY],
                             .has_capacity = c->param[CAPACITY] != 0);
    return workspace_bytes != NULL ? tsr_moe_permute_prepare(ctx, &args, workspace_bytes)
                                   : tsr_moe_permute(ctx, &args);
}

static double flops(const struct op_case *c) {
    (void)c;
    return 0;
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    const bool has_many = rng_chance(rng, 0.1);
    c->param[EXPERTS] = (double)(has_many ? rng_int(rng, 1000, 5000) : rng_int(rng, 1, 300));
    c->param[TOP_K] = (double)rng_int(rng, 1, rng_chance(rng, 0.1) ? 70 : 9);
    c->param[TOKENS] = (double)rng_dim(rng, rng_chance(rng, 0.2) ? 4000 : 200);
    c->param[CAPACITY] = rng_chance(rng, 0.4) ? (double)rng_int(rng, 1, 40) : 0;
    const int64_t spare = rng_chance(rng, 0.5) ? rng_dim(rng, 100) : 0;
    c->param[NUM_ROWS] = least_rows(c) + (double)spare;
    for (int s = ROW_TOKENS; s <= NUM_DROPPED; s++) c->is_present[s] = rng_chance(rng, 0.7);
    const bool is_unused = rng_chance(rng, 0.1);
    c->is_present[WEIGHTS] = c->is_present[ROW_WEIGHTS] || is_unused;
}

// Low experts have more assignments; one id in eight, and all of some tokens, are -1. FILL_SPECIAL: one expert has all.
// FILL_ZERO: no expert has any.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    const int64_t experts = (int64_t)c->param[EXPERTS], top_k = (int64_t)c->param[TOP_K];
    if (slot != IDS) return false;
    for (int64_t t = 0; t < (int64_t)c->param[TOKENS]; t++, values += top_k) {
        const bool is_padding = rng_chance(rng, 0.05);
        for (int64_t k = 0; k < top_k; k++) {
            const int64_t any = rng_int(rng, 0, experts - 1);
            const int64_t low = rng_int(rng, 0, any);
            const bool is_none = is_padding || rng_chance(rng, 0.125);
            values[k] = fill == FILL_ZERO || is_none ? -1
                        : fill == FILL_SPECIAL       ? (double)(experts / 2)
                                                     : (double)(t % 2 ? any : low);
        }
    }
    return true;
}

static void bound(const struct op_case *c, int slot, double *bound) {
    for (int64_t i = 0; i < case_numel(c, slot); i++) bound[i] = 0; // copies
}

#define ALL " +topk_weights +row_tokens +row_weights +token_rows +tokens_per_expert +num_dropped"

static const struct edge_case edges[] = {
    {"no tokens", "tokens=0 num_experts=8 top_k=2" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"no tokens, spare rows", "tokens=0 num_experts=8 top_k=2 num_rows=40" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"one expert", "tokens=9 num_experts=1 top_k=1 num_rows=9" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"offsets alone", "tokens=90 num_experts=7 top_k=3", FILL_NORMAL, LAYOUT_RANDOM},
    {"one token", "tokens=1 num_experts=128 top_k=8 num_rows=8" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"Mixtral", "tokens=1000 num_experts=8 top_k=2 num_rows=2000" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"Qwen3", "tokens=2000 num_experts=128 top_k=8 num_rows=16000" ALL, FILL_NORMAL, LAYOUT_RANDOM},
    {"256 experts, 16 of a token", "tokens=1000 num_experts=256 top_k=16 num_rows=16100" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"1024 experts", "tokens=700 num_experts=1024 top_k=8 num_rows=5600" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"1025 experts, few tokens", "tokens=7 num_experts=1025 top_k=8 num_rows=60" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"50000 experts", "tokens=3000 num_experts=50000 top_k=3 num_rows=9000 capacity=2" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"many of a token", "tokens=3 num_experts=40 top_k=3001 num_rows=9003" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"one expert has all", "tokens=3000 num_experts=60 top_k=4 num_rows=12000" ALL, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"no expert has any", "tokens=3000 num_experts=60 top_k=4 num_rows=12000" ALL, FILL_ZERO,
     LAYOUT_RANDOM},
    {"capacity", "tokens=3000 num_experts=60 top_k=4 num_rows=6000 capacity=100" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"capacity of one", "tokens=900 num_experts=16 top_k=2 num_rows=16 capacity=1" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"capacity, one expert has all",
     "tokens=3000 num_experts=60 top_k=4 num_rows=12000 capacity=700" ALL, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"huge capacity", "tokens=90 num_experts=16 top_k=2 num_rows=180 capacity=4000000000" ALL,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "tokens=3 num_experts=33 top_k=3 num_rows=9" ALL, FILL_NORMAL,
     LAYOUT_FAR},
    {"one row for all", "tokens=17 num_experts=65 top_k=3 num_rows=51" ALL, FILL_NORMAL,
     LAYOUT_REPEATED},
    {"many assignments", "tokens=9000 num_experts=300 top_k=8 num_rows=72000" ALL, FILL_NORMAL,
     LAYOUT_RANDOM},
    {0},
};

#define USUAL " +row_tokens +token_rows"
static const char *const standard[] = {
    "tokens=32768 num_experts=128 top_k=8" USUAL, "tokens=4096 num_experts=8 top_k=2" USUAL,
    "tokens=65536 num_experts=256 top_k=8" USUAL, "tokens=64 num_experts=128 top_k=8" USUAL, NULL};

const struct op_spec moe_permute_spec = {
    .op = "moe_permute",
    .command = "moe-permute",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .complete = complete,
    .call = call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .bound = bound,
    .keeps_nan_sign = true,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
