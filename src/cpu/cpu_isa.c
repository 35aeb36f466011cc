// SPDX-License-Identifier: Apache-2.0
// Detection by cpuid and XCR0: a processor may have an instruction set whose registers the
// operating system does not save. Cache sizes from the kernel, CPUs from affinity and cgroup quota.
#define _GNU_SOURCE
#include "cpu/cpu_isa.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#if TSRI_HAS_X86_ISA
#include <cpuid.h>

static unsigned long long read_xcr0(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}

static tsr_isa detect(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return TSR_ISA_SCALAR;
    bool has_osxsave = c >> 27 & 1, has_avx = c >> 28 & 1, has_fma = c >> 12 & 1,
         has_f16c = c >> 29 & 1;
    if (!has_osxsave || !has_avx || !has_fma || !has_f16c) return TSR_ISA_SCALAR;
    unsigned long long xcr0 = read_xcr0();
    if ((xcr0 & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return TSR_ISA_SCALAR;
    bool has_avx2 = b >> 5 & 1;
    if (!has_avx2) return TSR_ISA_SCALAR;
    unsigned avx512_f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    bool has_avx512 = (b & avx512_f_dq_bw_vl) == avx512_f_dq_bw_vl && (xcr0 & 0xe6) == 0xe6;
    return has_avx512 ? TSR_ISA_AVX512 : TSR_ISA_AVX2;
}
#else
static tsr_isa detect(void) { return TSR_ISA_SCALAR; }
#endif

// cpuid traps in a virtual machine, so it is asked once; racing threads find the same answer.
tsr_isa tsri_isa_best(void) {
    static atomic_int best; // 0, TSR_ISA_AUTO: not asked yet
    int isa = atomic_load_explicit(&best, memory_order_relaxed);
    if (isa == TSR_ISA_AUTO) {
        isa = detect();
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
        char path[96], type[16] = "", unit = 0;
        int found = 0;
        long long size = 0;
        FILE *file;
#define READ_CACHE(name, format, ...)                                                              \
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/" name, index);        \
    if ((file = fopen(path, "re")) == NULL) return 0;                                              \
    if (fscanf(file, format, __VA_ARGS__) < 1) found = 0;                                          \
    fclose(file)
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

int64_t tsr_cache_bytes(int level) {
    struct tsri_cache_sizes sizes = tsri_cache_sizes();
    return level == 1 ? sizes.l1 : level == 2 ? sizes.l2 : level == 3 ? sizes.l3 : 0;
}

// ---- CPUs -------------------------------------------------------------------------------------

// Whole CPUs of the cgroup v2 or v1 quota, rounded up; 0 where there is none.
static int cgroup_cpus(void) {
    long long quota = -1, period = 0;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (file != NULL) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1; // "max"
        fclose(file);
    } else if ((file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re")) != NULL) {
        if (fscanf(file, "%lld", &quota) != 1) quota = -1;
        fclose(file);
        if (quota > 0 && (file = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re")) != NULL) {
            if (fscanf(file, "%lld", &period) != 1) period = 0;
            fclose(file);
        }
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int tsri_num_cpus(void) {
    int count = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
    if (count < 1) count = (int)sysconf(_SC_NPROCESSORS_ONLN); // more CPUs than a cpu_set_t holds
    if (count < 1) count = 1;
    int quota = cgroup_cpus();
    return quota > 0 && quota < count ? quota : count;
}
