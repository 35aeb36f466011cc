// SPDX-License-Identifier: Apache-2.0
// The contract of a call's tensors, tested with softmax: dtypes, ranks, shapes, strides, sizes and overlap. Each
// violation is refused in words, and nothing is written.
#include "softmax_contract.h"

// ---- Tensors ----------------------------------------------------------------------------------

static void dtypes(void **state) {
    struct fixture *f = *state;
    static const int refused[] = {TSR_I32, TSR_E4M3, TSR_E5M2};
    for (int i = 0; i < COUNT(refused); i++) {
        f->args.x.dtype = f->args.y.dtype = (tsr_dtype)refused[i];
        assert_invalid(f, "x.dtype", tsr_dtype_name((tsr_dtype)refused[i]), "f32", "bf16");
    }
    static const int unknown[] = {TSR_DTYPE_COUNT, -1, 1 << 30};
    for (int i = 0; i < COUNT(unknown); i++) {
        f->args.x.dtype = (tsr_dtype)unknown[i];
        f->args.y.dtype = TSR_F32;
        assert_invalid(f, "x.dtype", "expected");
    }
    f->args.x.dtype = TSR_F32;
    f->args.y.dtype = TSR_F16;
    assert_invalid(f, "y.dtype", "f16", "f32", "x");
    f->args.y.dtype = TSR_DTYPE_NONE;
    assert_invalid(f, "y", "absent");
    f->args.x.dtype = TSR_DTYPE_NONE;
    assert_invalid(f, "x", "absent");
}

static void devices(void **state) {
    struct fixture *f = *state;
    f->args.x.device.type = TSR_CUDA;
    assert_invalid(f, "x", "device");
    f->args.x.device.type = TSR_CPU;
    f->args.y.device.type = (tsr_device_type)77;
    assert_invalid(f, "y", "device");
}

static void ranks(void **state) {
    struct fixture *f = *state;
    static const int ndims[] = {TSR_MAX_DIMS + 1, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < COUNT(ndims); i++) {
        f->args.x.ndim = ndims[i];
        assert_invalid(f, "x.ndim", "expected");
        f->args.x.ndim = 2;
        f->args.y.ndim = ndims[i];
        assert_invalid(f, "y.ndim", "expected");
        f->args.y.ndim = 2;
    }
    f->args.x.ndim = f->args.y.ndim = 0;
    assert_invalid(f, "x.ndim", "0", "at least 1");
    f->args.x.ndim = 2;
    f->args.y.ndim = 1;
    f->args.y.stride[0] = 1;
    assert_invalid(f, "y", "(6,)", "(6, 10)");
}

static void shapes(void **state) {
    struct fixture *f = *state;
    f->args.y.shape[0] = ROWS - 1;
    assert_invalid(f, "y", "(5, 10)", "(6, 10)", "x");
    f->args.y.shape[0] = ROWS;
    f->args.y.shape[1] = COLS + 1;
    assert_invalid(f, "y", "(6, 11)", "(6, 10)");
    f->args.y.shape[1] = COLS;
    f->args.x.shape[0] = -1;
    assert_invalid(f, "x.shape[0]", "-1");
    f->args.x.shape[0] = INT64_MIN;
    assert_invalid(f, "x.shape[0]");
}

static void strides(void **state) {
    struct fixture *f = *state;
    f->args.x.stride[1] = 2;
    assert_invalid(f, "x.stride[1]", "2", "1");
    f->args.x.stride[1] = 1;
    f->args.x.stride[0] = -STRIDE;
    assert_invalid(f, "x.stride[0]", "-24");
    f->args.x.stride[0] = STRIDE;
    f->args.y.stride[0] = COLS - 1;
    assert_invalid(f, "y", "9", "apart");
    f->args.y.stride[0] = 0;
    assert_invalid(f, "y.stride[0]", "0");
    f->args.y.stride[0] = STRIDE;
    f->args.x.stride[0] = COLS - 1; // inputs may overlap themselves
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
}

