// SPDX-License-Identifier: Apache-2.0
// Tables on limits and correctness: the limit of each kernel, predicted and measured bytes,
// validation with reference thresholds, verification against the oracle, the machine's ceilings.
#include <math.h>
#include <string.h>

#include "report/report.h"

// ---- Limits -----------------------------------------------------------------------------------

static void build_limits(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"operation",
                                          "dtype",
                                          "shape",
                                          "#FLOP/byte",
                                          "#compute floor ms",
                                          "#memory floor ms",
                                          "limit",
                                          "#measured ms",
                                          "#% of ceiling",
                                          "grade",
                                          NULL};
    struct report_table *table = table_begin(tables, "limits", "What limits each kernel", columns);
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256);
    for (int i = 0; i < num_rows; i++) {
        const struct result *r = rows[i];
        const struct report_level *level = result_level(report, r);
        char shape[112];
        bool is_compute = result_is_compute_bound(report, r);
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", r->c.spec->op);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(r->c.dtype));
        table_text(table, TONE_QUIET, "%s", result_shape(r, shape, sizeof shape));
        table_number(table, TONE_PLAIN, result_flops(r) / result_bytes(r), 3);
        table_number(table, TONE_QUIET, result_flops(r) / report_peak_gflops(report, r) / 1e6, 3);
        table_number(table, TONE_QUIET,
                     level != NULL ? result_bytes(r) / level->copy_gb_s / 1e6 : NAN, 3);
        table_text(table, TONE_PLAIN, "%s", is_compute || level == NULL ? "compute" : level->name);
        table_number(table, TONE_PLAIN, result_device_ms(r), 4);
        table_number(table, TONE_PLAIN, 100 * r->share_of_ceiling, 3);
        table_text(table, TONE_PLAIN, "%c", report_grade(r->share_of_ceiling));
    }
    table_note(table,
               "The largest shape of each operation and dtype. A kernel cannot be faster than its "
               "arithmetic at the measured peak, nor than its bytes at the measured bandwidth of "
               "the level that holds them; the larger of the two floors is its limit. Grades by "
               "share of that ceiling: A above 80 %%, B 70, C 60, D 40, F below. exp counts as ten "
               "operations.");
}

// ---- Memory -----------------------------------------------------------------------------------

static void build_memory(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"operation",
                                          "dtype",
                                          "shape",
                                          "variant",
                                          "#predicted MB",
                                          "#measured MB",
                                          "#measured / predicted",
                                          NULL};
    struct report_table *table =
        table_begin(tables, "memory", "Memory: predicted and measured", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (!isfinite(r->peak_bytes) || !isfinite(r->predicted_bytes) ||
            r->num_threads != report->machine.num_threads)
            continue;
        double ratio = r->peak_bytes / r->predicted_bytes;
        char shape[112];
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", r->c.spec->op);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(r->c.dtype));
        table_text(table, TONE_QUIET, "%s", result_shape(r, shape, sizeof shape));
        table_text(table, TONE_PLAIN, "%s", r->variant);
        table_number(table, TONE_PLAIN, r->predicted_bytes / 1e6, 4);
        table_number(table, TONE_PLAIN, r->peak_bytes / 1e6, 4);
        table_number(table, ratio > 1.02 ? TONE_FAIR : TONE_GOOD, ratio, 4);
    }
    table_note(table,
               "Predicted: the tensors and the workspace by prepare(). Measured: the high-water "
               "mark of the allocations.");
}

// ---- Validation -------------------------------------------------------------------------------

static const char *mark(double value, double excellent, double good, enum cell_tone *tone) {
    *tone = value < excellent ? TONE_GOOD : value < good ? TONE_PLAIN : TONE_FAIR;
    return value < excellent ? "excellent" : value < good ? "within" : "beyond";
}

