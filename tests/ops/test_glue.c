// SPDX-License-Identifier: Apache-2.0
// RoPE, embedding and cross-entropy: known values, bad indices and shapes, in-place calls, inverse rotations, and
// gradients by finite differences. verify covers shapes and layouts.
#include "test_support.h"

#include <math.h>

static int setup(void **state) {
    *state = test_context(2);
    return 0;
}

static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

#define assert_near(got, expected, tolerance)                                                      \
    do {                                                                                           \
        double got_ = (double)(got), expected_ = (double)(expected);                               \
        if (!(fabs(got_ - expected_) <= (tolerance)))                                              \
            fail_msg("%s is %.9g, expected %.9g", #got, got_, expected_);                          \
    } while (0)

// ---- RoPE -------------------------------------------------------------------------------------

static void table_is_accurate_at_position_1e6(void **state) {
    enum { N = 1000001 };
    float *c = malloc(N * sizeof *c), *s = malloc(N * sizeof *s), inv_freq = 1;
    assert_true(c != NULL && s != NULL);
    assert_ok(tsr_rope_table(*state, &TSR_ROPE_TABLE_ARGS(.cos = TSR_TENSOR(c, TSR_F32, N, 1),
                                                          .sin = TSR_TENSOR(s, TSR_F32, N, 1))));
    assert_near(c[1000000], 0.93675212753314475, 1e-7); // cos(10^6), to 17 digits
    assert_near(s[1000000], -0.34999350217129294, 1e-7);
    assert_near(c[0], 1, 0);
    assert_ok(
        tsr_rope_table(*state, &TSR_ROPE_TABLE_ARGS(.inv_freq = TSR_TENSOR(&inv_freq, TSR_F32, 1),
                                                    .cos = TSR_TENSOR(c, TSR_F32, N, 1),
                                                    .sin = TSR_TENSOR(s, TSR_F32, N, 1))));
    assert_near(c[1000000], 0.93675212753314475, 1e-7);
    free(c);
    free(s);
}

// The frequencies of transformers' "llama3" initialisation for head_dim 8, base 500000, factor 8, 1, 4, 8192. Two stay,
// one is interpolated, and one is divided by 8.
static void table_scales_as_llama3(void **state) {
    float c[2][4], s[2][4];
    assert_ok(tsr_rope_table(
        *state, &TSR_ROPE_TABLE_ARGS(.cos = TSR_TENSOR(c, TSR_F32, 2, 4),
                                     .sin = TSR_TENSOR(s, TSR_F32, 2, 4), .base = 500000,
                                     .has_base = 1, .has_scaling = 1, .scaling = {8, 1, 4, 8192})));
    for (int i = 0; i < 4; i++) {
        double f = pow(500000, -i / 4.0), wavelength = 6.283185307179586 / f;
        double smooth = (8192 / wavelength - 1) / 3;
        double expected = smooth >= 1 ? f : smooth <= 0 ? f / 8 : (1 - smooth) * f / 8 + smooth * f;
        assert_near(s[1][i], sin(expected), 1e-7);
    }
    assert_near(s[1][3], sin(pow(500000, -0.75) / 8), 1e-10);
}

static void turns_by_hand(void **state) {
    float x[4] = {1, 2, 3, 4}, y[4], c[2] = {0.6f, 0}, s[2] = {0.8f, 1};
    tsr_rope_forward_args args = TSR_ROPE_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, 1, 1, 4),
                                                       .cos = TSR_TENSOR(c, TSR_F32, 1, 2),
                                                       .sin = TSR_TENSOR(s, TSR_F32, 1, 2),
                                                       .y = TSR_TENSOR(y, TSR_F32, 1, 1, 4));
    assert_ok(tsr_rope_forward(*state, &args)); // pairs (1, 3), (2, 4)
    assert_near(y[0], 1 * 0.6 - 3 * 0.8, 1e-6);
    assert_near(y[1], -4, 1e-6);
    assert_near(y[2], 3 * 0.6 + 1 * 0.8, 1e-6);
    assert_near(y[3], 2, 1e-6);
    args.interleaved = 1;
    assert_ok(tsr_rope_forward(*state, &args)); // pairs (1, 2), (3, 4)
    assert_near(y[0], 1 * 0.6 - 2 * 0.8, 1e-6);
    assert_near(y[1], 2 * 0.6 + 1 * 0.8, 1e-6);
    assert_near(y[2], -4, 1e-6);
    assert_near(y[3], 3, 1e-6);
}

