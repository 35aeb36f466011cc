// SPDX-License-Identifier: Apache-2.0
// Attention with caches of e4m3: it equals attention with caches of f32 that hold the same keys and values; new rows are rounded
// and saturate; scales are checked.
#include "attention_decode_case.h"

static struct {
    uint8_t k[BATCH][CAPACITY][KV_HEADS][DIM], v[BATCH][CAPACITY][KV_HEADS][DIM_V];
    float k_scale[BATCH][KV_HEADS], v_scale[BATCH][KV_HEADS];
} small;

static const char *const variants[] = {NULL, "split", "naive"};

static float value_of(uint8_t code) { return (float)tsr_load(TSR_E4M3, &code, 0); }
static uint8_t code_of(float x) {
    uint8_t code;
    tsr_store(TSR_E4M3, &code, 0, (double)x);
    return code;
}

// Codes up to the given lengths and NaN beyond, also as numbers in the plain caches. dims: of the scales.
static void fill_codes(const int32_t lengths[BATCH], int dims) {
    uint64_t seed = 5;
    fill_caches(lengths);
    memset(&small, 0x7f, sizeof small);
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < KV_HEADS; h++) {
            float k = test_float(&seed), v = test_float(&seed);
            small.k_scale[b][h] = 0.02f + fabsf(k) / 50;
            small.v_scale[b][h] = 0.02f + fabsf(v) / 50;
            if (dims < 2 && b > 0) small.k_scale[b][h] = small.k_scale[0][h];
            if (dims < 2 && b > 0) small.v_scale[b][h] = small.v_scale[0][h];
            if (dims < 1) small.k_scale[b][h] = small.k_scale[0][0];
            if (dims < 1) small.v_scale[b][h] = small.v_scale[0][0];
        }
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < lengths[b]; j++)
            for (int h = 0; h < KV_HEADS; h++) {
                for (int c = 0; c < DIM; c++) {
                    small.k[b][j][h][c] = code_of(20 * w.k[b][j][h][c]);
                    w.k[b][j][h][c] = value_of(small.k[b][j][h][c]) * small.k_scale[b][h];
                }
                for (int c = 0; c < DIM_V; c++) {
                    small.v[b][j][h][c] = code_of(20 * w.v[b][j][h][c]);
                    w.v[b][j][h][c] = value_of(small.v[b][j][h][c]) * small.v_scale[b][h];
                }
            }
}

static tsr_attention_decode_args of_e4m3(const tsr_attention_decode_args *plain, int dims) {
    tsr_attention_decode_args args = *plain;
    args.k_cache = TSR_TENSOR(small.k, TSR_E4M3, BATCH, CAPACITY, KV_HEADS, DIM);
    args.v_cache = TSR_TENSOR(small.v, TSR_E4M3, BATCH, CAPACITY, KV_HEADS, DIM_V);
    args.k_scale = TSR_TENSOR(small.k_scale, TSR_F32, BATCH, KV_HEADS);
    args.v_scale = TSR_TENSOR(small.v_scale, TSR_F32, BATCH, KV_HEADS);
    tsr_tensor *scales[] = {&args.k_scale, &args.v_scale};
    for (int i = 0; i < COUNT(scales) && dims < 2; i++) {
        scales[i]->ndim = dims;
        scales[i]->shape[0] = KV_HEADS;
        scales[i]->stride[0] = 1;
    }
    return args;
}

static void assert_close_results(void) {
    const float *a = &w.out[0][0][0][0][0], *b = &w.out[1][0][0][0][0];
    for (int i = 0; i < (int)(sizeof w.out[0] / sizeof *a); i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-5f))
            fail_msg("out: element %d is %g and %g", i, (double)a[i], (double)b[i]);
    a = &w.lse[0][0][0][0], b = &w.lse[1][0][0][0];
    for (int i = 0; i < (int)(sizeof w.lse[0] / sizeof *a); i++)
        if (!(a[i] == b[i] || fabsf(a[i] - b[i]) <= 1e-5f))
            fail_msg("lse: element %d is %g and %g", i, (double)a[i], (double)b[i]);
}

