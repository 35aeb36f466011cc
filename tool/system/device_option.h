// SPDX-License-Identifier: Apache-2.0
// The commands' option --device cpu|cuda|cuda:N.
#ifndef TOOL_DEVICE_OPTION_H
#define TOOL_DEVICE_OPTION_H

#include <stdbool.h>

#include "specs/spec.h"

// Returns -1 to go on, else the exit code after a sentence on stderr: EXIT_USAGE if text names no
// device, EXIT_SKIPPED if the device is not there. NULL is the CPU.
int device_parse(const char *command, const char *text, tsr_device *device);

// Whether the operation has a variant for the device.
bool device_has_op(tsr_device device, const char *op);
bool device_has_variant(tsr_device device, const tsr_variant_info *info);
// The device's variant that speed-ups refer to; NULL for none. Static storage.
const char *device_baseline(tsr_device device, const struct op_spec *spec);

// "sm_90a" for a CUDA device, else the name of the ISA.
const char *device_arch(const tsr_context *ctx);

#endif