// Backward undoes forward in place, on a view with heads before positions, on every instruction set.
static void backward_is_the_inverse_in_place(void **state) {
    enum { B = 2, S = 5, H = 3, D = 48, R = 40, N = B * S * H * D };
    float x[N], before[N], c[S][R / 2], s[S][R / 2];
    uint64_t seed = 3;
    for (int i = 0; i < N; i++) before[i] = x[i] = test_float(&seed);
    tsr_tensor cos = TSR_TENSOR(c, TSR_F32, S, R / 2), sin = TSR_TENSOR(s, TSR_F32, S, R / 2);
    assert_ok(tsr_rope_table(*state, &TSR_ROPE_TABLE_ARGS(.cos = cos, .sin = sin)));
    tsr_tensor t = TSR_TENSOR(x, TSR_F32, B, S, H, D);
    t.stride[1] = D;
    t.stride[2] = S * D;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        assert_ok(tsr_rope_forward(*state, &TSR_ROPE_FORWARD_ARGS(.x = t, .cos = cos, .sin = sin,
                                                                  .y = t, .rotary_dim = R,
                                                                  .interleaved = interleaved)));
        assert_true(x[S * D - D] != before[S * D - D]); // position 4 is rotated
        assert_ok(tsr_rope_backward(*state, &TSR_ROPE_BACKWARD_ARGS(.dy = t, .cos = cos, .sin = sin,
                                                                    .dx = t, .rotary_dim = R,
                                                                    .interleaved = interleaved)));
        for (int i = 0; i < N; i++) assert_near(x[i], before[i], 3e-6);
    }
}

static void rope_refuses(void **state) {
    float x[64] = {0}, y[64], c[8] = {0}, s[8] = {0};
    int32_t positions[4] = {0, 1, 2, 0};
    memset(y, 0xff, sizeof y);
    const tsr_rope_forward_args good =
        TSR_ROPE_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, 4, 4, 4),
                              .cos = TSR_TENSOR(c, TSR_F32, 4, 2),
                              .sin = TSR_TENSOR(s, TSR_F32, 4, 2),
                              .positions = TSR_TENSOR(positions, TSR_I32, 4),
                              .y = TSR_TENSOR(y, TSR_F32, 4, 4, 4));
    tsr_rope_forward_args bad = good;
    bad.rotary_dim = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "rope_forward",
                  "rotary_dim is 3", "even");
    bad.rotary_dim = 6;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "rotary_dim is 6",
                  "at most 4");
    bad.rotary_dim = 0;
    bad.x.shape[2] = bad.y.shape[2] = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "x has a head_dim of 3",
                  "odd", "at most 2");
    bad.rotary_dim = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "rotary_dim is 3",
                  "at most 2");
    for (int32_t rotary_dim = 0; rotary_dim <= 2; rotary_dim++) {
        bad.rotary_dim = rotary_dim;
        bad.x.shape[2] = bad.y.shape[2] = 1;
        assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "x has a head_dim of 1",
                      "at least 2");
    }
    bad = good;
    bad.cos.shape[1] = 1;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "cos", "(4, 1)", "2");
    bad = good;
    bad.positions.shape[0] = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "positions", "(3,)");
    bad = good;
    bad.y.stride[1] = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "y.stride[1] is 3");
    bad = good;
    bad.y.data = x + 4; // overlaps, but is another view
    bad.y.shape[0] = bad.x.shape[0] = 3;
    bad.positions.shape[0] = 3;
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "y overlaps x");
    bad = good;
    bad.cos.shape[0] = bad.sin.shape[0] = 3;
    bad.positions = (tsr_tensor){0};
    assert_status(tsr_rope_forward(*state, &bad), TSR_INVALID_ARGUMENT, "3 positions");
    positions[2] = 4;
    assert_status(tsr_rope_forward(*state, &good), TSR_INVALID_ARGUMENT, "element 2 of positions",
                  "is 4", "0 to 3");
    positions[2] = -1;
    assert_status(tsr_rope_forward(*state, &good), TSR_INVALID_ARGUMENT, "is -1");
    size_t bytes;
    assert_ok(tsr_rope_forward_prepare(*state, &good, &bytes)); // reads no positions
    assert_true(test_all_bytes_are(y, 0xff, sizeof y));
    positions[2] = 3;
    assert_ok(tsr_rope_forward(*state, &good));
    assert_status(tsr_rope_table(*state, &TSR_ROPE_TABLE_ARGS(.cos = good.cos, .sin = good.sin,
                                                              .base = -1, .has_base = 1)),
                  TSR_INVALID_ARGUMENT, "base is -1");
    assert_status(tsr_rope_table(*state, &TSR_ROPE_TABLE_ARGS(.cos = good.cos, .sin = good.sin,
                                                              .has_scaling = 1)),
                  TSR_INVALID_ARGUMENT, "scaling.factor is 0");
}

