// SPDX-License-Identifier: Apache-2.0
// Reads and writes tensors in files, in the safetensors format. This is the archive tessera_model; a program links it with
// tessera and Jansson 2.11 or later (Debian: libjansson-dev): -ltessera_model -ltessera -ljansson.
// pkg-config --libs tessera_model and CMake's tessera::tessera_model bring both.
#ifndef TESSERA_SAFETENSORS_H
#define TESSERA_SAFETENSORS_H

#include <tessera/types.h>

#ifdef __cplusplus
extern "C" {
#endif

// A file: a little-endian 64-bit header length, a JSON header, the tensors' bytes.
//
//   {"__metadata__": {"format": "pt"},
//    "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// Opening follows the format's specification strictly: a header of at most 100,000,000 bytes that begins with '{', valid
// UTF-8 without NUL, unique names, __metadata__ from strings to strings, whole non-negative numbers below 2^63, shapes
// whose product times the element size is the tensor's range, and ranges that cover the file's data without gap or
// overlap. It is stricter than the specification in two points: at most 64 dimensions, and no nesting deeper than the
// format's own three levels. Unknown header fields are ignored.
//
// Memory: the data once, misaligned tensors twice. While the header is read it takes 20 times its bytes if it lists
// many small tensors, and never more than 40 times: 4 GB for the largest header.
//
// Types that Tessera has no name for (U8, I64, BOOL, C64, F4, ... or unknown ones) are no error: such a tensor is listed
// with dtype TSR_DTYPE_NONE, and tsr_safetensors_tensor refuses it.
//
// A file is read whole, with read(), so a later change or truncation of it has no effect. Only regular files are opened.
// Reading different files, or one file after opening, is safe from any thread.
typedef struct tsr_safetensors tsr_safetensors;

// On failure *file is NULL; tsr_last_error names the file, the tensor, what was found and what was expected.
// Errors: IO (cannot be read, or is not a well-formed safetensors file),
// INVALID_ARGUMENT (NULL), OUT_OF_MEMORY.
TSR_API tsr_status tsr_safetensors_open(const char *path, tsr_safetensors **file);

// The same from a file's bytes in memory, which are copied; name stands for the path in messages.
TSR_API tsr_status tsr_safetensors_open_memory(const void *data, size_t bytes, const char *name,
                                               tsr_safetensors **file);

// Frees the file and everything borrowed from it. NULL is legal.
TSR_API void tsr_safetensors_close(tsr_safetensors *file);

// ---- Tensors, in the order of their data ------------------------------------------------------

// A tensor as the file declares it. All pointers are borrowed from the file.
typedef struct tsr_safetensors_info {
    const char *name;       // UTF-8
    const char *dtype_name; // the format's name: "F32", "BF16", "I64", ...
    tsr_dtype dtype;        // TSR_DTYPE_NONE for a type that Tessera has no name for
    int32_t ndim;           // up to 64
    const int64_t *shape;
    const void *data; // aligned to the element size where dtype is known
    size_t bytes;
} tsr_safetensors_info;

TSR_API int64_t tsr_safetensors_count(const tsr_safetensors *file);
// INVALID_ARGUMENT when index is out of range.
TSR_API tsr_status tsr_safetensors_info_get(const tsr_safetensors *file, int64_t index,
                                            tsr_safetensors_info *info);
// Index of the tensor of this name, by binary search; -1 when there is none.
TSR_API int64_t tsr_safetensors_find(const tsr_safetensors *file, const char *name);

// A contiguous view of a tensor, for input. It ends with tsr_safetensors_close.
// Errors: INVALID_ARGUMENT (no such tensor), UNSUPPORTED (a type that Tessera has no name for, or
// more than TSR_MAX_DIMS dimensions).
TSR_API tsr_status tsr_safetensors_tensor(const tsr_safetensors *file, const char *name,
                                          tsr_tensor *tensor);
TSR_API tsr_status tsr_safetensors_tensor_at(const tsr_safetensors *file, int64_t index,
                                             tsr_tensor *tensor);

// ---- Metadata ---------------------------------------------------------------------------------

typedef struct tsr_safetensors_pair {
    const char *key, *value; // UTF-8
} tsr_safetensors_pair;

TSR_API int64_t tsr_safetensors_metadata_count(const tsr_safetensors *file);
TSR_API tsr_status tsr_safetensors_metadata_get(const tsr_safetensors *file, int64_t index,
                                                tsr_safetensors_pair *pair);
// The value of a key; NULL when there is none.
TSR_API const char *tsr_safetensors_metadata(const tsr_safetensors *file, const char *key);

// ---- Writing ----------------------------------------------------------------------------------

typedef struct tsr_safetensors_entry {
    const char *name;  // UTF-8, unique, not "__metadata__"
    tsr_tensor tensor; // on the CPU; any strides, 0 and negative ones too
} tsr_safetensors_entry;

// Writes a temporary file in the same folder, flushes it to the disk and renames it, so that path always holds either
// its former content or the whole new one. A process that is killed while it writes leaves the temporary file,
// <path>.<process>.<number>.tmp. Tensors are sorted by falling element size (hence aligned), otherwise in the order
// given; the header is padded to 8 bytes with spaces; the same input gives the same bytes. path must be absent or a
// regular file; a symbolic link is followed. Errors: INVALID_ARGUMENT (names, tensors, rank), IO (the folder or disk
// refuses), OUT_OF_MEMORY.
TSR_API tsr_status tsr_safetensors_write(const char *path, const tsr_safetensors_entry *entries,
                                         int64_t num_entries, const tsr_safetensors_pair *metadata,
                                         int64_t num_metadata);

#ifdef __cplusplus
}
#endif
#endif
