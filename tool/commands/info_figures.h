// SPDX-License-Identifier: Apache-2.0
// Figures of `tessera info`, in the same form for the CPU and for a CUDA device.
#ifndef TOOL_INFO_FIGURES_H
#define TOOL_INFO_FIGURES_H

#include "measure/measure.h"

const char *info_bytes(double bytes, char *buffer, size_t room); // "60 MiB"
struct json_t *info_number(double number);                       // null where it is not finite
struct json_t *info_bandwidth(const char *level, const struct bandwidth *bandwidth);

#endif
