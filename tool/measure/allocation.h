// SPDX-License-Identifier: Apache-2.0
// Memory for measuring: blocks on huge pages, counted in a table that remembers its high-water
// mark. peak_bytes of a result comes from here, not from what the library predicts.
#ifndef TOOL_ALLOCATION_H
#define TOOL_ALLOCATION_H

#include <stdbool.h>
#include <stddef.h>
#include <tessera/tessera.h>

struct allocation_table {
    double current_bytes, peak_bytes; // as requested, not rounded to pages
};

// Memory aligned to 2 MiB, on huge pages if the system gives them, so that no contender profits from its
// addresses. NULL if there is none. bytes 0 is legal.
void *allocation_get(struct allocation_table *table, size_t bytes);
void allocation_release(struct allocation_table *table, void *pointer, size_t bytes);

// The same as a context's allocator.
tsr_allocator allocation_hooks(struct allocation_table *table);

// Bytes that the system and its control groups could give now; INFINITY if unknown.
double allocation_available(void);
// Whether `bytes` fit into it. A tenth stays free for memory other than tensors.
static inline bool allocation_fits(double bytes, double available) {
    return bytes <= 0.9 * available;
}
// "24.8 GB"; huge sizes have larger units.
const char *allocation_text(double bytes, char *buffer, size_t buffer_bytes);

#endif
