// SPDX-License-Identifier: Apache-2.0
// CPUs from the affinity mask and the cgroup quota; memory from the kernel's estimate of what is available and the rest
// of the cgroups' limits.
#define _GNU_SOURCE
#include "cpu/cpu_limits.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/core_system.h"

enum { PATH_BYTES = 4096, GROUPS_BYTES = 1 << 14, STAT_BYTES = 1 << 13, MOST_CPUS = 1 << 20 };
static const char own_groups[] = "/proc/self/cgroup", mounted_at[] = "/sys/fs/cgroup";

// ---- Groups -----------------------------------------------------------------------------------

#define NO_LIMIT INT64_MAX

// A resource that cgroups limit. of_group reads the limit from a group's folder, NO_LIMIT if there is none.
struct limited {
    const char *controller; // name of the version 1 controller and of its mount
    int64_t (*of_group)(const char *folder);
};

static bool read_of(const char *folder, const char *name, char *text, size_t bytes) {
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return tsri_read_text(path, text, bytes);
}

// Reads a file that holds one number. False if the file or the number is missing ("max").
static bool read_number(const char *folder, const char *name, int64_t *number) {
    char text[64];
    long long value;
    if (!read_of(folder, name, text, sizeof text) || sscanf(text, "%lld", &value) != 1)
        return false;
    *number = value;
    return true;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The smallest limit from a group up to the root of its hierarchy, because every level counts. In a container the path
// may be the host's, and only the root is mounted.
static int64_t least_of_chain(const struct limited *what, const char *mount, const char *group) {
    char folder[PATH_BYTES];
    int64_t least = NO_LIMIT;
    int length = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (length < 0 || length >= (int)sizeof folder) return what->of_group(mount);
    for (size_t root = strlen(mount);;) {
        least = smaller(least, what->of_group(folder));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < root) return least;
        *slash = '\0';
    }
}

static bool has_controller(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at != NULL && *at != '\0'; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

// Lines are "id:controllers:path"; the line of version 2 has no controllers.
static int64_t least_of_groups(const struct limited *what, const char *groups, const char *root) {
    char text[GROUPS_BYTES], mount[PATH_BYTES], *next = text;
    int64_t least = NO_LIMIT;
    if (!tsri_read_text(groups, text, sizeof text)) return what->of_group(root);
    while (*next != '\0') {
        char *line = next, *path;
        next += strcspn(next, "\n");
        if (*next == '\n') *next++ = '\0';
        char *controllers = strchr(line, ':');
        if (controllers == NULL || (path = strchr(++controllers, ':')) == NULL) continue;
        *path++ = '\0';
        bool is_unified = *controllers == '\0';
        if (!is_unified && !has_controller(controllers, what->controller)) continue;
        for (int i = 0; i < 2; i++) { // version 2 alone or beside 1; "cpu,cpuacct" or "cpu"
            const char *name = is_unified ? (i ? "unified" : "")
                               : i        ? what->controller
                                          : controllers;
            int length =
                snprintf(mount, sizeof mount, "%s%s%s", root, *name != '\0' ? "/" : "", name);
            if (length > 0 && length < (int)sizeof mount)
                least = smaller(least, least_of_chain(what, mount, path));
        }
    }
    return least;
}

// ---- CPUs -------------------------------------------------------------------------------------

// A group's quota in whole CPUs, rounded up.
static int64_t cpus_of_group(const char *folder) {
    char text[64];
    long long quota = -1, period = 0;
    if (read_of(folder, "cpu.max", text, sizeof text)) { // version 2: "max 100000", or two numbers
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) return NO_LIMIT;
    } else {
        int64_t numbers[2];
        if (!read_number(folder, "cpu.cfs_quota_us", &numbers[0]) ||
            !read_number(folder, "cpu.cfs_period_us", &numbers[1]))
            return NO_LIMIT;
        quota = numbers[0];
        period = numbers[1];
    }
    if (quota <= 0 || period <= 0) return NO_LIMIT;
    long long cpus = quota / period + (quota % period != 0);
    return cpus < INT_MAX ? cpus : NO_LIMIT;
}

int tsri_cgroup_cpus(const char *groups, const char *root) {
    static const struct limited cpus = {"cpu", cpus_of_group};
    int64_t least = least_of_groups(&cpus, groups, root);
    return least < NO_LIMIT ? (int)least : 0;
}

// The kernel demands a mask at least as long as its own, so try longer ones until one is accepted.
static int affinity_cpus(void) {
    for (int cpus = CPU_SETSIZE; cpus <= MOST_CPUS; cpus *= 2) {
        size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        cpu_set_t *set = tsri_alloc(bytes);
        if (set == NULL) return 0;
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        tsri_system.free(set);
        if (count > 0) return count;
    }
    return 0;
}

int tsri_num_cpus(void) {
    int count = affinity_cpus();
    if (count < 1) count = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (count < 1) count = 1;
    int quota = tsri_cgroup_cpus(own_groups, mounted_at);
    return quota > 0 && quota < count ? quota : count;
}

// ---- Memory -----------------------------------------------------------------------------------

// The number after `name` at the start of a line; 0 if there is none.
static int64_t number_of(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        long long value;
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%lld", &value) == 1)
            return value > 0 ? value : 0;
    }
    return 0;
}

// The unused part of a group's limit. The group counts file pages as used, but the kernel drops them before it refuses
// memory.
static int64_t memory_of_group(const char *folder) {
    char stat[STAT_BYTES];
    int64_t limit, used;
    bool is_unified = read_number(folder, "memory.max", &limit);
    if (!is_unified && !read_number(folder, "memory.limit_in_bytes", &limit)) return NO_LIMIT;
    if (limit < 0 || limit > NO_LIMIT / 2) return NO_LIMIT; // version 1: no limit
    if (!read_number(folder, is_unified ? "memory.current" : "memory.usage_in_bytes", &used))
        return NO_LIMIT;
    if (read_of(folder, "memory.stat", stat, sizeof stat)) {
        int64_t inactive = number_of(stat, is_unified ? "inactive_file " : "total_inactive_file "),
                active = number_of(stat, is_unified ? "active_file " : "total_active_file ");
        used = used > inactive ? used - inactive : 0;
        used = used > active ? used - active : 0;
    }
    return limit > used ? limit - used : 0;
}

int64_t tsri_cgroup_memory(const char *groups, const char *root) {
    static const struct limited memory = {"memory", memory_of_group};
    int64_t least = least_of_groups(&memory, groups, root);
    return least < NO_LIMIT ? least : -1;
}

int64_t tsri_memory_available(void) {
    char text[STAT_BYTES];
    int64_t left = tsri_cgroup_memory(own_groups, mounted_at);
    if (!tsri_read_text("/proc/meminfo", text, sizeof text)) return left;
    int64_t kilobytes = number_of(text, "MemAvailable:");
    if (kilobytes <= 0 || kilobytes > NO_LIMIT / 1024) return left;
    return left >= 0 ? smaller(left, kilobytes * 1024) : kilobytes * 1024;
}
