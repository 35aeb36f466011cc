// SPDX-License-Identifier: Apache-2.0
// Invalid indices in a real GPU's memory. Each affects only its own row or pairs, and no later call.
#include <math.h>

#include "cuda_case.h"

enum { TOKENS = 400, VOCAB = 37, HIDDEN = 72, HEADS = 3, DIM = 20, TURNING = 16, POSITIONS = 50 };

static const int32_t nowhere[] = {-1, VOCAB, INT32_MAX, INT32_MIN, POSITIONS, 1 << 20};

static bool is_bad(int64_t t) { return t % 11 == 5; }
static int32_t index_of(int64_t t, int32_t limit) {
    int32_t bad = nowhere[t / 11 % COUNT(nowhere)];
    if (is_bad(t)) return bad < 0 || bad >= limit ? bad : limit;
    return (int32_t)(t % 3 == 0 ? 7 : t * 5 % limit); // one index has many rows
}

static tsr_context *ctx;
static void *held[16];
static int num_held;

// Copies data to the device.
static void *put(const void *data, size_t bytes) {
    void *copy;
    assert_ok(tsr_memory_alloc(ctx, bytes, &copy));
    assert_ok(tsr_memory_copy(ctx, copy, data, bytes));
    return held[num_held++] = copy;
}

static void get(void *to, const void *from, size_t bytes) {
    assert_ok(tsr_memory_copy(ctx, to, from, bytes));
    assert_ok(tsr_context_synchronize(ctx));
}

#define GPU(data, dtype, ...) on_cuda(TSR_TENSOR(data, dtype, __VA_ARGS__))

static int setup(void **state) {
    (void)state;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    while (num_held > 0) assert_ok(tsr_memory_free(ctx, held[--num_held]));
    tsr_context_destroy(ctx);
    return 0;
}

static void fill(float *x, int count) {
    uint64_t random = 11;
    for (int i = 0; i < count; i++) x[i] = test_float(&random);
}

static void ids_of_an_embedding(void **state) {
    (void)state;
    static float weight[VOCAB][HIDDEN], y[TOKENS][HIDDEN], dweight[VOCAB][HIDDEN];
    static double sums[VOCAB][HIDDEN];
    static int32_t ids[TOKENS];
    fill(weight[0], VOCAB * HIDDEN);
    for (int t = 0; t < TOKENS; t++) ids[t] = index_of(t, VOCAB);
    const tsr_tensor on_ids = GPU(put(ids, sizeof ids), TSR_I32, TOKENS),
                     on_y = GPU(put(y, sizeof y), TSR_F32, TOKENS, HIDDEN),
                     on_weight = GPU(put(weight, sizeof weight), TSR_F32, VOCAB, HIDDEN),
                     on_dweight = GPU(put(dweight, sizeof dweight), TSR_F32, VOCAB, HIDDEN);
    assert_ok(tsr_embedding_forward(
        ctx, &TSR_EMBEDDING_FORWARD_ARGS(.ids = on_ids, .weight = on_weight, .y = on_y)));
    get(y, on_y.data, sizeof y);
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < HIDDEN; c++) {
            assert_int_equal(isnan(y[t][c]) != 0, is_bad(t));
            if (is_bad(t)) continue;
            assert_same_number(y[t][c], weight[ids[t]][c]);
            sums[ids[t]][c] += (double)y[t][c];
        }
    for (int repeat = 0; repeat < 2; repeat++) {
        assert_ok(tsr_embedding_backward(
            ctx, &TSR_EMBEDDING_BACKWARD_ARGS(.ids = on_ids, .dy = on_y, .dweight = on_dweight)));
        get(dweight, on_dweight.data, sizeof dweight);
        for (int v = 0; v < VOCAB; v++)
            for (int c = 0; c < HIDDEN; c++)
                assert_true(fabs((double)dweight[v][c] - sums[v][c]) < 1e-3);
    }
}

static void positions_of_rope(void **state) {
    (void)state;
    static float x[TOKENS][HEADS][DIM], y[TOKENS][HEADS][DIM], table[POSITIONS][TURNING / 2];
    static int32_t positions[TOKENS];
    fill(x[0][0], TOKENS * HEADS * DIM);
    fill(table[0], POSITIONS * TURNING / 2);
    for (int t = 0; t < TOKENS; t++) positions[t] = index_of(t, POSITIONS);
    const tsr_tensor on_x = GPU(put(x, sizeof x), TSR_F32, TOKENS, HEADS, DIM),
                     on_y = GPU(put(y, sizeof y), TSR_F32, TOKENS, HEADS, DIM),
                     on_table = GPU(put(table, sizeof table), TSR_F32, POSITIONS, TURNING / 2);
    const tsr_rope_forward_args args =
        TSR_ROPE_FORWARD_ARGS(.x = on_x, .y = on_y, .cos = on_table, .sin = on_table,
                              .rotary_dim = TURNING,
                              .positions = GPU(put(positions, sizeof positions), TSR_I32, TOKENS));
    assert_ok(tsr_rope_forward(ctx, &args));
    get(y, on_y.data, sizeof y);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM; c++) {
                assert_int_equal(isnan(y[t][h][c]) != 0, is_bad(t) && c < TURNING);
                if (c >= TURNING) assert_same_number(y[t][h][c], x[t][h][c]);
            }
}

