// SPDX-License-Identifier: Apache-2.0
// The layer with experts in fp8, against its definition in double, which decodes the weights itself: in f64 the scales must be
// exact; in fp8 the rounding of x and a may move a layer's output by a few per cent, and no more. And what is refused.
#include <math.h>

#include "fp8_value.h"
#include "test_support.h"

enum { T = 19, H = 270, I = 256, E = 5, K = 2, S = 131, R = T * K };
enum { OF_H = 3, OF_I = 2, OF_S = 2 };

static uint8_t code_in[E][2][I][H], code_down[E][H][I]; // of gate and up; of down
static double w_in[E][2][I][H], w_down[E][H][I];        // the numbers, without scales
static double s_in[E][2][OF_I][OF_H], s_down[E][OF_H][OF_I], s_expert[3][E];
static float f_in[E][2][OF_I][OF_H], f_down[E][OF_H][OF_I], f_expert[3][E];
static double x[T][H], b_in[2][E][I], b_down[E][H], weights[T][K], y[T][H], expected[T][H];
static float fx[T][H], fb_in[2][E][I], fb_down[E][H], fweights[T][K], fy[T][H];
static int32_t ids[T][K];
static uint8_t code_shared[2][S][H], code_shared_down[H][S];
static double w_shared[2][S][H], w_shared_down[H][S];
static double s_shared[2][OF_S][OF_H], s_shared_down[OF_H][OF_S];
static float f_shared[2][OF_S][OF_H], f_shared_down[OF_H][OF_S];
static tsr_context *contexts[TSR_ISA_COUNT];

struct fp8_case {
    bool has_blocks, is_gated, is_joined, is_on_input, has_biases, has_shared;
    bool is_mixed; // w_gate has a scale for each expert beside those of blocks
};

static uint32_t state_of_draw = 1;
static double draw(void) {
    state_of_draw = state_of_draw * 1664525u + 1013904223u;
    return (double)(state_of_draw >> 8) / 0x1p23 - 1;
}

static void fill_codes(uint8_t *code, double *value, int count) {
    for (int i = 0; i < count; i++) {
        code[i] = (uint8_t)((int)((draw() + 1) * 0x30) | (draw() < 0 ? 0x80 : 0));
        value[i] = fp8_value(TSR_E4M3, code[i]);
    }
}

static void fill_scales(float *scale, double *value, int count) {
    for (int i = 0; i < count; i++) value[i] = scale[i] = (float)(1.5 + draw()) / 8;
}

static void fill(void) {
    fill_codes(&code_in[0][0][0][0], &w_in[0][0][0][0], E * 2 * I * H);
    fill_codes(&code_down[0][0][0], &w_down[0][0][0], E * H * I);
    fill_codes(&code_shared[0][0][0], &w_shared[0][0][0], 2 * S * H);
    fill_codes(&code_shared_down[0][0], &w_shared_down[0][0], H * S);
    fill_scales(&f_in[0][0][0][0], &s_in[0][0][0][0], E * 2 * OF_I * OF_H);
    fill_scales(&f_down[0][0][0], &s_down[0][0][0], E * OF_H * OF_I);
    fill_scales(&f_expert[0][0], &s_expert[0][0], 3 * E);
    fill_scales(&f_shared[0][0][0], &s_shared[0][0][0], 2 * OF_S * OF_H);
    fill_scales(&f_shared_down[0][0], &s_shared_down[0][0], OF_H * OF_S);
    for (int i = 0; i < T * H; i++) (&x[0][0])[i] = (&fx[0][0])[i] = (float)draw();
    for (int i = 0; i < 2 * E * I; i++) (&b_in[0][0][0])[i] = (&fb_in[0][0][0])[i] = (float)draw();
    for (int i = 0; i < E * H; i++) (&b_down[0][0])[i] = (&fb_down[0][0])[i] = (float)draw();
    for (int i = 0; i < R; i++) {
        (&weights[0][0])[i] = (&fweights[0][0])[i] = (float)(0.6 + draw() / 2);
        (&ids[0][0])[i] = i == 7 ? -1 : i * 7 % E;
    }
}

// ---- The definition ---------------------------------------------------------------------------

static double in_at(const struct fp8_case *t, int e, int half, int i, int h) {
    const bool has_blocks = t->has_blocks && !(t->is_mixed && half == 0);
    return w_in[e][half][i][h] * (has_blocks ? s_in[e][half][i / 128][h / 128] : s_expert[half][e]);
}

