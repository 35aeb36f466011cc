// SPDX-License-Identifier: Apache-2.0
// Attention with a cache: invalid pages, lengths, offsets and options are refused with name and value before anything
// is written.
#include "attention_decode_case.h"

// ---- Pages ------------------------------------------------------------------------------------

static void pages_that_do_not_exist(void **state) {
    (void)state;
    static const int32_t bad[] = {-1, BATCH * PAGES, INT32_MAX, INT32_MIN};
    static const int32_t lengths[BATCH] = {3, 47, 80};
    for (int i = 0; i < COUNT(bad); i++) {
        fill_caches(lengths);
        w.table[1][2] = bad[i]; // keys 32 to 47, which include the new key
        char value[32];
        (void)snprintf(value, sizeof value, "is %d", bad[i]);
        memset(w.out, 0x55, sizeof w.out);
        tsr_attention_decode_args args = call_of(0, BATCH, 0, 1, 0, true);
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",
                      "page_table[1][2]", value);
        assert_true(test_all_bytes_are(w.out, 0x55, sizeof w.out));
        assert_true(isnan(w.k_pages[w.table[0][0]][3][0][0])); // nothing was appended
        size_t bytes;
        assert_ok(tsr_attention_decode_prepare(ctx, &args, &bytes));
        // Invalid pages are allowed where nobody reads them: beyond a sequence's end and before a window.
        fill_caches(lengths);
        w.table[1][3] = w.table[0][1] = w.table[2][0] = w.table[2][1] = bad[i];
        args.has_window_left = 1;
        args.window_left = 48; // key 80 sees keys from 32 on
        assert_ok(tsr_attention_decode(ctx, &args));
        args.window_left = 49;
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "page_table[2][1]");
        // Between what a shortened sequence sees and what is appended.
        fill_caches(lengths);
        for (int page = 1; page < 5; page++) w.table[2][page] = bad[i];
        args = call_of(0, BATCH, 0, 1, 0, true);
        args.max_seqlen_k = PAGE;
        assert_ok(tsr_attention_decode(ctx, &args));
        args.max_seqlen_k = PAGE + 1;
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "page_table[2][1]");
    }
}

// ---- Other metadata ---------------------------------------------------------------------------

// Checks that every variant refuses the value with its position, and that nothing is written.
static void assert_bad(const tsr_attention_decode_args *good, const char *place,
                       const char *value) {
    static const char *const names[] = {NULL, "split", "naive"};
    float k = w.k[0][mixed[0]][0][0];
    for (int v = 0; v < COUNT(names); v++) {
        tsr_attention_decode_args args = *good;
        size_t bytes;
        args.variant = names[v];
        memset(w.out, 0x55, sizeof w.out);
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",
                      place, value);
        assert_true(test_all_bytes_are(w.out, 0x55, sizeof w.out));
        assert_true(isnan(k) && isnan(w.k[0][mixed[0]][0][0])); // nothing was appended
        assert_ok(tsr_attention_decode_prepare(ctx, &args, &bytes));
    }
}

static void lengths_that_do_not_fit(void **state) {
    (void)state;
    static const struct {
        int32_t length;
        int num;
        const char *value;
    } bad[] = {{-1, 1, "is -1"},
               {INT32_MIN, 1, "is -2147483648"},
               {CAPACITY + 1, 1, "expected 0 to"},
               {CAPACITY, 1, "room for 1 more"},
               {CAPACITY - 2, 3, "room for 3 more"}};
    for (int i = 0; i < COUNT(bad); i++) {
        fill_caches(mixed);
        w.lengths[1] = bad[i].length;
        tsr_attention_decode_args args = call_of(0, BATCH, 0, bad[i].num, 0, false);
        assert_bad(&args, "cache_seqlens[1]", bad[i].value);
        args.k_new = args.v_new = (tsr_tensor){0}; // a full cache is allowed without new keys
        if (bad[i].length == CAPACITY) assert_ok(tsr_attention_decode(ctx, &args));
        fill_caches(mixed);
    }
}

static void positions_beyond_the_tables(void **state) {
    (void)state;
    fill_caches(mixed);
    tsr_attention_decode_args args = call_of(0, BATCH, 0, 1, 0, false);
    args.cos.shape[0] = args.sin.shape[0] = mixed[2] + 1;
    assert_ok(tsr_attention_decode(ctx, &args));
    fill_caches(mixed);
    args.cos.shape[0] = args.sin.shape[0] = mixed[2];
    assert_bad(&args, "cos has", "of sequence 2");
    // Queries before the first key see nothing under the causal mask. Without the mask they may not exist.
    args = call_of(0, BATCH, 0, 3, 0, false);
    args.k_new = args.v_new = (tsr_tensor){0};
    for (int b = 0; b < BATCH; b++) w.lengths[b] = 3;
    w.lengths[2] = 1;
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < 3; j++)
            for (int i = 0; i < KV_HEADS * DIM; i++) (&w.k[b][j][0][0])[i] = 0.5f;
    assert_ok(tsr_attention_decode(ctx, &args));
    args.mask = TSR_MASK_NONE;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "cache_seqlens[2]",
                  "negative");
}

