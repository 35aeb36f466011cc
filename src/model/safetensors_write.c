// SPDX-License-Identifier: Apache-2.0
// Writes safetensors: Jansson makes the header, a small buffer gathers the data, and a temporary file beside the target
// takes its name when everything is on disk.
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/safetensors_format.h"

enum { GATHER_BYTES = 1 << 16, NUM_ATTEMPTS = 100, TEMPORARY_BYTES = PATH_MAX + 48 };

static tsr_status no_memory(const char *path) {
    return tsri_safetensors_fail(TSR_OUT_OF_MEMORY, path, "no memory to write it");
}

// ---- Header -----------------------------------------------------------------------------------

static tsr_status check_entry(const char *path, const tsr_safetensors_entry *entry) {
    const tsr_tensor *t = &entry->tensor;
    char quote[SAFETENSORS_QUOTE_BYTES];
    if (entry->name == NULL || strcmp(entry->name, SAFETENSORS_METADATA) == 0)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                     "a tensor's name is %s, expected "
                                     "a name",
                                     entry->name == NULL ? "NULL" : SAFETENSORS_METADATA);
    const char *name = tsri_safetensors_quote(entry->name, quote);
    if (tsri_safetensors_dtype_of(t->dtype) == NULL || t->device.type != TSR_CPU || t->ndim < 0 ||
        t->ndim > TSR_MAX_DIMS)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                     "tensor '%s' has dtype %s, device type %d and %d "
                                     "dimensions, expected a tensor on the CPU with at most %d",
                                     name, tsr_dtype_name(t->dtype), (int)t->device.type,
                                     (int)t->ndim, TSR_MAX_DIMS);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0)
            return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                         "shape[%d] of tensor '%s' is %lld, expected 0 or "
                                         "more",
                                         i, name, (long long)t->shape[i]);
    int64_t numel = tsr_tensor_numel(t);
    if (numel >= INT64_MAX / 8)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                     "tensor '%s' has a shape whose product is beyond 2^60", name);
    if (numel > 0 && t->data == NULL)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                     "tensor '%s' has NULL data, expected %lld elements", name,
                                     (long long)numel);
    return TSR_OK;
}

static int64_t tensor_bytes(const tsr_tensor *t) {
    return tsr_tensor_numel(t) * (int64_t)tsr_dtype_bytes(t->dtype);
}

