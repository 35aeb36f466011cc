// SPDX-License-Identifier: Apache-2.0
// Contexts: options, instruction sets, parallel_for and allocator hooks, and what happens when
// memory or threads are refused, for every request that there is.
#define _GNU_SOURCE
#include <fenv.h>
#include <pthread.h>
#include <sched.h>

#include "core/core_system.h"
#include "cpu/cpu_isa.h"
#include "softmax_job.h"

enum { ROWS = 160, COLS = 1024, MANY_THREADS = 5 };

static struct softmax_job job;

// Workers are kept: only a team larger than any before it needs new ones.
static int larger_team(void) {
    static int num_threads = MANY_THREADS;
    return ++num_threads;
}

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
    check_run(ctx);
    assert_true(tsr_context_arena_bytes(ctx) > 0);
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
    assert_create_fails(&options, TSR_INVALID_ARGUMENT, "size");
    options.size = SIZE_MAX;
    assert_create_fails(&options, TSR_INVALID_ARGUMENT, "size");

    tsr_context *ctx;
    options.parallel_for = (tsr_parallel_for)abort; // beyond the end of the older struct
    options.size = offsetof(tsr_context_options, parallel_for);
    assert_ok(tsr_context_create(&options, &ctx));
    assert_int_equal(tsr_context_num_threads(ctx), 3);
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
        // What the program asks for comes first.
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

// ---- A caller's parallel_for ------------------------------------------------------------------

struct hook {
    int num_calls, max_tasks;
    bool is_reversed;
};

static void run_in_turn(void *user, int num_tasks, void (*task)(void *, int), void *arg) {
    struct hook *hook = user;
    hook->num_calls++;
    if (num_tasks > hook->max_tasks) hook->max_tasks = num_tasks;
    for (int i = 0; i < num_tasks; i++) task(arg, hook->is_reversed ? num_tasks - 1 - i : i);
}

struct thread_task {
    void (*task)(void *, int);
    void *arg;
    int index;
};

static void *run_task(void *arg) {
    struct thread_task *t = arg;
    t->task(t->arg, t->index);
    return NULL;
}

static void run_on_threads(void *user, int num_tasks, void (*task)(void *, int), void *arg) {
    struct hook *hook = user;
    pthread_t threads[MANY_THREADS];
    struct thread_task tasks[MANY_THREADS];
    hook->num_calls++;
    assert_in_range(num_tasks, 1, MANY_THREADS);
    for (int i = 0; i < num_tasks; i++) {
        tasks[i] = (struct thread_task){task, arg, i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_task, &tasks[i]), 0);
    }
    for (int i = 0; i < num_tasks; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static int no_threads(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                      void *arg) {
    (void)thread, (void)attributes, (void)body, (void)arg;
    fail_msg("the library created a thread");
    return 1;
}

static void parallel_for_hooks(void **state) {
    (void)state;
    struct tsri_system before = tsri_system;
    tsri_system.thread_create = no_threads;
    static const tsr_parallel_for functions[] = {run_in_turn, run_in_turn, run_on_threads};
    for (int i = 0; i < COUNT(functions); i++) {
        struct hook hook = {.is_reversed = i == 1};
        tsr_context *ctx;
        assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = MANY_THREADS,
                                                          .parallel_for = functions[i],
                                                          .parallel_for_user = &hook),
                                     &ctx));
        for (int repeat = 0; repeat < 3; repeat++) check_run(ctx);
        assert_int_equal(hook.num_calls, 3);
        assert_true(hook.max_tasks <= MANY_THREADS);
        tsr_context_destroy(ctx);
    }
    tsri_system = before;
}

// ---- The caller's floating-point environment --------------------------------------------------

static void *run_with_default_environment(void *arg) {
    return softmax_job_run(arg, &job) == TSR_OK ? NULL : arg;
}

// A rounding mode, flushed subnormals or trapping exceptions of the caller change no bit of a result,
// not even where they came before the workers, and are there afterwards.
static void floating_point_environment(void **state) {
    (void)state;
    struct softmax_job tiny; // probabilities that are subnormal, exponentials that underflow
    softmax_job_create(&tiny, ROWS, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i += 3) tiny.x[i] = -85 - (float)(i % 20);
    tsr_context *plain = test_context(1);
    assert_ok(softmax_job_run(plain, &tiny));
    memcpy(tiny.expected, tiny.y, ROWS * COLS * sizeof(float));
    for (int kind = 0; kind < 4; kind++) {
        tsr_context *ctx = test_context(larger_team()); // a worker is created under it
        fenv_t before;
        fegetenv(&before);
        if (kind == 0) fesetround(FE_UPWARD);
        if (kind == 1) fesetround(FE_TOWARDZERO);
#if defined(__x86_64__)
        if (kind == 2) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); // FTZ and DAZ
#endif
#if defined(__GLIBC__)
        if (kind == 3) feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW);
