// SPDX-License-Identifier: Apache-2.0
// Repeated runs of one trial: one changed bit in a late run, alone or with the other context, is found and named.
#include "test_support.h"

#include <math.h>

#include "verify/trial.h"

extern const struct op_spec softmax_forward_spec;

enum { RUNS = 12 };

static int num_calls, call_off; // the call (from 1) with one changed bit; 0: none
static int threads_off;         // the number of threads that changes one bit

static tsr_status call(tsr_context *ctx, const struct op_case *c, const char *variant,
                       void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_status status =
        softmax_forward_spec.call(ctx, c, variant, workspace, given_bytes, workspace_bytes);
    if (c->dtype == TSR_F64 || workspace_bytes != NULL || status != TSR_OK) return status;
    if (++num_calls == call_off || tsr_context_num_threads(ctx) == threads_off) {
        float *value = (float *)c->tensor[1].data;
        *value = nextafterf(*value, 1);
    }
    return status;
}

static void runs_that_differ_are_found(void **state) {
    (void)state;
    static const struct {
        int call_off, threads_off;
        const char *words; // NULL: nothing is found
    } cases[] = {
        {0, 0, NULL},
        {0, 5, NULL},
        {RUNS + 1, 0, NULL},
        {2, 0, "run 2 of 12, alone"},
        {RUNS / 2, 0, "run 6 of 12, alone"},
        {RUNS, 0, "run 12 of 12, with other threads"},
        {0, 3, "run 7 of 12, with other threads"},
    };
    struct op_spec spec = softmax_forward_spec;
    spec.call = call;
    struct op_case c = case_default(&spec);
    struct trial trial;
    tsr_context *two = test_context(2), *three = test_context(3);
    c.param[0] = 40;
    c.param[1] = 24;
    assert_ok(trial_create(&trial, &c, 5, FILL_NORMAL, LAYOUT_RANDOM));
    for (int i = 0; i < COUNT(cases); i++) {
        struct verdict verdict = {0};
        num_calls = 0, call_off = cases[i].call_off, threads_off = cases[i].threads_off;
        assert_ok(trial_repeat(two, three, &trial, "fused", RUNS, &verdict));
        assert_int_equal(verdict.num_failed, cases[i].words != NULL);
        if (cases[i].words != NULL && strstr(verdict.failure, cases[i].words) == NULL)
            fail_msg("case %d: %s", i, verdict.failure);
    }
    call_off = threads_off = 0;
    trial_release(&trial);
    tsr_context_destroy(two);
    tsr_context_destroy(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_that_differ_are_found)};
    return cmocka_run_group_tests_name("repeats", tests, NULL, NULL);
}
