// SPDX-License-Identifier: Apache-2.0
// The tables of published tutorials on fused kernels (the guides): softmax, layer norm, matmul, and the other operations'
// standard shapes, each in its fused and its unfused form if both exist.
#include <math.h>
#include <string.h>

#include "measure/tune_candidates.h"
#include "report/report.h"

static enum cell_tone share_tone(double share) {
    return !isfinite(share) ? TONE_QUIET
           : share > 0.7    ? TONE_GOOD
           : share > 0.4    ? TONE_FAIR
                            : TONE_BAD;
}

static void share_cell(struct report_table *table, const struct result *result) {
    table_number(table, share_tone(result->share_of_ceiling), 100 * result->share_of_ceiling, 3);
}

static double total(const struct op_traffic *traffic) {
    return traffic->read_bytes + traffic->write_bytes;
}

static bool is_op(const struct result *result, const char *op) {
    return strcmp(result->c.spec->op, op) == 0;
}

// ---- Softmax ----------------------------------------------------------------------------------

static void build_softmax(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "N × N",         "#unfused ms", "#fused ms",        "#speed-up",
        "#unfused MB",   "#fused MB",   "#traffic saved %", "#passes before",
        "#passes after", "#fused GB/s", "#% of ceiling",    NULL};
    struct report_table *table = table_begin(tables, "softmax", "Softmax, N × N", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *fused = &report->results.items[i];
        if (!is_op(fused, "softmax_forward") || fused->c.dtype != report_row_dtype(report) ||
            !report_is_plain(report, fused) || result_is_baseline(fused) ||
            case_int(&fused->c, "rows") != case_int(&fused->c, "cols"))
            continue;
        const struct result *unfused = report_baseline_of(report, fused);
        struct op_traffic after, before;
        traffic_of(&fused->c, false, &after);
        traffic_of(&fused->c, true, &before);
        table_row(table);
        table_text(table, TONE_PLAIN, "%d", (int)case_int(&fused->c, "rows"));
        table_number(table, TONE_PLAIN, unfused != NULL ? result_device_ms(unfused) : NAN, 4);
        table_number(table, TONE_PLAIN, result_device_ms(fused), 4);
        table_number(table, TONE_PLAIN,
                     unfused != NULL ? result_device_ms(unfused) / result_device_ms(fused) : NAN,
                     3);
        table_number(table, TONE_QUIET, total(&before) / 1e6, 4);
        table_number(table, TONE_QUIET, total(&after) / 1e6, 4);
        table_number(table, TONE_PLAIN, 100 * (1 - total(&after) / total(&before)), 3);
        table_count(table, TONE_QUIET, before.num_passes);
        table_count(table, TONE_QUIET, after.num_passes);
        table_number(table, TONE_PLAIN, fused->gb_s, 4);
        share_cell(table, fused);
    }
    table_note(table,
               "In %s. The unfused form makes three passes over the whole matrix: the maximum, the "
               "exponentials with their sum, and the division. The fused form reads and writes "
               "each row once. Traffic is counted from the passes and ignores caches; on a GPU "
               "each pass would be a launch.",
               tsr_dtype_name(report_row_dtype(report)));
}

// ---- Layer norm -------------------------------------------------------------------------------

static void build_layernorm(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "hidden",           "rows",        "#unfused ms",   "#fused ms", "#speed-up",
        "#traffic saved %", "#fused GB/s", "#% of ceiling", "grade",     NULL};
    struct report_table *table =
        table_begin(tables, "layernorm", "Layer norm by hidden size", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *fused = &report->results.items[i];
        if (!is_op(fused, "layernorm_forward") || fused->c.dtype != report_row_dtype(report) ||
            !report_is_plain(report, fused) || result_is_baseline(fused))
            continue;
        const struct result *unfused = report_baseline_of(report, fused);
        struct op_traffic after, before;
        bool is_known =
            traffic_of(&fused->c, false, &after) && traffic_of(&fused->c, true, &before);
        table_row(table);
        table_text(table, TONE_PLAIN, "%d", (int)case_int(&fused->c, "cols"));
        table_text(table, TONE_QUIET, "%d", (int)case_int(&fused->c, "rows"));
        table_number(table, TONE_PLAIN, unfused != NULL ? result_device_ms(unfused) : NAN, 4);
        table_number(table, TONE_PLAIN, result_device_ms(fused), 4);
        table_number(table, TONE_PLAIN,
                     unfused != NULL ? result_device_ms(unfused) / result_device_ms(fused) : NAN,
                     3);
        table_number(table, TONE_PLAIN, is_known ? 100 * (1 - total(&after) / total(&before)) : NAN,
                     3);
        table_number(table, TONE_PLAIN, fused->gb_s, 4);
        share_cell(table, fused);
        table_text(table, TONE_PLAIN, "%c", report_grade(fused->share_of_ceiling));
    }
    table_note(table,
               "In %s. The unfused form makes separate passes over the whole matrix for mean, "
               "variance, normalising and scaling.",
               tsr_dtype_name(report_row_dtype(report)));
}

