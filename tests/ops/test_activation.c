// SPDX-License-Identifier: Apache-2.0
// Activations: backward with row weights as a mixture's experts call it, where x and up are the halves of one tensor's rows and
// outputs lie in the inputs' memory: values against SwiGLU's derivatives in double, bits for any address, threads and caches. And
// the clamped gate: at, within and beyond the clamps, and without up.
#include "test_support.h"

#include <math.h>

enum { MOST_ROWS = 12, MOST_COLS = 1400, GUARD = 16, POISON = 0x5a };
enum { MOST = MOST_ROWS * 2 * MOST_COLS };

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
static uint64_t random_state;

static int64_t below(int64_t n) { return (int64_t)(test_bits(&random_state) % (uint64_t)n); }

// A buffer of floats or 16-bit numbers with guards on both sides.
struct buffer {
    _Alignas(64) char bytes[GUARD * 4 + MOST * 4 + GUARD * 4];
};
static struct buffer pair, upstream, dpair, product, before;
static float weights[3 * MOST_ROWS], dweights[GUARD + 2 * MOST_ROWS + GUARD];

static char *data_of(struct buffer *b) { return b->bytes + (size_t)GUARD * 4; }

static void draw(struct buffer *b, tsr_dtype dtype, int64_t count) {
    memset(b, POISON, sizeof *b);
    for (int64_t i = 0; i < count; i++)
        tsr_store(dtype, data_of(b), i, (double)test_float(&random_state));
}

// (rows, cols) in rows of `stride` elements, from element `first` on.
static tsr_tensor part(struct buffer *b, tsr_dtype dtype, int64_t rows, int64_t cols,
                       int64_t stride, int64_t first) {
    tsr_tensor t =
        TSR_TENSOR(data_of(b) + (size_t)first * tsr_dtype_bytes(dtype), dtype, rows, cols);
    t.stride[0] = stride;
    return t;
}

static void compare(const char *what, tsr_dtype dtype, int64_t row, int64_t col, double got,
                    double right, double size) {
    const double unit = dtype == TSR_F32 ? 0x1p-20 : dtype == TSR_BF16 ? 0x1.2p-8 : 0x1.2p-11;
    if (!(fabs(got - right) <=
          unit * (fabs(right) + size / 16) + 1e-6 * size + (dtype == TSR_F16 ? 0x1p-24 : 0)))
        fail_msg("%s of %s, row %d, column %d: %.9g, expected %.9g", what, tsr_dtype_name(dtype),
                 (int)row, (int)col, got, right);
}

