// SPDX-License-Identifier: Apache-2.0
// The next token of each row of logits: entry, checks, variants. The contract is in tessera/sample.h.
#include "ops/sample/sample_problem.h"

static const char op[] = "sample";

// ---- Variants ---------------------------------------------------------------------------------
// To add one: a row here with its supports, plan and run. verify, bench and the tests find it.

TSRI_SUPPORTS_UP_TO_F32(is_float32_or_less, struct sample_problem, logits.dtype)

static const struct tsri_variant variants[] = {
    {"fused", "one read for the largest logits, one for sums of weights; no sort", TSR_VARIANT_ISA,
     is_float32_or_less, sample_plan, sample_run},
    {"cuda-slices", "the same with several blocks for a row, whose integer sums meet in memory",
     TSR_VARIANT_CUDA, is_float32_or_less, sample_cuda_plan, sample_cuda_run, sample_cuda_prepare},
    {"reference", "all tokens in order, one thread", TSR_VARIANT_REFERENCE, tsri_supports_all,
     sample_plan_reference, sample_reference_run},
};

const struct tsri_op tsri_sample_op = {"sample", variants, TSRI_COUNT(variants), NULL,
                                       sample_cuda_kernel};

// ---- Checks -----------------------------------------------------------------------------------

// The tensors of a number for each row; the first are options with a range.
enum {
    TEMPERATURE,
    TOP_P,
    MIN_P,
    REPETITION,
    PRESENCE,
    FREQUENCY,
    NUM_RANGES,
    TOP_K = NUM_RANGES,
    SEED,
    OFFSET,
    NUM_INPUTS,
    IDS = NUM_INPUTS,
    LOGPROBS,
    KEPT,
    NUM_VECTORS
};

static const struct range {
    const char *field, *expected;
    double least, most;
} ranges[NUM_RANGES] = {
    [TEMPERATURE] = {"temperature", "a finite number of at least 0", 0, (double)SAMPLE_LARGEST},
    [TOP_P] = {"top_p", "0 to 1", 0, 1},
    [MIN_P] = {"min_p", "0 to 1", 0, 1},
    [REPETITION] = {"repetition_penalty", "a finite number above 0, or 0 for none", 0,
                    (double)SAMPLE_LARGEST},
    [PRESENCE] = {"presence_penalty", "a finite number", -(double)SAMPLE_LARGEST,
                  (double)SAMPLE_LARGEST},
    [FREQUENCY] = {"frequency_penalty", "a finite number", -(double)SAMPLE_LARGEST,
                   (double)SAMPLE_LARGEST},
};

static bool is_in(const struct range *range, double x) {
    return x >= range->least && x <= range->most;
}

static tsr_status check_scalars(const tsr_sample_args *args, struct sample_problem *p) {
    const float values[NUM_RANGES] = {args->temperature,
                                      args->top_p,
                                      args->min_p,
                                      args->repetition_penalty,
                                      args->presence_penalty,
                                      args->frequency_penalty};
    TSRI_TRY(TSRI_CHECK_FLAG(op, args, top_p));
    for (int i = 0; i < NUM_RANGES; i++)
        if (!is_in(&ranges[i], (double)values[i]))
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %g, expected %s", op, ranges[i].field,
                             (double)values[i], ranges[i].expected);
    if ((unsigned)args->logprobs_of >= TSR_SAMPLE_LOGPROBS_COUNT)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: logprobs_of is %d, expected a tsr_sample_logprobs", op,
                         (int)args->logprobs_of);
    p->given = (struct sample_options){
        .temperature = args->temperature,
        .top_p = args->has_top_p ? args->top_p : 1,
        .min_p = args->min_p,
        .repetition_penalty = sample_repetition_penalty(args->repetition_penalty),
        .presence_penalty = args->presence_penalty,
        .frequency_penalty = args->frequency_penalty,
        .top_k = args->top_k,
    };
    p->is_logprob_raw = args->logprobs_of == TSR_SAMPLE_LOGPROBS_RAW;
    p->seed = args->seed;
    p->offset = args->offset;
    return TSR_OK;
}

// Rows of two dimensions, or of `least`.
static tsr_status check_rows(const char *field, tsr_tensor *t, int least, struct tsri_rows *rows) {
    TSRI_TRY(tsri_check_rows(op, field, t, TSRI_IN, rows));
    if (t->ndim >= least && t->ndim <= 2) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s.ndim is %d, expected %s", op, field,
                     (int)t->ndim, least == 2 ? "2" : "1 or 2");
}

static tsr_status check_history(tsr_sample_args *args, struct sample_problem *p) {
    if (!tsri_is_present(&args->history)) return TSR_OK;
    TSRI_TRY(check_rows("history", &args->history, 2, &p->history));
    TSRI_TRY(tsri_check_dtype(op, "history", &args->history, TSR_I32));
    if (p->history.rows != p->logits.rows)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: history has %lld rows, expected %lld as logits",
                         op, (long long)p->history.rows, (long long)p->logits.rows);
    if (p->history.cols > INT32_MAX)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: history has %lld columns, expected at most %d",
                         op, (long long)p->history.cols, INT32_MAX);
    return TSR_OK;
}

static tsr_status check_bias(tsr_sample_args *args, struct sample_problem *p) {
    if (!tsri_is_present(&args->logit_bias)) return TSR_OK;
    TSRI_TRY(check_rows("logit_bias", &args->logit_bias, 1, &p->bias));
    TSRI_TRY(tsri_check_dtype(op, "logit_bias", &args->logit_bias, sample_real(p)));
    if (p->bias.cols != p->logits.cols)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: logit_bias has %lld columns, expected vocab %lld", op,
                         (long long)p->bias.cols, (long long)p->logits.cols);
    if (args->logit_bias.ndim == 1)
        p->bias.stride = 0;
    else if (p->bias.rows != p->logits.rows)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: logit_bias has %lld rows, expected %lld as logits, or one dimension",
                         op, (long long)p->bias.rows, (long long)p->logits.rows);
    return TSR_OK;
}

