// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors_format.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// A new type of the format needs a line here. The size of a type without a line cannot be checked.
static const struct tsri_safetensors_dtype dtypes[] = {
    {"F64", 64, TSR_F64},
    {"F32", 32, TSR_F32},
    {"BF16", 16, TSR_BF16},
    {"F16", 16, TSR_F16},
    {"F8_E4M3", 8, TSR_E4M3},
    {"F8_E5M2", 8, TSR_E5M2},
    {"I32", 32, TSR_I32},
    {"BOOL", 8, TSR_DTYPE_NONE},
    {"U8", 8, TSR_U8},
    {"I8", 8, TSR_DTYPE_NONE},
    {"I16", 16, TSR_DTYPE_NONE},
    {"U16", 16, TSR_DTYPE_NONE},
    {"U32", 32, TSR_DTYPE_NONE},
    {"I64", 64, TSR_DTYPE_NONE},
    {"U64", 64, TSR_DTYPE_NONE},
    {"C64", 64, TSR_DTYPE_NONE},
    {"F8_E8M0", 8, TSR_DTYPE_NONE},
    {"F8_E4M3FNUZ", 8, TSR_DTYPE_NONE},
    {"F8_E5M2FNUZ", 8, TSR_DTYPE_NONE},
    {"F6_E2M3", 6, TSR_DTYPE_NONE},
    {"F6_E3M2", 6, TSR_DTYPE_NONE},
    {"F4", 4, TSR_DTYPE_NONE},
};
enum { NUM_DTYPES = sizeof dtypes / sizeof *dtypes };

const struct tsri_safetensors_dtype *tsri_safetensors_dtype_named(const char *name) {
    for (int i = 0; i < NUM_DTYPES; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const struct tsri_safetensors_dtype *tsri_safetensors_dtype_of(tsr_dtype dtype) {
    for (int i = 0; i < NUM_DTYPES; i++)
        if (dtype != TSR_DTYPE_NONE && dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

tsr_status tsri_safetensors_fail(tsr_status status, const char *path, const char *format, ...) {
    char text[400], sentence[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(sentence, sizeof sentence, "safetensors: %.300s%s%s", path != NULL ? path : "",
             path != NULL ? ": " : "", text);
    return tsr_fail(status, sentence);
}

const char *tsri_safetensors_quote(const char *text, char buffer[SAFETENSORS_QUOTE_BYTES]) {
    const size_t keep = SAFETENSORS_QUOTE_BYTES - 8;
    size_t used = 0;
    for (; text[used] != '\0' && used < keep; used++) {
        unsigned char byte = (unsigned char)text[used], next = (unsigned char)text[used + 1];
        bool is_upper = byte == 0xc2 && next >= 0x80 && next < 0xa0; // U+0080 to U+009F: two bytes
        is_upper |=
            byte >= 0x80 && byte < 0xa0 && used > 0 && (unsigned char)text[used - 1] == 0xc2;
        buffer[used] = byte < 0x20 || byte == 0x7f || is_upper ? '?' : (char)byte;
    }
    bool is_cut = text[used] != '\0';
    // Drops a multi-byte character that the cut splits: its later bytes are 10xxxxxx.
    if (is_cut && ((unsigned char)text[used] & 0xc0) == 0x80) {
        while (used > 0 && ((unsigned char)buffer[used - 1] & 0xc0) == 0x80) used--;
        if (used > 0) used--;
    }
    memcpy(buffer + used, is_cut ? "..." : "", is_cut ? 4 : 1);
    return buffer;
}