static void targets_of_cross_entropy(void **state) {
    (void)state;
    static float logits[TOKENS][VOCAB], dlogits[TOKENS][VOCAB], loss[TOKENS], ones[TOKENS];
    static int32_t targets[TOKENS];
    fill(logits[0], TOKENS * VOCAB);
    for (int t = 0; t < TOKENS; t++) {
        targets[t] = t % 7 == 0 ? -100 : index_of(t, VOCAB);
        ones[t] = 1;
    }
    const tsr_tensor on_logits = GPU(put(logits, sizeof logits), TSR_F32, TOKENS, VOCAB),
                     on_targets = GPU(put(targets, sizeof targets), TSR_I32, TOKENS),
                     on_loss = GPU(put(loss, sizeof loss), TSR_F32, TOKENS),
                     on_lse = GPU(put(loss, sizeof loss), TSR_F32, TOKENS);
    assert_ok(tsr_cross_entropy_forward(
        ctx, &TSR_CROSS_ENTROPY_FORWARD_ARGS(.logits = on_logits, .targets = on_targets,
                                             .loss = on_loss, .lse = on_lse)));
    assert_ok(tsr_cross_entropy_backward(
        ctx,
        &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = on_logits, .targets = on_targets, .lse = on_lse,
                                         .dlogits = on_logits,
                                         .dloss = GPU(put(ones, sizeof ones), TSR_F32, TOKENS))));
    get(loss, on_loss.data, sizeof loss);
    get(dlogits, on_logits.data, sizeof dlogits);
    for (int t = 0; t < TOKENS; t++) {
        bool is_ignored = targets[t] == -100, is_nan = is_bad(t) && !is_ignored;
        assert_int_equal(isnan(loss[t]) != 0, is_nan);
        if (is_ignored) assert_same_number(loss[t], 0);
        for (int c = 0; c < VOCAB; c++) {
            assert_int_equal(isnan(dlogits[t][c]) != 0, is_nan);
            if (is_ignored) assert_same_number(dlogits[t][c], 0);
        }
    }
}

// Such a row counts as zeros. Without an activation the CPU has the same bits.
static void list_of_quantize(void **state) {
    enum { BLOCKS = (HIDDEN + 127) / 128 };
    static float x[VOCAB][HIDDEN], scales[TOKENS][BLOCKS], expected_scales[TOKENS][BLOCKS];
    static uint8_t y[TOKENS][HIDDEN], expected[TOKENS][HIDDEN];
    static int32_t list[TOKENS];
    tsr_context *cpu = test_context(1);
    (void)state;
    fill(x[0], VOCAB * HIDDEN);
    for (int t = 0; t < TOKENS; t++) list[t] = index_of(t, VOCAB);
    const tsr_tensor on_y = GPU(put(y, sizeof y), TSR_E4M3, TOKENS, HIDDEN),
                     on_scales = GPU(put(scales, sizeof scales), TSR_F32, TOKENS, BLOCKS);
    tsr_quantize_args args =
        TSR_QUANTIZE_ARGS(.x = GPU(put(x, sizeof x), TSR_F32, VOCAB, HIDDEN),
                          .x_rows = GPU(put(list, sizeof list), TSR_I32, TOKENS), .y = on_y,
                          .y_scale = on_scales);
    assert_ok(tsr_quantize(ctx, &args));
    get(y, on_y.data, sizeof y);
    get(scales, on_scales.data, sizeof scales);
    for (int t = 0; t < TOKENS; t++)
        if (is_bad(t)) list[t] = -1;
    args = TSR_QUANTIZE_ARGS(.x = TSR_TENSOR(x, TSR_F32, VOCAB, HIDDEN),
                             .x_rows = TSR_TENSOR(list, TSR_I32, TOKENS),
                             .y = TSR_TENSOR(expected, TSR_E4M3, TOKENS, HIDDEN),
                             .y_scale = TSR_TENSOR(expected_scales, TSR_F32, TOKENS, BLOCKS));
    assert_ok(tsr_quantize(cpu, &args));
    assert_memory_equal(y, expected, sizeof y);
    assert_memory_equal(scales, expected_scales, sizeof scales);
    tsr_context_destroy(cpu);
}

int main(void) {
    int skip = cuda_case_skip(0);
    if (skip != 0) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ids_of_an_embedding, setup, teardown),
        cmocka_unit_test_setup_teardown(positions_of_rope, setup, teardown),
        cmocka_unit_test_setup_teardown(targets_of_cross_entropy, setup, teardown),
        cmocka_unit_test_setup_teardown(list_of_quantize, setup, teardown),
    };
    return cmocka_run_group_tests_name("cuda indices", tests, NULL, NULL);
}
