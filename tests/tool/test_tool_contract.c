// SPDX-License-Identifier: Apache-2.0
// The contract of every operation that the tool describes. Each tensor of a valid call is made invalid in each way. The
// call must refuse it in words that name the operation and the tensor, and must write nothing.
#include "tool_case.h"

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

// Draws a case without empty tensors.
static struct op_case draw_full(const struct op_spec *spec, tsr_dtype dtype, struct rng *rng) {
    for (;;) {
        struct op_case c = tool_draw(spec, dtype, rng);
        bool is_full = true;
        for (int s = 0; spec->slots[s].name != NULL; s++)
            if (c.is_present[s]) is_full &= case_numel(&c, s) > 0;
        if (is_full) return c;
    }
}

static void fail_bend(const struct op_case *c, int s, const char *bend, const char *what) {
    char text[256];
    fail_msg("%s %s, %s, with %s of %s: %s; last error: %s", c->spec->op,
             case_text(c, text, sizeof text), tsr_dtype_name(c->dtype), bend,
             s >= 0 ? c->spec->slots[s].name : "the call", what, tsr_last_error());
}

// ---- Bending one tensor -----------------------------------------------------------------------

enum bend {
    NULL_DATA,
    MISALIGNED,
    NDIM_TOO_LARGE,
    NDIM_NEGATIVE,
    DTYPE_UNKNOWN,
    DTYPE_OF_OTHERS,
    SHAPE_NEGATIVE,
    STRIDE_NEGATIVE,
    SPAN_TOO_LARGE,
    ON_THE_GPU,
    ABSENT,
    OUTPUT_REPEATED,
    NUM_BENDS
};
static const char *const bend_names[NUM_BENDS] = {
    "NULL data", "misaligned data", "ndim 6",      "ndim -1",        "dtype 99", "another dtype",
    "shape -1",  "stride -1",       "stride 2^60", "a GPU's memory", "absence",  "a stride of 0",
};

// Makes the tensor invalid. Returns false if the bend does not apply and the call stays valid.
static bool bend_tensor(const struct op_case *c, int s, enum bend bend, tsr_tensor *t) {
    const struct slot_spec *slot = &c->spec->slots[s];
    int last = t->ndim - 1;
    switch (bend) {
    case NULL_DATA: t->data = NULL; return true;
    case MISALIGNED: t->data = (char *)t->data + 1; return tsr_dtype_bytes(t->dtype) > 1;
    case NDIM_TOO_LARGE: t->ndim = TSR_MAX_DIMS + 1; return true;
    case NDIM_NEGATIVE: t->ndim = -1; return true;
    case DTYPE_UNKNOWN: t->dtype = (tsr_dtype)99; return true;
    case DTYPE_OF_OTHERS: t->dtype = slot->kind == SLOT_I32 ? TSR_F32 : TSR_I32; return true;
    case SHAPE_NEGATIVE: t->shape[0] = -1; return t->ndim > 0;
    case STRIDE_NEGATIVE: t->stride[0] = -1; return t->ndim > 0 && t->shape[0] > 1;
    case SPAN_TOO_LARGE: t->stride[0] = INT64_C(1) << 60; return t->ndim > 0 && t->shape[0] > 1;
    case ON_THE_GPU: t->device.type = TSR_CUDA; return true;
    case ABSENT: *t = (tsr_tensor){0}; return !slot->is_optional;
    case OUTPUT_REPEATED:
        t->stride[last > 0 ? last - 1 : 0] = 0;
        return case_role(c, s) != SLOT_IN && t->ndim > 0 && t->shape[last > 0 ? last - 1 : 0] > 1;
    default: return false;
    }
}

// Checks that the call and its prepare refuse a case and change no byte.
static void expect_refused(const struct tool_case *tc, const struct op_case *bent, int s,
                           const char *bend, bool names_tensor) {
    for (int prepares = 0; prepares < 2; prepares++) {
        size_t bytes = 12345;
        tsr_status status =
            bent->spec->call(ctx, bent, NULL, NULL, 0, prepares == 1 ? &bytes : NULL);
        if (status != TSR_INVALID_ARGUMENT) fail_bend(bent, s, bend, tsr_status_name(status));
        if (!tool_case_is_unchanged(tc)) fail_bend(bent, s, bend, "something was written");
        if (bytes != 12345) fail_bend(bent, s, bend, "prepare gave bytes");
        if (strstr(tsr_last_error(), bent->spec->op) == NULL)
            fail_bend(bent, s, bend, "the error does not name the operation");
        if (names_tensor && strstr(tsr_last_error(), bent->spec->slots[s].name) == NULL)
            fail_bend(bent, s, bend, "the error does not name the tensor");
    }
}

