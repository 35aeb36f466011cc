// SPDX-License-Identifier: Apache-2.0
// The thread team: racing first calls, many calling threads, nested calls, sleeping workers and callers, and the
// workers' signal mask.
#include <signal.h>

#include "core/core_system.h"
#include "cpu/cpu_limits.h"
#include "team_case.h"

enum {
    NUM_FIRST = 32,  // threads that race for the first call
    NUM_CALLERS = 8, // threads that call at once
    CALLS = TEST_HAS_TSAN ? 150 : 1000
};

// ---- Callers ----------------------------------------------------------------------------------

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

// This must be the first test of the process, before anything uses the team.
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

static void every_share_runs_once(void **state) {
    (void)state;
    for (int num_threads = 1; num_threads <= MAX_THREADS; num_threads++)
        for (int repeat = 0; repeat < 5; repeat++) check_team(num_threads, false);
}

static void nested_teams(void **state) {
    (void)state;
    for (int repeat = 0; repeat < 20; repeat++) check_team(4, true);
}

// Concurrent callers each request MAX_THREADS, of which only some may be busy. Counts how many were busy at once.
struct crowd {
    atomic_int now, most, runs;
    int expected; // a share waits for so many, at most ten seconds
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
    atomic_store(&alone.most, 0); // the counts return to zero
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

// Pauses of about the time that a worker spins before it sleeps.
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

// The caller runs shares that no worker has begun when its own is done. Here it waits until all workers have begun.
struct begun {
    atomic_int num_workers;
    int num_expected;
    long length;    // of a worker's share in us; the caller's is empty
    double seconds; // the caller's CPU time when all have begun
    sigset_t masks[MAX_THREADS];
};

static double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void begin(struct begun *begun, int thread) {
    if (thread > 0) {
        atomic_fetch_add(&begun->num_workers, 1);
        return;
    }
    double start = seconds_of(CLOCK_MONOTONIC);
    while (atomic_load(&begun->num_workers) < begun->num_expected) {
        if (seconds_of(CLOCK_MONOTONIC) > start + 60) abort(); // they never will
        sched_yield();
    }
    begun->seconds = seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static void work_long(void *arg, int thread) {
    struct begun *begun = arg;
    begin(begun, thread);
    if (thread > 0) sleep_us(begun->length);
}

// Returns the calling thread's CPU time while it waited.
static double run_long(int num_threads, long length) {
    struct begun begun = {.num_expected = num_threads - 1, .length = length};
    tsri_team_run(num_threads, 0, work_long, &begun);
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begun.seconds;
}

// A caller that waits long sleeps instead of using the CPU, and never misses the end, whenever it falls asleep.
static void a_waiting_caller_sleeps(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 40; i++) run_long(3, (long)(test_bits(&seed) % 12000));
    assert_true(run_long(2, 400000) < (TEST_HAS_TSAN ? 0.2 : 0.05));
    check_team(3, false);
}

// A thread that is cancelled during its call ends only when its workers are done, because they write to its stack.
static void *call_until_cancelled(void *arg) {
    atomic_store((atomic_bool *)arg, true);
    run_long(2, 60000);
    atomic_store((atomic_bool *)arg, false);
    pthread_testcancel();
    return NULL;
}

static void a_cancelled_caller_waits(void **state) {
    (void)state;
    atomic_bool is_calling = false;
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, call_until_cancelled, &is_calling), 0);
    while (!atomic_load(&is_calling)) sched_yield();
    sleep_us(1000);
    assert_int_equal(pthread_cancel(thread), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_false(atomic_load(&is_calling));
    check_team(3, false); // nothing stays counted or locked
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
    check_team(MAX_THREADS, false); // workers are kept
    int created = atomic_load(&num_created);
    for (int i = 0; i < 5; i++) check_team(MAX_THREADS, false);
    assert_int_equal(atomic_load(&num_created), created);
    tsri_system = real_system;
}

// Threads that start only when the gate opens, like threads that wait for a busy processor.
static atomic_bool is_gate_open;
static void *(*gated_body)(void *);

static void *run_behind_gate(void *arg) {
    while (!atomic_load(&is_gate_open)) sched_yield();
    return gated_body(arg);
}

static int gated_thread_create(pthread_t *thread, const pthread_attr_t *attributes,
                               void *(*body)(void *), void *arg) {
    gated_body = body;
    return real_system.thread_create(thread, attributes, run_behind_gate, arg);
}

static void note_thread(void *arg, int thread) { ((pthread_t *)arg)[thread] = pthread_self(); }

// Nobody waits for a worker that has not begun, and its share does not run twice.
static void late_workers_are_not_awaited(void **state) {
    (void)state;
    tsri_team_stop();
    real_system = tsri_system;
    tsri_system.thread_create = gated_thread_create;
    atomic_store(&is_gate_open, false);
    for (int round = 0; round < 3; round++) {
        pthread_t threads[MAX_THREADS] = {0};
        tsri_team_run(MAX_THREADS, 0, note_thread, threads);
        for (int i = 0; i < MAX_THREADS; i++)
            assert_true(pthread_equal(threads[i], pthread_self()));
        check_team(3, false);
    }
    atomic_store(&is_gate_open, true);
    tsri_system = real_system;
    for (int round = 0; round < 20; round++) check_team(MAX_THREADS, false);
    run_long(MAX_THREADS, 10); // all workers begin
}

// Signals go to the application's threads. Workers receive only those of faults.
static void look_at_mask(void *arg, int thread) {
    struct begun *begun = arg;
    begin(begun, thread);
    pthread_sigmask(SIG_BLOCK, NULL, &begun->masks[thread]);
}

static void workers_block_signals(void **state) {
    (void)state;
    sigset_t before, after;
    struct begun begun = {.num_expected = MAX_THREADS - 1};
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    tsri_team_run(MAX_THREADS, 0, look_at_mask, &begun);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    static const int signals[] = {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (int thread = 1; thread < MAX_THREADS; thread++) {
        for (int i = 0; i < COUNT(signals); i++)
            assert_int_equal(sigismember(&begun.masks[thread], signals[i]), 1);
        for (int i = 0; i < COUNT(faults); i++)
            assert_int_equal(sigismember(&begun.masks[thread], faults[i]), 0);
    }
    for (int i = 0; i < COUNT(signals); i++) {
        assert_int_equal(sigismember(&before, signals[i]), sigismember(&after, signals[i]));
        assert_int_equal(sigismember(&after, signals[i]), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(racing_first_calls),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(many_callers_with_short_lived_contexts),
        cmocka_unit_test(every_share_runs_once),
        cmocka_unit_test(nested_teams),
        cmocka_unit_test(calls_share_the_cpus),
        cmocka_unit_test(more_threads_than_cpus),
        cmocka_unit_test(workers_wake_up),
        cmocka_unit_test(a_waiting_caller_sleeps),
        cmocka_unit_test(a_cancelled_caller_waits),
        cmocka_unit_test(one_thread_creates_none),
        cmocka_unit_test(late_workers_are_not_awaited),
        cmocka_unit_test(workers_block_signals),
    };
    return cmocka_run_group_tests_name("team", tests, setup, teardown);
}
