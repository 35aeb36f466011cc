// SPDX-License-Identifier: Apache-2.0
#include "core/core_log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_system.h"

enum { IS_KNOWN = 1 << TSRI_LOG_NUM_TOPICS };

// One bit for each topic that is on.
static int read_topics(void) {
    static const char *const names[] = {[TSRI_LOG_PLAN] = "plan", [TSRI_LOG_KERNELS] = "kernels"};
    const char *wanted = tsri_environment("TSR_LOG");
    int topics = IS_KNOWN;
    for (int i = 0; wanted != NULL && i < TSRI_LOG_NUM_TOPICS; i++)
        if (strstr(wanted, names[i]) != NULL) topics |= 1 << i;
    return topics;
}

// Every call asks, and a search of the environment may be long, so the answer is read once.
bool tsri_log_is_on(enum tsri_log_topic topic) {
    static atomic_int known;
    int topics = atomic_load_explicit(&known, memory_order_relaxed);
    if (topics == 0) atomic_store_explicit(&known, topics = read_topics(), memory_order_relaxed);
    return (topics >> topic & 1) != 0;
}

void tsri_log(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    fprintf(stderr, "tessera: %s\n", line);
}