// Returns whether the call ignores this tensor with these parameters.
static bool is_ignored(const struct op_case *c, int s) {
    return strcmp(c->spec->op, "matmul_backward") == 0 &&
           strcmp(c->spec->slots[s].name, "preact") == 0 && case_int(c, "activation") == 0;
}

static void bend_every_tensor(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        for (int bend = 0; bend < NUM_BENDS && c->is_present[s] && !is_ignored(c, s); bend++) {
            struct op_case bent = *c;
            if (bend_tensor(c, s, (enum bend)bend, &bent.tensor[s]))
                expect_refused(tc, &bent, s, bend_names[bend], bend != DTYPE_OF_OTHERS);
        }
}

// Makes two dimensions of an output overlap: one step of the outer is the full extent of the inner.
static void fold_every_output(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        for (int pair = 0; tool_is_output(c, s) && pair < TSR_MAX_DIMS * TSR_MAX_DIMS; pair++) {
            const tsr_tensor *t = &c->tensor[s];
            int outer = pair / TSR_MAX_DIMS, inner = pair % TSR_MAX_DIMS;
            if (outer == inner || outer >= t->ndim || inner >= t->ndim || t->shape[outer] < 2 ||
                t->shape[inner] < 2)
                continue;
            struct op_case bent = *c;
            bent.tensor[s].stride[outer] = (t->shape[inner] - 1) * t->stride[inner];
            expect_refused(tc, &bent, s, "folding", true);
        }
}

// Removes one element from a dimension: the call is refused, or is legal and stays within its memory.
static void shrink_every_dimension(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        for (int d = 0; c->is_present[s] && d < c->tensor[s].ndim; d++) {
            struct op_case bent = *c;
            bent.tensor[s].shape[d]--;
            tsr_status status = tool_call(ctx, &bent, NULL);
            if (status == TSR_OK) {
                tool_case_reset(tc);
                continue;
            }
            assert_int_equal(status, TSR_INVALID_ARGUMENT);
            if (!tool_case_is_unchanged(tc))
                fail_bend(&bent, s, "one element fewer", "something was written");
        }
}

// Places an output one element after the start of another tensor.
static void overlap_every_output(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        if (!tool_is_output(c, s)) continue;
        const tsr_tensor *out = &c->tensor[s];
        for (int other = 0; c->spec->slots[other].name != NULL; other++) {
            const tsr_tensor *in = &c->tensor[other];
            // Tensors without contiguous runs may interleave.
            if (!c->is_present[other] || other == s || in->ndim < 1 || out->ndim < 1 ||
                in->shape[in->ndim - 1] < 2 || out->shape[out->ndim - 1] < 2 ||
                in->stride[in->ndim - 1] != 1 || out->stride[out->ndim - 1] != 1)
                continue;
            struct op_case bent = *c;
            bent.tensor[s].data = (char *)in->data + tsr_dtype_bytes(in->dtype);
            expect_refused(tc, &bent, s, "overlap", true);
        }
    }
}

// ---- The call as a whole ----------------------------------------------------------------------

static void no_context(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    size_t bytes = 12345;
    assert_status(c->spec->call(NULL, c, NULL, NULL, 0, NULL), TSR_INVALID_ARGUMENT, c->spec->op,
                  "ctx", "NULL");
    assert_status(c->spec->call(NULL, c, NULL, NULL, 0, &bytes), TSR_INVALID_ARGUMENT, c->spec->op,
                  "ctx", "NULL");
    assert_int_equal(bytes, 12345);
    assert_true(tool_case_is_unchanged(tc));
}

static void unknown_variant(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    assert_status(tool_call(ctx, c, "nonsense"), TSR_INVALID_ARGUMENT, c->spec->op, "variant",
                  "nonsense");
    for (int v = 0; v < tsr_variant_count(c->spec->op); v++) {
        tsr_variant_info info;
        assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        assert_int_equal(tool_call(ctx, c, "nonsense"), TSR_INVALID_ARGUMENT);
        assert_non_null(strstr(tsr_last_error(), info.name));
    }
    assert_true(tool_case_is_unchanged(tc));
}

