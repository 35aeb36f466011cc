// SPDX-License-Identifier: Apache-2.0
// The tool's option parser, the cases of a benchmark, measuring (what it counts and refuses, never speed), and the
// written results.
#include "test_support.h"

#include <jansson.h>
#include <math.h>

#include "commands/bench_cases.h"
#include "commands/command.h"
#include "measure/allocation.h"
#include "measure/measure_session.h"

// ---- Options ----------------------------------------------------------------------------------

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int count;
        double first, last;
    } cases[] = {
        {"512", 1, 512, 512},        {"512,1024", 2, 512, 1024},    {"-1", 1, -1, -1},
        {"0.5,1e3", 2, 0.5, 1000},   {"256:8192:x2", 6, 256, 8192}, {"256:1024:+256", 4, 256, 1024},
        {"1:10:x3", 3, 1, 9},        {"1:10:+4", 3, 1, 9},          {"8:8:x2", 1, 8, 8},
        {"1,2:8:x2,100", 5, 1, 100},
    };
    static const char *const wrong[] = {"",       "a",       "1,",     ",1",         "1:2",
                                        "1:2:3",  "1:2:x",   "1:9:x1", "0:9:x2",     "1:9:+0",
                                        "9:1:x2", "1:9:+-1", "nan",    "1e3:inf:x2", "0:1000:+1"};
    struct numbers numbers;
    char error[256];
    for (int i = 0; i < COUNT(cases); i++) {
        assert_true(numbers_parse(cases[i].text, &numbers, error, sizeof error));
        assert_int_equal(numbers.count, cases[i].count);
        assert_true(numbers.values[0] == cases[i].first);
        assert_true(numbers.values[numbers.count - 1] == cases[i].last);
    }
    for (int i = 0; i < COUNT(wrong); i++) {
        *error = '\0';
        assert_false(numbers_parse(wrong[i], &numbers, error, sizeof error));
        assert_true(*error != '\0');
    }
}

static int parse(const struct option_spec *options, struct text_list *operands,
                 const char *const *words) {
    static const struct command_help help = {"test", "[options]", "A test.", NULL};
    char *argv[16] = {(char *)(uintptr_t) "test"};
    int argc = 1;
    for (; words[argc - 1] != NULL; argc++) argv[argc] = (char *)(uintptr_t)words[argc - 1];
    return options_parse(&help, options, argc, argv, operands);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_options(void **state) {
    (void)state;
    static const char *const colors[] = {"red", "green", NULL};
    bool flag = false;
    const char *text = NULL;
    int64_t count = 7;
    double real = 0;
    int color = 0;
    struct numbers numbers = {0};
    struct text_list operands = {0}, many = {0};
    const struct option_spec options[] = {
        {"flag", 'f', NULL, "", OPTION_FLAG, &flag, NULL, 0, 0},
        {"text", 't', "T", "", OPTION_TEXT, &text, NULL, 0, 0},
        {"count", 0, "N", "", OPTION_INT, &count, NULL, 1, 10},
        {"real", 0, "X", "", OPTION_REAL, &real, NULL, 0, 0},
        {"color", 0, "C", "", OPTION_CHOICE, &color, colors, 0, 0},
        {"sizes", 0, "N,...", "", OPTION_NUMBERS, &numbers, NULL, 0, 0},
        {"one", 0, "X", "", OPTION_APPEND, &many, NULL, 0, 0},
        {0},
    };
    assert_int_equal(parse(options, &operands,
                           WORDS("op", "-f", "--text=--x", "--count=3", "--real", "-2.5", "--color",
                                 "green", "--sizes", "1:4:x2", "last")),
                     -1);
    assert_true(flag);
    assert_string_equal(text, "--x");
    assert_int_equal(count, 3);
    assert_true(real == -2.5);
    assert_int_equal(color, 1);
    assert_int_equal(numbers.count, 3);
    assert_int_equal(operands.count, 2);
    assert_string_equal(operands.items[1], "last");
    assert_int_equal(parse(options, &operands, WORDS("--one", "a", "--one=b")), -1);
    assert_int_equal(many.count, 2);
    assert_int_equal(parse(options, &operands, WORDS("--help")), EXIT_FINE);

    assert_int_equal(parse(options, NULL, WORDS("operand")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--none")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("-z")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--text")), EXIT_USAGE);
    text = NULL; // an option is not a value, except after =
    assert_int_equal(parse(options, &operands, WORDS("--text", "--flag")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("-t", "--flag")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--count", "--flag")), EXIT_USAGE);
    assert_null(text);
    assert_int_equal(parse(options, &operands, WORDS("--flag=1")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--count", "11")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--count", "2.5")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--real", "x")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--color", "blue")), EXIT_USAGE);
    assert_int_equal(parse(options, &operands, WORDS("--sizes", "1:2")), EXIT_USAGE);
}

