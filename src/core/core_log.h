// SPDX-License-Identifier: Apache-2.0
// The library's only output: lines on stderr that the user asked for. TSR_LOG=plan,kernels is read once, at its first
// use.
#ifndef TSRI_CORE_LOG_H
#define TSRI_CORE_LOG_H

#include <stdbool.h>

enum tsri_log_topic { TSRI_LOG_PLAN, TSRI_LOG_KERNELS, TSRI_LOG_NUM_TOPICS };

bool tsri_log_is_on(enum tsri_log_topic topic);
void tsri_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
