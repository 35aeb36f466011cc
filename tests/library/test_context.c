// SPDX-License-Identifier: Apache-2.0
// Contexts: options and instruction sets. test_parallel tests their threads, and test_allocation their memory.
#define _GNU_SOURCE
#include <fenv.h>
#include <sched.h>

#include "core/core_system.h"
#include "cpu/cpu_isa.h"
#include "cpu/cpu_limits.h"
#include "softmax_job.h"

enum { ROWS = 160, COLS = 1024 };

static struct softmax_job job;

static int setup(void **state) {
    (void)state;
    unsetenv("TSR_ISA");
    softmax_job_create(&job, ROWS, COLS);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    softmax_job_release(&job);
    return 0;
}

static void check_run(tsr_context *ctx) {
    assert_ok(softmax_job_run(ctx, &job));
    assert_true(softmax_job_is_right(&job));
}

// ---- Options ----------------------------------------------------------------------------------

#define assert_create_fails(options, status, ...)                                                  \
    do {                                                                                           \
        tsr_context *none = (tsr_context *)&job;                                                   \
        assert_status(tsr_context_create((options), &none), (status), "context_create",            \
                      __VA_ARGS__);                                                                \
        assert_null(none);                                                                         \
    } while (0)

static void defaults(void **state) {
    (void)state;
    tsr_context *ctx;
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_int_equal(tsr_context_num_threads(ctx), tsri_num_cpus());
    assert_int_equal(tsr_context_isa(ctx), tsri_isa_best());
    assert_int_equal(tsr_context_arena_bytes(ctx), 0);
    assert_string_equal(tsr_context_last_variant(ctx), "");
    check_run(ctx);
    assert_true(tsr_context_arena_bytes(ctx) > 0);
    assert_string_not_equal(tsr_context_last_variant(ctx), "");
    tsr_context_destroy(ctx);
    tsr_context_destroy(NULL);
}

static void wrong_options(void **state) {
    (void)state;
    assert_status(tsr_context_create(NULL, NULL), TSR_INVALID_ARGUMENT, "context", "NULL");
    static const int32_t num_threads[] = {-1, INT32_MIN, 4097, INT32_MAX};
    for (int i = 0; i < COUNT(num_threads); i++)
        assert_create_fails(&TSR_CONTEXT_OPTIONS(.num_threads = num_threads[i]),
                            TSR_INVALID_ARGUMENT, "num_threads", "expected 0 to 4096");
    static const int isas[] = {-1, TSR_ISA_COUNT, 1 << 20};
    for (int i = 0; i < COUNT(isas); i++)
        assert_create_fails(&TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isas[i]), TSR_INVALID_ARGUMENT,
                            "isa");
    assert_create_fails(&TSR_CONTEXT_OPTIONS(.l3_bytes = -1), TSR_INVALID_ARGUMENT, "l3_bytes",
                        "0 or more");
    assert_create_fails(&TSR_CONTEXT_OPTIONS(.device = {TSR_CPU, 1}), TSR_INVALID_ARGUMENT,
                        "device", "{0, 1}");
    assert_create_fails(&TSR_CONTEXT_OPTIONS(.device = {(tsr_device_type)9, 0}),
                        TSR_INVALID_ARGUMENT, "device", "{9, 0}");
    tsr_context_options half = TSR_CONTEXT_OPTIONS(.num_threads = 1);
    half.allocator.free = (void (*)(void *, void *, size_t))abort;
    assert_create_fails(&half, TSR_INVALID_ARGUMENT, "allocator", "alloc", "free");
}

static void option_structs_of_other_versions(void **state) {
    (void)state;
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 3);
    options.size = 0;
    assert_create_fails(&options, TSR_INVALID_ARGUMENT, "options.size is 0");
    options.size = SIZE_MAX;
    assert_create_fails(&options, TSR_INVALID_ARGUMENT, "size");

    tsr_context *ctx;
    options.parallel_for = (tsr_parallel_for)abort; // after the end of the older struct
    options.size = offsetof(tsr_context_options, parallel_for);
    assert_ok(tsr_context_create(&options, &ctx));
    assert_int_equal(tsr_context_num_threads(ctx), 3);
    check_run(ctx);
    tsr_context_destroy(ctx);

    options = TSR_CONTEXT_OPTIONS(.num_threads = 2, .l3_bytes = INT64_MAX);
    assert_ok(tsr_context_create(&options, &ctx));
    check_run(ctx);
    tsr_context_destroy(ctx);

    struct {
        tsr_context_options known;
        char tail[24];
    } newer = {TSR_CONTEXT_OPTIONS(.num_threads = 2), {0}};
    newer.known.size = sizeof newer;
    assert_ok(tsr_context_create(&newer.known, &ctx));
    tsr_context_destroy(ctx);
    newer.tail[23] = 1;
    assert_create_fails(&newer.known, TSR_UNSUPPORTED, "size");
}

