// SPDX-License-Identifier: Apache-2.0
// Cross-entropy for verify, bench, apply and report.
#include <math.h>

#include "specs/spec.h"

static const double u32 = 0x1p-24; // unit roundoff of fp32

static const struct param_spec params[] = {
    {"rows", "tokens, each with its own loss", PARAM_SIZE, 1024, NULL},
    {"vocab", "classes", PARAM_SIZE, 50257, NULL},
    {"label_smoothing", "share of the target spread over all classes", PARAM_REAL, 0, NULL,
     PARAM_FLOAT},
    {"ignore_index", "target without a loss", PARAM_INT, -100, NULL, .least = INT32_MIN,
     .most = INT32_MAX},
    {0},
};

enum { LOGITS, TARGETS, LSE_OR_LOSS, FOURTH, DLOGITS };

static int shape(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = (int64_t)c->param[0];
    shape[1] = (int64_t)c->param[1];
    return slot == LOGITS || slot == DLOGITS ? 2 : 1;
}

static bool infer(struct op_case *c) {
    if (c->tensor[LOGITS].ndim != 2) return false;
    c->param[0] = (double)c->tensor[LOGITS].shape[0];
    c->param[1] = (double)c->tensor[LOGITS].shape[1];
    return true;
}

static void randomize(struct rng *rng, struct op_case *c) {
    int64_t vocab = rng_dim(rng, rng_chance(rng, 0.05) ? 60000 : 5000);
    c->param[0] = (double)rng_dim(rng, vocab > 2000 ? 4 : 20);
    c->param[1] = (double)vocab;
    c->param[2] = rng_chance(rng, 0.6) ? 0 : 0.9 * rng_uniform(rng);
    if (rng_chance(rng, 0.2)) c->param[3] = (double)rng_int(rng, -2, vocab);
    c->is_present[FOURTH] = true;
}

// Targets are classes, one in eight is ignore_index; FILL_SPECIAL ignores every row.
static bool fill_targets(struct rng *rng, const struct op_case *c, enum edge_fill fill,
                         double *values) {
    int64_t vocab = (int64_t)c->param[1];
    bool is_ignored = fill == FILL_SPECIAL || vocab == 0;
    for (int64_t r = 0; r < (int64_t)c->param[0]; r++)
        values[r] =
            is_ignored || rng_chance(rng, 0.125) ? c->param[3] : (double)rng_int(rng, 0, vocab - 1);
    return true;
}

static bool is_ignored(const struct op_case *c, int64_t row) {
    return tsr_load(TSR_I32, c->tensor[TARGETS].data, row) == c->param[3];
}

static float smoothing(const struct op_case *c) { return (float)c->param[2]; }
static int ignore_index(const struct op_case *c) { return (int)c->param[3]; }
static int has_ignore_index(const struct op_case *c) { return c->param[3] != -100; }

// ---- Forward: logits, targets -> loss, [lse] --------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {"logits", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"targets", SLOT_IN, SLOT_I32, false, NULL, false},
    {"loss", SLOT_OUT, SLOT_F32, false, NULL, false},
    {"lse", SLOT_OUT, SLOT_F32, true, NULL, false},
    {0},
};

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_cross_entropy_forward_args args =
        TSR_CROSS_ENTROPY_FORWARD_ARGS(.flags = c->flags, .variant = variant,
                                       .workspace = workspace, .workspace_bytes = given_bytes,
                                       .logits = c->tensor[LOGITS], .targets = c->tensor[TARGETS],
                                       .loss = c->tensor[LSE_OR_LOSS], .lse = c->tensor[FOURTH],
                                       .ignore_index = ignore_index(c),
                                       .has_ignore_index = has_ignore_index(c),
                                       .label_smoothing = smoothing(c));
    return workspace_bytes != NULL ? tsr_cross_entropy_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_cross_entropy_forward(ctx, &args);
}

// A maximum, a difference, an exponential (10), an addition.
static double forward_flops(const struct op_case *c) { return 13 * c->param[0] * c->param[1]; }

static bool forward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    return slot == TARGETS && fill_targets(rng, c, fill, values);
}

