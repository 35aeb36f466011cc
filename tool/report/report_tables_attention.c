// SPDX-License-Identifier: Apache-2.0
// Attention's tables: by length, its memory, the shapes that are compared with a reference, and forward and backward on
// a grid of shapes.
#include <math.h>
#include <string.h>

#include "report/report.h"

static bool is_of(const struct result *r, const char *study, const char *op) {
    return r->study != NULL && strcmp(r->study, study) == 0 && strcmp(r->c.spec->op, op) == 0 &&
           r->peer == NULL;
}

static double param(const struct result *r, const char *name) { return case_real(&r->c, name); }

// "1 × 3" for batch and heads; those of the published shape are in scaled_from.
static void cell_of_size(struct report_table *table, const struct result *r) {
    table_text(table, TONE_QUIET, "%.0f × %.0f", param(r, "batch_size"), param(r, "num_heads"));
}

static const char *mask_of(const struct report *report) {
    return report->options->is_non_causal ? "without a mask" : "causal";
}

// The study's result for this length and variant; another study may have other kv_heads.
static const struct result *find(const struct report *report, const char *study, double length,
                                 const char *variant) {
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (is_of(r, study, "attention_forward") && param(r, "seqlen_q") == length &&
            result_is_variant(r, variant))
            return r;
    }
    return NULL;
}

static double share_cell(struct report_table *table, double share) {
    enum cell_tone tone = !isfinite(share) ? TONE_QUIET
                          : share > 0.7    ? TONE_GOOD
                          : share > 0.4    ? TONE_FAIR
                                           : TONE_BAD;
    table_number(table, tone, 100 * share, 3);
    return share;
}

static const char scaled_note[] = " Batch × heads are reduced to fit this machine; the published "
                                  "shape has %s. They are the same for all rows, so that rows can "
                                  "be compared.";

// ---- By length --------------------------------------------------------------------------------

static void build_sweep(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {
        "S",           "batch × heads", "#unfused ms",     "#fused ms",      "#speed-up",
        "#unfused MB", "#fused MB",     "#memory saved %", "#fused GFLOP/s", "#% of ceiling",
        NULL};
    struct report_table *table =
        table_begin(tables, "attention", "Attention by sequence length", columns);
    const struct result *last = NULL;
    bool is_scaled = false;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *fused = &report->results.items[i];
        if (!is_of(fused, "sweep", "attention_forward") || result_is_variant(fused, "naive"))
            continue;
        const struct result *unfused = find(report, "sweep", param(fused, "seqlen_q"), "naive");
        double before = unfused != NULL ? unfused->peak_bytes : NAN;
        table_row(table);
        table_text(table, TONE_PLAIN, "%.0f", param(fused, "seqlen_q"));
        cell_of_size(table, fused);
        table_number(table, TONE_PLAIN, unfused != NULL ? result_device_ms(unfused) : NAN, 4);
        table_number(table, TONE_PLAIN, result_device_ms(fused), 4);
        table_number(table, TONE_PLAIN,
                     unfused != NULL ? result_device_ms(unfused) / result_device_ms(fused) : NAN,
                     3);
        table_number(table, TONE_QUIET, before / 1e6, 4);
        table_number(table, TONE_QUIET, fused->peak_bytes / 1e6, 4);
        table_number(table, TONE_PLAIN, 100 * (1 - fused->peak_bytes / before), 3);
        table_number(table, TONE_PLAIN, 1e3 * fused->tflops, 4);
        share_cell(table, fused->share_of_ceiling);
        is_scaled |= fused->scaled_from[0] != '\0';
        last = fused;
    }
    if (last == NULL) return;
    table_note(
        table,
        "Forward in %s, %s, head_dim %.0f. The unfused form writes the matrix of scores, "
        "turns it into weights and reads it again. Memory is the high-water mark of tensors and "
        "workspace.",
        tsr_dtype_name(last->c.dtype), mask_of(report), param(last, "head_dim"));
    const int batch = report->options->batch_size, heads = report->options->num_heads;
    char asked[32];
    snprintf(asked, sizeof asked, "%d × %d", batch > 0 ? batch : 4, heads > 0 ? heads : 8);
    if (is_scaled) table_note(table, scaled_note, asked);
}

// ---- Memory -----------------------------------------------------------------------------------

