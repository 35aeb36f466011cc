// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that kernels run in: round to nearest, subnormals kept, no traps.
// Threads inherit theirs from whoever created them and callers may have changed their own, so every
// thread sets it before a kernel and puts back what it found: without that, the thread that happens to
// compute a row would decide its bits, and a caller who traps on exceptions would die of exp(-inf).
#ifndef TSRI_CPU_FLOAT_H
#define TSRI_CPU_FLOAT_H

#if defined(__x86_64__)

typedef unsigned tsri_float_environment; // MXCSR: the kernels do not touch x87

static inline tsri_float_environment tsri_float_enter(void) {
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
    return before;
}
static inline void tsri_float_leave(tsri_float_environment before) {
    __builtin_ia32_ldmxcsr(before);
}

#else
#include <fenv.h>

typedef fenv_t tsri_float_environment;

static inline tsri_float_environment tsri_float_enter(void) {
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}
static inline void tsri_float_leave(tsri_float_environment before) { fesetenv(&before); }

#endif
#endif
