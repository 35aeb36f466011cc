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

// ---- Padding ----------------------------------------------------------------------------------

static struct {
    float k[BATCH][CAPACITY][KV_HEADS][DIM], v[BATCH][CAPACITY][KV_HEADS][DIM_V];
    int32_t lengths[BATCH], of[BATCH];
} padded;

// The same keys behind rows of padding, which hold NaN. Pages of nothing but padding do not exist.
static tsr_attention_decode_args behind_padding(const tsr_attention_decode_args *plain,
                                                const int32_t padding[BATCH], bool is_paged) {
    tsr_attention_decode_args args = *plain;
    memset(&padded, 0xff, sizeof padded);
    for (int b = 0; b < BATCH; b++) {
        size_t num_rows = (size_t)(CAPACITY - padding[b]);
        padded.of[b] = padding[b];
        padded.lengths[b] = w.lengths[b] + padding[b];
        memcpy(padded.k[b][padding[b]], w.k[b], num_rows * sizeof w.k[b][0]);
        memcpy(padded.v[b][padding[b]], w.v[b], num_rows * sizeof w.v[b][0]);
    }
    args.k_cache = TSR_TENSOR(padded.k, TSR_F32, BATCH, CAPACITY, KV_HEADS, DIM);
    args.v_cache = TSR_TENSOR(padded.v, TSR_F32, BATCH, CAPACITY, KV_HEADS, DIM_V);
    args.cache_seqlens = TSR_TENSOR(padded.lengths, TSR_I32, BATCH);
    args.leftpad_k = TSR_TENSOR(padded.of, TSR_I32, BATCH);
    if (!is_paged) return args;
    args.k_cache = TSR_TENSOR(padded.k, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM);
    args.v_cache = TSR_TENSOR(padded.v, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM_V);
    args.page_table = TSR_TENSOR(w.table, TSR_I32, BATCH, PAGES);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < PAGES; i++)
            w.table[b][i] = (i + 1) * PAGE <= padding[b] ? -3 : b * PAGES + i;
    return args;
}

static void padding_changes_no_bit(void **state) {
    (void)state;
    static const int32_t lengths[BATCH] = {0, 300, 470}, padding[BATCH] = {17, 0, 130};
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 1; num <= TOKENS; num += TOKENS - 1)
            for (int is_paged = 0; is_paged < 2; is_paged++) {
                fill_caches(lengths);
                const tsr_attention_decode_args plain = call_of(0, BATCH, 0, num, 0, false),
                                                args =
                                                    behind_padding(&plain, padding, is_paged == 1);
                run(plain, variants[v], 0);
                run(args, variants[v], 1);
                assert_same_results();
                for (int b = 0; b < BATCH; b++) {
                    size_t num_rows = (size_t)(CAPACITY - padding[b]);
                    assert_memory_equal(w.k[b], padded.k[b][padding[b]],
                                        num_rows * sizeof w.k[b][0]);
                    assert_memory_equal(w.v[b], padded.v[b][padding[b]],
                                        num_rows * sizeof w.v[b][0]);
                    if (padding[b] > 0) // stays as it was
                        assert_true(test_all_bytes_are(padded.k[b], 0xff,
                                                       (size_t)padding[b] * sizeof w.k[b][0]));
                }
            }
}

static void padding_that_does_not_fit(void **state) {
    (void)state;
    static const int32_t none[BATCH] = {0}, lengths[BATCH] = {3, 47, 80};
    static const struct {
        int32_t padding;
        const char *value;
    } bad[] = {{-1, "is -1, expected 0 to 47"},
               {48, "is 48, expected 0 to 47"},
               {INT32_MAX, "is 2147483647"},
               {INT32_MIN, "is -2147483648"}};
    fill_caches(lengths);
    const tsr_attention_decode_args plain = call_of(0, BATCH, 0, 1, 0, false);
    tsr_attention_decode_args args = behind_padding(&plain, none, false);
    for (int i = 0; i < COUNT(bad); i++) {
        padded.of[1] = bad[i].padding;
        assert_refused(args, "leftpad_k[1]", bad[i].value);
    }
    padded.of[1] = 47; // nothing but padding
    args.leftpad_k.shape[0] = BATCH + 1;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "leftpad_k", "shape");
    args.leftpad_k.shape[0] = BATCH;
    args.leftpad_k.dtype = TSR_F32;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "leftpad_k.dtype");
    args.leftpad_k.dtype = TSR_I32;
    args.leftpad_k.data = w.out;
    assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "out", "leftpad_k");
    args.leftpad_k.data = padded.of;
    assert_ok(tsr_attention_decode(ctx, &args));
}

// ---- Norms ------------------------------------------------------------------------------------

