// SPDX-License-Identifier: Apache-2.0
// Matmul for verify, bench, apply and report.
#include <math.h>
#include <stdlib.h>

#include "specs/matmul/spec_matmul.h"

const char *const matmul_fp8_names[] = {"none", "e4m3", "e5m2", "e4m3_e5m2", "e5m2_e4m3", NULL};
static const tsr_dtype fp8_dtypes[][2] = {{TSR_DTYPE_NONE, TSR_DTYPE_NONE},
                                          {TSR_E4M3, TSR_E4M3},
                                          {TSR_E5M2, TSR_E5M2},
                                          {TSR_E4M3, TSR_E5M2},
                                          {TSR_E5M2, TSR_E4M3}};

tsr_dtype matmul_fp8_dtype(const struct op_case *c, int param, bool is_of_b) {
    return fp8_dtypes[(int)c->param[param]][is_of_b];
}

double matmul_fp8_of(tsr_dtype a, tsr_dtype b) {
    for (int i = 1; matmul_fp8_names[i] != NULL; i++)
        if (a == fp8_dtypes[i][0] && b == fp8_dtypes[i][1]) return i;
    return 0;
}

const char *const matmul_b_dtype_names[] = {"f32", "bf16", "f16", NULL};
static const tsr_dtype b_dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

tsr_dtype matmul_b_dtype(const struct op_case *c, int param) {
    return c->dtype == TSR_F32 ? b_dtypes[(int)c->param[param]] : c->dtype;
}

double matmul_b_dtype_of(tsr_dtype a, tsr_dtype b) {
    return a != TSR_F32 ? 0 : b == TSR_BF16 ? 1 : b == TSR_F16 ? 2 : 0;
}

void matmul_fill_scale(struct rng *rng, const struct op_case *c, int slot, double *values) {
    for (int64_t i = 0; i < case_numel(c, slot); i++) {
        const double fraction = 1 + rng_uniform(rng);
        values[i] = ldexp(fraction, (int)rng_int(rng, -8, 4));
    }
}

static const char *const math_names[] = {"default", "split", "tf32", NULL}; // tsr_matmul_math

const char *const matmul_activations[] = {"none", "gelu",  "gelu_tanh",      "silu",
                                          "relu", "relu2", "swiglu_clamped", NULL};

#define SIZE_PARAMS                                                                                \
    {"m", "rows of a and c", PARAM_SIZE, 1024, NULL},                                              \
        {"n", "columns of b and c", PARAM_SIZE, 1024, NULL},                                       \
        {"k", "depth: columns of a, rows of b", PARAM_SIZE, 1024, NULL},                           \
        {"batch", "independent products", PARAM_SIZE, 1, NULL},                                    \
        {"transpose_a", "a is (k, m)", PARAM_FLAG, 0, NULL},                                       \
        {"transpose_b", "b is (n, k), as a linear layer's weights", PARAM_FLAG, 0, NULL},          \
        {"shared_b", "one b for all batches", PARAM_FLAG, 0, NULL, SOURCE_TENSORS}, {              \
        "activation", "epilogue: the function of a b + bias", PARAM_CHOICE, 0, matmul_activations  \
    }

static const struct param_spec forward_params[] = {
    SIZE_PARAMS,
    {"accumulate", "add to c, which is f32", PARAM_FLAG, 0, NULL},
    {"alpha", "factor of the product", PARAM_REAL, 1, NULL, PARAM_FLOAT},
    {"fp8", "dtypes of a and b; --dtype is then c's", PARAM_CHOICE, 0, matmul_fp8_names},
    {"block_scales", "scales for 1 x 128 of a, 128 x 128 of b", PARAM_FLAG, 0, NULL,
     SOURCE_TENSORS},
    {"fast_accumulate", "leave sums of fp8 to tensor cores", PARAM_FLAG, 0, NULL},
    {"math", "accuracy of f32 products: tsr_matmul_math", PARAM_CHOICE, 0, math_names},
    {"b_dtype", "dtype of b and b_up beside a of f32", PARAM_CHOICE, 0, matmul_b_dtype_names},
    {0},
};

