// SPDX-License-Identifier: Apache-2.0
// A case with contiguous tensors on the host and a second set of them on a context's device.
#ifndef TOOL_DEVICE_CASE_H
#define TOOL_DEVICE_CASE_H

#include "specs/spec.h"

struct device_case {
    tsr_context *ctx;
    struct op_case host, c; // c has the tensors on the device
};

// Allocates every tensor and queues the copies of the inputs on the context's stream; the host's tensors must stay
// unchanged until these are done. Release in either case.
tsr_status device_case_create(struct device_case *device, tsr_context *ctx,
                              const struct op_case *host);
void device_case_release(struct device_case *device);

// copy_in: queues the copies of the inputs again. copy_out: copies the outputs back and waits for them.
tsr_status device_case_copy_in(const struct device_case *device);
tsr_status device_case_copy_out(const struct device_case *device);

#endif
