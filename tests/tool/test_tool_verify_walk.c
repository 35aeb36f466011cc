// SPDX-License-Identifier: Apache-2.0
// The walk of verify, whose cases a thread prepares in advance if one can be created: its cases, and that it ends at
// any point.
#define _GNU_SOURCE
#include "test_support.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "system/signals.h"
#include "verify/verify_walk.h"

static struct verify_options softmax_alone(int64_t num_configs) {
    return (struct verify_options){
        .op = "softmax_forward", .edges = VERIFY_EDGES_NONE, .num_configs = num_configs, .seed = 7};
}

static struct walk *started(const struct verify_options *options) {
    struct walk *walk = walk_start(options);
    assert_non_null(walk);
    return walk;
}

// The dtypes alternate, and both walks are equal. Each case follows from its parameters and seed. (Only one thread uses
// the oracle at a time.)
static void cases_come_in_their_order(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    enum { CONFIGS = 10 };
    const struct verify_options options = softmax_alone(CONFIGS);
    struct walk_step step[2][CONFIGS];
    for (int turn = 0; turn < 2; turn++) {
        struct walk *walk = started(&options);
        struct walk_step none;
        char error[64] = "";
        for (int i = 0; i < CONFIGS; i++) assert_true(walk_next(walk, &step[turn][i]));
        assert_false(walk_next(walk, &none));
        assert_true(walk_end(walk, error, sizeof error));
        assert_string_equal(error, "");
    }
    for (int i = 0; i < CONFIGS; i++) {
        struct walk_step *first = &step[0][i], *second = &step[1][i];
        struct trial trial;
        assert_false(first->is_edge || first->is_refused);
        assert_int_equal(first->trial.c.dtype, dtypes[i % COUNT(dtypes)]);
        assert_int_equal(first->trial.seed, second->trial.seed);
        assert_int_equal(first->is_repeated, second->is_repeated);
        assert_ok(
            trial_create(&trial, &first->trial.c, first->trial.seed, FILL_NORMAL, LAYOUT_RANDOM));
        assert_int_equal(first->trial.inputs, trial.inputs);
        assert_int_equal(second->trial.inputs, trial.inputs);
        trial_release(&trial);
        trial_release(&first->trial);
        trial_release(&second->trial);
    }
}

static void edges_come_first_in_every_dtype(void **state) {
    (void)state;
    struct verify_options options = softmax_alone(1);
    options.edges = VERIFY_EDGES_NEAR;
    options.cases = "rows=3 cols=5";
    struct walk *walk = started(&options);
    const struct edge_case *edge = spec_find("softmax_forward")->edges;
    struct walk_step step;
    char error[64];
    int num_edges = 0, num_random = 0, num_near = 0;
    for (; edge->name != NULL; edge++) num_near += edge->layout != LAYOUT_FAR;
    while (walk_next(walk, &step)) {
        assert_true(step.trial.layout != LAYOUT_FAR);
        assert_int_equal(step.is_edge, num_edges < 3 * num_near + 3);
        if (step.is_edge) assert_true(step.is_repeated && step.trial.edge != NULL);
        num_edges += step.is_edge;
        num_random += !step.is_edge;
        trial_release(&step.trial);
    }
    assert_true(walk_end(walk, error, sizeof error));
    assert_int_equal(num_edges, 3 * num_near + 3);
    assert_int_equal(num_random, 1);
}

static void it_ends_wherever_it_is_left(void **state) {
    (void)state;
    const struct verify_options options = softmax_alone(1000000);
    for (int taken = 0; taken < 8; taken++) {
        struct walk *walk = started(&options);
        struct walk_step step;
        char error[64];
        for (int i = 0; i < taken; i++) {
            assert_true(walk_next(walk, &step));
            trial_release(&step.trial);
        }
        assert_true(walk_end(walk, error, sizeof error));
    }
}