// (rows, cols), or (cols, rows) if transposed, after the batch dimension if there is one.
static int matrix_shape(const struct op_case *c, int rows, int cols, bool is_transposed,
                        bool is_shared, int64_t *shape) {
    int ndim = 0;
    if (c->param[BATCH] != 1 && !is_shared) shape[ndim++] = (int64_t)c->param[BATCH];
    shape[ndim++] = (int64_t)c->param[is_transposed ? cols : rows];
    shape[ndim++] = (int64_t)c->param[is_transposed ? rows : cols];
    return ndim;
}

static int shape_of_a(const struct op_case *c, int64_t *shape) {
    return matrix_shape(c, M, K, is(c, TRANSPOSE_A), false, shape);
}
static int shape_of_b(const struct op_case *c, int64_t *shape) {
    return matrix_shape(c, K, N, is(c, TRANSPOSE_B), is(c, SHARED_B), shape);
}
static int shape_of_c(const struct op_case *c, int64_t *shape) {
    return matrix_shape(c, M, N, false, false, shape);
}
static int shape_of_bias(const struct op_case *c, int64_t *shape) {
    shape[0] = (int64_t)c->param[N];
    return 1;
}

static double products(const struct op_case *c) {
    return c->param[M] * c->param[N] * c->param[K] * c->param[BATCH];
}

static bool infer(struct op_case *c) {
    const tsr_tensor *a = &c->tensor[0], *b = &c->tensor[1];
    if (a->ndim < 2 || a->ndim > 3 || b->ndim < 2 || b->ndim > a->ndim) return false;
    c->param[BATCH] = a->ndim == 3 ? (double)a->shape[0] : 1;
    c->param[SHARED_B] = b->ndim < a->ndim;
    c->param[M] = (double)a->shape[a->ndim - (is(c, TRANSPOSE_A) ? 1 : 2)];
    c->param[K] = (double)a->shape[a->ndim - (is(c, TRANSPOSE_A) ? 2 : 1)];
    c->param[N] = (double)b->shape[b->ndim - (is(c, TRANSPOSE_B) ? 2 : 1)];
    return true;
}

static bool infer_forward(struct op_case *c) {
    c->param[BLOCK_SCALES] = c->is_present[A_SCALE] && c->tensor[A_SCALE].ndim > 1;
    c->param[FP8] = matmul_fp8_of(c->tensor[A].dtype, c->tensor[B].dtype);
    c->param[B_DTYPE] = matmul_b_dtype_of(c->tensor[A].dtype, c->tensor[B].dtype);
    return infer(c);
}

static void randomize_product(struct rng *rng, struct op_case *c) {
    enum { MOST = 600000 }; // multiplications, because the oracle is slow
    c->param[BATCH] = rng_chance(rng, 0.7) ? 1 : (double)rng_int(rng, 0, 5);
    do
        for (int i = M; i <= K; i++) c->param[i] = (double)rng_dim(rng, i == K ? 2000 : 400);
    while (products(c) > MOST);
    for (int i = TRANSPOSE_A; i <= SHARED_B; i++) c->param[i] = rng_chance(rng, 0.4);
    if (c->param[BATCH] == 1) c->param[SHARED_B] = 0;
    c->param[ACTIVATION] = rng_chance(rng, 0.5) ? 0 : (double)rng_int(rng, 1, TSR_ACTIVATION_RELU2);
}

// ---- Forward ----------------------------------------------------------------------------------

