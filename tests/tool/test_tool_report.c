// SPDX-License-Identifier: Apache-2.0
// The report's tables for results of a GPU: products by tile, and which row of attention is the library's choice if its
// variant has another name there.
#include <math.h>
#include <unistd.h>

#include "report/report.h"
#include "report/report_collect.h"
#include "system/temporary.h"
#include "test_support.h"

static char *arguments[] = {"report", NULL};
static const struct report_options options = {
    .save_dir = "report", .theme = "auto", .argc = 1, .argv = arguments};
static struct report report;
static struct report_tables tables;

static int start(void **state) {
    (void)state;
    report = (struct report){.options = &options, .machine = {.is_gpu = true, .num_sms = 132}};
    return 0;
}

static int end(void **state) {
    (void)state;
    report_tables_free(&tables);
    report_free(&report);
    return 0;
}

static void add(const char *op, const char *params, const char *study, const char *variant,
                bool is_choice, double tflops) {
    char error[256];
    struct op_case c = case_default(spec_find(op));
    c.dtype = TSR_F16;
    assert_true(case_set(&c, params, error, sizeof error));
    struct result result = result_empty(&c);
    snprintf(result.variant, sizeof result.variant, "%s", variant);
    snprintf(result.device, sizeof result.device, "cuda:0");
    result.study = study;
    result.is_choice = is_choice;
    result.tflops = tflops;
    result.median_ms = result.graph_ms = 1;
    result_add(&report.results, &result);
}

static void tile(int size, const char *variant, double tflops) {
    char params[64];
    snprintf(params, sizeof params, "m=%d n=%d k=%d", size, size, size);
    add("matmul_forward", params, "tiles", variant, strchr(variant, ' ') == NULL, tflops);
}

static const struct report_cell *cell_of(const struct report_table *table, int row, int column) {
    return &table->cells[row * table->num_columns + column];
}

// A layer with its router's parts, and the dense product with which it is compared.
static void layers_of_experts(void **state) {
    (void)state;
    add("moe_forward", "tokens=64 hidden=512 intermediate=1376 experts=32 top_k=2 +router", "moe",
        "default", true, 300);
    report.results.items[0].median_ms = report.results.items[0].graph_ms = 4;
    report.results.items[0].peak_bytes = 5e6;
    snprintf(report.results.items[0].scaled_from, 96, "tokens=2048 hidden=4096");
    add("moe_backward", "tokens=64 hidden=512 intermediate=1376 experts=32 top_k=2 +router +dx",
        "moe", "default", true, 200);
    add("matmul_forward", "m=64 n=32 k=512 transpose_b=1", "moe", "tiled", true, 900);
    add("moe_route_forward", "tokens=64 num_experts=32 top_k=2", "moe", "fused", true, 1);
    add("moe_route_forward", "tokens=65 num_experts=32 top_k=2", "moe", "fused", true, 1);
    add("matmul_forward", "m=512 n=512 k=512", NULL, "tiled", true, 400);
    report.routings[report.num_routings++] = (struct report_routing){64, 1.25, 0.002};
    report_tables_build(&report, &tables);
    const struct report_table *table = report_table_find(&tables, "moe");
    assert_non_null(table);
    assert_int_equal(table->num_rows, 1);
    // tokens; forward and backward ms; tokens/s; TFLOP/s; shares of 400; (1 + 1) / 4; losses; MB
    static const double expected[] = {64, 4, 1, 16000, 300, 75, 50, 50, 1.25, 0.002, 5};
    for (int i = 0, column = 0; i < COUNT(expected); i++, column++) {
        if (column == 1) column++;
        assert_same_number(cell_of(table, 0, column)->number, expected[i]);
    }
    assert_string_equal(cell_of(table, 0, 1)->text, "512 × 1376");
    assert_string_equal(cell_of(table, 0, 12)->text, "tokens=2048 hidden=4096");
    assert_non_null(strstr(table->note, "% of matmul"));
}

