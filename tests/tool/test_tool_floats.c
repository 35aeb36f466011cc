// SPDX-License-Identifier: Apache-2.0
// The caller's floating-point environment changes no bit of a result, and a call does not change it or its flags: every
// variant of every operation that the tool describes, and all other functions that compute.
//
// The tool computes arguments in the default environment. The functions below run between the tool and the library: the
// linker option --wrap (TesseraTests.cmake) redirects the tool's calls to them.
#define _GNU_SOURCE
#include <math.h>
#include <unistd.h>

#include "hostile_floats.h"
#include "tool_case.h"

#include "core/core_dtype.h"

static const struct hostile_floats *floats = &hostile_floats[0]; // for the next calls
static struct hostile_floats after;                              // after the last call
static int depth, num_calls; // depth: a module calls operations by their public names

static bool begin(void) {
    if (depth++ > 0) return false;
    num_calls++;
    hostile_enter(floats);
    return true;
}

static void end(bool is_outermost) {
    depth--;
    if (!is_outermost) return;
    after = hostile_now();
    hostile_leave();
}

#define WRAP(name)                                                                                 \
    tsr_status __real_tsr_##name(tsr_context *ctx, const void *args);                              \
    tsr_status __wrap_tsr_##name(tsr_context *ctx, const void *args);                              \
    tsr_status __wrap_tsr_##name(tsr_context *ctx, const void *args) {                             \
        bool is_outermost = begin();                                                               \
        tsr_status status = __real_tsr_##name(ctx, args);                                          \
        end(is_outermost);                                                                         \
        return status;                                                                             \
    }
#define WRAP_PREPARE(name)                                                                         \
    tsr_status __real_tsr_##name##_prepare(tsr_context *ctx, const void *args, size_t *bytes);     \
    tsr_status __wrap_tsr_##name##_prepare(tsr_context *ctx, const void *args, size_t *bytes);     \
    tsr_status __wrap_tsr_##name##_prepare(tsr_context *ctx, const void *args, size_t *bytes) {    \
        bool is_outermost = begin();                                                               \
        tsr_status status = __real_tsr_##name##_prepare(ctx, args, bytes);                         \
        end(is_outermost);                                                                         \
        return status;                                                                             \
    }
#define OPERATION(name) WRAP(name) WRAP_PREPARE(name)

// clang-format off
OPERATION(activation_forward)
OPERATION(activation_backward)
OPERATION(adamw_step)
OPERATION(attention_forward)
OPERATION(attention_backward)
OPERATION(attention_decode)
OPERATION(attention_merge)
OPERATION(cast)
OPERATION(quantize)
OPERATION(dequantize)
OPERATION(matmul_forward)
OPERATION(matmul_backward)
OPERATION(matmul_quant)
OPERATION(matmul_grouped_forward)
OPERATION(matmul_grouped_backward)
OPERATION(self_attention_forward)
OPERATION(self_attention_backward)
OPERATION(softmax_forward)
OPERATION(softmax_backward)
OPERATION(rope_table)
OPERATION(rope_forward)
OPERATION(rope_backward)
OPERATION(embedding_forward)
OPERATION(embedding_backward)
OPERATION(cross_entropy_forward)
OPERATION(cross_entropy_backward)
OPERATION(sample)
OPERATION(moe_forward)
OPERATION(moe_backward)
OPERATION(moe_route_forward)
OPERATION(moe_route_backward)
OPERATION(moe_permute)
OPERATION(moe_combine_forward)
OPERATION(moe_combine_backward)
OPERATION(moe_bias_backward)
OPERATION(layernorm_forward)
OPERATION(layernorm_backward)
OPERATION(rmsnorm_forward)
OPERATION(rmsnorm_backward)
// clang-format on

static void expect_unchanged(const char *what) {
    if (!hostile_is(&after, floats))
        fail_msg("%s: the environment (%s) is not what it was", what, floats->name);
}

// ---- Contexts ---------------------------------------------------------------------------------

// A caller's loop that leaves another environment during and after its tasks.
static void careless_for(void *user, int num_tasks, void (*task)(void *, int), void *arg) {
    (void)user;
    for (int i = 0; i < num_tasks; i++) {
        hostile_enter(&hostile_floats[(i + 2) % NUM_HOSTILE_FLOATS]);
        task(arg, i);
    }
    hostile_enter(&hostile_floats[1]);
}

enum { NUM_CONTEXTS = 3 };
static tsr_context *contexts[NUM_CONTEXTS];