static void num_threads_follow_the_affinity(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &before)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) skip();
    tsr_context *ctx;
    assert_ok(tsr_context_create(NULL, &ctx));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(tsr_context_num_threads(ctx), 1);
    tsr_context_destroy(ctx);
}

// ---- Instruction sets -------------------------------------------------------------------------

static void instruction_sets(void **state) {
    (void)state;
    static const char *const names[] = {"auto", "scalar", "avx2", "avx512"};
    assert_int_equal(COUNT(names), TSR_ISA_COUNT);
    assert_true(tsr_isa_is_supported(TSR_ISA_AUTO) && tsr_isa_is_supported(TSR_ISA_SCALAR));
    assert_false(tsr_isa_is_supported(TSR_ISA_COUNT));
    assert_false(tsr_isa_is_supported((tsr_isa)-1));
    assert_string_equal(tsr_isa_name(TSR_ISA_COUNT), "unknown isa");
    assert_string_equal(tsr_isa_name((tsr_isa)-1), "unknown isa");
    for (int isa = TSR_ISA_AUTO; isa < TSR_ISA_COUNT; isa++) {
        assert_string_equal(tsr_isa_name((tsr_isa)isa), names[isa]);
        const tsr_context_options options = TSR_CONTEXT_OPTIONS(.isa = (tsr_isa)isa);
        if (!tsr_isa_is_supported((tsr_isa)isa)) {
            assert_create_fails(&options, TSR_UNSUPPORTED, names[isa], "processor");
            continue;
        }
        tsr_context *ctx;
        assert_ok(tsr_context_create(&options, &ctx));
        assert_int_equal(tsr_context_isa(ctx), isa == TSR_ISA_AUTO ? (int)tsri_isa_best() : isa);
        assert_ok(softmax_job_run(ctx, &job));
        for (int64_t i = 0; i < ROWS * COLS; i++) // instruction sets may differ in the last bits
            assert_true((double)job.y[i] < (double)job.expected[i] * 1.00001 &&
                        (double)job.y[i] > (double)job.expected[i] * 0.99999);
        tsr_context_destroy(ctx);
    }
}

static void isa_from_the_environment(void **state) {
    (void)state;
    tsr_context *ctx;
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++) {
        setenv("TSR_ISA", tsr_isa_name((tsr_isa)isa), 1);
        if (tsr_isa_is_supported((tsr_isa)isa)) {
            assert_ok(tsr_context_create(NULL, &ctx));
            assert_int_equal(tsr_context_isa(ctx), isa);
            tsr_context_destroy(ctx);
        } else {
            assert_create_fails(NULL, TSR_UNSUPPORTED, "TSR_ISA", tsr_isa_name((tsr_isa)isa));
        }
    }
    static const char *const garbage[] = {"AVX2", "sse9", "avx", " scalar", "scalar ", "1", "\xff"};
    for (int i = 0; i < COUNT(garbage); i++) {
        setenv("TSR_ISA", garbage[i], 1);
        assert_create_fails(NULL, TSR_INVALID_ARGUMENT, "TSR_ISA", garbage[i], "scalar", "avx2",
                            "avx512");
        // The program's option has priority.
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = TSR_ISA_SCALAR), &ctx));
        assert_int_equal(tsr_context_isa(ctx), TSR_ISA_SCALAR);
        tsr_context_destroy(ctx);
    }
    static const char *const automatic[] = {"", "auto"};
    for (int i = 0; i < COUNT(automatic); i++) {
        setenv("TSR_ISA", automatic[i], 1);
        assert_ok(tsr_context_create(NULL, &ctx));
        assert_int_equal(tsr_context_isa(ctx), tsri_isa_best());
        tsr_context_destroy(ctx);
    }
    unsetenv("TSR_ISA");
}

static int rounding_of_free;
static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void release(void *user, void *pointer, size_t bytes) {
    (void)user, (void)bytes;
    rounding_of_free = fegetround();
    free(pointer);
}

static void the_environment_of_an_allocator(void **state) {
    (void)state;
    tsr_context *ctx;
    assert_ok(
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.allocator = {allocate, release, NULL}), &ctx));
    rounding_of_free = -1;
    fesetround(FE_UPWARD);
    tsr_context_destroy(ctx);
    int after = fegetround();
    fesetround(FE_TONEAREST);
    assert_int_equal(rounding_of_free, FE_TONEAREST);
    assert_int_equal(after, FE_UPWARD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(option_structs_of_other_versions),
        cmocka_unit_test(num_threads_follow_the_affinity),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(isa_from_the_environment),
        cmocka_unit_test(the_environment_of_an_allocator),
    };
    return cmocka_run_group_tests_name("context", tests, setup, teardown);
}
