// SPDX-License-Identifier: Apache-2.0
// Attention over a cache, beyond what verify and the tests of every operation look at: token by token is as all
// at once, pages are as one piece, parts merge into the whole, a sequence does not depend on its company, and
// what is refused.
#include "test_support.h"

#include <math.h>

#include "ops/attention/attention_decode_problem.h"

enum { BATCH = 3, CAPACITY = 640, HEADS = 6, KV_HEADS = 2, DIM = 24, DIM_V = 20, PAGE = 16 };
enum { PAGES = CAPACITY / PAGE, PAIRS = 8, TOKENS = 40 };

static tsr_context *ctx;

// A cache for each form, and new tokens for TOKENS steps.
struct world {
    float k[BATCH][CAPACITY][KV_HEADS][DIM], v[BATCH][CAPACITY][KV_HEADS][DIM_V];
    float k_pages[BATCH * PAGES][PAGE][KV_HEADS][DIM],
        v_pages[BATCH * PAGES][PAGE][KV_HEADS][DIM_V];
    float q[BATCH][TOKENS][HEADS][DIM], k_new[BATCH][TOKENS][KV_HEADS][DIM];
    float v_new[BATCH][TOKENS][KV_HEADS][DIM_V], cos[CAPACITY][PAIRS], sin[CAPACITY][PAIRS];
    float out[2][BATCH][TOKENS][HEADS][DIM_V], lse[2][BATCH][HEADS][TOKENS];
    int32_t lengths[BATCH], table[BATCH][PAGES];
};
static struct world w;

static tsr_tensor strided(const void *data, int ndim, const int64_t *shape, const int64_t *stride) {
    tsr_tensor t = tsr_tensor_contiguous(data, TSR_F32, ndim, shape);
    memcpy(t.stride, stride, (size_t)ndim * sizeof *stride);
    return t;
}

static void draw(float *values, size_t bytes, uint64_t *seed) {
    for (size_t i = 0; i < bytes / sizeof *values; i++) values[i] = test_float(seed) / 4;
}

static int setup(void **state) {
    (void)state;
    uint64_t seed = 7;
    ctx = test_context(2);
    draw(&w.q[0][0][0][0], sizeof w.q, &seed);
    draw(&w.k_new[0][0][0][0], sizeof w.k_new, &seed);
    draw(&w.v_new[0][0][0][0], sizeof w.v_new, &seed);
    for (int j = 0; j < CAPACITY; j++)
        for (int i = 0; i < PAIRS; i++) {
            w.cos[j][i] = cosf((float)j * powf(0.4f, (float)i));
            w.sin[j][i] = sinf((float)j * powf(0.4f, (float)i));
        }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

// Caches of the given lengths, the same in both forms, NaN beyond; pages lie in the reverse of their order.
static void fill_caches(const int32_t lengths[BATCH]) {
    uint64_t seed = 11;
    draw(&w.k[0][0][0][0], sizeof w.k, &seed);
    draw(&w.v[0][0][0][0], sizeof w.v, &seed);
    memcpy(w.lengths, lengths, sizeof w.lengths);
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < CAPACITY; j++) {
            int page = w.table[b][j / PAGE] = (BATCH - 1 - b) * PAGES + PAGES - 1 - j / PAGE;
            float *k = &w.k[b][j][0][0], *v = &w.v[b][j][0][0];
            for (int i = 0; i < KV_HEADS * DIM && j >= lengths[b]; i++) k[i] = NAN;
            for (int i = 0; i < KV_HEADS * DIM_V && j >= lengths[b]; i++) v[i] = NAN;
            memcpy(w.k_pages[page][j % PAGE], w.k[b][j], sizeof w.k[b][j]);
            memcpy(w.v_pages[page][j % PAGE], w.v[b][j], sizeof w.v[b][j]);
        }
}

// Tokens [first, first + num) of sequences [batch, batch + num_batches), into w.out[side].
static tsr_attention_decode_args call_of(int batch, int num_batches, int first, int num, int side,
                                         bool is_paged) {
    tsr_attention_decode_args args = TSR_ATTENTION_DECODE_ARGS(.mask = TSR_MASK_CAUSAL);
#define VIEW(data, heads, dim)                                                                     \
    strided((data), 4, (int64_t[]){num_batches, num, (heads), (dim)},                              \
            (int64_t[]){TOKENS * (heads) * (dim), (heads) * (dim), (dim), 1})
    args.q = VIEW(w.q[batch][first], HEADS, DIM);
    args.k_new = VIEW(w.k_new[batch][first], KV_HEADS, DIM);
    args.v_new = VIEW(w.v_new[batch][first], KV_HEADS, DIM_V);
    args.out = VIEW(w.out[side][batch][first], HEADS, DIM_V);
#undef VIEW
    args.lse = strided(&w.lse[side][batch][0][first], 3, (int64_t[]){num_batches, HEADS, num},
                       (int64_t[]){HEADS * TOKENS, TOKENS, 1});
    args.cos = TSR_TENSOR(w.cos, TSR_F32, CAPACITY, PAIRS);
    args.sin = TSR_TENSOR(w.sin, TSR_F32, CAPACITY, PAIRS);
    args.cache_seqlens = TSR_TENSOR(w.lengths + batch, TSR_I32, num_batches);
    if (is_paged) {
        args.k_cache = TSR_TENSOR(w.k_pages, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM);
        args.v_cache = TSR_TENSOR(w.v_pages, TSR_F32, BATCH * PAGES, PAGE, KV_HEADS, DIM_V);
        args.page_table = TSR_TENSOR(w.table[batch], TSR_I32, num_batches, PAGES);
    } else {
        args.k_cache = TSR_TENSOR(w.k[batch], TSR_F32, num_batches, CAPACITY, KV_HEADS, DIM);
        args.v_cache = TSR_TENSOR(w.v[batch], TSR_F32, num_batches, CAPACITY, KV_HEADS, DIM_V);
    }
    return args;
}

