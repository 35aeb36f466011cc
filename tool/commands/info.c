// SPDX-License-Identifier: Apache-2.0
// tessera info: this machine and its measured ceilings.
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "commands/command.h"
#include "commands/info_device.h"
#include "commands/info_figures.h"
#include "measure/measure.h"
#include "system/device_option.h"
#include "system/environment.h"
#include "system/options.h"

static const char *const formats[] = {"md", "json", NULL};

static const struct command_help help = {
    .name = "info",
    .synopsis = "[options]",
    .summary = "Shows version, processor, instruction sets, caches, threads, devices, and the "
               "measured ceilings\nwith which bench compares its figures.",
    .notes = NULL,
    .examples = "tessera info\ntessera info --no-measure --format json",
};

// A level of memory, and the working set of all threads with which its bandwidth is measured: well inside the level,
// well outside the one before.
struct level {
    const char *name;
    double working_set;
};
enum { NUM_LEVELS = 4 };

static void list_levels(const struct machine *m, struct level *levels) {
    double l1 = (double)m->l1_bytes * m->num_threads, l2 = (double)m->l2_bytes * m->num_threads;
    double l3 = (double)m->l3_bytes;
    levels[0] = (struct level){"L1", l1 / 2};
    levels[1] = (struct level){"L2", fmin(l2 / 2, 8 * l1)};
    levels[2] = (struct level){"L3", fmin(l3 / 2, 4 * l2)};
    levels[3] = (struct level){"memory", INFINITY};
}

// Units for products of bf16 and of bytes, if the machine has any.
static const struct {
    tsr_probe_kind kind;
    const char *name, *key;
} units[] = {{TSR_PROBE_BF16_DOT, "vdpbf16ps", "bf16_dot_gflop_s"},
             {TSR_PROBE_BF16_TILES, "AMX bf16", "bf16_tiles_gflop_s"},
             {TSR_PROBE_BYTE_DOT, "vpdpbusd", "byte_dot_gflop_s"}};
enum { NUM_UNITS = sizeof units / sizeof *units };

// ---- Markdown ---------------------------------------------------------------------------------

static void print_machine(const struct environment *e) {
    char l1[32], l2[32], l3[32];
    printf("tessera %s, %s\n\n| | |\n|---|---|\n", e->version, e->compiler);
    printf("| processor | %s |\n| instruction sets |", e->cpu);
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
        if (tsr_isa_is_supported((tsr_isa)isa))
            printf(" %s%s", tsr_isa_name((tsr_isa)isa), isa == (int)e->isa ? " (used)" : "");
    printf(" |\n| threads | %d |\n", e->num_threads);
    printf("| caches | L1 %s, L2 %s per core; L3 %s shared |\n",
           info_bytes((double)e->l1_bytes, l1, sizeof l1),
           info_bytes((double)e->l2_bytes, l2, sizeof l2),
           info_bytes((double)e->l3_bytes, l3, sizeof l3));
    printf("| memory | %.1f GiB |\n", (double)e->memory_bytes / (1 << 30));
    if (e->clocks[0] != '\0') printf("| clock | %s |\n", e->clocks);
    printf("| system | %s, %s |\n", e->os, e->kernel);
    printf("| devices | cpu");
    for (int i = 0; i < tsr_device_count(TSR_CUDA); i++) {
        tsr_device_info gpu = TSR_DEVICE_INFO;
        if (tsr_device_info_get((tsr_device){TSR_CUDA, i}, &gpu) == TSR_OK)
            printf(", cuda:%d %s", i, gpu.name);
    }
    printf(" |\n");
}

static void print_ceilings(struct measure_session *session, const struct machine *m) {
    struct level levels[NUM_LEVELS];
    list_levels(m, levels);
    printf("\nMeasured ceilings, %d thread%s: GFLOP/s: fp32 FMA %.1f", m->num_threads,
           m->num_threads > 1 ? "s" : "", 1e-9 * measure_fma_ceiling(session));
    for (int i = 0; i < NUM_UNITS; i++)
        if (measure_unit_ceiling(session, units[i].kind) > 0)
            printf(", %s %.1f", units[i].name, 1e-9 * measure_unit_ceiling(session, units[i].kind));
    printf("\n\n");
    printf("| GB/s | working set | read | write | copy | update in place "
           "|\n|---|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < NUM_LEVELS; i++) {
        char text[32];
        const struct bandwidth *b = measure_bandwidth(session, levels[i].working_set);
        printf("| %s | %s | %.1f | %.1f | %.1f | %.1f |\n", levels[i].name,
               info_bytes(b->working_set, text, sizeof text), 1e-9 * b->read, 1e-9 * b->write,
               1e-9 * b->copy, 1e-9 * b->update);
    }
}