static void build_validation(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "operation", "dtype",        "#max abs err", "max abs",      "#mean abs err",
        "mean abs",  "#max rel err", "max rel",      "#err / bound", "verdict",
        NULL};
    struct report_table *table =
        table_begin(tables, "validation", "Validation with reference thresholds", columns);
    for (int i = 0; i < report->results.count; i++) {
        const struct result *first = &report->results.items[i];
        struct result worst = *first;
        bool is_first = true;
        if (first->peer != NULL) continue;
        for (int j = 0; j < report->results.count; j++) {
            const struct result *r = &report->results.items[j];
            if (r->c.spec != first->c.spec || r->c.dtype != first->c.dtype || r->peer) continue;
            is_first = is_first && j >= i;
            worst.max_abs_err = fmax(worst.max_abs_err, r->max_abs_err);
            worst.mean_abs_err = fmax(worst.mean_abs_err, r->mean_abs_err);
            worst.max_rel_err = fmax(worst.max_rel_err, r->max_rel_err);
            worst.err_over_bound = fmax(worst.err_over_bound, r->err_over_bound);
        }
        if (!is_first) continue;
        const double value[] = {worst.max_abs_err, worst.mean_abs_err, worst.max_rel_err};
        static const double excellent[] = {1e-4, 1e-5, 1e-3}, good[] = {1e-3, 1e-4, 1e-2};
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", worst.c.spec->op);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(worst.c.dtype));
        for (int m = 0; m < 3; m++) {
            enum cell_tone tone;
            const char *word = mark(value[m], excellent[m], good[m], &tone);
            table_number(table, TONE_PLAIN, value[m], 2);
            table_text(table, tone, "%s", word);
        }
        bool is_right = worst.err_over_bound <= 1;
        table_number(table, is_right ? TONE_GOOD : TONE_BAD, worst.err_over_bound, 3);
        table_text(table, is_right ? TONE_GOOD : TONE_BAD, "%s", is_right ? "right" : "WRONG");
    }
    table_note(table,
               "Errors against the oracle in double precision, for inputs already rounded to the "
               "dtype. Published tutorials on fused kernels require max abs < 1e-3 (excellent: "
               "1e-4), mean abs < 1e-4 (1e-5), max relative < 1e-2 (1e-3), for every dtype and "
               "size of result. Even an exact kernel rounds an fp16 output of 64 by up to 1.6e-2, "
               "so 'beyond' for a narrow dtype shows the format, and a large relative error may "
               "come from a division by a value near zero. The verdict follows from the derived "
               "bound of each element: err / bound up to 1 is right.");
}

// ---- Gates ------------------------------------------------------------------------------------

static void gate(struct report_table *table, const char *name, double value, double least,
                 const char *unit) {
    bool is_met = value >= least;
    table_row(table);
    table_text(table, TONE_PLAIN, "%s", name);
    table_number(table, TONE_PLAIN, value, 3);
    table_number(table, TONE_QUIET, least, 3);
    table_text(table, TONE_QUIET, "%s", unit);
    table_text(table, is_met ? TONE_GOOD : TONE_BAD, "%s", is_met ? "met" : "missed");
}

static void build_gates(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"gate", "#measured", "#asked", "unit", "outcome", NULL};
    struct report_table *table = table_begin(tables, "gates", "Gates", columns);
    struct report_summary s = report_summarize(report);
    double matmul = 0, speedup = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (strcmp(r->c.spec->op, "matmul_forward") == 0 && report_is_plain(report, r) &&
            r->share_of_ceiling > matmul)
            matmul = r->share_of_ceiling;
    }
    if (s.best_fusion != NULL) speedup = s.best_fusion_speedup;
    if (matmul > 0)
        gate(table, "matrix product, best shape", 100 * matmul, 70, "% of measured peak");
    if (speedup > 0) gate(table, "fused over unfused, best shape", speedup, 1.4, "times");
    double reference = INFINITY;
    for (int i = 0; i < report->results.count; i++)
        if (report->results.items[i].peer != NULL && report->results.items[i].study != NULL)
            reference = fmin(reference, report->results.items[i].speedup_over_peer);
    if (isfinite(reference))
        gate(table, "attention, the worst of its shapes", 100 * reference, 60,
             "% of PyTorch's speed");
    gate(table, "worst err / bound", s.worst_err_over_bound, 0, "at most 1");
    // The last gate is an upper limit, not a lower one.
    struct report_cell *outcome = &table->cells[table->num_rows * table->num_columns - 1];
    bool is_right = s.worst_err_over_bound <= 1 && s.num_failed == 0;
    outcome->tone = is_right ? TONE_GOOD : TONE_BAD;
    snprintf(outcome->text, sizeof outcome->text, "%s", is_right ? "met" : "missed");
    outcome[-2].number = 1;
    outcome[-2].digits = 1;
    table_note(
        table,
        "The requirements of the published guides that apply here: the matrix product against the "
        "measured peak (70 %%; there is no vendor library), fused forms against unfused ones (1.4 "
        "times), attention against PyTorch if it is installed (60 %%), and the oracle.");
}

