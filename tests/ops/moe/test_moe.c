// SPDX-License-Identifier: Apache-2.0
// The layer of a mixture of experts against its definition, which moe_case.h repeats: the variants share one composition
// with the oracle, so the oracle itself must be checked. Gradients are compared with differences of the loss, in f64.
#include "moe_case.h"

static tsr_context *ctx;

// ---- Layers -----------------------------------------------------------------------------------

static bool draw_chance(uint64_t *seed, double share) {
    return (double)(test_bits(seed) >> 11) * 0x1p-53 < share;
}

static struct layer_options draw_options(uint64_t *seed) {
    struct layer_options o = {.source = (enum source)(test_bits(seed) % 3), .scaling = 1};
    o.is_gated = draw_chance(seed, 0.7);
    o.has_biases = draw_chance(seed, 0.5);
    o.has_shared = draw_chance(seed, 0.5);
    o.has_shared_gate = o.has_shared && draw_chance(seed, 0.5);
    o.has_residual = draw_chance(seed, 0.5);
    o.is_on_input = draw_chance(seed, 0.25);
    if (draw_chance(seed, 0.3)) o.capacity = 1 + (int)(test_bits(seed) % 4);
    if (draw_chance(seed, 0.5))
        o.activation = (tsr_activation)(1 + test_bits(seed) % (TSR_ACTIVATION_COUNT - 1));
    if (!o.is_gated && o.activation == TSR_ACTIVATION_SWIGLU_CLAMPED)
        o.activation = TSR_ACTIVATION_RELU2;
    if (o.source == FROM_IDS) return o;
    o.has_correction = draw_chance(seed, 0.3);
    o.is_sigmoid = draw_chance(seed, 0.5);
    o.is_raw = draw_chance(seed, 0.3);
    if (draw_chance(seed, 0.3)) o.scaling = 2.5;
    if (draw_chance(seed, 0.5)) o.dbalance = 0.3;
    if (draw_chance(seed, 0.5)) o.dz = 0.2;
    return o;
}

static void draw(void *values, size_t bytes, double scale, uint64_t *seed) {
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        ((double *)values)[i] = scale * (double)test_float(seed) / 4;
}

static void draw_layer(struct layer *m, struct layer_inputs *in, int32_t (*ids)[TOP_K],
                       uint64_t *seed) {
    draw(m, sizeof *m, 1.5, seed);
    draw(in, sizeof *in, 1, seed);
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP_K; k++) ids[t][k] = (int32_t)(test_bits(seed) % (EXPERTS + 1)) - 1;
}

// ---- Calls ------------------------------------------------------------------------------------

#define OF(object, ...) TSR_TENSOR(object, TSR_F64, __VA_ARGS__)
#define IF(condition, tensor) ((condition) ? (tensor) : (tsr_tensor){0})
#define LAYER_OPTIONS(o)                                                                           \
    .top_k = TOP_K, .scoring = (o)->is_sigmoid ? TSR_MOE_SIGMOID : TSR_MOE_SOFTMAX,                \
    .no_renormalize = (o)->is_raw, .routed_scaling = (float)(o)->scaling, .has_routed_scaling = 1, \
    .activation = (o)->activation, .weights_on_input = (o)->is_on_input,                           \
    .capacity = (o)->capacity, .has_capacity = (o)->capacity > 0
#define LAYER_TENSORS(o, m)                                                                        \
    .x = OF((m)->x, TOKENS, HIDDEN),                                                               \
    .router = IF((o)->source == FROM_ROUTER, OF((m)->router, EXPERTS, HIDDEN)),                    \
    .logits_bias =                                                                                 \
        IF((o)->source == FROM_ROUTER && (o)->has_biases, OF((m)->logits_bias, EXPERTS)),          \
    .logits = IF((o)->source == FROM_LOGITS, OF((m)->logits, TOKENS, EXPERTS)),                    \
    .w_gate = IF((o)->is_gated, OF((m)->w_gate, EXPERTS, INNER, HIDDEN)),                          \
    .w_up = OF((m)->w_up, EXPERTS, INNER, HIDDEN),                                                 \
    .w_down = OF((m)->w_down, EXPERTS, HIDDEN, INNER),                                             \
    .b_down = IF((o)->has_biases, OF((m)->b_down, EXPERTS, HIDDEN)),                               \
    .shared_w_gate = IF((o)->has_shared && (o)->is_gated, OF((m)->shared_w_gate, SHARED, HIDDEN)), \
    .shared_w_up = IF((o)->has_shared, OF((m)->shared_w_up, SHARED, HIDDEN)),                      \
    .shared_w_down = IF((o)->has_shared, OF((m)->shared_w_down, HIDDEN, SHARED)),                  \
    .shared_gate = IF((o)->has_shared_gate, OF((m)->shared_gate, HIDDEN))

