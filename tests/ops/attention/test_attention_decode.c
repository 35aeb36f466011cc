// SPDX-License-Identifier: Apache-2.0
// Properties of attention with a cache that verify and the general tests do not check: tokens one by one equal all at
// once, pages equal one piece, parts merge into the whole, and a sequence does not depend on the others in the batch.
// Refusals are in test_attention_decode_refusals.c.
#include "ops/attention/attention_decode_problem.h"

#include "attention_decode_case.h"

static void run(int batch, int num_batches, int first, int num, int side, bool is_paged) {
    tsr_attention_decode_args args = call_of(batch, num_batches, first, num, side, is_paged);
    assert_ok(tsr_attention_decode(ctx, &args));
}

static void assert_close(const float *a, const float *b, size_t bytes, float bound) {
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        if (!(fabsf(a[i] - b[i]) <= bound))
            fail_msg("element %zu is %g and %g", i, (double)a[i], (double)b[i]);
}

// ---- Equal ways -------------------------------------------------------------------------------

static void pages_are_as_one_piece(void **state) {
    (void)state;
    for (int num = 1; num <= TOKENS; num += TOKENS - 1) {
        fill_caches(mixed);
        run(0, BATCH, 0, num, 0, false);
        run(0, BATCH, 0, num, 1, true);
        for (int b = 0; b < BATCH; b++)
            for (int j = 0; j < mixed[b] + num; j++) {
                int page = w.table[b][j / PAGE];
                assert_memory_equal(w.k[b][j], w.k_pages[page][j % PAGE], sizeof w.k[b][j]);
                assert_memory_equal(w.v[b][j], w.v_pages[page][j % PAGE], sizeof w.v[b][j]);
            }
        // The capacity is the same, so the splits and the bits are the same.
        assert_memory_equal(w.out[0], w.out[1], sizeof w.out[0]);
        assert_memory_equal(w.lse[0], w.lse[1], sizeof w.lse[0]);
    }
}

static void token_by_token_is_as_all_at_once(void **state) {
    (void)state;
    for (int is_paged = 0; is_paged < 2; is_paged++) {
        fill_caches(mixed);
        run(0, BATCH, 0, TOKENS, 0, is_paged == 1);
        fill_caches(mixed);
        for (int t = 0; t < TOKENS; t++) {
            run(0, BATCH, t, 1, 1, is_paged == 1);
            for (int b = 0; b < BATCH; b++) w.lengths[b]++;
        }
        assert_close(&w.out[0][0][0][0][0], &w.out[1][0][0][0][0], sizeof w.out[0], 1e-5f);
        assert_close(&w.lse[0][0][0][0], &w.lse[1][0][0][0], sizeof w.lse[0], 1e-5f);
    }
}

static void company_changes_no_bit(void **state) {
    (void)state;
    memset(w.out, 0, sizeof w.out); // tokens that are not run compare equal
    memset(w.lse, 0, sizeof w.lse);
    for (int is_paged = 0; is_paged < 2; is_paged++) {
        fill_caches(mixed);
        run(0, BATCH, 0, 2, 0, is_paged == 1);
        fill_caches(mixed);
        for (int b = 0; b < BATCH; b++) run(b, 1, 0, 2, 1, is_paged == 1);
        assert_memory_equal(w.out[0], w.out[1], sizeof w.out[0]);
        assert_memory_equal(w.lse[0], w.lse[1], sizeof w.lse[0]);
    }
}