static int setup(void **state) {
    (void)state;
    const tsr_context_options options[NUM_CONTEXTS] = {
        TSR_CONTEXT_OPTIONS(.num_threads = 1), TSR_CONTEXT_OPTIONS(.num_threads = 3),
        TSR_CONTEXT_OPTIONS(.num_threads = 4, .parallel_for = careless_for)};
    for (int i = 0; i < NUM_CONTEXTS; i++) assert_ok(tsr_context_create(&options[i], &contexts[i]));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < NUM_CONTEXTS; i++) tsr_context_destroy(contexts[i]);
    return 0;
}

// ---- Operations -------------------------------------------------------------------------------

static void keep_outputs(const struct tool_case *tc, void *kept[SPEC_MAX_SLOTS]) {
    for (int s = 0; tc->tensors.c.spec->slots[s].name != NULL; s++) {
        if (!tool_is_output(&tc->tensors.c, s)) continue;
        const struct buffer *buffer = &tc->tensors.buffer[s];
        kept[s] = realloc(kept[s], buffer->bytes);
        assert_non_null(kept[s]);
        memcpy(kept[s], buffer->base, buffer->bytes);
    }
}

static void compare_outputs(const struct tool_case *tc, void *const kept[SPEC_MAX_SLOTS],
                            const char *what) {
    for (int s = 0; tc->tensors.c.spec->slots[s].name != NULL; s++)
        if (kept[s] != NULL &&
            memcmp(kept[s], tc->tensors.buffer[s].base, tc->tensors.buffer[s].bytes) != 0)
            fail_msg("%s: other bits of %s in another environment (%s)", what,
                     tc->tensors.c.spec->slots[s].name, floats->name);
}

static void check_variant(struct tool_case *tc, const char *variant) {
    void *kept[SPEC_MAX_SLOTS] = {NULL};
    const struct op_case *c = &tc->tensors.c;
    char text[256], what[384];
    snprintf(what, sizeof what, "%s %s, %s, %s", c->spec->op, case_text(c, text, sizeof text),
             tsr_dtype_name(c->dtype), variant != NULL ? variant : "(default)");
    floats = &hostile_floats[0];
    tool_case_reset(tc);
    tsr_status status = tool_call(contexts[0], c, variant);
    if (status == TSR_UNSUPPORTED) return;
    assert_ok(status);
    expect_unchanged(what); // no flags are set
    keep_outputs(tc, kept);
    for (int i = 0; i < NUM_HOSTILE_FLOATS; i++) {
        int before = num_calls;
        size_t bytes;
        floats = &hostile_floats[i];
        for (int n = 0; n < NUM_CONTEXTS; n++) {
            if (n > 0 && (i + n) % 2 == 0) continue;
            tool_case_reset(tc);
            assert_ok(tool_call(contexts[n], c, variant));
            expect_unchanged(what);
            compare_outputs(tc, kept, what);
        }
        assert_ok(c->spec->call(contexts[i % NUM_CONTEXTS], c, variant, NULL, 0, &bytes));
        expect_unchanged(what);
        assert_true(num_calls >= before + 3); // the calls passed through these wrappers
    }
    floats = &hostile_floats[0];
    for (int s = 0; s < SPEC_MAX_SLOTS; s++) free(kept[s]);
}

static void no_environment_changes_a_call(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64};
    struct rng rng = {20260303};
    for (int i = 0; op_specs[i] != NULL; i++)
        for (int d = 0; d < (TEST_IS_SLOW ? 1 : COUNT(dtypes)); d++) {
            struct op_case c = tool_draw(op_specs[i], dtypes[d], &rng);
            struct tool_case tc;
            if (dtypes[d] == TSR_F64) c.small_dtype = TSR_F64;
            tool_case_create(&tc, &c, LAYOUT_RANDOM, &rng);
            if (dtypes[d] != TSR_F64) check_variant(&tc, NULL);
            for (int v = 0; v < tsr_variant_count(c.spec->op); v++) {
                tsr_variant_info info;
                assert_ok(tsr_variant_info_get(c.spec->op, v, &info));
                bool is_oracle = (info.flags & TSR_VARIANT_REFERENCE) != 0;
                if (is_oracle || dtypes[d] != TSR_F64) check_variant(&tc, info.name);
            }
            tool_case_release(&tc);
        }
}

// ---- Whatever else computes -------------------------------------------------------------------

