// SPDX-License-Identifier: Apache-2.0
// Edge cases of scalars: every real parameter of every operation is 0, -0, subnormal, negative, huge, infinite and NaN
// in turn, and so are sinks. Slopes are at most 1, fp8 scales are powers of 2 or NaN, and one element of q is NaN. Each
// variant must match the oracle within its bound, or the call is refused by all variants with the parameter's name.
// TSR_ISA and TESSERA_TEST_DEVICE=cuda:0 select the device; TESSERA_TEST_CASES (600) is the number of cases,
// TESSERA_TEST_SEED their seed.
#include "tool_case.h"

#include <float.h>
#include <math.h>

#include "system/device_option.h"
#include "verify/trial.h"

static tsr_device device;
static tsr_context *ctx;
static int num_cases = TEST_IS_SLOW ? 100 : 600;
static uint64_t seed = 20261130;

static const double edges[] = {0,        -0.0,    0x1p-149, 0x1p-130, -0x1p-140, 0x1p-126,
                               -1,       1,       1e-30,    1e30,     -1e30,     0x1p100,
                               0x1p-100, FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN};

// Products with such large numbers overflow, and with scores of 1e30 rounding decides whether a weight is 0 or 1, so
// the bounds mean nothing. Refused values do not belong here.
static bool is_beyond_bounds(const char *name, double value) {
    if (strcmp(name, "softcap") == 0) return false;
    if (strcmp(name, "softmax_scale") == 0) return fabs(value) > 1 && fabs(value) <= 0x1p100;
    if (strcmp(name, "alpha") == 0) return !(fabs(value) < 1e30);
    return isfinite(value) && fabs(value) >= 1e30;
}

static void fail_case(const struct op_case *c, const char *variant, const char *what) {
    char text[512];
    fail_msg("%s %s, %s, variant %s (seed %llu): %s", c->spec->op, case_text(c, text, sizeof text),
             tsr_dtype_name(c->dtype), variant != NULL ? variant : "(default)",
             (unsigned long long)seed, what);
}

// If the oracle refuses a parameter, the default variant must refuse the same one.
static void expect_refused(const struct trial *trial, const char *name, struct rng *rng) {
    struct tool_case given;
    const struct op_case *c = &trial->c;
    if (strstr(trial->refusal, name) == NULL) fail_case(c, "reference", trial->refusal);
    if (device.type != TSR_CPU) return; // the checks are the same
    tool_case_create(&given, c, LAYOUT_CONTIGUOUS, rng);
    if (tool_call(ctx, &given.tensors.c, NULL) != TSR_INVALID_ARGUMENT ||
        strstr(tsr_last_error(), name) == NULL)
        fail_case(c, NULL, tsr_last_error());
    assert_true(tool_case_is_unchanged(&given));
    tool_case_release(&given);
}

static void prove(const struct op_case *c, const char *name, struct rng *rng, int64_t *num_proved) {
    struct trial trial;
    if (trial_create(&trial, c, rng_bits(rng), FILL_NORMAL, LAYOUT_RANDOM) != TSR_OK) {
        expect_refused(&trial, name, rng);
        return;
    }
    for (int v = -1; v < tsr_variant_count(c->spec->op); v++) {
        tsr_variant_info info = {.name = NULL};
        struct verdict verdict = {0};
        if (v >= 0) assert_ok(tsr_variant_info_get(c->spec->op, v, &info));
        if (v >= 0 && !device_has_variant(device, &info)) continue;
        tsr_status status = trial_run(ctx, NULL, &trial, info.name, &verdict);
        // A value that the oracle's doubles hold but the tested dtype does not is refused by name.
        bool is_refused = status == TSR_INVALID_ARGUMENT && strstr(tsr_last_error(), name) != NULL;
        if (verdict.num_failed > 0 && !is_refused) fail_case(c, info.name, verdict.failure);
        *num_proved += status == TSR_OK;
    }
    trial_release(&trial);
}

static void every_real_parameter_of_every_operation(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct rng rng = {.state = seed};
    int64_t num_proved = 0;
    for (int n = 0; n < num_cases;)
        for (int i = 0; op_specs[i] != NULL; i++)
            for (int p = 0; op_specs[i]->params[p].name != NULL; p++) {
                const struct param_spec *param = &op_specs[i]->params[p];
                if (param->kind != PARAM_REAL || !device_has_op(device, op_specs[i]->op)) continue;
                if (op_specs[i]->is_composed) continue; // its parts are tested themselves
                struct op_case c = tool_draw(op_specs[i], dtypes[rng_int(&rng, 0, 2)], &rng);
                c.param[p] = edges[rng_int(&rng, 0, COUNT(edges) - 1)];
                if (is_beyond_bounds(param->name, c.param[p])) continue;
                prove(&c, param->name, &rng, &num_proved);
                n++;
            }
    assert_true(num_proved > num_cases / 4);
}

