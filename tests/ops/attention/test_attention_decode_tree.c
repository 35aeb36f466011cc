// SPDX-License-Identifier: Apache-2.0
// A tree of drafts: each draft's result is that of a plain call on the branch from the root to it. What the mask hides may be NaN.
#include "attention_decode_case.h"

static const char *const variants[] = {NULL, "split", "naive"};
static uint8_t tree[BATCH][TOKENS][TOKENS];
static int parents[BATCH][TOKENS]; // -1: a root

// Random trees, another one for each sequence or the same for all.
static void draw_trees(int num, bool is_shared) {
    uint64_t seed = 21;
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < num; t++) {
            float x = test_float(&seed);
            parents[b][t] = (int)floorf((x - floorf(x)) * (float)t) - (t % 5 == 0);
            if (is_shared && b > 0) parents[b][t] = parents[0][t];
        }
    memset(tree, 0, sizeof tree);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < num; i++)
            for (int t = i; t >= 0; t = parents[b][t]) tree[b][i][t] = (uint8_t)(1 + (i + t) % 255);
}

static tsr_tensor mask_of(int num, bool is_shared) {
    tsr_tensor mask = TSR_TENSOR(tree, TSR_U8, BATCH, num, num);
    mask.stride[0] = TOKENS * TOKENS, mask.stride[1] = TOKENS;
    if (!is_shared) return mask;
    mask.ndim = 2;
    for (int i = 0; i < 2; i++)
        mask.shape[i] = mask.shape[i + 1], mask.stride[i] = mask.stride[i + 1];
    return mask;
}

// Runs the branch of draft i of sequence b alone, and compares its last query with what the tree gave.
static void compare_branch(int b, int i) {
    static float k[TOKENS][KV_HEADS][DIM], v[TOKENS][KV_HEADS][DIM_V], q[TOKENS][HEADS][DIM];
    static float out[TOKENS][HEADS][DIM_V], lse[HEADS][TOKENS];
    int depth = 0, at[TOKENS];
    for (int t = i; t >= 0; t = parents[b][t]) at[depth++] = t;
    for (int d = 0; d < depth; d++) {
        int t = at[depth - 1 - d];
        memcpy(k[d], w.k_new[b][t], sizeof k[d]);
        memcpy(v[d], w.v_new[b][t], sizeof v[d]);
        memcpy(q[d], w.q[b][t], sizeof q[d]);
    }
    tsr_attention_decode_args args =
        TSR_ATTENTION_DECODE_ARGS(.mask = TSR_MASK_CAUSAL,
                                  .q = TSR_TENSOR(q, TSR_F32, 1, depth, HEADS, DIM),
                                  .k_new = TSR_TENSOR(k, TSR_F32, 1, depth, KV_HEADS, DIM),
                                  .v_new = TSR_TENSOR(v, TSR_F32, 1, depth, KV_HEADS, DIM_V),
                                  .k_cache =
                                      TSR_TENSOR(w.k[b], TSR_F32, 1, CAPACITY, KV_HEADS, DIM),
                                  .v_cache =
                                      TSR_TENSOR(w.v[b], TSR_F32, 1, CAPACITY, KV_HEADS, DIM_V),
                                  .cache_seqlens = TSR_TENSOR(w.lengths + b, TSR_I32, 1),
                                  .out = TSR_TENSOR(out, TSR_F32, 1, depth, HEADS, DIM_V),
                                  .lse = TSR_TENSOR(lse, TSR_F32, 1, HEADS, depth));
    assert_ok(tsr_attention_decode(ctx, &args));
    for (int h = 0; h < HEADS; h++) {
        for (int c = 0; c < DIM_V; c++)
            if (!(fabsf(out[depth - 1][h][c] - w.out[0][b][i][h][c]) <= 1e-5f))
                fail_msg("draft %d of %d: %g and %g", i, b, (double)out[depth - 1][h][c],
                         (double)w.out[0][b][i][h][c]);
        float got = (&lse[0][0])[h * depth + depth - 1];
        if (!(fabsf(got - w.lse[0][b][h][i]) <= 1e-5f))
            fail_msg("lse of draft %d of %d: %g and %g", i, b, (double)got,
                     (double)w.lse[0][b][h][i]);
    }
}

