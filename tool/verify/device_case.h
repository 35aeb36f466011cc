// SPDX-License-Identifier: Apache-2.0
// A case whose tensors lie on the host, contiguous, with a second set of them on a context's device.
#ifndef TOOL_DEVICE_CASE_H
#define TOOL_DEVICE_CASE_H

#include "specs/spec.h"

struct device_case {
    tsr_context *ctx;
    struct op_case host, c; // c has the tensors on the device
};

// Memory for every tensor, inputs copied there in the order of the context's stream: what the host holds must stay until
// that has come so far. Release in either case.
tsr_status device_case_create(struct device_case *device, tsr_context *ctx,
                              const struct op_case *host);
void device_case_release(struct device_case *device);

// Inputs again; outputs, then waiting for them.
tsr_status device_case_copy_in(const struct device_case *device);
tsr_status device_case_copy_out(const struct device_case *device);

#endif