// ---- Scalars that lie in tensors ---------------------------------------------------------------

// Plants one such number in one element of one slot, for every variant and the oracle.
static const struct op_spec *drawn; // `bent` differs only in its fill
static struct op_spec bent;
static struct {
    int slot;
    double value, place;
} planted;

static bool fill_with_one_planted(struct rng *rng, const struct op_case *c, int slot,
                                  enum edge_fill fill, double *values) {
    int64_t numel = tsr_tensor_numel(&c->tensor[slot]);
    bool is_filled = drawn->fill != NULL && drawn->fill(rng, c, slot, fill, values);
    if (slot != planted.slot || numel == 0) return is_filled;
    if (!is_filled)
        for (int64_t i = 0; i < numel; i++) values[i] = rng_uniform(rng) + 0.5;
    values[(int64_t)(planted.place * (double)numel)] = planted.value;
    return true;
}

// Sinks may be any number. With slopes above 1 rounding decides whether weights are 0 or 1, as with softmax_scale.
// Scales are normal numbers whose products with elements and each other are normal too.
static bool is_planted(const char *slot, double *value, struct rng *rng) {
    bool is_scale = strcmp(slot, "a_scale") == 0 || strcmp(slot, "b_scale") == 0 ||
                    strcmp(slot, "b_up_scale") == 0;
    if (strcmp(slot, "q") == 0) *value = NAN; // makes the row NaN with any sink
    if (is_scale && !isnan(*value))
        *value = (rng_chance(rng, 0.5) ? 1 : -1) * exp2((double)rng_int(rng, -40, 40));
    if (strcmp(slot, "alibi_slopes") == 0) return fabs(*value) <= 1;
    return is_scale || strcmp(slot, "sinks") == 0 || strcmp(slot, "q") == 0;
}

static void every_scalar_in_a_tensor(void **state) {
    (void)state;
    static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
    struct rng rng = {.state = seed};
    int64_t num_proved = 0;
    for (int n = 0, round = 0; n < num_cases / 4 && round < num_cases; round++)
        for (int i = 0; op_specs[i] != NULL; i++) {
            drawn = op_specs[i];
            bent = *drawn;
            bent.fill = fill_with_one_planted;
            if (!device_has_op(device, drawn->op) || drawn->is_composed) continue;
            for (int s = 0; drawn->slots[s].name != NULL; s++) {
                planted.value = edges[rng_int(&rng, 0, COUNT(edges) - 1)];
                if (!is_planted(drawn->slots[s].name, &planted.value, &rng)) continue;
                struct op_case c = tool_draw(drawn, dtypes[rng_int(&rng, 0, 2)], &rng);
                n++; // also counts draws without the slot
                if (!c.is_present[s]) continue;
                // With dropout a NaN weight may give 0 or NaN in gradients. Beyond 6e4 an f16 sink is infinite.
                int dropout = spec_param(drawn, "dropout_p");
                bool is_backward = strcmp(drawn->pass, "backward") == 0;
                if (is_backward && dropout >= 0 && !(planted.value < 6e4)) c.param[dropout] = 0;
                c.spec = &bent;
                planted.slot = s;
                planted.place = rng_uniform(&rng);
                prove(&c, drawn->slots[s].name, &rng, &num_proved);
            }
        }
    print_message("%lld runs proved\n", (long long)num_proved);
    assert_true(num_proved > num_cases / 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_real_parameter_of_every_operation),
                                       cmocka_unit_test(every_scalar_in_a_tensor)};
    const char *name = getenv("TESSERA_TEST_DEVICE");
    if (device_parse("test", name, &device) >= 0) return 77;
    num_cases = (int)test_number("TESSERA_TEST_CASES", (uint64_t)num_cases);
    seed = test_number("TESSERA_TEST_SEED", seed);
    printf("seed %llu\n", (unsigned long long)seed);
    if (tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = device, .num_threads = 2), &ctx) !=
        TSR_OK) {
        print_error("%s\n", tsr_last_error());
        return 1;
    }
    int failed = cmocka_run_group_tests_name("scalars", tests, NULL, NULL);
    tsr_context_destroy(ctx);
    return failed;
}
