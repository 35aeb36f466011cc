// SPDX-License-Identifier: Apache-2.0
// The thread team: racing first calls, many calling threads, nested calls, sleeping workers, fork, the
// signal mask of workers, and the shared library loaded and unloaded with its threads.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/core_system.h"
#include "cpu/cpu_isa.h"
#include "cpu/cpu_team.h"
#include "softmax_job.h"

enum {
    ROWS = 32,
    COLS = 1024,
    NUM_FIRST = 32,   // threads that race for the first call
    NUM_CALLERS = 8,  // threads that call at once
    MAX_THREADS = 64, // of one team
    CALLS = TEST_HAS_TSAN ? 150 : 1000
};

static struct softmax_job job; // x and expected are shared, y is each caller's own

static int setup(void **state) {
    (void)state;
    alarm(600); // a lost wake-up or a deadlock ends here
    softmax_job_create(&job, ROWS, COLS);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    softmax_job_release(&job);
    return 0;
}

static void sleep_us(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

// ---- Callers ----------------------------------------------------------------------------------

struct caller {
    int num_threads, num_calls, num_wrong;
    bool has_own_context_each_call;
    atomic_int *start;
    pthread_t thread;
};

static void *call_often(void *arg) {
    struct caller *caller = arg;
    struct softmax_job own = job;
    tsr_context *ctx = NULL;
    own.y = malloc(ROWS * COLS * sizeof(float));
    atomic_fetch_sub(caller->start, 1);
    while (atomic_load(caller->start) > 0) sched_yield(); // all at once
    for (int i = 0; i < caller->num_calls; i++) {
        const tsr_context_options options = TSR_CONTEXT_OPTIONS(.num_threads = caller->num_threads);
        if (ctx == NULL && tsr_context_create(&options, &ctx) != TSR_OK) ctx = NULL;
        if (ctx == NULL || softmax_job_run(ctx, &own) != TSR_OK || !softmax_job_is_right(&own))
            caller->num_wrong++;
        if (!caller->has_own_context_each_call) continue;
        tsr_context_destroy(ctx);
        ctx = NULL;
    }
    tsr_context_destroy(ctx);
    free(own.y);
    return NULL;
}

static void run_callers(int num_callers, int num_calls, bool has_own_context_each_call) {
    struct caller callers[NUM_FIRST];
    atomic_int start;
    atomic_init(&start, num_callers);
    for (int i = 0; i < num_callers; i++) {
        callers[i] = (struct caller){.num_threads = 2 + i % 3,
                                     .num_calls = num_calls,
                                     .has_own_context_each_call = has_own_context_each_call,
                                     .start = &start};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < num_callers; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].num_wrong, 0);
    }
}

// Must be the first test of this process: nothing has used the team before.
static void racing_first_calls(void **state) {
    (void)state;
    run_callers(NUM_FIRST, 3, true);
}

static void many_callers(void **state) {
    (void)state;
    run_callers(NUM_CALLERS, CALLS, false);
}

static void many_callers_with_short_lived_contexts(void **state) {
    (void)state;
    run_callers(NUM_CALLERS, CALLS / 10, true);
}

// ---- The team itself --------------------------------------------------------------------------

