// SPDX-License-Identifier: Apache-2.0
#include "measure/tune_table.h"

#include <jansson.h>
#include <math.h>

// ---- The table --------------------------------------------------------------------------------

static const char *verdict(const struct tune_row *row) {
    if (row->is_chosen) return row->is_built_in ? "built-in, stays" : "best";
    return row->is_built_in ? "built-in" : row->is_dropped ? "dropped early" : "";
}

void tune_table_write_md(FILE *out, const struct tune_table *table) {
    fputs("| operation | shape | dtype | candidate | median ms | p20 | p80 | of built-in | model | "
          "err/bound | |\n|---|---|---|---|--:|--:|--:|--:|--:|--:|---|\n",
          out);
    for (int i = 0; i < table->num_rows; i++) {
        const struct tune_row *row = &table->rows[i];
        const struct result *r = &row->result;
        char text[256], model[32] = "-", error[32] = "-";
        if (isfinite(row->model)) snprintf(model, sizeof model, "%.3f", row->model);
        if (isfinite(r->err_over_bound)) snprintf(error, sizeof error, "%.3f", r->err_over_bound);
        fprintf(out, "| %s | %s | %s | %s | %.4g | %.4g | %.4g | %.2f | %s | %s | %s%s |\n",
                r->c.spec->op, case_text(&r->c, text, sizeof text), tsr_dtype_name(r->c.dtype),
                row->candidate, result_device_ms(r), r->p20_ms, r->p80_ms, row->ratio, model, error,
                verdict(row), r->is_throttled ? " *" : "");
    }
    for (int i = 0; i < table->num_rows; i++)
        if (table->rows[i].result.is_throttled) {
            fputs(
                "\n\\* throttled: too few samples ran at the full clock without other processes.\n",
                out);
            break;
        }
}

void tune_table_write_json(FILE *out, const struct tune_table *table, const char *file) {
    json_t *document = json_object(), *rows = json_array(), *lines = json_array();
    for (int i = 0; i < table->num_rows; i++) {
        const struct tune_row *row = &table->rows[i];
        json_t *object = result_json(&row->result);
        json_object_set_new(object, "candidate", json_string(row->candidate));
        json_object_set_new(object, "of_built_in", json_real(row->ratio));
        json_object_set_new(object, "built_in", json_boolean(row->is_built_in));
        json_object_set_new(object, "chosen", json_boolean(row->is_chosen));
        json_object_set_new(object, "given_up", json_boolean(row->is_dropped));
        json_object_set_new(object, "model",
                            isfinite(row->model) ? json_real(row->model) : json_null());
        json_array_append_new(rows, object);
    }
    for (int i = 0; i < table->num_lines; i++)
        json_array_append_new(lines, json_pack("{s:s, s:s}", "key", table->lines[i].key, "choice",
                                               table->lines[i].choice));
    json_object_set_new(document, "schema", json_integer(1));
    json_object_set_new(document, "env", result_env_json());
    json_object_set_new(document, "file", file != NULL ? json_string(file) : json_null());
    json_object_set_new(document, "results", rows);
    json_object_set_new(document, "rows", lines);
    json_dumpf(document, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    fputc('\n', out);
    json_decref(document);
}
