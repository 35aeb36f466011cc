// SPDX-License-Identifier: Apache-2.0
// Reads safetensors: first the header, which is checked against the file's size before memory for the data is
// allocated, then the data into one aligned block. Misaligned tensors are copied, so that every view meets the
// library's contract.
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/safetensors_format.h"

struct tsr_safetensors {
    struct tsri_safetensors_header header;
    char *data;    // as in the file
    char *aligned; // copies of misaligned tensors; NULL: none
    void **views;  // the first byte of each tensor, by position
    char *path;    // for messages
};

// The source of the bytes.
struct source {
    const char *path;
    int fd; // -1: from memory
    const char *memory;
    uint64_t bytes;
};

// ---- Bytes ------------------------------------------------------------------------------------

static tsr_status read_exactly(struct source *source, char *to, size_t bytes) {
    if (source->fd < 0) {
        if (bytes > 0) memcpy(to, source->memory, bytes);
        source->memory += bytes;
        return TSR_OK;
    }
    while (bytes > 0) {
        ssize_t got = tsri_model_system.read(source->fd, to, bytes < 1u << 30 ? bytes : 1u << 30);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return tsri_safetensors_fail(TSR_IO, source->path, "cannot be read: %s",
                                         strerror(errno));
        if (got == 0)
            return tsri_safetensors_fail(TSR_IO, source->path,
                                         "ended %zu bytes early, expected %llu bytes: it was "
                                         "shortened while being read",
                                         bytes, (unsigned long long)source->bytes);
        to += got;
        bytes -= (size_t)got;
    }
    return TSR_OK;
}

static tsr_status allocate(const char *path, uint64_t bytes, const char *what, void *block) {
    void *pointer = NULL;
    if (bytes < SIZE_MAX) pointer = tsri_model_alloc((size_t)bytes);
    if (pointer == NULL)
        return tsri_safetensors_fail(TSR_OUT_OF_MEMORY, path, "no memory for %llu bytes of %s",
                                     (unsigned long long)bytes, what);
    memcpy(block, &pointer, sizeof pointer);
    return TSR_OK;
}

// ---- Opening ----------------------------------------------------------------------------------

