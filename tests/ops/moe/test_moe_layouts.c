// SPDX-License-Identifier: Apache-2.0
// The layer's weights in every layout of the contract, biases and router in mixed dtypes, and a router whose logits are not
// exact: the library's choice against the oracle on contiguous tensors, ids against logits in double.
#include <math.h>

#include "test_support.h"

enum { T = 40, H = 24, I = 16, E = 5, K = 2, COLS = 2 * I };
enum layout { SEPARATE, HALVES, EVEN_AND_ODD, TRANSPOSED, NUM_LAYOUTS };

static tsr_context *ctx;
static uint64_t seed;

// ---- Tensors ----------------------------------------------------------------------------------

enum { MAX_BLOCKS = 128 };
static void *blocks[MAX_BLOCKS];
static int num_blocks;

static tsr_tensor make(tsr_dtype dtype, int ndim, const int64_t *shape) {
    tsr_tensor t = tsr_tensor_contiguous(NULL, dtype, ndim, shape);
    assert_true(num_blocks < MAX_BLOCKS);
    t.data = blocks[num_blocks++] = malloc((size_t)tsr_tensor_numel(&t) * sizeof(double));
    assert_non_null(t.data);
    memset(t.data, 0xff, (size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(dtype));
    return t;
}
#define MAKE(dtype, ...)                                                                           \
    make((dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                       \
         (const int64_t[]){__VA_ARGS__})

static void release_all(void) {
    while (num_blocks > 0) free(blocks[--num_blocks]);
}

static int64_t offset_of(const tsr_tensor *t, int64_t at) {
    int64_t offset = 0;
    for (int d = t->ndim - 1; d >= 0; at /= t->shape[d--])
        offset += at % t->shape[d] * t->stride[d];
    return offset;
}
static double get(const tsr_tensor *t, int64_t at) {
    return tsr_load(t->dtype, t->data, offset_of(t, at));
}

static tsr_tensor draw(tsr_tensor t, double scale) {
    for (int64_t i = 0; i < tsr_tensor_numel(&t); i++)
        tsr_store(t.dtype, t.data, offset_of(&t, i), scale * (double)test_float(&seed) / 4);
    return t;
}

static void copy_values(const tsr_tensor *from, const tsr_tensor *to) {
    for (int64_t i = 0; i < tsr_tensor_numel(from); i++)
        tsr_store(to->dtype, to->data, offset_of(to, i), get(from, i));
}

static void expect_near(const char *what, const tsr_tensor *got, const tsr_tensor *expected,
                        double tolerance) {
    double largest = 0;
    for (int64_t i = 0; i < tsr_tensor_numel(expected); i++)
        largest = fmax(largest, fabs(get(expected, i)));
    for (int64_t i = 0; i < tsr_tensor_numel(expected); i++)
        if (!(fabs(get(got, i) - get(expected, i)) <= tolerance * (largest + 1e-3)))
            fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)i, get(got, i),
                     get(expected, i));
}

// Two views (E, I, H) of a layout; contiguous ones for SEPARATE.
static void make_pair(tsr_dtype dtype, enum layout layout, tsr_tensor *gate, tsr_tensor *up) {
    if (layout == SEPARATE || layout == TRANSPOSED) {
        for (int i = 0; i < 2; i++) {
            tsr_tensor t = MAKE(dtype, E, I, H);
            if (layout == TRANSPOSED) t.stride[1] = 1, t.stride[2] = I;
            *(i == 0 ? gate : up) = t;
        }
        return;
    }
    const int64_t step = layout == HALVES ? I * H : H;
    *gate = MAKE(dtype, E, 2 * I, H);
    gate->shape[1] = I;
    if (layout == EVEN_AND_ODD) gate->stride[1] = 2 * H;
    *up = *gate;
    up->data = (char *)gate->data + step * (int64_t)tsr_dtype_bytes(dtype);
}

// ---- A layer ----------------------------------------------------------------------------------

struct layer {
    tsr_moe_forward_args forward;
    tsr_moe_backward_args backward;
};