// NULL if there is no memory.
static json_t *describe(const tsr_tensor *t, int64_t begin, int64_t end) {
    json_t *shape = json_array();
    for (int i = 0; i < t->ndim; i++)
        if (json_array_append_new(shape, json_integer(t->shape[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", tsri_safetensors_dtype_of(t->dtype)->name,
                     "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)end);
}

// The JSON library's definition of UTF-8: no surrogates, no overlong forms, nothing beyond U+10FFFF. Checked here
// because the library does not distinguish a bad name from a lack of memory.
static bool is_utf8(const char *text) {
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    while (*at != 0) {
        int more = *at < 0x80       ? 0
                   : *at >> 5 == 6  ? 1
                   : *at >> 4 == 14 ? 2
                   : *at >> 3 == 30 ? 3
                                    : -1;
        if (more < 0) return false;
        uint32_t code = more == 0 ? *at : *at & (0x3fu >> more);
        at++;
        for (int i = 0; i < more; i++, at++) {
            if (*at >> 6 != 2) return false;
            code = code << 6 | (*at & 0x3f);
        }
        if (code < least[more] || code > 0x10ffff || code >> 11 == 0x1b) return false;
    }
    return true;
}

// Adds value under key and takes over the reference to value.
static tsr_status add(const char *path, json_t *object, const char *key, json_t *value) {
    char quote[SAFETENSORS_QUOTE_BYTES];
    if (value == NULL) return no_memory(path);
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path, "the name '%s' occurs twice",
                                     tsri_safetensors_quote(key, quote));
    }
    if (!is_utf8(key)) {
        json_decref(value);
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path, "the name '%s' is no valid UTF-8",
                                     tsri_safetensors_quote(key, quote));
    }
    return json_object_set_new(object, key, value) == 0 ? TSR_OK : no_memory(path);
}

static tsr_status add_metadata(const char *path, json_t *root, const tsr_safetensors_pair *pairs,
                               int64_t num_pairs) {
    if (num_pairs == 0) return TSR_OK;
    json_t *metadata = json_object();
    TSRI_TRY(add(path, root, SAFETENSORS_METADATA, metadata));
    char quote[SAFETENSORS_QUOTE_BYTES];
    for (int64_t i = 0; i < num_pairs; i++) {
        if (pairs[i].key == NULL || pairs[i].value == NULL || !is_utf8(pairs[i].value))
            return tsri_safetensors_fail(
                TSR_INVALID_ARGUMENT, path, "the metadata of key '%s' is no valid UTF-8",
                tsri_safetensors_quote(pairs[i].key != NULL ? pairs[i].key : "", quote));
        TSRI_TRY(add(path, metadata, pairs[i].key, json_string(pairs[i].value)));
    }
    return TSR_OK;
}

static tsr_status add_tensors(const char *path, json_t *root, const tsr_safetensors_entry *entries,
                              const int64_t *order, int64_t num_entries) {
    int64_t begin = 0, end;
    for (int64_t i = 0; i < num_entries; i++, begin = end) {
        const tsr_safetensors_entry *entry = &entries[order[i]];
        if (__builtin_add_overflow(begin, tensor_bytes(&entry->tensor), &end))
            return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                         "the tensors have more than 2^63 bytes together");
        TSRI_TRY(add(path, root, entry->name, describe(&entry->tensor, begin, end)));
    }
    return TSR_OK;
}

// The length, the text and the padding, in one block that the caller frees.
static tsr_status make_header(const char *path, const tsr_safetensors_entry *entries,
                              const int64_t *order, int64_t num_entries,
                              const tsr_safetensors_pair *pairs, int64_t num_pairs, char **header,
                              size_t *header_bytes) {
    json_t *root = json_object();
    if (root == NULL) return no_memory(path);
    tsr_status status = add_metadata(path, root, pairs, num_pairs);
    if (status == TSR_OK) status = add_tensors(path, root, entries, order, num_entries);
    size_t text_bytes = status == TSR_OK ? json_dumpb(root, NULL, 0, JSON_COMPACT) : 0;
    size_t padded = tsri_round_up(text_bytes, 8);
    if (status == TSR_OK && padded > SAFETENSORS_MAX_HEADER)
        status = tsri_safetensors_fail(TSR_INVALID_ARGUMENT, path,
                                       "the header has %zu bytes, expected at most %d", padded,
                                       (int)SAFETENSORS_MAX_HEADER);
    if (status == TSR_OK) {
        *header_bytes = SAFETENSORS_LENGTH_BYTES + padded;
        *header = tsri_model_alloc(*header_bytes);
        if (text_bytes == 0 || *header == NULL) status = no_memory(path);
    }
    if (status == TSR_OK) {
        for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++)
            (*header)[i] = (char)(unsigned char)((uint64_t)padded >> 8 * i);
        char *text = *header + SAFETENSORS_LENGTH_BYTES;
        memset(text, ' ', padded);
        if (json_dumpb(root, text, text_bytes, JSON_COMPACT) != text_bytes)
            status = no_memory(path);
    }
    json_decref(root);
    return status;
}

// ---- Data -------------------------------------------------------------------------------------

// A buffer of bytes for the file.
struct sink {
    const char *path;
    int fd;
    size_t used;
    char buffer[GATHER_BYTES];
};

static tsr_status write_all(struct sink *sink, const char *from, size_t bytes) {
    while (bytes > 0) {
        ssize_t wrote =
            tsri_model_system.write(sink->fd, from, bytes < 1u << 30 ? bytes : 1u << 30);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0)
            return tsri_safetensors_fail(TSR_IO, sink->path, "cannot be written: %s",
                                         wrote < 0 ? strerror(errno) : "nothing is taken");
        from += wrote;
        bytes -= (size_t)wrote;
    }
    return TSR_OK;
}

