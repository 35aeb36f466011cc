// SPDX-License-Identifier: Apache-2.0
// Attention with large additive masks, from -1e4 to the lowest number: on whole rows, most keys, everything. Every
// variant, forward and backward, is compared with double precision.
//
// An f32 score of -1e9 has no digits left of q k, and the header's bound then allows any weights between such keys. So
// each row has one of three kinds. FINE: the bound is meaningful. EVEN: every score rounds to one number, and all
// weights are equal. VAGUE: the output only has to lie among the values. In all of them nothing may be NaN, and the
// weights that backward recomputes must sum to 1.
//
// TESSERA_TEST_CASES: the number of cases. TESSERA_TEST_SEED: the seed. TESSERA_TEST_DEVICE=cuda: runs on cuda:0.
// TSR_ISA: runs only that one.
#include "attention_masks_case.h"

enum row_kind { FINE, EVEN, VAGUE };

// The expected values for each row of a head.
static double weights[MOST_HEADS][MOST_Q][MOST_K], sink_weight[MOST_HEADS][MOST_Q],
    error[MOST_HEADS][MOST_Q];
static enum row_kind kinds[MOST_HEADS][MOST_Q];

// ---- What is expected -------------------------------------------------------------------------

static double ulp32(double x) { return ldexp(1, ilogb(fmax(fabs(x), 1e-30)) - 23); }

static void expect_row(int64_t h, int64_t i) {
    const struct test_case *c = &the_case;
    const double u = 0x1p-24, sink = c->has_sinks ? values[SINKS][h] : -INFINITY;
    const int64_t kv = h / c->group, heads_kv = c->heads / c->group;
    const double *q = values[Q] + (i * c->heads + h) * c->dim;
    double z[MOST_K], e[MOST_K], s[MOST_K], top = sink,
                                            e_top = 4 * u * fabs(c->has_sinks ? sink : 0);
    const int64_t end = c->mask == TSR_MASK_CAUSAL ? i + c->len_k - c->len_q + 1 : c->len_k;
    for (int64_t j = 0; j < c->len_k; j++) weights[h][i][j] = 0;
    for (int64_t j = 0; j < end; j++) {
        const double *k = values[K] + (j * heads_kv + kv) * c->dim;
        double dot = 0, magnitude = 0;
        for (int64_t d = 0; d < c->dim; d++) dot += q[d] * k[d], magnitude += fabs(q[d] * k[d]);
        double bias =
            values[BIAS][(h * tensors[BIAS].shape[2] + (c->has_all_rows ? i : 0)) * c->len_k + j];
        s[j] = dot * c->scale;
        z[j] = s[j] + bias;
        e[j] = u * ((2 * sqrt((double)c->dim) + 8) * c->scale * magnitude +
                    4 * (fabs(s[j]) + fabs(bias) + fabs(z[j])));
        if (z[j] > top) top = z[j], e_top = e[j];
    }
    double most_e = 0, most_s = 0, sum = 0, low_bias = INFINITY, high_bias = -INFINITY;
    for (int64_t j = 0; j < end; j++) {
        if (z[j] + 2 * e[j] < top - 2 * e_top - 40) continue;
        weights[h][i][j] = 1;
        most_e = fmax(most_e, e[j]);
        most_s = fmax(most_s, fabs(s[j]));
        low_bias = fmin(low_bias, z[j] - s[j]);
        high_bias = fmax(high_bias, z[j] - s[j]);
    }
    const bool is_sunk = sink >= top - 2 * e_top - 40;
    const double bias = high_bias;
    // In double, z - s differs from the bias by rounding. It counts as one number for all keys within that error.
    kinds[h][i] = most_e <= 0.25 ? FINE
                  : high_bias - low_bias <= 1e-12 * fabs(bias) && !is_sunk &&
                          most_s < ulp32(bias) / 8 && fmod(bias, ulp32(bias)) == 0
                      ? EVEN
                      : VAGUE;
    error[h][i] = kinds[h][i] == FINE ? expm1(4 * most_e) : 0;
    for (int64_t j = 0; j < end; j++) {
        if (kinds[h][i] == FINE) weights[h][i][j] *= exp(z[j] - top);
        sum += weights[h][i][j];
    }
    sink_weight[h][i] = is_sunk ? exp(sink - top) : 0;
    sum += sink_weight[h][i];
    sink_weight[h][i] /= sum;
    for (int64_t j = 0; j < end && sum > 0; j++) weights[h][i][j] /= sum;
}

static double unit_roundoff(void) {
    return the_case.dtype == TSR_F32 ? 0x1p-24 : the_case.dtype == TSR_BF16 ? 0x1p-8 : 0x1p-11;
}

static void check_near(const char *what, const char *variant, double got, double expected,
                       double bound) {
    if (!(fabs(got - expected) <= bound)) fail_case(what, variant, got, expected);
}

