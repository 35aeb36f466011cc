// SPDX-License-Identifier: Apache-2.0
// The next token on the CPU: the same bits for any threads and instruction sets, in wide rows, in every dtype that holds the logits,
// and wherever a row with a seed lies in the batch; and what a call refuses.
#include <math.h>

#include "test_support.h"

enum { ROWS = 5, VOCAB = 152064, FEW = 24, HISTORY = 500 };

static float logits[ROWS * VOCAB];
static uint16_t halves[ROWS * VOCAB];
static float temperature[ROWS], top_p[ROWS], bias[VOCAB];
static int32_t history[ROWS * HISTORY], seed[ROWS], top_k[ROWS];

struct outputs {
    int32_t ids[ROWS], kept[ROWS];
    float logprobs[ROWS];
};

static void fill(void) {
    uint64_t random = 20261201;
    for (int i = 0; i < ROWS * VOCAB; i++) {
        const float x = test_float(&random), y = test_float(&random);
        halves[i] = test_bf16(x + y);
        logits[i] = test_of_bf16(halves[i]);
    }
    for (int i = 0; i < VOCAB; i++) bias[i] = i % 5 == 0 ? -INFINITY : 0;
    for (int i = 0; i < ROWS * HISTORY; i++) history[i] = test_below(&random, VOCAB);
    for (int r = 0; r < ROWS; r++) {
        temperature[r] = 0.5f + (float)r / 2;
        top_p[r] = 1 - (float)r / 10;
        top_k[r] = r % 2 == 0 ? 0 : 1 << 4 * r;
        seed[r] = -r;
    }
}

static tsr_sample_args args_of(struct outputs *out, int rows) {
    memset(out, 0x55, sizeof *out);
    return TSR_SAMPLE_ARGS(.logits = TSR_TENSOR(logits, TSR_F32, rows, VOCAB),
                           .ids = TSR_TENSOR(out->ids, TSR_I32, rows),
                           .kept = TSR_TENSOR(out->kept, TSR_I32, rows),
                           .logprobs = TSR_TENSOR(out->logprobs, TSR_F32, rows), .temperature = 1,
                           .seed = 9);
}

// kind: filters of rows, penalties with a bias, logits of bf16.
static tsr_sample_args args_of_kind(struct outputs *out, int rows, int kind) {
    tsr_sample_args args = args_of(out, rows);
    if (kind & 1) {
        args.row_temperature = TSR_TENSOR(temperature, TSR_F32, rows);
        args.row_top_p = TSR_TENSOR(top_p, TSR_F32, rows);
        args.row_top_k = TSR_TENSOR(top_k, TSR_I32, rows);
    }
    if (kind & 2) {
        args.history = TSR_TENSOR(history, TSR_I32, rows, HISTORY);
        args.logit_bias = TSR_TENSOR(bias, TSR_F32, VOCAB);
        args.repetition_penalty = 1.5f;
        args.frequency_penalty = 0.25f;
    }
    if (kind & 4) args.logits = TSR_TENSOR(halves, TSR_BF16, rows, VOCAB);
    return args;
}

static void the_same_bits(void **state) {
    (void)state;
    for (int rows = 1; rows <= ROWS; rows += 2)
        for (int kind = 0; kind < 8; kind++) {
            struct outputs first, out;
            bool is_first = true;
            for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
                for (int threads = 1; threads <= 7 && test_has_isa(isa); threads += 2) {
                    tsr_context *ctx = test_context_of(isa, threads);
                    tsr_sample_args args = args_of_kind(&out, rows, kind);
                    assert_ok(tsr_sample(ctx, &args));
                    tsr_context_destroy(ctx);
                    if (is_first) first = out;
                    if (memcmp(&first, &out, sizeof out) != 0)
                        fail_msg("%d rows, kind %d: other bits with isa %d and %d threads", rows,
                                 kind, isa, threads);
                    is_first = false;
                }
            const tsr_sample_args other = args_of_kind(&out, rows, kind ^ 4); // the same numbers
            tsr_context *ctx = test_context(2);
            assert_ok(tsr_sample(ctx, &other));
            tsr_context_destroy(ctx);
            assert_memory_equal(&first, &out, sizeof out);
        }
}

