// SPDX-License-Identifier: Apache-2.0
// The next token on a real GPU, or on the emulated one: ids and numbers of tokens are the CPU's in rows of several blocks at any
// address, with ties and penalties; numbers in device memory that are out of range make their row NaN, or are padding, and reach
// nothing else.
#include <math.h>

#include "cuda_case.h"

enum { ROWS = 3, MOST_VOCAB = 5003, HISTORY = 60, SLACK = 8 };

struct buffers {
    float logits[ROWS * MOST_VOCAB + SLACK], bias[MOST_VOCAB], temperature[ROWS], top_p[ROWS],
        logprobs[ROWS];
    int32_t history[ROWS * HISTORY], top_k[ROWS], ids[ROWS], kept[ROWS], num_nan_rows[1];
};

static struct buffers host, other, *device;
static tsr_context *ctx, *cpu;

// kind: history and a bias; options of rows; rows at another address.
static tsr_sample_args args_of(struct buffers *b, int kind, int vocab) {
    tsr_sample_args args =
        TSR_SAMPLE_ARGS(.logits = TSR_TENSOR(b->logits + (kind & 4 ? 3 : 0), TSR_F32, ROWS, vocab),
                        .ids = TSR_TENSOR(b->ids, TSR_I32, ROWS),
                        .kept = TSR_TENSOR(b->kept, TSR_I32, ROWS),
                        .logprobs = TSR_TENSOR(b->logprobs, TSR_F32, ROWS),
                        .num_nan_rows = TSR_TENSOR(b->num_nan_rows, TSR_I32, 1),
                        .temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .has_top_p = 1, .seed = 3);
    if (kind & 1) {
        args.history = TSR_TENSOR(b->history, TSR_I32, ROWS, HISTORY);
        args.logit_bias = TSR_TENSOR(b->bias, TSR_F32, vocab);
        args.repetition_penalty = 1.3f;
        args.frequency_penalty = 0.5f;
    }
    if (kind & 2) {
        args.row_temperature = TSR_TENSOR(b->temperature, TSR_F32, ROWS);
        args.row_top_p = TSR_TENSOR(b->top_p, TSR_F32, ROWS);
        args.row_top_k = TSR_TENSOR(b->top_k, TSR_I32, ROWS);
    }
    return args;
}

static void run_on_device(int kind, int vocab) {
    tsr_sample_args args = args_of(device, kind, vocab);
    tsr_tensor *tensors[] = {
        &args.logits,    &args.history,     &args.logit_bias, &args.row_temperature,
        &args.row_top_p, &args.row_top_k,   &args.ids,        &args.kept,
        &args.logprobs,  &args.num_nan_rows};
    for (int i = 0; i < COUNT(tensors); i++)
        if (tensors[i]->dtype != TSR_DTYPE_NONE) *tensors[i] = on_cuda(*tensors[i]);
    assert_ok(tsr_memory_copy(ctx, device, &host, sizeof host));
    assert_ok(tsr_sample(ctx, &args));
    assert_ok(tsr_memory_copy(ctx, &host, device, sizeof host));
    assert_ok(tsr_context_synchronize(ctx));
}

static void fill(int vocab, bool has_ties, uint64_t *random) {
    memset(&host, 0x55, sizeof host);
    for (int i = 0; i < ROWS * vocab + SLACK; i++) {
        const float x = 2 * test_float(random);
        host.logits[i] = has_ties ? floorf(x) : x;
    }
    for (int i = 0; i < vocab; i++)
        host.bias[i] = test_below(random, 3) == 0 ? -INFINITY : test_float(random);
    for (int i = 0; i < ROWS * HISTORY; i++) host.history[i] = test_below(random, 50);
    for (int r = 0; r < ROWS; r++) {
        host.temperature[r] = (float)r / 2;
        host.top_p[r] = 1 - (float)r / 4;
        host.top_k[r] = r == 1 ? 700 : 0;
    }
}

static void ids_of_the_cpu(void **state) {
    static const int vocabs[] = {1, 7, 130, 1024, MOST_VOCAB};
    uint64_t random = test_seed(20261201);
    (void)state;
    for (int i = 0; i < COUNT(vocabs); i++)
        for (int kind = 0; kind < 16; kind++) {
            fill(vocabs[i], kind & 8, &random);
            other = host;
            tsr_sample_args args = args_of(&other, kind, vocabs[i]);
            assert_ok(tsr_sample(cpu, &args));
            run_on_device(kind, vocabs[i]);
            assert_memory_equal(host.ids, other.ids, sizeof host.ids);
            assert_memory_equal(host.kept, other.kept, sizeof host.kept);
            assert_int_equal(host.num_nan_rows[0], 0);
            for (int r = 0; r < ROWS; r++)
                if (host.logprobs[r] != other.logprobs[r] &&
                    !(fabsf(host.logprobs[r] - other.logprobs[r]) <= 1e-5f))
                    fail_msg("%d tokens, kind %d, row %d: logprob %g, on the CPU %g", vocabs[i],
                             kind, r, (double)host.logprobs[r], (double)other.logprobs[r]);
        }
}

static void numbers_out_of_range(void **state) {
    static const float wrong[] = {-1, INFINITY, NAN};
    uint64_t random = 1;
    (void)state;
    for (int i = 0; i < 2 * COUNT(wrong); i++) {
        struct buffers right;
        fill(301, false, &random);
        host.history[5] = -7;
        host.history[6] = INT32_MIN;
        host.history[HISTORY + 1] = 301;
        host.history[HISTORY + 2] = INT32_MAX;
        host.top_k[0] = INT32_MIN;
        host.top_k[2] = INT32_MAX;
        other = host;
        tsr_sample_args args = args_of(&other, 3, 301);
        assert_ok(tsr_sample(cpu, &args));
        right = other;
        (i % 2 == 0 ? host.temperature : host.top_p)[1] = wrong[i / 2];
        run_on_device(3, 301);
        assert_int_equal(host.num_nan_rows[0], 1);
        assert_true(host.ids[1] == 0 && host.kept[1] == 0 && isnan(host.logprobs[1]));
        for (int r = 0; r < ROWS; r += 2)
            assert_true(host.ids[r] == right.ids[r] && host.kept[r] == right.kept[r]);
    }
}

static int setup(void **state) {
    (void)state;
    cpu = test_context(1);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(cpu);
    return 0;
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_the_cpu),
        cmocka_unit_test(numbers_out_of_range),
    };
    void *memory;
    int skip = cuda_case_open(80, sizeof host, &ctx, &memory);
    if (skip != 0) return skip;
    device = memory;
    int failed = cmocka_run_group_tests_name("cuda sample", tests, setup, teardown);
    cuda_case_close(ctx, memory);
    return failed;
}