static void build_bert(const struct report *report, struct report_tables *tables) {
    struct report_bert bert;
    if (!report_bert_estimate(report, &bert)) return;
    bool is_gpu = report->machine.is_gpu;
    const char *const columns[] = {"form", "#ms per inference",
                                   is_gpu ? "#GPU-hours a day" : "#CPU-hours a day",
                                   "#machines kept busy", NULL};
    struct report_table *table = table_begin(
        tables, "bert", "Estimate for BERT-base at 1000 inferences per second", columns);
    int threads = report->machine.num_threads;
    for (int i = 0; i < 2; i++) {
        table_row(table);
        double ms = i ? bert.fused_ms : bert.unfused_ms;
        table_text(table, TONE_PLAIN, i ? "fused" : "unfused");
        table_number(table, TONE_PLAIN, ms, 3);
        table_number(table, TONE_PLAIN, i ? bert.fused_hours_a_day : bert.unfused_hours_a_day, 3);
        table_number(table, TONE_PLAIN, ms, 3); // 1000/s times ms: the share of a second in use
    }
    table_note(table,
               "An estimate, not a run: %d layer norms of hidden size %d per inference (12 layers "
               "with 2 each), batch 1, sequence length %d, so %d rows each; the time per row is "
               "that measured above with 16,384 rows. ",
               BERT_NORMS, BERT_HIDDEN, BERT_SEQLEN, BERT_SEQLEN);
    if (!is_gpu)
        table_note(table, "CPU-hours are thread-hours: %d threads work on each call. ", threads);
    table_note(table, "Only the norms are counted.");
}

// ---- Matmul -----------------------------------------------------------------------------------

static void build_matmul(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"dtype",      "#M",        "#N",      "#K",
                                          "#ms",        "#p20 ms",   "#p80 ms", "#GFLOP/s",
                                          "#% of peak", "#speed-up", "grade",   "the guide's shape",
                                          NULL};
    struct report_table *table = table_begin(tables, "matmul", "Matrix product", columns);
    bool is_scaled = false;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *result = &report->results.items[i];
        if (!is_op(result, "matmul_forward") || result_is_baseline(result) ||
            !report_is_plain(report, result))
            continue;
        double gflops = 1e3 * result->tflops;
        const struct result *baseline = report_baseline_of(report, result);
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(result->c.dtype));
        table_count(table, TONE_PLAIN, case_real(&result->c, "m"));
        table_count(table, TONE_PLAIN, case_real(&result->c, "n"));
        table_count(table, TONE_PLAIN, case_real(&result->c, "k"));
        table_number(table, TONE_PLAIN, result_device_ms(result), 4);
        bool is_replayed =
            isfinite(result->graph_ms); // then p20 and p80 belong to calls from the host
        table_number(table, TONE_QUIET, is_replayed ? NAN : result->p20_ms, 4);
        table_number(table, TONE_QUIET, is_replayed ? NAN : result->p80_ms, 4);
        table_number(table, TONE_PLAIN, gflops, 4);
        share_cell(table, result);
        table_number(table, TONE_PLAIN,
                     baseline != NULL ? result_device_ms(baseline) / result_device_ms(result)
                                      : result->speedup_over_naive,
                     3);
        table_text(table, TONE_PLAIN, "%c", report_grade(result->share_of_ceiling));
        table_text(table, TONE_QUIET, "%s",
                   result->scaled_from[0] ? result->scaled_from : "the same");
        is_scaled = is_scaled || result->scaled_from[0] != '\0';
    }
    table_note(
        table,
        "The peak is that of fp32 FMA in registers, %.4g GFLOP/s, to which 16-bit operands are "
        "widened; for a variant with a bf16 unit it is that unit's peak. Speed-up is over the "
        "plain "
        "three loops, if these were run.%s",
        report->machine.peak_gflops,
        is_scaled ? " A shape in the last column is the guide's; the row ran with a smaller M, "
                    "halved until a call fits the time and a quarter of the memory."
                  : "");
}

// ---- Tiles ------------------------------------------------------------------------------------

static bool is_of_tiles(const struct result *result) {
    return result->study != NULL && strcmp(result->study, "tiles") == 0 && result->peer == NULL;
}

static bool is_same_tile(const struct result *a, const struct result *b) {
    if (a->is_choice || b->is_choice) return a->is_choice && b->is_choice;
    const size_t length = tune_tile_length(a->variant);
    return tune_tile_length(b->variant) == length && strncmp(a->variant, b->variant, length) == 0;
}

static bool is_same_product(const struct result *a, const struct result *b) {
    return memcmp(a->c.param, b->c.param, sizeof a->c.param) == 0;
}

