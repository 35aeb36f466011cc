// SPDX-License-Identifier: Apache-2.0
// Measures for the report: ceilings, the cases of report_list.c, then verification of all operations. A time limit ends the
// measuring, so that --quick stays under two minutes.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/command.h"
#include "measure/measure.h"
#include "measure/scaling.h"
#include "peers/peer_torch.h"
#include "report/report_collect.h"
#include "system/environment.h"

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
        seconds_now() - k->started > k->stop_after; // a busy machine: keep to the time limit
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
    // For a GPU the host draws the tensors and copies them there, which takes longer than the calls.
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
    // Later probes, between the samples, may have found a quieter moment than the first one.
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