// A value out of range in a tensor of rows.
static tsr_status check_range(const struct sample_problem *p, const struct range *range,
                              const char *field, const void *of_rows) {
    for (int64_t r = 0; r < p->logits.rows; r++) {
        const double value = tsri_load(sample_real(p), of_rows, r);
        if (!is_in(range, value))
            return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s[%lld] is %g, expected %s", op, field,
                             (long long)r, value, range->expected);
    }
    return TSR_OK;
}

// The tensors of a number for each row, into data.
static tsr_status check_vectors(const tsr_context *ctx, tsr_sample_args *args, bool is_prepare,
                                struct sample_problem *p) {
    const struct {
        const char *field;
        tsr_tensor *tensor;
    } vectors[NUM_VECTORS] = {
        [TEMPERATURE] = {"row_temperature", &args->row_temperature},
        [TOP_P] = {"row_top_p", &args->row_top_p},
        [MIN_P] = {"row_min_p", &args->row_min_p},
        [REPETITION] = {"row_repetition_penalty", &args->row_repetition_penalty},
        [PRESENCE] = {"row_presence_penalty", &args->row_presence_penalty},
        [FREQUENCY] = {"row_frequency_penalty", &args->row_frequency_penalty},
        [TOP_K] = {"row_top_k", &args->row_top_k},
        [SEED] = {"row_seed", &args->row_seed},
        [OFFSET] = {"row_offset", &args->row_offset},
        [IDS] = {"ids", &args->ids},
        [LOGPROBS] = {"logprobs", &args->logprobs},
        [KEPT] = {"kept", &args->kept},
    };
    enum { NUM_OTHERS = 3 };
    struct tsri_named_tensor all[NUM_OTHERS + NUM_VECTORS + 1] = {
        {"logits", &args->logits}, {"history", &args->history}, {"logit_bias", &args->logit_bias}};
    void *data[NUM_VECTORS] = {0}, *num_nan_rows = NULL;
    TSRI_TRY(tsri_check_vector(op, "ids", &args->ids, TSRI_OUT, p->logits.rows));
    for (int i = 0; i < NUM_VECTORS; i++) {
        const bool is_real = i < NUM_RANGES || i == LOGPROBS;
        TSRI_TRY(tsri_check_optional_vector(op, vectors[i].field, vectors[i].tensor,
                                            i < NUM_INPUTS ? TSRI_IN : TSRI_OUT, p->logits.rows,
                                            is_real ? sample_real(p) : TSR_I32, &data[i]));
        all[NUM_OTHERS + i] = (struct tsri_named_tensor){vectors[i].field, vectors[i].tensor};
    }
    TSRI_TRY(tsri_check_optional_vector(op, "num_nan_rows", &args->num_nan_rows, TSRI_OUT, 1,
                                        TSR_I32, &num_nan_rows));
    all[NUM_OTHERS + NUM_VECTORS] = (struct tsri_named_tensor){"num_nan_rows", &args->num_nan_rows};
    TSRI_TRY(tsri_check_all_disjoint(op, all, NUM_OTHERS + NUM_INPUTS, TSRI_COUNT(all)));
    for (int i = 0; i < NUM_RANGES && !is_prepare && tsri_host_reads(ctx); i++)
        if (data[i] != NULL) TSRI_TRY(check_range(p, &ranges[i], vectors[i].field, data[i]));
    p->of_rows = (struct sample_rows_options){
        .temperature = data[TEMPERATURE],
        .top_p = data[TOP_P],
        .min_p = data[MIN_P],
        .repetition_penalty = data[REPETITION],
        .presence_penalty = data[PRESENCE],
        .frequency_penalty = data[FREQUENCY],
        .top_k = data[TOP_K],
        .seed = data[SEED],
        .offset = data[OFFSET],
    };
    p->ids = data[IDS];
    p->logprobs = data[LOGPROBS];
    p->kept = data[KEPT];
    p->num_nan_rows = num_nan_rows;
    return TSR_OK;
}

static tsr_status check(const tsr_context *ctx, tsr_sample_args *args, bool is_prepare,
                        struct sample_problem *p) {
    TSRI_TRY(check_scalars(args, p));
    TSRI_TRY(check_rows("logits", &args->logits, 2, &p->logits));
    TSRI_TRY(tsri_check_float(op, "logits", &args->logits));
    if (p->logits.cols < 1 || p->logits.cols > SAMPLE_MAX_VOCAB)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: logits have %lld columns (vocab), expected 1 to %d", op,
                         (long long)p->logits.cols, SAMPLE_MAX_VOCAB);
    TSRI_TRY(check_history(args, p));
    TSRI_TRY(check_bias(args, p));
    return check_vectors(ctx, args, is_prepare, p);
}

static tsr_status enter(tsr_context *ctx, const void *given, struct tsri_goal goal) {
    tsr_sample_args args;
    struct sample_problem p = {0};
    TSRI_TRY(tsri_check_context(ctx, op));
    TSRI_TRY(TSRI_ARGS_READ(op, args, (const tsr_sample_args *)given));
    TSRI_TRY(check(ctx, &args, goal.is_prepare, &p));
    return tsri_op_serve(ctx, &tsri_sample_op, &p, TSRI_CALL(args), goal);
}

TSRI_ENTRY(tsr_sample, enter)