static tsr_status read_header(struct source *source, struct tsri_safetensors_header *header) {
    unsigned char length_bytes[SAFETENSORS_LENGTH_BYTES];
    if (source->bytes < sizeof length_bytes)
        return tsri_safetensors_fail(
            TSR_IO, source->path, "has %llu bytes, expected at least the 8 of the header's length",
            (unsigned long long)source->bytes);
    TSRI_TRY(read_exactly(source, (char *)length_bytes, sizeof length_bytes));
    uint64_t length = 0;
    for (int i = SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | length_bytes[i];
    if (length < 2 || length > SAFETENSORS_MAX_HEADER)
        return tsri_safetensors_fail(TSR_IO, source->path,
                                     "the header's length is %llu, expected 2 to %d",
                                     (unsigned long long)length, (int)SAFETENSORS_MAX_HEADER);
    uint64_t rest = source->bytes - sizeof length_bytes;
    if (length > rest)
        return tsri_safetensors_fail(
            TSR_IO, source->path,
            "the header's length is %llu, expected at most the %llu bytes that "
            "follow",
            (unsigned long long)length, (unsigned long long)rest);

    char *text = NULL;
    TSRI_TRY(allocate(source->path, length, "header", &text));
    tsr_status status = read_exactly(source, text, (size_t)length);
    if (status == TSR_OK)
        status = tsri_safetensors_parse(source->path, text, (size_t)length, header);
    tsri_model_system.free(text);
    TSRI_TRY(status);
    if ((uint64_t)header->data_bytes != rest - length)
        return tsri_safetensors_fail(
            TSR_IO, source->path,
            "has %llu bytes of data, expected the %lld that its tensors cover",
            (unsigned long long)(rest - length), (long long)header->data_bytes);
    return TSR_OK;
}

static bool is_misaligned(const struct tsri_safetensors_tensor *t) {
    return t->dtype != NULL && t->dtype->dtype != TSR_DTYPE_NONE &&
           t->begin % (t->dtype->bits / 8) != 0 && t->begin < t->end;
}

// Places each tensor: in the data, or in a copy whose address is a multiple of 8 bytes.
static tsr_status place_views(const char *path, tsr_safetensors *file) {
    const struct tsri_safetensors_header *header = &file->header;
    size_t copied = 0;
    for (int64_t i = 0; i < header->num_tensors; i++) {
        const struct tsri_safetensors_tensor *t = &header->tensors[i];
        if (is_misaligned(t)) copied += tsri_round_up((size_t)(t->end - t->begin), 8);
    }
    TSRI_TRY(
        allocate(path, (uint64_t)header->num_tensors * sizeof *file->views, "views", &file->views));
    if (copied > 0) TSRI_TRY(allocate(path, copied, "aligned copies", &file->aligned));
    char *next = file->aligned;
    for (int64_t i = 0; i < header->num_tensors; i++) {
        const struct tsri_safetensors_tensor *t = &header->tensors[i];
        size_t bytes = (size_t)(t->end - t->begin);
        file->views[i] = file->data + t->begin;
        if (!is_misaligned(t)) {
            // An empty tensor gets an aligned address, even after data of odd size.
            if (bytes == 0) file->views[i] = file->data;
            continue;
        }
        file->views[i] = memcpy(next, file->data + t->begin, bytes);
        next += tsri_round_up(bytes, 8);
    }
    return TSR_OK;
}

static tsr_status open_source(struct source *source, tsr_safetensors **result) {
    tsr_safetensors *file = NULL;
    TSRI_TRY(allocate(source->path, sizeof *file, "handle", &file));
    *file = (tsr_safetensors){0};
    size_t path_bytes = strlen(source->path) + 1;
    tsr_status status = allocate(source->path, path_bytes, "name", &file->path);
    if (status == TSR_OK) {
        memcpy(file->path, source->path, path_bytes);
        status = read_header(source, &file->header);
    }
    if (status == TSR_OK)
        status = allocate(source->path, (uint64_t)file->header.data_bytes, "data", &file->data);
    if (status == TSR_OK)
        status = read_exactly(source, file->data, (size_t)file->header.data_bytes);
    if (status == TSR_OK) status = place_views(source->path, file);
    if (status != TSR_OK) {
        tsr_safetensors_close(file);
        return status;
    }
    *result = file;
    return TSR_OK;
}

tsr_status tsr_safetensors_open(const char *path, tsr_safetensors **file) {
    if (path == NULL || file == NULL)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, NULL, "%s is NULL",
                                     path == NULL ? "path" : "file");
    *file = NULL;
    // Without O_NONBLOCK, opening a FIFO would wait for its writer.
    int fd = tsri_model_system.open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) return tsri_safetensors_fail(TSR_IO, path, "cannot be opened: %s", strerror(errno));
    struct stat stat;
    tsr_status status;
    if (tsri_model_system.status(fd, &stat) != 0) {
        status = tsri_safetensors_fail(TSR_IO, path, "cannot be examined: %s", strerror(errno));
    } else if (!S_ISREG(stat.st_mode)) {
        status = tsri_safetensors_fail(TSR_IO, path, "is a %s, expected a regular file",
                                       S_ISDIR(stat.st_mode)    ? "directory"
                                       : S_ISFIFO(stat.st_mode) ? "FIFO"
                                                                : "device or socket");
    } else {
        struct source source = {path, fd, NULL, (uint64_t)stat.st_size};
        status = open_source(&source, file);
    }
    (void)tsri_model_system.close(fd);
    return status;
}

tsr_status tsr_safetensors_open_memory(const void *data, size_t bytes, const char *name,
                                       tsr_safetensors **file) {
    if (file == NULL || (data == NULL && bytes > 0))
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, NULL, "%s is NULL",
                                     file == NULL ? "file" : "data");
    *file = NULL;
    struct source source = {name != NULL ? name : "memory", -1, data, bytes};
    return open_source(&source, file);
}

void tsr_safetensors_close(tsr_safetensors *file) {
    if (file == NULL) return;
    tsri_model_system.free(file->path);
    tsri_model_system.free(file->views);
    tsri_model_system.free(file->aligned);
    tsri_model_system.free(file->data);
    tsri_model_system.free(file->header.block);
    tsri_model_system.free(file);
}

