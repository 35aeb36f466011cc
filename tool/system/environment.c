// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/environment.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static struct environment environment;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

const char *environment_value(const char *name) {
#if defined(__GLIBC__)
    return secure_getenv(name);
#else
    return getauxval(AT_SECURE) == 0 ? getenv(name) : NULL;
#endif
}

// ---- Files of lines "name <separator> value" --------------------------------------------------

// The value of the first line with this name, without quotes; false if there is none.
static bool read_value(const char *path, const char *name, char separator, char *value,
                       size_t bytes) {
    char line[512];
    bool is_found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    while (!is_found && fgets(line, sizeof line, file) != NULL) {
        char *at = strchr(line, separator);
        if (strncmp(line, name, strlen(name)) != 0 || at == NULL) continue;
        at += 1 + strspn(at + 1, " \t\"");
        at[strcspn(at, "\"\n")] = '\0';
        snprintf(value, bytes, "%s", at);
        is_found = true;
    }
    fclose(file);
    return is_found;
}

static void read_cpu(struct environment *e) {
    char mhz[32];
    if (!read_value("/proc/cpuinfo", "model name", ':', e->cpu, sizeof e->cpu) &&
        !read_value("/proc/cpuinfo", "CPU part", ':', e->cpu, sizeof e->cpu))
        snprintf(e->cpu, sizeof e->cpu, "unknown");
    if (read_value("/proc/cpuinfo", "cpu MHz", ':', mhz, sizeof mhz))
        snprintf(e->clocks, sizeof e->clocks, "%.20s MHz (as reported)", mhz);
}

static int64_t sysconf_bytes(int name) {
    long value = sysconf(name);
    return value > 0 ? (int64_t)value : 0;
}

static void read_memory(struct environment *e) {
    e->l1_bytes = tsr_cache_bytes(1);
    e->l2_bytes = tsr_cache_bytes(2);
    e->l3_bytes = tsr_cache_bytes(3);
    e->memory_bytes = sysconf_bytes(_SC_PHYS_PAGES) * sysconf_bytes(_SC_PAGESIZE);
}

static void collect(void) {
    struct environment *e = &environment;
    struct utsname name;
    e->version = tsr_version();
    e->compiler = COMPILER;
    if (e->gpu[0] == '\0') e->power_limit_w = e->sm_clock_mhz = NAN;
    if (uname(&name) == 0) {
        snprintf(e->host, sizeof e->host, "%.120s", name.nodename);
        snprintf(e->kernel, sizeof e->kernel, "%.40s %.70s", name.sysname, name.release);
    }
    if (!read_value("/etc/os-release", "PRETTY_NAME", '=', e->os, sizeof e->os))
        snprintf(e->os, sizeof e->os, "%.120s", e->kernel);
    read_cpu(e);
    read_memory(e);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL) strftime(e->date, sizeof e->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    tsr_context *ctx;
    if (tsr_context_create(NULL, &ctx) != TSR_OK) return;
    e->isa = tsr_context_isa(ctx);
    e->num_threads = tsr_context_num_threads(ctx);
    tsr_context_destroy(ctx);
}

const struct environment *environment_get(void) {
    pthread_once(&once, collect);
    return &environment;
}

void environment_set_command(int argc, char **argv) {
    size_t used = 0, room = sizeof environment.command;
    for (int i = 0; i < argc && used < room; i++) {
        const char *quote = strpbrk(argv[i], " \t\"'$*;&|<>()") != NULL ? "'" : "";
        used += (size_t)snprintf(environment.command + used, room - used, "%s%s%s%s", i ? " " : "",
                                 quote, argv[i], quote);
    }
}

void environment_set_device(tsr_device device) {
    struct environment *e = &environment;
    tsr_device_info info = TSR_DEVICE_INFO;
    tsr_device_sensors sensors = TSR_DEVICE_SENSORS;
    if (tsr_device_info_get(device, &info) != TSR_OK) return;
    snprintf(e->gpu, sizeof e->gpu, "%s", info.name);
    e->driver_version = info.driver_version;
    e->nvrtc_version = info.nvrtc_version;
    bool is_known = tsr_device_sensors_get(device, &sensors) == TSR_OK;
    e->power_limit_w = is_known ? sensors.power_limit_w : NAN;
    e->sm_clock_mhz = is_known ? sensors.sm_clock_mhz : NAN;
}
