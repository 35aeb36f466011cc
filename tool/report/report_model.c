// SPDX-License-Identifier: Apache-2.0
// Figures derived from the measured rows: pairs of fused and unfused, limits, levels, grades, the
// BERT estimate.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"

void report_free(struct report *report) {
    result_list_free(&report->results);
    verify_report_free(&report->verify);
}

// ---- Rows and their baselines -----------------------------------------------------------------

bool report_is_plain(const struct report *report, const struct result *result) {
    return result->peer == NULL && result->study == NULL &&
           result->num_threads == report->machine.num_threads;
}

bool result_is_baseline(const struct result *result) {
    return spec_is_baseline(result->c.spec, result->variant);
}

bool result_is_variant(const struct result *result, const char *name) {
    static const char prefix[] = "cuda-";
    const char *variant = result->variant;
    if (result->device[0] == '\0') return strcmp(variant, name) == 0;
    if (strncmp(variant, prefix, sizeof prefix - 1) == 0) variant += sizeof prefix - 1;
    if (strcmp(name, "tuned") == 0) return result->is_choice;
    return !result->is_choice && strcmp(variant, name) == 0;
}

const char *report_units(const struct report *report, char *buffer, size_t bytes) {
    const struct report_machine *m = &report->machine;
    int count = m->is_gpu ? m->num_sms : m->num_threads;
    snprintf(buffer, bytes, "%d %s%s", count, m->is_gpu ? "multiprocessor" : "thread",
             count == 1 ? "" : "s");
    return buffer;
}

bool result_has_unfused(const struct result *result) {
    const char *baseline = result->c.spec->baseline;
    return baseline != NULL && strcmp(baseline, "unfused") == 0;
}

static bool is_same_case(const struct op_case *a, const struct op_case *b) {
    return a->spec == b->spec && a->dtype == b->dtype && a->small_dtype == b->small_dtype &&
           memcmp(a->param, b->param, sizeof a->param) == 0 &&
           memcmp(a->is_present, b->is_present, sizeof a->is_present) == 0;
}

const struct result *report_baseline_of(const struct report *report, const struct result *result) {
    for (int i = 0; i < report->results.count; i++) {
        const struct result *other = &report->results.items[i];
        if (result_is_baseline(other) && other->peer == NULL &&
            other->num_threads == result->num_threads && is_same_case(&other->c, &result->c))
            return other;
    }
    return NULL;
}

const char *result_shape(const struct result *result, char *buffer, size_t bytes) {
    const struct op_case *c = &result->c;
    size_t used = 0;
    if (bytes > 0) *buffer = '\0';
    for (int i = 0; c->spec->params[i].name != NULL && used < bytes; i++) {
        const struct param_spec *param = &c->spec->params[i];
        if (strncmp(param->name, "has_", 4) == 0) continue; // the value itself shows it
        if (param->kind == PARAM_SIZE) {
            if (c->param[i] == param->standard && c->param[i] <= 1) continue;
            used += (size_t)snprintf(buffer + used, bytes - used, "%s%s %.0f", used ? ", " : "",
                                     param->name, c->param[i]);
        } else if (c->param[i] != param->standard) {
            if (param->kind == PARAM_CHOICE)
                used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", used ? ", " : "",
                                         param->choices[(int)c->param[i]]);
            else if (param->kind == PARAM_FLAG)
                used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", used ? ", " : "",
                                         param->name);
            else
                used += (size_t)snprintf(buffer + used, bytes - used, "%s%s %g", used ? ", " : "",
                                         param->name, c->param[i]);
        }
    }
    for (int s = 0; c->spec->slots[s].name != NULL && used < bytes; s++)
        if (c->spec->slots[s].is_optional && c->is_present[s])
            used += (size_t)snprintf(buffer + used, bytes - used, " +%s", c->spec->slots[s].name);
    return buffer;
}

// ---- Limits -----------------------------------------------------------------------------------

double result_flops(const struct result *result) {
    return result->c.spec->flops != NULL ? result->c.spec->flops(&result->c) : NAN;
}

double result_bytes(const struct result *result) { return case_bytes(&result->c); }

const struct report_level *result_level(const struct report *report, const struct result *result) {
    const struct report_machine *machine = &report->machine;
    if (machine->num_levels == 0) return NULL;
    int last = machine->num_levels - 1;
    if (result->is_cold) return &machine->levels[last];
    for (int i = 0; i < last; i++)
        if (result_bytes(result) <= machine->levels[i].capacity_bytes) return &machine->levels[i];
    return &machine->levels[last];
}

double report_peak_gflops(const struct report *report, const struct result *result) {
    return isfinite(result->unit_gflops) ? result->unit_gflops : report->machine.peak_gflops;
}

bool result_is_compute_bound(const struct report *report, const struct result *result) {
    const struct report_level *level = result_level(report, result);
    if (level == NULL) return false;
    return result_flops(result) / report_peak_gflops(report, result) >
           result_bytes(result) / level->copy_gb_s;
}

tsr_dtype report_row_dtype(const struct report *report) {
    const char *dtype = report->options->dtype;
    return dtype != NULL ? tsr_dtype_from_name(dtype) : TSR_F32;
}