static void products_by_tile(void **state) {
    (void)state;
    tile(512, "cuda-split", 70);
    tile(512, "cuda-split 64x128x1", 72);
    tile(512, "cuda-mma 64x64x2", 36);
    tile(4096, "cuda-wgmma", 700);
    tile(4096, "cuda-wgmma 128x256x2", 710);
    tile(4096, "cuda-mma 64x64x1", 250); // the same tile with another split
    add("matmul_forward", "m=512 n=512 k=512", NULL, "cuda-split", false, 99); // for another table
    report_tables_build(&report, &tables);
    const struct report_table *table = report_table_find(&tables, "tiles");
    assert_non_null(table);
    static const char *const columns[] = {"tile", "512 × 512 × 512", "4096 × 4096 × 4096"};
    static const char *const names[] = {"the library's choice", "cuda-split 64x128",
                                        "cuda-mma 64x64", "cuda-wgmma 128x256"};
    static const double expected[][2] = {{70, 700}, {72, NAN}, {36, 250}, {NAN, 710}};
    static const double best[] = {72, 710};
    assert_int_equal(table->num_columns, COUNT(columns));
    assert_int_equal(table->num_rows, COUNT(names));
    for (int i = 0; i < COUNT(columns); i++) assert_string_equal(table->columns[i], columns[i]);
    for (int t = 0; t < COUNT(names); t++) {
        assert_string_equal(cell_of(table, t, 0)->text, names[t]);
        for (int p = 0; p < 2; p++) {
            const struct report_cell *cell = cell_of(table, t, p + 1);
            assert_int_equal(cell->kind, isnan(expected[t][p]) ? CELL_ABSENT : CELL_NUMBER);
            if (isnan(expected[t][p])) continue;
            assert_true(cell->number == expected[t][p]);
            assert_true(cell->heat == expected[t][p] / best[p]);
        }
    }
    assert_non_null(strstr(table->note, "In f16"));
    // No tile of that table has its own row among the products.
    const struct report_table *products = report_table_find(&tables, "matmul");
    assert_int_equal(products->num_rows, 1);
}

// The page shades the best cells with 60 % of the colour, and others by the square of their share.
static void shades(void **state) {
    (void)state;
    char *page = NULL;
    size_t bytes = 0;
    struct report_charts charts = {0};
    add("matmul_forward", "m=512 n=512 k=512", NULL, "cuda-split", false, 99); // opens the section
    tile(512, "cuda-split", 100);
    tile(512, "cuda-split 64x128x1", 50);
    report_tables_build(&report, &tables);
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    report_write_html(out, &report, &tables, &charts, NULL, false);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(page, "id=\"table-tiles\""));
    assert_non_null(strstr(page, "data-value=\"100\" style=\"background:color-mix(in srgb,"
                                 "var(--good) 60%,transparent)\""));
    assert_non_null(strstr(page, "data-value=\"50\" style=\"background:color-mix(in srgb,"
                                 "var(--good) 15%,transparent)\""));
    free(page);
}

// Long tables scroll in a box that states their length. A report that was cut short says so at its top.
static void long_tables_and_short_reports(void **state) {
    static const char *const ops[] = {"cast", "rope_table"};
    (void)state;
    struct report_charts charts = {0};
    char variant[31][8];
    report.is_stopped_early = true;
    for (int i = 0; i < 31; i++) {
        snprintf(variant[i], sizeof variant[i], "v%d", i);
        verify_row_of(&report.verify, ops[i % 2], variant[i], TSR_F32, TSR_ISA_AVX2)->num_configs =
            1;
    }
    add("matmul_forward", "m=512 n=512 k=512", NULL, "cuda-split", false, 99);
    report_tables_build(&report, &tables);
    char *page = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&page, &bytes);
    assert_non_null(out);
    report_write_html(out, &report, &tables, &charts, NULL, false);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(page, "<div class=\"table tall\" id=\"table-verify\">"));
    assert_non_null(strstr(page, "<small>31 rows, scroll</small></caption>"));
    assert_non_null(strstr(page, "<div class=\"table\" id=\"table-matmul\">"));
    const char *hint = strstr(page, "The time limit ended the measuring early");
    assert_true(hint != NULL && hint < strstr(page, "<dl class=\"figures\">"));
    assert_non_null(strstr(page, "<summary>How to read the figures</summary>"));
    free(page);
}

