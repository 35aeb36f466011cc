// SPDX-License-Identifier: Apache-2.0
// The estimate of the layer's memory: what calls on real tensors take, for random sizes and options, and what it refuses.
#include "test_support.h"

static tsr_context *ctx;

// ---- Real tensors -----------------------------------------------------------------------------

enum { MAX_BLOCKS = 64 };
static void *blocks[MAX_BLOCKS];
static int num_blocks;
static size_t *sum; // of the bytes of the next tensors

static tsr_tensor make(tsr_dtype dtype, int ndim, const int64_t *shape) {
    tsr_tensor t = tsr_tensor_contiguous(NULL, dtype, ndim, shape);
    const size_t bytes = (size_t)tsr_tensor_numel(&t) * tsr_dtype_bytes(dtype);
    assert_true(num_blocks < MAX_BLOCKS);
    t.data = blocks[num_blocks++] = calloc(bytes + 64, 1);
    assert_non_null(t.data);
    *sum += bytes;
    return t;
}
#define MAKE(dtype, ...)                                                                           \
    make((dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                       \
         (const int64_t[]){__VA_ARGS__})

static void release_all(void) {
    while (num_blocks > 0) free(blocks[--num_blocks]);
}

// w_gate and w_up, their gradients, or their scales.
static void make_pair(const tsr_moe_estimate_args *a, tsr_dtype dtype, int64_t rows, int64_t cols,
                      tsr_tensor *gate, tsr_tensor *up) {
    const int64_t e = a->num_experts;
    if (a->is_gated && a->is_joined) {
        *gate = *up = MAKE(dtype, e, 2 * rows, cols);
        gate->shape[1] = up->shape[1] = rows;
        up->data = (char *)up->data + rows * cols * (int64_t)tsr_dtype_bytes(dtype);
        return;
    }
    if (a->is_gated) *gate = MAKE(dtype, e, rows, cols);
    *up = MAKE(dtype, e, rows, cols);
}

static void make_scales(const tsr_moe_estimate_args *a, tsr_moe_forward_args *f) {
    const int64_t e = a->num_experts, of_i = (a->intermediate + 127) / 128,
                  of_h = (a->hidden + 127) / 128;
    if (a->has_block_scales) {
        make_pair(a, TSR_F32, of_i, of_h, &f->w_gate_scale, &f->w_up_scale);
        f->w_down_scale = MAKE(TSR_F32, e, of_h, of_i);
        return;
    }
    if (a->is_gated) f->w_gate_scale = MAKE(TSR_F32, e);
    f->w_up_scale = MAKE(TSR_F32, e);
    f->w_down_scale = MAKE(TSR_F32, e);
}

struct layer_calls {
    tsr_moe_forward_args forward;
    tsr_moe_backward_args backward;
};

#define FIELDS_OF(a)                                                                               \
    .top_k = (a)->top_k, .scoring = (a)->scoring, .activation = (a)->activation,                   \
    .weights_on_input = (a)->weights_on_input, .capacity = (a)->capacity,                          \
    .has_capacity = (a)->has_capacity

static void make_weights(const tsr_moe_estimate_args *a, tsr_dtype router, struct layer_calls *c) {
    const int64_t e = a->num_experts, i = a->intermediate, h = a->hidden,
                  s = a->shared_intermediate;
    tsr_moe_forward_args *f = &c->forward;
    f->router = MAKE(router, e, h);
    const tsr_dtype dtype = a->weight_dtype != TSR_DTYPE_NONE ? a->weight_dtype : a->dtype;
    make_pair(a, dtype, i, h, &f->w_gate, &f->w_up);
    f->w_down = MAKE(dtype, e, h, i);
    if (dtype == TSR_E4M3) make_scales(a, f);
    if (a->has_bias && a->is_gated) f->b_gate = MAKE(a->dtype, e, i);
    if (a->has_bias) f->b_up = MAKE(a->dtype, e, i);
    if (a->has_bias) f->b_down = MAKE(a->dtype, e, h);
    const bool is_shared_fp8 = s > 0 && a->shared_weight_dtype == TSR_E4M3;
    const tsr_dtype of_shared = is_shared_fp8 ? TSR_E4M3 : a->dtype;
    const int64_t of_h = (h + 127) / 128, of_s = (s + 127) / 128;
    if (s > 0 && a->is_gated) f->shared_w_gate = MAKE(of_shared, s, h);
    if (s > 0) f->shared_w_up = MAKE(of_shared, s, h);
    if (s > 0) f->shared_w_down = MAKE(of_shared, h, s);
    if (is_shared_fp8 && a->is_gated) f->shared_w_gate_scale = MAKE(TSR_F32, of_s, of_h);
    if (is_shared_fp8) f->shared_w_up_scale = MAKE(TSR_F32, of_s, of_h);
    if (is_shared_fp8) f->shared_w_down_scale = MAKE(TSR_F32, of_h, of_s);
    if (s > 0 && a->has_shared_gate) f->shared_gate = MAKE(a->dtype, h);
    c->backward =
        TSR_MOE_BACKWARD_ARGS(.router = f->router, .w_gate = f->w_gate, .w_up = f->w_up,
                              .w_down = f->w_down, .b_down = f->b_down,
                              .shared_w_gate = f->shared_w_gate, .shared_w_up = f->shared_w_up,
                              .shared_w_down = f->shared_w_down, .shared_gate = f->shared_gate,
                              FIELDS_OF(a));
}

static void make_gradients(const tsr_moe_estimate_args *a, tsr_dtype router,
                           struct layer_calls *c) {
    const int64_t e = a->num_experts, i = a->intermediate, h = a->hidden,
                  s = a->shared_intermediate;
    tsr_moe_backward_args *b = &c->backward;
    b->dy = MAKE(a->dtype, a->num_tokens, h);
    b->dx = MAKE(a->dtype, a->num_tokens, h);
    b->drouter = MAKE(router, e, h);
    make_pair(a, a->dtype, i, h, &b->dw_gate, &b->dw_up);
    b->dw_down = MAKE(a->dtype, e, h, i);
    if (a->has_bias && a->is_gated) b->db_gate = MAKE(a->dtype, e, i);
    if (a->has_bias) b->db_up = MAKE(a->dtype, e, i);
    if (a->has_bias) b->db_down = MAKE(a->dtype, e, h);
    if (s > 0 && a->is_gated) b->dshared_w_gate = MAKE(a->dtype, s, h);
    if (s > 0) b->dshared_w_up = MAKE(a->dtype, s, h);
    if (s > 0) b->dshared_w_down = MAKE(a->dtype, h, s);
    if (s > 0 && a->has_shared_gate) b->dshared_gate = MAKE(a->dtype, h);
}

// ---- Measured = predicted ---------------------------------------------------------------------

static size_t peak_of(const struct layer_calls *c, bool is_backward) {
    tsr_context_reset_peak(ctx);
    assert_ok(is_backward ? tsr_moe_backward(ctx, &c->backward)
                          : tsr_moe_forward(ctx, &c->forward));
    return tsr_context_peak_workspace_bytes(ctx);
}

static void check(const tsr_moe_estimate_args *a) {
    tsr_moe_memory m, got = {0};
    const tsr_dtype router = a->router_dtype != TSR_DTYPE_NONE ? a->router_dtype : a->dtype;
    struct layer_calls c = {.forward = TSR_MOE_FORWARD_ARGS(FIELDS_OF(a))};
    const int64_t rows = a->num_tokens * a->top_k,
                  limit = a->has_capacity ? a->num_experts * a->capacity : rows,
                  cols = a->is_gated ? 2 : 1;
    assert_ok(tsr_moe_estimate(ctx, a, &m));
    sum = &got.weight_bytes;
    make_weights(a, router, &c);
    sum = &got.activation_bytes;
    c.forward.x = c.backward.x = MAKE(a->dtype, a->num_tokens, a->hidden);
    const size_t x_bytes = got.activation_bytes;
    c.forward.y = MAKE(a->dtype, a->num_tokens, a->hidden);
    got.inference_workspace_bytes = peak_of(&c, false);
    if (a->weight_dtype == TSR_E4M3 ||
        (a->shared_weight_dtype == TSR_E4M3 && a->shared_intermediate > 0)) {
        got.inference_bytes =
            got.weight_bytes + got.activation_bytes + got.inference_workspace_bytes;
        assert_memory_equal(&m, &got, sizeof m); // what training needs is 0
        release_all();
        return;
    }
    sum = &got.saved_bytes;
    c.forward.preact = MAKE(a->dtype, limit < rows ? limit : rows, cols * a->intermediate);
    if (a->shared_intermediate > 0)
        c.forward.shared_preact = MAKE(a->dtype, a->num_tokens, cols * a->shared_intermediate);
    c.forward.topk_ids = MAKE(TSR_I32, a->num_tokens, a->top_k);
    c.forward.topk_weights = MAKE(TSR_F32, a->num_tokens, a->top_k);
    got.saved_bytes += x_bytes;
    got.forward_workspace_bytes = peak_of(&c, false);
    c.backward.preact = c.forward.preact;
    c.backward.shared_preact = c.forward.shared_preact;
    c.backward.topk_ids = c.forward.topk_ids;
    c.backward.topk_weights = c.forward.topk_weights;
    sum = &got.gradient_bytes;
    make_gradients(a, router, &c);
    got.backward_workspace_bytes = peak_of(&c, true);
    assert_int_equal(m.weight_bytes, got.weight_bytes);
    assert_int_equal(m.activation_bytes, got.activation_bytes);
    assert_int_equal(m.saved_bytes, got.saved_bytes);
    assert_int_equal(m.gradient_bytes, got.gradient_bytes);
    assert_int_equal(m.inference_workspace_bytes, got.inference_workspace_bytes);
    assert_int_equal(m.forward_workspace_bytes, got.forward_workspace_bytes);
    assert_int_equal(m.backward_workspace_bytes, got.backward_workspace_bytes);
    assert_int_equal(m.inference_bytes,
                     got.weight_bytes + got.activation_bytes + got.inference_workspace_bytes);
    const size_t workspace = got.forward_workspace_bytes > got.backward_workspace_bytes
                                 ? got.forward_workspace_bytes
                                 : got.backward_workspace_bytes;
    assert_int_equal(m.training_bytes, got.weight_bytes + got.activation_bytes + got.saved_bytes -
                                           x_bytes + got.gradient_bytes + workspace);
    release_all();
}

static int64_t below(uint64_t *seed, uint64_t count) { return (int64_t)(test_bits(seed) % count); }

static void calls_take_what_is_estimated(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    uint64_t seed = test_number("TESSERA_TEST_SEED", 20261201);
    const int64_t cases = (int64_t)test_number("TESSERA_TEST_CASES", TEST_IS_SLOW ? 20 : 100);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int64_t i = 0; i < cases; i++) {
        tsr_moe_estimate_args a = TSR_MOE_ESTIMATE_ARGS(.dtype = dtypes[i % 3]);
        if (below(&seed, 3) == 0) a.router_dtype = TSR_F32;
        a.is_gated = (int32_t)below(&seed, 2);
        a.is_joined = (int32_t)below(&seed, 2);
        a.has_bias = (int32_t)below(&seed, 2);
        a.num_tokens = below(&seed, 90);
        a.hidden = below(&seed, 70);
        a.intermediate = below(&seed, 50);
        a.num_experts = 1 + below(&seed, 9);
        a.top_k = 1 + below(&seed, (uint64_t)a.num_experts);
        a.scoring = (tsr_moe_scoring)below(&seed, 2);
        a.weights_on_input = below(&seed, 4) == 0;
        if (below(&seed, 2)) a.shared_intermediate = below(&seed, 40);
        a.has_shared_gate = (int32_t)below(&seed, 2);
        a.has_capacity = below(&seed, 3) == 0;
        if (a.has_capacity) a.capacity = 1 + below(&seed, 30);
        if (below(&seed, 3) == 0) a.activation = TSR_ACTIVATION_RELU;
        if (below(&seed, 6) == 0) a.shared_weight_dtype = TSR_E4M3;
        if (below(&seed, 4) == 0) {
            a.weight_dtype = TSR_E4M3;
            a.has_block_scales = (int32_t)below(&seed, 2);
            if (below(&seed, 2)) a.hidden += 128, a.intermediate = 256;
        }
        check(&a);
    }
}