static void add_expert(const struct fp8_case *t, int token, int e, double weight) {
    static double a[I];
    const double before = t->is_on_input ? weight : 1, after = t->is_on_input ? 1 : weight;
    for (int i = 0; i < I; i++) {
        double gate = t->has_biases ? b_in[0][e][i] : 0, up = t->has_biases ? b_in[1][e][i] : 0;
        for (int h = 0; h < H; h++) {
            gate += before * x[token][h] * in_at(t, e, 0, i, h);
            up += before * x[token][h] * in_at(t, e, 1, i, h);
        }
        a[i] = t->is_gated ? gate / (1 + exp(-gate)) * up : fmax(up, 0);
    }
    for (int h = 0; h < H; h++) {
        double sum = t->has_biases ? b_down[e][h] : 0;
        for (int i = 0; i < I; i++)
            sum += a[i] * w_down[e][h][i] *
                   (t->has_blocks ? s_down[e][h / 128][i / 128] : s_expert[2][e]);
        expected[token][h] += after * sum;
    }
}

static void add_shared(const struct fp8_case *t, int token) {
    static double a[S];
    for (int i = 0; i < S; i++) {
        double gate = 0, up = 0;
        for (int h = 0; h < H; h++) {
            gate += x[token][h] * w_shared[0][i][h] * s_shared[0][i / 128][h / 128];
            up += x[token][h] * w_shared[1][i][h] * s_shared[1][i / 128][h / 128];
        }
        a[i] = t->is_gated ? gate / (1 + exp(-gate)) * up : fmax(up, 0);
    }
    for (int h = 0; h < H; h++)
        for (int i = 0; i < S; i++)
            expected[token][h] += a[i] * w_shared_down[h][i] * s_shared_down[h / 128][i / 128];
}

static void define(const struct fp8_case *t) {
    memset(expected, 0, sizeof expected);
    for (int token = 0; token < T && t->has_shared; token++) add_shared(t, token);
    for (int token = 0; token < T; token++)
        for (int k = 0; k < K; k++)
            if (ids[token][k] >= 0) add_expert(t, token, ids[token][k], weights[token][k]);
}

// ---- Calls ------------------------------------------------------------------------------------

// A matrix of each expert, or of each other one: gate and up are the halves of a tensor.
static tsr_tensor half_of(const void *data, tsr_dtype dtype, int half, int rows, int cols,
                          bool is_joined) {
    static char apart[3][2][sizeof w_in];
    const size_t bytes = (size_t)(rows * cols) * tsr_dtype_bytes(dtype);
    const int kind = dtype == TSR_F64 ? rows == I : rows == I ? 2 : 1;
    tsr_tensor t = TSR_TENSOR((const char *)data + (size_t)half * bytes, dtype, E, rows, cols);
    t.stride[0] = 2 * (int64_t)rows * cols;
    if (is_joined) return t;
    char *to = apart[kind][half];
    for (int e = 0; e < E; e++)
        memcpy(to + (size_t)e * bytes, (const char *)data + (size_t)(2 * e + half) * bytes, bytes);
    return TSR_TENSOR(to, dtype, E, rows, cols);
}