// ---- Tensors ----------------------------------------------------------------------------------

int64_t tsr_safetensors_count(const tsr_safetensors *file) { return file->header.num_tensors; }

tsr_status tsr_safetensors_info_get(const tsr_safetensors *file, int64_t index,
                                    tsr_safetensors_info *info) {
    if (index < 0 || index >= file->header.num_tensors)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, file->path,
                                     "index is %lld, expected 0 or more and below %lld",
                                     (long long)index, (long long)file->header.num_tensors);
    const struct tsri_safetensors_tensor *t = &file->header.tensors[index];
    *info = (tsr_safetensors_info){
        .name = t->name,
        .dtype_name = t->dtype_name,
        .dtype = t->dtype != NULL ? t->dtype->dtype : TSR_DTYPE_NONE,
        .ndim = (int32_t)t->ndim,
        .shape = t->shape,
        .data = file->views[index],
        .bytes = (size_t)(t->end - t->begin),
    };
    return TSR_OK;
}

static int compare_key(const void *key, const void *element) {
    const struct tsri_safetensors_tensor *const *t = element;
    return strcmp(key, (*t)->name);
}

int64_t tsr_safetensors_find(const tsr_safetensors *file, const char *name) {
    const struct tsri_safetensors_header *header = &file->header;
    if (header->num_tensors == 0) return -1;
    const struct tsri_safetensors_tensor *const *found = bsearch(
        name, header->by_name, (size_t)header->num_tensors, sizeof *header->by_name, compare_key);
    return found != NULL ? *found - header->tensors : -1;
}

tsr_status tsr_safetensors_tensor_at(const tsr_safetensors *file, int64_t index,
                                     tsr_tensor *tensor) {
    tsr_safetensors_info info;
    TSRI_TRY(tsr_safetensors_info_get(file, index, &info));
    char name[SAFETENSORS_QUOTE_BYTES], dtype[SAFETENSORS_QUOTE_BYTES];
    tsri_safetensors_quote(info.name, name);
    if (info.dtype == TSR_DTYPE_NONE)
        return tsri_safetensors_fail(TSR_UNSUPPORTED, file->path,
                                     "tensor '%s' has dtype %s, expected F64, F32, BF16, F16, "
                                     "F8_E4M3, F8_E5M2, I32 or U8",
                                     name, tsri_safetensors_quote(info.dtype_name, dtype));
    if (info.ndim > TSR_MAX_DIMS)
        return tsri_safetensors_fail(TSR_UNSUPPORTED, file->path,
                                     "tensor '%s' has %d dimensions, expected at most %d", name,
                                     (int)info.ndim, TSR_MAX_DIMS);
    *tensor = tsr_tensor_contiguous(info.data, info.dtype, info.ndim, info.shape);
    return TSR_OK;
}

tsr_status tsr_safetensors_tensor(const tsr_safetensors *file, const char *name,
                                  tsr_tensor *tensor) {
    int64_t index = tsr_safetensors_find(file, name);
    char quote[SAFETENSORS_QUOTE_BYTES];
    if (index < 0)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, file->path,
                                     "the file has no tensor '%s'",
                                     tsri_safetensors_quote(name, quote));
    return tsr_safetensors_tensor_at(file, index, tensor);
}

// ---- Metadata ---------------------------------------------------------------------------------

int64_t tsr_safetensors_metadata_count(const tsr_safetensors *file) {
    return file->header.num_metadata;
}

tsr_status tsr_safetensors_metadata_get(const tsr_safetensors *file, int64_t index,
                                        tsr_safetensors_pair *pair) {
    if (index < 0 || index >= file->header.num_metadata)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, file->path,
                                     "index is %lld, expected 0 or more and below %lld",
                                     (long long)index, (long long)file->header.num_metadata);
    *pair = file->header.metadata[index];
    return TSR_OK;
}

const char *tsr_safetensors_metadata(const tsr_safetensors *file, const char *key) {
    for (int64_t i = 0; i < file->header.num_metadata; i++)
        if (strcmp(file->header.metadata[i].key, key) == 0) return file->header.metadata[i].value;
    return NULL;
}
