// SPDX-License-Identifier: Apache-2.0
// Forward with few queries on many keys: every variant is compared with sums in double, and the bits must be the same
// for any number of threads, though keys are cut into runs.
#include "test_support.h"

#include <math.h>
#include <string.h>

enum { HEADS_Q = 4, HEADS_KV = 2, GROUP = HEADS_Q / HEADS_KV, MOST_ROWS = 16, MOST_KEYS = 4300 };
enum { MOST_DIM = 128, GUARD = 64 };

struct shape {
    int64_t batch, seqlen_q, seqlen_k, dim;
    tsr_mask mask;
    int64_t window_left; // 0: none
    bool has_sinks, has_lengths;
};

static const struct shape shapes[] = {
    {1, 1, 4300, 64, TSR_MASK_CAUSAL, 0, false, false},
    {1, 4, 2600, 128, TSR_MASK_CAUSAL, 0, true, false},
    {2, 7, 2111, 128, TSR_MASK_NONE, 0, false, true},
    {1, 11, 4300, 64, TSR_MASK_CAUSAL, 700, true, false},
    {1, 16, 3000, 80, TSR_MASK_NONE, 0, true, true},
    {1, 9, 3333, 64, TSR_MASK_CAUSAL, 0, false, false},
};
static const char *const variants[] = {NULL, "tuned", "few", "avx512_bf16", "amx_bf16"};
static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

static char q[2 * MOST_ROWS * HEADS_Q * MOST_DIM * 4], k[2 * MOST_KEYS * HEADS_KV * MOST_DIM * 4],
    v[2 * MOST_KEYS * HEADS_KV * MOST_DIM * 4];
static float sinks[HEADS_Q] = {0.5f, -2, 9, 0};
static int32_t lengths[2];
struct result {
    char out[2 * MOST_ROWS * HEADS_Q * MOST_DIM * 4 + GUARD];
    float lse[2 * HEADS_Q * MOST_ROWS];
};
static struct result first, again;
static double exact[2 * MOST_ROWS * HEADS_Q * MOST_DIM], exact_lse[2 * HEADS_Q * MOST_ROWS];

static int64_t length_of(const struct shape *s, int64_t b) {
    return s->has_lengths ? lengths[b] : s->seqlen_k;
}

// Fills the inputs, with NaN beyond each sequence's length.
static void fill(const struct shape *s, tsr_dtype dtype) {
    uint64_t seed = 11;
    lengths[0] = (int32_t)(s->seqlen_k - 130), lengths[1] = (int32_t)(s->seqlen_k / 3);
    for (int64_t i = 0; i < s->batch * s->seqlen_q * HEADS_Q * s->dim; i++)
        tsr_store(dtype, q, i, (double)(test_bits(&seed) % 2001) / 500 - 2);
    for (int64_t i = 0; i < s->batch * s->seqlen_k * HEADS_KV * s->dim; i++) {
        int64_t row = i / (HEADS_KV * s->dim);
        bool is_hidden = row % s->seqlen_k >= length_of(s, row / s->seqlen_k);
        tsr_store(dtype, k, i,
                  is_hidden ? (double)NAN : (double)(test_bits(&seed) % 2001) / 1000 - 1);
        tsr_store(dtype, v, i,
                  is_hidden ? (double)NAN : (double)(test_bits(&seed) % 2001) / 1000 - 1);
    }
}

static void attend_in_double(const struct shape *s, tsr_dtype dtype) {
    static double p[MOST_KEYS];
    for (int64_t row = 0; row < s->batch * s->seqlen_q * HEADS_Q; row++) {
        int64_t b = row / HEADS_Q / s->seqlen_q, i = row / HEADS_Q % s->seqlen_q, h = row % HEADS_Q;
        int64_t len = length_of(s, b), diagonal = i + len - s->seqlen_q, begin = 0, end = len;
        if (s->mask == TSR_MASK_CAUSAL) end = diagonal + 1 < end ? diagonal + 1 : end;
        if (s->window_left > 0 && diagonal > s->window_left) begin = diagonal - s->window_left;
        double max = s->has_sinks ? (double)sinks[h] : -(double)INFINITY, sum = 0;
        for (int64_t j = begin; j < end; j++) {
            int64_t key = ((b * s->seqlen_k + j) * HEADS_KV + h / GROUP) * s->dim;
            p[j] = 0;
            for (int64_t d = 0; d < s->dim; d++)
                p[j] += tsr_load(dtype, q, row * s->dim + d) * tsr_load(dtype, k, key + d);
            p[j] /= sqrt((double)s->dim);
            max = fmax(max, p[j]);
        }
        if (s->has_sinks) sum = exp((double)sinks[h] - max);
        double *o = exact + row * s->dim;
        memset(o, 0, (size_t)s->dim * sizeof *o);
        for (int64_t j = begin; j < end; j++) {
            int64_t value = ((b * s->seqlen_k + j) * HEADS_KV + h / GROUP) * s->dim;
            double weight = exp(p[j] - max);
            sum += weight;
            for (int64_t d = 0; d < s->dim; d++) o[d] += weight * tsr_load(dtype, v, value + d);
        }
        for (int64_t d = 0; d < s->dim; d++) o[d] /= sum;
        exact_lse[(b * HEADS_Q + h) * s->seqlen_q + i] = max + log(sum);
    }
}