static void check_forward(const char *variant) {
    const struct test_case *c = &the_case;
    const double u = 0x1p-24, u_out = unit_roundoff(), u_p = c->dtype == TSR_F32 ? 0 : u_out;
    read_back(OUT, variant);
    read_back(LSE, variant);
    for (int64_t h = 0; h < c->heads; h++)
        for (int64_t i = 0; i < c->len_q; i++) {
            const double rounding = error[h][i] + (48 + 4 * sqrt((double)c->len_k)) * u + u_p;
            for (int64_t d = 0; d < c->dim; d++) {
                double sum = 0, magnitude = 0, low = sink_weight[h][i] > 0 ? 0 : INFINITY,
                       high = -low;
                for (int64_t j = 0; j < c->len_k; j++) {
                    const double w = weights[h][i][j];
                    const double v =
                        values[V][(j * (c->heads / c->group) + h / c->group) * c->dim + d];
                    if (w == 0) continue;
                    sum += w * v;
                    magnitude += w * fabs(v);
                    low = fmin(low, v);
                    high = fmax(high, v);
                }
                if (low > high) low = high = 0;
                const double got = values[OUT][(i * c->heads + h) * c->dim + d];
                const double slack = 4 * u_out * fmax(fabs(low), fabs(high)) + 1e-7;
                if (kinds[h][i] == VAGUE)
                    check_near("out", variant, got, fmax(low, fmin(got, high)), slack);
                else
                    check_near("out", variant, got, sum,
                               rounding * magnitude + u_out * fabs(sum) + 1e-7);
            }
        }
}

// Checks through dv and dout that the weights which backward recomputes sum to 1 minus the sink's weight.
static void check_sums(const char *variant) {
    const struct test_case *c = &the_case;
    const double most = c->dtype == TSR_F32 ? 1e-5 : 2e-2;
    const int64_t heads_kv = c->heads / c->group;
    for (int64_t h = 0; h < c->heads && c->has_sinks; h++)
        for (int64_t i = 0; i < c->len_q; i++)
            if (kinds[h][i] == VAGUE && sink_weight[h][i] > 0)
                return; // the sink's weight is then unknown
    for (int64_t kv = 0; kv < heads_kv; kv++)
        for (int64_t d = 0; d < c->dim; d++) {
            double got = 0, rounding = 1e-7, expected = 0, magnitude = 0;
            for (int64_t j = 0; j < c->len_k; j++) {
                const double x = values[DV][(j * heads_kv + kv) * c->dim + d];
                got += x;
                rounding += fabs(x) * unit_roundoff() + (c->dtype == TSR_F16 ? 0x1p-25 : 0);
            }
            for (int64_t h = kv * c->group; h < (kv + 1) * c->group; h++)
                for (int64_t i = 0; i < c->len_q; i++) {
                    if (values[LSE][h * c->len_q + i] == -INFINITY) continue;
                    const double x = values[DOUT][(i * c->heads + h) * c->dim + d];
                    expected += x * (1 - sink_weight[h][i]);
                    magnitude += fabs(x) * (1 + error[h][i] * sink_weight[h][i] / most);
                }
            check_near("the sum of dv", variant, got, expected, most * magnitude + rounding);
        }
}

struct expected {
    double *sum, *bound;
};
static struct expected expected[NUM_TENSORS]; // DQ to DBIAS
static void add(int t, int64_t n, double x, double bound) {
    expected[t].sum[n] += x;
    expected[t].bound[n] += bound;
}

// Adds one query's share to all expected gradients. If its weights are vague there are no expectations.
static void expect_gradients(int64_t h, int64_t i) {
    const struct test_case *c = &the_case;
    const int64_t heads_kv = c->heads / c->group, kv = h / c->group, dim = c->dim;
    const int64_t row = (i * c->heads + h) * dim;
    const int64_t bias = (h * tensors[BIAS].shape[2] + (c->has_all_rows ? i : 0)) * c->len_k;
    const double off = c->dtype == TSR_F32 ? 2e-5 : 4 * unit_roundoff();
    const double of_weight = kinds[h][i] == VAGUE ? INFINITY : 2 * error[h][i] + off;
    double delta = 0, delta_magnitude = 0;
    for (int64_t d = 0; d < dim; d++) {
        delta += values[DOUT][row + d] * values[OUT][row + d];
        delta_magnitude += fabs(values[DOUT][row + d] * values[OUT][row + d]);
    }
    for (int64_t j = 0; j < c->len_k; j++) {
        const int64_t key = (j * heads_kv + kv) * dim;
        const double w = weights[h][i][j];
        if (w == 0) continue;
        double dp = 0, magnitude = delta_magnitude;
        for (int64_t d = 0; d < dim; d++) {
            dp += values[DOUT][row + d] * values[V][key + d];
            magnitude += fabs(values[DOUT][row + d] * values[V][key + d]);
        }
        const double ds = w * (dp - delta);
        const double bound = magnitude == 0 ? 0 : (of_weight + off) * w * magnitude;
        add(DBIAS, bias + j, ds, bound);
        for (int64_t d = 0; d < dim; d++) {
            const double dout = values[DOUT][row + d], q = values[Q][row + d],
                         k = values[K][key + d];
            if (dout != 0) add(DV, key + d, w * dout, of_weight * w * fabs(dout));
            add(DQ, row + d, c->scale * ds * k, c->scale * bound * fabs(k));
            add(DK, key + d, c->scale * ds * q, c->scale * bound * fabs(q));
        }
    }
}

