// SPDX-License-Identifier: Apache-2.0
// The contract of a call, on softmax: what is refused, with which words, that a refusal writes
// nothing and that the same context serves the next call. test_contract_ops walks the other
// operations in a general way.
#include "test_support.h"

#include <math.h>
#include <pthread.h>

enum { ROWS = 6, COLS = 10, STRIDE = 24, NUMEL = ROWS * STRIDE };

struct fixture {
    tsr_context *ctx;
    float x[NUMEL], x_before[NUMEL], y[NUMEL];
    tsr_softmax_forward_args args; // a valid call; tests bend one thing
};

static tsr_tensor rows_of(void *data, tsr_dtype dtype, int64_t stride) {
    tsr_tensor t = TSR_TENSOR(data, dtype, ROWS, COLS);
    t.stride[0] = stride;
    return t;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    uint64_t seed = 7;
    f->ctx = test_context(2);
    for (int i = 0; i < NUMEL; i++) f->x_before[i] = f->x[i] = test_float(&seed);
    memset(f->y, 0xff, sizeof f->y);
    f->args = TSR_SOFTMAX_FORWARD_ARGS(.x = rows_of(f->x, TSR_F32, STRIDE),
                                       .y = rows_of(f->y, TSR_F32, STRIDE));
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    tsr_context_destroy(f->ctx);
    free(f);
    return 0;
}

// y, with a row stride, is the softmax of x, the fixture's untouched input.
static void check_rows(const struct fixture *f, const float *y, int64_t stride) {
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int c = 0; c < COLS; c++) sum += exp((double)f->x_before[r * STRIDE + c]);
        for (int c = 0; c < COLS; c++) {
            double expected = exp((double)f->x_before[r * STRIDE + c]) / sum;
            if (!(fabs((double)y[r * stride + c] - expected) < 1e-6 * expected))
                fail_msg("row %d, column %d is %g, expected %g", r, c, (double)y[r * stride + c],
                         expected);
        }
    }
}

// Outputs and inputs are as they were.
static void check_untouched(const struct fixture *f) {
    assert_true(test_all_bytes_are(f->y, 0xff, sizeof f->y));
    assert_memory_equal(f->x, f->x_before, sizeof f->x);
}

// The call and its prepare fail alike, write nothing, and the context serves the next valid call.
static void refuse(const char *file, int line, struct fixture *f,
                   const tsr_softmax_forward_args *args, tsr_status status,
                   const char *const *words) {
    size_t bytes = 12345;
    test_status(file, line, tsr_softmax_forward(f->ctx, args), status, words);
    check_untouched(f);
    test_status(file, line, tsr_softmax_forward_prepare(f->ctx, args, &bytes), status, words);
    assert_int_equal(bytes, 12345);
    struct fixture good = *f;
    good.args = TSR_SOFTMAX_FORWARD_ARGS(.x = rows_of(good.x, TSR_F32, STRIDE),
                                         .y = rows_of(good.y, TSR_F32, STRIDE));
    test_status(file, line, tsr_softmax_forward(f->ctx, &good.args), TSR_OK,
                (const char *const[]){NULL});
    check_rows(f, good.y, STRIDE);
}
#define assert_refused(f, args, status, ...)                                                       \
    refuse(__FILE__, __LINE__, (f), (args), (status),                                              \
           (const char *const[]){"softmax_forward", __VA_ARGS__, NULL})
#define assert_invalid(f, ...) assert_refused((f), &(f)->args, TSR_INVALID_ARGUMENT, __VA_ARGS__)

// ---- The args struct --------------------------------------------------------------------------

static void valid_call(void **state) {
    struct fixture *f = *state;
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    check_rows(f, f->y, STRIDE);
    for (int r = 0; r < ROWS; r++) // nothing between the rows
        assert_true(test_all_bytes_are(f->y + r * STRIDE + COLS, 0xff, 4 * (STRIDE - COLS)));
    assert_memory_equal(f->x, f->x_before, sizeof f->x);
}

static void null_pointers(void **state) {
    struct fixture *f = *state;
    size_t bytes = 12345;
    assert_status(tsr_softmax_forward(NULL, &f->args), TSR_INVALID_ARGUMENT, "softmax_forward",
                  "ctx", "NULL");
    assert_status(tsr_softmax_forward_prepare(NULL, &f->args, &bytes), TSR_INVALID_ARGUMENT,
                  "softmax_forward", "ctx", "NULL");
    assert_int_equal(bytes, 12345);
    assert_refused(f, NULL, TSR_INVALID_ARGUMENT, "args", "NULL");
    assert_status(tsr_softmax_forward_prepare(f->ctx, &f->args, NULL), TSR_INVALID_ARGUMENT,
                  "softmax_forward", "workspace_bytes", "NULL");
    check_untouched(f);
}