enum { MOST_ROWS = TOKENS * TOP_K };
struct saved {
    double preact[MOST_ROWS][2 * INNER], shared_preact[TOKENS][2 * SHARED];
    int32_t ids[TOKENS][TOP_K], counts[EXPERTS], dropped;
    double weights[TOKENS][TOP_K], y[TOKENS][HIDDEN], balance, z;
};

static int64_t rows_of(const struct layer_options *o) {
    const int most = EXPERTS * o->capacity;
    return o->capacity > 0 && most < MOST_ROWS ? most : MOST_ROWS;
}

static tsr_moe_forward_args forward_args(const struct layer_options *o, struct layer *m,
                                         struct layer_inputs *in, struct saved *s, bool is_saving) {
    const bool is_routed = o->source != FROM_IDS;
    const int64_t halves = o->is_gated ? 2 : 1;
    return TSR_MOE_FORWARD_ARGS(.variant = "reference", LAYER_TENSORS(o, m), LAYER_OPTIONS(o),
                                .correction_bias =
                                    IF(o->has_correction, OF(in->correction, EXPERTS)),
                                .b_gate =
                                    IF(o->has_biases && o->is_gated, OF(m->b_gate, EXPERTS, INNER)),
                                .b_up = IF(o->has_biases, OF(m->b_up, EXPERTS, INNER)),
                                .residual = IF(o->has_residual, OF(in->residual, TOKENS, HIDDEN)),
                                .y = OF(s->y, TOKENS, HIDDEN),
                                .preact = IF(is_saving, OF(s->preact, rows_of(o), halves * INNER)),
                                .shared_preact = IF(is_saving && o->has_shared,
                                                    OF(s->shared_preact, TOKENS, halves * SHARED)),
                                .topk_ids = TSR_TENSOR(s->ids, TSR_I32, TOKENS, TOP_K),
                                .topk_weights = OF(s->weights, TOKENS, TOP_K),
                                .tokens_per_expert = TSR_TENSOR(s->counts, TSR_I32, EXPERTS),
                                .num_dropped = TSR_TENSOR(&s->dropped, TSR_I32, 1),
                                .load_balance_loss = IF(is_routed, OF(&s->balance, 1)),
                                .z_loss = IF(is_routed, OF(&s->z, 1)));
}

static tsr_moe_backward_args backward_args(const struct layer_options *o, struct layer *m,
                                           struct layer_inputs *in, struct saved *s,
                                           struct layer *d, double *dlosses) {
    const bool is_routed = o->source != FROM_IDS, has_router = o->source == FROM_ROUTER;
    const int64_t halves = o->is_gated ? 2 : 1;
    return TSR_MOE_BACKWARD_ARGS(
            .variant = "reference", LAYER_TENSORS(o, m), LAYER_OPTIONS(o),
            .preact = OF(s->preact, rows_of(o), halves * INNER),
            .shared_preact = IF(o->has_shared, OF(s->shared_preact, TOKENS, halves * SHARED)),
            .topk_ids = TSR_TENSOR(s->ids, TSR_I32, TOKENS, TOP_K),
            .topk_weights = OF(s->weights, TOKENS, TOP_K), .dy = OF(in->dy, TOKENS, HIDDEN),
            .dload_balance_loss = IF(is_routed && o->dbalance != 0, OF(dlosses, 1)),
            .dz_loss = IF(is_routed && o->dz != 0, OF(dlosses + 1, 1)),
            .dx = OF(d->x, TOKENS, HIDDEN),
            .drouter = IF(has_router, OF(d->router, EXPERTS, HIDDEN)),
            .dlogits_bias = IF(has_router && o->has_biases, OF(d->logits_bias, EXPERTS)),
            .dlogits = IF(o->source == FROM_LOGITS, OF(d->logits, TOKENS, EXPERTS)),
            .dtopk_weights = IF(!is_routed, OF(d->weights, TOKENS, TOP_K)),
            .dw_gate = IF(o->is_gated, OF(d->w_gate, EXPERTS, INNER, HIDDEN)),
            .dw_up = OF(d->w_up, EXPERTS, INNER, HIDDEN),
            .dw_down = OF(d->w_down, EXPERTS, HIDDEN, INNER),
            .db_gate = IF(o->has_biases && o->is_gated, OF(d->b_gate, EXPERTS, INNER)),
            .db_up = IF(o->has_biases, OF(d->b_up, EXPERTS, INNER)),
            .db_down = IF(o->has_biases, OF(d->b_down, EXPERTS, HIDDEN)),
            .dshared_w_gate =
                IF(o->has_shared && o->is_gated, OF(d->shared_w_gate, SHARED, HIDDEN)),
            .dshared_w_up = IF(o->has_shared, OF(d->shared_w_up, SHARED, HIDDEN)),
            .dshared_w_down = IF(o->has_shared, OF(d->shared_w_down, HIDDEN, SHARED)),
            .dshared_gate = IF(o->has_shared_gate, OF(d->shared_gate, HIDDEN)));
}