static struct {
    float q[BATCH][TOKENS][HEADS][DIM], k_new[BATCH][TOKENS][KV_HEADS][DIM];
    float q_weight[DIM], k_weight[DIM], q_rest[DIM], k_rest[DIM]; // rest: weight - 1
} normed;

static void normalise(float *x, int64_t num_rows, float *y, float *weight) {
    assert_ok(tsr_rmsnorm_forward(
        ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, num_rows, DIM),
                                       .y = TSR_TENSOR(y, TSR_F32, num_rows, DIM),
                                       .weight = TSR_TENSOR(weight, TSR_F32, DIM), .eps = 1e-3f,
                                       .has_eps = 1)));
}

static void norms_are_as_rmsnorm_before(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int c = 0; c < DIM; c++) {
        normed.q_rest[c] = test_float(&seed);
        normed.k_rest[c] = test_float(&seed);
        normed.q_weight[c] = 1 + normed.q_rest[c];
        normed.k_weight[c] = 1 + normed.k_rest[c];
    }
    normalise(&w.q[0][0][0][0], BATCH * TOKENS * HEADS, &normed.q[0][0][0][0], normed.q_weight);
    normalise(&w.k_new[0][0][0][0], BATCH * TOKENS * KV_HEADS, &normed.k_new[0][0][0][0],
              normed.k_weight);
    for (int v = 0; v < COUNT(variants); v++)
        for (int num = 1; num <= TOKENS; num += TOKENS - 1)
            for (int which = 1; which < 8; which++) { // q_norm, k_norm, zero_centered_weight
                const bool has_q = which & 1, has_k = which & 2, is_rest = which & 4;
                fill_caches(mixed);
                tsr_attention_decode_args args = call_of(0, BATCH, 0, num, 0, false);
                if (has_q) args.q.data = normed.q;
                if (has_k) args.k_new.data = normed.k_new;
                run(args, variants[v], 0);
                fill_caches(mixed);
                args = call_of(0, BATCH, 0, num, 0, false);
                if (has_q)
                    args.q_norm =
                        TSR_TENSOR(is_rest ? normed.q_rest : normed.q_weight, TSR_F32, DIM);
                if (has_k)
                    args.k_norm =
                        TSR_TENSOR(is_rest ? normed.k_rest : normed.k_weight, TSR_F32, DIM);
                args.norm_eps = 1e-3f;
                args.has_norm_eps = 1;
                args.zero_centered_weight = is_rest;
                run(args, variants[v], 1);
                const float *a = &w.out[0][0][0][0][0], *b = &w.out[1][0][0][0][0];
                for (int i = 0; i < (int)(sizeof w.out[0] / sizeof *a); i++)
                    if (!(fabsf(a[i] - b[i]) <= 1e-5f))
                        fail_msg("element %d is %g and %g", i, (double)a[i], (double)b[i]);
            }
}

static void norms_that_do_not_fit(void **state) {
    (void)state;
    fill_caches(mixed);
    tsr_attention_decode_args good = call_of(0, BATCH, 0, 1, 0, false);
    good.q_norm = TSR_TENSOR(normed.q_weight, TSR_F32, DIM);
    good.k_norm = TSR_TENSOR(normed.k_weight, TSR_F32, DIM);
#define REFUSED(field, value, ...)                                                                 \
    do {                                                                                           \
        tsr_attention_decode_args args = good;                                                     \
        args.field = (value);                                                                      \
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "attention_decode",  \
                      __VA_ARGS__);                                                                \
    } while (0)
    REFUSED(q_norm.shape[0], DIM - 1, "q_norm", "shape");
    REFUSED(k_norm.ndim, 0, "k_norm", "shape");
    REFUSED(k_norm.dtype, TSR_BF16, "k_norm.dtype", "bf16");
    REFUSED(q_norm.stride[0], 2, "q_norm.stride");
    REFUSED(k_norm.data, w.out, "out", "k_norm");
    REFUSED(norm_eps, 1e-5f, "norm_eps", "has_norm_eps");
    good.has_norm_eps = 1;
    REFUSED(norm_eps, -1e-5f, "norm_eps");
    REFUSED(norm_eps, NAN, "norm_eps");
    REFUSED(norm_eps, INFINITY, "norm_eps");
#undef REFUSED
    assert_ok(tsr_attention_decode(ctx, &good));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_as_one_piece),      cmocka_unit_test(slots_may_be_shared),
        cmocka_unit_test(slots_that_do_not_exist),     cmocka_unit_test(slots_that_do_not_fit),
        cmocka_unit_test(padding_changes_no_bit),      cmocka_unit_test(padding_that_does_not_fit),
        cmocka_unit_test(norms_are_as_rmsnorm_before), cmocka_unit_test(norms_that_do_not_fit),
    };
    return cmocka_run_group_tests_name("attention_decode forms", tests, setup, teardown);
}
