// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "verify/verify_walk.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system/device_option.h"
#include "system/heap.h"
#include "system/signals.h"

// Oracle and variants take different times for a case; with a few cases in between neither side waits often. A large case,
// by the bytes of the oracle, is made only when the one before it is finished.
enum { MOST_READY = 4, LARGE_BYTES = 64 << 20 };

// The maker's position: first the edge cases of all operations, then --cases, then random cases.
struct place {
    enum { OWN, GIVEN, RANDOM } source;
    int op;                // index into op_specs
    size_t at;             // the next one of its edge cases, or the next position in --cases
    struct edge_case edge; // the current edge case; `text` has its parameters if --cases gave it
    char text[1024];
    int dtype; // index into verify_dtypes: the next dtype of `edge`
    int64_t turn, num_random;
};

struct walk {
    const struct verify_options *options;
    struct rng rng; // belongs to the maker, or to the caller without one, as all up to `has_maker`
    struct place place;
    bool is_wrong;
    char error[512]; // the caller may read it once it has met the wrong case
    bool has_maker;  // there is a maker thread; else walk_next makes each case
    pthread_t maker;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    struct walk_step ready[MOST_READY]; // a ring
    int first, count;
    bool is_in_use;     // the caller still uses the case that it took last
    bool is_over;       // the maker adds no more cases
    bool is_dropped;    // the caller takes no more cases
    bool has_met_wrong; // the caller has taken every case before the wrong one
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
    return is_dropped || signals_seen() != 0;
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
    tsr_status status = trial_create(&step->trial, c, seed, fill, layout);
    step->is_refused = status != TSR_OK;
    step->lacks_memory = status == TSR_OUT_OF_MEMORY;
    step->trial.edge = edge;
}

// The next edge case of an operation's description.
static bool find_own(struct place *place, const struct op_spec *spec, enum verify_edges which) {
    if (which == VERIFY_EDGES_NONE || spec->edges == NULL) return false;
    while (spec->edges[place->at].name != NULL) {
        place->edge = spec->edges[place->at++];
        if (which != VERIFY_EDGES_NEAR || place->edge.layout != LAYOUT_FAR) return true;
    }
    return false;
}

// The next case of --cases.
static bool find_given(struct walk *walk, struct place *place) {
    if (walk->options->cases == NULL) return false;
    const char *next = walk->options->cases + place->at;
    size_t length = strcspn(next, ";");
    if (*next == '\0') return false;
    if (length >= sizeof place->text) {
        walk->is_wrong = true;
        snprintf(walk->error, sizeof walk->error, "a case of more than %zu characters",
                 sizeof place->text - 1);
        return false;
    }
    snprintf(place->text, sizeof place->text, "%.*s", (int)length, next);
    place->at += length + (next[length] == ';');
    place->edge = (struct edge_case){"of --cases", place->text, FILL_NORMAL, LAYOUT_CONTIGUOUS};
    return true;
}

static bool find_edge(struct walk *walk) {
    struct place *place = &walk->place;
    for (; place->source < RANDOM; place->source++, place->op = 0)
        for (; op_specs[place->op] != NULL; place->op++, place->at = 0) {
            const struct op_spec *spec = op_specs[place->op];
            if (!walk_wants_op(walk->options, spec)) continue;
            bool is_found = place->source == OWN ? find_own(place, spec, walk->options->edges)
                                                 : find_given(walk, place);
            if (is_found) place->dtype = 0;
            if (is_found || walk->is_wrong) return is_found;
        }
    return false;
}

// Makes the next edge case; each is made in every dtype.
static bool make_edge(struct walk *walk, struct walk_step *step) {
    struct place *place = &walk->place;
    for (;;) {
        if (place->dtype == NUM_DTYPES && !find_edge(walk)) return false;
        struct op_case c = case_default(op_specs[place->op]);
        c.dtype = verify_dtypes[place->dtype++];
        if (!wants(walk->options->dtype, tsr_dtype_name(c.dtype))) continue;
        c.small_dtype = small_dtype(&walk->rng, c.dtype);
        walk->is_wrong = !case_set(&c, place->edge.params, walk->error, sizeof walk->error);
        if (walk->is_wrong) return false;
        *step = (struct walk_step){.is_edge = true, .is_repeated = true};
        make_trial(walk, step, &c, place->edge.fill, place->edge.layout, place->edge.name);
        return true;
    }
}