#endif
        int round = fegetround();
        tsr_status status = softmax_job_run(ctx, &tiny);
        bool is_right = softmax_job_is_right(&tiny);
        tsr_status serial = softmax_job_run(plain, &tiny);
        int round_after = fegetround();
        unsigned control = 0;
#if defined(__x86_64__)
        control = __builtin_ia32_stmxcsr();
#endif
        fesetenv(&before);
        assert_int_equal(status, TSR_OK);
        assert_int_equal(serial, TSR_OK);
        assert_true(is_right);
        assert_true(softmax_job_is_right(&tiny));
        assert_int_equal(round_after, round);
#if defined(__x86_64__)
        if (kind == 2) assert_int_equal(control & 0x8040, 0x8040);
#endif
        (void)control;
        // Workers made under it serve the next caller as any other.
        pthread_t thread;
        void *failure;
        assert_int_equal(pthread_create(&thread, NULL, run_with_default_environment, ctx), 0);
        assert_int_equal(pthread_join(thread, &failure), 0);
        assert_null(failure);
        assert_true(softmax_job_is_right(&job));
        tsr_context_destroy(ctx);
    }
    tsr_context_destroy(plain);
    softmax_job_release(&tiny);
}

// ---- Allocators -------------------------------------------------------------------------------

struct counted {
    int num_requests, fail_at; // the first one is 1
    bool fails_from_there_on;
    int num_live, num_failed;
    size_t bytes_live;
};

static bool is_refused(struct counted *counted) {
    int n = ++counted->num_requests;
    bool refused = counted->fail_at > 0 && (n == counted->fail_at ||
                                            (n > counted->fail_at && counted->fails_from_there_on));
    counted->num_failed += refused;
    return refused;
}

static void *counted_alloc(void *user, size_t bytes, size_t alignment) {
    struct counted *counted = user;
    if (is_refused(counted)) return NULL;
    assert_true(bytes > 0 && alignment >= 64 && (alignment & (alignment - 1)) == 0);
    size_t room = (bytes + alignment - 1) / alignment * alignment + alignment;
    unsigned char *block = aligned_alloc(alignment, room);
    memcpy(block, &bytes, sizeof bytes); // a header of a whole alignment
    memset(block + alignment, 0xff, bytes);
    counted->num_live++;
    counted->bytes_live += bytes;
    return block + alignment;
}

static void counted_free(void *user, void *pointer, size_t bytes) {
    struct counted *counted = user;
    unsigned char *block = (unsigned char *)pointer - 64;
    size_t allocated;
    memcpy(&allocated, block, sizeof allocated);
    assert_int_equal(bytes, allocated);
    counted->num_live--;
    counted->bytes_live -= bytes;
    free(block);
}

static tsr_status create_counted(struct counted *counted, tsr_context **ctx) {
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 2);
    options.allocator = (tsr_allocator){counted_alloc, counted_free, counted};
    return tsr_context_create(&options, ctx);
}

static void allocator_hooks_balance(void **state) {
    (void)state;
    struct counted counted = {0};
    tsr_context *ctx;
    assert_ok(create_counted(&counted, &ctx));
    check_run(ctx);
    int requests = counted.num_requests;
    size_t arena = tsr_context_arena_bytes(ctx);
    for (int i = 0; i < 10; i++) check_run(ctx); // the arena stays
    assert_int_equal(counted.num_requests, requests);
    struct softmax_job wide; // a larger call grows it
    softmax_job_create(&wide, 2, 50000);
    assert_ok(softmax_job_run(ctx, &wide));
    assert_true(softmax_job_is_right(&wide));
    softmax_job_release(&wide);
    assert_true(tsr_context_arena_bytes(ctx) > arena);
    assert_true(counted.bytes_live >= tsr_context_arena_bytes(ctx));
    tsr_context_destroy(ctx);
    assert_int_equal(counted.num_live, 0);
    assert_int_equal(counted.bytes_live, 0);
}

