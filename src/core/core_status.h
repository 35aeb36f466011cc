// SPDX-License-Identifier: Apache-2.0
// Errors: every error of the library goes through tsri_fail, which keeps one sentence per thread.
#ifndef TSRI_CORE_STATUS_H
#define TSRI_CORE_STATUS_H

#include <stdbool.h>
#include <tessera/types.h>

// Stores the sentence for tsr_last_error and returns the status.
tsr_status tsri_fail(tsr_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define TSRI_TRY(expression)                                                                       \
    do {                                                                                           \
        tsr_status try_status_ = (expression);                                                     \
        if (try_status_ != TSR_OK) return try_status_;                                             \
    } while (0)

// Copies a caller's args struct into a zeroed local one. The caller's struct may be older (smaller) or newer (larger)
// than ours; a newer one is accepted only if all fields that we do not know are zero. `name` is the struct's name in
// error sentences.
tsr_status tsri_args_read(const char *op, const char *name, void *local, size_t local_bytes,
                          const void *args);

#define TSRI_ARGS_READ(op, local, args)                                                            \
    tsri_args_read((op), "args", &(local), sizeof(local), (args))

// Checks a field that has a matching has_ flag: a value without the flag is an error, not silently ignored. A value is
// any real number but 0, or an integer above 0 (many callers write -1 for "none").
#define TSRI_CHECK_FLAG(op, args, field)                                                           \
    tsri_check_flag((op), #field, (args)->has_##field, (double)(args)->field,                      \
                    _Generic((args)->field, float                                                  \
                             : true, double                                                        \
                             : true, default                                                       \
                             : false))
tsr_status tsri_check_flag(const char *op, const char *field, int32_t has_field, double value,
                           bool is_real);

#endif
