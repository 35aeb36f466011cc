// SPDX-License-Identifier: Apache-2.0
// Row kernels of the CPU in cases that the tool does not cover: tensors that count as larger than the caches use other
// paths (whole lines, two rows in turn) with the same bits. Also the accuracy of softmax's exponentials.
#include "test_support.h"

#include <math.h>

#include "context/op_table.h"
#include "cpu/cpu_isa.h"

enum { ROWS = 37, MOST_COLS = 4127, BYTES = ROWS * MOST_COLS * 4, ALIGNMENTS = 3 };

static const int64_t widths[] = {1, 5, 16, 29, 48, 70, 128, 1000, 1024, 2080, MOST_COLS};
static const size_t offsets[ALIGNMENTS] = {0, 32,
                                           2}; // of every tensor from a line; f32 takes 4 for 2
static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};

static _Alignas(64) char x[BYTES + 64], dy[BYTES + 64], dx[2][BYTES + 256], dup[2][BYTES + 256];
static float weight[MOST_COLS], dweight[2][MOST_COLS], dbias[2][MOST_COLS], mean[ROWS], rstd[ROWS];
static int32_t positions[ROWS];

static void fill(tsr_dtype dtype, int64_t cols, char *to, int step) {
    for (int64_t i = 0; i < ROWS * cols; i++)
        tsr_store(dtype, to, i, (double)((i * step + i / cols) % 101 - 50) / 16);
}

// Backward of softmax and of both norms, and softmax forward, with the same x and dy.
static void run(tsr_context *ctx, int op, tsr_dtype dtype, int64_t cols, size_t offset, int out) {
    tsr_tensor x_ = TSR_TENSOR(x + offset, dtype, ROWS, cols),
               dy_ = TSR_TENSOR(dy + offset, dtype, ROWS, cols),
               dx_ = TSR_TENSOR(dx[out] + offset, dtype, ROWS, cols),
               weight_ = TSR_TENSOR(weight, TSR_F32, cols), mean_ = TSR_TENSOR(mean, TSR_F32, ROWS),
               rstd_ = TSR_TENSOR(rstd, TSR_F32, ROWS),
               dweight_ = TSR_TENSOR(dweight[out], TSR_F32, cols),
               dbias_ = TSR_TENSOR(dbias[out], TSR_F32, cols);
    switch (op) {
    case 0:
        assert_ok(tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = x_, .y = dx_)));
        break;
    case 1:
        assert_ok(
            tsr_softmax_backward(ctx, &TSR_SOFTMAX_BACKWARD_ARGS(.y = x_, .dy = dy_, .dx = dx_)));
        break;
    case 2:
        assert_ok(tsr_rmsnorm_backward(
            ctx, &TSR_RMSNORM_BACKWARD_ARGS(.x = x_, .weight = weight_, .rstd = rstd_, .dy = dy_,
                                            .dx = dx_, .dweight = dweight_)));
        break;
    default:
        assert_ok(tsr_layernorm_backward(
            ctx, &TSR_LAYERNORM_BACKWARD_ARGS(.x = x_, .weight = weight_, .mean = mean_,
                                              .rstd = rstd_, .dy = dy_, .dx = dx_,
                                              .dweight = dweight_, .dbias = dbias_)));
    }
}

