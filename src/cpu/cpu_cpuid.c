// SPDX-License-Identifier: Apache-2.0
// Reads what the processor supports (cpuid) and which of its registers the operating system saves.
#define _GNU_SOURCE
#include "cpu/cpu_detect.h"

#if TSRI_HAS_X86_ISA
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned long long read_xcr0(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}

struct tsri_cpuid tsri_read_cpuid(void) {
    struct tsri_cpuid id = {0};
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d)) return id;
    id.is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
    if (!__get_cpuid(1, &a, &b, &id.leaf1_c, &d)) return id;
    // xgetbv faults unless the operating system has enabled it; some virtual machines have not.
    if (id.leaf1_c & TSRI_CPUID_OSXSAVE) id.xcr0 = read_xcr0();
    if (__get_cpuid_count(7, 0, &a, &id.leaf7_b, &id.leaf7_c, &id.leaf7_d) && a >= 1)
        (void)__get_cpuid_count(7, 1, &id.leaf7_1_a, &b, &c, &d);
    return id;
}
#else
struct tsri_cpuid tsri_read_cpuid(void) {
    return (struct tsri_cpuid){0};
}
#endif

// Linux gives a process the AMX state only on request, and refuses if a thread's signal stack is too small for it.
bool tsri_ask_for_tiles(void) {
#if TSRI_HAS_X86_ISA && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}