// ---- Embedding --------------------------------------------------------------------------------

static void embedding_by_hand(void **state) {
    float weight[3][2] = {{1, 2}, {3, 4}, {5, 6}}, y[2][2][2];
    int32_t ids[2][2] = {{2, 0}, {2, 1}};
    assert_ok(tsr_embedding_forward(
        *state, &TSR_EMBEDDING_FORWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, 2, 2),
                                            .weight = TSR_TENSOR(weight, TSR_F32, 3, 2),
                                            .y = TSR_TENSOR(y, TSR_F32, 2, 2, 2))));
    const float expected[8] = {5, 6, 1, 2, 5, 6, 3, 4};
    assert_memory_equal(y, expected, sizeof y);

    float dweight[4][2] = {{9, 9}, {9, 9}, {9, 9}, {9, 9}};
    tsr_embedding_backward_args args =
        TSR_EMBEDDING_BACKWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, 2, 2),
                                    .dy = TSR_TENSOR(y, TSR_F32, 2, 2, 2),
                                    .dweight = TSR_TENSOR(dweight, TSR_F32, 4, 2));
    assert_ok(tsr_embedding_backward(*state, &args));
    const float sums[8] = {1, 2, 3, 4, 10, 12, 0, 0};
    assert_memory_equal(dweight, sums, sizeof sums);
    args.accumulate = 1;
    args.has_padding_id = 1;
    args.padding_id = 2;
    assert_ok(tsr_embedding_backward(*state, &args));
    const float twice[8] = {2, 4, 6, 8, 10, 12, 0, 0};
    assert_memory_equal(dweight, twice, sizeof twice);
    args.accumulate = 0;
    assert_ok(tsr_embedding_backward(*state, &args));
    const float padded[8] = {1, 2, 3, 4, 0, 0, 0, 0};
    assert_memory_equal(dweight, padded, sizeof padded);
}

static void embedding_refuses(void **state) {
    float weight[6] = {0}, y[4];
    int32_t ids[2] = {0, 3};
    memset(y, 0xff, sizeof y);
    tsr_embedding_forward_args args =
        TSR_EMBEDDING_FORWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, 2),
                                   .weight = TSR_TENSOR(weight, TSR_F32, 3, 2),
                                   .y = TSR_TENSOR(y, TSR_F32, 2, 2));
    assert_status(tsr_embedding_forward(*state, &args), TSR_INVALID_ARGUMENT, "embedding_forward",
                  "element 1 of ids is 3", "0 to 2");
    ids[1] = INT32_MIN;
    assert_status(tsr_embedding_forward(*state, &args), TSR_INVALID_ARGUMENT, "is -2147483648");
    tsr_embedding_backward_args back =
        TSR_EMBEDDING_BACKWARD_ARGS(.ids = args.ids, .dy = TSR_TENSOR(weight, TSR_F32, 2, 2),
                                    .dweight = TSR_TENSOR(y, TSR_F32, 2, 2));
    assert_status(tsr_embedding_backward(*state, &back), TSR_INVALID_ARGUMENT, "element 1 of ids");
    ids[1] = 1;
    back.has_padding_id = 1;
    back.padding_id = 2;
    assert_status(tsr_embedding_backward(*state, &back), TSR_INVALID_ARGUMENT, "padding_id is 2");
    args.y.shape[0] = 3;
    assert_status(tsr_embedding_forward(*state, &args), TSR_INVALID_ARGUMENT, "y has shape (3, 2)");
    args.y.shape[0] = 2;
    args.ids.dtype = TSR_F32;
    assert_status(tsr_embedding_forward(*state, &args), TSR_INVALID_ARGUMENT, "ids.dtype is f32");
    assert_true(test_all_bytes_are(y, 0xff, sizeof y));
}