// Element-wise kernels with the same tensors. RoPE takes rows of x as heads of one token each if their width is even.
static void run_elements(tsr_context *ctx, int op, tsr_dtype dtype, int64_t cols, size_t offset,
                         int out) {
    tsr_tensor x_ = TSR_TENSOR(x + offset, dtype, ROWS, cols),
               dy_ = TSR_TENSOR(dy + offset, dtype, ROWS, cols),
               dx_ = TSR_TENSOR(dx[out] + offset, dtype, ROWS, cols);
    static int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++) targets[r] = (int32_t)((r * 31) % cols);
    switch (op) {
    case 0:
    case 1:
        assert_ok(tsr_activation_forward(
            ctx,
            &TSR_ACTIVATION_FORWARD_ARGS(.x = x_, .y = dx_, .up = op == 1 ? dy_ : (tsr_tensor){0},
                                         .kind = TSR_ACTIVATION_SILU)));
        break;
    case 2:
        assert_ok(tsr_activation_backward(
            ctx, &TSR_ACTIVATION_BACKWARD_ARGS(.x = x_, .dy = dy_, .dx = dx_,
                                               .kind = TSR_ACTIVATION_GELU)));
        break;
    case 3: // to the other dtypes, from the same bytes
        for (int to = 0; to < 3; to++)
            if (dtypes[to] != dtype)
                assert_ok(tsr_cast(
                    ctx, &TSR_CAST_ARGS(.x = x_, .y = TSR_TENSOR(dx[out] + 4 * offset, dtypes[to],
                                                                 ROWS, cols))));
        break;
    case 4:
        assert_ok(tsr_cross_entropy_backward(
            ctx, &TSR_CROSS_ENTROPY_BACKWARD_ARGS(.logits = x_,
                                                  .targets = TSR_TENSOR(targets, TSR_I32, ROWS),
                                                  .lse = TSR_TENSOR(mean, TSR_F32, ROWS),
                                                  .dloss = TSR_TENSOR(rstd, TSR_F32, ROWS),
                                                  .dlogits = dx_)));
        break;
    case 6:
    case 7: // outputs with equal and with different alignment to lines
        assert_ok(tsr_activation_backward(
            ctx, &TSR_ACTIVATION_BACKWARD_ARGS(.x = x_, .up = dy_, .dy = x_, .dx = dx_,
                                               .kind = TSR_ACTIVATION_SILU,
                                               .dup = TSR_TENSOR(dup[out] + (op == 6 ? offset : 0),
                                                                 dtype, ROWS, cols))));
        break;
    default:
        if (cols % 2 != 0) return;
        assert_ok(tsr_rope_forward(
            ctx,
            &TSR_ROPE_FORWARD_ARGS(.x = TSR_TENSOR(x + offset, dtype, 1, ROWS, 1, cols),
                                   .cos = TSR_TENSOR(weight, TSR_F32, 1, cols / 2),
                                   .sin = TSR_TENSOR(weight, TSR_F32, 1, cols / 2),
                                   .positions = TSR_TENSOR(positions, TSR_I32, ROWS),
                                   .y = TSR_TENSOR(dx[out] + offset, dtype, 1, ROWS, 1, cols))));
    }
}

static void same_bits_past_the_caches(void **state) {
    (void)state;
    for (int i = 0; i < MOST_COLS; i++) weight[i] = 0.5f + (float)(i % 7);
    for (int r = 0; r < ROWS; r++) mean[r] = (float)(r % 5), rstd[r] = 0.5f + (float)(r % 3);
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes) * COUNT(widths) * ALIGNMENTS; k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT % COUNT(dtypes)];
        int64_t cols = widths[k / TSR_ISA_COUNT / COUNT(dtypes) % COUNT(widths)];
        size_t offset = offsets[k / TSR_ISA_COUNT / COUNT(dtypes) / COUNT(widths)];
        if (dtype == TSR_F32 && offset == 2) offset = 4;
        if (isa == TSR_ISA_AUTO)
            fill(dtype, cols, x + offset, 37), fill(dtype, cols, dy + offset, 11);
        if (!test_has_isa(isa)) continue;
        for (int op = 0; op < 12; op++) {
            memset(dx, 0, sizeof dx), memset(dup, 0, sizeof dup);
            for (int out = 0; out < 2; out++) {
                tsr_context *ctx;
                assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1,
                                                                  .l3_bytes = out ? 1 : 1 << 30),
                                             &ctx));
                if (op < 4)
                    run(ctx, op, dtype, cols, offset, out);
                else
                    run_elements(ctx, op - 4, dtype, cols, offset, out);
                tsr_context_destroy(ctx);
            }
            assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
            assert_memory_equal(dup[0], dup[1], sizeof dup[0]);
            assert_memory_equal(dweight[0], dweight[1], sizeof dweight[0]);
            assert_memory_equal(dbias[0], dbias[1], sizeof dbias[0]);
        }
    }
}

