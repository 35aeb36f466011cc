// SPDX-License-Identifier: Apache-2.0
// Computes and writes the rows of `tessera memory`.
#include "measure/memory_rows.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure/measure_session.h"
#include "system/heap.h"

void memory_rows_free(struct memory_rows *rows) {
    free(rows->items);
    *rows = (struct memory_rows){0};
}

// ---- Computing --------------------------------------------------------------------------------

static struct memory_row *add(struct memory_rows *rows) {
    if (rows->count == rows->capacity) {
        rows->capacity = rows->capacity > 0 ? 2 * rows->capacity : 16;
        rows->items = heap_grow(rows->items, (size_t)rows->capacity, sizeof *rows->items);
    }
    return &rows->items[rows->count++];
}

// The traffic of the form, and the time of traffic and FLOPs at the ceilings.
static void place(struct memory_row *row, struct measure_session *session, const char *variant) {
    const struct op_case *c = &row->result.c;
    struct op_traffic t;
    row->flops = c->spec->flops(c);
    row->num_launches = row->read_bytes = row->write_bytes = row->intensity = NAN;
    row->bandwidth = row->floor_ms = row->attainable_tflops = NAN;
    if (!traffic_of_variant(c, variant, &t)) return;
    row->num_launches = t.num_passes;
    row->read_bytes = t.read_bytes;
    row->write_bytes = t.write_bytes;
    double bytes = t.read_bytes + t.write_bytes;
    double working_set =
        isfinite(row->result.predicted_bytes) ? row->result.predicted_bytes : row->tensor_bytes;
    double memory_s = measure_traffic_s(session, t.read_bytes, t.write_bytes, working_set);
    tsr_probe_kind unit = measure_unit_of(session, c, row->result.variant);
    double compute_s = row->flops / (unit == TSR_PROBE_FMA ? measure_fma_ceiling(session)
                                                           : measure_unit_ceiling(session, unit));
    row->intensity = bytes > 0 ? row->flops / bytes : NAN;
    row->bandwidth = memory_s > 0 ? bytes / memory_s : NAN;
    row->is_memory_bound = memory_s > compute_s;
    row->floor_ms = 1e3 * fmax(memory_s, compute_s);
    row->attainable_tflops = row->floor_ms > 0 ? 1e-9 * row->flops / row->floor_ms : NAN;
}

static double share_saved(double bytes, double of) { return of > 0 ? 1 - bytes / of : NAN; }

static void compare(struct memory_row *rows, int count) {
    const struct memory_row *baseline = NULL;
    for (int i = 0; i < count; i++)
        if (rows[i].is_baseline) baseline = &rows[i];
    for (int i = 0; i < count; i++) {
        struct memory_row *row = &rows[i];
        row->traffic_saved = row->bytes_saved = NAN;
        if (baseline == NULL || row == baseline) continue;
        row->traffic_saved = share_saved(row->read_bytes + row->write_bytes,
                                         baseline->read_bytes + baseline->write_bytes);
        bool is_measured =
            isfinite(row->result.peak_bytes) && isfinite(baseline->result.peak_bytes);
        row->bytes_saved =
            is_measured
                ? share_saved(row->result.peak_bytes, baseline->result.peak_bytes)
                : share_saved(row->result.predicted_bytes, baseline->result.predicted_bytes);
    }
}

void memory_rows_add(struct memory_rows *rows, struct measure_session *session,
                     const struct op_case *c, const char *const *variants, int count,
                     enum measure_outcome *outcomes) {
    struct result results[MEASURE_MAX_CONTENDERS];
    measure_variants(session, c, variants, count, results, outcomes);
    rows->memory_bandwidth = measure_bandwidth(session, INFINITY)->copy;
    rows->num_threads = measure_machine(session)->num_threads;
    snprintf(rows->machine, sizeof rows->machine, "%s",
             is_on_device(session) ? tsr_device_name(session->options.device)
                                   : tsr_isa_name(measure_machine(session)->isa));
    int first = rows->count;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < count; i++) {
            bool is_baseline = spec_is_baseline(c->spec, variants[i]);
            bool is_known = outcomes[i] == MEASURE_OK ||
                            (outcomes[i] == MEASURE_FAILED && isfinite(results[i].predicted_bytes));
            if (is_baseline != (pass == 0) || !is_known) continue;
            struct memory_row *row = add(rows);
            *row = (struct memory_row){.result = results[i], .is_baseline = is_baseline};
            row->tensor_bytes = inputs_bytes(c);
            row->workspace_bytes = results[i].predicted_bytes - row->tensor_bytes;
            place(row, session, variants[i]);
        }
    rows->fma_flops = measure_fma_ceiling(session); // again, because the rows may have raised it
    compare(rows->items + first, rows->count - first);
}