static const struct slot_spec forward_slots[] = {
    {"a", SLOT_IN, SLOT_MAIN, false, NULL, true},
    {"b", SLOT_IN, SLOT_MAIN, false, NULL, true},
    {"b_up", SLOT_IN, SLOT_MAIN, true, NULL, true},
    {"bias", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"bias_up", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"residual", SLOT_IN, SLOT_SMALL, true, NULL, false},
    {"c", SLOT_INOUT, SLOT_SMALL, false, NULL, false},
    {"a_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"b_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {"b_up_scale", SLOT_IN, SLOT_F32, true, NULL, true},
    {0},
};

// The shape of scales: rows x blocks for a, blocks x blocks for b, transposed like their operands.
static int scale_shape(const struct op_case *c, int slot, int64_t *shape) {
    shape[0] = 1;
    if (!is(c, BLOCK_SCALES)) return 1;
    struct op_case blocks = *c;
    blocks.param[K] = ceil(c->param[K] / 128);
    if (slot == A_SCALE) return shape_of_a(&blocks, shape);
    blocks.param[N] = ceil(c->param[N] / 128);
    return shape_of_b(&blocks, shape);
}

static int forward_shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case A: return shape_of_a(c, shape);
    case B:
    case B_UP: return shape_of_b(c, shape);
    case BIAS:
    case BIAS_UP: return shape_of_bias(c, shape);
    case RESIDUAL:
    case C: return shape_of_c(c, shape);
    default: return scale_shape(c, slot, shape);
    }
}

static tsr_dtype forward_dtype(const struct op_case *c, int slot) {
    bool is_small = slot >= BIAS;
    if (c->dtype == TSR_F64) return TSR_F64;
    if (slot >= A_SCALE) return TSR_F32;
    if (is(c, FP8) && !is_small) return matmul_fp8_dtype(c, FP8, slot != A);
    if (c->dtype == TSR_E4M3 || c->dtype == TSR_E5M2) return is_small ? TSR_F32 : c->dtype; // apply
    if (slot == C && is(c, ACCUMULATE)) return TSR_F32;
    if (slot == B || slot == B_UP) return matmul_b_dtype(c, B_DTYPE);
    return is_small ? c->small_dtype : c->dtype;
}

static tsr_status forward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_matmul_forward_args args =
        TSR_MATMUL_FORWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                .workspace_bytes = given_bytes, .a = c->tensor[A],
                                .b = c->tensor[B], .b_up = c->tensor[B_UP], .bias = c->tensor[BIAS],
                                .residual = c->tensor[RESIDUAL], .c = c->tensor[C],
                                .transpose_a = is(c, TRANSPOSE_A),
                                .transpose_b = is(c, TRANSPOSE_B),
                                .activation = (tsr_activation)c->param[ACTIVATION],
                                .accumulate = is(c, ACCUMULATE), .alpha = (float)c->param[ALPHA],
                                .has_alpha = 1, .a_scale = c->tensor[A_SCALE],
                                .b_scale = c->tensor[B_SCALE], .b_up_scale = c->tensor[B_UP_SCALE],
                                .fast_accumulate = is(c, FAST_ACCUMULATE),
                                .math = (tsr_matmul_math)c->param[MATH],
                                .bias_up = c->tensor[BIAS_UP]);
    return workspace_bytes != NULL ? tsr_matmul_forward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_matmul_forward(ctx, &args);
}

static double forward_flops(const struct op_case *c) {
    return 2 * products(c) * (c->is_present[B_UP] ? 2 : 1);
}

// c moves once, or twice if the call adds to it.
static double forward_bytes(const struct op_case *c) {
    double bytes = 0;
    for (int s = A; s <= B_UP_SCALE; s++)
        if (c->is_present[s])
            bytes += (double)case_numel(c, s) * (double)tsr_dtype_bytes(case_slot_dtype(c, s)) *
                     (s == C && is(c, ACCUMULATE) ? 2 : 1);
    return bytes;
}

