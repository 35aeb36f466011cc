// SPDX-License-Identifier: Apache-2.0
// The next token of each row of logits for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

enum {
    LOGITS,
    HISTORY,
    BIAS,
    ROW_TEMPERATURE,
    ROW_TOP_K,
    ROW_TOP_P,
    ROW_MIN_P,
    ROW_REPETITION,
    ROW_PRESENCE,
    ROW_FREQUENCY,
    ROW_SEED,
    ROW_OFFSET,
    IDS,
    LOGPROBS,
    KEPT,
    NAN_ROWS
};

static const char *const logprobs_names[] = {"raw", "processed", NULL};

static const struct param_spec params[] = {
    {"rows", "rows of logits", PARAM_SIZE, 64, NULL},
    {"vocab", "tokens", PARAM_SIZE, 152064, NULL},
    {"history_len", "tokens of a row's history", PARAM_SIZE, 0, NULL},
    {"has_bias_rows", "logit_bias has rows", PARAM_FLAG, 0, NULL, SOURCE_TENSORS},
    {"temperature", "divides the logits; 0: the largest one", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"top_k", "tokens that remain; 0: all", PARAM_INT, 0, NULL, .least = INT32_MIN,
     .most = INT32_MAX},
    {"top_p", "probability of the tokens that remain", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {"min_p", "least probability, of the largest", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"repetition_penalty", "divides logits of tokens in history; 0: 1", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"presence_penalty", "subtracted from logits of tokens in history", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"frequency_penalty", "the same, for each time", PARAM_REAL, 0, NULL, PARAM_FLOAT},
    {"logprobs_of", "distribution of logprobs", PARAM_CHOICE, 0, logprobs_names},
    {"seed", "of the random numbers", PARAM_INT, 0, NULL, .most = 9e15},
    {"offset", "of the random numbers", PARAM_INT, 0, NULL, .most = 9e15},
    {0},
};
enum {
    ROWS,
    VOCAB,
    HISTORY_LEN,
    HAS_BIAS_ROWS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    REPETITION,
    PRESENCE,
    FREQUENCY,
    LOGPROBS_OF,
    SEED,
    OFFSET
};

static const struct slot_spec slots[] = {
    {"logits", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"history", SLOT_IN, SLOT_I32, true, NULL, false},
    {"logit_bias", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_temperature", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_top_k", SLOT_IN, SLOT_I32, true, NULL, false},
    {"row_top_p", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_min_p", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_repetition_penalty", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_presence_penalty", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_frequency_penalty", SLOT_IN, SLOT_F32, true, NULL, false},
    {"row_seed", SLOT_IN, SLOT_I32, true, NULL, false},
    {"row_offset", SLOT_IN, SLOT_I32, true, NULL, false},
    {"ids", SLOT_OUT, SLOT_I32, false, NULL, false},
    {"logprobs", SLOT_OUT, SLOT_F32, true, NULL, false},
    {"kept", SLOT_OUT, SLOT_I32, true, NULL, false},
    {"num_nan_rows", SLOT_OUT, SLOT_I32, true, NULL, false},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    const int64_t rows = (int64_t)c->param[ROWS], vocab = (int64_t)c->param[VOCAB];
    shape[0] = slot == NAN_ROWS ? 1 : rows;
    shape[1] = slot == HISTORY ? (int64_t)c->param[HISTORY_LEN] : vocab;
    if (slot == BIAS && c->param[HAS_BIAS_ROWS] == 0) {
        shape[0] = vocab;
        return 1;
    }
    return slot == LOGITS || slot == HISTORY || slot == BIAS ? 2 : 1;
}

static bool infer(struct op_case *c) {
    if (c->tensor[LOGITS].ndim != 2 || (c->is_present[HISTORY] && c->tensor[HISTORY].ndim != 2))
        return false;
    c->param[ROWS] = (double)c->tensor[LOGITS].shape[0];
    c->param[VOCAB] = (double)c->tensor[LOGITS].shape[1];
    if (c->is_present[HISTORY]) c->param[HISTORY_LEN] = (double)c->tensor[HISTORY].shape[1];
    c->param[HAS_BIAS_ROWS] = c->is_present[BIAS] && c->tensor[BIAS].ndim == 2;
    return true;
}

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_sample_args args =
        TSR_SAMPLE_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                        .workspace_bytes = given_bytes, .logits = c->tensor[LOGITS],
                        .history = c->tensor[HISTORY], .logit_bias = c->tensor[BIAS],
                        .row_temperature = c->tensor[ROW_TEMPERATURE],
                        .row_top_k = c->tensor[ROW_TOP_K], .row_top_p = c->tensor[ROW_TOP_P],
                        .row_min_p = c->tensor[ROW_MIN_P],
                        .row_repetition_penalty = c->tensor[ROW_REPETITION],
                        .row_presence_penalty = c->tensor[ROW_PRESENCE],
                        .row_frequency_penalty = c->tensor[ROW_FREQUENCY],
                        .row_seed = c->tensor[ROW_SEED], .row_offset = c->tensor[ROW_OFFSET],
                        .ids = c->tensor[IDS], .logprobs = c->tensor[LOGPROBS],
                        .kept = c->tensor[KEPT], .num_nan_rows = c->tensor[NAN_ROWS],
                        .temperature = (float)c->param[TEMPERATURE],
                        .top_k = (int32_t)c->param[TOP_K],
                        .top_p = c->param[TOP_P] != 1 ? (float)c->param[TOP_P] : 0,
                        .has_top_p = c->param[TOP_P] != 1, .min_p = (float)c->param[MIN_P],
                        .repetition_penalty = (float)c->param[REPETITION],
                        .presence_penalty = (float)c->param[PRESENCE],
                        .frequency_penalty = (float)c->param[FREQUENCY],
                        .logprobs_of = (tsr_sample_logprobs)c->param[LOGPROBS_OF],
                        .seed = (uint64_t)c->param[SEED], .offset = (uint64_t)c->param[OFFSET]);
    return workspace_bytes != NULL ? tsr_sample_prepare(ctx, &args, workspace_bytes)
                                   : tsr_sample(ctx, &args);
}