// Heads that are rotated in part, are contiguous by tokens or by heads or have gaps, and start anywhere in a line.
static void heads_past_the_caches(void **state) {
    (void)state;
    enum { TOKENS = 29, HEADS = 5, MOST_HEAD = 1030 };
    static const int64_t heads[][2] = {{80, 32},  {33, 10},   {64, 24},    {96, 96},
                                       {16, 2},   {128, 128}, {1030, 130}, {80, 80},
                                       {112, 48}, {128, 16}}; // dim, rotary
    for (int i = 0; i < MOST_COLS; i++) weight[i] = 0.5f + (float)(i % 7);
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes) * COUNT(heads) * ALIGNMENTS * 8; k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT % COUNT(dtypes)];
        const int64_t *dim = heads[k / TSR_ISA_COUNT / COUNT(dtypes) % COUNT(heads)];
        int rest = k / TSR_ISA_COUNT / COUNT(dtypes) / COUNT(heads);
        size_t offset = offsets[rest % ALIGNMENTS];
        int layout = rest / ALIGNMENTS % 4, is_interleaved = rest / ALIGNMENTS / 4;
        if (dtype == TSR_F32 && offset == 2) offset = 4;
        if (isa == TSR_ISA_AUTO) fill(dtype, TOKENS * HEADS * MOST_HEAD / ROWS, x + offset, 37);
        if (!test_has_isa(isa)) continue;
        tsr_tensor in = TSR_TENSOR(x + offset, dtype, 1, TOKENS, HEADS, dim[0]), to = in;
        if (layout == 1) // stored as (batch, num_heads, seqlen, head_dim)
            in.stride[1] = to.stride[1] = dim[0], in.stride[2] = to.stride[2] = TOKENS * dim[0];
        if (layout == 2) to.stride[1] += 3, to.stride[0] += 3 * TOKENS;
        if (layout == 3) to.stride[2] += 1, to.stride[1] += HEADS, to.stride[0] += HEADS * TOKENS;
        memset(dx, 0x5a, sizeof dx);
        for (int out = 0; out < 2; out++) {
            tsr_context *ctx;
            to.data = dx[out] + offset;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 2, .l3_bytes = out ? 1 : 1 << 30),
                &ctx));
            assert_ok(tsr_rope_forward(
                ctx, &TSR_ROPE_FORWARD_ARGS(.x = in, .y = to, .rotary_dim = dim[1],
                                            .interleaved = is_interleaved,
                                            .cos = TSR_TENSOR(weight, TSR_F32, TOKENS, dim[1] / 2),
                                            .sin = TSR_TENSOR(weight + 3, TSR_F32, TOKENS,
                                                              dim[1] / 2))));
            tsr_context_destroy(ctx);
        }
        assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
        // elements that are not rotated must be copied
        for (int64_t h = 0; h < HEADS && dim[1] < dim[0]; h++) {
            size_t bytes = tsr_dtype_bytes(dtype), last = (size_t)dim[0] - 1;
            const char *from =
                x + offset + ((size_t)(28 * in.stride[1] + h * in.stride[2]) + last) * bytes;
            const char *there =
                dx[1] + offset + ((size_t)(28 * to.stride[1] + h * to.stride[2]) + last) * bytes;
            assert_memory_equal(from, there, bytes);
        }
    }
}

