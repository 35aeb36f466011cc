// SPDX-License-Identifier: Apache-2.0
// What instruction sets follow from: registers that cpuid gave, and what the operating system saves of the processor's.
#ifndef TSRI_CPU_DETECT_H
#define TSRI_CPU_DETECT_H

#include "cpu/cpu_isa.h"

struct tsri_cpuid {
    unsigned leaf1_c, leaf7_b, leaf7_d, leaf7_1_a;
    unsigned long long xcr0; // 0 where it may not be asked
    bool is_amd;
};
// All zeros where there is no cpuid. Tests that emulate a processor have their own of these two.
struct tsri_cpuid tsri_read_cpuid(void);
bool tsri_ask_for_tiles(
    void); // whether the system lends this process the tiles of AMX, from now on

enum { TSRI_CPUID_OSXSAVE = 1 << 27 }; // of leaf1_c: xgetbv may be used
tsr_isa tsri_isa_of(const struct tsri_cpuid *id);
struct tsri_bf16_units tsri_bf16_units_of(const struct tsri_cpuid *id); // but for is_dot_fast

#endif