static void wrong_struct_sizes(void **state) {
    struct fixture *f = *state;
    static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, 65537, SIZE_MAX};
    for (int i = 0; i < COUNT(sizes); i++) {
        f->args.size = sizes[i];
        assert_invalid(f, "size", "expected");
    }
}

// What an older struct does not have is absent.
static void older_structs(void **state) {
    struct fixture *f = *state;
    f->args.size = offsetof(tsr_softmax_forward_args, y);
    assert_invalid(f, "y", "absent");
    f->args.size = offsetof(tsr_softmax_forward_args, x);
    assert_invalid(f, "x", "absent");
    f->args.size = sizeof(size_t);
    assert_invalid(f, "x", "absent");
}

// A struct of a later version is served while the fields that this one does not know are zero.
static void newer_structs(void **state) {
    struct fixture *f = *state;
    struct {
        tsr_softmax_forward_args known;
        unsigned char tail[40];
    } args = {f->args, {0}};
    args.known.size = sizeof args;
    for (size_t i = 0; i < sizeof args.tail; i++) {
        args.tail[i] = 1;
        assert_refused(f, &args.known, TSR_UNSUPPORTED, "size", "version");
        args.tail[i] = 0;
    }
    assert_ok(tsr_softmax_forward(f->ctx, &args.known));
    check_rows(f, f->y, STRIDE);
}

static void flags(void **state) {
    struct fixture *f = *state;
    static const uint32_t unknown[] = {4, 7, 0x80000000u, 0xffffffffu};
    for (int i = 0; i < COUNT(unknown); i++) {
        f->args.flags = unknown[i];
        assert_invalid(f, "flags", "TSR_DETERMINISTIC");
    }
    for (uint32_t known = 0; known < 4; known++) {
        f->args.flags = known;
        memset(f->y, 0xff, sizeof f->y);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->y, STRIDE);
    }
}

static void variants(void **state) {
    struct fixture *f = *state;
    char endless[5000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    const char *const unknown[] = {"nonsense", "", "Fused", "fused ", endless};
    for (int i = 0; i < COUNT(unknown); i++) {
        f->args.variant = unknown[i];
        if (unknown[i] == endless)
            assert_invalid(f, "variant");
        else
            assert_invalid(f, "variant", unknown[i], "fused", "online", "unfused", "reference");
    }
    for (int v = 0; v < tsr_variant_count("softmax_forward"); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get("softmax_forward", v, &info));
        f->args.variant = info.name;
        memset(f->y, 0xff, sizeof f->y);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->y, STRIDE);
    }
}

static void variant_that_cannot_serve(void **state) {
    struct fixture *f = *state;
    double x[6] = {0, 1, 2, 3, 4, 5}, y[6];
    memset(y, 0xff, sizeof y);
    tsr_softmax_forward_args args =
        TSR_SOFTMAX_FORWARD_ARGS(.variant = "fused", .x = TSR_TENSOR(x, TSR_F64, 2, 3),
                                 .y = TSR_TENSOR(y, TSR_F64, 2, 3));
    assert_refused(f, &args, TSR_UNSUPPORTED, "variant", "fused");
    assert_true(test_all_bytes_are(y, 0xff, sizeof y));
    args.variant = NULL; // the reference takes over
    assert_ok(tsr_softmax_forward(f->ctx, &args));
    assert_true(fabs(y[0] + y[1] + y[2] - 1) < 1e-15);
}

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
    f->args.x.data = (char *)f->x + 2; // the element size is enough
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