// One row for each tile, one column for each product; a darker cell is nearer to the product's best.
static void build_tiles(const struct report *report, struct report_tables *tables) {
    enum { MOST = TABLE_MAX_COLUMNS - 1, MOST_TILES = 40 };
    const struct result *products[MOST], *tiles[MOST_TILES];
    static char names[MOST][40]; // tables keep the pointers
    const char *columns[TABLE_MAX_COLUMNS + 1] = {"tile"};
    double best[MOST] = {0};
    int num_products = 0, num_tiles = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        int p = 0, t = 0;
        if (!is_of_tiles(r)) continue;
        while (p < num_products && !is_same_product(products[p], r)) p++;
        while (t < num_tiles && !is_same_tile(tiles[t], r)) t++;
        if (p == MOST || t == MOST_TILES) continue;
        products[p] = r;
        if (p == num_products) num_products++;
        if (t == num_tiles) tiles[num_tiles++] = r;
        best[p] = fmax(best[p], r->tflops);
    }
    if (num_products == 0) return;
    for (int p = 0; p < num_products; p++) {
        const struct op_case *c = &products[p]->c;
        snprintf(names[p], sizeof names[p], "#%d × %d × %d", (int)case_int(c, "m"),
                 (int)case_int(c, "n"), (int)case_int(c, "k"));
        columns[p + 1] = names[p];
    }
    struct report_table *table =
        table_begin(tables, "tiles", "Matrix product by tile, TFLOP/s", columns);
    for (int t = 0; t < num_tiles; t++) {
        table_row(table);
        if (tiles[t]->is_choice)
            table_text(table, TONE_PLAIN, "the library's choice");
        else
            table_text(table, TONE_PLAIN, "%.*s", (int)tune_tile_length(tiles[t]->variant),
                       tiles[t]->variant);
        for (int p = 0; p < num_products; p++) {
            double tflops = NAN;
            for (int i = 0; i < report->results.count; i++) {
                const struct result *r = &report->results.items[i];
                if (is_of_tiles(r) && is_same_tile(r, tiles[t]) && is_same_product(r, products[p]))
                    tflops = r->tflops;
            }
            table_heat(table, tflops, 4, tflops / best[p]);
        }
    }
    table_note(
        table,
        "In %s, m × n × k. A tile is the rows and columns of c that a block computes; the "
        "number of parts of k, or of blocks in a cluster, is the best one by the library's "
        "cost model. Tiles that it expects to be far from the best are missing. `tessera "
        "tune matmul --device cuda` measures the others and makes the library choose the best.",
        tsr_dtype_name(products[0]->c.dtype));
}

// ---- Every other operation --------------------------------------------------------------------

static void build_others(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "operation", "dtype",    "shape",         "variant",   "#ms",   "#p20 ms", "#p80 ms",
        "#GB/s",     "#GFLOP/s", "#% of ceiling", "#speed-up", "grade", NULL};
    struct report_table *table =
        table_begin(tables, "operations", "All measured operations and shapes", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *result = &report->results.items[i];
        if (result->peer != NULL || result->num_threads != report->machine.num_threads) continue;
        char shape[112];
        const struct result *baseline = report_baseline_of(report, result);
        bool is_baseline = result_is_baseline(result);
        enum cell_tone tone = is_baseline ? TONE_QUIET : TONE_PLAIN;
        table_row(table);
        table_text(table, tone, "%s", result->c.spec->op);
        table_text(table, tone, "%s", tsr_dtype_name(result->c.dtype));
        table_text(table, tone, "%s", result_shape(result, shape, sizeof shape));
        table_text(table, tone, "%s%s", result->variant,
                   result->is_throttled ? " (throttled)" : "");
        table_number(table, tone, result_device_ms(result), 4);
        bool is_replayed =
            isfinite(result->graph_ms); // p20 and p80 are then of calls from the host
        table_number(table, TONE_QUIET, is_replayed ? NAN : result->p20_ms, 4);
        table_number(table, TONE_QUIET, is_replayed ? NAN : result->p80_ms, 4);
        table_number(table, tone, result->gb_s, 3);
        table_number(table, tone, 1e3 * result->tflops, 3);
        if (is_baseline)
            table_number(table, TONE_QUIET, 100 * result->share_of_ceiling, 3);
        else
            share_cell(table, result);
        table_number(table, tone,
                     is_baseline        ? 1
                     : baseline != NULL ? result_device_ms(baseline) / result_device_ms(result)
                                        : result->speedup_over_naive,
                     3);
        table_text(table, tone, "%c", report_grade(result->share_of_ceiling));
    }
    table_note(
        table,
        "%s Speed-up is "
        "over the unfused form of the same case. GB/s counts each tensor once, so an "
        "unfused form, which reads tensors several times, shows less.",
        report->machine.is_gpu
            ? "ms is the device's time of a call, from the median replay of a graph of calls."
            : "ms is the median of the repetitions; p20 and p80 are percentiles.");
}

void tables_build_guides(const struct report *report, struct report_tables *tables) {
    build_softmax(report, tables);
    build_layernorm(report, tables);
    build_bert(report, tables);
    build_matmul(report, tables);
    build_tiles(report, tables);
    build_others(report, tables);
}
