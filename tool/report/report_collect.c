// SPDX-License-Identifier: Apache-2.0
// Measuring for the report: ceilings, the cases of report_list.c, then verification of everything. Shapes are shrunk until they
// fit the machine, and a clock stops the measuring so that --quick stays under two minutes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/command.h"
#include "commands/device_option.h"
#include "measure/measure.h"
#include "measure/scaling.h"
#include "measure/tune_candidates.h"
#include "peers/peer_torch.h"
#include "report/report_collect.h"
#include "system/environment.h"

// ---- One case ---------------------------------------------------------------------------------

// The dimension that shrinks: how many independent rows or problems there are.
static int shrinking_param(const struct op_case *c) {
    static const char *const names[] = {"batch",  "batch_size", "m",    "rows",
                                        "tokens", "count",      "numel"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int param = spec_param(c->spec, names[i]);
        if (param >= 0 && c->param[param] > 1) return param;
    }
    return -1;
}

// Then the heads of attention, those of k and v with them. False: there is nothing left to halve.
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
        double bytes = fmax(2 * case_bytes(c), unfused); // twice: intermediates
        bool fits = !(bytes >= k->most_bytes);
        if (fits &&
            measure_floor_s(k->session, c, measure_fma_ceiling(k->session), true) < longest_s)
            return;
        if (!halve(c)) return;
    }
}

static void say_shape(const struct op_case *c, char *text, size_t bytes) {
    size_t used = 0;
    for (int i = 0; c->spec->params[i].name != NULL && used < bytes; i++)
        if (c->spec->params[i].kind == PARAM_SIZE && c->param[i] > 0 &&
            (c->param[i] > 1 || c->param[i] != c->spec->params[i].standard))
            used += (size_t)snprintf(text + used, bytes - used, "%s%s=%.0f", used ? " " : "",
                                     c->spec->params[i].name, c->param[i]);
}

// Many plain three-loop products would take minutes: those baselines run on small shapes only.
static bool has_affordable_baseline(const struct collector *k, const struct op_case *c) {
    if (device_baseline(k->options->device, c->spec) == NULL) return false;
    return strcmp(c->spec->op, "matmul_forward") != 0 || c->spec->flops(c) < 6e8;
}

static bool is_time_up(const struct collector *k) {
    return seconds_now() - k->started > k->stop_after;
}

// What is left of the time, shared by the cases that are left.
static double share_time(const struct collector *k, int num_contenders) {
    double left_s = k->stop_after - (seconds_now() - k->started);
    double case_s = left_s / (double)(k->num_cases - k->num_done + 2);
    return fmin(k->most_s, fmax(0.02, (case_s - k->overhead_s) / num_contenders));
}

// torch beside ours, on tensors of its own process.
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

// Studies name variants of the CPU: on a GPU the first is what the library chooses there, the others those of the same
// name, where there are any.
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

// The library's choice, and the tiles that a tuning file could have in its place; their files, to be removed.
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

// ---- Machine ----------------------------------------------------------------------------------

static void add_level(struct collector *k, const char *name, double capacity, double working_set) {
    struct report_machine *machine = &k->report->machine;
    const struct bandwidth *bandwidth = measure_bandwidth(k->session, working_set);
    if (bandwidth == NULL || machine->num_levels == REPORT_MAX_LEVELS) return;
    struct report_level *level = &machine->levels[machine->num_levels++];
    snprintf(level->name, sizeof level->name, "%s", name);
    level->capacity_bytes = capacity;
    level->working_set_bytes = bandwidth->working_set;
    level->read_gb_s = bandwidth->read / 1e9;
    level->write_gb_s = bandwidth->write / 1e9;
    level->copy_gb_s = bandwidth->copy / 1e9;
}

static void collect_machine(struct collector *k) {
    struct report_machine *m = &k->report->machine;
    const struct environment *env = environment_get();
    const struct machine *machine = measure_machine(k->session);
    snprintf(m->host, sizeof m->host, "%s", env->host);
    snprintf(m->cpu, sizeof m->cpu, "%s", env->cpu[0] ? env->cpu : "unknown processor");
    snprintf(m->isa, sizeof m->isa, "%s", tsr_isa_name(machine->isa));
    tsr_device_info gpu = TSR_DEVICE_INFO;
    m->is_gpu = tsr_device_info_get(k->options->device, &gpu) == TSR_OK;
    if (m->is_gpu) {
        snprintf(m->cpu, sizeof m->cpu, "%s", gpu.name);
        snprintf(m->isa, sizeof m->isa, "%s", gpu.arch);
        m->num_sms = gpu.num_sms;
    }
    snprintf(m->system, sizeof m->system, "%s, %s, %s", env->os, env->kernel, env->compiler);
    snprintf(m->started, sizeof m->started, "%.10s", env->date);
    m->num_threads = machine->num_threads;
    m->num_cpus = env->num_threads > machine->num_threads ? env->num_threads : machine->num_threads;
    m->l1_bytes = (double)machine->l1_bytes;
    m->l2_bytes = (double)machine->l2_bytes;
    m->l3_bytes = (double)machine->l3_bytes;
    m->memory_bytes = m->is_gpu ? (double)gpu.memory_bytes : (double)env->memory_bytes;
    m->peak_gflops = measure_fma_ceiling(k->session) / 1e9;
    double l2 = m->is_gpu ? m->l2_bytes : m->l2_bytes * m->num_threads;
    add_level(k, "L2", l2, m->is_gpu ? l2 / 4 : l2 / 2);
    if (m->l3_bytes > l2) add_level(k, "L3", m->l3_bytes, m->l3_bytes / 2);
    add_level(k, "memory", INFINITY, 8 * fmax(m->l3_bytes, l2));
}