// Checks that the context reports the variant of the last call or prepare: the requested or the default one.
static void last_variant(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int v = 0; v < tsr_variant_count(c->spec->op); v++) {
        tsr_variant_info info;
        size_t bytes;
        assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        const char *before = tsr_context_last_variant(ctx);
        tsr_status status = c->spec->call(ctx, c, info.name, NULL, 0, &bytes);
        assert_string_equal(tsr_context_last_variant(ctx), status == TSR_OK ? info.name : before);
        if (status != TSR_OK) continue;
        assert_int_equal(tool_call(ctx, c, "nonsense"), TSR_INVALID_ARGUMENT);
        assert_string_equal(tsr_context_last_variant(ctx), info.name);
        assert_ok(tool_call(ctx, c, NULL));
        assert_ok(tool_call(ctx, c, info.name));
        assert_string_equal(tsr_context_last_variant(ctx), info.name);
        tool_case_reset(tc);
    }
    assert_ok(tool_call(ctx, c, NULL));
    tsr_variant_info chosen = {.name = NULL};
    for (int v = 0; v < tsr_variant_count(c->spec->op); v++) {
        assert_ok(tsr_variant_info_get(c->spec->op, v, &chosen));
        if (chosen.flags & TSR_VARIANT_CUDA) continue;
        if (strcmp(chosen.name, tsr_context_last_variant(ctx)) == 0) return;
    }
    fail_bend(c, -1, "the default variant", tsr_context_last_variant(ctx));
}

// Checks that the descriptions copy a case's flags into the args of the call and of its prepare.
static void unknown_flags(struct tool_case *tc) {
    struct op_case flagged = tc->tensors.c;
    flagged.flags = UINT32_C(1) << 31;
    expect_refused(tc, &flagged, 0, "flags", false);
    assert_non_null(strstr(tsr_last_error(), "0x80000000"));
    flagged.flags = TSR_DETERMINISTIC | TSR_BATCH_INVARIANT;
    assert_ok(tool_call(ctx, &flagged, NULL));
}

// For every variant: prepare's bytes equal the arena's peak. One byte fewer, no workspace, or an address off by four is
// refused before anything is written.
static void workspaces(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    for (int v = -1; v < tsr_variant_count(c->spec->op); v++) {
        tsr_variant_info info = {.name = NULL};
        if (v >= 0) assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        size_t need = 0;
        if (c->spec->call(ctx, c, info.name, NULL, 0, &need) == TSR_UNSUPPORTED) continue;
        tsr_context_reset_peak(ctx);
        assert_ok(tool_call(ctx, c, info.name));
        assert_int_equal(tsr_context_peak_workspace_bytes(ctx), need);
        tool_case_reset(tc);
        if (need == 0) { // any address is accepted
            char byte;
            assert_ok(c->spec->call(ctx, c, info.name, &byte, 0, NULL));
            assert_ok(c->spec->call(ctx, c, info.name, (void *)(uintptr_t)4, 1, NULL));
            tool_case_reset(tc);
            continue;
        }
        struct buffer buffer;
        void *workspace;
        assert_true(buffer_create(&buffer, need, &workspace));
        assert_status(c->spec->call(ctx, c, info.name, workspace, need - 1, NULL), TSR_WORKSPACE,
                      c->spec->op, "workspace_bytes");
        assert_status(c->spec->call(ctx, c, info.name, workspace, 0, NULL), TSR_WORKSPACE,
                      c->spec->op, "workspace_bytes");
        assert_status(c->spec->call(ctx, c, info.name, (char *)workspace + 4, need, NULL),
                      TSR_WORKSPACE, c->spec->op, "workspace");
        assert_true(tool_case_is_unchanged(tc));
        assert_ok(c->spec->call(ctx, c, info.name, workspace, need, NULL));
        assert_true(buffer_guards_intact(&buffer, need));
        buffer_release(&buffer);
        tool_case_reset(tc);
    }
}

static bool has_memory;

static void *scarce_alloc(void *user, size_t bytes, size_t alignment) {
    (void)user;
    return has_memory ? aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                      : NULL;
}

static void scarce_free(void *user, void *pointer, size_t bytes) {
    (void)user, (void)bytes;
    free(pointer);
}

