// SPDX-License-Identifier: Apache-2.0
// Results as markdown, CSV, JSON and JSON lines. A value that does not apply is null, an empty
// field, or "-".
#define _GNU_SOURCE
#include "files/result.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "system/environment.h"
#include "system/files.h"
#include "system/heap.h"

void result_add(struct result_list *list, const struct result *result) {
    if (list->count == list->capacity) {
        list->capacity = list->capacity > 0 ? 2 * list->capacity : 16;
        list->items = heap_grow(list->items, (size_t)list->capacity, sizeof *list->items);
    }
    list->items[list->count++] = *result;
}

void result_list_free(struct result_list *list) {
    free(list->items);
    *list = (struct result_list){0};
}

double result_device_ms(const struct result *result) {
    return isfinite(result->graph_ms) ? result->graph_ms : result->median_ms;
}

struct result result_empty(const struct op_case *c) {
    struct result r = {
        .c = *c,
        .median_ms = NAN,
        .p20_ms = NAN,
        .p80_ms = NAN,
        .graph_ms = NAN,
        .tflops = NAN,
        .gb_s = NAN,
        .ceiling_ms = NAN,
        .share_of_ceiling = NAN,
        .unit_gflops = NAN,
        .speedup_over_naive = NAN,
        .asked_bytes = NAN,
        .ours_ms = NAN,
        .ours_call_ms = NAN,
        .speedup_over_peer = NAN,
        .max_abs_err = NAN,
        .mean_abs_err = NAN,
        .max_rel_err = NAN,
        .err_over_bound = NAN,
        .peak_bytes = NAN,
        .predicted_bytes = NAN,
        .joules = NAN,
        .times = NAN,
        .efficiency = NAN,
        .efficiency_apart = NAN,
    };
    memset(r.c.tensor, 0, sizeof r.c.tensor);
    return r;
}

static const char *const formats[] = {"md", "csv", "json", "jsonl"};

bool result_format_parse(const char *name, enum result_format *format) {
    for (int i = 0; i <= FORMAT_JSONL; i++)
        if (strcmp(name, formats[i]) == 0) {
            *format = (enum result_format)i;
            return true;
        }
    return false;
}

// ---- JSON -------------------------------------------------------------------------------------

static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *whole(double value) {
    return isfinite(value) ? json_integer((json_int_t)llround(value)) : json_null();
}

static json_t *text(const char *value) {
    json_t *string = value != NULL && *value != '\0' ? json_string(value) : NULL;
    return string != NULL ? string : json_null(); // NULL for text that is not UTF-8, too
}

static json_t *param_json(const struct param_spec *param, double value) {
    switch (param->kind) {
    case PARAM_CHOICE: return text(param->choices[(int)value]);
    case PARAM_FLAG: return json_boolean(value != 0);
    case PARAM_REAL: return number(value);
    default: return whole(value);
    }
}

json_t *result_params_json(const struct op_case *c) {
    json_t *params = json_object();
    for (int i = 0; c->spec->params[i].name != NULL; i++)
        json_object_set_new(params, c->spec->params[i].name,
                            param_json(&c->spec->params[i], c->param[i]));
    for (int s = 0; c->spec->slots[s].name != NULL; s++)
        if (c->spec->slots[s].is_optional && c->is_present[s])
            json_object_set_new(params, c->spec->slots[s].name, json_true());
    return params;
}

json_t *result_json(const struct result *r) {
    json_t *object = json_object();
#define SET(name, value) json_object_set_new(object, name, value)
    SET("op", text(r->c.spec->op));
    SET("params", result_params_json(&r->c));
    SET("dtype", text(tsr_dtype_name(r->c.dtype)));
    SET("device", text(r->device[0] != '\0' ? r->device : "cpu"));
    SET("isa", text(r->isa));
    SET("threads", json_integer(r->num_threads));
    SET("variant", text(r->variant));
    SET("peer", text(r->peer));
    SET("median_ms", number(r->median_ms));
    SET("p20_ms", number(r->p20_ms));
    SET("p80_ms", number(r->p80_ms));
    SET("graph_ms", number(r->graph_ms));
    SET("tflops", number(r->tflops));
    SET("gb_s", number(r->gb_s));
    SET("ceiling_ms", number(r->ceiling_ms));
    SET("share_of_ceiling", number(r->share_of_ceiling));
    SET("speedup_over_naive", number(r->speedup_over_naive));
    SET("ours_ms", number(r->ours_ms));
    SET("ours_call_ms", number(r->ours_call_ms));
    SET("speedup_over_peer", number(r->speedup_over_peer));
    SET("max_abs_err", number(r->max_abs_err));
    SET("mean_abs_err", number(r->mean_abs_err));
    SET("max_rel_err", number(r->max_rel_err));
    SET("err_over_bound", number(r->err_over_bound));
    SET("peak_bytes", whole(r->peak_bytes));
    SET("predicted_bytes", whole(r->predicted_bytes));
    SET("joules", number(r->joules));
    SET("samples", json_integer(r->num_samples));
    SET("samples_set_aside", json_integer(r->num_set_aside));
    SET("cache", text(r->is_cold ? "cold" : "warm"));
    SET("throttled", json_boolean(r->is_throttled));
    SET("scaled_from", text(r->scaled_from));
    SET("asked_bytes", whole(r->asked_bytes));
    SET("study", r->study != NULL ? json_string(r->study) : json_null());
    SET("times", number(r->times));
    SET("efficiency", number(r->efficiency));
    SET("efficiency_apart", number(r->efficiency_apart));
#undef SET
    return object;
}

