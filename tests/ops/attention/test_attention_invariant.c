// SPDX-License-Identifier: Apache-2.0
// Under TSR_BATCH_INVARIANT a row of attention has the same bits with any other rows in the call. The test cuts parts
// out of the sequences, heads and queries, forward and backward, for the default and the variants that promise it, on
// every instruction set and dtype.
#include <math.h>
#include <string.h>

#include "test_support.h"

enum { MOST_BATCH = 5, MOST_Q = 150, MOST_K = 700, MOST_HEADS = 6, MOST_DIM = 80 };
enum { SIZE_Q = MOST_BATCH * MOST_Q * MOST_HEADS * MOST_DIM };
enum { SIZE_K = MOST_BATCH * MOST_K * MOST_HEADS * MOST_DIM, SIZE_LSE = SIZE_Q / MOST_DIM };

// Large enough for fp32.
static float q[SIZE_Q], k[SIZE_K], v[SIZE_K], dout[SIZE_Q];
static struct results {
    float out[SIZE_Q], lse[SIZE_LSE], dq[SIZE_Q], dk[SIZE_K], dv[SIZE_K];
} whole, part;

struct shape {
    tsr_dtype dtype;
    int64_t batch, seqlen_q, seqlen_k, groups, of_group, dim;
    bool is_packed; // with sequences of any lengths up to these
    tsr_mask mask;
    int64_t window_left, window_right; // -1: none
    int32_t cu_q[MOST_BATCH + 1], cu_k[MOST_BATCH + 1];
};

struct span {
    int64_t first, count;
};
// The part of the whole that a call gets. Packed sequences keep all queries.
struct cut {
    struct span batch, queries, groups;
};

static int64_t below(uint64_t *random, int64_t n) {
    return (int64_t)(test_bits(random) % (uint64_t)n);
}

// A small or a large number.
static int64_t draw(uint64_t *random, int64_t most) {
    return 1 + below(random, below(random, 2) ? most : most / 6 + 1);
}

static struct span draw_span(uint64_t *random, int64_t all) {
    struct span s = {0, draw(random, all)};
    if (s.count > all) s.count = all;
    s.first = below(random, all - s.count + 1);
    return s;
}

static void draw_shape(uint64_t *random, struct shape *s) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    s->dtype = dtypes[below(random, COUNT(dtypes))];
    s->of_group = 1 + below(random, 3);
    s->groups = 1 + below(random, MOST_HEADS / s->of_group);
    s->batch = 1 + below(random, MOST_BATCH);
    s->seqlen_q = draw(random, MOST_Q);
    s->seqlen_k = draw(random, MOST_K);
    s->dim = draw(random, MOST_DIM);
    s->is_packed = below(random, 3) == 0;
    s->mask = below(random, 2) == 0 ? TSR_MASK_CAUSAL : TSR_MASK_NONE;
    s->window_left = below(random, 3) == 0 ? below(random, s->seqlen_k + 1) : -1;
    s->window_right = below(random, 5) == 0 ? below(random, s->seqlen_k + 1) : -1;
    for (int64_t b = 0; b < s->batch; b++) {
        s->cu_q[b + 1] = s->cu_q[b] + (int32_t)below(random, s->seqlen_q + 1);
        s->cu_k[b + 1] = s->cu_k[b] + (int32_t)below(random, s->seqlen_k + 1);
    }
}

static struct cut draw_cut(uint64_t *random, const struct shape *s) {
    struct cut c = {draw_span(random, s->batch), draw_span(random, s->seqlen_q),
                    draw_span(random, s->groups)};
    if (s->mask != TSR_MASK_NONE || s->window_left >= 0 || s->window_right >= 0)
        c.queries.first = s->seqlen_q - c.queries.count; // their masks count from the last query
    if (s->is_packed) c.queries = (struct span){0, s->seqlen_q};
    return c;
}

static tsr_tensor narrow(tsr_tensor t, int dim, struct span span) {
    t.data = (char *)t.data + span.first * t.stride[dim] * (int64_t)tsr_dtype_bytes(t.dtype);
    t.shape[dim] = span.count;
    return t;
}

