// SPDX-License-Identifier: Apache-2.0
// Detection by cpuid and XCR0: a processor may have an instruction set whose registers the
// operating system does not save. Cache sizes from sysconf, CPUs from affinity and cgroup quota.
#define _GNU_SOURCE
#include "cpu/cpu_isa.h"

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

static int64_t cache_bytes(int name, int64_t fallback) {
    long bytes = sysconf(name);
    return bytes > 0 ? (int64_t)bytes : fallback;
}

struct tsri_cache_sizes tsri_cache_sizes(void) {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    return (struct tsri_cache_sizes){cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10),
                                     cache_bytes(_SC_LEVEL2_CACHE_SIZE, 512 << 10),
                                     cache_bytes(_SC_LEVEL3_CACHE_SIZE, 8 << 20)};
#else
    return (struct tsri_cache_sizes){32 << 10, 512 << 10, 8 << 20};
#endif
}

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