static void leading_dimensions_must_collapse(void **state) {
    struct fixture *f = *state;
    int64_t shape[] = {2, 3, COLS};
    f->args.x = tsr_tensor_contiguous(f->x, TSR_F32, 3, shape);
    f->args.y = tsr_tensor_contiguous(f->y, TSR_F32, 3, shape);
    f->args.x.stride[0] = 3 * COLS + 1;
    assert_invalid(f, "x.stride[0]", "31", "30");
    f->args.x.stride[0] = 3 * STRIDE;
    f->args.x.stride[1] = STRIDE;
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    check_rows(f, f->y, COLS);
}

static void null_data(void **state) {
    struct fixture *f = *state;
    f->args.x.data = NULL;
    assert_invalid(f, "x.data", "NULL");
    f->args.x.data = f->x;
    f->args.y.data = NULL;
    assert_invalid(f, "y.data", "NULL");
}

static void misaligned_data(void **state) {
    struct fixture *f = *state;
    for (int shift = 1; shift < 4; shift++) {
        f->args.x.data = (char *)f->x + shift;
        assert_invalid(f, "x.data", "multiple", "4");
        f->args.x.data = f->x;
        f->args.y.data = (char *)f->y + shift;
        assert_invalid(f, "y.data", "multiple", "4");
        f->args.y.data = f->y;
    }
    f->args.x.dtype = f->args.y.dtype = TSR_BF16;
    f->args.x.data = (char *)f->x + 1;
    assert_invalid(f, "x.data", "multiple", "2");
    f->args.x.data = (char *)f->x + 2; // the element size is sufficient alignment
    f->args.y.data = (char *)f->y + 6;
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    f->args.x = rows_of(f->x + 1, TSR_F32, STRIDE - 1);
    f->args.y = rows_of(f->y + 3, TSR_F32, STRIDE - 1);
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
}

// Sizes whose products do not fit in 64 bits, and sizes that no memory can hold.
static void sizes_beyond_memory(void **state) {
    struct fixture *f = *state;
    static const int64_t sizes[][4] = {
        // shape, stride of x
        {INT64_C(1) << 40, INT64_C(1) << 40, INT64_C(1) << 40, 1},
        {INT64_C(1) << 31, INT64_C(1) << 31, INT64_C(1) << 31, 1},
        {INT64_MAX, 1, 1, 1},
        {1, INT64_MAX, 1, 1},
        {2, 4, INT64_MAX, 1},
        {3, 4, INT64_MAX / 2, 1},
        {2, 4, INT64_C(1) << 60, 1},
        {INT64_C(1) << 52, 4, 4, 1},
    };
    for (int i = 0; i < COUNT(sizes); i++) {
        tsr_tensor *x = &f->args.x, *y = &f->args.y;
        x->shape[0] = y->shape[0] = sizes[i][0];
        x->shape[1] = y->shape[1] = sizes[i][1];
        x->stride[0] = sizes[i][2];
        assert_invalid(f, "x spans");
        *x = rows_of(f->x, TSR_F32, STRIDE);
        y->stride[0] = sizes[i][2];
        assert_invalid(f, "y spans");
        y->stride[0] = STRIDE;
    }
}

// The dimensions of an empty tensor must fit as well.
static void empty_beyond_memory(void **state) {
    struct fixture *f = *state;
    f->args.x = TSR_TENSOR(NULL, TSR_F32, INT64_MAX, INT64_MAX, 0);
    f->args.y = f->args.x;
    assert_invalid(f, "x spans");
    f->args.x = TSR_TENSOR(NULL, TSR_F32, 0, INT64_MAX);
    f->args.y = f->args.x;
    assert_invalid(f, "x spans");
}