static json_t *version_json(int version) {
    char name[32];
    if (version == 0) return json_null();
    snprintf(name, sizeof name, "%d.%d", version / 1000, version % 1000 / 10);
    return json_string(name);
}

json_t *result_env_json(void) {
    const struct environment *e = environment_get();
    json_t *object = json_object();
#define SET(name, value) json_object_set_new(object, name, value)
    SET("host", text(e->host));
    SET("cpu", text(e->cpu));
    SET("isa", text(tsr_isa_name(e->isa)));
    SET("threads", json_integer(e->num_threads));
    SET("gpu", text(e->gpu));
    SET("driver", version_json(e->driver_version));
    SET("nvrtc", version_json(e->nvrtc_version));
    SET("version", text(e->version));
    SET("clocks", text(e->clocks));
    SET("gpu_clock_mhz", number(e->sm_clock_mhz));
    SET("power_limit", number(e->power_limit_w));
    SET("l1_bytes", json_integer(e->l1_bytes));
    SET("l2_bytes", json_integer(e->l2_bytes));
    SET("l3_bytes", json_integer(e->l3_bytes));
    SET("memory_bytes", json_integer(e->memory_bytes));
    SET("os", text(e->os));
    SET("kernel", text(e->kernel));
    SET("compiler", text(e->compiler));
    SET("date", text(e->date));
    SET("command", text(e->command));
#undef SET
    return object;
}

json_t *result_list_json(const struct result_list *list) {
    json_t *document = json_object(), *results = json_array();
    for (int i = 0; i < list->count; i++)
        json_array_append_new(results, result_json(&list->items[i]));
    json_object_set_new(document, "schema", json_integer(1));
    json_object_set_new(document, "env", result_env_json());
    json_object_set_new(document, "results", results);
    return document;
}

static void write_json(FILE *out, json_t *document, size_t flags) {
    json_dumpf(document, out, flags | JSON_REAL_PRECISION(9));
    fputc('\n', out);
    json_decref(document);
}

// ---- CSV: one line per result, the JSON's names -----------------------------------------------

static void csv_field(FILE *out, const json_t *value) {
    const char *string = json_string_value(value);
    if (json_is_real(value))
        fprintf(out, "%.9g", json_real_value(value));
    else if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "true" : "false", out);
    else if (string != NULL) {
        fputc('"', out);
        for (; *string != '\0'; string++) fprintf(out, *string == '"' ? "\"\"" : "%c", *string);
        fputc('"', out);
    }
}

static void write_csv(FILE *out, const struct result_list *list) {
    for (int i = 0; i < list->count; i++) {
        json_t *object = result_json(&list->items[i]), *value;
        const char *key;
        char params[512];
        case_text(&list->items[i].c, params, sizeof params);
        json_object_set_new(object, "params", text(params)); // rows=4 cols=5 +bias
        if (i == 0) {
            bool is_first = true;
            json_object_foreach(object, key, value) {
                fprintf(out, "%s%s", is_first ? "" : ",", key);
                is_first = false;
            }
            fputc('\n', out);
        }
        bool is_first = true;
        json_object_foreach(object, key, value) {
            if (!is_first) fputc(',', out);
            csv_field(out, value);
            is_first = false;
        }
        fputc('\n', out);
        json_decref(object);
    }
}

// ---- Markdown ---------------------------------------------------------------------------------

static void cell(FILE *out, const char *format, double value, double scale)
    __attribute__((format(printf, 2, 0)));
static void cell(FILE *out, const char *format, double value, double scale) {
    if (!isfinite(value))
        fputs(" - |", out);
    else {
        fputc(' ', out);
        fprintf(out, format, value * scale);
        fputs(" |", out);
    }
}