// The bound in tessera/cross_entropy.h.
static void forward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t rows = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    const double *x = c->tensor[LOGITS].data, blocks = sqrt(fmin((double)vocab, 2048));
    for (int64_t r = 0; r < rows; r++, x += vocab) {
        double max = -INFINITY, sum = 0, weighted = 0, spread = 0;
        for (int64_t i = 0; i < vocab; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < vocab; i++) {
            double e = exp(x[i] - max);
            sum += e;
            if (e > 0) weighted += e * (max - x[i]);
            spread += (max - x[i]) / (double)vocab;
        }
        double s = sum > 0 ? log(sum) : 0;
        bound[r] = u32 * (8 + blocks + (sum > 0 ? 2 * weighted / sum : 0));
        if (slot == FOURTH || is_ignored(c, r)) continue;
        int64_t target = (int64_t)tsr_load(TSR_I32, c->tensor[TARGETS].data, r);
        double smooth = smoothing(c) > 0 ? 64 * (double)smoothing(c) * (spread + s) : 0;
        bound[r] += u32 * (2 * s + 4 * (max - x[target]) + smooth);
        if (sum > 0) bound[r] += 0x1p-50 * fabs(max); // lse and target are doubles
    }
}

static const struct edge_case forward_edges[] = {
    {"no rows", "rows=0 vocab=5 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"no classes", "rows=5 vocab=0 +lse", FILL_SPECIAL, LAYOUT_RANDOM},
    {"one class", "rows=7 vocab=1 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"one class, smoothed", "rows=7 vocab=1 label_smoothing=0.5", FILL_NORMAL, LAYOUT_RANDOM},
    {"50,257 classes", "rows=2 vocab=50257 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"128,256 classes, smoothed", "rows=2 vocab=128256 label_smoothing=0.1", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"every row ignored", "rows=9 vocab=301 +lse", FILL_SPECIAL, LAYOUT_RANDOM},
    {"ignored without lse", "rows=9 vocab=301", FILL_SPECIAL, LAYOUT_RANDOM},
    {"ignore_index a class", "rows=90 vocab=3 ignore_index=2 +lse", FILL_NORMAL, LAYOUT_RANDOM},
    {"large logits", "rows=9 vocab=301 +lse", FILL_LARGE, LAYOUT_RANDOM},
    {"large logits, smoothed", "rows=9 vocab=5001 label_smoothing=0.1", FILL_LARGE, LAYOUT_RANDOM},
    {"huge logits", "rows=9 vocab=301 +lse", FILL_HUGE, LAYOUT_RANDOM},
    {"huge logits, wide", "rows=3 vocab=9001 +lse", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "rows=40 vocab=301 +lse", FILL_INFINITE, LAYOUT_RANDOM},
    {"infinite logits, smoothed", "rows=40 vocab=61 label_smoothing=0.1 +lse", FILL_INFINITE,
     LAYOUT_RANDOM},
    {"infinite logits, wide", "rows=4 vocab=9001 +lse", FILL_INFINITE, LAYOUT_RANDOM},
    {"rows of -inf", "rows=30 vocab=301 +lse", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"rows of -inf, smoothed", "rows=9 vocab=7 label_smoothing=0.3 +lse", FILL_NEGATIVE_INFINITE,
     LAYOUT_RANDOM},
    {"wide rows of -inf", "rows=3 vocab=70001 +lse", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN in some rows", "rows=40 vocab=301 +lse", FILL_NAN, LAYOUT_RANDOM},
    {"NaN in some rows, smoothed", "rows=40 vocab=301 label_smoothing=0.2 +lse", FILL_NAN,
     LAYOUT_RANDOM},
    {"huge common logit", "rows=9 vocab=301 +lse", FILL_SHIFTED, LAYOUT_RANDOM},
    {"huge common logit, smoothed", "rows=9 vocab=3001 label_smoothing=0.5 +lse", FILL_SHIFTED,
     LAYOUT_RANDOM},
    {"equal logits", "rows=3 vocab=1000 +lse", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 vocab=33 +lse", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 vocab=256 +lse", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 vocab=65 +lse", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

static const char *const standard[] = {"rows=1024 vocab=50257", "rows=512 vocab=128256",
                                       "rows=1024 vocab=50257 label_smoothing=0.1", NULL};

const struct op_spec cross_entropy_forward_spec = {
    .op = "cross_entropy_forward",
    .command = "cross-entropy",
    .pass = "forward",
    .params = params,
    .slots = forward_slots,
    .shape = shape,
    .infer = infer,
    .call = forward_call,
    .flops = forward_flops,
    .randomize = randomize,
    .fill = forward_fill,
    .bound = forward_bound,
    .edges = forward_edges,
    .standard = standard,
    .baseline = "unfused",
};

// ---- Backward: logits, targets, lse, dloss -> dlogits -----------------------------------------

static const struct slot_spec backward_slots[] = {
    {"logits", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"targets", SLOT_IN, SLOT_I32, false, NULL, false},
    {"lse", SLOT_IN, SLOT_F32, false, NULL, false},
    {"dloss", SLOT_IN, SLOT_F32, false, NULL, false},
    {"dlogits", SLOT_OUT, SLOT_MAIN, false, NULL, false, "logits"},
    {0},
};

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_cross_entropy_backward_args args =
        TSR_CROSS_ENTROPY_BACKWARD_ARGS(.flags = c->flags, .variant = variant,
                                        .workspace = workspace, .workspace_bytes = given_bytes,
                                        .logits = c->tensor[LOGITS], .targets = c->tensor[TARGETS],
                                        .lse = c->tensor[LSE_OR_LOSS], .dloss = c->tensor[FOURTH],
                                        .dlogits = c->tensor[DLOGITS],
                                        .ignore_index = ignore_index(c),
                                        .has_ignore_index = has_ignore_index(c),
                                        .label_smoothing = smoothing(c));
    return workspace_bytes != NULL ? tsr_cross_entropy_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_cross_entropy_backward(ctx, &args);
}

// Two differences, an exponential (10), a multiplication.
static double backward_flops(const struct op_case *c) { return 13 * c->param[0] * c->param[1]; }

// Ordinary rows; half of them have a common offset of any size, and half have one class far above the others.
static void fill_backward_logits(struct rng *rng, const struct op_case *c, double *values) {
    int64_t rows = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    double digits = c->dtype == TSR_F16 ? 0x1p-10 : c->dtype == TSR_BF16 ? 0x1p-7 : 0x1p-22;
    for (int64_t r = 0; r < rows; r++, values += vocab) {
        double offset = 0, spread = 1, gap = 0;
        if (rng_chance(rng, 0.5))
            offset = pow(10, (c->dtype == TSR_F16 ? 4 : 30) * rng_uniform(rng));
        if (rng_chance(rng, 0.5)) gap = 40 * rng_uniform(rng);
        spread = fmax(spread, offset * digits); // so that logits differ
        if (rng_chance(rng, 0.5)) offset = -offset;
        for (int64_t i = 0; i < vocab; i++) values[i] = offset + spread * rng_normal(rng);
        if (gap > 0 && vocab > 0) values[rng_int(rng, 0, vocab - 1)] = offset + spread * 4 + gap;
    }
}

// Targets of fill_targets; half of them are replaced by the class of the largest logit.
static void fill_backward_targets(struct rng *rng, const struct op_case *c, double *values) {
    int64_t rows = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    const double *x = c->tensor[LOGITS].data;
    fill_targets(rng, c, FILL_NORMAL, values);
    for (int64_t r = 0; r < rows; r++, x += vocab) {
        int64_t largest = 0;
        if (vocab == 0 || values[r] == c->param[3] || rng_chance(rng, 0.5)) continue;
        for (int64_t i = 1; i < vocab; i++)
            if (x[i] > x[largest]) largest = i;
        values[r] = (double)largest;
    }
}

// lse is the logits' own. dloss is finite or NaN.
static bool backward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                          double *values) {
    int64_t rows = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    if (fill != FILL_SPECIAL && slot == LOGITS) return false;
    if (fill != FILL_SPECIAL && slot == TARGETS) return fill_targets(rng, c, fill, values);
    if (slot == LOGITS || slot == TARGETS) {
        (slot == LOGITS ? fill_backward_logits : fill_backward_targets)(rng, c, values);
        return true;
    }
    const double *x = c->tensor[LOGITS].data;
    for (int64_t r = 0; r < rows; r++, x += vocab) {
        double max = -INFINITY, sum = 0;
        if (slot == FOURTH) {
            values[r] = rng_normal(rng);
            continue;
        }
        for (int64_t i = 0; i < vocab; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < vocab; i++) sum += exp(x[i] - max);
        values[r] = max == -INFINITY ? max : max + log(sum);
    }
    return true;
}

// The bound in tessera/cross_entropy.h, plus underflow.
static void backward_bound(const struct op_case *c, int slot, double *bound) {
    int64_t rows = (int64_t)c->param[0], vocab = (int64_t)c->param[1];
    const double *x = c->tensor[LOGITS].data, *lse = c->tensor[LSE_OR_LOSS].data;
    const double *dloss = c->tensor[FOURTH].data;
    double of_sum = 8 + sqrt(fmin((double)vocab, 2048)) + 2 * log((double)vocab);
    double of_lse = fmax(of_sum, c->dtype == TSR_F32 ? 72 : 1032);
    double of_target = fmax(of_sum, c->dtype == TSR_F32 ? 100 : 0x1p14);
    (void)slot;
    for (int64_t r = 0; r < rows; r++, x += vocab, bound += vocab) {
        int64_t target = (int64_t)tsr_load(TSR_I32, c->tensor[TARGETS].data, r);
        double d = fabs(dloss[r]), other = (double)smoothing(c) / (double)vocab;
        double max = -INFINITY, sum = 0, rest = 0;
        bool is_zero = is_ignored(c, r) || lse[r] == -INFINITY;
        for (int64_t i = 0; i < vocab; i++) max = fmax(max, x[i]);
        for (int64_t i = 0; i < vocab; i++) {
            double e = exp(x[i] - max);
            sum += e;
            if (i != target) rest += e;
        }
        for (int64_t i = 0; i < vocab; i++) {
            double below = max - x[i] + log(sum), p = exp(-below),
                   tiny = (double)vocab * (1 + d) * 0x1p-126;
            if (i == target)
                bound[i] = u32 * d * (of_target * rest / sum + 4 * (double)smoothing(c)) +
                           (double)vocab * tiny;
            else
                bound[i] = u32 * d * ((p > 0 ? (of_lse + 2 * below) * p : 0) + 4 * other) + tiny;
            if (is_zero) bound[i] = 0;
        }
    }
}

static const struct edge_case backward_edges[] = {
    {"no rows", "rows=0 vocab=5", FILL_NORMAL, LAYOUT_RANDOM},
    {"no classes", "rows=5 vocab=0", FILL_NORMAL, LAYOUT_RANDOM},
    {"one class", "rows=7 vocab=1", FILL_NORMAL, LAYOUT_RANDOM},
    {"50,257 classes", "rows=2 vocab=50257", FILL_NORMAL, LAYOUT_RANDOM},
    {"128,256 classes, smoothed", "rows=2 vocab=128256 label_smoothing=0.1", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"ignore_index a class", "rows=90 vocab=3 ignore_index=2", FILL_NORMAL, LAYOUT_RANDOM},
    {"offsets and confident rows", "rows=40 vocab=301", FILL_SPECIAL, LAYOUT_RANDOM},
    {"offsets and confident rows, narrow", "rows=90 vocab=7", FILL_SPECIAL, LAYOUT_RANDOM},
    {"offsets and confident rows, smoothed", "rows=40 vocab=61 label_smoothing=0.1", FILL_SPECIAL,
     LAYOUT_RANDOM},
    {"offsets and confident rows, wide", "rows=4 vocab=9001", FILL_SPECIAL, LAYOUT_RANDOM},
    {"large logits", "rows=9 vocab=301", FILL_LARGE, LAYOUT_RANDOM},
    {"huge logits", "rows=9 vocab=301", FILL_HUGE, LAYOUT_RANDOM},
    {"infinite logits", "rows=40 vocab=301", FILL_INFINITE, LAYOUT_RANDOM},
    {"rows of -inf", "rows=9 vocab=301 label_smoothing=0.1", FILL_NEGATIVE_INFINITE, LAYOUT_RANDOM},
    {"NaN in some rows", "rows=40 vocab=301", FILL_NAN, LAYOUT_RANDOM},
    {"huge common logit", "rows=9 vocab=301", FILL_SHIFTED, LAYOUT_RANDOM},
    {"equal logits", "rows=3 vocab=1000", FILL_ZERO, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "rows=3 vocab=33", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, vectors", "rows=3 vocab=256", FILL_NORMAL, LAYOUT_FAR},
    {"one row for all", "rows=17 vocab=65", FILL_NORMAL, LAYOUT_REPEATED},
    {0},
};

const struct op_spec cross_entropy_backward_spec = {
    .op = "cross_entropy_backward",
    .command = "cross-entropy",
    .pass = "backward",
    .params = params,
    .slots = backward_slots,
    .shape = shape,
    .infer = infer,
    .call = backward_call,
    .flops = backward_flops,
    .randomize = randomize,
    .random_fill = FILL_SPECIAL,
    .fill = backward_fill,
    .bound = backward_bound,
    .edges = backward_edges,
    .standard = standard,
    .baseline = "unfused",
};
