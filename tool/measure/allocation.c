// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "measure/allocation.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20 };

static size_t mapped_bytes(size_t bytes) {
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    return rounded > 0 ? rounded : HUGE_PAGE;
}

// Maps one huge page more than needed and unmaps what lies outside the aligned part.
void *allocation_get(struct allocation_table *table, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t inner = mapped_bytes(bytes), outer = inner + HUGE_PAGE;
    char *base = mmap(NULL, outer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (head > 0) munmap(base, head);
    munmap(base + head + inner, outer - head - inner);
#if defined(MADV_HUGEPAGE)
    (void)madvise(base + head, inner, MADV_HUGEPAGE);
#endif
    table->current_bytes += (double)bytes;
    table->peak_bytes = fmax(table->peak_bytes, table->current_bytes);
    return base + head;
}

void allocation_release(struct allocation_table *table, void *pointer, size_t bytes) {
    if (pointer == NULL) return;
    munmap(pointer, mapped_bytes(bytes));
    table->current_bytes -= (double)bytes;
}

static void *hook_alloc(void *user, size_t bytes, size_t alignment) {
    (void)alignment; // every block is aligned to 2 MiB, which is enough
    return allocation_get(user, bytes);
}

static void hook_free(void *user, void *pointer, size_t bytes) {
    allocation_release(user, pointer, bytes);
}

tsr_allocator allocation_hooks(struct allocation_table *table) {
    return (tsr_allocator){hook_alloc, hook_free, table};
}

double allocation_available(void) {
    int64_t bytes = tsr_memory_available(NULL);
    return bytes >= 0 ? (double)bytes : INFINITY;
}

const char *allocation_text(double bytes, char *buffer, size_t buffer_bytes) {
    static const char *const units[] = {"GB", "TB", "PB", "EB"};
    enum { LAST = sizeof units / sizeof *units - 1 };
    int unit = 0;
    double number = 1e-9 * bytes;
    while (unit < LAST && number >= 1000) {
        number /= 1000;
        unit++;
    }
    if (number >= 1000)
        snprintf(buffer, buffer_bytes, "more than 1000 %s", units[unit]);
    else
        snprintf(buffer, buffer_bytes, "%.1f %s", number, units[unit]);
    return buffer;
}
