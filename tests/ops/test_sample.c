// SPDX-License-Identifier: Apache-2.0
// The next token on the CPU, against the definition written here in double with its own sort, draw and penalties: random rows,
// filters, penalties and options; what is special; frequencies of draws. Where a sum lies within rounding of a threshold, both
// sides are right.
#include <math.h>

#include "core/core_philox.h"
#include "test_support.h"

enum { ROWS = 12, VOCAB = 3000, HISTORY = 40, GUARD = 3, POISON = 0x55 };
static const double near = 1e-5; // of a sum of probabilities

static struct {
    float logits[ROWS * VOCAB], bias[ROWS * VOCAB];
    int32_t history[ROWS * HISTORY];
    float temperature[ROWS], top_p[ROWS], min_p[ROWS], repetition[ROWS], presence[ROWS],
        frequency[ROWS];
    int32_t top_k[ROWS], seed[ROWS], offset[ROWS];
} in;

static struct outputs {
    int32_t ids[ROWS + GUARD], kept[ROWS + GUARD], num_nan_rows[1 + GUARD];
    float logprobs[ROWS + GUARD];
} out;

static tsr_context *ctx;

static int setup(void **state) {
    (void)state;
    ctx = test_context(1);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

static tsr_sample_args args_of(struct outputs *outputs, int rows, int vocab) {
    memset(outputs, POISON, sizeof *outputs);
    return TSR_SAMPLE_ARGS(.logits = TSR_TENSOR(in.logits, TSR_F32, rows, vocab),
                           .ids = TSR_TENSOR(outputs->ids, TSR_I32, rows),
                           .logprobs = TSR_TENSOR(outputs->logprobs, TSR_F32, rows),
                           .kept = TSR_TENSOR(outputs->kept, TSR_I32, rows),
                           .num_nan_rows = TSR_TENSOR(outputs->num_nan_rows, TSR_I32, 1));
}

// ---- The definition ---------------------------------------------------------------------------

struct options {
    double temperature, top_p, min_p;
    float repetition, presence, frequency;
    int top_k;
};

static const float *sorted_z;
static int compare(const void *a, const void *b) { // the largest first, then the lower index
    const int i = *(const int *)a, j = *(const int *)b;
    if (sorted_z[i] != sorted_z[j]) return sorted_z[i] > sorted_z[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static double u_of(uint64_t seed, uint64_t offset, uint64_t stream) {
    const uint32_t counter[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    uint32_t words[4];
    tsri_philox(seed, counter, words);
    return ldexp((double)words[0], -64) + ldexp((double)words[1], -32);
}

static void penalise(float *z, int vocab, const int32_t *history, int length,
                     const struct options *o) {
    for (int v = 0; v < vocab; v++) {
        int count = 0;
        for (int i = 0; i < length; i++) count += history[i] == v;
        if (count == 0) continue;
        z[v] = z[v] > 0 ? z[v] / o->repetition : z[v] * o->repetition;
        z[v] -= (float)count * o->frequency;
        z[v] -= o->presence;
    }
}

// Whether id, kept and logprob are those of the row. z: after penalties and biases, without NaN and infinite numbers but -inf.
static bool is_right(const float *x, const float *z, int vocab, const struct options *o, double u,
                     bool is_raw, int id, int kept, double logprob) {
    static int order[VOCAB];
    static double w[VOCAB];
    static bool is_left[VOCAB], is_open[VOCAB]; // is_open: within rounding of a threshold
    int count = 0;
    for (int v = 0; v < vocab; v++) {
        is_left[v] = is_open[v] = false;
        if (z[v] > -INFINITY) order[count++] = v;
    }
    sorted_z = z;
    qsort(order, (size_t)count, sizeof *order, compare);
    double sum = 0, before = 0, raw_max = -INFINITY, raw_sum = 0;
    for (int v = 0; v < vocab; v++) raw_max = fmax(raw_max, (double)x[v]);
    for (int v = 0; v < vocab; v++) raw_sum += exp((double)x[v] - raw_max);
    const double raw = (double)x[id] - raw_max - log(raw_sum);
    if (o->temperature == 0)
        return id == order[0] && kept == 1 && fabs(logprob - (is_raw ? raw : 0)) < 1e-4;
    for (int i = 0; i < count; i++)
        w[i] = exp(((double)z[order[i]] - (double)z[order[0]]) / o->temperature);
    if (o->top_k > 0 && o->top_k < count) count = o->top_k;
    for (int i = 0; i < count; i++) sum += w[i];
    int least = 0, most = 0;
    for (int i = 0; i < count; before += w[i++]) {
        const double over_p = i == 0 || o->top_p >= 1 ? -1 : before - o->top_p * sum;
        const double over_min = o->min_p == 0 || i == 0 ? -1 : o->min_p - w[i];
        const bool is_near = (i > 0 && o->top_p < 1 && fabs(over_p) < near * sum) ||
                             (o->min_p > 0 && fabs(over_min) < near);
        is_open[order[i]] = is_near;
        is_left[order[i]] = over_p < 0 && over_min <= 0 && !is_near;
        least += is_left[order[i]];
        most += is_left[order[i]] || (is_near && over_p < near * sum && over_min < near);
    }
    if (kept < least || kept > most || !(is_left[id] || is_open[id])) return false;
    if (least != most) return true; // the draw depends on rounding
    double total = 0, low = 0, high = 0;
    for (int v = 0; v < vocab; v++) {
        if (!is_left[v]) continue;
        const double weight = exp(((double)z[v] - (double)z[order[0]]) / o->temperature);
        total += weight;
        if (v < id) low += weight;
        if (v <= id) high += weight;
    }
    const double processed = ((double)z[id] - (double)z[order[0]]) / o->temperature - log(total);
    return u >= low / total - near && u <= high / total + near &&
           fabs(logprob - (is_raw ? raw : processed)) < 1e-4;
}

// ---- Random rows --------------------------------------------------------------------------------

static void random_rows(void **state) {
    uint64_t random = test_seed(20261201);
    const uint64_t cases = test_number("TESSERA_TEST_CASES", 300);
    (void)state;
    for (uint64_t n = 0; n < cases; n++) {
        const int rows = 1 + test_below(&random, ROWS);
        const int vocab = 1 + test_below(&random, test_below(&random, 2) == 0 ? 40 : VOCAB);
        const int length = test_below(&random, HISTORY), has = test_below(&random, 64);
        const bool is_raw = test_below(&random, 2) == 0, has_few = test_below(&random, 3) == 0;
        for (int i = 0; i < rows * vocab; i++) {
            in.logits[i] = 2 * test_float(&random);
            if (has_few) in.logits[i] = floorf(in.logits[i]);
            in.bias[i] = test_below(&random, 4) == 0 ? -INFINITY : test_float(&random);
        }
        for (int i = 0; i < rows * length; i++) in.history[i] = test_below(&random, vocab + 4) - 2;
        for (int r = 0; r < rows; r++) {
            in.temperature[r] = test_below(&random, 5) == 0 ? 0 : 0.1f + fabsf(test_float(&random));
            in.top_p[r] = fabsf(test_float(&random)) / 4;
            in.min_p[r] = test_below(&random, 2) == 0 ? 0 : fabsf(test_float(&random)) / 20;
            in.repetition[r] = 0.5f + fabsf(test_float(&random)) / 3;
            in.presence[r] = test_float(&random) / 4;
            in.frequency[r] = test_float(&random) / 9;
            in.top_k[r] = test_below(&random, 60) - 2;
            in.seed[r] = (int32_t)test_bits(&random);
            in.offset[r] = (int32_t)test_bits(&random);
        }
        tsr_sample_args args = args_of(&out, rows, vocab);
        args.logprobs_of = is_raw ? TSR_SAMPLE_LOGPROBS_RAW : TSR_SAMPLE_LOGPROBS_PROCESSED;
        args.row_temperature = TSR_TENSOR(in.temperature, TSR_F32, rows);
        args.seed = test_bits(&random);
        args.offset = test_bits(&random);
        if (has & 1) args.history = TSR_TENSOR(in.history, TSR_I32, rows, length);
        if (has & 1) args.row_repetition_penalty = TSR_TENSOR(in.repetition, TSR_F32, rows);
        if (has & 1) args.row_presence_penalty = TSR_TENSOR(in.presence, TSR_F32, rows);
        if (has & 1) args.row_frequency_penalty = TSR_TENSOR(in.frequency, TSR_F32, rows);
        if (has & 2) args.logit_bias = TSR_TENSOR(in.bias, TSR_F32, rows, vocab);
        if (has & 4) args.row_top_k = TSR_TENSOR(in.top_k, TSR_I32, rows);
        if (has & 8) args.row_top_p = TSR_TENSOR(in.top_p, TSR_F32, rows);
        if (has & 16) args.row_min_p = TSR_TENSOR(in.min_p, TSR_F32, rows);
        if (has & 32) args.row_seed = TSR_TENSOR(in.seed, TSR_I32, rows);
        if (has & 32) args.row_offset = TSR_TENSOR(in.offset, TSR_I32, rows);
        assert_ok(tsr_sample(ctx, &args));
        assert_int_equal(out.num_nan_rows[0], 0);
        for (int r = 0; r < rows; r++) {
            static float z[VOCAB];
            const float *x = in.logits + r * vocab;
            const struct options o = {(double)in.temperature[r],
                                      has & 8 ? (double)in.top_p[r] : 1,
                                      has & 16 ? (double)in.min_p[r] : 0,
                                      in.repetition[r],
                                      in.presence[r],
                                      in.frequency[r],
                                      has & 4 ? in.top_k[r] : 0};
            const uint64_t stream = has & 32 ? (uint32_t)in.seed[r] : (uint64_t)r;
            const uint64_t offset = args.offset + (has & 32 ? (uint32_t)in.offset[r] : 0);
            bool is_masked = true;
            memcpy(z, x, (size_t)vocab * sizeof *z);
            if (has & 1) penalise(z, vocab, in.history + r * length, length, &o);
            for (int v = 0; v < vocab; v++) {
                if (has & 2) z[v] += in.bias[r * vocab + v];
                is_masked &= z[v] == -INFINITY;
            }
            const bool is_well =
                is_masked ? out.ids[r] == 0 && out.kept[r] == 0 && out.logprobs[r] == -INFINITY
                          : out.ids[r] >= 0 && out.ids[r] < vocab &&
                                is_right(x, z, vocab, &o, u_of(args.seed, offset, stream), is_raw,
                                         out.ids[r], out.kept[r], (double)out.logprobs[r]);
            if (!is_well)
                fail_msg("case %llu, row %d of %d tokens, has %d: id %d, kept %d, logprob %g",
                         (unsigned long long)n, r, vocab, has, (int)out.ids[r], (int)out.kept[r],
                         (double)out.logprobs[r]);
        }
        assert_true(test_all_bytes_are(out.ids + rows, POISON, GUARD * sizeof *out.ids));
        assert_true(test_all_bytes_are(out.kept + rows, POISON, GUARD * sizeof *out.kept));
        assert_true(test_all_bytes_are(out.logprobs + rows, POISON, GUARD * sizeof(float)));
    }
}

// ---- What is special ----------------------------------------------------------------------------

static void expect(tsr_sample_args args, int id, int kept, const char *what) {
    assert_ok(tsr_sample(ctx, &args));
    if (out.ids[0] != id || (kept >= 0 && out.kept[0] != kept))
        fail_msg("%s: id %d of %d kept, expected %d of %d", what, (int)out.ids[0], (int)out.kept[0],
                 id, kept);
}

static void special_rows(void **state) {
    static const float few[8] = {1, 3, 2, 3, -1, 0, 3, 2};
    (void)state;
    memcpy(in.logits, few, sizeof few);
    expect(args_of(&out, 1, 8), 1, 1, "greedy takes the first of equal ones");
    tsr_sample_args args = args_of(&out, 1, 8);
    args.temperature = 1;
    for (args.offset = 0; args.offset < 50; args.offset++) {
        args.top_k = 1;
        expect(args, 1, 1, "top_k 1");
        args.top_k = 8;
        args.has_top_p = 1;
        expect(args, 1, 1, "top_p 0");
        args.top_p = 1e-20f;
        expect(args, 1, 1, "a tiny top_p");
        args.top_p = 0;
        args.has_top_p = 0;
        args.min_p = 1;
        assert_ok(tsr_sample(ctx, &args));
        assert_true(out.kept[0] == 3 && in.logits[out.ids[0]] == 3);
        args.min_p = 0;
        args.top_k = 2; // of three equal ones the first two
        assert_ok(tsr_sample(ctx, &args));
        assert_true(out.kept[0] == 2 && (out.ids[0] == 1 || out.ids[0] == 3));
        args.top_k = 0;
    }
    for (int i = 0; i < 8; i++) in.logits[i] = 5; // the half of equal ones is exactly four
    args.top_p = 0.5f;
    args.has_top_p = 1;
    assert_ok(tsr_sample(ctx, &args));
    assert_int_equal(out.kept[0], 4);
    args.top_p = 0.6f;
    assert_ok(tsr_sample(ctx, &args));
    assert_int_equal(out.kept[0], 5);
    args.top_p = 0;
    args.has_top_p = 0;
    for (int i = 0; i < 8; i++) in.logits[i] = -INFINITY;
    expect(args, 0, 0, "a masked row");
    assert_true(out.logprobs[0] == -INFINITY && out.num_nan_rows[0] == 0);
    in.logits[6] = -1e30f;
    expect(args, 6, 1, "one token that is not masked");
    in.logits[3] = INFINITY;
    expect(args, 3, 2, "an infinite logit");
    args.logprobs_of = TSR_SAMPLE_LOGPROBS_PROCESSED;
    expect(args, 3, 2, "an infinite logit");
    assert_true(out.logprobs[0] == 0);
    in.logits[5] = NAN;
    expect(args, 0, 0, "a NaN");
    assert_true(isnan(out.logprobs[0]) && out.num_nan_rows[0] == 1);
    args.temperature = 0;
    expect(args, 0, 0, "a NaN in a greedy row");
}

// ---- Frequencies --------------------------------------------------------------------------------

// The chi-square of many draws with fixed seeds: far below what chance makes once in a million.
static void frequencies(void **state) {
    enum { DRAWS = 40000, TOKENS = 20 };
    static int32_t ids[DRAWS];
    static const struct {
        float temperature, top_p, min_p;
        int top_k;
    } cases[] = {{1, 1, 0, 0}, {0.5f, 1, 0, 0}, {3, 0.8f, 0, 0}, {1, 1, 0, 7}, {2, 0.9f, 0.1f, 12}};
    uint64_t random = 5;
    (void)state;
    for (int v = 0; v < TOKENS; v++) in.logits[v] = test_float(&random) / 2;
    for (int c = 0; c < COUNT(cases); c++) {
        double p[TOKENS] = {0}, sum = 0, chi = 0;
        int counts[TOKENS] = {0}, order[TOKENS], kept = TOKENS;
        tsr_sample_args args =
            TSR_SAMPLE_ARGS(.logits = TSR_TENSOR(in.logits, TSR_F32, DRAWS, TOKENS),
                            .ids = TSR_TENSOR(ids, TSR_I32, DRAWS),
                            .temperature = cases[c].temperature, .top_k = cases[c].top_k,
                            .top_p = cases[c].top_p, .has_top_p = 1, .min_p = cases[c].min_p,
                            .seed = 11, .offset = (uint64_t)c);
        args.logits.stride[0] = 0;
        assert_ok(tsr_sample(ctx, &args));
        for (int v = 0; v < TOKENS; v++) order[v] = v;
        sorted_z = in.logits;
        qsort(order, TOKENS, sizeof *order, compare);
        if (cases[c].top_k > 0) kept = cases[c].top_k;
        for (int i = 0; i < kept; i++)
            sum += p[order[i]] =
                exp((double)((in.logits[order[i]] - in.logits[order[0]]) / cases[c].temperature));
        double before = 0, left = 0;
        for (int i = 0; i < kept; i++) {
            const double weight = p[order[i]];
            if (before >= (double)cases[c].top_p * sum || weight < (double)cases[c].min_p)
                p[order[i]] = 0;
            before += weight;
            left += p[order[i]];
        }
        for (int i = 0; i < DRAWS; i++) counts[ids[i]]++;
        for (int v = 0; v < TOKENS; v++) {
            const double expected = p[v] / left * DRAWS;
            if (expected == 0) assert_int_equal(counts[v], 0);
            if (expected > 0) chi += (counts[v] - expected) * (counts[v] - expected) / expected;
        }
        if (chi > 62) fail_msg("case %d: chi-square %g of 19 degrees or fewer", c, chi);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(special_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(frequencies, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
