// SPDX-License-Identifier: Apache-2.0
// Instruction sets from cpuid and XCR0 (a processor may have one whose registers the operating system does not save),
// and cache sizes from the kernel.
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

enum { SHORT_BYTES = 64 };

// ---- What the registers say ----------------------------------------------------------------------

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
    // Compared with the FMAs that it replaces, vdpbf16ps takes as long or twice as long on Intel's cores, half as long
    // on AMD's.
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

bool tsri_has_vnni_of(const struct tsri_cpuid *id) {
    static const unsigned avx512_vnni = 1u << 11;
    return tsri_isa_of(id) == TSR_ISA_AVX512 && has_all(id->leaf7_c, avx512_vnni);
}

static bool has_vnni;

static void find_vnni(void) {
#if defined(TSRI_HAS_VNNI_KERNELS)
    const struct tsri_cpuid id = tsri_read_cpuid();
    has_vnni = tsri_has_vnni_of(&id);
#endif
}

bool tsri_has_vnni(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_vnni);
    return has_vnni;
}

static bool far_lines;

static void find_far_lines(void) { far_lines = !tsri_read_cpuid().is_amd; }

bool tsri_gains_from_far_lines(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_far_lines);
    return far_lines;
}

// cpuid traps in a virtual machine, so it runs once; threads that race get the same answer.
tsr_isa tsri_isa_best(void) {
    static atomic_int best; // 0 (TSR_ISA_AUTO): not known yet
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

// The kernel knows which cores share a cache. sysconf does not divide by them: in a virtual machine glibc may add up
// the last-level caches of the whole host.
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
        if (type[0] == 'I') continue; // skip instruction caches
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

// A virtual machine often reports the host's whole cache, but neighbours use it in proportion to their CPUs. On two
// CPUs that report 105 MiB, non-temporal stores pay off from about 10 MiB of tensors and save a fifth to a third of the
// time from 24 MiB.
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