// One call on random sizes. `place`: where weighted_y lies, in dy, up, x or apart. dx and dup take x and up if these are free.
static void one_call(tsr_context *ctx, tsr_dtype dtype, int place) {
    const int64_t rows = 1 + below(MOST_ROWS), cols = 1 + below(below(3) ? 90 : MOST_COLS),
                  step = 1 + below(3), of_sums = 1 + below(2);
    draw(&pair, dtype, rows * 2 * cols), draw(&upstream, dtype, rows * cols);
    before = pair;
    static struct buffer dy_before;
    dy_before = upstream;
    memset(&dpair, POISON, sizeof dpair), memset(&product, POISON, sizeof product);
    memset(dweights, POISON, sizeof dweights);
    for (int r = 0; r < COUNT(weights); r++) weights[r] = test_float(&random_state);
    const bool is_in_place = place == 0 || place == 3;
    struct buffer *const gradients = is_in_place ? &pair : &dpair;
    tsr_activation_backward_args args =
        TSR_ACTIVATION_BACKWARD_ARGS(.x = part(&pair, dtype, rows, cols, 2 * cols, 0),
                                     .up = part(&pair, dtype, rows, cols, 2 * cols, cols),
                                     .dy = part(&upstream, dtype, rows, cols, cols, 0),
                                     .dx = part(gradients, dtype, rows, cols, 2 * cols, 0),
                                     .dup = part(gradients, dtype, rows, cols, 2 * cols, cols),
                                     .row_weights = TSR_TENSOR(weights, TSR_F32, rows),
                                     .drow_weights = TSR_TENSOR(dweights + GUARD, TSR_F32, rows),
                                     .kind = TSR_ACTIVATION_SILU);
    args.row_weights.stride[0] = step, args.drow_weights.stride[0] = of_sums;
    args.weighted_y = place == 0   ? args.dy
                      : place == 1 ? args.up
                      : place == 2 ? args.x
                                   : part(&product, dtype, rows, cols, cols, 0);
    assert_ok(tsr_activation_backward(ctx, &args));
    for (int64_t r = 0; r < rows; r++) {
        const double w = (double)weights[r * step];
        double sum = 0, size = 0;
        for (int64_t c = 0; c < cols; c++) {
            const double x = tsr_load(dtype, data_of(&before), r * 2 * cols + c),
                         up = tsr_load(dtype, data_of(&before), r * 2 * cols + cols + c),
                         dy = tsr_load(dtype, data_of(&dy_before), r * cols + c),
                         sigmoid = 1 / (1 + exp(-x)), slope = sigmoid * (1 + x * (1 - sigmoid));
            compare("dx", dtype, r, c, tsr_load(dtype, args.dx.data, r * 2 * cols + c),
                    w * dy * slope * up, fabs(w * dy * up));
            compare("dup", dtype, r, c, tsr_load(dtype, args.dup.data, r * 2 * cols + c),
                    w * dy * x * sigmoid, fabs(w * dy));
            compare("weighted_y", dtype, r, c,
                    tsr_load(dtype, args.weighted_y.data, r * args.weighted_y.stride[0] + c),
                    w * x * sigmoid * up, fabs(w * up));
            sum += dy * x * sigmoid * up;
            size += fabs(dy * up) * (fabs(x * sigmoid) + 1);
        }
        compare("drow_weights", TSR_F32, r, 0, (double)dweights[GUARD + r * of_sums], sum,
                dtype == TSR_F32 ? size : 60 * size);
    }
    // nothing beside the outputs was written
    for (int i = 0; i < COUNT(dweights); i++)
        if (i < GUARD || (i - GUARD) % of_sums != 0 || i - GUARD >= rows * of_sums)
            assert_true(test_all_bytes_are(dweights + i, POISON, sizeof(float)));
    struct buffer *const outputs[] = {gradients, is_in_place ? &upstream : &pair, &product};
    for (int i = 0; i < COUNT(outputs); i++) {
        const size_t count = (size_t)(rows * cols) *
                             (outputs[i] == &pair || outputs[i] == &dpair ? 2 : 1),
                     end = (size_t)GUARD * 4 + count * tsr_dtype_bytes(dtype);
        assert_true(test_all_bytes_are(outputs[i]->bytes, POISON, (size_t)GUARD * 4));
        assert_true(test_all_bytes_are(outputs[i]->bytes + end, POISON, sizeof *outputs[i] - end));
    }
    if (!is_in_place) assert_memory_equal(&upstream, &dy_before, sizeof upstream);
}

static void values_and_aliases(void **state) {
    (void)state;
    const int count = (int)test_number("TESSERA_TEST_CASES", 40);
    random_state = test_seed(31);
    for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
        if (!test_has_isa(isa)) continue;
        tsr_context *ctx;
        assert_ok(
            tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa, .num_threads = 2), &ctx));
        for (int i = 0; i < count * 4; i++) one_call(ctx, dtypes[below(3)], i % 4);
        tsr_context_destroy(ctx);
    }
}

