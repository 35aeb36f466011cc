// SPDX-License-Identifier: Apache-2.0
// What a machine has for threads that share nothing: contexts of one thread each, with tensors of their own, that call at
// once. Who scales worse than they do loses it to himself; the rest is clocks, caches and memory, which all share.
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "measure_contender.h"
#include "progress.h"

struct caller {
    struct apart *apart;
    pthread_t thread;
    tsr_context *ctx;
    struct inputs inputs;
    double rate; // calls per second of the last round; NAN: one failed
};

struct apart {
    const char *variant;
    int count, num_started;
    pthread_mutex_t lock;
    pthread_cond_t is_changed;
    int round, num_ended; // under the lock
    bool is_over;
    atomic_int num_done; // callers that have made their first call of the round
    struct caller callers[];
};

// Calls until each of the others has made one too: nobody's last call has the machine to itself.
static void run_round(struct caller *caller) {
    struct apart *apart = caller->apart;
    const struct op_case *c = &caller->inputs.c;
    double start = seconds_now();
    int num_calls = 0;
    bool is_fine = true;
    do {
        is_fine &= c->spec->call(caller->ctx, c, apart->variant, NULL, 0, NULL) == TSR_OK;
        if (num_calls++ == 0) atomic_fetch_add(&apart->num_done, 1);
    } while (is_fine && atomic_load(&apart->num_done) < apart->count);
    caller->rate = is_fine ? num_calls / (seconds_now() - start) : NAN;
}

static void *caller_main(void *arg) {
    struct caller *caller = arg;
    struct apart *apart = caller->apart;
    pthread_mutex_lock(&apart->lock);
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
    pthread_mutex_lock(&apart->lock);
    atomic_store(&apart->num_done, 0);
    apart->num_ended = 0;
    apart->round++;
    pthread_cond_broadcast(&apart->is_changed);
    while (apart->num_ended < apart->count) pthread_cond_wait(&apart->is_changed, &apart->lock);
    pthread_mutex_unlock(&apart->lock);
    for (int i = 0; i < apart->count; i++) rate += apart->callers[i].rate;
    if (!isnan(rate)) return apart->count / rate;
    contender_fail(contender, MEASURE_FAILED, "one of %d contexts of one thread could not call",
                   apart->count);
    return NAN;
}

static tsr_status start_caller(struct apart *apart, const struct contender *contender,
                               const struct op_case *c) {
    const struct measure_session *session = contender->session;
    struct caller *caller = &apart->callers[apart->num_started];
    caller->apart = apart;
    tsr_status status =
        tsr_context_create(&TSR_CONTEXT_OPTIONS(.isa = session->machine.isa, .num_threads = 1,
                                                .tuning_file = session->options.tuning_file),
                           &caller->ctx);
    if (status == TSR_OK && !inputs_create(&caller->inputs, c, session->options.seed))
        status = TSR_OUT_OF_MEMORY;
    if (status == TSR_OK && pthread_create(&caller->thread, NULL, caller_main, caller) != 0)
        status = TSR_OUT_OF_MEMORY;
    if (status == TSR_OK) {
        apart->num_started++;
        return TSR_OK;
    }
    inputs_release(&caller->inputs);
    tsr_context_destroy(caller->ctx);
    return status;
}

void apart_prepare(const struct op_case *c, struct contender *contender) {
    int count = contender->session->machine.num_threads;
    struct apart *apart = calloc(1, sizeof *apart + (size_t)count * sizeof *apart->callers);
    if (apart == NULL) abort();
    apart->variant = contender->variant;
    apart->count = count;
    pthread_mutex_init(&apart->lock, NULL);
    pthread_cond_init(&apart->is_changed, NULL);
    contender->apart = apart;
    bool is_fitting = allocation_fits(count * inputs_bytes(c), allocation_available());
    while (is_fitting && apart->num_started < count && start_caller(apart, contender, c) == TSR_OK)
        ;
    if (apart->num_started < count)
        contender_fail(contender, MEASURE_FAILED,
                       "%s: no memory for the tensors of %d calls at once", c->spec->op, count);
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
