// SPDX-License-Identifier: Apache-2.0
// What follows from cpuid and XCR0: a processor may have an instruction set whose registers the
// operating system does not save. Cache sizes from the kernel, CPUs from affinity and cgroup quota.
#define _GNU_SOURCE
#include "cpu/cpu_isa.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/core_system.h"
#include "cpu/cpu_detect.h"

enum { PATH_BYTES = 4096, GROUPS_BYTES = 1 << 14, MOST_CPUS = 1 << 20, SHORT_BYTES = 64 };

// ---- What registers say -------------------------------------------------------------------------

// Bits of XCR0: the registers that the system saves.
enum { SAVES_YMM = 0x6, SAVES_ZMM = 0xe6, SAVES_TILES = 0x60000 };

static bool has_all(unsigned long long value, unsigned long long bits) {
    return (value & bits) == bits;
}

tsr_isa tsri_isa_of(const struct tsri_cpuid *id) {
    static const unsigned avx_fma_f16c = 1u << 28 | 1u << 12 | 1u << 29, avx2 = 1u << 5,
                          avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if (!has_all(id->leaf1_c, TSRI_CPUID_OSXSAVE | avx_fma_f16c) || !has_all(id->xcr0, SAVES_YMM) ||
        !has_all(id->leaf7_b, avx2))
        return TSR_ISA_SCALAR;
    return has_all(id->leaf7_b, avx512_f_dq_bw_vl) && has_all(id->xcr0, SAVES_ZMM) ? TSR_ISA_AVX512
                                                                                   : TSR_ISA_AVX2;
}

struct tsri_bf16_units tsri_bf16_units_of(const struct tsri_cpuid *id) {
    static const unsigned avx512_bf16 = 1u << 5, amx_bf16_tile = 1u << 22 | 1u << 24;
    struct tsri_bf16_units units = {0};
    if (tsri_isa_of(id) != TSR_ISA_AVX512) return units;
    units.has_dot = has_all(id->leaf7_1_a, avx512_bf16);
    units.has_tiles =
        units.has_dot && has_all(id->leaf7_d, amx_bf16_tile) && has_all(id->xcr0, SAVES_TILES);
    return units;
}

static struct tsri_bf16_units bf16_units;

static void find_bf16_units(void) {
#if defined(TSRI_HAS_BF16_KERNELS)
    const struct tsri_cpuid id = tsri_read_cpuid();
    bf16_units = tsri_bf16_units_of(&id);
    // Intel's cores take twice as long over a vdpbf16ps as over the FMAs in its place, or as long; AMD's half.
    bf16_units.is_dot_fast = bf16_units.has_dot && id.is_amd;
#endif
}

static bool has_lent_tiles;

static void ask_for_tiles(void) { has_lent_tiles = tsri_ask_for_tiles(); }

bool tsri_can_use_tiles(struct tsri_bf16_units units) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (units.has_tiles) pthread_once(&once, ask_for_tiles);
    return units.has_tiles && has_lent_tiles;
}

struct tsri_bf16_units tsri_bf16_units(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_bf16_units);
    return bf16_units;
}

static bool far_lines;

static void find_far_lines(void) { far_lines = !tsri_read_cpuid().is_amd; }

bool tsri_gains_from_far_lines(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_far_lines);
    return far_lines;
}

// cpuid traps in a virtual machine, so it is asked once; racing threads find the same answer.
tsr_isa tsri_isa_best(void) {
    static atomic_int best; // 0, TSR_ISA_AUTO: not asked yet
    int isa = atomic_load_explicit(&best, memory_order_relaxed);
    if (isa == TSR_ISA_AUTO) {
        const struct tsri_cpuid id = tsri_read_cpuid();
        isa = tsri_isa_of(&id);
        atomic_store_explicit(&best, isa, memory_order_relaxed);
    }
    return (tsr_isa)isa;
}

int tsr_isa_is_supported(tsr_isa isa) {
    return isa == TSR_ISA_AUTO || (isa >= TSR_ISA_SCALAR && isa <= tsri_isa_best());
}

const char *tsr_isa_name(tsr_isa isa) {
    static const char *const names[TSR_ISA_COUNT] = {"auto", "scalar", "avx2", "avx512"};
    return (unsigned)isa < TSR_ISA_COUNT ? names[isa] : "unknown isa";
}

// ---- Caches -----------------------------------------------------------------------------------

// The kernel knows which cores share a cache. sysconf divides nothing: in a virtual machine glibc
// may add up the last caches of the whole host.
static int64_t read_kernel_cache(int level) {
    for (int index = 0; index < 8; index++) {
        char path[96], text[SHORT_BYTES], type[16] = "", unit = 0;
        int found = 0;
        long long size = 0;
#define READ_CACHE(name, format, ...)                                                              \
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/" name, index);        \
    if (!tsri_read_text(path, text, sizeof text)) return 0;                                        \
    if (sscanf(text, format, __VA_ARGS__) < 1) found = 0
        READ_CACHE("level", "%d", &found);
        if (found != level) continue;
        READ_CACHE("type", "%15s", type);
        if (type[0] == 'I') continue; // instructions
        READ_CACHE("size", "%lld%c", &size, &unit);
#undef READ_CACHE
        return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
    }
    return 0;
}