// Even an empty tensor has dimensions that fit together.
static void empty_beyond_memory(void **state) {
    struct fixture *f = *state;
    f->args.x = TSR_TENSOR(NULL, TSR_F32, INT64_MAX, INT64_MAX, 0);
    f->args.y = f->args.x;
    assert_invalid(f, "x spans");
    f->args.x = TSR_TENSOR(NULL, TSR_F32, 0, INT64_MAX);
    f->args.y = f->args.x;
    assert_invalid(f, "x spans");
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
            f->args =
                TSR_SOFTMAX_FORWARD_ARGS(.variant = info.name,
                                         .x = tsr_tensor_contiguous(NULL, TSR_F32, 3, shapes_of[i]),
                                         .y =
                                             tsr_tensor_contiguous(NULL, TSR_F32, 3, shapes_of[i]));
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            f->args.x.data = f->x;
            f->args.y.data = f->y;
            assert_ok(tsr_softmax_forward(f->ctx, &f->args));
            for (int d = 0; d < 3; d++) // strides of what is empty mean nothing
                f->args.x.stride[d] = f->args.y.stride[d] = d == 2 ? 1 : INT64_C(1) << 40;
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
        if (shifts[i] >= 5 * STRIDE) { // the last row alone
            f->args.x.shape[0] = f->args.y.shape[0] = 1;
            f->args.x.data = f->x + 5 * STRIDE;
            if (shifts[i] == 5 * STRIDE) f->args.y.data = f->x + 5 * STRIDE - 1;
        }
        assert_invalid(f, "y", "overlaps", "x");
        void *other = f->args.x.data; // and the other way round
        f->args.x.data = f->args.y.data;
        f->args.y.data = other;
        assert_invalid(f, "y", "overlaps", "x");
    }
    f->args.x = rows_of(f->x, TSR_F32, STRIDE); // the same address, other strides
    f->args.y = rows_of(f->x, TSR_F32, COLS);
    assert_invalid(f, "y", "overlaps", "x");
    f->args.y = f->args.x; // one row read by all, written by the last
    f->args.x.stride[0] = 0;
    assert_invalid(f, "y", "overlaps", "x");
}

// x and y as columns of one buffer, and one after the other without a gap.
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

// ---- Workspace --------------------------------------------------------------------------------

static void workspaces(void **state) {
    struct fixture *f = *state;
    for (int v = 0; v < tsr_variant_count("softmax_forward"); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get("softmax_forward", v, &info));
        f->args.variant = info.name;
        f->args.workspace = NULL;
        f->args.workspace_bytes = 0;
        size_t need = 12345;
        assert_ok(tsr_softmax_forward_prepare(f->ctx, &f->args, &need));

        // The arena's high-water mark is what prepare said.
        tsr_context_reset_peak(f->ctx);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        assert_int_equal(tsr_context_peak_workspace_bytes(f->ctx), need);
        assert_true(tsr_context_arena_bytes(f->ctx) >= need);

        // Exactly as much, poisoned and guarded: right, and not a byte beyond.
        unsigned char *block = aligned_alloc(64, (need + 64 + 63) / 64 * 64);
        size_t arena_before = tsr_context_arena_bytes(f->ctx);
        memset(block, 0xff, need + 64);
        f->args.workspace = block;
        f->args.workspace_bytes = need;
        tsr_context_reset_peak(f->ctx);
        memset(f->y, 0xff, sizeof f->y);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->y, STRIDE);
        assert_true(test_all_bytes_are(block + need, 0xff, 64));
        assert_int_equal(tsr_context_peak_workspace_bytes(f->ctx), 0);
        assert_int_equal(tsr_context_arena_bytes(f->ctx), arena_before);

        memset(f->y, 0xff, sizeof f->y);
        if (need > 0) {
            f->args.workspace_bytes = need - 1;
            assert_status(tsr_softmax_forward(f->ctx, &f->args), TSR_WORKSPACE, "softmax_forward",
                          "workspace_bytes", "expected at least");
            f->args.workspace_bytes = 0;
            assert_status(tsr_softmax_forward(f->ctx, &f->args), TSR_WORKSPACE, "workspace_bytes");
            f->args.workspace_bytes = need;
            f->args.workspace = block + 4;
            assert_status(tsr_softmax_forward(f->ctx, &f->args), TSR_WORKSPACE, "workspace", "64");
        }
        check_untouched(f);
        free(block);
    }
}

// prepare does not look at the workspace that the args carry, and allocates nothing.
static void prepare_only_plans(void **state) {
    struct fixture *f = *state;
    tsr_context *fresh = test_context(2);
    size_t bytes = 0, again = 0;
    assert_ok(tsr_softmax_forward_prepare(fresh, &f->args, &bytes));
    f->args.workspace = f->y + 1;
    f->args.workspace_bytes = 0;
    assert_ok(tsr_softmax_forward_prepare(fresh, &f->args, &again));
    assert_int_equal(bytes, again);
    assert_int_equal(tsr_context_arena_bytes(fresh), 0);
    assert_int_equal(tsr_context_peak_workspace_bytes(fresh), 0);
    check_untouched(f);
    tsr_context_destroy(fresh);
}

// ---- The last error ---------------------------------------------------------------------------

struct other_thread {
    char before[64], after[768];
};

static void *fail_elsewhere(void *arg) {
    struct other_thread *other = arg;
    snprintf(other->before, sizeof other->before, "%s", tsr_last_error());
    tsr_softmax_forward(NULL, NULL);
    snprintf(other->after, sizeof other->after, "%s", tsr_last_error());
    return NULL;
}