static void check_backward(const char *variant) {
    const double u_out = unit_roundoff();
    for (int t = DQ; t < NUM_TENSORS; t++) {
        const double u = tensors[t].dtype == TSR_F32 ? 0x1p-22 : 2 * u_out;
        read_back(t, variant);
        for (int64_t n = 0; n < tsr_tensor_numel(&tensors[t]); n++)
            check_near(names[t], variant, values[t][n], expected[t].sum[n],
                       expected[t].bound[n] + u * fabs(expected[t].sum[n]) + 1e-6);
    }
    check_sums(variant);
}

static int run_case(tsr_context *ctx, uint64_t seed) {
    struct test_case *c = &the_case;
    tsr_variant_info info;
    int num_run = 0;
    draw_case(seed);
    lay_out();
    fill();
    for (int64_t h = 0; h < c->heads; h++)
        for (int64_t i = 0; i < c->len_q; i++) expect_row(h, i);
    const bool is_on_card = tsr_context_device(ctx).type == TSR_CUDA;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        const char *op = is_backward ? "attention_backward" : "attention_forward";
        if (is_backward) { // uses out and lse of the default variant
            assert_ok(call(ctx, NULL, false));
            check_forward("the choice");
            for (int t = DQ; t < NUM_TENSORS; t++)
                for (int64_t n = 0; n < tsr_tensor_numel(&tensors[t]); n++)
                    expected[t].sum[n] = expected[t].bound[n] = 0;
            for (int64_t h = 0; h < c->heads; h++)
                for (int64_t i = 0; i < c->len_q; i++) expect_gradients(h, i);
        }
        for (int n = 0; tsr_variant_info_get(op, n, &info) == TSR_OK; n++) {
            if (info.flags & TSR_VARIANT_REFERENCE) continue; // double scores lose no digits
            if (((info.flags & TSR_VARIANT_CUDA) != 0) != is_on_card) continue;
            const int first = is_backward ? DQ : OUT;
            for (int t = first; t < (is_backward ? NUM_TENSORS : DOUT); t++)
                memset(tensors[t].data, 0xff,
                       (size_t)tsr_tensor_numel(&tensors[t]) * tsr_dtype_bytes(tensors[t].dtype));
            tsr_status status = call(ctx, info.name, is_backward);
            if (status == TSR_UNSUPPORTED) continue;
            assert_ok(status);
            (is_backward ? check_backward : check_forward)(info.name);
            num_run++;
        }
    }
    return num_run;
}

static void large_masks(void **state) {
    const char *where = getenv("TESSERA_TEST_DEVICE");
    const bool is_on_card = where != NULL && strcmp(where, "cuda") == 0;
    const int num_cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 40 : 300);
    const uint64_t first = test_number("TESSERA_TEST_SEED", 20261129);
    int num_run = 0;
    (void)state;
    for (int isa = 1; isa < TSR_ISA_COUNT; isa++) {
        tsr_context *ctx;
        const bool is_only = is_on_card || getenv("TSR_ISA") != NULL;
        if (is_only ? isa > 1 : !test_has_isa(isa)) continue;
        tsr_context_options options =
            TSR_CONTEXT_OPTIONS(.isa = is_only ? TSR_ISA_AUTO : (tsr_isa)isa, .num_threads = 2,
                                .tuning_file = "");
        if (is_on_card) options.device = (tsr_device){TSR_CUDA, 0};
        assert_ok(tsr_context_create(&options, &ctx));
        if (is_on_card) assert_ok(tsr_memory_alloc(ctx, MOST_BYTES, (void **)&device));
        for (int n = 0; n < num_cases; n++)
            num_run += run_case(ctx, first + (uint64_t)n * TSR_ISA_COUNT + (uint64_t)isa);
        if (is_on_card) assert_ok(tsr_memory_free(ctx, device));
        tsr_context_destroy(ctx);
    }
    printf("%d cases from seed %llu, %d runs\n", num_cases, (unsigned long long)first, num_run);
    assert_true(num_run > 4 * num_cases);
}

int main(void) {
    host = malloc(MOST_BYTES);
    for (int t = 0; t < NUM_TENSORS; t++) {
        values[t] = malloc(MOST_NUMEL * sizeof(double));
        expected[t].sum = malloc(MOST_NUMEL * sizeof(double));
        expected[t].bound = malloc(MOST_NUMEL * sizeof(double));
        if (values[t] == NULL || expected[t].sum == NULL || expected[t].bound == NULL) return 1;
    }
    if (host == NULL) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_masks)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int t = 0; t < NUM_TENSORS; t++)
        free(values[t]), free(expected[t].sum), free(expected[t].bound);
    free(host);
    return failed;
}