// A comparison, and for what is drawn an exponential (10) and an addition.
static double flops(const struct op_case *c) {
    const bool is_drawn = c->param[TEMPERATURE] > 0 || c->is_present[ROW_TEMPERATURE];
    return (is_drawn ? 12 : 1) * c->param[ROWS] * c->param[VOCAB];
}

// ---- Cases ------------------------------------------------------------------------------------

static void randomize(struct rng *rng, struct op_case *c) {
    const int64_t vocab = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 3000);
    c->param[VOCAB] = (double)(vocab > 0 ? vocab : 1);
    c->param[ROWS] = (double)rng_dim(rng, vocab > 2000 ? 4 : 20);
    c->param[HISTORY_LEN] = (double)rng_dim(rng, 60);
    c->param[HAS_BIAS_ROWS] = rng_chance(rng, 0.5);
    if (rng_chance(rng, 0.8)) c->param[TEMPERATURE] = (double)rng_int(rng, 1, 30) / 10;
    if (rng_chance(rng, 0.4)) c->param[TOP_K] = (double)rng_int(rng, 0, vocab + 1);
    if (rng_chance(rng, 0.2)) c->param[TOP_K] = (double)rng_int(rng, 1, 50);
    if (rng_chance(rng, 0.5)) c->param[TOP_P] = (double)rng_int(rng, 0, 1000) / 1000;
    if (rng_chance(rng, 0.3)) c->param[MIN_P] = (double)rng_int(rng, 0, 200) / 1000;
    if (rng_chance(rng, 0.3)) c->param[REPETITION] = (double)rng_int(rng, 50, 200) / 100;
    if (rng_chance(rng, 0.3)) c->param[PRESENCE] = rng_normal(rng);
    if (rng_chance(rng, 0.3)) c->param[FREQUENCY] = 0.3 * rng_normal(rng);
    c->param[LOGPROBS_OF] = (double)rng_int(rng, 0, 1);
    c->param[SEED] = (double)rng_int(rng, 0, INT64_C(1) << 40);
    c->param[OFFSET] = (double)rng_int(rng, 0, INT64_C(1) << 40);
    c->is_present[HISTORY] = rng_chance(rng, 0.4);
    c->is_present[BIAS] = rng_chance(rng, 0.3);
    for (int s = ROW_TEMPERATURE; s <= ROW_OFFSET; s++) c->is_present[s] = rng_chance(rng, 0.2);
    for (int s = LOGPROBS; s <= NAN_ROWS; s++) c->is_present[s] = rng_chance(rng, 0.6);
}