// If the library chooses flash1, the table has one row for the choice and one for the forced variant.
static void what_is_the_choice(void **state) {
    static const char shape[] = "batch_size=4 seqlen_q=256 seqlen_k=256 num_heads=12 head_dim=64";
    (void)state;
    add("attention_forward", shape, "length", "cuda-flash1", true, 4);
    add("attention_forward", shape, "length", "cuda-flash1", false, 3);
    add("attention_forward", shape, "length", "cuda-naive", false, 1);
    const struct result *r = report.results.items;
    assert_true(result_is_variant(&r[0], "tuned") && !result_is_variant(&r[0], "flash1"));
    assert_true(result_is_variant(&r[1], "flash1") && !result_is_variant(&r[1], "tuned"));
    assert_true(result_is_variant(&r[2], "naive") && !result_is_variant(&r[2], "tuned"));
    report_tables_build(&report, &tables);
    const struct report_table *table = report_table_find(&tables, "attention-memory");
    assert_non_null(table);
    assert_int_equal(table->num_rows, 1);
}

static const struct chart_series *series_named(const struct report_charts *charts, const char *id,
                                               const char *begin) {
    for (int c = 0; c < charts->count; c++)
        for (int s = 0; strcmp(charts->chart[c].id, id) == 0 && s < charts->chart[c].num_series;
             s++)
            if (strncmp(charts->chart[c].series[s].name, begin, strlen(begin)) == 0)
                return &charts->chart[c].series[s];
    return NULL;
}

// Slopes of the levels end at the roof. A unit for 16-bit products has a roof only if results of these dtypes exist.
static void roofs_of_what_was_measured(void **state) {
    (void)state;
    report.machine.peak_gflops = 100;
    report.machine.num_levels = 2;
    report.machine.levels[0] = (struct report_level){.name = "L2", .copy_gb_s = 200};
    report.machine.levels[1] = (struct report_level){.name = "memory", .copy_gb_s = 50};
    add("matmul_forward", "m=512 n=512 k=512", NULL, "cuda-split", false, 0.09);
    for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
        struct report_charts charts;
        struct result *r = &report.results.items[0];
        r->c.dtype = is_narrow ? TSR_BF16 : TSR_F32;
        r->unit_gflops = 400; // an fp32 probe from a quieter moment
        report_charts_build(&report, &charts);
        const struct chart_series *slope = series_named(&charts, "roofline", "memory 50 GB/s");
        const struct chart_series *flat =
            series_named(&charts, "roofline", "fp32 peak 100 GFLOP/s");
        assert_int_equal(slope->count, 2);
        assert_true(slope->points[0].y == 50 * slope->points[0].x);
        assert_true(slope->points[1].x == (is_narrow ? 8 : 2));
        assert_true(slope->points[1].y == (is_narrow ? 400 : 100));
        assert_true(flat->points[0].x == 0.5 && flat->points[0].y == 100); // the end of L2's slope
        const struct chart_series *unit = series_named(&charts, "roofline", "16-bit peak");
        if (!is_narrow) assert_null(unit);
        if (is_narrow) assert_true(unit->points[0].x == 2 && unit->points[0].y == 400);
        report_charts_free(&charts);
    }
}