// The size from which stores bypass the caches: a share of the last-level cache. On AMD with AVX2 it is twice that for
// several threads, and larger still if rows begin and end within a line.
static void when_past_the_caches(void **state) {
    (void)state;
    enum { SHARE = 1 << 20 };
    struct tsri_limits limits = {.isa = TSR_ISA_AVX2, .num_threads = 2, .l3_bytes = SHARE};
    struct tsri_rows whole = {.dtype = TSR_F32, .rows = 100, .cols = 1000, .stride = 1000},
                     short_rows = whole, long_rows = whole;
    short_rows.cols = short_rows.stride = 1002;
    long_rows.cols = long_rows.stride = 1026;
    bool is_slow = tsri_is_slow_past_caches(&limits);
    if (tsri_cache_sizes().l3 < 2 * SHARE) skip();
    assert_true(is_slow == !tsri_gains_from_far_lines());
    int64_t held = is_slow ? 2 * SHARE : SHARE;
    assert_false(tsri_should_stream_rows(&limits, held, &whole));
    assert_true(tsri_should_stream_rows(&limits, held + 1, &whole));
    assert_true(tsri_should_stream_rows(&limits, held + 1, &short_rows) == !is_slow);
    assert_true(tsri_should_stream_rows(&limits, held + 1, &long_rows)); // a 512th
    assert_int_equal(tsri_bytes_better_cached(&limits, 16 * SHARE), is_slow ? SHARE : 16 * SHARE);
    assert_true(tsri_should_stream_rows_of(&limits, 1, SHARE + 1, &whole)); // bytes of one thread
    assert_false(tsri_should_stream_rows_of(&limits, 1, SHARE, &whole));
    whole.stride = 1004; // rows of whole vectors, not aligned to lines
    assert_true(tsri_should_stream_rows(&limits, held + 1, &whole) == !is_slow);
    limits.num_threads = 1;
    assert_true(tsri_should_stream_rows(&limits, SHARE + 1, &long_rows));
    assert_false(tsri_should_stream_rows(&limits, SHARE, &long_rows));
    limits.num_threads = 2;
    limits.isa = TSR_ISA_AVX512;
    assert_false(tsri_is_slow_past_caches(&limits));
    assert_true(tsri_should_stream_rows(&limits, SHARE + 1, &short_rows));
    assert_false(tsri_should_stream_rows(&limits, SHARE, &short_rows));
    limits.isa = TSR_ISA_AVX2; // the share is the whole cache
    limits.l3_bytes = tsri_cache_sizes().l3;
    assert_true(tsri_should_stream_rows(&limits, limits.l3_bytes + 1, &long_rows) ==
                (!is_slow || 1026 * 4 >= limits.l3_bytes / 512));
}