// A value of an option of a row, often at an end of its range.
static double option(struct rng *rng, const struct op_case *c, int slot) {
    const int64_t vocab = (int64_t)c->param[VOCAB], any = rng_int(rng, 0, 1000);
    const bool is_end = rng_chance(rng, 0.2);
    switch (slot) {
    case HISTORY: return (double)rng_int(rng, -2, is_end ? vocab + 1 : vocab < 40 ? vocab : 40);
    case ROW_TEMPERATURE: return is_end ? 0 : (double)(any + 1) / 400;
    case ROW_TOP_K: return (double)rng_int(rng, -1, is_end ? vocab + 1 : 60);
    case ROW_TOP_P: return is_end ? (double)(any % 2) : (double)any / 1000;
    case ROW_MIN_P: return is_end ? (double)(any % 2) : (double)any / 5000;
    case ROW_REPETITION: return is_end ? 0 : (double)(any + 500) / 1000;
    case ROW_PRESENCE: return (double)(any - 500) / 300;
    case ROW_FREQUENCY: return (double)(any - 500) / 1000;
    default: return (double)rng_int(rng, INT32_MIN, INT32_MAX);
    }
}

// Logits spread about as a model's do. FILL_SPECIAL: logits and biases of few values, some masked, so that many are equal. Some
// random biases are masks.
static bool fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                 double *values) {
    const bool is_logit = slot == LOGITS || slot == BIAS, is_special = fill == FILL_SPECIAL;
    if (is_logit && !is_special && fill != FILL_NORMAL) return false;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        if (!is_logit)
            values[i] = option(rng, c, slot);
        else if ((slot == BIAS || is_special) && rng_chance(rng, 0.3))
            values[i] = -INFINITY;
        else
            values[i] = is_special ? (double)rng_int(rng, -2, 2) : 2.5 * rng_normal(rng);
    return true;
}

// The bound in tessera/sample.h; ids and numbers of tokens are exact.
static void bound(const struct op_case *c, int slot, double *bound) {
    const double u32 = 0x1p-24, vocab = c->param[VOCAB];
    const double *value = c->tensor[slot].data;
    for (int64_t i = 0; i < case_numel(c, slot); i++)
        bound[i] = slot != LOGPROBS
                       ? 0
                       : u32 * (16 + 5 * log(vocab) + 4 * fabs(value[i])) + 0x1p-41 * vocab;
}

// Logits of bench are all different where their dtype allows it.
static bool is_drawn_whole(const struct op_case *c, int slot) {
    return slot == LOGITS && case_elements(c, slot) < 0x1p25;
}

#define OUTPUTS " +logprobs +kept +num_nan_rows"
#define DRAWN "temperature=0.8 seed=3 "

