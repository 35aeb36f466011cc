// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "verify_walk.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_option.h"
#include "signals.h"

// Cases differ in how long their oracle and their variants take: with a few in between neither waits often. Of large ones, by
// the bytes that the oracle has, the next is made when the last is done with.
enum { MOST_READY = 4, LARGE_BYTES = 64 << 20 };

struct walk {
    const struct verify_options *options;
    struct rng rng; // the maker's, as all until `maker` is
    bool is_wrong;
    char error[512]; // also the caller's, when it has met it
    pthread_t maker;
    pthread_mutex_t mutex; // for what follows
    pthread_cond_t changed;
    struct walk_step ready[MOST_READY]; // a ring
    int first, count;
    bool is_in_use;     // the one that was taken last
    bool is_over;       // the maker will add none
    bool is_dropped;    // nobody will take any
    bool has_met_wrong; // the caller: every case before it was taken
};

static bool wants(const char *filter, const char *name) {
    return filter == NULL || strcmp(filter, name) == 0;
}

bool walk_wants_op(const struct verify_options *options, const struct op_spec *spec) {
    return (options->op == NULL || spec_is_named(spec, options->op)) &&
           device_has_op(options->device, spec->op);
}

// ---- The ring ---------------------------------------------------------------------------------

static void release(struct walk_step *step) {
    if (!step->is_refused) trial_release(&step->trial);
}

static size_t oracle_bytes(const struct walk_step *step) {
    size_t bytes = 0;
    for (int i = 0; i < SPEC_MAX_SLOTS && !step->is_refused; i++)
        bytes += step->trial.oracle.buffer[i].bytes;
    return bytes;
}

static void add(struct walk *walk, struct walk_step *step) {
    bool is_large = oracle_bytes(step) > LARGE_BYTES;
    pthread_mutex_lock(&walk->mutex);
    while (walk->count == MOST_READY && !walk->is_dropped)
        pthread_cond_wait(&walk->changed, &walk->mutex);
    bool is_dropped = walk->is_dropped;
    if (!is_dropped) walk->ready[(walk->first + walk->count++) % MOST_READY] = *step;
    pthread_cond_signal(&walk->changed);
    while (is_large && (walk->count > 0 || walk->is_in_use) && !walk->is_dropped)
        pthread_cond_wait(&walk->changed, &walk->mutex);
    pthread_mutex_unlock(&walk->mutex);
    if (is_dropped) release(step);
}

static bool is_stopped(struct walk *walk) {
    pthread_mutex_lock(&walk->mutex);
    bool is_dropped = walk->is_dropped;
    pthread_mutex_unlock(&walk->mutex);
    return is_dropped || walk->is_wrong || signals_seen() != 0;
}

bool walk_next(struct walk *walk, struct walk_step *step) {
    if (signals_seen() != 0) return false;
    pthread_mutex_lock(&walk->mutex);
    walk->is_in_use = false;
    pthread_cond_signal(&walk->changed);
    while (walk->count == 0 && !walk->is_over) pthread_cond_wait(&walk->changed, &walk->mutex);
    bool has_one = walk->count > 0;
    if (has_one) {
        *step = walk->ready[walk->first];
        walk->first = (walk->first + 1) % MOST_READY;
        walk->count--;
        walk->is_in_use = true;
        pthread_cond_signal(&walk->changed);
    } else {
        walk->has_met_wrong = walk->is_wrong && signals_seen() == 0;
    }
    pthread_mutex_unlock(&walk->mutex);
    return has_one;
}

// ---- Making -----------------------------------------------------------------------------------

static const tsr_dtype verify_dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
enum { NUM_DTYPES = sizeof verify_dtypes / sizeof *verify_dtypes };

bool walk_has_dtype(const char *name) {
    for (int d = 0; d < NUM_DTYPES; d++)
        if (strcmp(name, tsr_dtype_name(verify_dtypes[d])) == 0) return true;
    return false;
}

static tsr_dtype small_dtype(struct rng *rng, tsr_dtype dtype) {
    return rng_chance(rng, 0.5) ? dtype : TSR_F32;
}

static void make_trial(struct walk *walk, struct walk_step *step, const struct op_case *c,
                       enum edge_fill fill, enum edge_layout layout, const char *edge) {
    uint64_t seed = rng_bits(&walk->rng);
    step->is_refused = trial_create(&step->trial, c, seed, fill, layout) != TSR_OK;
    if (step->is_refused) {
        step->trial = (struct trial){.c = *c, .seed = seed};
        snprintf(step->refusal, sizeof step->refusal, "%s", tsr_last_error());
    }
    step->trial.edge = edge;
}