struct count {
    atomic_int runs[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    bool is_nested;
};

static void count_run(void *arg, int thread) {
    struct count *count = arg;
    atomic_fetch_add(&count->runs[thread], 1);
    count->thread[thread] = pthread_self();
    if (!count->is_nested) return;
    struct count inner = {.is_nested = false};
    tsri_team_run(3, 0, count_run, &inner);
    for (int i = 0; i < 3; i++) // counted, for cmocka's assertions belong to the main thread
        if (atomic_load(&inner.runs[i]) != 1) atomic_fetch_add(&count->runs[thread], 100);
}

static void check_team(int num_threads, bool is_nested) {
    struct count count = {.is_nested = is_nested};
    tsri_team_run(num_threads, 0, count_run, &count);
    for (int i = 0; i < MAX_THREADS; i++)
        assert_int_equal(atomic_load(&count.runs[i]), i < num_threads ? 1 : 0);
    assert_true(pthread_equal(count.thread[0], pthread_self()));
}

static void every_share_runs_once(void **state) {
    (void)state;
    for (int num_threads = 1; num_threads <= MAX_THREADS; num_threads++)
        for (int repeat = 0; repeat < 5; repeat++) check_team(num_threads, false);
}

static void nested_teams(void **state) {
    (void)state;
    for (int repeat = 0; repeat < 20; repeat++) check_team(4, true);
}

// Callers at once, each asking for MAX_THREADS where only so many may be busy: how many ever were, together.
struct crowd {
    atomic_int now, most, runs;
    int expected; // a share stays until so many were there, for ten seconds at most
    bool is_nested;
};

static void be_in_crowd(void *arg, int thread) {
    struct crowd *crowd = arg;
    int now = atomic_fetch_add(&crowd->now, 1) + 1, most = atomic_load(&crowd->most);
    while (now > most && !atomic_compare_exchange_weak(&crowd->most, &most, now)) {}
    sleep_us(300);
    for (int i = 0; i < 100000 && atomic_load(&crowd->most) < crowd->expected; i++) sleep_us(100);
    atomic_fetch_sub(&crowd->now, 1);
    if (crowd->is_nested && thread < 2) {
        struct crowd inner = {.is_nested = false};
        tsri_team_run(MAX_THREADS, 3, be_in_crowd, &inner);
        if (atomic_load(&inner.runs) == MAX_THREADS) atomic_fetch_add(&crowd->runs, 1);
    } else {
        atomic_fetch_add(&crowd->runs, 1);
    }
}

static void *join_crowd(void *arg) {
    tsri_team_run(MAX_THREADS, 3, be_in_crowd, arg);
    return NULL;
}

static void calls_share_the_cpus(void **state) {
    (void)state;
    enum { CALLERS = 4, BUSY = 3, REPEATS = 5 };
    struct crowd alone = {.expected = BUSY, .is_nested = true};
    tsri_team_run(MAX_THREADS, BUSY, be_in_crowd, &alone);
    assert_int_equal(alone.most, BUSY);
    assert_int_equal(alone.runs, MAX_THREADS);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        pthread_t callers[CALLERS];
        struct crowd crowd = {.expected = BUSY, .is_nested = repeat % 2 != 0};
        for (int i = 0; i < CALLERS; i++)
            assert_int_equal(pthread_create(&callers[i], NULL, join_crowd, &crowd), 0);
        for (int i = 0; i < CALLERS; i++) pthread_join(callers[i], NULL);
        assert_int_equal(crowd.runs, CALLERS * MAX_THREADS);
        assert_true(crowd.most >= BUSY && crowd.most <= BUSY + CALLERS - 1);
    }
    atomic_store(&alone.most, 0); // nothing stays counted
    tsri_team_run(MAX_THREADS, BUSY, be_in_crowd, &alone);
    assert_int_equal(alone.most, BUSY);
    assert_int_equal(alone.runs, 2 * MAX_THREADS);
}

static void more_threads_than_cpus(void **state) {
    (void)state;
    tsr_context *ctx = test_context(tsri_num_cpus() + 37);
    for (int i = 0; i < 20; i++) {
        assert_ok(softmax_job_run(ctx, &job));
        assert_true(softmax_job_is_right(&job));
    }
    tsr_context_destroy(ctx);
}

// Pauses around the time that a worker spins before it sleeps.
static void workers_wake_up(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int i = 0; i < CALLS; i++) {
        check_team(3, false);
        if (i % 4 == 0)
            sleep_us((long)(test_bits(&seed) % 120));
        else
            for (uint64_t n = test_bits(&seed) % 40000; n > 0; n--) __asm__ volatile("");
    }
    sleep_us(50000);
    check_team(4, false);
}

static atomic_int num_created;
static struct tsri_system real_system;

static int counting_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                  void *(*body)(void *), void *arg) {
    atomic_fetch_add(&num_created, 1);
    return real_system.thread_create(thread, attributes, body, arg);
}

static void one_thread_creates_none(void **state) {
    (void)state;
    real_system = tsri_system;
    tsri_system.thread_create = counting_thread_create;
    tsr_context *one = test_context(1);
    for (int i = 0; i < 5; i++) assert_ok(softmax_job_run(one, &job));
    tsr_context_destroy(one);
    check_team(1, false);
    assert_int_equal(atomic_load(&num_created), 0);
    check_team(MAX_THREADS, false); // and workers are kept
    int created = atomic_load(&num_created);
    for (int i = 0; i < 5; i++) check_team(MAX_THREADS, false);
    assert_int_equal(atomic_load(&num_created), created);
    tsri_system = real_system;
}

// Signals go to the application's threads; only those that a fault raises reach a worker.
static void look_at_mask(void *arg, int thread) {
    sigset_t *masks = arg;
    pthread_sigmask(SIG_BLOCK, NULL, &masks[thread]);
}

static void workers_block_signals(void **state) {
    (void)state;
    sigset_t masks[MAX_THREADS], before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    tsri_team_run(MAX_THREADS, 0, look_at_mask, masks);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    static const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (int thread = 1; thread < MAX_THREADS; thread++) {
        for (int i = 0; i < COUNT(signals); i++)
            assert_int_equal(sigismember(&masks[thread], signals[i]), 1);
        for (int i = 0; i < COUNT(faults); i++)
            assert_int_equal(sigismember(&masks[thread], faults[i]), 0);
    }
    for (int i = 0; i < COUNT(signals); i++) {
        assert_int_equal(sigismember(&before, signals[i]), sigismember(&after, signals[i]));
        assert_int_equal(sigismember(&after, signals[i]), 0);
    }
}

