// SPDX-License-Identifier: Apache-2.0
// Tests verification itself: softmax with one defect at a time, each of which must be found and named, a correct call
// that must pass, and a small run over every operation of the library.
#include "test_support.h"

#include <math.h>
#include <stdlib.h>

#include "verify/trial.h"
#include "verify/verify.h"

extern const struct op_spec softmax_forward_spec;

enum { ROWS = 2048, COLS = 24 };

// ---- Defects ----------------------------------------------------------------------------------

enum defect {
    NONE,
    ZERO_ROW,     // one row in 2,048
    SWAPPED_ROWS, // exchanges two neighbours, each a valid softmax
    LAST_UNWRITTEN,
    ALL_UNWRITTEN,
    GAP, // between two rows
    BEFORE_OUTPUT,
    PAST_OUTPUT,
    PAST_WORKSPACE,
    BEFORE_WORKSPACE,
    INPUT_CHANGED,
    ONE_NAN,
    ONE_INFINITY,
    BASE_TWO, // 2^x instead of e^x
    ONE_OFF,  // a relative error of 1e-4 in one element
    REFUSED,  // fails a valid call
    NUM_DEFECTS
};

static enum defect defect;
static int num_threads_off; // one bit differs with this number of threads

static float *element(const tsr_tensor *t, int64_t row, int64_t col) {
    return (float *)t->data + row * t->stride[0] + col;
}

static void spoil(const struct op_case *c, void *workspace, size_t workspace_bytes) {
    const tsr_tensor *x = &c->tensor[0], *y = &c->tensor[1];
    int64_t row = ROWS / 3, last = ROWS - 1;
    switch (defect) {
    case ZERO_ROW: memset(element(y, row, 0), 0, COLS * sizeof(float)); break;
    case SWAPPED_ROWS:
        for (int i = 0; i < COLS; i++) {
            float first = *element(y, row, i);
            *element(y, row, i) = *element(y, row + 1, i);
            *element(y, row + 1, i) = first;
        }
        break;
    case LAST_UNWRITTEN: memset(element(y, last, COLS - 1), 0xff, sizeof(float)); break;
    case ALL_UNWRITTEN: tensor_poison(y); break;
    case GAP: *element(y, row, COLS) = 0; break;
    case BEFORE_OUTPUT: *element(y, 0, -1) = 0; break;
    case PAST_OUTPUT: ((unsigned char *)element(y, last, COLS))[0] = 0; break;
    case PAST_WORKSPACE: ((unsigned char *)workspace)[workspace_bytes] = 0; break;
    case BEFORE_WORKSPACE: ((unsigned char *)workspace)[-1] = 0; break;
    case INPUT_CHANGED: *element(x, row, 3) += 1; break;
    case ONE_NAN: *element(y, row, 5) = NAN; break;
    case ONE_INFINITY: *element(y, row, 5) = INFINITY; break;
    case BASE_TWO:
        for (int64_t r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int i = 0; i < COLS; i++) sum += exp2((double)*element(x, r, i));
            for (int i = 0; i < COLS; i++)
                *element(y, r, i) = (float)(exp2((double)*element(x, r, i)) / sum);
        }
        break;
    case ONE_OFF: *element(y, row, 7) *= 1.0001f; break;
    default: break;
    }
}

static tsr_status spoiled_call(tsr_context *ctx, const struct op_case *c, const char *variant,
                               void *workspace, size_t given_bytes, size_t *workspace_bytes) {
    tsr_status status =
        softmax_forward_spec.call(ctx, c, variant, workspace, given_bytes, workspace_bytes);
    if (c->dtype == TSR_F64 || workspace_bytes != NULL || status != TSR_OK) return status;
    spoil(c, workspace, given_bytes);
    if (tsr_context_num_threads(ctx) == num_threads_off) {
        float *value = element(&c->tensor[1], 1, 1);
        *value = nextafterf(*value, 1);
    }
    return defect == REFUSED ? TSR_INTERNAL : TSR_OK;
}

static struct op_spec spoiled_spec(void) {
    struct op_spec spec = softmax_forward_spec;
    spec.call = spoiled_call;
    return spec;
}

// ---- Trials -----------------------------------------------------------------------------------

// Finds a seed whose layout has gaps between the rows of y.
static uint64_t seed_with_gaps(const struct op_case *c) {
    for (uint64_t seed = 1;; seed++) {
        struct trial trial;
        assert_ok(trial_create(&trial, c, seed, FILL_NORMAL, LAYOUT_RANDOM));
        bool has_gaps = trial.given.c.tensor[1].stride[0] > COLS + 1;
        trial_release(&trial);
        if (has_gaps) return seed;
    }
}

static struct verdict try_defect(enum defect which, enum edge_layout layout) {
    struct op_spec spec = spoiled_spec();
    struct op_case c = case_default(&spec);
    struct verdict verdict = {0};
    tsr_context *ctx = test_context(2);
    c.param[0] = ROWS;
    c.param[1] = COLS;
    defect = NONE;
    uint64_t seed = seed_with_gaps(&c);
    defect = which;
    tsr_status status = verify_case(ctx, &c, "fused", seed, FILL_NORMAL, layout, &verdict);
    defect = NONE;
    assert_int_equal(status, which == REFUSED ? TSR_INTERNAL : TSR_OK);
    assert_int_equal(verdict.num_configs, 1);
    tsr_context_destroy(ctx);
    return verdict;
}