// One id has most of the tokens: one thread and three give the same bits.
static void embedding_bits_do_not_depend_on_threads(void **state) {
    enum { T = 700, V = 9, H = 515 };
    static float dy[T * H], one[V * H], three[V * H];
    static int32_t ids[T];
    uint64_t seed = 5;
    tsr_context *single = test_context(1), *triple = test_context(3);
    (void)state;
    for (int i = 0; i < T * H; i++) dy[i] = test_float(&seed);
    for (int t = 0; t < T; t++) ids[t] = t % 4 != 0 ? 4 : (int32_t)(test_bits(&seed) % V);
    tsr_embedding_backward_args args =
        TSR_EMBEDDING_BACKWARD_ARGS(.ids = TSR_TENSOR(ids, TSR_I32, T),
                                    .dy = TSR_TENSOR(dy, TSR_F32, T, H),
                                    .dweight = TSR_TENSOR(one, TSR_F32, V, H));
    assert_ok(tsr_embedding_backward(single, &args));
    args.dweight.data = three;
    assert_ok(tsr_embedding_backward(triple, &args));
    assert_memory_equal(one, three, sizeof one);
    tsr_context_destroy(single);
    tsr_context_destroy(triple);
}

// ---- Cross-entropy ----------------------------------------------------------------------------

static void cross_entropy_by_hand(void **state) {
    const float ninf = -INFINITY;
    float logits[6][2] = {{0, 0}, {1, 3}, {ninf, 2}, {ninf, ninf}, {INFINITY, 0}, {7, 7}};
    int32_t targets[6] = {0, 0, 0, 1, 0, -100};
    float loss[6], lse[6];
    assert_ok(tsr_cross_entropy_forward(
        *state, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = TSR_TENSOR(logits, TSR_F32, 6, 2),
                                                .targets = TSR_TENSOR(targets, TSR_I32, 6),
                                                .loss = TSR_TENSOR(loss, TSR_F32, 6),
                                                .lse = TSR_TENSOR(lse, TSR_F32, 6))));
    assert_near(loss[0], 0.69314718, 2e-7);
    assert_near(loss[1], 2.12692801, 3e-7); // log(1 + e^2)
    assert_true(isinf(loss[2]) && loss[2] > 0);
    assert_near(lse[2], 2, 0);
    assert_true(isinf(loss[3]) && loss[3] > 0 && isinf(lse[3]) && lse[3] < 0);
    assert_true(isnan(loss[4]) && isnan(lse[4]));
    assert_near(loss[5], 0, 0);
    assert_near(lse[5], 7.69314718, 5e-7);

    float dloss[6] = {1, 2, 1, 1, 1, 1}, dlogits[6][2];
    assert_ok(tsr_cross_entropy_backward(
        *state, &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = TSR_TENSOR(logits, TSR_F32, 6, 2),
                                                 .targets = TSR_TENSOR(targets, TSR_I32, 6),
                                                 .lse = TSR_TENSOR(lse, TSR_F32, 6),
                                                 .dloss = TSR_TENSOR(dloss, TSR_F32, 6),
                                                 .dlogits = TSR_TENSOR(dlogits, TSR_F32, 6, 2))));
    assert_near(dlogits[0][0], -0.5, 1e-7);
    assert_near(dlogits[1][0], 2 * (0.11920292 - 1), 5e-7);
    assert_near(dlogits[1][1], 2 * 0.88079708, 5e-7);
    assert_near(dlogits[2][0], -1, 0);
    assert_near(dlogits[3][1], 0, 0);
    assert_true(isnan(dlogits[4][0]) && isnan(dlogits[4][1]));
    assert_near(dlogits[5][0], 0, 0);
}

// Compares the gradient of the smoothed loss with central differences, in double by "reference".
static void cross_entropy_gradient_is_the_slope(void **state) {
    enum { V = 7 };
    double x[V], dx[V], loss, lse, one = 1;
    int32_t target = 3;
    uint64_t seed = 11;
    for (int i = 0; i < V; i++) x[i] = (double)test_float(&seed);
    tsr_cross_entropy_forward_args forward =
        TSR_CROSS_ENTROPY_FORWARD_ARGS(.variant = "reference",
                                       .logits = TSR_TENSOR(x, TSR_F64, 1, V),
                                       .targets = TSR_TENSOR(&target, TSR_I32, 1),
                                       .loss = TSR_TENSOR(&loss, TSR_F64, 1),
                                       .lse = TSR_TENSOR(&lse, TSR_F64, 1),
                                       .label_smoothing = 0.25f);
    assert_ok(tsr_cross_entropy_forward(*state, &forward));
    assert_ok(tsr_cross_entropy_backward(
        *state, &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.variant = "reference", .logits = forward.logits,
                                                 .targets = forward.targets, .lse = forward.lse,
                                                 .dloss = TSR_TENSOR(&one, TSR_F64, 1),
                                                 .dlogits = TSR_TENSOR(dx, TSR_F64, 1, V),
                                                 .label_smoothing = 0.25f)));
    for (int i = 0; i < V; i++) {
        double at = x[i], h = 1e-5, above;
        x[i] = at + h;
        assert_ok(tsr_cross_entropy_forward(*state, &forward));
        above = loss;
        x[i] = at - h;
        assert_ok(tsr_cross_entropy_forward(*state, &forward));
        x[i] = at;
        assert_near((above - loss) / (2 * h), dx[i], 1e-8);
    }
}