// Windows cut the keys into an older and a newer part of the cache.
static void parts_merge_into_the_whole(void **state) {
    (void)state;
    static float outs[2][BATCH][HEADS][DIM_V], lses[2][BATCH][HEADS], out[BATCH][HEADS][DIM_V];
    static float lse[BATCH][HEADS];
    const int32_t full[BATCH] = {1, 300, CAPACITY};
    fill_caches(full);
    tsr_attention_decode_args args = call_of(0, BATCH, 0, 1, 0, false);
    args.k_new = args.v_new = args.cos = args.sin = (tsr_tensor){0};
    args.out = TSR_TENSOR(out, TSR_F32, BATCH, 1, HEADS, DIM_V);
    args.lse = TSR_TENSOR(lse, TSR_F32, BATCH, HEADS, 1);
    assert_ok(tsr_attention_decode(ctx, &args));
    tsr_attention_decode_args part = args;
    part.out.data = outs[0];
    part.lse.data = lses[0];
    part.has_window_left = 1;
    part.window_left = 99;
    assert_ok(tsr_attention_decode(ctx, &part));
    // The other part: the cache without its last 100 keys. The first sequence is empty.
    part.has_window_left = 0;
    part.window_left = 0;
    for (int b = 0; b < BATCH; b++) w.lengths[b] = full[b] > 100 ? full[b] - 100 : 0;
    part.out.data = outs[1];
    part.lse.data = lses[1];
    assert_ok(tsr_attention_decode(ctx, &part));
    assert_true(lses[1][0][0] == -INFINITY);
    memset(outs[1][0], 0xff, sizeof outs[1][0]); // NaN, which an empty part may contain
    static float merged[BATCH][HEADS][DIM_V], merged_lse[BATCH][HEADS];
    assert_ok(tsr_attention_merge(
        ctx, &TSR_ATTENTION_MERGE_ARGS(.outs = TSR_TENSOR(outs, TSR_F32, 2, BATCH, HEADS, DIM_V),
                                       .lses = TSR_TENSOR(lses, TSR_F32, 2, BATCH, HEADS),
                                       .out = TSR_TENSOR(merged, TSR_F32, BATCH, HEADS, DIM_V),
                                       .lse = TSR_TENSOR(merged_lse, TSR_F32, BATCH, HEADS))));
    assert_close(&out[0][0][0], &merged[0][0][0], sizeof out, 1e-5f);
    assert_close(&lse[0][0], &merged_lse[0][0], sizeof lse, 1e-5f);
}

// ---- Sinks ------------------------------------------------------------------------------------

static void a_sink_of_nan_shows(void **state) {
    (void)state;
    static const char *const variants[] = {"split", "naive"};
    float sinks[HEADS] = {0, NAN, 1, 2, 3, 4};
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 1; num <= TOKENS; num += TOKENS - 1) {
            fill_caches(mixed);
            tsr_attention_decode_args args = call_of(0, BATCH, 0, num, 0, false);
            args.sinks = TSR_TENSOR(sinks, TSR_F32, HEADS);
            args.variant = variants[v];
            assert_ok(tsr_attention_decode(ctx, &args));
            for (int h = 0; h < HEADS; h++) {
                assert_int_equal(isnan(w.out[0][1][0][h][0]) != 0, h == 1);
                assert_int_equal(isnan(w.lse[0][1][h][0]) != 0, h == 1);
            }
        }
}

// ---- Plans on CUDA ----------------------------------------------------------------------------

static struct tsri_plan cuda_plan(int64_t batch, int64_t keys, uint32_t flags) {
    const struct attention_decode_problem p = {.a = {.dtype = TSR_BF16,
                                                     .num_batches = batch,
                                                     .seqlen_q = 1,
                                                     .total_q = 1,
                                                     .num_heads_q = 32,
                                                     .num_heads_kv = 8,
                                                     .head_dim = 128,
                                                     .head_dim_v = 128},
                                               .most_keys = keys,
                                               .capacity = keys,
                                               .page_size = keys,
                                               .num_pages = batch};
    const struct tsri_limits limits = {
        .device = {TSR_CUDA, 0}, .cuda_arch = 90, .num_sms = 132, .flags = flags};
    struct tsri_plan plan = {0};
    assert_true(attention_decode_cuda_serves(&p, &limits));
    attention_decode_cuda_plan(&p, &limits, &plan);
    return plan;
}

// One long sequence fills the GPU, and a short one is not split. Under batch invariance other sequences do not change
// the splits.
static void cuda_splits_fill_the_card(void **state) {
    (void)state;
    assert_true(cuda_plan(1, 32768, 0).num_tasks > 2 * 132);
    assert_int_equal(cuda_plan(1, 100, 0).block_k, 1);
    assert_int_equal(cuda_plan(1, 100, 0).workspace_bytes, 0);
    assert_int_equal(cuda_plan(0, 32768, 0).num_tasks, 0);
    for (int64_t keys = 1; keys < 200000; keys = 3 * keys + 1) {
        int64_t chunks = cuda_plan(1, keys, TSR_BATCH_INVARIANT).block_k;
        for (int64_t batch = 2; batch < 3000; batch *= 3) {
            struct tsri_plan plan = cuda_plan(batch, keys, TSR_BATCH_INVARIANT);
            assert_int_equal(plan.block_k, chunks);
            assert_int_equal(plan.num_tasks, batch * 8 * chunks);
            assert_true(plan.block_k == 1 || plan.workspace_bytes > 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_as_one_piece),
        cmocka_unit_test(token_by_token_is_as_all_at_once),
        cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(parts_merge_into_the_whole),
        cmocka_unit_test(a_sink_of_nan_shows),
        cmocka_unit_test(cuda_splits_fill_the_card),
    };
    return cmocka_run_group_tests_name("attention_decode", tests, setup, teardown);
}
