// SPDX-License-Identifier: Apache-2.0
// Traffic between kernels and memory, from the number of sweeps over each tensor; caches are not counted.
#ifndef TOOL_TRAFFIC_H
#define TOOL_TRAFFIC_H

#include "specs/spec.h"

struct op_traffic {
    double read_bytes, write_bytes;
    int num_passes; // launches, where each is a kernel
};

// Of the unfused form, the baseline of the operation, or of the fused one. False where the unfused form is
// not described.
bool traffic_of(const struct op_case *c, bool is_unfused, struct op_traffic *traffic);
// The same of a variant, NULL for the library's choice.
bool traffic_of_variant(const struct op_case *c, const char *variant, struct op_traffic *traffic);

// One pass that moves each present tensor once.
struct op_traffic traffic_of_tensors(const struct op_case *c);

#endif