static void forward_randomize(struct rng *rng, struct op_case *c) {
    randomize_product(rng, c);
    c->param[ACCUMULATE] = rng_chance(rng, 0.2);
    c->param[ALPHA] = rng_chance(rng, 0.8) ? 1 : 0.375 * (double)rng_int(rng, -2, 2);
    c->is_present[B_UP] = rng_chance(rng, 0.2);
    if (c->is_present[B_UP] && rng_chance(rng, 0.3))
        c->param[ACTIVATION] = TSR_ACTIVATION_SWIGLU_CLAMPED;
    c->is_present[BIAS] = rng_chance(rng, 0.3);
    c->is_present[BIAS_UP] = c->is_present[B_UP] && rng_chance(rng, 0.4);
    c->is_present[RESIDUAL] = rng_chance(rng, 0.2);
    if (c->dtype == TSR_F32 && rng_chance(rng, 0.3))
        c->param[MATH] = (double)rng_int(rng, 1, TSR_MATMUL_MATH_COUNT - 1);
    c->param[FP8] = is(c, MATH) || rng_chance(rng, 0.7) ? 0 : (double)rng_int(rng, 1, 4);
    if (!is(c, FP8) && rng_chance(rng, 0.3)) c->param[B_DTYPE] = (double)rng_int(rng, 1, 2);
    if (!is(c, FP8)) return;
    bool is_scaled = rng_chance(rng, 0.7);
    c->param[BLOCK_SCALES] = rng_chance(rng, 0.5);
    c->param[FAST_ACCUMULATE] = rng_chance(rng, 0.4);
    c->is_present[A_SCALE] = c->is_present[B_SCALE] = is_scaled;
    c->is_present[B_UP_SCALE] = is_scaled && c->is_present[B_UP];
    if (!is(c, BLOCK_SCALES) && rng_chance(rng, 0.2)) c->is_present[A_SCALE] = false;
}

// c has NaN before the call, which must not matter, unless the call adds to c. FILL_SPECIAL: a is subnormal.
static bool forward_fill(struct rng *rng, const struct op_case *c, int slot, enum edge_fill fill,
                         double *values) {
    int64_t numel = case_numel(c, slot);
    if (slot >= A_SCALE) {
        matmul_fill_scale(rng, c, slot, values);
        return true;
    }
    if (fill == FILL_SPECIAL && slot <= B_UP) {
        for (int64_t i = 0; i < numel; i++)
            values[i] = rng_normal(rng) * (slot == A ? 0x1p-128 : 0x1p10);
        return true;
    }
    if (slot != C || is(c, ACCUMULATE)) return false;
    for (int64_t i = 0; i < numel; i++) values[i] = NAN;
    return true;
}

static const char *const standard[] = {"m=512 n=512 k=512", "m=1024 n=1024 k=1024",
                                       "m=2048 n=2048 k=2048", NULL};

const struct op_spec matmul_forward_spec = {
    .op = "matmul_forward",
    .command = "matmul",
    .pass = "forward",
    .params = forward_params,
    .slots = forward_slots,
    .shape = forward_shape,
    .slot_dtype = forward_dtype,
    .infer = infer_forward,
    .call = forward_call,
    .flops = forward_flops,
    .bytes = forward_bytes,
    .randomize = forward_randomize,
    .fill = forward_fill,
    .bound = matmul_forward_bound,
    .edges = matmul_forward_edges,
    .standard = standard,
    .baseline = "naive",
};

// ---- Backward ---------------------------------------------------------------------------------

static const struct param_spec backward_params[] = {SIZE_PARAMS, {0}};

static const struct slot_spec backward_slots[] = {
    {"a", SLOT_IN, SLOT_MAIN, false, NULL, true},
    {"b", SLOT_IN, SLOT_MAIN, false, NULL, true},
    {"preact", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"dc", SLOT_IN, SLOT_MAIN, false, NULL, false},
    {"da", SLOT_OUT, SLOT_MAIN, true, NULL, true, "a"},
    {"db", SLOT_OUT, SLOT_MAIN, true, NULL, true, "b"},
    {"dbias", SLOT_OUT, SLOT_SMALL, true, NULL, false, "bias"},
    {0},
};

static int backward_shape(const struct op_case *c, int slot, int64_t *shape) {
    switch (slot) {
    case A:
    case DA: return shape_of_a(c, shape);
    case B:
    case DB: return shape_of_b(c, shape);
    case DBIAS: return shape_of_bias(c, shape);
    default: return shape_of_c(c, shape);
    }
}

