// SPDX-License-Identifier: Apache-2.0
// safetensors files in memory and in a temporary folder.
#ifndef SAFETENSORS_CASE_H
#define SAFETENSORS_CASE_H

#include <sys/stat.h>
#include <tessera/safetensors.h>
#include <unistd.h>

#include "test_support.h"

// ---- Files in memory --------------------------------------------------------------------------

struct bytes {
    char *data;
    size_t count;
};

static inline struct bytes make_file(uint64_t length, const char *header, size_t header_bytes,
                                     size_t data_bytes) {
    struct bytes file = {NULL, 8 + header_bytes + data_bytes};
    file.data = malloc(file.count);
    for (int i = 0; i < 8; i++) file.data[i] = (char)(unsigned char)(length >> 8 * i);
    memcpy(file.data + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) file.data[8 + header_bytes + i] = (char)i;
    return file;
}

static inline tsr_status open_text(const char *header, size_t header_bytes, size_t data_bytes,
                                   tsr_safetensors **file) {
    struct bytes bytes = make_file(header_bytes, header, header_bytes, data_bytes);
    tsr_status status = tsr_safetensors_open_memory(bytes.data, bytes.count, "test", file);
    free(bytes.data);
    return status;
}

#define TENSOR(dtype, shape, offsets)                                                              \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define X(rest) "{\"x\":" TENSOR("F32", "[2,3]", "[0,24]") rest "}"

// ---- Files on the disk ------------------------------------------------------------------------

static char folder[] = "/tmp/tessera_safetensors_XXXXXX";
static char path[100];

static inline int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/file.safetensors", folder);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); // fails when a temporary file is left behind
}

static inline struct bytes read_file(void) {
    struct bytes bytes = {malloc(1 << 20), 0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    bytes.count = fread(bytes.data, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static inline void write_small(void) {
    static float x[6] = {1, 2, 3, 4, 5, 6};
    static uint16_t y[3] = {7, 8, 9};
    const tsr_safetensors_entry entries[] = {{"x", TSR_TENSOR(x, TSR_F32, 2, 3)},
                                             {"y", TSR_TENSOR(y, TSR_F16, 3)}};
    assert_ok(tsr_safetensors_write(path, entries, 2, &(tsr_safetensors_pair){"k", "v"}, 1));
}

#endif
