// SPDX-License-Identifier: Apache-2.0
// Shared by the reader and the writer of safetensors: type names, limits, and the parsed header.
#ifndef TSRI_SAFETENSORS_FORMAT_H
#define TSRI_SAFETENSORS_FORMAT_H

#include <stdbool.h>
#include <tessera/safetensors.h>

#include "model/model_system.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is used in place"
#endif

#define SAFETENSORS_METADATA "__metadata__"

enum {
    SAFETENSORS_LENGTH_BYTES = 8,
    SAFETENSORS_MAX_HEADER = 100000000,
    SAFETENSORS_MAX_DIMS = 64,
    SAFETENSORS_MAX_DEPTH = 3 // header, tensor, shape
};

struct tsri_safetensors_dtype {
    const char *name;
    int bits;
    tsr_dtype dtype; // NONE: a type of the format that Tessera does not support
};

// NULL if the format does not know the name or the dtype.
const struct tsri_safetensors_dtype *tsri_safetensors_dtype_named(const char *name);
const struct tsri_safetensors_dtype *tsri_safetensors_dtype_of(tsr_dtype dtype);

// Stores the sentence "safetensors: PATH: ..." for tsr_last_error. path may be NULL.
tsr_status tsri_safetensors_fail(tsr_status status, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TSRI_TRY(expression)                                                                       \
    do {                                                                                           \
        tsr_status try_status_ = (expression);                                                     \
        if (try_status_ != TSR_OK) return try_status_;                                             \
    } while (0)

static inline size_t tsri_round_up(size_t a, size_t multiple) {
    return (a + multiple - 1) / multiple * multiple;
}

// Text from a file for an error message: control characters are replaced, and the text is cut after about 60 bytes at
// the end of a character. Returns buffer.
enum { SAFETENSORS_QUOTE_BYTES = 72 };
const char *tsri_safetensors_quote(const char *text, char buffer[SAFETENSORS_QUOTE_BYTES]);

// ---- The parsed header ------------------------------------------------------------------------

struct tsri_safetensors_tensor {
    const char *name, *dtype_name;
    const struct tsri_safetensors_dtype
        *dtype; // NULL: an unknown type, whose size could not be checked
    int64_t ndim;
    const int64_t *shape;
    int64_t begin, end; // byte offsets from the start of the data
};

// All parts lie in one block, which frees them all.
struct tsri_safetensors_header {
    void *block;
    struct tsri_safetensors_tensor *tensors; // sorted by position in the data
    int64_t num_tensors;
    tsr_safetensors_pair *metadata; // in the header's order
    int64_t num_metadata;
    const struct tsri_safetensors_tensor **by_name;
    int64_t data_bytes; // end of the last tensor
};

// Parses the header and checks everything but its agreement with the file's size. path is for messages.
tsr_status tsri_safetensors_parse(const char *path, const char *text, size_t bytes,
                                  struct tsri_safetensors_header *header);

#endif