static void last_error_belongs_to_the_thread(void **state) {
    struct fixture *f = *state;
    struct other_thread other;
    pthread_t thread;
    f->args.x.stride[1] = 7;
    assert_status(tsr_softmax_forward(f->ctx, &f->args), TSR_INVALID_ARGUMENT, "x.stride[1]", "7");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &other), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(other.before, "");
    assert_non_null(strstr(other.after, "ctx is NULL"));
    assert_non_null(strstr(tsr_last_error(), "x.stride[1]"));
    f->args.x.stride[1] = 1; // success leaves it as it is
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    assert_non_null(strstr(tsr_last_error(), "x.stride[1]"));
}

// The sentence may be part of the next failing call's arguments.
static void last_error_as_an_argument(void **state) {
    struct fixture *f = *state;
    f->args.variant = "nonsense";
    assert_int_equal(tsr_softmax_forward(f->ctx, &f->args), TSR_INVALID_ARGUMENT);
    f->args.variant = tsr_last_error();
    assert_int_equal(tsr_softmax_forward(f->ctx, &f->args), TSR_INVALID_ARGUMENT);
    assert_non_null(strstr(tsr_last_error(), "variant is 'softmax_forward: variant is 'nonsense'"));
}

// ---- Enumeration ------------------------------------------------------------------------------

static void enumeration(void **state) {
    (void)state;
    int num_ops = tsr_op_count();
    assert_true(num_ops > 0);
    assert_null(tsr_op_name(-1));
    assert_null(tsr_op_name(num_ops));
    assert_null(tsr_op_name(INT32_MAX));
    assert_null(tsr_op_name(INT32_MIN));
    for (int i = 0; i < num_ops; i++) {
        const char *op = tsr_op_name(i);
        assert_true(op != NULL && *op != '\0');
        for (int j = 0; j < i; j++) assert_string_not_equal(op, tsr_op_name(j));
        int num_variants = tsr_variant_count(op);
        assert_true(num_variants > 0);
        for (int v = 0; v < num_variants; v++) {
            tsr_variant_info info = {0}, other;
            assert_ok(tsr_variant_info_get(op, v, &info));
            assert_true(info.name != NULL && *info.name != '\0' && *info.summary != '\0');
            bool is_reference = (info.flags & TSR_VARIANT_REFERENCE) != 0;
            assert_int_equal(is_reference, strcmp(info.name, "reference") == 0);
            assert_int_equal(is_reference, v == num_variants - 1); // the oracle comes last
            for (int w = 0; w < v; w++) {
                assert_ok(tsr_variant_info_get(op, w, &other));
                assert_string_not_equal(info.name, other.name);
            }
        }
        static const char untouched[] = "untouched";
        tsr_variant_info info = {untouched, untouched, 99};
        assert_status(tsr_variant_info_get(op, num_variants, &info), TSR_INVALID_ARGUMENT, "index");
        assert_status(tsr_variant_info_get(op, -1, &info), TSR_INVALID_ARGUMENT, "index", "-1");
        assert_status(tsr_variant_info_get(op, 0, NULL), TSR_INVALID_ARGUMENT, "info", "NULL");
        assert_true(info.name == untouched && info.flags == 99);
    }
    static const char *const unknown[] = {"", "softmax", "tsr_softmax_forward", "nonsense"};
    tsr_variant_info info;
    for (int i = 0; i < COUNT(unknown); i++) {
        assert_int_equal(tsr_variant_count(unknown[i]), 0);
        assert_status(tsr_variant_info_get(unknown[i], 0, &info), TSR_INVALID_ARGUMENT, "op",
                      unknown[i]);
    }
    assert_int_equal(tsr_variant_count(NULL), 0);
    assert_status(tsr_variant_info_get(NULL, 0, &info), TSR_INVALID_ARGUMENT, "op", "NULL");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(valid_call),
        TEST(null_pointers),
        TEST(wrong_struct_sizes),
        TEST(older_structs),
        TEST(newer_structs),
        TEST(flags),
        TEST(variants),
        TEST(variant_that_cannot_serve),
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
        TEST(empty_tensors),
        TEST(in_place),
        TEST(partial_overlap),
        TEST(neighbours_do_not_overlap),
        TEST(backward_overlap),
        TEST(workspaces),
        TEST(prepare_only_plans),
        TEST(last_error_belongs_to_the_thread),
        TEST(last_error_as_an_argument),
        cmocka_unit_test(enumeration),
    };
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