// A caller's parallel_for that runs the tasks one by one, the last first.
static void run_backwards(void *user, int num_tasks, void (*task)(void *arg, int index),
                          void *arg) {
    (void)user;
    while (num_tasks-- > 0) task(arg, num_tasks);
}

static tsr_status run(const struct shape *s, tsr_dtype dtype, tsr_isa isa, const char *variant,
                      int threads, tsr_parallel_for parallel_for, struct result *r) {
    tsr_context *ctx;
    assert_ok(tsr_context_create(
        &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = threads, .parallel_for = parallel_for),
        &ctx));
    memset(r, 0x7f, sizeof *r);
#define QUERIES(data) TSR_TENSOR(data, dtype, s->batch, s->seqlen_q, HEADS_Q, s->dim)
#define KEYS(data) TSR_TENSOR(data, dtype, s->batch, s->seqlen_k, HEADS_KV, s->dim)
    tsr_attention_forward_args args =
        TSR_ATTENTION_FORWARD_ARGS(.q = QUERIES(q), .k = KEYS(k), .v = KEYS(v),
                                   .out = QUERIES(r->out),
                                   .lse =
                                       TSR_TENSOR(r->lse, TSR_F32, s->batch, HEADS_Q, s->seqlen_q),
                                   .mask = s->mask, .variant = variant,
                                   .has_window_left = s->window_left > 0,
                                   .window_left = s->window_left);
    if (s->has_sinks) args.sinks = TSR_TENSOR(sinks, TSR_F32, HEADS_Q);
    if (s->has_lengths) args.seqused_k = TSR_TENSOR(lengths, TSR_I32, s->batch);
    tsr_status status = tsr_attention_forward(ctx, &args);
    tsr_context_destroy(ctx);
    return status;
}

static void compare(const struct shape *s, tsr_dtype dtype, const char *what) {
    int64_t numel = s->batch * s->seqlen_q * HEADS_Q * s->dim;
    // Weights and results have 16 bits. Outputs are about 0.05.
    double bound = dtype == TSR_F32 ? 2e-6 : dtype == TSR_F16 ? 3e-4 : 2e-3;
    for (int64_t i = 0; i < numel; i++)
        if (!(fabs(tsr_load(dtype, first.out, i) - exact[i]) <= bound))
            fail_msg("%s: out[%d] is %g, expected %g", what, (int)i, tsr_load(dtype, first.out, i),
                     exact[i]);
    for (int64_t i = 0; i < s->batch * HEADS_Q * s->seqlen_q; i++)
        if (!(fabs((double)first.lse[i] - exact_lse[i]) <= 1e-5))
            fail_msg("%s: lse[%d] is %.9g, expected %.9g", what, (int)i, (double)first.lse[i],
                     exact_lse[i]);
    for (size_t i = (size_t)numel * tsr_dtype_bytes(dtype); i < sizeof first.out; i++)
        assert_int_equal(first.out[i], 0x7f);
}