static tsr_status backward_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                                void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_matmul_backward_args args =
        TSR_MATMUL_BACKWARD_ARGS(.flags = c->flags, .variant = variant, .workspace = workspace,
                                 .workspace_bytes = given_bytes, .a = c->tensor[A],
                                 .b = c->tensor[B], .preact = c->tensor[PREACT],
                                 .dc = c->tensor[DC], .da = c->tensor[DA], .db = c->tensor[DB],
                                 .dbias = c->tensor[DBIAS], .transpose_a = is(c, TRANSPOSE_A),
                                 .transpose_b = is(c, TRANSPOSE_B),
                                 .activation = (tsr_activation)c->param[ACTIVATION]);
    return workspace_bytes != NULL ? tsr_matmul_backward_prepare(ctx, &args, workspace_bytes)
                                   : tsr_matmul_backward(ctx, &args);
}

static double backward_flops(const struct op_case *c) {
    return 2 * products(c) * (c->is_present[DA] + c->is_present[DB]);
}

static void backward_randomize(struct rng *rng, struct op_case *c) {
    randomize_product(rng, c);
    c->is_present[DA] = rng_chance(rng, 0.8);
    c->is_present[DB] = rng_chance(rng, 0.8);
    c->is_present[DBIAS] = rng_chance(rng, 0.4);
}

static const struct edge_case backward_edges[] = {
    {"no rows", "m=0 n=5 k=7 +da +db +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"no columns", "m=5 n=0 k=7 +da +db +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"k = 0", "m=5 n=7 k=0 +da +db +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"no batches, shared b", "m=5 n=7 k=3 batch=0 shared_b=1 +da +db +dbias", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"one element", "m=1 n=1 k=1 +da +db +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"linear layer", "m=130 n=67 k=65 transpose_b=1 activation=gelu +da +db +dbias", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"relu2", "m=40 n=67 k=65 transpose_b=1 activation=relu2 +da +db +dbias", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"both transposed", "m=97 n=65 k=31 transpose_a=1 transpose_b=1 activation=silu +da +db",
     FILL_NORMAL, LAYOUT_RANDOM},
    {"batches that share b", "m=9 n=70 k=30 batch=5 shared_b=1 +da +db +dbias", FILL_NORMAL,
     LAYOUT_RANDOM},
    {"batches that share b, contiguous", "m=9 n=70 k=30 batch=5 shared_b=1 +da +db +dbias",
     FILL_NORMAL, LAYOUT_CONTIGUOUS},
    {"tall", "m=3000 n=9 k=3 +db +dbias", FILL_NORMAL, LAYOUT_RANDOM},
    {"large values", "m=20 n=70 k=60 +da +db +dbias", FILL_LARGE, LAYOUT_RANDOM},
    {"same-sign sums", "m=3000 n=9 k=70 +da +db +dbias", FILL_SHIFTED, LAYOUT_RANDOM},
    {"NaN in some rows", "m=40 n=33 k=50 +da +db +dbias", FILL_NAN, LAYOUT_RANDOM},
    {"infinities", "m=40 n=5 k=33 +da +db +dbias", FILL_INFINITE, LAYOUT_RANDOM},
    {"beyond 2^31 elements", "m=3 n=17 k=3 +da +db", FILL_NORMAL, LAYOUT_FAR},
    {"beyond 2^31 elements, tiles", "m=72 n=136 k=64 transpose_b=1 +da +db +dbias", FILL_NORMAL,
     LAYOUT_FAR},
    {0},
};

static const char *const backward_standard[] = {"m=512 n=512 k=512 +da +db",
                                                "m=1024 n=1024 k=1024 +da +db",
                                                "m=2048 n=2048 k=2048 +da +db", NULL};

const struct op_spec matmul_backward_spec = {
    .op = "matmul_backward",
    .command = "matmul",
    .pass = "backward",
    .params = backward_params,
    .slots = backward_slots,
    .shape = backward_shape,
    .infer = infer,
    .call = backward_call,
    .flops = backward_flops,
    .randomize = backward_randomize,
    .bound = matmul_backward_bound,
    .is_composed = true, // made of products that choose their own units
    .edges = backward_edges,
    .standard = backward_standard,
    .baseline = NULL,
};