static const struct edge_case edges[] = {
    {"no rows", "rows=0 vocab=5 history_len=3 +history" OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"one token", "rows=9 vocab=1 temperature=1" OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"greedy", "rows=9 vocab=3001" OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"greedy, equal logits", "rows=9 vocab=3001" OUTPUTS, FILL_SPECIAL, LAYOUT_RANDOM},
    {"no filter", "rows=9 vocab=3001 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"processed logprobs", "rows=9 vocab=3001 logprobs_of=processed " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"top_k 1", "rows=9 vocab=3001 top_k=1 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"top_k all but one", "rows=9 vocab=3001 top_k=3000 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"top_k vocab", "rows=9 vocab=3001 top_k=3001 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"top_p 0", "rows=9 vocab=3001 top_p=0 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"top_p below the first", "rows=9 vocab=3001 top_p=1e-30 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"top_p almost 1", "rows=9 vocab=3001 top_p=0.99999994 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"min_p 1", "rows=9 vocab=3001 min_p=1 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_RANDOM},
    {"all filters", "rows=9 vocab=3001 top_k=60 top_p=0.9 min_p=0.02 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"all filters, equal logits", "rows=60 vocab=301 top_k=60 top_p=0.7 min_p=0.1 " DRAWN OUTPUTS,
     FILL_SPECIAL, LAYOUT_RANDOM},
    {"filters of 50,257", "rows=3 vocab=50257 top_k=50 top_p=0.95 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"top_p of 152,064", "rows=2 vocab=152064 top_p=0.9 " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"half a million tokens", "rows=1 vocab=524289 top_k=300000 top_p=0.5 " DRAWN OUTPUTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"zeros", "rows=9 vocab=3001 top_k=99 top_p=0.5 " DRAWN OUTPUTS, FILL_ZERO, LAYOUT_RANDOM},
    {"low temperature", "rows=9 vocab=3001 temperature=1e-30 top_p=0.9" OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"lowest temperature", "rows=9 vocab=3001 temperature=1e-44 top_k=7 top_p=0.9" OUTPUTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"high temperature", "rows=9 vocab=3001 temperature=1e15 top_p=0.9" OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"penalties",
     "rows=20 vocab=61 history_len=90 repetition_penalty=1.3 presence_penalty=0.5 "
     "frequency_penalty=0.2 +history top_p=0.8 " DRAWN OUTPUTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"penalties and biases",
     "rows=20 vocab=61 history_len=90 repetition_penalty=1.3 presence_penalty=0.5 has_bias_rows=1 "
     "frequency_penalty=0.2 +history +logit_bias top_k=8 " DRAWN OUTPUTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"one bias for all", "rows=20 vocab=301 +logit_bias " DRAWN OUTPUTS, FILL_NORMAL,
     LAYOUT_RANDOM},
    {"masked by biases", "rows=60 vocab=5 +logit_bias has_bias_rows=1 " DRAWN OUTPUTS, FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"options of rows",
     "rows=40 vocab=301 history_len=30 +history +row_temperature +row_top_k +row_top_p +row_min_p "
     "+row_repetition_penalty +row_presence_penalty +row_frequency_penalty +row_seed "
     "+row_offset" OUTPUTS,
     FILL_NORMAL, LAYOUT_RANDOM},
    {"large logits", "rows=9 vocab=301 top_p=0.9 " DRAWN OUTPUTS, FILL_LARGE, LAYOUT_RANDOM},
    {"huge logits", "rows=9 vocab=301 top_k=9 top_p=0.9 " DRAWN OUTPUTS, FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "rows=40 vocab=301 top_k=9 top_p=0.9 " DRAWN OUTPUTS, FILL_INFINITE,
     LAYOUT_RANDOM},
    {"masked rows", "rows=40 vocab=301 top_k=9 top_p=0.9 " DRAWN OUTPUTS, FILL_NEGATIVE_INFINITE,
     LAYOUT_RANDOM},
    {"NaN in some rows", "rows=40 vocab=301 top_p=0.9 " DRAWN OUTPUTS, FILL_NAN, LAYOUT_RANDOM},
    {"NaN in some greedy rows", "rows=40 vocab=301" OUTPUTS, FILL_NAN, LAYOUT_RANDOM},
    {"huge common logit", "rows=9 vocab=301 top_p=0.9 " DRAWN OUTPUTS, FILL_SHIFTED, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 vocab=33 top_k=5 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 vocab=65 " DRAWN OUTPUTS, FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"rows=64 vocab=152064",
                                       "rows=64 vocab=152064 temperature=1",
                                       "rows=64 vocab=152064 temperature=1 top_k=50",
                                       "rows=64 vocab=152064 temperature=1 top_p=0.9",
                                       "rows=64 vocab=152064 temperature=1 top_k=50 top_p=0.9",
                                       "rows=1 vocab=151936 temperature=1",
                                       "rows=1 vocab=151936 temperature=1 top_k=50 top_p=0.9",
                                       "rows=8 vocab=50257 temperature=1 top_p=0.9",
                                       "rows=100 vocab=128256 temperature=1 min_p=0.05",
                                       NULL};

const struct op_spec sample_spec = {
    .op = "sample",
    .command = "sample",
    .pass = "forward",
    .params = params,
    .slots = slots,
    .shape = shape,
    .infer = infer,
    .call = call,
    .flops = flops,
    .randomize = randomize,
    .fill = fill,
    .is_drawn_whole = is_drawn_whole,
    .bound = bound,
    .edges = edges,
    .standard = standard,
    .baseline = "reference",
};
