// SPDX-License-Identifier: Apache-2.0
// The self-attention module against its definition, which this file repeats: the variants share one composition with
// the oracle, so the oracle itself must be checked. Gradients are compared with differences of the loss, in f64. Then
// the memory estimate. Options are in test_self_attention_options.c.
#include <math.h>

#include "self_attention_case.h"

enum { BATCH = 2, SEQLEN = 5, EMBED = 6, HEADS = 4, KV_HEADS = 2, DIM = 6, PAIRS = 2 };
enum { ROWS = BATCH * SEQLEN, QKV = (HEADS + 2 * KV_HEADS) * DIM, ATT = HEADS * DIM };

// All numbers of the module, in the order of `parameters` below.
struct module {
    double x[ROWS][EMBED], w_qkv[QKV][EMBED], b_qkv[QKV], w_out[EMBED][ATT], b_out[EMBED];
    double cos[SEQLEN][PAIRS], sin[SEQLEN][PAIRS];
    double dy[ROWS][EMBED];
    double y[ROWS][EMBED], qkv[ROWS][QKV], attention[ROWS][ATT], lse[BATCH][HEADS][SEQLEN];
    double dx[ROWS][EMBED], dw_qkv[QKV][EMBED], db_qkv[QKV], dw_out[EMBED][ATT], db_out[EMBED];
};

static void draw(double *values, int count, double scale, uint64_t *seed) {
    for (int i = 0; i < count; i++) values[i] = scale * (double)test_float(seed) / 4;
}
#define DRAW(field, scale)                                                                         \
    draw((double *)m->field, (int)(sizeof m->field / sizeof(double)), (scale), &seed)

static void module_draw(struct module *m, uint64_t seed) {
    DRAW(x, 2);
    DRAW(w_qkv, 1.5);
    DRAW(b_qkv, 1);
    DRAW(w_out, 1);
    DRAW(b_out, 1);
    DRAW(dy, 1);
    for (int t = 0; t < SEQLEN; t++)
        for (int i = 0; i < PAIRS; i++) {
            m->cos[t][i] = cos(t * pow(0.3, i));
            m->sin[t][i] = sin(t * pow(0.3, i));
        }
}

// ---- The definition ---------------------------------------------------------------------------

// Column c of a head in row r after RoPE on pairs (i, i + PAIRS).
static double rotated(const struct module *m, int r, int head, int c) {
    const double *h = &m->qkv[r][head * DIM];
    int t = r % SEQLEN;
    if (c >= 2 * PAIRS) return h[c];
    return c < PAIRS ? h[c] * m->cos[t][c] - h[c + PAIRS] * m->sin[t][c]
                     : h[c] * m->cos[t][c - PAIRS] + h[c - PAIRS] * m->sin[t][c - PAIRS];
}

// Causal, with a window of `left` earlier keys. Computes only y.
static void define(struct module *m, int left) {
    static double unrotated[ROWS][QKV];
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < QKV; j++) {
            m->qkv[r][j] = m->b_qkv[j];
            for (int c = 0; c < EMBED; c++) m->qkv[r][j] += m->x[r][c] * m->w_qkv[j][c];
        }
    memcpy(unrotated, m->qkv, sizeof unrotated);
    for (int r = 0; r < ROWS; r++)
        for (int head = 0; head < HEADS + KV_HEADS; head++) {
            double turned[DIM];
            for (int c = 0; c < DIM; c++) turned[c] = rotated(m, r, head, c);
            memcpy(&m->qkv[r][head * DIM], turned, sizeof turned);
        }
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
            const double *q = &m->qkv[r][h * DIM];
            int i = r % SEQLEN, kv = h / (HEADS / KV_HEADS), first = i > left ? i - left : 0;
            double p[SEQLEN], sum = 0;
            for (int j = first; j <= i; j++) {
                const double *k = &m->qkv[r - i + j][(HEADS + kv) * DIM];
                double s = 0;
                for (int c = 0; c < DIM; c++) s += q[c] * k[c];
                sum += p[j] = exp(s / sqrt(DIM));
            }
            m->lse[r / SEQLEN][h][i] = log(sum);
            for (int c = 0; c < DIM; c++) {
                m->attention[r][h * DIM + c] = 0;
                for (int j = first; j <= i; j++)
                    m->attention[r][h * DIM + c] +=
                        p[j] / sum * m->qkv[r - i + j][(HEADS + KV_HEADS + kv) * DIM + c];
            }
        }
    for (int r = 0; r < ROWS; r++)
        for (int e = 0; e < EMBED; e++) {
            m->y[r][e] = m->b_out[e];
            for (int c = 0; c < ATT; c++) m->y[r][e] += m->attention[r][c] * m->w_out[e][c];
        }
}

// ---- The calls --------------------------------------------------------------------------------

#define T1(field, n) TSR_TENSOR(m->field, TSR_F64, n)
#define T2(field, a, b) TSR_TENSOR(m->field, TSR_F64, a, b)
#define T3(field, cols) TSR_TENSOR(m->field, TSR_F64, BATCH, SEQLEN, cols)
#define OPTIONS                                                                                    \
    .num_heads = HEADS, .num_kv_heads = KV_HEADS, .mask = TSR_MASK_CAUSAL, .has_window_left = 1,   \
    .window_left = 2