// ---- Verification -----------------------------------------------------------------------------

static void show_verify(void *user, const struct verify_report *report, const char *op) {
    struct collector *k = user;
    char step[128];
    snprintf(step, sizeof step, "%s, %lld runs", op, (long long)report->num_runs);
    progress_step(&k->progress, k->num_done, step);
}

static int collect_verify(struct collector *k) {
    char error[512] = "";
    bool is_slow =
        seconds_now() - k->started > k->stop_after; // a busy machine: stay within the time
    int64_t num_configs = is_slow ? 150 : 400;
    struct verify_options options = {.dtype = k->options->dtype,
                                     .isa = k->options->isa,
                                     .device = k->options->device,
                                     .num_configs =
                                         k->options->is_quick ? num_configs : 10 * num_configs,
                                     .seed = 1,
                                     .num_threads = k->options->num_threads,
                                     .progress = show_verify,
                                     .progress_user = k};
    if (verify_run(&options, &k->report->verify, error, sizeof error)) return EXIT_FINE;
    fprintf(stderr, "tessera report: %s\n", error);
    return EXIT_COULD_NOT_RUN;
}

// ---- All of it --------------------------------------------------------------------------------

int report_collect(const struct report_options *options, struct report *report) {
    *report = (struct report){.options = options};
    struct collector k = {.options = options, .report = report, .started = seconds_now()};
    k.stop_after = options->seconds > 0 ? options->seconds : options->is_quick ? 55 : 600;
    k.longest_call_s = options->is_quick ? 0.12 : 1;
    k.longest_study_s = options->is_quick ? 0.05 : 0.25;
    k.most_s = options->is_quick ? 0.2 : 1.5;
    k.overhead_s = 0.2;
    bool is_gpu = options->device.type != TSR_CPU;
    // On a GPU tensors are drawn by the host and travel there, which takes longer than the calls.
    double memory = (double)environment_get()->memory_bytes;
    k.most_bytes = is_gpu ? (options->is_quick ? 1.5e9 : 10e9) : INFINITY;
    if (memory > 0) k.most_bytes = fmin(k.most_bytes, memory / 4);
    struct measure_options measuring = {.device = options->device,
                                        .num_threads = options->num_threads,
                                        .num_rep = options->rep,
                                        .num_warmup = options->warmup > 0 ? options->warmup : 0,
                                        .has_no_warmup = options->warmup == 0,
                                        .budget_s = k.most_s,
                                        .seed = 1};
    for (int i = 0; options->isa != NULL && i < TSR_ISA_COUNT; i++)
        if (strcmp(options->isa, tsr_isa_name((tsr_isa)i)) == 0) measuring.isa = (tsr_isa)i;
    char error[512] = "";
    k.session = measure_open(&measuring, error, sizeof error);
    if (k.session == NULL) {
        fprintf(stderr, "tessera report: %s\n", error);
        return EXIT_COULD_NOT_RUN;
    }
    int total = 0;
    walk_all(&k, NULL, &total);
    k.num_cases = total;
    k.torch = peer_torch_open("torch", error, sizeof error);
    const int others = is_gpu ? 0 : count_fewer_threads(&k);
    progress_start(&k.progress, "report", 1 + total + others + 1);
    progress_step(&k.progress, 0, "ceilings");
    collect_machine(&k);
    k.num_done = 1;
    walk_all(&k, collector_measure, NULL);
    // Probes beside the samples may have found a quieter moment than the first one.
    double peak_gflops = measure_fma_ceiling(k.session) / 1e9;
    report->machine.peak_gflops = fmax(report->machine.peak_gflops, peak_gflops);
    measure_close(k.session);
    if (!is_gpu) collect_fewer_threads(&k, &measuring);
    peer_torch_close(k.torch);
    scaling_finish(&report->results);
    int code = collect_verify(&k);
    progress_end(&k.progress);
    report->seconds = seconds_now() - k.started;
    if (code == EXIT_FINE && (k.is_wrong || report->verify.num_failed > 0)) code = EXIT_WRONG;
    return code;
}
