// SPDX-License-Identifier: Apache-2.0
// Fibers with their own stacks, and what ends a launch inside one: a failure or a memory fault.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator_device.h"

enum { CANARY = 0x5a };

// ---- Fibers -----------------------------------------------------------------------------------

#if defined(__x86_64__)
void emulator_switch(void **save, void *to);
__asm__(".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,@function\n"
        "emulator_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulator_switch, .-emulator_switch\n");
// The first switch to the fiber returns into `start`.
static void *first_frame(unsigned char *stack, void (*start)(void)) {
    void **top = (void **)(void *)(stack + STACK_BYTES - 72);
    memset(top - 8, 0, 64);
    memcpy(top - 1, &start, sizeof start);
    return top - 7;
}
#elif defined(__aarch64__)
void emulator_switch(void **save, void *to);
__asm__(".text\n.globl emulator_switch\n.hidden emulator_switch\n.type emulator_switch,%function\n"
        "emulator_switch:\n"
        "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
static void *first_frame(unsigned char *stack, void (*start)(void)) {
    unsigned char *top = stack + STACK_BYTES - 64 - 160;
    memset(top, 0, 160);
    memcpy(top + 88, &start, sizeof start);
    return top;
}
#else
#error "the emulated device switches stacks on x86-64 and aarch64 alone"
#endif

static void to_scheduler(void) {
    emulator_switch(&emulator_device.fiber->stack_pointer, emulator_device.scheduler);
}

void emulator_wait_in(enum state state) {
    emulator_device.fiber->state = state;
    to_scheduler();
}

static void run_fiber(void) {
    struct fiber *fiber = emulator_device.fiber;
    emulator_device.launch->kernel->call(emulator_device.launch->params);
    if (fiber->stack[0] != CANARY || fiber->stack[1] != CANARY)
        emulator_fail("a thread's stack is too small");
    fiber->state = ENDED;
    to_scheduler();
}

void emulator_fiber_start(struct fiber *fiber) {
    fiber->stack_pointer = first_frame(fiber->stack, run_fiber);
}

void emulator_fiber_resume(struct fiber *fiber) {
    emulator_device.fiber = fiber;
    emulator_device.is_in_fiber = true;
    emulator_table.now = &fiber->seen;
    emulator_switch(&emulator_device.scheduler, fiber->stack_pointer);
    emulator_device.is_in_fiber = false;
}

static struct fiber **spare;
static int num_spare, spare_room;

struct fiber *emulator_fiber_take(void) {
    if (num_spare > 0) return spare[--num_spare];
    struct fiber *fiber = calloc(1, sizeof *fiber);
    fiber->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber->stack == MAP_FAILED) abort();
    fiber->stack[0] = fiber->stack[1] = CANARY;
    return fiber;
}

void emulator_fiber_give(struct fiber *fiber) {
    if (num_spare == spare_room) {
        spare_room = 2 * spare_room + 256;
        spare = realloc(spare, (size_t)spare_room * sizeof *spare);
    }
    spare[num_spare++] = fiber;
}

// ---- Failures ---------------------------------------------------------------------------------

static sigjmp_buf scheduler_start; // target of a failure outside a fiber

void emulator_fail(const char *format, ...) {
    char what[256];
    va_list arguments;
    struct device *d = &emulator_device;
    struct fiber *f = d->fiber;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    int used = snprintf(d->sentence, sizeof d->sentence, "kernel %s: %s", d->launch->name, what);
    if (f != NULL && used < (int)sizeof d->sentence)
        snprintf(d->sentence + used, sizeof d->sentence - (size_t)used,
                 "; thread %u of block (%u, %u, %u), after %s:%d", f->seen.thread.x,
                 f->seen.block.x, f->seen.block.y, f->seen.block.z,
                 f->seen.file != NULL ? f->seen.file : "its start", f->seen.line);
    d->has_failed = true;
    if (!d->is_in_fiber) siglongjmp(scheduler_start, 1);
    void *unused;
    emulator_switch(&unused, d->scheduler);
    abort();
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)context;
    if (!emulator_device.is_running) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    emulator_fail("an access to %p, where there is no memory", info->si_addr);
}

static void watch_faults(bool is_on) {
    static unsigned char stack[64 << 10];
    static struct sigaction before[2];
    static stack_t stack_before;
    if (is_on) {
        struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        stack_t mine = {.ss_sp = stack, .ss_size = sizeof stack};
        sigaltstack(&mine, &stack_before);
        sigaction(SIGSEGV, &action, &before[0]);
        sigaction(SIGBUS, &action, &before[1]);
    } else {
        sigaction(SIGSEGV, &before[0], NULL);
        sigaction(SIGBUS, &before[1], NULL);
        sigaltstack(&stack_before, NULL);
    }
}

void emulator_run_guarded(void (*run)(const struct launch *), const struct launch *launch) {
    emulator_device.is_running = true;
    watch_faults(true);
    if (sigsetjmp(scheduler_start, 1) == 0) run(launch);
    watch_faults(false);
    emulator_device.is_running = false;
}