// The rows of the packed sequences in a cut.
static struct span packed_rows(const struct cut *c, const int32_t *cu) {
    int32_t first = cu[c->batch.first], end = cu[c->batch.first + c->batch.count];
    return (struct span){first, end - first};
}

// The cut part of a tensor of queries or keys: (batch, rows, heads, dim), or packed (rows, heads, dim).
static tsr_tensor view(const struct shape *s, const struct cut *c, float *data, bool is_of_keys) {
    int64_t rows = is_of_keys ? s->seqlen_k : s->seqlen_q, group = is_of_keys ? 1 : s->of_group;
    const int32_t *cu = is_of_keys ? s->cu_k : s->cu_q;
    struct span heads = {c->groups.first * group, c->groups.count * group};
    if (s->is_packed) {
        tsr_tensor t = TSR_TENSOR(data, s->dtype, cu[s->batch], s->groups * group, s->dim);
        return narrow(narrow(t, 0, packed_rows(c, cu)), 1, heads);
    }
    tsr_tensor t = TSR_TENSOR(data, s->dtype, s->batch, rows, s->groups * group, s->dim);
    t = narrow(narrow(t, 0, c->batch), 2, heads);
    return is_of_keys ? t : narrow(t, 1, c->queries);
}

static tsr_tensor lse_view(const struct shape *s, const struct cut *c, float *data) {
    int64_t heads = s->groups * s->of_group;
    struct span some = {c->groups.first * s->of_group, c->groups.count * s->of_group};
    if (s->is_packed) {
        tsr_tensor t = TSR_TENSOR(data, TSR_F32, heads, s->cu_q[s->batch]);
        return narrow(narrow(t, 0, some), 1, packed_rows(c, s->cu_q));
    }
    tsr_tensor t = TSR_TENSOR(data, TSR_F32, s->batch, heads, s->seqlen_q);
    return narrow(narrow(narrow(t, 0, c->batch), 1, some), 2, c->queries);
}

// The offsets of the cut's sequences, in the caller's memory.
static tsr_tensor offsets(const struct shape *s, const struct cut *c, const int32_t *cu,
                          int32_t *own) {
    for (int64_t b = 0; b <= c->batch.count; b++)
        own[b] = cu[c->batch.first + b] - cu[c->batch.first];
    return s->is_packed ? TSR_TENSOR(own, TSR_I32, c->batch.count + 1) : (tsr_tensor){0};
}

static void poison(tsr_tensor t) {
    for (int64_t i = 0; i < tsr_tensor_numel(&t); i++) {
        int64_t at = 0, left = i;
        for (int d = t.ndim - 1; d >= 0; left /= t.shape[d--])
            at += left % t.shape[d] * t.stride[d];
        tsr_store(t.dtype, t.data, at, (double)NAN);
    }
}

// cu: two arrays for offsets.
#define COMMON(s, c, name, cu)                                                                     \
    .q = view(s, c, q, false), .k = view(s, c, k, true), .v = view(s, c, v, true),                 \
    .softmax_scale = (s)->dtype == TSR_F16 ? 0.3f : 3000, .mask = (s)->mask,                       \
    .has_window_left = (s)->window_left >= 0,                                                      \
    .window_left = (s)->window_left < 0 ? 0 : (s)->window_left,                                    \
    .has_window_right = (s)->window_right >= 0,                                                    \
    .window_right = (s)->window_right < 0 ? 0 : (s)->window_right, .flags = TSR_BATCH_INVARIANT,   \
    .variant = (name), .cu_seqlens_q = offsets(s, c, (s)->cu_q, (cu)[0]),                          \
    .cu_seqlens_k = offsets(s, c, (s)->cu_k, (cu)[1])

static tsr_status forward(tsr_context *ctx, const struct shape *s, const struct cut *c,
                          const char *variant, struct results *r) {
    int32_t cu[2][MOST_BATCH + 1];
    tsr_attention_forward_args a = TSR_ATTENTION_FORWARD_ARGS(
        COMMON(s, c, variant, cu), .out = view(s, c, r->out, false), .lse = lse_view(s, c, r->lse));
    poison(a.out);
    poison(a.lse);
    return tsr_attention_forward(ctx, &a);
}

