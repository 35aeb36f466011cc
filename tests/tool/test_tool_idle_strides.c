// SPDX-License-Identifier: Apache-2.0
// Strides of dimensions with 0 or 1 elements and of empty tensors may be any number, and an empty tensor needs no data.
// Every size of every operation is set to 0 and to 1, and every variant is verified with such strides.
// TESSERA_TEST_DEVICE=cuda:0 selects that device, TESSERA_TEST_CASES (1) the number of rounds, TESSERA_TEST_SEED other
// cases.
#include "tool_case.h"

#include "system/device_option.h"
#include "verify/trial.h"

static tsr_device device;
static tsr_context *ctx;
static int num_rounds = 1, num_cases, num_proved;
static uint64_t seed = 20261129;

static const int64_t idle_strides[] = {0, 1, 7, INT64_C(1) << 60, INT64_MAX, -1, INT64_MIN};

// Sets NumPy's strides for empty tensors first, then random ones.
static void set_idle_strides(struct op_case *c, int turn, struct rng *rng) {
    for (int s = 0; c->spec->slots[s].name != NULL; s++) {
        tsr_tensor *t = &c->tensor[s];
        if (!c->is_present[s]) continue;
        bool is_empty = tsr_tensor_numel(t) == 0;
        if (is_empty && turn % 2 == 0) t->data = NULL;
        for (int d = 0; d < t->ndim; d++)
            if (is_empty || t->shape[d] == 1)
                t->stride[d] =
                    turn == 0 ? 0 : idle_strides[rng_int(rng, 0, COUNT(idle_strides) - 1)];
    }
}

static void fail_case(const struct op_case *c, const char *variant, const char *what) {
    char text[512];
    fail_msg("%s %s, %s, variant %s: %s", c->spec->op, case_text(c, text, sizeof text),
             tsr_dtype_name(c->dtype), variant != NULL ? variant : "(default)", what);
}

// Verifies each variant of a case: it is within its bound or unsupported. A refusal must not depend on the strides.
static void prove(const struct op_case *c, struct rng *rng) {
    for (int turn = 0; turn < 3; turn++) {
        struct trial trial;
        uint64_t bits = rng_bits(rng);
        bool is_legal = trial_create(&trial, c, bits, FILL_NORMAL, LAYOUT_RANDOM) == TSR_OK;
        if (!is_legal) { // for example a head without columns
            if (strstr(trial.refusal, "stride") != NULL) fail_case(c, "reference", trial.refusal);
            return;
        }
        set_idle_strides(&trial.given.c, turn, rng);
        for (int v = -1; v < tsr_variant_count(c->spec->op); v++) {
            tsr_variant_info info = {.name = NULL};
            struct verdict verdict = {0};
            if (v >= 0) assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
            if (v >= 0 && !device_has_variant(device, &info)) continue;
            if (trial_run(ctx, NULL, &trial, info.name, &verdict) == TSR_OK) num_proved++;
            if (verdict.num_failed > 0) fail_case(c, info.name, verdict.failure);
        }
        trial_release(&trial);
    }
}

static void every_size_of_every_operation(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct rng rng = {.state = seed};
    for (int i = 0; op_specs[i] != NULL; i++) {
        const struct op_spec *spec = op_specs[i];
        if (!device_has_op(device, spec->op)) continue;
        for (int p = 0; spec->params[p].name != NULL; p++)
            for (int turn = 0; turn < 2 * num_rounds && spec->params[p].kind == PARAM_SIZE;
                 turn++) {
                struct op_case c = tool_draw(spec, dtypes[rng_int(&rng, 0, 2)], &rng);
                int pages = spec_param(spec, "num_pages");
                if (p == pages) continue;
                if (pages >= 0)
                    c.param[pages] = 0; // the default number of pages, so that no page is shared
                c.param[p] = turn % 2;
                prove(&c, &rng);
                num_cases++;
            }
    }
    print_message("seed %llu: %d cases, %d runs proved\n", (unsigned long long)seed, num_cases,
                  num_proved);
    assert_true(num_proved > 300 * num_rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_size_of_every_operation)};
    const char *name = getenv("TESSERA_TEST_DEVICE");
    if (device_parse("test", name, &device) >= 0) return 1;
    num_rounds = (int)test_number("TESSERA_TEST_CASES", (uint64_t)num_rounds);
    seed = test_number("TESSERA_TEST_SEED", seed);
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = device, .num_threads = 2), &ctx) !=
        TSR_OK) {
        print_error("%s\n", tsr_last_error());
        return 1;
    }
    int failed = cmocka_run_group_tests_name("idle strides", tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
