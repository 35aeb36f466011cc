// SPDX-License-Identifier: Apache-2.0
// Workers wait in a free list. A call takes as many as it wants (creating what is missing), hands
// each its job through an atomic word of its own, runs its own share, waits and puts them back. A worker that has not begun
// by then, since it slept or has no processor, has its job taken back: the caller does that too. Two calling threads
// never share a worker, so they cannot wait for each other. Calls at once share the CPUs: what is busy is counted, and
// none takes a worker beyond what it was told is there.
//
// A worker spins a bounded time for the next job, then sleeps on a condition variable: back-to-back
// calls cost about a microsecond, an idle library costs nothing. Who spins yields between looks, but for the first
// microseconds: where two threads of a team have got onto one processor, the one that waits would keep it from the one that
// has work, call after call, since a processor in use is none that the system would move a thread away from or to.
//
// The sleep uses the store-then-load pattern on both sides (worker: is_asleep, then job; caller: job, then is_asleep),
// sequentially consistent, so that one of the two always sees the other. A caller whose workers take long sleeps in the same
// way: one that only yielded would keep a processor from whatever has a lower priority, its own workers among them.
#include "cpu/cpu_team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/core_system.h"

// Looks before the first yield, and yields before the sleep.
enum { WORKER_LOOKS = 64, WORKER_YIELDS = 128, CALLER_LOOKS = 256, CALLER_YIELDS = 10000 };
enum { LOOKS_BETWEEN_YIELDS = 8 };

enum state { IDLE, POSTED, BUSY, QUIT };

// A worker's state. IDLE: its caller's, or of the free list; POSTED: whoever changes it has the job; BUSY: the worker's; QUIT:
// it ends.
struct worker {
    _Alignas(64) atomic_int state;
    atomic_bool is_asleep;  // the worker, until wake
    atomic_bool is_awaited; // the caller is asleep, until done
    void (*body)(void *arg, int thread);
    void *arg;
    int thread;
    struct worker *next; // in the free list, or in the caller's list
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    pthread_t handle;
};

static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct worker *pool_free;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static bool is_safe_in_child;         // else a child would wait for workers that it does not have
static atomic_int num_busy;           // threads in calls: callers, and workers that were taken
static _Thread_local bool is_in_call; // this one is counted

static inline void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Until the state is IDLE, or is not, for a bounded time; the state then.
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
        &w->state); // IDLE where the job was taken back meanwhile: another may come soon
}

static void post(struct worker *w, int state) {
    atomic_store(&w->state, state);
    if (atomic_load(&w->is_asleep)) {
        pthread_mutex_lock(&w->mutex);
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->mutex);
    }
}

// The posted job, for the worker (BUSY) or back (IDLE).
static bool take_job(struct worker *w, int state) {
    int posted = POSTED;
    return atomic_compare_exchange_strong(&w->state, &posted, state);
}

// The caller may be gone, and another one have the worker, by the time that it looks who waits.
static void *worker_main(void *arg) {
    struct worker *w = arg;
    is_in_call = true; // by whom it works for
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
    int cancel_state; // a thread cancelled in here would leave its stack to the workers
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

// A forked child has none of its parent's threads: it starts with an empty pool, whatever its parent was at. Twice does no
// harm: a fork amid the first call has pthread_once begin again in the child.
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

// At exit or dlclose no code of ours may be running: the idle workers end. A busy one belongs to a
// call in progress on another thread, which the caller must not unload under.
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

// A worker must not run the application's signal handlers, nor hide a signal that it waits for. What a
// fault raises, and a profiler, still reach it.
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
    // In the order of the free list, which they go back to: each has its index again.
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
    for (; thread < num_threads; thread++) body(arg, thread); // what no worker could be had for

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