static void a_draft_is_as_its_branch(void **state) {
    (void)state;
    static const int nums[] = {1, 6, TOKENS};
    for (int v = 0; v < COUNT(variants); v++)
        for (int n = 0; n < COUNT(nums); n++)
            for (int is_shared = 0; is_shared < 2; is_shared++) {
                const int num = nums[n];
                fill_caches(mixed);
                draw_trees(num, is_shared == 1);
                tsr_attention_decode_args args = call_of(0, BATCH, 0, num, 0, false);
                args.cos = args.sin = (tsr_tensor){0};
                args.variant = variants[v];
                args.tree_mask = mask_of(num, is_shared == 1);
                if (v % 2 == 0) args.mask = TSR_MASK_NONE; // the tree alone
                assert_ok(tsr_attention_decode(ctx, &args));
                for (int b = 0; b < BATCH; b++)
                    for (int i = 0; i < num; i++) compare_branch(b, i);
            }
}

// A draft of NaN reaches its own branch and no other one; with softcap, which is finite, too.
static void hidden_drafts_may_be_nan(void **state) {
    (void)state;
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 6; num <= TOKENS; num += TOKENS - 6)
            for (int is_value = 0; is_value < 2; is_value++) {
                fill_caches(mixed);
                draw_trees(num, false);
                float *x = is_value ? &w.v_new[1][2][0][0] : &w.k_new[1][2][0][0], old = *x;
                *x = NAN;
                tsr_attention_decode_args args = call_of(0, BATCH, 0, num, 0, false);
                args.cos = args.sin = (tsr_tensor){0};
                args.variant = variants[v];
                args.softcap = 3;
                args.tree_mask = mask_of(num, false);
                assert_ok(tsr_attention_decode(ctx, &args));
                *x = old;
                for (int b = 0; b < BATCH; b++)
                    for (int i = 0; i < num; i++) {
                        bool is_hit = b == 1 && tree[1][i][2] != 0;
                        assert_int_equal(isnan(w.out[0][b][i][0][0]) != 0, is_hit);
                        assert_true(isfinite(w.out[0][b][i][HEADS - 1][0]));
                    }
            }
}

static void a_draft_that_sees_nothing(void **state) {
    (void)state;
    static const int32_t empty[BATCH] = {0};
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 6; num <= TOKENS; num += TOKENS - 6) {
            fill_caches(empty);
            draw_trees(num, false);
            memset(tree[1][3], 0, sizeof tree[1][3]);
            tsr_attention_decode_args args = call_of(0, BATCH, 0, num, 0, false);
            args.variant = variants[v];
            args.tree_mask = mask_of(num, false);
            assert_ok(tsr_attention_decode(ctx, &args));
            for (int h = 0; h < HEADS; h++) {
                for (int c = 0; c < DIM_V; c++) assert_true(w.out[0][1][3][h][c] == 0);
                assert_true(w.lse[0][1][h][3] == -INFINITY);
                assert_true(isfinite(w.lse[0][1][h][2]));
            }
        }
}

static void masks_that_do_not_fit(void **state) {
    (void)state;
    fill_caches(mixed);
    draw_trees(6, false);
    tsr_attention_decode_args good = call_of(0, BATCH, 0, 6, 0, false), args;
    good.tree_mask = mask_of(6, false);
#define REFUSED(field, value, ...)                                                                 \
    do {                                                                                           \
        args = good;                                                                               \
        args.field = (value);                                                                      \
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",  \
                      __VA_ARGS__);                                                                \
    } while (0)
    REFUSED(tree_mask.dtype, TSR_E4M3, "tree_mask.dtype", "e4m3");
    REFUSED(tree_mask.shape[0], BATCH - 1, "tree_mask", "shape");
    REFUSED(tree_mask.shape[1], 5, "tree_mask", "shape");
    REFUSED(tree_mask.shape[2], 7, "tree_mask", "shape");
    REFUSED(tree_mask.ndim, 1, "tree_mask", "shape");
    REFUSED(tree_mask.data, w.out, "out", "tree_mask");
#undef REFUSED
    static const int32_t offsets[BATCH + 1] = {0, 6, 12, 18};
    args = good;
    tsr_tensor *rows[] = {&args.q, &args.k_new, &args.v_new, &args.out};
    for (int r = 0; r < COUNT(rows); r++) // (total_q, heads, dim)
        *rows[r] = strided(rows[r]->data, 3, (int64_t[]){18, rows[r]->shape[2], rows[r]->shape[3]},
                           (int64_t[]){rows[r]->stride[1], rows[r]->stride[2], 1});
    args.lse = (tsr_tensor){0};
    args.cu_seqlens_q = TSR_TENSOR(offsets, TSR_I32, BATCH + 1);
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "tree_mask",
                  "cu_seqlens_q");
    assert_ok(tsr_attention_decode(ctx, &good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_is_as_its_branch),
        cmocka_unit_test(hidden_drafts_may_be_nan),
        cmocka_unit_test(a_draft_that_sees_nothing),
        cmocka_unit_test(masks_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("attention_decode trees", tests, setup, teardown);
}
