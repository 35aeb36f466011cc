// SPDX-License-Identifier: Apache-2.0
// One case of the report: made from its parameters, shrunk until it fits the machine, and measured within its share of the
// remaining time.
#include <math.h>
#include <string.h>

#include "measure/measure.h"
#include "measure/tune_candidates.h"
#include "peers/peer_torch.h"
#include "report/report_collect.h"
#include "system/device_option.h"

// ---- Making and shrinking ---------------------------------------------------------------------

// Adds the operation, once, to the report's list of operations without a variant. Returns false.
static bool leave_out(struct collector *k, const char *op) {
    char *text = k->report->left_out;
    size_t used = strlen(text), room = sizeof k->report->left_out, length = strlen(op);
    for (const char *at = strstr(text, op); at != NULL; at = strstr(at + 1, op))
        if ((at == text || at[-1] == ' ') && (at[length] == '\0' || at[length] == ','))
            return false;
    if (used + length + 3 < room) snprintf(text + used, room - used, "%s%s", used ? ", " : "", op);
    return false;
}

bool collector_case(struct collector *k, const char *op, tsr_dtype dtype, const char *params,
                    struct op_case *c) {
    const struct op_spec *spec = spec_find(op);
    if (spec == NULL) return false;
    char error[256];
    *c = case_default(spec);
    c->dtype = dtype;
    if (!device_has_op(k->options->device, op)) return leave_out(k, op);
    if (case_set(c, params, error, sizeof error)) {
        struct op_case complete = *c; // only its tensors are taken; derived sizes may still change
        if (spec->complete != NULL) spec->complete(&complete);
        memcpy(c->is_present, complete.is_present, sizeof c->is_present);
        return true;
    }
    progress_note(&k->progress, "%s %s: %s", op, params, error);
    return false;
}

// The dimension that shrinks: the number of independent rows or problems.
static int shrinking_param(const struct op_case *c) {
    static const char *const names[] = {"batch",  "batch_size", "m",    "rows",
                                        "tokens", "count",      "numel"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int param = spec_param(c->spec, names[i]);
        if (param >= 0 && c->param[param] > 1) return param;
    }
    return -1;
}

// Halves that dimension, then the heads of attention, with those of k and v. False if nothing is left to halve.
static bool halve(struct op_case *c) {
    int param = shrinking_param(c);
    if (param >= 0) {
        c->param[param] = ceil(c->param[param] / 2);
        return true;
    }
    int heads = spec_param(c->spec, "num_heads"), kv_heads = spec_param(c->spec, "num_kv_heads");
    if (heads < 0 || kv_heads < 0 || c->param[heads] <= 1) return false;
    if (c->param[kv_heads] > 1 && c->param[kv_heads] != c->param[heads]) {
        double group = c->param[heads] / c->param[kv_heads];
        c->param[kv_heads] = ceil(c->param[kv_heads] / 2);
        c->param[heads] = group * c->param[kv_heads];
        return true;
    }
    bool is_multi_head = c->param[kv_heads] == c->param[heads];
    c->param[heads] = ceil(c->param[heads] / 2);
    if (is_multi_head) c->param[kv_heads] = c->param[heads];
    return true;
}

void collector_fit(struct collector *k, struct op_case *c, double longest_s) {
    const char *baseline = device_baseline(k->options->device, c->spec);
    for (;;) {
        double unfused = baseline == NULL ? NAN : measure_predict_bytes(k->session, c, baseline);
        double bytes = fmax(2 * case_bytes(c), unfused); // twice, for intermediates
        bool fits = !(bytes >= k->most_bytes);
        if (fits &&
            measure_floor_s(k->session, c, measure_fma_ceiling(k->session), true) < longest_s)
            return;
        if (!halve(c)) return;
    }
}

// ---- Measuring --------------------------------------------------------------------------------

static void say_shape(const struct op_case *c, char *text, size_t bytes) {
    size_t used = 0;
    for (int i = 0; c->spec->params[i].name != NULL && used < bytes; i++)
        if (c->spec->params[i].kind == PARAM_SIZE && c->param[i] > 0 &&
            (c->param[i] > 1 || c->param[i] != c->spec->params[i].standard))
            used += (size_t)snprintf(text + used, bytes - used, "%s%s=%.0f", used ? " " : "",
                                     c->spec->params[i].name, c->param[i]);
}

// The plain three loops of matmul would take minutes, so that baseline runs only on small shapes.
static bool has_affordable_baseline(const struct collector *k, const struct op_case *c) {
    if (device_baseline(k->options->device, c->spec) == NULL) return false;
    return strcmp(c->spec->op, "matmul_forward") != 0 || c->spec->flops(c) < 6e8;
}

static bool is_time_up(const struct collector *k) {
    return seconds_now() - k->started > k->stop_after;
}

// Seconds for each contender of a case: the remaining time is shared by the remaining cases.
static double share_time(const struct collector *k, int num_contenders) {
    double left_s = k->stop_after - (seconds_now() - k->started);
    double case_s = left_s / (double)(k->num_cases - k->num_done + 2);
    return fmin(k->most_s, fmax(0.02, (case_s - k->overhead_s) / num_contenders));
}

