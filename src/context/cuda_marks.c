// SPDX-License-Identifier: Apache-2.0
// Marks of launches: numbers that no workspace holds by chance.
#define _POSIX_C_SOURCE 200809L

#include "context/cuda_marks.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

uint64_t tsri_cuda_new_mark(void) {
    static atomic_uint_fast64_t next;
    uint64_t mark = atomic_fetch_add_explicit(&next, 0x9e3779b97f4a7c15u, memory_order_relaxed);
    if (mark == 0) { // the first
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        mark = (uint64_t)now.tv_nsec << 34 ^ (uint64_t)now.tv_sec ^ (uint64_t)getpid() << 20;
        atomic_fetch_add(&next, mark);
    }
    mark = (mark ^ mark >> 30) * 0xbf58476d1ce4e5b9u;
    mark = (mark ^ mark >> 27) * 0x94d049bb133111ebu;
    return (mark ^ mark >> 31) | 1; // never 0, as memory may be cleared to 0
}
