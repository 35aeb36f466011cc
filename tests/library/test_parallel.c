// SPDX-License-Identifier: Apache-2.0
// What runs a call's tasks: a caller's parallel_for, calls within calls, threads without work, and the floating-point
// environment on every thread. test_team tests the library's own threads.
#define _GNU_SOURCE
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "context/context_internal.h"
#include "core/core_system.h"
#include "softmax_job.h"

enum { ROWS = 160, COLS = 1024, MANY_THREADS = 5 };

static struct softmax_job job;

// The library keeps its workers: only a team larger than all before creates new ones.
static int larger_team(void) {
    static int num_threads = MANY_THREADS;
    return ++num_threads;
}

static int setup(void **state) {
    (void)state;
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
// A caller's loop whose tasks call the library themselves, each with its own context, while the outer call is running.
struct nested {
    struct hook hook;
    int depth;
    atomic_int num_wrong;
};

static void nested_for(void *user, int num_tasks, void (*task)(void *, int), void *arg);

static tsr_status run_nested(struct nested *nested, struct softmax_job *own) {
    tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = 3);
    if (nested->depth > 0) {
        options.parallel_for = nested_for;
        options.parallel_for_user = nested;
    }
    tsr_context *ctx;
    tsr_status status = tsr_context_create(&options, &ctx);
    if (status == TSR_OK) status = softmax_job_run(ctx, own);
    tsr_context_destroy(ctx);
    return status;
}

static void nested_for(void *user, int num_tasks, void (*task)(void *, int), void *arg) {
    struct nested *outer = user;
    struct nested inner = {.depth = outer->depth - 1};
    struct softmax_job own = job;
    own.y = malloc((size_t)(ROWS * COLS) * sizeof(float));
    for (int i = 0; i < num_tasks; i++) {
        task(arg, i);
        if (own.y == NULL || run_nested(&inner, &own) != TSR_OK || !softmax_job_is_right(&own))
            atomic_fetch_add(&outer->num_wrong, 1);
    }
    atomic_fetch_add(&outer->num_wrong, atomic_load(&inner.num_wrong));
    free(own.y);
}

static void calls_within_parallel_for(void **state) {
    (void)state;
    struct nested nested = {.depth = 2};
    assert_ok(run_nested(&nested, &job));
    assert_true(softmax_job_is_right(&job));
    assert_int_equal(atomic_load(&nested.num_wrong), 0);
}

// For any numbers of tasks and threads each task runs once, and no two running tasks have the same thread index. More
// than 64 threads share 64 lists.
enum { MOST_TASKS = 700 };

struct tally {
    atomic_int runs[MOST_TASKS], users[MOST_TASKS];
    atomic_bool is_wrong;
};

static void tally_task(void *arg, int64_t index, int thread) {
    struct tally *tally = arg;
    if (atomic_fetch_add(&tally->users[thread], 1) != 0) atomic_store(&tally->is_wrong, true);
    atomic_fetch_add(&tally->runs[index], 1);
    atomic_fetch_sub(&tally->users[thread], 1);
}

static void each_task_once(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 4, 5, 16, 64, 65, 100};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        int n = threads[t];
        int tasks[] = {0, 1, n - 1, n, n + 1, 2 * n - 1, 2 * n + 1, 5 * n + 3, MOST_TASKS};
        for (int is_hooked = 0; is_hooked < 3; is_hooked++) {
            struct hook hook = {.is_reversed = is_hooked == 2};
            tsr_context *ctx = NULL;
            assert_ok(tsr_context_create(
                &TSR_CONTEXT_OPTIONS(.num_threads = n, .parallel_for_user = &hook,
                                     .parallel_for = is_hooked ? run_in_turn : NULL),
                &ctx));
            for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
                static struct tally tally;
                memset(&tally, 0, sizeof tally);
                tsri_parallel(ctx, tasks[i], tally_task, &tally);
                for (int k = 0; k < MOST_TASKS; k++)
                    assert_int_equal(tally.runs[k], k < tasks[i] ? 1 : 0);
                assert_false(tally.is_wrong);
            }
            tsr_context_destroy(ctx);
        }
    }
}

// A product that takes less time than waking a worker runs on the calling thread, with every variant.
static void small_products_stay_on_their_thread(void **state) {
    (void)state;
    enum { MOST = 256 };
    static float a[MOST * MOST], b[MOST * MOST], c[MOST * MOST];
    static const int64_t sizes[][3] = {{1, 256, 16}, {16, 128, 16}, {6, 256, 4},  {64, 8, 8},
                                       {1, 8, 256},  {4, 256, 64},  {0, 256, 256}};
    struct hook hook = {0};
    tsr_context *ctx;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = MANY_THREADS,
                                                      .parallel_for = run_in_turn,
                                                      .parallel_for_user = &hook),
                                 &ctx));
    bool is_fast = tsr_context_isa(ctx) != TSR_ISA_SCALAR; // scalar code takes longer
    for (int i = 0; i <= COUNT(sizes); i++) {
        bool is_small = i < COUNT(sizes);
        int64_t m = is_small ? sizes[i][0] : MOST, n = is_small ? sizes[i][1] : MOST;
        int64_t k = is_small ? sizes[i][2] : MOST;
        assert_ok(
            tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, m, k),
                                                             .b = TSR_TENSOR(b, TSR_F32, k, n),
                                                             .c = TSR_TENSOR(c, TSR_F32, m, n))));
        if (is_fast || !is_small) assert_int_equal(hook.num_calls > 0, !is_small);
    }
    tsr_context_destroy(ctx);
}

