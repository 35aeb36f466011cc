// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that the library computes in: round to nearest, subnormals kept, no traps.
// A thread inherits its environment from its creator, and a caller may have changed its own. So every public function
// that computes, and every thread of a parallel loop, first sets this environment and at the end restores the old one
// with its flags. Otherwise the bits of a row would depend on the thread that computes it, and exp(-inf) would kill a
// caller that traps exceptions.
//
// The compiler does not model the environment and may move arithmetic across both functions. Therefore only calls that
// the compiler cannot inline stand between them, and no arithmetic.
#ifndef TSRI_CORE_FLOAT_H
#define TSRI_CORE_FLOAT_H

#define TSRI_NOT_INLINED __attribute__((noinline))

#if defined(__x86_64__)
#include <stdint.h>

// MXCSR controls SSE and AVX. Our code does not use x87, but printf follows its rounding mode. If the x87 control word
// is not ours, the whole x87 state is saved and restored, which takes a microsecond.
typedef struct tsri_float_environment {
    uint32_t mxcsr;
    uint16_t x87_control, x87_status;
    uint32_t x87[7]; // result of fnstenv, stored only if x87_control is not ours
} tsri_float_environment;

enum { TSRI_MXCSR = 0x1f80, TSRI_X87_CONTROL = 0x37f, TSRI_X87_FLAGS = 0x3f };

static inline void tsri_float_enter(tsri_float_environment *before) {
    before->mxcsr = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(TSRI_MXCSR);
    __asm__ volatile("fnstcw %0" : "=m"(before->x87_control));
    if (before->x87_control != TSRI_X87_CONTROL) {
        const uint16_t control = TSRI_X87_CONTROL;
        // fnstenv masks all exceptions; without it, fldcw would raise the pending ones.
        __asm__ volatile("fnstenv %0" : "=m"(before->x87));
        __asm__ volatile("fldcw %0" : : "m"(control));
    }
}

static inline void tsri_float_leave(const tsri_float_environment *before) {
    if (before->x87_control != TSRI_X87_CONTROL) __asm__ volatile("fldenv %0" : : "m"(before->x87));
    __builtin_ia32_ldmxcsr(before->mxcsr);
}

static inline uint16_t tsri_x87_status(void) {
    uint16_t status;
    __asm__ volatile("fnstsw %0" : "=a"(status));
    return status;
}

// The same for calls into foreign code (a driver, a compiler), which may raise x87 flags too.
static inline void tsri_float_enter_foreign(tsri_float_environment *before) {
    tsri_float_enter(before);
    before->x87_status = tsri_x87_status();
}

static inline void tsri_float_leave_foreign(const tsri_float_environment *before) {
    if (((tsri_x87_status() ^ before->x87_status) & TSRI_X87_FLAGS) != 0) {
        enum { STATUS = 1 }; // index of the status word
        uint32_t now[7];
        __asm__ volatile("fnstenv %0" : "=m"(now));
        now[STATUS] = (now[STATUS] & ~(uint32_t)TSRI_X87_FLAGS) |
                      (before->x87_status & (uint32_t)TSRI_X87_FLAGS);
        __asm__ volatile("fldenv %0" : : "m"(now));
    }
    tsri_float_leave(before);
}

#else
#include <fenv.h>

typedef fenv_t tsri_float_environment;

static inline void tsri_float_enter(tsri_float_environment *before) {
    fegetenv(before);
    fesetenv(FE_DFL_ENV);
}
static inline void tsri_float_leave(const tsri_float_environment *before) { fesetenv(before); }
static inline void tsri_float_enter_foreign(tsri_float_environment *before) {
    tsri_float_enter(before);
}
static inline void tsri_float_leave_foreign(const tsri_float_environment *before) {
    tsri_float_leave(before);
}

#endif
#endif