// Four significant digits without an exponent.
static void time_cell(FILE *out, double ms) {
    cell(out, ms < 0.01 ? "%.5f" : ms < 1 ? "%.4f" : ms < 100 ? "%.3f" : "%.1f", ms, 1);
}

// With peers the table has two more columns: our time in turns with the peer, and the peer's time divided by it. Sweeps add
// four columns, and --apart one.
static void write_md(FILE *out, const struct result_list *list) {
    bool is_throttled = false, has_peer = false, has_device = false, has_sweep = false,
         has_apart = false;
    for (int i = 0; i < list->count; i++) {
        has_sweep |= isfinite(list->items[i].efficiency);
        has_apart |= isfinite(list->items[i].efficiency_apart);
        has_peer |= list->items[i].peer != NULL;
        has_device |= isfinite(list->items[i].graph_ms);
    }
    fprintf(
        out,
        "| operation | shape | dtype | variant | %s%smedian ms | p20 | p80 | %s%sTFLOP/s | GB/s "
        "| of ceiling | speed-up | err/bound | peak MB | predicted MB | cache |\n"
        "|---|---|---|---|%s%s--:|--:|--:|%s%s--:|--:|--:|--:|--:|--:|--:|---|\n",
        has_sweep ? "over | threads | times | efficiency | " : "", has_apart ? "apart | " : "",
        has_device ? "device ms | " : "", has_peer ? "ours, ms | peer / ours | " : "",
        has_sweep ? "---|--:|--:|--:|" : "", has_apart ? "--:|" : "", has_device ? "--:|" : "",
        has_peer ? "--:|--:|" : "");
    for (int i = 0; i < list->count; i++) {
        const struct result *r = &list->items[i];
        char shape[512];
        fprintf(out, "| %s | %s%s%s | %s | %s%s%s |", r->c.spec->op,
                case_text(&r->c, shape, sizeof shape), r->scaled_from[0] ? ", for " : "",
                r->scaled_from, tsr_dtype_name(r->c.dtype), r->peer ? r->peer : "",
                r->peer ? ": " : "", r->variant);
        if (has_sweep) {
            fprintf(out, " %s | %d |", r->study != NULL ? r->study : "-", r->num_threads);
            cell(out, "%.4g", r->times, 1);
            cell(out, "%.0f %%", r->efficiency, 100);
        }
        if (has_apart) cell(out, "%.0f %%", r->efficiency_apart, 100);
        time_cell(out, r->median_ms);
        time_cell(out, r->p20_ms);
        time_cell(out, r->p80_ms);
        if (has_device) time_cell(out, r->graph_ms);
        if (has_peer) {
            time_cell(out, r->ours_ms);
            cell(out, "%.2fx", r->speedup_over_peer, 1);
        }
        cell(out, "%.4f", r->tflops, 1);
        cell(out, "%.1f", r->gb_s, 1);
        cell(out, "%.0f %%", r->share_of_ceiling, 100);
        cell(out, "%.2fx", r->speedup_over_naive, 1);
        cell(out, "%.3f", r->err_over_bound, 1);
        cell(out, "%.1f", r->peak_bytes, 1e-6);
        cell(out, "%.1f", r->predicted_bytes, 1e-6);
        fprintf(out, " %s%s |\n", r->is_cold ? "cold" : "warm", r->is_throttled ? " *" : "");
        is_throttled |= r->is_throttled;
    }
    if (is_throttled)
        fputs("\n\\* throttled: too few samples ran at the full clock without other processes; "
              "the best ones are shown.\n",
              out);
}

// ---- Writing ----------------------------------------------------------------------------------

bool result_write(FILE *out, const struct result_list *list, enum result_format format) {
    switch (format) {
    case FORMAT_MD: write_md(out, list); break;
    case FORMAT_CSV: write_csv(out, list); break;
    case FORMAT_JSON: write_json(out, result_list_json(list), JSON_INDENT(2)); break;
    case FORMAT_JSONL:
        for (int i = 0; i < list->count; i++)
            write_json(out, result_json(&list->items[i]), JSON_COMPACT);
        break;
    }
    return fflush(out) == 0 && !ferror(out);
}

struct written {
    const struct result_list *list;
    enum result_format format;
};

static bool write_list(FILE *out, const void *what) {
    const struct written *written = what;
    return result_write(out, written->list, written->format);
}

bool result_write_file(const char *path, const struct result_list *list,
                       enum result_format format) {
    return file_write(path, write_list, &(struct written){list, format});
}