// Keys with stride 0 need no memory, so the matrix of scores may have more bytes than a size can hold.
static void scores_beyond_memory(void **state) {
    struct fixture *f = *state;
    tsr_tensor q = TSR_TENSOR(f->x, TSR_F32, 1, INT64_C(1) << 24, 1, 1), out = q, lse;
    tsr_tensor k = TSR_TENSOR(f->x_before, TSR_F32, 1, INT64_C(1) << 40, 1, 1);
    k.stride[1] = 0;
    out.data = (void *)((uintptr_t)1 << 60); // nothing is read or written
    lse = TSR_TENSOR(f->x_before, TSR_F32, 1, 1, INT64_C(1) << 24);
    size_t bytes;
    tsr_attention_forward_args forward =
        TSR_ATTENTION_FORWARD_ARGS(.variant = "naive", .q = q, .k = k, .v = k, .out = out);
    assert_status(tsr_attention_forward_prepare(f->ctx, &forward, &bytes), TSR_UNSUPPORTED,
                  "naive");
    tsr_attention_backward_args backward =
        TSR_ATTENTION_BACKWARD_ARGS(.variant = "naive", .q = q, .k = k, .v = k, .out = q,
                                    .lse = lse, .dout = q, .dq = out);
    assert_status(tsr_attention_backward_prepare(f->ctx, &backward, &bytes), TSR_UNSUPPORTED,
                  "naive");
}

static void empty_tensors(void **state) {
    struct fixture *f = *state;
    static const int64_t shapes_of[][3] = {
        {0, 3, COLS},
        {2, 0, COLS},
        {2, 3, 0},
        {0, 0, 0},
        {0, INT64_C(1) << 24, INT64_C(1) << 24},
        {INT64_C(1) << 40, 1, 0},
        {2, INT64_C(1) << 40, 0},
    };
    for (int i = 0; i < COUNT(shapes_of); i++)
        for (int v = -1; v < tsr_variant_count("softmax_forward"); v++) {
            tsr_variant_info info = {.name = NULL};
            if (v >= 0) assert_ok(tsr_variant_info_get("softmax_forward", v, &info));
            if (info.flags & TSR_VARIANT_CUDA) continue;
            f->args =
                TSR_SOFTMAX_FORWARD_ARGS(.variant = info.name,
                                         .x = tsr_tensor_contiguous(NULL, TSR_F32, 3, shapes_of[i]),
                                         .y =
                                             tsr_tensor_contiguous(NULL, TSR_F32, 3, shapes_of[i]));
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            f->args.x.data = f->x;
            f->args.y.data = f->y;
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            for (int d = 0; d < 3; d++) // strides of empty tensors are ignored
                f->args.x.stride[d] = f->args.y.stride[d] = d == 2 ? 1 : INT64_C(1) << 40;
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            for (int d = 0; d < 2; d++) f->args.x.stride[d] = f->args.y.stride[d] = INT64_MAX;
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            for (int d = 0; d < 2; d++) f->args.y.stride[d] = 0;
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        }
    check_untouched(f);
}

// ---- Overlap ----------------------------------------------------------------------------------

static void in_place(void **state) {
    struct fixture *f = *state;
    for (int v = 0; v < tsr_variant_count("softmax_forward"); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get("softmax_forward", v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        f->args.variant = info.name;
        f->args.y = f->args.x;
        memcpy(f->x, f->x_before, sizeof f->x);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->x, STRIDE);
    }
}