static void a_sound_call_passes(void **state) {
    (void)state;
    static const enum edge_layout layouts[] = {LAYOUT_RANDOM, LAYOUT_CONTIGUOUS, LAYOUT_REPEATED};
    for (int i = 0; i < COUNT(layouts); i++) {
        struct verdict verdict = try_defect(NONE, layouts[i]);
        if (verdict.num_failed != 0) fail_msg("%s", verdict.failure);
        assert_true(verdict.err_over_bound > 0 && verdict.err_over_bound <= 1);
        assert_true(verdict.max_abs_err > 0 && verdict.max_abs_err < 1e-6);
        assert_true(verdict.mean_abs_err > 0 && verdict.mean_abs_err <= verdict.max_abs_err);
        assert_string_equal(verdict.failure, "");
    }
}

static void every_defect_is_found(void **state) {
    (void)state;
    static const struct {
        enum defect defect;
        const char *words; // in the failure
    } expected[] = {
        {ZERO_ROW, "y["},
        {SWAPPED_ROWS, "y["},
        {LAST_UNWRITTEN, "y[49151] is"},
        {ALL_UNWRITTEN, "y[0] is"},
        {GAP, "outside of y"},
        {BEFORE_OUTPUT, "outside of y"},
        {PAST_OUTPUT, "outside of y"},
        {PAST_WORKSPACE, "workspace"},
        {BEFORE_WORKSPACE, "workspace"},
        {INPUT_CHANGED, "input"},
        {ONE_NAN, "nan"},
        {ONE_INFINITY, "inf"},
        {BASE_TWO, "y["},
        {ONE_OFF, "y["},
        {REFUSED, ""},
    };
    assert_int_equal(COUNT(expected), NUM_DEFECTS - 1);
    for (int i = 0; i < COUNT(expected); i++) {
        struct verdict verdict = try_defect(expected[i].defect, LAYOUT_RANDOM);
        if (verdict.num_failed != 1) fail_msg("defect %d was not found", expected[i].defect);
        if (strstr(verdict.failure, expected[i].words) == NULL)
            fail_msg("'%s' is not in '%s'", expected[i].words, verdict.failure);
        // The failure contains what is needed to reproduce it.
        assert_non_null(strstr(verdict.failure, "softmax_forward rows=2048 cols=24"));
        assert_non_null(strstr(verdict.failure, "seed"));
        if (expected[i].defect != GAP && expected[i].defect != BEFORE_OUTPUT) continue;
        assert_true(verdict.err_over_bound <= 1); // the values were right
    }
}

// Where NaN is expected a number is wrong, and vice versa. -inf gives a row of zeros.
static void special_values_are_compared(void **state) {
    (void)state;
    static const enum edge_fill fills[] = {FILL_NAN, FILL_INFINITE, FILL_NEGATIVE_INFINITE};
    static const enum defect defects[] = {ZERO_ROW, ALL_UNWRITTEN};
    struct op_spec spec = spoiled_spec();
    tsr_context *ctx = test_context(2);
    for (int i = 0; i < COUNT(fills); i++) {
        struct op_case c = case_default(&spec);
        struct verdict sound = {0};
        c.param[0] = ROWS;
        c.param[1] = COLS;
        defect = NONE;
        assert_ok(verify_case(ctx, &c, "fused", 3, fills[i], LAYOUT_RANDOM, &sound));
        if (sound.num_failed != 0) fail_msg("%s", sound.failure);
        for (int d = 0; d < COUNT(defects); d++) {
            struct verdict verdict = {0};
            defect = defects[d];
            assert_ok(verify_case(ctx, &c, "fused", 3, fills[i], LAYOUT_RANDOM, &verdict));
            assert_int_equal(verdict.num_failed,
                             d == 0 && fills[i] == FILL_NEGATIVE_INFINITE && (ROWS / 3) % 2 == 1
                                 ? 0 // that row is zeros anyway
                                 : 1);
        }
    }
    defect = NONE;
    tsr_context_destroy(ctx);
}

static void other_bits_with_other_threads_are_found(void **state) {
    (void)state;
    struct op_spec spec = spoiled_spec();
    struct op_case c = case_default(&spec);
    struct trial trial;
    tsr_context *two = test_context(2), *three = test_context(3);
    c.param[0] = ROWS;
    c.param[1] = COLS;
    assert_ok(trial_create(&trial, &c, 5, FILL_NORMAL, LAYOUT_RANDOM));
    for (num_threads_off = 0; num_threads_off <= 3; num_threads_off++) {
        struct verdict verdict = {0};
        assert_ok(trial_run(two, three, &trial, "fused", &verdict));
        assert_int_equal(verdict.num_failed, num_threads_off >= 2);
        if (num_threads_off >= 2) assert_non_null(strstr(verdict.failure, "3 threads"));
    }
    num_threads_off = 0;
    trial_release(&trial);
    tsr_context_destroy(two);
    tsr_context_destroy(three);
}

