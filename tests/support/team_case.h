// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the thread team: a job, threads that call often, and a count of the team's threads. One test
// program includes this file.
#ifndef TEAM_CASE_H
#define TEAM_CASE_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "cpu/cpu_team.h"
#include "softmax_job.h"

enum {
    ROWS = 32,
    COLS = 1024,
    MAX_THREADS = 64, // per team
};

static struct softmax_job job; // callers share x and expected; each has its own y

static inline int setup(void **state) {
    (void)state;
    alarm(600); // ends the test after a lost wake-up or a deadlock
    softmax_job_create(&job, ROWS, COLS);
    return 0;
}

static inline int teardown(void **state) {
    (void)state;
    softmax_job_release(&job);
    return 0;
}

static inline void sleep_us(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

struct caller {
    int num_threads, num_calls, num_wrong;
    bool has_own_context_each_call;
    atomic_int *start;
    pthread_t thread;
};

static inline void *call_often(void *arg) {
    struct caller *caller = arg;
    struct softmax_job own = job;
    tsr_context *ctx = NULL;
    own.y = malloc(ROWS * COLS * sizeof(float));
    atomic_fetch_sub(caller->start, 1);
    while (atomic_load(caller->start) > 0) sched_yield(); // so that all start at once
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

struct count {
    atomic_int runs[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    bool is_nested;
};

static inline void count_run(void *arg, int thread) {
    struct count *count = arg;
    atomic_fetch_add(&count->runs[thread], 1);
    count->thread[thread] = pthread_self();
    if (!count->is_nested) return;
    struct count inner = {.is_nested = false};
    tsri_team_run(3, 0, count_run, &inner);
    for (int i = 0; i < 3; i++) // counted, because only the main thread may use cmocka's assertions
        if (atomic_load(&inner.runs[i]) != 1) atomic_fetch_add(&count->runs[thread], 100);
}

static inline void check_team(int num_threads, bool is_nested) {
    struct count count = {.is_nested = is_nested};
    tsri_team_run(num_threads, 0, count_run, &count);
    for (int i = 0; i < MAX_THREADS; i++)
        assert_int_equal(atomic_load(&count.runs[i]), i < num_threads ? 1 : 0);
    assert_true(pthread_equal(count.thread[0], pthread_self()));
}

#endif