// ---- fork -------------------------------------------------------------------------------------

// A parallel call in the child; 0 when it is right.
static int call_in_child(void) {
    tsr_context *ctx;
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.num_threads = 3), &ctx) != TSR_OK) return 2;
    for (int i = 0; i < 5; i++)
        if (softmax_job_run(ctx, &job) != TSR_OK || !softmax_job_is_right(&job)) return 3;
    tsr_context_destroy(ctx);
    return 0;
}

static void fork_and_call(bool exits) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(120);
        int status = call_in_child();
        if (exits && !TEST_HAS_ASAN) exit(status); // destructors run, LSan's search among them
        _exit(status);
    }
    int status = -1;
    pid_t waited;
    while ((waited = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    assert_int_equal(waited, child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

// TSan does not let the child of a process with threads create any.
static void skip_under_tsan(void) {
    if (TEST_HAS_TSAN) skip();
}

static void fork_before_first_use(void **state) {
    (void)state;
    skip_under_tsan();
    fork_and_call(false);
    fork_and_call(true);
}

static void fork_after_use(void **state) {
    (void)state;
    skip_under_tsan();
    check_team(4, false);
    for (int i = 0; i < 5; i++) fork_and_call(i % 2 == 0);
    check_team(4, false); // the parent's team is as it was
    sleep_us(20000);
    fork_and_call(true);
    check_team(4, false);
}

static void fork_while_others_call(void **state) {
    (void)state;
    skip_under_tsan();
    struct caller callers[2];
    atomic_int start;
    atomic_init(&start, 2);
    for (int i = 0; i < 2; i++) {
        callers[i] = (struct caller){.num_threads = 2, .num_calls = 3000, .start = &start};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 40; i++) fork_and_call(false);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
        assert_int_equal(callers[i].num_wrong, 0);
    }
}

// ---- dlopen and dlclose -----------------------------------------------------------------------

static int count_threads(void) {
    DIR *directory = opendir("/proc/self/task");
    if (directory == NULL) return -1;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += *entry->d_name != '.';
    closedir(directory);
    return count;
}

static void load_and_unload(void **state) {
    (void)state;
#ifdef TSR_TEST_SHARED_LIBRARY
    int before = count_threads();
    for (int i = 0; i < (TEST_HAS_TSAN ? 5 : 40); i++) {
        void *library = dlopen(TSR_TEST_SHARED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) fail_msg("%s", dlerror());
        tsr_status (*create)(const tsr_context_options *, tsr_context **);
        tsr_status (*forward)(tsr_context *, const tsr_softmax_forward_args *);
        void (*destroy)(tsr_context *);
        *(void **)&create = dlsym(library, "tsr_context_create");
        *(void **)&forward = dlsym(library, "tsr_softmax_forward");
        *(void **)&destroy = dlsym(library, "tsr_context_destroy");
        assert_true(create != NULL && forward != NULL && destroy != NULL);
        assert_true(create != tsr_context_create); // another copy than the one linked here
        tsr_context *ctx;
        assert_int_equal(create(&TSR_CONTEXT_OPTIONS(.num_threads = 4), &ctx), TSR_OK);
        memset(job.y, 0xff, ROWS * COLS * sizeof(float));
        assert_int_equal(
            forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = TSR_TENSOR(job.x, TSR_F32, ROWS, COLS),
                                                   .y = TSR_TENSOR(job.y, TSR_F32, ROWS, COLS))),
            TSR_OK);
        assert_true(softmax_job_is_right(&job));
        destroy(ctx);
        if (i % 3 == 0) sleep_us(2000); // asleep, or still spinning
        assert_int_equal(dlclose(library), 0);
        assert_null(dlopen(TSR_TEST_SHARED_LIBRARY, RTLD_NOW | RTLD_NOLOAD)); // really gone
        if (!TEST_HAS_TSAN && i % 10 == 0) fork_and_call(true); // no fork handler of it is left
    }
    for (int i = 0; i < 1000 && count_threads() > before; i++) sleep_us(5000);
    assert_int_equal(count_threads(), before);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fork_before_first_use),
        cmocka_unit_test(racing_first_calls),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(many_callers_with_short_lived_contexts),
        cmocka_unit_test(every_share_runs_once),
        cmocka_unit_test(nested_teams),
        cmocka_unit_test(calls_share_the_cpus),
        cmocka_unit_test(more_threads_than_cpus),
        cmocka_unit_test(workers_wake_up),
        cmocka_unit_test(one_thread_creates_none),
        cmocka_unit_test(workers_block_signals),
        cmocka_unit_test(fork_after_use),
        cmocka_unit_test(fork_while_others_call),
        cmocka_unit_test(load_and_unload),
    };
    return cmocka_run_group_tests_name("team", tests, setup, teardown);
}