static void what_cannot_serve_is_no_failure(void **state) {
    (void)state;
    struct op_spec spec = spoiled_spec();
    struct op_case c = case_default(&spec);
    struct verdict verdict = {0};
    tsr_context *ctx = test_context(1);
    c.param[0] = c.param[1] = 3;
    c.dtype = TSR_F64;
    assert_int_equal(verify_case(ctx, &c, "fused", 1, FILL_NORMAL, LAYOUT_RANDOM, &verdict),
                     TSR_UNSUPPORTED);
    assert_int_equal(verdict.num_configs, 0);
    assert_int_equal(verdict.num_failed, 0);
    tsr_context_destroy(ctx);
}

// ---- Everything -------------------------------------------------------------------------------

// A variant for a unit exists if the unit does; one for bf16 does not take f32.
static bool is_served(const tsr_variant_info *info) {
    bool is_dot = info->flags & TSR_VARIANT_BF16_DOT,
         is_tiles = info->flags & TSR_VARIANT_BF16_TILES,
         is_byte_dot = info->flags & TSR_VARIANT_BYTE_DOT;
    if (!is_dot && !is_tiles && !is_byte_dot) return true;
    if (TEST_HAS_TSAN) return false;
    tsr_context *ctx = test_context(1);
    double flops;
    tsr_status status = tsr_probe_run(ctx,
                                      &TSR_PROBE_ARGS(.kind = is_dot     ? TSR_PROBE_BF16_DOT
                                                              : is_tiles ? TSR_PROBE_BF16_TILES
                                                                         : TSR_PROBE_BYTE_DOT,
                                                      .repeat = 1),
                                      &flops);
    tsr_context_destroy(ctx);
    return status == TSR_OK;
}

// The operations are split into parts, because they take long: `test_tool_verify 1 2` and `2 2` each test every other
// one.
static int part = 1, num_parts = 1;

static void check_operation(const char *op, struct verify_options options) {
    struct verify_report report;
    char error[256] = "";
    options.op = op;
    if (!verify_run(&options, &report, error, sizeof error)) fail_msg("%s", error);
    for (int i = 0; i < report.num_rows; i++)
        if (report.rows[i].verdict.num_failed > 0)
            print_error("%s\n", report.rows[i].verdict.failure);
    assert_int_equal(report.num_failed, 0);
    assert_true(report.worst_err_over_bound >= 0 && report.worst_err_over_bound <= 1);
    assert_int_equal(report.num_configs, options.num_configs);
    for (int v = 0; v < tsr_variant_count(op); v++) { // every variant
        tsr_variant_info info;
        int64_t num_configs = 0;
        assert_ok(tsr_variant_info_get(op, v, &info));
        if (info.flags & TSR_VARIANT_CUDA || !is_served(&info)) continue;
        for (int i = 0; i < report.num_rows; i++)
            if (strcmp(report.rows[i].variant, info.name) == 0)
                num_configs += report.rows[i].verdict.num_configs;
        if (num_configs == 0) fail_msg("%s %s was not run", op, info.name);
    }
    verify_report_free(&report);
}

// Under TSan only one dtype, the best instruction set and random shapes, because the others differ in arithmetic and
// not in threads.
static void every_operation_is_within_its_bound(void **state) {
    (void)state;
    struct verify_options options = {.num_configs = 8, .seed = 20260303, .num_threads = 2};
    tsr_context *ctx = test_context(1);
    if (TEST_HAS_TSAN) {
        options.isa = tsr_isa_name(tsr_context_isa(ctx));
        options.dtype = "f32"; // every variant serves it
        options.edges = VERIFY_EDGES_NONE;
        options.num_configs = 16;
    }
    tsr_context_destroy(ctx);
    for (int op = part - 1; op < tsr_op_count(); op += num_parts)
        check_operation(tsr_op_name(op), options);
}

static void wrong_options(void **state) {
    (void)state;
    struct verify_report report;
    char error[256];
    static const struct {
        struct verify_options options;
        const char *word;
    } cases[] = {
        {{.op = "nonsense"}, "nonsense"},
        {{.dtype = "e4m3"}, "e4m3"},
        {{.isa = "sse9"}, "sse9"},
        {{.op = "softmax_forward", .dtype = "f32", .isa = "scalar", .variant = "nonsense"},
         "nonsense"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        *error = '\0';
        assert_false(verify_run(&cases[i].options, &report, error, sizeof error));
        assert_non_null(strstr(error, cases[i].word));
        verify_report_free(&report);
    }
}

int main(int argc, char **argv) {
    if (argc == 3) part = atoi(argv[1]), num_parts = atoi(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_call_passes),
        cmocka_unit_test(every_defect_is_found),
        cmocka_unit_test(special_values_are_compared),
        cmocka_unit_test(other_bits_with_other_threads_are_found),
        cmocka_unit_test(what_cannot_serve_is_no_failure),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(every_operation_is_within_its_bound),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