static void a_row_with_a_seed_anywhere(void **state) {
    struct outputs all, one;
    tsr_context *ctx = test_context(2);
    (void)state;
    tsr_sample_args args = args_of(&all, ROWS);
    args.row_seed = TSR_TENSOR(seed, TSR_I32, ROWS);
    args.top_p = 0.9f;
    args.has_top_p = 1;
    assert_ok(tsr_sample(ctx, &args));
    for (int r = 0; r < ROWS; r++) {
        args = args_of(&one, 1);
        args.top_p = 0.9f;
        args.has_top_p = 1;
        args.logits = TSR_TENSOR(logits + (int64_t)r * VOCAB, TSR_F32, 1, VOCAB);
        args.row_seed = TSR_TENSOR(seed + r, TSR_I32, 1);
        assert_ok(tsr_sample(ctx, &args));
        assert_true(one.ids[0] == all.ids[r] && one.kept[0] == all.kept[r]);
        assert_memory_equal(one.logprobs, all.logprobs + r, sizeof(float));
    }
    tsr_context_destroy(ctx);
}

// ---- Refusals -----------------------------------------------------------------------------------

static struct outputs refused;

static tsr_sample_args few(void) {
    tsr_sample_args args = args_of(&refused, ROWS);
    args.logits = TSR_TENSOR(logits, TSR_F32, ROWS, FEW);
    return args;
}

#define REFUSES(change, ...)                                                                       \
    do {                                                                                           \
        tsr_sample_args args = few();                                                              \
        change;                                                                                    \
        assert_status(tsr_sample(ctx, &args), TSR_INVALID_ARGUMENT, __VA_ARGS__);                  \
        assert_true(test_all_bytes_are(&refused, 0x55, sizeof refused));                           \
    } while (0)

static void refusals(void **state) {
    static float bad[ROWS] = {1, 1, 1, 2, 1}, negative[ROWS] = {0, 0, -1, 0, 0};
    tsr_context *ctx = test_context(1);
    (void)state;
    REFUSES(args.temperature = -1, "sample: temperature is -1");
    REFUSES(args.temperature = INFINITY, "temperature is inf");
    REFUSES(args.temperature = NAN, "temperature is");
    REFUSES(args.top_p = 0.5f, "top_p is 0.5 without has_top_p");
    REFUSES((args.top_p = 1.5f, args.has_top_p = 1), "top_p is 1.5, expected 0 to 1");
    REFUSES(args.min_p = 2, "min_p is 2");
    REFUSES(args.repetition_penalty = -2, "repetition_penalty is -2");
    REFUSES(args.presence_penalty = NAN, "presence_penalty is");
    REFUSES(args.frequency_penalty = INFINITY, "frequency_penalty is inf");
    REFUSES(args.logprobs_of = 7, "logprobs_of is 7");
    REFUSES(args.row_top_p = TSR_TENSOR(bad, TSR_F32, ROWS), "row_top_p[3] is 2, expected 0 to 1");
    REFUSES(args.row_temperature = TSR_TENSOR(negative, TSR_F32, ROWS), "row_temperature[2] is -1");
    REFUSES(args.row_repetition_penalty = TSR_TENSOR(negative, TSR_F32, ROWS),
            "row_repetition_penalty[2] is -1");
    REFUSES(args.row_min_p = TSR_TENSOR(bad, TSR_F32, ROWS - 1), "row_min_p has shape (4,)");
    REFUSES(args.row_top_k = TSR_TENSOR(bad, TSR_F32, ROWS), "row_top_k.dtype is f32");
    REFUSES(args.ids = TSR_TENSOR(refused.kept, TSR_I32, ROWS), "ids", "kept");
    REFUSES(args.ids.dtype = TSR_DTYPE_NONE, "ids");
    REFUSES(args.logits = TSR_TENSOR(logits, TSR_F32, 1, ROWS, FEW),
            "logits.ndim is 3, expected 2");
    REFUSES(args.history = TSR_TENSOR(history, TSR_I32, ROWS), "history.ndim is 1, expected 2");
    REFUSES(args.logits = TSR_TENSOR(logits, TSR_F32, ROWS, 0), "0 columns (vocab)");
    REFUSES(args.logits = TSR_TENSOR(logits, TSR_I32, ROWS, FEW), "logits.dtype is i32");
    REFUSES(args.history = TSR_TENSOR(history, TSR_I32, ROWS - 1, 3), "history has 4 rows");
    REFUSES(args.logit_bias = TSR_TENSOR(bias, TSR_F32, FEW - 1), "logit_bias has 23 columns");
    REFUSES(args.logit_bias = TSR_TENSOR(bias, TSR_F32, 2, FEW), "logit_bias has 2 rows");
    tsr_sample_args args = few(); // the context serves the next call
    assert_ok(tsr_sample(ctx, &args));
    tsr_context_destroy(ctx);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(a_row_with_a_seed_anywhere),
        cmocka_unit_test(refusals),
    };
    fill();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