static tsr_status flush(struct sink *sink) {
    size_t bytes = sink->used;
    sink->used = 0;
    return write_all(sink, sink->buffer, bytes);
}

static tsr_status put(struct sink *sink, const char *from, size_t bytes) {
    if (bytes > sizeof sink->buffer - sink->used) {
        TSRI_TRY(flush(sink));
        if (bytes >= sizeof sink->buffer) return write_all(sink, from, bytes);
    }
    memcpy(sink->buffer + sink->used, from, bytes);
    sink->used += bytes;
    return TSR_OK;
}

// The longest contiguous run of the last dimensions is written in one piece; loops count through the other dimensions.
static tsr_status put_tensor(struct sink *sink, const tsr_tensor *t) {
    if (tsr_tensor_numel(t) == 0) return TSR_OK;
    int64_t element = (int64_t)tsr_dtype_bytes(t->dtype), run = 1;
    int outer = t->ndim; // dimensions before the run
    while (outer > 0 && (t->shape[outer - 1] == 1 || t->stride[outer - 1] == run))
        run *= t->shape[--outer];
    int64_t index[TSR_MAX_DIMS] = {0};
    for (;;) {
        int64_t offset = 0;
        for (int i = 0; i < outer; i++) offset += index[i] * t->stride[i];
        TSRI_TRY(put(sink, (const char *)t->data + offset * element, (size_t)(run * element)));
        int i = outer - 1;
        while (i >= 0 && ++index[i] == t->shape[i]) index[i--] = 0;
        if (i < 0) return TSR_OK;
    }
}

// ---- The file ---------------------------------------------------------------------------------

// Follows symbolic links, so that the file is replaced and not the link. mode is the file's mode, 0 if there is no
// file.
static tsr_status resolve(const char *path, char target[PATH_MAX], mode_t *mode) {
    struct stat info;
    *mode = 0;
    if (*path == '\0')
        return tsri_safetensors_fail(TSR_IO, path, "cannot be written: the path is empty");
    if (tsri_model_system.resolve(path, target) == NULL) {
        size_t bytes = strlen(path) + 1;
        if ((errno != ENOENT && errno != ENOTDIR) || bytes > PATH_MAX)
            return tsri_safetensors_fail(TSR_IO, path, "cannot be written: %s", strerror(errno));
        memcpy(target, path, bytes);
    } else if (tsri_model_system.status_of(target, &info) != 0) {
        if (errno != ENOENT) // it was deleted meanwhile: treat it as missing
            return tsri_safetensors_fail(TSR_IO, path, "cannot be examined: %s", strerror(errno));
    } else {
        *mode = info.st_mode & 07777;
        if (!S_ISREG(info.st_mode))
            return tsri_safetensors_fail(TSR_IO, path,
                                         "is no regular file, expected one, or none yet");
        if (tsri_model_system.access(target, W_OK) != 0)
            return tsri_safetensors_fail(TSR_IO, path, "cannot be written: %s", strerror(errno));
    }
    return TSR_OK;
}

