// SPDX-License-Identifier: Apache-2.0
// `tessera info` for a CUDA device.
#ifndef TOOL_INFO_DEVICE_H
#define TOOL_INFO_DEVICE_H

#include "measure/measure.h"

// Returns the exit code.
int info_device(tsr_device device, bool is_json, bool is_measured);

#endif
