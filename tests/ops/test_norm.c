// SPDX-License-Identifier: Apache-2.0
// The norms in cases that the tool does not cover: x with one dimension has the same shape as weight, so only a
// tensor's name decides whether it may also be an output.
#include "test_support.h"

#include <math.h>

enum { COLS = 4 };

static tsr_context *ctx;

static int setup(void **state) {
    (void)state;
    ctx = test_context(2);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tsr_context_destroy(ctx);
    return 0;
}

// The vectors of a call, all with x's shape. mean and rstd have one element.
struct vectors {
    float x[COLS], residual[COLS], weight[COLS], bias[COLS], y[COLS], residual_out[COLS];
    float dy[COLS], dresidual_out[COLS], dx[COLS], dweight[COLS], dbias[COLS];
    float mean, rstd;
};

static const struct vectors fresh = {
    .x = {1, 2, 3, 4},
    .residual = {0.5f, -1, 2, 0},
    .weight = {1, 2, 0.5f, -1},
    .bias = {0, 1, 2, 3},
    .dy = {1, -1, 2, 0.25f},
    .dresidual_out = {3, 1, -2, 1},
    .mean = 2.5f,
    .rstd = 0.8944272f,
};

#define VECTOR(data) TSR_TENSOR(data, TSR_F32, COLS)
#define SCALAR(data) tsr_tensor_contiguous(data, TSR_F32, 0, NULL)

static tsr_layernorm_forward_args forward_args(struct vectors *v) {
    return TSR_LAYERNORM_FORWARD_ARGS(.x = VECTOR(v->x), .residual = VECTOR(v->residual),
                                      .weight = VECTOR(v->weight), .bias = VECTOR(v->bias),
                                      .y = VECTOR(v->y), .residual_out = VECTOR(v->residual_out));
}

static tsr_layernorm_backward_args backward_args(struct vectors *v) {
    return TSR_LAYERNORM_BACKWARD_ARGS(.x = VECTOR(v->x), .weight = VECTOR(v->weight),
                                       .mean = SCALAR(&v->mean), .rstd = SCALAR(&v->rstd),
                                       .dy = VECTOR(v->dy),
                                       .dresidual_out = VECTOR(v->dresidual_out),
                                       .dx = VECTOR(v->dx), .dweight = VECTOR(v->dweight),
                                       .dbias = VECTOR(v->dbias));
}

// Calls either norm with the same tensors. rmsnorm uses those that it has.
static tsr_status forward(bool is_rmsnorm, const tsr_layernorm_forward_args *a) {
    if (!is_rmsnorm) return tsr_layernorm_forward(ctx, a);
    return tsr_rmsnorm_forward(ctx, &TSR_RMSNORM_FORWARD_ARGS(.x = a->x, .residual = a->residual,
                                                              .weight = a->weight, .y = a->y,
                                                              .residual_out = a->residual_out));
}

static tsr_status backward(bool is_rmsnorm, const tsr_layernorm_backward_args *a) {
    if (!is_rmsnorm) return tsr_layernorm_backward(ctx, a);
    return tsr_rmsnorm_backward(
        ctx, &TSR_RMSNORM_BACKWARD_ARGS(.x = a->x, .weight = a->weight, .rstd = a->rstd,
                                        .dy = a->dy, .dresidual_out = a->dresidual_out, .dx = a->dx,
                                        .dweight = a->dweight));
}

static void assert_vector(const float *got, const float *expected) {
    for (int i = 0; i < COLS; i++)
        if (!(fabsf(got[i] - expected[i]) <= 1e-5f))
            fail_msg("[%d] is %.9g, expected %.9g", i, (double)got[i], (double)expected[i]);
}

// An output at an input's address. The call must refuse it, or give the same values as with separate tensors.
struct pair {
    size_t out, in; // of the tensors in the args
    const char *out_name, *in_name;
    bool is_allowed, is_in_rmsnorm;
};

static tsr_tensor *tensor_at(void *args, size_t offset) {
    return (tsr_tensor *)(void *)((char *)args + offset);
}

#define FORWARD(out, in, is_allowed, is_in_rmsnorm)                                                \
    {                                                                                              \
        offsetof(tsr_layernorm_forward_args, out), offsetof(tsr_layernorm_forward_args, in), #out, \
            #in, is_allowed, is_in_rmsnorm                                                         \
    }
#define BACKWARD(out, in, is_allowed, is_in_rmsnorm)                                               \
    {                                                                                              \
        offsetof(tsr_layernorm_backward_args, out), offsetof(tsr_layernorm_backward_args, in),     \
            #out, #in, is_allowed, is_in_rmsnorm                                                   \
    }