// One edge case in every dtype.
static void make_edge(struct walk *walk, const struct op_spec *spec, const struct edge_case *edge) {
    struct walk_step step = {.is_edge = true, .is_repeated = true};
    for (int d = 0; d < NUM_DTYPES && !is_stopped(walk); d++) {
        struct op_case c = case_default(spec);
        c.dtype = verify_dtypes[d];
        if (!wants(walk->options->dtype, tsr_dtype_name(c.dtype))) continue;
        c.small_dtype = small_dtype(&walk->rng, c.dtype);
        if (!case_set(&c, edge->params, walk->error, sizeof walk->error)) {
            walk->is_wrong = true;
            return;
        }
        make_trial(walk, &step, &c, edge->fill, edge->layout, edge->name);
        add(walk, &step);
    }
}

static void make_edges(struct walk *walk, const struct op_spec *spec) {
    const enum verify_edges which = walk->options->edges;
    if (which == VERIFY_EDGES_NONE) return;
    for (const struct edge_case *edge = spec->edges;
         edge != NULL && edge->name != NULL && !is_stopped(walk); edge++)
        if (which != VERIFY_EDGES_NEAR || edge->layout != LAYOUT_FAR) make_edge(walk, spec, edge);
}

static void make_given(struct walk *walk, const struct op_spec *spec) {
    for (const char *next = walk->options->cases;
         next != NULL && *next != '\0' && !is_stopped(walk);) {
        char text[512];
        size_t length = strcspn(next, ";");
        if (length >= sizeof text) {
            walk->is_wrong = true;
            snprintf(walk->error, sizeof walk->error, "a case of more than %zu characters",
                     sizeof text - 1);
            return;
        }
        snprintf(text, sizeof text, "%.*s", (int)length, next);
        next += length + (next[length] == ';');
        const struct edge_case edge = {"of --cases", text, FILL_NORMAL, LAYOUT_CONTIGUOUS};
        make_edge(walk, spec, &edge);
    }
}

static void make_random(struct walk *walk, const struct op_spec *spec, tsr_dtype dtype) {
    struct walk_step step = {0};
    struct op_case c = case_default(spec);
    c.dtype = dtype;
    c.small_dtype = small_dtype(&walk->rng, dtype);
    spec->randomize(&walk->rng, &c);
    make_trial(walk, &step, &c, FILL_NORMAL, LAYOUT_RANDOM, NULL);
    step.is_repeated = !step.is_refused && rng_chance(&walk->rng, 0.125);
    add(walk, &step);
}

// Operations and dtypes take turns, so that any number of configurations covers them evenly.
static void make_all_random(struct walk *walk) {
    const struct verify_options *options = walk->options;
    int64_t made = 0;
    for (int64_t turn = 0; made < options->num_configs && !is_stopped(walk); turn++)
        for (int i = 0; op_specs[i] != NULL && !is_stopped(walk); i++) {
            tsr_dtype dtype = verify_dtypes[turn % NUM_DTYPES];
            if (!walk_wants_op(options, op_specs[i]) ||
                !wants(options->dtype, tsr_dtype_name(dtype)) || made >= options->num_configs)
                continue;
            make_random(walk, op_specs[i], dtype);
            made++;
        }
}

static void *make_all(void *user) {
    struct walk *walk = user;
    for (int i = 0; op_specs[i] != NULL; i++)
        if (walk_wants_op(walk->options, op_specs[i])) make_edges(walk, op_specs[i]);
    for (int i = 0; op_specs[i] != NULL; i++)
        if (walk_wants_op(walk->options, op_specs[i])) make_given(walk, op_specs[i]);
    make_all_random(walk);
    pthread_mutex_lock(&walk->mutex);
    walk->is_over = true;
    pthread_cond_signal(&walk->changed);
    pthread_mutex_unlock(&walk->mutex);
    return NULL;
}

// ---- From start to end ------------------------------------------------------------------------

struct walk *walk_start(const struct verify_options *options) {
    struct walk *walk = calloc(1, sizeof *walk);
    sigset_t before;
    if (walk == NULL) return NULL;
    walk->options = options;
    walk->rng.state = options->seed;
    pthread_mutex_init(&walk->mutex, NULL);
    pthread_cond_init(&walk->changed, NULL);
    signals_wait(&before); // in the maker: they are the caller's
    bool has_thread = pthread_create(&walk->maker, NULL, make_all, walk) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (has_thread) return walk;
    pthread_cond_destroy(&walk->changed);
    pthread_mutex_destroy(&walk->mutex);
    free(walk);
    return NULL;
}

bool walk_end(struct walk *walk, char *error, size_t error_bytes) {
    pthread_mutex_lock(&walk->mutex);
    walk->is_dropped = true;
    pthread_cond_signal(&walk->changed);
    pthread_mutex_unlock(&walk->mutex);
    pthread_join(walk->maker, NULL);
    for (int i = 0; i < walk->count; i++) release(&walk->ready[(walk->first + i) % MOST_READY]);
    bool is_fine = !walk->has_met_wrong;
    if (!is_fine) snprintf(error, error_bytes, "%s", walk->error);
    pthread_cond_destroy(&walk->changed);
    pthread_mutex_destroy(&walk->mutex);
    free(walk);
    return is_fine;
}