// ---- JSON and CSV -----------------------------------------------------------------------------

static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }
static json_t *whole(double value) {
    return isfinite(value) ? json_integer((json_int_t)llround(value)) : json_null();
}

// The row as bench has it, with the fields of memory added.
static json_t *row_json(const struct memory_row *row) {
    json_t *object = result_json(&row->result);
#define SET(name, value) json_object_set_new(object, name, value)
    SET("form", json_string(row->is_baseline ? "unfused" : "fused"));
    SET("launches", whole(row->num_launches));
    SET("read_bytes", whole(row->read_bytes));
    SET("write_bytes", whole(row->write_bytes));
    SET("traffic_bytes", whole(row->read_bytes + row->write_bytes));
    SET("flops", number(row->flops));
    SET("intensity", number(row->intensity));
    SET("bandwidth_gb_s", number(1e-9 * row->bandwidth));
    SET("floor_ms", number(row->floor_ms));
    SET("bound_by", !isfinite(row->floor_ms) ? json_null()
                    : row->is_memory_bound   ? json_string("memory")
                                             : json_string("compute"));
    SET("attainable_tflops", number(row->attainable_tflops));
    SET("share_of_roofline", number(row->floor_ms / result_device_ms(&row->result)));
    SET("tensor_bytes", whole(row->tensor_bytes));
    SET("workspace_bytes", whole(row->workspace_bytes));
    SET("traffic_saved", number(row->traffic_saved));
    SET("bytes_saved", number(row->bytes_saved));
#undef SET
    return object;
}