static void finish(struct layer *m, tsr_dtype dtype, tsr_dtype router, enum layout gradients) {
    tsr_moe_forward_args *f = &m->forward;
    f->y = MAKE(dtype, T, H);
    f->topk_ids = MAKE(TSR_I32, T, K);
    f->topk_weights = MAKE(TSR_F32, T, K);
    m->backward =
        TSR_MOE_BACKWARD_ARGS(.x = f->x, .router = f->router, .logits_bias = f->logits_bias,
                              .w_gate = f->w_gate, .w_up = f->w_up, .w_down = f->w_down,
                              .b_down = f->b_down, .preact = MAKE(dtype, T * K, COLS),
                              .topk_ids = f->topk_ids, .topk_weights = f->topk_weights,
                              .dx = MAKE(dtype, T, H), .drouter = MAKE(router, E, H),
                              .dlogits_bias = MAKE(TSR_F32, E), .dw_down = MAKE(dtype, E, H, I),
                              .db_gate = MAKE(TSR_F32, E, I), .db_up = MAKE(dtype, E, I),
                              .db_down = MAKE(TSR_F32, E, H), .top_k = K);
    make_pair(dtype, gradients, &m->backward.dw_gate, &m->backward.dw_up);
}

// Biases and router of mixed dtypes: f32 where main is not.
static struct layer make_layer(tsr_dtype dtype, tsr_dtype router, enum layout layout) {
    struct layer m = {.forward = TSR_MOE_FORWARD_ARGS(.x = draw(MAKE(dtype, T, H), 2),
                                                      .router = draw(MAKE(router, E, H), 1),
                                                      .logits_bias = draw(MAKE(TSR_F32, E), 0.5),
                                                      .w_down = MAKE(dtype, E, H, I),
                                                      .b_gate = draw(MAKE(TSR_F32, E, I), 0.5),
                                                      .b_up = draw(MAKE(dtype, E, I), 0.5),
                                                      .b_down = draw(MAKE(TSR_F32, E, H), 0.5),
                                                      .top_k = K)};
    make_pair(dtype, layout, &m.forward.w_gate, &m.forward.w_up);
    (void)draw(m.forward.w_gate, 1), (void)draw(m.forward.w_up, 1);
    if (layout == TRANSPOSED) m.forward.w_down.stride[1] = 1, m.forward.w_down.stride[2] = H;
    (void)draw(m.forward.w_down, 1);
    finish(&m, dtype, router, layout == HALVES ? HALVES : SEPARATE);
    m.backward.dy = draw(MAKE(dtype, T, H), 1);
    return m;
}

// The same values in contiguous tensors.
static struct layer contiguous(const struct layer *m, tsr_dtype dtype, tsr_dtype router) {
    struct layer c = {.forward = m->forward};
    make_pair(dtype, SEPARATE, &c.forward.w_gate, &c.forward.w_up);
    c.forward.w_down = MAKE(dtype, E, H, I);
    copy_values(&m->forward.w_gate, &c.forward.w_gate);
    copy_values(&m->forward.w_up, &c.forward.w_up);
    copy_values(&m->forward.w_down, &c.forward.w_down);
    finish(&c, dtype, router, SEPARATE);
    c.backward.dy = m->backward.dy;
    return c;
}

// Forward without and with preact, and backward.
static void run(struct layer *m, const char *variant, tsr_tensor *y_unsaved) {
    m->forward.variant = m->backward.variant = variant;
    m->forward.preact = (tsr_tensor){0};
    assert_ok(tsr_moe_forward(ctx, &m->forward));
    *y_unsaved = MAKE(m->forward.y.dtype, T, H);
    copy_values(&m->forward.y, y_unsaved);
    m->forward.preact = m->backward.preact;
    assert_ok(tsr_moe_forward(ctx, &m->forward));
    assert_ok(tsr_moe_backward(ctx, &m->backward));
}