// Creates a file beside the target with O_EXCL, under a name that no other process or thread uses.
static int create_temporary(const char *target, char name[TEMPORARY_BYTES], mode_t mode) {
    static atomic_uint counter;
    for (int i = 0; i < NUM_ATTEMPTS; i++) {
        snprintf(name, TEMPORARY_BYTES, "%s.%ld.%u.tmp", target, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        int fd = tsri_model_system.open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                        mode != 0 ? mode & 0777 : 0666); // never more than before
        if (fd >= 0 && mode != 0) (void)fchmod(fd, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

// The rename is durable only when the folder is on disk too. A failure to sync it is ignored.
static void sync_folder(char *target) {
    char *slash = strrchr(target, '/');
    if (slash == target)
        slash[1] = '\0';
    else if (slash != NULL)
        *slash = '\0';
    int fd = tsri_model_system.open(slash != NULL ? target : ".", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return;
    (void)tsri_model_system.sync(fd);
    (void)tsri_model_system.close(fd);
}

static tsr_status write_temporary(struct sink *sink, const char *header, size_t header_bytes,
                                  const tsr_safetensors_entry *entries, const int64_t *order,
                                  int64_t num_entries) {
    TSRI_TRY(put(sink, header, header_bytes));
    for (int64_t i = 0; i < num_entries; i++) TSRI_TRY(put_tensor(sink, &entries[order[i]].tensor));
    TSRI_TRY(flush(sink));
    if (tsri_model_system.sync(sink->fd) != 0)
        return tsri_safetensors_fail(TSR_IO, sink->path, "cannot be written: %s", strerror(errno));
    return TSR_OK;
}

static tsr_status write_file(const char *path, const char *header, size_t header_bytes,
                             const tsr_safetensors_entry *entries, const int64_t *order,
                             int64_t num_entries) {
    char target[PATH_MAX], name[TEMPORARY_BYTES];
    mode_t mode;
    TSRI_TRY(resolve(path, target, &mode));
    struct sink *sink = tsri_model_alloc(sizeof *sink);
    if (sink == NULL) return no_memory(path);
    *sink = (struct sink){.path = path, .fd = create_temporary(target, name, mode)};
    tsr_status status = TSR_OK;
    if (sink->fd < 0) {
        status = tsri_safetensors_fail(TSR_IO, path, "cannot be written: %s", strerror(errno));
    } else {
        status = write_temporary(sink, header, header_bytes, entries, order, num_entries);
        if (tsri_model_system.close(sink->fd) != 0 && status == TSR_OK)
            status = tsri_safetensors_fail(TSR_IO, path, "cannot be written: %s", strerror(errno));
        if (status == TSR_OK && tsri_model_system.rename(name, target) != 0)
            status = tsri_safetensors_fail(TSR_IO, path, "cannot be replaced: %s", strerror(errno));
        if (status == TSR_OK)
            sync_folder(target);
        else
            (void)unlink(name);
    }
    tsri_model_system.free(sink);
    return status;
}

// Sorts by decreasing element size, else keeps the order: every tensor is then aligned without gaps.
static void sort_entries(const tsr_safetensors_entry *entries, int64_t num_entries,
                         int64_t *order) {
    int64_t used = 0;
    for (size_t bytes = 8; bytes > 0; bytes /= 2)
        for (int64_t i = 0; i < num_entries; i++)
            if (tsr_dtype_bytes(entries[i].tensor.dtype) == bytes) order[used++] = i;
}

tsr_status tsr_safetensors_write(const char *path, const tsr_safetensors_entry *entries,
                                 int64_t num_entries, const tsr_safetensors_pair *metadata,
                                 int64_t num_metadata) {
    if (path == NULL || (entries == NULL && num_entries > 0) ||
        (metadata == NULL && num_metadata > 0) || num_entries < 0 || num_metadata < 0)
        return tsri_safetensors_fail(TSR_INVALID_ARGUMENT, NULL,
                                     "path, entries or metadata is NULL, or a count is "
                                     "negative");
    for (int64_t i = 0; i < num_entries; i++) TSRI_TRY(check_entry(path, &entries[i]));
    int64_t *order = NULL;
    if ((uint64_t)num_entries < SIZE_MAX / sizeof *order)
        order = tsri_model_alloc((size_t)num_entries * sizeof *order);
    if (order == NULL) return no_memory(path);
    sort_entries(entries, num_entries, order);
    char *header = NULL;
    size_t header_bytes = 0;
    tsr_status status = make_header(path, entries, order, num_entries, metadata, num_metadata,
                                    &header, &header_bytes);
    if (status == TSR_OK)
        status = write_file(path, header, header_bytes, entries, order, num_entries);
    tsri_model_system.free(header);
    tsri_model_system.free(order);
    return status;
}
