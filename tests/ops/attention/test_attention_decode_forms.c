// SPDX-License-Identifier: Apache-2.0
// The forms of a cache and of its keys that attention with a cache takes: each has the bits of a plain call on the same keys, and
// bad metadata is refused with place and value before anything is written.
#include "attention_decode_case.h"

static const char *const variants[] = {NULL, "split", "naive"};

static void run(tsr_attention_decode_args args, const char *variant, int side) {
    args.variant = variant;
    args.out.data = w.out[side];
    args.lse.data = w.lse[side];
    assert_ok(tsr_attention_decode(ctx, &args));
}

static void assert_same_results(void) {
    assert_memory_equal(w.out[0], w.out[1], sizeof w.out[0]);
    assert_memory_equal(w.lse[0], w.lse[1], sizeof w.lse[0]);
}

static void assert_refused(tsr_attention_decode_args args, const char *place, const char *value) {
    size_t bytes;
    for (int v = 0; v < COUNT(variants); v++) {
        args.variant = variants[v];
        memset(w.out, 0x55, sizeof w.out);
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",
                      place, value);
        assert_true(test_all_bytes_are(w.out, 0x55, sizeof w.out));
        assert_true(isnan(w.k[0][w.lengths[0]][0][0])); // nothing was appended
    }
    args.variant = NULL;
    assert_ok(tsr_attention_decode_prepare(ctx, &args, &bytes)); // does not look at metadata
}

// ---- Slots ------------------------------------------------------------------------------------

enum { SLOTS = 5 };
static struct {
    float k[SLOTS][CAPACITY][KV_HEADS][DIM], v[SLOTS][CAPACITY][KV_HEADS][DIM_V];
    int32_t of[BATCH];
} slots;

// The sequences' caches in other slots; the rest is NaN.
static tsr_attention_decode_args in_slots(const tsr_attention_decode_args *plain,
                                          const int32_t of[BATCH]) {
    tsr_attention_decode_args args = *plain;
    memset(&slots, 0xff, sizeof slots);
    memcpy(slots.of, of, sizeof slots.of);
    for (int b = 0; b < BATCH; b++)
        if (of[b] >= 0 && of[b] < SLOTS) {
            memcpy(slots.k[of[b]], w.k[b], sizeof w.k[b]);
            memcpy(slots.v[of[b]], w.v[b], sizeof w.v[b]);
        }
    args.k_cache = TSR_TENSOR(slots.k, TSR_F32, SLOTS, CAPACITY, KV_HEADS, DIM);
    args.v_cache = TSR_TENSOR(slots.v, TSR_F32, SLOTS, CAPACITY, KV_HEADS, DIM_V);
    args.cache_batch_idx = TSR_TENSOR(slots.of, TSR_I32, BATCH);
    return args;
}

static void slots_are_as_one_piece(void **state) {
    (void)state;
    static const int32_t of[BATCH] = {4, 0, 2};
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 1; num <= TOKENS; num += TOKENS - 1) {
            fill_caches(mixed);
            const tsr_attention_decode_args plain = call_of(0, BATCH, 0, num, 0, false),
                                            args = in_slots(&plain, of);
            run(plain, variants[v], 0);
            run(args, variants[v], 1);
            assert_same_results();
            for (int b = 0; b < BATCH; b++) {
                assert_memory_equal(w.k[b], slots.k[of[b]], sizeof w.k[b]);
                assert_memory_equal(w.v[b], slots.v[of[b]], sizeof w.v[b]);
            }
            for (int s = 1; s < SLOTS; s += 2) { // slots of no sequence
                assert_true(test_all_bytes_are(slots.k[s], 0xff, sizeof slots.k[s]));
                assert_true(test_all_bytes_are(slots.v[s], 0xff, sizeof slots.v[s]));
            }
        }
}

// Sequences may share a slot to which nothing is appended: a prefix that they have in common.
static void slots_may_be_shared(void **state) {
    (void)state;
    static const int32_t lengths[BATCH] = {300, 200, 9}, of[BATCH] = {3, 3, 3};
    fill_caches(lengths);
    for (int b = 1; b < BATCH; b++) {
        memcpy(w.k[b], w.k[0], sizeof w.k[b]);
        memcpy(w.v[b], w.v[0], sizeof w.v[b]);
    }
    tsr_attention_decode_args plain = call_of(0, BATCH, 0, 2, 0, false);
    plain.k_new = plain.v_new = (tsr_tensor){0};
    for (int v = 0; v < COUNT(variants); v++) {
        run(plain, variants[v], 0);
        run(in_slots(&plain, of), variants[v], 1);
        assert_same_results();
    }
}

static void slots_that_do_not_exist(void **state) {
    (void)state;
    static const int32_t bad[] = {-1, SLOTS, INT32_MAX, INT32_MIN};
    fill_caches(mixed);
    const tsr_attention_decode_args plain = call_of(0, BATCH, 0, 1, 0, false);
    for (int i = 0; i < COUNT(bad); i++) {
        const int32_t of[BATCH] = {0, 1, bad[i]};
        char value[32];
        (void)snprintf(value, sizeof value, "is %d, expected 0 to 4", bad[i]);
        assert_refused(in_slots(&plain, of), "cache_batch_idx[2]", value);
        assert_true(isnan(slots.k[0][0][0][0]));
    }
}

static void slots_that_do_not_fit(void **state) {
    (void)state;
    static const int32_t of[BATCH] = {4, 0, 2};
    fill_caches(mixed);
    const tsr_attention_decode_args plain = call_of(0, BATCH, 0, 1, 0, false),
                                    paged = call_of(0, BATCH, 0, 1, 0, true),
                                    good = in_slots(&plain, of);
    tsr_attention_decode_args args = good;
    args.page_table = paged.page_table;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "cache_batch_idx",
                  "page_table");
    args = good;
    args.cache_batch_idx.dtype = TSR_F32;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "cache_batch_idx.dtype");
    args = good;
    args.cache_batch_idx.shape[0] = BATCH - 1;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "cache_batch_idx",
                  "shape");
    args = good;
    args.v_cache.shape[0] = SLOTS - 1;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "v_cache", "shape");
    args = good;
    args.cache_batch_idx.data = slots.k;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "k_cache",
                  "cache_batch_idx");
    assert_ok(tsr_attention_decode(ctx, &good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_as_one_piece),
        cmocka_unit_test(slots_may_be_shared),
        cmocka_unit_test(slots_that_do_not_exist),
        cmocka_unit_test(slots_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("attention_decode forms", tests, setup, teardown);
}
