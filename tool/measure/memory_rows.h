// SPDX-License-Identifier: Apache-2.0
// Rows of `tessera memory`: for one variant of one case, its traffic, its memory, and its place on this machine's
// roofline.
#ifndef TOOL_MEMORY_ROWS_H
#define TOOL_MEMORY_ROWS_H

#include "measure/measure.h"
#include "measure/traffic.h"

// A field is NAN if it is unknown.
struct memory_row {
    struct result result; // times and bytes, as in bench
    bool is_baseline;     // the unfused form
    double num_launches, read_bytes, write_bytes;
    double flops, intensity;              // intensity: FLOPs per byte moved
    double bandwidth;                     // for its working set and its mix of reads and writes
    double floor_ms;                      // the larger time of FLOPs and bytes at the ceilings
    bool is_memory_bound;                 // the bytes take longer
    double attainable_tflops;             // flops / floor_ms
    double tensor_bytes, workspace_bytes; // predicted_bytes is their sum
    double traffic_saved, bytes_saved;    // shares of the baseline's traffic and memory
};

struct memory_rows {
    struct memory_row *items;
    int count, capacity;
    double fma_flops, memory_bandwidth; // ceilings: FMA rate; copies much larger than the caches
    int num_threads;                    // 0 on a GPU
    char machine[16];                   // an ISA, or "cuda:0"
};
void memory_rows_free(struct memory_rows *rows);

// Adds a row for each variant (NULL: the library's choice) of a case, the baseline's first if it is among them. The row of
// a variant that could not be measured has the figures that need no measurement.
void memory_rows_add(struct memory_rows *rows, struct measure_session *session,
                     const struct op_case *c, const char *const *variants, int count,
                     enum measure_outcome *outcomes);

bool memory_rows_write(FILE *out, const struct memory_rows *rows, enum result_format format);

#endif
