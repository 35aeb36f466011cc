// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file. It is opened, or refused with a sentence. Every byte that an accepted file declares
// is read, and memory stays within 64 times the file.
#include <jansson.h>
#include <tessera/safetensors.h>

#include "fuzz.h"
#include "model/model_system.h"

// ---- Memory -----------------------------------------------------------------------------------

// The need of an empty file: the handle, the JSON library's tables, 64 bytes of alignment around each block.
enum { FIXED_BYTES = 4096, HEAD = 64 };

static size_t held, peak;

static void *counted_alloc(size_t alignment, size_t bytes) {
    (void)alignment; // at most 64
    size_t *block = aligned_alloc(HEAD, HEAD + (bytes + HEAD - 1) / HEAD * HEAD);
    if (block == NULL) return NULL;
    *block = bytes;
    held += bytes;
    if (held > peak) peak = held;
    return (char *)block + HEAD;
}

static void *counted_malloc(size_t bytes) { return counted_alloc(HEAD, bytes); }

static void counted_free(void *pointer) {
    if (pointer == NULL) return;
    size_t *block = (size_t *)(void *)((char *)pointer - HEAD);
    held -= *block;
    free(block);
}

static void start_counting(void) {
    tsri_model_system.alloc = counted_alloc;
    tsri_model_system.free = counted_free;
    json_set_alloc_funcs(counted_malloc, counted_free);
    held = peak = 0;
}

// ---- The file ---------------------------------------------------------------------------------

static void touch(const tsr_safetensors *file, int64_t index) {
    tsr_safetensors_info info;
    fuzz_require(tsr_safetensors_info_get(file, index, &info) == TSR_OK);
    const volatile unsigned char *data = info.data;
    for (size_t i = 0; i < info.bytes; i++) (void)data[i];
    fuzz_require(tsr_safetensors_find(file, info.name) == index);
    tsr_tensor tensor;
    if (tsr_safetensors_tensor_at(file, index, &tensor) != TSR_OK) return;
    size_t bytes = tsr_dtype_bytes(tensor.dtype);
    fuzz_require((uintptr_t)tensor.data % bytes == 0);
    fuzz_require((uint64_t)tsr_tensor_numel(&tensor) * bytes == info.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    // The input's first 2 bytes give the header's length, because 8 random bytes would seldom be valid.
    if (bytes < 2) return 0;
    size_t length = data[0] | (size_t)data[1] << 8, file_bytes = bytes + 6;
    uint8_t *copy = malloc(file_bytes);
    fuzz_require(copy != NULL);
    for (int i = 0; i < 8; i++) copy[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(copy + 8, data + 2, bytes - 2);
    start_counting();
    tsr_fail(TSR_OK, "");
    tsr_safetensors *file;
    tsr_status status = tsr_safetensors_open_memory(copy, file_bytes, "fuzz", &file);
    free(copy);
    fuzz_require(peak <= 64 * file_bytes + FIXED_BYTES);
    if (status != TSR_OK) {
        fuzz_require(status == TSR_IO && file == NULL && *tsr_last_error() != '\0');
        fuzz_require(held == 0);
        return 0;
    }
    for (int64_t i = 0; i < tsr_safetensors_count(file); i++) touch(file, i);
    for (int64_t i = 0; i < tsr_safetensors_metadata_count(file); i++) {
        tsr_safetensors_pair pair;
        fuzz_require(tsr_safetensors_metadata_get(file, i, &pair) == TSR_OK);
        fuzz_require(tsr_safetensors_metadata(file, pair.key) == pair.value);
    }
    tsr_safetensors_close(file);
    fuzz_require(held == 0);
    return 0;
}
