// SPDX-License-Identifier: Apache-2.0
// Idle workers wait in a free list. A call takes as many as it needs (and creates missing ones), gives each its job
// through the worker's own atomic word, runs its own share, waits, and puts the workers back. If a worker has not begun
// by then (it slept or got no processor), the caller takes the job back and runs it too. Two calling threads never
// share a worker, so they cannot wait for each other. Concurrent calls share the CPUs: the pool counts busy threads,
// and no call takes a worker beyond the CPU count that it was given.
//
// A worker spins for a bounded time, then sleeps on a condition variable. So back-to-back calls cost about a
// microsecond and an idle library costs nothing. After the first microseconds, a spinning thread yields between looks.
// Otherwise, if two threads of a team share a processor, the waiting one would keep it from the working one in every
// call: the scheduler moves no thread from or to a busy processor.
//
// Sleep and wake-up use the store-then-load pattern on both sides (worker: is_asleep, then job; caller: job, then
// is_asleep), sequentially consistent, so at least one side sees the other. A caller that waits long sleeps in the same
// way; if it only yielded, it would keep a processor from threads of lower priority, perhaps its own workers.
#include "cpu/cpu_team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/core_system.h"

// Number of looks before the first yield, and of yields before the sleep.
enum { WORKER_LOOKS = 64, WORKER_YIELDS = 128, CALLER_LOOKS = 256, CALLER_YIELDS = 10000 };
enum { LOOKS_BETWEEN_YIELDS = 8 };

enum state { IDLE, POSTED, BUSY, QUIT };

// Who may use a worker in each state. IDLE: its caller or the free list; POSTED: whoever changes the state takes the
// job; BUSY: the worker itself; QUIT: the worker ends.
struct worker {
    _Alignas(64) atomic_int state;
    atomic_bool is_asleep;  // set by the worker, until `wake`
    atomic_bool is_awaited; // the caller sleeps until `done`
    void (*body)(void *arg, int thread);
    void *arg;
    int thread;
    struct worker *next; // in the free list or in the caller's list
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    pthread_t handle;
};

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct worker *pool_free;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static bool is_safe_in_child;         // false: a forked child would wait for missing workers
static atomic_int num_busy;           // threads in calls: callers and taken workers
static _Thread_local bool is_in_call; // this thread is counted

static inline void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Spins for a bounded time until the state is IDLE (or, with is_for_idle false, is not), and returns the state.
static int spin(struct worker *w, bool is_for_idle, int looks, int yields) {
    int state = IDLE;
    for (int i = 0; i < looks + yields * LOOKS_BETWEEN_YIELDS; i++) {
        state = atomic_load_explicit(&w->state, memory_order_acquire);
        if ((state == IDLE) == is_for_idle) return state;
        if (i >= looks && i % LOOKS_BETWEEN_YIELDS == 0)
            sched_yield();
        else
            spin_pause();
    }
    return state;
}

static int wait_for_job(struct worker *w) {
    int state = spin(w, false, WORKER_LOOKS, WORKER_YIELDS);
    if (state != IDLE) return state;
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->is_asleep, true);
    if (atomic_load(&w->state) == IDLE) pthread_cond_wait(&w->wake, &w->mutex);
    atomic_store(&w->is_asleep, false);
    pthread_mutex_unlock(&w->mutex);
    return atomic_load(
        &w->state); // IDLE if the caller took the job back; the next one may come soon
}

static void post(struct worker *w, int state) {
    atomic_store(&w->state, state);
    if (atomic_load(&w->is_asleep)) {
        pthread_mutex_lock(&w->mutex);
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->mutex);
    }
}

// Takes the posted job: BUSY for the worker, IDLE to take it back.
static bool take_job(struct worker *w, int state) {
    int posted = POSTED;
    return atomic_compare_exchange_strong(&w->state, &posted, state);
}

// When the worker tests is_awaited, its caller may be gone already, and another caller may own the worker.
static void *worker_main(void *arg) {
    struct worker *w = arg;
    is_in_call = true; // counted by the calling thread
    while (wait_for_job(w) != QUIT) {
        if (!take_job(w, BUSY)) continue;
        w->body(w->arg, w->thread);
        atomic_store(&w->state, IDLE);
        if (!atomic_load(&w->is_awaited)) continue;
        pthread_mutex_lock(&w->mutex);
        pthread_cond_signal(&w->done);
        pthread_mutex_unlock(&w->mutex);
    }
    return NULL;
}