// ---- Cases of a bench -------------------------------------------------------------------------

static void give(struct bench_selection *selection, const char *option, const char *text) {
    for (int i = 0; i < selection->num_options; i++)
        if (strcmp(selection->options[i].option, option) == 0) selection->options[i].text = text;
}

static void test_cases(void **state) {
    (void)state;
    struct bench_selection selection = {.num_specs = 0};
    struct op_case *cases;
    char error[256];
    assert_false(bench_select(&selection, "nothing"));
    assert_true(bench_select(&selection, "softmax"));
    assert_int_equal(selection.num_specs, 2);
    assert_true(bench_keep_pass(&selection, "backward"));
    assert_int_equal(selection.num_specs, 1);
    assert_string_equal(selection.specs[0]->op, "softmax_backward");

    int standard = 0;
    while (selection.specs[0]->standard[standard] != NULL) standard++;
    assert_int_equal(bench_cases(&selection, selection.specs[0], NULL, &cases, error, sizeof error),
                     standard);
    free(cases);
    give(&selection, "rows", "1:4:x2");
    give(&selection, "cols", "10,20");
    assert_int_equal(bench_cases(&selection, selection.specs[0], NULL, &cases, error, sizeof error),
                     6);
    assert_int_equal(case_int(&cases[3], "rows"), 2);
    assert_int_equal(case_int(&cases[3], "cols"), 20);
    free(cases);
    give(&selection, "rows", "1.5");
    assert_int_equal(bench_cases(&selection, selection.specs[0], NULL, &cases, error, sizeof error),
                     -1);
    assert_non_null(strstr(error, "rows"));
}

// ---- Measuring --------------------------------------------------------------------------------

static struct measure_session *open_session(bool is_cold) {
    char error[512];
    struct measure_options options = {.num_rep = 2, .seed = 1, .is_cold = is_cold};
    struct measure_session *session = measure_open(&options, error, sizeof error);
    assert_non_null(session);
    return session;
}

static struct op_case small_case(const struct op_spec *spec) {
    char error[256];
    struct op_case c = case_default(spec);
    assert_true(case_set(&c, "rows=33 cols=129", error, sizeof error));
    return c;
}

static void test_measure(void **state) {
    (void)state;
    for (int is_cold = 0; is_cold < 2; is_cold++) {
        struct measure_session *session = open_session(is_cold);
        struct op_case c = small_case(spec_find("softmax_forward"));
        struct result results[2];
        enum measure_outcome outcomes[2];
        const char *const variants[] = {"fused", "unfused"};
        assert_int_equal(measure_variants(session, &c, variants, 2, results, outcomes), MEASURE_OK);
        for (int i = 0; i < 2; i++) {
            const struct result *r = &results[i];
            assert_int_equal(outcomes[i], MEASURE_OK);
            assert_string_equal(r->variant, variants[i]);
            assert_true(r->num_samples > 0);
            assert_true(r->p20_ms <= r->median_ms && r->median_ms <= r->p80_ms && r->p20_ms > 0);
            assert_true(r->err_over_bound >= 0 && r->err_over_bound <= 1);
            assert_true(r->predicted_bytes > 2 * 33 * 129 * 4.0);
            assert_true(r->peak_bytes == r->predicted_bytes); // an arena of exactly the needed size
            assert_true(r->ceiling_ms > 0 && r->is_cold == (is_cold == 1));
        }
        assert_true(results[1].speedup_over_naive == 1);
        measure_close(session);
    }
}