static void compare(struct layer *got, struct layer *expected, double tolerance) {
    tsr_tensor y[2];
    run(got, NULL, &y[0]);
    run(expected, "reference", &y[1]);
#define SAME(which, name) expect_near(#name, &got->which.name, &expected->which.name, tolerance)
    expect_near("y, nothing saved", &y[0], &y[1], tolerance);
    SAME(forward, y);
    SAME(forward, preact);
    SAME(forward, topk_ids);
    SAME(forward, topk_weights);
    SAME(backward, dx);
    SAME(backward, drouter);
    SAME(backward, dlogits_bias);
    SAME(backward, dw_gate);
    SAME(backward, dw_up);
    SAME(backward, dw_down);
    SAME(backward, db_gate);
    SAME(backward, db_up);
    SAME(backward, db_down);
    release_all();
}

// ---- Tests ------------------------------------------------------------------------------------

static double logit_of(const struct layer *m, int64_t t, int64_t e) {
    double sum = get(&m->forward.logits_bias, e);
    for (int64_t h = 0; h < H; h++)
        sum += get(&m->forward.x, t * H + h) * get(&m->forward.router, e * H + h);
    return sum;
}

// The experts of a token by its logits, the best first; false if two logits are close to each other.
static bool choose(const struct layer *m, int64_t t, int32_t chosen[E]) {
    double logits[E];
    for (int32_t e = 0; e < E; e++) {
        logits[e] = logit_of(m, t, e);
        int at = e;
        for (; at > 0 && logits[chosen[at - 1]] < logits[e]; at--) chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    for (int i = 1; i < E; i++)
        if (logits[chosen[i - 1]] - logits[chosen[i]] < 0.02) return false;
    return true;
}

// Draws tokens until their logits are well apart.
static void separate(const struct layer *m) {
    int32_t chosen[E];
    for (int64_t t = 0; t < T; t++)
        while (!choose(m, t, chosen))
            for (int64_t h = 0; h < H; h++)
                tsr_store(m->forward.x.dtype, m->forward.x.data, t * H + h,
                          (double)test_float(&seed) / 2);
}

static void check_choice(const struct layer *m) {
    int32_t chosen[E];
    for (int64_t t = 0; t < T; t++) {
        double weight[K], sum = 0;
        assert_true(choose(m, t, chosen));
        for (int k = 0; k < K; k++) {
            weight[k] = exp(logit_of(m, t, chosen[k]));
            sum += weight[k];
        }
        for (int k = 0; k < K; k++) {
            assert_int_equal((int)get(&m->forward.topk_ids, t * K + k), chosen[k]);
            assert_true(fabs(get(&m->forward.topk_weights, t * K + k) - weight[k] / sum) < 1e-5);
        }
    }
}

static const struct {
    tsr_dtype dtype, router;
    double tolerance;
} kinds[] = {{TSR_F32, TSR_F32, 2e-5},
             {TSR_BF16, TSR_BF16, 0.03},
             {TSR_BF16, TSR_F32, 0.03},
             {TSR_F16, TSR_F16, 0.004},
             {TSR_F16, TSR_F32, 0.004}};

static void weights_in_every_layout(void **state) {
    (void)state;
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int layout = 0; layout < NUM_LAYOUTS; layout++) {
            struct layer m = make_layer(kinds[kind].dtype, kinds[kind].router, (enum layout)layout);
            separate(&m);
            struct layer plain = contiguous(&m, kinds[kind].dtype, kinds[kind].router);
            compare(&m, &plain, kinds[kind].tolerance);
        }
}

// Logits that rounding changes, but not by as much as they are apart.
static void a_router_that_is_not_exact(void **state) {
    (void)state;
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int repeat = 0; repeat < 5; repeat++) {
            struct layer m = make_layer(kinds[kind].dtype, kinds[kind].router, SEPARATE);
            tsr_tensor y;
            separate(&m);
            run(&m, NULL, &y);
            check_choice(&m);
            run(&m, "reference", &y);
            check_choice(&m);
            release_all();
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_in_every_layout),
        cmocka_unit_test(a_router_that_is_not_exact),
    };
    ctx = test_context(2);
    seed = test_seed(20261202);
    const int failed = cmocka_run_group_tests_name("moe_layouts", tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
