// SPDX-License-Identifier: Apache-2.0
// The study of the mixture-of-experts layer: forward, backward and the router's parts at three numbers of tokens. All three
// shrink by the same factor, because otherwise the table would show how its rows were shrunk.
#include <math.h>
#include <string.h>

#include "measure/measure_session.h"
#include "report/report_collect.h"

enum { NUM_COUNTS = 3, LEAST_TOKENS = 2048 };
static const int counts[NUM_COUNTS] = {4 * 512, 16 * 2048, 32 * 2048};

static const char shape[] = "hidden=4096 intermediate=11008 experts=32 top_k=2 +router";

static tsr_dtype dtype_of(const struct collector *k) {
    if (k->options->dtype != NULL) return tsr_dtype_from_name(k->options->dtype);
    return k->options->device.type == TSR_CPU ? TSR_F32 : TSR_BF16;
}

static bool make_case(struct collector *k, const char *op, const char *extra, int tokens,
                      struct op_case *c) {
    char params[200];
    snprintf(params, sizeof params, "tokens=%d %s%s", tokens, shape, extra);
    return collector_case(k, op, dtype_of(k), params, c);
}

static const char gradients[] = " +dx +drouter +dw_up +dw_down";

// Halves the tokens of the largest member down to some thousands, then the width of the layer, until its backward pass fits.
static bool fit(struct collector *k, struct op_case *c) {
    if (!make_case(k, "moe_backward", gradients, counts[NUM_COUNTS - 1], c)) return false;
    const int tokens = spec_param(c->spec, "tokens"), hidden = spec_param(c->spec, "hidden"),
              inter = spec_param(c->spec, "intermediate");
    // On a GPU the weights are the most of it, and they are drawn as a few elements, repeated.
    const bool is_gpu = k->options->device.type != TSR_CPU && !k->options->is_quick;
    const double most_bytes = is_gpu ? 4 * k->most_bytes : k->most_bytes;
    for (;;) {
        const double floor_s =
            measure_floor_s(k->session, c, measure_fma_ceiling(k->session), true);
        if (2 * case_bytes(c) < most_bytes && floor_s < 2 * k->longest_study_s) return true;
        if (c->param[tokens] > LEAST_TOKENS) {
            c->param[tokens] = ceil(c->param[tokens] / 2);
        } else if (c->param[hidden] > 64) {
            c->param[hidden] /= 2;
            c->param[inter] /= 2;
        } else {
            return true;
        }
    }
}

static void copy_sizes(struct op_case *to, const struct op_case *fitted) {
    static const char *const names[] = {"hidden", "intermediate"};
    const double share = case_real(fitted, "tokens") / counts[NUM_COUNTS - 1];
    const int tokens = spec_param(to->spec, "tokens");
    to->param[tokens] = fmax(ceil(to->param[tokens] * share), 1);
    for (int i = 0; i < 2; i++)
        to->param[spec_param(to->spec, names[i])] = case_real(fitted, names[i]);
}

static void visit_case(struct collector *k, visitor *visit, int *count, struct report_case *given,
                       const char *study) {
    if (visit == NULL) {
        ++*count;
        return;
    }
    given->study = study;
    given->num_variants = 1;
    given->variants[0] = NULL;
    visit(k, given);
}

// The product with the router and the choice of experts, as calls of their own.
static void visit_router(struct collector *k, visitor *visit, int *count,
                         const struct op_case *layer) {
    char params[160];
    struct report_case product = {.num_variants = 0}, route = {.num_variants = 0};
    const int tokens = (int)case_int(layer, "tokens"), experts = (int)case_int(layer, "experts");
    snprintf(params, sizeof params, "m=%d n=%d k=%d transpose_b=1", tokens, experts,
             (int)case_int(layer, "hidden"));
    if (!collector_case(k, "matmul_forward", layer->dtype, params, &product.c)) return;
    product.c.small_dtype = TSR_F32;
    snprintf(params, sizeof params, "tokens=%d num_experts=%d top_k=%d", tokens, experts,
             (int)case_int(layer, "top_k"));
    if (!collector_case(k, "moe_route_forward", TSR_F32, params, &route.c)) return;
    product.asked = product.c;
    route.asked = route.c;
    visit_case(k, visit, count, &product, "moe");
    visit_case(k, visit, count, &route, "moe");
}

// A dense product with as many FLOPs as the layer's first one.
static void visit_dense(struct collector *k, visitor *visit, int *count,
                        const struct op_case *layer) {
    char params[160];
    struct report_case dense = {.num_variants = 0};
    snprintf(params, sizeof params, "m=%d n=%d k=%d transpose_b=1",
             (int)(case_int(layer, "tokens") * case_int(layer, "top_k")),
             (int)case_int(layer, "intermediate"), (int)case_int(layer, "hidden"));
    if (!collector_case(k, "matmul_forward", layer->dtype, params, &dense.c)) return;
    dense.asked = dense.c;
    visit_case(k, visit, count, &dense, "moe-dense");
}

// Where the tokens of a case go: its router over random tokens, with experts of one column.
static void collect_routing(struct collector *k, const struct op_case *layer) {
    struct report *report = k->report;
    struct inputs inputs;
    struct op_case c = *layer;
    tsr_context *ctx;
    if (report->num_routings == REPORT_MAX_ROUTINGS) return;
    c.param[spec_param(c.spec, "intermediate")] = 1;
    const int balance = spec_slot(c.spec, "load_balance_loss");
    const int variance = spec_slot(c.spec, "usage_variance");
    c.is_present[balance] = c.is_present[variance] = true;
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = k->options->num_threads), &ctx) !=
        TSR_OK)
        return;
    if (inputs_create(&inputs, &c, 1)) {
        if (c.spec->call(ctx, &inputs.c, NULL, NULL, 0, NULL) == TSR_OK)
            report->routings[report->num_routings++] = (struct report_routing){
                case_real(&c, "tokens"), tsr_load(TSR_F32, inputs.c.tensor[balance].data, 0),
                tsr_load(TSR_F32, inputs.c.tensor[variance].data, 0)};
        inputs_release(&inputs);
    }
    tsr_context_destroy(ctx);
}

void walk_moe(struct collector *k, visitor *visit, int *count) {
    struct op_case fitted;
    if (visit != NULL && !fit(k, &fitted)) return;
    for (int i = 0; i < NUM_COUNTS; i++) {
        struct report_case forward = {.num_variants = 0}, backward = {.num_variants = 0};
        if (!make_case(k, "moe_forward", "", counts[i], &forward.asked) ||
            !make_case(k, "moe_backward", gradients, counts[i], &backward.asked))
            return;
        forward.c = forward.asked;
        backward.c = backward.asked;
        if (visit != NULL) copy_sizes(&forward.c, &fitted);
        if (visit != NULL) copy_sizes(&backward.c, &fitted);
        visit_case(k, visit, count, &forward, "moe");
        visit_case(k, visit, count, &backward, "moe");
        visit_router(k, visit, count, &forward.c);
        if (i == NUM_COUNTS - 1) visit_dense(k, visit, count, &forward.c);
        if (visit != NULL && !k->report->is_stopped_early) collect_routing(k, &forward.c);
    }
}