// A result names the variant that ran, also the default one: a context like the session's reports the same name for the
// call.
static void test_chosen_variant(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"softmax_forward", "rows=3 cols=5"},
        {"matmul_forward", "m=1 n=200 k=300"},
        {"matmul_forward", "m=500 n=500 k=500"},
        {"matmul_backward", "m=5 n=20 k=30 +da"},
    };
    struct measure_session *session = open_session(false);
    for (int i = 0; i < COUNT(cases); i++) {
        char error[256];
        struct result result;
        struct op_case c = case_default(spec_find(cases[i][0]));
        assert_true(case_set(&c, cases[i][1], error, sizeof error));
        // On a busy machine the measurement may be refused, but the name is still set.
        if (measure_case(session, &c, NULL, &result) != MEASURE_OK &&
            strstr(measure_error(session), "refused") == NULL)
            fail_msg("%s", measure_error(session));
        struct inputs inputs;
        tsr_context *ctx = test_context(measure_machine(session)->num_threads);
        assert_true(inputs_create(&inputs, &c, 1));
        assert_ok(c.spec->call(ctx, &inputs.c, NULL, NULL, 0, NULL));
        assert_string_equal(result.variant, tsr_context_last_variant(ctx));
        assert_ok(c.spec->call(ctx, &inputs.c, result.variant, NULL, 0, NULL));
        inputs_release(&inputs);
        tsr_context_destroy(ctx);
    }
    measure_close(session);
}

// A probe that was sized on a busy machine must grow later. One of many probes must run undisturbed for ten
// milliseconds.
static void test_probe_grows(void **state) {
    (void)state;
    struct measure_session *session = open_session(false);
    bool is_divisible = session->fma_repeat >= 4; // one repetition takes long with a sanitizer
    session->fma_repeat = 1;
    session->fma_best = 0;
    for (int i = 0; i < 1000 && session->fma_repeat == 1; i++) clock_probe(session);
    bool has_grown = session->fma_repeat > 1;
    measure_close(session);
    if (!is_divisible) skip();
    assert_true(has_grown);
}

static double impossible_flops(const struct op_case *c) {
    (void)c;
    return 1e30;
}

static void impossible_bound(const struct op_case *c, int slot, double *bound) {
    memset(bound, 0xff, (size_t)case_numel(c, slot) * sizeof *bound); // NaN: no value is right
}

static void test_refused(void **state) {
    (void)state;
    struct measure_session *session = open_session(false);
    struct op_spec spec = *spec_find("softmax_forward");
    struct op_case c = small_case(&spec);
    struct result result;
    assert_int_equal(measure_case(session, &c, "nothing", &result), MEASURE_INVALID);
    assert_non_null(strstr(measure_error(session), "nothing"));
    assert_true(isnan(result.median_ms));

    spec.flops = impossible_flops;
    assert_int_equal(measure_case(session, &c, "fused", &result), MEASURE_FAILED);
    assert_non_null(strstr(measure_error(session), "refused"));
    assert_true(isnan(result.median_ms));

    spec = *spec_find("softmax_backward");
    spec.bound = impossible_bound;
    c = small_case(&spec);
    assert_int_equal(measure_case(session, &c, "fused", &result), MEASURE_WRONG);
    assert_true(isnan(result.median_ms));
    assert_true(*measure_error(session) != '\0');

    c = small_case(spec_find("softmax_forward"));
    c.param[0] = 1e13; // more memory than any machine has
    measure_options_of(session)->is_unproved = true;
    assert_int_equal(measure_case(session, &c, "fused", &result), MEASURE_FAILED);
    measure_close(session);
}