// ---- What is kept, and what is refused ----------------------------------------------------------

static void backward_keeps_x_and_preact(void **state) {
    (void)state;
    tsr_moe_memory m;
    const size_t tokens = 32768, hidden = 4096, inner = 1024, k = 8;
    assert_ok(tsr_moe_estimate(ctx,
                               &TSR_MOE_ESTIMATE_ARGS(.dtype = TSR_BF16, .is_gated = 1,
                                                      .num_tokens = 32768, .hidden = 4096,
                                                      .intermediate = 1024, .num_experts = 128,
                                                      .top_k = 8),
                               &m));
    assert_int_equal(m.saved_bytes, 2 * tokens * (hidden + 2 * k * inner) + 8 * tokens * k);
}

static void estimate_refuses(void **state) {
    (void)state;
    tsr_moe_memory m;
    const tsr_moe_estimate_args args =
        TSR_MOE_ESTIMATE_ARGS(.dtype = TSR_F32, .num_tokens = 9, .hidden = 8, .intermediate = 7,
                              .num_experts = 6, .top_k = 2);
    assert_ok(tsr_moe_estimate(ctx, &args, &m));
#define REFUSED(change, ...)                                                                       \
    do {                                                                                           \
        tsr_moe_estimate_args bad = args;                                                          \
        bad.change;                                                                                \
        assert_status(tsr_moe_estimate(ctx, &bad, &m), TSR_INVALID_ARGUMENT, __VA_ARGS__);         \
    } while (0)
    REFUSED(dtype = TSR_I32, "moe_estimate", "dtype");
    REFUSED(router_dtype = TSR_I32, "moe_estimate", "router_dtype");
    REFUSED(shared_weight_dtype = TSR_BF16, "moe_estimate", "shared_weight_dtype is bf16");
    REFUSED(weight_dtype = TSR_E5M2, "moe_estimate", "weight_dtype is e5m2, expected none or e4m3");
    REFUSED(router_dtype = TSR_F16, "router");
    REFUSED(num_experts = 0, "num_experts");
    REFUSED(num_experts = 1025, "experts", "1024");
    REFUSED(top_k = 0, "top_k");
    REFUSED(top_k = 7, "top_k");
    REFUSED(num_tokens = -1, "num_tokens");
    REFUSED(hidden = INT64_C(1) << 50, "hidden", "2^48");
    REFUSED(intermediate = INT64_MAX, "intermediate", "2^48");
    REFUSED(shared_intermediate = INT64_C(1) << 47, "shared_intermediate", "2^48");
    REFUSED(num_tokens = INT64_C(1) << 40, "assignments");
    REFUSED(scoring = (tsr_moe_scoring)9, "scoring");
    REFUSED(activation = (tsr_activation)99, "activation");
    REFUSED(has_capacity = 1, "capacity");
    REFUSED(variant = "nonsense", "variant");
    assert_status(tsr_moe_estimate(NULL, &args, &m), TSR_INVALID_ARGUMENT, "ctx");
    assert_status(tsr_moe_estimate(ctx, &args, NULL), TSR_INVALID_ARGUMENT, "memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_take_what_is_estimated),
        cmocka_unit_test(backward_keeps_x_and_preact),
        cmocka_unit_test(estimate_refuses),
    };
    ctx = test_context(2);
    const int failed = cmocka_run_group_tests_name("moe_estimate", tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
