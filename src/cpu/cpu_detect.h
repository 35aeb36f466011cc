// SPDX-License-Identifier: Apache-2.0
// What instruction sets follow from: registers that cpuid gave, and what the operating system saves of the processor's.
#ifndef TSRI_CPU_DETECT_H
#define TSRI_CPU_DETECT_H

#include "cpu/cpu_isa.h"

struct tsri_cpuid {
    unsigned leaf1_c, leaf7_b, leaf7_d, leaf7_1_a;
    unsigned long long xcr0; // 0 where it may not be asked
};
tsr_isa tsri_isa_of(const struct tsri_cpuid *id);
struct tsri_bf16_units tsri_bf16_units_of(const struct tsri_cpuid *id); // but for is_dot_fast

#endif
