// SPDX-License-Identifier: Apache-2.0
// The rows of each expert: against a sort written here, for random ids, strides, capacities and threads; values by hand; what a
// call refuses; and back through the weighted sum.
#include <math.h>

#include "test_support.h"

enum { MOST = 200000, MOST_EXPERTS = 5000, GUARD = 16, POISON = 0xa5 };

// Each output with a guard on both sides.
#define BUFFER(type, name, count) type name##_before[GUARD], name[count], name##_after[GUARD]
struct outputs {
    BUFFER(int32_t, offsets, MOST_EXPERTS + 1);
    BUFFER(int32_t, row_tokens, MOST + 100);
    BUFFER(float, row_weights, MOST + 100);
    BUFFER(int32_t, token_rows, 2 * MOST);
    BUFFER(int32_t, counts, MOST_EXPERTS);
    BUFFER(int32_t, num_dropped, 1);
};

struct call {
    int tokens, experts, top_k, num_rows;
    int ids_stride, weights_stride, rows_stride; // of a token, at least top_k
    int64_t capacity;                            // 0: none
};

static int32_t ids[2 * MOST];
static float weights[2 * MOST];
static struct outputs out, first;

static tsr_tensor strided(void *data, tsr_dtype dtype, const struct call *c, int stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, c->tokens, c->top_k);
    t.stride[0] = stride;
    return t;
}

static tsr_moe_permute_args args_of(const struct call *c) {
    return TSR_MOE_PERMUTE_ARGS(.topk_ids = strided(ids, TSR_I32, c, c->ids_stride),
                                .topk_weights = strided(weights, TSR_F32, c, c->weights_stride),
                                .offsets = TSR_TENSOR(out.offsets, TSR_I32, c->experts + 1),
                                .row_tokens = TSR_TENSOR(out.row_tokens, TSR_I32, c->num_rows),
                                .row_weights = TSR_TENSOR(out.row_weights, TSR_F32, c->num_rows),
                                .token_rows = strided(out.token_rows, TSR_I32, c, c->rows_stride),
                                .tokens_per_expert = TSR_TENSOR(out.counts, TSR_I32, c->experts),
                                .num_dropped = TSR_TENSOR(out.num_dropped, TSR_I32, 1),
                                .capacity = c->capacity, .has_capacity = c->capacity != 0);
}