// Short rows are processed several at a time. A row's result must not depend on the other rows, also if these are rare
// cases.
static void each_row_as_by_itself(void **state) {
    (void)state;
    static const int64_t short_widths[] = {1, 3, 8, 16, 29, 32, 33, 64, 70, 100, 128, 129};
    for (int i = 0; i < MOST_COLS; i++) weight[i] = 0.5f + (float)(i % 7);
    for (int r = 0; r < ROWS; r++) mean[r] = (float)(r % 5), rstd[r] = 0.5f + (float)(r % 3);
    rstd[7] = 0x1p-20f, rstd[25] = 0x1p30f, mean[30] = INFINITY;
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes) * COUNT(short_widths); k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT % COUNT(dtypes)];
        int64_t cols = short_widths[k / TSR_ISA_COUNT / COUNT(dtypes)];
        size_t row_bytes = (size_t)cols * tsr_dtype_bytes(dtype);
        if (!test_has_isa(isa)) continue;
        fill(dtype, cols, x, 37), fill(dtype, cols, dy, 11);
        if (dtype != TSR_F16) tsr_store(dtype, dy, 11 * cols, 0x1p120);
        tsr_store(dtype, dy, 20 * cols, NAN);
        tsr_store(dtype, x, 33 * cols + cols / 2, INFINITY);
        tsr_context *ctx;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1), &ctx));
        for (int is_rmsnorm = 0; is_rmsnorm < 2; is_rmsnorm++)
            for (int r = -1; r < ROWS; r++) { // -1: all of them
                size_t at = r < 0 ? 0 : (size_t)r;
                int64_t rows = r < 0 ? ROWS : 1;
                tsr_layernorm_backward_args args = TSR_LAYERNORM_BACKWARD_ARGS(
                        .x = TSR_TENSOR(x + at * row_bytes, dtype, rows, cols),
                        .weight = TSR_TENSOR(weight, TSR_F32, cols),
                        .mean = TSR_TENSOR(mean + at, TSR_F32, rows),
                        .rstd = TSR_TENSOR(rstd + at, TSR_F32, rows),
                        .dy = TSR_TENSOR(dy + at * row_bytes, dtype, rows, cols),
                        .dx = TSR_TENSOR(dx[r >= 0] + at * row_bytes, dtype, rows, cols),
                        .dweight = TSR_TENSOR(dweight[r >= 0], TSR_F32, cols),
                        .dbias = TSR_TENSOR(dbias[r >= 0], TSR_F32, cols));
                if (is_rmsnorm)
                    assert_ok(tsr_rmsnorm_backward(
                        ctx, &TSR_RMSNORM_BACKWARD_ARGS(.x = args.x, .weight = args.weight,
                                                        .rstd = args.rstd, .dy = args.dy,
                                                        .dx = args.dx, .dweight = args.dweight)));
                else
                    assert_ok(tsr_layernorm_backward(ctx, &args));
                if (r >= 0)
                    assert_memory_equal(dx[0] + at * row_bytes, dx[1] + at * row_bytes, row_bytes);
            }
        tsr_context_destroy(ctx);
    }
}

// Logits from 0 to -100, whose exponentials fall below the normal numbers, and -inf. Results must be within 2^-126 of
// the true value plus the dtype's rounding, and exactly 0 for -inf.
static void small_exponentials(void **state) {
    (void)state;
    enum { COLS = 2 * 1024 };
    for (int k = 0; k < TSR_ISA_COUNT * COUNT(dtypes); k++) {
        tsr_isa isa = (tsr_isa)(k % TSR_ISA_COUNT);
        tsr_dtype dtype = dtypes[k / TSR_ISA_COUNT];
        if (!test_has_isa(isa)) continue;
        double unit = dtype == TSR_F32    ? 0x1p-16
                      : dtype == TSR_BF16 ? 0x1.1p-8
                                          : 0x1.1p-11,
               sum = 0;
        double least = dtype == TSR_F32    ? 0
                       : dtype == TSR_BF16 ? 0x1p-134
                                           : 0x1p-25; // half a subnormal
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < COLS; i++)
                tsr_store(dtype, x, r * COLS + i, i % 9 == 8 ? -INFINITY : i * -100.0 / COLS);
        for (int i = 0; i < COLS; i++) sum += exp(tsr_load(dtype, x, i));
        for (int out = 0; out < 2; out++) {
            tsr_context *ctx;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.isa = isa, .num_threads = 1, .l3_bytes = out ? 1 : 1 << 30),
                &ctx));
            run(ctx, 0, dtype, COLS, 0, out);
            tsr_context_destroy(ctx);
            for (int i = 0; i < ROWS * COLS; i++) {
                double y = tsr_load(dtype, dx[out], i), logit = tsr_load(dtype, x, i);
                double truth = exp(logit) / sum;
                assert_true(y >= 0 && fabs(y - truth) <= unit * truth + least + 0x1p-126);
                if (logit < -89) assert_true(y == 0 || dtype != TSR_F16);
                if (isinf(logit)) assert_true(y == 0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_past_the_caches), cmocka_unit_test(heads_past_the_caches),
        cmocka_unit_test(when_past_the_caches),      cmocka_unit_test(each_row_as_by_itself),
        cmocka_unit_test(small_exponentials),
    };
    return cmocka_run_group_tests_name("rows_cpu", tests, NULL, NULL);
}