// ---- Tests ------------------------------------------------------------------------------------

static void assert_near(const char *what, const void *got, const void *expected, size_t bytes,
                        double tolerance) {
    const double *x = got, *y = expected;
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        if (!(fabs(x[i] - y[i]) <= tolerance * (1 + fabs(y[i]))))
            fail_msg("%s: element %zu is %.12g, expected %.12g", what, i, x[i], y[i]);
}

static void run_forward(const struct layer_options *o, struct layer *m, struct layer_inputs *in,
                        struct saved *s, bool is_saving, struct layer_outputs *expected) {
    tsr_moe_forward_args args = forward_args(o, m, in, s, is_saving);
    memcpy(s->weights, m->weights, sizeof s->weights);
    memcpy(expected->ids, s->ids, sizeof s->ids);
    assert_ok(tsr_moe_forward(ctx, &args));
    layer_define(o, m, in, o->source == FROM_IDS, expected);
    assert_near("y", s->y, expected->y, sizeof s->y, 1e-12);
    assert_memory_equal(s->ids, expected->ids, sizeof s->ids);
    assert_memory_equal(s->counts, expected->counts, sizeof s->counts);
    assert_int_equal(s->dropped, expected->dropped);
    assert_near("weights", s->weights, expected->weights, sizeof s->weights, 1e-12);
    if (o->source == FROM_IDS) return;
    assert_near("load_balance_loss", &s->balance, &expected->balance, sizeof s->balance, 1e-12);
    assert_near("z_loss", &s->z, &expected->z, sizeof s->z, 1e-12);
}

static double moved_loss(const struct layer_options *o, struct layer *m, struct layer_inputs *in,
                         double *value, double step, struct layer_outputs *out) {
    const double before = *value;
    *value = before + step;
    const double loss = layer_define(o, m, in, true, out);
    *value = before;
    return loss;
}

// Which numbers have a gradient in this layer; others keep what they had.
static void check_gradients(const struct layer_options *o, struct layer *m, struct layer_inputs *in,
                            const struct layer *d, struct layer_outputs *out) {
    const bool has_router = o->source == FROM_ROUTER, gated = o->is_gated, biased = o->has_biases;
#define PART(field, condition)                                                                     \
    { #field, offsetof(struct layer, field), sizeof m->field, (condition) }
    const struct {
        const char *name;
        size_t at, bytes;
        bool is_there;
    } parts[] = {
        PART(router, has_router),
        PART(logits, o->source == FROM_LOGITS),
        PART(weights, o->source == FROM_IDS),
        PART(logits_bias, has_router && biased),
        PART(x, true),
        PART(w_gate, gated),
        PART(w_up, true),
        PART(w_down, true),
        PART(b_gate, gated && biased),
        PART(b_up, biased),
        PART(b_down, biased),
        PART(shared_w_gate, o->has_shared && gated),
        PART(shared_w_up, o->has_shared),
        PART(shared_w_down, o->has_shared),
        PART(shared_gate, o->has_shared_gate),
    };
    const double h = 1e-5;
    for (int p = 0; p < COUNT(parts); p++)
        for (size_t i = 0; parts[p].is_there && i < parts[p].bytes / sizeof(double); i++) {
            double *value = (double *)(void *)((char *)m + parts[p].at) + i;
            const double up = moved_loss(o, m, in, value, h, out);
            const double difference = (up - moved_loss(o, m, in, value, -h, out)) / (2 * h);
            const double got = ((const double *)(const void *)((const char *)d + parts[p].at))[i];
            if (!(fabs(got - difference) < 1e-6 * (1 + fabs(difference))))
                fail_msg("d%s, element %zu: %.10g, expected %.10g", parts[p].name, i, got,
                         difference);
        }
}

static void layers_are_their_definition(void **state) {
    (void)state;
    static struct layer m, d;
    static struct layer_inputs in;
    static struct saved s;
    static struct layer_outputs expected;
    const int cases = (int)test_number("TESSERA_TEST_CASES", 60);
    uint64_t seed = test_number("TESSERA_TEST_SEED", 1);
    for (int i = 0; i < cases; i++) {
        const uint64_t at = seed;
        const struct layer_options o = draw_options(&seed);
        draw_layer(&m, &in, s.ids, &seed);
        print_message("layer %d, TESSERA_TEST_SEED=%llu\n", i, (unsigned long long)at);
        run_forward(&o, &m, &in, &s, false, &expected);
        run_forward(&o, &m, &in, &s, true, &expected);
        memset(&d, 0xff, sizeof d); // NaN
        double dlosses[2] = {o.dbalance, o.dz};
        tsr_moe_backward_args backward = backward_args(&o, &m, &in, &s, &d, dlosses);
        assert_ok(tsr_moe_backward(ctx, &backward));
        check_gradients(&o, &m, &in, &d, &expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_are_their_definition)};
    ctx = test_context(1);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
