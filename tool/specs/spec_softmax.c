// SPDX-License-Identifier: Apache-2.0
// Softmax for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32

static const struct param_spec params[] = {
    {"rows", "rows, each normalised by itself", PARAM_SIZE, 4096, NULL},
    {"cols", "elements of a row", PARAM_SIZE, 4096, NULL},
    {0},
};

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    (void)slot;
    shape[0] = (int64_t)c->param[0];
    shape[1] = (int64_t)c->param[1];
    return 2;
}

static bool infer(struct op_case *c) {
    if (c->tensor[0].ndim != 2) return false;
    c->param[0] = (double)c->tensor[0].shape[0];
    c->param[1] = (double)c->tensor[0].shape[1];
    return true;
}

static void randomize(struct rng *rng, struct op_case *c) {
    int64_t cols = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 5000);
    c->param[0] = (double)rng_dim(rng, cols > 2000 ? 4 : 20);
    c->param[1] = (double)cols;
}

static const struct edge_case edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=7 cols=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"50,257 columns", "rows=2 cols=50257", FILL_NORMAL, LAYOUT_RANDOM},
    {"2,000 columns", "rows=2 cols=2000", FILL_NORMAL, LAYOUT_RANDOM},
    {"4,000 columns", "rows=2 cols=4000", FILL_NORMAL, LAYOUT_RANDOM},
    {"8,000 columns", "rows=2 cols=8000", FILL_NORMAL, LAYOUT_RANDOM},
    {"16,000 columns", "rows=2 cols=16000", FILL_NORMAL, LAYOUT_RANDOM},
    {"24,000 columns", "rows=2 cols=24000", FILL_NORMAL, LAYOUT_RANDOM},
    {"300,001 columns", "rows=2 cols=300001", FILL_NORMAL, LAYOUT_RANDOM},
    {"large logits", "rows=9 cols=301", FILL_LARGE, LAYOUT_RANDOM},
    {"huge logits", "rows=9 cols=301", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "rows=40 cols=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"rows of -inf", "rows=9 cols=301", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"wide rows of -inf", "rows=3 cols=70001", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN in some rows", "rows=40 cols=301", FILL_NAN, LAYOUT_RANDOM},
    {"huge common logit", "rows=9 cols=301", FILL_SHIFTED, LAYOUT_RANDOM},
    {"equal logits", "rows=3 cols=1000", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 cols=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

// ---- Forward: x -> y --------------------------------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {"x", SLOT_IN, SLOT_MAIN, false, NULL},
    {"y", SLOT_OUT, SLOT_MAIN, false, NULL},
    {0},
};

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                 .workspace_bytes = given_bytes, .x = c->tensor[0],
                                 .y = c->tensor[1]);
    return workspace_bytes != NULL ? tsr_softmax_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_softmax_forward(ctx, &args);
}

// An exponential, an addition, a maximum, two multiplications per element; exp counts as 10.
static double forward_flops(const struct op_case *c) { return 14 * c->param[0] * c->param[1]; }

// (8 + 2|x - m| + sqrt(cols)) u relative: the argument's rounding, the polynomial, the sum. 16-bit dtypes use a
// polynomial of lower degree, which adds 49 u in the exponential and 49 u in the sum.
static void forward_bound(const struct op_case *c, int slot, double *bound) {
    (void)slot;
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    const double *x = c->tensor[0].data, *y = c->tensor[1].data;
    double fixed = 8 + (c->dtype == TSR_F32 ? 0 : 100) + sqrt((double)cols);
    for (int64_t r = 0; r < rows; r++, x += cols, y += cols, bound += cols) {
        double max = -INFINITY;
        for (int64_t i = 0; i < cols; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < cols; i++)
            bound[i] = y[i] == 0 ? 0x1p-126 // exp underflows; subnormals may be flushed
                                 : y[i] * (fixed + 2 * fabs(x[i] - max)) * u32 + 0x1p-126;
    }
}

static const char *const standard[] = {"rows=1024 cols=1024", "rows=2048 cols=2048",
                                       "rows=4096 cols=4096", "rows=8192 cols=8192", NULL};