char report_grade(double share) {
    if (!isfinite(share)) return '-';
    return share > 0.8 ? 'A' : share > 0.7 ? 'B' : share > 0.6 ? 'C' : share > 0.4 ? 'D' : 'F';
}

// ---- Summary ----------------------------------------------------------------------------------

static int spec_place(const struct op_spec *spec) {
    int place = 0;
    while (op_specs[place] != NULL && op_specs[place] != spec) place++;
    return place;
}

static int compare_rows(const void *a, const void *b) {
    const struct result *x = *(const struct result *const *)a;
    const struct result *y = *(const struct result *const *)b;
    int places = spec_place(x->c.spec) - spec_place(y->c.spec);
    return places != 0 ? places : (int)x->c.dtype - (int)y->c.dtype;
}

int report_representatives(const struct report *report, const struct result **rows, int capacity) {
    int count = 0;
    for (int i = 0; i < report->results.count; i++) {
        const struct result *result = &report->results.items[i];
        if (result_is_baseline(result) || !report_is_plain(report, result)) continue;
        int same = 0;
        while (same < count &&
               (rows[same]->c.spec != result->c.spec || rows[same]->c.dtype != result->c.dtype))
            same++;
        if (same == count) {
            if (count < capacity) rows[count++] = result;
            continue;
        }
        const struct result *best = rows[same];
        double work = result_bytes(result), best_work = result_bytes(best);
        if (work > best_work ||
            (work == best_work && result_device_ms(result) < result_device_ms(best)))
            rows[same] = result;
    }
    qsort(rows, (size_t)count, sizeof *rows, compare_rows);
    return count;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct report_summary report_summarize(const struct report *report) {
    const struct report_machine *machine = &report->machine;
    struct report_summary s = {.peak_gflops = machine->peak_gflops,
                               .memory_gb_s = NAN,
                               .median_share = NAN,
                               .worst_err_over_bound = report->verify.worst_err_over_bound,
                               .num_configs = report->verify.num_runs,
                               .num_failed = report->verify.num_failed};
    if (machine->num_levels > 0) {
        const struct report_level *memory = &machine->levels[machine->num_levels - 1];
        s.memory_gb_s = memory->copy_gb_s;
    }
    double shares[256];
    const struct result *rows[256];
    int num_rows = report_representatives(report, rows, 256), num_shares = 0;
    for (int i = 0; i < num_rows; i++) {
        double share = rows[i]->share_of_ceiling;
        if (!isfinite(share)) continue;
        shares[num_shares++] = share;
        if (s.best_share == NULL || share > s.best_share->share_of_ceiling) s.best_share = rows[i];
    }
    if (num_shares > 0) {
        qsort(shares, (size_t)num_shares, sizeof *shares, compare_doubles);
        s.num_shares = num_shares;
        s.median_share = 0.5 * (shares[num_shares / 2] + shares[(num_shares - 1) / 2]);
    }
    for (int i = 0; i < num_rows; i++) {
        const struct result *baseline = report_baseline_of(report, rows[i]);
        if (baseline == NULL || !result_has_unfused(rows[i])) continue;
        double speedup = result_device_ms(baseline) / result_device_ms(rows[i]);
        if (!(speedup > s.best_fusion_speedup)) continue;
        struct op_traffic fused, unfused;
        s.best_fusion = rows[i];
        s.best_fusion_speedup = speedup;
        s.best_fusion_saved = NAN;
        if (traffic_of(&rows[i]->c, false, &fused) && traffic_of(&rows[i]->c, true, &unfused))
            s.best_fusion_saved = 1 - (fused.read_bytes + fused.write_bytes) /
                                          (unfused.read_bytes + unfused.write_bytes);
    }
    for (int i = 0; i < report->results.count; i++)
        if (report->results.items[i].err_over_bound > s.worst_err_over_bound)
            s.worst_err_over_bound = report->results.items[i].err_over_bound;
    return s;
}

bool report_bert_estimate(const struct report *report, struct report_bert *bert) {
    for (int i = 0; i < report->results.count; i++) {
        const struct result *fused = &report->results.items[i];
        if (strcmp(fused->c.spec->op, "layernorm_forward") != 0 ||
            fused->c.dtype != report_row_dtype(report) || result_is_baseline(fused) ||
            !report_is_plain(report, fused) || case_int(&fused->c, "cols") != BERT_HIDDEN)
            continue;
        const struct result *unfused = report_baseline_of(report, fused);
        double norms = BERT_NORMS * BERT_SEQLEN / case_real(&fused->c, "rows"); // as measured calls
        bert->fused_ms = norms * result_device_ms(fused);
        bert->unfused_ms = unfused != NULL ? norms * result_device_ms(unfused) : NAN;
        // 1000 inferences/s for a day are 86.4e6, each of ms * threads / 3.6e6 CPU-hours, or ms / 3.6e6 GPU-hours.
        int num_units = report->machine.is_gpu ? 1 : fused->num_threads;
        bert->fused_hours_a_day = 86.4 / 3.6 * bert->fused_ms * num_units;
        bert->unfused_hours_a_day = 86.4 / 3.6 * bert->unfused_ms * num_units;
        return true;
    }
    return false;
}