// Requests dk and dv only if the cut keeps all queries, because they are sums over these.
static tsr_status backward(tsr_context *ctx, const struct shape *s, const struct cut *c,
                           const char *variant, struct results *r) {
    int32_t cu[2][MOST_BATCH + 1];
    tsr_attention_backward_args a = TSR_ATTENTION_BACKWARD_ARGS(
        COMMON(s, c, variant, cu), .out = view(s, c, whole.out, false),
        .lse = lse_view(s, c, whole.lse), .dout = view(s, c, dout, false),
        .dq = view(s, c, r->dq, false));
    poison(a.dq);
    if (c->queries.count == s->seqlen_q) {
        a.dk = view(s, c, r->dk, true);
        a.dv = view(s, c, r->dv, true);
        poison(a.dk);
        poison(a.dv);
    }
    return tsr_attention_backward(ctx, &a);
}

static void check_shape(tsr_context *const *contexts, uint64_t *random, const char *variant) {
    struct shape s = {0};
    draw_shape(random, &s);
    struct cut all = {{0, s.batch}, {0, s.seqlen_q}, {0, s.groups}};
    memset(&whole, 0xff, sizeof whole);
    tsr_status status = forward(contexts[0], &s, &all, variant, &whole);
    if (variant != NULL && status == TSR_UNSUPPORTED) return;
    assert_ok(status);
    bool has_backward = backward(contexts[0], &s, &all, variant, &whole) == TSR_OK;
    assert_true(has_backward || variant != NULL);
    for (int i = 0; i < 4; i++) {
        struct cut c = draw_cut(random, &s);
        part = whole;
        assert_ok(forward(contexts[i % 2], &s, &c, variant, &part));
        if (has_backward) assert_ok(backward(contexts[i % 2], &s, &c, variant, &part));
        const char *other = memcmp(part.out, whole.out, sizeof part.out)   ? "out"
                            : memcmp(part.lse, whole.lse, sizeof part.lse) ? "lse"
                            : memcmp(part.dq, whole.dq, sizeof part.dq)    ? "dq"
                            : memcmp(part.dk, whole.dk, sizeof part.dk)    ? "dk"
                            : memcmp(part.dv, whole.dv, sizeof part.dv)    ? "dv"
                                                                           : NULL;
        if (other == NULL) continue;
        fail_msg(
            "%s, %s, %s%s%s%s: other bits of %s with %d of %d sequences, %d of %d queries, %d of "
            "%d groups of %d heads of %d, %d keys",
            variant != NULL ? variant : "default", tsr_isa_name(tsr_context_isa(contexts[0])),
            tsr_dtype_name(s.dtype), s.is_packed ? ", packed" : "",
            s.mask != TSR_MASK_NONE ? ", causal" : "",
            s.window_left >= 0 || s.window_right >= 0 ? ", window" : "", other, (int)c.batch.count,
            (int)s.batch, (int)c.queries.count, (int)s.seqlen_q, (int)c.groups.count, (int)s.groups,
            (int)s.of_group, (int)s.dim, (int)s.seqlen_k);
    }
}

static void parts_of_a_call(void **state) {
    (void)state;
    static const char *const variants[] = {NULL, "tuned", "naive", "amx_bf16", "avx512_bf16"};
    static float *const inputs[] = {q, k, v, dout};
    static const int sizes[] = {SIZE_Q, SIZE_K, SIZE_K, SIZE_Q};
    uint64_t random = 20261128;
    for (int t = 0; t < COUNT(inputs); t++)
        for (int i = 0; i < 2 * sizes[t]; i++) {
            // Writes a finite number into both halves, so that it is one in every dtype.
            uint16_t half = (uint16_t)(0x3c00 + (test_bits(&random) & 0x81ff));
            memcpy((char *)inputs[t] + 2 * (size_t)i, &half, sizeof half);
        }
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        tsr_context *contexts[2];
        for (int i = 0; i < 2; i++)
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 1 + 2 * i), &contexts[i]));
        int num_shapes = isa == TSR_ISA_SCALAR ? 4 : 40;
        if (TEST_IS_SLOW) num_shapes /= 4;
        for (int i = 0; i < num_shapes * COUNT(variants); i++)
            check_shape(contexts, &random, variants[i % COUNT(variants)]);
        for (int i = 0; i < 2; i++) tsr_context_destroy(contexts[i]);
    }
}