static void run(int batch, int num_batches, int first, int num, int side, bool is_paged) {
    tsr_attention_decode_args args = call_of(batch, num_batches, first, num, side, is_paged);
    assert_ok(tsr_attention_decode(ctx, &args));
}

static void assert_close(const float *a, const float *b, size_t bytes, float bound) {
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        if (!(fabsf(a[i] - b[i]) <= bound))
            fail_msg("element %zu is %g and %g", i, (double)a[i], (double)b[i]);
}

static const int32_t mixed[BATCH] = {0, 300, CAPACITY - TOKENS};

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
        // The capacity is the same, and so are the splits: bit by bit.
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
    memset(w.out, 0, sizeof w.out); // tokens that are not run stay alike
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
    // The rest: a cache that is 100 keys shorter; of the first sequence nothing.
    part.has_window_left = 0;
    part.window_left = 0;
    for (int b = 0; b < BATCH; b++) w.lengths[b] = full[b] > 100 ? full[b] - 100 : 0;
    part.out.data = outs[1];
    part.lse.data = lses[1];
    assert_ok(tsr_attention_decode(ctx, &part));
    assert_true(lses[1][0][0] == -INFINITY);
    memset(outs[1][0], 0xff, sizeof outs[1][0]); // NaN, which an empty part may hold
    static float merged[BATCH][HEADS][DIM_V], merged_lse[BATCH][HEADS];
    assert_ok(tsr_attention_merge(
        ctx, &TSR_ATTENTION_MERGE_ARGS(.outs = TSR_TENSOR(outs, TSR_F32, 2, BATCH, HEADS, DIM_V),
                                       .lses = TSR_TENSOR(lses, TSR_F32, 2, BATCH, HEADS),
                                       .out = TSR_TENSOR(merged, TSR_F32, BATCH, HEADS, DIM_V),
                                       .lse = TSR_TENSOR(merged_lse, TSR_F32, BATCH, HEADS))));
    assert_close(&out[0][0][0], &merged[0][0][0], sizeof out, 1e-5f);
    assert_close(&lse[0][0], &merged_lse[0][0], sizeof lse, 1e-5f);
}

// ---- Pages ------------------------------------------------------------------------------------

static void pages_that_do_not_exist(void **state) {
    (void)state;
    static const int32_t bad[] = {-1, BATCH * PAGES, INT32_MAX, INT32_MIN};
    static const int32_t lengths[BATCH] = {3, 47, 80};
    for (int i = 0; i < COUNT(bad); i++) {
        fill_caches(lengths);
        w.table[1][2] = bad[i]; // of keys 32 to 47, the new one among them
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
        // Where nobody looks they are no matter: beyond a sequence, and behind a window.
        fill_caches(lengths);
        w.table[1][3] = w.table[0][1] = w.table[2][0] = w.table[2][1] = bad[i];
        args.has_window_left = 1;
        args.window_left = 48; // key 80 sees keys from 32 on
        assert_ok(tsr_attention_decode(ctx, &args));
        args.window_left = 49;
        assert_status(tsr_attention_decode(ctx, &args), TSR_INVALID_ARGUMENT, "page_table[2][1]");
        // Between what a shortened sequence sees and what is appended to it.
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

// Refused by its place and value, whoever asks, and nothing is written.
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
        args.k_new = args.v_new = (tsr_tensor){0}; // a full cache is no matter without new keys
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
    // Queries before the first key see none under the causal mask, and may not see one without it.
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

// One sequence fills the card, a short one is not cut to pieces, and company changes no cut where it must not.
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
        cmocka_unit_test(pages_that_do_not_exist),
        cmocka_unit_test(lengths_that_do_not_fit),
        cmocka_unit_test(positions_beyond_the_tables),
        cmocka_unit_test(offsets_that_do_not_fit),
        cmocka_unit_test(errors_are_none_on_the_cpu),
        cmocka_unit_test(a_sink_of_nan_shows),
        cmocka_unit_test(refusals),
        cmocka_unit_test(cuda_splits_fill_the_card),
    };
    return cmocka_run_group_tests_name("attention_decode", tests, setup, teardown);
}