static bool write_json(FILE *out, const struct memory_rows *rows) {
    json_t *results = json_array();
    for (int i = 0; i < rows->count; i++) json_array_append_new(results, row_json(&rows->items[i]));
    json_t *document =
        json_pack("{s:i, s:o, s:{s:i, s:s, s:o, s:o, s:o}, s:o}", "schema", 1, "env",
                  result_env_json(), "ceilings", "threads", rows->num_threads, "isa", rows->machine,
                  "fma_gflop_s", number(1e-9 * rows->fma_flops), "memory_gb_s",
                  number(1e-9 * rows->memory_bandwidth), "ridge_flops_per_byte",
                  number(rows->fma_flops / rows->memory_bandwidth), "results", results);
    bool is_written = json_dumpf(document, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(document);
    return is_written && fputc('\n', out) != EOF;
}

static void csv_field(FILE *out, const json_t *value) {
    if (json_is_real(value)) fprintf(out, "%.9g", json_real_value(value));
    if (json_is_integer(value)) fprintf(out, "%lld", (long long)json_integer_value(value));
    if (json_is_string(value)) fprintf(out, "\"%s\"", json_string_value(value));
}

static void write_csv(FILE *out, const struct memory_rows *rows) {
    static const char *const columns[] = {"op",
                                          "params",
                                          "dtype",
                                          "variant",
                                          "form",
                                          "launches",
                                          "read_bytes",
                                          "write_bytes",
                                          "traffic_bytes",
                                          "flops",
                                          "intensity",
                                          "bandwidth_gb_s",
                                          "bound_by",
                                          "floor_ms",
                                          "median_ms",
                                          "tflops",
                                          "attainable_tflops",
                                          "share_of_roofline",
                                          "tensor_bytes",
                                          "workspace_bytes",
                                          "predicted_bytes",
                                          "peak_bytes",
                                          "traffic_saved",
                                          "bytes_saved"};
    enum { NUM_COLUMNS = sizeof columns / sizeof *columns };
    for (int i = 0; i < NUM_COLUMNS; i++) fprintf(out, "%s%s", i > 0 ? "," : "", columns[i]);
    for (int r = 0; r < rows->count; r++) {
        json_t *object = row_json(&rows->items[r]);
        char params[512];
        case_text(&rows->items[r].result.c, params, sizeof params);
        json_object_set_new(object, "params", json_string(params));
        for (int i = 0; i < NUM_COLUMNS; i++) {
            fputc(i > 0 ? ',' : '\n', out);
            csv_field(out, json_object_get(object, columns[i]));
        }
        json_decref(object);
    }
    fputc('\n', out);
}

// ---- Markdown ---------------------------------------------------------------------------------

static void cell(FILE *out, double value, double scale, int digits, const char *unit) {
    if (isfinite(value))
        fprintf(out, " %.*f%s |", digits, value * scale, unit);
    else
        fputs(" - |", out);
}

// Prints three or four digits for any size.
static void amount(FILE *out, double value, double scale) {
    double v = fabs(value * scale);
    cell(out, value, scale, v < 0.1 ? 4 : v < 10 ? 2 : v < 1000 ? 1 : 0, "");
}

static void write_md(FILE *out, const struct memory_rows *rows) {
    bool has_reason = false;
    fputs("| operation | shape | dtype | variant | form | launches | read MB | written MB "
          "| FLOP/byte | bound by | floor ms | ms | of roofline | workspace MB | predicted MB "
          "| measured MB | traffic saved | memory saved |\n"
          "|---|---|---|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
          out);
    for (int i = 0; i < rows->count; i++) {
        const struct memory_row *row = &rows->items[i];
        char shape[512];
        fprintf(out, "| %s | %s | %s | %s | %s |", row->result.c.spec->op,
                case_text(&row->result.c, shape, sizeof shape), tsr_dtype_name(row->result.c.dtype),
                row->result.variant, row->is_baseline ? "unfused" : "fused");
        cell(out, row->num_launches, 1, 0, "");
        amount(out, row->read_bytes, 1e-6);
        amount(out, row->write_bytes, 1e-6);
        amount(out, row->intensity, 1);
        fprintf(out, " %s |",
                !isfinite(row->floor_ms) ? "-"
                : row->is_memory_bound   ? "memory"
                                         : "compute");
        amount(out, row->floor_ms, 1);
        amount(out, result_device_ms(&row->result), 1);
        cell(out, row->floor_ms / result_device_ms(&row->result), 100, 0, " %");
        amount(out, row->workspace_bytes, 1e-6);
        amount(out, row->result.predicted_bytes, 1e-6);
        amount(out, row->result.peak_bytes, 1e-6);
        cell(out, row->traffic_saved, 100, 0, " %");
        cell(out, row->bytes_saved, 100, 0, " %");
        fputc('\n', out);
        has_reason |= !isfinite(row->result.peak_bytes);
    }
    fputs("\nRoofline, ", out);
    if (rows->num_threads > 0)
        fprintf(out, "%d thread%s of ", rows->num_threads, rows->num_threads > 1 ? "s" : "");
    fprintf(out,
            "%s, measured: fp32 FMA %.1f GFLOP/s, memory %.1f GB/s "
            "(copy), ridge at %.1f FLOP/byte; each row has the bandwidth of its own working set. "
            "Traffic counts sweeps over tensors and ignores caches. Predicted memory: tensors and "
            "workspace by _prepare; measured memory: %s.\n",
            rows->machine, 1e-9 * rows->fma_flops, 1e-9 * rows->memory_bandwidth,
            rows->fma_flops / rows->memory_bandwidth,
            rows->num_threads > 0 ? "the high-water mark of the allocation table"
                                  : "tensors and the most that a call took from the arena");
    if (has_reason) fputs("Rows without a time did not fit into this machine's memory.\n", out);
}

bool memory_rows_write(FILE *out, const struct memory_rows *rows, enum result_format format) {
    bool is_written = true;
    if (format == FORMAT_JSON)
        is_written = write_json(out, rows);
    else if (format == FORMAT_CSV)
        write_csv(out, rows);
    else
        write_md(out, rows);
    return is_written && fflush(out) == 0 && !ferror(out);
}
