// SPDX-License-Identifier: Apache-2.0
#include "core/core_log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tsri_log_is_on(enum tsri_log_topic topic) {
    static const char *const names[] = {[TSRI_LOG_PLAN] = "plan", [TSRI_LOG_KERNELS] = "kernels"};
    const char *wanted = getenv("TSR_LOG");
    return wanted != NULL && strstr(wanted, names[topic]) != NULL;
}

void tsri_log(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    fprintf(stderr, "tessera: %s\n", line);
}