// Without memory for the arena the call returns OUT_OF_MEMORY and writes nothing, and then the same context serves.
static void no_memory(struct tool_case *tc) {
    const struct op_case *c = &tc->tensors.c;
    tsr_context *scarce;
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 2);
    options.allocator = (tsr_allocator){scarce_alloc, scarce_free, NULL};
    has_memory = true;
    assert_ok(tsr_context_create(&options, &scarce));
    for (int v = -1; v < tsr_variant_count(c->spec->op); v++) {
        tsr_variant_info info = {.name = NULL};
        if (v >= 0) assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
        if (info.flags & TSR_VARIANT_CUDA) continue;
        size_t need = 0;
        if (c->spec->call(scarce, c, info.name, NULL, 0, &need) == TSR_UNSUPPORTED) continue;
        if (need <= tsr_context_arena_bytes(scarce)) continue;
        has_memory = false;
        assert_status(tool_call(scarce, c, info.name), TSR_OUT_OF_MEMORY, c->spec->op, "bytes");
        assert_true(tool_case_is_unchanged(tc));
        has_memory = true;
        assert_ok(tool_call(scarce, c, info.name));
        tool_case_reset(tc);
    }
    tsr_context_destroy(scarce);
}

// ---- The walk ---------------------------------------------------------------------------------

static void walk(void (*check)(struct tool_case *), uint64_t seed) {
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct rng rng = {seed};
    for (int i = 0; op_specs[i] != NULL; i++)
        for (int repeat = 0; repeat < (TEST_HAS_TSAN ? 3 : 12); repeat++) {
            struct op_case c = draw_full(op_specs[i], dtypes[repeat % 3], &rng);
            struct tool_case tc;
            tool_case_create(&tc, &c, repeat % 2 == 0 ? LAYOUT_CONTIGUOUS : LAYOUT_RANDOM, &rng);
            check(&tc);
            tool_case_reset(&tc);
            assert_ok(tool_call(ctx, &tc.tensors.c, NULL)); // after all refusals
            tool_case_release(&tc);
        }
}

#define WALK(name, seed)                                                                           \
    static void test_##name(void **state) {                                                        \
        (void)state;                                                                               \
        walk(name, seed);                                                                          \
    }
WALK(bend_every_tensor, 1)
WALK(shrink_every_dimension, 2)
WALK(overlap_every_output, 3)
WALK(no_context, 4)
WALK(unknown_variant, 5)
WALK(workspaces, 6)
WALK(no_memory, 7)
WALK(last_variant, 10)
WALK(unknown_flags, 8)
WALK(fold_every_output, 9)

static void every_operation_is_described(void **state) {
    (void)state;
    for (int i = 0; i < tsr_op_count(); i++) assert_non_null(spec_find(tsr_op_name(i)));
    for (int i = 0; op_specs[i] != NULL; i++) assert_true(tsr_variant_count(op_specs[i]->op) > 0);
    assert_null(spec_find("nonsense"));
}

// A standard shape without an output would measure nothing.
static void standard_shapes_have_work(void **state) {
    (void)state;
    for (int i = 0; op_specs[i] != NULL; i++)
        for (int n = 0; op_specs[i]->standard[n] != NULL; n++) {
            char error[256];
            struct op_case c = case_default(op_specs[i]);
            bool has_output = false;
            if (!case_set(&c, op_specs[i]->standard[n], error, sizeof error)) fail_msg("%s", error);
            for (int s = 0; op_specs[i]->slots[s].name != NULL; s++)
                has_output |= c.is_present[s] && case_role(&c, s) != SLOT_IN;
            if (!has_output || !(op_specs[i]->flops(&c) > 0 || case_bytes(&c) > 0))
                fail_msg("%s: standard shape '%s' has no work", op_specs[i]->op,
                         op_specs[i]->standard[n]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_described),
        cmocka_unit_test(standard_shapes_have_work),
        cmocka_unit_test(test_bend_every_tensor),
        cmocka_unit_test(test_shrink_every_dimension),
        cmocka_unit_test(test_overlap_every_output),
        cmocka_unit_test(test_no_context),
        cmocka_unit_test(test_unknown_variant),
        cmocka_unit_test(test_workspaces),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_last_variant),
        cmocka_unit_test(test_unknown_flags),
        cmocka_unit_test(test_fold_every_output),
    };
    return cmocka_run_group_tests_name("contract of every operation", tests, setup, teardown);
}