// Measures torch in turns with ours, on tensors of torch's process.
static void measure_torch(struct collector *k, const struct report_case *given,
                          const struct op_case *c) {
    struct result result;
    char error[512];
    if (k->torch == NULL || !given->has_peer) return;
    const char *ours = k->options->device.type == TSR_CPU ? given->variants[0] : NULL;
    enum measure_outcome outcome =
        peer_torch_measure(k->torch, k->session, c, ours, &result, error, sizeof error);
    if (outcome != MEASURE_OK) {
        progress_note(&k->progress, "torch: %s", error);
        return;
    }
    result.study = given->study;
    result_add(&k->report->results, &result);
}

// Studies name variants of the CPU. On a GPU the first becomes the library's choice, and the others become the CUDA
// variants of the same name, if there are any.
static int variants_here(const struct collector *k, const struct op_spec *spec,
                         const char **variants, int count) {
    tsr_variant_info info;
    int kept = 0;
    if (k->options->device.type == TSR_CPU) return count;
    for (int i = 0; i < count; i++) {
        const char *here = NULL;
        for (int v = 0; i > 0 && tsr_variant_info_get(spec->op, v, &info) == TSR_OK; v++)
            if (device_has_variant(k->options->device, &info) &&
                strncmp(info.name, "cuda-", 5) == 0 && strcmp(info.name + 5, variants[i]) == 0)
                here = info.name;
        if (i == 0 || here != NULL) variants[kept++] = here;
    }
    return kept;
}

// Adds the library's choice and the tiles that a tuning file could choose instead. The caller removes their files.
static int add_tiles(struct collector *k, const struct op_case *c, struct tune_candidate *tiles,
                     struct measure_entry *entries) {
    int count = tune_tiles(k->session, c, tiles);
    for (int i = 1; i < count; i++) entries[i].tuning_file = tiles[i].file;
    return count;
}

static int list_entries(struct collector *k, const struct report_case *given, struct op_case *c,
                        struct tune_candidate *tiles, struct measure_entry *entries) {
    const char *variants[MEASURE_MAX_CONTENDERS];
    int count = given->num_variants;
    if (count == 0) collector_fit(k, c, k->longest_call_s);
    if (given->has_tiles) return add_tiles(k, c, tiles, entries);
    memcpy(variants, given->variants, sizeof variants);
    if (count == 0) {
        count = has_affordable_baseline(k, c) ? 2 : 1;
        variants[0] = NULL;
        variants[1] = device_baseline(k->options->device, c->spec);
    } else {
        count = variants_here(k, c->spec, variants, count);
    }
    for (int i = 0; i < count; i++) entries[i].variant = variants[i];
    return count;
}

void collector_measure(struct collector *k, const struct report_case *given) {
    struct op_case c = given->c;
    struct measure_entry entries[MEASURE_MAX_CONTENDERS] = {0};
    struct tune_candidate tiles[MEASURE_MAX_CONTENDERS];
    enum measure_outcome outcomes[MEASURE_MAX_CONTENDERS];
    struct result results[MEASURE_MAX_CONTENDERS];
    char text[256], step[320];
    k->num_done++;
    if (is_time_up(k)) {
        k->report->is_stopped_early = true;
        return;
    }
    int count = list_entries(k, given, &c, tiles, entries);
    double case_started = seconds_now(), budget_s = share_time(k, count);
    snprintf(step, sizeof step, "%s %s %s", c.spec->op, tsr_dtype_name(c.dtype),
             case_text(&c, text, sizeof text));
    progress_step(&k->progress, k->num_done, step);
    measure_options_of(k->session)->budget_s = budget_s;
    measure_entries(k->session, &c, entries, count, results, outcomes);
    if (given->has_tiles) tune_candidates_remove(tiles, count);
    double overhead_s = seconds_now() - case_started - count * budget_s;
    k->overhead_s += 0.2 * (fmax(overhead_s, 0) - k->overhead_s);
    bool is_scaled = memcmp(given->asked.param, c.param, sizeof c.param) != 0;
    for (int i = 0; i < count; i++) {
        if (outcomes[i] == MEASURE_UNSUPPORTED && i > 0) continue;
        if (outcomes[i] != MEASURE_OK)
            progress_note(&k->progress, "%s: %s", step, measure_error_of(k->session, i));
        if (outcomes[i] == MEASURE_WRONG) k->is_wrong = true;
        if (outcomes[i] != MEASURE_OK) continue;
        if (is_scaled)
            say_shape(&given->asked, results[i].scaled_from, sizeof results[i].scaled_from);
        if (given->study != NULL && !given->has_tiles)
            results[i].asked_bytes =
                measure_predict_bytes(k->session, &given->asked, results[i].variant);
        results[i].study = given->study;
        results[i].is_choice = entries[i].variant == NULL && i == 0;
        if (given->has_tiles && i > 0)
            snprintf(results[i].variant, sizeof results[i].variant, "%.31s", tiles[i].name);
        result_add(&k->report->results, &results[i]);
    }
    if (outcomes[0] == MEASURE_OK) measure_torch(k, given, &c);
}