// ---- Verification -----------------------------------------------------------------------------

static void build_verify(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "operation",    "variant",       "dtype",        "ISA",     "#runs", "#wrong",
        "#max abs err", "#mean abs err", "#err / bound", "verdict", NULL};
    struct report_table *table =
        table_begin(tables, "verify", "Verification against the oracle", columns);
    for (int i = 0; i < report->verify.num_rows; i++) {
        const struct verify_row *row = &report->verify.rows[i];
        const struct verdict *v = &row->verdict;
        bool is_right = v->num_failed == 0;
        enum cell_tone tone = is_right ? TONE_GOOD : TONE_BAD;
        if (v->num_configs == 0) continue; // the variant supports none of the cases
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", row->op);
        table_text(table, TONE_PLAIN, "%s", row->variant);
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(row->dtype));
        table_text(table, TONE_PLAIN, "%s",
                   report->verify.arch[0] != '\0' ? report->verify.arch : tsr_isa_name(row->isa));
        table_count(table, TONE_PLAIN, (double)v->num_configs);
        table_count(table, is_right ? TONE_QUIET : TONE_BAD, (double)v->num_failed);
        table_number(table, TONE_QUIET, v->max_abs_err, 2);
        table_number(table, TONE_QUIET, v->mean_abs_err, 2);
        table_number(table, tone, v->err_over_bound, 3);
        table_text(table, tone, "%s", is_right ? "PASS" : "FAIL");
    }
    table_note(table,
               "Random and edge-case shapes, strides and values. Each output element is compared "
               "with the double-precision oracle and must lie within the derived bound; outputs "
               "are poisoned and guarded before each run. Runs counts the cases that a variant "
               "supports. Absolute errors include the edge cases with huge values. In bf16 and "
               "fp16 err / bound is usually near 1: the bound allows half a unit of the last "
               "digit, and correct rounding uses that up.");
}

static void build_ceilings(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"level",       "#working set MB", "#read GB/s",
                                          "#write GB/s", "#copy GB/s",      "#bend FLOP/byte",
                                          NULL};
    struct report_table *table = table_begin(tables, "ceilings", "Measured ceilings", columns);
    const struct report_machine *machine = &report->machine;
    for (int i = 0; i < machine->num_levels; i++) {
        const struct report_level *level = &machine->levels[i];
        table_row(table);
        table_text(table, TONE_PLAIN, "%s", level->name);
        table_number(table, TONE_QUIET, level->working_set_bytes / 1e6, 3);
        table_number(table, TONE_PLAIN, level->read_gb_s, 4);
        table_number(table, TONE_PLAIN, level->write_gb_s, 4);
        table_number(table, TONE_PLAIN, level->copy_gb_s, 4);
        table_number(table, TONE_QUIET, machine->peak_gflops / level->copy_gb_s, 3);
    }
    table_note(table,
               "Measured on this machine in this run, with the same threads: %.4g GFLOP/s of fp32 "
               "FMA in registers; bandwidths with normal or streaming stores, whichever is faster. "
               "Copy counts the bytes read and the bytes written. Bend: from this number of FLOPs "
               "per byte on, arithmetic is the limit.",
               machine->peak_gflops);
}

void tables_build_checks(const struct report *report, struct report_tables *tables) {
    build_limits(report, tables);
    build_memory(report, tables);
    build_validation(report, tables);
    build_gates(report, tables);
    build_verify(report, tables);
    build_ceilings(report, tables);
}