static tsr_moe_forward_args args_of(const struct fp8_case *t, bool is_f64) {
    const tsr_dtype real = is_f64 ? TSR_F64 : TSR_F32, of_w = is_f64 ? TSR_F64 : TSR_E4M3;
    const void *in = is_f64 ? (void *)w_in : code_in, *down = is_f64 ? (void *)w_down : code_down;
    const void *in_scale = is_f64 ? (void *)s_in : f_in;
    tsr_moe_forward_args args =
        TSR_MOE_FORWARD_ARGS(.x = TSR_TENSOR(is_f64 ? (void *)x : fx, real, T, H),
                             .w_up = half_of(in, of_w, 1, I, H, t->is_joined),
                             .w_down = TSR_TENSOR(down, of_w, E, H, I),
                             .y = TSR_TENSOR(is_f64 ? (void *)y : fy, real, T, H),
                             .topk_ids = TSR_TENSOR(ids, TSR_I32, T, K),
                             .topk_weights =
                                 TSR_TENSOR(is_f64 ? (void *)weights : fweights, real, T, K),
                             .activation = t->is_gated ? TSR_ACTIVATION_SILU : TSR_ACTIVATION_RELU,
                             .weights_on_input = t->is_on_input);
    if (t->is_gated) args.w_gate = half_of(in, of_w, 0, I, H, t->is_joined);
    if (t->has_blocks) {
        if (t->is_gated) args.w_gate_scale = half_of(in_scale, real, 0, OF_I, OF_H, t->is_joined);
        args.w_up_scale = half_of(in_scale, real, 1, OF_I, OF_H, t->is_joined);
        args.w_down_scale = TSR_TENSOR(is_f64 ? (void *)s_down : f_down, real, E, OF_H, OF_I);
    } else {
        const char *data = is_f64 ? (void *)s_expert : f_expert;
        const size_t step = sizeof f_expert[0] * (is_f64 ? 2 : 1);
        if (t->is_gated) args.w_gate_scale = TSR_TENSOR(data, real, E);
        args.w_up_scale = TSR_TENSOR(data + step, real, E);
        args.w_down_scale = TSR_TENSOR(data + 2 * step, real, E);
    }
    if (t->is_mixed) args.w_gate_scale = TSR_TENSOR(is_f64 ? (void *)s_expert : f_expert, real, E);
    if (t->has_shared) {
        const char *shared = is_f64 ? (void *)w_shared : code_shared;
        const char *shared_scale = is_f64 ? (void *)s_shared : f_shared;
        const size_t half = (size_t)(S * H) * tsr_dtype_bytes(of_w),
                     half_scale = (size_t)(OF_S * OF_H) * tsr_dtype_bytes(real);
        if (t->is_gated) {
            args.shared_w_gate = TSR_TENSOR(shared, of_w, S, H);
            args.shared_w_gate_scale = TSR_TENSOR(shared_scale, real, OF_S, OF_H);
        }
        args.shared_w_up = TSR_TENSOR(shared + half, of_w, S, H);
        args.shared_w_up_scale = TSR_TENSOR(shared_scale + half_scale, real, OF_S, OF_H);
        args.shared_w_down =
            TSR_TENSOR(is_f64 ? (void *)w_shared_down : code_shared_down, of_w, H, S);
        args.shared_w_down_scale =
            TSR_TENSOR(is_f64 ? (void *)s_shared_down : f_shared_down, real, OF_H, OF_S);
    }
    if (!t->has_biases) return args;
    const char *bias = is_f64 ? (void *)b_in : fb_in;
    if (t->is_gated) args.b_gate = TSR_TENSOR(bias, real, E, I);
    args.b_up = TSR_TENSOR(bias + sizeof fb_in / 2 * (is_f64 ? 2 : 1), real, E, I);
    args.b_down = TSR_TENSOR(is_f64 ? (void *)b_down : fb_down, real, E, H);
    return args;
}

// The error of y over its size.
static double error_of(bool is_f64) {
    double error = 0, size = 0;
    for (int i = 0; i < T * H; i++) {
        const double want = (&expected[0][0])[i];
        const double got = is_f64 ? (&y[0][0])[i] : (double)(&fy[0][0])[i];
        error += (got - want) * (got - want);
        size += want * want;
    }
    return sqrt(error / size);
}

static void values(void **state) {
    (void)state;
    fill();
    for (int which = 0; which < 66; which++) {
        struct fp8_case t = {which & 1,      which >> 1 & 1, which >> 2 & 1,
                             which >> 3 & 1, which >> 4 & 1, which >> 5 & 1};
        if (which >= 64)
            t = (struct fp8_case){
                .has_blocks = 1, .is_gated = 1, .is_joined = which & 1, .is_mixed = 1};
        tsr_moe_forward_args args = args_of(&t, true);
        define(&t);
        memset(y, 0xff, sizeof y);
        assert_ok(tsr_moe_forward(contexts[TSR_ISA_SCALAR], &args));
        if (!(error_of(true) < 1e-13))
            fail_msg("case %d: f64 is wrong by %g", which, error_of(true));
        args = args_of(&t, false);
        for (int v = 0; v < 2; v++) {
            args.variant = v == 0 ? NULL : "reference";
            memset(fy, 0xff, sizeof fy);
            assert_ok(tsr_moe_forward(contexts[which % TSR_ISA_COUNT], &args));
            const double error = error_of(false);
            if (!(error > 1e-3 && error < 0.06))
                fail_msg("case %d: fp8 is wrong by %g, expected 0.001 to 0.06", which, error);
        }
    }
}

// ---- Refusals ---------------------------------------------------------------------------------

static void refused(const tsr_moe_forward_args *args, const char *sentence) {
    assert_int_equal(tsr_moe_forward(contexts[TSR_ISA_SCALAR], args), TSR_INVALID_ARGUMENT);
    assert_string_equal(tsr_last_error(), sentence);
}