// More elements or bytes than 64 bits can count: refused before any allocation, with correct sizes in the sentence.
static void test_beyond_64_bits(void **state) {
    (void)state;
    static const struct {
        double rows, cols;
        const char *size;
    } cases[] = {
        {0x1p32, 0x1p32, " 147.6 EB"}, // tensors of 2^64 elements
        {0x1p31, 0x1p31, " 36.9 EB"},  // tensors of 2^64 bytes
        {0x1p40, 0x1p20, " 9.2 EB"},
    };
    struct measure_session *session = open_session(false);
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        struct op_case c = case_default(spec_find("softmax_forward"));
        struct inputs inputs;
        struct result result;
        c.param[0] = cases[i / 2].rows;
        c.param[1] = cases[i / 2].cols;
        measure_options_of(session)->is_unproved = i % 2 == 1;
        assert_int_equal(measure_case(session, &c, "fused", &result), MEASURE_FAILED);
        if (strstr(measure_error(session), cases[i / 2].size) == NULL)
            fail_msg("'%s' is not in '%s'", cases[i / 2].size, measure_error(session));
        assert_true(isnan(result.median_ms));
        assert_false(inputs_create(&inputs, &c, 1));
        assert_true(inputs.memory.peak_bytes < 0x1p62);
    }
    measure_close(session);
}

static void test_allocation(void **state) {
    (void)state;
    struct allocation_table table = {0};
    void *a = allocation_get(&table, 5), *b = allocation_get(&table, 3 << 20);
    assert_true((uintptr_t)a % (2 << 20) == 0 && (uintptr_t)b % (2 << 20) == 0);
    memset(b, 1, 3 << 20);
    allocation_release(&table, a, 5);
    assert_true(table.current_bytes == 3 << 20 && table.peak_bytes == (3 << 20) + 5);
    allocation_release(&table, b, 3 << 20);
    assert_true(table.current_bytes == 0);
    assert_null(allocation_get(&table, SIZE_MAX / 2 + 1));
    assert_true(allocation_available() > 0);
}

// ---- Results ----------------------------------------------------------------------------------

static void test_results(void **state) {
    (void)state;
    struct op_case c = small_case(spec_find("softmax_forward"));
    struct result result = result_empty(&c);
    struct result_list list = {0};
    result.median_ms = 1.5;
    result.gb_s = INFINITY;
    result_add(&list, &result);
    json_t *document = result_list_json(&list);
    const json_t *first = json_array_get(json_object_get(document, "results"), 0);
    assert_int_equal(json_integer_value(json_object_get(document, "schema")), 1);
    assert_true(json_real_value(json_object_get(first, "median_ms")) == 1.5);
    assert_true(json_is_null(json_object_get(first, "p20_ms")));
    assert_true(json_is_null(json_object_get(first, "gb_s")));
    assert_true(json_is_null(json_object_get(first, "peer")));
    assert_true(json_is_null(json_object_get(first, "scaled_from")));
    assert_string_equal(json_string_value(json_object_get(first, "cache")), "warm");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(first, "params"), "cols")),
                     129);
    const json_t *env = json_object_get(document, "env");
    assert_non_null(json_string_value(json_object_get(env, "cpu")));
    assert_true(json_is_null(json_object_get(env, "gpu")));
    json_decref(document);

    for (int format = FORMAT_MD; format <= FORMAT_JSONL; format++) {
        FILE *file = tmpfile();
        char text[8192];
        assert_non_null(file);
        assert_true(result_write(file, &list, (enum result_format)format));
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        assert_non_null(strstr(text, "softmax_forward"));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
    }
    assert_false(result_write_file("/nonexistent/folder/file", &list, FORMAT_JSON));
    result_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_options),
        cmocka_unit_test(test_cases),          cmocka_unit_test(test_measure),
        cmocka_unit_test(test_chosen_variant), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_allocation),     cmocka_unit_test(test_results),
        cmocka_unit_test(test_beyond_64_bits), cmocka_unit_test(test_probe_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
