// SPDX-License-Identifier: Apache-2.0
// Memory for measuring: blocks on huge pages, counted in a table that remembers its high-water
// mark. peak_bytes of a result comes from here, not from what the library predicts.
#ifndef TOOL_ALLOCATION_H
#define TOOL_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/tessera.h>

struct allocation_table {
    double current_bytes, peak_bytes; // as asked for, without rounding to pages
};

// 2 MiB aligned, on huge pages where the system gives them, so that no contender is favoured by its
// addresses. NULL when there is none. bytes 0 is legal.
void *allocation_get(struct allocation_table *table, size_t bytes);
void allocation_release(struct allocation_table *table, void *pointer, size_t bytes);

// The same as a context's allocator.
tsr_allocator allocation_hooks(struct allocation_table *table);

// Bytes that the system could give now, and control groups let it; INFINITY where it does not say.
double allocation_available(void);
// Whether so much of it may be taken: the last tenth is not, what stands beside tensors needs room too.
static inline bool allocation_fits(double bytes, double available) {
    return bytes <= 0.9 * available;
}
// "24.8 GB"; sizes that no machine has in larger units.
const char *allocation_text(double bytes, char *buffer, size_t buffer_bytes);

#endif
