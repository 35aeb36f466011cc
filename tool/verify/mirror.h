// SPDX-License-Identifier: Apache-2.0
// The tensors of a case on a context's device. They are copied there whole, with gaps and guards, and back after the call,
// so that the host sees a kernel's stray writes.
#ifndef TOOL_MIRROR_H
#define TOOL_MIRROR_H

#include "verify/tensors.h"

struct mirror {
    tsr_context *ctx;
    const struct tensors *host;
    struct op_case c; // with tensors on the device
    void *base[SPEC_MAX_SLOTS];
};

// Release in either case.
tsr_status mirror_create(struct mirror *mirror, tsr_context *ctx, const struct tensors *host);
void mirror_release(struct mirror *mirror);
// Waits for the call and copies everything back.
tsr_status mirror_fetch(struct mirror *mirror);

#endif