static void refusals(void **state) {
    const struct fp8_case blocks = {true, true, true, false, false, false};
    static uint16_t half[E * I * H];
    (void)state;
    tsr_moe_forward_args args = args_of(&blocks, false);
    args.w_up_scale = (tsr_tensor){0};
    refused(&args, "moe_forward: w_up_scale is absent, expected a tensor");
    args = args_of(&blocks, false);
    args.w_down_scale = TSR_TENSOR(f_down, TSR_F32, E, OF_I, OF_H);
    refused(&args, "moe_forward: w_down_scale has shape (5, 2, 3), expected (5, 3, 2)");
    args = args_of(&blocks, false);
    args.w_gate_scale = TSR_TENSOR(f_expert, TSR_F32, E - 1);
    refused(&args, "moe_forward: w_gate_scale has shape (4,), expected (5,)");
    args = args_of(&blocks, false);
    args.w_gate_scale.dtype = TSR_BF16;
    refused(&args, "moe_forward: w_gate_scale.dtype is bf16, expected f32");
    args = args_of(&blocks, false);
    args.w_down = TSR_TENSOR(half, TSR_BF16, E, H, I);
    refused(&args, "moe_forward: w_down.dtype is bf16, expected e4m3 as w_up");
    args = args_of(&blocks, false);
    args.w_up.dtype = TSR_E5M2;
    refused(&args, "moe_forward: w_gate.dtype is e4m3, expected f32 as x");
    args = args_of(&blocks, false);
    args.w_gate = args.w_up = TSR_TENSOR(half, TSR_F32, E, I, 1);
    args.w_down = TSR_TENSOR(half, TSR_F32, E, 1, I);
    args.x = TSR_TENSOR(fx, TSR_F32, T, 1);
    args.y = TSR_TENSOR(fy, TSR_F32, T, 1);
    refused(&args, "moe_forward: w_gate_scale is present, expected it absent beside the other "
                   "fields");
    args = args_of(&blocks, false);
    args.w_gate_scale.data = fy;
    refused(&args, "moe_forward: y overlaps w_gate_scale in memory, expected none of its bytes");
    args = args_of(&blocks, true);
    args.w_down_scale = (tsr_tensor){0};
    refused(&args, "moe_forward: w_down_scale is absent, expected a tensor");
    args = args_of(&blocks, true);
    args.w_up = args_of(&blocks, false).w_up;
    refused(&args, "moe_forward: w_up.dtype is e4m3, expected f64 as x");
    const struct fp8_case shared = {true, true, true, false, false, true};
    args = args_of(&shared, false);
    args.shared_w_down_scale = (tsr_tensor){0};
    refused(&args, "moe_forward: shared_w_down_scale is absent, expected a tensor");
    args = args_of(&shared, false);
    args.shared_w_up_scale = TSR_TENSOR(f_shared, TSR_F32, 1);
    refused(&args, "moe_forward: shared_w_up_scale has shape (1,), expected (2, 3)");
    args = args_of(&shared, false);
    args.shared_w_gate = TSR_TENSOR(half, TSR_F32, S, H);
    refused(&args, "moe_forward: shared_w_gate.dtype is f32, expected e4m3 as shared_w_up");
    // Programs that were built before scales existed pass this size.
    args = args_of(&blocks, false);
    args.size = offsetof(tsr_moe_forward_args, w_gate_scale);
    refused(&args, "moe_forward: w_gate_scale is absent, expected a tensor");
}

static void no_backward(void **state) {
    static float h[R][2 * I];
    (void)state;
    tsr_moe_backward_args args =
        TSR_MOE_BACKWARD_ARGS(.x = TSR_TENSOR(fx, TSR_F32, T, H),
                              .w_up = TSR_TENSOR(code_in, TSR_E4M3, E, I, H),
                              .w_down = TSR_TENSOR(code_down, TSR_E4M3, E, H, I),
                              .preact = TSR_TENSOR(h, TSR_F32, R, I),
                              .topk_ids = TSR_TENSOR(ids, TSR_I32, T, K),
                              .topk_weights = TSR_TENSOR(fweights, TSR_F32, T, K),
                              .dy = TSR_TENSOR(fy, TSR_F32, T, H));
    assert_int_equal(tsr_moe_backward(contexts[TSR_ISA_SCALAR], &args), TSR_INVALID_ARGUMENT);
    assert_string_equal(tsr_last_error(), "moe_backward: w_up.dtype is e4m3, expected f32 as x");
}

int main(void) {
    for (int isa = 0; isa < TSR_ISA_COUNT; isa++)
        if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 2, .isa = (tsr_isa)isa),
                               &contexts[isa]) != TSR_OK)
            contexts[isa] = contexts[TSR_ISA_SCALAR];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(refusals),
        cmocka_unit_test(no_backward),
    };
    return cmocka_run_group_tests_name("moe fp8", tests, NULL, NULL);
}