static int64_t cache_bytes(int level, int sysconf_name, int64_t fallback) {
    int64_t bytes = read_kernel_cache(level);
    if (bytes <= 0 && sysconf_name >= 0) bytes = (int64_t)sysconf(sysconf_name);
    return bytes > 0 ? bytes : fallback;
}

static struct tsri_cache_sizes cache_sizes;
static int64_t l3_share;

static void find_cache_sizes(void) {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
#else
    const int names[] = {-1, -1, -1};
#endif
    cache_sizes = (struct tsri_cache_sizes){cache_bytes(1, names[0], 32 << 10),
                                            cache_bytes(2, names[1], 512 << 10),
                                            cache_bytes(3, names[2], 8 << 20)};
}

struct tsri_cache_sizes tsri_cache_sizes(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_cache_sizes);
    return cache_sizes;
}

static bool is_virtual_machine(void) { return tsri_read_cpuid().leaf1_c >> 31; }

// Neighbours on the host use the same cache, as much as their share of its CPUs, and what a machine reports is
// often the whole of it. On two CPUs that report 105 MiB, stores past the caches gain from some 10 MiB of tensors
// on, and a fifth of the time to a third from 24 MiB on.
static void find_l3_share(void) {
    enum { SHARE_OF_CPU = 5 << 20 };
    int64_t l3 = tsri_cache_sizes().l3, cpus = sysconf(_SC_NPROCESSORS_ONLN);
    bool is_shared = is_virtual_machine() && cpus > 0 && l3 / cpus > SHARE_OF_CPU;
    l3_share = is_shared ? cpus * SHARE_OF_CPU : l3;
}

int64_t tsri_l3_share(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_l3_share);
    return l3_share;
}

int64_t tsr_cache_bytes(int level) {
    struct tsri_cache_sizes sizes = tsri_cache_sizes();
    return level == 1 ? sizes.l1 : level == 2 ? sizes.l2 : level == 3 ? sizes.l3 : 0;
}

// ---- CPUs -------------------------------------------------------------------------------------

// Whole CPUs, rounded up, of the quota that a group's folder names; 0 where it has none.
static int quota_of(const char *folder) {
    char path[PATH_BYTES + 32], text[SHORT_BYTES];
    long long quota = -1, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder); // version 2: "max 100000" or two numbers
    if (tsri_read_text(path, text, sizeof text)) {
        if (sscanf(text, "%lld %lld", &quota, &period) != 2) quota = -1;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!tsri_read_text(path, text, sizeof text)) return 0;
        if (sscanf(text, "%lld", &quota) != 1) quota = -1;
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!tsri_read_text(path, text, sizeof text)) return 0;
        if (sscanf(text, "%lld", &period) != 1) period = 0;
    }
    if (quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus < INT_MAX ? (int)cpus : 0;
}

// The least quota from a group up to the root of its hierarchy: every level counts. Inside a container
// the path may be the host's, of which only the root is mounted.
static int least_quota(const char *mount, const char *group) {
    char folder[PATH_BYTES];
    int least = 0, length = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (length < 0 || length >= (int)sizeof folder) return quota_of(mount);
    for (size_t root = strlen(mount);;) {
        int cpus = quota_of(folder);
        if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
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

// Lines are "id:controllers:path"; version 2's has no controllers.
int tsri_cgroup_cpus(const char *groups, const char *root) {
    char text[GROUPS_BYTES], mount[PATH_BYTES], *next = text;
    int least = 0;
    if (!tsri_read_text(groups, text, sizeof text)) return quota_of(root);
    while (*next != '\0') {
        char *line = next, *path;
        next += strcspn(next, "\n");
        if (*next == '\n') *next++ = '\0';
        char *controllers = strchr(line, ':');
        if (controllers == NULL || (path = strchr(++controllers, ':')) == NULL) continue;
        *path++ = '\0';
        bool is_unified = *controllers == '\0';
        if (!is_unified && !has_controller(controllers, "cpu")) continue;
        for (int i = 0; i < 2; i++) { // version 2 alone or beside version 1; "cpu,cpuacct" or "cpu"
            const char *name = is_unified ? (i ? "/unified" : "") : i ? "/cpu" : "/";
            int length = snprintf(mount, sizeof mount, "%s%s%s", root, name,
                                  !is_unified && i == 0 ? controllers : "");
            int cpus = length > 0 && length < (int)sizeof mount ? least_quota(mount, path) : 0;
            if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
        }
    }
    return least;
}

// The kernel wants a mask as long as its own: longer ones until one is.
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
    int quota = tsri_cgroup_cpus("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota > 0 && quota < count ? quota : count;
}