static void forward_pairs(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        FORWARD(y, x, true, true),
        FORWARD(y, residual, true, true),
        FORWARD(residual_out, x, true, true),
        FORWARD(residual_out, residual, true, true),
        FORWARD(y, weight, false, true),
        FORWARD(y, bias, false, false),
        FORWARD(residual_out, weight, false, true),
        FORWARD(residual_out, bias, false, false),
        FORWARD(residual_out, y, false, true),
    };
    for (int i = 0; i < 2 * COUNT(pairs); i++) {
        const struct pair *pair = &pairs[i / 2];
        bool is_rmsnorm = i % 2 == 1;
        struct vectors v = fresh, expected = fresh;
        tsr_layernorm_forward_args args = forward_args(&v), apart = forward_args(&expected);
        if (is_rmsnorm && !pair->is_in_rmsnorm) continue;
        assert_ok(forward(is_rmsnorm, &apart));
        *tensor_at(&args, pair->out) = *tensor_at(&args, pair->in);
        tsr_status status = forward(is_rmsnorm, &args);
        if (pair->is_allowed) {
            assert_int_equal(status, TSR_OK);
            assert_vector(args.y.data, expected.y);
            assert_vector(args.residual_out.data, expected.residual_out);
        } else {
            assert_status(status, TSR_INVALID_ARGUMENT, pair->out_name, pair->in_name);
            assert_memory_equal(&v, &fresh, sizeof v);
        }
    }
}

static void backward_pairs(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        BACKWARD(dx, x, true, true),
        BACKWARD(dx, dy, true, true),
        BACKWARD(dx, dresidual_out, true, true),
        BACKWARD(dx, weight, false, true),
        BACKWARD(dweight, x, false, true),
        BACKWARD(dweight, dy, false, true),
        BACKWARD(dweight, dresidual_out, false, true),
        BACKWARD(dweight, weight, false, true),
        BACKWARD(dweight, dx, false, true),
        BACKWARD(dbias, x, false, false),
        BACKWARD(dbias, dy, false, false),
        BACKWARD(dbias, weight, false, false),
        BACKWARD(dbias, dweight, false, false),
    };
    for (int i = 0; i < 2 * COUNT(pairs); i++) {
        const struct pair *pair = &pairs[i / 2];
        bool is_rmsnorm = i % 2 == 1;
        struct vectors v = fresh, expected = fresh;
        tsr_layernorm_backward_args args = backward_args(&v), apart = backward_args(&expected);
        if (is_rmsnorm && !pair->is_in_rmsnorm) continue;
        assert_ok(backward(is_rmsnorm, &apart));
        *tensor_at(&args, pair->out) = *tensor_at(&args, pair->in);
        tsr_status status = backward(is_rmsnorm, &args);
        if (pair->is_allowed) {
            assert_int_equal(status, TSR_OK);
            assert_vector(args.dx.data, expected.dx);
            assert_vector(args.dweight.data, expected.dweight);
        } else {
            assert_status(status, TSR_INVALID_ARGUMENT, pair->out_name, pair->in_name);
            assert_memory_equal(&v, &fresh, sizeof v);
        }
    }
}

// Computed by hand: s = (1.5, 1, 5, 4), mean 2.875, variance 2.7969, eps 0.
static void values_of_one_row(void **state) {
    (void)state;
    struct vectors v = fresh;
    tsr_layernorm_forward_args args = forward_args(&v);
    args.has_eps = 1;
    assert_ok(tsr_layernorm_forward(ctx, &args));
    assert_vector(v.residual_out, (const float[]){1.5f, 1, 5, 4});
    double rstd = 1 / sqrt(2.796875);
    assert_vector(v.y,
                  (const float[]){(float)(-1.375 * rstd), (float)(-1.875 * rstd * 2 + 1),
                                  (float)(2.125 * rstd * 0.5 + 2), (float)(-1.125 * rstd + 3)});
}

// dy rstd overflows fp32 though dy weight does not: a large gradient with a small weight.
static void large_gradient_of_a_small_weight(void **state) {
    (void)state;
    enum { ROWS = 2, WIDTH = 64 };
    static float x[ROWS][WIDTH], dy[ROWS][WIDTH], weight[WIDTH];
    float rstd[ROWS] = {2, 2}, dx[2][ROWS][WIDTH], dweight[2][WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        weight[i] = i == 0 ? 0x1p-30f : 1;
        for (int r = 0; r < ROWS; r++) {
            x[r][i] = i % 2 ? -0.5f : 0.5f;
            dy[r][i] = i == 0 && r == 0 ? 0x1p127f : 1;
        }
    }
    static const char *const variants[] = {NULL, "reference"};
    for (int v = 0; v < 2; v++)
        assert_int_equal(
            tsr_rmsnorm_backward(
                ctx, &TSR_RMSNORM_BACKWARD_ARGS(.variant = variants[v],
                                                .x = TSR_TENSOR(x, TSR_F32, ROWS, WIDTH),
                                                .weight = TSR_TENSOR(weight, TSR_F32, WIDTH),
                                                .rstd = TSR_TENSOR(rstd, TSR_F32, ROWS),
                                                .dy = TSR_TENSOR(dy, TSR_F32, ROWS, WIDTH),
                                                .dx = TSR_TENSOR(dx[v], TSR_F32, ROWS, WIDTH),
                                                .dweight = TSR_TENSOR(dweight[v], TSR_F32, WIDTH))),
            TSR_OK);
    float most = fabsf(dx[1][0][0]);
    for (int i = 0; i < WIDTH; i++) {
        assert_true(fabsf(dweight[0][i] - dweight[1][i]) <= 1e-5f * fabsf(dweight[1][i]));
        for (int r = 0; r < ROWS; r++)
            assert_true(fabsf(dx[0][r][i] - dx[1][r][i]) <= 1e-5f * (r == 0 ? most : 1));
    }
}