// A row's sum has the same bits alone and among others, at any address, with any threads, and past the caches.
static void bits_of_sums(void **state) {
    (void)state;
    random_state = test_number("TESSERA_TEST_SEED", 32);
    for (int k = 0; k < TSR_ISA_COUNT * 30; k++) {
        const tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        const tsr_dtype dtype = dtypes[below(3)];
        const int64_t rows = MOST_ROWS, cols = below(2) ? 64 * (1 + below(20)) : 1 + below(1300);
        float sums[2][MOST_ROWS];
        if (isa == TSR_ISA_AUTO || !test_has_isa(isa)) continue;
        draw(&pair, dtype, rows * 2 * cols), draw(&upstream, dtype, rows * cols);
        static struct buffer moved;
        memset(&moved, POISON, sizeof moved);
        const size_t bytes = (size_t)cols * tsr_dtype_bytes(dtype),
                     shift = 3 * tsr_dtype_bytes(dtype);
        tsr_activation_backward_args args =
            TSR_ACTIVATION_BACKWARD_ARGS(.x = part(&pair, dtype, rows, cols, 2 * cols, 0),
                                         .up = part(&pair, dtype, rows, cols, 2 * cols, cols),
                                         .dy = part(&upstream, dtype, rows, cols, cols, 0),
                                         .dx = part(&dpair, dtype, rows, cols, 2 * cols, 0),
                                         .dup = part(&dpair, dtype, rows, cols, 2 * cols, cols),
                                         .drow_weights = TSR_TENSOR(sums[0], TSR_F32, rows),
                                         .kind = TSR_ACTIVATION_GELU);
        for (int out = 0; out < 2; out++) {
            tsr_context *ctx;
            assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1 + out,
                                                              .l3_bytes = out ? 1 : 1 << 30),
                                         &ctx));
            args.drow_weights.data = sums[out];
            assert_ok(tsr_activation_backward(ctx, &args));
            if (out == 1) { // one row elsewhere
                const int64_t row = below(rows);
                float sum;
                tsr_activation_backward_args alone = args;
                memcpy(data_of(&moved) + shift, (char *)args.x.data + (size_t)row * 2 * bytes,
                       bytes);
                alone.x = part(&moved, dtype, 1, cols, cols, 3);
                alone.up.data = (char *)args.up.data + (size_t)row * 2 * bytes;
                alone.dy.data = (char *)args.dy.data + (size_t)row * bytes;
                alone.up.shape[0] = alone.dy.shape[0] = 1;
                alone.dx.shape[0] = alone.dup.shape[0] = 1;
                alone.drow_weights = TSR_TENSOR(&sum, TSR_F32, 1);
                assert_ok(tsr_activation_backward(ctx, &alone));
                assert_memory_equal(&sum, &sums[1][row], sizeof sum);
            }
            tsr_context_destroy(ctx);
        }
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    }
}

// What torch's clamp does at, within and beyond the clamps; NaN.
static void clamped_gates(void **state) {
    (void)state;
    static const float xs[] = {7, 7.0000005f, -9, 3, NAN, 2, 1},
                       ups[] = {2, 2, 7, -7.5f, 1, NAN, -7};
    enum { COLS = 7 };
    for (int isa = TSR_ISA_AUTO + 1; isa < TSR_ISA_COUNT; isa++) {
        float y[COLS], dx[COLS], dup[COLS], ones[COLS];
        if (!test_has_isa(isa)) continue;
        tsr_context *ctx;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa), &ctx));
        for (int i = 0; i < COLS; i++) ones[i] = 1;
        const tsr_tensor x = TSR_TENSOR((void *)xs, TSR_F32, 1, COLS),
                         up = TSR_TENSOR((void *)ups, TSR_F32, 1, COLS);
        assert_ok(tsr_activation_forward(
            ctx,
            &TSR_ACTIVATION_FORWARD_ARGS(.x = x, .up = up, .y = TSR_TENSOR(y, TSR_F32, 1, COLS),
                                         .kind = TSR_ACTIVATION_SWIGLU_CLAMPED)));
        assert_ok(tsr_activation_backward(
            ctx, &TSR_ACTIVATION_BACKWARD_ARGS(.x = x, .up = up,
                                               .dy = TSR_TENSOR(ones, TSR_F32, 1, COLS),
                                               .dx = TSR_TENSOR(dx, TSR_F32, 1, COLS),
                                               .dup = TSR_TENSOR(dup, TSR_F32, 1, COLS),
                                               .kind = TSR_ACTIVATION_SWIGLU_CLAMPED)));
        for (int i = 0; i < COLS; i++) {
            const double g = xs[i] > 7 ? 7 : (double)xs[i],
                         u = ups[i] > 7    ? 7
                             : ups[i] < -7 ? -7
                                           : (double)ups[i],
                         f = 1 / (1 + exp(-1.702 * g)), value = g * f,
                         slope = xs[i] > 7 ? 0 : f + 1.702 * value * (1 - f);
            if (i == 4 || i == 5) { // NaN in x, then in up
                assert_true(isnan(y[i]) && isnan(dx[i]) && isnan(dup[i]) == (i == 4));
                continue;
            }
            compare("y", TSR_F32, 0, i, (double)y[i], value * (u + 1), 1);
            compare("dx", TSR_F32, 0, i, (double)dx[i], slope * (u + 1), 1);
            compare("dup", TSR_F32, 0, i, (double)dup[i], fabs((double)ups[i]) > 7 ? 0 : value, 1);
        }
        assert_true(dx[0] != 0 && dx[1] == 0 && dup[2] != 0 && dup[3] == 0 && dup[6] != 0);
        tsr_context_destroy(ctx);
    }
}

