// SPDX-License-Identifier: Apache-2.0
// What `tessera info` says of a CUDA device, and what it has in common with that of the CPU.
#ifndef TOOL_INFO_DEVICE_H
#define TOOL_INFO_DEVICE_H

#include "measure/measure.h"

// Returns the exit code.
int info_device(tsr_device device, bool is_json, bool is_measured);

const char *info_bytes(double bytes, char *buffer, size_t room); // "60 MiB"
struct json_t *info_bandwidth(const char *level, const struct bandwidth *bandwidth);

#endif