static void cross_entropy_refuses(void **state) {
    float logits[6] = {0}, loss[2];
    int32_t targets[2] = {0, 3};
    memset(loss, 0xff, sizeof loss);
    tsr_cross_entropy_forward_args args =
        TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = TSR_TENSOR(logits, TSR_F32, 2, 3),
                                       .targets = TSR_TENSOR(targets, TSR_I32, 2),
                                       .loss = TSR_TENSOR(loss, TSR_F32, 2));
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT,
                  "cross_entropy_forward", "element 1 of targets is 3", "0 to 2 or -100");
    targets[1] = -1;
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT, "is -1");
    targets[1] = -100;
    args.has_ignore_index = 1; // ignore_index is 0, so -100 is not ignored
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT, "is -100");
    args.has_ignore_index = 0;
    args.label_smoothing = 1;
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT,
                  "label_smoothing is 1");
    args.label_smoothing = NAN;
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT,
                  "label_smoothing is nan");
    args.label_smoothing = 0;
    args.loss.dtype = TSR_BF16;
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT,
                  "loss.dtype is bf16", "f32");
    args.loss.dtype = TSR_F32;
    args.loss.data = logits;
    assert_status(tsr_cross_entropy_forward(*state, &args), TSR_INVALID_ARGUMENT,
                  "loss overlaps logits");
    assert_true(test_all_bytes_are(loss, 0xff, sizeof loss));
}

// dlogits in place of logits, with the target at every position around vectors and block ends.
static void cross_entropy_in_place(void **state) {
    enum { R = 70, V = 67 };
    static float x[R * V], y[R * V];
    float loss[R], lse[R], dloss[R];
    int32_t targets[R];
    uint64_t seed = 13;
    for (int i = 0; i < R * V; i++) x[i] = test_float(&seed);
    for (int r = 0; r < R; r++) targets[r] = r % V, dloss[r] = test_float(&seed);
    tsr_tensor t = TSR_TENSOR(x, TSR_F32, R, V), ids = TSR_TENSOR(targets, TSR_I32, R);
    tsr_tensor lse_t = TSR_TENSOR(lse, TSR_F32, R);
    assert_ok(tsr_cross_entropy_forward(
        *state, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = t, .targets = ids, .lse = lse_t,
                                                .loss = TSR_TENSOR(loss, TSR_F32, R))));
    tsr_cross_entropy_backward_args args =
        TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = t, .targets = ids, .lse = lse_t,
                                        .dloss = TSR_TENSOR(dloss, TSR_F32, R),
                                        .dlogits = TSR_TENSOR(y, TSR_F32, R, V),
                                        .label_smoothing = 0.1f);
    assert_ok(tsr_cross_entropy_backward(*state, &args));
    args.dlogits = t;
    assert_ok(tsr_cross_entropy_backward(*state, &args));
    assert_memory_equal(x, y, sizeof x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_accurate_at_position_1e6),
        cmocka_unit_test(table_scales_as_llama3),
        cmocka_unit_test(turns_by_hand),
        cmocka_unit_test(backward_is_the_inverse_in_place),
        cmocka_unit_test(rope_refuses),
        cmocka_unit_test(embedding_by_hand),
        cmocka_unit_test(embedding_refuses),
        cmocka_unit_test(embedding_bits_do_not_depend_on_threads),
        cmocka_unit_test(cross_entropy_by_hand),
        cmocka_unit_test(cross_entropy_gradient_is_the_slope),
        cmocka_unit_test(cross_entropy_refuses),
        cmocka_unit_test(cross_entropy_in_place),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