// The new keys are what the call itself wrote, so that both sides attend to the same numbers.
static void codes_are_as_numbers(void **state) {
    (void)state;
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 1; num <= TOKENS; num += TOKENS - 1)
            for (int dims = 0; dims <= 2; dims++) {
                fill_codes(mixed, dims);
                tsr_attention_decode_args plain = call_of(0, BATCH, 0, num, 0, false),
                                          args = of_e4m3(&plain, dims);
                args.variant = variants[v];
                args.out.data = w.out[1];
                args.lse.data = w.lse[1];
                assert_ok(tsr_attention_decode(ctx, &args));
                for (int b = 0; b < BATCH; b++) {
                    for (int j = mixed[b]; j < mixed[b] + num; j++)
                        for (int h = 0; h < KV_HEADS; h++) {
                            for (int c = 0; c < DIM; c++)
                                w.k[b][j][h][c] =
                                    value_of(small.k[b][j][h][c]) * small.k_scale[b][h];
                            for (int c = 0; c < DIM_V; c++)
                                w.v[b][j][h][c] =
                                    value_of(small.v[b][j][h][c]) * small.v_scale[b][h];
                        }
                    w.lengths[b] += num;
                }
                plain.k_new = plain.v_new = (tsr_tensor){0};
                plain.variant = variants[v];
                assert_ok(tsr_attention_decode(ctx, &plain));
                assert_close_results();
            }
}

// Without a rotation a new row is the quotient in fp32, rounded to nearest even; beyond 448 it is 448, and NaN stays NaN.
static void new_rows_are_rounded(void **state) {
    (void)state;
    static const float extremes[] = {0,     -0.0f,  448,      463, 464,  465,
                                     1e30f, -1e30f, INFINITY, NAN, 1e-9f};
    for (int v = 0; v < COUNT(variants); v++) {
        fill_codes(mixed, 2);
        tsr_attention_decode_args plain = call_of(0, BATCH, 0, TOKENS, 0, false),
                                  args = of_e4m3(&plain, 2);
        static float v_new[BATCH][TOKENS][KV_HEADS][DIM_V];
        memcpy(v_new, w.v_new, sizeof v_new);
        for (int i = 0; i < COUNT(extremes); i++)
            w.v_new[1][TOKENS - 1][1][i] = extremes[i] * small.v_scale[1][1];
        args.variant = variants[v];
        args.cos = args.sin = (tsr_tensor){0};
        assert_ok(tsr_attention_decode(ctx, &args));
        for (int b = 0; b < BATCH; b++)
            for (int t = 0; t < TOKENS; t++)
                for (int h = 0; h < KV_HEADS; h++) {
                    int j = mixed[b] + t;
                    for (int c = 0; c < DIM; c++)
                        assert_int_equal(small.k[b][j][h][c],
                                         code_of(w.k_new[b][t][h][c] / small.k_scale[b][h]));
                    for (int c = 0; c < DIM_V; c++)
                        assert_int_equal(small.v[b][j][h][c],
                                         code_of(w.v_new[b][t][h][c] / small.v_scale[b][h]));
                }
        memcpy(w.v_new, v_new, sizeof v_new);
    }
}

static void scales_that_do_not_fit(void **state) {
    (void)state;
    fill_codes(mixed, 2);
    const tsr_attention_decode_args plain = call_of(0, BATCH, 0, 1, 0, false),
                                    good = of_e4m3(&plain, 2);
    const tsr_tensor absent = {0};
    tsr_attention_decode_args args = plain;
    args.k_scale = good.k_scale, args.v_scale = good.v_scale;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "k_scale", "f32", "e4m3");
    args = good;
    args.k_scale = args.v_scale = absent;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "k_scale", "e4m3");
#define REFUSED(field, value, ...)                                                                 \
    do {                                                                                           \
        args = good;                                                                               \
        args.field = (value);                                                                      \
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",  \
                      __VA_ARGS__);                                                                \
    } while (0)
    REFUSED(v_scale, absent, "v_scale", "k_scale");
    REFUSED(k_scale.dtype, TSR_BF16, "k_scale", "bf16");
    REFUSED(k_scale.shape[1], KV_HEADS + 1, "k_scale", "shape");
    REFUSED(v_scale.shape[0], BATCH - 1, "v_scale", "shape");
    REFUSED(v_scale.data, w.out, "out", "v_scale");
    REFUSED(v_cache, plain.v_cache, "v_cache", "f32", "e4m3");
    REFUSED(k_cache, plain.k_cache, "v_cache", "e4m3");
    REFUSED(k_cache.dtype, TSR_E5M2, "k_cache", "e5m2");
#undef REFUSED
    assert_ok(tsr_attention_decode(ctx, &good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_as_numbers),
        cmocka_unit_test(new_rows_are_rounded),
        cmocka_unit_test(scales_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("attention_decode e4m3", tests, setup, teardown);
}
