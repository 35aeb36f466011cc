// SPDX-License-Identifier: Apache-2.0
// The contract of a call, tested with softmax: its args struct, workspace, last error and enumeration.
// test_contract_tensors tests its tensors; test_tool_contract tests all operations in a general way.
#include <pthread.h>

#include "softmax_contract.h"

// ---- The args struct --------------------------------------------------------------------------

static void valid_call(void **state) {
    struct fixture *f = *state;
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    check_rows(f, f->y, STRIDE);
    for (int r = 0; r < ROWS; r++) // no writes between the rows
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

// A size that ends inside a field would keep only half of an address.
static void struct_sizes_that_cut_fields(void **state) {
    struct fixture *f = *state;
    f->args.variant = "fused";
    for (size_t size = sizeof(size_t) + 1; size < sizeof f->args; size++) {
        if (size % sizeof(void *) == 0) continue;
        f->args.size = size;
        assert_invalid(f, "size", "expected");
    }
}

// Fields that an older struct does not have are absent.
static void older_structs(void **state) {
    struct fixture *f = *state;
    f->args.size = offsetof(tsr_softmax_forward_args, y);
    assert_invalid(f, "y", "absent");
    f->args.size = offsetof(tsr_softmax_forward_args, x);
    assert_invalid(f, "x", "absent");
    f->args.size = sizeof(size_t);
    assert_invalid(f, "x", "absent");
}

// A newer struct is accepted if all fields unknown to this version are zero.
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
        if (info.flags & TSR_VARIANT_CUDA) continue;
        f->args.variant = info.name;
        memset(f->y, 0xff, sizeof f->y);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        check_rows(f, f->y, STRIDE);
    }
}

// Every operation has variants for both kinds of devices, so entry functions need not check that.
static void every_operation_serves_both_kinds_of_device(void **state) {
    (void)state;
    for (int op = 0; op < tsr_op_count(); op++) {
        const char *name = tsr_op_name(op);
        int num_cuda = 0, count = tsr_variant_count(name);
        for (int v = 0; v < count; v++) {
            tsr_variant_info info;
            assert_ok(tsr_variant_info_get(name, v, &info));
            num_cuda += (info.flags & TSR_VARIANT_CUDA) != 0;
        }
        if (num_cuda == 0 || num_cuda == count)
            fail_msg("%s has %d variants for CUDA among %d", name, num_cuda, count);
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
    args.variant = NULL; // the reference serves it
    assert_ok(tsr_softmax_forward(f->ctx, &args));
    assert_true(fabs(y[0] + y[1] + y[2] - 1) < 1e-15);
}

// ---- Workspace --------------------------------------------------------------------------------

static void workspaces(void **state) {
    struct fixture *f = *state;
    for (int v = 0; v < tsr_variant_count("softmax_forward"); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get("softmax_forward", v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        f->args.variant = info.name;
        f->args.workspace = NULL;
        f->args.workspace_bytes = 0;
        size_t need = 12345;
        assert_ok(tsr_softmax_forward_prepare(f->ctx, &f->args, &need));

        // The arena's peak equals what prepare returned.
        tsr_context_reset_peak(f->ctx);
        assert_ok(tsr_softmax_forward(f->ctx, &f->args));
        assert_int_equal(tsr_context_peak_workspace_bytes(f->ctx), need);
        assert_true(tsr_context_arena_bytes(f->ctx) >= need);

        // A workspace of exactly this size, poisoned and guarded: the result is right, and nothing is written beyond.
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

// prepare ignores the args' workspace and allocates nothing.
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
    f->args.x.stride[1] = 1; // success does not change it
    assert_ok(tsr_softmax_forward(f->ctx, &f->args));
    assert_non_null(strstr(tsr_last_error(), "x.stride[1]"));
}

// The sentence may be an argument of the next failing call.
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
            assert_int_equal(is_reference, v == num_variants - 1); // the oracle is last
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(valid_call),
        TEST(null_pointers),
        TEST(wrong_struct_sizes),
        TEST(struct_sizes_that_cut_fields),
        TEST(older_structs),
        TEST(newer_structs),
        TEST(flags),
        TEST(variants),
        TEST(variant_that_cannot_serve),
        cmocka_unit_test(every_operation_serves_both_kinds_of_device),
        TEST(workspaces),
        TEST(prepare_only_plans),
        TEST(last_error_belongs_to_the_thread),
        TEST(last_error_as_an_argument),
        cmocka_unit_test(enumeration),
    };
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
