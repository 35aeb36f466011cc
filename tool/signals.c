// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "signals.h"

#include <stdatomic.h>
#include <stdio.h>

static const int held[] = {SIGINT, SIGTERM, SIGHUP};

enum { NUM_HELD = sizeof held / sizeof *held };

static atomic_int seen; // free of locks: handlers may have it, and other threads

static void set_handler(void (*from)(int number), void (*to)(int number)) {
    struct sigaction action = {.sa_handler = to, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUM_HELD; i++) // one that comes while another is noted waits until it is
        sigaddset(&action.sa_mask, held[i]);
    for (int i = 0; i < NUM_HELD; i++)
        if (sigaction(held[i], NULL, &old) == 0 && old.sa_handler == from)
            sigaction(held[i], &action, NULL);
}

static void note_signal(int number) { seen = number; }

static void note_once(int number) {
    seen = number;
    set_handler(note_once, SIG_DFL);
}

void signals_hold(bool is_once) { set_handler(SIG_DFL, is_once ? note_once : note_signal); }

int signals_seen(void) { return seen; }

void signals_end(void) {
    if (seen == 0) return;
    fflush(NULL);
    signal(seen, SIG_DFL);
    raise(seen);
}

void signals_wait(sigset_t *before) {
    sigset_t waiting;
    sigemptyset(&waiting);
    for (int i = 0; i < NUM_HELD; i++) sigaddset(&waiting, held[i]);
    sigprocmask(SIG_BLOCK, &waiting, before);
}