// Every request of the context's allocator is refused in turn, alone and with all that follow.
static void nth_allocation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1;; n++) {
            struct counted counted = {.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = (tsr_context *)&job;
            tsr_status status = create_counted(&counted, &ctx);
            if (status != TSR_OK) {
                assert_status(status, TSR_OUT_OF_MEMORY, "context_create", "bytes");
                assert_null(ctx);
            } else {
                if (softmax_job_run(ctx, &job) != TSR_OK) {
                    assert_status(softmax_job_run(ctx, &job), both ? TSR_OUT_OF_MEMORY : TSR_OK,
                                  NULL);
                    if (both) assert_true(softmax_job_is_untouched(&job));
                    assert_non_null(strstr(tsr_last_error(), "softmax_forward"));
                }
                int failed = counted.num_failed;
                counted.fail_at = 0;
                check_run(ctx); // the next call succeeds
                tsr_context_destroy(ctx);
                counted.num_failed = failed;
            }
            assert_int_equal(counted.num_live, 0);
            num_failed += counted.num_failed;
            if (counted.num_failed == 0) break;
            assert_true(n < 100);
        }
    assert_true(num_failed >= 4);
}

// ---- The operating system refuses -------------------------------------------------------------

static struct counted system_memory, system_threads;
static struct tsri_system real_system;

static void *refusing_alloc(size_t alignment, size_t bytes) {
    if (is_refused(&system_memory)) return NULL;
    system_memory.num_live++;
    return real_system.alloc(alignment, bytes);
}

static void refusing_free(void *pointer) {
    system_memory.num_live--;
    real_system.free(pointer);
}

static int refusing_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                  void *(*body)(void *), void *arg) {
    if (is_refused(&system_threads)) return 11; // EAGAIN
    return real_system.thread_create(thread, attributes, body, arg);
}

static int swap_system(void **state) {
    (void)state;
    real_system = tsri_system;
    system_memory = system_threads = (struct counted){0};
    tsri_system = (struct tsri_system){refusing_alloc, refusing_free, refusing_thread_create};
    return 0;
}

static int restore_system(void **state) {
    (void)state;
    tsri_system = real_system;
    return 0;
}

// Every request of memory, for contexts, arenas and workers, is refused in turn. Each round asks
// for one thread more than the last one, so that workers are missing.
static void nth_system_allocation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1; n < 100; n++) {
            system_memory = (struct counted){.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = (tsr_context *)&job;
            tsr_status status =
                tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = larger_team()), &ctx);
            if (status == TSR_OK) {
                status = softmax_job_run(ctx, &job);
                // Workers that cannot be had are done without.
                assert_true(status == TSR_OK ? softmax_job_is_right(&job)
                                             : softmax_job_is_untouched(&job));
            }
            if (status != TSR_OK) assert_status(status, TSR_OUT_OF_MEMORY, "bytes");
            int failed = system_memory.num_failed;
            system_memory.fail_at = 0;
            if (ctx != NULL) {
                check_run(ctx);
                tsr_context_destroy(ctx);
            }
            num_failed += failed;
            if (failed == 0) break;
        }
    assert_true(num_failed >= 6); // context, arena, worker; alone and from there on
}

static void thread_creation_fails(void **state) {
    (void)state;
    int num_failed = 0;
    for (int both = 0; both < 2; both++)
        for (int n = 1; n <= 3; n++) {
            larger_team();
            system_threads = (struct counted){.fail_at = n, .fails_from_there_on = both == 1};
            tsr_context *ctx = test_context(larger_team());
            int live = system_memory.num_live;
            for (int repeat = 0; repeat < 3; repeat++) check_run(ctx);
            assert_true(system_memory.num_live - live <=
                        1 + system_threads.num_requests - system_threads.num_failed);
            num_failed += system_threads.num_failed;
            system_threads.fail_at = 0;
            check_run(ctx);
            tsr_context_destroy(ctx);
        }
    assert_true(num_failed >= 6);
}

// What the system gave and what came back, but for the workers, which stay.
static void system_allocations_balance(void **state) {
    (void)state;
    tsr_context *ctx = test_context(2);
    check_run(ctx);
    tsr_context_destroy(ctx);
    int live = system_memory.num_live;
    for (int i = 0; i < 20; i++) {
        ctx = test_context(2);
        check_run(ctx);
        tsr_context_destroy(ctx);
    }
    assert_int_equal(system_memory.num_live, live);
}

#define WITH_SYSTEM(name) cmocka_unit_test_setup_teardown(name, swap_system, restore_system)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(option_structs_of_other_versions),
        cmocka_unit_test(num_threads_follow_the_affinity),
        cmocka_unit_test(instruction_sets),
        cmocka_unit_test(isa_from_the_environment),
        cmocka_unit_test(parallel_for_hooks),
        cmocka_unit_test(floating_point_environment),
        cmocka_unit_test(allocator_hooks_balance),
        cmocka_unit_test(nth_allocation_fails),
        WITH_SYSTEM(nth_system_allocation_fails),
        WITH_SYSTEM(thread_creation_fails),
        WITH_SYSTEM(system_allocations_balance),
    };
    return cmocka_run_group_tests_name("context", tests, setup, teardown);
}