static void offsets_that_do_not_fit(void **state) {
    (void)state;
    static const int32_t bad[][BATCH + 1] = {
        {-1, 1, 2, 3}, {0, 1, 2, 4}, {0, 2, 1, 3}, {0, 4, 4, 4}, {0, 1, 2, INT32_MAX}};
    for (int i = 0; i < COUNT(bad); i++) {
        fill_caches(mixed);
        tsr_attention_decode_args args = call_of(0, BATCH, 0, 1, 0, false);
        tsr_tensor *rows[] = {&args.q, &args.k_new, &args.v_new, &args.out};
        for (int r = 0; r < COUNT(rows); r++) // (total_q, heads, dim)
            *rows[r] =
                strided(rows[r]->data, 3, (int64_t[]){BATCH, rows[r]->shape[2], rows[r]->shape[3]},
                        (int64_t[]){rows[r]->stride[0], rows[r]->stride[2], 1});
        args.lse = (tsr_tensor){0};
        args.cu_seqlens_q = TSR_TENSOR(bad[i], TSR_I32, BATCH + 1);
        assert_bad(&args, "cu_seqlens_q[", "expected");
    }
}

static void errors_are_none_on_the_cpu(void **state) {
    (void)state;
    int32_t num_errors = -1;
    fill_caches(mixed);
    tsr_attention_decode_args args = call_of(0, BATCH, 0, 1, 0, false);
    args.num_errors = TSR_TENSOR(&num_errors, TSR_I32, 1);
    assert_ok(tsr_attention_decode(ctx, &args));
    assert_int_equal(num_errors, 0);
    args.num_errors.dtype = TSR_F32;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "num_errors.dtype");
    args.num_errors = TSR_TENSOR(w.lengths, TSR_I32, 1);
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "num_errors overlaps");
    args.num_errors = TSR_TENSOR(w.lengths, TSR_I32, 2);
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "num_errors has shape");
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    (void)state;
    fill_caches(mixed);
    const tsr_attention_decode_args good = call_of(0, BATCH, 0, 1, 0, true);
    size_t bytes;
#define REFUSED(field, value, ...)                                                                 \
    do {                                                                                           \
        tsr_attention_decode_args args = good;                                                     \
        args.field = (value);                                                                      \
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",  \
                      __VA_ARGS__);                                                                \
        assert_status(tsr_attention_decode_prepare(ctx, &args, &bytes), TSR_INVALID_ARGUMENT,      \
                      __VA_ARGS__);                                                                \
    } while (0)
    const tsr_tensor absent = {0};
    REFUSED(v_new, absent, "v_new", "k_new");
    REFUSED(k_new, absent, "k_new", "v_new");
    REFUSED(sin, absent, "sin", "cos");
    REFUSED(cache_seqlens, absent, "cache_seqlens");
    REFUSED(mask, TSR_MASK_CAUSAL_TOP_LEFT, "mask", "causal-top-left");
    REFUSED(softcap, NAN, "softcap");
    REFUSED(max_seqlen_k, -1, "max_seqlen_k");
    REFUSED(page_table.dtype, TSR_F32, "page_table", "f32");
    REFUSED(page_table.shape[0], BATCH - 1, "page_table", "shape");
    REFUSED(cos.shape[1], DIM, "cos", "shape");
    REFUSED(k_cache.shape[2], KV_HEADS + 2, "heads");
    REFUSED(v_cache.shape[1], PAGE - 1, "v_cache", "shape");
    REFUSED(out.dtype, TSR_BF16, "out", "bf16");
    REFUSED(k_new.data, w.k_pages, "k_cache", "k_new");
    REFUSED(v_cache.data, w.k_pages, "v_cache", "k_cache");
#undef REFUSED
    tsr_attention_decode_args args = good;
    args.has_window_left = 1;
    args.window_left = -1;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "window_left");
    assert_ok(tsr_attention_decode(ctx, &good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_do_not_exist),     cmocka_unit_test(lengths_that_do_not_fit),
        cmocka_unit_test(positions_beyond_the_tables), cmocka_unit_test(offsets_that_do_not_fit),
        cmocka_unit_test(errors_are_none_on_the_cpu),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("attention_decode refusals", tests, setup, teardown);
}