// A variant that supports no case proves nothing: it has no PASS and no bar.
static void nothing_proved_is_not_shown(void **state) {
    (void)state;
    struct report_charts charts;
    verify_row_of(&report.verify, "cast", "simd", TSR_F32, TSR_ISA_AVX2)->num_configs = 3;
    struct verdict *verdict = verify_row_of(&report.verify, "cast", "simd", TSR_BF16, TSR_ISA_AVX2);
    *verdict = (struct verdict){.num_configs = 4, .err_over_bound = 0.5};
    verify_row_of(&report.verify, "cast", "amx_bf16", TSR_F16, TSR_ISA_AVX2)->num_configs = 0;
    report_tables_build(&report, &tables);
    const struct report_table *table = report_table_find(&tables, "verify");
    assert_int_equal(table->num_rows, 2);
    report_charts_build(&report, &charts);
    assert_int_equal(series_named(&charts, "errors", "f32")->count, 1);
    assert_true(series_named(&charts, "errors", "bf16")->points[0].y == 0.5);
    assert_null(series_named(&charts, "errors", "f16"));
    report_charts_free(&charts);
}

// A required tensor is in the case even if the standard shapes do not name it.
static void cases_are_complete(void **state) {
    (void)state;
    struct report_options quick = {.is_quick = true};
    struct report empty = {.options = &quick};
    struct collector k = {.options = &quick, .report = &empty};
    struct op_case c;
    assert_true(collector_case(&k, "matmul_grouped_forward", TSR_F32, "rows=4 n=4 k=4", &c));
    assert_true(c.is_present[spec_slot(c.spec, "offsets")]);
}

// gnuplot runs text between backquotes in a shell, even inside strings. Names of GPUs and variants must not become
// commands.
static void words_are_no_commands(void **state) {
    static const char words[] = "`touch RAN`\"\\`touch RAN`'`touch RAN`";
    static const enum chart_kind kinds[] = {CHART_LINES, CHART_BARS, CHART_SCATTER};
    char folder[] = "/tmp/test-report-XXXXXX", error[512], path[64];
    struct report_charts charts = {0};
    struct report_text svg[REPORT_MAX_CHARTS] = {{0}};
    bool has_gnuplot;
    (void)state;
    assert_non_null(mkdtemp(folder));
    static const char *const ids[] = {"a", "b", "c"};
    for (int i = 0; i < COUNT(kinds); i++) {
        struct report_chart *chart =
            chart_begin(&charts, kinds[i], ids[i], words, words, words, words);
        for (int x = 1; x < 4; x++)
            chart_add(chart_series_of(chart, words, STYLE_SOLID), x, 1.0 / x, words);
    }
    assert_true(report_write_plots(folder, &charts, svg, &has_gnuplot, error, sizeof error));
    snprintf(path, sizeof path, "%s/plots/RAN", folder);
    assert_int_not_equal(access(path, F_OK), 0);
    for (int i = 0; i < COUNT(kinds); i++) {
        int letter;
        snprintf(path, sizeof path, "%s/plots/%s.gp", folder, ids[i]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        while ((letter = getc(file)) != EOF) assert_int_not_equal(letter, '`');
        fclose(file);
        if (has_gnuplot) assert_non_null(svg[i].bytes); // the chart was drawn
        free(svg[i].bytes);
    }
    temporary_remove(folder);
    assert_int_not_equal(access(folder, F_OK), 0);
    report_charts_free(&charts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_by_tile, start, end),
        cmocka_unit_test_setup_teardown(layers_of_experts, start, end),
        cmocka_unit_test_setup_teardown(shades, start, end),
        cmocka_unit_test_setup_teardown(long_tables_and_short_reports, start, end),
        cmocka_unit_test_setup_teardown(what_is_the_choice, start, end),
        cmocka_unit_test_setup_teardown(roofs_of_what_was_measured, start, end),
        cmocka_unit_test_setup_teardown(nothing_proved_is_not_shown, start, end),
        cmocka_unit_test(cases_are_complete),
        cmocka_unit_test(words_are_no_commands),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