// The number of threads with the earliest end: few threads are all used from about 2 us on; of many none below 4 us,
// then more and more.
static void threads_by_work(void **state) {
    (void)state;
    static const struct {
        int most;
        double work;
        int expected;
    } cases[] = {{1, 1e12, 1},   {2, 200e3, 1},  {2, 210e3, 2}, {3, 1e6, 3},     {4, 400e3, 1},
                 {16, 400e3, 1}, {16, 420e3, 5}, {16, 2e6, 11}, {16, 1e300, 16}, {64, 5e6, 17}};
    for (int i = 0; i < COUNT(cases); i++) {
        struct tsri_limits limits = {.isa = TSR_ISA_AVX512, .num_threads = cases[i].most};
        assert_int_equal(tsri_worth_threads(&limits, cases[i].work), cases[i].expected);
        limits.isa = TSR_ISA_SCALAR; // the same time, but fewer multiplications
        assert_int_equal(tsri_worth_threads(&limits, cases[i].work / 16), cases[i].expected);
    }

    static float a[128 * 128], b[128 * 128], c[128 * 128];
    struct hook hook = {0};
    tsr_context *ctx;
    assert_ok(
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 16, .parallel_for = run_in_turn,
                                                .parallel_for_user = &hook),
                           &ctx));
    for (int64_t n = 64; n <= 128; n += 64) {
        assert_ok(
            tsr_matmul_forward(ctx, &TSR_MATMUL_FORWARD_ARGS(.a = TSR_TENSOR(a, TSR_F32, n, n),
                                                             .b = TSR_TENSOR(b, TSR_F32, n, n),
                                                             .c = TSR_TENSOR(c, TSR_F32, n, n))));
        if (tsr_context_isa(ctx) != TSR_ISA_SCALAR) // scalar code takes longer
            assert_in_range(hook.max_tasks, n == 64 ? 0 : 4, n == 64 ? 0 : 12);
    }
    tsr_context_destroy(ctx);
}

// ---- More threads than there is work ----------------------------------------------------------

static void more_threads_than_tasks(void **state) {
    (void)state;
    tsr_context *ctx = test_context(64);
    for (int64_t rows = 1; rows <= 9; rows++) {
        struct softmax_job few;
        softmax_job_create(&few, rows, 3);
        assert_ok(softmax_job_run(ctx, &few));
        assert_true(softmax_job_is_right(&few));
        softmax_job_release(&few);
        softmax_job_create(&few, rows, 20011);
        for (int repeat = 0; repeat < 5; repeat++) {
            assert_ok(softmax_job_run(ctx, &few));
            assert_true(softmax_job_is_right(&few));
        }
        softmax_job_release(&few);
    }
    tsr_context_destroy(ctx);
}

// ---- The caller's floating-point environment --------------------------------------------------

static void *run_with_default_environment(void *arg) {
    return softmax_job_run(arg, &job) == TSR_OK ? NULL : arg;
}

// The caller's rounding mode, flushed subnormals or trapping exceptions change no bit of a result, even if they were
// set before the workers existed. They are unchanged afterwards.
static void floating_point_environment(void **state) {
    (void)state;
    struct softmax_job tiny; // subnormal probabilities, underflowing exponentials
    softmax_job_create(&tiny, ROWS, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i += 3) tiny.x[i] = -85 - (float)(i % 20);
    tsr_context *plain = test_context(1);
    assert_ok(softmax_job_run(plain, &tiny));
    memcpy(tiny.expected, tiny.y, ROWS * COLS * sizeof(float));
    for (int kind = 0; kind < 4; kind++) {
        tsr_context *ctx = test_context(larger_team()); // a worker is created in this environment
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
        feclearexcept(FE_ALL_EXCEPT);
        tsr_status status = softmax_job_run(ctx, &tiny);
        bool is_right = softmax_job_is_right(&tiny);
        tsr_status serial = softmax_job_run(plain, &tiny);
        int round_after = fegetround(), raised = fetestexcept(FE_ALL_EXCEPT);
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
        assert_int_equal(raised, 0);
#if defined(__x86_64__)
        if (kind == 2) assert_int_equal(control & 0x8040, 0x8040);
#endif
        (void)control;
        // Workers that were created in this environment serve the next caller normally.
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
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel_for_hooks),
        cmocka_unit_test(calls_within_parallel_for),
        cmocka_unit_test(small_products_stay_on_their_thread),
        cmocka_unit_test(threads_by_work),
        cmocka_unit_test(more_threads_than_tasks),
        cmocka_unit_test(floating_point_environment),
        cmocka_unit_test(each_task_once) /* the last: its team is larger than any */,
    };
    return cmocka_run_group_tests_name("parallel", tests, setup, teardown);
}