enum {
    STREAMED_ROWS = 67,
    STREAMED_COLS = 4160,
    STREAMED_BYTES = STREAMED_ROWS * STREAMED_COLS * 4
};

// Rows of all kinds: ordinary, far from 0, with squares beyond fp32, with an infinity.
static void fill_rows(tsr_dtype dtype, int64_t cols, void *x) {
    for (int64_t i = 0; i < STREAMED_ROWS * cols; i++) {
        int64_t row = i / cols;
        double value = (double)((i * 37 + row) % 101 - 50) / 16;
        if (row % 5 == 3) value += 300;
        if (row == 11 && dtype != TSR_F16) value *= 0x1p100;
        if (row == 33 && i % cols == 5) value = INFINITY;
        tsr_store(dtype, x, i, value);
    }
}

// Tensors that count as larger than the caches use another path, block after block. The bits are the same.
static void same_bits_past_the_caches(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 8, 16, 29, 70, 1024, 2090, 4127, STREAMED_COLS};
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    static _Alignas(64) char x[STREAMED_BYTES + 64], y[2][STREAMED_BYTES + 64];
    static float weight[STREAMED_COLS], bias[STREAMED_COLS];
    float mean[2][STREAMED_ROWS], rstd[2][STREAMED_ROWS];
    for (int i = 0; i < STREAMED_COLS; i++)
        weight[i] = 0.5f + (float)(i % 7), bias[i] = (float)(i % 5);
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes) * COUNT(widths) * 2; k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT % 3];
        int64_t cols = widths[k / TSR_ISA_COUNT / 3 % COUNT(widths)];
        size_t offset = k < TSR_ISA_COUNT * 3 * COUNT(widths) ? 0 : tsr_dtype_bytes(dtype);
        if (isa == TSR_ISA_AUTO) fill_rows(dtype, cols, x + offset);
        if (!test_has_isa(isa)) continue;
        for (int c = 0; c < 4; c++) {
            bool is_streaming = c % 2 == 1, is_rmsnorm = c / 2 == 1;
            tsr_context *own;
            assert_ok(
                tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1,
                                                        .l3_bytes = is_streaming ? 1 : 1 << 30),
                                   &own));
            tsr_layernorm_forward_args args = TSR_LAYERNORM_FORWARD_ARGS(
                    .x = TSR_TENSOR(x + offset, dtype, STREAMED_ROWS, cols),
                    .weight = TSR_TENSOR(weight, TSR_F32, cols),
                    .bias = TSR_TENSOR(bias, TSR_F32, cols),
                    .y = TSR_TENSOR(y[is_streaming] + offset, dtype, STREAMED_ROWS, cols),
                    .mean = TSR_TENSOR(mean[is_streaming], TSR_F32, STREAMED_ROWS),
                    .rstd = TSR_TENSOR(rstd[is_streaming], TSR_F32, STREAMED_ROWS));
            if (is_rmsnorm)
                assert_ok(tsr_rmsnorm_forward(
                    own, &TSR_RMSNORM_FORWARD_ARGS(.x = args.x, .weight = args.weight, .y = args.y,
                                                   .rstd = args.rstd)));
            else
                assert_ok(tsr_layernorm_forward(own, &args));
            tsr_context_destroy(own);
            if (!is_streaming) continue;
            assert_memory_equal(y[0], y[1], sizeof y[0]);
            assert_memory_equal(rstd[0], rstd[1], sizeof rstd[0]);
            if (!is_rmsnorm) assert_memory_equal(mean[0], mean[1], sizeof mean[0]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_one_row),
        cmocka_unit_test(large_gradient_of_a_small_weight),
        cmocka_unit_test(same_bits_past_the_caches),
        cmocka_unit_test(forward_pairs),
        cmocka_unit_test(backward_pairs),
    };
    return cmocka_run_group_tests_name("norm", tests, setup, teardown);
}
