// SPDX-License-Identifier: Apache-2.0
// tessera info --device cuda:N.
#define _GNU_SOURCE
#include "commands/info_device.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands/command.h"
#include "commands/info_figures.h"

enum { NUM_LEVELS = 2 };

// Working sets well inside the second-level cache, and well outside.
static const struct bandwidth *bandwidth_of(struct measure_session *session, int level) {
    double l2_bytes = (double)measure_machine(session)->l2_bytes;
    return measure_bandwidth(session, level == 0 ? l2_bytes / 4 : INFINITY);
}
static const char *const levels[NUM_LEVELS] = {"L2", "memory"};

// Features that kernels may rely on, with the first architecture that has each.
static const struct {
    const char *name;
    int arch;
} features[] = {{"tensor cores", 70}, {"fp8 products", 89}, {"TMA", 90}};
enum { NUM_FEATURES = sizeof features / sizeof *features };

static bool has_feature(const tsr_device_info *gpu, int feature) {
    return strncmp(gpu->arch, "sm_", 3) == 0 && atoi(gpu->arch + 3) >= features[feature].arch;
}

static void print_device(tsr_device device) {
    tsr_device_info gpu = TSR_DEVICE_INFO;
    tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
    char text[32];
    if (tsr_device_info_get(device, &gpu) != TSR_OK) return;
    (void)tsr_device_sensors_get(device, &sensors);
    printf("tessera %s, %s\n\n| | |\n|---|---|\n", tsr_version(), tsr_device_name(device));
    printf("| name | %s |\n| architecture | %s |\n", gpu.name, gpu.arch);
    printf("| features |");
    for (int i = 0, count = 0; i < NUM_FEATURES; i++)
        if (has_feature(&gpu, i)) printf("%s %s", count++ ? "," : "", features[i].name);
    printf(" |\n");
    printf("| driver | for CUDA %d.%d |\n", gpu.driver_version / 1000,
           gpu.driver_version % 1000 / 10);
    if (gpu.nvrtc_version > 0)
        printf("| NVRTC | %d.%d |\n", gpu.nvrtc_version / 1000, gpu.nvrtc_version % 1000 / 10);
    else
        printf("| NVRTC | none: kernels come from a pack |\n");
    printf("| multiprocessors | %d of %d threads, %s of shared memory |\n", gpu.num_sms,
           gpu.max_threads_per_sm, info_bytes((double)gpu.shared_bytes_per_sm, text, sizeof text));
    printf("| second-level cache | %s |\n", info_bytes((double)gpu.l2_bytes, text, sizeof text));
    printf("| memory | %.1f GiB, %d bits at %.0f MHz |\n", (double)gpu.memory_bytes / (1 << 30),
           gpu.memory_bus_bits, gpu.memory_clock_mhz);
    printf("| clock | up to %.0f MHz, now %.0f |\n", gpu.clock_mhz, sensors.sm_clock_mhz);
    printf("| power | %.0f of %.0f W, %.0f degrees |\n", sensors.power_w, sensors.power_limit_w,
           sensors.temperature_c);
}

static void print_ceilings(struct measure_session *session) {
    char text[32];
    printf("\nMeasured ceilings: fp32 FMA %.1f TFLOP/s, bf16 tensor cores %.1f TFLOP/s\n\n",
           1e-12 * measure_fma_ceiling(session),
           1e-12 * measure_unit_ceiling(session, TSR_PROBE_BF16_TILES));
    printf("| GB/s | working set | read | write | copy | update in place "
           "|\n|---|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < NUM_LEVELS; i++) {
        const struct bandwidth *b = bandwidth_of(session, i);
        printf("| %s | %s | %.0f | %.0f | %.0f | %.0f |\n", levels[i],
               info_bytes(b->working_set, text, sizeof text), 1e-9 * b->read, 1e-9 * b->write,
               1e-9 * b->copy, 1e-9 * b->update);
    }
}

// ---- JSON -------------------------------------------------------------------------------------

static json_t *device_json(tsr_device device) {
    tsr_device_info gpu = TSR_DEVICE_INFO;
    tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
    if (tsr_device_info_get(device, &gpu) != TSR_OK) return json_null();
    (void)tsr_device_sensors_get(device, &sensors);
    json_t *object = json_object(), *has = json_array();
    for (int i = 0; i < NUM_FEATURES; i++)
        if (has_feature(&gpu, i)) json_array_append_new(has, json_string(features[i].name));
#define SET(name, value) json_object_set_new(object, name, value)
    SET("device", json_string(tsr_device_name(device)));
    SET("name", json_string(gpu.name));
    SET("arch", json_string(gpu.arch));
    SET("features", has);
    SET("multiprocessors", json_integer(gpu.num_sms));
    SET("threads_per_multiprocessor", json_integer(gpu.max_threads_per_sm));
    SET("shared_bytes_per_multiprocessor", json_integer(gpu.shared_bytes_per_sm));
    SET("shared_bytes_per_block", json_integer(gpu.shared_bytes_per_block));
    SET("l2_bytes", json_integer(gpu.l2_bytes));
    SET("memory_bytes", json_integer(gpu.memory_bytes));
    SET("memory_bus_bits", json_integer(gpu.memory_bus_bits));
    SET("memory_clock_mhz", info_number(gpu.memory_clock_mhz));
    SET("clock_mhz", info_number(gpu.clock_mhz));
    SET("clock_now_mhz", info_number(sensors.sm_clock_mhz));
    SET("power_w", info_number(sensors.power_w));
    SET("power_limit_w", info_number(sensors.power_limit_w));
    SET("temperature_c", info_number(sensors.temperature_c));
#undef SET
    return object;
}

static json_t *ceilings_json(struct measure_session *session) {
    json_t *bandwidths = json_array();
    for (int i = 0; i < NUM_LEVELS; i++)
        json_array_append_new(bandwidths, info_bandwidth(levels[i], bandwidth_of(session, i)));
    double tensor = measure_unit_ceiling(session, TSR_PROBE_BF16_TILES);
    return json_pack("[{s:o, s:o, s:o}]", "fma_gflop_s",
                     info_number(1e-9 * measure_fma_ceiling(session)), "bf16_tensor_gflop_s",
                     info_number(1e-9 * tensor), "bandwidth", bandwidths);
}

// ---- The command ------------------------------------------------------------------------------

int info_device(tsr_device device, bool is_json, bool is_measured) {
    char error[512];
    struct measure_session *session = NULL;
    if (!is_json) print_device(device);
    fflush(stdout);
    if (is_measured) {
        session = measure_open(&(struct measure_options){.device = device}, error, sizeof error);
        if (session == NULL) {
            fprintf(stderr, "tessera info: %s\n", error);
            return EXIT_COULD_NOT_RUN;
        }
    }
    if (is_json) {
        json_t *document = json_pack("{s:i, s:o, s:[o], s:o}", "schema", 1, "env",
                                     result_env_json(), "devices", device_json(device), "ceilings",
                                     is_measured ? ceilings_json(session) : json_null());
        json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
        json_decref(document);
    } else if (is_measured) {
        print_ceilings(session);
    }
    measure_close(session);
    return EXIT_FINE;
}
