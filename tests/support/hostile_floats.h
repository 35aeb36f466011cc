// SPDX-License-Identifier: Apache-2.0
// Floating-point environments that a caller may have set: other rounding, flushed subnormals, trapping exceptions,
// raised flags. A test enters one before a call and checks afterwards that it is unchanged.
#ifndef HOSTILE_FLOATS_H
#define HOSTILE_FLOATS_H

#if defined(__GLIBC__) && !defined(_GNU_SOURCE)
#error "feenableexcept needs _GNU_SOURCE ahead of the first header"
#endif
#include <fenv.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)

// MXCSR, and the control and status words of x87. Flags are the low six bits; masks are the six bits from bit 7 on
// (x87: from bit 0).
struct hostile_floats {
    const char *name;
    uint32_t mxcsr;
    uint16_t x87_control, x87_status;
};

static const struct hostile_floats hostile_floats[] = {
    {"the default", 0x1f80, 0x37f, 0},
    {"rounding up", 0x5f80, 0xb7f, 0},
    {"rounding down", 0x3f80, 0x77f, 0},
    {"rounding to zero", 0x7f80, 0xf7f, 0},
    {"FTZ and DAZ", 0x9fc0, 0x37f, 0},
    {"everything trapped", 0x0000, 0x340, 0},
    {"all flags set", 0x1fbf, 0x37f, 0x3f},
    {"flags set, and trapped", 0x003f, 0x340, 0x3f},
    {"rounding up, FTZ, DAZ, trapped, some flags", 0xc055, 0xb40, 0x15},
};

static inline struct hostile_floats hostile_now(void) {
    struct hostile_floats now = {.mxcsr = __builtin_ia32_stmxcsr()};
    __asm__ volatile("fnstcw %0" : "=m"(now.x87_control));
    __asm__ volatile("fnstsw %0" : "=m"(now.x87_status));
    now.x87_status &= 0x3f;
    return now;
}

static inline void hostile_enter(const struct hostile_floats *floats) {
    uint32_t x87[7];
    __asm__ volatile("fnstenv %0" : "=m"(x87));
    x87[0] = (x87[0] & 0xffff0000u) | floats->x87_control;
    x87[1] = (x87[1] & ~UINT32_C(0x3f)) | floats->x87_status;
    __asm__ volatile("fldenv %0" : : "m"(x87));
    __builtin_ia32_ldmxcsr(floats->mxcsr);
}

static inline bool hostile_is(const struct hostile_floats *a, const struct hostile_floats *b) {
    return a->mxcsr == b->mxcsr && a->x87_control == b->x87_control &&
           a->x87_status == b->x87_status;
}

#else

struct hostile_floats {
    const char *name;
    int rounding, flags;
    bool is_trapped;
};

static const struct hostile_floats hostile_floats[] = {
    {"the default", FE_TONEAREST, 0, false},
    {"rounding up", FE_UPWARD, 0, false},
    {"rounding down", FE_DOWNWARD, 0, false},
    {"rounding to zero", FE_TOWARDZERO, 0, false},
    {"everything trapped", FE_TONEAREST, 0, true},
    {"all flags set", FE_TONEAREST, FE_ALL_EXCEPT, false},
};

static inline struct hostile_floats hostile_now(void) {
    struct hostile_floats now = {.rounding = fegetround(), .flags = fetestexcept(FE_ALL_EXCEPT)};
#if defined(__GLIBC__)
    now.is_trapped = fegetexcept() != 0;
#endif
    return now;
}

static inline void hostile_enter(const struct hostile_floats *floats) {
    fesetenv(FE_DFL_ENV);
    feraiseexcept(floats->flags);
    fesetround(floats->rounding);
#if defined(__GLIBC__)
    if (floats->is_trapped) feenableexcept(FE_ALL_EXCEPT);
#endif
}

static inline bool hostile_is(const struct hostile_floats *a, const struct hostile_floats *b) {
    bool can_trap = false;
#if defined(__GLIBC__) && !defined(__aarch64__) // most AArch64 processors ignore traps
    can_trap = true;
#endif
    return a->rounding == b->rounding && a->flags == b->flags &&
           (!can_trap || a->is_trapped == b->is_trapped);
}

#endif

enum { NUM_HOSTILE_FLOATS = (int)(sizeof hostile_floats / sizeof *hostile_floats) };

static inline void hostile_leave(void) { hostile_enter(&hostile_floats[0]); }

#endif
