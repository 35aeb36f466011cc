// SPDX-License-Identifier: Apache-2.0
// Rows of `tessera memory`: one variant of one case, what it moves and takes, and where that lies under the
// ceilings of this machine.
#ifndef TOOL_MEMORY_ROWS_H
#define TOOL_MEMORY_ROWS_H

#include "measure/measure.h"
#include "measure/traffic.h"

// NAN where it is not known.
struct memory_row {
    struct result result; // times and bytes, as bench has them
    bool is_baseline;     // the unfused form
    double num_launches, read_bytes, write_bytes;
    double flops, intensity;              // FLOPs per byte moved
    double bandwidth;                     // of its working set, in the mix of its reads and writes
    double floor_ms;                      // the larger of FLOPs and bytes at the ceilings
    bool is_memory_bound;                 // the bytes are
    double attainable_tflops;             // flops in floor_ms
    double tensor_bytes, workspace_bytes; // predicted_bytes is their sum
    double traffic_saved, bytes_saved;    // shares of what the baseline moves, and takes
};

struct memory_rows {
    struct memory_row *items;
    int count, capacity;
    double fma_flops, memory_bandwidth; // ceilings: FMA rate; copies far beyond the caches
    int num_threads;                    // 0 on a GPU
    char machine[16];                   // an ISA, or "cuda:0"
};
void memory_rows_free(struct memory_rows *rows);

// Adds a row for each variant (NULL: the library's choice) of a case, the baseline's first where it is
// among them. A variant that could not be measured keeps what is known of it without.
void memory_rows_add(struct memory_rows *rows, struct measure_session *session,
                     const struct op_case *c, const char *const *variants, int count,
                     enum measure_outcome *outcomes);

bool memory_rows_write(FILE *out, const struct memory_rows *rows, enum result_format format);

#endif