static void few_queries_on_many_keys(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 7, 5};
    enum { ISAS = TSR_ISA_COUNT - 1, VARIANTS = COUNT(variants), IN_TURN = COUNT(threads) - 1 };
    int num_runs = 0;
    for (int i = 0; i < COUNT(shapes) * COUNT(dtypes) * ISAS * VARIANTS; i++) {
        const struct shape *s = &shapes[i / VARIANTS / ISAS / COUNT(dtypes)];
        tsr_dtype dtype = dtypes[i / VARIANTS / ISAS % COUNT(dtypes)];
        tsr_isa isa = (tsr_isa)(TSR_ISA_AUTO + 1 + i / VARIANTS % ISAS);
        const char *variant = variants[i % VARIANTS];
        if (i % (VARIANTS * ISAS) == 0) {
            fill(s, dtype);
            attend_in_double(s, dtype);
        }
        if (!test_has_isa(isa)) continue;
        if (isa == TSR_ISA_SCALAR && (TEST_IS_SLOW || variant != NULL)) continue;
        tsr_status status = run(s, dtype, isa, variant, threads[0], NULL, &first);
        if (status == TSR_UNSUPPORTED) continue;
        char what[200];
        snprintf(what, sizeof what, "%d queries, %d keys of %s, %s, %s", (int)s->seqlen_q,
                 (int)s->seqlen_k, tsr_dtype_name(dtype), tsr_isa_name(isa),
                 variant != NULL ? variant : "default");
        assert_ok(status);
        compare(s, dtype, what);
        for (int t = TEST_IS_SLOW ? IN_TURN - 1 : 1; t < COUNT(threads); t++) {
            assert_ok(run(s, dtype, isa, variant, threads[t], t == IN_TURN ? run_backwards : NULL,
                          &again));
            if (memcmp(&first, &again, sizeof first) != 0)
                fail_msg("%s: other bits with %d threads%s", what, threads[t],
                         t == IN_TURN ? " in turn" : "");
        }
        num_runs++;
    }
    assert_true(num_runs >= COUNT(shapes) * COUNT(dtypes));
}

// A NaN in a value reaches the output under any weight, even if the weight rounds to 0 in fp32. Here the last key, in
// another run of keys, is e^800 times heavier.
static void nan_in_a_value_of_no_weight(void **state) {
    (void)state;
    enum { KEYS_LONG = 4096, DIM = 64, NAN_KEY = 10, NAN_DIM = 3, ROWS_LONG = 9 };
    for (int i = 0; i < 2 * COUNT(variants) * (TSR_ISA_COUNT - 1); i++) {
        tsr_isa isa = (tsr_isa)(TSR_ISA_AUTO + 1 + i / (2 * COUNT(variants)));
        tsr_dtype dtype = i % 2 ? TSR_BF16 : TSR_F32;
        struct shape s = {1,    i / 2 % 2 ? ROWS_LONG : 1, KEYS_LONG, DIM, TSR_MASK_NONE, 0, false,
                          false};
        if (!test_has_isa(isa) || (TEST_IS_SLOW && isa == TSR_ISA_SCALAR)) continue;
        fill(&s, dtype);
        for (int64_t j = 0; j < s.seqlen_q * HEADS_Q * DIM; j++) tsr_store(dtype, q, j, 1);
        for (int64_t j = 0; j < KEYS_LONG * HEADS_KV * DIM; j++)
            tsr_store(dtype, k, j, j / (HEADS_KV * DIM) == KEYS_LONG - 1 ? 100 : 0);
        for (int h = 0; h < HEADS_KV; h++)
            tsr_store(dtype, v, (NAN_KEY * HEADS_KV + h) * DIM + NAN_DIM, (double)NAN);
        tsr_status status = run(&s, dtype, isa, variants[i / 2 % COUNT(variants)], 3, NULL, &first);
        if (status == TSR_UNSUPPORTED) continue;
        assert_ok(status);
        for (int64_t j = 0; j < s.seqlen_q * HEADS_Q * DIM; j++) {
            int64_t of_key = (KEYS_LONG - 1) * HEADS_KV + j / DIM % HEADS_Q / GROUP;
            double value = tsr_load(dtype, v, of_key * DIM + j % DIM),
                   got = tsr_load(dtype, first.out, j);
            if (j % DIM == NAN_DIM ? !isnan(got) : !(fabs(got - value) <= 1e-6))
                fail_msg("%d queries, %s, %s: out[%d] is %g, expected %g", (int)s.seqlen_q,
                         tsr_dtype_name(dtype), tsr_isa_name(isa), (int)j, got,
                         j % DIM == NAN_DIM ? (double)NAN : value);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_queries_on_many_keys),
                                       cmocka_unit_test(nan_in_a_value_of_no_weight)};
    return cmocka_run_group_tests_name("attention_long", tests, NULL, NULL);
}