// ---- JSON -------------------------------------------------------------------------------------

static json_t *ceilings_json(struct measure_session *session, const struct machine *m) {
    struct level levels[NUM_LEVELS];
    json_t *bandwidths = json_array();
    list_levels(m, levels);
    for (int i = 0; i < NUM_LEVELS; i++) {
        const struct bandwidth *b = measure_bandwidth(session, levels[i].working_set);
        json_array_append_new(bandwidths, info_bandwidth(levels[i].name, b));
    }
    json_t *ceilings =
        json_pack("{s:i, s:o, s:o}", "threads", m->num_threads, "fma_gflop_s",
                  info_number(1e-9 * measure_fma_ceiling(session)), "bandwidth", bandwidths);
    for (int i = 0; i < NUM_UNITS; i++) {
        double rate = measure_unit_ceiling(session, units[i].kind);
        if (rate > 0) json_object_set_new(ceilings, units[i].key, json_real(1e-9 * rate));
    }
    return ceilings;
}

static json_t *isas_json(void) {
    json_t *isas = json_array();
    for (int isa = TSR_ISA_SCALAR; isa < TSR_ISA_COUNT; isa++)
        if (tsr_isa_is_supported((tsr_isa)isa))
            json_array_append_new(isas, json_string(tsr_isa_name((tsr_isa)isa)));
    return isas;
}

// ---- The command ------------------------------------------------------------------------------

static struct measure_session *open_session(int num_threads) {
    char error[512];
    struct measure_session *session =
        measure_open(&(struct measure_options){.num_threads = num_threads}, error, sizeof error);
    if (session == NULL) fprintf(stderr, "tessera info: %s\n", error);
    return session;
}

int command_info(int argc, char **argv) {
    bool is_unmeasured = false;
    int format = 0;
    int64_t threads = 0;
    const char *device_name = NULL;
    tsr_device device;
    const struct option_spec options[] = {
        {"device", 0, "D", "cpu or cuda:N (cpu)", OPTION_TEXT, &device_name, NULL, 0, 0},
        {"no-measure", 0, NULL, "do not measure ceilings", OPTION_FLAG, &is_unmeasured, NULL, 0, 0},
        {"threads", 0, "N", "number of threads to measure with (one, then all)", OPTION_INT,
         &threads, NULL, 1, 4096},
        {"format", 0, "F", "output", OPTION_CHOICE, &format, formats, 0, 0},
        {0},
    };
    int code = options_parse(&help, options, argc, argv, NULL);
    if (code < 0) code = device_parse("info", device_name, &device);
    if (code >= 0) return code;
    if (device.type != TSR_CPU) {
        bool is_json = strcmp(formats[format], "json") == 0;
        return info_device(device, is_json, !is_unmeasured);
    }
    const struct environment *e = environment_get();
    bool is_json = strcmp(formats[format], "json") == 0;
    json_t *document = NULL;
    if (is_json)
        document = json_pack("{s:i, s:o, s:o, s:[{s:s}]}", "schema", 1, "env", result_env_json(),
                             "isas", isas_json(), "devices", "device", "cpu");
    else
        print_machine(e);
    fflush(stdout);

    json_t *ceilings = json_array();
    int counts[2] = {threads > 0 ? (int)threads : 1, e->num_threads};
    int num_counts = threads > 0 || e->num_threads <= 1 ? 1 : 2;
    code = EXIT_FINE;
    for (int i = 0; i < num_counts && !is_unmeasured && code == EXIT_FINE; i++) {
        struct measure_session *session = open_session(counts[i]);
        if (session == NULL) {
            code = EXIT_COULD_NOT_RUN;
            break;
        }
        const struct machine *m = measure_machine(session);
        if (is_json)
            json_array_append_new(ceilings, ceilings_json(session, m));
        else
            print_ceilings(session, m);
        measure_close(session);
    }
    if (is_json) {
        json_object_set(document, "ceilings", is_unmeasured ? json_null() : ceilings);
        json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
    }
    json_decref(ceilings);
    json_decref(document);
    return code;
}