#define IN_FLOATS(...)                                                                             \
    do {                                                                                           \
        hostile_enter(floats);                                                                     \
        __VA_ARGS__;                                                                               \
        after = hostile_now();                                                                     \
        hostile_leave();                                                                           \
        expect_unchanged(#__VA_ARGS__);                                                            \
    } while (0)

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Values of all kinds: any bits, bits near rounding boundaries, few bits.
static uint64_t draw_double(uint64_t *seed, int i) {
    uint64_t bits = test_bits(seed), exponent = 1023 - 160 + test_bits(seed) % 320;
    if (i % 3 == 0) return bits;
    bits = (bits & ~((uint64_t)2047 << 52)) | exponent << 52;
    return i % 3 == 1 ? bits : bits & ~(uint64_t)0 << (28 + i % 20);
}

static void scalars_do_not_depend_on_it(void **state) {
    (void)state;
    uint64_t seed = 20260304;
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = draw_double(&seed, i);
        double value, loaded[NUM_HOSTILE_FLOATS];
        memcpy(&value, &bits, sizeof value);
        for (int d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++) {
            uint64_t stored[NUM_HOSTILE_FLOATS] = {0};
            for (int e = 0; e < NUM_HOSTILE_FLOATS; e++) {
                floats = &hostile_floats[e];
                IN_FLOATS(tsr_store((tsr_dtype)d, &stored[e], 0, value));
                IN_FLOATS(loaded[e] = tsr_load((tsr_dtype)d, &bits, 0));
                assert_memory_equal(&stored[e], &stored[0], sizeof bits);
                assert_true(bits_of(loaded[e]) == bits_of(loaded[0]));
            }
            // They also equal the processor's own conversions.
            double exact = tsri_load((tsr_dtype)d, &bits, 0);
            assert_true(bits_of(exact) == bits_of(loaded[0]) || (isnan(exact) && d == TSR_F64));
            if (d != TSR_F32) continue;
            float rounded = (float)value;
            assert_memory_equal(&rounded, stored, sizeof rounded);
        }
    }
    floats = &hostile_floats[0];
}

static void what_else_computes(void **state) {
    (void)state;
    char path[] = "/tmp/test_tool_floats_XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    fprintf(file, "tessera-tuning 1\nmatmul_forward avx2/1K/1K f32 3x5x7x1 packed 192x256\n");
    assert_int_equal(fclose(file), 0);
    static float a[64], b[64], c[64];
    const tsr_matmul_forward_args matmul =
        TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, 8, 8),
                                .b = TSR_TENSOR(b, TSR_F32, 8, 8),
                                .c = TSR_TENSOR(c, TSR_F32, 8, 8));
    const tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 2, .tuning_file = path);
    const tsr_probe_args probe = TSR_PROBE_ARGS(.kind = TSR_PROBE_FMA, .repeat = 3);
    double expected = 0;
    assert_ok(tsr_probe_run(contexts[1], &probe, &expected));
    for (int i = 0; i < NUM_HOSTILE_FLOATS; i++) {
        tsr_context *ctx;
        tsr_status status = TSR_INTERNAL;
        double work = 0, ns = 0;
        size_t bytes;
        tsr_device_info info = TSR_DEVICE_INFO;
        tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
        floats = &hostile_floats[i];
        IN_FLOATS(status = tsr_context_create(&options, &ctx));
        assert_ok(status);
        assert_ok(tsr_matmul_forward_prepare(ctx, &matmul, &bytes));
        IN_FLOATS((void)tsr_context_tuning_key(ctx));
        IN_FLOATS((void)tsr_context_tuning_choice(ctx, 0, &ns));
        IN_FLOATS(status = tsr_probe_run(contexts[1], &probe, &work));
        assert_ok(status);
        assert_true(work == expected);
        IN_FLOATS((void)tsr_device_info_get((tsr_device){TSR_CUDA, 0}, &info));
        IN_FLOATS((void)tsr_device_sensors_get((tsr_device){TSR_CUDA, 0}, &sensors));
        IN_FLOATS(tsr_context_destroy(ctx));
    }
    floats = &hostile_floats[0];
    (void)unlink(path);
}

// A sentence with a number has the same words in every environment.
static void sentences_do_not_depend_on_it(void **state) {
    (void)state;
    static float x[4], y[4];
    char expected[512] = "";
    const tsr_layernorm_forward_args args =
        TSR_LAYERNORM_FORWARD_ARGS(.x = TSR_TENSOR(x, TSR_F32, 1, 4),
                                   .y = TSR_TENSOR(y, TSR_F32, 1, 4), .eps = 0.1f);
    for (int i = 0; i < NUM_HOSTILE_FLOATS; i++) {
        floats = &hostile_floats[i];
        assert_int_equal(tsr_layernorm_forward(contexts[0], &args), TSR_INVALID_ARGUMENT);
        expect_unchanged("layernorm_forward");
        if (i == 0) snprintf(expected, sizeof expected, "%s", tsr_last_error());
        assert_string_equal(tsr_last_error(), expected);
        assert_non_null(strstr(expected, "0.1"));
    }
    floats = &hostile_floats[0];
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_environment_changes_a_call),
        cmocka_unit_test(scalars_do_not_depend_on_it),
        cmocka_unit_test(what_else_computes),
        cmocka_unit_test(sentences_do_not_depend_on_it),
    };
    return cmocka_run_group_tests_name("floats", tests, setup, teardown);
}