static void build_memory(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"S",
                                          "#naive MB",
                                          "#flash1 MB",
                                          "#flash2 MB",
                                          "#tuned MB",
                                          "#GQA MB",
                                          "#naive ms",
                                          "#flash1 ms",
                                          "#flash2 ms",
                                          "#tuned ms",
                                          "#GQA ms",
                                          "#naive MB, full batch",
                                          "#tuned MB, full batch",
                                          NULL};
    static const char *const variants[] = {"naive", "flash1", "flash2", "tuned", "tuned"};
    struct report_table *table =
        table_begin(tables, "attention-memory", "Attention: memory and time", columns);
    const struct result *last = NULL;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *tuned = &report->results.items[i], *row[5];
        if (!is_of(tuned, "length", "attention_forward") || !result_is_variant(tuned, "tuned"))
            continue;
        for (int v = 0; v < 5; v++)
            row[v] = find(report, v < 4 ? "length" : "length-gqa", param(tuned, "seqlen_q"),
                          variants[v]);
        table_row(table);
        table_text(table, TONE_PLAIN, "%.0f", param(tuned, "seqlen_q"));
        for (int v = 0; v < 5; v++)
            table_number(table, v == 0 ? TONE_QUIET : TONE_PLAIN,
                         row[v] != NULL ? row[v]->peak_bytes / 1e6 : NAN, 4);
        for (int v = 0; v < 5; v++)
            table_number(table, v == 0 ? TONE_QUIET : TONE_PLAIN,
                         row[v] != NULL ? result_device_ms(row[v]) : NAN, 4);
        table_number(table, TONE_QUIET, row[0] != NULL ? row[0]->asked_bytes / 1e6 : NAN, 4);
        table_number(table, TONE_QUIET, tuned->asked_bytes / 1e6, 4);
        last = tuned;
    }
    if (last == NULL) return;
    const int batch = report->options->batch_size, heads = report->options->num_heads;
    const struct result *gqa = find(report, "length-gqa", param(last, "seqlen_q"), "tuned");
    table_note(
        table,
        "Forward in %s, %s, batch %.0f, %.0f heads of %.0f. naive keeps the whole matrix of "
        "scores; flash1 walks over keys and rescales at each step; flash2 walks over "
        "queries and divides once; tuned is flash2 over packed blocks; GQA is tuned with "
        "%.0f heads in k and v. The last two columns are the bytes by prepare() for the full "
        "batch of %d with %d heads%s.",
        tsr_dtype_name(last->c.dtype), mask_of(report), param(last, "batch_size"),
        param(last, "num_heads"), param(last, "head_dim"),
        gqa != NULL ? param(gqa, "num_kv_heads") : NAN, batch > 0 ? batch : 4,
        heads > 0 ? heads : 12, batch > 0 || heads > 0 ? "" : ", as published");
}

// ---- Comparison with a reference --------------------------------------------------------------

static const struct result *peer_of(const struct report *report, const struct result *ours) {
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (r->peer != NULL && r->c.spec == ours->c.spec && r->c.dtype == ours->c.dtype &&
            memcmp(r->c.param, ours->c.param, sizeof r->c.param) == 0)
            return r;
    }
    return NULL;
}

static void build_shapes(const struct report *report, struct report_tables *tables) {
    static const char *const columns[] = {"shape, B × S × H × D",
                                          "dtype",
                                          "batch × heads",
                                          "#ms",
                                          "#GFLOP/s",
                                          "#% of ceiling",
                                          "#speed-up",
                                          "#PyTorch ms",
                                          "#% of PyTorch's speed",
                                          "PyTorch's function",
                                          "gate",
                                          NULL};
    struct report_table *table =
        table_begin(tables, "attention-shapes", "Attention compared with a reference", columns);
    bool has_peer = false;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *r = &report->results.items[i];
        if (!is_of(r, "shapes", "attention_forward") || result_is_variant(r, "naive")) continue;
        const struct result *peer = peer_of(report, r), *unfused = report_baseline_of(report, r);
        bool is_wide = param(r, "head_dim") == 128;
        table_row(table);
        table_text(table, TONE_PLAIN, "%s",
                   is_wide ? "32 × 4096 × 32 × 128" : "16 × 2048 × 16 × 64");
        table_text(table, TONE_PLAIN, "%s", tsr_dtype_name(r->c.dtype));
        cell_of_size(table, r);
        table_number(table, TONE_PLAIN, result_device_ms(r), 4);
        table_number(table, TONE_PLAIN, 1e3 * r->tflops, 4);
        double share = share_cell(table, r->share_of_ceiling);
        table_number(table, TONE_PLAIN,
                     unfused != NULL ? result_device_ms(unfused) / result_device_ms(r) : NAN, 3);
        table_number(table, TONE_PLAIN, peer != NULL ? result_device_ms(peer) : NAN, 4);
        if (peer != NULL) share = peer->speedup_over_peer;
        table_number(table, TONE_PLAIN, peer != NULL ? 100 * share : NAN, 3);
        table_text(table, TONE_QUIET, "%s", peer != NULL ? peer->variant : "not installed");
        table_text(table, share > 0.6 ? TONE_GOOD : TONE_BAD, "%s", share > 0.6 ? "met" : "missed");
        has_peer |= peer != NULL;
    }
    table_note(table, "Forward without a mask. The gate is more than 60 %% of ");
    table_note(table,
               has_peer ? "the speed of PyTorch's fastest function, with the same tensors and "
                          "threads in one process."
                        : "the reference's speed; without PyTorch it is the measured ceiling that "
                          "counts.");
}