// With many sequences the keys of each are cut into fewer runs.
static void one_of_many_sequences(void **state) {
    (void)state;
    enum { BATCH = 80, ROWS = 10, KEYS = 2100, HEADS = 4, DIM = 64, NUMEL = ROWS * HEADS * DIM };
    static float rows[NUMEL], keys[KEYS * HEADS * DIM], alone[NUMEL], out[BATCH * NUMEL];
    uint64_t random = 11;
    for (int i = 0; i < NUMEL; i++) rows[i] = test_float(&random) / 4;
    for (int i = 0; i < KEYS * HEADS * DIM; i++) keys[i] = test_float(&random) / 4;
    tsr_context *ctx = test_context(2);
    for (int batch = 1; batch <= BATCH; batch += BATCH - 1) {
        tsr_tensor many = TSR_TENSOR(rows, TSR_F32, batch, ROWS, HEADS, DIM);
        tsr_tensor same = TSR_TENSOR(keys, TSR_F32, batch, KEYS, HEADS, DIM);
        many.stride[0] = same.stride[0] = 0; // all sequences are the same
        assert_ok(tsr_attention_forward(
            ctx,
            &TSR_ATTENTION_FORWARD_ARGS(.q = many, .k = same, .v = same,
                                        .out = TSR_TENSOR(out, TSR_F32, batch, ROWS, HEADS, DIM),
                                        .mask = TSR_MASK_CAUSAL, .flags = TSR_BATCH_INVARIANT)));
        if (batch == 1) memcpy(alone, out, sizeof alone);
        for (int b = 0; b < batch; b++) assert_memory_equal(out + b * NUMEL, alone, sizeof alone);
    }
    tsr_context_destroy(ctx);
}

// With a window, the first queries see earlier keys.
static void without_earlier_queries(void **state) {
    (void)state;
    enum { QUERIES = 120, LEAST = 50, KEYS_EACH = 900, DIM = 32 };
    static float rows[QUERIES * DIM], keys[KEYS_EACH * DIM], of_all[QUERIES * DIM],
        out[QUERIES * DIM];
    uint64_t random = 21;
    for (int i = 0; i < QUERIES * DIM; i++) rows[i] = test_float(&random) / 4;
    for (int i = 0; i < KEYS_EACH * DIM; i++) keys[i] = test_float(&random) / 4;
    tsr_context *ctx = test_context(2);
    static const char *const names[] = {NULL, "tuned"};
    for (int run = 0; run < 2 * 40; run++) {
        int cut = run < 2 ? 0 : 1 + (int)(test_bits(&random) % (QUERIES - LEAST)),
            left = QUERIES - cut;
        memset(out, 0xff, sizeof out);
        assert_ok(tsr_attention_forward(
            ctx,
            &TSR_ATTENTION_FORWARD_ARGS(.q = TSR_TENSOR(rows + cut * DIM, TSR_F32, 1, left, 1, DIM),
                                        .k = TSR_TENSOR(keys, TSR_F32, 1, KEYS_EACH, 1, DIM),
                                        .v = TSR_TENSOR(keys, TSR_F32, 1, KEYS_EACH, 1, DIM),
                                        .out = TSR_TENSOR(out, TSR_F32, 1, left, 1, DIM),
                                        .mask = TSR_MASK_CAUSAL, .has_window_left = 1,
                                        .window_left = 333, .flags = TSR_BATCH_INVARIANT,
                                        .variant = names[run % 2])));
        if (run == 0) memcpy(of_all, out, sizeof out);
        assert_memory_equal(out, of_all + cut * DIM, (size_t)(left * DIM) * sizeof *out);
    }
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_of_a_call),
                                       cmocka_unit_test(one_of_many_sequences),
                                       cmocka_unit_test(without_earlier_queries)};
    return cmocka_run_group_tests_name("attention_invariant", tests, NULL, NULL);
}
