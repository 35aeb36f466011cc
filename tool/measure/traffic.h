// SPDX-License-Identifier: Apache-2.0
// Traffic between kernels and memory, from the number of sweeps over each tensor; caches are not counted.
#ifndef TOOL_TRAFFIC_H
#define TOOL_TRAFFIC_H

#include "specs/spec.h"

struct op_traffic {
    double read_bytes, write_bytes;
    int num_passes; // launches, if each pass is a kernel
};

// The traffic of the unfused form (the operation's baseline) or of the fused one. False if the unfused form is not
// described.
bool traffic_of(const struct op_case *c, bool is_unfused, struct op_traffic *traffic);
// The same for a variant; NULL is the library's choice.
bool traffic_of_variant(const struct op_case *c, const char *variant, struct op_traffic *traffic);

// One pass that moves each present tensor once.
struct op_traffic traffic_of_tensors(const struct op_case *c);

#endif