// ---- Forward and backward ---------------------------------------------------------------------

// The result of another pass or variant for the same published shape.
static const struct result *sibling(const struct report *report, const struct result *r,
                                    const char *op, const char *variant) {
    static const char *const names[] = {"batch_size", "seqlen_q", "num_heads", "head_dim"};
    for (int i = 0; i < report->results.count; i++) {
        const struct result *other = &report->results.items[i];
        bool is_same = is_of(other, "grid", op) && result_is_variant(other, variant) &&
                       strcmp(other->scaled_from, r->scaled_from) == 0;
        for (int n = 0; is_same && n < 4; n++)
            is_same = param(other, names[n]) == param(r, names[n]);
        if (is_same) return other;
    }
    return NULL;
}

static double ms_of(const struct result *r) { return r != NULL ? result_device_ms(r) : NAN; }

static void build_grid(const struct report *report, struct report_tables *tables) {
    static const char forward[] = "attention_forward", backward[] = "attention_backward";
    static const char *const columns[] = {
        "S × D",       "batch × heads", "the guide's batch × heads",
        "#forward ms", "#backward ms",  "#backward / forward",
        "#total ms",   "#speed-up",     "#memory, times less",
        "#GB/s",       "#GFLOP/s",      "#% of ceiling",
        NULL};
    struct report_table *table =
        table_begin(tables, "attention-grid", "Attention forward and backward", columns);
    const char *dtype = "";
    for (int i = 0; i < report->results.count; i++) {
        const struct result *f = &report->results.items[i];
        if (!is_of(f, "grid", forward) || result_is_variant(f, "naive")) continue;
        const struct result *b = sibling(report, f, backward, "tuned");
        const struct result *before = sibling(report, f, forward, "naive"),
                            *before_b = sibling(report, f, backward, "naive");
        double total = result_device_ms(f) + ms_of(b), asked_batch = 0, asked_heads = 0;
        bool is_scaled = sscanf(f->scaled_from, "batch_size=%lf", &asked_batch) == 1;
        const char *heads = strstr(f->scaled_from, "num_heads=");
        if (heads == NULL || sscanf(heads, "num_heads=%lf", &asked_heads) != 1)
            asked_heads = param(f, "num_heads");
        table_row(table);
        table_text(table, TONE_PLAIN, "%.0f\u00a0×\u00a0%.0f", param(f, "seqlen_q"),
                   param(f, "head_dim"));
        cell_of_size(table, f);
        if (is_scaled)
            table_text(table, TONE_QUIET, "%.0f × %.0f", asked_batch, asked_heads);
        else
            table_text(table, TONE_QUIET, "the same");
        table_number(table, TONE_PLAIN, result_device_ms(f), 4);
        table_number(table, TONE_PLAIN, ms_of(b), 4);
        table_number(table, TONE_QUIET, ms_of(b) / result_device_ms(f), 3);
        table_number(table, TONE_PLAIN, total, 4);
        table_number(table, TONE_PLAIN, (ms_of(before) + ms_of(before_b)) / total, 3);
        table_number(table, TONE_PLAIN,
                     b != NULL && before_b != NULL ? before_b->peak_bytes / b->peak_bytes : NAN, 3);
        table_number(table, TONE_QUIET, f->gb_s, 3);
        table_number(table, TONE_PLAIN,
                     b != NULL ? (result_flops(f) + result_flops(b)) / total / 1e6 : NAN, 4);
        share_cell(table,
                   b != NULL ? (f->ceiling_ms + b->ceiling_ms) / total : f->share_of_ceiling);
        dtype = tsr_dtype_name(f->c.dtype);
    }
    table_note(
        table,
        "In %s without a mask; backward gives dq, dk and dv. Total is one forward and one backward "
        "call; GFLOP/s and the share are those of the total, GB/s counts the tensors of forward "
        "once. Memory: the high-water mark of the unfused backward pass divided by that of the "
        "fused one.",
        dtype);
}

void tables_build_attention(const struct report *report, struct report_tables *tables) {
    build_sweep(report, tables);
    build_memory(report, tables);
    build_shapes(report, tables);
    build_grid(report, tables);
}