static void run(const struct call *c, const char *variant, int threads) {
    tsr_context *ctx = test_context(threads);
    tsr_moe_permute_args args = args_of(c);
    args.variant = variant;
    memset(&out, POISON, sizeof out);
    assert_ok(tsr_moe_permute(ctx, &args));
    tsr_context_destroy(ctx);
#define UNTOUCHED(name, used)                                                                      \
    assert_true(test_all_bytes_are(out.name##_before, POISON, sizeof out.name##_before));          \
    assert_true(test_all_bytes_are(out.name + (used), POISON,                                      \
                                   sizeof out.name - (size_t)(used) * sizeof out.name[0]));        \
    assert_true(test_all_bytes_are(out.name##_after, POISON, sizeof out.name##_after))
    UNTOUCHED(offsets, c->experts + 1);
    UNTOUCHED(row_tokens, c->num_rows);
    UNTOUCHED(row_weights, c->num_rows);
    UNTOUCHED(token_rows, c->tokens > 0 ? (c->tokens - 1) * c->rows_stride + c->top_k : 0);
    UNTOUCHED(counts, c->experts);
    UNTOUCHED(num_dropped, 1);
    for (int t = 0; t + 1 < c->tokens; t++)
        assert_true(test_all_bytes_are(out.token_rows + t * c->rows_stride + c->top_k, POISON,
                                       (size_t)(c->rows_stride - c->top_k) * sizeof(int32_t)));
}

// ---- A sort -----------------------------------------------------------------------------------

struct item {
    int32_t id;
    int at; // t top_k + k
};

static int by_expert(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : x->at < y->at ? -1 : 1;
}

static void check(const struct call *c) {
    static struct item items[MOST];
    int count = 0, row = 0, num_dropped = 0, i = 0;
    for (int at = 0; at < c->tokens * c->top_k; at++) {
        const int32_t id = ids[at / c->top_k * c->ids_stride + at % c->top_k];
        if (id >= 0)
            items[count++] = (struct item){id, at};
        else
            assert_int_equal(out.token_rows[at / c->top_k * c->rows_stride + at % c->top_k], -1);
    }
    qsort(items, (size_t)count, sizeof *items, by_expert);
    assert_int_equal(out.offsets[0], 0);
    for (int e = 0; e < c->experts; e++) {
        int of_expert = 0;
        for (; i < count && items[i].id == e; i++, of_expert++) {
            const int t = items[i].at / c->top_k, k = items[i].at % c->top_k;
            const int32_t got = out.token_rows[t * c->rows_stride + k];
            if (c->capacity != 0 && of_expert >= c->capacity) {
                num_dropped++;
                assert_int_equal(got, -1);
                continue;
            }
            assert_int_equal(got, row);
            assert_int_equal(out.row_tokens[row], t);
            assert_memory_equal(&out.row_weights[row], &weights[t * c->weights_stride + k], 4);
            row++;
        }
        assert_int_equal(out.counts[e], of_expert);
        assert_int_equal(out.offsets[e + 1], row);
    }
    assert_int_equal(i, count);
    assert_int_equal(out.num_dropped[0], num_dropped);
    for (; row < c->num_rows; row++) {
        assert_int_equal(out.row_tokens[row], -1);
        assert_true(test_all_bytes_are(&out.row_weights[row], 0, 4));
    }
}

static struct call draw(uint64_t *random, int most) {
    struct call c = {.experts =
                         1 + test_below(random, test_below(random, 8) == 0 ? MOST_EXPERTS : 200)};
    c.top_k = 1 + test_below(random, test_below(random, 8) == 0 ? 60 : 10);
    c.tokens = test_below(random, most / c.top_k);
    c.ids_stride = c.top_k + test_below(random, 2) * test_below(random, c.top_k);
    c.weights_stride = c.top_k + test_below(random, 2) * test_below(random, c.top_k);
    c.rows_stride = c.top_k + test_below(random, 2) * test_below(random, c.top_k);
    if (test_below(random, 2) == 0)
        c.capacity = 1 + test_below(random, 2 * c.tokens / c.experts + 3);
    c.num_rows = c.tokens * c.top_k;
    if (c.capacity != 0 && c.capacity * c.experts < c.num_rows)
        c.num_rows = (int)c.capacity * c.experts;
    c.num_rows += test_below(random, 2) * test_below(random, 100);
    const int skew = test_below(random, 3), few = 1 + test_below(random, c.experts);
    for (int i = 0; i < c.tokens * 2 * c.top_k; i++) {
        const int id = test_below(random, skew == 0 ? c.experts : skew == 1 ? few : 1 + few / 20);
        const uint64_t bits = test_bits(random); // any payload
        ids[i] = test_below(random, 9) == 0 ? -1 : id;
        memcpy(&weights[i], &bits, 4);
    }
    return c;
}

static void random_calls(void **state) {
    (void)state;
    const int cases = (int)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 30 : 200);
    uint64_t random = test_seed(20261201);
    for (int i = 0; i < cases; i++) {
        const struct call c = draw(&random, i % 10 == 0 ? MOST : 3000);
        run(&c, NULL, 1);
        check(&c);
        first = out;
        run(&c, NULL, 4);
        assert_memory_equal(&out, &first, sizeof out);
        run(&c, "reference", 1);
        assert_memory_equal(&out, &first, sizeof out);
    }
}

// ---- By hand ----------------------------------------------------------------------------------

static void by_hand(void **state) {
    (void)state;
    struct call c = {4, 3, 2, 9, 2, 2, 2, 0};
    memcpy(ids, (const int32_t[]){2, 0, 0, -1, 2, 2, 0, 2}, 32);
    for (int i = 0; i < 8; i++) weights[i] = (float)i;
    run(&c, NULL, 1);
    static const int32_t offsets[] = {0, 3, 3, 7}, tokens[] = {0, 1, 3, 0, 2, 2, 3, -1, -1},
                         rows[] = {3, 0, 1, -1, 4, 5, 2, 6}, counts[] = {3, 0, 4};
    static const float row_weights[] = {1, 2, 6, 0, 4, 5, 7, 0, 0};
    assert_memory_equal(out.offsets, offsets, sizeof offsets);
    assert_memory_equal(out.row_tokens, tokens, sizeof tokens);
    assert_memory_equal(out.token_rows, rows, sizeof rows);
    assert_memory_equal(out.counts, counts, sizeof counts);
    assert_memory_equal(out.row_weights, row_weights, sizeof row_weights);
    assert_int_equal(out.num_dropped[0], 0);
    c.capacity = 2;
    c.num_rows = 6;
    run(&c, NULL, 1);
    static const int32_t kept[] = {0, 2, 2, 4}, first_tokens[] = {0, 1, 0, 2, -1, -1},
                         kept_rows[] = {2, 0, 1, -1, 3, -1, -1, -1};
    assert_memory_equal(out.offsets, kept, sizeof kept);
    assert_memory_equal(out.row_tokens, first_tokens, sizeof first_tokens);
    assert_memory_equal(out.token_rows, kept_rows, sizeof kept_rows);
    assert_memory_equal(out.counts, counts, sizeof counts);
    assert_int_equal(out.num_dropped[0], 3);
}

static void only_offsets(void **state) {
    int32_t offsets[4];
    memcpy(ids, (const int32_t[]){2, 0, 0, -1}, 16);
    assert_ok(
        tsr_moe_permute(*state, &TSR_MOE_PERMUTE_ARGS(.topk_ids = TSR_TENSOR(ids, TSR_I32, 4, 1),
                                                      .offsets = TSR_TENSOR(offsets, TSR_I32, 4))));
    assert_int_equal(offsets[1], 2);
    assert_int_equal(offsets[2], 2);
    assert_int_equal(offsets[3], 3);
}

// Rows of tokens, moved to their experts and summed with weights that add up to 1, are the tokens.
static void there_and_back(void **state) {
    enum { TOKENS = 70, TOP_K = 4, EXPERTS = 9, HIDDEN = 33 };
    static float x[TOKENS][HIDDEN], rows[TOKENS * TOP_K][HIDDEN], y[TOKENS][HIDDEN];
    struct call c = {TOKENS, EXPERTS, TOP_K, TOKENS * TOP_K, TOP_K, TOP_K, TOP_K, 0};
    uint64_t random = 5;
    for (int i = 0; i < TOKENS * TOP_K; i++) ids[i] = test_below(&random, EXPERTS);
    for (int i = 0; i < TOKENS * TOP_K; i++) weights[i] = 0.25f;
    for (int i = 0; i < TOKENS * HIDDEN; i++) x[i / HIDDEN][i % HIDDEN] = test_float(&random);
    run(&c, NULL, 1);
    for (int r = 0; r < TOKENS * TOP_K; r++) memcpy(rows[r], x[out.row_tokens[r]], sizeof rows[r]);
    assert_ok(tsr_moe_combine_forward(
        *state,
        &TSR_MOE_COMBINE_FORWARD_ARGS(.rows = TSR_TENSOR(rows, TSR_F32, TOKENS * TOP_K, HIDDEN),
                                      .token_rows =
                                          TSR_TENSOR(out.token_rows, TSR_I32, TOKENS, TOP_K),
                                      .weights = TSR_TENSOR(weights, TSR_F32, TOKENS, TOP_K),
                                      .y = TSR_TENSOR(y, TSR_F32, TOKENS, HIDDEN))));
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        assert_true(fabsf(y[i / HIDDEN][i % HIDDEN] - x[i / HIDDEN][i % HIDDEN]) < 1e-6f);
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refusals(void **state) {
    const struct call c = {4, 3, 2, 8, 2, 2, 2, 0};
    const tsr_moe_permute_args good = args_of(&c);
    tsr_moe_permute_args args;
    memcpy(ids, (const int32_t[]){2, 0, 0, -1, 2, 2, 0, 2}, 32);
    memset(&out, POISON, sizeof out);
#define REFUSES(change, ...)                                                                       \
    args = good;                                                                                   \
    change;                                                                                        \
    assert_status(tsr_moe_permute(*state, &args), TSR_INVALID_ARGUMENT,                            \
                  "moe_permute: ", __VA_ARGS__);                                                   \
    assert_true(test_all_bytes_are(&out, POISON, sizeof out))
    REFUSES(args.topk_ids.dtype = TSR_F32, "topk_ids.dtype is f32", "i32");
    REFUSES(args.topk_ids = TSR_TENSOR(ids, TSR_I32, 8, 0), "topk_ids have 0 columns", "1 to");
    REFUSES((args.topk_ids.shape[0] = (int64_t)1 << 30, args.topk_ids.stride[0] = 0),
            "topk_ids have 2147483648 elements", "2^31 - 1");
    REFUSES(args.offsets = TSR_TENSOR(out.offsets, TSR_I32, 1), "offsets have shape (1,)",
            "num_experts + 1");
    REFUSES(args.offsets.stride[0] = 2, "offsets.stride[0] is 2", "1");
    REFUSES(args.row_tokens.shape[0] = 7, "row_tokens has shape (7,)", "at least 8");
    REFUSES(args.row_weights.shape[0] = 9, "row_weights has 9 rows", "8 as row_tokens");
    REFUSES(args.topk_weights.dtype = TSR_DTYPE_NONE, "topk_weights are absent", "row_weights");
    REFUSES(args.topk_weights.dtype = TSR_BF16, "topk_weights.dtype is bf16", "f32");
    REFUSES(args.topk_weights.shape[1] = 1, "topk_weights has shape", "topk_ids");
    REFUSES(args.token_rows.shape[0] = 3, "token_rows has shape", "topk_ids");
    REFUSES(args.tokens_per_expert.shape[0] = 4, "tokens_per_expert has shape", "(3,)");
    REFUSES(args.num_dropped.shape[0] = 2, "num_dropped has shape", "(1,)");
    REFUSES(args.capacity = 2, "capacity", "has_capacity");
    REFUSES((args.capacity = 0, args.has_capacity = 1), "capacity is 0", "at least 1");
    REFUSES(args.token_rows.data = args.row_tokens.data, "token_rows overlaps row_tokens");
    REFUSES(args.offsets.data = ids, "offsets overlaps topk_ids");
    ids[5] = 3;
    REFUSES((void)0, "element 5 of topk_ids is 3", "0 to 2 or -1");
    ids[5] = -2;
    REFUSES((void)0, "element 5 of topk_ids is -2");
    ids[5] = 1;
    assert_ok(tsr_moe_permute(*state, &good));
    static double wide[16];
    args = good;
    args.topk_weights = TSR_TENSOR(wide, TSR_F64, 4, 2);
    args.row_weights = TSR_TENSOR(wide + 8, TSR_F64, 8);
    assert_ok(tsr_moe_permute(*state, &args)); // by the reference
    args.variant = "sorted";
    assert_status(tsr_moe_permute(*state, &args), TSR_UNSUPPORTED, "moe_permute", "sorted");
}

static int setup(void **state) {
    *state = test_context(2);
    return 0;
}
static int teardown(void **state) {
    tsr_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),      cmocka_unit_test(only_offsets),
        cmocka_unit_test(random_calls), cmocka_unit_test(there_and_back),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("moe_permute", tests, setup, teardown);
}