static void what_the_oracle_refuses_is_given_with_its_words(void **state) {
    (void)state;
    struct verify_options options = softmax_alone(0);
    options.op = "attention_forward";
    options.cases = "head_dim=300";
    struct walk *walk = started(&options);
    struct walk_step step;
    char error[64];
    for (int i = 0; i < 3; i++) {
        assert_true(walk_next(walk, &step));
        assert_true(step.is_refused);
        assert_non_null(strstr(step.trial.refusal, "300"));
        assert_string_equal(step.trial.edge, "of --cases");
    }
    assert_false(walk_next(walk, &step));
    assert_true(walk_end(walk, error, sizeof error));
}

// Takes this many cases before the one that cannot be parsed.
static struct walk *before_a_wrong_case(int num_taken) {
    static struct verify_options options;
    options = softmax_alone(5);
    options.cases = "rows=3; nonsense=1";
    struct walk *walk = started(&options);
    struct walk_step step;
    for (int i = 0; i < num_taken; i++) {
        assert_true(walk_next(walk, &step));
        trial_release(&step.trial);
    }
    return walk;
}

static void a_wrong_case_is_named(void **state) {
    (void)state;
    struct walk *walk = before_a_wrong_case(3);
    struct walk_step step;
    char error[256] = "";
    assert_false(walk_next(walk, &step));
    assert_false(walk_end(walk, error, sizeof error));
    assert_non_null(strstr(error, "nonsense"));
}

// A wrong case that was prepared before the signal is not reported: the cases before it count.
static void a_signal_comes_before_a_wrong_case(void **state) {
    (void)state;
    struct walk *walk = before_a_wrong_case(1);
    struct walk_step step;
    char error[256] = "";
    signals_hold(true);
    raise(SIGINT);
    assert_false(walk_next(walk, &step));
    assert_true(walk_end(walk, error, sizeof error));
    assert_string_equal(error, "");
}

static pthread_attr_t default_attributes;

static void *nothing(void *user) { return user; }

// Sets a stack size that no address space can hold, so that no thread can be created.
static int refuse_threads(void **state) {
    (void)state;
    pthread_attr_t huge;
    pthread_t thread;
    assert_int_equal(pthread_getattr_default_np(&default_attributes), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0);
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
    assert_int_not_equal(pthread_create(&thread, NULL, nothing, NULL), 0);
    return 0;
}

static int give_threads(void **state) {
    (void)state;
    assert_int_equal(pthread_setattr_default_np(&default_attributes), 0);
    return pthread_attr_destroy(&default_attributes);
}

static void verify_runs_it(void **state) {
    (void)state;
    struct verify_options options = softmax_alone(4);
    options.cases = "rows=3 cols=5";
    struct verify_report report;
    char error[256] = "";
    bool is_run = verify_run(&options, &report, error, sizeof error);
    assert_string_equal(error, "");
    assert_true(is_run);
    assert_int_equal(report.num_edges, 3);
    assert_int_equal(report.num_configs, 4);
    assert_int_equal(report.num_failed, 0);
    verify_report_free(&report);
}

#define WITHOUT_THREADS(name) cmocka_unit_test_setup_teardown(name, refuse_threads, give_threads)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_come_in_their_order),
        cmocka_unit_test(edges_come_first_in_every_dtype),
        cmocka_unit_test(it_ends_wherever_it_is_left),
        cmocka_unit_test(what_the_oracle_refuses_is_given_with_its_words),
        cmocka_unit_test(a_wrong_case_is_named),
        cmocka_unit_test(verify_runs_it),
        WITHOUT_THREADS(cases_come_in_their_order),
        WITHOUT_THREADS(edges_come_first_in_every_dtype),
        WITHOUT_THREADS(it_ends_wherever_it_is_left),
        WITHOUT_THREADS(what_the_oracle_refuses_is_given_with_its_words),
        WITHOUT_THREADS(a_wrong_case_is_named),
        WITHOUT_THREADS(verify_runs_it),
        cmocka_unit_test(a_signal_comes_before_a_wrong_case), // last, because the signal stays set
    };
    return cmocka_run_group_tests_name("verify_walk", tests, NULL, NULL);
}