static void wait_until_done(struct worker *w) {
    if (spin(w, true, CALLER_LOOKS, CALLER_YIELDS) == IDLE) return;
    int cancel_state; // a cancelled thread would free a stack that workers still use
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->is_awaited, true);
    while (atomic_load(&w->state) != IDLE) pthread_cond_wait(&w->done, &w->mutex);
    atomic_store(&w->is_awaited, false);
    pthread_mutex_unlock(&w->mutex);
    pthread_setcancelstate(cancel_state, NULL);
}

// ---- The pool ---------------------------------------------------------------------------------

static void lock_pool(void) { pthread_mutex_lock(&pool_mutex); }
static void unlock_pool(void) { pthread_mutex_unlock(&pool_mutex); }

// A forked child has none of its parent's threads, so it starts with an empty pool in any case. A second call does no
// harm: after a fork during the first call, pthread_once runs again in the child.
static void forget_pool(void) {
    pthread_mutex_init(&pool_mutex, NULL);
    pool_free = NULL;
    atomic_store(&num_busy, is_in_call);
}

static void init_pool(void) {
    is_safe_in_child = tsri_system.at_fork(NULL, NULL, forget_pool) == 0;
}

static void release_worker(struct worker *w) {
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->mutex);
    tsri_system.free(w);
}

// No code of ours may run after exit or dlclose, so the idle workers end. A busy worker belongs to a call on another
// thread; the caller must not unload the library during that call.
__attribute__((destructor)) void tsri_team_stop(void) {
    lock_pool();
    struct worker *list = pool_free;
    pool_free = NULL;
    unlock_pool();
    while (list != NULL) {
        struct worker *w = list;
        list = w->next;
        post(w, QUIT);
        pthread_join(w->handle, NULL);
        release_worker(w);
    }
}

// A worker must not run the application's signal handlers, nor take a signal that the application waits for. Signals of
// faults and of a profiler still reach it.
static void block_signals(sigset_t *before) {
    sigset_t set;
    sigfillset(&set);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&set, faults[i]);
#ifdef SIGPROF
    sigdelset(&set, SIGPROF);
#endif
    pthread_sigmask(SIG_SETMASK, &set, before);
}

static struct worker *create_worker(void) {
    struct worker *w = tsri_system.alloc(_Alignof(struct worker), sizeof *w);
    if (w == NULL) return NULL;
    atomic_init(&w->state, IDLE);
    atomic_init(&w->is_asleep, false);
    atomic_init(&w->is_awaited, false);
    w->next = NULL;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wake, NULL);
    pthread_cond_init(&w->done, NULL);
    sigset_t before;
    block_signals(&before); // a thread inherits its creator's mask
    int error = tsri_system.thread_create(&w->handle, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return w;
    release_worker(w);
    return NULL;
}

static bool may_take(int most_busy) {
    int busy = atomic_load(&num_busy);
    do {
        if (most_busy > 0 && busy >= most_busy) return false;
    } while (!atomic_compare_exchange_weak(&num_busy, &busy, busy + 1));
    return true;
}

static struct worker *take_worker(int most_busy) {
    if (!is_safe_in_child || !may_take(most_busy)) return NULL;
    lock_pool();
    struct worker *w = pool_free;
    if (w != NULL) pool_free = w->next;
    unlock_pool();
    if (w == NULL) w = create_worker();
    if (w == NULL) atomic_fetch_sub(&num_busy, 1);
    return w;
}

void tsri_team_run(int num_threads, int most_busy, void (*body)(void *arg, int thread), void *arg) {
    pthread_once(&pool_once, init_pool);
    // Taken and returned in the order of the free list, so each worker gets the same index again.
    struct worker *mine = NULL, **end = &mine;
    int thread = 1;
    bool is_outermost = !is_in_call;
    if (is_outermost) atomic_fetch_add(&num_busy, 1);
    is_in_call = true;
    for (; thread < num_threads; thread++) {
        struct worker *w = take_worker(most_busy);
        if (w == NULL) break;
        w->body = body;
        w->arg = arg;
        w->thread = thread;
        w->next = NULL;
        *end = w;
        end = &w->next;
        post(w, POSTED);
    }
    int num_counted = thread - 1 + is_outermost;
    body(arg, 0);
    for (; thread < num_threads; thread++) body(arg, thread); // shares without a worker

    for (struct worker *w = mine; w != NULL; w = w->next)
        if (take_job(w, IDLE)) body(arg, w->thread);
    for (struct worker *w = mine; w != NULL; w = w->next) wait_until_done(w);
    atomic_fetch_sub(&num_busy, num_counted);
    if (is_outermost) is_in_call = false;
    if (mine == NULL) return;
    lock_pool();
    *end = pool_free;
    pool_free = mine;
    unlock_pool();
}