// Makes the next random case. Operations and dtypes take turns, so that any number of cases covers them evenly.
static bool make_random(struct walk *walk, struct walk_step *step) {
    struct place *place = &walk->place;
    for (; place->num_random < walk->options->num_configs; place->op++) {
        if (op_specs[place->op] == NULL) {
            place->op = 0;
            place->turn++;
        }
        const struct op_spec *spec = op_specs[place->op];
        struct op_case c = case_default(spec);
        c.dtype = verify_dtypes[place->turn % NUM_DTYPES];
        if (!walk_wants_op(walk->options, spec) ||
            !wants(walk->options->dtype, tsr_dtype_name(c.dtype)))
            continue;
        c.small_dtype = small_dtype(&walk->rng, c.dtype);
        spec->randomize(&walk->rng, &c);
        *step = (struct walk_step){0};
        make_trial(walk, step, &c, spec->random_fill, LAYOUT_RANDOM, NULL);
        step->is_repeated = !step->is_refused && rng_chance(&walk->rng, 0.125);
        place->num_random++;
        place->op++;
        return true;
    }
    return false;
}

static bool make_next(struct walk *walk, struct walk_step *step) {
    if (walk->is_wrong) return false;
    return make_edge(walk, step) || (!walk->is_wrong && make_random(walk, step));
}

static void *make_all(void *user) {
    struct walk *walk = user;
    struct walk_step step;
    while (!is_stopped(walk) && make_next(walk, &step)) add(walk, &step);
    pthread_mutex_lock(&walk->mutex);
    walk->is_over = true;
    pthread_cond_signal(&walk->changed);
    pthread_mutex_unlock(&walk->mutex);
    return NULL;
}

// ---- From start to end ------------------------------------------------------------------------

static bool take_next(struct walk *walk, struct walk_step *step) {
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
    }
    pthread_mutex_unlock(&walk->mutex);
    return has_one;
}

bool walk_next(struct walk *walk, struct walk_step *step) {
    if (signals_seen() != 0) return false;
    bool has_one = walk->has_maker ? take_next(walk, step) : make_next(walk, step);
    if (!has_one) walk->has_met_wrong = walk->is_wrong && signals_seen() == 0;
    return has_one;
}

struct walk *walk_start(const struct verify_options *options) {
    struct walk *walk = heap_get(1, sizeof *walk);
    sigset_t before;
    walk->options = options;
    walk->rng.state = options->seed;
    walk->place.dtype = NUM_DTYPES; // no edge case yet
    pthread_mutex_init(&walk->mutex, NULL);
    pthread_cond_init(&walk->changed, NULL);
    signals_wait(&before); // the maker inherits this: signals go to the caller's thread
    walk->has_maker = pthread_create(&walk->maker, NULL, make_all, walk) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return walk;
}

bool walk_end(struct walk *walk, char *error, size_t error_bytes) {
    pthread_mutex_lock(&walk->mutex);
    walk->is_dropped = true;
    pthread_cond_signal(&walk->changed);
    pthread_mutex_unlock(&walk->mutex);
    if (walk->has_maker) pthread_join(walk->maker, NULL);
    for (int i = 0; i < walk->count; i++) release(&walk->ready[(walk->first + i) % MOST_READY]);
    bool is_fine = !walk->has_met_wrong;
    if (!is_fine) snprintf(error, error_bytes, "%s", walk->error);
    pthread_cond_destroy(&walk->changed);
    pthread_mutex_destroy(&walk->mutex);
    free(walk);
    return is_fine;
}