// SWIGLU_CLAMPED exists only with up.
static void clamped_without_a_gate(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    const tsr_tensor t = TSR_TENSOR(data_of(&pair), TSR_F32, 4, 4),
                     out = TSR_TENSOR(data_of(&dpair), TSR_F32, 4, 4),
                     three = TSR_TENSOR(data_of(&upstream), TSR_F32, 1, 4, 4);
    static int32_t counts[1] = {4};
    const tsr_activation kind = TSR_ACTIVATION_SWIGLU_CLAMPED;
    memset(&dpair, POISON, sizeof dpair);
    assert_status(
        tsr_activation_forward(ctx, &TSR_ACTIVATION_FORWARD_ARGS(.x = t, .y = out, .kind = kind)),
        TSR_INVALID_ARGUMENT, "activation_forward: up is absent, expected a tensor");
    assert_status(tsr_activation_backward(
                      ctx, &TSR_ACTIVATION_BACKWARD_ARGS(.x = t, .dy = t, .dx = out, .kind = kind)),
                  TSR_INVALID_ARGUMENT, "activation_backward: up is absent, expected a tensor");
    assert_status(tsr_matmul_forward(
                      ctx, &TSR_MATMUL_FORWARD_ARGS(.a = t, .b = t, .c = out, .activation = kind)),
                  TSR_INVALID_ARGUMENT, "matmul_forward: b_up is absent, expected a tensor");
    assert_status(
        tsr_matmul_backward(ctx, &TSR_MATMUL_BACKWARD_ARGS(.a = t, .b = t, .preact = t, .dc = t,
                                                           .da = out, .activation = kind)),
        TSR_INVALID_ARGUMENT, "matmul_backward: activation is swiglu_clamped");
    assert_status(
        tsr_matmul_grouped_forward(
            ctx,
            &TSR_MATMUL_GROUPED_FORWARD_ARGS(.a = three, .b = three,
                                             .counts = TSR_TENSOR(counts, TSR_I32, 1),
                                             .c = TSR_TENSOR(data_of(&dpair), TSR_F32, 1, 4, 4),
                                             .activation = kind)),
        TSR_INVALID_ARGUMENT, "matmul_grouped_forward: b_up is absent, expected a tensor");
    assert_true(test_all_bytes_are(&dpair, POISON, sizeof dpair));
    tsr_context_destroy(ctx);
}

static void refusals(void **state) {
    (void)state;
    tsr_context *ctx = test_context(1);
    enum { ROWS = 6, COLS = 8 };
    const tsr_activation_backward_args right =
        TSR_ACTIVATION_BACKWARD_ARGS(.x = part(&pair, TSR_BF16, ROWS, COLS, COLS, 0),
                                     .dy = part(&upstream, TSR_BF16, ROWS, COLS, COLS, 0),
                                     .dx = part(&dpair, TSR_BF16, ROWS, COLS, COLS, 0),
                                     .row_weights = TSR_TENSOR(weights, TSR_F32, ROWS),
                                     .weighted_y = part(&product, TSR_BF16, ROWS, COLS, COLS, 0),
                                     .drow_weights = TSR_TENSOR(dweights, TSR_F32, ROWS));
    static const char op[] = "activation_backward";
    tsr_activation_backward_args args = right;
    args.row_weights.dtype = TSR_BF16;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op,
                  "row_weights.dtype is bf16, expected f32");
    args = right, args.row_weights.shape[0] = ROWS - 1;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op, "row_weights",
                  "x without its last dimension");
    args = right, args.drow_weights = TSR_TENSOR(dweights, TSR_F32, 2, ROWS / 2);
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op, "drow_weights");
    args = right, args.drow_weights.data = weights;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op,
                  "drow_weights overlaps row_weights");
    args = right, args.drow_weights.stride[0] = 0;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op, "drow_weights");
    args = right, args.weighted_y = args.dx;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op,
                  "weighted_y overlaps dx");
    args = right, args.weighted_y.dtype = TSR_F16;
    assert_status(tsr_activation_backward(ctx, &args), TSR_INVALID_ARGUMENT, op,
                  "weighted_y.dtype is f16, expected bf16 as x");
    args = right, args.variant = "unfused";
    assert_status(tsr_activation_backward(ctx, &args), TSR_UNSUPPORTED, op, "unfused");
    assert_ok(tsr_activation_backward(ctx, &right));
    tsr_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_aliases),
        cmocka_unit_test(bits_of_sums),
        cmocka_unit_test(refusals),
        cmocka_unit_test(clamped_gates),
        cmocka_unit_test(clamped_without_a_gate),
    };
    return cmocka_run_group_tests_name("activation", tests, NULL, NULL);
}
