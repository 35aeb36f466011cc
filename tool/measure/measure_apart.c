// SPDX-License-Identifier: Apache-2.0
// Measures how far a machine scales for threads that share nothing: contexts of one thread each, with their own tensors,
// that call at the same time. They lose efficiency only to clocks, caches and memory. What one context with as many
// threads loses beyond that is the library's own loss.
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "measure/measure_contender.h"
#include "system/heap.h"
#include "system/progress.h"

struct caller {
    struct apart *apart;
    pthread_t thread;
    tsr_context *ctx;
    struct inputs inputs;
    double rate;        // calls per second of the last round
    char sentence[512]; // the error that stops it, or ""
};

struct apart {
    const struct op_case *c;
    const struct contender *contender;
    int count, num_started;
    pthread_mutex_t lock;
    pthread_cond_t is_changed;
    int round, num_open, num_ended; // guarded by the lock
    bool is_over;
    int num_calls;       // the least number of calls of each caller in a round
    atomic_int num_met;  // callers that are ready to start the round
    atomic_int num_done; // callers that have made their calls
    struct caller callers[];
};

static bool call(struct caller *caller) {
    const struct op_case *c = &caller->inputs.c;
    if (caller->sentence[0] != '\0') return false;
    tsr_status status =
        c->spec->call(caller->ctx, c, caller->apart->contender->variant, NULL, 0, NULL);
    if (status != TSR_OK)
        snprintf(caller->sentence, sizeof caller->sentence, "%s", tsr_last_error());
    return status == TSR_OK;
}

// All callers start at the same time, warm unless cold caches are wanted, and keep calling until every other one has made
// its calls, so that none has the machine to itself.
static void run_round(struct caller *caller) {
    struct apart *apart = caller->apart;
    bool is_cold = apart->contender->session->options.is_cold;
    if (!is_cold) call(caller);
    atomic_fetch_add(&apart->num_met, 1);
    while (atomic_load(&apart->num_met) < apart->count) sched_yield();
    double start = seconds_now();
    int num_calls = 0;
    bool is_done = false;
    while (call(caller)) {
        if (++num_calls < apart->num_calls) continue;
        if (!is_done) atomic_fetch_add(&apart->num_done, 1);
        is_done = true;
        if (is_cold || atomic_load(&apart->num_done) >= apart->count) break;
    }
    if (!is_done) atomic_fetch_add(&apart->num_done, 1);
    caller->rate = num_calls / (seconds_now() - start);
}

// The caller's own thread allocates the tensors, so that they lie in memory near it.
static void open_caller(struct caller *caller) {
    const struct measure_session *session = caller->apart->contender->session;
    tsr_status status =
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = session->machine.isa, .num_threads = 1,
                                                .tuning_file = session->options.tuning_file),
                           &caller->ctx);
    if (status != TSR_OK)
        snprintf(caller->sentence, sizeof caller->sentence, "%s", tsr_last_error());
    else if (!inputs_create(&caller->inputs, caller->apart->c, session->options.seed))
        snprintf(caller->sentence, sizeof caller->sentence,
                 "%s: no memory for the tensors of %d calls at once", caller->apart->c->spec->op,
                 caller->apart->count);
}

static void *caller_main(void *arg) {
    struct caller *caller = arg;
    struct apart *apart = caller->apart;
    open_caller(caller);
    pthread_mutex_lock(&apart->lock);
    apart->num_open++;
    pthread_cond_broadcast(&apart->is_changed);
    for (int round = 0;; round++) {
        while (apart->round == round && !apart->is_over)
            pthread_cond_wait(&apart->is_changed, &apart->lock);
        if (apart->is_over) break;
        pthread_mutex_unlock(&apart->lock);
        run_round(caller);
        pthread_mutex_lock(&apart->lock);
        apart->num_ended++;
        pthread_cond_broadcast(&apart->is_changed);
    }
    pthread_mutex_unlock(&apart->lock);
    return NULL;
}

double apart_seconds(struct contender *contender) {
    struct apart *apart = contender->apart;
    double rate = 0;
    apart->num_calls = contender->num_calls > 0 ? contender->num_calls : 1;
    pthread_mutex_lock(&apart->lock);
    atomic_store(&apart->num_met, 0);
    atomic_store(&apart->num_done, 0);
    apart->num_ended = 0;
    apart->round++;
    pthread_cond_broadcast(&apart->is_changed);
    while (apart->num_ended < apart->count) pthread_cond_wait(&apart->is_changed, &apart->lock);
    pthread_mutex_unlock(&apart->lock);
    for (int i = 0; i < apart->count; i++) {
        rate += apart->callers[i].rate;
        if (apart->callers[i].sentence[0] == '\0') continue;
        contender_fail(contender, MEASURE_FAILED, "%s", apart->callers[i].sentence);
        return NAN;
    }
    return apart->count / rate;
}

// Starts the next caller and waits until it is open. False after a failure; the contender has the sentence.
static bool start_caller(struct apart *apart, struct contender *contender) {
    struct caller *caller = &apart->callers[apart->num_started];
    caller->apart = apart;
    if (pthread_create(&caller->thread, NULL, caller_main, caller) != 0) {
        contender_fail(contender, MEASURE_FAILED, "%s: no thread for each of %d calls at once",
                       apart->c->spec->op, apart->count);
        return false;
    }
    apart->num_started++;
    pthread_mutex_lock(&apart->lock);
    while (apart->num_open < apart->num_started)
        pthread_cond_wait(&apart->is_changed, &apart->lock);
    pthread_mutex_unlock(&apart->lock);
    if (caller->sentence[0] != '\0')
        contender_fail(contender, MEASURE_FAILED, "%s", caller->sentence);
    return contender->outcome == MEASURE_OK;
}

void apart_prepare(const struct op_case *c, struct contender *contender) {
    int count = contender->session->machine.num_threads;
    double bytes = count * inputs_bytes(c), available = allocation_available();
    char needed[32], left[32];
    if (contender->beside->outcome != MEASURE_OK) { // that contender has the sentence
        contender_fail(contender, contender->beside->outcome, "%s", "");
        return;
    }
    if (!allocation_fits(bytes, available)) {
        contender_fail(contender, MEASURE_FAILED,
                       "%s: the tensors of %d calls at once need %s, the machine has %s left",
                       c->spec->op, count, allocation_text(bytes, needed, sizeof needed),
                       allocation_text(available, left, sizeof left));
        return;
    }
    struct apart *apart = heap_get(1, sizeof *apart + (size_t)count * sizeof *apart->callers);
    apart->c = c;
    apart->contender = contender;
    apart->count = count;
    pthread_mutex_init(&apart->lock, NULL);
    pthread_cond_init(&apart->is_changed, NULL);
    contender->apart = apart;
    while (apart->num_started < count && start_caller(apart, contender))
        ;
}

void apart_release(struct contender *contender) {
    struct apart *apart = contender->apart;
    if (apart == NULL) return;
    pthread_mutex_lock(&apart->lock);
    apart->is_over = true;
    pthread_cond_broadcast(&apart->is_changed);
    pthread_mutex_unlock(&apart->lock);
    for (int i = 0; i < apart->num_started; i++) {
        pthread_join(apart->callers[i].thread, NULL);
        inputs_release(&apart->callers[i].inputs);
        tsr_context_destroy(apart->callers[i].ctx);
    }
    pthread_cond_destroy(&apart->is_changed);
    pthread_mutex_destroy(&apart->lock);
    free(apart);
    contender->apart = NULL;
}
