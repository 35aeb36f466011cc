// SPDX-License-Identifier: Apache-2.0
// The inputs of instruction-set detection: cpuid registers, and the register state that the operating system saves.
#ifndef TSRI_CPU_DETECT_H
#define TSRI_CPU_DETECT_H

#include "cpu/cpu_isa.h"

struct tsri_cpuid {
    unsigned leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1_a;
    unsigned long long xcr0; // 0 if xgetbv is not allowed
    bool is_amd;
};
// All zeros on a processor without cpuid. Tests that emulate a processor replace these two functions.
struct tsri_cpuid tsri_read_cpuid(void);
bool tsri_ask_for_tiles(void); // whether the system grants this process the AMX tiles, from now on

enum { TSRI_CPUID_OSXSAVE = 1 << 27 }; // a bit of leaf1_c: xgetbv may be used
tsr_isa tsri_isa_of(const struct tsri_cpuid *id);
struct tsri_bf16_units tsri_bf16_units_of(const struct tsri_cpuid *id); // all but is_dot_fast
bool tsri_has_vnni_of(const struct tsri_cpuid *id);

#endif