static tsr_self_attention_forward_args forward_args(struct module *m) {
    return TSR_SELF_ATTENTION_FORWARD_ARGS(.variant = "reference", .x = T3(x, EMBED),
                                           .w_qkv = T2(w_qkv, QKV, EMBED), .b_qkv = T1(b_qkv, QKV),
                                           .w_out = T2(w_out, EMBED, ATT),
                                           .b_out = T1(b_out, EMBED), .cos = T2(cos, SEQLEN, PAIRS),
                                           .sin = T2(sin, SEQLEN, PAIRS), .y = T3(y, EMBED),
                                           .qkv = T3(qkv, QKV), .attention = T3(attention, ATT),
                                           .lse = TSR_TENSOR(m->lse, TSR_F64, BATCH, HEADS, SEQLEN),
                                           OPTIONS);
}

static tsr_self_attention_backward_args backward_args(struct module *m) {
    return TSR_SELF_ATTENTION_BACKWARD_ARGS(
            .variant = "reference", .x = T3(x, EMBED), .w_qkv = T2(w_qkv, QKV, EMBED),
            .w_out = T2(w_out, EMBED, ATT), .cos = T2(cos, SEQLEN, PAIRS),
            .sin = T2(sin, SEQLEN, PAIRS), .qkv = T3(qkv, QKV), .attention = T3(attention, ATT),
            .lse = TSR_TENSOR(m->lse, TSR_F64, BATCH, HEADS, SEQLEN), .dy = T3(dy, EMBED),
            .dx = T3(dx, EMBED), .dw_qkv = T2(dw_qkv, QKV, EMBED), .db_qkv = T1(db_qkv, QKV),
            .dw_out = T2(dw_out, EMBED, ATT), .db_out = T1(db_out, EMBED), OPTIONS);
}

static void assert_near(const double *got, const double *expected, int count, double tolerance) {
    for (int i = 0; i < count; i++)
        if (!(fabs(got[i] - expected[i]) <= tolerance))
            fail_msg("element %d is %.12g, expected %.12g", i, got[i], expected[i]);
}
#define NEAR(field)                                                                                \
    assert_near((const double *)got.field, (const double *)expected.field,                         \
                (int)(sizeof got.field / sizeof(double)), 1e-12)

static void forward_is_its_definition(void **state) {
    (void)state;
    static struct module expected, got;
    module_draw(&expected, 1);
    got = expected;
    define(&expected, 2);
    tsr_self_attention_forward_args args = forward_args(&got);
    assert_ok(tsr_self_attention_forward(ctx, &args));
    NEAR(y);
    NEAR(qkv);
    NEAR(attention);
    NEAR(lse);
}

static double loss(struct module *m) {
    double sum = 0;
    define(m, 2);
    for (int i = 0; i < ROWS * EMBED; i++) sum += ((double *)m->y)[i] * ((double *)m->dy)[i];
    return sum;
}

static void backward_is_the_gradient(void **state) {
    (void)state;
    static struct module m, moved;
    module_draw(&m, 2);
    tsr_self_attention_forward_args forward = forward_args(&m);
    tsr_self_attention_backward_args backward = backward_args(&m);
    assert_ok(tsr_self_attention_forward(ctx, &forward));
    assert_ok(tsr_self_attention_backward(ctx, &backward));
    const struct {
        size_t value, gradient, count;
    } parameters[] = {
        {offsetof(struct module, x), offsetof(struct module, dx), ROWS * EMBED},
        {offsetof(struct module, w_qkv), offsetof(struct module, dw_qkv), QKV * EMBED},
        {offsetof(struct module, b_qkv), offsetof(struct module, db_qkv), QKV},
        {offsetof(struct module, w_out), offsetof(struct module, dw_out), EMBED * ATT},
        {offsetof(struct module, b_out), offsetof(struct module, db_out), EMBED},
    };
    const double h = 1e-5;
    for (int p = 0; p < COUNT(parameters); p++)
        for (size_t i = 0; i < parameters[p].count; i++) {
            double up, down, gradient;
            size_t at = parameters[p].value + i * sizeof(double);
            moved = m;
            double *value = (double *)(void *)((char *)&moved + at), before = *value;
            *value = before + h;
            up = loss(&moved);
            *value = before - h;
            down = loss(&moved);
            gradient =
                *(double *)(void *)((char *)&m + parameters[p].gradient + i * sizeof(double));
            double difference = (up - down) / (2 * h);
            if (!(fabs(gradient - difference) < 1e-7))
                fail_msg("parameter %d, element %zu: %.10g, expected %.10g", p, i, gradient,
                         difference);
        }
}

// ---- Memory -----------------------------------------------------------------------------------

