// SPDX-License-Identifier: Apache-2.0
#include "core/core_status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[768];

const char *tsr_last_error(void) { return last_error; }

tsr_status tsri_fail(tsr_status status, const char *format, ...) {
    char sentence[sizeof last_error]; // not last_error itself: it may be among the arguments
    va_list list;
    va_start(list, format);
    vsnprintf(sentence, sizeof sentence, format, list);
    va_end(list);
    memcpy(last_error, sentence, strlen(sentence) + 1);
    return status;
}

tsr_status tsr_fail(tsr_status status, const char *sentence) {
    return tsri_fail(status, "%s", sentence != NULL ? sentence : "");
}

const char *tsr_status_name(tsr_status status) {
    static const char *const names[] = {
        "TSR_OK",        "TSR_INVALID_ARGUMENT", "TSR_UNSUPPORTED", "TSR_OUT_OF_MEMORY",
        "TSR_WORKSPACE", "TSR_COMPILE",          "TSR_DEVICE",      "TSR_DEVICE_LOST",
        "TSR_IO",        "TSR_INTERNAL",
    };
    unsigned i = (unsigned)status;
    return i < sizeof names / sizeof *names ? names[i] : "unknown status";
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)
const char *tsr_version(void) {
    return STRING(TSR_VERSION_MAJOR) "." STRING(TSR_VERSION_MINOR) "." STRING(TSR_VERSION_PATCH);
}

tsr_status tsri_args_read(const char *op, const char *name, void *local, size_t local_bytes,
                          const void *args) {
    if (args == NULL)
        return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is NULL, expected a struct", op, name);
    size_t bytes;
    memcpy(&bytes, args, sizeof bytes);
    // All our structs end at a multiple of their alignment; any other size would cut a pointer in two.
    if (bytes < sizeof bytes || bytes > 65536 || bytes % sizeof(void *) != 0)
        return tsri_fail(TSR_INVALID_ARGUMENT,
                         "%s: %s.size is %zu, expected %zu (use the initialiser macro)", op, name,
                         bytes, local_bytes);
    const unsigned char *from = args;
    for (size_t i = local_bytes; i < bytes; i++)
        if (from[i] != 0)
            return tsri_fail(TSR_UNSUPPORTED,
                             "%s: %s.size is %zu with fields set beyond the %zu bytes that this "
                             "version of the library knows",
                             op, name, bytes, local_bytes);
    const size_t known = bytes < local_bytes ? bytes : local_bytes;
    memcpy(local, args, known);
    memset((char *)local + known, 0, local_bytes - known);
    return TSR_OK;
}

tsr_status tsri_check_flag(const char *op, const char *field, int32_t has_field, double value,
                           bool is_real) {
    if (has_field != 0 || (is_real ? value == 0 : value <= 0)) return TSR_OK;
    return tsri_fail(TSR_INVALID_ARGUMENT, "%s: %s is %g without has_%s, expected has_%s = 1 or 0",
                     op, field, value, field, field);
}