const struct op_spec softmax_forward_spec = {
    .op = "softmax_forward",
    .command = "softmax",
    .pass = "forward",
    .params = params,
    .slots = forward_slots,
    .shape = shape,
    .infer = infer,
    .call = forward_call,
    .flops = forward_flops,
    .randomize = randomize,
    .bound = forward_bound,
    .edges = edges,
    .standard = standard,
    .baseline = "unfused",
};

// ---- Backward: y, dy -> dx --------------------------------------------------------------------

static const struct slot_spec backward_slots[] = {
    {"y", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dy", SLOT_IN, SLOT_MAIN, false, NULL},
    {"dx", SLOT_OUT, SLOT_MAIN, false, NULL, false, "x"},
    {0},
};

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_softmax_backward_args args =
        TSR_SOFTMAX_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                  .workspace_bytes = given_bytes, .y = c->tensor[0],
                                  .dy = c->tensor[1], .dx = c->tensor[2]);
    return workspace_bytes != NULL ? tsr_softmax_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_softmax_backward(ctx, &args);
}

static double backward_flops(const struct op_case *c) { return 4 * c->param[0] * c->param[1]; }

// y is a row of probabilities: exponentials divided by their sum, also for fills that are not finite.
static bool backward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    if (slot != 0 || fill == FILL_NAN) return false;
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    for (int64_t r = 0; r < rows; r++, values += cols) {
        double sum = 0;
        for (int64_t i = 0; i < cols; i++) sum += values[i] = exp(rng_normal(rng));
        for (int64_t i = 0; i < cols; i++) values[i] /= sum;
    }
    return true;
}

static void backward_bound(const struct op_case *c, int slot, double *bound) {
    (void)slot;
    int64_t rows = (int64_t)c->param[0], cols = (int64_t)c->param[1];
    const double *y = c->tensor[0].data, *dy = c->tensor[1].data;
    for (int64_t r = 0; r < rows; r++, y += cols, dy += cols, bound += cols) {
        double magnitude = 0;
        for (int64_t i = 0; i < cols; i++) magnitude += fabs(y[i] * dy[i]);
        for (int64_t i = 0; i < cols; i++)
            bound[i] =
                (8 + sqrt((double)cols)) * u32 * fabs(y[i]) * (fabs(dy[i]) + magnitude) + 0x1p-126;
    }
}

static const struct edge_case backward_edges[] = {
    {"zero rows", "rows=0 cols=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"zero columns", "rows=5 cols=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one column", "rows=7 cols=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"50,257 columns", "rows=2 cols=50257", FILL_NORMAL, LAYOUT_RANDOM},
    {"1,000 columns", "rows=2 cols=1000", FILL_NORMAL, LAYOUT_RANDOM},
    {"2,000 columns", "rows=2 cols=2000", FILL_NORMAL, LAYOUT_RANDOM},
    {"4,000 columns", "rows=2 cols=4000", FILL_NORMAL, LAYOUT_RANDOM},
    {"8,000 columns", "rows=2 cols=8000", FILL_NORMAL, LAYOUT_RANDOM},
    {"16,000 columns", "rows=2 cols=16000", FILL_NORMAL, LAYOUT_RANDOM},
    {"large gradients", "rows=9 cols=301", FILL_LARGE, LAYOUT_RANDOM},
    {"infinite gradients", "rows=40 cols=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"no gradients", "rows=9 cols=301", FILL_ZERO, LAYOUT_RANDOM},
    {"NaN in some rows", "rows=40 cols=301", FILL_NAN, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 cols=33", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 cols=256", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 cols=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

const struct op_spec softmax_backward_spec = {
    .op = "softmax_backward",
    .command = "softmax",
    .pass = "backward",
    .params = params,
    .slots = backward_slots,
    .shape = shape,
    .infer = infer,
    .call = backward_call,
    .flops = backward_flops,
    .randomize = randomize,
    .fill = backward_fill,
    .bound = backward_bound,
    .edges = backward_edges,
    .standard = standard,
    .baseline = "unfused",
};
