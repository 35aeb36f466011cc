// SPDX-License-Identifier: Apache-2.0
// The floating-point environment that the library computes in: round to nearest, subnormals kept, no traps.
// Threads inherit theirs from whoever created them and callers may have changed their own. So every public function that
// computes, and every thread of a parallel loop, sets it first and puts back what it found, flags and all: without that, the
// thread that happens to compute a row would decide its bits, and a caller who traps on exceptions would die of exp(-inf).
//
// A compiler knows nothing of the environment and may move arithmetic past both functions: between them stand calls that it
// cannot look into, and no arithmetic.
#ifndef TSRI_CORE_FLOAT_H
#define TSRI_CORE_FLOAT_H

#define TSRI_NOT_INLINED __attribute__((noinline))

#if defined(__x86_64__)
#include <stdint.h>

// MXCSR for SSE and AVX. Of x87, which our code does not use, printf obeys the rounding: where its control word is not ours, all
// of it is saved and restored, which takes a microsecond.
typedef struct tsri_float_environment {
    uint32_t mxcsr;
    uint16_t x87_control, x87_status;
    uint32_t x87[7]; // what fnstenv stores, where x87_control is not ours
} tsri_float_environment;

enum { TSRI_MXCSR = 0x1f80, TSRI_X87_CONTROL = 0x37f, TSRI_X87_FLAGS = 0x3f };

static inline void tsri_float_enter(tsri_float_environment *before) {
    before->mxcsr = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(TSRI_MXCSR);
    __asm__ volatile("fnstcw %0" : "=m"(before->x87_control));
    if (before->x87_control != TSRI_X87_CONTROL) {
        const uint16_t control = TSRI_X87_CONTROL;
        // fnstenv masks what traps: fldcw would raise what is pending.
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

// The same around code that is not ours, a driver or a compiler, which may raise flags of x87 too.
static inline void tsri_float_enter_foreign(tsri_float_environment *before) {
    tsri_float_enter(before);
    before->x87_status = tsri_x87_status();
}

static inline void tsri_float_leave_foreign(const tsri_float_environment *before) {
    if (((tsri_x87_status() ^ before->x87_status) & TSRI_X87_FLAGS) != 0) {
        enum { STATUS = 1 }; // the second word
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
