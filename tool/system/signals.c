// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "system/signals.h"

#include <stdatomic.h>
#include <stdio.h>

#include "system/temporary.h"

static const int held[] = {SIGINT, SIGTERM, SIGHUP};

enum { NUM_HELD = sizeof held / sizeof *held };

static atomic_int seen; // lock-free, because handlers and other threads use it

// An ignored signal stays ignored.
static void set_handler(int number, void (*to)(int number)) {
    struct sigaction action = {.sa_handler = to, .sa_flags = SA_RESTART}, old;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < NUM_HELD; i++) // a handler runs to its end before another signal's
        sigaddset(&action.sa_mask, held[i]);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

static void set_handlers(void (*to)(int number)) {
    for (int i = 0; i < NUM_HELD; i++) set_handler(held[i], to);
}

static void end_by(int number) {
    temporary_remove_all();
    signal(number, SIG_DFL);
    raise(number); // takes effect when the handler has returned
}

static void do_nothing(int number) { (void)number; }

void signals_start(void) {
    set_handlers(end_by);
    set_handler(SIGPIPE, end_by);
    set_handler(SIGXFSZ, do_nothing); // not ignored, because started programs would inherit that
}

static void note_signal(int number) { seen = number; }

static void note_once(int number) {
    seen = number;
    set_handlers(end_by);
}

void signals_hold(bool is_once) { set_handlers(is_once ? note_once : note_signal); }

int signals_seen(void) { return seen; }

void signals_end(void) {
    if (seen == 0) return;
    fflush(NULL);
    end_by(seen);
}

void signals_wait(sigset_t *before) {
    sigset_t waiting;
    sigemptyset(&waiting);
    for (int i = 0; i < NUM_HELD; i++) sigaddset(&waiting, held[i]);
    sigprocmask(SIG_BLOCK, &waiting, before);
}