static void partial_overlap(void **state) {
    struct fixture *f = *state;
    static const int shifts[] = {1,          COLS - 1,         STRIDE,
                                 STRIDE + 1, 5 * STRIDE,       5 * STRIDE + COLS - 1,
                                 STRIDE - 1, STRIDE - COLS + 1};
    for (int i = 0; i < COUNT(shifts); i++) {
        f->args.x = rows_of(f->x, TSR_F32, STRIDE);
        f->args.x.shape[0] = f->args.y.shape[0] = 1 + ROWS / 2; // stay within the buffer
        f->args.y.data = f->x + shifts[i];
        if (shifts[i] >= 5 * STRIDE) { // the last row only
            f->args.x.shape[0] = f->args.y.shape[0] = 1;
            f->args.x.data = f->x + 5 * STRIDE;
            if (shifts[i] == 5 * STRIDE) f->args.y.data = f->x + 5 * STRIDE - 1;
        }
        assert_invalid(f, "y", "overlaps", "x");
        void *other = f->args.x.data; // then x and y exchanged
        f->args.x.data = f->args.y.data;
        f->args.y.data = other;
        assert_invalid(f, "y", "overlaps", "x");
    }
    f->args.x = rows_of(f->x, TSR_F32, STRIDE); // the same address, other strides
    f->args.y = rows_of(f->x, TSR_F32, COLS);
    assert_invalid(f, "y", "overlaps", "x");
    f->args.y = f->args.x; // all rows read one row, and the last writes it
    f->args.x.stride[0] = 0;
    assert_invalid(f, "y", "overlaps", "x");
}

// x and y as columns of one buffer, and directly after each other.
static void neighbours_do_not_overlap(void **state) {
    struct fixture *f = *state;
    static const int shifts[] = {COLS, COLS + 1, STRIDE - COLS};
    for (int i = 0; i < COUNT(shifts); i++) {
        memcpy(f->x, f->x_before, sizeof f->x);
        f->args.y = rows_of(f->x + shifts[i], TSR_F32, STRIDE);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->x + shifts[i], STRIDE);
    }
    float buffer[2 * ROWS * COLS];
    for (int r = 0; r < ROWS; r++)
        memcpy(buffer + r * COLS, f->x_before + r * STRIDE, COLS * sizeof *buffer);
    f->args.x = rows_of(buffer, TSR_F32, COLS);
    f->args.y = rows_of(buffer + ROWS * COLS, TSR_F32, COLS);
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    check_rows(f, buffer + ROWS * COLS, COLS);
}

static void backward_overlap(void **state) {
    struct fixture *f = *state;
    tsr_softmax_backward_args args =
        TSR_SOFTMAX_BACKWARD_ARGS(.y = rows_of(f->x, TSR_F32, STRIDE),
                                  .dy = rows_of(f->x + COLS, TSR_F32, STRIDE),
                                  .dx = rows_of(f->x + 1, TSR_F32, STRIDE));
    assert_status(tsr_softmax_backward(f->ctx, &args), TSR_INVALID_ARGUMENT, "softmax_backward",
                  "dx", "overlaps", "y");
    args.dx.data = f->x + COLS + 1;
    assert_status(tsr_softmax_backward(f->ctx, &args), TSR_INVALID_ARGUMENT, "softmax_backward",
                  "dx", "overlaps", "dy");
    check_untouched(f);
    args.dx = args.dy;
    assert_ok(tsr_softmax_backward(f->ctx, &args));
    args.dx = args.y;
    assert_ok(tsr_softmax_backward(f->ctx, &args));
    assert_status(tsr_softmax_backward(NULL, &args), TSR_INVALID_ARGUMENT, "softmax_backward");
    args.dy.shape[1] = COLS - 1;
    assert_status(tsr_softmax_backward(f->ctx, &args), TSR_INVALID_ARGUMENT, "dy", "(6, 9)",
                  "(6, 10)", "y");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(dtypes),
        TEST(devices),
        TEST(ranks),
        TEST(shapes),
        TEST(strides),
        TEST(leading_dimensions_must_collapse),
        TEST(null_data),
        TEST(misaligned_data),
        TEST(sizes_beyond_memory),
        TEST(empty_beyond_memory),
        TEST(scores_beyond_memory),
        TEST(empty_tensors),
        TEST(in_place),
        TEST(partial_overlap),
        TEST(neighbours_do_not_overlap),
        TEST(backward_overlap),
    };
    return cmocka_run_group_tests_name("contract of tensors", tests, NULL, NULL);
}