// Twice the tokens need at most about twice the workspace, except with "naive".
static void workspace_is_linear(void **state) {
    (void)state;
    for (int naive = 0; naive < 2; naive++) {
        tsr_self_attention_memory few, many;
        tsr_self_attention_estimate_args args =
            TSR_SELF_ATTENTION_ESTIMATE_ARGS(.variant = naive ? "naive" : NULL, .dtype = TSR_F32,
                                             .batch = 1, .seqlen = 4096, .embed_dim = 256,
                                             .num_heads = 4);
        assert_ok(tsr_self_attention_estimate(ctx, &args, &few));
        args.seqlen *= 4;
        assert_ok(tsr_self_attention_estimate(ctx, &args, &many));
        assert_true((many.forward_workspace_bytes < 5 * few.forward_workspace_bytes) == !naive);
        assert_true((many.backward_workspace_bytes < 5 * few.backward_workspace_bytes) == !naive);
        assert_true(many.saved_bytes == 4 * few.saved_bytes);
    }
}

static void estimate_is_what_prepare_says(void **state) {
    (void)state;
    static struct plain p;
    tsr_self_attention_memory m;
    tsr_self_attention_forward_args saving = plain_args(&p, true), plain = plain_args(&p, false);
    size_t bytes;
    tsr_self_attention_estimate_args args =
        TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_F32, .batch = B, .seqlen = S, .embed_dim = E,
                                         .num_heads = H);
    assert_ok(tsr_self_attention_estimate(ctx, &args, &m));
    assert_ok(tsr_self_attention_forward_prepare(ctx, &saving, &bytes));
    assert_int_equal(m.forward_workspace_bytes, bytes);
    assert_ok(tsr_self_attention_forward_prepare(ctx, &plain, &bytes));
    assert_int_equal(m.inference_workspace_bytes, bytes);
    assert_int_equal(m.weight_bytes, sizeof p.w_qkv + sizeof p.w_out);
    assert_int_equal(m.activation_bytes, sizeof p.x + sizeof p.y);
    assert_int_equal(m.saved_bytes, sizeof p.qkv + sizeof p.attention + sizeof p.lse);
    assert_int_equal(m.gradient_bytes, m.weight_bytes + m.activation_bytes);
    assert_int_equal(m.inference_bytes,
                     m.weight_bytes + m.activation_bytes + m.inference_workspace_bytes);

#define REFUSED(change, ...)                                                                       \
    do {                                                                                           \
        tsr_self_attention_estimate_args bad = args;                                               \
        bad.change;                                                                                \
        assert_status(tsr_self_attention_estimate(ctx, &bad, &m), TSR_INVALID_ARGUMENT,            \
                      __VA_ARGS__);                                                                \
    } while (0)
    REFUSED(dtype = TSR_I32, "self_attention_estimate", "dtype");
    REFUSED(num_heads = 0, "num_heads");
    REFUSED(num_heads = 5, "embed_dim", "num_heads");
    REFUSED(num_kv_heads = 3, "num_kv_heads");
    REFUSED(num_kv_heads = 8, "num_kv_heads");
    REFUSED(batch = -1, "batch");
    REFUSED(seqlen = INT64_MAX, "seqlen");
    REFUSED(embed_dim = INT64_C(1) << 50, "embed_dim");
    REFUSED(rotary_dim = 14, "cos");
    REFUSED(variant = "nonsense", "variant");
    REFUSED(mask = (tsr_mask)9, "mask");
    REFUSED(head_dim = 0; bad.num_heads = 1; bad.batch = bad.seqlen = 1;
            bad.embed_dim = 1ll << 40, "self_attention_estimate", "embed_dim", "2^48");
    // RoPE tables that exceed the address space, with tensors that do not.
    args = TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_F32, .batch = 1, .embed_dim = 1,
                                            .num_heads = 1);
    args.seqlen = args.rotary_dim = INT64_C(1) << 47;
    assert_status(tsr_self_attention_estimate(ctx, &args, &m), TSR_INVALID_ARGUMENT,
                  "self_attention_estimate", "rotary_dim", "2^48");
    args.rotary_dim = 0;
    args.seqlen = 1 << 29;
    assert_ok(tsr_self_attention_estimate(ctx, &args, &m));
    args.variant = "naive"; // 2^58 scores
    assert_status(tsr_self_attention_estimate(ctx, &args, &m), TSR_UNSUPPORTED, "naive");
    // Without a batch nothing bounds seqlen, whose square exceeds 2^63.
    args = TSR_SELF_ATTENTION_ESTIMATE_ARGS(.dtype = TSR_BF16, .embed_dim = 64, .num_heads = 4);
    args.seqlen = INT64_C(1) << 34;
    assert_ok(tsr_self_attention_estimate(ctx, &args, &m));
    assert_int_equal(m.saved_bytes, 0);
    assert_status(tsr_self_attention_estimate(NULL, &args, &m), TSR_INVALID_ARGUMENT, "ctx");
    assert_status(tsr_self_attention_estimate(ctx, &args, NULL), TSR_INVALID_ARGUMENT, "memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_its_definition),
        cmocka_unit_test(backward_is_the_gradient),
        cmocka_unit_test(workspace_is_linear),
        cmocka_unit_test(estimate_is_what_prepare_says),
    };
    return cmocka_run_group_tests_name("self-attention", tests, setup, teardown);
}
